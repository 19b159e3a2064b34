"""Elementary functions as inlined LLVM IR, for scalars and for vectors of any width.

`emit` appends the code of one function to a basic block. The functions named in `FUNCTIONS` are polynomials
with a range reduction before them, without branches and without calls; those in `LIBM` are calls of the C
library, one for each lane.

A lane's result does not depend on the width of the vector nor on the code around it: nothing carries
fast-math flags, and fused multiply-adds are explicit. (Which NaN comes out is left open.) It does depend on
`fma`, as the roundings are others.

Errors stay below 2 ulp (units in the last place) for float32 and below 4 ulp for float64 over the whole
range, subnormal numbers included. The table has the largest ones found: among a thirteenth or more of all
float32 numbers, and all of those that matter for the functions that come near the bound; among 3,000,000
pairs of them; and among 100,000 arguments in float64. "(no fma)" is without fused multiply-adds.

===========  =======  ========  =======  ========
function     float32  (no fma)  float64  (no fma)
===========  =======  ========  =======  ========
exp          0.92     1.19      1.0      1.1
exp2         0.95     1.21      1.1      1.4
expm1        1.59     1.68      1.5      1.6
log          0.89     0.87      0.8      0.8
log2         1.10     1.19      1.0      1.0
log10        1.01     1.18      0.9      0.9
log1p        1.44     1.44      1.1      1.1
sigmoid      1.70     1.70      1.5      1.5
softplus     1.75     1.73      1.5      1.5
log_sigmoid  1.75     1.73      1.6      1.6
tanh         1.18     1.17      1.1      1.1
sinh         1.15     1.38      1.3      1.3
cosh         1.01     1.17      0.9      1.1
sin          1.55     1.52      1.4      2.0
cos          1.54     1.54      1.4      1.5
tan          1.59     1.37      2.4      2.5
asin         1.16     1.14      1.2      1.2
acos         1.13     1.14      1.1      1.1
atan         1.30     1.37      2.2      2.3
atan2        1.51     1.51      1.9      2.3
asinh        1.41     1.54      2.2      2.2
acosh        1.90     1.90      1.6      1.6
atanh        1.33     1.33      1.3      1.3
erf          1.10     1.27      1.1      1.2
erfc         1.66     1.69      2.5      2.9
pow          1.06     1.24      1.0      1.1
cbrt         0.51     0.51      0.6      0.6
hypot        0.99     1.19      0.9      1.2
===========  =======  ========  =======  ========

Four functions are not done in one stretch in the type itself:

* sin, cos, tan: where the angle in any lane is beyond 2**17 (float32) or 2**30 (float64; 2**20 without
  fma), a branch is taken to an out-of-line function that calls libm for each lane, and the lanes beyond the
  bound get its results, which are as good as libm is.
* erfc: the float32 function has its tail computed in float64, as in float32 the errors of the factors add
  up to more than 2 ulp.
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
