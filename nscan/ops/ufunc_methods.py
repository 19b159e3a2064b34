"""Methods of ufuncs on traced arrays: ``np.add.reduce``, ``np.maximum.accumulate``, ``np.multiply.outer``, ``np.add.at``."""

import numpy as np

from nscan import errors
from nscan.array import TracedArray, as_array, as_operand, astype, traced_value
from nscan.ops.indexing import parse
from nscan.primitive import TABLE, bind


def _logsumexp(a, axis=0, dtype=None, keepdims=False):
    """Compute np.logaddexp.reduce."""
    from nscan.special import logsumexp
    a = as_array(a)
    return logsumexp(a if dtype is None else astype(a, np.dtype(dtype)), axis=axis, keepdims=keepdims)


REDUCE = {"add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min, "logical_and": np.all,
          "logical_or": np.any, "logaddexp": _logsumexp}
ACCUMULATE = {"add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin"}


def call(ufunc, method, inputs, kwargs):
    """Apply a method of a ufunc."""
    name = ufunc.__name__
    if method == "reduce" and name in REDUCE:
        kwargs.setdefault("axis", 0)
        return REDUCE[name](inputs[0], **kwargs)
    if method == "accumulate" and name in ACCUMULATE:
        a = as_array(inputs[0])
        axis = kwargs.get("axis", inputs[1] if len(inputs) > 1 else 0)
        if name in ("add", "multiply"):
            return getattr(np, ACCUMULATE[name])(a, axis=axis, dtype=kwargs.get("dtype"))
        return bind(TABLE[ACCUMULATE[name]], (a,), {"axis": axis % len(a.shape)})
    if method == "outer":
        a, b = (as_array(x) for x in inputs)
        return ufunc(np.reshape(a, tuple(a.shape) + (1,) * len(b.shape)), b)
    if method == "at":
        return _at(name, *inputs)
    known = {"reduce": REDUCE, "accumulate": ACCUMULATE}.get(method)
    raise errors.UnsupportedError(f"np.{name}.{method} is not supported on traced arrays" + (
        f"; {method} is there for {', '.join(known)}, and ns.reduce and ns.associative_scan take any function" if known else ""))


def _at(name, a, indices, b=None):
    """Unbuffered in-place operation: equal indices accumulate."""
    if not isinstance(a, TracedArray):
        raise traced_value(f"np.{name}.at on a real array", "make the buffer a traced array first: z = ns.array(z)")
    if name not in ("add", "subtract"):
        raise errors.UnsupportedError(f"np.{name}.at is not supported on traced arrays; np.add.at and np.subtract.at are")
    a._check_writable()
    spec, operands = parse(a, indices)
    value = as_operand(b)
    value = astype(value, a.dtype) if hasattr(value, "dtype") else np.asarray(value, a.dtype)[()]
    value = -value if name == "subtract" else value
    a.write(bind(TABLE["index_add"], (a, value, *operands), {"spec": spec}))
