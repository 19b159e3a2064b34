"""How the cost of a loop grows with steps, lanes and state size, beside a floor that no loop can pass.

The floor of an LSTM is the time of its products, ``np.matmul`` of the same arrays in the same process; that of an average is
a copy of its rows.
"""

import numpy as np

from benchmarks.harness import Local, compare
from benchmarks.libraries import Nscan
from benchmarks.loops import networks
from benchmarks.measure import kernel_seconds

STEPS, LANES, CELLS = (10, 100, 1_000), (1, 8, 32, 128), (32, 64, 128, 256, 512)
AVERAGES = ((1_000_000, 1), (100_000, 10), (10_000, 100), (1_000, 1_000), (1_000, 4_096))


def lstm_pair(n, lanes, cells):
    """Return a loop over an LSTM, and its products alone."""
    loop = networks.layer("lstm", "", networks.lstm_data, networks.lstm, ("w", "u", "bias", "peep"), None, n=n,
                          lanes=lanes, hidden=cells)
    data = loop.arrays(n)
    flat, rows = data["xs"].reshape(n * lanes, cells), np.empty((n * lanes, 4 * cells), np.float32)
    h, z, u = np.ones((lanes, cells), np.float32), np.empty((lanes, 4 * cells), np.float32), data["u"]
    by_h, by_u = np.empty_like(h), np.empty_like(u)

    def products():
        np.matmul(flat, data["w"], rows)
        for _ in range(n):
            np.matmul(h, u, z)
        return (z,)

    def products_of_gradient():
        products()
        for _ in range(n):
            np.matmul(z, u.T, by_h)
        np.matmul(flat.T, rows, by_u)
        np.matmul(flat.T, rows, by_u)
        return (by_u,)
    return Local("nscan", Nscan().calls(loop, data)), Local("floor", {"forward": products,
                                                                      "gradient": products_of_gradient})


def average_pair(n, lanes):
    """Return a loop over an average of many lanes, in float32, and a copy of its rows."""
    import nscan as ns

    rng = np.random.default_rng(0)
    xs, decay = rng.standard_normal((n, lanes)).astype(np.float32), np.full(lanes, 0.9, np.float32)

    def forward():
        return (ns.scan(lambda x, h, a: a * h + x, xs, xs[0], decay),)

    def gradient():
        return ns.value_and_grad(lambda a: np.mean(ns.scan(lambda x, h, a: a * h + x, xs, xs[0], a)))(decay)
    return (Local("nscan", {"forward": forward, "gradient": gradient}),
            Local("floor", {"forward": lambda: (xs.copy(),), "gradient": lambda: (xs.copy(), xs.copy())}))


def run(turns, say):
    """Measure all; return rows of figures."""
    cases = [("steps", n, lstm_pair, (n, 32, 128)) for n in STEPS]
    cases += [("lanes", lanes, lstm_pair, (100, lanes, 128)) for lanes in LANES]
    cases += [("cells", cells, lstm_pair, (100, 32, cells)) for cells in CELLS]
    cases += [("average", f"{n:,} x {lanes:,}", average_pair, (n, lanes)) for n, lanes in AVERAGES]
    rows = []
    for kind, size, make, sizes in cases:
        row = {"kind": kind, "size": size, "sizes": sizes}
        for direction in ("forward", "gradient"):
            mine, floor = make(*sizes)
            figures = compare([mine, floor], direction, turns)
            row[direction] = {"seconds": figures["nscan"]["seconds"], "floor": figures["floor"]["seconds"],
                              "kernel": kernel_seconds(mine, direction, turns), "ratio": 1 / figures["floor"]["ratio"]}
        rows.append(row)
        say(f"{kind:8} {size!s:>16}  " + "  ".join(
            f"{d} {row[d]['seconds'] * 1e3:8.3f} ms (kernel {row[d]['kernel'] * 1e3:8.3f}) = {row[d]['ratio']:5.2f} floors"
            for d in ("forward", "gradient")))
    return rows
