"""NumPy functions that are spelled with several of the others: statistics, polynomials, grids, positions."""

import numpy as np

from nscan import errors
from nscan.array import as_array, as_operand, astype, promotable
from nscan.ops.reduction import axes_of
from nscan.primitive import broadcast, composite
from nscan.state import users_code


# ------------------------------------------------------------------------------------------------ statistics
@composite(np.nanvar)
def nanvar(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None):
    """Variance of the elements that are not NaN."""
    if where is not True or mean is not None:
        raise errors.UnsupportedError("np.nanvar(where=, mean=) is not supported on traced arrays")
    a = as_array(a)
    if a.dtype.kind not in "fc":
        return np.var(a, axis=axis, ddof=ddof, keepdims=keepdims, correction=correction)
    d = a - np.nanmean(a, axis=axis, keepdims=True)
    square = np.real(d * np.conj(d)) if a.dtype.kind == "c" else d * d
    count = np.sum(~np.isnan(a), axis=axis, keepdims=keepdims) - (ddof if correction is None else correction)
    return np.nansum(square, axis=axis, keepdims=keepdims) / astype(count, square.dtype)


@composite(np.nanstd)
def nanstd(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, *, where=True, mean=None, correction=None):
    """Compute the standard deviation of the elements that are not NaN."""
    return np.sqrt(np.nanvar(a, axis=axis, ddof=ddof, keepdims=keepdims, where=where, mean=mean, correction=correction))


def _nan_running(name, value):
    def run(a, axis=None, dtype=None, out=None):
        a = as_array(a)
        filled = np.where(np.isnan(a), np.asarray(value, a.dtype)[()], a) if a.dtype.kind in "fc" else a
        return getattr(np, name)(filled, axis=axis, dtype=dtype)
    return run


composite(np.nancumsum)(_nan_running("cumsum", 0))
composite(np.nancumprod)(_nan_running("cumprod", 1))


@composite(np.cov)
def cov(m, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None, *, dtype=None):
    """Covariance matrix of variables in rows."""
    if fweights is not None or aweights is not None:
        raise errors.UnsupportedError("np.cov with weights is not supported on traced arrays")
    x = as_array(m)
    dtype = dtype or np.result_type(x.dtype, np.float64, *[] if y is None else [as_array(y).dtype])
    rows = [_variables(v, rowvar, dtype) for v in ([x] if y is None else [x, as_array(y)])]
    x = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=0)
    d = x - np.mean(x, axis=1, keepdims=True)
    ddof = (0 if bias else 1) if ddof is None else ddof
    c = d @ np.conj(d.T) / np.asarray(x.shape[1] - ddof, dtype)[()]
    return np.squeeze(c) if c.shape == (1, 1) else c


def _variables(x, rowvar, dtype):
    x = astype(x, dtype)
    return np.reshape(x, (1, -1)) if len(x.shape) < 2 else x if rowvar else x.T


@composite(np.corrcoef)
def corrcoef(x, y=None, rowvar=True, *, dtype=None):
    """Correlation coefficients of variables in rows."""
    c = np.cov(x, y, rowvar, dtype=dtype)
    if not c.shape:
        return c / c
    d = np.sqrt(np.real(np.diagonal(c)))
    c = c / d[:, None] / d[None, :]
    return np.clip(c, -1, 1) if c.dtype.kind == "f" else c


# ------------------------------------------------------------------------------------------------- polynomials
@composite(np.vander)
def vander(x, N=None, increasing=False):
    """Matrix of powers of a vector."""
    x = as_array(x)
    count = x.shape[0] if N is None else N
    dtype = np.promote_types(x.dtype, int)
    x, powers = astype(x, dtype), [np.ones_like(x, dtype=dtype)]
    for _ in range(count - 1):
        powers.append(powers[-1] * x)
    return np.stack(powers[:count] if increasing else powers[:count][::-1], axis=1)


def _aligned(a, b):
    """Give two polynomials one length, by zeros in front."""
    a, b = as_array(a), as_array(b)
    n = max(a.shape[0], b.shape[0])
    return [x if x.shape[0] == n else np.concatenate([np.zeros(n - x.shape[0], x.dtype), x]) for x in (a, b)]


composite(np.polyadd)(lambda a1, a2: np.add(*_aligned(a1, a2)))
composite(np.polysub)(lambda a1, a2: np.subtract(*_aligned(a1, a2)))


@composite(np.polyder)
def polyder(p, m=1):
    """Differentiate a polynomial."""
    for _ in range(m):
        p = as_array(p)
        p = p[:-1] * np.arange(p.shape[0] - 1, 0, -1)
    return p


@composite(np.polyint)
def polyint(p, m=1, k=None):
    """Integral of a polynomial."""
    constants = [0.0] * m if k is None else list(np.broadcast_to(k, (m,)))
    for constant in constants:
        p = as_array(p)
        p = np.concatenate([p / np.arange(p.shape[0], 0, -1), [constant]])
    return p


# --------------------------------------------------------------------------------------- grids and positions
@composite(np.linspace)
def linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0, *, device=None):
    """Evenly spaced numbers."""
    found = np.result_type(promotable(as_operand(start)), promotable(as_operand(stop)), 1.0)
    start, stop = astype(as_array(start), found), astype(as_array(stop), found)
    gaps = num - 1 if endpoint else num
    step = (stop - start) / np.asarray(max(gaps, 1), found)[()]
    shape = broadcast(start.shape, stop.shape)
    place = np.reshape(np.arange(num).astype(found), (-1,) + (1,) * len(shape))
    out = place * step + start
    if endpoint and num > 1:
        last = np.broadcast_to(stop, shape)[None]
        out = np.concatenate([out[:-1], last], axis=0)
    out = astype(np.moveaxis(out, 0, axis), found if dtype is None else np.dtype(dtype))
    return (out, step) if retstep else out


@composite(np.isin)
def isin(element, test_elements, assume_unique=False, invert=False, *, kind=None):
    """Tell which elements are among others."""
    found = np.any(as_array(element)[..., None] == np.ravel(as_array(test_elements)), axis=-1)
    return ~found if invert else found


@composite(np.array_equiv)
def array_equiv(a1, a2):
    """Tell whether two arrays are equal after broadcasting."""
    a1, a2 = as_array(a1), as_array(a2)
    try:
        broadcast(a1.shape, a2.shape)
    except errors.SizeError:
        return False
    return np.all(a1 == a2)


@composite(np.compress)
def compress(condition, a, axis=None, out=None):
    """Take rows by a condition that is known while tracing."""
    if hasattr(condition, "home"):
        raise errors.UnsupportedError("np.compress by a traced condition has no fixed shape; use np.where")
    return np.take(a, np.nonzero(np.asarray(condition))[0], axis=axis)


@composite(np.ravel_multi_index)
def ravel_multi_index(multi_index, dims, mode="raise", order="C"):
    """Flat index of a tuple of indices."""
    if mode != "raise" or order != "C":
        raise errors.UnsupportedError("np.ravel_multi_index on traced arrays needs mode='raise' and order='C'")
    flat = 0
    for index, size in zip(multi_index, dims):
        flat = flat * size + index
    return flat


@composite(np.unravel_index)
def unravel_index(indices, shape, order="C"):
    """Tuple of indices of a flat one."""
    if order != "C":
        raise errors.UnsupportedError("np.unravel_index on traced arrays needs order='C'")
    out, rest = [], indices
    for size in reversed(shape):
        out.append(rest % size)
        rest = rest // size
    return tuple(reversed(out))


@composite(np.apply_along_axis)
def apply_along_axis(func1d, axis, arr, *args, **kwargs):
    """Apply a function to 1-d slices along an axis."""
    arr = as_array(arr)
    (axis,) = axes_of(arr, axis)
    moved = np.moveaxis(arr, axis, -1)
    rest = moved.shape[:-1]
    with users_code():
        parts = [as_array(func1d(moved[place], *args, **kwargs)) for place in np.ndindex(*rest)]
    out = np.reshape(np.stack(parts), (*rest, *parts[0].shape))
    lead = len(rest)
    return np.moveaxis(out, tuple(range(lead, len(out.shape))), tuple(range(axis, axis + len(out.shape) - lead)))


@composite(np.astype)
def cast(x, dtype, /, *, copy=True, device=None):
    """Cast to a dtype."""
    return x.astype(dtype, copy=copy)


@composite(np.linalg.cond)
def cond(x, p=None):
    """Condition number of a matrix."""
    if p in (None, 2, -2):
        s = np.linalg.svd(x, compute_uv=False)
        return s[..., -1] / s[..., 0] if p == -2 else s[..., 0] / s[..., -1]
    return np.linalg.norm(x, p, axis=(-2, -1)) * np.linalg.norm(np.linalg.inv(x), p, axis=(-2, -1))


def _nan_place(name, worst):
    def find(a, axis=None, out=None, *, keepdims=False):
        a = as_array(a)
        a = np.where(np.isnan(a), np.asarray(worst, a.dtype)[()], a) if a.dtype.kind in "fc" else a
        return getattr(np, name)(a, axis=axis, keepdims=keepdims)
    return find


composite(np.nanargmax)(_nan_place("argmax", -np.inf))
composite(np.nanargmin)(_nan_place("argmin", np.inf))
composite(np.diag_indices_from)(lambda arr: np.diag_indices_from(np.empty(arr.shape, bool)))
composite(np.tril_indices_from)(lambda arr, k=0: np.tril_indices(arr.shape[0], k, arr.shape[1]))
composite(np.triu_indices_from)(lambda arr, k=0: np.triu_indices(arr.shape[0], k, arr.shape[1]))
