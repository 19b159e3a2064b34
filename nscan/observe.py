"""Loops that are watched while they run: progress bar, profile, search for the first NaN."""

import contextlib
import time

from nscan import finite, interpret
from nscan.ops.loop import run_in_python as run_row
from nscan.state import STATE, section
from nscan.tape import locate
from nscan.watch import reported, tqdm_class


def run(loop, values, plain):
    """Run a watched loop on real arrays.

    Parameters
    ----------
    loop : Loop
    values : list
        Operands of the loop equation.
    plain : callable
        ``plain(loop, values[, watch])`` runs a loop without being watched.
    """
    with _bar(loop, values) as watch, reported("profile" in loop.watch, loop.name):
        if "finite" in loop.watch:
            outs = finite.run(loop, values, lambda *args: plain(*args, watch), plain)
        else:
            outs = plain(loop, values, watch)
        if watch is not None:
            watch(steps_of(loop, values, outs))
        return outs


def steps_of(loop, values, outs):
    """Number of steps that a loop ran."""
    return int(outs[loop.visible - 1]) if loop.stop else int(values[0])


@contextlib.contextmanager
def _bar(loop, values):
    """Context: a progress bar; gives the function that moves it, or None."""
    if "progress" not in loop.watch:
        yield None
        return
    with tqdm_class()(total=None if loop.stop else int(values[0]), desc=loop.name, unit="step", dynamic_ncols=True) as bar:
        yield lambda done: bar.update(done - bar.n)


def run_in_python(loop, values, watch=None):
    """Run a loop equation by equation; if it is profiled, each equation is timed."""
    if "profile" not in loop.watch or STATE.profile is None:
        return interpret.run_loop(loop, values, run_row, watch)
    times, clock = {}, [0.0]

    def seen(eqn, ins, outs):
        now = time.perf_counter()
        times[eqn] = times.get(eqn, 0.0) + now - clock[0]
        clock[0] = time.perf_counter()
    with section("kernels"):
        start = clock[0] = time.perf_counter()
        outs = interpret.run_loop(loop, values, run_row, watch, seen)
        seconds = time.perf_counter() - start
    parts = [("core", locate(eqn.where), t) for eqn, t in times.items()]
    parts.append(("core", None, seconds - sum(times.values())))
    STATE.profile.add_run(loop, steps_of(loop, values, outs), seconds, parts)
    return outs
