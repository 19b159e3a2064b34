"""Measure the elementary functions of nscan beside those that Numba calls.

Run ``python benchmarks/math_functions.py [name ...]``. For each function and both types it prints nanoseconds an
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
if __name__ == "math":
    del sys.modules["math"]

import math  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402

import numba  # noqa: E402
import numpy as np  # noqa: E402
from llvmlite import ir  # noqa: E402
from numba import types  # noqa: E402
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
    """Return an intrinsic that applies one of nscan's functions to arrays, a vector at a time.

    It takes a tuple of arrays, the last one of which gets the result.
    """

    @intrinsic
    def apply(typing_context, arrays):
        def generate(context, builder, signature, args):
            kinds = signature.args[0]
            values = cgutils.unpack_tuple(builder, args[0])
            arrays = [context.make_array(t)(context, builder, v) for t, v in zip(kinds, values, strict=True)]
            itemsize = kinds[0].dtype.bitwidth // 8
            vector = ir.VectorType(context.get_data_type(kinds[0].dtype), VECTOR_BYTES // itemsize)
            places = [builder.bitcast(array.data, vector.as_pointer()) for array in arrays]
            count = builder.udiv(arrays[0].nitems, arrays[0].nitems.type(vector.count))
            with cgutils.for_range(builder, count) as loop:
                *sources, target = (builder.gep(place, [loop.index]) for place in places)
                operands = [builder.load(source, align=itemsize) for source in sources]
                builder.store(nscan_math.emit(builder, name, *operands), target, align=itemsize)
            return context.get_dummy_value()

        return types.void(arrays), generate

    return apply


def make_vector_function(name):
    """Return a jitted function that applies nscan's function to arrays."""
    apply = make_vector_loop(name)

    @numba.njit
    def run(arrays):
        for _ in range(REPEATS):
            apply(arrays)

    return run


def make_scalar_function(name):
    """Return a jitted function that applies NumPy's function to each element of arrays."""
    function = numba.njit(NUMBA_FUNCTIONS[name])

    @numba.njit
    def run_one(arrays):
        x, result = arrays
        for _ in range(REPEATS):
            for i in range(x.size):
                result[i] = function(x[i])

    @numba.njit
    def run_two(arrays):
        x, y, result = arrays
        for _ in range(REPEATS):
            for i in range(x.size):
                result[i] = function(x[i], y[i])

    return run_one if nscan_math.FUNCTIONS[name] == 1 else run_two


def nanoseconds(function, arrays):
    """Return the time a call takes, for one element."""
    start = time.perf_counter()
    function(arrays)
    return (time.perf_counter() - start) / (REPEATS * SIZE) * 1e9


def measure(name, dtype):
    """Return the median times of nscan and of Numba, and the median of their ratios."""
    rng = np.random.default_rng(0)
    count = nscan_math.FUNCTIONS[name]
    inputs = [rng.uniform(*INTERVALS.get(name, (-5, 5)), SIZE).astype(dtype) for _ in range(count)]
    arrays = (*inputs, np.empty(SIZE, dtype))
    functions = make_vector_function(name), make_scalar_function(name)
    results = []
    for function in functions:
        function(arrays)
        results.append(arrays[-1].copy())
    np.testing.assert_allclose(*results, rtol=100 * np.finfo(dtype).eps, atol=10 * np.finfo(dtype).eps)
    times = [[nanoseconds(function, arrays) for function in functions] for _ in range(ROUNDS)]
    ratio = statistics.median(scalar / vector for vector, scalar in times)
    return (*(statistics.median(column) for column in zip(*times, strict=True)), ratio)


def main(names):
    """Measure the functions called `names` (all if there are none) and print a table."""
    print("nanoseconds an element      float32                    float64")
    print("                     nscan  numba  ratio        nscan  numba  ratio")
    for name in names or nscan_math.FUNCTIONS:
        columns = []
        for dtype in (np.float32, np.float64):
            vector, scalar, ratio = measure(name, dtype)
            columns.append(f"{vector:6.2f} {scalar:6.2f} {ratio:6.1f}")
        print(f"{name:18}  {columns[0]}       {columns[1]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
