"""What a loop of the suite is, and how implementations are compared.

A loop is a formula (`Loop.run` and `Loop.loss`) that is written once and given the functions of an array library
(see `benchmarks.libraries`), and one or two Numba functions written by hand. All implementations run in turns;
what is reported is the median, over the turns, of the ratio of two times that were taken next to each other.
"""

import dataclasses
import os
import statistics
import time

import numpy as np

# Everything runs on one thread. So the processor time of the process is what a call takes on a machine of its own, and other
# programs that run at the same time do not count. `--wall` takes the time on the wall.
WALL = "BENCHMARKS_WALL"
clock = time.perf_counter if os.environ.get(WALL) else time.process_time

DIRECTIONS = ("forward", "gradient")
# A turn of one implementation lasts at least TURN seconds; one that takes longer than SLOW has SLOW_TURNS turns.
TURN, SLOW, SLOW_TURNS = 4e-3, 0.3, 3


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop of the suite.

    Attributes
    ----------
    name, text : str
        A short name, and what the loop is, with its sizes.
    data : callable
        ``data(rng, n)`` returns a dict of arrays; `n` is the number of steps (or of lanes).
    n, short : int
        The number of steps, and that for libraries that run steps one by one in Python. Their times are
        multiplied by ``n / short``.
    run : callable
        ``run(lib, **data)`` returns a tuple of arrays.
    loss : callable or None
        ``loss(lib, rows, **data)`` returns a number made of what `run` returned.
    wrt : tuple of str
        Names of the arrays by which `loss` is differentiated.
    numba : callable or None
        ``numba(**data)`` returns what `run` returns, compiled by Numba.
    numba_gradient : callable or None
        ``numba_gradient(**data)`` returns the loss and its derivatives.
    without : dict of str to str
        Libraries that cannot run the loop, and why.
    tolerance : float
        Largest difference of two implementations, as a share of the largest value.
    """

    name: str
    text: str
    data: object
    n: int
    short: int
    run: object
    loss: object = None
    wrt: tuple = ()
    numba: object = None
    numba_gradient: object = None
    without: dict = dataclasses.field(default_factory=dict)
    tolerance: float = 1e-8

    def arrays(self, n):
        """Return the data; the same in every process."""
        return self.data(np.random.default_rng(0), n)


class Local:
    """An implementation in this process.

    Parameters
    ----------
    name : str
    calls : dict
        For each direction a callable without arguments, that returns a tuple of arrays.
    factor : float
        What a time has to be multiplied with.
    """

    def __init__(self, name, calls, factor=1.0):
        self.name, self.calls, self.factor = name, calls, factor
        self.directions = tuple(calls)

    def results(self, direction):
        """Run once and return arrays."""
        return tuple(np.asarray(x) for x in self.calls[direction]())

    def seconds(self, direction, count):
        """Return the time of a call, a mean over `count` of them."""
        call = self.calls[direction]
        start = clock()
        for _ in range(count):
            call()
        return (clock() - start) / count * self.factor


def differences(wanted, found):
    """Return the largest difference between two tuples of arrays, as a share of the largest value of each."""
    if len(wanted) != len(found):
        raise AssertionError(f"{len(found)} results, not {len(wanted)}")
    worst = 0.0
    for a, b in zip(wanted, found, strict=True):
        if a.shape != b.shape:
            raise AssertionError(f"a result of shape {b.shape}, not {a.shape}")
        gap = np.abs(np.asarray(a, float) - np.asarray(b, float)).max(initial=0.0)
        if not np.isfinite(gap):
            raise AssertionError("a result that is not finite")
        worst = max(worst, gap / max(np.abs(a).max(initial=0.0), 1e-300))
    return worst


def compare(implementations, direction, turns):
    """Time implementations in turns.

    Parameters
    ----------
    implementations : list
        The first is the one that others are compared with.
    direction : str
    turns : int

    Returns
    -------
    dict
        For each name the median time in seconds, and the median of its ratio to the first one.
    """
    counts, limits = {}, {}
    for each in implementations:
        once = min(each.seconds(direction, 1) / each.factor for _ in range(2))
        counts[each.name] = max(1, int(TURN / max(once, 1e-7)))
        limits[each.name] = turns if once < SLOW else min(turns, SLOW_TURNS)
    times = {each.name: [] for each in implementations}
    for turn in range(turns):
        for each in implementations:
            if turn < limits[each.name]:
                times[each.name].append(each.seconds(direction, counts[each.name]))
    first = times[implementations[0].name]
    return {
        name: {
            "seconds": statistics.median(found),
            "ratio": statistics.median(b / a for a, b in zip(first, found, strict=False)),
        }
        for name, found in times.items()
    }
