"""From a loop to the program of a kernel.

A program has three parts, run by one function over a range of steps: *start* copies initial values to where
states live, *block* runs steps, *end* writes the final states. Between calls everything lives in the
workspace, so a loop may be run in several ranges of steps.
"""

import dataclasses

import numpy as np

from nscan.plan import dots, special
from nscan.plan.axes import Axes, join_loop
from nscan.plan.elements import Elements, Place
from nscan.plan.loops import Steps, register_points
from nscan.plan.nests import copy, workspace
from nscan.plan.params import Params
from nscan.plan.program import Builder
from nscan.tape import Var

# Size of the axis of steps while planning; the real number is an argument.
STEPS = 1 << 40
# Emitters of statements, entered by importing their modules.
FAMILIES = (dots, special)
INT = np.dtype("i8")
COUNT_VAR = Var((), INT, -1 << 31)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """The program of a kernel and what it has to be given.

    Attributes
    ----------
    start, block, end : tuple of statements
    keys : tuple
        Keys of the block of numbers, in order (see `nscan.plan.params`).
    slots : tuple of Slot
    numbers : tuple of int
    sizes : dict
        Size of each axis class, by number.
    operands : int
        Number of arrays that go in; outputs follow.
    eqns : tuple of Eqn
        Equations by their number in messages.
    """

    start: tuple
    block: tuple
    end: tuple
    keys: tuple
    slots: tuple
    numbers: tuple
    sizes: dict
    operands: int
    eqns: tuple

    @property
    def text(self):
        """What the emitted code depends on."""
        return repr((self.start, self.block, self.end))


class _Planner:
    def __init__(self, loop):
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
        rows = loop.split_step_outputs(step.outputs)[2:4]
        self.rows = [new((STEPS, *v.shape), v.dtype) for v in (*rows[0], *rows[1])]
        self.finals = [new(v.shape, v.dtype) for v in (*states, *sums)]
        self.inputs = (self.n, *self.seqs, *self.states, *self.sums, *self.consts)
        self.axes = Axes()
        for v in (*self.inputs, *self.rows, *self.finals):
            self.axes.new(v)
        join_loop(self.axes, dataclasses.replace(loop, rows=loop.rows + loop.hidden, hidden=0), self.inputs,
                  (*self.rows, *self.finals, *([new((), INT)] if loop.stop else [])))
        self.classes = self.axes.finish()
        self.params = Params()
        self.eqns = tuple(numbered(step))

    def elements(self):
        """Make the elements of a part, with operands and outputs defined."""
        b = Builder()
        e = Elements(b, self.axes, self.params)
        e.numbers = {q: k for k, q in enumerate(self.eqns)}
        for k, v in enumerate(self.inputs[1:]):
            strides = tuple(self.params.get(b, ("stride", k, axis)) for axis in range(len(v.shape)))
            e.define[v] = Place(("in", k), self.params.get(b, ("address", k)), strides, v.dtype)
        for v in (*self.states, *self.sums):
            e.define[v] = contiguous(e, e.define[v], v)
        e.define[self.n] = ("scalars", {(): (self.params.get(b, ("steps",)),)})
        for v, x in zip(self.loop.split_step_inputs(self.loop.step.inputs)[3], self.consts):
            e.define[v] = e.define[x]
        return e

    def out(self, e, k, v):
        """Place of an output array: C order."""
        b = e.b
        number = len(self.inputs) - 1 + k
        strides, step = [], b.const(v.dtype.itemsize)
        for c in reversed(self.axes.get(v)):
            strides.append(step)
            step = b.mul(step, b.const(1) if c.size == STEPS else e.size(c))
        return Place(("out", k), self.params.get(b, ("address", number)), tuple(reversed(strides)), v.dtype, True)

    def steps(self, e):
        """Make the steps of the loop."""
        rows = [self.out(e, k, v) for k, v in enumerate(self.rows)]
        n = e.elem(self.n, ())[0]
        return Steps(e, self.loop, n, [e.define[v] for v in self.seqs], rows)


def plan(loop):
    """Plan a loop as one kernel.

    Parameters
    ----------
    loop : Loop
        Prepared: no residuals and no adjoint equations inside (see `nscan.plan.memory.prepare`).

    Returns
    -------
    Program
    """
    p = _Planner(loop)
    parts = [part(p) for part in (_start, _block, _end)]
    keys = sorted(p.params.keys, key=p.params.keys.get)
    sizes = {c.number: c.size for c in p.classes if type(c.size) is int}
    return Program(*parts, tuple(keys), tuple(p.params.slots), tuple(p.params.numbers), sizes, len(p.inputs) - 1, p.eqns)


class _Carried:
    """The memory where what is kept in registers waits between calls."""

    def __init__(self, e, steps):
        self.e = e
        kept = [s for s in (*steps.states, *steps.sums) if s.how == "registers"]
        self.places = [workspace(e, s.v) for s in kept]
        self.kept = kept
        self.count = workspace(e, COUNT_VAR) if steps.stop is not None else None

    def store(self, values):
        """Store what is kept in registers."""
        values = iter(values)
        for s, place in zip(self.kept, self.places):
            for p in register_points(s.v):
                idx = tuple(self.e.b.const(int(i)) for i in p)
                self.e.store(place, idx, tuple(next(values) for _ in range(2 if s.v.dtype.kind == "c" else 1)))

    def load(self):
        """Load it again."""
        return [part for s, place in zip(self.kept, self.places) for p in register_points(s.v)
                for part in self.e.load(place, tuple(self.e.b.const(int(i)) for i in p))]


def _begin(p):
    """Make elements, steps and carried memory of a part; slots get the same numbers in every part."""
    e = p.elements()
    before = len(p.params.slots)
    if hasattr(p, "first_slots"):
        p.params.slots, kept = p.params.slots[:0], p.params.slots
    steps = p.steps(e)
    carried = _Carried(e, steps)
    if hasattr(p, "first_slots"):
        p.params.slots = kept
    else:
        p.first_slots = len(p.params.slots) - before
    return e, steps, carried


def _start(p):
    e, steps, carried = _begin(p)
    carried.store(steps.start(p.states, p.sums))
    if carried.count is not None:
        e.store(carried.count, (), (e.b.const(0),))
    return tuple(e.b.scopes[0].statements)


def _block(p):
    e, steps, carried = _begin(p)
    b = e.b
    lo, hi = b.op("arg", "i8", b.const(0)), b.op("arg", "i8", b.const(1))
    _rows_start(e, steps, p)
    watch(e, steps)
    values, done = steps.run(lo, hi, carried.load())
    carried.store(values)
    if carried.count is not None:
        e.store(carried.count, (), (done,))
    return tuple(b.scopes[0].statements)


def _rows_start(e, steps, p):
    """Say where states that live in rows begin: at their initial values."""
    for s, init in zip(steps.states, p.states):
        if s.how == "rows":
            s.place = e.define[init]


def contiguous(e, place, v):
    """Return the place of an operand that the caller hands over in C order."""
    strides, step = [], e.b.const(v.dtype.itemsize)
    for c in reversed(e.axes.get(v)):
        strides.append(step)
        step = e.b.mul(step, e.size(c))
    return Place(place.slot, place.base, tuple(reversed(strides)), v.dtype, True)


def watch(e, steps):
    """Let messages know the step of the outermost loop."""
    inner = steps.step

    def step(t, carried):
        e.step = t
        return inner(t, carried)
    steps.step = step


def _end(p):
    e, steps, carried = _begin(p)
    _rows_start(e, steps, p)
    n = e.elem(p.n, ())[0]
    if carried.count is not None:
        n = e.load(carried.count, ())[0]
    hows = steps.finals(carried.load(), n)
    first = len(p.rows)
    for k, (v, final, how) in enumerate(zip((*p.loop.split_step_inputs(p.loop.step.inputs)[1], *p.loop.split_step_inputs(
            p.loop.step.inputs)[2]), p.finals, hows)):
        e.define[v] = how
        store_value(e, v, p.out(e, first + k, final))
    if carried.count is not None:
        place = Place(("out", "count"), p.params.get(e.b, ("address", len(p.inputs) - 1 + first + len(p.finals))), (), INT)
        e.store(place, (), (n,))
    return tuple(e.b.scopes[0].statements)


def store_value(e, v, place):
    """Store a whole value."""
    if e.looped(v):
        return copy(e, v, place)
    for p in register_points(v):
        idx = tuple(e.b.const(int(i)) for i in p)
        e.store(place, idx, e.elem(v, idx))
    return None


def numbered(tape):
    """All equations of a tape and of the tapes inside it, in order."""
    for q in tape.eqns:
        yield q
        for value in q.params.values():
            for inner in getattr(value, "tapes", tuple)():
                yield from numbered(inner)
