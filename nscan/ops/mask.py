"""Elements chosen by a traced boolean array: their number is not known, so they are kept at full size beside the mask.

``x[m]`` of a traced mask m gives a `Selection`. It can be computed with (numbers, other selections by the same mask),
written back (``x[m] = ...``, ``x[m] *= 2``) and summed; everything else would need its size.
"""

import numpy as np

from nscan import errors
from nscan.array import astype, traced_value
from nscan.primitive import TABLE, bind, shape_text
from nscan.tape import Lit
from nscan.trace import Traced

SUMS = {np.sum: "sum", np.mean: "mean", np.prod: "prod", np.any: "any", np.all: "all"}


class Selection(np.lib.mixins.NDArrayOperatorsMixin):
    """Elements of an array where a mask holds.

    Attributes
    ----------
    full : traced array
        Of the whole array's shape; its other elements do not count.
    mask : traced array of bool
    """

    __array_priority__ = 1100.0

    def __init__(self, full, mask):
        self.full = full
        self.mask = mask
        self.dtype = full.dtype

    def _operand(self, x):
        if isinstance(x, Selection):
            if not same_mask(x.mask, self.mask):
                raise no_size("two arrays selected by different masks")
            return x.full
        if len(getattr(x, "shape", ())) > len(self.full.shape) - len(self.mask.shape):
            raise no_size(f"an array of shape {shape_text(x.shape)} beside one selected by a mask")
        return x

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """Compute at full size."""
        out = kwargs.pop("out", (None,))[0]
        if method != "__call__" or kwargs:
            raise no_size(f"np.{ufunc.__name__}.{method}")
        result = ufunc(*[self._operand(x) for x in inputs])
        if out is None:
            return Selection(result, self.mask)
        if out is not self or not np.can_cast(result.dtype, self.dtype, "same_kind"):
            raise errors.DtypeError(f"cannot cast the result of {ufunc.__name__} from {result.dtype} to {self.dtype} in place")
        self.full = astype(result, self.dtype)
        return self

    def __array_function__(self, function, types, args, kwargs):
        """Sum at full size; refuse functions that need the number of elements."""
        if function not in SUMS or len(args) != 1 or kwargs.get("axis") is not None:
            raise no_size(f"np.{function.__name__}")
        mask = np.reshape(self.mask, tuple(self.mask.shape) + (1,) * (len(self.full.shape) - len(self.mask.shape)))
        return function(self.full, where=np.broadcast_to(mask, self.full.shape))

    def __getattr__(self, name):
        for function, known in SUMS.items():
            if name == known:
                return lambda *args, **kwargs: function(self, *args, **kwargs)
        raise no_size(f"the attribute {name!r}") if not name.startswith("__") else AttributeError(name)

    def __len__(self):
        raise no_size("len()")

    def __getitem__(self, index):
        raise no_size("indexing")

    def __iter__(self):
        raise no_size("iteration")

    def written_to(self, x, mask):
        """Return what x is after ``x[mask] = self``."""
        if not same_mask(mask, self.mask):
            raise no_size("an array selected by one mask, written through another,")
        return astype(self.full, x.dtype)


def no_size(what):
    """Build the error for what needs the number of elements that a traced mask selects."""
    return traced_value(f"{what} of x[mask]", "a traced mask selects a number of elements that is known only while the loop "
                        "runs; use np.where(mask, a, b), or np.sum(x, where=mask)")


def same_mask(a, b):
    """Tell whether two masks are one, or made by equal equations."""
    if a is b:
        return True
    if not isinstance(a, Traced) or not isinstance(b, Traced) or a.home is not b.home or not a.home.symbolic:
        return False
    made = [next((eqn for eqn in reversed(a.home.eqns) if x.node in eqn.outputs), None) for x in (a, b)]
    if None in made:
        return a.node is b.node
    one, two = made
    return one.row is two.row and one.params == two.params and all(map(_same_operand, one.inputs, two.inputs))


def _same_operand(v, w):
    return v is w or type(v) is Lit and type(w) is Lit and v.dtype == w.dtype and v.value == w.value


def masked(x, mask, value):
    """Return what x is after ``x[mask] = value``."""
    extra = len(x.shape) - len(mask.shape)
    if isinstance(value, Selection):
        value = value.written_to(x, mask)
    else:
        value = astype(value, x.dtype) if hasattr(value, "dtype") else np.asarray(value, x.dtype)[()]
        if len(value.shape) > extra:
            raise errors.UnsupportedIndexError("an array written through a traced mask has no fixed shape; write a number, or "
                                               "use np.where(mask, a, b)")
    mask = np.reshape(mask, tuple(mask.shape) + (1,) * extra) if extra else mask
    return bind(TABLE["select"], (mask, value, x))
