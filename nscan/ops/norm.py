"""Norms of vectors and matrices."""

import numpy as np

from nscan.array import astype
from nscan.ops.linalg import _float
from nscan.primitive import composite


@composite(np.linalg.norm)
def norm(x, ord=None, axis=None, keepdims=False):
    """Norm of a vector or a matrix."""
    x = _float(x)
    if axis is None and (ord is None or len(x.shape) == 1):
        axis = tuple(range(len(x.shape)))
    elif axis is None:
        axis = (-2, -1)
    axis = axis if isinstance(axis, (tuple, list)) else (axis,)
    if ord is None or ord == 2 and len(axis) == 1 or ord == "fro":
        square = np.real(x * np.conj(x)) if x.dtype.kind == "c" else x * x
        return np.sqrt(np.sum(square, axis=tuple(axis), keepdims=keepdims))
    size = np.abs(x)
    if len(axis) == 1:
        return _vector_norm(size, ord, axis[0], keepdims)
    return _matrix_norm(x, size, ord, axis, keepdims)


def _vector_norm(size, ord, axis, keepdims):
    if ord == np.inf:
        return np.max(size, axis=axis, keepdims=keepdims)
    if ord == -np.inf:
        return np.min(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return np.sum(astype(size != 0, size.dtype), axis=axis, keepdims=keepdims)
    if ord == 1:
        return np.sum(size, axis=axis, keepdims=keepdims)
    return np.power(np.sum(size ** ord, axis=axis, keepdims=keepdims), 1.0 / ord)


def _matrix_norm(x, size, ord, axis, keepdims):
    rows, columns = axis
    if ord in (1, -1, np.inf, -np.inf):
        along, over = (rows, columns) if abs(ord) == 1 else (columns, rows)
        total = np.sum(size, axis=along, keepdims=True)
        out = (np.max if ord > 0 else np.min)(total, axis=over, keepdims=True)
        return out if keepdims else np.squeeze(out, axis=(rows, columns))
    values = np.linalg.svdvals(np.moveaxis(x, axis, (-2, -1)))
    if ord == "nuc":
        out = np.sum(values, axis=-1)
    elif ord in (2, -2):
        out = (np.max if ord > 0 else np.min)(values, axis=-1)
    else:
        raise ValueError("Invalid norm order for matrices.")
    return np.expand_dims(out, axis) if keepdims else out


@composite(np.linalg.vector_norm)
def vector_norm(x, /, *, axis=None, keepdims=False, ord=2):
    """Norm of vectors along axes."""
    if axis is not None or len(x.shape) == 1:
        return np.linalg.norm(x, ord, 0 if axis is None else axis, keepdims)
    out = np.linalg.norm(np.ravel(x), ord, 0)
    return np.reshape(out, (1,) * len(x.shape)) if keepdims else out


@composite(np.linalg.matrix_norm)
def matrix_norm(x, /, *, keepdims=False, ord="fro"):
    """Norm of matrices in the last two axes."""
    return np.linalg.norm(x, ord, (-2, -1), keepdims)
