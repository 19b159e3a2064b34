"""Few lanes: the loop over lanes outside, the loop over steps inside, states in registers.

With lanes inside, a state goes through memory in every step, and a step waits for the store of the one before it. That is
lost among many lanes; with a few of them it is most of the time. Which loop stands outside is decided where the kernel
runs, by the number of lanes; every element is computed in the same way.
"""

import numpy as np

from nscan.plan.affine import VIRTUAL
from nscan.plan.kinds import vector_width
from nscan.tape import Var

# Registers of lanes (16 lanes of 4 bytes, 8 of 8 bytes) up to which steps go inside, and equations (times the elements
# of a lane) that are worth two copies.
FEW, MOST = 1, 48


def find(steps):
    """Return the Interchange of a loop whose steps are elementwise along one axis; None for others.

    Parameters
    ----------
    steps : nscan.plan.loops.Steps
    """
    e = steps.e
    states, stored = steps.states, [v for v, place in zip(steps.row_vars, steps.rows) if place is not None]
    if not steps.is_outer or steps.stop is not None or steps.terms or not states:
        return None
    if any(s.how not in ("rows", "two") or len(e.looped(s.v)) != 1 for s in states) or any(type(v) is not Var for v in stored):
        return None
    values = [*stored, *[v for s in states for v in (s.v, s.new)], *[v for q in steps.eqns for v in (*q.inputs, *q.outputs)]]
    values = [v for v in values if type(v) is Var]
    axes = {e.axes.get(v)[k] for v in values for k in e.looped(v)}
    elementwise = all(q.row.kind == "pointwise" or q.row.name in VIRTUAL and q.row.name != "reshape" for q in steps.eqns)
    if len(axes) != 1 or not elementwise or sum(len(points(e, q.outputs[0])) for q in steps.eqns) > MOST:
        return None
    axis = axes.pop()
    return Interchange(steps, axis) if type(axis.size) is int else None


def points(e, v):
    """Points of a value along its unrolled axes."""
    return list(np.ndindex(*[d for d, c in zip(v.shape, e.axes.get(v)) if c.unrolled]))


class Interchange:
    """Emits the steps of a loop, lanes outside."""

    def __init__(self, steps, axis):
        self.steps, self.axis, self.e, self.b = steps, axis, steps.e, steps.e.b
        self.width = vector_width(steps.eqns, [s.v for s in steps.states])

    def run(self, lo, hi, carried, kept, written, plain):
        """Emit both orders and the choice between them; `plain` emits the usual one. What is carried (sums) stays."""
        b = self.b
        few = b.op("le", "b1", self.e.size(self.axis), b.const(FEW * self.width))
        b.open(fence=True, written=written)
        self._emit(lo, hi, carried, kept, written)
        then = b.close()
        b.open(fence=True, written=written)
        plain()
        b.statement("if", few.id, then, b.close(), ())
        for slot in written:
            b.forget(slot)

    def _emit(self, lo, hi, sums, kept, written):
        e, b, steps = self.e, self.b, self.steps
        with b.range(b.const(0), e.size(self.axis), self.width, written=written) as lanes:
            e.vector += 1
            self.lane = lanes.index
            initial = [part for s in steps.states for p in points(e, s.v) for part in e.load(steps.place_at(s, lo), self._at(s.v, p))]
            with b.range(lo, hi, carries=initial, written=written) as loop:
                loop.again(self._step(loop.index, loop.carried, sums, kept))
            left = iter(loop.results)
            for s in steps.states:
                for p in points(e, s.v):
                    parts = [next(left) for _ in range(2 if s.v.dtype.kind == "c" else 1)]
                    if s.how == "two":
                        e.store(steps.place_at(s, hi), self._at(s.v, p), parts)
            e.vector -= 1

    def _step(self, t, carried, sums, kept):
        """Emit a step of one register of lanes; return the new states."""
        e, steps = self.e, self.steps
        steps.define(t, sums)
        left = iter(carried)
        for s in steps.states:
            e.define[s.v] = ("lanes", {p: tuple(next(left) for _ in range(2 if s.v.dtype.kind == "c" else 1)) for p in points(e, s.v)})
        for q in steps.eqns:
            for k, v in enumerate(q.outputs):
                e.define[v] = ("eqn", q, k)
        new = [part for s in steps.states for p in points(e, s.v) for part in e.elem(s.new, self._at(s.v, p))]
        for v, place in [*steps.row_places(t), *[(v, e.here(rows)) for v, rows in kept]]:
            for p in points(e, v):
                e.store(place, self._at(v, p), e.elem(v, self._at(v, p)))
        return new

    def _at(self, v, p):
        """Index of a value: the lane on the axis of lanes, a point elsewhere."""
        p = iter(p)
        return tuple(self.e.b.const(int(next(p))) if c.unrolled else self.lane for c in self.e.axes.get(v))
