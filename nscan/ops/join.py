"""Joining and splitting: the row `concatenate`, and the NumPy functions that stack, join and split with it."""

import numpy as np

from nscan import errors
from nscan.array import _store_out, as_array, astype
from nscan.ops.reduction import _cut, axes_of
from nscan.ops.shape import split_shape
from nscan.primitive import TABLE, bind, composite, custom, full, same_shape, shape_text


def _concat_infer(*parts, axis):
    size = 0
    for p in parts:
        size += p.shape[axis]
    shape = parts[0].shape
    return (((*shape[:axis], size, *shape[axis + 1:]), parts[0].dtype),)


def _concat_jvp(tangents, at, axis):
    parts = [full(at.shape(i), 0, at.dtype(i)) if t is None else t for i, t in enumerate(tangents)]
    return (bind(TABLE["concatenate"], parts, {"axis": axis}),)


def _concat_vjp(cts, at, axis):
    out, start = [], 0
    for i in range(at.count):
        stop = start + at.shape(i)[axis]
        out.append(_cut(cts[0], axis, slice(start, stop)) if at.needs[i] else None)
        start = stop
    return out


custom("concatenate", infer=_concat_infer, eager=lambda *parts, axis: np.concatenate(parts, axis=axis), jvp=_concat_jvp,
       vjp=_concat_vjp, kind="linear")


def _promoted(arrays, dtype=None):
    """Arrays of one dtype; Python numbers have float64 or int64 here, as in NumPy."""
    arrays = [as_array(a) for a in arrays]
    dtypes = [a.dtype for a in arrays]
    if dtype is None and dtypes.count(dtypes[0]) == len(dtypes):
        return arrays
    found = dtype or np.result_type(*dtypes)
    return [astype(a, found) for a in arrays]


@composite(np.concatenate)
def concatenate(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    """Join arrays along an axis."""
    parts = _promoted(arrays, dtype)
    if axis is None:
        parts, axis = [np.reshape(p, (-1,)) for p in parts], 0
    if not len(parts[0].shape):
        raise ValueError("zero-dimensional arrays cannot be concatenated")
    (axis,) = axes_of(parts[0], axis)
    for p in parts:
        if len(p.shape) != len(parts[0].shape) or any(
                d is not e and d != e for k, (d, e) in enumerate(zip(p.shape, parts[0].shape)) if k != axis
                and type(d) is int and type(e) is int):
            raise errors.SizeError("all the input array dimensions except for the concatenation axis must match "
                                   f"exactly: {shape_text(parts[0].shape)} and {shape_text(p.shape)} on axis {axis}")
    if len(parts) == 1:
        return _store_out(out, bind(TABLE["copy"], (parts[0],)))
    return _store_out(out, bind(TABLE["concatenate"], parts, {"axis": axis}))


@composite(np.stack)
def stack(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    """Join arrays along a new axis."""
    parts = _promoted(list(arrays), dtype)
    if any(len(p.shape) != len(parts[0].shape) for p in parts):
        raise ValueError("all input arrays must have the same shape")
    shape = parts[0].shape
    if len(parts) == 1 or type(axis) is not int or not 0 <= axis <= len(shape) or not all(same_shape(p.shape, shape) for p in parts):
        return np.concatenate([np.expand_dims(p, axis) for p in parts], axis=axis, out=out)
    template, sizes = split_shape((*shape[:axis], 1, *shape[axis:]))
    rows = [bind(TABLE["reshape"], (p, *sizes), {"template": template}) for p in parts]
    return _store_out(out, bind(TABLE["concatenate"], rows, {"axis": axis}))


@composite(np.vstack)
def vstack(tup, *, dtype=None, casting="same_kind"):
    """Stack rows."""
    return np.concatenate([np.atleast_2d(as_array(a)) for a in tup], axis=0, dtype=dtype)


@composite(np.hstack)
def hstack(tup, *, dtype=None, casting="same_kind"):
    """Stack columns."""
    parts = [np.atleast_1d(as_array(a)) for a in tup]
    return np.concatenate(parts, axis=0 if len(parts[0].shape) == 1 else 1, dtype=dtype)


@composite(np.dstack)
def dstack(tup):
    """Stack along the third axis."""
    return np.concatenate([np.atleast_3d(as_array(a)) for a in tup], axis=2)


@composite(np.column_stack)
def column_stack(tup):
    """Stack 1-d arrays as columns."""
    parts = [as_array(a) for a in tup]
    return np.concatenate([a if len(a.shape) == 2 else np.reshape(a, (-1, 1)) for a in parts], axis=1)


@composite(np.block)
def block(arrays):
    """Assemble an array from nested lists of blocks."""
    depth, level = 0, arrays
    while isinstance(level, list):
        depth, level = depth + 1, level[0]
    ndim = max(depth, _deepest(arrays))

    def join(part, axis):
        if not isinstance(part, list):
            part = as_array(part)
            return np.reshape(part, (1,) * (ndim - len(part.shape)) + part.shape)
        return np.concatenate([join(p, axis + 1) for p in part], axis=axis)
    return join(arrays, -depth)


def _deepest(part):
    return max(map(_deepest, part)) if isinstance(part, list) else len(as_array(part).shape)


@composite(np.append)
def append(arr, values, axis=None):
    """Join two arrays."""
    if axis is None:
        return np.concatenate([np.ravel(as_array(arr)), np.ravel(as_array(values))])
    return np.concatenate([arr, values], axis=axis)


@composite(np.split)
def split(ary, indices_or_sections, axis=0):
    """Split into parts of equal size, or at indices; the parts are views."""
    (axis,) = axes_of(ary, axis)
    if isinstance(indices_or_sections, (int, np.integer)):
        if ary.shape[axis] % indices_or_sections:
            raise ValueError("array split does not result in an equal division")
    return np.array_split(ary, indices_or_sections, axis)


@composite(np.array_split)
def array_split(ary, indices_or_sections, axis=0):
    """Split into parts of nearly equal size, or at indices; the parts are views."""
    (axis,) = axes_of(ary, axis)
    if isinstance(indices_or_sections, (int, np.integer)):
        each, extra = divmod(ary.shape[axis], int(indices_or_sections))
        sizes = [each + 1] * extra + [each] * (int(indices_or_sections) - extra)
        edges = [0, *np.cumsum(sizes).tolist()]
    else:
        edges = [0, *[int(i) for i in indices_or_sections], ary.shape[axis]]
    return [_cut(ary, axis, slice(a, b)) for a, b in zip(edges[:-1], edges[1:])]


for _name, _axis in (("hsplit", 1), ("vsplit", 0), ("dsplit", 2)):
    def _along(ary, indices_or_sections, _axis=_axis):
        return np.split(ary, indices_or_sections, min(_axis, len(ary.shape) - 1) if _axis == 1 else _axis)
    composite(getattr(np, _name))(_along)


@composite(getattr(np, "unstack", None))  # NumPy 2.1
def unstack(x, /, *, axis=0):
    """Split into slices along an axis."""
    return tuple(np.moveaxis(x, axis, 0)[k] for k in range(x.shape[axis]))
