"""Tape to tape: equal equations once, dead ones never, algebra that changes no bit, fused multiply-adds.

Runs once for each structure, before differentiation, so that whatever it decides about rounding is decided for
the forward and the backward pass alike.
"""

import dataclasses

import numpy as np

from nscan.primitive import TABLE
from nscan.tape import Cond, Eqn, Lit, Loop, Tape, Var

MAY_FAIL = {"same_size"}


def optimise(tape):
    """Simplify a tape.

    Parameters
    ----------
    tape : Tape

    Returns
    -------
    Tape
        With the same inputs, and outputs of the same types.
    """
    return remove_dead(_Simplifier(tape).run())


def optimise_loop(loop):
    """Simplify the step of a loop; remembered for each structure."""
    key = loop.key
    found = _LOOPS.get(key)
    if found is None:
        found = _LOOPS[key] = dataclasses.replace(loop, step=optimise(loop.step))
    return found


_LOOPS = {}


def remove_dead(tape):
    """Drop equations that no output depends on."""
    needed = {v for v in tape.outputs if type(v) is Var}
    kept = []
    for q in reversed(tape.eqns):
        if any(v in needed for v in q.outputs) or q.row.name in MAY_FAIL:
            kept.append(q)
            needed.update(v for v in q.inputs if type(v) is Var)
            needed.update(d for v in (*q.inputs, *q.outputs) for d in v.shape if type(d) is Var)
    return Tape(tape.inputs, tuple(reversed(kept)), tape.outputs)


class _Simplifier:
    """Rebuilds a tape equation by equation."""

    def __init__(self, tape):
        self.tape = tape
        self.env = {}
        self.maker = {}
        self.seen = {}
        self.eqns = []
        self.count = 1 + max((v.id for q in tape.eqns for v in q.outputs), default=0) + len(tape.inputs)

    def run(self):
        """Return the simplified tape."""
        for v in self.tape.inputs:
            self.env[v] = v
        for q in self.tape.eqns:
            self._equation(q)
        self._fuse()
        return Tape(self.tape.inputs, tuple(self.eqns), tuple(self.read(v) for v in self.tape.outputs))

    def read(self, v):
        """Value that stands for an old one."""
        return v if type(v) is Lit else self.env[v]

    def new(self, v):
        """Make the Var of a kept output."""
        self.count += 1
        return Var(tuple(d if type(d) is int else self.env.get(d, d) for d in v.shape), v.dtype, self.count)

    def _equation(self, q):
        inputs = tuple(self.read(v) for v in q.inputs)
        params = {k: _inside(p) for k, p in q.params.items()}
        found = simplify(q, inputs, params, self.maker)
        if found is not None and _same_type(found, q.outputs[0], self.env):
            self.env[q.outputs[0]] = found
            return
        key = (q.row.name, tuple(_operand(v) for v in inputs), tuple((k, _hashable(p)) for k, p in params.items()),
               tuple(self.env.get(d, d) if type(d) is Var else d for d in q.outputs[0].shape) if q.outputs else ())
        known = self.seen.get(key)
        if known is not None:
            self.env.update(zip(q.outputs, known))
            return
        for v in reversed(q.outputs):
            self.env[v] = self.new(v)
        outputs = tuple(self.env[v] for v in q.outputs)
        made = Eqn(q.row, inputs, outputs, params, q.where)
        self.eqns.append(made)
        self.seen[key] = outputs
        self.maker.update((v, made) for v in outputs)

    def _fuse(self):
        """Turn a product that only one sum reads into a fused multiply-add."""
        uses = {}
        for q in self.eqns:
            for v in q.inputs:
                if type(v) is Var:
                    uses[v] = uses.get(v, 0) + 1
        for v in self.tape.outputs:
            v = self.read(v)
            if type(v) is Var:
                uses[v] = uses.get(v, 0) + 2
        out, gone = [], set()
        for q in self.eqns:
            product = self._product(q, uses)
            if product is None:
                out.append(q)
                continue
            k, p, negative = product
            gone.add(p)
            out.append(Eqn(TABLE["fma" if not negative else "fnma"], (*p.inputs, q.inputs[1 - k]), q.outputs, {}, q.where))
        self.eqns = [q for q in out if q not in gone]

    def _product(self, q, uses):
        """Return (operand, product equation, whether it is subtracted) where a sum can take in a product."""
        if q.row.name not in ("add", "subtract") or q.outputs[0].dtype.kind != "f":
            return None
        for k in (1, 0):
            v = q.inputs[k]
            p = self.maker.get(v) if type(v) is Var else None
            if p is None or p.row.name != "multiply" or uses.get(v) != 1 or q.row.name == "subtract" and k == 0:
                continue
            if v.shape == q.outputs[0].shape:
                return k, p, q.row.name == "subtract"
        return None


def _inside(p):
    """Simplify the tapes in a parameter."""
    if isinstance(p, Loop):
        return optimise_loop(p)
    if isinstance(p, Cond):
        return dataclasses.replace(p, then=optimise(p.then), other=optimise(p.other))
    return p


def _operand(v):
    return v if type(v) is Var else ("lit", v.dtype, repr(v.value))


def _hashable(p):
    return p.key if hasattr(p, "key") else p


def _same_type(found, v, env):
    shape = tuple(env.get(d, d) if type(d) is Var else d for d in v.shape)
    return tuple(found.shape) == shape and found.dtype == v.dtype


def is_number(v, value, maker):
    """Whether a value is a constant number in every element."""
    if type(v) is Lit:
        return bool(v.value == value) and not (value == 0 and v.dtype.kind == "f" and np.signbit(v.value))
    q = maker.get(v)
    if q is not None and q.row.name in ("fill", "broadcast_to", "reshape"):
        return is_number(q.inputs[0], value, maker)
    return False


def simplify(q, inputs, params, maker):
    """Return an existing value that equals an equation's output bit by bit (but for the sign of zero), or None."""
    name = q.row.name
    x = inputs[0] if inputs else None
    before = maker.get(x) if type(x) is Var else None
    if name in ("add", "subtract", "multiply", "divide"):
        return _arithmetic(name, inputs, maker)
    if name in ("positive", "copy"):
        return x
    if name == "negative" and before is not None and before.row.name == "negative":
        return before.inputs[0]
    if name in ("conjugate", "real") and x.dtype.kind != "c":
        return x
    if name == "cast" and x.dtype == params["dtype"]:
        return x
    if name == "transpose":
        return _transpose(x, params, before)
    if name in ("reshape", "broadcast_to") and tuple(x.shape) == tuple(q.outputs[0].shape):
        return x
    if name == "select" and inputs[1] is inputs[2]:
        return inputs[1]
    return None


def _arithmetic(name, inputs, maker):
    a, b = inputs
    neutral = 0 if name in ("add", "subtract") else 1
    if is_number(b, neutral, maker):
        return a
    if name in ("add", "multiply") and is_number(a, neutral, maker):
        return b
    return None


def _transpose(x, params, before):
    perm = params["perm"]
    if perm == tuple(range(len(perm))):
        return x
    if before is not None and before.row.name == "transpose":
        first = before.params["perm"]
        if tuple(first[k] for k in perm) == tuple(range(len(perm))):
            return before.inputs[0]
    return None
