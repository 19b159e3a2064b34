"""Write the page of figures and its picture."""

import pathlib

from benchmarks.compiling import GOALS, TEXTS
from benchmarks.harness import DIRECTIONS
from benchmarks.measure import ORDER

ROOT = pathlib.Path(__file__).parents[1]
PAGE, PICTURE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.svg"
PEERS = ORDER[1:]
NAMES = {"numba": "Numba", "numpy": "NumPy", "jax": "JAX", "torch": "PyTorch", "pytensor": "PyTensor"}
COLOURS = {"numba": "#d55e00", "numpy": "#999999", "jax": "#0072b2", "torch": "#cc79a7", "pytensor": "#009e73"}

INTRODUCTION = """\
# Benchmarks

<!-- This page is written by `python -m benchmarks`. -->

Each loop is run by nscan, by a Numba function written by hand, by a Python loop over NumPy arrays, by JAX (`lax.scan`
under `jit`), by PyTorch (eager) and by PyTensor (`scan`). All compute the same numbers, which is checked before a
time is taken. They take turns in one run (PyTensor in a process of its own, for it needs an older Numba). A column
holds the median, over the turns, of *time of the other / time of nscan*: 2.0 means that nscan takes half as long,
and below 1 nscan is behind. Everything runs on one thread, and times are
processor times of the process, so that other programs on the machine do not count; `--wall` takes wall times.

The time of nscan is that of a whole call: every call traces the step anew. *Kernel* is the part spent in compiled
code. NumPy, PyTorch and PyTensor run step by step; for long loops they get fewer steps, and the time is
multiplied accordingly. `torch.compile` is not measured: it unrolls Python loops, here into 50 to 1,000,000 steps.

"""
FOOT = """\
## How to run it

```sh
pip install -e . && pip install -r benchmarks/requirements.txt
python -m venv pytensor && pytensor/bin/pip install scipy -r benchmarks/requirements-pytensor.txt
python -m benchmarks --pytensor pytensor/bin/python
python -m benchmarks.readme
```

`python -m benchmarks loops garch --keep` measures one loop and writes nothing; `--quick` takes fewer turns.
"""


def table(header, rows):
    """Return a table: the first column to the left, figures to the right."""
    lines = [header, [":---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n\n"


def heading(text):
    """Return a heading."""
    return f"## {text}\n\n"


def milliseconds(seconds):
    """Return a time in milliseconds, as text."""
    value = seconds * 1e3
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def ratio(value):
    """Return a ratio as text: two digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def loops_table(loops, direction):
    """Return the table of one direction."""
    rows = []
    for found in loops.values():
        if direction not in found:
            continue
        figures = found[direction]
        first = figures["nscan"]
        rows.append([found["text"], milliseconds(first["seconds"]), milliseconds(first["kernel"]),
                     *(ratio(figures[p]["ratio"]) if p in figures else "--" for p in PEERS)])
    return table(["Loop", "nscan, ms", "kernel, ms", *(NAMES[p] for p in PEERS)], rows)


def missing_text(loops):
    """Return the list of what is not measured, and why; like reasons together."""
    reasons = {}
    for found in loops.values():
        for peer, why in found["missing"].items():
            reasons.setdefault((peer, why), []).append(found["text"].split(",")[0])
        for direction in DIRECTIONS:
            for peer, why in found.get(f"wrong {direction}", {}).items():
                reasons.setdefault((peer, f"{direction}: {why}"), []).append(found["text"].split(",")[0])
    lines = [f"- {NAMES[peer]}, {', '.join(dict.fromkeys(names))}: `{why}`" for (peer, why), names in sorted(reasons.items())
             if why != "not written"]
    return "A dash is a loop that was not written for that peer, or one of these:\n\n" + "\n".join(lines) + "\n\n"


def growth_text(rows):
    """Return the tables of growth."""
    titles = {"steps": "LSTM, 32 lanes, 128 cells, by the number of steps",
              "lanes": "LSTM, 128 cells, 100 steps, by the number of lanes",
              "cells": "LSTM, 32 lanes, 100 steps, by the number of cells",
              "average": "Linear recurrence h = a * h + x, float32, steps x lanes"}
    text = heading("How the cost grows")
    text += ("The floor of an LSTM is the time of its matrix products alone, by ``np.matmul`` in the same process; that of\n"
             "the linear recurrence is a copy of its rows (two for the gradient). *Floors* is time / floor.\n\n")
    for kind, title in titles.items():
        body = [[f"{row['size']:,}" if isinstance(row["size"], int) else row["size"],
                 *(cell for d in DIRECTIONS for cell in (milliseconds(row[d]["seconds"]), milliseconds(row[d]["kernel"]),
                                                         milliseconds(row[d]["floor"]), ratio(row[d]["ratio"])))]
                for row in rows if row["kind"] == kind]
        header = [kind if kind != "average" else "size",
                  *(f"{word}{name}" for word in ("", "gradient: ") for name in ("ms", "kernel", "floor", "floors"))]
        text += f"{title}:\n\n" + table(header, body)
    return text


def compile_text(found):
    """Return the table of compile times."""
    text = heading("How long the first call takes")
    text += ("Seconds of the first call in a process, after Numba's own start. *Cold*: nothing on disk. *Warm*: the next\n"
             "process, which finds the kernels on disk. *Again*: the second call in that process.\n\n")
    rows = []
    for name, both in found.items():
        for direction, figures in both.items():
            goal = GOALS.get(name, (None, None))[direction == "gradient"]
            cells = ([figures["failed"], "", ""] if "failed" in figures else
                     [f"{figures['cold']:.2f}", f"{figures['warm']:.2f}", f"{figures['again']:.4f}"])
            rows.append([TEXTS[name], direction, *cells, f"{goal:g}" if goal else ""])
    return text + table(["Loop", "", "cold, s", "warm, s", "again, s", "goal (cold)"], rows)


def machine_text(facts):
    """Return what was measured with, as a line."""
    facts = dict(facts)
    head = (f"{facts.pop('processor')}, {facts.pop('cores')} cores, {facts.pop('date')}; "
            f"{facts.pop('clock')}, medians of {facts.pop('turns')} turns")
    load = facts.pop("load")
    return (f"Measured on: {head}. " + ", ".join(f"{k} {v}" for k, v in facts.items())
            + f". Load average at the end of the run: {load}.\n\n")


def picture(loops):
    """Draw the ratios as points on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "nscan"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 0.27 * len(loops) + 1.2), sharey=True, layout="constrained")
    for axis, direction in zip(axes, DIRECTIONS, strict=True):
        for peer in PEERS:
            points = [(found[direction][peer]["ratio"], k) for k, found in enumerate(loops.values())
                      if peer in found.get(direction, {})]
            if points:
                axis.plot(*zip(*points, strict=True), "o", color=COLOURS[peer], label=NAMES[peer], markersize=5)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_xscale("log")
        axis.grid(axis="x", color="0.9")
        axis.set_title({"forward": "forward", "gradient": "value and gradient"}[direction])
        axis.set_xlabel("time / time of nscan (right of 1: nscan is faster)")
    axes[0].set_yticks(range(len(loops)), list(loops))
    axes[0].invert_yaxis()
    handles = {label: h for axis in axes for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=len(PEERS), fontsize=8)
    figure.savefig(PICTURE, metadata={"Date": None})
    plt.close(figure)


def write(known):
    """Write page and picture."""
    text = INTRODUCTION + machine_text(known["machine"])
    if "loops" in known:
        picture(known["loops"])
        text += "![ratios of time, loop by loop](benchmarks.svg)\n\n"
        text += heading("Forward") + loops_table(known["loops"], "forward")
        text += heading("Value and gradient") + loops_table(known["loops"], "gradient")
        text += missing_text(known["loops"])
    if "growth" in known:
        text += growth_text(known["growth"])
    if "compile" in known:
        text += compile_text(known["compile"])
    PAGE.write_text(text + FOOT)
