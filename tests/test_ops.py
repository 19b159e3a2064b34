"""Every row of TABLE and every NumPy function that stands on rows: values, types, derivatives, edges."""

import inspect

import numpy as np
import pytest
import scipy.special
from front_calls import ARRAYS, CALLS

import nscan as ns
from nscan.primitive import TABLE, Row, bind, ufunc_of
from nscan.trace import StepTrace

pytestmark = pytest.mark.usefixtures("mode")

FLOATS, COMPLEX = ("f4", "f8"), ("c8", "c16")
DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", *FLOATS, *COMPLEX)
DEFAULT = {"low": -3.0, "high": 3.0}
INTEGERS = {"live", "threefry_first", "threefry_second"}  # see test_random and test_product
POINTWISE = [row for row in TABLE if row.kind == "pointwise" and row.name not in INTEGERS]
PARAMS = {"cast": {"dtype": np.dtype("f4")}, "integer_power": {"n": 5}}
CONDITION_FIRST = {"select"}
ONLY = {"grad_clip": "f", "complex": "f", "imag": "c", "real": "c"}


def arity(row):
    return 2 if row.name == "grad_scale" else 3 if row.name in ("grad_clip", "select") else len(row.partials)


def is_ufunc(row):
    return row.function is not None and row.name not in ("sinc",)


def spelled(row):
    """Return what a user writes: the ufunc, or the row applied by name."""
    if is_ufunc(row):
        return ufunc_of(row.function)
    return lambda *arrays: bind(row, arrays, PARAMS.get(row.name, {}))


def on_numpy(row):
    return ufunc_of(row.function) if is_ufunc(row) else lambda *arrays: row.eager(*arrays, **PARAMS.get(row.name, {}))


def draw(domain, shape, dtype, rng):
    """Draw from a domain; integers are the rounded ones, complex numbers have both parts in it."""
    low, high = domain["low"], domain["high"]
    x = rng.uniform(low, high, shape)
    if domain.get("signs"):
        x = x * rng.choice([-1.0, 1.0], shape)
    kind = np.dtype(dtype).kind
    if kind == "c":
        return (x + 1j * rng.uniform(low, high, shape)).astype(dtype)
    if kind in "iu":
        x = np.maximum(np.round(np.abs(x) if kind == "u" else x), 0 if kind == "u" else -100)
    return (x > 0) if kind == "b" else x.astype(dtype)


def samples(row, dtype, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(2, 3, 4), (2, 4), (2, 3, 4)]
    out = [draw(row.sample.get("abcd"[k], DEFAULT), shapes[k], dtype, rng) for k in range(arity(row))]
    if row.name in CONDITION_FIRST:
        out[0] = out[0] > 0
    if row.name == "ldexp":
        out[1] = rng.integers(-3, 4, (2, 4)).astype("i4")
    if row.name in ("grad_clip", "grad_scale"):
        out[1:] = [x.reshape(2, -1)[:, 0] for x in out[1:]]
    return out


def accepts(row, dtype, arrays):
    """Whether NumPy has the row's function for these types."""
    if row.name in ONLY:
        return np.dtype(dtype).kind == ONLY[row.name]
    try:
        with np.errstate(all="ignore"):
            if np.asarray(on_numpy(row)(*[x[0] for x in arrays])).dtype == np.float16:
                return False
    except (TypeError, ValueError):
        return False
    return is_ufunc(row) or np.dtype(dtype).kind in "fc" or row.name in ("cast", "copy", "select", "stop_gradient")


def same(got, want, ulps=64):
    """Compare type and shape exactly, values to some ulp of the largest one."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), (got.dtype, got.shape, want.dtype, want.shape)
    if want.dtype.kind not in "fc":
        np.testing.assert_array_equal(got, want)
        return
    finite = np.abs(want[np.isfinite(want)])
    slack = ulps * np.finfo(want.dtype).eps
    np.testing.assert_allclose(got, want, rtol=slack, atol=slack * np.max(finite, initial=0.0))


def in_one_step(parts):
    """Run functions, each on arrays of its own, as one step (one kernel serves for all): the list of all results."""

    def step(*rows):
        left = iter(rows)
        return [y for f, arrays in parts for y in flat(f(*[next(left) for _ in arrays]))]

    rows = ns.map(step, [x for _, arrays in parts for x in arrays])
    return list(rows) if isinstance(rows, tuple) else [rows]


def typed_samples(row, dtypes=DTYPES):
    """Samples of a row in every type that NumPy has it for; both arrays and scalars."""
    arrays = [samples(row, dtype) for dtype in dtypes]
    arrays = [x for x, dtype in zip(arrays, dtypes, strict=True) if accepts(row, dtype, x)]
    return arrays + [[x.reshape(2, -1)[:, 0] for x in given] for given in arrays]


@pytest.mark.parametrize("row", POINTWISE, ids=lambda row: row.name)
def test_values_in_one_kernel(row):
    cases = typed_samples(row)
    with np.errstate(all="ignore"):
        found = in_one_step([(spelled(row), arrays) for arrays in cases])
        for got, arrays in zip(found, cases, strict=True):
            same(got, np.stack([on_numpy(row)(*rows) for rows in zip(*arrays, strict=True)]))


@pytest.mark.wide
@pytest.mark.parametrize("row", POINTWISE, ids=lambda row: row.name)
def test_values_of_pointwise_rows(row):
    seen = 0
    for dtype in DTYPES:
        arrays = samples(row, dtype)
        if not accepts(row, dtype, arrays):
            continue
        seen += 1
        with np.errstate(all="ignore"):
            want = np.stack([on_numpy(row)(*rows) for rows in zip(*arrays, strict=True)])
            same(ns.map(spelled(row), arrays), want)
            scalars = [x.reshape(2, -1)[:, 0] for x in arrays]
            same(ns.map(spelled(row), scalars), np.stack([on_numpy(row)(*rows) for rows in zip(*scalars, strict=True)]))
    assert seen, f"no dtype of {row.name} was tested"


@pytest.mark.wide
@pytest.mark.parametrize("row", [r for r in POINTWISE if is_ufunc(r)], ids=lambda row: row.name)
def test_what_numpy_refuses_is_refused(row):
    for dtype in DTYPES:
        arrays = samples(row, dtype)
        if not accepts(row, dtype, arrays):
            with pytest.raises((TypeError, ValueError)):
                ns.map(spelled(row), arrays)


MIXED = [
    ("f4", "f8"),
    ("i4", "f4"),
    ("u8", "i8"),
    ("b1", "i2"),
    ("c8", "f8"),
    ("f4", 2.5),
    (3, "i1"),
    ("f4", 2),
    ("u1", "f4"),
    (1j, "f4"),
]


@pytest.mark.parametrize(
    "name", ["add", "multiply", "divide", "power", "maximum", "less", "arctan2", "floor_divide", "bitwise_and"]
)
@pytest.mark.parametrize("types", MIXED, ids=str)
def test_promotion(name, types):
    ufunc = getattr(np, name)
    arrays = [t if isinstance(t, (int, float, complex)) else np.array([1, 2, 3]).astype(t) for t in types]
    moving = [x for x in arrays if isinstance(x, np.ndarray)]

    def call(*rows):
        left = iter(rows)
        return ufunc(*[next(left) if isinstance(x, np.ndarray) else x for x in arrays])

    try:
        want = ufunc(*arrays)
        known = want.dtype != np.float16
    except TypeError:
        known = False
    if not known:
        with pytest.raises(TypeError):
            ns.map(call, moving)
        return
    same(ns.map(call, moving), want)


# Derivatives of pointwise rows

SMOOTH = [row for row in POINTWISE if row.vjp is not None and not row.asymmetric and row.name not in ("cast",)]
# The second derivative jumps or is hidden from differences there: only the first order is compared.
FIRST_ORDER = {"remainder", "fmod", "tieshare"}
# SciPy has no second derivative of these for complex numbers.
REAL_ONLY = {"gamma": 1, "psi": 0}
LOOSE = {"erfinv": 1e-4, "ndtri": 1e-4, "psi": 1e-4, "zeta": 1e-4, "gamma": 1e-4}


def differentiable(row):
    """Names of the float arguments in which the row has a derivative."""
    return [k for k, p in enumerate(row.partials) if p not in (None, "?")]


def in_floats(row, arrays):
    """Return the row as a function of its differentiable float arguments, and these."""
    where = [k for k in differentiable(row) if arrays[k].dtype.kind in "fc"]

    def f(*chosen):
        full = list(arrays)
        for k, x in zip(where, chosen, strict=True):
            full[k] = x
        return ns.map(spelled(row), full)

    return f, [arrays[k] for k in where]


@pytest.mark.wide
@pytest.mark.parametrize("row", SMOOTH, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_derivatives_of_pointwise_rows(row, dtype):
    arrays = samples(row, dtype, seed=1)
    f, args = in_floats(row, arrays)
    order = 1 if row.name in FIRST_ORDER else 2 if dtype == "f8" else REAL_ONLY.get(row.name, 2)
    if not accepts(row, dtype, arrays) or not args or not order:
        return
    with np.errstate(all="ignore"):
        ns.check_grads(f, args, order=order, rtol=LOOSE.get(row.name))
        forward_is_reverse(f, args)


@pytest.mark.wide
@pytest.mark.parametrize("row", SMOOTH, ids=lambda row: row.name)
@pytest.mark.parametrize("narrow, wide", [("f4", "f8"), ("c8", "c16")])
def test_derivatives_in_single_precision(row, narrow, wide):
    arrays = samples(row, narrow, seed=1)
    f, args = in_floats(row, arrays)
    if not accepts(row, narrow, arrays) or not args or narrow == "c8" and REAL_ONLY.get(row.name) == 0:
        return
    g, more = in_floats(row, [x.astype(wide) if x.dtype == narrow else x for x in arrays])
    with np.errstate(all="ignore"):
        out, pull = ns.vjp(f, *args)
        for got, want in zip(pull(np.ones_like(out)), ns.vjp(g, *more)[1](np.ones_like(g(*more))), strict=True):
            assert got.dtype == narrow
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.max(np.abs(want)))
        forward_is_reverse(f, args)


def assert_modes_agree(f, args):
    """Compare values, tangents and cotangents with those of python mode, which other tests check against differences."""
    rng = np.random.default_rng(5)
    tangents = tuple(rng.standard_normal(x.shape).astype(x.dtype) for x in args)
    found = {}
    for mode in dict.fromkeys((ns.config.mode, "python")):
        ns.config.mode = mode
        with np.errstate(all="ignore"):
            outs, moved = ns.jvp(f, tuple(args), tangents)
            back = ns.vjp(f, *args)[1](outs)
        found[mode] = [*flat(outs), *flat(moved), *flat(back)]
    want = found.pop("python")
    for results in found.values():
        for got, x in zip(results, want, strict=True):
            agree(got, x)


def agree(got, want):
    """Compare two derivatives to rounding, where both are finite."""
    assert (np.asarray(got).dtype, np.shape(got)) == (np.asarray(want).dtype, np.shape(want))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    got, want = np.asarray(got)[finite], np.asarray(want)[finite]
    slack = 1e-3 if want.dtype.itemsize // (1 + (want.dtype.kind == "c")) == 4 else 1e-9
    np.testing.assert_allclose(got, want, rtol=slack, atol=slack * np.max(np.abs(want), initial=0.0))


@pytest.mark.wide
@pytest.mark.parametrize("row", SMOOTH, ids=lambda row: row.name)
def test_derivatives_are_those_of_python_mode(row):
    dtype = "c16" if ONLY.get(row.name) == "c" else "f8"
    assert_modes_agree(*in_floats(row, samples(row, dtype, seed=1)))


def forward_is_reverse(f, args):
    """Compare jvp and vjp through the real inner product, to rounding."""
    rng = np.random.default_rng(3)

    def like(x):
        x = np.asarray(x)
        v = rng.standard_normal(x.shape)
        return (v + 1j * rng.standard_normal(x.shape) if x.dtype.kind == "c" else v).astype(x.dtype)

    tangents = [like(x) for x in args]
    outs, moved = ns.jvp(f, tuple(args), tuple(tangents))
    outs, moved = (x if isinstance(x, (tuple, list)) else (x,) for x in (outs, moved))
    cts = [like(x) if np.asarray(x).dtype.kind in "fc" else np.zeros(np.shape(x)) for x in outs]
    assert [np.shape(m) for m in moved] == [np.shape(x) for x in outs]
    back = ns.vjp(f, *args)[1](tuple(cts) if len(cts) > 1 else cts[0])
    pairs = [(c, m) for c, m, x in zip(cts, moved, outs, strict=True) if np.asarray(x).dtype.kind in "fc"]
    left = sum(np.sum(np.real(np.conj(c) * m)) for c, m in pairs)
    right = sum(np.sum(np.real(np.conj(b) * t)) for b, t in zip(back, tangents, strict=True))
    scale = sum(np.sum(np.abs(c) * np.abs(m)) for c, m in pairs) + sum(
        np.sum(np.abs(b) * np.abs(t)) for b, t in zip(back, tangents, strict=True)
    )
    eps = max(np.finfo(np.asarray(x).dtype).eps for x in args)
    assert abs(left - right) <= 1000 * eps * max(scale, 1e-30)


@pytest.mark.parametrize("row", [row for row in SMOOTH if len(differentiable(row)) > 1], ids=lambda row: row.name)
def test_one_operand_moves_and_another_has_the_larger_shape(row):
    arrays = [np.ravel(x)[:8] for x in samples(row, "c16" if ONLY.get(row.name) == "c" else "f8", seed=1)]
    for k in differentiable(row):
        if arrays[k].dtype.kind in "fc":
            with np.errstate(all="ignore"):
                forward_is_reverse(lambda x, k=k: np.ravel(spelled(row)(*[x[:, None] if j == k else y for j, y in
                                                                         enumerate(arrays)])), [arrays[k]])


def test_one_operand_moves_and_another_has_the_larger_dtype(mode):
    def step(x, h, a, c):
        y = np.ravel(h[:, None] + a) * 2
        return np.sum(y.reshape(2, 3), axis=1).astype(np.float32) * 0.5 + x, np.sum(h + c), np.mean(h.astype(np.float64)[:, None] - a)

    def run(h, x):
        return ns.scan(step, x, [h, None, None], [np.ones((1, 3)), np.full(2, 1j)])

    h, x = np.array([0.5, -1.0], np.float32), np.ones((4, 2), np.float32)
    forward_is_reverse(lambda h: run(h, x), [h])
    outs, moved = ns.jvp(lambda h: run(h, x), (h,), (np.ones(2, np.float32),))
    assert [m.dtype for m in moved] == [y.dtype for y in outs]
    np.testing.assert_allclose(moved[0][:, 0], 3.0 ** np.arange(1, 5))
    np.testing.assert_allclose(moved[2], 3.0 ** np.arange(4))


def test_a_derivative_that_is_not_known_is_refused():
    with pytest.raises(ns.errors.GradientTypeError, match="zeta"):
        ns.grad(lambda x: scipy.special.zeta(x, 2.0))(3.0)
    assert ns.grad(lambda q: scipy.special.zeta(3.0, q))(2.0) < 0.0


@pytest.mark.parametrize("row", [r for r in POINTWISE if r.vjp is None], ids=lambda row: row.name)
def test_rows_without_derivative_give_zeros(row):
    if not is_ufunc(row) or not accepts(row, "f8", samples(row, "f8")):
        return
    arrays = [x[0] for x in samples(row, "f8")]
    out, pull = ns.vjp(spelled(row), *arrays)
    for ct in pull(np.ones(np.shape(out))):
        assert not np.any(ct)


# Edges

OTHER_AT_EDGES = ("gammaln", "zeta", "rel_entr", "betaln")
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, np.inf, -np.inf, np.nan, 5e-324, 1e300, -1e300, 709.0, 1e-8]


@pytest.mark.parametrize("row", [r for r in POINTWISE if is_ufunc(r)], ids=lambda row: row.name)
def test_edges_give_what_numpy_gives(row):
    if ns.config.mode == "compiled" and row.name in OTHER_AT_EDGES:
        pytest.skip("compiled formulas differ from SciPy's at poles and subnormal numbers, as docs/limits.rst says")
    for dtype in FLOATS:
        with np.errstate(all="ignore"):
            points = np.array(EDGES).astype(dtype)
            grid = [points] if arity(row) == 1 else [x.ravel() for x in np.meshgrid(points, points)][:2]
            if row.name == "ldexp":
                grid = [np.repeat(points, 3), np.tile(np.array([-2, 0, 3], "i4"), len(points))]
            if not accepts(row, dtype, [x[None] for x in grid]):
                continue
            got, want = ns.map(spelled(row), grid), on_numpy(row)(*grid)
            single = np.stack([on_numpy(row)(*values) for values in zip(*grid, strict=True)])
        agreed = slice(None)
        if want.dtype.kind == "f":  # NumPy agrees with itself
            agreed = (np.isnan(single) == np.isnan(want)) & (np.signbit(single) == np.signbit(want))
        got, want = got[agreed], want[agreed]
        same(got, want)
        if want.dtype.kind == "f" and row.name not in ("maximum", "minimum", "fmax", "fmin"):
            zero = want == 0
            np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


INF = np.inf
SLOPES = [  # function, inputs, partials in each input that is differentiated
    (np.power, (0.0, 2.0), (0.0, 0.0)),
    (np.power, (0.0, 1.0), (1.0, 0.0)),
    (np.power, (0.0, 3.5), (0.0, 0.0)),
    (np.power, (2.0, 0.0), (0.0, np.log(2))),
    (np.power, (0.0, 0.0), (0.0, 0.0)),
    (np.power, (-2.0, 3.0), (12.0, np.nan)),
    (lambda x: x**3, (0.0,), (0.0,)),
    (lambda x: x**1, (0.0,), (1.0,)),
    (lambda x: x**0, (0.0,), (0.0,)),
    (lambda x: x**-1, (2.0,), (-0.25,)),
    (np.sqrt, (0.0,), (INF,)),
    (np.sqrt, (INF,), (0.0,)),
    (np.square, (0.0,), (0.0,)),
    (np.hypot, (0.0, 0.0), (0.0, 0.0)),
    (np.hypot, (3.0, 0.0), (1.0, 0.0)),
    (np.hypot, (1e200, 1e200), (0.5**0.5, 0.5**0.5)),
    (np.hypot, (-0.0, -4.0), (0.0, -1.0)),
    (np.arctan2, (0.0, 1.0), (1.0, 0.0)),
    (np.arctan2, (0.0, -2.0), (-0.5, 0.0)),
    (np.arctan2, (3.0, 0.0), (0.0, -1 / 3)),
    (np.abs, (0.0,), (0.0,)),
    (np.abs, (-0.0,), (0.0,)),
    (np.abs, (-INF,), (-1.0,)),
    (np.sign, (0.0,), (0.0,)),
    (np.fabs, (-2.0,), (-1.0,)),
    (np.exp, (-INF,), (0.0,)),
    (np.exp, (INF,), (INF,)),
    (np.expm1, (-INF,), (0.0,)),
    (np.exp2, (0.0,), (np.log(2),)),
    (np.log, (0.0,), (INF,)),
    (np.log, (INF,), (0.0,)),
    (np.log1p, (0.0,), (1.0,)),
    (np.log1p, (-1.0,), (INF,)),
    (np.tanh, (INF,), (0.0,)),
    (np.tanh, (0.0,), (1.0,)),
    (np.arctan, (-INF,), (0.0,)),
    (np.arctan, (1e200,), (0.0,)),
    (np.arcsinh, (1e200,), (0.0,)),
    (np.cbrt, (0.0,), (INF,)),
    (np.cbrt, (-8.0,), (1 / 12,)),
    (np.arcsin, (1.0,), (INF,)),
    (np.arccosh, (1.0,), (INF,)),
    (np.arctanh, (0.0,), (1.0,)),
    (np.sinc, (0.0,), (0.0,)),
    (np.sinc, (1.0,), (-1.0,)),
    (np.sinc, (1e-5,), (-3.2898681333717665e-05,)),
    (np.sinc, (-0.124,), (0.4017863568583946,)),
    (np.logaddexp, (-INF, -INF), (0.5, 0.5)),
    (np.logaddexp, (INF, INF), (0.5, 0.5)),
    (np.logaddexp, (-INF, 1.0), (0.0, 1.0)),
    (np.logaddexp, (1000.0, 0.0), (1.0, 0.0)),
    (np.logaddexp, (INF, 1.0), (1.0, 0.0)),
    (np.logaddexp2, (-INF, 2.0), (0.0, 1.0)),
    (np.logaddexp2, (1.0, 1.0), (0.5, 0.5)),
    (np.maximum, (2.0, 2.0), (0.5, 0.5)),
    (np.maximum, (0.0, -0.0), (0.5, 0.5)),
    (np.minimum, (2.0, 2.0), (0.5, 0.5)),
    (np.maximum, (1.0, INF), (0.0, 1.0)),
    (np.fmax, (2.0, np.nan), (1.0, 0.0)),
    (np.fmax, (np.nan, 2.0), (0.0, 1.0)),
    (np.fmin, (2.0, np.nan), (1.0, 0.0)),
    (np.fmin, (1.0, 1.0), (0.5, 0.5)),
    (lambda x: np.maximum(x, 0.0), (0.0,), (0.5,)),
    (lambda x: np.clip(x, 0.0, 1.0), (1.0,), (0.5,)),
    (lambda x: np.clip(x, 0.0, 1.0), (2.0,), (0.0,)),
    (lambda x: np.clip(x, 0.0, 1.0), (0.5,), (1.0,)),
    (np.copysign, (-2.0, 1.0), (-1.0,)),
    (np.copysign, (0.0, 1.0), (0.0,)),
    (np.heaviside, (0.0, 0.7), (0.0, 1.0)),
    (np.heaviside, (3.0, INF), (0.0, 0.0)),
    (np.nextafter, (1.0, 2.0), (1.0,)),
    (np.remainder, (5.0, 3.0), (1.0, -1.0)),
    (np.remainder, (-5.0, 3.0), (1.0, 2.0)),
    (np.fmod, (-5.0, 3.0), (1.0, 1.0)),
    (np.divide, (0.0, 2.0), (0.5, 0.0)),
    (np.reciprocal, (-INF,), (0.0,)),
    (scipy.special.expit, (1000.0,), (0.0,)),
    (scipy.special.expit, (-1000.0,), (0.0,)),
    (scipy.special.log_expit, (-1000.0,), (1.0,)),
    (scipy.special.log_expit, (0.0,), (0.5,)),
    (scipy.special.xlogy, (0.0, 2.0), (np.log(2), 0.0)),
    (scipy.special.xlogy, (0.0, 0.0), (-INF, np.nan)),
    (scipy.special.xlog1py, (0.0, 0.0), (0.0, 0.0)),
    (scipy.special.entr, (0.0,), (INF,)),
    (scipy.special.erf, (INF,), (0.0,)),
    (scipy.special.erfc, (40.0,), (0.0,)),
    (scipy.special.log_ndtr, (-40.0,), (40.024968847207525,)),
    (scipy.special.i0, (0.0,), (0.0,)),
    (scipy.special.i1, (0.0,), (0.5,)),
    (scipy.special.i0e, (0.0,), (0.0,)),
    (scipy.special.i1e, (0.0,), (0.5,)),
    (scipy.special.j1, (0.0,), (0.5,)),
    (ns.softplus, (1000.0,), (1.0,)),
    (ns.softplus, (-1000.0,), (0.0,)),
    (ns.sigmoid, (0.0,), (0.25,)),
]


@pytest.mark.wide
@pytest.mark.parametrize("f, point, partials", SLOPES)
def test_slopes_at_edges(f, point, partials):
    with np.errstate(all="ignore"):
        got = ns.grad(lambda *x: ns.map(f, [np.reshape(v, 1) for v in x])[0], argnums=tuple(range(len(partials))))(*point)
        np.testing.assert_allclose(got, partials, rtol=1e-12, atol=1e-300)
        for k in range(len(partials)):
            tangents = tuple(float(i == k) for i in range(len(point)))
            np.testing.assert_allclose(ns.jvp(f, point, tangents)[1], partials[k], rtol=1e-12, atol=1e-300)


def test_ties_of_extrema_share():
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    np.testing.assert_allclose(ns.grad(lambda x: np.sum(np.max(x, axis=1)))(x), [[0, 0.5, 0.5], [1 / 3] * 3])
    np.testing.assert_allclose(ns.grad(lambda x: np.min(x))(x), [[1.0, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(ns.jvp(lambda x: np.max(x, axis=1), (x,), (x,))[1], [3.0, 2.0])


# Functions that are spelled with rows


def named(name):
    """Return the NumPy function of a name such as ``linalg.norm``."""
    out = np
    for part in name.split("."):
        out = getattr(out, part)
    return out


def test_every_front_has_calls():
    fronts = {f for f, front in TABLE.fronts.items() if not isinstance(front, Row)}
    missing = fronts - {named(name) for name in CALLS}
    assert not missing, sorted(f.__name__ for f in missing)
    empty = [name for name, calls in CALLS.items() if not calls]
    assert empty == ["linalg.lstsq", "can_cast"]


def test_every_row_stands_in_a_tape():
    """A row that no call and no derivative uses would not be tested."""
    seen = {row.name for row in POINTWISE} | INTEGERS | {
        "custom_vjp",
        "custom_jvp",
        "same_size",
        "slice_bound",
        "slice_size",
        "step_count",
        "loop",
        "loop_adjoint",
    }

    def collect(tape):
        for eqn in tape.eqns:
            seen.add(eqn.row.name)
            for part in eqn.params.values():
                for inner in getattr(part, "tapes", tuple)():
                    collect(inner)

    for calls in CALLS.values():
        for call in calls:
            with StepTrace() as trace:
                for x in flat(call(*[trace.new_input(x.shape, x.dtype) for x in given(call)])):
                    trace.var_of(x) if hasattr(x, "dtype") else None
                collect(trace)
    with StepTrace() as trace:
        x = trace.new_input((3,), np.dtype("f8"))
        for f in (
            np.cumprod,
            np.sort,
            np.maximum.accumulate,
            np.minimum.accumulate,
            lambda x: ns.cond(x[0] > 0, np.sin, np.cos, x),
        ):
            ns.grad(lambda x, f=f: np.sum(f(x)))(x)
        np.add.at(np.copy(x), np.array([0, 0]), 1.0)
        collect(trace)
    assert {row.name for row in TABLE} <= seen, {row.name for row in TABLE} - seen


FRONTS = [pytest.param(call, id=f"{name}-{k}") for name, calls in CALLS.items() for k, call in enumerate(calls)]


def flat(result):
    """Return the arrays of a result as a tuple."""
    if isinstance(result, (tuple, list)):
        return tuple(leaf for part in result for leaf in flat(part))
    return (result,)


def given(call, dtype=None):
    """Arguments of a call by the names of its parameters; floats in another dtype."""
    arrays = [ARRAYS[name] for name in inspect.signature(call).parameters]
    if dtype is None:
        return arrays
    out = []
    for x in arrays:
        if x.dtype.kind != "f":
            out.append(x)
        elif np.dtype(dtype).kind == "c":
            out.append((x + 0.3j * np.flip(x)).astype(dtype))
        else:
            out.append((np.nan_to_num(x) * 3).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype))
    return out


def in_a_step(call, arrays):
    """Run a call as the step of a map over two equal rows and return the second."""
    rows = ns.map(
        lambda *a: flat(call(*a)), [np.stack([x, x]) if isinstance(x, np.ndarray) else np.stack([x, x]) for x in arrays]
    )
    return tuple(r[1] for r in (rows if isinstance(rows, tuple) else (rows,)))


def on_numpy_arrays(call, arrays):
    """Results of a call on arrays, or None where NumPy refuses it."""
    try:
        return [np.asarray(x) for x in flat(call(*[np.array(x)[()] for x in arrays]))]
    except (TypeError, ValueError, np.linalg.LinAlgError, Warning):
        return None


@pytest.mark.parametrize("name", [name for name, calls in CALLS.items() if calls])
def test_functions_in_one_kernel(name):
    with np.errstate(all="ignore"):
        wanted = {call: on_numpy_arrays(call, given(call)) for call in CALLS[name]}
        calls = [call for call, want in wanted.items() if want is not None]
        parts = [(call, [np.stack([x, x]) for x in given(call)]) for call in calls]
        found = iter(in_one_step(parts))
        for call in calls:
            for want in wanted[call]:
                same(next(found)[1], want, 512)
    assert next(found, None) is None


@pytest.mark.wide
@pytest.mark.parametrize("call", FRONTS)
@pytest.mark.parametrize("dtype", [None, "f4", "c16", "c8", "i8", "i4"])
def test_values_of_functions(call, dtype):
    arrays = given(call, dtype)
    if dtype is not None and all(a.dtype == b.dtype for a, b in zip(arrays, given(call), strict=True)):
        return
    with np.errstate(all="ignore"):
        want = on_numpy_arrays(call, arrays)
        if want is None:
            return
        if dtype is None or not any(x.dtype.kind == "f" and x.dtype.itemsize == 2 for x in want):
            got = in_a_step(call, arrays)
            assert len(got) == len(want)
            for g, w in zip(got, want, strict=True):
                same(g, w, 4096 if dtype in ("f4", "c8") else 512)


def float_parts(call, arrays, where):
    """Return a call as a function of some of its arguments; of its results those that are floats."""

    def f(*chosen):
        full = list(arrays)
        for k, x in zip(where, chosen, strict=True):
            full[k] = x
        parts = [x for x in flat(call(*full)) if getattr(x, "dtype", np.dtype(int)).kind in "fc"]
        return tuple(parts) if len(parts) != 1 else parts[0]

    return f


@pytest.mark.wide
@pytest.mark.parametrize("call", FRONTS)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_derivatives_of_functions(call, dtype):
    arrays = given(call, dtype)
    where = [k for k, x in enumerate(arrays) if x.dtype.kind in "fc" and not np.any(np.isnan(x))]
    f, args = float_parts(call, arrays, where), [arrays[k] for k in where]
    with np.errstate(all="ignore"):
        try:
            outs = flat(f(*args))
        except (TypeError, ValueError, Warning):
            return
        if not args or not outs or any(np.any(np.isnan(x)) for x in outs):
            return

        def looped(*chosen):
            rows = ns.map(f, [np.reshape(x, (1, *np.shape(x))) for x in chosen])
            return tuple(r[0] for r in rows) if isinstance(rows, tuple) else rows[0]

        ns.check_grads(looped, args, order=2, rtol=2e-5)
        ns.check_grads(f, args, order=1, rtol=2e-5)
        forward_is_reverse(looped, args)
