"""Rules of elements: what one element of a result is, in elements of the operands."""

import functools

import numpy as np

from nscan.plan import scalar, small
from nscan.plan.axes import ONE, factor_pairs
from nscan.plan.folds import as_number, better, combine, combine_all, fold_here, full_index, identity
from nscan.plan.program import I64, ZERO, Const
from nscan.plan.storage import Place, Rows
from nscan.tape import Lit


def _pointwise(e, eqn, idx, k):
    return e.formula(eqn.row, eqn, [e.elem(x, e.align(x, idx)) for x in eqn.inputs])


def _first(e, eqn, idx, k):
    x = eqn.inputs[0]
    return e.elem(x, e.align(x, idx))


def _transpose(e, eqn, idx, k):
    perm = eqn.params["perm"]
    back = [None] * len(perm)
    for to, at in enumerate(perm):
        back[at] = idx[to]
    return e.elem(eqn.inputs[0], tuple(back))


def _reshape(e, eqn, idx, k):
    return e.elem(eqn.inputs[0], reshaped_index(e, eqn.inputs[0], eqn.outputs[0], idx))


def reshaped_index(e, x, y, idx):
    """Index of x that belongs to an index of its reshaped form y."""
    out = [ZERO] * len(x.shape)
    for of_x, of_y in factor_pairs(x.shape, y.shape):
        if len(of_x) == 1 and len(of_y) == 1:
            out[of_x[0]] = idx[of_y[0]]
            continue
        flat = e.b.const(0)
        for j in of_y:
            flat = e.b.add(e.b.mul(flat, e.dim(y, j)), idx[j])
        for i in reversed(of_x[1:]):
            size = e.dim(x, i)
            out[i] = _int(e, "int_rem", flat, size)
            flat = _int(e, "int_div", flat, size)
        out[of_x[0]] = flat
    return tuple(out)


def _int(e, name, a, b):
    if type(a) is Const and type(b) is Const:
        return e.b.const(a.value % b.value if name == "int_rem" else a.value // b.value)
    if type(b) is Const and b.value == 1:
        return e.b.const(0) if name == "int_rem" else a
    return e.b.op(name, I64, a, b)


def _index(e, eqn, idx, k):
    x = eqn.inputs[0]
    at = e.region(eqn, eqn.params["spec"], x, eqn.inputs[1:], idx)
    return dynamic(e, x, at)


def dynamic(e, x, idx):
    """Return an element at indices that may be data on unrolled axes without memory: chosen among all."""
    idx = tuple(ZERO if c is ONE else i for i, c in zip(idx, e.axes.get(x)))
    for axis, (i, c) in enumerate(zip(idx, e.axes.get(x))):
        if type(i) is not Const and c.unrolled and needs_constant(e, x):
            parts = dynamic(e, x, (*idx[:axis], e.b.const(0), *idx[axis + 1:]))
            for n in range(1, c.size):
                other = dynamic(e, x, (*idx[:axis], e.b.const(n), *idx[axis + 1:]))
                parts = e.select(e.b.op("eq", "b1", i, e.b.const(n)), other, parts)
            return parts
    return e.elem(x, idx)


def needs_constant(e, x):
    """Whether elements of a value on unrolled axes exist for constant indices only."""
    how = e.define[x]
    if type(how) in (Place, Rows):
        return False
    if how[0] == "alias":
        return needs_constant(e, how[1])
    if how[0] == "scalars":
        return True
    eqn = how[1]
    if eqn.row.kind in ("pointwise", "linear") and eqn.row.name not in ("concatenate", "index_update", "index_add"):
        return any(needs_constant(e, v) for v in eqn.inputs if type(v) is not Lit and v.shape)
    return True


def _concatenate(e, eqn, idx, k):
    axis = eqn.params["axis"]
    at, start = idx[axis].value, 0
    for x in eqn.inputs:
        size = x.shape[axis]
        if at < start + size:
            return e.elem(x, (*idx[:axis], e.b.const(at - start), *idx[axis + 1:]))
        start += size
    raise AssertionError("an index beyond the end of a concatenation")


def _reduce(e, eqn, idx, k):
    """A reduction whose reduced axes are unrolled, or a loop in place."""
    x, axes = eqn.inputs[0], eqn.params["axes"]
    classes = e.axes.get(x)
    if all(classes[a].unrolled for a in axes):
        return _reduce_unrolled(e, eqn, idx, axes)
    return fold_here(e, eqn, idx)


def _reduce_unrolled(e, eqn, idx, axes):
    x = eqn.inputs[0]
    sizes = [x.shape[a] for a in axes]
    points = [full_index(len(x.shape), axes, idx, [e.b.const(int(n)) for n in point]) for point in np.ndindex(*sizes)]
    name = eqn.row.name
    if name in ("argmax", "argmin"):
        return _arg_unrolled(e, x, points, name)
    parts = [e.elem(x, p) for p in points]
    if not parts:
        return identity(e, name, eqn.outputs[0].dtype)
    return combine_all(e, name, parts)


def _arg_unrolled(e, x, points, name):
    best, at = as_number(e, e.elem(x, points[0])), e.b.const(0)
    for n, p in enumerate(points[1:], 1):
        other = as_number(e, e.elem(x, p))
        wins = better(e, name, other, best)
        best = e.select(wins, other, best)
        at = scalar.op(e.b, "select", wins, e.b.const(n), at)
    return (at,)


def _contract(e, eqn, idx, k):
    """A product whose summed axes are unrolled."""
    p = eqn.params
    a, b = eqn.inputs
    fixed = dict(zip(p["lo"], idx))
    summed = [n for n in p["la"] if n not in p["lo"]]
    sizes = dict(zip(p["la"], a.shape))
    parts = []
    for point in np.ndindex(*[sizes[n] for n in summed]):
        at = {**fixed, **{n: e.b.const(int(i)) for n, i in zip(summed, point)}}
        parts.append(e.multiply(e.elem(a, tuple(at[n] for n in p["la"])), e.elem(b, tuple(at[n] for n in p["lb"]))))
    return combine_all(e, "sum", parts) if parts else e.constant(0, eqn.outputs[0].dtype)


def _running(e, eqn, idx, k):
    """A running reduction along an unrolled axis."""
    axis, name = eqn.params["axis"], eqn.row.name
    at = idx[axis].value
    here = e.elem(eqn.inputs[0], idx)
    before = (*idx[:axis], e.b.const(at - 1), *idx[axis + 1:])
    if name in ("cummax_place", "cummin_place"):
        return _place_unrolled(e, eqn, idx, axis, at)
    if name == "linear_running":
        drive = e.elem(eqn.inputs[1], idx)
        return e.plus(e.multiply(here, e.elem(eqn.outputs[0], before)), drive) if at else drive
    if not at:
        return here
    return combine(e, {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}[name],
                   e.elem(eqn.outputs[0], before), here)


def _place_unrolled(e, eqn, idx, axis, at):
    points = [(*idx[:axis], e.b.const(n), *idx[axis + 1:]) for n in range(at + 1)]
    return _arg_unrolled(e, eqn.inputs[0], points, eqn.row.name)


def _update(e, eqn, idx, k):
    """An indexed write into a value whose axes are unrolled: each element chooses."""
    x, v = eqn.inputs[:2]
    spec = eqn.params["spec"]
    old = e.elem(x, idx)
    region_shape = small.region_shape(spec, x, eqn.inputs[2:])
    for point in np.ndindex(*region_shape):
        at = tuple(e.b.const(int(i)) for i in point)
        where = e.region(eqn, spec, x, eqn.inputs[2:], at)
        new = e.elem(v, e.align(v, at))
        if eqn.row.name == "index_add":
            new = e.plus(old, new)
        if all(type(i) is Const and type(w) is Const for i, w in zip(idx, where)):
            if all(i.value == w.value for i, w in zip(idx, where)):
                old = new
            continue
        hit = e.b.const(True, "b1")
        for i, w in zip(idx, where):
            if not (type(i) is Const and type(w) is Const and i.value == w.value):
                same = e.b.op("eq", "b1", i, w)
                hit = same if type(hit) is Const else e.b.op("and", "b1", hit, same)
        if not any(type(i) is Const and type(w) is Const and i.value != w.value for i, w in zip(idx, where)):
            old = e.select(hit, new, old)
    return old


def _size(e, eqn, idx, k):
    """Bounds and sizes of slices whose bounds are data."""
    b = e.b
    args = [e.elem(x, ())[0] for x in eqn.inputs]
    if eqn.row.name == "same_size":
        e.fail(b.op("ne", "b1", args[0], args[1]), "size", eqn, *args)
        return (args[0],)
    if eqn.row.name == "step_count":
        return (_step_count(e, eqn, *args),)
    if eqn.row.name == "slice_bound":
        v, n = args
        v = scalar.op(b, "select", b.op("lt", "b1", v, b.const(0)), b.add(v, n), v)
        low, high = b.const(eqn.params["low"]), b.add(n, b.const(eqn.params["high"]))
        v = scalar.op(b, "select", b.op("lt", "b1", v, low), low, v)
        return (scalar.op(b, "select", b.op("gt", "b1", v, high), high, v),)
    start, stop = args
    step = eqn.params["step"]
    gap = b.sub(stop, start) if step > 0 else b.sub(start, stop)
    if abs(step) > 1:
        gap = _int(e, "int_div", b.add(gap, b.const(abs(step) - 1)), b.const(abs(step)))
    return (scalar.op(b, "select", b.op("lt", "b1", gap, b.const(0)), b.const(0), gap),)


def _step_count(e, eqn, n, *rows):
    """Check a number of steps that is data; one that is impossible is recorded and replaced by 0."""
    b = e.b
    bad = b.op("lt", "b1", n, b.const(0))
    e.fail(bad, "negative", eqn, n)
    if rows:
        least = functools.reduce(lambda x, y: scalar.smallest(b, x, y), rows)
        over = b.op("gt", "b1", n, least)
        e.fail(over, "steps", eqn, n, least)
        bad = b.op("or", "b1", bad, over)
    return scalar.op(b, "select", bad, b.const(0), n)


def _searchsorted(e, eqn, idx, k):
    """Place in a sorted array by bisection with a fixed number of steps: no branch depends on data."""
    b = e.b
    a, v = eqn.inputs
    want = e.elem(v, idx)[0]
    n = e.dim(a, 0)
    rounds = b.op("bits", I64, n)
    with b.range(b.const(0), rounds, carries=(b.const(0), n)) as loop:
        low, high = loop.carried
        middle = b.op("shr", I64, b.add(low, high), b.const(1))
        safe = scalar.op(b, "select", b.op("lt", "b1", low, high), middle, b.const(0))
        here = dynamic(e, a, (safe,))[0]
        goes = b.op("lt" if eqn.params["side"] == "left" else "le", "b1", here, want)
        if here.dtype[0] == "f":
            nan = b.op("and", "b1", b.op("ne", "b1", want, want), b.op("eq", "b1", here, here))
            goes = b.op("or", "b1", goes, nan)
        inside = b.op("lt", "b1", low, high)
        up = b.op("and", "b1", goes, inside)
        down = b.op("and", "b1", b.op("not", "b1", goes), inside)
        loop.again([scalar.op(b, "select", up, b.add(middle, b.const(1)), low), scalar.op(b, "select", down, middle, high)])
    return (loop.results[0],)


RULES = {
    "pointwise": _pointwise, "fill": lambda e, eqn, idx, k: e.elem(eqn.inputs[0], ()), "broadcast_to": _first,
    "transpose": _transpose, "reshape": _reshape, "index": _index, "concatenate": _concatenate, "reduction": _reduce,
    "contract": _contract, "running": _running, "index_update": _update, "index_add": _update, "size": _size,
    "searchsorted": _searchsorted, "linalg": small.element,
}
