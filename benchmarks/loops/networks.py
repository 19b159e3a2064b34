"""Layers of recurrent networks, in float32. Products of the inputs stand before the loop, for everyone."""

import functools

import numpy as np
from numba import njit

from benchmarks.harness import Loop


def draw(rng, scale, *shape):
    """Draw float32."""
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def project(xs, w):
    """Multiply all rows of a sequence by a matrix, as one product."""
    n, lanes, features = xs.shape
    return (xs.reshape((n * lanes, features)) @ w).reshape((n, lanes, w.shape[1]))


# ------------------------------------------------------------------------------------ LSTM with peepholes
def lstm_data(rng, n, lanes, hidden):
    """Draw a layer and its input, of as many features as cells."""
    scale = 1 / np.sqrt(hidden)
    return {"w": draw(rng, scale, hidden, 4 * hidden), "u": draw(rng, scale, hidden, 4 * hidden),
            "bias": draw(rng, 0.1, 4 * hidden), "peep": draw(rng, 0.1, 3, hidden),
            "xs": draw(rng, 1, n, lanes, hidden)}


def lstm(lib, w, u, bias, peep, xs):
    """States and cells."""
    hidden = u.shape[0]

    def step(z, h, c, u, peep):
        z = z + h @ u
        i = lib.sigmoid(z[:, :hidden] + peep[0] * c)
        f = lib.sigmoid(z[:, hidden:2 * hidden] + peep[1] * c)
        c = f * c + i * lib.tanh(z[:, 2 * hidden:3 * hidden])
        o = lib.sigmoid(z[:, 3 * hidden:] + peep[2] * c)
        return o * lib.tanh(c), c
    zero = xs[0] * 0
    return lib.scan(step, [project(xs, w) + bias], [zero, zero], [u, peep])


def mean_square(lib, rows, **data):
    """Mean square of what comes out."""
    return lib.mean(rows[0] ** 2)


@njit(error_model="numpy")
def sigmoid(x):
    """Logistic function."""
    return np.float32(1) / (np.float32(1) + np.exp(-x))


@njit(error_model="numpy")
def lstm_forward(w, u, bias, peep, xs):
    """States, cells and gates by hand: one product for all inputs, one for each step."""
    n, lanes, hidden = xs.shape
    zs = (np.dot(xs.reshape(n * lanes, hidden), w)).reshape(n, lanes, 4 * hidden)
    hs, cs = np.zeros((n + 1, lanes, hidden), np.float32), np.zeros((n + 1, lanes, hidden), np.float32)
    product = np.empty((lanes, 4 * hidden), np.float32)
    for t in range(n):
        np.dot(hs[t], u, product)
        z = zs[t]
        for b in range(lanes):
            for j in range(hidden):
                c = cs[t, b, j]
                i = sigmoid(z[b, j] + product[b, j] + bias[j] + peep[0, j] * c)
                k = j + hidden
                f = sigmoid(z[b, k] + product[b, k] + bias[k] + peep[1, j] * c)
                k += hidden
                g = np.tanh(z[b, k] + product[b, k] + bias[k])
                c = f * c + i * g
                k += hidden
                o = sigmoid(z[b, k] + product[b, k] + bias[k] + peep[2, j] * c)
                cs[t + 1, b, j] = c
                hs[t + 1, b, j] = o * np.tanh(c)
                z[b, j], z[b, j + hidden], z[b, j + 2 * hidden], z[b, j + 3 * hidden] = i, f, g, o
    return hs, cs, zs


@njit(error_model="numpy")
def lstm_numba(w, u, bias, peep, xs):
    """States and cells by hand."""
    hs, cs, _ = lstm_forward(w, u, bias, peep, xs)
    return hs[1:], cs[1:]


@njit(error_model="numpy")
def lstm_gradient(w, u, bias, peep, xs):
    """The loss and its derivatives by hand; the gradients of the weights are products over all steps."""
    n, lanes, hidden = xs.shape
    hs, cs, gates = lstm_forward(w, u, bias, peep, xs)
    one, scale = np.float32(1), np.float32(2 / (n * lanes * hidden))
    dz, dh, dc = np.empty_like(gates), np.zeros((lanes, hidden), np.float32), np.zeros((lanes, hidden), np.float32)
    by_peep, ut = np.zeros_like(peep), np.ascontiguousarray(u.T)
    for t in range(n - 1, -1, -1):
        for b in range(lanes):
            for j in range(hidden):
                i, f = gates[t, b, j], gates[t, b, j + hidden]
                g, o = gates[t, b, j + 2 * hidden], gates[t, b, j + 3 * hidden]
                c, before = cs[t + 1, b, j], cs[t, b, j]
                y = np.tanh(c)
                d = dh[b, j] + scale * hs[t + 1, b, j]
                zo = d * y * o * (one - o)
                e = dc[b, j] + d * o * (one - y * y) + zo * peep[2, j]
                zi, zf = e * g * i * (one - i), e * before * f * (one - f)
                dz[t, b, j], dz[t, b, j + hidden] = zi, zf
                dz[t, b, j + 2 * hidden], dz[t, b, j + 3 * hidden] = e * i * (one - g * g), zo
                by_peep[0, j] += zi * before
                by_peep[1, j] += zf * before
                by_peep[2, j] += zo * c
                dc[b, j] = e * f + zi * peep[0, j] + zf * peep[1, j]
        np.dot(dz[t], ut, dh)
    flat = dz.reshape(n * lanes, 4 * hidden)
    by_w = np.dot(np.ascontiguousarray(xs.reshape(n * lanes, hidden).T), flat)
    by_u = np.dot(np.ascontiguousarray(hs[:-1].copy().reshape(n * lanes, hidden).T), flat)
    return np.mean(hs[1:] ** 2), by_w, by_u, flat.sum(axis=0), by_peep


# ---------------------------------------------------------------------------------------------- GRU and RNN
def gru_data(rng, n, lanes, hidden):
    """Draw a layer and its input."""
    scale = 1 / np.sqrt(hidden)
    return {"w": draw(rng, scale, hidden, 3 * hidden), "u": draw(rng, scale, hidden, 2 * hidden),
            "v": draw(rng, scale, hidden, hidden), "xs": draw(rng, 1, n, lanes, hidden)}


def gru(lib, w, u, v, xs):
    """States of a gated recurrent unit (Cho and others 2014)."""
    hidden = v.shape[0]

    def step(z, h, u, v):
        gates = lib.sigmoid(z[:, :2 * hidden] + h @ u)
        keep, reset = gates[:, :hidden], gates[:, hidden:]
        new = lib.tanh(z[:, 2 * hidden:] + (reset * h) @ v)
        return keep * h + (1 - keep) * new
    return lib.scan(step, [project(xs, w)], [xs[0] * 0], [u, v])


@njit(error_model="numpy")
def gru_numba(w, u, v, xs):
    """The same by hand."""
    n, lanes, hidden = xs.shape
    zs = np.dot(xs.reshape(n * lanes, hidden), w).reshape(n, lanes, 3 * hidden)
    hs = np.zeros((n + 1, lanes, hidden), np.float32)
    first, second = np.empty((lanes, 2 * hidden), np.float32), np.empty((lanes, hidden), np.float32)
    keep, part = np.empty((lanes, hidden), np.float32), np.empty((lanes, hidden), np.float32)
    for t in range(n):
        h, z = hs[t], zs[t]
        np.dot(h, u, first)
        for b in range(lanes):
            for j in range(hidden):
                keep[b, j] = sigmoid(z[b, j] + first[b, j])
                part[b, j] = sigmoid(z[b, j + hidden] + first[b, j + hidden]) * h[b, j]
        np.dot(part, v, second)
        for b in range(lanes):
            for j in range(hidden):
                new = np.tanh(z[b, j + 2 * hidden] + second[b, j])
                hs[t + 1, b, j] = keep[b, j] * h[b, j] + (np.float32(1) - keep[b, j]) * new
    return (hs[1:],)


def rnn_data(rng, n, lanes, hidden):
    """Draw a layer and its input."""
    scale = 1 / np.sqrt(hidden)
    return {"w": draw(rng, scale, hidden, hidden), "u": draw(rng, scale, hidden, hidden),
            "xs": draw(rng, 1, n, lanes, hidden)}


def rnn(lib, w, u, xs):
    """States of a simple recurrent network (Elman 1990)."""
    return lib.scan(lambda z, h, u: lib.tanh(z + h @ u), [project(xs, w)], [xs[0] * 0], [u])


@njit(error_model="numpy")
def rnn_forward(w, u, xs):
    """The same by hand, with the first state as a row."""
    n, lanes, hidden = xs.shape
    zs = np.dot(xs.reshape(n * lanes, hidden), w).reshape(n, lanes, hidden)
    hs, product = np.zeros((n + 1, lanes, hidden), np.float32), np.empty((lanes, hidden), np.float32)
    for t in range(n):
        np.dot(hs[t], u, product)
        for b in range(lanes):
            for j in range(hidden):
                hs[t + 1, b, j] = np.tanh(zs[t, b, j] + product[b, j])
    return hs


@njit(error_model="numpy")
def rnn_numba(w, u, xs):
    """States by hand."""
    return (rnn_forward(w, u, xs)[1:],)


@njit(error_model="numpy")
def rnn_gradient(w, u, xs):
    """The loss and its derivatives by hand."""
    n, lanes, hidden = xs.shape
    hs = rnn_forward(w, u, xs)
    one, scale = np.float32(1), np.float32(2 / (n * lanes * hidden))
    dz, dh, ut = np.empty_like(xs), np.zeros((lanes, hidden), np.float32), np.ascontiguousarray(u.T)
    for t in range(n - 1, -1, -1):
        for b in range(lanes):
            for j in range(hidden):
                h = hs[t + 1, b, j]
                dz[t, b, j] = (dh[b, j] + scale * h) * (one - h * h)
        np.dot(dz[t], ut, dh)
    flat = dz.reshape(n * lanes, hidden)
    by_w = np.dot(np.ascontiguousarray(xs.reshape(n * lanes, hidden).T), flat)
    by_u = np.dot(np.ascontiguousarray(hs[:-1].copy().reshape(n * lanes, hidden).T), flat)
    return np.mean(hs[1:] ** 2), by_w, by_u


# --------------------------------------------------------------------------- selective state-space layer
def ssm_data(rng, n, width, states):
    """Draw what the projections of such a layer would give."""
    return {"a": -np.exp(draw(rng, 0.5, width, states)), "delta": draw(rng, 1, n, width) - np.float32(2),
            "b": draw(rng, 1, n, states), "c": draw(rng, 1, n, states), "xs": draw(rng, 1, n, width)}


def ssm(lib, a, delta, b, c, xs):
    """Outputs of a selective state-space layer (Gu and Dao 2023)."""
    def step(carry, row):
        (h,), (delta, b, c, x) = carry, row
        delta = lib.softplus(delta)
        h = lib.exp(delta[:, None] * a) * h + (delta * x)[:, None] * b[None, :]
        return (h,), lib.sum(h * c[None, :], axis=1)
    return (lib.loop(step, (a * 0,), (delta, b, c, xs))[1],)


@njit(error_model="numpy")
def ssm_numba(a, delta, b, c, xs):
    """The same by hand."""
    n, width = xs.shape
    states = a.shape[1]
    ys, h = np.empty_like(xs), np.zeros_like(a)
    for t in range(n):
        for d in range(width):
            step = np.log1p(np.exp(delta[t, d]))
            total, push = np.float32(0), step * xs[t, d]
            for k in range(states):
                value = np.exp(step * a[d, k]) * h[d, k] + push * b[t, k]
                h[d, k] = value
                total += value * c[t, k]
            ys[t, d] = total
    return (ys,)


@njit(error_model="numpy")
def ssm_gradient(a, delta, b, c, xs):
    """The loss and its derivatives by hand."""
    n, width = xs.shape
    states = a.shape[1]
    hs, ys = np.zeros((n + 1, width, states), np.float32), np.empty_like(xs)
    decay, steps = np.empty((n, width, states), np.float32), np.empty_like(xs)
    for t in range(n):
        for d in range(width):
            step = np.log1p(np.exp(delta[t, d]))
            steps[t, d] = step
            total, push = np.float32(0), step * xs[t, d]
            for k in range(states):
                decay[t, d, k] = np.exp(step * a[d, k])
                value = decay[t, d, k] * hs[t, d, k] + push * b[t, k]
                hs[t + 1, d, k] = value
                total += value * c[t, k]
            ys[t, d] = total
    by_a, by_delta, by_b = np.zeros_like(a), np.empty_like(delta), np.zeros_like(b)
    by_c, by_x, dh = np.zeros_like(c), np.empty_like(xs), np.zeros_like(a)
    scale = np.float32(2 / xs.size)
    for t in range(n - 1, -1, -1):
        for d in range(width):
            dy, step, x = scale * ys[t, d], steps[t, d], xs[t, d]
            by_step, by_push = np.float32(0), np.float32(0)
            for k in range(states):
                by_c[t, k] += dy * hs[t + 1, d, k]
                e = dh[d, k] + dy * c[t, k]
                inner = e * hs[t, d, k] * decay[t, d, k]
                by_a[d, k] += inner * step
                by_step += inner * a[d, k]
                by_b[t, k] += e * step * x
                by_push += e * b[t, k]
                dh[d, k] = e * decay[t, d, k]
            by_x[t, d] = by_push * step
            by_delta[t, d] = (by_step + by_push * x) * sigmoid(delta[t, d])
    return np.mean(ys**2), by_a, by_delta, by_b, by_c, by_x


def layer(name, text, make, run, wrt, by_hand, gradient=None, n=100, short=100, **sizes):
    """Return a loop over a layer."""
    return Loop(name, text, functools.partial(make, **sizes), n, short, run, mean_square, wrt, by_hand, gradient,
                tolerance=2e-3)


LOOPS = [
    *[layer(f"lstm_b{lanes}_h{hidden}", f"LSTM with peepholes, {lanes} lane{'s' * (lanes > 1)}, {hidden} cells, 100 steps",
            lstm_data, lstm, ("w", "u", "bias", "peep"), lstm_numba, lstm_gradient, lanes=lanes, hidden=hidden)
      for lanes in (1, 32) for hidden in (128, 512)],
    layer("gru_b32_h128", "GRU, 32 lanes, 128 units, 100 steps", gru_data, gru, ("w", "u", "v"), gru_numba,
          lanes=32, hidden=128),
    layer("rnn_b32_h128", "RNN, 32 lanes, 128 units, 100 steps", rnn_data, rnn, ("w", "u"), rnn_numba, rnn_gradient,
          lanes=32, hidden=128),
    layer("ssm", "Selective state-space layer, 64 channels, 16 states, 1,000 steps", ssm_data, ssm,
          ("a", "delta", "b", "c", "xs"), ssm_numba, ssm_gradient, n=1_000, short=200, width=64, states=16),
]
