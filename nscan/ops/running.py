"""Running reductions along one axis: cumsum, cumprod and the like, and the linear recurrence that their rules use."""

import numpy as np

from nscan.array import _store_out, as_array, astype
from nscan.ops.reduction import INT, _cut, _sum_dtype, axes_of
from nscan.primitive import TABLE, bind, composite, custom


def _same(a, axis):
    return ((a.shape, a.dtype),)


def _running_sum(x, axis, backwards):
    x = np.flip(x, axis) if backwards else x
    y = bind(TABLE["cumsum"], (x,), {"axis": axis})
    return np.flip(y, axis) if backwards else y


custom("cumsum", infer=_same, eager=lambda a, axis: np.cumsum(a, axis=axis, dtype=a.dtype), kind="running",
       jvp=lambda tangents, at, axis: (_running_sum(tangents[0], axis, False),),
       vjp=lambda cts, at, axis: [_running_sum(cts[0], axis, True)],
       spelling={"combine": {"*": "a + b"}})


# cumprod: y[k] = y[k-1]*x[k]. Its derivatives are recurrences of the same kind, exact with zeros:
# tangent dy[k] = x[k]*dy[k-1] + y[k-1]*dx[k]; cotangent l[k] = ct[k] + x[k+1]*l[k+1], dx[k] = y[k-1]*l[k].
def _previous(y, axis):
    return np.concatenate([np.ones_like(_cut(y, axis, slice(0, 1))), _cut(y, axis, slice(None, -1))], axis=axis)


def _cumprod_jvp(tangents, at, axis):
    return (bind(TABLE["linear_running"], (at.x(0), _previous(at.y(), axis) * tangents[0]), {"axis": axis}),)


def _cumprod_vjp(cts, at, axis):
    x = at.x(0)
    ahead = np.concatenate([_cut(x, axis, slice(1, None)), np.zeros_like(_cut(x, axis, slice(0, 1)))], axis=axis)
    back = bind(TABLE["linear_running"], (np.flip(np.conj(ahead), axis), np.flip(cts[0], axis)), {"axis": axis})
    return [np.flip(back, axis) * np.conj(_previous(at.y(), axis))]


custom("cumprod", infer=_same, eager=lambda a, axis: np.cumprod(a, axis=axis, dtype=a.dtype), jvp=_cumprod_jvp,
       vjp=_cumprod_vjp, kind="running", spelling={"combine": {"*": "a * b"}})


def _linear_eager(a, b, axis):
    y = np.array(b)
    moved, factor = np.moveaxis(y, axis, 0), np.moveaxis(a, axis, 0)
    for k in range(1, len(moved)):
        moved[k] += factor[k] * moved[k - 1]
    return y


def _linear_jvp(tangents, at, axis):
    a, (ta, tb) = at.x(0), tangents
    drive = tb
    if ta is not None:
        y = at.y()
        before = np.concatenate([np.zeros_like(_cut(y, axis, slice(0, 1))), _cut(y, axis, slice(None, -1))], axis=axis)
        drive = ta * before if tb is None else tb + ta * before
    return (bind(TABLE["linear_running"], (a, drive), {"axis": axis}),)


def _linear_vjp(cts, at, axis):
    a = at.x(0)
    ahead = np.concatenate([_cut(a, axis, slice(1, None)), np.zeros_like(_cut(a, axis, slice(0, 1)))], axis=axis)
    back = np.flip(bind(TABLE["linear_running"], (np.flip(np.conj(ahead), axis), np.flip(cts[0], axis)), {"axis": axis}), axis)
    da = None
    if at.needs[0]:
        y = at.y()
        before = np.concatenate([np.zeros_like(_cut(y, axis, slice(0, 1))), _cut(y, axis, slice(None, -1))], axis=axis)
        da = back * np.conj(before)
    return [da, back]


custom("linear_running", infer=lambda a, b, axis: ((b.shape, b.dtype),), eager=_linear_eager, jvp=_linear_jvp,
       vjp=_linear_vjp, kind="running", spelling={"combine": {"*": "a * c + b"}})


def _extreme_running(name, function):
    """Add the rows cummax and cummin: the cotangent goes to the element that is the extremum, ties to the first."""
    def place(at, axis):
        return bind(TABLE[f"{name}_place"], (at.x(0),), {"axis": axis})

    def jvp(tangents, at, axis):
        return (np.take_along_axis(tangents[0], place(at, axis), axis),)

    def vjp(cts, at, axis):
        from nscan.ops.take import add_along_axis
        return [add_along_axis(np.zeros_like(cts[0]), place(at, axis), cts[0], axis)]

    def eager_place(a, axis):
        y = function.accumulate(a, axis=axis)
        shape = [1] * a.ndim
        shape[axis] = a.shape[axis]
        index = np.arange(a.shape[axis]).reshape(shape)
        new = np.concatenate([np.ones_like(_cut(a, axis, slice(0, 1)), bool),
                              _cut(y, axis, slice(1, None)) != _cut(y, axis, slice(None, -1))], axis=axis)
        return np.maximum.accumulate(np.where(new, index, 0), axis=axis)

    text = "select((a >= b) | (a != a), a, b)" if name == "cummax" else "select((a <= b) | (a != a), a, b)"
    custom(name, infer=_same, eager=lambda a, axis: function.accumulate(a, axis=axis), jvp=jvp, vjp=vjp, kind="running",
           spelling={"combine": {"*": text}})
    custom(f"{name}_place", infer=lambda a, axis: ((a.shape, INT),), eager=eager_place, kind="running",
           spelling={"combine": {"*": text}})


_extreme_running("cummax", np.maximum)
_extreme_running("cummin", np.minimum)


# ----------------------------------------------------------------------------------- NumPy's own functions
def _running(name, a, axis, dtype, out=None):
    a = as_array(a)
    if axis is None:
        a, axis = np.reshape(a, (-1,)), 0
    (axis,) = axes_of(a, axis)
    return _store_out(out, bind(TABLE[name], (astype(a, dtype) if dtype is not None else a,), {"axis": axis}))


@composite(np.cumsum)
def cumsum(a, axis=None, dtype=None, out=None):
    """Add up along an axis."""
    return _running("cumsum", a, axis, dtype or _sum_dtype(a.dtype), out)


@composite(np.cumprod)
def cumprod(a, axis=None, dtype=None, out=None):
    """Multiply up along an axis."""
    return _running("cumprod", a, axis, dtype or _sum_dtype(a.dtype), out)


@composite(getattr(np, "cumulative_sum", None))  # NumPy 2.1
def cumulative_sum(x, /, *, axis=None, dtype=None, out=None, include_initial=False):
    """Add up, perhaps with a 0 in front."""
    (axis,) = axes_of(x, axis)
    y = np.cumsum(x, axis=axis, dtype=dtype)
    return np.concatenate([np.zeros_like(_cut(y, axis, slice(0, 1))), y], axis=axis) if include_initial else y


@composite(getattr(np, "cumulative_prod", None))  # NumPy 2.1
def cumulative_prod(x, /, *, axis=None, dtype=None, out=None, include_initial=False):
    """Multiply up, perhaps with a 1 in front."""
    (axis,) = axes_of(x, axis)
    y = np.cumprod(x, axis=axis, dtype=dtype)
    return np.concatenate([np.ones_like(_cut(y, axis, slice(0, 1))), y], axis=axis) if include_initial else y
