"""Lanes: the axis along which a whole loop is independent, so that threads can split it.

An axis class qualifies if no equation of the step mixes its elements; sums over steps may add over it at
their very end, since parts of a sum are added up afterwards. Each thread then runs its own loop over time for
its lanes, without a barrier. The grid of parts is a function of shapes and dtypes alone, so results do not
depend on the number of threads.
"""

import numpy as np

from nscan.ops.index import result_shape
from nscan.plan.axes import ONE
from nscan.plan.kinds import sources, split_sums
from nscan.plan.stages import COSTLY
from nscan.tape import Eqn, Var

ROW_BYTES = 4096
DOT_ROWS = 16


def find_lane(axes, loop, seeds=()):
    """Return the axis class to split, or None.

    Parameters
    ----------
    axes : Axes
    loop : Loop
    seeds : tuple of (Var, int)
        States and rows with one of their axes each: where given, the class is theirs or None.
    """
    step = loop.step
    if loop.stop:
        return None
    _, states, _, _ = loop.split_step_inputs(step.inputs)
    rows = loop.split_step_outputs(step.outputs)[2]  # what is kept for a backward loop has no say
    carriers = [*states, *[v for v in rows if type(v) is Var]]
    found = []
    for v in carriers:
        for c in axes.get(v):
            if c is not ONE and not (c.dynamic or c.stepped or c.split or c.mixed or c.fixed or c in found):
                found.append(c)
    if seeds:
        found = [c for c in found if all(axes.get(v)[k] is c for v, k in seeds)]
    ends = sum_ends(loop)
    good = [c for c in found if not any(mixes(axes, q, c, ends) for q in step.eqns)]
    return max(good, key=lambda c: _reach(axes, carriers, c), default=None)


def sum_ends(loop):
    """Values that go nowhere but into sums, by linear steps: parts of them may be added up afterwards."""
    _, _, sums, _ = loop.split_step_inputs(loop.step.inputs)
    new_sums = loop.split_step_outputs(loop.step.outputs)[1]
    eqns, terms = split_sums(loop.step.eqns, {new: (v, k) for k, (v, new) in enumerate(zip(sums, new_sums))})
    ends = {t.inputs[1] if type(t) is Eqn else t for t, _ in terms}
    used = {v for v in loop.step.outputs if v not in new_sums}
    for q in reversed(eqns):
        linear = q.row.name in ("sum", "reshape", "transpose", "negative")
        if linear and q.outputs[0] in ends and q.outputs[0] not in used:
            ends.add(q.inputs[0])
        else:
            used.update(sources(q))
    for q in eqns:
        if not (q.row.name in ("sum", "reshape", "transpose", "negative") and q.outputs[0] in ends):
            used.update(sources(q))
    return ends - used


def _reach(axes, carriers, c):
    """How much of the states and rows has the axis; among equals the first axis wins."""
    size = sum(int(np.prod([d for d in v.shape if type(d) is int])) for v in carriers if c in axes.get(v))
    leading = sum(axes.get(v)[0] is c for v in carriers if v.shape)
    return size, leading


def mixes(axes, q, c, ends=()):
    """Whether an equation lets elements along an axis meet."""
    name, kind = q.row.name, q.row.kind
    has = [c in axes.get(v) if type(v) is Var and v.shape else False for v in q.inputs]
    out = any(c in axes.get(v) for v in q.outputs if v.shape)
    if not any(has) and not out:
        return _inner_mixes(axes, q, c)
    if name == "transpose" or kind in ("pointwise", "size") or name in ("fill", "broadcast_to"):
        return False
    ended = q.outputs[0] in ends
    if kind == "reduction":
        return not (ended and name == "sum") and any(axes.get(q.inputs[0])[a] is c for a in q.params["axes"])
    if name == "contract":
        return not out and any(has) and not ended
    if name == "reshape":
        return not _kept_by_reshape(axes, q, c)
    if name == "concatenate":
        k = q.params["axis"]
        return any(axes.get(v)[k] is c for v in (*q.inputs, *q.outputs) if type(v) is Var)
    if name == "index_add" and not out and not has[0] and q.inputs[1] in ends:
        return any(has[2:])
    if name in ("index", "index_update", "index_add"):
        return _index_mixes(axes, q, c, has)
    if kind in ("running", "order") and "axis" in q.params:
        return axes.get(q.outputs[0])[q.params["axis"]] is c
    if kind == "linalg":
        return any(c in axes.get(v)[-2:] for v in (*q.inputs, *q.outputs) if type(v) is Var and len(v.shape) > 1)
    if kind == "loop":
        return _inner_mixes(axes, q, c)
    return True


def _kept_by_reshape(axes, q, c):
    from nscan.plan.axes import factor_pairs
    x, y = q.inputs[0], q.outputs[0]
    for gx, gy in factor_pairs(x.shape, y.shape):
        if any(axes.get(x)[k] is c for k in gx) or any(axes.get(y)[k] is c for k in gy):
            if len(gx) != 1 or len(gy) != 1:
                return False
    return True


def _index_mixes(axes, q, c, has):
    x = q.inputs[0]
    spec = q.params["spec"]
    if type(x) is not Var or not has[0]:
        return q.row.name != "index" or x in q.outputs
    axis = 0
    for entry in spec.entries:
        if entry[0] == "new":
            continue
        whole = entry[0] == "slice" and entry[1] == 0 and entry[3] == 1 and entry[2] == x.shape[axis]
        if axes.get(x)[axis] is c and not whole:
            return True
        axis += 1
    return False


def _inner_mixes(axes, q, c):
    """Whether an equation of a tape inside mixes elements along an axis."""
    for value in q.params.values():
        for tape in getattr(value, "tapes", tuple)():
            if any(mixes(axes, p, c) for p in tape.eqns):
                return True
    if q.row.name == "loop":
        loop = q.params["loop"]
        firsts = [v for v in (*loop.split_inputs(q.inputs)[1], *loop.split_outputs(q.outputs)[0]) if type(v) is Var and v.shape]
        return any(axes.get(v)[0] is c for v in firsts)
    return False


def work_of_step(axes, loop):
    """Rough cost of a step, in multiplications (a vectorised one counts as much as a scalar one)."""
    return _work(axes, loop.step)


def _work(axes, tape):
    total, places = 0, set(tape.inputs)
    for q in tape.eqns:
        written = q.row.name in ("index_update", "index_add") and q.inputs[0] in places
        if written:
            places.update(q.outputs)
        total += work_of(axes, q, written)
    return total


def work_of(axes, q, in_place=False):
    """Rough cost of an equation, in multiplications; what is written to in place costs what is written."""
    if is_virtual(q):
        return 0
    if in_place:
        return int(np.prod([d if type(d) is int else 16 for d in result_shape(q.params["spec"], q.inputs[0].shape, q.inputs[2:])]))
    if q.row.name == "contract":
        labels = {**dict(zip(q.params["la"], q.inputs[0].shape)), **dict(zip(q.params["lb"], q.inputs[1].shape))}
        return int(np.prod([d for d in labels.values() if type(d) is int])) // 4
    if q.row.kind == "loop":
        inner = next((t for value in q.params.values() for t in getattr(value, "tapes", tuple)()), None)
        n = q.inputs[0].value if q.row.name == "loop" and hasattr(q.inputs[0], "value") else 16
        return (int(n) if q.row.name == "loop" else 1) * (_work(axes, inner) if inner is not None else 1)
    size = max((_elements(v) for v in (*q.inputs, *q.outputs) if type(v) is Var), default=1)
    return size * (COSTLY * 8 if q.row.kind == "linalg" else q.row.cost)


def is_virtual(q):
    """Whether an equation costs nothing."""
    return q.row.name in ("reshape", "transpose", "broadcast_to", "fill", "index", "copy")


def _elements(v):
    return int(np.prod([d if type(d) is int else 16 for d in v.shape], dtype=np.int64))


def lane_block(e_axes, loop, c):
    """Lanes of a part: rows of at least `ROW_BYTES`, and enough rows for products."""
    _, states, _, _ = loop.split_step_inputs(loop.step.inputs)
    rows = loop.split_step_outputs(loop.step.outputs)[2]
    widest = 1
    for v in (*states, *rows):
        if type(v) is Var and c in e_axes.get(v):
            widest = max(widest, _elements(v) * v.dtype.itemsize // max(c.size, 1))
    block = -(-ROW_BYTES // widest)
    if any(q.row.name == "contract" and c in e_axes.get(q.outputs[0]) for q in loop.step.eqns):
        block = max(block, DOT_ROWS)
    return -(-block // 16) * 16 if block > 16 else 16 if widest < 256 else block


__all__ = ["find_lane", "lane_block", "work_of", "work_of_step"]
