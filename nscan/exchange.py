"""A map around a loop of known length: blocks of lanes outside, the loop over steps inside, lanes innermost.

``map(i -> loop(xs[i]))`` runs the steps of one element after those of another, and a step of a few numbers leaves the
processor's vectors empty. Here the map takes a block of elements at a time: its step is the old one with an axis of lanes
(`nscan.batch`), so the loop inside goes over all lanes of a block. Rows of a block stay in the cache, and blocks are
independent as the elements were. The pass is from tape to tape, before differentiation, and depends on shapes only.
"""

import dataclasses
import math

from nscan.batch import Unbatchable, batch
from nscan.config import config
from nscan.optimise import may_fail, optimise
from nscan.tape import RESIDUAL, Lit, Var, remember

# Lanes of a block: at least LEAST, at best BEST, fewer where the rows of the loop inside would need more than ROOM bytes.
LEAST, BEST, ROOM = 16, 40, 1 << 20
# A loop whose rows need more than that even so must do WORTH operations for each number of a row, and never needs MEMORY.
WORTH, MEMORY = 2, 1 << 25
# A step of larger values fills the vectors without lanes (smaller ones are unrolled, see `nscan.plan.axes`); products and
# linear algebra gain up to MOST elements.
AXIS, VALUE, MOST = 8, 36, 1024


def blocks(n, best):
    """Divide elements into blocks of nearly equal size: a list of (number of blocks, lanes of each)."""
    fitting = [w for w in range(LEAST, best + best // 2) if n % w == 0]
    if fitting:
        lanes = min(fitting, key=lambda w: (w % 8 > 0, abs(w - best)))
        return [(n // lanes, lanes)]
    count = max(n // best, 1)
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
    if loop.states or loop.sums or loop.hidden or loop.stop or not set(loop.watch) <= {"profile"} or not safe and _fails(loop.step):
        return None
    best = _best(loop) if _is_static(loop.step) else None
    if best is None:
        return None
    flags = [k < loop.seqs for k in range(len(loop.step.inputs))]
    try:
        return [(count, lanes, _blocked(loop, flags, lanes)) for count, lanes in blocks(n, best)]
    except Unbatchable:
        return None


def _blocked(loop, flags, lanes):
    step, _ = batch(loop.step, flags, lanes, [True] * loop.rows)
    return dataclasses.replace(loop, step=optimise(step))


def _best(loop):
    """Lanes for the loops that depend on the row of the map; None where there are none, or lanes gain nothing."""
    moving, found, loops = set(loop.step.inputs[:loop.seqs]), [], 0
    for q in loop.step.eqns:
        if moving.intersection(v for v in q.inputs if type(v) is Var):
            moving.update(q.outputs)
            is_loop = q.row.name in ("loop", "loop_adjoint")
            found.append(_lanes(q) if is_loop else BEST if _is_small(q) else None)
            loops += is_loop
    return min(found) if loops and None not in found else None


def _is_small(q):
    """Whether what stands beside the loops has room for many lanes; rows of a loop, and what is made of them, do."""
    room = max([ROOM // LEAST, *map(_bytes, q.inputs)])
    return all(_bytes(v) <= room for v in q.outputs)


def _lanes(q):
    """Lanes for one loop: as many as there is room for; None if they gain nothing."""
    loop = q.params["loop"]
    eqns = list(_equations(loop.step))
    values = [v for p in eqns for v in p.outputs]
    if type(q.inputs[0]) is not Lit:
        return None
    product = any(p.row.name == "contract" or p.row.kind == "linalg" for p in eqns)
    if any(_size(v) > MOST or not product and (_size(v) > VALUE or max(v.shape, default=1) > AXIS) for v in values):
        return None
    seqs, states, sums, _ = loop.split_step_inputs(loop.step.inputs)
    rows = [*seqs, *states, *sums, *loop.split_step_outputs(loop.step.outputs)[2]]
    need = max(int(q.inputs[0].value) * sum(map(_bytes, rows)), 1)
    work = sum(map(_work, eqns))
    if LEAST * need > MEMORY or LEAST * need > 2 * ROOM and work < WORTH * sum(map(_size, rows)):
        return None
    return min(max(ROOM // need, LEAST), BEST)


def _equations(tape):
    for q in tape.eqns:
        yield q
        for part in q.params.values():
            for inner in getattr(part, "tapes", tuple)():
                yield from _equations(inner)


def _is_static(tape):
    """Whether all sizes are known."""
    return all(type(d) is int for q in _equations(tape) for v in (*q.inputs, *q.outputs) for d in v.shape)


def _size(v):
    return math.prod(v.shape)


def _bytes(v):
    return 0 if v.dtype is RESIDUAL else _size(v) * v.dtype.itemsize


def _work(q):
    """Rough number of operations of an equation."""
    if q.row.name == "contract":
        return math.prod({**dict(zip(q.params["la"], q.inputs[0].shape)), **dict(zip(q.params["lb"], q.inputs[1].shape))}.values())
    return sum(map(_size, q.outputs)) if q.row.kind in ("pointwise", "reduction", "linalg") else 0


def _fails(tape):
    """Whether a step may end in an error, which would speak of a block."""
    return any(q.row.kind != "loop" and may_fail(q) for q in _equations(tape))
