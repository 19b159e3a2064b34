"""The names that a printed program needs, as Python functions on NumPy scalars and real memory; running it uncompiled."""

import ctypes
import functools
import math

import numpy as np
import scipy.special

from nscan import source
from nscan.cpu import kernel as kernels

DTYPES = ("f4", "f8", "b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
TYPES = {d: np.dtype(d).type for d in DTYPES}
CELLS = {d: np.ctypeslib.as_ctypes_type(np.dtype(d)) for d in DTYPES}
# What NumPy or SciPy call otherwise.
FUNCTIONS = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "pow": np.power, "shl": np.left_shift, "shr": np.right_shift, "int_gcd": np.gcd, "int_lcm": np.lcm,
    "max": np.maximum, "min": np.minimum, "sigmoid": scipy.special.expit, "log_sigmoid": scipy.special.log_expit,
    "softplus": lambda x: np.logaddexp(x, 0), "erf": scipy.special.erf, "erfc": scipy.special.erfc,
    "gamma": scipy.special.gamma, "lgamma": scipy.special.gammaln, "fma": lambda a, b, c: a * b + c,
    "int_div": lambda a, b: truncated(int(a), int(b)),
    "int_rem": lambda a, b: int(a) - int(b) * truncated(int(a), int(b)),
    "bits": lambda n: bits_of(n).bit_length(), "bit_count": lambda n: bits_of(n).bit_count(),
    "int_power": lambda a, n: pow(int(a), max(int(n), 0), 1 << 64),
}


def truncated(a, b):
    """The quotient of integers, rounded towards 0."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def bits_of(n):
    """The bits of an integer as a number."""
    return int(n) & ((1 << 8 * n.itemsize) - 1)


def load(dtype):
    kind, cell = TYPES[dtype], CELLS[dtype]
    return lambda address: kind(cell.from_address(int(address)).value)


def store(dtype):
    kind, cell = TYPES[dtype], CELLS[dtype]

    def write(address, value):
        assert dtype == "b1" or type(value) is kind, f"st_{dtype} of a {type(value).__name__}"
        cell.from_address(int(address)).value = value
    return write


def fail(status, code, step, equation, first, second):
    words = (ctypes.c_int64 * 8).from_address(int(status))
    if words[0] == 0 or (step, equation) < (words[1], words[2]):
        words[:5] = [int(x) for x in (code, step, equation, first, second)]


def call(kind, address, *args):
    """Call by address: integers go in, or floats where `kind` is one."""
    cell = ctypes.c_double if kind is ctypes.c_double else ctypes.c_int64
    return ctypes.CFUNCTYPE(kind, *[cell] * len(args))(int(address))(*[cell(x).value for x in args])


def numbers(lo, hi):
    """As range, in int64."""
    return map(np.int64, range(lo, hi))


BY_NAME = {"range": numbers, "inf": math.inf, "nan": math.nan, "fail": fail, "call": functools.partial(call, None),
           "call_i8": lambda *args: np.int64(call(ctypes.c_int64, *args)),
           "libcall": lambda *args: np.float64(call(ctypes.c_double, *args))}


@functools.cache
def helper(name):
    """A helper of the text by its name."""
    if name in TYPES:
        return TYPES[name]
    op, _, dtype = name.rpartition("_")
    if op in ("ld", "st"):
        return (load if op == "ld" else store)(dtype)
    if op.startswith("cast_"):
        return lambda x: np.asarray(x, op[5:]).astype(dtype)[()]
    function = FUNCTIONS.get(op) or getattr(np, op)
    kind = {"signbit": "b1", "bit_count": "u1", "bits": "i8"}.get(op, dtype)
    if kind[0] in "iu":
        return lambda *args: np.asarray(int(function(*args)) & ((1 << 64) - 1), "u8").astype(kind)[()]
    return lambda *args: TYPES[kind](function(*args))


def namespace(text):
    """Everything that a text needs."""
    return {**{name: helper(name) for name in source.called(text) if name not in BY_NAME}, **BY_NAME}


@functools.cache
def function(text):
    """Execute the text of a program: its kernel."""
    names = namespace(text)
    exec(compile(text, "<program>", "exec"), names)
    return names["kernel"]


def program_at(address):
    """The program of the compiled kernel at an address."""
    return next(k.program for k in kernels._KERNELS.values() if k.address == address)


def run_parts(run, make=function):
    """Do what `nscan.cpu.launch.run_parts` does with the printed text in place of the kernel; `make` executes a text."""
    kernel = make(source.python_text(program_at(run.address)))
    with np.errstate(all="ignore"):
        if run.once:
            kernel(8, run.status.ctypes.data, *map(np.int64, (0, 0, 0, run.lanes, 0)), run.block)
        parts, (spans, offsets) = run.parts.tolist(), run.spans
        for p in (int(p) for group in run.groups for p in group):
            first, start = parts[p][0], int(run.fresh)
            for at, last, lane1, ends in spans[offsets[p] : offsets[p + 1]].tolist():
                for lo in [at, *range(first + ((at - first) // run.each + 1) * run.each, last, run.each)]:
                    hi = min(last, first + ((lo - first) // run.each + 1) * run.each)
                    if run.status[p, 0]:
                        break
                    flags = start + 2 * (hi > lo) + 4 * (ends and hi == last)
                    numbers = map(np.int64, (lo, hi, parts[p][2], lane1, p + (p % run.rooms << 32)))
                    kernel(flags, run.status.ctypes.data + 64 * p, *numbers, run.block)
                    start = 0
