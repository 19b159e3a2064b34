"""A map around a loop of known length: blocks of lanes outside, the loop over steps inside, lanes innermost.

``map(i -> loop(xs[i]))`` runs the steps of one element after those of another, and a step of a few numbers leaves the
processor's vectors empty. Here the map takes a block of elements at a time: its step is the old one with an axis of lanes
(`nscan.batch`), so the loop inside goes over all lanes of a block. Rows of a block stay in the cache, and blocks are
independent as the elements were. The pass is from tape to tape, before differentiation, and depends on shapes only.
"""

import dataclasses

import numpy as np

from nscan.batch import Unbatchable, batch
from nscan.config import config
from nscan.optimise import may_fail, optimise
from nscan.tape import Var, remember

# Lanes of a block: at least LEAST, about BEST; elements of a value of the loop inside from which on it has lanes enough.
LEAST, BEST, WIDE = 16, 40, 16


def blocks(n):
    """Divide elements into blocks of nearly equal size: a list of (number of blocks, lanes of each)."""
    fitting = [w for w in range(LEAST, 2 * BEST) if n % w == 0]
    if fitting:
        lanes = min(fitting, key=lambda w: (w % 8 > 0, abs(w - BEST)))
        return [(n // lanes, lanes)]
    count = max(n // BEST, 1)
    lanes, more = divmod(n, count)
    return [(k, w) for k, w in ((count - more, lanes), (more, lanes + 1)) if k]


def exchanged(loop, n, safe):
    """Return the loop over blocks for each part of a map around a loop; None where it stays as it is.

    Parameters
    ----------
    loop : Loop
    n : int or Var
        Number of steps of the map.
    safe : bool
        Whether an error in a step may be found by running the map as it is.

    Returns
    -------
    list of (number of blocks, lanes, Loop), or None
    """
    if type(n) is not int or n < LEAST or config.mode != "compiled":
        return None
    key = loop, n, safe
    found = _FOUND.get(key, 0)
    return remember(_FOUND, key, _exchanged(loop, n, safe), 1000) if found == 0 else found


_FOUND = {}


def _exchanged(loop, n, safe):
    if loop.states or loop.sums or loop.hidden or loop.stop or loop.watch or not loop.seqs or not _pays(loop, safe):
        return None
    flags = [k < loop.seqs for k in range(len(loop.step.inputs))]
    try:
        return [(count, lanes, _blocked(loop, flags, lanes)) for count, lanes in blocks(n)]
    except Unbatchable:
        return None


def _blocked(loop, flags, lanes):
    step, _ = batch(loop.step, flags, lanes, [True] * loop.rows)
    return dataclasses.replace(loop, step=optimise(step))


def _pays(loop, safe):
    """Whether loops that depend on the row of the map hold most of the work, in values too small to have lanes of their own."""
    moving = set(loop.step.inputs[:loop.seqs])
    inner = []
    for q in loop.step.eqns:
        if moving.intersection(v for v in q.inputs if type(v) is Var):
            moving.update(q.outputs)
            inner += [q.params["loop"]] if q.row.name == "loop" else []
    return bool(inner) and all(_is_narrow(p.step, safe) for p in inner) and (safe or not _fails(loop.step))


def _is_narrow(tape, safe):
    for q in tape.eqns:
        if q.row.name == "loop" and not _is_narrow(q.params["loop"].step, safe):
            return False
    return all(np.prod([d for d in v.shape if type(d) is int]) < WIDE for q in tape.eqns for v in q.outputs)


def _fails(tape):
    """Whether a step may end in an error, which would speak of a block."""
    return any(_fails(q.params["loop"].step) if q.row.name == "loop" else may_fail(q) for q in tape.eqns)
