"""From ``x[index]`` to a specification and back: parsing, reading, writing, views at indices."""

import numpy as np

from nscan import errors
from nscan.array import INDEXING, as_operand, astype, view
from nscan.ops.index import INT, IndexSpec, _check_range, result_shape
from nscan.primitive import TABLE, bind, broadcast, same_shape, shape_text
from nscan.tape import Lit, remember
from nscan.trace import Traced


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
                    raise mask_mismatch(array.shape, self.x.shape)
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
    ids = tuple(canonical(trace, trace.var_of(x)) if isinstance(x, Traced) else int(x) for x in operands)
    key = (row, ids, tuple(params.items()))
    found = trace._handles.get(key)
    if found is None:
        operands = [x if isinstance(x, Traced) else literal(x) for x in operands]
        found = bind(TABLE[row], operands, params)
        trace._handles[key] = trace._handles[found.node] = found
    return found


def canonical(trace, var):
    """Return one Var, or one key, for all numbers that are computed alike, such as ``k + 1`` written twice."""
    if type(var) is Lit:
        return "literal", int(var.value)
    eqn = next((eqn for eqn in reversed(trace.eqns) if var in eqn.outputs), None)
    if eqn is None:
        value = next((x for x, v in trace.captured if v is var), None)
        return ("number", value.item()) if isinstance(value, np.generic) else var
    if eqn.row.kind not in ("pointwise", "size") or var.shape:
        return var
    key = (eqn.row.name, tuple([canonical(trace, v) for v in eqn.inputs]), tuple(eqn.params.items()))
    return trace._handles.setdefault(key, var)


def literal(x):
    """Make an integer part of the code."""
    return Lit(x, INT)


def parse(x, index):
    """Parse an index of x: (specification, operands)."""
    parser = _Parser(x, index)
    return parser.spec(), [literal(o) if isinstance(o, (int, np.integer)) else o for o in parser.operands]


def mask_mismatch(mask, shape):
    """Build the error for a boolean index that does not fit its array."""
    return errors.UnsupportedIndexError(f"boolean index of shape {shape_text(mask)} did not match an array of shape "
                                        f"{shape_text(shape)}")


def _mask(x, index):
    """Return the mask if the index is one traced boolean array."""
    item = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not isinstance(item, Traced) or item.dtype.kind != "b" or not item.shape:
        return None
    if not same_shape(item.shape, x.shape[:len(item.shape)]):
        raise mask_mismatch(item.shape, x.shape)
    return item


def read(x, index):
    """``x[index]``: a view for basic indices, a scalar for one element, a copy for advanced ones."""
    known = _static_key(x, index)
    found = None if known is None else _STATIC.get(known)
    if found is None:
        found = _parsed(x, index)
        if known is not None and not found[1]:
            remember(_STATIC, known, found)
    spec, operands, is_view = found
    if spec is None:
        from nscan.ops.mask import Selection
        return Selection(np.copy(x), operands)
    return view("index", x, operands, {"spec": spec}) if is_view else bind(TABLE["index"], (x, *operands), {"spec": spec})


# Parsed indices without operands, by shape and index.
_STATIC = {}


def _static_key(x, index):
    """Hashable form of a shape and an index of Python integers, slices of these, None and Ellipsis; None for others."""
    if type(index) is int:
        return x.shape, index
    items = index if type(index) is tuple else (index,)
    out = [x.shape]
    for item in items:
        if type(item) is slice:
            item = ("slice", item.start, item.stop, item.step)
            if not all(b is None or type(b) is int for b in item[1:]):
                return None
        elif type(item) is not int and item is not None and item is not Ellipsis:
            return None
        out.append(item)
    return tuple(out)


def _parsed(x, index):
    """Parse an index: (specification, operands, whether a view is made); of a mask (None, mask, False)."""
    if isinstance(index, str):
        raise errors.UnsupportedIndexError("only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and "
                                           "integer arrays are valid indices")
    mask = _mask(x, index)
    if mask is not None:
        return None, mask, False
    spec, operands = parse(x, index)
    is_view = spec.place is None and any(e[0] in ("slice", "dyn", "new") for e in spec.entries) or _has_ellipsis(index)
    return spec, operands, is_view


def _has_ellipsis(index):
    items = index if isinstance(index, tuple) else (index,)
    advanced = any(hasattr(i, "shape") and len(i.shape) or isinstance(i, list) for i in items)
    return any(i is Ellipsis for i in items) and not advanced


def view_at(x, index):
    """Read an index as a view: what is written to it is written to x."""
    spec, operands = parse(x, index)
    return view("index", x, operands, {"spec": spec})


def assign(x, index, value):
    """``x[index] = value``."""
    if x.scalar:
        raise errors.UnsupportedError("a number does not support item assignment: x[i] of one element and a sum are numbers, not "
                                      "views, as in NumPy; write to the array, x[i] = value, or make an array, ns.array(number)")
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


INDEXING.update(read=read, assign=assign)
