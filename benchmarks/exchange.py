"""What the exchange of a map with the loop in it gains: time without it over time with it, forward and with the gradient.

Each row is a map over series around a loop (`nscan.exchange`), in turns with and without the exchange; whole calls in one
thread, tracing included. The second table forces the exchange where it is not done by default, or with other numbers of
lanes in a block. Run it: ``NUMBA_NUM_THREADS=1 python -m benchmarks.exchange``.
"""

import contextlib
import time

import numpy as np

import nscan as ns
from nscan import exchange

TURNS, SECONDS = 11, 1.0
rng = np.random.default_rng(0)


def kalman(ys, move, see, noise):
    """A Kalman filter with its likelihood, in matrices."""
    def step(y, m, p):
        m, p = move @ m, move @ p @ move.T + noise * np.eye(len(move))
        s = see @ p @ see.T + np.eye(len(see))
        gain, e = p @ see.T @ np.linalg.inv(s), y - see @ m
        return m + gain @ e, p - gain @ see @ p, np.log(np.linalg.det(s)) + e @ np.linalg.solve(s, e)
    return np.sum(ns.scan(step, ys, [np.zeros(len(move)), np.eye(len(move)), None])[2])


def garch(ys, w, a, b):
    """GARCH(1,1) with its likelihood."""
    v = ns.scan(lambda y, v: w + a * y * y + b * v, ys, np.mean(ys * ys))
    return np.sum(np.log(v) + ys * ys / v)


def average(ys, rate):
    """Exponential average; all rows are returned."""
    return ns.scan(lambda y, h: h + rate * (y - h), ys, ys[0])


def network(ys, weights, into):
    """A plain recurrent network; its last state is returned."""
    return ns.scan(lambda y, h: np.tanh(weights @ h + into * y), ys, np.zeros(len(weights)))[-1]


def markov(ys, move, see):
    """Forward algorithm of a hidden Markov model with symbols."""
    def step(y, logs, see):
        return ns.logsumexp(logs[:, None] + move, axis=0) + see[:, y]
    return ns.logsumexp(ns.scan(step, ys, np.zeros(len(move)), see)[-1])


def elementwise(ys, start):
    """A step over a long axis, which fills the vectors by itself."""
    return ns.scan(lambda y, h: h + 0.1 * (np.tanh(y * h) - h), ys, start)[-1]


def cases(n, steps):
    """Name, function, rows and constants of each case."""
    ys = np.cumsum(rng.standard_normal((n, steps)), axis=1) / 10
    symbols = rng.integers(0, 5, (n, steps))
    found = {"GARCH": (garch, ys, (0.1, 0.1, 0.8)), "average": (average, ys, (0.1,))}
    for k in (2, 4, 8, 16):
        move = 0.9 * np.eye(k) + 0.02 / k
        found[f"Kalman, {k} states"] = kalman, rng.standard_normal((n, steps, 2)), (move, rng.standard_normal((2, k)), 0.02)
    for k in (2, 4, 8, 16, 64):
        found[f"network, {k} units"] = network, ys, (rng.standard_normal((k, k)) / k, rng.standard_normal(k))
    for k in (3, 4, 8):
        found[f"HMM, {k} states"] = markov, symbols, (rng.standard_normal((k, k)), rng.standard_normal((k, 5)))
    for k in (16, 64):
        found[f"elementwise, {k}"] = elementwise, ys, (np.ones(k),)
    return found


@contextlib.contextmanager
def settings(**changed):
    """Set constants of `nscan.exchange` for a while."""
    before = {name: getattr(exchange, name) for name in changed}
    try:
        _set(changed)
        yield
    finally:
        _set(before)


def _set(values):
    for name, value in values.items():
        setattr(exchange, name, value)
    exchange._FOUND.clear()


def compare(f, rows, consts, **changed):
    """Times without over times with the exchange: forward, value and gradient."""
    def forward():
        return ns.map(f, [rows], list(consts))

    def loss(*args):
        return np.mean(ns.map(f, [args[0]], list(args[1:])) ** 2)
    slopes = ns.value_and_grad(loss, tuple(k for k, x in enumerate((rows, *consts)) if np.asarray(x).dtype.kind == "f"))
    out = []
    for call in (forward, lambda: slopes(rows, *consts)):
        times, end = ([], []), time.perf_counter() + SECONDS
        while len(times[0]) < 3 or len(times[0]) <= TURNS and time.perf_counter() < end:
            for kept, given in zip(times, (dict(LEAST=1 << 60), changed), strict=True):
                with settings(**given):
                    call()  # finds its kernels
                    start = time.process_time()
                    call()
                    kept.append(time.process_time() - start)
        out.append(np.median(times[0]) / np.median(times[1]))
    return out


def main():
    """Print the gains."""
    for n, steps in ((1000, 200), (240, 10_000)):
        print(f"\n{n} series of {steps} steps              forward gradient")
        for name, (f, rows, consts) in cases(n, steps).items():
            if steps <= 200 or name in ("GARCH", "average", "Kalman, 2 states", "network, 4 units"):
                print(f"  {name:28s}" + "".join(f"{gain:9.2f}" for gain in compare(f, rows, consts)), flush=True)
    print("\nforced, or with other lanes")
    whole = dict(ROOM=1 << 40, MEMORY=1 << 50)
    forced = [("GARCH", 10_000, dict(WORTH=0)), ("elementwise, 64", 200, dict(AXIS=1 << 20, VALUE=1 << 20)),
              ("HMM, 8 states", 200, dict(AXIS=1 << 20, VALUE=1 << 20))]
    forced += [("Kalman, 2 states", 200, dict(whole, LEAST=w, BEST=w)) for w in (8, 20, 40, 100, 200, 500, 1000)]
    for name, steps, changed in forced:
        f, rows, consts = cases(240 if steps > 200 else 1000, steps)[name]
        text = ", ".join(f"{key}={value}" for key, value in changed.items() if key in ("LEAST", "WORTH", "AXIS"))
        print(f"  {name:18s} {text:24s}" + "".join(f"{gain:9.2f}" for gain in compare(f, rows, consts, **changed)), flush=True)


if __name__ == "__main__":
    main()
