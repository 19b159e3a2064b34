"""How long the first call takes: in a process without kernels on disk, and in the next process.

Every figure comes from a process of its own. Numba's own start (its import, and its first compilation) is done before the
clock starts.
"""

import os
import statistics
import subprocess
import sys
import tempfile

import numpy as np

from benchmarks.harness import clock

GOALS = {"neuron_2400": (None, 4.0), "neuron_10000": (None, 15.0), "lstm": (1.0, 2.0)}
TEXTS = {"garch": "GARCH(1,1) with likelihood", "lstm": "LSTM with peepholes, 32 lanes, 128 cells",
         "neuron_2400": "60 scalar states, about 2,400 operations",
         "neuron_10000": "60 scalar states, about 10,000 operations"}


def scalar_step(operations, states=60):
    """Return a step of scalar states and about so many operations, and its data."""
    rounds = operations // (states * 4)

    def step(x, *h):
        h = list(h)
        for r in range(rounds):
            for k in range(states):
                other = h[(k + r + 1) % states]
                h[k] = h[k] + 0.01 * (np.tanh(other) * x)
        return tuple(h)
    return step, np.linspace(0, 1, 100), list(np.linspace(-1, 1, states))


def scalar_loss(operations):
    """Return a function of the input of such a loop, and the input."""
    import nscan as ns

    step, xs, start = scalar_step(operations)

    def loss(xs):
        rows = ns.scan(step, xs, start)
        return np.mean(rows[0])
    return loss, xs


def suite_loss(name):
    """Return the loss of a loop of the suite, and the first array by which it is differentiated."""
    from benchmarks.libraries import Nscan
    from benchmarks.loops import LOOPS

    loop, lib = LOOPS[name], Nscan()
    data = loop.arrays(loop.short)
    key = loop.wrt[0]

    def loss(x):
        given = {**data, key: x}
        return loop.loss(lib, loop.run(lib, **given), **given)
    return loss, data[key]


def child(name, direction):
    """Print the seconds of a first call, and of a second one."""
    import numba

    import nscan as ns

    numba.njit(lambda x: x + 1)(1.0)
    loss, x = scalar_loss(int(name.split("_")[1])) if name.startswith("neuron") else suite_loss(
        {"lstm": "lstm_b32_h128"}.get(name, name))
    call = ns.value_and_grad(loss) if direction == "gradient" else loss
    times = []
    for _ in range(2):
        start = clock()
        call(x)
        times.append(clock() - start)
    print(*times)


def first_calls(name, direction, folder):
    """Run a process; return the seconds of its first and second call. RuntimeError says how the process failed."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.compiling", name, direction], check=False,
                          capture_output=True, text=True, env={**os.environ, "NSCAN_CACHE_DIR": folder})
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return [float(word) for word in done.stdout.split()]


def measure(name, direction, repeats):
    """Return the medians of cold, warm and second call."""
    rows = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            cold, _ = first_calls(name, direction, folder)
            rows.append((cold, *first_calls(name, direction, folder)))
    return dict(zip(("cold", "warm", "again"), map(statistics.median, zip(*rows, strict=True)), strict=True))


def run(turns, say):
    """Measure all; a loop that fails stays in the table, with the reason."""
    found = {}
    for name in TEXTS:
        for direction in ("forward", "gradient"):
            try:
                figures = measure(name, direction, max(1, min(turns // 3, 3)))
            except RuntimeError as error:
                figures = {"failed": str(error)}
            found.setdefault(name, {})[direction] = figures
            say(f"{name:14} {direction:9} " + "  ".join(f"{k} {v:.4f} s" if k != "failed" else v for k, v in figures.items()))
    return found


if __name__ == "__main__":
    child(*sys.argv[1:])
