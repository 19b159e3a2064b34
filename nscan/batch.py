"""Batching: the same tape for many lanes at once.

`batch` gives some inputs of a tape one more axis, the lanes, and follows it through every equation: what depends on no such
input stays as it is. A value with lanes has their axis in front. Behind a loop its rows have the axis of steps in front and
the lanes next to it, and stay so (`Lanes.timed`) through what leaves the two in place.
"""

import dataclasses

from nscan.grad import loop as rule
from nscan.primitive import TABLE
from nscan.tape import RESIDUAL, Eqn, Lit, Tape, Var


class Unbatchable(Exception):
    """A tape that cannot be batched: sizes that are data, loops that stop, rows without a rule."""


class Kept:
    """The residual of a loop: the rows that stand for it, as values of their own."""

    def __init__(self, rows):
        self.rows = rows


class Lanes:
    """A value with lanes: in front, or behind the first axis of the value (`timed`), or both."""

    __slots__ = ("front", "timed")

    def __init__(self, front=None, timed=None):
        self.front = front
        self.timed = timed

    @property
    def shape(self):
        """Shape of the value in each lane."""
        return tuple(self.front.shape[1:]) if self.front is not None else (self.timed.shape[0], *self.timed.shape[2:])


def batch(tape, flags, size, wanted=None):
    """Give inputs of a tape an axis of lanes.

    Parameters
    ----------
    tape : Tape
    flags : sequence of bool
        Which inputs have lanes.
    size : int
        Number of lanes.
    wanted : sequence of bool, optional
        Which outputs must have lanes even if they are the same in all of them.

    Returns
    -------
    tape : Tape
        With the axis in front of the inputs, and of the outputs, that have lanes.
    flags : list of bool
        Which outputs have lanes.

    Raises
    ------
    Unbatchable
    """
    b = _Batcher(tape, size)
    inputs = tuple(b.declare(v, flag) for v, flag in zip(tape.inputs, flags))
    for q in tape.eqns:
        b.equation(q)
    outs = [b.read(v) for v in tape.outputs]
    found = [type(x) is Lanes or want for x, want in zip(outs, wanted or [False] * len(outs))]
    outputs = tuple(b.repeated(x, v.shape) if flag else x for x, v, flag in zip(outs, tape.outputs, found))
    return Tape(inputs, tuple(b.eqns), outputs), found


def batch_loop(loop, flags, size):
    """Batch a loop without sums over its operands: (loop, which states and constants have lanes, which rows).

    A state has lanes if its initial value has, or what the step makes of it.
    """
    seqs, a = flags[:loop.seqs], loop.seqs + loop.states
    states, consts = list(flags[loop.seqs:a]), flags[a:]
    while True:
        wanted = [*states, *[False] * (len(loop.step.outputs) - len(states))]
        step, found = batch(loop.step, [*seqs, *states, *consts], size, wanted)
        if found[:len(states)] == states:
            return dataclasses.replace(loop, step=step), [*states, *consts], found[len(states):]
        states = found[:len(states)]


class _Batcher:
    """Builds the batched tape, equation by equation."""

    def __init__(self, tape, size):
        self.size = size
        self.env, self.eqns, self.where = {}, [], None
        self.count = max([v.id for v in tape.inputs] + [v.id for q in tape.eqns for v in q.outputs], default=0)

    def declare(self, v, flag):
        """Declare an input."""
        _check_static(v)
        self.env[v] = v
        if flag:
            self.count += 1
            self.env[v] = Lanes(Var((self.size, *v.shape), v.dtype, self.count))
            return self.env[v].front
        return v

    def read(self, v):
        """What stands for a value of the tape: a Lit, a Var without lanes, or Lanes."""
        return v if type(v) is Lit else self.env[v]

    def equation(self, q):
        """Append what an equation becomes."""
        for v in q.outputs:
            if v.dtype is not RESIDUAL:
                _check_static(v)
        self.where = q.where
        inputs = [self.read(v) for v in q.inputs]
        if not any(type(x) in (Lanes, Kept) for x in inputs) and not (q.row.name == "loop" and q.params["loop"].hidden):
            self.eqns.append(Eqn(q.row, tuple(inputs), q.outputs, q.params, q.where))
            self.env.update((v, v) for v in q.outputs)
            return
        apply = RULES.get(q.row.name) or (RULES.get(q.row.kind) if q.row.kind != "loop" else None)
        if apply is None:
            raise Unbatchable(q.row.name)
        outs = apply(self, q, inputs)
        self.env.update(zip(q.outputs, outs if type(outs) is list else [outs]))

    def emit(self, row, inputs, params):
        """Append an equation and return its outputs."""
        outputs = []
        for shape, dtype in row.infer(*inputs, **params):
            self.count += 1
            outputs.append(Var(tuple(shape), dtype, self.count))
        self.eqns.append(Eqn(row, tuple(inputs), tuple(outputs), params, self.where))
        return outputs

    def one(self, name, *inputs, **params):
        """Append an equation with one output and return that."""
        return self.emit(TABLE[name], inputs, params)[0]

    # ------------------------------------------------------------------------------------------ layouts
    def front(self, x, ndim=None):
        """Lanes in front of a value, or of as many axes as it is to have (new ones of size 1); others as they are."""
        if type(x) is not Lanes:
            return x
        if x.front is None:
            x.front = self.one("transpose", x.timed, perm=_swapped(len(x.timed.shape)))
        return x.front if ndim is None else self._led(x.front, 1, ndim)

    def _led(self, x, lead, ndim):
        """Insert axes of size 1 behind the first `lead` axes until there are `ndim` more."""
        missing = ndim - (len(x.shape) - lead)
        return x if missing <= 0 else self.reshape(x, (*x.shape[:lead], *[1] * missing, *x.shape[lead:]))

    def reshape(self, x, shape):
        """Give another shape."""
        return x if tuple(x.shape) == tuple(shape) else self.one("reshape", x, template=tuple(shape))

    def timed(self, x):
        """Lanes behind the first axis of a value."""
        if x.timed is None:
            x.timed = self.one("transpose", x.front, perm=_swapped(len(x.front.shape)))
        return x.timed

    def repeated(self, x, shape):
        """Lanes in front of a value of a shape, all the same if it has none."""
        if type(x) is Lanes:
            return self.front(x)
        target = (self.size, *shape)
        return self.one("broadcast_to" if shape else "fill", x, template=target)

    def aligned(self, x, ndim):
        """An operand of an elementwise equation of `ndim` axes, in the layout `timed`."""
        if type(x) is not Lanes:
            if len(x.shape) < ndim:
                return x
            return self.reshape(x, (x.shape[0], 1, *x.shape[1:]))
        if len(x.shape) == ndim:
            return self.timed(x)
        x = self.front(x, ndim - 1)
        return self.reshape(x, (1, *x.shape))


def _swapped(ndim):
    return (1, 0, *range(2, ndim))


def _check_static(v):
    if any(type(d) is not int for d in v.shape) or v.dtype is RESIDUAL:
        raise Unbatchable("a size that is data, or a residual")


def _is_timed(x):
    return type(x) is Lanes and x.front is None


# -------------------------------------------------------------------------------------------------- rules
def _pointwise(b, q, inputs):
    ndim = len(q.outputs[0].shape)
    if any(_is_timed(x) and len(x.shape) == ndim for x in inputs):
        return Lanes(timed=b.emit(q.row, [b.aligned(x, ndim) for x in inputs], q.params)[0])
    return Lanes(b.emit(q.row, [b.front(x, ndim) for x in inputs], q.params)[0])


def _reduction(b, q, inputs):
    x, axes = inputs[0], q.params["axes"]
    if _is_timed(x):
        out = b.emit(q.row, [x.timed], {"axes": tuple(k + (k > 0) for k in axes)})[0]
        return Lanes(out) if 0 in axes else Lanes(timed=out)
    return Lanes(b.emit(q.row, [b.front(x)], {"axes": tuple(k + 1 for k in axes)})[0])


def _contract(b, q, inputs):
    la, lb, lo = (q.params[k] for k in ("la", "lb", "lo"))
    lane = max((*la, *lb, *lo), default=0) + 1
    la, lb = ((lane, *labels) if type(x) is Lanes else labels for x, labels in zip(inputs, (la, lb)))
    return Lanes(b.one("contract", *[b.front(x) for x in inputs], la=la, lb=lb, lo=(lane, *lo)))


def _index(b, q, inputs):
    x, spec = inputs[0], q.params["spec"]
    if type(x) is not Lanes:
        return _look_up(b, q, inputs)
    _check_index(inputs[1:], spec)
    whole = ("slice", 0, b.size, 1)
    first = spec.entries[0] if spec.entries else None
    if _is_timed(x) and spec.is_static and first and first[0] != "new":
        spec = dataclasses.replace(spec, entries=(first, whole, *spec.entries[1:]))
        out = b.one("index", b.timed(x), spec=spec)
        return Lanes(out) if first[0] == "at" else Lanes(timed=out)
    return Lanes(b.one("index", b.front(x), *inputs[1:], spec=_led_index(spec, whole)))


def _look_up(b, q, inputs):
    """Read an array that is the same for all lanes at places of each lane: indices become arrays over lanes."""
    spec = q.params["spec"]
    kinds = [e[0] for e in spec.entries]
    if "dyn" in kinds:
        raise Unbatchable("a slice whose bounds are data")
    places = [k for k, kind in enumerate(kinds) if kind in ("arr", "at", "atop")]
    apart = places[-1] - places[0] >= len(places)
    before = 0 if apart else places[0]
    entries = tuple(("arr", e[1]) if e[0] == "atop" else e for e in spec.entries)
    ndim = max(len(v.shape) for v in q.inputs[1:])
    operands = [b.front(x, ndim) for x in inputs[1:]]
    out = b.one("index", inputs[0], *operands, spec=dataclasses.replace(spec, entries=entries, place=before))
    perm = (before, *[k for k in range(len(out.shape)) if k != before])
    return Lanes(out if not before else b.one("transpose", out, perm=perm))


def _write(b, q, inputs):
    x, v, *operands = inputs
    spec = q.params["spec"]
    _check_index(operands, spec)
    (shape, _), = TABLE["index"].infer(q.inputs[0], *q.inputs[2:], spec=spec)
    base = b.repeated(x, q.inputs[0].shape)
    return Lanes(b.one(q.row.name, base, b.front(v, len(shape)), *operands, spec=_led_index(spec, ("slice", 0, b.size, 1))))


def _check_index(operands, spec):
    """Refuse an index that differs from lane to lane, and arrays of rows on axes that do not lie side by side."""
    places = [k for k, e in enumerate([e for e in spec.entries]) if e[0] in ("arr", "at", "atop")]
    apart = spec.place is not None and places[-1] - places[0] >= len(places)
    if apart or any(type(x) is Lanes for x in operands):
        raise Unbatchable("an index")


def _led_index(spec, whole):
    place = None if spec.place is None else spec.place + 1
    return dataclasses.replace(spec, entries=(whole, *spec.entries), place=place)


def _repeat(b, q, inputs):
    shape = q.outputs[0].shape
    return Lanes(b.one("broadcast_to", b.front(inputs[0], len(shape)), template=(b.size, *shape)))


def _reshape(b, q, inputs):
    return Lanes(b.reshape(b.front(inputs[0]), (b.size, *q.outputs[0].shape)))


def _transpose(b, q, inputs):
    return Lanes(b.one("transpose", b.front(inputs[0]), perm=(0, *[k + 1 for k in q.params["perm"]])))


def _along(b, q, inputs):
    """Rows that work along one axis of operands of one shape."""
    parts = [b.repeated(x, v.shape) for x, v in zip(inputs, q.inputs)]
    return Lanes(b.emit(q.row, parts, {**q.params, "axis": q.params["axis"] + 1})[0])


def _searchsorted(b, q, inputs):
    if type(inputs[0]) is Lanes:
        raise Unbatchable("searchsorted in an array of each lane")
    return Lanes(b.emit(q.row, [inputs[0], b.front(inputs[1])], q.params)[0])


def _linalg(b, q, inputs):
    ndim = max(len(v.shape) for v in q.inputs)
    return [Lanes(v) for v in b.emit(q.row, [b.front(x, ndim) for x in inputs], q.params)]


def _loop(b, q, inputs):
    loop = q.params["loop"]
    shown, m = loop.rows, loop.rows + loop.hidden
    outs = _bind_loop(b, loop, inputs, q.inputs)
    return [*outs[:shown], *outs[m:], *([Kept(outs[shown:m])] if loop.hidden else [])]


def _bind_loop(b, loop, inputs, like):
    """Append a loop, residual rows among its rows; `like` are operands of the shapes without lanes. Its outputs."""
    if loop.stop or not set(loop.watch) <= {"profile"} or type(inputs[0]) is not Lit:
        raise Unbatchable("a loop that stops, is watched, or whose length is data")
    # A sum has no reverse rule of its own; as a state it has, and the planner makes a sum of it again.
    loop = dataclasses.replace(loop, rows=loop.rows + loop.hidden, hidden=0, keep=None, partner=None, states=loop.states + loop.sums,
                               sums=0, state_names=(*loop.state_names, *[""] * loop.sums))
    inner, kept, rows = batch_loop(loop, [type(x) is Lanes for x in inputs[1:]], b.size)
    seqs = [b.timed(x) if type(x) is Lanes else x for x in inputs[1:1 + loop.seqs]]
    rest = zip(inputs[1 + loop.seqs:], like[1 + loop.seqs:], kept)
    rest = [b.repeated(x, v.shape) if flag else x for x, v, flag in rest]
    outs = b.emit(TABLE["loop"], [inputs[0], *seqs, *rest], {"loop": inner})
    timed = [Lanes(timed=v) if flag else v for v, flag in zip(outs[:loop.rows], rows)]
    return [*timed, *[Lanes(v) if flag else v for v, flag in zip(outs[loop.rows:], kept)]]


def _adjoint(b, q, inputs):
    """The adjoint of a loop becomes an ordinary loop over the reversed steps, as in `nscan.plan.memory`."""
    loop, active, with_ct = (q.params[k] for k in ("loop", "active", "with_ct"))
    found, operands = rule.adjoint_operands(loop, active, with_ct, q.inputs)
    if any(v.dtype is RESIDUAL and type(x) is not Kept for v, x in zip(q.inputs, inputs)) or found.extra:
        raise Unbatchable("a residual from elsewhere")

    def value(x):
        if type(x) is rule.Hidden:
            return b.read(x.residual).rows[x.index]
        if type(x) is rule.Zero:
            return b.one("fill", Lit(0, x.dtype), template=tuple(x.shape)) if x.shape else Lit(0, x.dtype)
        return b.read(x)
    values = [value(x) for x in operands]
    like = [x if type(x) is not rule.Hidden else None for x in operands]
    outs = _bind_loop(b, found.backward, values, like)
    back = rule.adjoint_results(found, loop, active, outs, rule.split_adjoint(loop, with_ct, q.inputs)[1])
    back = [value(x) if type(x) is rule.Zero else x for x in back]
    if any(tuple(x.shape) != tuple(v.shape) for x, v in zip(back, q.outputs)):
        raise Unbatchable("a sequence of which only some rows were read")
    return back


RULES = {"pointwise": _pointwise, "reduction": _reduction, "contract": _contract, "index": _index, "index_update": _write,
         "index_add": _write, "fill": _repeat, "broadcast_to": _repeat, "reshape": _reshape, "transpose": _transpose,
         "concatenate": _along, "running": _along, "sort": _along, "argsort": _along, "searchsorted": _searchsorted,
         "linalg": _linalg, "loop": _loop, "loop_adjoint": _adjoint}
