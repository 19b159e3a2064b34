"""Functions that take, put, choose, delete and insert elements at indices."""

import numpy as np

from nscan import errors
from nscan.array import as_array, as_operand, astype, promotable, traced
from nscan.ops.indexing import parse, read
from nscan.ops.reduction import axes_of
from nscan.primitive import TABLE, bind, broadcast, composite, same_shape
from nscan.trace import Traced


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
