"""Cost of an indexed write in a loop: it is that of what is written, not that of the state.

A loop of 100,000 steps reads one entry of its state and overwrites it. Its time with a state of a million entries is
divided by that with a hundred, forward and with the gradient. It is the time in kernels; what is done once for each
state, whatever the number of steps (copies of the initial value and of its cotangent), is measured by a loop of one
step and subtracted. The entries are visited in order, strided, or at random; the last is bound by the memory of the
machine, so the same loop by hand in Numba stands beside it. Run it: ``python -m benchmarks.indexed_writes``.
"""

import time

import numba
import numpy as np

import nscan as ns
from nscan.cpu import launch

STEPS, SMALL, LARGE, ROUNDS = 100_000, 100, 1_000_000, 25


def final(state, xs, ks):
    """Run the loop: entry k of the state becomes x * entry + 1."""
    def step(state, row):
        x, k = row
        state[k] = x * state[k] + 1.0
        return state, None
    return ns.loop(step, state, (xs, ks))[0]


def forward(state, xs, ks):
    """The loop alone."""
    return final(state, xs, ks)


def gradient(state, xs, ks):
    """Derivative of a sum of its result."""
    return ns.grad(lambda state, xs: np.sum(final(state, xs, ks)), argnums=(0, 1))(state, xs)


@numba.njit(cache=True)
def by_hand(state, xs, ks):
    """The loop in Numba."""
    state = state.copy()
    for t in range(len(xs)):
        state[ks[t]] = xs[t] * state[ks[t]] + 1.0
    return state


@numba.njit(cache=True)
def gradient_by_hand(state, xs, ks):
    """The derivative in Numba: entries that are overwritten are kept."""
    state = state.copy()
    kept = np.empty(len(xs))
    for t in range(len(xs)):
        kept[t] = state[ks[t]]
        state[ks[t]] = xs[t] * state[ks[t]] + 1.0
    ct, dxs = np.ones(len(state)), np.empty(len(xs))
    for t in range(len(xs) - 1, -1, -1):
        c = ct[ks[t]]
        dxs[t] = c * kept[t]
        ct[ks[t]] = c * xs[t]
    return ct, dxs


def inputs(size, steps, order):
    """State, factors and places."""
    rng = np.random.default_rng(0)
    places = {"in order": np.arange(steps) % size, "strided": 4_099 * np.arange(steps) % size, "at random": rng.integers(0, size, steps)}
    return rng.uniform(-1, 1, size), rng.uniform(-1, 1, steps), places[order]


KERNEL = []


def watched(run_watched):
    """Note the time that kernels take."""
    def run(*args):
        start = time.perf_counter()
        run_watched(*args)
        KERNEL.append(time.perf_counter() - start)
    return run


def seconds(function, args):
    """Time of the kernels of one call, or of the call where it runs none."""
    KERNEL.clear()
    start = time.perf_counter()
    function(*args)
    return sum(KERNEL) or time.perf_counter() - start


def ratio(function, order):
    """Least time over rounds, taken in turns, with a large state over that with a small one, the fixed part subtracted."""
    calls = [inputs(size, steps, order) for size in (SMALL, LARGE) for steps in (1, STEPS)]
    for args in calls:
        function(*args)
    times = [[seconds(function, args) for args in calls] for _ in range(ROUNDS)]
    least = [min(column) for column in zip(*times, strict=True)]
    small, large = least[1] - least[0], least[3] - least[2]
    return large / small, small / STEPS, large / STEPS


def main():
    """Print the table."""
    launch.run_watched = watched(launch.run_watched)
    print(f"{'':24} {'small':>9} {'large':>9}   ratio")
    for order in ("in order", "strided", "at random"):
        for name, function in (("forward", forward), ("by hand", by_hand), ("gradient", gradient), ("by hand", gradient_by_hand)):
            times, small, large = ratio(function, order)
            print(f"{order:12} {name:11} {small * 1e9:6.1f} ns {large * 1e9:6.1f} ns   {times:.2f}", flush=True)


if __name__ == "__main__":
    main()
