"""Statements that are no elementwise walk: writes, joins, running reductions, products, sorting, libraries."""

from nscan.ops.index import result_shape
from nscan.plan import scalar
from nscan.plan.axes import ONE
from nscan.plan.body import copy, emitter, set_place
from nscan.plan.folds import as_number, better, combine, identity
from nscan.plan.kinds import Statement, vector_width
from nscan.plan.nests import Nest
from nscan.plan.scalar import code
from nscan.plan.storage import Place, bound_of, row_major, slot_base, workspace
from nscan.tape import Var


# -------------------------------------------------------------------------------------------------- writes
@emitter("write")
def emit_write(body, s):
    """An indexed write: into the memory of the array it writes to, or into a copy."""
    e, eqn, v = body.e, s.eqn, s.v
    x = eqn.inputs[0]
    if s.into is not None:
        return write_region(e, eqn, s.into)
    target = None
    if v in body.reuse:
        place = e.here(e.define[body.reuse[v]])
        if s.overlaps:
            buffer = workspace(e, eqn.inputs[1])
            copy_part(e, eqn.inputs[1], buffer)
            e.define[eqn.inputs[1]] = buffer
    else:
        target = body.places(v)[0]
        place = e.here(target)
        copy_part(e, x, place)
    write_region(e, eqn, place)
    return set_place(body, v, place, target)


def write_region(e, eqn, place):
    """Store (or add) the values of an indexed write, element by element of its region."""
    spec, operands = eqn.params["spec"], eqn.inputs[2:]
    x, value = eqn.inputs[:2]
    shape = result_shape(spec, x.shape, operands)
    scattered = any(entry[0] == "arr" for entry in spec.entries)
    sizes = [region_size(e, d, value, k - len(shape)) for k, d in enumerate(shape)]
    width = 1 if scattered or e.vector or not shape else vector_width((), (value, eqn.outputs[0]))
    _walk(e, eqn, place, sizes, (), width)


def region_size(e, d, value, axis):
    """Size of an axis of a region: that of the value where it has the axis, else a number."""
    if type(d) is not int:
        return e.elem(d, ())[0]
    if len(value.shape) >= -axis and type(value) is Var:
        c = e.axes.get(value)[axis]
        if c is not ONE:
            return e.size(c)
    return e.b.const(d) if d <= 8 else e.params.get(e.b, ("number", e.params.count_number(d)))


def _walk(e, eqn, place, sizes, idx, width):
    b = e.b
    if len(idx) == len(sizes):
        return _write_element(e, eqn, place, idx)
    size = sizes[len(idx)]
    if hasattr(size, "value") and size.value <= 8:
        for n in range(size.value):
            _walk(e, eqn, place, sizes, (*idx, b.const(n)), width)
        return None
    last = len(idx) == len(sizes) - 1
    wide = last and width > 1
    with b.range(b.const(0), size, width if wide else 1, written={place.slot}) as loop:
        e.vector += wide
        _walk(e, eqn, place, sizes, (*idx, loop.index), width)
        e.vector -= wide
    return None


def _write_element(e, eqn, place, idx):
    x, value = eqn.inputs[:2]
    parts = e.elem(value, e.align(value, idx))
    at = e.region(eqn, eqn.params["spec"], eqn.outputs[0] if type(x) is not Var else x, eqn.inputs[2:], idx)
    if eqn.row.name == "index_add":
        parts = e.plus(e.load(place, at), parts)
    e.store(place, at, parts)


# --------------------------------------------------------------------------------------------------- joins
@emitter("concatenate")
def emit_concatenate(body, s):
    """Store each part at its offset."""
    e, eqn, v = body.e, s.eqn, s.v
    target = body.places(v)[0]
    place = e.here(target)
    axis = eqn.params["axis"]
    start = e.b.const(0)
    for x in eqn.inputs:
        base = e.b.add(place.base, e.b.mul(start, place.strides[axis]))
        part = Place(place.slot, base, place.strides, place.dtype)
        copy_part(e, x, part)
        start = e.b.add(start, e.dim(x, axis))
    set_place(body, v, place, target)


def copy_part(e, x, place):
    """Copy a value to a place with its own axes."""
    whole = tuple(e.axes.get(x)[k] for k in e.looped(x))
    nest = Statement(None, x, "map", whole)
    Nest(e, [nest], {x: [place]}, nest, whole, vector_width((), (x,)) if whole else 1).emit()


@emitter("reshape")
def emit_reshape(body, s):
    """A reshape of looped axes: the same memory with other strides, after a copy if there is none."""
    e, eqn, v = body.e, s.eqn, s.v
    x = eqn.inputs[0]
    source = e.here(e.define[x])
    if type(source) is not Place or not source.contiguous:
        source = workspace(e, x)
        copy(e, x, source)
    set_place(body, v, Place(source.slot, source.base, row_major(e, e.axes.get(v), v.dtype), v.dtype, True))


# -------------------------------------------------------------------------------------- running reductions
@emitter("running")
def emit_running(body, s):
    """A running reduction along a looped axis: loops over the others, one loop along it."""
    e, eqn, v = body.e, s.eqn, s.v
    target = body.places(v)[0]
    place = e.here(target)
    classes = e.axes.get(v)
    axis = eqn.params["axis"]
    others = [k for k in range(len(classes)) if k != axis]
    last = axis == len(classes) - 1
    width = 1 if last or e.vector else vector_width((eqn,), (v,))
    _running_loops(e, eqn, place, others, {}, width)
    set_place(body, v, place, target)


def _running_loops(e, eqn, place, others, at, width):
    b = e.b
    if not others:
        return _run_along(e, eqn, place, at)
    k, c = others[0], e.axes.get(eqn.outputs[0])[others[0]]
    if c.unrolled:
        for n in range(c.size):
            _running_loops(e, eqn, place, others[1:], {**at, k: b.const(n)}, width)
        return None
    wide = width > 1 and len([o for o in others if not e.axes.get(eqn.outputs[0])[o].unrolled]) == 1
    with b.range(b.const(0), e.size(c), width if wide else 1, written={place.slot}) as loop:
        e.vector += wide
        _running_loops(e, eqn, place, others[1:], {**at, k: loop.index}, width)
        e.vector -= wide
    return None


def _run_along(e, eqn, place, at):
    b = e.b
    v, axis, name = eqn.outputs[0], eqn.params["axis"], eqn.row.name
    first = _running_start(e, eqn)
    with b.range(b.const(0), e.dim(v, axis), carries=first, written={place.slot}) as loop:
        idx = tuple(loop.index if k == axis else at[k] for k in range(len(v.shape)))
        new, out = _running_step(e, eqn, name, idx, loop.carried, loop.index)
        e.store(place, idx, out)
        loop.again(new)


def _running_start(e, eqn):
    name, dtype = eqn.row.name, eqn.inputs[0].dtype
    if name in ("cummax_place", "cummin_place"):
        return [*as_number(e, identity(e, "max" if name == "cummax_place" else "min", dtype)), e.b.const(0)]
    if name == "linear_running":
        return list(e.constant(0, dtype))
    return list(identity(e, RUNNING[name], dtype))


RUNNING = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}


def _running_step(e, eqn, name, idx, carried, position):
    here = e.elem(eqn.inputs[0], idx)
    if name in RUNNING:
        out = combine(e, RUNNING[name], tuple(carried), here)
        return list(out), out
    if name == "linear_running":
        drive = e.elem(eqn.inputs[1], idx)
        grown = e.plus(e.multiply(here, tuple(carried)), drive)
        first = e.b.op("eq", "b1", position, e.b.const(0))
        out = e.select(first, drive, grown)
        return list(out), out
    best, at = carried
    here = as_number(e, here)
    wins = better(e, "argmax" if name == "cummax_place" else "argmin", here, (best,))
    best = scalar.op(e.b, "select", wins, here[0], best)
    at = scalar.op(e.b, "select", wins, position, at)
    return [best, at], (at,)


# ------------------------------------------------------------------------------------- sorting and libraries
def rows_of(e, x, axis):
    """Copy a value into fresh memory with one axis last: (Place with the axes moved, order of axes)."""
    order = [k for k in range(len(x.shape)) if k != axis] + [axis]
    classes = [e.axes.get(x)[k] for k in order]
    slot = e.params.new_slot(x.dtype.itemsize, [bound_of(c) for c in classes])
    strides = dict(zip(order, row_major(e, classes, x.dtype)))
    place = Place(("work", slot), slot_base(e, slot), tuple(strides[k] for k in range(len(order))), x.dtype)
    return place, order


@emitter("sort")
def emit_sort(body, s):
    """Sort (or argsort) along an axis: rows are copied to memory and sorted by a helper."""
    e, eqn, v = body.e, s.eqn, s.v
    axis = eqn.params["axis"]
    keys, order = rows_of(e, eqn.inputs[0], axis)
    copy_part(e, eqn.inputs[0], keys)
    if eqn.row.name == "argsort":
        out, _ = rows_of(e, v, axis)
    else:
        out = keys
    kind = code(v.dtype if eqn.row.name == "sort" else eqn.inputs[0].dtype)
    if eqn.inputs[0].dtype.kind == "c":
        kind = eqn.inputs[0].dtype.str[1:]
    address = e.params.get(e.b, ("function", f"{eqn.row.name}_{kind}"))
    scratch = slot_base(e, e.params.new_slot(8, [bound_of(e.axes.get(v)[axis])]))
    for_each_row(e, v, axis, lambda at: e.b.statement(
        "call", "row", address.id, (e.address(keys, at).id, e.address(out, at).id, e.dim(v, axis).id, scratch.id)),
        {keys.slot, out.slot})
    e.b.wrote(keys.slot)
    e.b.wrote(out.slot)
    set_place(body, v, out)


def for_each_row(e, v, axis, emit, written):
    """Loops over all axes but one."""
    def level(k, at):
        if k == len(v.shape):
            return emit(at)
        if k == axis:
            return level(k + 1, (*at, e.b.const(0)))
        c = e.axes.get(v)[k]
        if c.unrolled:
            for n in range(c.size):
                level(k + 1, (*at, e.b.const(n)))
            return None
        with e.b.range(e.b.const(0), e.size(c), written=written) as loop:
            level(k + 1, (*at, loop.index))
        return None
    level(0, ())


def matrix_copy(e, x):
    """Copy a value to fresh memory in C order, for a library call."""
    place = workspace(e, x)
    copy(e, x, place)
    return place


@emitter("library")
def emit_library(body, s):
    """Linear algebra by LAPACK: operands are copied, a helper works on each matrix of a batch."""
    e, eqn = body.e, s.eqn
    a = eqn.inputs[0]
    operands = [matrix_copy(e, x) for x in eqn.inputs]
    outs = [workspace(e, v) for v in eqn.outputs]
    kind = a.dtype.str[1:]
    name = f"{eqn.row.name}_{kind}"
    address = e.params.get(e.b, ("function", name))
    routines = [e.params.get(e.b, ("lapack", name, k)) for k in range(2)]
    widest = max(((d, k) for k, d in enumerate(a.shape[-2:])), default=(1, 0))[1] - 2
    bound = bound_of(e.axes.get(a)[widest])
    right = bound_of(e.axes.get(eqn.inputs[1])[-1]) if len(eqn.inputs) > 1 else 1
    scratch = [slot_base(e, e.params.new_slot(16, sizes)) for sizes in ([12, bound, bound, right], [64, bound, right])]
    depth = len(eqn.outputs[0].shape) - {"solve": 2, "inv": 2, "cholesky": 2, "det": 0, "slogdet": 0, "eigh": 1, "svd": 2,
                                         "qr": 2}[eqn.row.name]
    sizes = [e.dim(a, len(a.shape) - 2), e.dim(a, len(a.shape) - 1),
             e.dim(eqn.inputs[1], len(eqn.inputs[1].shape) - 1) if len(eqn.inputs) > 1 else e.b.const(0)]

    def level(k, at):
        if k == depth:
            pointers = [e.address(p, _batch(e, x, at, 2)).id for x, p in zip(eqn.inputs, operands)]
            pointers += [e.address(p, _batch(e, v, at, len(v.shape) - depth)).id for v, p in zip(eqn.outputs, outs)]
            status = e.b.new("i8")
            extra = [n.id for n in (*sizes, *routines, *scratch)]
            e.b.statement("call", "matrix", address.id, (*pointers, *extra), status.id)
            reason = "definite" if eqn.row.name == "cholesky" else "singular"
            e.fail(e.b.op("ne", "b1", status, e.b.const(0)), reason, eqn)
            return None
        c = e.axes.get(eqn.outputs[0])[k]
        if c.unrolled:
            for n in range(c.size):
                level(k + 1, (*at, e.b.const(n)))
            return None
        with e.b.range(e.b.const(0), e.size(c), written={p.slot for p in outs}) as loop:
            level(k + 1, (*at, loop.index))
        return None
    level(0, ())
    for v, place in zip(eqn.outputs, outs):
        e.b.wrote(place.slot)
        e.define[v] = place
        for other in body.dest.get(v, ()):
            copy(e, v, other)


def _batch(e, x, at, own):
    """Index of an operand or result that belongs to a batch index: zero on its `own` last axes."""
    depth = len(x.shape) - own
    lead = at[len(at) - depth:]
    lead = tuple(e.b.const(0) if type(d) is int and d == 1 else i for d, i in zip(x.shape, lead))
    return (*lead, *[e.b.const(0)] * (len(x.shape) - len(lead)))


