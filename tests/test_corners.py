"""Corners: weak numbers, types, odd calls, numbers of steps that are data, masks, conditionals, what is captured.

`same` runs a call on the library and on the law and compares types exactly and values closely.
"""

import copy
import functools

import law
import numpy as np
import pytest

import nscan as ns

pytestmark = pytest.mark.usefixtures("mode")

X, M, K = np.arange(4.0), np.arange(12.0).reshape(4, 3), np.array([1, 2, 3, 0])
F4, U1 = X.astype(np.float32), np.array([1, 2, 200], np.uint8)


def parts(result):
    """Return the arrays of a result."""
    return [leaf for part in result for leaf in parts(part)] if isinstance(result, (tuple, list)) else [result]


def same(call):
    """Compare a call of the library with one of the law."""
    got, want = parts(call(ns)), parts(call(law))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=1e-14 if w.dtype.itemsize > 4 else 1e-6)


WEAK = {
    "two weak states": lambda lib: lib.scan(lambda x, a, b: (b, a + x), [F4], [0, 0.0]),
    "floor division": lambda lib: lib.scan(lambda h: h // 2, None, [7], n_steps=3),
    "true division": lambda lib: lib.scan(lambda h: h / 2, None, [7], n_steps=3),
    "stacked": lambda lib: lib.scan(lambda x, h: np.stack([h, h]).sum() + x, [F4], [0.0]),
    "where": lambda lib: lib.scan(lambda x, h: np.where(x > 1, h, 0), [F4], [0.0]),
    "maximum": lambda lib: lib.scan(lambda x, h: np.maximum(x, h), [F4], [0]),
    "square root": lambda lib: lib.scan(lambda x, h: np.sqrt(h) + x, [F4], [0.0]),
    "abs": lambda lib: lib.scan(lambda x, h: abs(h) + x, [F4], [0.0]),
    "minus": lambda lib: lib.scan(lambda x, h: -h + x, [F4], [0.0]),
    "negative": lambda lib: lib.scan(lambda x, h: np.negative(h) + x, [F4], [0.0]),
    "square": lambda lib: lib.scan(lambda x, h: h**2 + x, [F4], [0.0]),
    "power": lambda lib: lib.scan(lambda x, h: 2.0**h + x, [F4], [0.0]),
    "remainder": lambda lib: lib.scan(lambda x, h: h % 2 + x, [F4], [0.0]),
    "bool or": lambda lib: lib.scan(lambda x, h: h | (x > 1), [X], [False]),
    "bool xor": lambda lib: lib.scan(lambda x, h: h ^ (x > 1), [X], [False]),
    "bool plus": lambda lib: lib.scan(lambda x, h: h + (x > 1), [X], [False]),
    "shift": lambda lib: lib.scan(lambda k, h: (h << 1) | k, [U1], [0]),
    "comparison": lambda lib: lib.scan(lambda x, h: (h < x) * x, [F4], [0.0]),
    "imaginary": lambda lib: lib.scan(lambda x, h: h * 1j + x, [F4], [0.0]),
    "array of two": lambda lib: lib.scan(lambda x, h: (h + x) * np.ones(2), [X], [np.float32(0)]),
}
TYPES = {
    "small integers wrap": lambda lib: lib.scan(lambda h: h * np.uint8(3), None, [np.uint8(100)], n_steps=3),
    "negative of the least": lambda lib: lib.map(lambda a: -a, np.array([-128, 5], np.int8)),
    "beyond the type": lambda lib: lib.map(
        lambda a: (a < 300, a >= 300, 300 > a, a == 300, 300 != a, a > -1, -1 < a, a <= -1), U1
    ),
    "sum of bools": lambda lib: lib.map(lambda a: (a.sum(), a.mean(), a.any(), a.argmax()), M > 3),
    "division by zero": lambda lib: lib.map(lambda a: (a / 0, a // 0.0), X),
    "integer division by zero": lambda lib: lib.map(lambda a: (a // 0, a % 0), K),
    "least of NaN": lambda lib: lib.map(lambda a: (np.min(a), np.argmax(a)), np.array([[1.0, np.nan], [2.0, 3.0]])),
    "divmod": lambda lib: lib.map(lambda a: divmod(a, 3), K),
    "a NumPy number": lambda lib: lib.scan(lambda x, h: h + x * np.float32(2), [F4], [np.float32(0)]),
    "reversed operands": lambda lib: lib.map(
        lambda a: (1 - a, 2.0**a, 7 // (a + 1), 7 % (a + 1), np.ones(3) @ np.stack([a, a, a])), X
    ),
}
CALLS = {
    "a tuple of one": lambda lib: lib.scan(lambda x: (x,), X),
    "a list of one": lambda lib: lib.scan(lambda x, h: [h + x], [X], [0.0]),
    "a ufunc": lambda lib: lib.scan(np.add, X, 0.0),
    "a function of NumPy": lambda lib: lib.map(np.linalg.inv, np.stack([2.0 * np.eye(2), np.eye(2)])),
    "a partial": lambda lib: lib.scan(functools.partial(lambda a, x, h: a * x + h, 2.0), X, 0.0),
    "defaults": lambda lib: lib.scan(lambda x, h, w=2.0, *, v=1.0: h + w * x * v, X, 0.0),
    "a fold that stops": lambda lib: lib.reduce(lambda x, h: (h + x, lib.until(h > 1)), X, 0.0),
    "a range": lambda lib: lib.scan(lambda x, h, n: h + sum(x for _ in range(n)), [X], [0.0], [3]),
    "a text and a function": lambda lib: lib.scan(lambda x, h, s, f: f(h + x) * len(s), [X], [0.0], ["abc", np.tanh]),
    "None in a carry": lambda lib: lib.loop(lambda c, a: ((c[0] + a, None), None), (0.0, None), X)[0][0],
    "while from integers": lambda lib: lib.while_loop(lambda c: c < 10, lambda c: c * 1.5 + 1, 1),
    "while that does not start": lambda lib: lib.while_loop(lambda c: c < 0, lambda c: c * 1.5, 1),
    "copies": lambda lib: lib.map(lambda a: copy.deepcopy(a) + copy.copy(a), M),
    "formatting": lambda lib: lib.map(lambda a: (f"{a}", a)[1], M),
    "Python's sum": lambda lib: lib.map(lambda a: sum(a), M),
    "nested lists": lambda lib: lib.map(lambda a: np.ravel([a[0], a[1]]), M),
}
STEPS = {
    "of a state": lambda lib: lib.map(lambda k: lib.reduce(lambda _, h: 2 * h, np.arange(3), 1.0) * k, K),
    "that are data": lambda lib: lib.map(lambda k: np.sum(lib.scan(lambda h: 2 * h, None, [1.0], n_steps=k)), K),
    "that are data, over rows": lambda lib: lib.map(lambda k: np.sum(lib.scan(lambda a, h: h + a, [X], [1.0], n_steps=k)), K),
    "that are data, with taps": lambda lib: lib.map(
        lambda k: np.sum(lib.scan(lambda a, b, h: h + a * b, [dict(input=X, taps=[0, 1])], [1.0], n_steps=k)), K
    ),
    "that are data, backwards": lambda lib: lib.map(
        lambda k: np.sum(lib.scan(lambda a, h: h * 0.5 + a, [X], [1.0], n_steps=k, go_backwards=True)), K
    ),
    "that are data, of loop": lambda lib: lib.map(lambda k: lib.loop(lambda c, _: (2 * c, None), 1.0, length=k)[0], K),
    "rows of a slice": lambda lib: lib.map(lambda k, a: np.sum(lib.scan(lambda y, h: h + y, [a[:k]], [0.0])), [K, M]),
}
BRANCHES = {
    "numbers": lambda lib: lib.map(lambda a: lib.cond(a > 1, lambda: 1, lambda: 2.0), X),
    "nests": lambda lib: lib.map(lambda a: lib.cond(a[0] > 1, lambda p, q: (p, q), lambda p, q: (q, p), a, 2 * a), M),
    "a size that is data": lambda lib: lib.map(lambda a, k: np.sum(lib.cond(k > 1, lambda p: 2 * p, lambda p: p, a[:k])), [M, K]),
    "loops in branches": lambda lib: lib.map(
        lambda a: lib.cond(a[0] > 1, lambda p: lib.scan(np.add, [p], [0.0])[-1], lambda p: lib.map(np.sin, p)[0], a), M
    ),
}
MASKS = {
    "sums": lambda lib: lib.map(lambda a: (np.sum(a[a > 1]), a[a > 1].mean(), np.prod(a[a > 7])), M + 2),
    "arithmetic": lambda lib: lib.map(lambda a: np.sum(np.sqrt(a[a > 1]) * 2.0 + a[a > 1]), M),
}
TABLES = {**WEAK, **TYPES, **CALLS, **STEPS, **BRANCHES}


@pytest.mark.parametrize("call", TABLES.values(), ids=TABLES)
def test_as_the_law_says(call):
    same(call)


@pytest.mark.parametrize("call", MASKS.values(), ids=MASKS)
def test_elements_selected_by_a_mask_that_is_data(call):
    same(call)


def selected(use):
    return lambda: ns.map(lambda a: use(a[a > 1], a), M)


@pytest.mark.parametrize(
    "call",
    [
        selected(lambda s, a: len(s)),
        selected(lambda s, a: s[0]),
        selected(lambda s, a: np.max(s)),
        selected(lambda s, a: s + a),
        selected(lambda s, a: s + a[a > 2]),
        selected(lambda s, a: s.shape),
        selected(lambda s, a: list(s)),
        selected(lambda s, a: np.sort(s)),
    ],
)
def test_what_needs_the_number_of_selected_elements_is_refused(call):
    with pytest.raises(ns.errors.TracedValueError, match="np.where"):
        call()


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ns.errors.UnsupportedIndexError, match="did not match"):
        ns.map(lambda a: np.sum(a[a[:2] > 1]), M)


@pytest.mark.parametrize("n", [9, -1])
def test_a_number_of_steps_that_is_data_is_checked(n):
    with pytest.raises(ns.errors.SizeError, match="step 2"):
        ns.map(lambda k: np.sum(ns.scan(lambda a, h: h + a, [X], [1.0], n_steps=k)), np.array([1, 2, n]))


def test_a_branch_may_not_make_a_size():
    with pytest.raises(ns.errors.SizeError, match="branch"):
        ns.map(lambda a, k: np.sum(ns.cond(k > 1, lambda p, k: p[:k], lambda p, k: p[:k], a, k)), [M, K])


def test_an_integer_to_a_negative_power():
    with pytest.raises(ns.errors.ArithmeticStepError, match="step 1"):
        ns.map(lambda a: 2**a, np.array([1, -2]))


def test_types_that_kernels_do_not_know():
    with pytest.raises(ns.errors.DtypeError, match="float16"):
        ns.map(lambda a: np.sqrt(a), np.array([1, 2], np.int8))


def test_truncation_in_a_step_is_truncation_outside():
    def inner(w, x):
        return ns.scan(lambda x, h: np.tanh(w * h + x), [x], [w], truncate_gradient=2)

    def inside(w):
        return np.sum(ns.map(lambda x: inner(w, x), M))

    def outside(w):
        return sum(np.sum(inner(w, x)) for x in M)

    np.testing.assert_allclose(ns.grad(inside)(0.3), ns.grad(outside)(0.3), rtol=1e-13)
    np.testing.assert_allclose(ns.hessian(inside)(0.3), ns.hessian(outside)(0.3), rtol=1e-12)


# What a step or a function has used is what it held then


def test_a_closed_over_array_that_changes_between_uses():
    def step(x):
        buffer = np.ones(3)
        first = x * buffer
        buffer[1] = 5.0
        return first + x * buffer

    same(lambda lib: lib.map(step, M))
    np.testing.assert_array_equal(ns.grad(lambda m: np.sum(ns.map(step, m)))(M), np.tile([2.0, 6.0, 2.0], (4, 1)))


def test_a_buffer_that_changes_under_grad_outside_a_step():
    def f(x):
        buffer = np.ones(3)
        first = x * buffer
        buffer[1] = 5.0
        return np.sum(first + x * buffer)

    np.testing.assert_array_equal(ns.grad(f)(np.ones(3)), [2.0, 6.0, 2.0])


def test_a_large_array_that_changed_before_the_backward_pass():
    big = np.ones(10_000)
    _, pull = ns.vjp(lambda x: np.sum(x * big), np.ones(10_000))
    big[:] = 2.0
    with pytest.raises(ns.errors.ChangedError):
        pull(1.0)


def test_integers_and_bools_are_plain_under_grad():
    table = np.array([1.0, 10.0, 100.0])

    def f(x):
        mask, k = x > 0.5, np.argmax(x)
        assert type(mask) is np.ndarray and isinstance(k, np.integer)
        return np.sum(x[mask]) * table[k] if mask.any() else np.sum(x)

    np.testing.assert_array_equal(ns.grad(f)(np.array([0.1, 0.7, 0.9])), [0.0, 100.0, 100.0])
    np.testing.assert_array_equal(ns.jvp(f, (np.array([0.1, 0.7, 0.9]),), (np.ones(3),))[1], 200.0)


def test_a_new_function_is_traced_twice_even_if_its_structure_is_known():
    draws = np.random.default_rng(0)

    def clean(x):
        return x + 0.123

    def hidden(x):
        return x + draws.standard_normal()

    ns.map(clean, X)
    with pytest.raises(ns.errors.HiddenStateError):
        ns.map(hidden, X)
    with pytest.raises(ns.errors.HiddenStateError):
        ns.map(hidden, X)
