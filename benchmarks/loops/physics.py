"""Differential equations, a neuron, and windows over an image."""

import numpy as np
from numba import njit

from benchmarks.harness import Loop


# ---------------------------------------------------------------------------------------------------- Lorenz
def lorenz_data(rng, n):
    """Parameters of Lorenz's system; the step shrinks with their number, so that chaos stays small."""
    return {"p": np.array([10.0, 28.0, 8 / 3]), "start": np.ones(3), "dt": 2.0 / n, "n": n}


def lorenz_slope(x, y, z, p):
    """Right-hand side."""
    return p[0] * (y - x), x * (p[1] - z) - y, x * y - p[2] * z


def lorenz(lib, p, start, dt, n):
    """Runge-Kutta, fourth order."""
    def step(x, y, z, p):
        k1 = lorenz_slope(x, y, z, p)
        k2 = lorenz_slope(*(u + dt / 2 * k for u, k in zip((x, y, z), k1, strict=True)), p)
        k3 = lorenz_slope(*(u + dt / 2 * k for u, k in zip((x, y, z), k2, strict=True)), p)
        k4 = lorenz_slope(*(u + dt * k for u, k in zip((x, y, z), k3, strict=True)), p)
        return tuple(u + dt / 6 * (a + 2 * b + 2 * c + d)
                     for u, a, b, c, d in zip((x, y, z), k1, k2, k3, k4, strict=True))
    return lib.scan(step, [], [start[0], start[1], start[2]], [p], n)


def lorenz_loss(lib, rows, p, start, dt, n):
    """Mean height."""
    return lib.mean(rows[2])


slope = njit(lorenz_slope)


@njit
def lorenz_numba(p, start, dt, n):
    """The same by hand."""
    xs, ys, zs = np.empty(n), np.empty(n), np.empty(n)
    x, y, z = start
    for t in range(n):
        a1, b1, c1 = slope(x, y, z, p)
        a2, b2, c2 = slope(x + dt / 2 * a1, y + dt / 2 * b1, z + dt / 2 * c1, p)
        a3, b3, c3 = slope(x + dt / 2 * a2, y + dt / 2 * b2, z + dt / 2 * c2, p)
        a4, b4, c4 = slope(x + dt * a3, y + dt * b3, z + dt * c3, p)
        x = x + dt / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
        y = y + dt / 6 * (b1 + 2 * b2 + 2 * b3 + b4)
        z = z + dt / 6 * (c1 + 2 * c2 + 2 * c3 + c4)
        xs[t], ys[t], zs[t] = x, y, z
    return xs, ys, zs


# ---------------------------------------------------------------------------- a neuron of 60 scalar states
PARTS = 15


def neuron_data(rng, n):
    """Draw the current that goes in; there are 15 compartments with a voltage and three gates each."""
    return {"g": np.array([1.2, 0.36, 0.003, 0.05]), "drive": 0.1 + 0.1 * rng.random(n),
            "start": np.concatenate([np.full(PARTS, -0.65), np.full(PARTS, 0.05), np.full(PARTS, 0.6),
                                     np.full(PARTS, 0.32)])}


def neuron_gates(lib, v, m, h, k, dt):
    """One step of the gates of Hodgkin and Huxley, in smooth form (voltages in 100 mV)."""
    u = 100 * v
    m = m + dt * (4 * lib.sigmoid((u + 40) / 9) * (1 - m) - 4 * lib.exp(-(u + 65) / 18) * m)
    h = h + dt * (0.07 * lib.exp(-(u + 65) / 20) * (1 - h) - lib.sigmoid((u + 35) / 10) * h)
    k = k + dt * (0.5 * lib.sigmoid((u + 55) / 20) * (1 - k) - 0.125 * lib.exp(-(u + 65) / 80) * k)
    return m, h, k


def neuron(lib, g, drive, start):
    """A chain of compartments, every state a scalar of its own."""
    dt = 0.01

    def step(drive, *rest):
        states, (sodium, potassium, leak, join) = rest[:-4], rest[-4:]
        v, m, h, k = (states[a * PARTS:(a + 1) * PARTS] for a in range(4))
        new = [[], [], [], []]
        for j in range(PARTS):
            current = drive if j == 0 else join * (v[j - 1] - v[j])
            if j < PARTS - 1:
                current = current + join * (v[j + 1] - v[j])
            ion = (sodium * m[j] ** 3 * h[j] * (v[j] - 0.5) + potassium * k[j] ** 4 * (v[j] + 0.77)
                   + leak * (v[j] + 0.544))
            gates = neuron_gates(lib, v[j], m[j], h[j], k[j], dt)
            for column, value in zip(new, (v[j] + dt * (current - ion), *gates), strict=True):
                column.append(value)
        return tuple(value for column in new for value in column)
    rows = lib.scan(step, [drive], [start[j] for j in range(4 * PARTS)], [g[0], g[1], g[2], g[3]])
    return tuple(rows)


def neuron_loss(lib, rows, g, drive, start):
    """Mean voltage of the last compartment."""
    return lib.mean(rows[PARTS - 1])


@njit
def neuron_numba(g, drive, start):
    """The same by hand, over arrays of compartments."""
    n, dt = len(drive), 0.01
    rows, now = np.empty((4 * PARTS, n)), start.copy()
    v, m, h, k = now[:PARTS], now[PARTS:2 * PARTS], now[2 * PARTS:3 * PARTS], now[3 * PARTS:]
    flow = np.empty(PARTS)
    for t in range(n):
        for j in range(PARTS):
            current = drive[t] if j == 0 else g[3] * (v[j - 1] - v[j])
            if j < PARTS - 1:
                current += g[3] * (v[j + 1] - v[j])
            ion = g[0] * m[j] ** 3 * h[j] * (v[j] - 0.5) + g[1] * k[j] ** 4 * (v[j] + 0.77) + g[2] * (v[j] + 0.544)
            flow[j] = current - ion
        for j in range(PARTS):
            u = 100 * v[j]
            m[j] += dt * (4 / (1 + np.exp(-(u + 40) / 9)) * (1 - m[j]) - 4 * np.exp(-(u + 65) / 18) * m[j])
            h[j] += dt * (0.07 * np.exp(-(u + 65) / 20) * (1 - h[j]) - 1 / (1 + np.exp(-(u + 35) / 10)) * h[j])
            k[j] += dt * (0.5 / (1 + np.exp(-(u + 55) / 20)) * (1 - k[j]) - 0.125 * np.exp(-(u + 65) / 80) * k[j])
        for j in range(PARTS):
            v[j] += dt * flow[j]
        rows[:, t] = now
    return rows


# -------------------------------------------------------------------------------------- windows of an image
def window_data(rng, n):
    """Draw an image of three channels, and a window for each of `n` pixels."""
    side = 300
    y, x, radius = rng.integers(0, side, n), rng.integers(0, side, n), rng.integers(1, 8, n)
    low = [np.maximum(a - radius, 0) for a in (y, x)]
    high = [np.minimum(a + radius + 1, side) for a in (y, x)]
    return {"t": low[0], "b": high[0], "l": low[1], "r": high[1], "image": rng.random((3, side, side))}


def window(lib, t, b, l, r, image):
    """Means over windows whose bounds are data."""
    def step(t, b, l, r, image):
        return lib.sum(image[:, t:b, l:r], axis=(1, 2)) / ((b - t) * (r - l))
    return (lib.map(step, [t, b, l, r], [image]),)


def window_loss(lib, rows, t, b, l, r, image):
    """Mean square."""
    return lib.mean(rows[0] ** 2)


@njit
def window_numba(t, b, l, r, image):
    """The same by hand."""
    means = np.zeros((len(t), 3))
    for p in range(len(t)):
        for c in range(3):
            total = 0.0
            for y in range(t[p], b[p]):
                for x in range(l[p], r[p]):
                    total += image[c, y, x]
            means[p, c] = total / ((b[p] - t[p]) * (r[p] - l[p]))
    return (means,)


@njit
def window_gradient(t, b, l, r, image):
    """The mean square and its derivative by hand."""
    (means,) = window_numba(t, b, l, r, image)
    loss, slopes = 0.0, np.zeros_like(image)
    for p in range(len(t)):
        for c in range(3):
            loss += means[p, c] ** 2
            share = 2 * means[p, c] / means.size / ((b[p] - t[p]) * (r[p] - l[p]))
            for y in range(t[p], b[p]):
                for x in range(l[p], r[p]):
                    slopes[c, y, x] += share
    return loss / means.size, slopes


LOOPS = [
    Loop("lorenz", "Lorenz system, Runge-Kutta, 3 scalars, 50,000 steps", lorenz_data, 50_000, 1_000,
         lorenz, lorenz_loss, ("p", "start"), lorenz_numba, tolerance=1e-6),
    Loop("neuron", "Neuron of 15 compartments, 60 scalar states, 2,000 steps", neuron_data, 2_000, 100,
         neuron, neuron_loss, ("g",), neuron_numba),
    Loop("window", "Window means of 20,000 pixels, bounds are data: map", window_data, 20_000, 1_000,
         window, window_loss, ("image",), window_numba, window_gradient, {"jax": "has no slices whose sizes are data"}),
]
