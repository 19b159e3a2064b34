"""Loops and branches as program: states in registers or in memory, rows in their arrays, sums in place.

A state without looped axes is carried in registers. A state in memory lives in one of three ways: in the
rows that the loop returns anyway (the step reads the row before); in one buffer, where the step only writes
to parts of it; or in two buffers that take turns.
"""

import dataclasses

import numpy as np

from nscan.plan import affine, interchange, scalar
from nscan.plan.axes import ONE
from nscan.plan.body import Body, copy, emitter
from nscan.plan.kinds import split_sums
from nscan.plan.program import I64, ZERO
from nscan.plan.storage import Place, Rows, bound_of, bytes_of, row_major, slot_base, workspace
from nscan.tape import Eqn, Lit, Var


def register_points(v):
    """All points of a value that is kept in registers."""
    return list(np.ndindex(*v.shape))


@dataclasses.dataclass
class StatePlan:
    """How a state (or sum) is kept: ``registers``, ``rows``, ``one`` buffer or ``two``.

    The row before the first one is the initial value: in the array itself for outermost loops, elsewhere for
    inner ones.
    """

    v: Var
    new: object
    how: str
    place: object = None
    size: object = None
    row: int = -1


class Steps:
    """The steps of a loop, being emitted.

    Parameters
    ----------
    e : Elements
    loop : Loop
    n : Value
        Number of steps in all.
    sources : list
        For each sequence what ``define`` says about it as a whole; its first axis is the step.
    rows : list of Place or None
        Where rows go; the first axis is the step. None for one that is not stored here.
    stages : Stages or None
        Which equations and terms of sums run here; all of them by default.
    homes : sequence of Place
        Where final states and sums go; one that is written to in parts lives there from the start.
    led : dict
        Number of a row to the state whose initial value lies before the first row (outermost loops).
    started : dict
        Number of a sum to a bool: whether the caller has put its initial value there.
    """

    def __init__(self, e, loop, n, sources, rows, stages=None, homes=(), led=None, started=None):
        self.e, self.loop, self.n, self.sources, self.rows, self.stages = e, loop, n, sources, rows, stages
        self.seq_vars, self.state_vars, self.sum_vars, self.const_vars = loop.split_step_inputs(loop.step.inputs)
        self.new_states, self.new_sums, visible, hidden, self.stop = loop.split_step_outputs(loop.step.outputs)
        self.row_vars = [*visible, *hidden]
        self.is_outer, self.led, self.started = stages is not None, led or {}, started or {}
        self.powers, self.pace, self.unlike = self.is_outer, 1, False
        self.eqns, self.terms = self._equations()
        homes = homes or [None] * (loop.states + loop.sums)
        self.states = [self._plan(v, new, home) for v, new, home in zip(self.state_vars, self.new_states, homes)]
        self.homes = homes[loop.states:]
        self.sums = [self._plan_sum(k, v, new) for k, (v, new) in enumerate(zip(self.sum_vars, self.new_sums))]

    def _equations(self):
        """Equations that run here, and the terms of sums among them."""
        if self.stages is not None:
            return self.stages.core, self.stages.core_terms
        sums = {new: (v, k) for k, (v, new) in enumerate(zip(self.sum_vars, self.new_sums))}
        eqns, terms = split_sums(self.loop.step.eqns, sums)
        return eqns, [(k, t) for t, k in terms]

    # ------------------------------------------------------------------------------------------ planning
    def _plan(self, v, new, home):
        e = self.e
        if not e.looped(v):
            return StatePlan(v, new, "registers")
        row = row_of_state(new, self.row_vars, self.state_vars)
        if row >= 0 and self.rows[row] is not None and (self.led.get(row) is v if self.is_outer else self.rows[row].contiguous):
            return StatePlan(v, new, "rows", row=row)
        if self._is_written(v, new):
            place = home or workspace(e, v)
            e.writable.add(place.slot)
            return StatePlan(v, new, "one", place)
        return self._two_buffers(v, new)

    def _two_buffers(self, v, new):
        e = self.e
        classes = e.axes.get(v)
        slot = e.params.new_slot(v.dtype.itemsize, [2, *[bound_of(c) for c in classes]])
        place = Place(("work", slot), slot_base(e, slot), row_major(e, classes, v.dtype), v.dtype, True)
        return StatePlan(v, new, "two", place, bytes_of(e, v, e.whole_size if e.ragged else None))

    def _is_written(self, v, new):
        """Whether the new state is the old one with parts written to."""
        makers = {q.outputs[0]: q for q in self.eqns if q.row.name in ("index_update", "index_add")}
        if new is v or new in self.row_vars:
            return False
        while new in makers:
            new = makers[new].inputs[0]
        return new is v

    def _plan_sum(self, k, v, new):
        plain = all(type(t) is not Eqn for n, t in self.terms if n == k)
        if not self.e.looped(v) and plain:
            return StatePlan(v, new, "registers")
        return StatePlan(v, new, "one", self.homes[k] or workspace(self.e, v))

    # ------------------------------------------------------------------------------------------ emission
    def start(self, state_inits, sum_inits):
        """Copy initial values to where states and sums live; return those kept in registers, flat.

        Parameters
        ----------
        state_inits, sum_inits : list of Var or Lit
        """
        carried = []
        for s, init in zip((*self.states, *self.sums), (*state_inits, *sum_inits)):
            if self.is_outer and s in self.sums:
                carried += self._start_sum(s, init)
            elif s.how == "registers":
                carried += [part for p in register_points(s.v) for part in self.e.elem(init, tuple(self.e.b.const(int(i)) for i in p))]
            elif s.how == "rows":
                s.place = None if self.is_outer else in_memory_contiguous(self.e, init)
            else:
                first = self.e.b.op("arg", I64, self.e.b.const(0)) if self.is_outer else self.e.b.const(0)
                copy_into(self.e, init, s.v, self.place_at(s, first))
                if s.how == "two" and self.e.ragged:  # a lane may begin at a later step
                    copy_into(self.e, init, s.v, self.place_at(s, self.e.b.add(first, self.e.b.const(1))))
        return carried

    def _start_sum(self, s, init):
        """A sum starts from its initial value in the first part of the lanes and steps, from 0 in the others."""
        e, b = self.e, self.e.b
        first = b.op("eq", "b1", b.op("arg", I64, b.const(0)), b.const(0))
        if e.lane is None or e.lane not in e.axes.get(s.v):
            first = b.op("and", "b1", first, b.op("eq", "b1", b.op("arg", I64, b.const(2)), b.const(0)))
        zero = e.constant(0, s.v.dtype)
        if s.how == "registers":
            return [part for p in register_points(s.v)
                    for part in e.select(first, e.elem(init, tuple(b.const(int(i)) for i in p)), zero)]
        known = self.started.get(self.sums.index(s))
        if known is not None:
            b.open(fence=True, written={s.place.slot})
            left = b.close()
            b.open(fence=True, written={s.place.slot})
        copy(e, init, s.place, lambda parts: e.select(first, parts, zero))
        if known is not None:
            b.statement("if", known.id, left, b.close(), ())
        return []

    def place_at(self, s, t):
        """Place of a state before step t."""
        e, b = self.e, self.e.b
        if s.how == "one":
            return s.place
        if s.how == "two":
            half = b.mul(b.op("and", "i8", t, b.const(1)), s.size)
            return dataclasses.replace(s.place, base=b.add(s.place.base, half))
        row = self.rows[s.row]
        before = e.address(row, (self._row(b.sub(t, b.const(1))),))
        if self.is_outer:
            return Place(row.slot, before, row.strides[1:], s.v.dtype, row.contiguous)
        first = b.op("eq", "b1", t, b.const(0))
        return Place(row.slot, scalar.op(b, "select", first, s.place.base, before), s.place.strides, s.v.dtype, True)

    def _row(self, t):
        """Row of a step."""
        b = self.e.b
        return b.sub(b.sub(self.n, b.const(1)), t) if self.loop.reverse else t

    def step(self, t, carried, kept=(), given=dict):
        """Emit one step.

        Parameters
        ----------
        t : Value
        carried : list of Value
        kept : sequence of (Var, Rows)
            Values that are stored for later stages.
        given : callable
            Called where the inputs are defined; what `define` says about results that the step need not compute.

        Returns
        -------
        carried : list of Value
            The new values of what is kept in registers.
        stop : Value or None
        """
        e, b = self.e, self.e.b
        old = self.define(t, carried)
        given, dest = given(), {}
        for v, place in self.row_places(t):
            dest.setdefault(v, []).append(place)
        for v, rows in kept:
            dest.setdefault(v, []).append(e.here(rows))
        after = b.add(t, b.const(1))
        for s in self.states:
            if s.how == "two":
                dest.setdefault(s.new, []).append(self.place_at(s, after))
        terms = [(x, self.sums[k].place) for k, x in self.terms if self.sums[k].how == "one"]
        Body(e, self.eqns, dest, terms, self.loop.step.outputs, given).emit()
        for s in self.states:
            if s.how == "one":
                found = e.define.get(s.new)
                if not (type(found) is Place and found.slot == s.place.slot):
                    copy(e, s.new, s.place)
        stop = None if self.stop is None else e.elem(self.stop, ())[0]
        return [*self._new_states(), *self._new_sums(old)], stop

    def row_places(self, t):
        """Pairs of a row and where this step stores it."""
        e, row = self.e, self._row(t)
        return [(v, Place(p.slot, e.address(p, (row,)), p.strides[1:], p.dtype, p.contiguous))
                for v, p in zip(self.row_vars, self.rows) if p is not None]

    def define(self, t, carried):
        """Define the inputs of the step; return the old sums that are kept in registers."""
        e = self.e
        if self.is_outer:
            e.now = t
        left, old = iter(carried), {}
        for k, s in enumerate((*self.states, *self.sums)):
            if s.how == "registers":
                table = {p: tuple(next(left) for _ in range(2 if s.v.dtype.kind == "c" else 1)) for p in register_points(s.v)}
                e.define[s.v] = ("scalars", table)
                old[k - len(self.states)] = table
            else:
                e.define[s.v] = self.place_at(s, t)
        row = self._row(t)
        for v, source in zip(self.seq_vars, self.sources):
            e.define[v] = source if type(source) is Rows else at_row(e, source, row)
        return old

    def _new_states(self):
        b = self.e.b
        return [part for s in self.states if s.how == "registers" for p in register_points(s.v)
                for part in self.e.elem(s.new, tuple(b.const(int(i)) for i in p))]

    def _new_sums(self, old):
        """Add the terms of this step to the sums in registers."""
        e, out = self.e, []
        for k, s in enumerate(self.sums):
            if s.how != "registers":
                continue
            for p, parts in old[k].items():
                idx = tuple(e.b.const(int(i)) for i in p)
                for n, x in self.terms:
                    if n == k:
                        parts = e.plus(parts, e.elem(x, idx))
                out += parts
        return out

    def run(self, lo, hi, carried, kept=(), count=None):
        """Emit the loop over steps from lo to hi; `kept` as in `step`; it does nothing if `count` is below 0.

        Returns
        -------
        carried : list of Value
            What is kept in registers, after the last step.
        done : Value
            The number of steps done.
        """
        b = self.e.b
        written = self.written() | {rows.slot for _, rows in kept}
        powers = affine.find(self)
        if powers is not None:
            self.pace, self.unlike = affine.BLOCK, True
            return powers.run(lo, hi, carried, kept, written), hi
        swapped = interchange.find(self)
        if swapped is not None:
            self.unlike = True
            swapped.run(lo, hi, carried, kept, written, lambda: self._plain(lo, hi, carried, kept, written))
            return carried, hi
        if self.stop is None:
            return self._plain(lo, hi, carried, kept, written), hi
        alive = b.op("lt", "b1", lo, hi)
        if count is not None:
            alive = b.op("and", "b1", alive, b.op("ge", "b1", count, b.const(0)))
        with (b.repeat(alive, (lo, b.const(False, "b1"), *carried), written) as loop,
              self.e.clock.body(self.e, self.n, self.is_outer)):
            t = loop.carried[0]
            new, stop = self.step(t, loop.carried[2:], kept)
            after = b.add(t, b.const(1))
            more = b.op("and", "b1", b.op("lt", "b1", after, hi), b.op("not", "b1", stop))
            more = b.op("and", "b1", more, b.op("healthy", "b1", after))
            loop.again(more, [after, stop, *new])
        self.stopped = loop.results[1]
        return loop.results[2:], loop.results[0]

    def _plain(self, lo, hi, carried, kept, written):
        """Emit the loop step by step; return what is carried."""
        with self.e.b.range(lo, hi, carries=carried, written=written) as loop, self.e.clock.body(self.e, self.n, self.is_outer):
            loop.again(self.step(loop.index, loop.carried, kept)[0])
        return loop.results

    def written(self):
        """Slots that the loop writes."""
        out = {s.place.slot for s in (*self.states, *self.sums) if s.how in ("one", "two")}
        return out | {p.slot for p in self.rows if p is not None}

    def finals(self, carried, n):
        """What `define` says about the final states and sums."""
        left = iter(carried)
        out = []
        for s in (*self.states, *self.sums):
            if s.how == "registers":
                table = {p: tuple(next(left) for _ in range(2 if s.v.dtype.kind == "c" else 1)) for p in register_points(s.v)}
                out.append(("scalars", table))
            else:
                out.append(self.place_at(s, n))
        return out


def row_of_state(new, row_vars, state_vars):
    """Which row of a loop is the new value of a state, or -1."""
    if type(new) is not Var or new in state_vars:
        return -1
    return next((k for k, row in enumerate(row_vars) if row is new), -1)


def at_row(e, source, row):
    """What `define` says about a row of a sequence."""
    if type(source) is Place:
        base = e.b.add(source.base, e.b.mul(row, source.strides[0]))
        return Place(source.slot, base, source.strides[1:], source.dtype, source.contiguous)
    return ("alias", source, (ZERO if e.axes.get(source)[0] is ONE else row,))


def in_memory_contiguous(e, v):
    """Return a contiguous Place that holds a value; copied there if it is not."""
    how = e.here(e.define.get(v))
    if type(how) is Place and how.contiguous:
        return how
    place = workspace(e, v)
    copy(e, v, place)
    return place


def copy_into(e, init, v, place):
    """Copy an initial value into the place of a state of equal axes."""
    if type(init) is Lit:
        raise AssertionError("a literal has no axes")
    copy(e, init, place)


# -------------------------------------------------------------------------------------------- inner loops
@emitter("loop")
def emit_inner_loop(body, s):
    """A loop inside a step."""
    e, eqn = body.e, s.eqn
    loop = eqn.params["loop"]
    n, seqs, states, sums, consts = loop.split_inputs(eqn.inputs)
    rows, finals, totals, count, _ = loop.split_outputs(eqn.outputs)
    n = e.elem(n, ())[0]
    hidden = eqn.outputs[loop.visible:] if loop.hidden else ()
    places = [workspace(e, v) for v in (*rows, *hidden)]
    limit = capacity(e, (*rows, *hidden))
    sources = [operand(e, x) for x in seqs]
    for v, x in zip(loop.split_step_inputs(loop.step.inputs)[3], consts):
        kept = operand(e, x)
        e.define[v] = kept if type(kept) is Place else ("alias", kept, ())
    steps = Steps(e, loop, n, sources, places)
    carried = steps.start(states, sums)
    carried, done = run_within(e, eqn, steps, n, limit, carried)
    for v, how in zip((*finals, *totals), steps.finals(carried, done)):
        e.define[v] = how
    for v, place in zip((*rows, *hidden), places):
        e.define[v] = place
    if count is not None:
        e.define[count] = ("scalars", {(): (done,)})
    store_outputs(body, eqn)


def capacity(e, rows):
    """Room for the rows of a loop whose number of steps has no known bound, or None."""
    for v in rows:
        c = e.axes.get(v)[0]
        found = bound_of(c)
        while isinstance(found, tuple) and found[0] == "capacity":
            return e.params.get(e.b, found)
    return None


def run_within(e, eqn, steps, n, limit, carried):
    """Run an inner loop; where its rows do not fit, say how much room it needs, and stop."""
    b = e.b
    if limit is None:
        return steps.run(b.const(0), n, carried)
    over = b.op("gt", "b1", n, limit)
    hi = scalar.op(b, "select", over, limit, n)
    carried, done = steps.run(b.const(0), hi, carried)
    if steps.stop is not None:
        over = b.op("and", "b1", over, b.op("and", "b1", b.op("eq", "b1", done, limit), b.op("not", "b1", steps.stopped)))
    e.fail(over, "grow", eqn, limit)
    return carried, done


def store_outputs(body, eqn):
    """Copy outputs to the places that were asked for."""
    for v in eqn.outputs:
        for place in body.dest.get(v, ()):
            if body.e.define[v] is not place:
                copy(body.e, v, place)
    body.emitted.update(eqn.outputs)


def operand(e, x):
    """An operand of a loop: a virtual value with looped axes is stored first, since it is read in every step."""
    if type(x) is Lit or not e.looped(x):
        return x
    how = e.here(e.define[x])
    return how if type(how) is Place else in_memory_contiguous(e, x)


@emitter("cond")
def emit_cond(body, s):
    """A conditional: only the taken branch runs."""
    e, eqn = body.e, s.eqn
    b = e.b
    cond = eqn.params["cond"]
    test = e.elem(eqn.inputs[0], ())[0]
    places = {v: workspace(e, v) for v in eqn.outputs if e.looped(v)}
    branches = []
    for tape in cond.tapes():
        b.open(fence=True, written={p.slot for p in places.values()})
        for v, x in zip(tape.inputs, eqn.inputs[1:]):
            e.define[v] = ("alias", x, ())
        dest = {}
        for v, out in zip(eqn.outputs, tape.outputs):
            if v in places:
                dest.setdefault(out, []).append(places[v])
        with e.clock.branch(e):
            Body(e, tape.eqns, dest, keep=tape.outputs).emit()
        parts = [part for v, out in zip(eqn.outputs, tape.outputs) if v not in places for p in register_points(v)
                 for part in e.elem(out, tuple(b.const(int(i)) for i in p))]
        branches.append((b.close(), parts))
    results = [b.new(p.dtype) for p in branches[0][1]]
    b.statement("if", test.id, branches[0][0], branches[1][0],
                tuple((r.id, r.dtype, p.id, q.id) for r, p, q in zip(results, branches[0][1], branches[1][1])))
    left = iter(results)
    for v in eqn.outputs:
        if v in places:
            e.define[v] = places[v]
        else:
            table = {p: tuple(next(left) for _ in range(2 if v.dtype.kind == "c" else 1)) for p in register_points(v)}
            e.define[v] = ("scalars", table)
    store_outputs(body, eqn)
