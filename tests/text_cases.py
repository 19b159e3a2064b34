"""Small loops of every kind, as functions without arguments, for tests of printed programs."""

import numpy as np
import scipy.special

import nscan as ns


def draw(*shape, dtype="f8"):
    """Numbers between -1 and 1, the same each time."""
    return np.random.default_rng(sum(shape) + len(shape)).uniform(-1, 1, shape).astype(dtype)


def scalar_state():
    return ns.scan(lambda r, v: 0.1 + 0.2 * r * r + 0.7 * v, draw(9), 0.5)


def two_taps():
    return ns.scan(lambda a, b: a - 0.5 * b, outputs_info=dict(initial=np.array([1.0, 2.0]), taps=[-2, -1]), n_steps=9)


def vector_state():
    return ns.scan(lambda x, h, b: np.tanh(0.5 * h + x) * b, draw(6, 21, dtype="f4"), draw(21, dtype="f4"), draw(21, dtype="f4"))


def written_in_place():
    def step(x, k, table):
        table[k % 5] += x
        table[1:3] *= 0.5
        return k + 1, table
    return ns.scan(step, draw(8), [0, np.zeros((5, 12))])


def gathered(last=11):
    table = draw(12, 3)
    return ns.map(lambda k: ns.array(table)[k] + table.sum(), np.array([0, -1, 5, last]))


def small_algebra():
    def step(a, x):
        a = a + 3 * np.eye(3)
        return np.linalg.solve(a, x) + np.linalg.det(a) * a[0]
    return ns.scan(step, draw(5, 3, 3), np.ones(3))


def products():
    return ns.scan(lambda x, h, w, u: np.tanh(x @ w + h @ u), draw(7, 3, 19), np.zeros((3, 13)), [draw(19, 13), draw(13, 13)])


def reductions():
    def step(x, h):
        y = x * h
        return h + y.max(), y.sum(), np.argmin(y), (y > 0).any(), np.prod(y, axis=-1)
    return ns.scan(step, draw(5, 11, 21), [draw(11, 21), None, None, None, None])


def until():
    def step(k, y):
        return (k + 1, y * 1.5), ns.until(y > 20)
    rows = ns.scan(step, outputs_info=[0, 1.0], n_steps=50)
    return rows, ns.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 2, c[1] * c[0]), (0, 1.5))


def conditional():
    return ns.scan(lambda x, h: ns.cond(h.sum() > x, lambda h: h * 0.5 - 1, lambda h: h + np.abs(x), h), draw(9), np.ones(14))


def nested():
    def outer(x, h):
        inner = ns.scan(lambda a, s: s * 0.5 + a * h, x, np.zeros(10))
        return h + inner[-1].sum() * 0.1
    return ns.scan(outer, draw(4, 6, 10), 0.3)


def integers():
    def step(k, n, flag):
        wide = (n << 3) ^ (k.astype("i8") >> 1)
        narrow = k * np.int16(300) // np.int16(7) - (k % np.int16(5)) ** 3
        return (wide + narrow) % 1000, np.logical_xor(flag, ~(k > 0)), narrow, (k.astype("u1") + np.uint8(250)) // np.uint8(3)
    return ns.scan(step, np.arange(-6, 7, dtype="i2") * 37, [np.int64(5), np.True_, None, None])


def complex_numbers():
    z = draw(6, 12) + 1j * draw(6, 12)[::-1]
    return ns.scan(lambda a, h: np.exp(a * np.tanh(h)) / (2 + h) + np.conj(a), z, z[0])


def backwards():
    return ns.loop(lambda c, x: (np.minimum(c + x, x), c), draw(9), draw(6, 9), reverse=True)


def gradient():
    def loss(w, h0, x):
        h = ns.scan(lambda x, h, w: np.tanh(x * w[0] + h * w[1] + w[2]), x, h0, w)
        return np.sum(h * h)
    return ns.value_and_grad(loss, argnums=(0, 1, 2))(draw(3, 17), draw(17), draw(6, 17))


def gradient_of_products():
    def loss(w, u):
        return np.sum(ns.scan(lambda x, h, w, u: np.tanh(x @ w + h @ u), draw(7, 3, 19), np.zeros((3, 13)), [w, u])[-1])
    return ns.value_and_grad(loss, argnums=(0, 1))(draw(19, 13), draw(13, 13))


def mathematics(dtype="f8"):
    def step(x, h):
        y = np.sqrt(np.abs(x)) + np.floor(3 * x) * np.sin(x) + np.hypot(x, h) + np.copysign(0.5, x)
        z = np.log1p(np.exp(y)) + np.arctan2(x, h) + np.maximum(x, h) ** 3 + np.cbrt(x) + scipy.special.expit(x) + np.fmod(x, 0.3)
        return np.where(np.signbit(x), np.expm1(-z), np.cosh(x)) * 0.25
    return ns.scan(step, draw(4, 10, dtype=dtype), draw(10, dtype=dtype))


def single_precision():
    return mathematics("f4")


def libraries():
    def step(a, h):
        return np.sort(a @ h) + np.linalg.solve(a + 12 * np.eye(12), h) + scipy.special.erfcx(h[0])
    return ns.scan(step, draw(3, 12, 12), draw(12))


LOOPS = (scalar_state, two_taps, vector_state, written_in_place, gathered, small_algebra, products, reductions, until,
         conditional, nested, integers, complex_numbers, backwards, gradient, gradient_of_products, mathematics,
         single_precision, libraries)


def recurrence(dtype, lanes):
    """Value and derivatives of a tanh recurrence with parameters for each lane and for all."""
    def loss(a, b, scale, h0, x):
        h = ns.scan(lambda x, h, a, b, scale: np.tanh(a * h + x) * scale + b, x, h0, [a, b, scale])
        return np.sum(h[-1] * h[0])
    args = draw(lanes, dtype=dtype), draw(lanes, dtype=dtype) * 2, np.dtype(dtype).type(0.8), draw(lanes, dtype=dtype)
    return lambda: ns.value_and_grad(loss, argnums=(0, 1, 2, 3, 4))(*args, draw(6, lanes, dtype=dtype))
