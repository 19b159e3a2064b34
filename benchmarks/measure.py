"""Run the loops of the suite and collect figures."""

import contextlib

from benchmarks import harness
from benchmarks.libraries import LIBRARIES
from benchmarks.remote import Remote

ORDER = ("nscan", "numba", "numpy", "jax", "torch", "pytensor")


def by_hand(loop, data):
    """Return the callables of the Numba functions of a loop."""
    calls = {"forward": lambda: loop.numba(**data)}
    if loop.numba_gradient is not None:
        calls["gradient"] = lambda: loop.numba_gradient(**data)
    return calls


def local(name, loop, short):
    """Make an implementation in this process; None if the loop has none."""
    if name == "numba":
        return harness.Local(name, by_hand(loop, loop.arrays(loop.short if short else loop.n))) if loop.numba else None
    library = LIBRARIES[name]()
    n = loop.short if library.eager or short else loop.n
    return harness.Local(name, library.calls(loop, loop.arrays(n)), loop.n / n if not short else 1.0)


def implementations(loop, peers, pytensor):
    """Make all implementations of a loop.

    Returns
    -------
    list of implementations, and dict name -> why there is none.
    """
    made, missing = [], {}
    for name in peers:
        try:
            if name in loop.without:
                missing[name] = loop.without[name]
            elif name == "pytensor":
                made.append(Remote(pytensor, name, loop))
            elif (found := local(name, loop, False)) is not None:
                made.append(found)
            else:
                missing[name] = "not written"
        except ImportError as error:
            missing[name] = f"not installed ({error.name})"
        except Exception as error:  # a peer that cannot do it stays in the table, with the reason
            if name == "nscan":
                raise
            missing[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    return made, missing


@contextlib.contextmanager
def kernel_clock():
    """Add up the time that nscan's kernels run, apart from tracing and from the call."""
    from nscan.cpu import launch, run

    inner, total = launch.run_watched, [0.0]

    def watched(*args, **kwargs):
        start = harness.clock()
        try:
            return inner(*args, **kwargs)
        finally:
            total[0] += harness.clock() - start
    if run.launch is not launch:
        raise RuntimeError("nscan.cpu.run no longer launches kernels by nscan.cpu.launch.run_watched")
    launch.run_watched = watched
    try:
        yield total
    finally:
        launch.run_watched = inner


def kernel_seconds(implementation, direction, turns):
    """Return the median time in kernels of a call of nscan."""
    found = []
    with kernel_clock() as total:
        for _ in range(turns):
            total[0] = 0.0
            implementation.calls[direction]()
            found.append(total[0])
    return sorted(found)[len(found) // 2]


def check(loop, made, direction):
    """Compare results with those of nscan; return the implementations that agree, and what is wrong with others."""
    reference, kept, wrong = {}, [], {}
    for each in made:
        if direction not in each.directions:
            continue
        try:
            short = each.factor != 1
            if short not in reference:
                reference[short] = (local("nscan", loop, True) if short else made[0]).results(direction)
            gap = harness.differences(reference[short], each.results(direction))
            if gap > loop.tolerance:
                raise AssertionError(f"differs by {gap:.1e}")
            kept.append(each)
        except Exception as error:
            if each is made[0]:
                raise
            wrong[each.name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    return kept, wrong


def measure(loop, peers, pytensor, turns, say):
    """Compare all implementations of a loop; return figures for each direction."""
    made, missing = implementations(loop, peers, pytensor)
    result = {"text": loop.text, "missing": missing}
    try:
        for direction in harness.DIRECTIONS:
            if direction not in made[0].directions:
                continue
            kept, wrong = check(loop, made, direction)
            figures = harness.compare(kept, direction, turns)
            figures["nscan"]["kernel"] = kernel_seconds(made[0], direction, turns)
            result[direction], result[f"wrong {direction}"] = figures, wrong
            say(loop, direction, figures, wrong)
    finally:
        for each in made:
            if isinstance(each, Remote):
                each.close()
    return result
