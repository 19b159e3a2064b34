"""Indexing: basic and advanced, with traced integers and slices whose bounds are data.

One specification (`IndexSpec`) serves three rows: `index` reads, `index_update` and `index_add` write. It has
an entry for each axis of the array, in order:

===============  ================================================================================
entry            meaning
===============  ================================================================================
("slice", a, n, s)   rows a, a+s, ...: n of them, all known while tracing
("dyn", k, m, s)     rows from operand k on, operand m of them, in steps s
("at", i)            one row, known while tracing; the axis goes away
("atop", k)          one row, operand k; the axis goes away
("arr", k)           operand k is an array of rows (advanced indexing)
("new",)             a new axis of size 1
===============  ================================================================================

`place` says where the axes of advanced indices go in the result.
"""

import dataclasses

import numpy as np

from nscan import errors
from nscan.array import TABLE_WRITE, as_array, as_operand, astype, promotable, traced, view
from nscan.ops.reduction import axes_of
from nscan.primitive import TABLE, bind, broadcast, composite, custom, full, repeat_to, same_shape, shape_text, unbroadcast
from nscan.trace import Traced

INT = np.dtype("i8")


@dataclasses.dataclass(frozen=True)
class IndexSpec:
    """An index, parsed: entries and the place of the advanced axes (None without such)."""

    entries: tuple
    place: object = None

    def key(self):
        """Hashable content."""
        return self.entries, self.place

    def brief(self):
        """Short text for printed tapes."""
        return "[" + ", ".join("".join(map(str, e)) for e in self.entries) + "]"

    @property
    def moving(self):
        """Numbers of the operands."""
        return [k for e in self.entries for k in (e[1:3] if e[0] == "dyn" else e[1:2] if e[0] in ("atop", "arr") else ())]

    @property
    def is_static(self):
        """No operand: a view at fixed places."""
        return not self.moving


def result_shape(spec, shape, operands):
    """Shape of what an index reads."""
    basic, before = [], 0
    axes = iter(shape)
    for entry in spec.entries:
        kind = entry[0]
        if kind == "new":
            basic.append(1)
            continue
        next(axes)
        if kind == "slice":
            basic.append(entry[2])
        elif kind == "dyn":
            basic.append(operands[entry[2]])
    if spec.place is None:
        return tuple(basic)
    arrays = [operands[e[1]].shape for e in spec.entries if e[0] == "arr"]
    middle = broadcast(*arrays) if arrays else ()
    before = spec.place
    return (*basic[:before], *middle, *basic[before:])


def numpy_index(spec, shape, operands):
    """Build the NumPy index of a specification for real operands."""
    out = []
    axis = 0
    for entry in spec.entries:
        kind = entry[0]
        if kind == "new":
            out.append(None)
            continue
        size = shape[axis]
        axis += 1
        if kind == "slice":
            out.append(_slice(entry[1], entry[2], entry[3]))
        elif kind == "dyn":
            out.append(_slice(int(operands[entry[1]]), int(operands[entry[2]]), entry[3]))
        elif kind == "at":
            out.append(entry[1])
        else:
            index = operands[entry[1]]
            _check_range(index, size, axis - 1)
            out.append(int(index) if kind == "atop" else np.asarray(index))
    return _same_place(tuple(out), spec)


def _same_place(index, spec):
    """Keep NumPy's own placing of advanced axes: ints beside arrays take part in it."""
    if spec.place is None:
        return index
    return tuple(np.asarray(i) if isinstance(i, int) else i for i in index)


def _slice(start, size, step):
    stop = start + size * step
    return slice(start, None if step < 0 and stop < 0 else stop, step)


def _check_range(index, size, axis):
    index = np.asarray(index)
    bad = (index < -size) | (index >= size)
    if bad.any():
        raise errors.IndexRangeError(f"index {index[bad].ravel()[0]} is out of bounds for axis {axis} with size {size}")


def _read_infer(x, *operands, spec):
    return ((result_shape(spec, x.shape, operands), x.dtype),)


def _read_eager(x, *operands, spec):
    return x[numpy_index(spec, x.shape, operands)]


def _write_eager(add):
    def run(x, v, *operands, spec):
        out = np.array(x)
        where = numpy_index(spec, x.shape, operands)
        if add:
            np.add.at(out, where, v)
        else:
            out[where] = v
        return out
    return run


def _zeros(at, i):
    from nscan.primitive import zeros_like
    return zeros_like(at, i)


def _operands(at, first):
    return [at.x(i) for i in range(first, at.count)]


def _read_jvp(tangents, at, spec):
    return (bind(TABLE["index"], (tangents[0], *_operands(at, 1)), {"spec": spec}),)


class Scatter:
    """A cotangent that touches part of an array: added to the rest in place, never as an array of zeros."""

    __slots__ = ("value", "operands", "spec")

    def __init__(self, value, operands, spec):
        self.value = value
        self.operands = operands
        self.spec = spec

    def add_to(self, dense):
        """Add this to a dense cotangent."""
        return bind(TABLE["index_add"], (dense, self.value, *self.operands), {"spec": self.spec})


def _read_vjp(cts, at, spec):
    return [Scatter(cts[0], _operands(at, 1), spec), *[None] * (at.count - 1)]


custom("index", infer=_read_infer, eager=_read_eager, jvp=_read_jvp, vjp=_read_vjp, kind="linear")


def _write_infer(x, v, *operands, spec):
    return ((x.shape, x.dtype),)


def _write_jvp(name):
    def jvp(tangents, at, spec):
        tx, tv = (_zeros(at, i) if tangents[i] is None else tangents[i] for i in range(2))
        return (bind(TABLE[name], (tx, tv, *_operands(at, 2)), {"spec": spec}),)
    return jvp


def _update_vjp(cts, at, spec):
    ct, operands = cts[0], _operands(at, 2)
    dx = dv = None
    if at.needs[0]:
        zero = full(at.shape(1), 0, ct.dtype)
        dx = bind(TABLE["index_update"], (ct, zero, *operands), {"spec": spec})
    if at.needs[1] and not any(e[0] == "arr" for e in spec.entries):
        dv = unbroadcast(bind(TABLE["index"], (ct, *operands), {"spec": spec}), at.shape(1))
    return [dx, dv, *[None] * (at.count - 2)]


def _update_vjp_arrays(cts, at, spec):
    """Where an index holds arrays, an element may be written twice: the last write counts."""
    out = _update_vjp(cts, at, spec)
    if at.needs[1] and any(e[0] == "arr" for e in spec.entries):
        operands = _operands(at, 2)
        order = _numbering(at.shape(1), cts[0])
        full_order = repeat_to(order, result_shape(spec, at.shape(0), operands))
        winner = bind(TABLE["index_update"], (_marks(at, cts[0]), full_order, *operands), {"spec": spec})
        won = bind(TABLE["index"], (winner, *operands), {"spec": spec}) == full_order
        ct = bind(TABLE["index"], (cts[0], *operands), {"spec": spec})
        out[1] = unbroadcast(bind(TABLE["select"], (won, ct, np.asarray(0, ct.dtype)[()])), at.shape(1))
    return out


def _marks(at, ct):
    return np.full_like(ct, -1, dtype=INT)


def _numbering(shape, ct):
    size = 1
    for d in shape:
        size *= d
    return np.arange(size).reshape(shape)


def _add_vjp(cts, at, spec):
    ct = cts[0]
    dv = None
    if at.needs[1]:
        dv = unbroadcast(bind(TABLE["index"], (ct, *_operands(at, 2)), {"spec": spec}), at.shape(1))
    return [ct, dv, *[None] * (at.count - 2)]


custom("index_update", infer=_write_infer, eager=_write_eager(False), jvp=_write_jvp("index_update"), vjp=_update_vjp_arrays,
       kind="linear")
custom("index_add", infer=_write_infer, eager=_write_eager(True), jvp=_write_jvp("index_add"), vjp=_add_vjp, kind="linear")


def _write_view(base, content, operands, params):
    return bind(TABLE["index_update"], (base, content, *operands), params)


TABLE_WRITE["index"] = _write_view


# ---------------------------------------------------------------------------------------- sizes of slices
def _bound_eager(v, n, low, high):
    v = v + n if v < 0 else v
    return np.int64(min(max(v, low), n + high))


custom("slice_bound", infer=lambda v, n, low, high: (((), INT),), eager=_bound_eager, kind="size")
custom("slice_size", infer=lambda a, b, step: (((), INT),), kind="size",
       eager=lambda a, b, step: np.int64(max(0, -((a - b) // step)) if step > 0 else max(0, -((b - a) // -step))))


def _same_size_eager(a, b):
    if a != b:
        raise errors.SizeError(f"operands could not be broadcast together: sizes {a} and {b}")
    return np.int64(a)


custom("same_size", infer=lambda a, b: (((), INT),), eager=_same_size_eager, kind="size")


# ------------------------------------------------------------------------------------------------ parsing
class _Parser:
    """Turns a NumPy index into entries and operands."""

    def __init__(self, x, index):
        self.x = x
        self.operands = []
        self.seen = []
        self.items = self._expand(index if isinstance(index, tuple) else (index,))
        self.advanced = any(self._is_array(i) for i in self.items)

    def _is_array(self, item):
        return hasattr(item, "shape") and len(item.shape) > 0

    def _expand(self, items):
        items = [i for item in items for i in self._several(item)]
        used = sum(i is not None and i is not Ellipsis for i in items)
        dots = [k for k, i in enumerate(items) if i is Ellipsis]
        if len(dots) > 1:
            raise IndexError("an index can only have a single ellipsis ('...')")
        ndim = len(self.x.shape)
        if used > ndim:
            raise errors.AxisRangeError(f"too many indices for array: array is {ndim}-dimensional, but {used} were indexed")
        fill = [slice(None)] * (ndim - used)
        at = dots[0] if dots else len(items)
        return items[:at] + fill + items[at + (1 if dots else 0):]

    def _several(self, item):
        """Return the indices that an item stands for: a real boolean array is one index array for each of its axes."""
        if isinstance(item, (list, np.ndarray)) and not isinstance(item, Traced):
            array = as_operand(item)
            if not isinstance(array, Traced) and array.dtype.kind == "b" and array.ndim:
                done = sum(1 for i in self.seen if i is not None)
                want = self.x.shape[done:done + array.ndim] if Ellipsis not in self.seen else array.shape
                if not same_shape(array.shape, want):
                    raise errors.UnsupportedIndexError(f"boolean index of shape {shape_text(array.shape)} did not match an array of "
                                                       f"shape {shape_text(self.x.shape)}")
                found = list(np.nonzero(array))
                self.seen += found
                return found
        out = self._normal(item)
        self.seen.append(out)
        return [out]

    def _normal(self, item):
        if item is None or item is Ellipsis or isinstance(item, (slice, Traced)):
            if isinstance(item, Traced) and item.dtype.kind == "b":
                raise errors.UnsupportedIndexError(
                    "an index that is a traced boolean array has no fixed shape; use np.where(mask, a, b), or "
                    "multiply by the mask")
            if isinstance(item, Traced) and item.dtype.kind not in "iu":
                raise errors.UnsupportedIndexError(f"arrays used as indices must be of integer type, not {item.dtype}")
            return item
        if isinstance(item, (bool, np.bool_)):
            raise errors.UnsupportedIndexError("an index that is one boolean is not supported on traced arrays")
        if isinstance(item, (int, np.integer)):
            return int(item)
        item = as_operand(item)
        if isinstance(item, Traced):
            return item
        if item.dtype.kind not in "iu" and item.size:
            raise errors.UnsupportedIndexError(f"arrays used as indices must be of integer type, not {item.dtype}")
        return item if item.ndim else int(item)

    def operand(self, value):
        """Add an operand and return its number."""
        if hasattr(value, "dtype") and value.dtype != INT:
            value = astype(value, INT)
        self.operands.append(value)
        return len(self.operands) - 1

    def spec(self):
        """Return the specification."""
        entries, axis, first, broken, seen, kept = [], 0, None, False, False, 0
        for item in self.items:
            if item is None:
                entries.append(("new",))
                broken = broken or seen
                kept += 1
                continue
            size = self.x.shape[axis]
            entry = self._entry(item, size, axis)
            axis += 1
            entries.append(entry)
            if entry[0] in ("slice", "dyn"):
                broken = broken or seen
                kept += 1
            elif self.advanced:
                if first is None:
                    first = kept
                elif broken:
                    first = 0
                seen = True
        return IndexSpec(tuple(entries), first if self.advanced else None)

    def _entry(self, item, size, axis):
        if isinstance(item, slice):
            return self._slice_entry(item, size)
        if isinstance(item, int):
            if type(size) is not int:
                return ("atop", self.operand(np.int64(item)))
            if not -size <= item < size:
                raise errors.AxisRangeError(f"index {item} is out of bounds for axis {axis} with size {size}")
            item %= size
            return ("at", item)
        if self._is_array(item):
            if not isinstance(item, Traced) and type(size) is int:
                _check_range(item, size, axis)
                item = np.where(item < 0, item + size, item)
            return ("arr", self.operand(item))
        return ("atop", self.operand(item))

    def _slice_entry(self, s, size):
        step = 1 if s.step is None else s.step
        if isinstance(step, Traced):
            raise errors.UnsupportedIndexError("the step of a slice must be a number, not a traced integer")
        step = step.__index__()
        if not any(isinstance(b, Traced) for b in (s.start, s.stop)) and type(size) is int:
            start, stop, step = slice(s.start, s.stop, step).indices(size)
            return ("slice", start, len(range(start, stop, step)), step)
        if s.start is None and s.stop is None and step == 1:
            return ("dyn", self.operand(np.int64(0)), self.operand(size), 1)
        low, high = (0, 0) if step > 0 else (-1, -1)
        start = self._bound(s.start, size, low, high, (np.int64(0), size) if step > 0 else (size, size), step > 0)
        stop = self._bound(s.stop, size, low, high, (size, size) if step > 0 else (np.int64(-1), size), step <= 0, end=True)
        count = cached_size("slice_size", (start, stop), {"step": step})
        return ("dyn", self.operand(start), self.operand(count), step)

    def _bound(self, b, size, low, high, default, forward, end=False):
        if b is None:
            if end:
                return default[0]
            return default[0] if forward else cached_size("slice_bound", (as_int(size), size), {"low": low, "high": high})
        return cached_size("slice_bound", (as_int(b), size), {"low": low, "high": high})


def as_int(x):
    """Return an integer operand as int64."""
    return astype(x, INT) if hasattr(x, "dtype") else np.int64(x)


def cached_size(row, operands, params):
    """Compute a size once for each tuple of operands, so that equal slices have the same size."""
    trace = max((x.home for x in operands if isinstance(x, Traced)), key=lambda t: t.level, default=None)
    if trace is None or not trace.symbolic:
        return bind(TABLE[row], operands, params)
    operands = [np.int64(x) if isinstance(x, int) else x for x in operands]
    ids = tuple(trace.var_of(x).id if isinstance(x, Traced) else int(x) for x in operands)
    key = (row, ids, tuple(params.items()))
    found = trace._handles.get(key)
    if found is None:
        operands = [x if isinstance(x, Traced) else literal(x) for x in operands]
        found = bind(TABLE[row], operands, params)
        trace._handles[key] = trace._handles[found.node] = found
    return found


def literal(x):
    """Make an integer part of the code."""
    from nscan.tape import Lit
    return Lit(x, INT)


def parse(x, index):
    """Parse an index of x: (specification, operands)."""
    parser = _Parser(x, index)
    return parser.spec(), [literal(o) if isinstance(o, (int, np.integer)) else o for o in parser.operands]


def _mask(x, index):
    """Return the mask if the index is one traced boolean array."""
    item = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not isinstance(item, Traced) or item.dtype.kind != "b" or not item.shape:
        return None
    if not same_shape(item.shape, x.shape[:len(item.shape)]):
        raise errors.UnsupportedIndexError(f"boolean index of shape {shape_text(item.shape)} did not match an array of shape "
                                           f"{shape_text(x.shape)}")
    return item


def read(x, index):
    """``x[index]``: a view for basic indices, a scalar for one element, a copy for advanced ones."""
    if isinstance(index, str):
        raise errors.UnsupportedIndexError("only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and "
                                           "integer arrays are valid indices")
    mask = _mask(x, index)
    if mask is not None:
        from nscan.ops.mask import Selection
        return Selection(np.copy(x), mask)
    spec, operands = parse(x, index)
    if spec.place is None and any(e[0] in ("slice", "dyn", "new") for e in spec.entries) or _has_ellipsis(index):
        return view_at(x, index, (spec, operands))
    return bind(TABLE["index"], (x, *operands), {"spec": spec})


def _has_ellipsis(index):
    items = index if isinstance(index, tuple) else (index,)
    return any(i is Ellipsis for i in items) and not any(hasattr(i, "shape") and len(i.shape) or isinstance(i, list) for i in items)


def view_at(x, index, parsed=None):
    """Read an index as a view: what is written to it is written to x."""
    spec, operands = parsed or parse(x, index)
    return view("index", x, operands, {"spec": spec})


def assign(x, index, value):
    """``x[index] = value``."""
    if x.scalar:
        raise errors.UnsupportedError("a number does not support item assignment: x[i] of one element and a sum are numbers, not views, "
                                      "as in NumPy; write to the array, x[i] = value, or make an array, ns.array(number)")
    x._check_writable()
    if x.base is not None:
        x.sync()
    mask = _mask(x, index)
    if mask is not None:
        from nscan.ops.mask import Selection, masked
        return x.write(masked(x, mask, value if isinstance(value, Selection) else as_operand(value)))
    value = as_operand(value)
    spec, operands = parse(x, index)
    value = astype(value, x.dtype) if hasattr(value, "dtype") else np.asarray(value, x.dtype)[()]
    value = _fit(value, result_shape(spec, x.shape, operands))
    x.write(bind(TABLE["index_update"], (x, value, *operands), {"spec": spec}))


def _fit(value, shape):
    """Broadcast a value to the place that it is written to; leading axes of size 1 may go."""
    while len(value.shape) > len(shape) and value.shape[0] == 1:
        value = np.reshape(value, value.shape[1:])
    try:
        fits = same_shape(broadcast(value.shape, shape), shape) or len(shape) >= len(value.shape)
    except errors.SizeError:
        fits = False
    if not fits or len(value.shape) > len(shape):
        raise errors.SizeError(f"could not broadcast input array from shape {shape_text(value.shape)} into shape "
                               f"{shape_text(shape)}")
    return value


# ---------------------------------------------------------------------------------------------- functions
@composite(np.take)
def take(a, indices, axis=None, out=None, mode="raise"):
    """Take elements along an axis."""
    a = as_array(a)
    if axis is None:
        a, axis = np.ravel(a), 0
    axis %= len(a.shape)
    indices = as_operand(indices)
    indices = indices if hasattr(indices, "shape") else int(indices)
    if mode == "wrap":
        indices = indices % a.shape[axis]
    elif mode == "clip":
        indices = np.clip(indices, 0, a.shape[axis] - 1)
    if not isinstance(a, Traced) and isinstance(indices, Traced):
        a = traced(a)
    return read(a, (slice(None),) * axis + (indices,))


@composite(np.take_along_axis)
def take_along_axis(arr, indices, axis=-1):
    """Take elements along an axis, index by index."""
    if axis is None:
        arr, axis = np.ravel(arr), 0
    return traced(arr)[_along(arr, indices, axis)]


def _along(arr, indices, axis):
    axis %= len(arr.shape)
    index = []
    for k, d in enumerate(arr.shape):
        if k == axis:
            index.append(indices)
        else:
            index.append(np.arange(d).reshape((1,) * k + (-1,) + (1,) * (len(arr.shape) - 1 - k)))
    return tuple(index)


def add_along_axis(base, indices, values, axis):
    """Add values to a base along an axis, index by index; equal indices accumulate."""
    if not isinstance(base, Traced) and not isinstance(indices, Traced) and not isinstance(values, Traced):
        out = np.array(base)
        np.add.at(out, _along(base, indices, axis), values)
        return out
    spec, operands = parse(base, _along(base, indices, axis))
    return bind(TABLE["index_add"], (base, values, *operands), {"spec": spec})


@composite(np.put_along_axis)
def put_along_axis(arr, indices, values, axis):
    """Write elements along an axis, index by index."""
    arr[_along(arr, indices, axis)] = values


@composite(np.put)
def put(a, ind, v, mode="raise"):
    """Write elements of the flattened array."""
    np.reshape(a, (-1,))[ind] = v


@composite(np.fill_diagonal)
def fill_diagonal(a, val, wrap=False):
    """Write the main diagonal."""
    rows = np.arange(min(a.shape))
    a[(rows,) * len(a.shape)] = val


@composite(np.copyto)
def copyto(dst, src, casting="same_kind", where=True):
    """Copy into a traced array."""
    if not isinstance(dst, Traced):
        from nscan.array import traced_value
        raise traced_value("np.copyto (np.full, np.full_like, nan_to_num(nan=t)) into a real array",
                           "make the array a traced one first: ns.array(z)")
    if where is not True:
        dst[...] = np.where(where, src, dst)
    else:
        dst[...] = src


@composite(np.putmask)
def putmask(a, mask, values):
    """Write a number, or the same places of an array, where a mask holds."""
    values = as_operand(values)
    if len(getattr(values, "shape", ())) and not same_shape(values.shape, a.shape):
        raise errors.UnsupportedError("np.putmask on traced arrays needs a number or an array of the same shape")
    a[...] = np.where(mask, values, a)


@composite(np.choose)
def choose(a, choices, out=None, mode="raise"):
    """Choose from arrays by an array of numbers."""
    dtype = np.result_type(*[promotable(as_operand(c)) for c in choices])
    choices = [astype(as_array(c), dtype) for c in choices]
    shape = broadcast(*[c.shape for c in choices], a.shape)
    parts = np.stack([np.broadcast_to(c, shape) for c in choices])
    return np.take_along_axis(parts, np.broadcast_to(a, parts.shape[1:])[None], 0)[0]


@composite(np.delete)
def delete(arr, obj, axis=None):
    """Leave out rows that are known while tracing."""
    if axis is None:
        arr, axis = np.ravel(arr), 0
    keep = np.delete(np.arange(arr.shape[axis]), obj)
    return np.take(arr, keep, axis=axis)


@composite(np.insert)
def insert(arr, obj, values, axis=None):
    """Insert values before one place that is known while tracing."""
    if axis is None:
        arr, axis = np.ravel(arr), 0
    (axis,) = axes_of(arr, axis)
    values = astype(as_array(values), arr.dtype)
    values = np.moveaxis(np.reshape(values, (1,) * (len(arr.shape) - len(values.shape)) + tuple(values.shape)), 0, axis)
    values = np.broadcast_to(values, tuple(values.shape[axis] if k == axis else d for k, d in enumerate(arr.shape)))
    head, tail = arr[(slice(None),) * axis + (slice(None, obj),)], arr[(slice(None),) * axis + (slice(obj, None),)]
    return np.concatenate([head, values, tail], axis=axis)
