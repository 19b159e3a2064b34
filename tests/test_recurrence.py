"""Linear recurrences, running ufuncs, associative scans; and how affine states are planned."""

import itertools

import numpy as np
import pytest

import nscan as ns
from nscan import errors

EPS = 1e-30


def rng(seed=0):
    return np.random.default_rng(seed)


def close(found, want, ulps=64):
    """Equal in dtype and shape, and in value up to rounding of the largest value."""
    found, want = np.asarray(found), np.asarray(want)
    assert found.dtype == want.dtype and found.shape == want.shape, (found.dtype, want.dtype, found.shape, want.shape)
    if found.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, want)
        return
    scale = np.max(np.abs(want[np.isfinite(want)]), initial=1e-30)
    np.testing.assert_allclose(found, want, rtol=0, atol=ulps * np.finfo(found.dtype).eps * scale)


# ------------------------------------------------------------------------------------------ the plain loops
def plain_recurrence(a, b, h0=None, axis=0, reverse=False, reset=None):
    """Run the loop of the documentation."""
    a, b = np.broadcast_arrays(a, b)
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    start = np.broadcast_to(0 if h0 is None else h0, a.shape[1:])
    h, out = start, np.empty(a.shape, np.result_type(a, b, start) if h0 is not None else np.result_type(a, b))
    for t in (reversed if reverse else iter)(range(len(a))):
        if reset is not None:
            r = np.asarray(reset)[t]
            h = np.where(r.reshape(r.shape + (1,) * (h.ndim - r.ndim) if r.ndim else ()), start, h)
        h = out[t] = a[t] * h + b[t]
    return np.moveaxis(out, 0, axis)


def plain_scan(op, xs, reverse=False, exclusive=False, initial=None, reset=None):
    """Run the loop of the documentation, on a list of arrays whose first axis is that of the elements."""
    n, outs, acc = len(xs[0]), [np.empty_like(x) for x in xs], initial
    for t in (reversed if reverse else iter)(range(n)):
        before = initial if reset is not None and reset[t] else acc
        x = [v[t] for v in xs]
        acc = x if before is None else list(op(before, x))
        for out, v in zip(outs, before if exclusive else acc):
            out[t] = v
    return outs


# ------------------------------------------------------------------------------------------ linear recurrence
SHAPES = [((7,), (7,), None), ((), (7,), ()), ((7, 1), (7, 3), (3,)), ((3,), (7, 3), ()), ((7, 3), (), (3,)),
          ((7, 2, 3), (7, 1, 3), (2, 1)), ((1, 3), (7, 3), (3,)), ((7,), (7,), (2,))]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_linear_recurrence_is_the_loop(mode, shapes, reverse):
    a, b, h0 = (None if s is None else rng(k).uniform(-1, 1, s) for k, s in enumerate(shapes))
    if shapes[2] == (2,):
        a, b = a[:, None], b[:, None] + np.zeros(2)
    close(ns.linear_recurrence(a, b, h0, reverse=reverse), plain_recurrence(a, b, h0, reverse=reverse))


def test_the_initial_value_may_widen_the_steps(mode):
    a, b, h0 = rng(1).uniform(size=(5, 1)), rng(2).normal(size=(5, 1)), np.arange(3.0)
    want = plain_recurrence(a + np.zeros(3), b + np.zeros(3), h0)
    close(ns.linear_recurrence(a, b, h0), want)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_the_axis_of_time(mode, axis):
    a, b = rng(1).uniform(size=(4, 5, 6)), rng(2).normal(size=(4, 5, 6))
    h0 = rng(3).normal(size=np.moveaxis(b, axis, 0).shape[1:])
    found = ns.linear_recurrence(a, b, h0, axis)
    close(found, plain_recurrence(a, b, h0, axis))
    assert found.flags.c_contiguous and found.flags.writeable
    close(ns.linear_recurrence(a[:, 0], b.transpose(1, 0, 2), axis=0 if axis >= 0 else -3), plain_recurrence(a[:, 0], b.transpose(1, 0, 2)))


@pytest.mark.parametrize("dtypes", [("i1", "i1", None), ("i4", "i8", None), ("?", "?", None), ("f4", "f4", None), ("f4", "f8", None),
                                    ("f4", "f4", "f8"), ("i4", "f4", None), ("f8", "c16", None), ("c8", "c8", "c8"), ("u2", "i1", None)])
def test_dtypes_are_those_of_numpy(mode, dtypes):
    a, b, h0 = (None if d is None else (rng(k).integers(0, 3, 6)).astype(d) for k, d in enumerate(dtypes))
    h0 = None if h0 is None else h0[0]
    close(ns.linear_recurrence(a, b, h0), plain_recurrence(a, b, h0))


def test_a_python_number_has_no_dtype_of_its_own(mode):
    b = np.ones(4, np.float32)
    for a, h0 in itertools.product((0.5, 2), (None, 1, 0.25)):
        close(ns.linear_recurrence(a, b, h0), plain_recurrence(np.float32(a), b, None if h0 is None else np.float32(h0)))
    assert ns.linear_recurrence(2, np.ones(3, np.int16), 1).dtype == np.int16


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_a_reset_sees_the_initial_value(mode, columns, reverse):
    a, b, h0 = rng(1).uniform(size=(9, 4)), rng(2).normal(size=(9, 4)), rng(3).normal(size=4)
    reset = rng(4).uniform(size=(9, 4) if columns else 9) < 0.4
    close(ns.linear_recurrence(a, b, h0, reverse=reverse, reset=reset), plain_recurrence(a, b, h0, reverse=reverse, reset=reset))
    a[2], b[2] = np.inf, np.nan
    reset[:] = False
    reset[1 if reverse else 3] = True
    found = ns.linear_recurrence(a, b, h0, reverse=reverse, reset=reset)
    assert np.isfinite(found[:2] if reverse else found[3:]).all(), "what lies before a reset does not leak"
    cotangent = np.zeros((9, 4))
    cotangent[0 if reverse else -1] = 1
    da, db = ns.vjp(lambda a, b: ns.linear_recurrence(a, b, h0, reverse=reverse, reset=reset), a, b)[1](cotangent)
    assert not db[2].any() and not da[2].any() and np.isfinite(da).all()


def test_no_steps(mode):
    assert ns.linear_recurrence(np.ones((0, 3)), 1.0).shape == (0, 3)
    assert ns.linear_recurrence(0.5, np.ones((2, 0), np.float32), axis=1).dtype == np.float32
    np.testing.assert_array_equal(ns.grad(lambda h: np.sum(ns.linear_recurrence(np.ones((0, 3)), 1.0, h)))(np.ones(3)), np.zeros(3))


def complex_step(f, args, direction):
    """Directional derivative of an analytic function."""
    return np.imag(f(*[x + 1j * EPS * v for x, v in zip(args, direction)])) / EPS


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shapes", [((6, 3), (6, 3), (3,)), ((), (9,), ()), ((3,), (6, 3), (3,)), ((6, 1), (6, 3), ())], ids=str)
def test_derivatives_of_the_recurrence(mode, shapes, reverse):
    args = [rng(k).uniform(-1, 1, s) for k, s in enumerate(shapes)]
    args[0] = np.where(rng(9).uniform(size=shapes[0]) < 0.3, 0.0, args[0])
    vs = [rng(5 + k).normal(size=s) for k, s in enumerate(shapes)]
    f = lambda a, b, h: ns.linear_recurrence(a, b, h, reverse=reverse)  # noqa: E731
    want = complex_step(lambda a, b, h: plain_recurrence(a, b, h, reverse=reverse), args, vs)
    out, tangent = ns.jvp(f, args, vs)
    close(tangent, want)
    ct = rng(11).normal(size=out.shape)
    grads = ns.vjp(f, *args)[1](ct)
    assert [np.shape(g) for g in grads] == list(shapes)
    np.testing.assert_allclose(sum(np.sum(g * v) for g, v in zip(grads, vs)), np.sum(ct * want), rtol=1e-11)
    loss = lambda a: np.sum(ct * f(a, *args[1:])**2)  # noqa: E731
    slope = lambda a: ns.grad(loss)(a)  # noqa: E731
    curved = (slope(args[0] + 1e-5 * vs[0]) - slope(args[0] - 1e-5 * vs[0])) / 2e-5
    np.testing.assert_allclose(ns.hvp(loss, args[0], vs[0]), curved, rtol=1e-6, atol=1e-6)


def test_third_derivative_of_the_recurrence(mode):
    b = rng(1).normal(size=6)
    h = lambda a: ns.linear_recurrence(a, b)[-1]  # noqa: E731
    third = ns.grad(ns.grad(ns.grad(h)))(0.4)
    powers = np.polynomial.Polynomial(b[::-1])
    np.testing.assert_allclose(third, powers.deriv(3)(0.4), rtol=1e-12)


# --------------------------------------------------------------------------------------------- running ufuncs
OPS = [np.add, np.multiply, np.maximum, np.minimum, np.logaddexp]


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "u1", "?"])
@pytest.mark.parametrize("op", OPS)
def test_accumulate_is_that_of_numpy(mode, op, dtype):
    if op is np.logaddexp and dtype in ("u1", "?"):
        pytest.skip("NumPy has float16 there")
    x = (rng(1).uniform(-2, 3, (6, 4)) * 3).clip(0 if dtype in ("u1", "?") else -9).astype(dtype)
    for axis, reverse in itertools.product((0, 1, -1), (False, True)):
        flip = (lambda v, k=axis: np.flip(v, k)) if reverse else (lambda v: v)
        found = ns.accumulate(op, x, axis, reverse)
        close(found, flip(op.accumulate(flip(x), axis=axis)))
        assert found.flags.c_contiguous


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_accumulate_from_an_initial_value(mode, op, exclusive, reverse):
    x = rng(1).normal(size=(5, 3))
    for initial in (0.5, rng(2).normal(size=3)):
        want = plain_scan(lambda a, v: [op(a[0], v[0])], [x], reverse, exclusive, [initial])[0]
        close(ns.accumulate(op, x, 0, reverse, exclusive, initial), want)


def test_an_exclusive_one_starts_with_the_identity(mode):
    x = np.array([3, 4, 5])
    np.testing.assert_array_equal(ns.accumulate(np.add, x, exclusive=True), [0, 3, 7])
    np.testing.assert_array_equal(ns.accumulate(np.multiply, x, exclusive=True, reverse=True), [20, 5, 1])
    np.testing.assert_allclose(ns.accumulate(np.logaddexp, np.log([2.0, 3.0]), exclusive=True), [-np.inf, np.log(2)])


def test_an_initial_value_has_its_part_in_the_dtype(mode):
    assert ns.accumulate(np.maximum, np.arange(3, dtype=np.int8), initial=1.5).dtype == np.float64
    assert ns.accumulate(np.maximum, np.ones(3, np.float32), initial=1.5).dtype == np.float32
    assert ns.accumulate(np.add, np.ones(3, bool), initial=2).dtype == np.int64


@pytest.mark.parametrize("op", OPS)
def test_special_values_are_taken_as_they_are(mode, op):
    for first in (-0.0, np.inf, -np.inf, np.nan):
        x = np.array([first, 1.0, 0.5])
        with np.errstate(invalid="ignore"):
            found, want = ns.accumulate(op, x), op.accumulate(x)
        np.testing.assert_array_equal(found, want)
        assert np.signbit(found[0]) == np.signbit(first)


@pytest.mark.parametrize("op", OPS)
def test_derivatives_with_zeros_and_ties(mode, op):
    """The slope of each element, against that of the ufunc applied one element after the other."""
    x = np.array([0.0, 2.0, 0.0, 2.0, 3.0, 0.5])
    ct = rng(3).normal(size=6)

    def slow(x):
        total, acc = 0.0, x[0]
        for t in range(6):
            acc = op(acc, x[t]) if t else acc
            total = total + ct[t] * acc
        return total
    fast = lambda x: np.sum(ct * ns.accumulate(op, x))  # noqa: E731
    np.testing.assert_allclose(ns.grad(fast)(x), ns.grad(slow)(x), rtol=1e-13, atol=1e-14)
    v = rng(4).normal(size=6)
    np.testing.assert_allclose(ns.hvp(fast, x, v), ns.hvp(slow, x, v), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(ns.jvp(fast, [x], [v])[1], ns.jvp(slow, [x], [v])[1], rtol=1e-12)


def test_an_empty_axis_gives_an_empty_result(mode):
    for op in OPS:
        found = ns.accumulate(op, np.zeros((3, 0), np.float32), axis=1)
        assert found.shape == (3, 0) and found.dtype == np.float32


# -------------------------------------------------------------------------------------- associative operators
def matrices(a, b):
    """Multiply matrices: not commutative."""
    return b @ a


def affine(a, b):
    """Compose two affine maps."""
    return {"a": a["a"] * b["a"], "b": b["a"] * a["b"] + b["b"]}


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("resets", [False, True])
def test_a_scan_of_matrices(mode, start, reverse, exclusive, resets):
    if exclusive and not start:
        pytest.skip("an error, tested below")
    xs = rng(1).normal(size=(6, 2, 2))
    initial = rng(2).normal(size=(2, 2)) if start else None
    reset = np.array([False, False, True, False, True, False]) if resets else None
    want = plain_scan(lambda a, b: [b[0] @ a[0]], [xs], reverse, exclusive, None if initial is None else [initial], reset)[0]
    found = ns.associative_scan(matrices, xs, 0, reverse, exclusive, initial, reset)
    close(found, want)
    moved = ns.associative_scan(matrices, np.moveaxis(xs, 0, 1), 1, reverse, exclusive, initial, reset)
    close(moved, np.moveaxis(want, 0, 1))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_of_nests(mode, reverse):
    xs = {"a": rng(1).uniform(size=(7, 3)), "b": rng(2).normal(size=(7, 3))}
    found = ns.associative_scan(affine, xs, reverse=reverse)
    assert list(found) == ["a", "b"]
    close(found["b"], ns.linear_recurrence(xs["a"], xs["b"], reverse=reverse))
    zero = ns.associative_scan(affine, xs, reverse=reverse, initial={"a": 1, "b": np.zeros(3)})
    close(zero["b"], found["b"])


def test_a_reset_for_each_column(mode):
    x, reset = rng(1).normal(size=(6, 3)), rng(2).uniform(size=(6, 3)) < 0.5
    want = plain_recurrence(np.ones((6, 3)), x, reset=reset)
    close(ns.associative_scan(np.add, x, reset=reset), want)
    close(ns.associative_scan(lambda a, b: a + b, x, reset=reset, initial=0.0), want)


def test_integers_stay_integers(mode):
    x = np.array([12, 18, 27, 5], np.int32)
    found = ns.associative_scan(np.gcd, x)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, np.gcd.accumulate(x))


def test_derivatives_of_an_associative_scan(mode):
    xs = rng(1).normal(size=(5, 2, 2))
    ct = rng(2).normal(size=(5, 2, 2))
    for options in ({}, {"reverse": True}, {"reset": np.array([0, 0, 1, 0, 0], bool)}, {"initial": np.eye(2), "exclusive": True}):
        loss = lambda xs: np.sum(ct * ns.associative_scan(matrices, xs, **options))  # noqa: B023, E731
        ns.check_grads(loss, (xs,), order=2)


# --------------------------------------------------------------------------------------- in a step, under map
def test_inside_a_step_and_under_map(mode):
    a, b = rng(1).uniform(size=(4, 6)), rng(2).normal(size=(4, 6))
    close(ns.map(lambda a, b: ns.linear_recurrence(a, b), [a, b]), plain_recurrence(a, b, axis=1))
    close(ns.map(lambda b: ns.accumulate(np.maximum, b), b), np.maximum.accumulate(b, axis=1))
    close(ns.map(lambda b: ns.accumulate(np.logaddexp, b, reverse=True), b), np.flip(np.logaddexp.accumulate(np.flip(b, 1), axis=1), 1))
    close(ns.map(lambda b: ns.associative_scan(lambda p, q: p * q, b), b), np.cumprod(b, axis=1))

    def step(b, total, a):
        rows = ns.linear_recurrence(a, b, total)
        return rows[-1] / 2
    def slow(a, b):
        h, out = 0.0, []
        for row in b:
            h = plain_recurrence(a, row, h)[-1] / 2
            out.append(h)
        return np.array(out)
    found = lambda a, b: ns.scan(step, b, 0.0, a)  # noqa: E731
    close(found(a[0], b), slow(a[0], b))
    va, vb = rng(3).normal(size=6), rng(4).normal(size=(4, 6))
    want = complex_step(slow, (a[0], b), (va, vb))
    close(ns.jvp(found, (a[0], b), (va, vb))[1], want)
    ga, gb = ns.vjp(found, a[0], b)[1](np.ones(4))
    np.testing.assert_allclose(np.sum(ga * va) + np.sum(gb * vb), np.sum(want), rtol=1e-12)


def test_derivatives_under_map(mode):
    b = rng(1).normal(size=(3, 5))
    f = lambda a: np.sum(ns.map(lambda row, a: ns.linear_recurrence(a, row), b, a)**2)  # noqa: E731
    g = lambda a: np.sum(ns.linear_recurrence(a, b, axis=1)**2)  # noqa: E731
    np.testing.assert_allclose(ns.grad(f)(0.3), ns.grad(g)(0.3), rtol=1e-12)
    np.testing.assert_allclose(ns.grad(ns.grad(f))(0.3), ns.grad(ns.grad(g))(0.3), rtol=1e-12)


# --------------------------------------------------------------------------------------------------- bad input
X = np.ones((4, 3))
BAD = [
    (lambda: ns.linear_recurrence(1.0, 2.0), errors.SpecError, "a and b are 0-d: give one of them an axis of steps"),
    (lambda: ns.linear_recurrence(np.ones(3), np.ones(4)), errors.SpecError,
     r"b has shape (4,), which does not broadcast: a has shape (3,)"),
    (lambda: ns.linear_recurrence(X, X, np.ones(4)), errors.SpecError,
     "h0 has shape (4,), which does not broadcast: a step of a has shape (3,)"),
    (lambda: ns.linear_recurrence(X, X, axis=2), errors.AxisRangeError, "axis 2 is out of range: a and b together has 2 axes"),
    (lambda: ns.linear_recurrence(X, X, axis=1.0), errors.SpecError, "axis must be an integer, got 1.0"),
    (lambda: ns.linear_recurrence(X, X, reset=np.zeros(4)), errors.SpecError, "reset must be bool, got float64: write reset != 0"),
    (lambda: ns.linear_recurrence(X, X, reset=np.zeros(3, bool)), errors.SpecError, "reset has shape (3,); it must be (4,) or (4, B)"),
    (lambda: ns.linear_recurrence(X, X, reset=np.zeros((4, 2), bool)), errors.SpecError,
     "reset has 2 columns, a step of h has shape (3,): its first axis must have as many"),
    (lambda: ns.linear_recurrence(np.array(["x"]), X), errors.DtypeError, "a: an array has dtype <U1"),
    (lambda: ns.accumulate(np.subtract, X), errors.UnsupportedError,
     "accumulate knows np.add, np.multiply, np.maximum, np.minimum, np.logaddexp, not subtract; ns.associative_scan takes any operator"),
    (lambda: ns.accumulate(max, X), errors.UnsupportedError, "not max; ns.associative_scan"),
    (lambda: ns.accumulate(np.add, X, axis=-3), errors.AxisRangeError, "axis -3 is out of range: x has 2 axes"),
    (lambda: ns.accumulate(np.add, 1.0), errors.SpecError, "x: 0-d, there is no axis to run along"),
    (lambda: ns.accumulate(np.maximum, X, exclusive=True), errors.SpecError, "an exclusive maximum has no first value: give initial"),
    (lambda: ns.accumulate(np.add, X, initial=np.ones(4)), errors.SpecError, "initial has shape (4,), which does not broadcast"),
    (lambda: ns.accumulate(np.add, X, initial=np.ones((2, 3))), errors.SpecError, "initial has shape (2, 3), an element has (3,)"),
    (lambda: ns.associative_scan(np.add, X[:0]), errors.SpecError, "xs has no element to start with: give initial"),
    (lambda: ns.associative_scan(np.add, X, exclusive=True), errors.SpecError, "an exclusive scan has no first value: give initial"),
    (lambda: ns.associative_scan(np.add, ()), errors.SpecError, "xs holds no arrays"),
    (lambda: ns.associative_scan(lambda a: a, X), errors.ArityError, "is given 2 arguments (acc, x)"),
    (lambda: ns.associative_scan(lambda a, b: a, (X, X[:3])), errors.LengthError, "xs[1] has 3 elements along the axis, xs[0] has 4"),
    (lambda: ns.associative_scan(lambda a, b: (a, b), X), errors.StructureError, "returns (*, *), an element of xs is *"),
    (lambda: ns.associative_scan(lambda a, b: np.sum(a + b), X), errors.StateShapeError, "returns shape () for xs, an element has (3,)"),
    (lambda: ns.associative_scan(lambda a, b: a / b, X.astype(int)), errors.StateTypeError,
     "returns float64 for xs, an element is int64: convert xs before"),
    (lambda: ns.associative_scan(lambda a, b: None, X), errors.StructureError, "returns None, an element of xs is *"),
    (lambda: ns.associative_scan(lambda a, b: "x", X), errors.OutputTypeError, "returns for xs is a str"),
    (lambda: ns.associative_scan(np.add, X.astype("f4"), initial=np.ones(3)), errors.StateTypeError,
     "initial is float64, an element is float32: convert xs before"),
    (lambda: ns.associative_scan(np.add, X.astype(int), initial=0.5), errors.StateTypeError, "initial is float, an element is int64"),
    (lambda: ns.associative_scan(lambda a, b: a, {"p": X}, initial=[0.0]), errors.StructureError,
     "initial is [*], an element of xs is {'p': *}"),
    (lambda: ns.associative_scan(np.add, X, axis=2), errors.AxisRangeError, "axis 2 is out of range: xs has 2 axes"),
    (lambda: ns.associative_scan(np.add, X, reset=[1, 0, 0, 0]), errors.SpecError, "reset must be bool, got int64"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[2][:40])
def test_bad_input_is_an_error_about_the_argument(case):
    call, kind, text = case
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)


def test_nothing_of_the_caller_is_changed(mode):
    a, b, h0 = rng(1).uniform(size=5), rng(2).normal(size=5), np.zeros(())
    kept = [x.copy() for x in (a, b, h0)]
    for x in (a, b, h0):
        x.setflags(write=False)
    ns.linear_recurrence(a, b, h0)
    ns.accumulate(np.maximum, b)
    ns.associative_scan(np.add, b, initial=h0)
    assert all((x == y).all() for x, y in zip((a, b, h0), kept))


# ----------------------------------------------------------------------------- how affine states are planned
def holt(x, level, trend, r):
    new = r * x + (1 - r) * (level + trend)
    return new, 0.1 * (new - level) + 0.9 * trend


STEPS = {
    "mean": (lambda x, h, r: r * x + (1 - r) * h, 1, True),
    "correction": (lambda x, h, r: h + r * (x - h), 1, True),
    "difference": (lambda x, h, r: x - r * h, 1, True),
    "negative": (lambda x, h, r: -(h * r) - x, 1, True),
    "total": (lambda x, h, r: h + x * r, 1, True),
    "factors": (lambda x, h, r: x * r * h + x, 1, True),
    "twice": (lambda x, h, r: h - (x + h) * r + h * 0.25, 1, True),
    "two": (lambda x, g, h, r: (r * g + x, 0.5 * h + g * x), 2, True),
    "chained": (lambda x, g, h, r: ((new := r * g + x), 0.5 * h + new * x), 2, True),
    "costly": (lambda x, h, r: r * h + x + np.exp(-np.abs(x)), 1, True),
    "coupled": (holt, 2, False),
    "square": (lambda x, h, r: r * h * h + x, 1, False),
    "quotient": (lambda x, h, r: x / (1 + h * h), 1, False),
    "one of two": (lambda x, g, h, r: (r * g + x, np.tanh(h) + g), 2, False),
    "factor from a state": (lambda x, g, h, r: (r * g + x, g * h + x), 2, False),
}


def uses_powers(monkeypatch, call):
    """Whether a call plans a loop by powers."""
    from nscan.plan import affine
    found, real = [], affine.find
    monkeypatch.setattr(affine, "find", lambda steps: found.append(real(steps)) or found[-1])
    monkeypatch.setattr("nscan.cpu.kernel._KERNELS", {})
    call()
    monkeypatch.setattr(affine, "find", real)
    return any(f is not None for f in found)


@pytest.mark.parametrize("name", STEPS)
def test_affine_states_are_found_and_right(compiled, monkeypatch, name):
    step, count, expected = STEPS[name]
    x = rng(1).uniform(-1, 1, 23)

    def run(mode, x, r):
        ns.config.mode = mode
        rows = ns.scan(step, x, [0.7] * count, r, return_list=True)
        grads = ns.grad(lambda x, r: sum(np.sum(h**2) for h in ns.scan(step, x, [0.7] * count, r, return_list=True)), (0, 1))(x, r)
        return [*rows, *grads]
    assert uses_powers(monkeypatch, lambda: ns.scan(step, x, [0.7] * count, 0.3)) == expected
    for n in (1, 3, 4, 5, 8, 23):
        for r in (0.3, 0.0, 1.0, 1.7) if expected else (0.3, 0.0):
            found, want = run("compiled", x[:n], r), run("python", x[:n], r)
            largest = max(1, *[np.max(np.abs(h)) for h in want[:count]])
            for k, (f, w) in enumerate(zip(found, want)):
                np.testing.assert_allclose(f, w, rtol=0, atol=64 * 2.0**-52 * (largest if k < count else n * largest**2))


def test_large_factors_and_special_values_keep_the_plain_order(compiled):
    for values in ([1e200, 1e-200, 1e200, 1e-200], [np.inf, 0.0, 0.5, 1.0], [np.nan, 1.0, 1.0, 1.0], [1e10, 1e10, 1e-10, 1e-10],
                   [-3.0, 2.0, 5.0, 0.5]):
        a = np.array(values * 3)
        b = np.where(np.arange(12) % 4 == 0, -a, 1.0)
        for h0 in (1.0, 0.0):
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(ns.linear_recurrence(a, b, h0), plain_recurrence(a, b, h0))
    a, b = np.full(12, 0.5), np.ones(12)
    for bad in (np.nan, np.inf, -np.inf):
        b[5] = bad
        a[9] = 0.0
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(ns.linear_recurrence(a, b), plain_recurrence(a, b))


def test_a_factor_of_zero_forgets(compiled):
    a, b = rng(1).uniform(size=40), rng(2).normal(size=40)
    a[20] = 0.0
    np.testing.assert_array_equal(ns.linear_recurrence(a, b, 1e18)[20:], ns.linear_recurrence(a[20:], b[20:], -7.0))


def test_the_last_row_is_the_last_state(compiled):
    for n in range(1, 10):
        x = rng(n).normal(size=n)
        final, rows = ns.loop(lambda h, x: ((new := 0.3 * h + x), new), 0.1, x)
        assert final == rows[-1]


def test_blocks_of_a_long_run_do_not_change_bits(compiled, monkeypatch):
    x = rng(1).normal(size=1000)
    run = lambda: ns.scan(lambda x, h: 0.9 * h + x, x, 0.0)  # noqa: E731
    once = run()
    for work in (1 << 5, 1 << 7, 1000):
        monkeypatch.setattr("nscan.cpu.kernel.BLOCK_WORK", work)
        monkeypatch.setattr("nscan.cpu.kernel._KERNELS", {})
        np.testing.assert_array_equal(run(), once)


def test_a_sum_beside_the_states(compiled):
    def f(r, x):
        def step(carry, x):
            total, h = carry
            h = r * h + x
            return (total + h**2, h), None
        return ns.loop(step, (0.0, 0.0), x)[0][0]
    x = rng(1).normal(size=37)
    ns.config.mode = "python"
    want = ns.value_and_grad(f)(0.4, x)
    ns.config.mode = "compiled"
    np.testing.assert_allclose(ns.value_and_grad(f)(0.4, x), want, rtol=1e-13)


# ---------------------------------------------------------------------------------------------------- few lanes
LANED = {
    "affine": (lambda x, h, r: r * x + (1 - r) * h, 1),
    "cell": (lambda x, h, r: np.tanh(r * h + x), 1),
    "two": (lambda x, g, h, r: (r * g + h, x - g), 2),
    "with a row": (lambda x, h, r: (r * h + x, h * x), 1),
}


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
@pytest.mark.parametrize("name", LANED)
def test_few_lanes_and_many_give_what_python_gives(compiled, name, dtype):
    step, count = LANED[name]

    def run(mode, x, h0, r):
        ns.config.mode = mode
        info = [h0] * count + [None] * (name == "with a row")
        f = lambda *args: ns.scan(step, args[0], [args[1]] * count + info[count:], args[2], return_list=True)  # noqa: E731
        outs, pull = ns.vjp(f, x, h0, r)
        return [*outs, *pull([np.cos(np.arange(o.size)).reshape(o.shape).astype(o.dtype) for o in outs])]
    for lanes, n in itertools.product((2, 7, 8, 9, 16, 17, 33), (1, 2, 5)):
        args = [rng(k).normal(size=s).astype(dtype) / 2 for k, s in enumerate([(n, lanes), (lanes,), (lanes,)])]
        for found, want in zip(run("compiled", *args), run("python", *args)):
            close(found, want)


def test_both_orders_of_loops_give_the_same_bits(compiled, monkeypatch):
    from nscan.plan import interchange
    x, h0 = rng(1).normal(size=(50, 5)), rng(2).normal(size=5)
    run = lambda: ns.scan(lambda x, h: np.tanh(0.9 * h + x), x, h0)  # noqa: E731
    inside = run()
    monkeypatch.setattr("nscan.cpu.kernel._KERNELS", {})
    found, real = [], interchange.find
    monkeypatch.setattr(interchange, "find", lambda steps: found.append(real(steps)))
    outside = run()
    assert any(f is not None for f in found), "steps were never inside"
    np.testing.assert_array_equal(inside, outside)


def test_steps_in_blocks_go_on_from_the_last_one(compiled, monkeypatch):
    x = rng(1).normal(size=(40, 3))
    run = lambda: ns.loop(lambda h, x: (np.tanh(h) + x, None), np.zeros(3), x)[0]  # noqa: E731
    once = run()
    monkeypatch.setattr("nscan.cpu.kernel.BLOCK_WORK", 700)
    monkeypatch.setattr("nscan.cpu.kernel._KERNELS", {})
    np.testing.assert_array_equal(run(), once)


def test_lanes_that_meet_are_left_alone(compiled):
    x = rng(1).normal(size=(6, 5))
    f = lambda x: ns.scan(lambda x, h: h - np.mean(h) + x[::-1], x, np.zeros(5))  # noqa: E731
    found = f(x)
    ns.config.mode = "python"
    close(found, f(x))


def variance(p, x, kept):
    """A likelihood whose adjoint reads the new state."""
    def step(x, v, w, a, b):
        new = w + a * x**2 + b * v
        return new, np.log(new) + x**2 / new
    return np.sum(ns.scan(step, x, [1.0, None], [p[0], p[1], p[2]], checkpoint=kept)[1])


def mean(p, x, kept):
    """A running mean."""
    return np.sum(np.sin(ns.scan(lambda x, h, r: r * x + (1 - r) * h, x, 0.3, p[1], checkpoint=kept)))


def pair(p, x, kept):
    """An affine state that feeds another one."""
    g, h = ns.scan(lambda x, g, h, r, s: ((n := r * g + x), s * h + np.tanh(n) * g), x, [0.1, 0.2], [p[1], p[2]], checkpoint=kept)
    return np.sum(np.sin(g) * h)


@pytest.mark.parametrize("f", [variance, mean, pair])
def test_the_same_bits_whatever_is_kept(compiled, monkeypatch, f):
    """The backward loop goes by powers, also where it runs in segments; the forward loop keeps the plain order."""
    p, x = np.array([0.05, 0.1, 0.85]), rng(1).normal(size=203)
    assert uses_powers(monkeypatch, lambda: ns.grad(f)(p, x, "all"))
    want = ns.value_and_grad(f)(p, x, "all")
    for kept in ("states", 2, 3, 7, 30, "8KB", "auto"):
        found = ns.value_and_grad(f)(p, x, kept)
        assert found[0] == want[0], kept
        np.testing.assert_array_equal(found[1], want[1], err_msg=str(kept))
