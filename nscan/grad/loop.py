"""The rule of the loop: its derivative is a loop.

*Forward*: the tangent step runs beside the step (`nscan.grad.forward`). *Reverse* (`adjoint_of`): a loop over the
reversed steps whose states are the cotangents of states and whose sums are the cotangents of constants. The
two are joined by the residual: rows of values that the adjoint reads. Which values those are is found here by
running the rules once. How many of them are kept (`decided`) follows from their bytes: all that are costly, or the
states alone, from which the backward step computes the others.
"""

import dataclasses

import numpy as np

from nscan import checkpoint
from nscan.grad.flow import operand_flow
from nscan.grad.forward import only_arrays
from nscan.grad.reverse import backward, is_float, literal_or, spread_active, total
from nscan.interpret import run_equations
from nscan.primitive import TABLE, bind, full
from nscan.state import section
from nscan.tape import RESIDUAL, Cond, Eqn, Lit, Loop, Tape, Var, remember, uses
from nscan.trace import STATE, StepTrace, Traced, rules

# Rows that a backward pass repeats rather than keeps: at most that cost, or results of integers.
CHEAP = 5
VIEWS = {"reshape", "transpose", "broadcast_to", "fill", "copy"}


def is_cheap(eqn):
    """Tell whether a backward pass may compute an equation again."""
    row = eqn.row
    if row.kind == "pointwise":
        return row.cost <= CHEAP or eqn.outputs[0].dtype.kind in "iub"
    if row.name == "index":  # a few rows are read again rather than kept; not a window
        return all(entry[0] in ("slice", "at", "atop", "new") for entry in eqn.params["spec"].entries)
    return row.name in VIEWS or row.kind == "size"


# States of at most so many bytes may be affine states in registers.
SMALL_STATE = 16 * 16


@dataclasses.dataclass(frozen=True, eq=False)
class Adjoint:
    """A loop made ready for its backward pass.

    Attributes
    ----------
    forward : Loop
        The loop with the hidden rows that the backward pass reads.
    backward : Loop
        Sequences: those of the loop that are read, hidden rows, cotangents of rows. States: cotangents of
        states. Sums: cotangents of constants. Constants: those of the loop that are read. Rows: cotangents of
        sequences.
    seqs, consts : tuple of int
        Which sequences and constants of the loop the backward pass reads.
    states : tuple of int
        Which states carry a cotangent.
    rows : tuple of int
        Which rows have a cotangent.
    kept : tuple of Var
        The values of the step that the hidden rows hold.
    hidden : tuple of int
        Which hidden rows the backward pass reads.
    extra : tuple of ndarray
        Arrays that the rules of the step read (masks, index tables): the last constants of `backward`.
    """

    forward: Loop
    backward: Loop
    seqs: tuple
    consts: tuple
    states: tuple
    rows: tuple
    kept: tuple
    hidden: tuple
    extra: tuple = ()


_ADJOINTS = {}


def adjoint_of(loop, active, with_ct):
    """Build (and remember) the adjoint of a loop for active operands and outputs that have a cotangent."""
    key = (loop.bare.settled.key, loop.name, active, with_ct)
    found = _ADJOINTS.get(key)
    if found is None:
        whole = None if all(with_ct) else adjoint_of(loop, active, (True,) * len(with_ct))
        # The loop of `whole` is an equal one, perhaps of an earlier trace: what is kept are its Vars.
        base = loop.bare if whole is None else whole.forward.bare
        with section("trace"):
            found = remember(_ADJOINTS, key, _Builder(base, active, with_ct).build(whole))
    return found


class _Builder:
    """Traces the backward step twice: once to learn what it reads, once with what is kept."""

    def __init__(self, loop, active, with_ct):
        self.loop = loop
        self.step = loop.step
        self.active, self.with_ct = active, with_ct
        _, seqs, states, _, consts = loop.split_inputs(active)
        self.seq_vars, self.state_vars, self.sum_vars, self.const_vars = loop.split_step_inputs(self.step.inputs)
        self.wanted = [v for group, flags in ((self.seq_vars, seqs), (self.const_vars, consts))
                       for v, flag in zip(group, flags) if flag and is_float(v)]
        self.flow = self._flow([v for v, flag in zip(self.state_vars, states) if flag])
        self.ct_states = [k for k, v in enumerate(self.state_vars) if v in self.flow]
        rows = with_ct[:loop.rows]
        outs = loop.split_step_outputs(self.step.outputs)[2]
        self.ct_rows = [k for k, flag in enumerate(rows) if flag and outs[k].dtype.kind in "fc"]
        self.producer = {v: eqn for eqn in self.step.eqns for v in eqn.outputs}
        self.free = {*self.seq_vars, *self.const_vars}

    def _flow(self, states):
        """Follow derivatives through the step until no further state becomes active."""
        news = self.loop.split_step_outputs(self.step.outputs)[0]
        while True:
            flow = spread_active(self.step.eqns, [*self.wanted, *states])
            grown = [v for v, new in zip(self.state_vars, news)
                     if v in states or type(new) is Var and new in flow and is_float(v)]
            if grown == states:
                return flow
            states = grown

    def build(self, whole=None):
        """Return the Adjoint; `whole` is that for cotangents of all rows, whose forward loop serves too."""
        if whole is None:
            demanded = []
            tape, used, _ = self._trace_backward(None, demanded)
            read = uses(tape)
            demanded = [v for v, place in zip(demanded, tape.inputs[len(used.seqs):]) if place in read]
            kept = self._states_behind(demanded) if self.loop.keep == "states" and self._is_static() else self._choose(demanded)
            forward = self._forward(kept)
        else:
            kept, forward = whole.kept, whole.forward
        tape, used, extra = self._trace_backward(kept, [])
        loop = self.loop
        hidden = tuple(k for k, v in enumerate(kept) if v in used.places)
        back = Loop(tape, len(used.seqs) + len(hidden) + len(self.ct_rows), len(self.ct_states), len(used.consts) + len(extra),
                    sum(v in self.wanted for v in self.seq_vars), sum(v in self.wanted for v in self.const_vars),
                    reverse=not loop.reverse, name=f"adjoint of {loop.name}", watch=loop.watch)
        given = self._given(tape)
        number = {v: k for k, v in enumerate((*self.step.inputs, *self.producer))}
        numbers = [number[self.seq_vars[k]] for k in used.seqs] + [number[kept[k]] for k in hidden]
        numbers += [None] * (len(self.ct_rows) + back.states + back.sums) + [number[self.const_vars[k]] for k in used.consts]
        first = given or whole
        back = dataclasses.replace(back, partner=given and given.backward,
                                   origin=(first.forward if first else forward, (*numbers, *[None] * len(extra))))
        if loop.keep == "segments" and whole is None and forward.hidden:
            forward = dataclasses.replace(forward, partner=back)
        return Adjoint(forward, back, tuple(used.seqs), tuple(used.consts), tuple(self.ct_states), tuple(self.ct_rows),
                       tuple(kept), hidden, tuple(extra))

    def _given(self, tape):
        """Return the adjoint that is given all rows, where this one computes some again: in its own step, or in loops inside."""
        loop = self.loop
        if loop.keep == "states":
            return adjoint_of(loop.keeping("all"), self.active, self.with_ct)
        if not any(inner.keep in ("states", "segments") for inner in _loops_in(tape)):
            return None
        whole = _keeping_all(loop.step)
        if whole.key == loop.step.key:
            return None
        return adjoint_of(dataclasses.replace(loop, step=whole, keep="all"), self.active, self.with_ct)

    def _forward(self, kept):
        if not kept:
            return self.loop
        states, sums, rows, _, stop = self.loop.split_step_outputs(self.step.outputs)
        outputs = (*states, *sums, *rows, *kept, *([stop] if self.loop.stop else []))
        return dataclasses.replace(self.loop, step=Tape(self.step.inputs, self.step.eqns, outputs), hidden=len(kept))

    def _choose(self, demanded):
        """Choose what to keep: a value that follows cheaply from kept or given ones is computed again."""
        needed = [v for v in dict.fromkeys(demanded) if v not in self.free]
        kept = set(needed)
        for eqn in reversed(self.step.eqns):
            wanted = [v for v in eqn.outputs if v in kept]
            if not wanted:
                continue
            sources = [v for v in eqn.inputs if type(v) is Var and v not in self.free and v not in kept]
            sources += [d for v in eqn.inputs for d in v.shape if type(d) is Var and d not in self.free and d not in kept]
            opaque = any(v.dtype is RESIDUAL for v in eqn.outputs) or any(type(d) is Var for v in eqn.outputs for d in v.shape)
            if opaque or is_cheap(eqn) and _bytes(sources) <= _bytes(wanted):
                kept.difference_update(eqn.outputs)
                kept.update(sources)
        order = {v: k for k, v in enumerate((*self.step.inputs, *self.producer))}
        return sorted(kept, key=order.__getitem__)

    def _is_static(self):
        """Whether no size in the step is computed there; what has such a size cannot be computed again from states alone."""
        return all(type(d) is int for eqn in self.step.eqns for v in eqn.outputs for d in v.shape)

    def _states_behind(self, demanded):
        """States from which all that is demanded can be computed.

        New values of small states are kept too: kernels differ in the order in which these follow from the old ones.
        """
        news = self.loop.split_step_outputs(self.step.outputs)[0]
        small = {v for v in news if type(v) is Var and is_float(v) and _bytes([v]) <= SMALL_STATE}
        needed = set(demanded)
        for eqn in reversed(self.step.eqns):
            if any(v in needed and v not in small for v in eqn.outputs):
                needed.update(v for v in eqn.inputs if type(v) is Var)
                needed.update(d for v in (*eqn.inputs, *eqn.outputs) for d in v.shape if type(d) is Var)
        return [v for v in (*self.state_vars, *self.producer) if v in needed and (v in self.state_vars or v in small)]

    def _trace_backward(self, kept, demanded):
        """Trace the backward step; with `kept` None every value that a rule reads is an input."""
        loop = self.loop
        used = _Used(self, kept, demanded)
        with StepTrace(loop.name) as trace:
            used.home = trace
            pending = {}
            states, _, rows, _, _ = loop.split_step_outputs(self.step.outputs)
            ct_states = [self._ct_input(trace, used, self.state_vars[k], states[k], pending) for k in self.ct_states]
            ct_rows = [self._ct_input(trace, used, rows[k], rows[k], pending) for k in self.ct_rows]
            sums = [trace.new_input(used.shape(v), v.dtype) for v in self.const_vars if v in self.wanted]
            backward(self.step.eqns, literal_or(used.read), pending, self.flow)
            with rules():
                out_states = [_dense(self.state_vars[k], pending, used) for k in self.ct_states]
                out_seqs = [_dense(v, pending, used) for v in self.seq_vars if v in self.wanted]
                out_sums = [total(v, pending.get(v), used.read, start=s)
                            for v, s in zip([v for v in self.const_vars if v in self.wanted], sums)]
            placeholders = [used.places[v] for v in (demanded if kept is None else kept) if v in used.places]
            trace.inputs = [x.node for x in (*used.seqs.values(), *placeholders, *ct_rows, *ct_states, *sums,
                                            *used.consts.values())]
            tape, extra = trace.finish([*out_states, *out_sums, *out_seqs])
        return tape, used, only_arrays(extra)

    def _ct_input(self, trace, used, like, out, pending):
        x = trace.new_input(used.shape(like), like.dtype)
        if type(out) is Var and out in self.flow:
            pending.setdefault(out, []).append(x)
        return x


def _loops_in(tape):
    """Yield the loops in a tape, at any depth."""
    for eqn in tape.eqns:
        for value in eqn.params.values():
            if type(value) is Loop:
                yield value
            for inner in getattr(value, "tapes", tuple)():
                yield from _loops_in(inner)


def _keeping_all(tape):
    """Return a tape whose loops are to keep all rows, where that is not decided yet."""
    def changed(value):
        if type(value) is Loop and value.keep is None:
            return dataclasses.replace(value, step=_keeping_all(value.step), checkpoint="all")
        if type(value) is Cond:
            return Cond(*map(_keeping_all, value.tapes()))
        return value
    eqns = [Eqn(q.row, q.inputs, q.outputs, {k: changed(x) for k, x in q.params.items()}, q.where) for q in tape.eqns]
    return Tape(tape.inputs, tuple(eqns), tape.outputs)


def _dense(v, pending, used):
    parts = pending.get(v)
    return full(used.shape(v), 0, v.dtype) if not parts else total(v, parts, used.read)


def _bytes(values):
    out = 0
    for v in values:
        size = 1 if v.dtype is RESIDUAL else v.dtype.itemsize
        for d in v.shape:
            size *= d if type(d) is int else 1 << 20
        out += size
    return out


class _Used:
    """Answers the rules of a backward step and remembers which values they read."""

    def __init__(self, builder, kept, demanded):
        self.builder = builder
        self.kept = None if kept is None else set(kept)
        self.demanded = demanded
        self.seqs, self.consts, self.places, self.values = {}, {}, {}, {}
        self.home = None

    def shape(self, v):
        """Shape of a value, with run-time sizes as arrays of the backward trace."""
        return tuple(d if type(d) is int else self.read(d) for d in v.shape)

    def read(self, v):
        """Return a value of the forward step inside the backward step."""
        found = self.values.get(v)
        if found is None:
            found = self.values[v] = self._make(v)
        return found

    def _make(self, v):
        builder = self.builder
        if v in builder.free:
            group, name = (builder.seq_vars, self.seqs) if v in builder.seq_vars else (builder.const_vars, self.consts)
            k = group.index(v)
            x = self.home.new_input(self.shape(v), v.dtype)
            name[k] = x
            return x
        if not self._is_repeated(v):
            return self._place(v)
        return self._compute_again(v)

    def _compute_again(self, v):
        """Repeat the equation of a value, and those that it needs (a stack, since chains may be long)."""
        stack = [v]
        while stack:
            eqn = self.builder.producer[stack[-1]]
            sources = [u for u in eqn.inputs if type(u) is Var]
            sources += [d for u in (*eqn.inputs, *eqn.outputs) for d in u.shape if type(d) is Var and d not in eqn.outputs]
            missing = [u for u in sources if u not in self.values]
            again = [u for u in missing if self._is_repeated(u)]
            for u in missing:
                if u not in again:
                    self.read(u)
            if again:
                stack += again
                continue
            env = {u: self.values[u] for u in eqn.inputs if type(u) is Var}
            run_equations((eqn,), env)
            self.values.update((u, env[u]) for u in eqn.outputs)
            stack.pop()
        return self.values[v]

    def _is_repeated(self, v):
        if v in self.builder.free:
            return False
        if self.kept is None:
            return v.dtype is RESIDUAL or any(type(d) is Var for d in v.shape)
        return v not in self.kept

    def _place(self, v):
        x = self.home.new_input(self.shape(v), v.dtype)
        self.places[v] = x
        if self.kept is None:
            self.demanded.append(v)
        return x


def pair(inputs, params, active):
    """Give a loop the hidden rows of its backward pass, for all outputs and the operands from which a derivative flows."""
    loop = params["loop"]
    shown = loop.visible
    if loop.hidden:
        return params, shown + 1
    active = _flowing(loop, active)
    if not any(active):
        return params, shown
    return {"loop": decided(loop, inputs[0], active).forward}, shown


def decided(loop, n, active):
    """Decide how the rows for the backward pass of a loop are kept, by its option and by their bytes.

    Parameters
    ----------
    loop : Loop
    n : int, Lit or array
        Its number of steps.
    active : tuple of bool
        Operands from which a derivative flows.

    Returns
    -------
    Adjoint
        For cotangents of all outputs; its loop says the decision (`Loop.keep`).
    """
    known = not isinstance(n, Traced)
    steps = int(n.value if type(n) is Lit else n) if known and not loop.stop else None

    def kept(keep):
        return adjoint_of(loop.keeping(keep), active, (True,) * loop.rows)
    option, inside = loop.checkpoint, any(trace.symbolic for trace in STATE.stack)
    whole = kept("all") if option != "states" else None
    if option == "all" or option == "auto" and not known:
        return whole
    keep = checkpoint.choose(option, steps, _kept_bytes(whole, inside) if whole else None, lambda: _kept_bytes(kept("states"), inside))
    if keep == "segments" and not (known and whole.states and not (inside and loop.stop)):
        keep = "states"
    return whole if keep == "all" else kept(keep)


def _kept_bytes(adjoint, inside):
    """Bytes of the hidden rows of a step; None if unknown. Visible rows of the step before take none, unless in another step."""
    loop = adjoint.forward
    news, _, rows, hidden, _ = loop.split_step_outputs(loop.step.outputs)
    total = 0
    for v in hidden:
        if any(type(d) is Var for d in v.shape):
            return None
        shown = any(v is s and new in rows for s, new in zip(loop.split_step_inputs(loop.step.inputs)[1], news))
        total += 0 if shown and not inside else _bytes([v])
    return total


def _flowing(loop, active):
    """Keep the flags of the operands from which a derivative flows to any output."""
    flow = operand_flow(loop, (True,) * loop.visible)
    return tuple([bool(a and f) for a, f in zip(active, flow)])


def loop_vjp(cts, at, loop):
    """Cotangents of the operands of a loop: one adjoint equation."""
    assert not loop.sums, "sums belong to adjoints, which have rules of their own"
    base = loop.bare
    active = _flowing(base, at.needs)
    rows, finals, _, _, _ = loop.split_outputs(cts)
    with_ct = tuple(ct is not None for ct in (*rows, *finals))
    reached = operand_flow(base, with_ct)
    if not any(a and r for a, r in zip(active, reached)):
        return [None] * at.count
    inputs = [at.x(i) for i in range(at.count)]
    if base.keep is None:
        base = decided(base, inputs[0], active).forward.bare
    adjoint = adjoint_of(base, active, with_ct[:loop.rows])
    residual = None
    count = at.y(loop.visible - 1) if loop.stop else inputs[0]
    if loop.hidden and adjoint.forward is loop:
        residual = at.y(loop.visible)
    elif adjoint.forward.hidden:
        residual = bind(TABLE["loop"], inputs, {"loop": adjoint.forward})[-1]
    back = bind_adjoint(base, active, with_ct, inputs, count, [ct for ct in (*rows, *finals) if ct is not None], residual)
    return [ct if r else None for ct, r in zip(back, reached)]


def bind_adjoint(loop, active, with_ct, inputs, count, cts, residual):
    """Bind the adjoint row: one cotangent for each operand of the loop, None where it is not active."""
    params = {"loop": loop, "active": active, "with_ct": with_ct}
    extra = () if residual is None else (residual,)
    outs = bind(TABLE["loop_adjoint"], (count, *inputs, *cts, *extra), params)
    left = iter(outs)
    return [next(left) if flag else None for flag in active]


def split_adjoint(loop, with_ct, values):
    """Split operands of the adjoint row: count, operands of the loop, cotangents by output, residual."""
    m = 1 + loop.seqs + loop.states + loop.sums + loop.consts
    count, inputs, rest = values[0], values[1:1 + m], list(values[1 + m:])
    cts = [rest.pop(0) if flag else None for flag in with_ct]
    return count, inputs, cts, rest[0] if rest else None


def adjoint_infer(*values, loop, active, with_ct):
    """Shapes and dtypes of the cotangents: those of the active operands."""
    _, inputs, _, _ = split_adjoint(loop, with_ct, values)
    return tuple((tuple(x.shape), x.dtype) for x, flag in zip(inputs, active) if flag)


def adjoint_operands(loop, active, with_ct, values):
    """Return the backward loop and its operands, given the operands of the adjoint row.

    Returns
    -------
    adjoint : Adjoint
    operands : list
        n, sequences, states, sums, constants of ``adjoint.backward``; where an operand is a zero of a known
        shape it is a `Zero`, a residual row is a `Hidden`.
    """
    adjoint = adjoint_of(loop, active, with_ct[:loop.rows])
    count, inputs, cts, residual = split_adjoint(loop, with_ct, values)
    _, seqs, states, _, consts = loop.split_inputs(inputs)
    _, _, _, _, flags = loop.split_inputs(active)
    ct_rows, ct_finals = cts[:loop.rows], cts[loop.rows:]
    operands = [count, *[seqs[k] for k in adjoint.seqs], *[Hidden(residual, k) for k in adjoint.hidden]]
    operands += [ct_rows[k] for k in adjoint.rows]
    for k in adjoint.states:
        operands.append(Zero(states[k].shape, states[k].dtype) if ct_finals[k] is None else ct_finals[k])
    operands += [Zero(c.shape, c.dtype) for c, flag in zip(consts, flags) if flag and c.dtype.kind in "fc"]
    operands += [*[consts[k] for k in adjoint.consts], *adjoint.extra]
    return adjoint, operands


@dataclasses.dataclass(frozen=True)
class Zero:
    """An operand that is zeros of a shape."""

    shape: tuple
    dtype: object


@dataclasses.dataclass(frozen=True)
class Hidden:
    """A row of a residual among operands."""

    residual: object
    index: int


def adjoint_results(adjoint, loop, active, outs, inputs):
    """Arrange the outputs of a backward loop as cotangents of the active operands.

    Parameters
    ----------
    outs : outputs of ``adjoint.backward``
    inputs : operands of the loop (for their shapes)

    Returns
    -------
    list
        One for each active operand; a `Zero` where nothing arrives; for a sequence its rows only.
    """
    rows, finals, sums, _, _ = adjoint.backward.split_outputs(outs)
    _, seqs, states, sum_flags, consts = loop.split_inputs(active)
    _, in_seqs, in_states, in_sums, in_consts = loop.split_inputs(inputs)
    rows, sums = iter(rows), iter(sums)
    final = dict(zip(adjoint.states, finals))
    out = []
    if active[0]:
        out.append(Zero((), np.dtype("i8")))
    out += [next(rows) if is_float(x) else Zero(x.shape, x.dtype) for x, flag in zip(in_seqs, seqs) if flag]
    out += [final.get(k, Zero(x.shape, x.dtype)) for k, (x, flag) in enumerate(zip(in_states, states)) if flag]
    out += [Zero(x.shape, x.dtype) for x, flag in zip(in_sums, sum_flags) if flag]
    out += [next(sums) if is_float(x) else Zero(x.shape, x.dtype) for x, flag in zip(in_consts, consts) if flag]
    return out
