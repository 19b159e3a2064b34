"""Rows that move elements without computing: reshape, transpose, broadcast, concatenate; and their kin."""

import numpy as np

from nscan import errors
from nscan.array import TABLE_WRITE, as_array, as_operand, astype, read_only, view
from nscan.ops.reduction import _cut, axes_of
from nscan.primitive import (
    TABLE,
    bind,
    broadcast,
    composite,
    custom,
    linear,
    repeat_to,
    same_shape,
    shape_text,
    unbroadcast,
)

INT = np.dtype("i8")


def shape_from(template, sizes):
    """Fill the run-time sizes into a template (a shape with None in their places)."""
    left = iter(sizes)
    return tuple(next(left) if d is None else d for d in template)


def split_shape(shape):
    """Split a shape into a template and the run-time sizes."""
    return tuple(d if type(d) is int else None for d in shape), [d for d in shape if type(d) is not int]


def _ints(template, sizes):
    return tuple(int(d) for d in shape_from(template, sizes))


custom("fill", infer=lambda v, *sizes, template: ((shape_from(template, sizes), v.dtype),),
       eager=lambda v, *sizes, template: np.full(_ints(template, sizes), v), kind="linear",
       jvp=lambda tangents, at, template: (repeat_to(tangents[0], at._outputs[0].shape),),
       vjp=lambda cts, at, template: [unbroadcast(cts[0], ()), *[None] * (at.count - 1)])


def _target(at):
    return split_shape(at.shape(0))


def _reshape_back(ct, at, template):
    shape, sizes = _target(at)
    return (bind(TABLE["reshape"], (ct, *sizes), {"template": shape}),)


linear("reshape", infer=lambda a, *sizes, template: ((shape_from(template, sizes), a.dtype),),
       eager=lambda a, *sizes, template: np.reshape(a, _ints(template, sizes)), transpose=_reshape_back)
linear("transpose", infer=lambda a, perm: ((tuple(a.shape[k] for k in perm), a.dtype),),
       eager=lambda a, perm: np.transpose(a, perm),
       transpose=lambda ct, at, perm: (np.transpose(ct, tuple(int(k) for k in np.argsort(perm))),))
linear("broadcast_to", infer=lambda a, *sizes, template: ((shape_from(template, sizes), a.dtype),),
       eager=lambda a, *sizes, template: np.broadcast_to(a, _ints(template, sizes)),
       transpose=lambda ct, at, template: (unbroadcast(ct, at.shape(0)),))


def _write_reshape(base, content, operands, params):
    shape, sizes = split_shape(base.shape)
    return bind(TABLE["reshape"], (content, *sizes), {"template": shape})


TABLE_WRITE["reshape"] = _write_reshape
TABLE_WRITE["transpose"] = lambda base, content, operands, params: np.transpose(
    content, tuple(int(k) for k in np.argsort(params["perm"])))


# ---------------------------------------------------------------------------------------------- functions
def _normal_shape(x, shape):
    """Return the target shape of a reshape: -1 replaced, sizes checked."""
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    shape = tuple(d if hasattr(d, "home") else d.__index__() for d in shape)
    known = all(type(d) is int for d in x.shape)
    free = [k for k, d in enumerate(shape) if type(d) is int and d == -1]
    if len(free) > 1:
        raise ValueError("can only specify one unknown dimension")
    total, rest = 1, 1
    for d in x.shape:
        total = d * total
    for d in shape:
        rest = rest if type(d) is int and d == -1 else d * rest
    if free:
        if known and all(type(d) is int for d in shape):
            if rest == 0 or total % rest:
                raise errors.SizeError(f"cannot reshape array of size {total} into shape {shape_text(shape)}")
            size = total // rest
        else:
            size = total if type(rest) is int and rest == 1 else total // rest
        return tuple(size if k == free[0] else d for k, d in enumerate(shape))
    if known and type(rest) is int and rest != total:
        raise errors.SizeError(f"cannot reshape array of size {total} into shape {shape_text(shape)}")
    return shape


@composite(np.reshape)
def reshape(a, /, shape=None, order="C", *, copy=None):
    """Give an array another shape; a view, as in NumPy."""
    a = as_operand(a)
    if order == "F":
        shape = _normal_shape(a, shape)
        return np.transpose(np.reshape(np.transpose(a), tuple(reversed(shape))))
    if order not in ("C", "A"):
        raise errors.UnsupportedError(f"np.reshape(order={order!r}) is not supported on traced arrays; use order='C'")
    shape = _normal_shape(a, shape)
    if same_shape(shape, a.shape) and a.base is None:
        return view("transpose", a, (), {"perm": tuple(range(len(shape)))})
    template, sizes = split_shape(shape)
    return view("reshape", a, sizes, {"template": template})


@composite(np.transpose, np.permute_dims)
def transpose(a, axes=None):
    """Permute axes; a view."""
    ndim = len(a.shape)
    axes = tuple(reversed(range(ndim))) if axes is None else tuple(k % ndim for k in axes)
    if sorted(axes) != list(range(ndim)):
        raise ValueError("axes don't match array")
    return view("transpose", a, (), {"perm": axes})


@composite(np.matrix_transpose)
def matrix_transpose(x, /):
    """Swap the last two axes."""
    return np.swapaxes(x, -1, -2)


@composite(np.swapaxes)
def swapaxes(a, axis1, axis2):
    """Swap two axes; a view."""
    perm = list(range(len(a.shape)))
    i, j = axes_of(a, axis1)[0], axes_of(a, axis2)[0]
    perm[i], perm[j] = j, i
    return np.transpose(a, tuple(perm))


@composite(np.moveaxis)
def moveaxis(a, source, destination):
    """Move axes; a view."""
    source = [k % len(a.shape) for k in (source if isinstance(source, (tuple, list)) else (source,))]
    destination = [k % len(a.shape) for k in (destination if isinstance(destination, (tuple, list)) else (destination,))]
    order = [k for k in range(len(a.shape)) if k not in source]
    for to, k in sorted(zip(destination, source)):
        order.insert(to, k)
    return np.transpose(a, tuple(order))


@composite(np.rollaxis)
def rollaxis(a, axis, start=0):
    """Move an axis in front of another."""
    ndim = len(a.shape)
    axis, start = axis % ndim, start + ndim if start < 0 else start
    return np.moveaxis(a, axis, start - 1 if axis < start else start)


@composite(np.broadcast_to)
def broadcast_to(array, shape, subok=False):
    """Repeat an array over new axes and axes of size 1."""
    array = as_operand(array)
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if not same_shape(broadcast(array.shape, shape), shape):
        raise errors.SizeError(f"cannot broadcast shape {shape_text(array.shape)} to {shape_text(shape)}")
    template, sizes = split_shape(shape)
    if same_shape(array.shape, shape):
        return array
    return read_only(bind(TABLE["broadcast_to"], (array, *sizes), {"template": template}), "np.broadcast_to")


@composite(np.broadcast_arrays)
def broadcast_arrays(*args, subok=False):
    """Broadcast arrays against each other."""
    args = [as_array(a) for a in args]
    shape = broadcast(*[a.shape for a in args])
    return tuple(np.broadcast_to(a, shape) for a in args)


@composite(np.ravel)
def ravel(a, order="C"):
    """Flatten; a view."""
    return np.reshape(a, (-1,), order=order)


@composite(np.squeeze)
def squeeze(a, axis=None):
    """Drop axes of size 1; a view."""
    axes = axes_of(a, axis) if axis is not None else tuple(k for k, d in enumerate(a.shape) if type(d) is int and d == 1)
    for k in axes:
        if type(a.shape[k]) is int and a.shape[k] != 1:
            raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    return np.reshape(a, tuple(d for k, d in enumerate(a.shape) if k not in axes))


@composite(np.expand_dims)
def expand_dims(a, axis):
    """Insert axes of size 1; a view."""
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    ndim = len(a.shape) + len(axes)
    axes = {k % ndim for k in axes}
    left = iter(a.shape)
    return np.reshape(a, tuple(1 if k in axes else next(left) for k in range(ndim)))


@composite(np.atleast_1d)
def atleast_1d(*arys):
    """Give 0-d arrays an axis."""
    out = tuple(a if len(as_array(a).shape) else np.reshape(a, (1,)) for a in arys)
    return out[0] if len(out) == 1 else out


@composite(np.atleast_2d)
def atleast_2d(*arys):
    """Give arrays at least two axes."""
    out = tuple(np.reshape(a, (1,) * (2 - len(a.shape)) + a.shape) if len(as_array(a).shape) < 2 else a for a in arys)
    return out[0] if len(out) == 1 else out


@composite(np.atleast_3d)
def atleast_3d(*arys):
    """Give arrays at least three axes."""
    out = tuple({0: lambda a: np.reshape(a, (1, 1, 1)), 1: lambda a: a[None, :, None], 2: lambda a: a[:, :, None]}.get(
        len(a.shape), lambda a: a)(a) for a in map(as_array, arys))
    return out[0] if len(out) == 1 else out


def _like(name, value):
    def run(a, dtype=None, order="K", subok=True, shape=None, *, device=None):
        shape = a.shape if shape is None else tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        dtype = np.dtype(dtype) if dtype is not None else a.dtype
        template, sizes = split_shape(shape)
        return _anchored(a, np.asarray(value, dtype)[()], template, sizes)
    run.__name__ = name
    return run


def _anchored(a, value, template, sizes):
    """Make a filled array on the trace of a (no input of the row need be traced)."""
    trace = a.home
    if trace.symbolic:
        out = trace.process(TABLE["fill"], (value, *sizes), {"template": template})
        out.scalar = False
        return out
    out = np.full(template, value) if not sizes else bind(TABLE["fill"], (value, *sizes), {"template": template})
    return trace.new_constant(out)


for _name, _value in (("zeros_like", 0), ("ones_like", 1), ("empty_like", 0)):
    composite(getattr(np, _name))(_like(_name, _value))


@composite(np.full_like)
def full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None, *, device=None):
    """Make an array like another, filled with a value."""
    dtype = np.dtype(dtype) if dtype is not None else a.dtype
    shape = a.shape if shape is None else tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    value = as_operand(fill_value)
    value = astype(value, dtype) if hasattr(value, "dtype") else np.asarray(value, dtype)[()]
    template, sizes = split_shape(shape)
    if hasattr(value, "home"):
        return bind(TABLE["fill"], (value, *sizes), {"template": template}) if not value.shape else \
            np.broadcast_to(value, shape)
    if not hasattr(a, "home"):
        return np.full(shape, value)
    return _anchored(a, value, template, sizes)


@composite(np.copy)
def copy(a, order="K", subok=False):
    """Copy an array: what is written to one is not seen by the other."""
    out = bind(TABLE["copy"], (a,))
    if hasattr(out, "home"):
        out.scalar = False
    return out


@composite(np.flip)
def flip(m, axis=None):
    """Reverse axes; a view."""
    axes = axes_of(m, axis)
    return m[tuple(slice(None, None, -1) if k in axes else slice(None) for k in range(len(m.shape)))]


composite(np.flipud)(lambda m: np.flip(m, 0))
composite(np.fliplr)(lambda m: np.flip(m, 1))


@composite(np.rot90)
def rot90(m, k=1, axes=(0, 1)):
    """Rotate by 90 degrees, k times."""
    k %= 4
    if k == 0:
        return m
    if k == 2:
        return np.flip(np.flip(m, axes[0]), axes[1])
    perm = list(range(len(m.shape)))
    perm[axes[0]], perm[axes[1]] = perm[axes[1]], perm[axes[0]]
    return np.transpose(np.flip(m, axes[1]), perm) if k == 1 else np.flip(np.transpose(m, perm), axes[1])


@composite(np.roll)
def roll(a, shift, axis=None):
    """Roll elements along axes; the shift may be traced."""
    if axis is None:
        return np.reshape(np.roll(np.ravel(a), shift, 0), a.shape)
    shifts = shift if isinstance(shift, (tuple, list)) else (shift,)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    for s, k in zip(shifts, axes):
        (k,) = axes_of(a, k)
        if hasattr(s, "home"):
            index = np.mod(np.arange(a.shape[k]) - s, a.shape[k])
            a = np.take(a, index, axis=k)
        elif a.shape[k] != 0 and s % a.shape[k]:
            cut = -s % a.shape[k]
            a = np.concatenate([_cut(a, k, slice(cut, None)), _cut(a, k, slice(None, cut))], axis=k)
    return np.copy(a)


@composite(np.tile)
def tile(A, reps):
    """Repeat an array as a whole."""
    A = as_array(A)
    reps = tuple(reps) if isinstance(reps, (tuple, list)) else (reps,)
    ndim = max(len(A.shape), len(reps))
    shape = (1,) * (ndim - len(A.shape)) + tuple(A.shape)
    reps = (1,) * (ndim - len(reps)) + reps
    split = tuple(d for pair in zip([1] * ndim, shape) for d in pair)
    wide = tuple(d for pair in zip(reps, shape) for d in pair)
    return np.copy(np.reshape(np.broadcast_to(np.reshape(A, split), wide), tuple(r * d for r, d in zip(reps, shape))))


@composite(np.repeat)
def repeat(a, repeats, axis=None):
    """Repeat each element."""
    if axis is None:
        a, axis = np.ravel(a), 0
    (axis,) = axes_of(a, axis)
    if hasattr(repeats, "home"):
        raise errors.UnsupportedError("np.repeat with a traced number of repeats has no fixed shape")
    index = np.repeat(np.arange(a.shape[axis]), repeats)
    return np.take(a, index, axis=axis)


@composite(np.pad)
def pad(array, pad_width, mode="constant", **kwargs):
    """Pad: with constants, or by edge, reflect, symmetric, wrap."""
    width = np.broadcast_to(np.asarray(pad_width), (len(array.shape), 2))
    if mode == "constant":
        return _pad_constant(array, width, kwargs.get("constant_values", 0))
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise errors.UnsupportedError(f"np.pad(mode={mode!r}) is not supported on traced arrays; there are constant, edge, "
                                      "reflect, symmetric and wrap")
    for axis, (before, after) in enumerate(width):
        index = np.pad(np.arange(array.shape[axis]), (int(before), int(after)), mode=mode)
        array = np.take(array, index, axis=axis)
    return array


def _pad_constant(array, width, values):
    values = as_array(values)
    if not len(values.shape):
        out = np.full_like(array, values, shape=tuple(d + int(w.sum()) for d, w in zip(array.shape, width)))
        out[tuple(slice(int(a), int(a) + d) for (a, _), d in zip(width, array.shape))] = array
        return out
    values = np.broadcast_to(values, (len(array.shape), 2))
    for axis, counts in enumerate(width):
        ends = [np.full_like(array, values[axis, k], shape=tuple(int(n) if j == axis else d for j, d in enumerate(array.shape)))
                for k, n in enumerate(counts)]
        array = np.concatenate([ends[0], array, ends[1]], axis=axis)
    return array


@composite(np.diagonal)
def diagonal(a, offset=0, axis1=0, axis2=1):
    """Diagonal of a matrix; a view."""
    i, j = axes_of(a, axis1)[0], axes_of(a, axis2)[0]
    rest = [k for k in range(len(a.shape)) if k not in (i, j)]
    moved = np.transpose(a, (*rest, i, j))
    rows = np.arange(max(0, -offset), max(0, min(a.shape[i], a.shape[j] - offset)))
    from nscan.ops.indexing import view_at
    return read_only(view_at(moved, (Ellipsis, rows, rows + offset)), "np.diagonal")


@composite(np.diag)
def diag(v, k=0):
    """Diagonal of a matrix, or matrix of a diagonal."""
    if len(v.shape) == 2:
        return bind(TABLE["copy"], (np.diagonal(v, k),))
    n = v.shape[0] + abs(k)
    out = np.zeros_like(v, shape=(n, n))
    rows = np.arange(v.shape[0]) + max(0, -k)
    out[rows, rows + k] = v
    return out


@composite(np.diagflat)
def diagflat(v, k=0):
    """Matrix of a flattened diagonal."""
    return np.diag(np.ravel(as_array(v)), k)


@composite(np.trace)
def trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    """Sum of a diagonal."""
    return np.sum(np.diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


def _triangle(name):
    def run(m, k=0):
        mask = getattr(np, name)(np.ones(m.shape[-2:], bool), k)
        return np.where(mask, m, np.asarray(0, m.dtype)[()])
    run.__name__ = name
    return run


composite(np.tril)(_triangle("tril"))
composite(np.triu)(_triangle("triu"))


@composite(np.meshgrid)
def meshgrid(*xi, copy=True, sparse=False, indexing="xy"):
    """Coordinate arrays of a grid."""
    xi = [as_array(x) for x in xi]
    n = len(xi)
    out = [np.reshape(x, (1,) * k + (-1,) + (1,) * (n - 1 - k)) for k, x in enumerate(xi)]
    if not sparse:
        shape = broadcast(*[x.shape for x in out])
        out = [np.broadcast_to(x, shape) for x in out]
    return [np.swapaxes(x, 0, 1) for x in out] if indexing == "xy" and n > 1 else out


composite(np.shape)(lambda a: a.shape)
composite(np.ndim)(lambda a: len(a.shape))
composite(np.size)(lambda a, axis=None: a.size if axis is None else a.shape[axis])
composite(np.iscomplexobj)(lambda x: x.dtype.kind == "c")
composite(np.isrealobj)(lambda x: x.dtype.kind != "c")
composite(np.result_type)(lambda *args: np.result_type(*[a.dtype if hasattr(a, "home") else a for a in args]))
composite(np.can_cast)(lambda from_, to, casting="safe": np.can_cast(from_.dtype, to, casting))
