"""Random numbers as functions of a key, the number of the step, and the place in the array.

A draw has no hidden state. ``normal(key, t, (3,))`` is the same three numbers wherever it stands: in a step that is
given the number ``t`` of the step, in a Python loop, or as row ``t`` of ``normal(key, np.arange(n), (3,))``. So
results do not depend on threads, a backward pass sees the numbers of the forward pass, and a run is repeated by
its key. Draws that should differ need another key or another step: derive keys with `key`.

Derivatives pass through the parameters that move or scale a draw (`low`, `high`, `loc`, `scale`). Draws of integers
and bools have none.

The bits come from the cipher Threefry-2x64 with 20 rounds [1]_; normal numbers by the method of Box and Muller [2]_.

References
----------
.. [1] J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3. SC'11 (2011).
.. [2] G. E. P. Box, M. E. Muller: A note on the generation of random normal deviates. Ann. Math. Stat. 29 (1958).
"""

import math
import operator

import numpy as np

from nscan import errors
from nscan.array import as_array, astype
from nscan.array import traced as indexable
from nscan.primitive import TABLE, bind, shape_text
from nscan.trace import Traced

U64 = np.dtype("u8")
# Place in the array that no draw has: there keys are derived.
BEYOND = np.uint64(2**64 - 1)


def key(seed, *path):
    """Make a key from a seed; numbers after it lead to further keys, which are independent.

    Parameters
    ----------
    seed : int, or a key
    *path : int
        Any numbers; ``key(seed, 1, 2)`` is ``key(key(seed, 1), 2)``.

    Returns
    -------
    numpy.uint64, or a traced one

    Raises
    ------
    DtypeError
        A number is no integer.

    Examples
    --------
    >>> import nscan as ns
    >>> noise, start = ns.random.key(0, 1), ns.random.key(0, 2)
    >>> bool(noise == start)
    False
    """
    out = _whole(seed, "the seed")
    for k, number in enumerate(path):
        out = bind(TABLE["threefry_first"], (out, _whole(number, f"number {k} of the path"), BEYOND))
    return out


def uniform(key, step=0, shape=None, low=0.0, high=1.0, dtype=np.float64):
    """Draw from the uniform distribution on [low, high).

    Parameters
    ----------
    key : int or key, or an array of them
    step : int or array of int
        Number of the step. Axes of key and step come before those of `shape`.
    shape : int or tuple of int, optional
        Shape of one step's draw; by default that of the parameters.
    low, high : array_like
        Broadcast to the shape of the result; a derivative passes through them.
    dtype : float32 or float64

    Returns
    -------
    ndarray or scalar

    Raises
    ------
    DtypeError, SizeError
        A key or step is no integer, the dtype no float; a parameter does not fit the shape.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> def walk(t, x, key):
    ...     return x + ns.random.uniform(key, t, low=-1.0)
    >>> path = ns.scan(walk, np.arange(1000), 0.0, ns.random.key(7))
    >>> bool(np.allclose(path, np.cumsum(ns.random.uniform(7, np.arange(1000), low=-1.0))))
    True
    """
    dtype, low, high = _parameters(dtype, low, high)
    draws = _Draws(key, step, shape, low, high)
    return draws.result(low + (high - low) * _unit(draws.bits(), dtype))


def normal(key, step=0, shape=None, loc=0.0, scale=1.0, dtype=np.float64):
    """Draw from the normal distribution.

    Parameters
    ----------
    key, step, shape, dtype :
        See `uniform`.
    loc, scale : array_like
        Mean and standard deviation; a derivative passes through them.

    Returns
    -------
    ndarray or scalar

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> def price(volatility, key):
    ...     steps = ns.random.normal(key, np.arange(250), (1000,), 0.0, volatility / np.sqrt(250.0))
    ...     return np.mean(np.exp(np.sum(steps, axis=0)))
    >>> slope = ns.grad(price)(0.2, ns.random.key(1))
    >>> bool(0.1 < slope < 0.3)
    True
    """
    dtype, loc, scale = _parameters(dtype, loc, scale)
    draws = _Draws(key, step, shape, loc, scale)
    # 1 - u lies in (0, 1], so that its logarithm is finite.
    radius = np.sqrt(-2 * np.log(1 - _unit(draws.bits(), dtype)))
    angle = np.cos(dtype.type(2 * math.pi) * _unit(draws.bits("second"), dtype))
    return draws.result(loc + scale * (radius * angle))


def exponential(key, step=0, shape=None, scale=1.0, dtype=np.float64):
    """Draw from the exponential distribution.

    Parameters
    ----------
    key, step, shape, dtype :
        See `uniform`.
    scale : array_like
        Mean; a derivative passes through it.

    Returns
    -------
    ndarray or scalar

    Examples
    --------
    >>> import nscan as ns
    >>> bool(ns.random.exponential(0, shape=(1000,)).min() >= 0)
    True
    """
    dtype, scale = _parameters(dtype, scale)
    draws = _Draws(key, step, shape, scale)
    return draws.result(scale * -np.log(1 - _unit(draws.bits(), dtype)))


def bernoulli(key, step=0, shape=None, p=0.5):
    """Draw True with probability p; no derivative passes.

    Parameters
    ----------
    key, step, shape :
        See `uniform`.
    p : array_like

    Returns
    -------
    ndarray or scalar of bool

    Examples
    --------
    >>> import nscan as ns
    >>> ns.random.bernoulli(0, shape=(4,), p=1.0)
    array([ True,  True,  True,  True])
    """
    _, p = _parameters(np.float64, p)
    draws = _Draws(key, step, shape, p)
    return draws.result(_unit(draws.bits(), np.dtype("f8")) < p)


def integers(key, step=0, shape=None, low=0, high=None, dtype=np.int64):
    """Draw integers from low to high - 1 (with one bound: from 0 to low - 1).

    Parameters
    ----------
    key, step, shape :
        See `uniform`.
    low, high : array_like of int
    dtype : integer dtype

    Returns
    -------
    ndarray or scalar

    Raises
    ------
    DtypeError
        A bound or the dtype is no integer.
    SpecError
        ``low >= high``.

    Notes
    -----
    A number is 64 random bits modulo ``high - low``: no probability is off by more than 2**-64.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> dice = ns.random.integers(5, np.arange(6000), low=1, high=7)
    >>> int(dice.min()), int(dice.max())
    (1, 6)
    """
    low, high = (0, low) if high is None else (low, high)
    dtype = np.dtype(dtype)
    if dtype.kind not in "iu":
        raise errors.DtypeError(f"the dtype of random integers must be an integer one, got {dtype}")
    low, high = _bound(low, "low"), _bound(high, "high")
    if not isinstance(low, Traced) and not isinstance(high, Traced) and np.any(low >= high):
        raise errors.SpecError(f"random integers need low < high, got low={low} and high={high}")
    draws = _Draws(key, step, shape, low, high)
    return draws.result(astype(low + astype(draws.bits() % astype(high - low, U64), np.dtype("i8")), dtype))


def choice(key, step=0, a=2, shape=(), p=None):
    """Draw entries of an array, with replacement.

    Parameters
    ----------
    key, step, shape :
        See `uniform`.
    a : int, or array_like of shape (m, ...)
        What to draw from; an int m stands for ``np.arange(m)``.
    p : array_like, shape (m,), optional
        Probabilities; by default all are equal. They are divided by their sum.

    Returns
    -------
    ndarray or scalar
        Shape: that of key and step, `shape`, then that of an entry.

    Raises
    ------
    SpecError
        `a` is empty or 0-d, or `p` has another length.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.random.choice(3, 0, np.array([10.0, 20.0]), (3,), p=[0.0, 1.0])
    array([20., 20., 20.])
    """
    count = int(a) if isinstance(a, (int, np.integer)) else (as_array(a).shape or (0,))[0]
    if count < 1:
        raise errors.SpecError(f"choice needs a positive number or an array with entries, got {a!r}")
    if p is None:
        index = integers(key, step, shape, count)
    else:
        p = as_array(p)
        if len(p.shape) != 1 or p.shape[0] != count:
            raise errors.SpecError(f"choice among {count} entries got probabilities of shape {shape_text(p.shape)}")
        edges = np.cumsum(p)
        u = uniform(key, step, shape) * edges[-1]
        index = np.minimum(np.sum(np.expand_dims(u, -1) >= edges, axis=-1), count - 1)
    return index if isinstance(a, (int, np.integer)) else indexable(as_array(a))[index]


# -------------------------------------------------------------------------------------------------- helpers
class _Draws:
    """The places of a draw: what the bits are a function of, and the shape of the result.

    Parameters
    ----------
    key, step, shape :
        As users give them.
    *parameters : array
        They give the shape where there is none.
    """

    def __init__(self, key, step, shape, *parameters):
        self.key, self.step = _whole(key, "the key"), _whole(step, "the step")
        lead = np.broadcast_shapes(self.key.shape, self.step.shape)
        if shape is None:
            shape = np.broadcast_shapes(*[getattr(x, "shape", ()) for x in parameters])
        shape = (shape,) if isinstance(shape, (int, np.integer)) else shape
        try:
            shape = tuple(operator.index(d) for d in shape)
        except TypeError:
            raise errors.SpecError(f"shape must be an int or a tuple of ints, got {shape!r}") from None
        if any(d < 0 for d in shape):
            raise errors.SpecError(f"shape must not hold negative sizes, got {shape}")
        self.lead, self.shape = lead, (*lead, *shape)
        self.lanes = self._lanes(shape)

    def _lanes(self, shape):
        """Number the places of a step's draw, by arrays of one axis each."""
        out, stride = None, 1
        for axis in reversed(range(len(shape))):
            numbers = np.arange(shape[axis], dtype=U64).reshape(-1, *[1] * (len(shape) - 1 - axis))
            numbers = indexable(numbers) * np.uint64(stride) if stride != 1 else indexable(numbers)
            out = numbers if out is None else numbers + out
            stride *= max(1, shape[axis])
        return np.uint64(0) if out is None else out

    def bits(self, which="first"):
        """Return 64 random bits for each place."""
        key, step = self.key, self.step
        if self.lead:
            axes = (1,) * (len(self.shape) - len(self.lead))
            key, step = (np.reshape(x, (*x.shape, *axes)) if x.shape else x for x in (key, step))
        return bind(TABLE[f"threefry_{which}"], (key, step, self.lanes))

    def result(self, x):
        """Check the shape of a result."""
        if tuple(x.shape) != self.shape:
            raise errors.SizeError(f"parameters give draws of shape {shape_text(x.shape)}, but shape (behind the axes of key and "
                                   f"step) asks for {shape_text(self.shape)}")
        return x


def _whole(x, what):
    """Return a key or the number of a step as uint64."""
    x = as_array(x) if hasattr(x, "dtype") else np.asarray(x)
    if x.dtype.kind not in "iu":
        raise errors.DtypeError(f"{what} of a random draw must be an integer, got dtype {x.dtype}")
    return astype(x, U64)


def _bound(x, name):
    x = as_array(x)
    if x.dtype.kind not in "iu":
        raise errors.DtypeError(f"{name} of random integers must be an integer, got dtype {x.dtype}")
    return astype(x, np.dtype("i8"))


def _parameters(dtype, *values):
    """Return the dtype and the parameters in it; arrays of another float dtype keep theirs."""
    dtype = np.dtype(dtype)
    if dtype not in (np.dtype("f4"), np.dtype("f8")):
        raise errors.DtypeError(f"random numbers are float32 or float64, got dtype {dtype}")
    values = [as_array(x) if hasattr(x, "dtype") or isinstance(x, (list, tuple)) else x for x in values]
    for x in values:
        if getattr(x, "dtype", np.dtype("f8")).kind not in "biuf" or isinstance(x, complex):
            raise errors.DtypeError(f"a parameter of a distribution must be real, got dtype {x.dtype if hasattr(x, 'dtype') else x}")
    return dtype, *[astype(x, dtype) if hasattr(x, "dtype") else x for x in values]


def _unit(bits, dtype):
    """Turn random bits into a number of [0, 1): the upper 53 bits, or 24 for float32."""
    width = 53 if dtype.itemsize == 8 else 24
    # By way of int64, since targets convert signed numbers faster.
    return astype(astype(bits >> np.uint64(64 - width), np.dtype("i8")), dtype) * dtype.type(2.0**-width)


__all__ = ["bernoulli", "choice", "exponential", "integers", "key", "normal", "uniform"]
