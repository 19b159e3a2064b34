"""Methods of traced arrays: each is the NumPy function of the same name."""

import numpy as np

from nscan.array import FRONT_OPERATORS, TracedArray, astype
from nscan.ops.pointwise import divmod_, power
from nscan.primitive import TABLE

FRONT_OPERATORS["power"] = power
FRONT_OPERATORS["divmod"] = divmod_

SAME = ("sum", "prod", "max", "min", "mean", "std", "var", "all", "any", "argmax", "argmin", "cumsum", "cumprod", "ravel",
        "squeeze", "swapaxes", "diagonal", "trace", "repeat", "round", "dot", "take", "argsort", "searchsorted",
        "conj", "copy", "put", "choose")
UNARY = {name for name, x in vars(np).items() if isinstance(x, np.ufunc) and x.nin == 1}


def _method(name):
    function = getattr(np, name)

    def method(self, *args, **kwargs):
        return function(self, *args, **kwargs)
    method.__name__ = name
    method.__doc__ = f"Same as ``np.{name}``."
    return method


for _name in SAME:
    setattr(TracedArray, _name, _method(_name))


def _shape_args(args):
    return args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


def reshape(self, *shape, order="C", copy=None):
    """Do the same as ``np.reshape``."""
    return np.reshape(self, _shape_args(shape) if len(shape) != 1 else shape[0], order=order)


def transpose(self, *axes):
    """Do the same as ``np.transpose``."""
    axes = _shape_args(axes)
    return np.transpose(self, None if not axes or axes == (None,) else axes)


def cast(self, dtype, order="K", casting="unsafe", subok=True, copy=True):
    """Cast to a dtype."""
    out = astype(self, dtype)
    return np.copy(out) if out is self else out


def fill(self, value):
    """Write one value to every element."""
    self[...] = value


def compress(self, condition, axis=None, out=None):
    """Do the same as ``np.compress``."""
    return np.compress(condition, self, axis, out)


def clip(self, min=None, max=None, out=None):
    """Do the same as ``np.clip``."""
    return np.clip(self, min, max, out=out)


def flatten(self, order="C"):
    """Flatten into a copy."""
    return np.copy(np.ravel(self, order))


def sort(self, axis=-1, kind=None, order=None, *, stable=None):
    """Sort in place."""
    self[...] = np.sort(self, axis)


def conjugate(self):
    """Complex conjugate."""
    return np.conjugate(self)


def view(self, dtype=None):
    """Return a view of the whole array (other dtypes are refused)."""
    if dtype is not None and np.dtype(dtype) != self.dtype:
        from nscan import errors
        raise errors.UnsupportedError(".view(dtype) is not supported on traced arrays; use .astype")
    return self[...]


def nonzero(self):
    """Refuse: the result has no fixed shape."""
    from nscan import errors
    raise errors.UnsupportedError("nonzero() of a traced array has no fixed shape; use np.where(condition, a, b)")


for _function, _name in ((reshape, "reshape"), (transpose, "transpose"), (cast, "astype"), (fill, "fill"), (flatten, "flatten"),
                         (compress, "compress"), (clip, "clip"),
                         (sort, "sort"), (conjugate, "conjugate"), (view, "view"), (nonzero, "nonzero")):
    setattr(TracedArray, _name, _function)


def _unary_method(self, name):
    """Methods named after unary ufuncs: NumPy calls them on the elements of object arrays."""
    if name in UNARY and not self.shape and TABLE.front(getattr(np, name)) is not None:
        return lambda: getattr(np, name)(self)
    raise AttributeError(f"traced array has no attribute {name!r}")


TracedArray.__getattr__ = _unary_method
