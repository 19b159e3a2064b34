"""Time series: averages, volatility, hidden Markov models, alignment."""

import numpy as np
from numba import njit

from benchmarks.harness import Loop


# ------------------------------------------------------------------------------- exponential average (EWMA)
def ewma_data(rng, n):
    """Draw a random walk."""
    return {"rate": np.float64(0.3), "xs": np.cumsum(rng.standard_normal(n)) / np.sqrt(n)}


def ewma(lib, rate, xs):
    """Levels of an exponential average."""
    return lib.scan(lambda x, level, rate: level + rate * (x - level), [xs], [xs[0]], [rate])


def ewma_loss(lib, rows, rate, xs):
    """Mean squared forecast error."""
    return lib.mean((xs[1:] - rows[0][:-1]) ** 2)


@njit
def ewma_numba(rate, xs):
    """The same by hand."""
    levels, level = np.empty_like(xs), xs[0]
    for t in range(len(xs)):
        level = level + rate * (xs[t] - level)
        levels[t] = level
    return (levels,)


@njit
def ewma_gradient(rate, xs):
    """Forecast error, and its derivatives by hand."""
    n = len(xs)
    (levels,) = ewma_numba(rate, xs)
    loss, slope, lam, by_xs = 0.0, 0.0, 0.0, np.zeros_like(xs)
    for t in range(n - 1):
        loss += (xs[t + 1] - levels[t]) ** 2
    for t in range(n - 1, -1, -1):
        if t < n - 1:
            error = 2 / (n - 1) * (xs[t + 1] - levels[t])
            by_xs[t + 1] += error
            lam -= error
        before = levels[t - 1] if t else xs[0]
        slope += lam * (xs[t] - before)
        by_xs[t] += rate * lam
        lam *= 1 - rate
    by_xs[0] += lam
    return loss / (n - 1), slope, by_xs


# ----------------------------------------------------------------------------------------------- GARCH(1,1)
def garch_data(rng, n):
    """Draw returns."""
    return {"p": np.array([0.05, 0.1, 0.85]), "r": rng.standard_normal(n)}


def garch(lib, p, r):
    """Variances and terms of the likelihood."""
    def step(r, v, omega, alpha, beta):
        v = omega + alpha * r**2 + beta * v
        return v, lib.log(v) + r**2 / v
    return lib.scan(step, [r], [r[0] * 0 + 1, None], [p[0], p[1], p[2]])


def garch_loss(lib, rows, p, r):
    """Negative log-likelihood, a mean."""
    return 0.5 * lib.mean(rows[1])


@njit
def garch_numba(p, r):
    """The same by hand."""
    omega, alpha, beta = p
    variances, terms, v = np.empty_like(r), np.empty_like(r), 1.0
    for t in range(len(r)):
        v = omega + alpha * r[t] ** 2 + beta * v
        variances[t] = v
        terms[t] = np.log(v) + r[t] ** 2 / v
    return variances, terms


@njit
def garch_gradient(p, r):
    """The likelihood and its gradient by hand, in forward mode: three numbers are carried along."""
    omega, alpha, beta = p
    v, by_omega, by_alpha, by_beta = 1.0, 0.0, 0.0, 0.0
    loss, g = 0.0, np.zeros(3)
    for t in range(len(r)):
        r2 = r[t] ** 2
        by_omega, by_alpha, by_beta = 1 + beta * by_omega, r2 + beta * by_alpha, v + beta * by_beta
        v = omega + alpha * r2 + beta * v
        loss += np.log(v) + r2 / v
        outer = (1 - r2 / v) / v
        g[0] += outer * by_omega
        g[1] += outer * by_alpha
        g[2] += outer * by_beta
    return 0.5 * loss / len(r), 0.5 * g / len(r)


# --------------------------------------------------------------------------------------- hidden Markov model
def hmm_data(rng, n, states=16):
    """Draw log-probabilities of transitions and of what is seen."""
    logits = rng.standard_normal((states, states))
    return {"moves": logits - np.logaddexp.reduce(logits, axis=1, keepdims=True),
            "seen": -rng.random((n, states)) * 3}


def hmm(lib, moves, seen):
    """Forward algorithm, in logarithms."""
    def step(seen, alpha, moves):
        return lib.logsumexp(alpha[:, None] + moves, axis=0) + seen
    return lib.scan(step, [seen], [seen[0] * 0], [moves])


def hmm_loss(lib, rows, moves, seen):
    """Negative log-likelihood of a step."""
    return -lib.logsumexp(rows[0][-1], axis=0) / seen.shape[0]


@njit
def hmm_numba(moves, seen):
    """The same by hand."""
    n, k = seen.shape
    rows, alpha, terms = np.empty((n, k)), np.zeros(k), np.empty(k)
    for t in range(n):
        for j in range(k):
            top = -np.inf
            for i in range(k):
                terms[i] = alpha[i] + moves[i, j]
                top = max(top, terms[i])
            total = 0.0
            for i in range(k):
                total += np.exp(terms[i] - top)
            rows[t, j] = top + np.log(total) + seen[t, j]
        alpha = rows[t]
    return (rows,)


@njit
def hmm_gradient(moves, seen):
    """The likelihood and its derivatives by hand."""
    n, k = seen.shape
    (rows,) = hmm_numba(moves, seen)
    top = rows[-1].max()
    weights = np.exp(rows[-1] - top)
    loss = -(top + np.log(weights.sum())) / n
    lam = -weights / weights.sum() / n
    by_moves, by_seen, before = np.zeros((k, k)), np.empty((n, k)), np.empty(k)
    for t in range(n - 1, -1, -1):
        before[:] = 0
        for j in range(k):
            by_seen[t, j] = lam[j]
        for i in range(k):
            alpha = rows[t - 1, i] if t else 0.0
            for j in range(k):
                share = lam[j] * np.exp(alpha + moves[i, j] + seen[t, j] - rows[t, j])
                by_moves[i, j] += share
                before[i] += share
        lam[:] = before
    return loss, by_moves, by_seen


# ------------------------------------------------------------------------------------------------- soft-DTW
FAR = 1e8


def dtw_data(rng, n):
    """Draw two series and skew their cost matrix, so that an antidiagonal is a row."""
    x, y = np.cumsum(rng.standard_normal((2, n)), axis=1) / 4
    cost = (x[:, None] - y) ** 2
    skewed = np.full((2 * n - 1, n), FAR)
    for i in range(n):
        skewed[i:i + n, i] = cost[i]
    return {"skewed": skewed}


def dtw(lib, skewed):
    """Soft alignment cost, antidiagonal by antidiagonal (gamma = 1)."""
    n = skewed.shape[1]
    far = lib.concatenate([skewed[0, :1] * 0 + FAR, skewed[0, 1:] * 0 + FAR])
    first = lib.concatenate([skewed[0, :1], far[1:]])

    def step(cost, older, last):
        down = lib.concatenate([cost[:1] * 0 + FAR, last[:-1]])
        across = lib.concatenate([cost[:1] * 0 + FAR, older[:-1]])
        low = -lib.maximum(lib.maximum(-down, -across), -last)
        return last, cost + low - lib.log(lib.exp(low - down) + lib.exp(low - across) + lib.exp(low - last))
    rows = lib.scan(step, [skewed[1:]], [far, first], n_steps=2 * n - 2)
    return (rows[1],)


def dtw_loss(lib, rows, skewed):
    """Cost of the whole alignment."""
    return rows[0][-1][-1]


@njit
def dtw_numba(skewed):
    """The same by hand."""
    n = skewed.shape[1]
    rows, older, last = np.empty((2 * n - 2, n)), np.full(n, FAR), np.full(n, FAR)
    last[0] = skewed[0, 0]
    for d in range(2 * n - 2):
        for i in range(n):
            down = last[i - 1] if i else FAR
            across = older[i - 1] if i else FAR
            low = min(down, across, last[i])
            rows[d, i] = skewed[d + 1, i] + low - np.log(
                np.exp(low - down) + np.exp(low - across) + np.exp(low - last[i]))
        older, last = last, rows[d]
    return (rows,)


@njit
def dtw_gradient(skewed):
    """The cost and its derivatives by hand, from the alignment matrix."""
    n = skewed.shape[1]
    (rows,) = dtw_numba(skewed)
    all_rows = np.full((2 * n, n), FAR)
    all_rows[1, 0] = skewed[0, 0]
    all_rows[2:] = rows
    slopes = np.zeros((2 * n, n))
    slopes[-1, -1] = 1
    for d in range(2 * n - 1, 1, -1):
        for i in range(n):
            lam = slopes[d, i]
            value = all_rows[d, i] - skewed[d - 1, i]
            slopes[d - 1, i] += lam * np.exp(value - all_rows[d - 1, i])
            if i:
                slopes[d - 1, i - 1] += lam * np.exp(value - all_rows[d - 1, i - 1])
                slopes[d - 2, i - 1] += lam * np.exp(value - all_rows[d - 2, i - 1])
    return all_rows[-1, -1], slopes[1:]


LOOPS = [
    Loop("ewma", "Exponential average, 1,000,000 steps", ewma_data, 1_000_000, 10_000,
         ewma, ewma_loss, ("rate", "xs"), ewma_numba, ewma_gradient),
    Loop("garch", "GARCH(1,1) with likelihood, 200,000 steps", garch_data, 200_000, 4_000,
         garch, garch_loss, ("p",), garch_numba, garch_gradient),
    Loop("hmm", "HMM forward algorithm, 16 states, 5,000 steps", hmm_data, 5_000, 1_000,
         hmm, hmm_loss, ("moves", "seen"), hmm_numba, hmm_gradient),
    Loop("soft_dtw", "Soft-DTW of two series of 400", dtw_data, 400, 400,
         dtw, dtw_loss, ("skewed",), dtw_numba, dtw_gradient),
]
