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
import functools

import numpy as np

from nscan import buffers, errors
from nscan.array import TABLE_WRITE
from nscan.primitive import TABLE, bind, broadcast, custom, full, repeat_to, unbroadcast, zeros_like
from nscan.tape import Key, Lit
from nscan.trace import Traced

INT = np.dtype("i8")


@dataclasses.dataclass(frozen=True)
class IndexSpec:
    """An index, parsed: entries and the place of the advanced axes (None without such)."""

    entries: tuple
    place: object = None

    @functools.cached_property
    def key(self):
        """Hashable content."""
        return Key((self.entries, self.place))

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
        out = buffers.empty(np.shape(x), x.dtype)
        if add and out.nbytes >= buffers.LEAST and not any(x.strides) and x.flat[0] == 0:
            return _put_into_zeros(out, v, operands, spec)
        out[...] = x
        if add:
            return add_in_place(out, v, operands, spec)
        out[numpy_index(spec, x.shape, operands)] = v
        return out
    return run


def _put_into_zeros(out, v, operands, spec):
    """Add values to zeros; what a range of the first axis leaves out is all that is cleared."""
    where = numpy_index(spec, out.shape, operands)
    start, stop, stride = where[0].indices(len(out)) if isinstance(where[0], slice) else (0, 0, 1)
    if stride == 1 and start < stop and where[1:] == tuple([slice(0, n, 1) for n in out.shape[1:]]):
        out[:start] = out[stop:] = 0
        np.add(v, 0, out=out[start:stop])
        return out
    out[...] = 0
    return add_in_place(out, v, operands, spec)


def add_in_place(out, v, operands, spec):
    """Add values to the entries of a real array that an index selects; return the array."""
    where = numpy_index(spec, out.shape, [x.value if type(x) is Lit else x for x in operands])
    value = v.value if type(v) is Lit else v
    if any(entry[0] == "arr" for entry in spec.entries):
        np.add.at(out, where, value)
    else:  # slices and integers select no element twice
        out[where] += value
    return out


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

    def add_to(self, dense, fresh=False):
        """Add this to a dense cotangent; one that is `fresh`, read by nobody else yet, may be written to."""
        inputs = (dense, self.value, *self.operands)
        if fresh and isinstance(dense, np.ndarray) and not any(isinstance(x, Traced) for x in inputs):
            return add_in_place(dense, self.value, self.operands, self.spec)
        return bind(TABLE["index_add"], inputs, {"spec": self.spec})


def _read_vjp(cts, at, spec):
    return [Scatter(cts[0], _operands(at, 1), spec), *[None] * (at.count - 1)]


custom("index", infer=_read_infer, eager=_read_eager, jvp=_read_jvp, vjp=_read_vjp, kind="linear")


def _write_infer(x, v, *operands, spec):
    return ((x.shape, x.dtype),)


def _write_jvp(name):
    def jvp(tangents, at, spec):
        tx, tv = (zeros_like(at, i) if tangents[i] is None else tangents[i] for i in range(2))
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


def _step_count_eager(n, *rows, name):
    if n < 0:
        raise errors.SizeError(f"{name!r} cannot run {n} steps")
    if n > min(rows, default=n):
        raise errors.SizeError(f"{name!r} cannot run {n} steps over {min(rows)} rows")
    return np.int64(n)


# A number of steps that is data, checked against the rows of the sequences; only plans hold this row.
custom("step_count", infer=lambda n, *rows, name: (((), INT),), eager=_step_count_eager, kind="size")
