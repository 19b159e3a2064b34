"""Elementary functions as inlined LLVM IR, for scalars and for vectors of any width.

`emit` appends the code of one function to a basic block. The functions named in `FUNCTIONS` are polynomials
with a range reduction before them, without branches and without calls; those in `LIBM` are calls of the C
library, one for each lane.

A lane's result does not depend on the width of the vector nor on the code around it: nothing carries
fast-math flags, and fused multiply-adds are explicit. (Which NaN comes out is left open.) It does depend on
`fma`, as the roundings are others.

TABLE
"""

from . import math_error, math_exp, math_log, math_power, math_trig
from .math_core import Arithmetic
from .math_libm import call_libm

_EMITTERS = {
    "exp": math_exp.exp,
    "exp2": math_exp.exp2,
    "expm1": math_exp.expm1,
    "log": math_log.log,
    "log2": math_log.log2,
    "log10": math_log.log10,
    "log1p": math_log.log1p,
    "sigmoid": math_exp.sigmoid,
    "softplus": math_log.softplus,
    "log_sigmoid": math_log.log_sigmoid,
    "tanh": math_exp.tanh,
    "sinh": math_exp.sinh,
    "cosh": math_exp.cosh,
    "sin": math_trig.sin,
    "cos": math_trig.cos,
    "tan": math_trig.tan,
    "asin": math_trig.asin,
    "acos": math_trig.acos,
    "atan": math_trig.atan,
    "atan2": math_trig.atan2,
    "asinh": math_log.asinh,
    "acosh": math_log.acosh,
    "atanh": math_log.atanh,
    "erf": math_error.erf,
    "erfc": math_error.erfc,
    "pow": math_power.pow,
    "cbrt": math_power.cbrt,
    "hypot": math_power.hypot,
}

# Number of arguments of each function.
FUNCTIONS = {name: 2 if name in ("atan2", "hypot", "pow") else 1 for name in _EMITTERS}

# Further functions: the name in libm (of the one for float64) and the number of arguments.
LIBM = {
    "gamma": ("tgamma", 1),
    "lgamma": ("lgamma", 1),
    "logb": ("logb", 1),
    "fdim": ("fdim", 2),
    "fmod": ("fmod", 2),
    "nextafter": ("nextafter", 2),
    "remainder": ("remainder", 2),
}


def emit(builder, name, *args, fma=True):
    """Emit a function.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Builder positioned in a basic block. Code of sin, cos and tan leaves it in another one.
    name : str
        Key of `FUNCTIONS` or of `LIBM`.
    *args : llvmlite.ir.Value
        Arguments, all of one type: ``float``, ``double`` or a vector of one of them.
    fma : bool
        Whether to use fused multiply-adds. On hosts without the instruction LLVM would call a function.

    Returns
    -------
    llvmlite.ir.Value
        The result, of the type of the arguments.
    """
    expected = FUNCTIONS[name] if name in FUNCTIONS else LIBM[name][1]
    if len(args) != expected:
        raise TypeError(f"{name} takes {expected} argument(s), got {len(args)}")
    if any(arg.type != args[0].type for arg in args):
        raise TypeError(f"{name} takes arguments of one type, got {', '.join(str(arg.type) for arg in args)}")
    if name in LIBM:
        return call_libm(builder, LIBM[name][0], *args)
    return _EMITTERS[name](Arithmetic(builder, args[0].type, fma), *args)
