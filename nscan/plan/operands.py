"""What a kernel is given and returns, as values, and their axes: which is split in lanes, which are unrolled.

Whether an axis is unrolled decides in which order a sum is added up. So a loop that computes values of another loop's step
again (`Loop.origin`) takes over what was decided there, wherever a sum or product hangs on it: `alike`.
"""

import dataclasses

import numpy as np

from nscan.plan.axes import ONE, UNROLL_AXIS, Axes, join_loop
from nscan.plan.lanes import find_lane, mixes
from nscan.plan.live import find_live
from nscan.plan.memory import copied
from nscan.tape import Var

# Size of the axis of steps while planning; the real number is an argument.
STEPS = 1 << 40
INT = np.dtype("i8")


class Operands:
    """Operands and results of a kernel, and their axes.

    Parameters
    ----------
    loop : Loop
        Prepared.
    alike : dict, optional
        Input of the step to what is decided about its axes (see `alike`).
    seeds : tuple of (Var, int)
        See `nscan.plan.lanes.find_lane`.
    """

    def __init__(self, loop, alike=None, seeds=()):
        self.loop = loop
        step = loop.step
        seqs, states, sums, consts = loop.split_step_inputs(step.inputs)
        counter = iter(range(-1, -1 << 30, -1))
        new = lambda shape, dtype: Var(tuple(shape), dtype, next(counter))  # noqa: E731
        self.n = new((), INT)
        self.seqs = [new((STEPS, *v.shape), v.dtype) for v in seqs]
        self.states = [new(v.shape, v.dtype) for v in states]
        self.sums = [new(v.shape, v.dtype) for v in sums]
        self.consts = [new(v.shape, v.dtype) for v in consts]
        self.seq_vars, self.state_vars, self.sum_vars, self.const_vars = seqs, states, sums, consts
        rows = loop.split_step_outputs(step.outputs)[2:4]
        self.row_vars = (*rows[0], *rows[1])
        self.rows = [new((STEPS, *v.shape), v.dtype) for v in self.row_vars]
        self.finals = [new(v.shape, v.dtype) for v in (*states, *sums)]
        self.inputs = (self.n, *self.seqs, *self.states, *self.sums, *self.consts)
        self.axes = Axes()
        for v in (*self.inputs, *self.rows, *self.finals):
            self.axes.new(v)
        join_loop(self.axes, dataclasses.replace(loop, rows=loop.rows + loop.hidden, hidden=0), self.inputs,
                  (*self.rows, *self.finals, *([new((), INT)] if loop.stop else [])))
        self.classes = self.axes.number()
        for v, decided in (alike or {}).items():
            for c, (unrolled, mixed) in zip(self.axes.get(v), decided):
                c.fixed = unrolled if c.fixed is None or unrolled is None else c.fixed and unrolled
                c.mixed = c.mixed or mixed
        self.lane = find_lane(self.axes, loop, seeds)
        self.axes.unroll(self.lane)


def alike(loop, env, masked):
    """Return what axes of a loop must have in common with those of the loop whose values it computes again.

    Parameters
    ----------
    loop : Loop
        With an `origin`.
    env : dict
        Inputs of its step to those of the prepared loop.
    masked : bool
        Whether lanes that have ended run on under a mask.

    Returns
    -------
    dict
        Inputs of the prepared step to a tuple for each: for each axis whether it is unrolled (None: as it comes) and whether
        its elements meet in what is computed again.
    """
    other, numbers = loop.origin
    decided = _decisions(other, masked)
    out = {env[v]: decided[k] for v, k in zip(loop.step.inputs, numbers) if k in decided}
    if loop.partner is not None:
        prepared, _, theirs = copied(loop.partner)
        prepared, seeds, _ = _running(prepared, masked)
        own = Operands(prepared, alike(loop.partner, theirs, masked), seeds)
        for v, u in zip(_cotangents(loop), _cotangents(loop.partner)):
            out[env[v]] = tuple([(c.unrolled if _is_small(c) else None, False) for c in own.axes.get(theirs[u])])
    return out


def _cotangents(loop):
    """Inputs of a backward step that stand for nothing in the forward one: cotangents."""
    varying = loop.step.inputs[:loop.seqs + loop.states + loop.sums]
    return [v for v, k in zip(varying, loop.origin[1]) if k is None]


def _is_small(c):
    return c is not ONE and type(c.size) is int and c.size <= UNROLL_AXIS


def _running(loop, masked):
    """Return a prepared loop without the masks of lanes that have ended, its seeds, and what stands for its values."""
    live = None if masked else find_live(loop)
    return (live.loop, live.seeds, live.read) if live else (loop, (), lambda v: v)


def _decisions(loop, masked):
    prepared, _, env = copied(loop)
    prepared, seeds, read = _running(prepared, masked)
    own = Operands(prepared, seeds=seeds)
    again = behind(prepared.step, prepared.split_step_outputs(prepared.step.outputs)[3])
    ordered = {c for q in again for p in _within(q) if _has_order(p) for v in (*p.inputs, *p.outputs) if type(v) is Var
               for c in own.axes.get(v)}
    mixed = {c for c in own.classes if any(mixes(own.axes, q, c) for q in again)}
    out = {}
    for k, v in enumerate(numbered(loop)):
        now = read(env[v])
        classes = own.axes.get(now) if type(now) is Var else ()
        out[k] = tuple([(c.unrolled if c in ordered and _is_small(c) else None, c in mixed) for c in classes])
    return out


def behind(tape, values):
    """Equations that compute some values, in order."""
    needed, out = {v for v in values if type(v) is Var}, []
    for q in reversed(tape.eqns):
        if any(v in needed for v in q.outputs):
            out.append(q)
            needed.update(v for v in q.inputs if type(v) is Var)
    return out[::-1]


def numbered(loop):
    """Values of a loop's step in the order in which `Loop.origin` counts them."""
    return (*loop.step.inputs, *[v for q in loop.step.eqns for v in q.outputs])


def _within(q):
    yield q
    for value in q.params.values():
        for tape in getattr(value, "tapes", tuple)():
            for p in tape.eqns:
                yield from _within(p)


def _has_order(q):
    """Whether the result of an equation hangs on an order in which elements meet."""
    return q.row.kind in ("reduction", "running", "linalg") or q.row.name == "contract"
