"""Sorting and what needs an order: sort, argsort, partition, median, quantiles, search, interpolation."""

import numpy as np

from nscan import errors
from nscan.array import _store_out, as_array, as_operand, astype, promotable, traced
from nscan.ops.reduction import axes_of
from nscan.ops.take import take
from nscan.primitive import TABLE, bind, broadcast, composite, custom, same_shape
from nscan.state import users_code

INT = np.dtype("i8")


def _order(at, axis):
    return bind(TABLE["argsort"], (at.x(0),), {"axis": axis})


def _sort_vjp(cts, at, axis):
    from nscan.ops.take import add_along_axis
    return [add_along_axis(np.zeros_like(cts[0]), _order(at, axis), cts[0], axis)]


custom(
    "argsort",
    infer=lambda a, axis: ((a.shape, INT),),
    eager=lambda a, axis: np.argsort(a, axis=axis, kind="stable"),
    kind="order",
)
custom("sort", infer=lambda a, axis: ((a.shape, a.dtype),), eager=lambda a, axis: np.sort(a, axis=axis, kind="stable"),
       jvp=lambda tangents, at, axis: (np.take_along_axis(tangents[0], _order(at, axis), axis),), vjp=_sort_vjp, kind="order")
custom("searchsorted", infer=lambda a, v, side: ((v.shape, INT),), kind="order",
       eager=lambda a, v, side: np.asarray(np.searchsorted(a, v, side=side), INT)[()])


def _axis(a, axis):
    a = as_array(a)
    return (np.ravel(a), 0) if axis is None else (a, axes_of(a, axis)[0])


@composite(np.sort)
def sort(a, axis=-1, kind=None, order=None, *, stable=None):
    """Sort along an axis; the slope of equal elements follows their order."""
    a, axis = _axis(a, axis)
    return bind(TABLE["sort"], (a,), {"axis": axis})


@composite(np.argsort)
def argsort(a, axis=-1, kind=None, order=None, *, stable=None):
    """Find the indices that sort along an axis (stable)."""
    a, axis = _axis(a, axis)
    return bind(TABLE["argsort"], (a,), {"axis": axis})


composite(np.partition)(lambda a, kth, axis=-1, kind=None, order=None: np.sort(a, axis))
composite(np.argpartition)(lambda a, kth, axis=-1, kind=None, order=None: np.argsort(a, axis))


def _flat_last(a, axis):
    """Move the axes to the end, as one: (array, axes)."""
    axes = axes_of(a, axis)
    rest = tuple(k for k in range(len(a.shape)) if k not in axes)
    return np.reshape(np.transpose(a, rest + axes), tuple(a.shape[k] for k in rest) + (-1,)), axes


@composite(np.median)
def median(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    """Median along axes: the mean of the middle elements."""
    a = as_array(a)
    flat, axes = _flat_last(a if a.dtype.kind in "fc" else astype(a, np.float64), axis)
    n = flat.shape[-1]
    middle = np.mean(np.sort(flat, axis=-1)[..., (n - 1) // 2:n // 2 + 1], axis=-1)
    middle = np.where(np.any(np.isnan(flat), axis=-1), np.asarray(np.nan, middle.dtype)[()], middle)
    return _store_out(out, np.expand_dims(middle, axes) if keepdims else middle)


@composite(np.percentile)
def percentile(a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, **kwargs):
    """Percentiles along an axis."""
    q = q / 100 if isinstance(q, (int, float)) else as_array(q) / np.float64(100)
    return np.quantile(a, q, axis=axis, method=method, keepdims=keepdims)


@composite(np.quantile)
def quantile(a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, **kwargs):
    """Quantiles along an axis, by linear interpolation between order statistics."""
    if method != "linear":
        raise errors.UnsupportedError(f"np.quantile(method={method!r}) is not supported on traced arrays; use method='linear'")
    a, q = as_array(a), as_operand(q)
    if a.dtype.kind == "c":
        raise errors.DtypeError("np.quantile of complex numbers is not defined")
    whole = isinstance(q, int) or getattr(q, "dtype", None) is not None and q.dtype.kind in "iu"
    dtype = a.dtype if whole else np.result_type(a.dtype, q if isinstance(q, float) else q.dtype)
    flat, axes = _flat_last(a, axis)
    result = astype(_order_statistic(np.sort(flat, axis=-1), q, dtype), dtype)
    if a.dtype.kind == "f":
        result = np.where(np.any(np.isnan(flat), axis=-1), np.asarray(np.nan, dtype)[()], result)
    if keepdims:
        lead = len(getattr(q, "shape", ()))
        result = np.expand_dims(result, tuple(lead + k for k in axes))
    return _store_out(out, result)


def _order_statistic(ordered, q, dtype):
    """Interpolate between neighbours as NumPy does: from the nearer one, so that the ends are exact."""
    n = ordered.shape[-1]
    if hasattr(q, "shape") and q.shape:
        return np.stack([_order_statistic(ordered, q[k], dtype) for k in range(q.shape[0])], axis=0)
    place = q * (n - 1)
    if hasattr(place, "home"):
        low = np.clip(astype(np.floor(place), INT), 0, max(n - 2, 0))
        weight = astype(place - low, dtype)
    else:
        low = min(max(int(np.floor(place)), 0), max(n - 2, 0))
        weight = np.asarray(place - low, dtype)[()]
    ordered = traced(ordered)
    below, above = ordered[..., low], ordered[..., low + (1 if n > 1 else 0)]
    gap = above - below
    return np.where(weight >= 0.5, above - gap * (1 - weight), below + gap * weight)


@composite(np.searchsorted)
def searchsorted(a, v, side="left", sorter=None):
    """Places where elements would go into a sorted array."""
    a, v = as_array(a), as_array(v)
    if sorter is not None:
        a = np.take(a, sorter)
    dtype = np.result_type(a.dtype, v.dtype)
    return bind(TABLE["searchsorted"], (astype(a, dtype), astype(v, dtype)), {"side": side})


@composite(np.digitize)
def digitize(x, bins, right=False):
    """Bins of elements; traced bins must increase."""
    side = "left" if right else "right"
    bins = as_array(bins)
    if not hasattr(bins, "home") and bins.shape[0] > 1 and bins[0] > bins[-1]:
        return bins.shape[0] - np.searchsorted(bins[::-1], x, side=side)
    return np.searchsorted(bins, x, side=side)


@composite(np.interp)
def interp(x, xp, fp, left=None, right=None, period=None):
    """Piecewise linear interpolation."""
    if period is not None:
        raise errors.UnsupportedError("np.interp(period=) is not supported on traced arrays; reduce x with np.mod first")
    x, xp, fp = (as_array(v) for v in (x, xp, fp))
    if x.dtype.kind == "c" or xp.dtype.kind == "c":
        raise errors.DtypeError("np.interp needs real x and xp")
    x, xp, fp = astype(x, np.float64), astype(xp, np.float64), astype(fp, np.complex128 if fp.dtype.kind == "c" else np.float64)
    n = xp.shape[0]
    k = np.clip(np.searchsorted(xp, x, side="right") - 1, 0, max(n - 2, 0))
    xp, fp = traced(xp), traced(fp)
    if n == 1:
        inside = np.broadcast_to(fp[0], x.shape)
    else:
        x0, f0 = take(xp, k), take(fp, k)
        inside = f0 + (take(fp, k + 1) - f0) / (take(xp, k + 1) - x0) * (x - x0)
    out = np.where(x < xp[0], fp[0] if left is None else left, np.where(x > xp[-1], fp[-1] if right is None else right, inside))
    return np.where(np.isnan(x), np.asarray(np.nan, out.dtype)[()], out)


# ------------------------------------------------------------------------------------ choice and cleaning
@composite(np.where)
def where(condition, x=None, y=None):
    """Choose between two arrays, element by element."""
    if x is None or y is None:
        raise errors.UnsupportedError("np.where(condition) alone has no fixed shape; use np.where(condition, a, b)")
    c, x, y = as_operand(condition), as_operand(x), as_operand(y)
    dtype = np.result_type(*[promotable(v) for v in (x, y)])
    x, y = (astype(v, dtype) if hasattr(v, "dtype") else np.asarray(v, dtype)[()] for v in (x, y))
    c = c if hasattr(c, "dtype") else np.asarray(c)[()]
    c = c if c.dtype.kind == "b" else c != 0
    return bind(TABLE["select"], (c, x, y))


@composite(np.select)
def select(condlist, choicelist, default=0):
    """Choose from several arrays by the first condition that holds."""
    out = default
    for c, x in reversed(list(zip(condlist, choicelist))):
        out = np.where(c, x, out)
    return out


@composite(np.piecewise)
def piecewise(x, condlist, funclist, *args, **kw):
    """Piecewise function; every piece is evaluated everywhere."""
    with users_code():
        pieces = [f(x, *args, **kw) if callable(f) else f for f in funclist]
    out = pieces[-1] if len(pieces) > len(condlist) else 0
    for c, p in zip(condlist, pieces):
        out = np.where(c, p, out)
    return astype(out, x.dtype)


@composite(np.clip)
def clip(a, a_min=None, a_max=None, out=None, *, min=None, max=None, **kwargs):
    """Limit values."""
    low, high = a_min if a_min is not None else min, a_max if a_max is not None else max
    result = as_array(a)
    result = result if low is None else np.maximum(result, low)
    result = result if high is None else np.minimum(result, high)
    return _store_out(out, result if result is not a else +result)


@composite(np.nan_to_num)
def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    """Replace NaN and infinities by numbers."""
    if x.dtype.kind == "c":
        parts = [nan_to_num(part, nan=nan, posinf=posinf, neginf=neginf) for part in (np.real(x), np.imag(x))]
        return parts[0] + parts[1] * np.asarray(1j, x.dtype)[()]
    if x.dtype.kind != "f":
        return np.copy(x)
    limits = np.finfo(x.dtype)
    top, bottom = (limits.max if posinf is None else posinf), (limits.min if neginf is None else neginf)
    kind = x.dtype.type
    return np.where(np.isnan(x), kind(nan), np.where(x == np.inf, kind(top), np.where(x == -np.inf, kind(bottom), x)))


@composite(np.round, np.around)
def round_(a, decimals=0, out=None):
    """Round to a number of decimals."""
    if a.dtype.kind in "iu" and decimals >= 0:
        return _store_out(out, np.copy(a))
    scale = 10.0 ** abs(decimals)
    rounded = np.rint(a) if not decimals else np.rint(a * scale) / scale if decimals > 0 else np.rint(a / scale) * scale
    return _store_out(out, astype(rounded, a.dtype))


@composite(np.fix)
def fix(x, out=None):
    """Round towards zero."""
    return np.trunc(x)


@composite(np.diff)
def diff(a, n=1, axis=-1, prepend=None, append=None):
    """Differences along an axis."""
    a = as_array(a)
    (axis,) = axes_of(a, axis)
    ends = [e if e is None else as_array(e) for e in (prepend, append)]
    parts = [_end(ends[0], a, axis)] if ends[0] is not None else []
    parts += [a] + ([_end(ends[1], a, axis)] if ends[1] is not None else [])
    a = np.concatenate(parts, axis=axis) if len(parts) > 1 else a
    for _ in range(n):
        head = (slice(None),) * axis
        later, earlier = a[(*head, slice(1, None))], a[(*head, slice(None, -1))]
        a = later != earlier if a.dtype.kind == "b" else later - earlier
    return a


def _end(x, a, axis):
    if len(x.shape):
        return x
    return np.broadcast_to(x, tuple(1 if k == axis else d for k, d in enumerate(a.shape)))


@composite(np.ediff1d)
def ediff1d(ary, to_end=None, to_begin=None):
    """Differences of the flattened array."""
    d = np.diff(np.ravel(as_array(ary)))
    ends = [[] if e is None else [astype(np.ravel(as_array(e)), d.dtype)] for e in (to_begin, to_end)]
    return np.concatenate([*ends[0], d, *ends[1]]) if ends[0] or ends[1] else d


@composite(np.gradient)
def gradient(f, *varargs, axis=None, edge_order=1):
    """Central differences inside, one-sided ones at the borders."""
    f = as_array(f)
    axes = axes_of(f, axis)
    if edge_order != 1 or any(len(np.shape(h)) for h in varargs):
        raise errors.UnsupportedError("np.gradient on traced arrays needs uniform spacing and edge_order=1")
    spacing = list(varargs) * (len(axes) if len(varargs) == 1 else 1) or [1.0] * len(axes)
    out = []
    for k, h in zip(axes, spacing):
        def part(a, b, k=k):
            return f[(slice(None),) * k + (slice(a, b),)]
        inner = (part(2, None) - part(None, -2)) / (2.0 * h)
        out.append(np.concatenate([(part(1, 2) - part(0, 1)) / h, inner, (part(-1, None) - part(-2, -1)) / h], axis=k))
    return out[0] if len(out) == 1 else tuple(out)


@composite(np.isclose)
def isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Compare within tolerances."""
    near = np.abs(a - b) <= atol + rtol * np.abs(b)
    near = near & np.isfinite(b) | (a == b)
    return near | np.isnan(a) & np.isnan(b) if equal_nan else near


composite(np.allclose)(lambda a, b, rtol=1e-05, atol=1e-08, equal_nan=False: np.all(np.isclose(a, b, rtol, atol, equal_nan)))


@composite(np.array_equal)
def array_equal(a1, a2, equal_nan=False):
    """Tell whether two arrays are equal."""
    a1, a2 = as_array(a1), as_array(a2)
    if not same_shape(a1.shape, a2.shape):
        return False
    same = a1 == a2
    return np.all(same | (a1 != a1) & (a2 != a2) if equal_nan else same)


composite(np.isneginf)(lambda x, out=None: x == -np.inf)
composite(np.isposinf)(lambda x, out=None: x == np.inf)
composite(np.isreal)(lambda x: np.imag(x) == 0)
composite(np.iscomplex)(lambda x: np.imag(x) != 0)


@composite(np.sinc)
def sinc(x):
    """Compute sin(pi*x)/(pi*x)."""
    if x.dtype.kind != "c":
        return bind(TABLE["sinc"], (x if x.dtype.kind == "f" else astype(x, np.float64),))
    angle = np.asarray(np.pi, x.dtype)[()] * np.where(x == 0, np.asarray(1e-20, x.dtype)[()], x)
    return np.sin(angle) / angle


def _unwrap_shape(p):
    return broadcast(p.shape)


@composite(np.unwrap)
def unwrap(p, discont=None, axis=-1, *, period=6.283185307179586):
    """Unwrap angles by changing jumps to their complement."""
    (axis,) = axes_of(p, axis)
    d = np.diff(p, axis=axis)
    wrapped = np.mod(d + period / 2, period) - period / 2
    wrapped = np.where((wrapped == -period / 2) & (d > 0), period / 2, wrapped)
    fix_ = np.where(np.abs(d) < (period / 2 if discont is None else discont), 0.0, wrapped - d)
    first = p[(slice(None),) * axis + (slice(0, 1),)]
    return np.concatenate([first, p[(slice(None),) * axis + (slice(1, None),)] + np.cumsum(fix_, axis=axis)], axis=axis)
