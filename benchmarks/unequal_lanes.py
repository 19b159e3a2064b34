"""Cost of a loop with `lengths`: it is that of the steps that lanes run, not of the longest lane.

An LSTM of 64 lanes and a GARCH recursion of 1,024 series run 200 steps each: with all lanes as long as the loop, with one
lane as long as that and the others 48 steps (a quarter of the steps in all), with lengths drawn at random (half of them), the
same lengths in descending order, and without `lengths`. Times are divided by those of lanes of equal length: that in kernels
(``kernel``), and that of the call (``call``), which copies what is live into the order of the lengths, and back. Run it:
``python -m benchmarks.unequal_lanes``.
"""

import time

import numpy as np

import nscan as ns
from benchmarks import indexed_writes
from nscan.cpu import launch

STEPS, CELLS, INPUTS, ROUNDS = 200, 128, 64, 15
LANES = {"LSTM": 64, "GARCH": 1024}


def lstm(x, w, u, lengths):
    """The rows of an LSTM."""
    def step(x, h, c, w, u):
        i, f, g, o = np.split(x @ w + h @ u, 4, axis=1)
        c = ns.sigmoid(f) * c + ns.sigmoid(i) * np.tanh(g)
        return ns.sigmoid(o) * np.tanh(c), c
    start = np.zeros((x.shape[1], CELLS))
    return ns.scan(step, x, [start, start], [w, u], lengths=lengths)[0]


def garch(x, a, b, lengths):
    """Terms of the likelihood of GARCH(1,1), a series in each lane."""
    def step(x, s, a, b):
        return 0.1 + a * x * x + b * s, np.log(s) + x * x / s
    return ns.scan(step, x, [np.ones(x.shape[1]), None], [a, b], lengths=lengths)[1]


def inputs(name):
    """The arrays of a loop."""
    rng = np.random.default_rng(0)
    lanes = LANES[name]
    if name == "LSTM":
        return [rng.normal(size=shape) / 8 for shape in ((STEPS, lanes, INPUTS), (INPUTS, 4 * CELLS), (CELLS, 4 * CELLS))]
    return [rng.normal(size=(STEPS, lanes)), np.float64(0.1), np.float64(0.8)]


def lengths(lanes):
    """What lanes are given, by name."""
    quarter, drawn = np.full(lanes, 48), np.random.default_rng(1).integers(1, STEPS + 1, lanes)
    quarter[lanes // 2] = drawn[lanes // 3] = STEPS
    return {"equal": np.full(lanes, STEPS), "quarter": quarter, "random": drawn, "sorted": np.sort(drawn)[::-1], "without": None}


def measured(function, given):
    """Least time over rounds, taken in turns: pairs of seconds in kernels and of the call, by name."""
    least = {name: (np.inf, np.inf) for name in given}
    for _ in range(ROUNDS + 1):
        for name, lanes in given.items():
            indexed_writes.KERNEL.clear()
            start = time.perf_counter()
            function(lanes)
            whole = time.perf_counter() - start
            least[name] = tuple(map(min, least[name], (sum(indexed_writes.KERNEL), whole)))
    return least


def main():
    """Print the table."""
    launch.run_watched = indexed_writes.watched(launch.run_watched)
    print(f"{'':18} {'lengths':9} {'steps':>6} {'kernel':>10} {'ratio':>6} {'call':>10} {'ratio':>6}")
    for name, loop in (("LSTM", lstm), ("GARCH", garch)):
        arrays, given = inputs(name), lengths(LANES[name])

        def forward(lanes, loop=loop, arrays=arrays):
            return loop(*arrays, lanes)

        def gradient(lanes, loop=loop, arrays=arrays):
            return ns.grad(lambda *args: np.sum(loop(*args, lanes)), argnums=(0, 1, 2))(*arrays)
        for what, function in (("forward", forward), ("gradient", gradient)):
            times = measured(function, given)
            for kind, (kernel, call) in times.items():
                share = 1.0 if given[kind] is None else given[kind].mean() / STEPS
                base = times["equal"]
                print(f"{name:6} {what:11} {kind:9} {share:6.2f} {kernel * 1e3:7.2f} ms {kernel / base[0]:6.2f} {call * 1e3:7.2f} ms "
                      f"{call / base[1]:6.2f}", flush=True)


if __name__ == "__main__":
    main()
