"""Affine states: ``h' = a*h + b`` without waiting for every step.

A step of such a state costs the latency of a product and a sum, whatever else the processor could do meanwhile.
So the steps go in blocks of four. The state after a block is ``A*h + B`` with ``A = a4*a3*a2*a1`` and
``B = b4 + a4*(b3 + a3*(b2 + a2*b1))``, neither of which waits for the state; within the block the states follow in the
plain order from the one before it, beside the chain. What a block adds to a sum is added up first.

This is a reordered evaluation of the same formula. Its intermediate values are bounded by those of the plain order
where no factor is larger than 1. Elsewhere (NaN included) a block runs in the plain order: that is tested for every block.
"""

import numpy as np

from nscan.plan import scalar
from nscan.plan.program import I64
from nscan.tape import Var

BLOCK = 4
# More equations (times elements) than this hide the latency by themselves, and four copies of them are much code.
MOST = 48
# A safe product differs from a plain one where its factor is not finite; such a block runs in the plain order.
PRODUCTS = ("multiply", "safe_mul")
VIRTUAL = ("reshape", "transpose", "broadcast_to", "fill", "copy")


def find(steps):
    """Return the Powers of a loop whose recurrent states are affine, each in itself; None for others.

    A loop whose rows a backward loop reads keeps the plain order: what is computed again from a state has the same bits.

    Parameters
    ----------
    steps : nscan.plan.loops.Steps
    """
    loop, step, e = steps.loop, steps.loop.step, steps.e
    if not steps.powers or loop.hidden or loop.plain or loop.stop or any(s.how != "registers" for s in steps.states):
        return None
    if any(q.row.kind != "pointwise" and q.row.name not in VIRTUAL or any(e.looped(v) for v in q.outputs) for q in step.eqns):
        return None
    size = sum(int(np.prod(q.outputs[0].shape)) for q in step.eqns)
    if size > MOST:
        return None
    makers = {v: q for q in steps.eqns for v in q.outputs}
    reach = {s.v: _reach(steps.eqns, s.v) for s in steps.states}
    if not _is_acyclic(steps.states, reach):
        return None
    stateful = set().union(*reach.values()) if reach else set()
    found = []
    for s in steps.states:
        if type(s.new) is not Var or s.new not in reach[s.v] or s.v.dtype.kind not in "fc":
            continue
        chain = _Chain(steps.e, s, makers, reach[s.v])
        if s.v.dtype.kind != "f" or not chain.is_affine(s.new, stateful):
            return None
        found.append(chain)
    return Powers(steps, found) if found else None


def _reach(eqns, start):
    """Values that depend on one."""
    found = {start}
    for q in eqns:
        if any(v in found for v in q.inputs if type(v) is Var):
            found.update(q.outputs)
    return found


def _is_acyclic(states, reach):
    """Whether no state depends on another one that depends on it."""
    left = list(states)
    while left:
        free = [s for s in left if not any(s.new in reach[t.v] for t in left if t is not s and type(s.new) is Var)]
        if not free:
            return False
        left = [s for s in left if s not in free]
    return True


class _Chain:
    """How the new value of a state follows from the old one: sums, differences and products with what is no state."""

    def __init__(self, e, s, makers, reach):
        self.e, self.s, self.makers, self.reach = e, s, makers, reach

    def is_affine(self, v, stateful):
        """Whether a value is affine in the state, with factors that depend on no state."""
        if v is self.s.v or not self._waits(v):
            return True
        q = self.makers[v]
        if v.dtype != self.s.v.dtype or v.shape != self.s.v.shape or not all(self.is_affine(x, stateful) for x in q.inputs):
            return False
        if q.row.name in PRODUCTS:
            only = [x for x in q.inputs if not self._waits(x)]
            return len(only) == 1 and only[0] not in stateful and (q.row.name == "multiply" or only[0] is q.inputs[1])
        return q.row.name in ("add", "subtract", "negative")

    def _waits(self, v):
        return type(v) is Var and v in self.reach

    def _elem(self, x, idx):
        return self.e.elem(x, self.e.align(x, idx))[0]

    def factor(self, v, idx):
        """Factor of the state in a value; None where it is 1."""
        b, q = self.e.b, self.makers.get(v)
        if v is self.s.v:
            return None
        waiting = [x for x in q.inputs if self._waits(x)]
        first = self.factor(waiting[0], idx)
        if q.row.name in PRODUCTS:
            other = next(self._elem(x, idx) for x in q.inputs if not self._waits(x))
            return other if first is None else scalar.op(b, "mul", first, other)
        if q.row.name == "add" and len(waiting) == 1 or q.row.name == "subtract" and len(waiting) == 1 and waiting[0] is q.inputs[0]:
            return first
        first = self._or_one(first)
        if len(waiting) == 1:
            return scalar.op(b, "neg", first)
        return scalar.op(b, "add" if q.row.name == "add" else "sub", first, self._or_one(self.factor(waiting[1], idx)))

    def _or_one(self, x):
        return self.e.constant(1, self.s.v.dtype)[0] if x is None else x

    def term(self, v, idx):
        """What a value is where the state is 0; None where that is 0."""
        b, q = self.e.b, self.makers.get(v)
        if v is self.s.v:
            return None
        if not self._waits(v):
            return self._elem(v, idx)
        parts = [self.term(x, idx) for x in q.inputs]
        if q.row.name == "negative":
            return None if parts[0] is None else scalar.op(b, "neg", parts[0])
        if q.row.name in PRODUCTS:
            return None if None in parts else scalar.op(b, "mul", *parts)
        if None in parts:
            left = parts[0] if parts[1] is None else parts[1]
            return scalar.op(b, "neg", left) if q.row.name == "subtract" and parts[0] is None and left is not None else left
        return scalar.op(b, "add" if q.row.name == "add" else "sub", *parts)


class Powers:
    """The loop over steps in blocks of `BLOCK`, then step by step."""

    def __init__(self, steps, chains):
        self.steps, self.chains = steps, chains
        self.e, self.b = steps.e, steps.e.b

    def run(self, lo, hi, carried, kept, written):
        """Emit the loops; arguments and result as in `Steps.run`."""
        b, steps = self.b, self.steps
        count = b.op("int_div", I64, b.sub(hi, lo), b.const(BLOCK))
        with b.range(b.const(0), count, carries=carried, written=written) as loop:
            first = b.add(lo, b.mul(loop.index, b.const(BLOCK)))
            loop.again(self._guarded(first, loop.carried, kept, written))
        with b.range(b.add(lo, b.mul(count, b.const(BLOCK))), hi, carries=loop.results, written=written) as rest:
            rest.again(steps.step(rest.index, rest.carried, kept)[0])
        return rest.results

    def _guarded(self, first, carried, kept, written):
        """A block by powers where no factor is larger than 1, in the plain order elsewhere."""
        b, steps = self.b, self.steps
        safe = self._safe(first, carried)
        if safe is None:
            return self._by_powers(first, carried, kept)
        b.open(fence=True, written=written)
        fast = self._by_powers(first, carried, kept)
        then = b.close()
        b.open(fence=True, written=written)
        with b.range(first, b.add(first, b.const(BLOCK)), carries=carried, written=written) as loop:
            loop.again(steps.step(loop.index, loop.carried, kept)[0])
        results = [b.new(x.dtype) for x in carried]
        b.statement("if", safe.id, then, b.close(),
                    tuple((r.id, r.dtype, x.id, y.id) for r, x, y in zip(results, fast, loop.results)))
        for slot in written:
            b.forget(slot)
        return results

    def _safe(self, first, carried):
        """Whether no factor of a block is larger than 1; None where all are 1."""
        b, steps, safe = self.b, self.steps, None
        for k in range(BLOCK):
            steps.define(b.add(first, b.const(k)), carried)
            self._forget()
            for chain in self.chains:
                for p in np.ndindex(*chain.s.v.shape):
                    a = chain.factor(chain.s.new, self._index(p))
                    if a is not None:
                        small = b.op("le", "b1", scalar.op(b, "abs", a), b.const(1.0, a.dtype))
                        safe = small if safe is None else b.op("and", "b1", safe, small)
        return safe

    def _forget(self):
        """Results of the step before are not those of this one."""
        for q in self.steps.eqns:
            for k, v in enumerate(q.outputs):
                self.e.define[v] = ("eqn", q, k)

    def _index(self, p):
        return tuple(self.b.const(int(i)) for i in p)

    def _by_powers(self, first, carried, kept):
        b, steps, made = self.b, self.steps, {}
        left, old = iter(carried), {}
        for s in steps.states:
            old[s.v] = {p: [next(left) for _ in range(2 if s.v.dtype.kind == "c" else 1)][0] for p in np.ndindex(*s.v.shape)}
        sums = list(left)
        carried = carried[:len(carried) - len(sums)] + [b.const(scalar._python(0, x.dtype), x.dtype) for x in sums]
        for k in range(BLOCK):
            given = {} if k == BLOCK - 1 else None
            carried = steps.step(b.add(first, b.const(k)), carried, kept, lambda: self._follow(made, old, given))[0]  # noqa: B023
        count = len(carried) - len(sums)
        return carried[:count] + [x for pair in zip(sums, carried[count:]) for x in self.e.plus(pair[:1], pair[1:])]

    def _follow(self, made, old, given):
        """Take a step into the factors and terms of a block; with the last one, say what the new states are."""
        self._forget()
        for chain in self.chains:
            table = {}
            for p in np.ndindex(*chain.s.v.shape):
                a, t = chain.factor(chain.s.new, self._index(p)), chain.term(chain.s.new, self._index(p))
                before = made.get((chain, p), (None, None))
                t = self._plus(self._times(a, before[1]), t)
                a = before[0] if a is None else self._times(a, before[0]) if before[0] is not None else a
                made[chain, p] = a, t
                if given is not None:
                    table[p] = (self._plus(self._times(a, old[chain.s.v][p]), t),)
            if given is not None:
                given[chain.s.new] = ("scalars", table)
        return given or {}

    def _times(self, a, x):
        return x if a is None or x is None else scalar.op(self.b, "mul", a, x)

    def _plus(self, x, y):
        return y if x is None else x if y is None else scalar.op(self.b, "add", x, y)


__all__ = ["Powers", "find"]
