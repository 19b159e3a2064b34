"""The law itself, against numbers computed by hand and against the references of the real-world cases."""

import collections
import dataclasses

import law
import numpy as np
import pytest
from cases import check


def same(got, want, dtype=None):
    """Compare exactly, with the dtype if one is given."""
    np.testing.assert_array_equal(got, want)
    if dtype is not None:
        assert np.asarray(got).dtype == dtype


# Order, taps, lengths


def test_a_running_sum():
    same(law.scan(lambda x, h: h + x, [np.arange(5)], [np.array(10)]), [10, 11, 13, 16, 20], np.int64)


def test_the_initial_state_is_never_a_row():
    same(law.scan(lambda h: 2 * h, outputs_info=np.array(1.0), n_steps=3), [2.0, 4.0, 8.0])


def test_order_of_arguments():
    def step(*args):
        return np.array([*args]), args[4]

    rows, _ = law.scan(step, [dict(input=np.arange(10, 15), taps=[1, -1]), np.arange(20, 25)],
                       [None, dict(initial=np.array([30, 31, 32]), taps=[-1, -3])], [np.array(40), 50])
    same(rows[0], [12, 10, 20, 32, 30, 40, 50])
    same(rows[1], [13, 11, 21, 30, 31, 40, 50])
    same(rows[2], [14, 12, 22, 31, 32, 40, 50])
    assert len(rows) == 3


@pytest.mark.parametrize("taps, first, n", [
    ([0], [0], 6),
    ([-2], [0], 4),
    ([2], [2], 4),
    ([-1, 2], [0, 3], 3),
    ([2, -1, 0], [3, 0, 1], 3),
    ([1, 1], [1, 1], 5),
])
def test_rows_that_taps_read(taps, first, n):
    rows = law.scan(lambda *args: np.array(args), [dict(input=np.arange(6), taps=taps)])
    same(rows, np.array(first) + np.arange(n)[:, None])


def test_go_backwards_starts_each_sequence_at_its_own_last_row():
    rows = law.scan(lambda x, y: np.array([x, y]), [np.arange(6), np.arange(4)], go_backwards=True)
    same(rows, [[5, 3], [4, 2], [3, 1], [2, 0]])


def test_go_backwards_keeps_the_meaning_of_a_tap():
    rows = law.scan(lambda before, now: np.array([before, now]),
                    [dict(input=np.arange(10, 20), taps=[-1, 0])], go_backwards=True)
    same(rows[0], [18, 19])
    same(law.scan(lambda a, b: 100 * a + b, [dict(input=np.arange(5), taps=[-1, 0])], go_backwards=True),
         [304, 203, 102, 1])


def test_go_backwards_with_one_step():
    same(law.scan(lambda x: x, [np.arange(5)], n_steps=1, go_backwards=True), [4])


def test_initial_rows_beyond_the_taps_are_ignored():
    same(law.scan(lambda a: a, None, [dict(initial=np.arange(5), taps=[-2])], n_steps=4), [0, 1, 0, 1])
    same(law.scan(lambda a: a + 1, None, [dict(initial=np.arange(3), taps=[-1])], n_steps=1), [[1, 2, 3]])


@pytest.mark.parametrize("call", [
    lambda: law.scan(lambda x: x, [np.arange(6)], n_steps=7),
    lambda: law.scan(lambda x, y: x, [dict(input=np.arange(6), taps=[0, 1])], n_steps=6),
    lambda: law.scan(lambda x: x, [dict(input=np.arange(2), taps=[-3])], n_steps=1),
    lambda: law.scan(lambda a: a, None, [dict(initial=np.zeros(2), taps=[-3])], n_steps=1),
    lambda: law.scan(lambda a: a, None, [dict(initial=np.array(0.0), taps=[-2])], n_steps=1),
    lambda: law.scan(lambda a: a, None, [np.zeros(2)], n_steps=-1),
    lambda: law.scan(lambda a: a, None, [np.zeros(2)]),
    lambda: law.scan(lambda a, b: a, None, [dict(initial=np.zeros(3), taps=[-1, 0])], n_steps=1),
    lambda: law.scan(lambda a, b: a, None, [dict(initial=np.zeros(3), taps=[-1, -1])], n_steps=1),
    lambda: law.scan(lambda a: a, None, [np.zeros(2), None], n_steps=1),
    lambda: law.scan(lambda a: (a, a), None, [np.zeros(2)], n_steps=1),
    lambda: law.scan(lambda k: np.zeros(k), [np.array([1, 2])]),
])
def test_calls_that_are_refused(call):
    with pytest.raises(ValueError):
        call()


def test_a_float_is_no_number_of_steps():
    with pytest.raises(TypeError):
        law.scan(lambda a: a, None, [np.zeros(2)], n_steps=2.0)


# Dtype and shape of states


def test_a_float32_start_is_converted_before_the_first_step():
    rows = law.scan(lambda x, h: np.sin(h) + x, [np.array([1e-9, 0.0])], [np.float32(0.1)])
    same(rows[0], np.sin(np.float64(np.float32(0.1))) + 1e-9, np.float64)
    assert f"{rows[0]:.10f}" == "0.0998334191"


def test_a_uint8_start_does_not_wrap_when_the_state_is_float():
    same(law.scan(lambda h: (h + 10) * 0.5, None, [np.uint8(250)], n_steps=2), [130.0, 70.0], np.float64)


def test_an_integer_state_wraps():
    same(law.scan(lambda h: h + np.uint8(10), None, [np.uint8(250)], n_steps=2), [4, 14], np.uint8)


def test_only_a_0d_start_is_broadcast():
    same(law.scan(lambda h: np.ones(3) * np.sum(h), None, [np.array(2.0)], n_steps=1), [[6.0, 6.0, 6.0]])
    with pytest.raises(ValueError, match=r"\(1,\).*\(3,\)"):
        law.scan(lambda h: np.ones(3) * np.sum(h), None, [np.full(1, 2.0)], n_steps=2)


def test_0d_rows_are_broadcast_with_taps():
    same(law.scan(lambda a, b: np.ones(2) * a + b, None, [dict(initial=np.array([1.0, 2.0]), taps=[-2, -1])],
                  n_steps=2), [[3.0, 3.0], [5.0, 5.0]])


@pytest.mark.parametrize("initial, step, x, dtype", [
    (0.0, lambda x, h: h + x, np.float32, np.float32),
    (0.0, lambda x, h: np.exp(-h) * x, np.float32, np.float32),
    (0.0, lambda x, h: h + x, np.int16, np.float64),
    (0.0, lambda x, h: 0.5 * h, np.float32, np.float64),
    (0, lambda x, h: h + x, np.uint8, np.uint8),
    (0, lambda x, h: h + 1, np.uint8, np.int64),
    (0, lambda x, h: h * 0.5, np.uint8, np.float64),
    (0, lambda x, h: h // 2 + x, np.int32, np.int32),
    (0, lambda x, h: h + x, np.float32, np.float32),
    (0j, lambda x, h: h + x, np.float32, np.complex64),
    (0j, lambda x, h: 2 * h, np.float32, np.complex128),
    (True, lambda x, h: ~h, np.float32, np.bool_),
    (np.float64(0.0), lambda x, h: h + x, np.float32, np.float64),
    (np.float32(0.0), lambda x, h: h + x, np.float64, np.float64),
    (np.float32(0.0), lambda x, h: 0.5 * h, np.float64, np.float32),
    (np.int32(0), lambda x, h: h + x, np.uint32, np.int64),
    (np.float64(0.0), lambda x, h: x, np.int32, np.float64),
])
def test_dtype_of_a_state(initial, step, x, dtype):
    assert law.scan(step, [np.ones(2, x)], [initial]).dtype == dtype
    assert law.scan(step, [np.ones(0, x)], [initial]).dtype == dtype


def test_states_find_their_dtypes_jointly():
    a, b, c = law.scan(lambda a, b, c: (b, c, c), None, [np.int8(0), np.int16(1), np.float32(2)], n_steps=3)
    same(a, [1.0, 2.0, 2.0], np.float32)
    same(b, [2.0, 2.0, 2.0], np.float32)
    same(c, [2.0, 2.0, 2.0], np.float32)


def test_python_numbers_take_what_they_are_given_later():
    for initial in ([0, 0.0, np.float32(1.0)], [np.float32(1.0), 0.0, 0][::-1]):
        for state in law.scan(lambda a, b, c: (b, c, c), None, initial, n_steps=3):
            assert state.dtype == np.float32


def test_a_python_number_beside_a_float32_state():
    count, h = law.scan(lambda k, h: (k + 1, h * 0.5 + k), None, [0, np.float32(0)], n_steps=2)
    same(count, [1, 2], np.int64)
    same(h, [0.0, 1.0], np.float64)


def test_a_value_below_the_state_is_cast():
    same(law.scan(lambda h: 3, None, [np.float32(0.5)], n_steps=2), [3.0, 3.0], np.float32)
    same(law.scan(lambda x, h: x > h, [np.arange(3)], [np.array(1)]), [0, 1, 1], np.int64)


def test_no_step_gives_empty_rows_and_the_initial_state():
    x = np.zeros((0, 3), np.float32)
    state, row = law.scan(lambda x, h: (h + x[:2], x), [x], [np.float32(1.0), None])
    assert (state.shape, state.dtype) == ((0, 2), np.float32)
    assert (row.shape, row.dtype) == ((0, 3), np.float32)
    final, ys = law.loop(lambda h, x: (h + x, h[0]), np.ones(2, np.int8), np.zeros((0, 2)))
    same(final, [1.0, 1.0], np.float64)
    assert ys.shape == (0,)
    same(law.reduce(lambda x, h: h + x, np.zeros((0, 2)), np.array(3)), [3.0, 3.0], np.float64)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_sequence_shorter_than_its_taps_offers_no_step(rows):
    out = law.scan(lambda a, b: a + b, [dict(input=np.zeros((rows, 3), np.float32), taps=[-2, 0])])
    assert (out.shape, out.dtype) == ((0, 3), np.float32)


# Copies


def test_a_step_may_write_to_its_arguments():
    def step(x, h):
        x *= 2.0
        h += x
        return h

    x, h0 = np.ones((3, 2)), np.zeros(2)
    same(law.scan(step, [x], [h0]), [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]])
    same(x, np.ones((3, 2)))
    same(h0, np.zeros(2))


def test_a_step_may_not_write_to_a_non_sequence():
    def step(x, w):
        w += x
        return w

    with pytest.raises(ValueError, match="read-only"):
        law.scan(step, [np.ones((3, 2))], None, [np.zeros(2)])


def test_a_buffer_that_the_step_returns_again_and_again():
    buffer = np.zeros(2)

    def step(x):
        buffer[:] = x
        return buffer

    same(law.scan(step, [np.arange(3.0)]), [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])


def test_arguments_are_numpy_scalars_or_arrays():
    kinds = []

    def step(x, row, h, w, n):
        kinds.append([type(a) for a in (x, row, h, w, n)])
        return h + 1

    law.scan(step, [np.zeros(2), np.zeros((2, 1))], [np.float32(0)], [np.zeros(2), 3])
    assert kinds[-1] == [np.float64, np.ndarray, np.float32, np.ndarray, int]


# Until


def test_the_row_that_fires_is_kept():
    same(law.scan(lambda h: (2 * h, law.until(2 * h > 45)), outputs_info=1), [2, 4, 8, 16, 32, 64])
    same(law.scan(lambda h: (h + 1, law.until(h > -5)), outputs_info=0), [1])


@pytest.mark.parametrize("n_steps, want", [(1, [2]), (9, [2, 3, 5, 8, 13, 21, 34, 55])])
def test_fibonacci(n_steps, want):
    same(law.scan(lambda a, b: (a + b, law.until(b >= 34)), None, dict(initial=[1, 1], taps=[-2, -1]),
                  n_steps=n_steps), want)


def test_outputs_beside_until_may_be_a_tuple_or_a_list():
    for step in (lambda x, h: (h + x, x, law.until(h > 3)), lambda x, h: ((h + x, x), law.until(h > 3)),
                 lambda x, h: ([h + x, x], law.until(h > 3))):
        h, x = law.scan(step, [np.arange(9)], [np.array(0), None])
        same(h, [0, 1, 3, 6, 10])
        same(x, [0, 1, 2, 3, 4])


def test_another_marker_can_be_assigned(monkeypatch):
    Marker = collections.namedtuple("Marker", "condition")
    monkeypatch.setattr(law, "until", Marker)
    same(law.scan(lambda h: (h + 1, Marker(h > 1)), outputs_info=0), [1, 2, 3])


# Lengths and resets


def test_lengths():
    x = np.arange(12.0).reshape(4, 3)
    same(law.scan(lambda x, h: h + x, x, np.zeros(3), lengths=[0, 2, 4]),
         [[0, 1, 2], [0, 5, 7], [0, 0, 15], [0, 0, 26]])
    same(law.scan(lambda x, h: h + x, x, np.zeros(3), lengths=[0, 2, 4], go_backwards=True),
         [[0, 4, 11], [0, 5, 19], [0, 0, 24], [0, 0, 26]])


def test_the_final_state_of_a_short_lane_is_kept():
    final, ys = law.loop(lambda h, x: (h + x, 10 * x), np.ones(3), np.ones((4, 3)), lengths=[0, 2, 4])
    same(final, [1.0, 3.0, 5.0])
    same(ys[:, 1], [10.0, 10.0, 0.0, 0.0])


def test_reset_restores_all_taps():
    rows = law.scan(lambda x, a, b: a + b + x, np.ones(5), dict(initial=np.array([1.0, 2.0]), taps=[-2, -1]),
                    reset=np.array([False, False, False, True, False]))
    same(rows, [4.0, 7.0, 12.0, 4.0, 7.0])


def test_reset_by_lanes():
    reset = np.array([[False, False], [True, False], [False, True]])
    same(law.scan(lambda x, h: h + x, np.ones((3, 2)), np.zeros(2), reset=reset), [[1, 1], [1, 2], [2, 1]])


def test_reset_belongs_to_rows_of_the_sequences():
    reset = np.array([False, True, False, False])
    for go_backwards, want in ((False, [0.0, 1.0, 3.0, 6.0]), (True, [3.0, 5.0, 1.0, 1.0])):
        same(law.scan(lambda x, h: h + x, np.arange(4.0), 0.0, reset=reset, go_backwards=go_backwards), want)


@pytest.mark.parametrize("option", [dict(lengths=[1]), dict(reset=[False, True])])
def test_until_does_not_combine(option):
    with pytest.raises(ValueError):
        law.scan(lambda x, h: (h + x, law.until(False)), np.ones((2, 1)), np.zeros(1), **option)


def test_lengths_beyond_the_steps_are_refused():
    with pytest.raises(ValueError):
        law.scan(lambda x, h: h + x, np.ones((2, 1)), np.zeros(1), lengths=[3])


# The other loops


@dataclasses.dataclass
class Cell:
    """A carry of two arrays."""

    hidden: object
    memory: object


Pair = collections.namedtuple("Pair", "a b")


def test_loop_carries_nests():
    def step(carry, x):
        cell, (count,) = carry["cell"], carry["count"]
        new = Cell(cell.hidden + x.a, cell.memory * x.b)
        return dict(cell=new, count=[count + 1]), Pair(new.hidden, None)

    init = dict(cell=Cell(np.array(0.0), np.ones(2)), count=[0])
    final, ys = law.loop(step, init, Pair(np.arange(3.0), np.full((3, 2), 2.0)))
    assert final["cell"].hidden == 3.0 and final["count"] == [3]
    same(final["cell"].memory, [8.0, 8.0])
    assert isinstance(ys, Pair) and ys.b is None
    same(ys.a, [0.0, 1.0, 3.0])


def test_loop_without_xs_and_without_ys():
    final, ys = law.loop(lambda h, x: (2 * h, None), 1, length=5)
    assert final == 32 and ys is None


def test_loop_in_reverse_puts_each_y_at_its_x():
    final, ys = law.loop(lambda c, x: (c + x, c + x), 0.0, np.arange(4.0), reverse=True)
    assert final == 6.0
    same(ys, [6.0, 6.0, 5.0, 3.0])


def test_loop_with_until():
    final, ys = law.loop(lambda h, x: (h + x, h, law.until(h + x >= 6)), 0, np.arange(10))
    assert final == 6
    same(ys, [0, 0, 1, 3])


def test_map_over_nests():
    pairs = dict(a=np.arange(3), b=np.ones(3))
    same(law.map(lambda p, y, w: p["a"] + w * p["b"] + y, [pairs, np.arange(3)], 10.0), [10.0, 12.0, 14.0])


@pytest.mark.parametrize("fold, want", [(law.reduce, 123), (law.foldl, 123), (law.foldr, 321)])
def test_folds(fold, want):
    assert fold(lambda x, acc: 10 * acc + x, np.array([1, 2, 3]), 0) == want


def test_reduce_with_two_values():
    x = np.array([3.0, 1.0, 2.0])
    assert law.reduce(lambda x, s, m: (s + x, np.maximum(m, x)), x, [0.0, -np.inf]) == (6.0, 3.0)


def test_while_loop():
    assert law.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 2.5), (0, 1)) == (5, 2.5 ** 5)
    same(law.while_loop(lambda h: False, lambda h: h * 0.5, np.array(7)), 7.0, np.float64)
    assert law.while_loop(lambda h: h < 100, lambda h: 2 * h, 1, max_steps=3) == 8


# Closed forms, and the references of the real-world cases


def test_a_linear_recurrence():
    want = 10.0 * (1.0 - 0.9 ** np.arange(1, 21))
    np.testing.assert_allclose(law.scan(lambda h: 0.9 * h + 1.0, None, 0.0, n_steps=20), want, rtol=1e-14)


def test_a_tap_of_four():
    x = np.arange(10.0)
    same(law.scan(lambda x, old: (old, x), [x], [None, dict(initial=np.zeros(4), taps=[-4])])[0],
         np.concatenate([np.zeros(4), x[:-4]]))


def test_swapped_taps():
    a, b = law.scan(lambda a, b: (b + 1, a + 1), None, [dict(initial=[1, 2], taps=[-2]),
                                                        dict(initial=[10, 20], taps=[-2])], n_steps=4)
    same(a, [11, 21, 3, 4])
    same(b, [2, 3, 12, 22])


VALUES = [path for path in check.case_paths() if not hasattr(check.load(path), "EXPECT_ERROR")]


@pytest.mark.parametrize("path", VALUES, ids=check.case_name)
def test_values_of_the_real_world_cases(path):
    bad, _ = check.run(law, path, values_only=True)
    assert not bad, bad
