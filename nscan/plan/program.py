"""The loop program: what a kernel does, as a small tree over scalar values and slots of memory.

Statements (tuples, so that a program is printed, hashed and stored as it is):

==================================================  =====================================================
statement                                           meaning
==================================================  =====================================================
("let", v, op, dtype, args)                         v = op(args); pure
("load", v, dtype, slot, address)                   v = memory at a byte address
("store", dtype, slot, address, value)              memory = value
("range", i, lo, hi, width, carries, body, yields)  for i in range(lo, hi); `carries` are pairs (v, initial
                                                    value), `yields` their values for the next round; width
                                                    1, or the number of lanes that run side by side
("fold", v, op, dtype, value)                       combine the lanes of a carried value, in a fixed tree
("if", condition, then, other, results)             branches; `results`: (v, dtype, then value, other value)
("while", carries, body, yields)                    repeat while the first carried value (a b1) is true
("call", name, results, args)                       a library routine (BLAS, LAPACK, helpers) by address
("fail", condition, reason, equation, step, a, b)   record the first failure, with two numbers for the message
("tick", address, k)                                add the time since the last tick to counter k of the clock at an
                                                    address (k = -1: to none)
==================================================  =====================================================

Values are numbered; an operand is a number, or a constant ``("c", dtype, value)``. Addresses are int64 values.
Memory belongs to slots; two slots never overlap.
"""

import json
import math

import numpy as np

I64 = "i8"
# Codes of failures in status words.
REASONS = {"index": 1, "singular": 2, "definite": 3, "size": 4, "power": 5, "grow": 6, "negative": 7, "steps": 8}


class Value:
    """A scalar of the program while it is built: number, dtype, the scope it is defined in."""

    __slots__ = ("id", "dtype", "level")

    def __init__(self, id, dtype, level):
        self.id = id
        self.dtype = dtype
        self.level = level

    def __repr__(self):
        return f"v{self.id}"


class Const:
    """A constant of the code."""

    __slots__ = ("value", "dtype")
    level = 0

    def __init__(self, value, dtype):
        self.value = value
        self.dtype = dtype

    @property
    def id(self):
        """Its form as an operand."""
        return ("c", self.dtype, constant_text(self.value))

    def __repr__(self):
        return f"{self.value}"


ZERO = Const(0, I64)


def constant_text(value):
    """Write a constant so that it can be read back exactly."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    value = float(value)
    return value if math.isfinite(value) else repr(value)


def program_text(statements):
    """Write statements as text: JSON, which is read ten times faster than a literal of Python."""
    return json.dumps(statements, separators=(",", ":"))


class Scope:
    """An open block of statements.

    Attributes
    ----------
    fence : bool
        Nothing is hoisted out of it (a branch, a loop that may run zero times and holds loads).
    loads : dict
        Keys of `memo` that are loads, by slot.
    """

    __slots__ = ("statements", "memo", "level", "fence", "written", "extra", "loads")

    def __init__(self, level, fence):
        self.statements = []
        self.memo = {}
        self.level = level
        self.fence = fence
        self.written = set()
        self.extra = {}
        self.loads = {}


class Builder:
    """Builds a program: equal operations are made once, each in the outermost scope where it can stand."""

    def __init__(self):
        self.count = 0
        self.scopes = [Scope(0, True)]
        self.constants = {}

    # ------------------------------------------------------------------------------------------- values
    def new(self, dtype, level=None):
        """Make a fresh value."""
        value = Value(self.count, dtype, len(self.scopes) - 1 if level is None else level)
        self.count += 1
        return value

    def const(self, value, dtype=I64):
        """Make a constant."""
        if type(value) is float and value != value:
            key = (dtype, "nan")
        else:
            key = (dtype, type(value), value, math.copysign(1, value) if isinstance(value, float) else 0)
        found = self.constants.get(key)
        if found is None:
            found = self.constants[key] = Const(value, dtype)
        return found

    def _level(self, args):
        level = 0
        for a in args:
            if a.level > level:
                level = a.level
        for k in range(len(self.scopes) - 1, level, -1):
            if self.scopes[k].fence:
                return k
        return level

    def op(self, name, dtype, *args):
        """Apply a pure scalar operation."""
        level = self._level(args)
        key = (name, dtype, *[a.id for a in args])
        for k in range(level, len(self.scopes)):
            found = self.scopes[k].memo.get(key)
            if found is not None:
                return found
        return self._append(level, key, dtype, ("let", name, dtype, tuple([a.id for a in args])))

    def _append(self, level, key, dtype, statement):
        scope = self.scopes[level]
        value = self.new(dtype, level)
        scope.memo[key] = value
        scope.statements.append((statement[0], value.id, *statement[1:]))
        return value

    def load(self, dtype, slot, address):
        """Load from a slot; hoisted only over scopes that do not write to it."""
        level = self._level((address,))
        for k in range(len(self.scopes) - 1, level, -1):
            if slot in self.scopes[k].written:
                level = k
                break
        key = ("load", dtype, slot, address.id)
        for k in range(level, len(self.scopes)):
            found = self.scopes[k].memo.get(key)
            if found is not None:
                return found
        self.scopes[level].loads.setdefault(slot, []).append(key)
        return self._append(level, key, dtype, ("load", dtype, slot, address.id))

    def store(self, slot, address, value):
        """Store to a slot."""
        self.wrote(slot)
        self.scopes[-1].statements.append(("store", value.dtype, slot, address.id, value.id))

    def wrote(self, slot):
        """Note that a slot is written inside of every open scope; what was known about its content is void."""
        for scope in self.scopes:
            scope.written.add(slot)
        self.forget(slot)

    def forget(self, slot):
        """Drop what is known about the content of a slot."""
        for scope in self.scopes:
            for key in scope.loads.pop(slot, ()):
                scope.memo.pop(key, None)

    def statement(self, *parts):
        """Append a statement that is no value."""
        self.scopes[-1].statements.append(parts)

    # --------------------------------------------------------------------------------- int64 arithmetic
    def add(self, a, b):
        """Sum of int64 values."""
        if type(a) is Const and type(b) is Const:
            return self.const(a.value + b.value)
        if type(a) is Const and a.value == 0:
            return b
        if type(b) is Const and b.value == 0:
            return a
        return self.op("add", I64, a, b)

    def sub(self, a, b):
        """Difference of int64 values."""
        if type(b) is Const:
            return self.add(a, self.const(-b.value))
        if a is b:
            return self.const(0)
        return self.op("sub", I64, a, b)

    def mul(self, a, b):
        """Product of int64 values."""
        if type(a) is Const and type(b) is Const:
            return self.const(a.value * b.value)
        for x, y in ((a, b), (b, a)):
            if type(x) is Const and x.value == 1:
                return y
            if type(x) is Const and x.value == 0:
                return x
        return self.op("mul", I64, a, b)

    # --------------------------------------------------------------------------------------- structure
    def open(self, fence=False, written=()):
        """Open a scope; what it will write is known beforehand, so that loads stay inside."""
        scope = Scope(len(self.scopes), fence)
        scope.written.update(written)
        self.scopes.append(scope)
        return scope

    def close(self):
        """Close the innermost scope and return its statements."""
        return tuple(self.scopes.pop().statements)

    def repeat(self, alive, carries, written=()):
        """Open a loop that runs while a carried value is true; see `While_`."""
        return While_(self, alive, carries, written)

    def range(self, lo, hi, width=1, carries=(), written=(), fence=False):
        """Open a loop; see `Loop_`."""
        return Loop_(self, lo, hi, width, carries, written, fence)


class Loop_:
    """A loop that is being built, as a context: ``with b.range(lo, hi) as loop: ... loop.index``.

    Attributes
    ----------
    index : Value
    carried : list of Value
        Loop-carried values inside the loop.
    results : list of Value
        Their last values, after the loop.
    """

    def __init__(self, builder, lo, hi, width, carries, written, fence):
        self.b, self.lo, self.hi, self.width = builder, lo, hi, width
        self.initial = list(carries)
        self.written = written
        self.fence = fence
        self.yields = None

    def __enter__(self):
        b = self.b
        b.open(self.fence, self.written)
        self.index = b.new(I64)
        self.carried = [b.new(v.dtype) for v in self.initial]
        return self

    def again(self, values):
        """Say which values the carried ones take in the next round."""
        self.yields = list(values)

    def __exit__(self, kind, error, traceback):
        b = self.b
        body = b.close()
        if kind is not None:
            return False
        yields = self.yields if self.yields is not None else []
        assert len(yields) == len(self.initial)
        self.results = [b.new(v.dtype) for v in self.initial]
        carries = tuple((c.id, v.id, c.dtype, r.id) for c, v, r in zip(self.carried, self.initial, self.results))
        b.statement("range", self.index.id, self.lo.id, self.hi.id, self.width, carries, body, tuple(y.id for y in yields))
        for slot in self.written:
            b.forget(slot)
        return False


class While_:
    """A loop without a known number of rounds, being built.

    Attributes
    ----------
    carried, results : list of Value
        Loop-carried values inside, and their last values after the loop (without the flag).
    """

    def __init__(self, builder, alive, carries, written):
        self.b, self.alive, self.initial, self.written = builder, alive, list(carries), written

    def __enter__(self):
        b = self.b
        b.open(False, self.written)
        self.flag = b.new("b1")
        self.carried = [b.new(v.dtype) for v in self.initial]
        return self

    def again(self, alive, values):
        """Say whether there is a next round and which values it takes."""
        self.more, self.yields = alive, list(values)

    def __exit__(self, kind, error, traceback):
        b = self.b
        body = b.close()
        if kind is not None:
            return False
        self.results = [b.new(v.dtype) for v in self.initial]
        flag = b.new("b1")
        carries = ((self.flag.id, self.alive.id, "b1", flag.id),
                   *[(c.id, v.id, c.dtype, r.id) for c, v, r in zip(self.carried, self.initial, self.results)])
        b.statement("while", carries, body, (self.more.id, *[y.id for y in self.yields]))
        for slot in self.written:
            b.forget(slot)
        return False
