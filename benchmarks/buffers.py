"""What it gains that memory of large arrays is used again: gradients without over with it, in alternation.

Run it: ``python -m benchmarks.buffers [loops]``.
"""

import sys
import time

from benchmarks import measure
from benchmarks.loops import LOOPS
from nscan import buffers

SHOWN, ROUNDS = ("ewma", "garch", "biquad", "lstm_b1_h128", "lstm_b32_h128", "hmm", "ssm"), 40


def measured(call):
    """Return the median times of a call with fresh memory, and with memory of calls before."""
    times, least = {False: [], True: []}, buffers.LEAST
    for _ in range(ROUNDS):
        for again, seconds in times.items():
            buffers.LEAST = least if again else buffers.KEPT + 1
            call()
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    buffers.LEAST = least
    return [sorted(seconds)[ROUNDS // 2] for seconds in times.values()]


def main():
    """Print the table."""
    for name in sys.argv[1:] or SHOWN:
        made, _ = measure.implementations(LOOPS[name], ["nscan"], None)
        fresh, again = measured(made[0].calls["gradient"])
        print(f"{name:16} fresh {fresh * 1e3:7.2f} ms   again {again * 1e3:7.2f} ms   ratio {fresh / again:.2f}")


if __name__ == "__main__":
    main()
