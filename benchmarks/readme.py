"""Write the table of figures of README.md: ``python -m benchmarks.readme``, after ``python -m benchmarks``."""

import json
import pathlib
import re

from benchmarks.__main__ import RESULTS
from benchmarks.report import NAMES, PEERS, milliseconds, ratio

README = pathlib.Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- figures: begin; written by `python -m benchmarks.readme` -->", "<!-- figures: end -->"
SHOWN = ("ewma", "garch", "biquad", "lstm_b32_h128", "language_10", "kalman", "hmm", "ssm", "neuron")


def figures(known):
    """Return the section as text."""
    peers = [peer for peer in PEERS if peer != "numpy"]  # it has no derivatives
    lines = ["## Figures", "",
             "Value and gradient of some loops: the time of nscan, and how many times that the others take (below 1 nscan is",
             "behind).", "", "| loop | nscan, ms | " + " | ".join(NAMES[p] for p in peers) + " |",
             "|---|---|" + "---|" * len(peers)]
    for name in SHOWN:
        found = known["loops"].get(name, {})
        if "gradient" not in found:
            continue
        each = found["gradient"]
        cells = [ratio(each[p]["ratio"]) if p in each else "–" for p in peers]
        lines.append(f"| {found['text']} | {milliseconds(each['nscan']['seconds'])} | " + " | ".join(cells) + " |")
    facts = known["machine"]
    lines += ["", f"One thread of {facts['processor']}; nscan's time holds the tracing of the step. Numba is a loop and, where there",
              "is a figure, a gradient written by hand. All loops, forward times, growth and compile times: `docs/benchmarks.md`."]
    return "\n".join(lines)


def main():
    """Put the section between the markers."""
    text = README.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"README.md does not hold the two markers {BEGIN} and {END}")
    section = f"{BEGIN}\n{figures(json.loads(RESULTS.read_text()))}\n{END}"
    README.write_text(re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: section, text, flags=re.DOTALL))


if __name__ == "__main__":
    main()
