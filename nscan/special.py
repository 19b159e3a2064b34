"""Functions that NumPy and SciPy spell only for real arrays; these work on real and on traced ones."""

import numpy as np

from nscan import errors
from nscan.array import as_array, astype
from nscan.primitive import TABLE, bind


def _float(x):
    x = as_array(x)
    return x if x.dtype.kind in "fc" else astype(x, np.float64)


def sigmoid(x):
    """Compute ``1 / (1 + exp(-x))``, accurate in both tails.

    Parameters
    ----------
    x : array_like, real

    Returns
    -------
    ndarray or scalar

    Examples
    --------
    >>> import nscan as ns
    >>> ns.sigmoid(0.0)
    np.float64(0.5)
    """
    return bind(TABLE["expit"], (_float(x),))


def softplus(x):
    """Compute ``log(1 + exp(x))``, accurate in both tails.

    Parameters
    ----------
    x : array_like, real

    Returns
    -------
    ndarray or scalar

    Examples
    --------
    >>> import nscan as ns
    >>> ns.softplus(1000.0)
    np.float64(1000.0)
    """
    return bind(TABLE["softplus"], (_float(x),))


def logsumexp(x, axis=None, keepdims=False):
    """Compute ``log(sum(exp(x)))`` without overflow; -inf where every entry is -inf.

    Parameters
    ----------
    x : array_like, real
    axis : int or tuple of int, optional
    keepdims : bool

    Returns
    -------
    ndarray or scalar

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.logsumexp(np.array([1000.0, 1000.0]))
    np.float64(1000.6931471805599)
    """
    x = _float(x)
    top = _finite(np.max(x, axis=axis, keepdims=True))
    total = np.sum(np.exp(x - top), axis=axis, keepdims=True)
    with np.errstate(divide="ignore"):
        out = np.log(total) + top
    if keepdims:
        return out
    out = np.squeeze(out, axis=axis if axis is not None else tuple(range(len(x.shape))))
    return out[()] if isinstance(out, np.ndarray) else out


def _finite(top):
    """Replace infinite maxima by 0: they must not be subtracted from themselves. They carry no derivative."""
    from nscan.grad.higher import stop_gradient
    top = stop_gradient(top)
    return np.where(np.isfinite(top), top, np.asarray(0, top.dtype)[()])


def softmax(x, axis=-1):
    """Compute ``exp(x) / sum(exp(x))`` along an axis, without overflow.

    Parameters
    ----------
    x : array_like, real
    axis : int or tuple of int

    Returns
    -------
    ndarray

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.softmax(np.array([0.0, 0.0]))
    array([0.5, 0.5])
    """
    x = _float(x)
    e = np.exp(x - _finite(np.max(x, axis=axis, keepdims=True)))
    return e / np.sum(e, axis=axis, keepdims=True)


def log_softmax(x, axis=-1):
    """Compute ``x - logsumexp(x)`` along an axis.

    Parameters
    ----------
    x : array_like, real
    axis : int or tuple of int

    Returns
    -------
    ndarray

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.log_softmax(np.array([1000.0, 1000.0]))
    array([-0.69314718, -0.69314718])
    """
    x = _float(x)
    shifted = x - _finite(np.max(x, axis=axis, keepdims=True))
    with np.errstate(divide="ignore"):
        return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def one_hot(index, size, dtype=np.float64):
    """Make vectors with a 1 at an index; vectors of an index outside of [0, size) are zero.

    Parameters
    ----------
    index : array_like of int, shape (...)
    size : int
    dtype : dtype

    Returns
    -------
    ndarray, shape (..., size)

    Raises
    ------
    DtypeError
        `index` is not of integers.
    SpecError
        `size` is no integer, or negative.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.one_hot(np.array([1, 0]), 2)
    array([[0., 1.],
           [1., 0.]])
    """
    index = as_array(index)
    if index.dtype.kind not in "iu":
        raise errors.DtypeError(f"one_hot needs an index of integers, got {index.dtype}")
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
        raise errors.SpecError(f"the size of one_hot must be an integer that is not negative, got {size!r}")
    return astype(np.expand_dims(index, -1) == np.arange(size), dtype)
