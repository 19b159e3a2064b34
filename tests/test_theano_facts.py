"""Facts that the test suites of the older scan operators hold, as far as they make sense for arrays.

Numbers in comments are those of the list "TEST CASES" in the project's background notes. Where a fact has no
number of its own, the law (`tests/law.py`) gives the values, and differences of the law the gradients.

Left out, because the library has no updates, no symbolic graph and no profile text: 31 in part, 32, 34 to 37,
41 in part, 62 in part, 66. A filter (9) has an output of unknown length and is not offered.
"""

import pickle

import law
import numpy as np
import pytest

import nscan as ns

pytestmark = pytest.mark.usefixtures("mode")


def random(*shape, seed=0):
    """Return normal draws, the same at each call."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def ways(function):
    """Return a function, and the same compiled as a whole as soon as that can be done."""
    return (function, ns.function(function)) if hasattr(ns, "function") else (function,)


def assert_same(got, want):
    """Compare structure, dtypes and shapes exactly, floats to 64 ulp of the largest value."""
    if isinstance(want, (tuple, list)):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            assert_same(g, w)
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    slack = 64 * np.finfo(want.dtype).eps if want.dtype.kind in "fc" else 0.0
    np.testing.assert_allclose(got, want, rtol=slack, atol=slack * np.max(np.abs(want), initial=0.0))


def check_values(run, *arrays):
    """Run a function of the module on nscan and on the law; the arrays that it uses must not change."""
    before = [array.copy() for array in arrays]
    got = run(ns)
    assert_same(got, run(law))
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)
    return got


def numeric_gradient(f, args, k, h=1e-3):
    """Differentiate a number in argument `k` by 5-point central differences."""
    x = np.asarray(args[k], float)
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        d = np.zeros_like(x)
        d[i] = h
        values = [f(*args[:k], x + m * d, *args[k + 1:]) for m in (-2, -1, 1, 2)]
        gradient[i] = np.dot([1.0, -8.0, 8.0, -1.0], values) / (12 * h)
    return gradient


def check_gradients(loss, *args, rtol=1e-6):
    """Compare gradients of ``loss(ns, *args)`` in every argument with differences of ``loss(law, *args)``."""
    got = ns.grad(lambda *a: loss(ns, *a), argnums=tuple(range(len(args))))(*args)
    for k, gradient in enumerate(got):
        want = numeric_gradient(lambda *a: loss(law, *a), args, k)
        assert (gradient.dtype, gradient.shape) == (args[k].dtype, args[k].shape)
        slack = rtol * max(1.0, np.max(np.abs(want), initial=0.0))
        np.testing.assert_allclose(gradient, want, rtol=rtol, atol=slack)


# Forward


@pytest.mark.parametrize("x0", [3.0, np.float64(3.0), np.array(3.0)])
def test_powers_of_two_without_a_sequence(x0):  # 1
    out = ns.scan(lambda x: 2.0 * x, outputs_info=x0, n_steps=5)
    np.testing.assert_array_equal(out, 3.0 * 2.0 ** np.arange(1, 6))


def test_return_list_gives_a_list_of_one():  # 1
    out = ns.scan(lambda x: 2.0 * x, outputs_info=[np.array(1.0)], n_steps=3, return_list=True)
    assert isinstance(out, list) and len(out) == 1
    np.testing.assert_array_equal(out[0], [2.0, 4.0, 8.0])


def test_only_a_non_sequence():  # 2
    w = np.arange(6.0).reshape(2, 3)

    def stacked(w):
        return ns.scan(lambda w: w, non_sequences=[w], n_steps=2)

    np.testing.assert_array_equal(stacked(w), np.stack([w, w]))
    np.testing.assert_array_equal(ns.grad(lambda w: np.sum(stacked(w)))(w), np.full((2, 3), 2.0))


def scalar_rnn(lib, u, x0, w_in, w, **options):
    return lib.scan(lambda u, x, w_in, w: u * w_in + x * w, [u], [x0], [w_in, w], **options)


def test_one_sequence_one_state_two_weights():  # 3
    u = np.array([1.0, 2.0, 3.0, 4.0])
    out = check_values(lambda lib: scalar_rnn(lib, u, np.array(0.5), np.array(2.0), np.array(0.5)), u)
    np.testing.assert_array_equal(out, [2.25, 5.125, 8.5625, 12.28125])


def test_closed_over_weights():  # 3, with shared variables
    u, w_in, w = np.array([1.0, 2.0, 3.0, 4.0]), np.array(2.0), np.array(0.5)
    out = ns.scan(lambda u, x: u * w_in + x * w, [u], [np.array(0.5)])
    np.testing.assert_array_equal(out, [2.25, 5.125, 8.5625, 12.28125])


def two_inputs(lib, u1, u2, x0, y0, w_in1):
    w, w_in2, w_out = random(2, 2, seed=1), random(2, seed=2), random(2, seed=3)

    def step(u1, u2, x, y, w_in1):
        return np.dot(u1, w_in1) + u2 * w_in2 + np.dot(x, w), 0.3 * y + np.dot(x, w_out)

    return lib.scan(step, [u1, u2], [x0, y0], [w_in1])


def test_two_sequences_and_two_states():  # 4
    u1, u2 = random(3, 2), random(3)
    x, y = check_values(lambda lib: two_inputs(lib, u1, u2, random(2), np.array(0.1), random(2, 2)), u1, u2)
    assert x.shape == (3, 2) and y.shape == (3,)


def many_taps(lib, u1, u2, x0, y0, w_in1, go_backwards=False):
    w, w_in2, w_out = 0.4 * random(2, 2, seed=1), random(2, seed=2), random(2, seed=3)

    def step(u1, u2_before, u2_now, u2_after, x, y1, y3, w_in1):
        return (np.dot(u1, w_in1) + (u2_now + u2_before * u2_after) * w_in2 + np.dot(x, w),
                0.3 * (y1 + y3) * np.dot(x, w_out), np.dot(u1, w_in1))

    return lib.scan(step, [u1, dict(input=u2, taps=[-1, 0, 1])], [x0, dict(initial=y0, taps=[-1, -3]), None],
                    [w_in1], go_backwards=go_backwards)


MANY_TAPS = (random(4, 2), random(6), random(2), random(3), random(2, 2))


@pytest.mark.parametrize("go_backwards", [False, True])
def test_taps_of_sequences_and_states_with_a_row(go_backwards):  # 5
    check_values(lambda lib: many_taps(lib, *MANY_TAPS, go_backwards), *MANY_TAPS)


def test_taps_given_as_a_single_int():  # 6
    u, x0 = np.array([1.0, 2.0, 3.0, 4.0]), np.array([5.0, 6.0])
    out = ns.scan(lambda u, x1, x2: 2.0 * u + 3.0 * x1 + x2, [dict(input=u, taps=-2)],
                  [dict(initial=x0, taps=[-1, -2])])
    np.testing.assert_array_equal(out, [2.0 + 18.0 + 5.0, 4.0 + 75.0 + 6.0])


def test_taps_in_the_past_and_in_the_future():  # 6
    u, x0 = np.arange(1.0, 7.0), np.array([5.0, 6.0])
    out = ns.scan(lambda before, after, x1, x2: 2.0 * (before + after) + 3.0 * x1 + x2,
                  [dict(input=u, taps=[-2, 2])], [dict(initial=x0, taps=[-1, -2])])
    np.testing.assert_array_equal(out, [12.0 + 18.0 + 5.0, 16.0 + 105.0 + 6.0])


@pytest.mark.parametrize("taps, x, want", [
    ([-1], np.arange(5), [0, 1, 2, 3]),
    (-1, np.arange(5), [0, 1, 2, 3]),
    ([2], np.arange(6), [2, 3, 4, 5]),
])
def test_one_tap_cuts_the_sequence(taps, x, want):  # 7
    out = ns.scan(lambda x: x, [dict(input=x, taps=taps)])
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out, want)


def test_first_of_two_past_taps():  # 7
    out = ns.scan(lambda a, b: a, [dict(input=np.arange(1, 6), taps=[-2, -1])])
    np.testing.assert_array_equal(out, [1, 2, 3])


def test_future_tap_with_one_step():  # 7, 15
    out = ns.scan(lambda x, h: h + x, [dict(input=np.arange(20), taps=[2])], [0], n_steps=1)
    assert out.dtype == np.int64
    np.testing.assert_array_equal(out, [2])


def test_go_backwards_recurrence():  # 8
    u = np.array([1.0, 2.0, 3.0, 4.0])
    out = scalar_rnn(ns, u, np.array(0.5), np.array(2.0), np.array(0.5), go_backwards=True)
    np.testing.assert_array_equal(out, [8.25, 10.125, 9.0625, 6.53125])


def test_go_backwards_keeps_the_meaning_of_taps():  # 8
    out = ns.scan(lambda before, now: 100 * before + now, [dict(input=np.arange(5), taps=[-1, 0])],
                  go_backwards=True)
    np.testing.assert_array_equal(out, [304, 203, 102, 1])


def test_map_equals_the_vector_operation():  # 9
    x = random(20)
    np.testing.assert_allclose(ns.map(lambda x: np.sin(x) + x ** 2, [x]), np.sin(x) + x ** 2, atol=1e-14)


@pytest.mark.parametrize("name", ["reduce", "foldl", "foldr"])
def test_folds_sum_and_keep_the_last_value_only(name):  # 9
    out = getattr(ns, name)(lambda x, total: x + total, [np.arange(10.0)], [np.array(0.0)])
    assert np.shape(out) == () and out == 45.0


@pytest.mark.parametrize("name, want", [("reduce", 123), ("foldl", 123), ("foldr", 321)])
def test_order_of_folds(name, want):  # 9
    assert getattr(ns, name)(lambda x, total: 10 * total + x, np.array([1, 2, 3]), np.array(0)) == want


def test_the_same_variable_returned_twice():  # 10
    def step(x, h):
        total = x + h
        return total, total

    row, state = check_values(lambda lib: lib.scan(step, [np.arange(5.0)], [None, np.array(1.0)]))
    np.testing.assert_array_equal(row, state)
    assert not np.shares_memory(row, state)


@pytest.mark.parametrize("tap", [-3, -2, -1])
def test_outputs_that_are_inputs_or_views_of_them(tap):  # 11
    x = random(6, 2)
    initial = random(-tap, 2) if tap < -1 else random(2)

    def step(row, old, w):
        return old * 1, row, row[::-1], old, w[0]

    check_values(lambda lib: lib.scan(step, [x], [dict(initial=initial, taps=[tap]), None, None, None, None],
                                      [random(3, 2, seed=4)]), x, initial)


@pytest.mark.parametrize("state_first", [True, False])
def test_a_long_tap_whose_old_value_is_a_row(state_first):  # 12
    x = np.arange(10.0).reshape(-1, 1)
    want = np.zeros((10, 1))
    want[4:] = x[:-4]
    entries = [dict(initial=np.zeros((4, 1)), taps=[-4]), None]
    if state_first:
        out = ns.scan(lambda x, old: (x, old), [x], entries)[1]
    else:
        out = ns.scan(lambda x, old: (old, x), [x], entries[::-1])[0]
    np.testing.assert_array_equal(out, want)


def test_a_scan_as_the_sequence_of_another():  # 13
    def two_loops(x0):
        states = ns.scan(lambda x: 2.0 * x, outputs_info=x0, n_steps=4)
        return ns.scan(lambda x, total: total + x, states, np.array(0.0))

    np.testing.assert_array_equal(two_loops(np.array(1.0)), [2.0, 6.0, 14.0, 30.0])
    assert ns.grad(lambda x: two_loops(x)[-1])(np.array(1.0)) == 30.0


def nested(lib, x, h0, w):
    def outer(row, h, w):
        inner = lib.scan(lambda x, g: np.tanh(w * g + x), [row], [h])
        return inner[-1]

    return lib.scan(outer, [x], [h0], [w])


def test_nested_scan_and_its_gradient():  # 13
    args = random(3, 4), np.array(0.2), np.array(0.7)
    check_values(lambda lib: nested(lib, *args))
    check_gradients(lambda lib, *a: np.sum(nested(lib, *a) ** 2), *args)


@pytest.mark.parametrize("shape", [(1, 4), (3, 1), (1, 1)])
def test_axes_of_size_one_are_ordinary(shape):  # 14
    def rnn(lib, x, h0, w):
        return lib.scan(lambda x, h, w: np.tanh(x + h @ w), [x], [h0], [w])

    args = random(5, *shape), random(*shape, seed=1), random(shape[1], shape[1])
    check_values(lambda lib: rnn(lib, *args), *args)
    check_gradients(lambda lib, *a: np.sum(rnn(lib, *a) ** 2), *args)


def test_a_python_integer_as_initial_value():  # 15
    total, count = ns.scan(lambda total, k: ((total + k, k + 1), ns.until(total + k > 100)),
                           outputs_info=[0, 0], n_steps=100)
    assert total.dtype == count.dtype == np.int64
    np.testing.assert_array_equal(total, np.cumsum(np.arange(15)))
    np.testing.assert_array_equal(count, np.arange(1, 16))


def test_an_integer_initial_value_with_a_float_step():  # 15
    for initial in (0, np.array(0)):
        out = ns.scan(lambda h: 0.5 * h + 1.0, outputs_info=initial, n_steps=3)
        assert out.dtype == np.float64
        np.testing.assert_array_equal(out, [1.0, 1.5, 1.75])


def test_a_state_that_ignores_itself_has_all_rows():  # 16
    out = ns.scan(lambda h: np.ones(3), outputs_info=[np.zeros(3)], n_steps=4)
    np.testing.assert_array_equal(out, np.ones((4, 3)))
    row, state = ns.scan(lambda h, w: (w + 1.0, 2.0 * w), [], [None, np.zeros(2)], [np.arange(2.0)],
                         n_steps=3)
    np.testing.assert_array_equal(row, np.tile(np.arange(1.0, 3.0), (3, 1)))
    np.testing.assert_array_equal(state, np.tile([0.0, 2.0], (3, 1)))


@pytest.mark.parametrize("initial", [np.ones(2), dict(initial=np.ones(2)), dict(initial=np.ones(2), taps=-1)])
def test_one_step_keeps_the_leading_axis(initial):  # 17
    state, row = ns.scan(lambda h: (2.0 * h, 3.0), outputs_info=[initial, None], n_steps=1)
    np.testing.assert_array_equal(state, [[2.0, 2.0]])
    np.testing.assert_array_equal(row, [3.0])


def test_one_step_backwards_reads_the_last_row():  # 17
    out = ns.scan(lambda x: x, [np.arange(5.0)], n_steps=1, go_backwards=True)
    np.testing.assert_array_equal(out, [4.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("n_steps, rows", [(0, 3), (None, 0)])
def test_no_step_gives_empty_outputs(dtype, n_steps, rows):  # 18
    x = np.ones((rows, 2), dtype)
    state, row = ns.scan(lambda x, h: (h + x, x[0]), [x], [np.ones(2, dtype), None], n_steps=n_steps)
    assert (state.shape, state.dtype) == ((0, 2), dtype)
    assert (row.shape, row.dtype) == ((0,), dtype)


def test_final_values_without_steps_are_the_initial_ones():  # 18
    for _ in range(3):
        final, ys = ns.loop(lambda h, x: (np.float64(2.0) * h, h), np.float32(3.0), np.zeros(0))
        assert final == 3.0 and np.asarray(final).dtype == np.float64 and ys.shape == (0,)
        assert ns.reduce(lambda x, h: h + x, np.zeros(0), np.array(3.0)) == 3.0
    final, _ = ns.loop(lambda h, x: (2.0 * h, h), np.float64(3.0), np.zeros(1))
    assert final == 6.0


def test_constant_step():  # 19
    np.testing.assert_array_equal(ns.scan(lambda: 2, n_steps=3), [2, 2, 2])
    out = ns.scan(lambda h: np.float64(2.0), outputs_info=[0.0], n_steps=3)
    np.testing.assert_array_equal(out, [2.0, 2.0, 2.0])


def test_fewer_steps_than_rows():  # 20
    x, y = random(30, 2), random(25)
    a, b = check_values(lambda lib: lib.scan(lambda x, y, h: (h + x * y, y), [x, y], [np.zeros(2), None],
                                             n_steps=20))
    assert a.shape == (20, 2) and b.shape == (20,)


def test_more_steps_than_rows_is_an_error():  # 20
    with pytest.raises(ValueError, match="(?s)(?=.*10)(?=.*20)"):
        ns.scan(lambda x: x, [np.arange(10.0)], n_steps=20)


def plain_sum(x):
    return np.sum(ns.scan(lambda x, h: np.tanh(x + h), [x], [np.array(0.0)]) ** 2)


def test_compiled_functions_and_gradients_pickle():  # 22
    x = random(6)
    again = pickle.loads(pickle.dumps(ns.grad(plain_sum)))
    np.testing.assert_array_equal(again(x), ns.grad(plain_sum)(x))
    for f in ways(plain_sum):
        np.testing.assert_allclose(f(x), plain_sum(x), rtol=1e-14)
        assert pickle.loads(pickle.dumps(f))(x) == f(x)


def test_an_inner_loop_of_changing_length():  # 23
    def inner(n):
        return ns.while_loop(lambda c: c[0] < n - 1, lambda c: (c[0] + 1, c[1] + c[0] + 1), (0, 0))[1]

    np.testing.assert_array_equal(ns.map(inner, [np.array([3, 2, 1])]), [3, 1, 0])


def test_an_inner_scan_whose_n_steps_is_computed():  # 23
    def inner(n):
        return np.sum(ns.scan(lambda z: z + 1, None, [0], n_steps=n - 1))

    np.testing.assert_array_equal(ns.map(inner, [np.array([3, 2, 1])]), [3, 1, 0])


def test_a_batch_of_scans_equals_a_loop_of_scans():  # 24
    starts = random(5, 3)

    def powers(x0):
        return ns.scan(lambda x: x * 0.5 + 1.0, outputs_info=x0, n_steps=4)

    np.testing.assert_allclose(ns.map(powers, [starts]), np.stack([powers(x) for x in starts]), rtol=1e-14)


def test_forward_variables_of_a_markov_model():  # 25
    start, move = np.log([[0.3, 0.7]]), np.log([[0.9, 0.1], [0.4, 0.6]])
    like = np.log([[[0.5, 0.2]], [[0.1, 0.8]]])

    def step(ll, alpha, move):
        return ll + ns.logsumexp(np.expand_dims(alpha, 2) + move, axis=1)

    out = ns.scan(step, [like], [start], [move])
    first = np.array([0.3 * 0.9 + 0.7 * 0.4, 0.3 * 0.1 + 0.7 * 0.6]) * [0.5, 0.2]
    second = np.array([first @ [0.9, 0.4], first @ [0.1, 0.6]]) * [0.1, 0.8]
    np.testing.assert_allclose(out, np.log([[first], [second]]), rtol=1e-13)


# Until


def test_length_of_a_loop_that_stops_itself():  # 21, 26
    x = np.zeros(50)
    x[23] = 4.0
    out = ns.scan(lambda x: (x + 1.0, ns.until(x > 3.0)), [x])
    assert out.shape == (24,)
    np.testing.assert_array_equal(out, x[:24] + 1.0)


@pytest.mark.parametrize("n_steps, want", [(None, 6), (1000, 6), (3, 3), (1, 1)])
def test_powers_of_two_until_a_bound(n_steps, want):  # 27
    out = ns.scan(lambda x: (2 * x, ns.until(2 * x > 45)), outputs_info=[1], n_steps=n_steps)
    np.testing.assert_array_equal(out, [2, 4, 8, 16, 32, 64][:want])


@pytest.mark.parametrize("n_steps, want", [(None, 55), (1000, 55), (1, 2)])
def test_fibonacci_until(n_steps, want):  # 27
    out = ns.scan(lambda a, b: (a + b, ns.until(b >= 34)),
                  outputs_info=dict(initial=np.array([1, 1]), taps=[-2, -1]), n_steps=n_steps)
    assert out[-1] == want


@pytest.mark.parametrize("x, want", [(np.arange(100), 10), (np.arange(1), 1)])
def test_last_value_of_a_map_that_stops(x, want):  # 28
    assert ns.scan(lambda x: (x + 1, ns.until(x + 1 >= 10)), [x])[-1] == want


def test_last_value_of_no_step():  # 28, 30
    out = ns.scan(lambda x: (x + 1, ns.until(x + 1 >= 10)), [np.zeros(0)])
    assert out.shape == (0,)
    with pytest.raises(IndexError):
        out[-1]


def test_until_reads_a_captured_variable():  # 29
    limit = np.array(10.0)
    out = ns.scan(lambda h: (h + 3.0, ns.until(h + 3.0 > limit)), outputs_info=[np.array(0.0)])
    np.testing.assert_array_equal(out, [3.0, 6.0, 9.0, 12.0])


@pytest.mark.parametrize("n_steps, rows", [(200, 9), (20, 9), (5, 5), (1, 1), (0, 0)])
def test_state_and_row_of_a_loop_that_stops(n_steps, rows):  # 30
    x = np.arange(200.0)
    state, row = ns.scan(lambda x, h: ((h + x, 2.0 * x), ns.until(h + x > 30.0)), [x], [np.array(0.0), None],
                         n_steps=n_steps)
    np.testing.assert_array_equal(state, np.cumsum(x)[:rows])
    np.testing.assert_array_equal(row, 2.0 * x[:rows])


@pytest.mark.parametrize("bounds", [(30.0, 30.0), (30.0, 60.0)])
def test_two_loops_with_equal_or_different_conditions(bounds):  # 31
    def powers(x, bound):
        return ns.scan(lambda h: (2.0 * h, ns.until(2.0 * h > bound)), outputs_info=[x])

    def sums(x):
        return tuple(np.sum(powers(x, bound)) for bound in bounds)

    want = {30.0: 62.0, 60.0: 126.0}
    for f in ways(sums):
        assert f(np.array(1.0)) == tuple(want[bound] for bound in bounds)


def test_until_is_a_post_test():  # 26: the row that fires is kept
    out = ns.scan(lambda h: (h + 1, ns.until(h > -1)), outputs_info=[np.array(0)])
    np.testing.assert_array_equal(out, [1])


# Weights that change from step to step (33: as states)


def test_weights_updated_in_every_step():  # 33
    def step(u, y3, y2, y1, w1, w2):
        y = u * w1 + 0.1 * (y3 * w2 + y1) * np.sum(y2)
        return y, w1 + 0.1, 0.9 * w2

    u, start = random(6, 2), random(3, 2)
    states = [dict(initial=start, taps=[-3, -2, -1]), np.array(1.0), random(2)]
    check_values(lambda lib: lib.scan(step, [u], states), u, start)


# Gradient


def test_gradient_of_a_scalar_network():  # 38
    def loss(lib, u, x0, w_in, w):
        return np.sum(lib.scan(lambda u, x, w_in, w: np.tanh(u * w_in + x * w), [u], [x0], [w_in, w]) ** 2)

    check_gradients(loss, random(10), np.array(0.3), np.array(0.8), np.array(0.9))


def test_gradient_with_vector_and_scalar_states():  # 39
    def loss(lib, *args):
        x, y = two_inputs(lib, *args)
        return np.sum(np.tanh(x)) + np.sum(y ** 2)

    check_gradients(loss, random(3, 2), random(3), random(2), np.array(0.1), random(2, 2))


def test_gradient_in_an_input_that_the_cost_does_not_use():  # 39, 48
    def loss(u, x0, y0):
        x, y = ns.scan(lambda u, x, y: (np.tanh(u + x), 0.5 * y), [u], [x0, y0])
        return np.sum(x ** 2)

    unused = ns.grad(loss, argnums=2)(random(4), np.array(0.1), random(3))
    np.testing.assert_array_equal(unused, np.zeros(3))


@pytest.mark.parametrize("go_backwards", [False, True])
def test_gradient_with_taps_and_a_row(go_backwards):  # 40
    def loss(lib, *args):
        x, y, z = many_taps(lib, *args, go_backwards)
        return np.sum(x ** 2) + np.sum(y) + np.sum(z[1:3] ** 3)

    check_gradients(loss, *MANY_TAPS)


def test_gradient_beside_an_integer_sequence():  # 41
    k = np.array([2, 0, 1, 1])

    def loss(lib, w):
        h, picked = lib.scan(lambda k, h, w: (np.tanh(h + k * w[k]), k + 1), [k], [np.array(0.1), None], [w])
        return np.sum(h ** 2)

    check_gradients(loss, random(3))


def test_truncated_gradient():  # 42
    def loss(u, h0, w):
        return np.sum(ns.scan(lambda u, h, w: w * h + u, [u], [h0], [w], truncate_gradient=3))

    u, h0, w = np.array([1.0, -1.0, 2.0, 0.5, 1.5]), np.array(0.5), np.array(0.5)
    du, dh0, dw = ns.grad(loss, argnums=(0, 1, 2))(u, h0, w)
    h = ns.scan(lambda u, h, w: w * h + u, [u], [h0], [w])
    np.testing.assert_allclose(du, [0.0, 0.0, 1.75, 1.5, 1.0], rtol=1e-14)
    assert np.all(du[:2] == 0.0) and dh0 == 0.0
    slopes = [h[1], h[2] + w * h[1], h[3] + w * h[2] + w * w * h[1]]
    np.testing.assert_allclose(dw, np.sum(slopes), rtol=1e-13)


def test_truncated_tangent():  # 42: the same loop with stop_gradient, for jvp as well
    def last(h0, w, **options):
        return ns.scan(lambda h, w: w * h, None, [h0], [w], n_steps=5, **options)

    args, tangents = (np.array(2.0), np.array(0.5)), (np.array(1.0), np.array(1.0))
    out, dout = ns.jvp(lambda *a: last(*a, truncate_gradient=3), args, tangents)
    np.testing.assert_array_equal(out, last(*args))
    np.testing.assert_array_equal(dout, [0.0, 0.0, 0.5, 0.5, 0.375])


def test_more_initial_rows_than_the_taps_need():  # 43
    def loss(lib, u, x0):
        out = lib.scan(lambda u, x4, x1: u + 0.5 * x1 + x4 ** 2, [u], [dict(initial=x0, taps=[-4, -1])])
        return np.sum(out[-1] ** 2)

    args = 0.3 * random(6, 2, 2), 0.3 * random(5, 2, 2)
    check_gradients(loss, *args)
    assert np.all(ns.grad(lambda u, x0: loss(ns, u, x0), argnums=1)(*args)[4] == 0.0)


@pytest.mark.parametrize("which", [0, 1])
def test_gradient_with_duplicate_outputs(which):  # 44
    def step(x, old, w):
        total = x + old + w
        return total, total

    def loss(x, x0, w):
        return np.sum(ns.scan(step, [x], [None, dict(initial=x0, taps=[-3])], [w])[which])

    dx, dx0, dw = ns.grad(loss, argnums=(0, 1, 2))(np.ones((10, 2)), np.ones((3, 2)), np.ones(2))
    want = np.repeat([[4.0], [3.0], [3.0], [3.0], [2.0], [2.0], [2.0], [1.0], [1.0], [1.0]], 2, axis=1)
    np.testing.assert_array_equal(dx, want)
    np.testing.assert_array_equal(dx0, want[:3])
    np.testing.assert_array_equal(dw, [22.0, 22.0])


def test_polynomial():  # 45
    coefficients = np.array([-1.0, 2.0, -3.0, 4.0])

    def polynomial(x):
        return np.sum(ns.scan(lambda c, k, x: c * x ** k, [coefficients, np.arange(1000)], None, [x]))

    x = np.array(2.0)
    np.testing.assert_allclose(polynomial(x), -1.0 + 4.0 - 12.0 + 32.0, rtol=1e-14)
    np.testing.assert_allclose(ns.grad(polynomial)(x), 38.0, rtol=1e-14)
    np.testing.assert_allclose(ns.grad(ns.grad(polynomial))(x), 42.0, rtol=1e-14)


def test_derivatives_of_orders_one_to_four_are_exact():  # 46
    def power(x):
        return ns.scan(lambda h: h * h, outputs_info=[x], n_steps=4)[-1]

    f, x = power, np.array(2.0)
    for want in (2.0 ** 16, 16 * 2.0 ** 15, 240 * 2.0 ** 14, 3360 * 2.0 ** 13, 43680 * 2.0 ** 12):
        assert f(x) == want
        f = ns.grad(f)


@pytest.mark.parametrize("z, want", [(1.0, 12.0), (2.0, 96.0), (0.5, 1.5)])
@pytest.mark.parametrize("beside", ["nothing", "a state", "a sequence"])
def test_second_derivative(z, want, beside):  # 46
    def loss(x0, z, x):
        h, g = ns.scan(lambda x, h, g: (z * h * h, g * x), [x], [x0, x0])
        return h[-1] + {"nothing": 0.0, "a state": g[-1], "a sequence": np.sum(x)}[beside]

    def slope(x0):
        return ns.grad(loss)(x0, np.array(z), np.array([1.5, 0.5]))

    assert ns.grad(slope)(np.array(1.0)) == want


def test_mixed_second_derivatives_with_a_long_tap():  # 46
    def loss(lib, x):
        a, b = lib.scan(lambda y, x2, x1, b: (x2 * x1 + y * x1, b * x1), [x[3:]],
                        [dict(initial=x[:2], taps=[-2, -1]), x[2]])
        return np.sum(a) + b[-1] ** 2

    x, v = random(6), random(6, seed=1)
    want = numeric_gradient(lambda s: numeric_gradient(lambda a: loss(law, a), (x + s * v,), 0) @ np.ones(6),
                            (np.array(0.0),), 0)
    np.testing.assert_allclose(np.sum(ns.hvp(lambda a: loss(ns, a), x, v)), want, rtol=1e-6)


def test_an_integer_state_beside_float_states():  # 47
    def loss(lib, h0, w):
        count, h = lib.scan(lambda k, h, w: (k + 1, np.where(k > 2, h * w, np.sin(h))), None,
                            [np.array(0), h0], [w], n_steps=6)
        assert count.dtype == np.int64
        return np.sum(h ** 2)

    check_gradients(loss, random(3), random(3, seed=1))


def test_gradient_in_a_matrix_read_row_by_row():  # 48
    def loss(w):
        return np.sum(ns.scan(lambda k, w: w[k], [np.array([0, 2])], None, [w]))

    np.testing.assert_array_equal(ns.grad(loss)(random(4, 3)), [[1.0] * 3, [0.0] * 3, [1.0] * 3, [0.0] * 3])


def test_gradient_in_states_that_do_not_reach_the_cost():  # 48
    def loss(x0, y0, z0):
        x, y, z = ns.scan(lambda x, y, z: (x * y, y + 1.0, z * x), outputs_info=[x0, y0, z0], n_steps=3)
        return x[-1]

    gradients = ns.grad(loss, argnums=(0, 1, 2))(np.array(2.0), np.array(1.0), np.array(5.0))
    assert gradients == (6.0, 22.0, 0.0)


def test_a_step_that_returns_a_constant_array():  # 49
    w = random(2)
    gradient = ns.grad(lambda w: np.sum(ns.scan(lambda: w, n_steps=3) * np.array([[1.0], [2.0], [3.0]])))(w)
    np.testing.assert_array_equal(gradient, [6.0, 6.0])


def squares_until(x, **options):
    return np.sum(ns.scan(lambda x, u: (x * x, ns.until(x > u)), [x], None, [np.array(5.0)], **options))


def test_until_gradient_of_a_map():  # 50
    x = np.arange(15.0)
    np.testing.assert_array_equal(ns.grad(squares_until)(x), np.where(x < 7, 2 * x, 0.0))


def test_until_gradient_of_a_map_over_rows():  # 50
    def loss(x):
        return np.sum(ns.scan(lambda x: (x * x, ns.until(x[0] > 5.0)), [x]))

    x = np.stack([np.arange(15.0), 1.0 + np.arange(15.0)], axis=1)
    np.testing.assert_array_equal(ns.grad(loss)(x), np.where(np.arange(15)[:, None] < 7, 2 * x, 0.0))


def test_until_gradient_truncated():  # 50
    want = np.zeros(15)
    want[4:7] = [8.0, 10.0, 12.0]
    gradient = ns.grad(lambda x: squares_until(x, truncate_gradient=3))(np.arange(15.0))
    np.testing.assert_array_equal(gradient, want)


def test_until_gradient_truncated_with_taps():  # 50
    def loss(x):
        return np.sum(ns.scan(lambda a, b, u: (a * b, ns.until(b > u)), [dict(input=x, taps=[-2, 0])], None,
                              [np.array(6.0)], truncate_gradient=3))

    want = np.zeros(15)
    want[3:8] = [5.0, 6.0, 10.0, 4.0, 5.0]
    np.testing.assert_array_equal(ns.grad(loss)(np.arange(15.0)), want)


def test_until_gradient_of_a_recurrence():  # 50
    def loss(x, h0):
        return np.sum(ns.scan(lambda x, h: (1.5 * h + x, ns.until(1.5 * h + x > 3.0)), [x], [h0]))

    dx, dh0 = ns.grad(loss, argnums=(0, 1))(np.ones(6), np.array(0.0))
    np.testing.assert_array_equal(dx, [4.75, 2.5, 1.0, 0.0, 0.0, 0.0])
    assert dh0 == 1.5 * 4.75


def test_hessian_row_by_row_in_a_loop():  # 51
    scale = np.array([0.5, -1.0, 2.0])

    def f(x):
        return np.sum(scale * np.exp(x)) * x[0]

    def row(i, x):
        return ns.grad(lambda y: ns.grad(f)(y)[i])(x)

    x = np.array([0.1, 0.2, -0.3])
    e = scale * np.exp(x)
    want = np.diag(e * x[0])
    want[0] += e
    want[:, 0] += e
    np.testing.assert_allclose(ns.scan(row, [np.arange(3)], None, [x]), want, rtol=1e-13)


def test_gradient_inside_a_step():  # 51
    def descend(x, rate):
        return x - rate * ns.grad(lambda y: np.sum(y ** 4))(x)

    out = ns.scan(descend, None, [np.array([1.0, -0.5])], [np.array(0.1)], n_steps=2)
    first = np.array([1.0 - 0.4, -0.5 + 0.05])
    np.testing.assert_allclose(out, [first, first - 0.4 * first ** 3], rtol=1e-14)


def test_hessian_over_two_loops():  # 51
    def loss(x):
        a = ns.scan(lambda h: h * h, None, [x], n_steps=1)[-1]
        b = ns.scan(lambda y, total: total + y ** 3, [x], [np.array(0.0)])[-1]
        return a[0] * x[1] + b

    x = np.array([2.0, 3.0])
    np.testing.assert_allclose(ns.hessian(loss)(x), [[2 * 3.0 + 12.0, 4.0], [4.0, 18.0]], rtol=1e-13)


def test_a_network_trained_by_gradient_descent():  # 52
    rng = np.random.default_rng(0)
    u = rng.uniform(-1.0, 1.0, (10, 2))
    target = 0.5 * u[:, 0] + 0.3 * np.concatenate([[0.0], u[:-1, 1]])
    weights = tuple(rng.uniform(-0.5, 0.5, shape) for shape in ((2, 4), (4, 4), (4,)))

    def cost(w_in, w, w_out):
        out = ns.scan(lambda u, h: np.tanh(u @ w_in + h @ w), [u], [np.zeros(4)]) @ w_out
        return np.mean((out - target) ** 2)

    train = ns.value_and_grad(cost, argnums=(0, 1, 2))
    for _ in range(100):
        value, gradients = train(*weights)
        weights = tuple(w - 0.4 * g for w, g in zip(weights, gradients, strict=True))
    assert value < 0.02


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_gauss_newton_product(shape):  # 53
    x, u, v = 0.5 * random(4, 4), random(5, *shape, seed=1), random(4, 4, seed=2)
    target = random(5, *shape, seed=3)

    def model(w, lib=ns):
        return lib.scan(lambda u, h: np.tanh(u + h @ w), [u], [np.zeros(shape)])

    def loss(out):
        return np.sum((out - target) ** 2) + np.sum(out ** 4)

    out = model(x, law)
    tangent = numeric_gradient_along(lambda s: model(x + s * v, law))
    weighted = (2.0 + 12.0 * out ** 2) * tangent
    want = numeric_gradient(lambda w: np.sum(weighted * model(w, law)), (x,), 0)
    np.testing.assert_allclose(ns.gauss_newton_vp(model, loss, x, v), want, rtol=1e-6, atol=1e-8)


def numeric_gradient_along(f, h=1e-3):
    """Differentiate an array in a number at 0 by 5-point central differences."""
    return (f(-2 * h) - 8 * f(-h) + 8 * f(h) - f(2 * h)) / (12 * h)


def test_nan_in_unused_rows_does_not_leak():  # 54
    def first(x):
        return ns.scan(lambda x, h: np.sin(x) * 2.0 + h, [x], [np.array(0.0)])[0]

    gradient = ns.grad(first)(np.array([np.pi, np.nan, np.nan]))
    np.testing.assert_allclose(gradient, [-2.0, 0.0, 0.0], rtol=1e-14)


# Rop


def last_state(u, h0, w, lib=ns):
    return lib.scan(lambda u, h, w: np.tanh(u + w @ h), [u], [h0], [w])[-1]


RNN = (random(5, 3), random(3), 0.6 * random(3, 3))


@pytest.mark.parametrize("k", [0, 1, 2])
def test_rop_equals_the_jacobian_times_a_vector(k):  # 55
    v = random(*RNN[k].shape, seed=7)

    def f(x, lib=ns):
        return last_state(*RNN[:k], x, *RNN[k + 1:], lib=lib)

    want = numeric_gradient_along(lambda s: f(RNN[k] + s * v, law))
    np.testing.assert_allclose(ns.Rop(f, RNN[k], v), want, rtol=1e-6, atol=1e-9)
    jacobian = ns.jacobian(f)(RNN[k])
    assert jacobian.shape == (3, *RNN[k].shape)
    np.testing.assert_allclose(np.tensordot(jacobian, v, v.ndim), want, rtol=1e-6, atol=1e-9)


def test_rop_and_two_vjps_agree():  # 55
    def f(w):
        return last_state(RNN[0], RNN[1], w)

    w, v = RNN[2], random(3, 3, seed=8)
    _, pull = ns.vjp(lambda ct: ns.vjp(f, w)[1](ct)[0], np.zeros(3))
    np.testing.assert_allclose(pull(v)[0], ns.Rop(f, w, v), rtol=1e-12, atol=1e-13)


def test_lop_is_the_transpose_of_rop():  # 55
    def f(w):
        return last_state(RNN[0], RNN[1], w)

    v, ct = random(3, 3, seed=8), random(3, seed=9)
    np.testing.assert_allclose(np.sum(ns.Lop(f, RNN[2], ct) * v), ct @ ns.Rop(f, RNN[2], v), rtol=1e-12)


def test_rop_of_a_gradient():  # 55
    def loss(w, lib=ns):
        return np.sum(last_state(RNN[0], RNN[1], w, lib) ** 2)

    v = random(3, 3, seed=8)
    want = numeric_gradient_along(lambda s: numeric_gradient(lambda w: loss(w, law), (RNN[2] + s * v,), 0))
    for got in (ns.Rop(ns.grad(loss), RNN[2], v), ns.hvp(loss, RNN[2], v)):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


# Checkpoint


@pytest.mark.needs("checkpoint")
@pytest.mark.parametrize("checkpoint", ["auto", "all", "states", 1, 10, 1000, "1MB"])
def test_checkpoints_do_not_change_a_bit(checkpoint):  # 56
    a = 1.0 + 0.01 * np.arange(5)

    def products(a, checkpoint):
        return ns.scan(lambda h, a: h * a, None, [np.ones(5)], [a], n_steps=101, checkpoint=checkpoint)

    def slope(checkpoint):
        return ns.grad(lambda a: np.sum(products(a, checkpoint)))(a)

    n = np.arange(1, 102)[:, None]
    np.testing.assert_allclose(products(a, checkpoint), a ** n, rtol=1e-13)
    np.testing.assert_allclose(slope(checkpoint), np.sum(n * a ** (n - 1), axis=0), rtol=1e-12)
    np.testing.assert_array_equal(slope(checkpoint), slope("all"))


@pytest.mark.needs("checkpoint")
@pytest.mark.parametrize("checkpoint", ["all", "states", 3, 7])
def test_checkpoints_with_taps_and_without_non_sequences(checkpoint):  # 56
    def loss(lib, x, h0, **options):
        return np.sum(lib.scan(lambda x, h2, h1: np.tanh(x + 0.5 * h2 - 0.3 * h1), [x],
                               [dict(initial=h0, taps=[-2, -1])], **options) ** 2)

    args = random(23), random(2)

    def gradients(checkpoint):
        return ns.grad(lambda *a: loss(ns, *a, checkpoint=checkpoint), argnums=(0, 1))(*args)

    check_gradients(loss, *args)
    for got, want in zip(gradients(checkpoint), gradients("all"), strict=True):
        np.testing.assert_array_equal(got, want)


# Optimiser: what a rewrite may not change


def seven_outputs(lib, x, n_steps=20):
    def step(x, a, b2, b1, c, d3):
        return a + x, b1 + 0.5 * b2, c * 0.9, d3 - x, 2.0 * x, x + a, b2 * x

    return lib.scan(step, [x], [np.array(1.0), dict(initial=np.ones(2), taps=[-2, -1]), np.array(2.0),
                                dict(initial=np.ones(3), taps=[-3]), None, None, None], n_steps=n_steps)


@pytest.mark.parametrize("n_steps", [20, 19, 2])
@pytest.mark.parametrize("part", [np.s_[-1], np.s_[-2:], np.s_[-3:-1], np.s_[:], np.s_[::-1], np.s_[-1:]])
def test_parts_read_from_the_end(part, n_steps):  # 57
    x = random(20)

    def parts(lib):
        return tuple(out[part] for out in seven_outputs(lib, x, n_steps))

    check_values(parts)
    for f in ways(lambda x: tuple(out[part] for out in seven_outputs(ns, x, n_steps))):
        for got, want in zip(f(x), parts(law), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


PARTS = {"x[:2], x[4]": (np.s_[:2], 4), "x[-10], x[3]": (-10, 3), "x[:5], x[-1]": (np.s_[:5], -1),
         "x[11], x[-20]": (11, -20), "x[3:9], x[:1]": (np.s_[3:9], np.s_[:1])}


@pytest.mark.parametrize("first, second", PARTS.values(), ids=PARTS)
def test_different_parts_of_different_outputs(first, second):  # 58, 59
    def parts(x, lib=ns):
        out = seven_outputs(lib, x)
        return tuple(o[first] if j % 2 else o[second] for j, o in enumerate(out))

    x = random(20)
    for f in ways(parts):
        for got, want in zip(f(x), parts(x, law), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("part", [np.s_[:-50], np.s_[-50:]])
def test_part_of_a_state_broadcast_from_a_number(part):  # 59
    def run(lib):
        return lib.scan(lambda x, h: h + x, [np.arange(240.0).reshape(80, 3)], [np.array(1.0)])[part]

    check_values(run)


LOOPS = {
    "map only": lambda lib, x, w: lib.scan(lambda x, w: np.tanh(x) * 2.0, [x], None, [w]),
    "invariant product": lambda lib, x, w: lib.scan(lambda x, h, w: h + (w @ w)[0], [x], [np.zeros(3)], [w]),
    "sum of products": lambda lib, x, w: lib.scan(lambda x, s, w: s + x @ w, [x], [np.zeros(3)], [w])[-1],
    "sum from a start": lambda lib, x, w: lib.scan(lambda x, s: s + np.dot(x, x), [x], [np.array(5.0)])[-1],
    "all invariant": lambda lib, x, w: lib.scan(lambda x, w: w @ w, [x], None, [w]),
    "outer products": lambda lib, x, w: lib.scan(lambda x, s: s + np.outer(x, x), [x], [w])[-1],
    "cumulative product": lambda lib, x, w: lib.scan(lambda x, p: p * x, [x], [np.ones(3)]),
    "cumulative maximum": lambda lib, x, w: lib.scan(lambda x, m: np.maximum(m, x), [x], [x[0]]),
    "invariant in a loop that stops": lambda lib, x, w: lib.scan(
        lambda x, s, w: (s + np.sum(w @ w), lib.until(s > 1e9)), [x], [np.array(0.0)], [w]),
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_hoisted_parts_keep_values_and_gradients(loop):  # 60
    x, w = random(7, 3), random(3, 3)
    check_values(lambda lib: loop(lib, x, w), x, w)
    check_gradients(lambda lib, x, w: np.sum(loop(lib, x, w) ** 2), x, w)


def test_a_varying_intermediate_is_not_pushed_out():  # 60, with a row that needs an index
    def step(k, h):
        mask = np.arange(5) < k
        return h + np.sum(np.where(mask, np.arange(5.0), 0.0))

    out = check_values(lambda lib: lib.scan(step, [np.arange(6)], [np.array(0.0)]))
    np.testing.assert_array_equal(out, [0.0, 0.0, 1.0, 4.0, 10.0, 20.0])


def chain(lib, x, which):
    def step(x, a, b, c, d):
        return a + x, b + a, c + b, d * 0.5

    return tuple(lib.scan(step, [x], [np.array(float(k)) for k in range(4)])[j] for j in which)


@pytest.mark.parametrize("which", [(0,), (2,), (3,), (1, 3)])
def test_states_that_nobody_reads(which):  # 61
    x = random(6)
    check_values(lambda lib: chain(lib, x, which))
    for f in ways(lambda x: chain(ns, x, which)):
        for got, want in zip(f(x), chain(law, x, which), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-13)


def test_two_states_that_need_each_other():  # 61
    starts = [np.array(1.0), np.array(2.0)]
    a, b = check_values(lambda lib: lib.scan(lambda a, b: (b + 1.0, a * 2.0), None, starts, n_steps=4))
    np.testing.assert_array_equal(a, [3.0, 3.0, 7.0, 7.0])
    np.testing.assert_array_equal(b, [2.0, 6.0, 6.0, 14.0])


@pytest.mark.parametrize("option", [{}, dict(n_steps=4), dict(go_backwards=True)])
def test_equal_loops_in_one_function(option):  # 62
    def both(x, lib=ns):
        first = lib.scan(lambda x, h: 0.5 * h + x, [x], [np.array(0.0)])
        second = lib.scan(lambda x, h: 0.5 * h + x, [x], [np.array(0.0)], **option)
        third = lib.scan(lambda x, h: 0.5 * h + x, [first], [np.array(0.0)])
        return first, second, third

    x = random(6)
    for f in ways(both):
        for got, want in zip(f(x), both(x, law), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-13)


def test_loops_that_cross():  # 62: four loops, each needs a different other one
    def crossed(x, lib=ns):
        def cumulate(x):
            return lib.scan(lambda x, h: 0.5 * h + x, [x], [np.array(1.0)])

        a, b = cumulate(x), cumulate(2.0 * x)
        return cumulate(b), cumulate(a)

    x = random(5)
    for f in ways(crossed):
        for got, want in zip(f(x), crossed(x, law), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-13)


def test_one_array_starts_two_states():  # 63
    u0 = random(3)
    check_values(lambda lib: lib.scan(lambda a, b: (a + 1.0, b * 2.0), None, [u0, u0], n_steps=3), u0)


def test_outputs_that_swap_their_taps():  # 63
    a0, b0 = np.array([1.0, 2.0]), np.array([10.0, 20.0])
    a, b = ns.scan(lambda a2, b2: (b2 + 1.0, a2 + 1.0), None,
                   [dict(initial=a0, taps=[-2]), dict(initial=b0, taps=[-2])], n_steps=4)
    np.testing.assert_array_equal(a, [11.0, 21.0, 3.0, 4.0])
    np.testing.assert_array_equal(b, [2.0, 3.0, 12.0, 22.0])
    np.testing.assert_array_equal([a0, b0], [[1.0, 2.0], [10.0, 20.0]])


ECHOES = {
    "sequence": lambda x, m, h, w: (x, h + 1.0),
    "non_sequence": lambda x, m, h, w: (w, h + m),
    "other state in": lambda x, m, h, w: (h, h + x),
    "other state out": lambda x, m, h, w: (h + x, h + x),
    "swapped": lambda x, m, h, w: (h, m),
}


@pytest.mark.parametrize("step", ECHOES.values(), ids=ECHOES)
def test_echo_states(step):  # 63
    def loss(lib, x, m0, h0, w):
        m, h = lib.scan(step, [x], [m0, h0], [w])
        return np.sum(m ** 2) + np.sum(m * h)

    args = random(5, 3), random(3, seed=1), random(3, seed=2), random(3, seed=3)
    check_values(lambda lib: lib.scan(step, [args[0]], [*args[1:3]], [args[3]]), *args)
    check_gradients(loss, *args)


def test_two_states_take_one_fresh_value():  # 63
    def step(a, b):
        fresh = a + 2.0 * b
        return fresh, fresh[::-1]

    check_values(lambda lib: lib.scan(step, None, [np.arange(3.0), np.ones(3)], n_steps=4))


def test_gradient_through_zero_initial_values():  # 64
    def loss(lib, x, w):
        h, c = lib.scan(lambda x, h, c, w: (np.tanh(x + h @ w + c), 0.5 * c + h * x), [x],
                        [np.zeros(3), np.zeros(3)], [w])
        return np.sum(h) + np.sum(c ** 2)

    check_gradients(loss, random(4, 3), random(3, 3))


# Errors (the others are in test_errors)


def test_an_error_in_the_step_keeps_its_own_text():  # 65
    class Mine(Exception):
        pass

    def step(x):
        raise Mine("my own text")

    with pytest.raises(Mine, match="my own text"):
        ns.scan(step, [np.arange(3.0)])


def test_operands_that_do_not_fit_are_named():  # 65
    with pytest.raises(ValueError, match=r"(?s)(?=.*\(3,\))(?=.*\(4,\))"):
        ns.scan(lambda x, h: h + x, [np.ones((2, 4))], [np.ones(3)])


def test_size_one_axes_have_gradients():  # 65
    def loss(lib, x, h0):
        return np.sum(lib.scan(lambda x, h: h * np.sum(x) + x[:1], [x], [h0]) ** 2)

    check_gradients(loss, random(3, 4), random(1))


# ifelse


def test_only_the_taken_branch_runs():  # 67
    table = np.arange(3.0)

    def step(k):
        return ns.cond(k < 3, lambda k: ns.array(table)[k], lambda k: -1.0 * k, k)

    np.testing.assert_array_equal(ns.map(step, [np.array([0, 2, 5, 1])]), [0.0, 2.0, -5.0, 1.0])


def test_nested_branches_are_lazy():  # 67
    table = np.arange(4.0)

    def step(k):
        return ns.cond(k < 4, inner, lambda k: 25.0 * k, k)

    def inner(k):
        return ns.cond(k < 0, lambda k: 0.5 * k, lambda k: ns.array(table)[k], k)

    np.testing.assert_array_equal(ns.map(step, [np.array([3, 4, -7, 0])]), [3.0, 100.0, -3.5, 0.0])


def test_branches_with_two_outputs_and_their_gradient():  # 67
    def loss(x):
        def step(x, h):
            return ns.cond(x > 0.0, lambda x, h: (h * x, 1.0 * x), lambda x, h: (h, x * x), x, h)

        a, b = ns.scan(step, [x], [np.array(2.0), None])
        return a[-1] + np.sum(b)

    x = np.array([1.5, -2.0, 3.0])
    np.testing.assert_allclose(loss(x), 9.0 + 1.5 + 4.0 + 3.0)
    np.testing.assert_allclose(ns.grad(loss)(x), [6.0 + 1.0, -4.0, 3.0 + 1.0])


def test_branches_with_integers():  # 67
    out = ns.map(lambda k: ns.ifelse(k > 1, lambda k: 2 * k, lambda k: k, k), [np.arange(4)])
    assert out.dtype == np.int64
    np.testing.assert_array_equal(out, [0, 1, 4, 6])


def test_branches_of_different_shapes_are_an_error():  # 67
    def step(x):
        return ns.cond(x > 0.0, lambda x: x * np.ones(3), lambda x: x * np.ones(4), x)

    with pytest.raises(ns.errors.NscanError, match=r"(?s)(?=.*\(3,\))(?=.*\(4,\))") as caught:
        ns.map(step, [np.ones(2)])
    assert isinstance(caught.value, (ValueError, TypeError))
