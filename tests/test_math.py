"""Tests of the elementary functions of `nscan.cpu.math` against multiple-precision references."""

import ctypes
import functools
import itertools
import math
import re

import mpmath as mp
import numpy as np
import pytest
from llvmlite import binding as llvm
from llvmlite import ir

from nscan.cpu import math as nscan_math
from nscan.cpu import math_tables as tables
from nscan.cpu.math_core import Arithmetic
from nscan.cpu.math_trig import largest_angle

DTYPES = {32: np.float32, 64: np.float64}
# Largest errors promised, in units in the last place.
BOUNDS = {32: 2.0, 64: 4.0}
LANES = {32: 16, 64: 8}
FUNCTIONS = sorted(nscan_math.FUNCTIONS)
UNARY = [name for name in FUNCTIONS if nscan_math.FUNCTIONS[name] == 1]
BINARY = [name for name in FUNCTIONS if nscan_math.FUNCTIONS[name] == 2]
INF, NAN = math.inf, math.nan


def softplus(x):
    """Return log(1 + exp(x)) in multiple precision."""
    return max(x, 0) + mp.log1p(mp.exp(-min(abs(x), 2000)))


# References, and points of interest: an interval where the function varies, and bounds in the code.
REFERENCES = {
    "acos": mp.acos,
    "acosh": mp.acosh,
    "asin": mp.asin,
    "asinh": mp.asinh,
    "atan": mp.atan,
    "atan2": mp.atan2,
    "atanh": mp.atanh,
    "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "cos": mp.cos,
    "cosh": mp.cosh,
    "erf": mp.erf,
    "erfc": mp.erfc,
    "exp": mp.exp,
    "exp2": lambda x: mp.power(2, x),
    "expm1": mp.expm1,
    "hypot": mp.hypot,
    "log": mp.log,
    "log10": lambda x: mp.log(x) / mp.log(10),
    "log1p": mp.log1p,
    "log2": lambda x: mp.log(x) / mp.log(2),
    "log_sigmoid": lambda x: -softplus(-x),
    "pow": mp.power,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "sin": mp.sin,
    "sinh": mp.sinh,
    "softplus": softplus,
    "tan": mp.tan,
    "tanh": mp.tanh,
}
# The references of these are bounded beyond this argument, lest they get enormous (or have no digits left).
SATURATED = {
    **dict.fromkeys(("cosh", "exp", "expm1", "sigmoid", "sinh", "tanh"), 2000),
    "exp2": 3000,
    "erf": 40,
    "erfc": 40,
}
INTERVALS = {
    "acos": (-1, 1),
    "acosh": (1, 10),
    "asin": (-1, 1),
    "asinh": (-5, 5),
    "atan": (-5, 5),
    "atanh": (-1, 1),
    "cbrt": (-10, 10),
    "cos": (-40, 40),
    "cosh": (-10, 10),
    "erf": (-6, 6),
    "erfc": (-4, 11),
    "exp": (-20, 20),
    "exp2": (-20, 20),
    "expm1": (-5, 5),
    "log": (0, 10),
    "log10": (0, 10),
    "log1p": (-1, 9),
    "log2": (0, 10),
    "log_sigmoid": (-5, 20),
    "sigmoid": (-20, 20),
    "sin": (-40, 40),
    "sinh": (-10, 10),
    "softplus": (-20, 5),
    "tan": (-40, 40),
    "tanh": (-5, 5),
}
EDGES = {
    "acosh": (1.0, 2.0**13, 2.0**28),
    "asin": (0.5, 1.0),
    "acos": (0.5, 1.0),
    "asinh": (0.5, 0.75, 2.0**13, 2.0**28),
    "atan": (1.0,),
    "atanh": (0.5, 1.0),
    "cosh": (89.41598, 710.4758),
    "erf": (1.0, 4.0, 6.0),
    "erfc": (0.5, 9.0, 9.194, 10.05, 26.0, 26.543, 27.22),
    "exp": (87.0, 87.33, 88.72284, 103.97, 708.4, 709.7827, 745.13),
    "exp2": (125.0, 126.0, 128.0, 149.0, 150.0, 1021.0, 1022.0, 1024.0, 1074.0, 1075.0),
    "expm1": (17.3, 36.7, 88.72284, 709.7827),
    "log1p": (1.0, 0.4142, 0.2929),
    "log_sigmoid": (0.8814, 87.33, 103.97, 708.4, 745.13),
    "sigmoid": (16.64, 36.7, 87.33, 103.97, 708.4, 745.13),
    "sinh": (89.41598, 710.4758),
    "softplus": (0.8814, 87.33, 103.97, 708.4, 745.13),
    "tanh": (0.625, 9.01, 19.06),
    **dict.fromkeys(("log", "log2", "log10", "cbrt"), (0.5, math.sqrt(0.5), 1.0, math.sqrt(2), 2.0)),
    **dict.fromkeys(("cos", "sin", "tan"), (math.pi / 4, math.pi / 2, math.pi, 2.0**17, 2.0**20, 2.0**30)),
}


# Kernels


def add_kernel(module, name, bits, lanes, fma):
    """Add a function that applies `name` to arrays, `lanes` elements at a time (0: one, as a scalar)."""
    scalar = ir.FloatType() if bits == 32 else ir.DoubleType()
    kind = ir.VectorType(scalar, lanes) if lanes else scalar
    index_type = ir.IntType(64)
    count = nscan_math.FUNCTIONS[name] if name in nscan_math.FUNCTIONS else nscan_math.LIBM[name][1]
    pointers = [scalar.as_pointer()] * (count + 1)
    kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), [*pointers, index_type]), "kernel")
    entry, loop, done = (kernel.append_basic_block(label) for label in ("entry", "loop", "done"))
    builder = ir.IRBuilder(entry)
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(index_type)
    index.add_incoming(index_type(0), entry)
    places = [builder.bitcast(builder.gep(p, [index]), kind.as_pointer()) for p in kernel.args[:-1]]
    values = [builder.load(place, align=bits // 8) for place in places[:-1]]
    result = nscan_math.emit(builder, name, *values, fma=fma)
    builder.store(result, places[-1], align=bits // 8)
    following = builder.add(index, index_type(max(lanes, 1)))
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, kernel.args[-1]), loop, done)
    builder.position_at_end(done)
    builder.ret_void()


def module_text(name, bits, lanes, fma=True):
    """Return the IR of a module with the kernel of one function."""
    module = ir.Module()
    add_kernel(module, name, bits, lanes, fma)
    return str(module)


def compile_module(text):
    """Compile IR for the host."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2, jit=True
    )
    module = llvm.parse_assembly(text)
    module.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def make_function(name, bits, lanes, fma):
    """Compile a function; return a callable on arrays of any length."""
    engine = compile_module(module_text(name, bits, lanes, fma))
    count = nscan_math.FUNCTIONS[name] if name in nscan_math.FUNCTIONS else nscan_math.LIBM[name][1]
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (count + 1), ctypes.c_int64)
    kernel = prototype(engine.get_function_address("kernel"))
    dtype = DTYPES[bits]

    def function(*args):
        arrays = [np.asarray(arg, dtype).ravel() for arg in args]
        size = arrays[0].size
        padded = -(-size // max(lanes, 1)) * max(lanes, 1)
        arrays = [np.concatenate([array, np.ones(padded - size, dtype)]) for array in arrays]
        result = np.empty(padded, dtype)
        kernel(*(array.ctypes.data for array in arrays), result.ctypes.data, padded)
        return result[:size]

    function.engine = engine
    return function


get_function = functools.cache(make_function)


def all_forms(name, bits):
    """Return a dict (lanes, fma) -> callable, of scalar and vector code with and without fusion."""
    keys = itertools.product((0, LANES[bits]), (True, False))
    return {(lanes, fma): get_function(name, bits, lanes, fma) for lanes, fma in keys}


# Checking


def reference_values(name, *args):
    """Evaluate a function in multiple precision; give None where it is not defined."""
    bound = SATURATED.get(name, INF)
    values = []
    with mp.workprec(150):
        for point in zip(*(arg.tolist() for arg in args), strict=True):
            value = REFERENCES[name](*(mp.mpf(min(max(x, -bound), bound)) for x in point))
            values.append(None if isinstance(value, mp.mpc) or mp.isnan(value) else value)
    return values


def ulp_error(value, reference, dtype):
    """Return the error of a number in units in the last place of the reference.

    Infinity counts as the first power of two that is not finite, thus overflow too early or too late has
    an error like any other.
    """
    if reference is None or np.isnan(value):
        return 0.0 if reference is None and np.isnan(value) else INF
    info = np.finfo(dtype)
    limit = mp.mpf(2) ** int(info.maxexp)
    exact = max(min(reference, limit), -limit)
    value = mp.mpf(float(value)) if np.isfinite(value) else math.copysign(1, value) * limit
    exponent = mp.frexp(exact)[1] - 1 if exact else -10**6
    exponent = min(max(exponent, int(info.minexp)), int(info.maxexp) - 1)
    return float(abs(value - exact) / mp.mpf(2) ** (exponent - int(info.nmant)))


def worst_error(values, references, dtype):
    """Return the largest error and its index."""
    errors = [ulp_error(value, reference, dtype) for value, reference in zip(values, references, strict=True)]
    index = int(np.argmax(errors))
    return errors[index], index


def canonical_bits(values):
    """Return the bits of floating-point numbers, with one pattern for NaN."""
    values = np.where(np.isnan(values), np.array(NAN, values.dtype), values)
    return values.view(np.int32 if values.dtype == np.float32 else np.int64)


def assert_identical(got, expected, *args):
    """Assert that numbers agree to the bit, any NaN being as good as any other."""
    different = np.flatnonzero(canonical_bits(got) != canonical_bits(expected))
    shown = [(*(arg[i] for arg in args), got[i], expected[i]) for i in different[:5]]
    assert not different.size, f"{different.size} differ; (arguments, got, expected): {shown}"


# Points


def random_bits(rng, size, dtype):
    """Draw finite numbers whose exponents are uniformly distributed."""
    values = np.frombuffer(rng.bytes(size * np.dtype(dtype).itemsize), dtype)
    return values[np.isfinite(values)]


def near(values, dtype, steps=4):
    """Return the neighbourhood of each of some numbers, with either sign."""
    bits = np.asarray(values, dtype).view(np.int32 if dtype == np.float32 else np.int64)
    positive = (bits[:, None] + np.arange(-steps, steps + 1, dtype=bits.dtype)).ravel().view(dtype)
    positive = positive[np.isfinite(positive)]
    return np.concatenate([positive, -positive])


def unary_points(name, dtype, size, seed=0):
    """Choose arguments of a function of one argument."""
    rng = np.random.default_rng(seed)
    info = np.finfo(dtype)
    common = [float(info.tiny), float(info.max), 1e-5, 1.0, 100 * float(info.smallest_subnormal)]
    exponents = rng.uniform(-30, 8, size // 4)
    return np.concatenate([
        random_bits(rng, size // 4, dtype),
        rng.uniform(*INTERVALS[name], size // 2).astype(dtype),
        (np.exp2(exponents) * rng.choice([-1, 1], exponents.size)).astype(dtype),
        near([*EDGES.get(name, ()), *common], dtype),
    ])


def pow_points(dtype, size, seed=0):
    """Choose arguments of pow such that few results overflow."""
    rng = np.random.default_rng(seed)
    largest = float(np.finfo(dtype).maxexp)
    part = size // 4
    bases = np.concatenate([
        np.exp2(rng.uniform(-largest, largest, part)),
        1 + rng.uniform(-0.3, 0.4, part) * np.exp2(rng.uniform(-np.finfo(dtype).nmant, 0, part)),
    ]).astype(dtype)
    logs = np.array([float(mp.log(mp.mpf(x), 2)) or 1.0 for x in bases.tolist()])
    exponents = (rng.uniform(-1.1, 1.1, logs.size) * largest / logs).astype(dtype)
    small = rng.uniform(-10, 10, part).astype(dtype)
    x = np.concatenate([bases, small, small, random_bits(rng, part, dtype)])
    integers = np.rint(rng.uniform(-40, 40, part))
    y = np.concatenate([exponents, rng.uniform(-9, 9, part), integers])
    return x, np.concatenate([y, rng.uniform(-3, 3, x.size - y.size)]).astype(dtype)


def binary_points(name, dtype, size, seed=0):
    """Choose arguments of a function of two arguments."""
    if name == "pow":
        return pow_points(dtype, size, seed)
    rng = np.random.default_rng(seed)
    wide = random_bits(rng, size // 4, dtype)
    with np.errstate(over="ignore"):
        similar = (wide * np.exp2(rng.uniform(-4, 4, wide.size))).astype(dtype)
    similar[~np.isfinite(similar)] = 1
    x = np.concatenate([wide, wide, rng.normal(size=size // 2).astype(dtype)])
    y = np.concatenate([similar, rng.permutation(wide), rng.normal(size=size // 2).astype(dtype)])
    return x, y


def points(name, dtype, size, seed=0):
    """Choose arguments of any function, as a tuple of arrays."""
    if name in BINARY:
        return binary_points(name, dtype, size, seed)
    return (unary_points(name, dtype, size, seed),)


# Tests


@pytest.mark.parametrize("bits", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(name, bits):
    """Errors stay within the bounds, and the width of the vector does not matter."""
    dtype = DTYPES[bits]
    args = points(name, dtype, 4000)
    references = reference_values(name, *args)
    forms = all_forms(name, bits)
    for fma in (True, False):
        scalar, vector = forms[0, fma](*args), forms[LANES[bits], fma](*args)
        assert_identical(vector, scalar, *args)
        error, index = worst_error(vector, references, dtype)
        assert error <= BOUNDS[bits], (fma, error, [arg[index] for arg in args], vector[index])


@pytest.mark.sweep
@pytest.mark.parametrize("bits", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy_sweep(name, bits):
    """Errors stay within the bounds at many more points."""
    dtype = DTYPES[bits]
    args = points(name, dtype, 40_000, seed=1)
    references = reference_values(name, *args)
    for fma in (True, False):
        values = get_function(name, bits, LANES[bits], fma)(*args)
        error, index = worst_error(values, references, dtype)
        print(f"{name} float{bits} fma={fma}: {error:.2f} ulp at {[float(arg[index]) for arg in args]}")
        assert error <= BOUNDS[bits], (fma, error, [arg[index] for arg in args], values[index])


@pytest.mark.parametrize("bits", DTYPES)
@pytest.mark.parametrize("name", ["exp", "log1p", "sin", "erfc", "pow"])
def test_other_widths(name, bits):
    """Widths other than that of a register give the same bits."""
    args = points(name, DTYPES[bits], 400)
    expected = get_function(name, bits, 0, True)(*args)
    for lanes in (2, 3, 64):
        assert_identical(make_function(name, bits, lanes, True)(*args), expected, *args)


# Arguments and exact results; where a function has no entry for an argument, none is required.
ZEROS = [(0.0, 0.0), (-0.0, -0.0)]
ODD_AND_UNBOUNDED = [*ZEROS, (INF, INF), (-INF, -INF)]
NONE_AT_INFINITY = [(INF, NAN), (-INF, NAN)]
LOGARITHM = [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-INF, NAN), (-1.0, NAN), (-1e-40, NAN)]
SPECIAL_VALUES = {
    "acos": [(1.0, 0.0), (1.5, NAN), (-1.5, NAN), *NONE_AT_INFINITY],
    "acosh": [(1.0, 0.0), (0.5, NAN), (-1.0, NAN), (0.0, NAN), (INF, INF), (-INF, NAN)],
    "asin": [*ZEROS, (1.5, NAN), (-1.5, NAN), *NONE_AT_INFINITY],
    "asinh": ODD_AND_UNBOUNDED,
    "atan": [*ZEROS, (INF, math.pi / 2), (-INF, -math.pi / 2)],
    "atanh": [*ZEROS, (1.0, INF), (-1.0, -INF), (1.5, NAN), (-1.5, NAN), *NONE_AT_INFINITY],
    "cbrt": [*ODD_AND_UNBOUNDED, (1.0, 1.0), (-8.0, -2.0), (27.0, 3.0)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), *NONE_AT_INFINITY],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF)],
    "erf": [*ZEROS, (INF, 1.0), (-INF, -1.0), (30.0, 1.0)],
    "erfc": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (40.0, 0.0), (-40.0, 2.0)],
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e4, INF), (-1e4, 0.0)],
    "exp2": [(0.0, 1.0), (-0.0, 1.0), (10.0, 1024.0), (INF, INF), (-INF, 0.0), (1e4, INF), (-1e4, 0.0)],
    "expm1": [*ZEROS, (INF, INF), (-INF, -1.0), (1e4, INF), (-1e4, -1.0)],
    "log": LOGARITHM,
    "log10": [*LOGARITHM, (1000.0, 3.0), (10.0, 1.0)],
    "log1p": [*ZEROS, (-1.0, -INF), (-2.0, NAN), (INF, INF), (-INF, NAN)],
    "log2": [*LOGARITHM, (8.0, 3.0), (0.125, -3.0)],
    "log_sigmoid": [(INF, -0.0), (-INF, -INF), (-1e4, -1e4), (1e4, -0.0)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e4, 1.0), (-1e4, 0.0)],
    "sin": [*ZEROS, *NONE_AT_INFINITY],
    "sinh": [*ODD_AND_UNBOUNDED, (1e4, INF), (-1e4, -INF)],
    "softplus": [(INF, INF), (-INF, 0.0), (1e4, 1e4), (-1e4, 0.0)],
    "tan": [*ZEROS, *NONE_AT_INFINITY],
    "tanh": [*ZEROS, (INF, 1.0), (-INF, -1.0), (1e4, 1.0), (-1e4, -1.0)],
}


@pytest.mark.parametrize("bits", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_special_values(name, bits):
    """Results at zeros, infinities, poles and outside of the domain are exact; NaN stays NaN."""
    dtype = DTYPES[bits]
    args, expected = np.array([*SPECIAL_VALUES[name], (NAN, NAN), (-NAN, NAN)], dtype).T
    for function in all_forms(name, bits).values():
        assert_identical(function(args), expected.copy(), args)


@pytest.mark.parametrize("bits", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_special_values_of_two_arguments(name, bits):
    """All pairs of special arguments give what NumPy gives."""
    dtype = DTYPES[bits]
    special = [0.0, 1.0, 0.5, 2.0, 3.0, 2.5, float(np.finfo(dtype).max), float(np.finfo(dtype).tiny), INF]
    special += [2.0**23 + 1, 2.0**24, 2.0**52 + 1, 2.0**53, float(np.finfo(dtype).smallest_subnormal)]
    special = np.array([sign * x for x in special for sign in (1, -1)] + [NAN], dtype)
    x, y = (pair.ravel() for pair in np.meshgrid(special, special))
    # Through float64, as NumPy's own functions for float32 are not always rounded correctly.
    numpy_function = {"atan2": np.arctan2, "hypot": np.hypot, "pow": np.power}[name]
    with np.errstate(all="ignore"):
        wide = numpy_function(x.astype(np.float64), y.astype(np.float64))
        expected = wide.astype(dtype)
    for function in all_forms(name, bits).values():
        got = function(x, y)
        exact = ~np.isfinite(wide) | (wide == 0) | (np.abs(wide) == 1)
        assert_identical(got[exact], expected[exact], x[exact], y[exact])
        np.testing.assert_allclose(got, expected, rtol=1e-6 if bits == 32 else 1e-15, atol=0)


@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("bits", DTYPES)
def test_exact_results(bits, fma):
    """Results that can be represented come out exactly."""
    dtype = DTYPES[bits]
    info = np.finfo(dtype)
    get = functools.partial(get_function, bits=bits, lanes=LANES[bits], fma=fma)
    exponents = np.arange(info.minexp - info.nmant, info.maxexp)
    powers = np.ldexp(1.0, exponents).astype(dtype)
    np.testing.assert_array_equal(get("exp2")(exponents), powers)
    np.testing.assert_array_equal(get("log2")(powers), exponents)
    np.testing.assert_array_equal(get("pow")(np.full(powers.size, 2), exponents), powers)
    decades = np.arange(11 if bits == 32 else 23)
    np.testing.assert_array_equal(get("log10")([10.0**int(k) for k in decades]), decades)
    roots = np.arange(1, 250 if bits == 32 else 5000)
    np.testing.assert_array_equal(get("cbrt")(roots**3), roots)
    np.testing.assert_array_equal(get("pow")(roots, np.full(roots.size, 2)), roots**2)
    legs = [(m * m - n * n, 2 * m * n, m * m + n * n) for m in range(2, 30) for n in range(1, m)]
    x, y, z = np.array(legs).T
    np.testing.assert_array_equal(get("hypot")(x, y), z)


@pytest.mark.parametrize("bits", DTYPES)
@pytest.mark.parametrize("name", ["cos", "sin", "tan"])
def test_huge_angles(name, bits):
    """Angles beyond the range of the reduction are right, whatever the other lanes hold."""
    dtype = DTYPES[bits]
    rng = np.random.default_rng(2)
    x = np.exp2(rng.uniform(10, np.finfo(dtype).maxexp, 400)).astype(dtype)
    x[rng.random(x.size) < 0.5] = 1.25
    references = reference_values(name, x)
    for (lanes, fma), function in all_forms(name, bits).items():
        error, index = worst_error(function(x), references, dtype)
        assert error <= BOUNDS[bits], (lanes, fma, error, x[index])
        padded = np.concatenate([x[:, None], np.ones((x.size, 15), dtype)], axis=1).ravel()
        assert_identical(function(padded)[::16], function(x), x)


@pytest.mark.parametrize("bits", DTYPES)
@pytest.mark.parametrize("name", ["cos", "sin", "tan"])
def test_multiples_of_half_pi(name, bits):
    """Angles near multiples of pi/2, where most of the digits cancel, keep the relative accuracy."""
    dtype = DTYPES[bits]
    rng = np.random.default_rng(4)
    multiples = np.rint(np.exp2(rng.uniform(0, 16 if bits == 32 else 29, 1000)))
    x = near(multiples * (math.pi / 2), dtype, steps=1)
    references = reference_values(name, x)
    for (lanes, fma), function in all_forms(name, bits).items():
        error, index = worst_error(function(x), references, dtype)
        assert error <= BOUNDS[bits], (lanes, fma, error, x[index])


def test_bounds_of_the_reduction():
    """The bounds tested above are those of the code."""
    bounds = [
        largest_angle(Arithmetic(None, kind, fused))
        for kind in (ir.FloatType(), ir.DoubleType()) for fused in (True, False)
    ]
    assert set(bounds) <= set(EDGES["sin"])


@pytest.mark.parametrize("name", ["exp", "erfc", "sin"])
def test_tables_are_checked(name, monkeypatch):
    """An error of 1e-5 in one coefficient is found."""
    table = {"exp": "EXPONENTIAL", "erfc": "ERFC", "sin": "SINE"}[name]
    for bits, dtype in DTYPES.items():
        wrong = [list(coefficients) for coefficients in getattr(tables, table)]
        wrong[bits == 64][0] *= 1 + 1e-5
        args = points(name, dtype, 400)
        references = reference_values(name, *args)
        with monkeypatch.context() as patch:
            patch.setattr(tables, table, wrong)
            values = make_function(name, bits, LANES[bits], True)(*args)
        assert worst_error(values, references, dtype)[0] > 1.2 * BOUNDS[bits]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_code(name):
    """There are no fast-math flags, no calls but of intrinsics, and no branches but for large angles."""
    text = module_text(name, 32, 16)
    assert not re.search(r"\b(fast|contract|reassoc|afn|arcp|nnan|ninf|nsz)\b", text)
    called = set(re.findall(r'call [^@]*@"([^"]*)"', text))
    if name in ("cos", "sin", "tan"):
        assert text.count("noinline") == 1
        assert f'define internal <16 x float> @"nscan.lanes.{name}f.v16"' in text
        called -= {f"nscan.lanes.{name}f.v16", f"{name}f"}
    else:
        # The three blocks of the loop.
        assert len(re.findall(r"^\w+:", text, re.MULTILINE)) == 3
    assert all(callee.startswith("llvm.") for callee in called)


def test_one_function_per_module():
    """The out-of-line function is defined once, however often it is called."""
    module = ir.Module()
    kind = ir.VectorType(ir.DoubleType(), 8)
    function = ir.Function(module, ir.FunctionType(kind, [kind]), "twice")
    builder = ir.IRBuilder(function.append_basic_block())
    once = nscan_math.emit(builder, "sin", function.args[0])
    builder.ret(nscan_math.emit(builder, "sin", once))
    text = str(module)
    assert text.count("define internal") == 1
    llvm.parse_assembly(text).verify()


LIBM_REFERENCES = {
    "fdim": lambda x, y: max(x - y, 0.0),
    "fmod": math.fmod,
    "gamma": math.gamma,
    "lgamma": math.lgamma,
    "logb": lambda x: float(math.frexp(x)[1] - 1),
    "nextafter": math.nextafter,
    "remainder": math.remainder,
}


@pytest.mark.parametrize("bits", DTYPES)
@pytest.mark.parametrize("name", sorted(nscan_math.LIBM))
def test_libm(name, bits):
    """Functions of libm are called lane by lane."""
    dtype = DTYPES[bits]
    rng = np.random.default_rng(3)
    count = nscan_math.LIBM[name][1]
    args = [rng.uniform(0.1, 20, 50).astype(dtype) for _ in range(count)]
    scalar = get_function(name, bits, 0, True)(*args)
    for lanes in (3, LANES[bits]):
        assert_identical(get_function(name, bits, lanes, True)(*args), scalar, *args)
    expected = [LIBM_REFERENCES[name](*point) for point in zip(*(arg.tolist() for arg in args), strict=True)]
    if name == "nextafter":
        expected = np.nextafter(*args)
    tolerance = 2e-6 if bits == 32 else 1e-14
    np.testing.assert_allclose(scalar, expected, rtol=tolerance, atol=tolerance)


def test_wrong_arguments():
    """Wrong numbers and types of arguments are refused."""
    kind = ir.FunctionType(ir.VoidType(), [ir.FloatType(), ir.DoubleType()])
    function = ir.Function(ir.Module(), kind, "f")
    builder = ir.IRBuilder(function.append_basic_block())
    single, double = function.args
    with pytest.raises(TypeError, match="takes 1 argument"):
        nscan_math.emit(builder, "exp", single, single)
    with pytest.raises(TypeError, match="one type"):
        nscan_math.emit(builder, "pow", single, double)
    with pytest.raises(TypeError, match="expected float"):
        nscan_math.emit(builder, "exp", ir.Constant(ir.IntType(32), 1))
    with pytest.raises(KeyError, match="nonsense"):
        nscan_math.emit(builder, "nonsense", single)
