"""Stable formulas: each row of the table, where the formula as written fails, inside loops and in derivatives."""

import conftest
import mpmath as mp
import numpy as np
import pytest
import scipy.special as sp

import nscan as ns
from nscan import step, trace
from nscan.rewrites import PATTERNS

mp.mp.dps = 900
EXACT = {
    "exp": mp.exp, "log": mp.log, "sqrt": mp.sqrt, "erf": mp.erf, "erfc": mp.erfc, "ndtr": lambda x: mp.erfc(-x / mp.sqrt(2)) / 2,
    "expit": lambda x: 1 / (1 + mp.exp(-x)), "logit": lambda x: mp.log(x / (1 - x)), "log1p": lambda x: mp.log(1 + x),
    "expm1": lambda x: mp.exp(x) - 1, "square": lambda x: x * x, "reciprocal": lambda x: 1 / x,
}
NUMPY = {name: getattr(np, name, None) or getattr(sp, name) for name in EXACT}

# For each row of the table: the formula as a user may write it, and where it fails.
CASES = {
    "1 / (1 + exp(-x))": [("1 / (1 + exp(-x))", -800.0)],
    "reciprocal(1 + exp(-x))": [("(1 + exp(-x))**-1", -800.0)],
    "exp(x) / (1 + exp(x))": [("exp(x) / (exp(x) + 1)", 800.0)],
    "1 - expit(x)": [("1 - expit(x)", 40.0), ("1 - 1/(1 + exp(-x))", 40.0)],
    "expit(x) / expit(-x)": [("expit(x) / (1 - expit(x))", 50.0)],
    "logit(expit(x))": [("logit(expit(x))", 50.0)],
    "log(expit(x))": [("log(expit(x))", -800.0), ("log(1 / (1 + exp(-x)))", -800.0), ("log(1 - expit(x))", 50.0)],
    "log1p(-expit(x))": [("log1p(-expit(x))", 50.0)],
    "log(1 + exp(x))": [("log(1 + exp(x))", 800.0), ("log(exp(x) + 1)", -50.0), ("-log(1 + exp(-x))", -800.0)],
    "log1p(exp(x))": [("log1p(exp(x))", 800.0)],
    "log(-expm1(x))": [("log(-expm1(x))", -50.0), ("log(1 - exp(x))", -1e-20), ("log(1 - exp(x))", -50.0)],
    "log1p(-exp(x))": [("log1p(-exp(x))", -1e-20)],
    "exp(x) - 1": [("exp(x) - 1", 1e-20)],
    "1 - exp(x)": [("1 - exp(x)", -1e-20)],
    "(exp(x) - exp(-x)) / (exp(x) + exp(-x))": [("(exp(x) - exp(-x)) / (exp(x) + exp(-x))", 800.0),
                                                ("(exp(x) - exp(-x)) / (exp(-x) + exp(x))", 1e-20)],
    "log(ndtr(x))": [("log(ndtr(x))", -40.0)],
    "log(erfc(x))": [("log(erfc(x))", 30.0)],
    "1 - erf(x)": [("1 - erf(x)", 6.5)],
    "1 + erf(x)": [("1 + erf(x)", -6.5)],
    "1 - erfc(x)": [("1 - erfc(x)", 1e-20)],
    "1 - ndtr(x)": [("1 - ndtr(x)", 9.0)],
    "log(exp(x))": [("log(exp(x))", 1000.0), ("log(exp(x))", -1000.0)],
    "log(exp(x) + exp(y))": [("log(exp(x) + exp(x/2))", 1000.0), ("log(exp(2*x) + exp(x))", -1000.0)],
    "log(exp(x) + exp(y) + exp(z))": [("log(exp(x) + exp(x/2) + exp(-x))", 1000.0)],
    "log(1 + x)": [("log(1 + x)", 1e-20), ("log(x + 1)", -1e-20)],
    "log(1 - x)": [("log(1 - x)", 1e-20)],
    "sqrt(square(x))": [("sqrt(x**2)", 1e200), ("sqrt(x**2)", -1e-200)],
    "sqrt(x * x)": [("sqrt(x * x)", -1e200), ("sqrt(x * x)", 1e-200)],
}
FLAT = [(text, x) for cases in CASES.values() for text, x in cases]


def formula(text):
    """Make a function of an array, in NumPy."""
    code = compile(text, "<formula>", "eval")
    return lambda x: eval(code, {}, {**NUMPY, "x": x})


def exact(text, x):
    """Value, first and second derivative of a formula in exact arithmetic."""
    code = compile(text, "<formula>", "eval")
    f = lambda x: eval(code, {}, {**EXACT, "x": x})  # noqa: E731
    at, h = mp.mpf(x), mp.mpf(abs(x)) * mp.mpf(10)**-200
    low, mid, high = f(at - h), f(at), f(at + h)
    return [float(mid), float((high - low) / (2*h)), float((high - 2*mid + low) / h**2)]


def computed(text, x):
    """The same by a loop in which the formula stands, its gradient, and the gradient of that."""
    f = formula(text)
    total = lambda x: np.sum(ns.map(f, x))  # noqa: E731
    xs = np.array([x, x])
    return [ns.map(f, xs)[0], ns.grad(total)(xs)[1], ns.hvp(total, xs, np.ones(2))[0]]


def agrees(got, want):
    """Value within rounding, derivatives nearly so."""
    with np.errstate(invalid="ignore"):
        far = [not abs(g - w) <= abs(w) * r + a for g, w, r, a in zip(got, want, (1e-13, 1e-10, 1e-9), (1e-320, 1e-15, 1e-15))]
    return not any(far)


@pytest.fixture
def in_python(request):
    """Python mode, for tests of single formulas; compiled mode has them all in one loop."""
    with conftest.in_mode("python", request.module.__name__):
        yield


@pytest.fixture
def as_written(monkeypatch, in_python):
    """Leave formulas as they are written."""
    caches = trace._TAPES, step._LOOPS
    for cache in caches:
        cache.clear()
    monkeypatch.setattr(trace, "optimise", lambda tape, stable: tape)
    yield
    for cache in caches:
        cache.clear()


def test_every_row_has_a_case():
    assert list(CASES) == [before for before, _ in PATTERNS]


@pytest.mark.parametrize("text, x", FLAT)
def test_formula(in_python, text, x):
    assert agrees(computed(text, x), exact(text, x)), (computed(text, x), exact(text, x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text, x", FLAT)
def test_formula_fails_as_written(as_written, text, x):
    assert not agrees(computed(text, x), exact(text, x))


def all_formulas(x):
    """Every formula, each on an element of its own."""
    return np.stack([formula(text)(x[k]) for k, (text, _) in enumerate(FLAT)])


def test_all_formulas_in_one_loop(mode):
    xs = np.array([[x for _, x in FLAT]] * 2)
    total = lambda x: np.sum(ns.map(all_formulas, x))  # noqa: E731
    found = ns.map(all_formulas, xs)[1], ns.grad(total)(xs)[1], ns.hvp(total, xs, np.ones(xs.shape))[1]
    for (text, x), *got in zip(FLAT, *found):
        assert agrees(got, exact(text, x)), (text, x, got, exact(text, x))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_formulas_elsewhere(mode, dtype):
    """Where nothing overflows a formula has its value, its type and its shape."""
    xs = np.array([[-0.7, -0.3], [-0.25, -0.1]], dtype)
    found = ns.map(lambda x: tuple(formula(text)(x) for text, _ in FLAT), xs)
    for got, (text, _) in zip(found, FLAT):
        want = formula(text)(xs)
        assert got.dtype == want.dtype and got.shape == want.shape, text
        np.testing.assert_allclose(got, want, rtol=64 * np.finfo(dtype).eps, atol=64 * np.finfo(dtype).eps, err_msg=text)


def rows(f, *xs):
    """Names of the rows in the step of a map."""
    found = ns.explain(lambda: ns.map(f, list(xs)))().loops[0].loop.step
    return [q.row.name for q in found.eqns]


@pytest.mark.parametrize("f, x", [
    (lambda x: x / np.abs(x), 0.0), (lambda x: np.sqrt(x) ** 2, -1.0), (lambda x: np.exp(np.log(x)), -1.0),
    (lambda x: x * np.reciprocal(x), 0.0), (lambda x: np.log(x) - np.log(x), 0.0), (lambda x: (x - x) * 1, np.inf),
])
def test_formulas_without_a_value_keep_none(mode, f, x):
    assert np.isnan(ns.map(f, np.array([x]))).all()


def test_what_is_no_such_formula_stays(in_python):
    x = np.linspace(0.1, 1, 4)
    assert "log1p" not in rows(lambda x: np.log(2 + x), x)
    assert "softplus" not in rows(lambda x, y: np.log(1 + np.exp(x) * y), x, x)
    assert "expm1" not in rows(lambda x: np.exp(x) - 0.5, x)
    assert "absolute" not in rows(lambda x, y: np.sqrt(x * y), x, x)
    assert "log1p" not in rows(lambda x: np.log(1 + x), x + 1j)
    assert "tanh" not in rows(lambda x, y: (np.exp(x) - np.exp(-y)) / (np.exp(x) + np.exp(-x)), x, x)


def test_integers_are_left_alone(mode):
    x = np.array([[3, -4], [0, 5]])
    got = ns.map(lambda x: x + 0, x), ns.map(lambda x: x * 1 - 1, x)
    assert np.array_equal(got[0], x) and np.array_equal(got[1], x - 1) and got[1].dtype == x.dtype


def test_adding_zero_keeps_its_sign(mode):
    got = ns.map(lambda x: (x + 0.0, x - 0.0, x * 1), np.array([-0.0]))
    assert [bool(np.signbit(g[0])) for g in got] == [False, True, True]


# ------------------------------------------------------------------------------------- sums of exponentials
def exact_softmax(x):
    """Softmax of a vector in exact arithmetic: probabilities and their logarithms."""
    total = sum(mp.exp(mp.mpf(float(v))) for v in x)
    p = [mp.exp(mp.mpf(float(v))) / total for v in x]
    return np.array([float(v) for v in p]), np.array([float(mp.log(v)) for v in p]), float(mp.log(total))


def with_keepdims(x):
    e = np.exp(x)
    return e / np.sum(e, axis=-1, keepdims=True)


def with_new_axis(x):
    return np.exp(x) / np.exp(x).sum(axis=1)[:, None]


def along_rows(x):
    e = np.exp(x.T)
    return (e / e.sum(axis=0)).T


def by_rows(x):
    return np.stack([np.exp(row) / np.sum(np.exp(row)) for row in x])


def shifted_by_hand(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


SPELLINGS = [with_keepdims, with_new_axis, along_rows, by_rows, shifted_by_hand, ns.softmax]
FAR = np.array([[[1000.0, 999.0, -1000.0], [-1000.0, -1001.0, -999.0]], [[0.5, 800.0, 799.5], [-745.0, 0.0, 745.0]]])
WEIGHT = np.array([[0.3, -0.2, 0.9], [0.1, 0.7, -0.4]])


@pytest.mark.parametrize("softmax", SPELLINGS)
def test_softmax(mode, softmax):
    got = ns.map(softmax, FAR)
    want = np.array([[exact_softmax(row)[0] for row in x] for x in FAR])
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-320)


@pytest.mark.parametrize("softmax", SPELLINGS)
def test_softmax_derivatives(mode, softmax):
    total = lambda x: np.sum(WEIGHT * ns.map(softmax, x))  # noqa: E731
    p = np.array([[exact_softmax(row)[0] for row in x] for x in FAR])
    slope = p * (WEIGHT - np.sum(WEIGHT * p, axis=-1, keepdims=True))
    np.testing.assert_allclose(ns.grad(total)(FAR), slope, rtol=1e-10, atol=1e-15)
    v = np.cos(np.arange(12.0)).reshape(FAR.shape)
    dp = p * (v - np.sum(p * v, axis=-1, keepdims=True))
    curved = dp * (WEIGHT - np.sum(WEIGHT * p, axis=-1, keepdims=True)) - p * np.sum(WEIGHT * dp, axis=-1, keepdims=True)
    np.testing.assert_allclose(ns.hvp(total, FAR, v), curved, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("softmax", [f for f in SPELLINGS if f is not by_rows])
def test_logarithm_of_softmax(mode, softmax):
    want = np.array([[exact_softmax(row)[1] for row in x] for x in FAR])
    np.testing.assert_allclose(ns.map(lambda x: np.log(softmax(x)), FAR), want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("softmax", SPELLINGS[:3])
def test_cross_entropy(mode, softmax):
    """Elements are taken before the logarithm; the derivative is that of the logarithm, not 0/0."""
    k = np.array([[2, 1], [0, 0]])

    def loss(x):
        picked = ns.map(lambda x, k: -np.log(np.take_along_axis(softmax(x), k[:, None], axis=1))[:, 0], [x, k])
        return np.sum(picked)
    logp = np.array([[exact_softmax(row)[1] for row in x] for x in FAR])
    p = np.array([[exact_softmax(row)[0] for row in x] for x in FAR])
    value, slope = ns.value_and_grad(loss)(FAR)
    np.testing.assert_allclose(value, -np.take_along_axis(logp, k[..., None], -1).sum(), rtol=1e-13)
    np.testing.assert_allclose(slope, p - (np.arange(3) == k[..., None]), rtol=1e-10, atol=1e-13)
    v = np.cos(np.arange(12.0)).reshape(FAR.shape)
    np.testing.assert_allclose(ns.hvp(loss, FAR, v), p * (v - np.sum(p * v, -1, keepdims=True)), rtol=1e-9, atol=1e-13)


def test_cross_entropy_with_weights(mode):
    """A sum over all classes: 0 * log(0) does not spoil it."""
    target = np.eye(3)[[2, 1]]
    got = ns.map(lambda x: -np.sum(target * np.log(with_keepdims(x)), axis=-1), FAR)
    want = [[-exact_softmax(row)[1][k] for row, k in zip(x, (2, 1))] for x in FAR]
    np.testing.assert_allclose(got, want, rtol=1e-13)


@pytest.mark.parametrize("f", [
    lambda x: np.log(np.sum(np.exp(x), axis=-1)),
    lambda x: np.log(np.exp(x).sum(axis=1, keepdims=True))[:, 0],
    lambda x: np.log(np.sum(np.exp(x), axis=-1)[None])[0],
    lambda x: np.log(np.mean(np.exp(x), axis=-1)) + np.log(3.0),
    lambda x: np.stack([np.log(np.exp(x[k, 0]) + np.exp(x[k, 1]) + np.exp(x[k, 2])) for k in range(2)]),
])
def test_logarithm_of_a_sum(mode, f):
    want = np.array([[exact_softmax(row)[2] for row in x] for x in FAR])
    p = np.array([[exact_softmax(row)[0] for row in x] for x in FAR])
    np.testing.assert_allclose(ns.map(f, FAR), want, rtol=1e-13)
    total = lambda x: np.sum(ns.map(f, x))  # noqa: E731
    np.testing.assert_allclose(ns.grad(total)(FAR), p, rtol=1e-10, atol=1e-15)
    v = np.cos(np.arange(12.0)).reshape(FAR.shape)
    np.testing.assert_allclose(ns.hvp(total, FAR, v), p * (v - np.sum(p * v, -1, keepdims=True)), rtol=1e-9, atol=1e-13)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("f", [lambda x: np.log(np.sum(np.exp(x))), lambda x: np.exp(x) / np.sum(np.exp(x)),
                               lambda x: np.log(np.exp(x) / np.sum(np.exp(x)))])
def test_infinite_exponents_do_what_they_do(mode, f):
    for x in ([-np.inf, 1.0, 2.0], [-np.inf, -np.inf, -np.inf], [np.inf, 0.0, 1.0], [np.nan, 0.0, 1.0]):
        x = np.array([x])
        np.testing.assert_array_equal(np.isnan(ns.map(f, x)[0]), np.isnan(f(x[0])))
        np.testing.assert_allclose(ns.map(f, x)[0], f(x[0]), rtol=1e-14)


def test_other_sums_stay(in_python):
    x = np.ones((2, 3, 3))
    assert "max" not in rows(lambda x: np.exp(x) / np.exp(x).sum(axis=1), x), "the sum belongs to another axis"
    assert "max" not in rows(lambda x, y: np.exp(x) / np.exp(y).sum(), x, x)
    assert "max" not in rows(lambda x, y: np.log(np.sum(np.exp(x) * y)), x, x), "a weight may be 0 where the exponent is largest"
    assert rows(shifted_by_hand, x).count("max") == 1
    assert rows(ns.logsumexp, x).count("max") == 1
    assert np.isneginf(ns.map(lambda x: np.log(np.sum(np.exp(x))), np.ones((1, 0)))[0]), "an empty sum has no largest exponent"


def test_forward_algorithm(mode):
    """A recurrence whose state leaves the range of exp: log-probabilities of a hidden Markov model."""
    rng = np.random.default_rng(0)
    chain, emit = rng.normal(size=(3, 3)) - 2, 40 * rng.normal(size=(60, 3)) - 60

    def stable(chain):
        a = np.zeros(3, np.longdouble)
        for e in emit:
            s = a[:, None] + chain
            a = np.log(np.sum(np.exp(s - s.max(0)), axis=0)) + s.max(0) + e
        return float(np.log(np.sum(np.exp(a - a.max()))) + a.max())
    last = ns.scan(lambda e, a, chain: np.log(np.sum(np.exp(a[:, None] + chain), axis=0)) + e, emit, np.zeros(3), chain)[-1]
    assert last.max() < -1000
    total = lambda chain: ns.logsumexp(ns.scan(  # noqa: E731
        lambda e, a, chain: np.log(np.sum(np.exp(a[:, None] + chain), axis=0)) + e, emit, np.zeros(3), chain)[-1])
    np.testing.assert_allclose(total(chain), stable(chain), rtol=1e-12)
    slope = ns.grad(total)(chain)
    np.testing.assert_allclose(np.sum(slope), len(emit), rtol=1e-10)
    ns.check_grads(total, (chain,), order=2)
