"""Reductions over axes, running reductions along one, and the NumPy functions spelled with them."""

import numpy as np

from nscan import errors
from nscan.array import _store_out, as_array, astype
from nscan.primitive import TABLE, bind, composite, custom, dtype_of, full, repeat_to, same_shape, shape_text

INT = np.dtype("i8")
BOOL = np.dtype(bool)


def kept_shape(shape, axes):
    """Shape without the reduced axes."""
    return tuple(d for k, d in enumerate(shape) if k not in axes)


def expand(x, ndim, axes):
    """Put axes of size 1 back where a reduction took them away."""
    shape, kept = [], iter(x.shape)
    for k in range(ndim):
        shape.append(1 if k in axes else next(kept))
    return np.reshape(x, tuple(shape))


def _infer(a, axes):
    return ((kept_shape(a.shape, axes), a.dtype),)


def _infer_index(a, axes):
    return ((kept_shape(a.shape, axes), INT),)


def _spread(ct, at, axes):
    """Repeat a cotangent over the reduced axes."""
    return repeat_to(expand(ct, at.ndim(0), axes), at.shape(0))


def _sum(a, axes):
    return np.sum(a, axis=axes, dtype=a.dtype)


custom(
    "sum",
    kind="reduction",
    eager=lambda a, axes: np.logical_or.reduce(a, axis=axes) if a.dtype.kind == "b" else _sum(a, axes),
    infer=_infer,
    jvp=lambda tangents, at, axes: (np.sum(tangents[0], axis=axes),),
    vjp=lambda cts, at, axes: [_spread(cts[0], at, axes)],
    spelling={"identity": 0, "combine": {"*": "a + b", "b": "a | b"}},
)


# Product: the slope of each factor is the product of the others, exact with zeros: computed by the running
# products from both sides.
def _others(x, axis):
    one = np.ones_like(np.take(x, [0], axis=axis))
    before = np.concatenate([one, np.cumprod(_cut(x, axis, slice(None, -1)), axis=axis)], axis=axis)
    back = np.flip(x, axis)
    after = np.flip(np.concatenate([one, np.cumprod(_cut(back, axis, slice(None, -1)), axis=axis)], axis=axis), axis)
    return before * after


def _cut(x, axis, part):
    return x[(slice(None),) * axis + (part,)]


def _prod_slope(at, axes):
    x = at.x(0)
    ndim = len(x.shape)
    if any(type(x.shape[k]) is int and x.shape[k] == 0 for k in axes):
        return np.ones_like(x)
    rest = tuple(k for k in range(ndim) if k not in axes)
    moved = np.transpose(x, rest + tuple(axes))
    flat = np.reshape(moved, tuple(x.shape[k] for k in rest) + (-1,))
    slopes = np.reshape(_others(flat, len(rest)), moved.shape)
    return np.transpose(slopes, tuple(np.argsort(rest + tuple(axes))))


def _prod_vjp(cts, at, axes):
    p = _prod_slope(at, axes)
    return [bind(TABLE["safe_mul"], (_spread(cts[0], at, axes), np.conj(p)))]


custom("prod", kind="reduction", infer=_infer, eager=lambda a, axes: np.prod(a, axis=axes, dtype=a.dtype),
       jvp=lambda tangents, at, axes: (np.sum(bind(TABLE["safe_mul"], (tangents[0], _prod_slope(at, axes))), axis=axes),),
       vjp=_prod_vjp, spelling={"identity": 1, "combine": {"*": "a * b", "b": "a & b"}})


def _share(at, axes):
    """Weights of the elements that attain an extremum: equal, adding up to 1."""
    x, y = at.x(0), at.y()
    hit = bind(TABLE["cast"], (x == expand(y, len(x.shape), axes),), {"dtype": dtype_of(x)})
    count = expand(np.sum(hit, axis=axes), len(x.shape), axes)
    return bind(TABLE["ratio"], (hit, count))


def _extremum_jvp(tangents, at, axes):
    return (np.sum(tangents[0] * _share(at, axes), axis=axes),)


def _extremum_vjp(cts, at, axes):
    return [_spread(cts[0], at, axes) * _share(at, axes)]


for _name, _text, _sign in (("max", "select((a >= b) | (a != a), a, b)", -1), ("min", "select((a <= b) | (a != a), a, b)", 1)):
    custom(_name, kind="reduction", infer=_infer, jvp=_extremum_jvp, vjp=_extremum_vjp,
           eager=lambda a, axes, name=_name: getattr(np, name)(a, axis=axes),
           spelling={"identity": _sign * np.inf, "combine": {"*": _text, "b": "a | b" if _name == "max" else "a & b"}})
custom("all", kind="reduction", infer=_infer, eager=lambda a, axes: np.all(a, axis=axes),
       spelling={"identity": 1, "combine": {"*": "a & b"}})
custom("any", kind="reduction", infer=_infer, eager=lambda a, axes: np.any(a, axis=axes),
       spelling={"identity": 0, "combine": {"*": "a | b"}})


def _arg_eager(function):
    def run(a, axes):
        rest = tuple(k for k in range(a.ndim) if k not in axes)
        flat = np.transpose(a, rest + tuple(axes)).reshape(tuple(a.shape[k] for k in rest) + (-1,))
        return np.asarray(function(flat, axis=-1), INT)[()]
    return run


custom("argmax", kind="reduction", infer=_infer_index, eager=_arg_eager(np.argmax))
custom("argmin", kind="reduction", infer=_infer_index, eager=_arg_eager(np.argmin))


# ----------------------------------------------------------------------------------- NumPy's own functions
def axes_of(x, axis):
    """Normalise an axis argument to a sorted tuple."""
    if axis is None:
        return tuple(range(len(x.shape)))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    ndim = len(x.shape)
    out = []
    for k in axes:
        k = k.__index__()
        if not -ndim <= k < ndim:
            raise np.exceptions.AxisError(k, ndim)
        out.append(k % ndim)
    if len(set(out)) != len(out):
        raise ValueError("duplicate value in 'axis'")
    return tuple(sorted(out))


def _reduce(name, a, axis, keepdims, dtype=None, out=None, initial=None, where=True):
    a = as_array(a)
    a = a if dtype is None else astype(a, dtype)
    initial = initial if initial is None else astype(as_array(initial), a.dtype)
    if where is not True:
        if name in ("max", "min") and initial is None:
            raise ValueError(f"np.{name}(where=) needs an initial value: it has no identity")
        a = np.where(where, a, initial if name in ("max", "min") else np.asarray(_IDENTITY[name], a.dtype))
    axes = axes_of(a, axis)
    result = bind(TABLE[name], (a,), {"axes": axes}) if axes else +a if a.dtype.kind != "b" else a
    if keepdims:
        result = expand(result, len(a.shape), axes)
    if initial is not None:
        result = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[name](result, initial)
    return _store_out(out, result)


_IDENTITY = {"sum": 0, "any": 0, "prod": 1, "all": 1}


def _sum_dtype(dtype):
    """Dtype in which NumPy adds integers: at least the platform's."""
    if dtype.kind == "b" or dtype.kind == "i" and dtype.itemsize < 8:
        return INT
    if dtype.kind == "u" and dtype.itemsize < 8:
        return np.dtype("u8")
    return None


@composite(np.sum)
def sum_(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True):
    """Sum over axes."""
    a = as_array(a)
    return _reduce("sum", a, axis, keepdims, dtype or _sum_dtype(a.dtype), out, initial, where)


@composite(np.prod)
def prod(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=True):
    """Product over axes."""
    a = as_array(a)
    return _reduce("prod", a, axis, keepdims, dtype or _sum_dtype(a.dtype), out, initial, where)


@composite(np.max, np.amax)
def max_(a, axis=None, out=None, keepdims=False, initial=None, where=True):
    """Maximum over axes."""
    _check_not_empty(a, axis, initial, "maximum")
    return _reduce("max", a, axis, keepdims, None, out, initial, where)


@composite(np.min, np.amin)
def min_(a, axis=None, out=None, keepdims=False, initial=None, where=True):
    """Minimum over axes."""
    _check_not_empty(a, axis, initial, "minimum")
    return _reduce("min", a, axis, keepdims, None, out, initial, where)


def _check_not_empty(a, axis, initial, name):
    if initial is None and any(type(a.shape[k]) is int and a.shape[k] == 0 for k in axes_of(a, axis)):
        raise errors.SizeError(f"zero-size array to reduction operation {name} which has no identity")


@composite(np.all)
def all_(a, axis=None, out=None, keepdims=False, where=True):
    """Logical and over axes."""
    return _reduce("all", a if a.dtype == BOOL else a != 0, axis, keepdims, None, out, None, where)


@composite(np.any)
def any_(a, axis=None, out=None, keepdims=False, where=True):
    """Logical or over axes."""
    return _reduce("any", a if a.dtype == BOOL else a != 0, axis, keepdims, None, out, None, where)


@composite(np.count_nonzero)
def count_nonzero(a, axis=None, keepdims=False):
    """Count the elements that are not zero."""
    return np.sum(a != 0, axis=axis, keepdims=keepdims)


@composite(np.argmax)
def argmax(a, axis=None, out=None, keepdims=False):
    """Index of the first maximum."""
    return _reduce("argmax", a, axis, keepdims, None, out)


@composite(np.argmin)
def argmin(a, axis=None, out=None, keepdims=False):
    """Index of the first minimum."""
    return _reduce("argmin", a, axis, keepdims, None, out)


def _count(a, axes):
    total = 1
    for k in axes:
        total = a.shape[k] * total
    return total


def _float(a):
    return a if a.dtype.kind in "fc" else bind(TABLE["cast"], (a,), {"dtype": np.dtype("f8")})


@composite(np.mean)
def mean(a, axis=None, dtype=None, out=None, keepdims=False, where=True):
    """Mean over axes; integers are averaged in float64."""
    a = _float(as_array(a)) if dtype is None else astype(as_array(a), dtype)
    if where is not True:
        count = np.sum(repeat_to(where, a.shape), axis=axis, keepdims=keepdims)
    else:
        count = _count(a, axes_of(a, axis))
    total = np.sum(a, axis=axis, keepdims=keepdims, where=where)
    return _store_out(out, _divide(total, count))


def _divide(x, count):
    """Divide by a number of elements without changing the dtype of x."""
    return x / (astype(count, x.dtype) if hasattr(count, "dtype") else np.asarray(count, x.dtype)[()])


@composite(np.var)
def var(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None):
    """Variance over axes."""
    if where is not True:
        raise errors.UnsupportedError("np.var(where=) is not supported on traced arrays")
    a = _float(as_array(a))
    ddof = ddof if correction is None else correction
    centre = np.mean(a, axis=axis, keepdims=True) if mean is None else mean
    d = a - centre
    square = np.real(d * np.conj(d)) if a.dtype.kind == "c" else d * d
    total = np.sum(square, axis=axis, keepdims=keepdims)
    return _store_out(out, _divide(total, _count(a, axes_of(a, axis)) - ddof))


@composite(np.std)
def std(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None):
    """Compute the standard deviation over axes."""
    return _store_out(out, np.sqrt(np.var(a, axis=axis, ddof=ddof, keepdims=keepdims, where=where, mean=mean,
                                          correction=correction)))


@composite(np.average)
def average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    """Weighted mean."""
    if weights is None:
        out = np.mean(a, axis=axis, keepdims=keepdims)
        return (out, np.broadcast_to(np.asarray(float(_count(a, axes_of(a, axis)))), out.shape)) if returned else out
    a, weights = as_array(a), as_array(weights)
    dtype = np.result_type(a.dtype, weights.dtype, *["f8"] * (a.dtype.kind in "iub"))
    if not same_shape(weights.shape, a.shape):
        (k,) = axes_of(a, axis)
        weights = np.reshape(weights, tuple(weights.shape[0] if j == k else 1 for j in range(len(a.shape))))
    scale = np.sum(weights, axis=None if axis is None else axes_of(a, axis), keepdims=keepdims, dtype=dtype)
    out = np.sum(a * weights, axis=axis, keepdims=keepdims, dtype=dtype) / scale
    return (out, np.broadcast_to(scale, out.shape)) if returned else out


@composite(np.ptp)
def ptp(a, axis=None, out=None, keepdims=False):
    """Maximum minus minimum."""
    return np.max(a, axis=axis, keepdims=keepdims) - np.min(a, axis=axis, keepdims=keepdims)


def _nan_fill(name, value):
    def run(a, axis=None, dtype=None, out=None, keepdims=False):
        filled = np.where(np.isnan(a), np.asarray(value, a.dtype), a)
        return getattr(np, name)(filled, axis=axis, keepdims=keepdims)
    return run


composite(np.nansum)(_nan_fill("sum", 0))
composite(np.nanprod)(_nan_fill("prod", 1))


@composite(np.nanmean)
def nanmean(a, axis=None, dtype=None, out=None, keepdims=False):
    """Mean of the elements that are not NaN."""
    count = np.sum(~np.isnan(a), axis=axis, keepdims=keepdims)
    return _divide(np.nansum(a, axis=axis, keepdims=keepdims), count)


@composite(np.nanmax)
def nanmax(a, axis=None, out=None, keepdims=False):
    """Maximum of the elements that are not NaN (NaN where there is none)."""
    if a.dtype.kind not in "fc":
        return np.max(a, axis=axis, keepdims=keepdims)
    none = np.all(np.isnan(a), axis=axis, keepdims=keepdims)
    return np.where(none, np.nan, np.max(np.where(np.isnan(a), -np.inf, a), axis=axis, keepdims=keepdims))


@composite(np.nanmin)
def nanmin(a, axis=None, out=None, keepdims=False):
    """Minimum of the elements that are not NaN (NaN where there is none)."""
    if a.dtype.kind not in "fc":
        return np.min(a, axis=axis, keepdims=keepdims)
    none = np.all(np.isnan(a), axis=axis, keepdims=keepdims)
    return np.where(none, np.nan, np.min(np.where(np.isnan(a), np.inf, a), axis=axis, keepdims=keepdims))


@composite(np.trapezoid)
def trapezoid(y, x=None, dx=1.0, axis=-1):
    """Integral by the trapezoidal rule."""
    (axis,) = axes_of(y, axis)
    d = dx if x is None else np.diff(x, axis=axis if len(x.shape) == len(y.shape) else -1)
    if x is not None and len(x.shape) == 1 and len(y.shape) > 1:
        d = np.reshape(d, tuple(-1 if k == axis else 1 for k in range(len(y.shape))))
    return np.sum(d * (_cut(y, axis, slice(1, None)) + _cut(y, axis, slice(None, -1))) / 2.0, axis=axis)


def size_text(x):
    """Shape of an operand for messages."""
    return shape_text(x.shape)


def zeros(shape, dtype):
    """Zeros of a shape that may hold run-time sizes."""
    return full(shape, 0, dtype)
