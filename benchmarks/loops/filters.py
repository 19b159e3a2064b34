"""Filters: Kalman filters, one and a thousand, and biquads."""

import numpy as np
from numba import njit

from benchmarks.harness import Loop


# -------------------------------------------------------------------------------------------- Kalman filter
def kalman_data(rng, n):
    """Draw observations of a point that moves in a plane: 4 states, 2 observations."""
    move = np.eye(4)
    move[0, 2] = move[1, 3] = 0.1
    return {"noise": np.array([0.05, 0.5]), "ys": np.cumsum(rng.standard_normal((n, 2)), axis=0) / 10,
            "move": move, "see": np.eye(2, 4), "unit": np.eye(4)}


def kalman(lib, noise, ys, move, see, unit):
    """Means, covariances and terms of the likelihood."""
    def step(y, m, p, noise, move, see, unit):
        m = move @ m
        p = move @ p @ move.T + noise[0] * unit
        s = see @ p @ see.T + noise[1] * unit[:2, :2]
        det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
        inverse = lib.inv(s)
        e = y - see @ m
        gain = p @ see.T @ inverse
        return m + gain @ e, p - gain @ see @ p, lib.log(det) + e @ inverse @ e
    return lib.scan(step, [ys], [unit[0] * 0, unit * 1, None], [noise, move, see, unit])


def kalman_loss(lib, rows, noise, ys, move, see, unit):
    """Negative log-likelihood, a mean."""
    return 0.5 * lib.mean(rows[2])


@njit
def kalman_numba(noise, ys, move, see, unit):
    """The same by hand, with NumPy's products in Numba."""
    n = len(ys)
    means, covariances, terms = np.empty((n, 4)), np.empty((n, 4, 4)), np.empty(n)
    m, p, q, r = np.zeros(4), np.eye(4), noise[0] * np.eye(4), noise[1] * np.eye(2)
    move_t, see_t = np.ascontiguousarray(move.T), np.ascontiguousarray(see.T)
    for t in range(n):
        m = move @ m
        p = move @ p @ move_t + q
        s = see @ p @ see_t + r
        inverse = np.linalg.inv(s)
        e = ys[t] - see @ m
        gain = p @ see_t @ inverse
        m = m + gain @ e
        p = p - gain @ see @ p
        means[t], covariances[t] = m, p
        terms[t] = np.log(s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]) + e @ inverse @ e
    return means, covariances, terms


# -------------------------------------------------------------------------------------- 1,000 Kalman filters
def many_data(rng, n, steps=200):
    """Draw `n` series; each has a filter of a level and its slope."""
    return {"noise": np.array([0.02, 0.4]), "ys": np.cumsum(rng.standard_normal((n, steps)), axis=1) / 10}


def many_filters(lib, noise, ys):
    """Means of all filters, and likelihoods: a map around a loop."""
    def one(ys, q, r):
        zero = ys[0] * 0

        def step(y, level, slope, a, b, c, q, r):
            level = level + slope
            a, b, c = a + 2 * b + c + q, b + c, c + q
            s, e = a + r, y - level
            ka, kb = a / s, b / s
            return (level + ka * e, slope + kb * e, a - ka * a, b - ka * b, c - kb * b, lib.log(s) + e * e / s)
        rows = lib.scan(step, [ys], [zero, zero, zero + 1, zero, zero + 1, None], [q, r])
        return lib.mean(rows[5])
    return (lib.map(one, [ys], [noise[0], noise[1]]),)


def many_loss(lib, rows, noise, ys):
    """Negative log-likelihood, a mean."""
    return 0.5 * lib.mean(rows[0])


@njit
def many_numba(noise, ys):
    """The same by hand."""
    n, steps = ys.shape
    totals, (q, r) = np.empty(n), noise
    for k in range(n):
        level, slope, a, b, c, total = 0.0, 0.0, 1.0, 0.0, 1.0, 0.0
        for t in range(steps):
            level = level + slope
            a, b, c = a + 2 * b + c + q, b + c, c + q
            s, e = a + r, ys[k, t] - level
            ka, kb = a / s, b / s
            level, slope = level + ka * e, slope + kb * e
            a, b, c = a - ka * a, b - ka * b, c - kb * b
            total += np.log(s) + e * e / s
        totals[k] = total / steps
    return (totals,)


# --------------------------------------------------------------------------------------------------- biquads
def biquad_data(rng, n, channels=32):
    """Draw a signal of many channels and stable coefficients of a filter for each."""
    radius, angle = rng.uniform(0.7, 0.95, channels), rng.uniform(0.2, 2.5, channels)
    coefficients = np.stack([np.full(channels, 0.2), rng.uniform(-0.3, 0.3, channels), np.full(channels, 0.1),
                             -2 * radius * np.cos(angle), radius**2])
    return {"k": coefficients, "xs": rng.standard_normal((n, channels))}


def biquad(lib, k, xs):
    """Transposed direct form II."""
    b0, b1, b2, a1, a2 = (k[j] for j in range(5))

    def step(carry, xs):
        (s1, s2), (x,) = carry, xs
        y = b0 * x + s1
        return (b1 * x - a1 * y + s2, b2 * x - a2 * y), y
    zero = xs[0] * 0
    return (lib.loop(step, (zero, zero), (xs,))[1],)


def biquad_loss(lib, rows, k, xs):
    """Mean power of what comes out."""
    return lib.mean(rows[0] ** 2)


@njit
def biquad_numba(k, xs):
    """The same by hand."""
    n, channels = xs.shape
    ys, s1, s2 = np.empty_like(xs), np.zeros(channels), np.zeros(channels)
    for t in range(n):
        for c in range(channels):
            x = xs[t, c]
            y = k[0, c] * x + s1[c]
            s1[c] = k[1, c] * x - k[3, c] * y + s2[c]
            s2[c] = k[2, c] * x - k[4, c] * y
            ys[t, c] = y
    return (ys,)


@njit
def biquad_gradient(k, xs):
    """The power and its derivatives by hand; the states come again from rows that are still there."""
    n, channels = xs.shape
    (ys,) = biquad_numba(k, xs)
    loss, by_k, by_xs = 0.0, np.zeros_like(k), np.empty_like(xs)
    l1, l2 = np.zeros(channels), np.zeros(channels)
    for t in range(n - 1, -1, -1):
        for c in range(channels):
            x, y = xs[t, c], ys[t, c]
            loss += y * y
            d = 2 * y / ys.size - k[3, c] * l1[c] - k[4, c] * l2[c]
            by_k[0, c] += d * x
            by_k[1, c] += l1[c] * x
            by_k[2, c] += l2[c] * x
            by_k[3, c] -= l1[c] * y
            by_k[4, c] -= l2[c] * y
            by_xs[t, c] = k[0, c] * d + k[1, c] * l1[c] + k[2, c] * l2[c]
            l2[c] = l1[c]
            l1[c] = d
    return loss / ys.size, by_k, by_xs


LOOPS = [
    Loop("kalman", "Kalman filter with likelihood, 4 states, 2 observations, 5,000 steps", kalman_data, 5_000, 500,
         kalman, kalman_loss, ("noise", "move"), kalman_numba),
    Loop("kalman_1000", "1,000 Kalman filters of 2 states, 200 steps: map over scan", many_data, 1_000, 20,
         many_filters, many_loss, ("noise", "ys"), many_numba),
    Loop("biquad", "Biquad filters, 32 channels, 50,000 steps", biquad_data, 50_000, 2_000,
         biquad, biquad_loss, ("k", "xs"), biquad_numba, biquad_gradient),
]
