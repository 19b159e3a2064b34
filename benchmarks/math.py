"""Measure the elementary functions of nscan beside those that Numba calls.

Run ``python benchmarks/math.py [name ...]``. For each function and both types it prints nanoseconds an
element, over arrays of 4096 elements, of the vector code of `nscan.cpu.math` and of a Numba loop that calls
NumPy's function on scalars, and the ratio of the two. They are measured in turns, and the median is taken.
"""

import os
import sys

# Within this folder the file's own name hides the standard library's module. As a script, it has to take the
# folder off the path before anything else gets imported; and if it gets imported by a sibling, or by what
# that imports, it is the other module that is meant, which has to take its place.
FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]
sys.modules.pop("math", None)

import math  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402

import numba  # noqa: E402
import numpy as np  # noqa: E402
from llvmlite import ir  # noqa: E402
from numba.core import cgutils  # noqa: E402
from numba.extending import intrinsic  # noqa: E402

sys.path.append(os.path.dirname(FOLDER))

from nscan.cpu import math as nscan_math  # noqa: E402

SIZE = 4096
REPEATS = 20
ROUNDS = 15
VECTOR_BYTES = 64

NUMBA_FUNCTIONS = {
    "acos": lambda x: np.arccos(x),
    "acosh": lambda x: np.arccosh(x),
    "asin": lambda x: np.arcsin(x),
    "asinh": lambda x: np.arcsinh(x),
    "atan": lambda x: np.arctan(x),
    "atan2": lambda x, y: np.arctan2(x, y),
    "atanh": lambda x: np.arctanh(x),
    "cbrt": lambda x: np.cbrt(x),
    "cos": lambda x: np.cos(x),
    "cosh": lambda x: np.cosh(x),
    "erf": lambda x: math.erf(x),
    "erfc": lambda x: math.erfc(x),
    "exp": lambda x: np.exp(x),
    "exp2": lambda x: np.exp2(x),
    "expm1": lambda x: np.expm1(x),
    "hypot": lambda x, y: np.hypot(x, y),
    "log": lambda x: np.log(x),
    "log10": lambda x: np.log10(x),
    "log1p": lambda x: np.log1p(x),
    "log2": lambda x: np.log2(x),
    "log_sigmoid": lambda x: -np.log1p(np.exp(-x)),
    "pow": lambda x, y: x**y,
    "sigmoid": lambda x: type(x)(1) / (type(x)(1) + np.exp(-x)),
    "sin": lambda x: np.sin(x),
    "sinh": lambda x: np.sinh(x),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "tan": lambda x: np.tan(x),
    "tanh": lambda x: np.tanh(x),
}
INTERVALS = {
    **dict.fromkeys(("acos", "asin", "atanh"), (-1, 1)),
    **dict.fromkeys(("log", "log2", "log10", "pow"), (0.1, 5)),
    "acosh": (1, 10),
    "log1p": (-0.9, 5),
}


def make_vector_loop(name):
    """Return a jitted function that applies one of nscan's functions to arrays a vector at a time."""

    @intrinsic
    def apply(typing_context, arrays):
        def generate(context, builder, signature, args):
            kinds = signature.args[0]
            values = cgutils.unpack_tuple(builder, args[0])
            arrays = [context.make_array(t)(context, builder, v) for t, v in zip(kinds, values, strict=True)]
            scalar = arrays[0].data.type.pointee
            lanes = VECTOR_BYTES // (4 if isinstance(scalar, ir.FloatType) else 8)
            pointer = ir.VectorType(scalar, lanes).as_pointer()
            places = [builder.bitcast(array.data, pointer) for array in arrays]
            count = builder.udiv(arrays[0].nitems, ir.Constant(arrays[0].nitems.type, lanes))
            with cgutils.for_range(builder, count) as loop:
                *sources, target = (builder.gep(place, [loop.index]) for place in places)
                values = [builder.load(source, align=scalar.get_abi_size(context.target_data)) for source in sources]
                builder.store(nscan_math.emit(builder, name, *values), target, align=8)
            return context.get_dummy_value()

        return numba.void(arrays), generate

    return apply


