"""Functions of derivatives: whole Jacobians and Hessians, rules that the user writes, nests, levels, refusals."""

import pickle

import numpy as np
import pytest
import scipy.special

import nscan as ns

pytestmark = pytest.mark.usefixtures("mode")

X = np.array([0.3, -1.2, 0.7])


def numeric_jacobian(f, x, h=1e-3):
    """Differentiate an array in every entry of an array, by 5-point central differences; the axes of x come last."""
    columns = []
    for place in np.ndindex(x.shape):
        d = np.zeros(x.shape)
        d[place] = h
        columns.append((f(x - 2 * d) - 8 * f(x - d) + 8 * f(x + d) - f(x + 2 * d)) / (12 * h))
    return np.moveaxis(np.array(columns), 0, -1).reshape(*np.shape(columns[0]), *x.shape)


def rnn(w, lib=ns):
    return ns.scan(lambda x, h: np.tanh(x + w @ h), [np.ones((4, 2))], [np.zeros(2)])


# Jacobians and Hessians


@pytest.mark.parametrize(
    "f",
    [lambda x: np.sin(x) * x[0], lambda x: np.outer(x, x**2), lambda x: x[1] * np.exp(x[0]), np.sum],
    ids=["square", "more outputs", "one output", "a sum"],
)
def test_a_jacobian_of_an_array(f):
    got = ns.jacobian(f)(X)
    assert got.shape == (*np.shape(f(X)), 3)
    np.testing.assert_allclose(got, numeric_jacobian(f, X), rtol=1e-8, atol=1e-8)


def test_a_jacobian_of_a_number():
    np.testing.assert_allclose(ns.jacobian(lambda t: np.array([1.0, 2.0]) * t**2)(3.0), [6.0, 12.0])
    assert isinstance(ns.jacobian(np.sin)(0.0), np.float64)


@pytest.mark.parametrize("f", [rnn, lambda w: rnn(w)[-1], lambda w: np.sum(rnn(w))])
def test_a_jacobian_of_a_loop(f):
    w = np.array([[0.5, -0.2], [0.1, 0.9]])
    np.testing.assert_allclose(ns.jacobian(f)(w), numeric_jacobian(f, w), rtol=1e-7, atol=1e-9)


def test_a_jacobian_of_nests():
    def f(p, q):
        return dict(u=p["a"] * q, v=(np.sum(p["b"]) * q[0],))

    p, q = dict(a=X, b=np.ones((2, 2))), np.array([1.0, 2.0, 3.0])
    by_p, by_q = ns.jacobian(f, argnums=(0, 1))(p, q)["u"]
    np.testing.assert_array_equal(by_p["a"], np.diag(q))
    np.testing.assert_array_equal(by_p["b"], np.zeros((3, 2, 2)))
    np.testing.assert_array_equal(by_q, np.diag(X))
    np.testing.assert_array_equal(ns.jacobian(f)(p, q)["v"][0]["b"], np.ones((2, 2)))


def test_a_jacobian_may_contain_control_flow_on_values():
    def f(x):
        return x**2 if x[0] > 0.0 else -x

    np.testing.assert_array_equal(ns.jacobian(f)(X), np.diag(2 * X))
    np.testing.assert_array_equal(ns.jacobian(lambda x: np.sum(f(x)))(-X), [-1.0, -1.0, -1.0])


def test_complex_jacobians():
    z = np.array([1.0 + 2.0j, 0.5 - 1.0j])
    np.testing.assert_allclose(ns.jacobian(lambda z: z**2)(z), np.diag(2 * z))
    np.testing.assert_allclose(ns.jacobian(lambda z: np.sum(z**2))(z), 2 * z)
    np.testing.assert_allclose(ns.jacobian(lambda z: np.abs(z) ** 2)(z), np.diag(2 * z), rtol=1e-14)
    np.testing.assert_allclose(ns.jacobian(lambda z: np.sum(np.abs(z) ** 2))(z), ns.grad(lambda z: np.sum(np.abs(z) ** 2))(z))


def test_a_hessian():
    def f(x):
        return np.sum(np.sin(x) * x[::-1]) + np.prod(x)

    np.testing.assert_allclose(ns.hessian(f)(X), numeric_jacobian(ns.grad(f), X), rtol=1e-8, atol=1e-8)
    w = np.array([[0.5, -0.2], [0.1, 0.9]])
    got = ns.hessian(lambda w: np.sum(rnn(w) ** 2))(w)
    assert got.shape == (2, 2, 2, 2)
    np.testing.assert_allclose(got, numeric_jacobian(ns.grad(lambda w: np.sum(rnn(w) ** 2)), w), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(got, np.transpose(got, (2, 3, 0, 1)), rtol=1e-9)


def test_a_hessian_of_two_arguments():
    (aa, ab), (ba, bb) = ns.hessian(lambda a, b: a**2 * np.sum(b**3), argnums=(0, 1))(2.0, np.array([1.0, 3.0]))
    np.testing.assert_allclose(aa, 2 * 28.0)
    np.testing.assert_allclose(ab, 4.0 * 3.0 * np.array([1.0, 9.0]))
    np.testing.assert_allclose(ba, ab)
    np.testing.assert_allclose(bb, np.diag(4.0 * 6.0 * np.array([1.0, 3.0])))


def test_a_third_derivative_by_jacobian():
    third = ns.jacobian(ns.hessian(lambda x: np.sum(x**4)))(X)
    want = np.zeros((3, 3, 3))
    want[range(3), range(3), range(3)] = 24 * X
    np.testing.assert_allclose(third, want)


def test_jacobian_inside_a_step():
    out = ns.scan(lambda x, h: h - 0.1 * ns.jacobian(lambda v: np.sum(np.cos(v * x)))(h), [X], [np.ones(2)])
    h = np.ones(2)
    for x, row in zip(X, out, strict=True):
        h = h + 0.1 * x * np.sin(h * x)
        np.testing.assert_allclose(row, h, rtol=1e-14)


def loss(x):
    return np.sum(x**3)


def test_jacobians_pickle_and_refuse():
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ns.hessian(loss)))(X), np.diag(6 * X))
    with pytest.raises(ns.errors.GradientTypeError, match="int64"):
        ns.jacobian(loss)(np.arange(3))
    with pytest.raises(ns.errors.GradientTypeError, match="complex"):
        ns.hessian(lambda z: np.sum(np.abs(z)))(1j * X)
    with pytest.raises(ns.errors.SpecError, match="argnums=1"):
        ns.jacobian(loss, argnums=1)(X)


def test_gauss_newton_of_nests():
    def model(p):
        return dict(y=p["a"] * X, z=p["b"] ** 2)

    p, v = dict(a=2.0, b=3.0), dict(a=1.0, b=-1.0)
    got = ns.gauss_newton_vp(model, lambda out: np.sum(out["y"] ** 2) + out["z"] ** 3, p, v)
    np.testing.assert_allclose(got["a"], 2 * np.sum(X**2))
    np.testing.assert_allclose(got["b"], 6.0 * (6.0 * 9.0) * -6.0)


# Rules that the user writes


@ns.custom_vjp
def clipped_log(x, low):
    return np.log(np.maximum(x, low))


def clipped_log_forward(x, low):
    return clipped_log(x, low), (np.maximum(x, low), x)


def clipped_log_pull(residual, ct):
    safe, x = residual
    return np.where(x < 0.0, 7.0, 1.0) * ct / safe, None


clipped_log.defvjp(clipped_log_forward, clipped_log_pull)
PLACES = np.array([2.0, 0.5, -1.0])


def clipped_log_slope(x, low):
    return np.where(x < 0.0, 7.0, 1.0) / np.maximum(x, low)


def test_a_custom_vjp():
    np.testing.assert_allclose(clipped_log(PLACES, 0.1), np.log([2.0, 0.5, 0.1]))
    got = ns.grad(lambda x: np.sum(clipped_log(x, 0.1)))(PLACES)
    np.testing.assert_allclose(got, clipped_log_slope(PLACES, 0.1))
    by_low = ns.grad(lambda low: np.sum(clipped_log(PLACES, low)))(0.1)
    assert by_low == 0.0
    second = ns.jacobian(ns.grad(lambda x: np.sum(clipped_log(x, 0.1))))(PLACES)
    np.testing.assert_allclose(second, np.diag([-0.25, -4.0, 0.0]), atol=1e-14)


def steps(h0, lib=ns):
    return ns.scan(lambda x, h: 0.5 * h + clipped_log(x * h, 0.1), [np.array([1.0, -2.0, 3.0])], [h0])


def test_a_custom_vjp_in_a_step():
    h0 = np.array([2.0, 0.7])
    h, slope = h0, np.ones(2)
    for x in (1.0, -2.0, 3.0):
        slope = slope * (0.5 + x * clipped_log_slope(x * h, 0.1))
        h = 0.5 * h + np.log(np.maximum(x * h, 0.1))
    np.testing.assert_allclose(steps(h0)[-1], h, rtol=1e-14)
    gradient = ns.grad(lambda h0: np.sum(steps(h0)[-1]))
    np.testing.assert_allclose(gradient(h0), slope, rtol=1e-13)
    hessian = numeric_jacobian(gradient, h0, h=1e-4)
    np.testing.assert_allclose(ns.hessian(lambda h0: np.sum(steps(h0)[-1]))(h0), hessian, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(ns.jacobian(lambda h: gradient(h)[0])(h0), hessian[0], rtol=1e-6, atol=1e-8)


def test_a_custom_vjp_reads_what_it_closes_over_anew():
    scale = np.array([3.0, 1.0, 1.0])

    @ns.custom_vjp
    def f(x):
        return np.sum(x)

    f.defvjp(lambda x: (np.sum(x), None), lambda residual, ct: (ct * scale,))
    for first in (3.0, 5.0):
        scale[0] = first
        np.testing.assert_array_equal(ns.grad(f)(X), [first, 1.0, 1.0])
        np.testing.assert_array_equal(
            ns.grad(lambda x: ns.scan(lambda n, x: f(x), [np.zeros(2)], None, [x])[0])(X), [first, 1.0, 1.0]
        )


def test_custom_rules_of_nests():
    @ns.custom_vjp
    def f(p, k):
        return dict(s=p["a"] * p["b"], k=k)

    f.defvjp(lambda p, k: (f(p, k), p), lambda p, ct: (dict(a=10.0 * ct["s"] * p["b"], b=None), None))
    gradient = ns.grad(lambda p: np.sum(f(p, 2)["s"]))(dict(a=X, b=X + 1.0))
    np.testing.assert_allclose(gradient["a"], 10.0 * (X + 1.0))
    np.testing.assert_array_equal(gradient["b"], np.zeros(3))


@ns.custom_jvp
def steep(x):
    return np.floor(x)


steep.defjvp(lambda primals, tangents: (steep(*primals), 3.0 * primals[0] * tangents[0]))


def test_a_custom_jvp():
    x = np.array([0.5, 2.5])
    np.testing.assert_array_equal(ns.jvp(steep, (x,), (np.ones(2),)), ([0.0, 2.0], [1.5, 7.5]))
    np.testing.assert_array_equal(ns.grad(lambda x: np.sum(steep(x)))(x), [1.5, 7.5])
    np.testing.assert_array_equal(ns.hessian(lambda x: np.sum(steep(x)))(x), 3.0 * np.eye(2))
    np.testing.assert_array_equal(
        ns.jacobian(ns.grad(lambda x: ns.grad(lambda x: np.sum(steep(x) ** 2))(x)[0]))(x), [[54.0 * 0.5, 0.0], [0.0, 0.0]]
    )


def test_a_custom_jvp_in_a_step():
    def run(h0):
        return ns.scan(lambda x, h: 0.5 * h + steep(x * h), [np.array([1.0, 2.0])], [h0])[-1]

    h0 = np.array([1.3, 0.4])
    h1 = 0.5 * h0 + np.floor(h0)
    slope = (0.5 + 3.0 * h0) * (0.5 + 2.0 * 3.0 * 2.0 * h1)
    np.testing.assert_allclose(run(h0), 0.5 * h1 + np.floor(2.0 * h1))
    np.testing.assert_allclose(ns.grad(lambda h: np.sum(run(h)))(h0), slope)
    np.testing.assert_allclose(ns.jvp(run, (h0,), (np.ones(2),))[1], slope)
    second = 3.0 * (0.5 + 12.0 * h1) + (0.5 + 3.0 * h0) * 12.0 * (0.5 + 3.0 * h0)
    np.testing.assert_allclose(ns.hessian(lambda h: np.sum(run(h)))(h0), np.diag(second))


def test_custom_rules_refuse():
    w = np.array(2.0)

    @ns.custom_vjp
    def f(x):
        return x * 2.0

    with pytest.raises(ns.errors.SpecError, match="defvjp"):
        ns.grad(f)(1.0)
    f.defvjp(lambda x: (x, None), lambda residual, ct: ct)
    with pytest.raises(ns.errors.CotangentError, match="tuple"):
        ns.grad(f)(1.0)
    f.defvjp(lambda x: (x, None), lambda residual, ct: (np.ones(3),))
    with pytest.raises(ns.errors.CotangentError, match=r"\(3,\)"):
        ns.grad(f)(1.0)

    def closing(w):
        f.defvjp(lambda x: (x * w, None), lambda residual, ct: (ct,))
        return f(w)

    with pytest.raises(ns.errors.TracedValueError, match="closes over"):
        ns.grad(closing)(w)


# Identities that change the cotangent


def test_grad_clip_and_grad_scale():
    def f(x):
        return np.sum(np.array([0.5, 5.0, -5.0]) * ns.grad_clip(x, -1.0, 2.0))

    np.testing.assert_array_equal(ns.grad(f)(X), [0.5, 2.0, -1.0])
    assert ns.jvp(f, (X,), (np.ones(3),))[1] == 0.5
    np.testing.assert_array_equal(ns.grad(lambda x: np.sum(ns.grad_scale(x, -2.0) ** 2))(X), -4.0 * X)
    np.testing.assert_array_equal(ns.hvp(lambda x: np.sum(ns.grad_scale(x, -2.0) ** 2), X, np.ones(3)), [-4.0] * 3)
    assert ns.grad_clip(3.0, 0.0, 1.0) == 3.0 and ns.grad_scale(3.0, 2.0) == 3.0
    assert ns.consider_constant is ns.stop_gradient


def test_grad_clip_in_a_step():
    """A cotangent that grows by 3 in each step is limited in each."""

    def run(h):
        return ns.scan(lambda h: 3.0 * ns.grad_clip(h, -2.0, 2.0), None, [h], n_steps=4)[-1]

    assert ns.grad(run)(1.0) == 2.0
    assert ns.jvp(run, (1.0,), (1.0,))[1] == 81.0


def unrolled(step, xs, h):
    """Run a loop of one state by Python, and stack its rows."""
    rows = []
    for x in xs:
        h = step(x, h)
        rows.append(h)
    return np.stack(rows)


def looped(step, xs, h):
    return ns.scan(step, [xs], [h])


IDENTITIES = {
    "scale": lambda h, w: ns.grad_scale(h, 0.5),
    "clip": lambda h, w: ns.grad_clip(h, -0.8, 0.3),
    "scale by an argument": lambda h, w: ns.grad_scale(h, w),
    "custom": lambda h, w: clipped_log(h, 0.05) - w,
}


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
def test_changed_cotangents_in_a_loop_are_those_of_the_unrolled_loop(identity):
    """To every order: a rule whose vjp is not the transpose of its jvp is used at each reverse pass."""
    xs, h, w, v = np.array([1.0, 1.4, 0.6]), np.array([0.4, 1.1, 0.6]), 0.7, np.array([1.0, -2.0, 0.5])

    def gradient(run):
        return ns.grad(lambda w, h: np.sum(run(lambda x, h: np.sin(identity(h, w) * x), xs, h) ** 2), argnums=(0, 1))

    def second(run):
        return ns.grad(lambda h: gradient(run)(w, h)[1] @ v + gradient(run)(w, h)[0])

    def mixed(run):
        return ns.jvp(gradient(run), (w, h), (1.0, v))[1]

    for derivative in (
        lambda run: gradient(run)(w, h),
        lambda run: (second(run)(h),),
        mixed,
        lambda run: (ns.jacobian(second(run))(h),),
    ):
        for got, want in zip(derivative(looped), derivative(unrolled), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)


def test_changed_cotangents_in_loops_in_loops_and_with_until():
    def run(h):
        def outer(x, h):
            inner = ns.scan(lambda k: np.sin(ns.grad_scale(k, 0.5)) + x, None, [h], n_steps=2)
            return inner[-1], ns.until(x > 1.2)

        return np.sum(ns.scan(outer, [np.array([0.3, 1.4, 0.6])], [h]))

    h = np.array([0.4, 1.1])
    want = numeric_jacobian(ns.grad(run), h, 1e-4)
    np.testing.assert_allclose(ns.hessian(run)(h), want, rtol=1e-6, atol=1e-9)
    by_x = ns.grad(lambda x: np.sum(ns.scan(lambda x, h: (np.sin(ns.grad_scale(h * x, 0.5)), ns.until(x > 1.2)), [x], [h[0]])))
    x = np.array([0.3, 1.4, 0.6])
    np.testing.assert_allclose(ns.jacobian(by_x)(x), numeric_jacobian(by_x, x, 1e-4), rtol=1e-6, atol=1e-9)


def test_identities_refuse_what_has_no_gradient():
    with pytest.raises(ns.errors.GradientTypeError, match="complex"):
        ns.grad(lambda z: np.real(ns.grad_clip(z, 0.0, 1.0)))(1j)
    with pytest.raises(ns.errors.SpecError, match=r"\(2,\)"):
        ns.grad(lambda x: ns.grad_scale(x, np.ones(2)))(1.0)


# Values that only decide when a loop stops


def test_a_limit_has_no_gradient_but_an_unused_argument_has_zero():
    def run(x, limit, unused):
        return np.sum(ns.scan(lambda h: (h * x, ns.until(h > limit)), None, [np.array(1.0)]))

    assert ns.grad(run, argnums=(0, 2))(2.0, 9.0, 5.0)[1] == 0.0
    for derivative in (
        lambda: ns.grad(run, 1)(2.0, 9.0, 5.0),
        lambda: ns.grad(lambda a: run(2.0, 3.0 * a, a))(3.0),
        lambda: ns.jvp(lambda a: run(2.0, a, a), (9.0,), (1.0,)),
    ):
        with pytest.raises(ns.errors.GradientTypeError, match="until"):
            derivative()


def test_a_limit_that_is_used_otherwise_has_a_gradient():
    def run(limit):
        return np.sum(ns.scan(lambda h: (h * 2.0, ns.until(h > limit)), None, [np.array(1.0)])) + limit**2

    assert ns.grad(run)(9.0) == 18.0


def test_a_limit_of_an_inner_loop():
    def run(limit):
        def step(x, s):
            return s + ns.while_loop(lambda h: h < limit, lambda h: h * 1.5, x)

        return ns.scan(step, [X**2], [np.array(0.0)])[-1]

    with pytest.raises(ns.errors.GradientTypeError, match="stops"):
        ns.grad(run)(4.0)


# NaN does not leak


FUNCTIONS = [
    np.sin,
    np.cos,
    np.tanh,
    np.exp,
    np.log,
    np.sqrt,
    np.arctan,
    np.abs,
    np.square,
    ns.sigmoid,
    ns.softplus,
    np.sinc,
    scipy.special.erf,
    scipy.special.ndtr,
    scipy.special.log_expit,
    lambda x: np.logaddexp(x, 1.0),
    lambda x: np.maximum(x, 0.0),
    lambda x: x**3,
    lambda x: 1.0 / x,
    lambda x: np.arcsinh(x),
]


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_zero_cotangent_meets_no_nan(f, bad):
    x = np.array([0.5, bad])
    with np.errstate(all="ignore"):
        gradient = ns.grad(lambda x: f(x)[0])(x)
        second = ns.grad(lambda x: ns.grad(lambda x: f(x)[0])(x)[0])(x)
        tangent = ns.jvp(f, (x,), (np.array([1.0, 0.0]),))[1]
    assert np.isfinite(gradient[0]) and gradient[1] == 0.0
    assert np.isfinite(second[0]) and second[1] == 0.0
    assert tangent[1] == 0.0


def test_where_and_sqrt_have_the_gradient_that_everybody_expects():
    def f(x):
        return np.sum(np.where(x > 0, np.sqrt(x), 0.0))

    x = np.array([4.0, -1.0, 0.0])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(ns.grad(f)(x), [0.25, 0.0, 0.0])
        np.testing.assert_allclose(ns.hessian(f)(x), np.diag([-1 / 32, 0.0, 0.0]))


def test_the_curvature_of_a_fitted_model():
    """At a zero residual the Hessian is not zero (a select in place of `safe_mul` would give zeros)."""
    a = np.array([[1.0, 2.0], [3.0, 4.0]])

    def f(x):
        return np.sum((a @ x) ** 2) / 2

    np.testing.assert_array_equal(ns.hvp(f, np.zeros(2), np.array([1.0, 0.0])), [10.0, 14.0])


# Levels


def test_perturbations_are_not_confused():
    assert ns.grad(lambda x: x * ns.grad(lambda y: x + y)(1.0))(1.0) == 1.0
    assert ns.jvp(lambda x: x * ns.jvp(lambda y: x + y, (1.0,), (1.0,))[1], (1.0,), (1.0,))[1] == 1.0
    assert ns.jvp(lambda x: x * ns.grad(lambda y: x * y)(2.0), (3.0,), (1.0,))[1] == 6.0
    assert ns.grad(lambda x: x * ns.jvp(lambda y: x * y**2, (2.0,), (1.0,))[1])(3.0) == 24.0


def test_derivatives_in_a_step_that_is_differentiated():
    def run(w):
        def step(x, h):
            return h - 0.1 * ns.grad(lambda h: np.sum((w * h - x) ** 2))(h)

        return np.sum(ns.scan(step, [X], [np.array(0.5)]))

    w = 1.3
    slope = (run(w - 2e-3) - 8 * run(w - 1e-3) + 8 * run(w + 1e-3) - run(w + 2e-3)) / 12e-3
    np.testing.assert_allclose(ns.grad(run)(w), slope, rtol=1e-9)


# Nests, writes and odd results under grad


def test_none_in_a_cotangent_is_zero():
    _, pull = ns.vjp(lambda x: dict(a=x, b=(2.0 * x,)), X)
    np.testing.assert_array_equal(pull(dict(a=X, b=None))[0], X)
    np.testing.assert_array_equal(pull(dict(a=None, b=(X,)))[0], 2.0 * X)
    np.testing.assert_array_equal(pull(None)[0], np.zeros(3))
    with pytest.raises(ns.errors.CotangentError, match="structure"):
        pull(dict(a=X))


def test_results_that_are_numbers():
    (number, same), (zero, moved) = ns.jvp(lambda x: (3.0, x), (X,), (X,))
    assert isinstance(number, np.float64) and isinstance(zero, np.float64) and zero == 0.0
    np.testing.assert_array_equal(same, moved)


def test_a_buffer_under_grad_is_made_by_ns_array():
    def f(x):
        z = ns.array(np.zeros(3))
        z[0] = x[0] * x[1]
        z[1:] += x[:2]
        return np.sum(z ** 2)

    with pytest.raises(ns.errors.TracedValueError, match=r"ns\.array"):
        ns.grad(lambda x: np.zeros(3).__setitem__(0, x[0]))(X)
    np.testing.assert_allclose(ns.grad(f)(X), numeric_jacobian(f, X), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(ns.map(lambda t: ns.grad(f)(t * X), np.array([1.0, 2.0]))[1], ns.grad(f)(2.0 * X), rtol=1e-14)
    assert isinstance(ns.array([1.0]), np.ndarray)


def test_an_array_of_the_outer_function_is_read_only_in_the_inner_one():
    def outer(x):
        z = x * 1.0

        def inner(y):
            z[0] = y
            return y
        return ns.grad(inner)(x[0]) * x[0]

    with pytest.raises(ns.errors.ReadOnlyError, match=r"ns\.array"):
        ns.grad(outer)(X)


def test_equal_loops_of_different_traces_share_what_was_derived():
    """The second loop asks for fewer cotangents than the first, whose adjoint is known; its own variables are others."""
    def run(x, both):
        def outer(x):
            a, b = ns.scan(lambda y, h: (np.tanh(h * y), np.sin(h) * y), [np.stack([x, 2.0 * x])], [x, None])
            return np.sum(a) + (np.sum(b) if both else 0.0)
        return np.sum(ns.map(outer, [x]))

    for both in (True, False, True):
        np.testing.assert_allclose(ns.grad(lambda x, both=both: run(x, both))(X), np.diag(numeric_jacobian(
            lambda x, both=both: np.array([run(x[k:k + 1], both) for k in range(3)]), X)), rtol=1e-8)


def test_state_of_an_inner_loop_that_is_one_number():
    """An array of one number stays a number of the tape, also where the step is derived."""
    def run(rows):
        start = np.broadcast_to(0.5, (3,))
        return np.sum(ns.map(lambda rows: ns.map(lambda row: ns.scan(lambda x, h: np.sin(h) * x, [row], start), [rows]), [rows]) ** 2)
    rows = np.outer(np.linspace(0.5, 1.5, 4), X).reshape(1, 2, 2, 3)
    np.testing.assert_allclose(ns.grad(run)(rows), numeric_jacobian(run, rows), rtol=1e-8)
