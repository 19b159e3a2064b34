"""From a loop to the program of a kernel.

A program has four parts, run by one function over a range of steps and lanes: *once* computes, for all parts of
the lanes together, what is invariant; *start* copies initial values to where states live; *block* runs a block of
steps (what can be done for many steps beforehand, the sequential part, what can be done for many steps afterwards);
*end* writes the final states. Between calls everything lives in the workspace, so a loop runs in as many blocks as
it pleases.
"""

import dataclasses
import math

import numpy as np

from nscan.plan import dots, scalar, special
from nscan.plan.axes import AxisClass
from nscan.plan.body import Body, copy
from nscan.plan.clock import Clock, NoClock
from nscan.plan.dead import live
from nscan.plan.dots import plan_panels
from nscan.plan.elements import Elements
from nscan.plan.kinds import special_kind
from nscan.plan.lanes import lane_block, work_of_step
from nscan.plan.live import ragged, suits
from nscan.plan.loops import Steps, register_points, row_of_state
from nscan.plan.operands import STEPS, Operands
from nscan.plan.params import Params
from nscan.plan.program import I64, Builder, program_text
from nscan.plan.scatter import find_scatters
from nscan.plan.stages import split
from nscan.plan.storage import Place, Rows, block_rows, part_number, row_major, workspace
from nscan.plan.strips import make_panels
from nscan.tape import Var

# Emitters of statements, entered by importing their modules.
FAMILIES = (dots, special)
INT = np.dtype("i8")


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """The program of a kernel and what it has to be given.

    Attributes
    ----------
    once, start, block, end : tuple of statements
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
    stages : Stages
    lane : int
        Size of the axis that threads may split; 0 if there is none.
    lane_block : int
        Lanes of a part.
    lane_sums : frozenset of int
        Sums that have the axis themselves.
    led : dict
        Number of a row to the number of the state whose initial value lies before its first row.
    before : dict
        Number of a row that is not stored, since it is the row before of another one: row to row.
    work : int
        Rough cost of a step (all lanes), in multiplications.
    pace : int
        Steps after a whole number of which a run may pause without a change of rounding.
    step_bytes : int
        Bytes that the terms of sums which are added up block by block read in a step.
    marks : tuple of Mark
        Counters of the clock, in order; empty unless the loop is profiled.
    scatters : dict
        Sums that are only added to at indexed places: number to equations.
    live : Ragged or None
        Where each step runs over the lanes that are live alone.
    """

    once: tuple
    start: tuple
    block: tuple
    end: tuple
    keys: tuple
    slots: tuple
    numbers: tuple
    sizes: dict
    operands: int
    eqns: tuple
    stages: object
    lane: int
    lane_block: int
    lane_sums: frozenset
    led: dict
    before: dict
    work: int
    pace: int
    step_bytes: int
    scatters: dict
    marks: tuple = ()
    live: object = None

    @property
    def text(self):
        """What the emitted code depends on."""
        return program_text((self.once, self.start, self.block, self.end))


class _Planner(Operands):
    """What a kernel is given, the stages of its step, the panels of its products."""

    def __init__(self, loop, features, other, alike, live):
        super().__init__(loop, alike, live.seeds if live else ())
        self.pace, self.powers, self.live = 1, other is None or other.pace > 1, live
        self.strips = "cuda" not in features
        self.product_bytes = 128 if "avx512f" in features else 64
        step, states = loop.step, self.state_vars
        self.params = Params()
        self.clock = Clock(self.axes) if "profile" in loop.watch else NoClock()
        self.eqns = tuple(numbered(step))
        self.stages = split(Elements(Builder(), self.axes, self.params), loop, other and other.stages.late)
        self.time = AxisClass(STEPS)
        alone = not loop.states and not loop.stop
        self.scatters = find_scatters([*self.stages.core_terms, *self.stages.post_terms]) if alone else {}
        self.once = not any(self.lane in self.axes.get(v) for q in self.stages.invariant for v in q.outputs)
        self.products = self._products()
        self.led = self._led()
        self.before = {k: j for k, v in enumerate(self.row_vars) for j, i in self.led.items() if v is states[i] and k >= loop.rows}

    def _products(self):
        """Products with a constant operand that is worth panels: equation, form, number of the operand."""
        e, stages = self.elements(), self.stages
        found = []
        for eqns, batched in ((stages.pre, True), (stages.core, False), (stages.post, True)):
            for q in eqns:
                plan = plan_panels(e, q, batched, stages.varying) if special_kind(e, q) == "dot" else None
                if plan is not None:
                    found.append((q, *plan))
        return found

    def _led(self):
        """Rows before which the initial value of a state is to lie: row to state."""
        led = {}
        news, late = self.loop.split_step_outputs(self.loop.step.outputs)[0], self.stages.from_core
        for i, (v, new) in enumerate(zip(self.state_vars, news)):
            j = row_of_state(new, self.row_vars[:self.loop.rows], self.state_vars)
            if j >= 0 and j not in led and j not in self.stages.post_rows and (
                    self._is_looped(v) or v in self.row_vars[self.loop.rows:] or v in late):
                led[j] = i
        return led

    def _is_looped(self, v):
        return any(not c.unrolled for c in self.axes.get(v))

    def elements(self):
        """Make the elements of a part, with operands defined."""
        b = Builder()
        e = Elements(b, self.axes, self.params)
        e.numbers = {q: k for k, q in enumerate(self.eqns)}
        e.clock = self.clock
        e.lane, e.product_bytes, e.outers, e.strips = self.lane, self.product_bytes, self.stages.outers, self.strips
        e.ragged = self.live is not None
        for k, v in enumerate(self.inputs[1:]):
            strides = tuple(self.params.get(b, ("stride", k, axis)) for axis in range(len(v.shape)))
            base = self.from_lane(e, v, self.params.get(b, ("address", k)), strides)
            e.define[v] = Place(("in", k), base, strides, v.dtype)
        e.define[self.n] = ("scalars", {(): (self.params.get(b, ("steps",)),)})
        for v, x in zip(self.const_vars, self.consts):
            e.define[v] = e.define[x]
        for q in self.loop.step.eqns:
            for k, v in enumerate(q.outputs):
                e.define[v] = ("eqn", q, k)
        return e

    def from_lane(self, e, v, base, strides):
        """Address of the first lane of a part."""
        for c, stride in zip(self.axes.get(v), strides):
            if c is self.lane:
                base = e.b.add(base, e.b.mul(e.b.op("arg", I64, e.b.const(2)), stride))
        return base

    def whole(self, e, v, slot, address):
        """Place of an array of the caller's that is in C order."""
        strides = row_major(e, self.axes.get(v), v.dtype, e.whole_size)
        gapless = self.lane is None or self.lane not in [c for c in self.axes.get(v) if c.size != STEPS][1:]
        return Place(slot, self.from_lane(e, v, address, strides), strides, v.dtype, gapless)

    def out(self, e, k, v):
        """Place of an output array."""
        return self.whole(e, v, ("out", k), self.params.get(e.b, ("address", len(self.inputs) - 1 + k)))

    def partial(self, e, k, v):
        """Place of a sum in this part of the lanes or steps: parts lie at a distance that the caller gives (or add to one array)."""
        place = self.out(e, k, v)
        distance = self.distance(e, k)
        if k - len(self.rows) - len(self.states) in self.scatters:
            distance = scalar.largest(e.b, distance, e.b.const(0))
        return dataclasses.replace(place, base=e.b.add(place.base, e.b.mul(part_number(e.b), distance)))

    def distance(self, e, k):
        """Bytes between the parts of output k; -1 where all parts add to one array that the caller has started."""
        return self.params.get(e.b, ("partial", len(self.inputs) - 1 + k))

    def by_step(self, e, place):
        """Rows of a place whose first axis is the step."""
        b, stride, base = e.b, place.strides[0], place.base
        if self.loop.reverse:
            base = b.add(base, b.mul(b.sub(e.elem(self.n, ())[0], b.const(1)), stride))
            stride = b.sub(b.const(0), stride)
        return Rows(Place(place.slot, base, place.strides[1:], place.dtype, place.contiguous), stride)


class _Part:
    """What every part of a program starts from: elements, the steps, the memory that lives between calls."""

    def __init__(self, p):
        self.p = p
        self.e = e = p.elements()
        slots = p.params.slots
        again = hasattr(p, "shared_slots")
        if again:
            p.params.slots = []
        stages = p.stages
        self.outs = [p.out(e, k, v) for k, v in enumerate(p.rows)]
        rows = [None if k in stages.post_rows or k in p.before else out for k, out in enumerate(self.outs)]
        n = e.elem(p.n, ())[0]
        sources = [p.by_step(e, e.define[v]) for v in p.seqs]
        first = len(p.rows)
        self.homes = [p.out(e, first + k, v) for k, v in enumerate(p.finals[:len(p.states)])]
        self.homes += [p.partial(e, first + k, v) for k, v in enumerate(p.finals) if k >= len(p.states)]
        led = {j: p.state_vars[i] for j, i in p.led.items()}
        started = {k: e.b.op("lt", "b1", p.distance(e, first + len(p.states) + k), e.b.const(0)) for k in p.scatters}
        self.steps = Steps(e, p.loop, n, sources, rows, stages, self.homes, led, started)
        self.invariant = [workspace(e, v, p.once) for v in stages.from_invariant]
        e.panels = self._panels(n)
        self.pre = [block_rows(e, v) for v in stages.from_pre]
        self.core = [self._core_rows(v) for v in stages.from_core]
        kept = [s for s in (*self.steps.states, *self.steps.sums) if s.how == "registers"]
        self.carried = [(s, workspace(e, s.v)) for s in kept]
        self.count = self._counter() if self.steps.stop is not None else None
        if again:
            p.params.slots = slots
        p.shared_slots = True

    def _panels(self, n):
        """Panels of products; those that read a constant in the same way share them."""
        made, panels = {}, {}
        for q, form, which in self.p.products:
            x, labels = q.inputs[which], tuple(q.params["lb" if which else "la"])
            key = x, tuple(labels.index(k) if k in labels else None for k in (form.lane, *form.summed)), form.width
            if key not in made:
                made[key] = make_panels(self.e, form, x, labels, self.p.once, n)
            panels[q] = made[key].renamed(form, labels)
        self.made = list(made.values())
        return panels

    def _counter(self):
        """Where a loop that may stop by itself counts: the steps done, as ``~steps`` once it has stopped."""
        b = self.e.b
        address = b.add(self.p.params.get(b, ("counter",)), b.mul(part_number(b), b.const(8)))
        return Place(("out", "count"), address, (), INT)

    def _core_rows(self, v):
        """Where a result of the core waits for post: in the rows that are stored anyway, or in a buffer."""
        p, b = self.p, self.e.b
        for k, row in enumerate(p.row_vars):
            if row is v and k not in p.stages.post_rows and k not in p.before:
                return p.by_step(self.e, self.outs[k])
        for j, i in p.led.items():
            if p.state_vars[i] is v:
                rows = p.by_step(self.e, self.outs[j])
                return Rows(dataclasses.replace(rows.first, base=b.sub(rows.first.base, rows.stride)), rows.stride)
        return block_rows(self.e, v)

    def define_invariant(self):
        """Say where invariant results lie."""
        for v, place in zip(self.p.stages.from_invariant, self.invariant):
            self.e.define[v] = place

    def store_carried(self, values):
        """Store what is kept in registers."""
        values = iter(values)
        for s, place in self.carried:
            for p in register_points(s.v):
                idx = tuple(self.e.b.const(int(i)) for i in p)
                self.e.store(place, idx, tuple(next(values) for _ in range(2 if s.v.dtype.kind == "c" else 1)))

    def load_carried(self):
        """Load it again."""
        return [part for s, place in self.carried for p in register_points(s.v)
                for part in self.e.load(place, tuple(self.e.b.const(int(i)) for i in p))]

    def statements(self):
        """What was built."""
        return live(self.e.b.scopes[0].statements)


def plan(loop, features=(), other=None, alike=None, live=None):
    """Plan a loop as one kernel.

    Parameters
    ----------
    loop : Loop
        Prepared: no residuals and no adjoint equations inside (see `nscan.plan.memory.prepare`).
    features : tuple of str
        What the host can do, as far as it decides sizes of tiles (which change no bit of a result).
    other : Program, optional
        One whose steps and sums go in the same order: affine states in blocks of steps, sums step by step or afterwards.
    alike : dict, optional
        See `nscan.plan.operands.Operands`.
    live : Live, optional
        Where the loop is its, for steps that run over the lanes that are live.

    Returns
    -------
    Program or None
        None where `live` is given and the lanes do not stand alone.
    """
    p = _Planner(loop, features, other, alike, live)
    if live and not suits(p):
        return None
    parts = [part(p) for part in (_once, _start, _block, _end)]
    keys = sorted(p.params.keys, key=p.params.keys.get)
    sizes = {c.number: c.size for c in p.classes if type(c.size) is int}
    lane = 0 if p.lane is None else p.lane.size
    block = 0 if p.lane is None else lane_block(p.axes, loop, p.lane)
    return Program(*parts, tuple(keys), tuple(p.params.slots), tuple(p.params.numbers), sizes, len(p.inputs) - 1, p.eqns, p.stages,
                   lane, block, frozenset(k for k, v in enumerate(p.sum_vars) if p.lane in p.axes.get(v)),
                   p.led, p.before, work_of_step(p.axes, loop), p.pace, _term_bytes(p.stages), p.scatters, tuple(p.clock.marks),
                   live and ragged(p))


def _term_bytes(stages):
    """Bytes of a step that the terms of the sums of `post` read."""
    makers = {v: q for q in stages.post for v in q.outputs}
    reads = {v for _, t in stages.post_terms for v in (makers[t].inputs if t in makers else getattr(t, "inputs", (t,)))}
    return sum(v.dtype.itemsize * math.prod([d if type(d) is int else 16 for d in v.shape]) for v in reads if type(v) is Var)


def _once(p):
    part = _Part(p)
    if p.once:
        p.clock.begin(part.e, "once")
        _invariant(part)
        p.clock.mark(part.e)
    return part.statements()


def _invariant(part):
    """Compute what depends on constants only."""
    p, e = part.p, part.e
    if p.stages.invariant:
        Body(e, p.stages.invariant, {v: [place] for v, place in zip(p.stages.from_invariant, part.invariant)}).emit()
    part.define_invariant()
    for panels in part.made:
        panels.emit(e)


def _start(p):
    part = _Part(p)
    e = part.e
    p.clock.begin(e, "once")
    if not p.once:
        _invariant(part)
    part.store_carried(part.steps.start(p.states, p.sums))
    if part.count is not None:
        e.store(part.count, (), (e.b.const(0),))
    p.clock.mark(e)
    return part.statements()


def _block(p):
    part = _Part(p)
    e, b, stages, steps = part.e, part.e.b, p.stages, part.steps
    lo, hi = b.op("arg", I64, b.const(0)), b.op("arg", I64, b.const(1))
    part.define_invariant()
    p.clock.begin(e, "pre")
    if stages.from_pre:
        _batch(part, stages.pre, dict(zip(stages.from_pre, part.pre)), (), (lo, hi))
        p.clock.mark(e)
    for v, rows in zip(stages.from_pre, part.pre):
        e.define[v] = rows
    if steps.states or stages.core or stages.core_terms or any(r is not None for r in steps.rows) or stages.from_core:
        kept = [(v, rows) for v, rows in zip(stages.from_core, part.core) if rows.slot[0] == "work"]
        before = None if part.count is None else e.load(part.count, ())[0]
        steps.powers = p.powers
        p.clock.begin(e, "core")
        values, done = steps.run(lo, hi, part.load_carried(), kept, before)
        p.pace = steps.pace
        part.store_carried(values)
        if part.count is not None:
            done = scalar.op(b, "select", steps.stopped, b.op("not", I64, done), done)
            running = b.op("ge", "b1", before, b.const(0))
            e.store(part.count, (), (scalar.op(b, "select", running, done, before),))
        p.clock.close(e, stages.core if steps.unlike else ())
    if stages.post or stages.post_terms:
        p.clock.begin(e, "post")
        _post(part, lo, hi)
        p.clock.mark(e)
    return part.statements()


def _post(part, lo, hi):
    """What runs for many steps after the sequential part."""
    p, e, stages = part.p, part.e, part.p.stages
    for v, rows in zip(stages.from_core, part.core):
        e.define[v] = rows
    dest = {}
    for k in stages.post_rows:
        dest.setdefault(p.row_vars[k], []).append(p.by_step(e, part.outs[k]))
    places = dict((s.v, place) for s, place in part.carried)
    terms = []
    for k, t in stages.post_terms:
        s = part.steps.sums[k]
        terms.append((t, places[s.v] if s.how == "registers" else s.place))
    _batch(part, stages.post, {}, terms, (lo, hi), dest)


def _batch(part, eqns, buffers, terms, span, dest=None):
    """Run equations for all steps of a span."""
    e, p = part.e, part.p
    e.time, e.span, before = p.time, span, e.now
    for v, x in zip(p.seq_vars, p.seqs):
        e.define[v] = p.by_step(e, e.define[x])
    dest = dict(dest or {})
    for v, rows in buffers.items():
        dest.setdefault(v, []).append(rows)
    Body(e, eqns, dest, terms).emit()
    e.time, e.span, e.now = None, None, before


def _end(p):
    part = _Part(p)
    e = part.e
    part.define_invariant()
    p.clock.begin(e, "once")
    n = e.b.op("arg", I64, e.b.const(1))
    if part.count is not None:
        count = e.load(part.count, ())[0]
        n = scalar.op(e.b, "select", e.b.op("lt", "b1", count, e.b.const(0)), e.b.op("not", I64, count), count)
    hows = part.steps.finals(part.load_carried(), n)
    for v, home, how in zip((*p.state_vars, *p.sum_vars), part.homes, hows):
        e.define[v] = how
        if not (type(how) is Place and how.slot == home.slot):
            store_value(e, v, home)
    p.clock.mark(e)
    return part.statements()


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
