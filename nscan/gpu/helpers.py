"""What the text of a CUDA kernel calls: loads and stores by address, constants, and operations by dtype.

Each helper is an intrinsic with one signature that becomes a few instructions, so a text can be typed and
compiled without a device: device functions would ask the driver. Mathematics is libdevice's, which Numba links to
every kernel. `numba.cuda` is imported only inside functions.
"""

import functools
import math

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nscan import errors
from nscan.source import called

NUMBA = {"f4": types.float32, "f8": types.float64, "b1": types.boolean, "i1": types.int8, "i2": types.int16, "i4": types.int32,
         "i8": types.int64, "u1": types.uint8, "u2": types.uint16, "u4": types.uint32, "u8": types.uint64}
FLOATS = {"f4": ir.FloatType(), "f8": ir.DoubleType()}
I64, I32, I8, I1 = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.IntType(1)
GLOBAL = 1  # the address space of device memory
# Functions of libdevice by operation; those for float32 end in f.
LIBDEVICE = {name: name for name in (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh", "sin", "cos", "tan", "asin", "acos", "atan",
    "atan2", "asinh", "acosh", "atanh", "erf", "erfc", "pow", "cbrt", "hypot", "fmod", "lgamma", "nextafter", "floor",
    "ceil", "trunc", "rint", "copysign", "sqrt", "fma")}
LIBDEVICE.update(abs="fabs", gamma="tgamma")
ARITY = {"atan2": 2, "pow": 2, "hypot": 2, "fmod": 2, "nextafter": 2, "copysign": 2, "fma": 3}
# Instructions of integers: for signed and for unsigned ones.
INTEGER = {"int_div": ("sdiv", "udiv"), "int_rem": ("srem", "urem"), "shl": ("shl", "shl"), "shr": ("ashr", "lshr")}
# Formulas over the functions above.
FORMULAS = {
    "sigmoid": lambda f, x: f.div(f.one, f.add(f.one, f("exp", f.neg(x)))),
    "softplus": lambda f, x: f.add(f("log1p", f("exp", f.neg(f("abs", x)))), f.positive(x)),
    "log_sigmoid": lambda f, x: f.neg(FORMULAS["softplus"](f, f.neg(x))),
}


def kernel(text):
    """Execute the text of a CUDA kernel: a Python function for `numba.cuda.jit` or `numba.cuda.compile`.

    Parameters
    ----------
    text : str
        As `nscan.source.cuda_text` prints it.

    Returns
    -------
    function
    """
    names = namespace(text)
    exec(compile(text, "<nscan cuda>", "exec"), names)
    return names["kernel"]


def kernel_signature():
    """Return the signature of every CUDA kernel: n, steps, each, status, block."""
    return types.void(*[types.int64] * 4, types.int64[::1])


def namespace(text):
    """Return the names that a text needs."""
    from numba import cuda
    return {"cuda": cuda, "inf": math.inf, "nan": math.nan, **{name: helper(name) for name in called(text)}}


@functools.cache
def helper(name):
    """Return a helper by its name: a type, or an intrinsic such as ``ld_f8``, ``cast_i8_f4``, ``exp_f4``."""
    if name in NUMBA:
        return NUMBA[name]
    if name == "fail":
        return _intrinsic(types.void, [types.int64] * 6, _fail)
    op, _, dtype = name.rpartition("_")
    if op == "ld":
        return _intrinsic(NUMBA[dtype], [types.int64], lambda b, address: _load(b, dtype, address))
    if op == "st":
        return _intrinsic(types.void, [types.int64, NUMBA[dtype]], lambda b, address, x: _store(b, dtype, address, x))
    if op.startswith("cast_"):
        old = op[5:]
        return _intrinsic(NUMBA[dtype], [NUMBA[old]], lambda b, x: _cast(b, old, dtype, x))
    return _operation(op, dtype)


def _operation(op, dtype):
    """Return the intrinsic of a pure operation on values of one dtype."""
    kind = NUMBA[dtype]
    if dtype in FLOATS and (op in LIBDEVICE or op in FORMULAS):
        emit = FORMULAS[op] if op in FORMULAS else lambda f, *args: f(op, *args)
        return _intrinsic(kind, [kind] * ARITY.get(op, 1), lambda b, *args: emit(_Functions(b, dtype), *args))
    unsigned = dtype[0] in "ub"
    if op in INTEGER:
        return _intrinsic(kind, [kind] * 2, lambda b, x, y: getattr(b, INTEGER[op][unsigned])(x, y))
    if op in ("min", "max"):
        return _intrinsic(kind, [kind] * 2, lambda b, x, y: _extremum(b, op, dtype, x, y))
    if op in LOOPS:
        return _intrinsic(kind, [kind] * 2, lambda b, x, y: LOOPS[op](b, unsigned, x, y))
    if op in ONE:
        result, emit = ONE[op]
        return _intrinsic(NUMBA[result or dtype], [kind], lambda b, x: emit(b, dtype, x))
    raise errors.KernelError(f"the CUDA target has no {op} of {dtype}")


def _intrinsic(result, arguments, emit):
    """Make an intrinsic of one signature; ``emit(builder, *values)`` gives its value, or None for a statement."""
    def typed():
        def generate(context, builder, typed_as, values):
            out = emit(builder, *values)
            return context.get_dummy_value() if out is None else out
        return result(*arguments), generate

    # The number of arguments must stand in the signature of what Numba calls.
    makers = {1: lambda context, a: typed(), 2: lambda context, a, b: typed(), 3: lambda context, a, b, c: typed(),
              6: lambda context, a, b, c, d, e, f: typed()}
    return intrinsic(makers[len(arguments)])


# ---------------------------------------------------------------------------------------------------- memory
def _scalar(dtype):
    """LLVM type of a value."""
    return FLOATS.get(dtype) or (I1 if dtype == "b1" else ir.IntType(8 * int(dtype[1:])))


def _pointer(b, dtype, address):
    kind = I8 if dtype == "b1" else _scalar(dtype)
    return b.inttoptr(address, ir.PointerType(kind, GLOBAL))


def _load(b, dtype, address):
    x = b.load(_pointer(b, dtype, address), align=int(dtype[1:]))
    return b.icmp_unsigned("!=", x, ir.Constant(I8, 0)) if dtype == "b1" else x


def _store(b, dtype, address, x):
    b.store(b.zext(x, I8) if dtype == "b1" else x, _pointer(b, dtype, address), align=int(dtype[1:]))


def _fail(b, status, *numbers):
    """Keep code, step, equation and two numbers of the first failure: the smallest (step, equation)."""
    code, step, equation = numbers[:3]
    at = lambda k: _pointer(b, "i8", b.add(status, ir.Constant(I64, 8 * k)))
    none = b.icmp_signed("==", b.load(at(0)), ir.Constant(I64, 0))
    old_step, old_equation = b.load(at(1)), b.load(at(2))
    same = b.and_(b.icmp_signed("==", step, old_step), b.icmp_signed("<", equation, old_equation))
    with b.if_then(b.or_(none, b.or_(b.icmp_signed("<", step, old_step), same))):
        for k, x in enumerate(numbers):
            b.store(x, at(k))


# ------------------------------------------------------------------------------------------------ operations
class _Functions:
    """Functions of libdevice of one float type, and arithmetic, for formulas."""

    def __init__(self, b, dtype):
        self.b, self.dtype, self.kind = b, dtype, FLOATS[dtype]
        self.one, self.zero = ir.Constant(self.kind, 1.0), ir.Constant(self.kind, 0.0)
        self.add, self.div = b.fadd, b.fdiv

    def __call__(self, name, *args):
        """Call a function of libdevice."""
        symbol = f"__nv_{LIBDEVICE[name]}{'f' if self.dtype == 'f4' else ''}"
        found = self.b.module.globals.get(symbol)
        if found is None:
            found = ir.Function(self.b.module, ir.FunctionType(self.kind, [self.kind] * len(args)), symbol)
        return self.b.call(found, args)

    def neg(self, x):
        """Return -x (NVVM's dialect of LLVM has no fneg)."""
        return self.b.fsub(ir.Constant(self.kind, -0.0), x)

    def positive(self, x):
        """Return max(x, 0), and NaN for NaN."""
        return self.b.select(self.b.fcmp_ordered("<", x, self.zero), self.zero, x)


def _extremum(b, op, dtype, x, y):
    """Maximum or minimum by NumPy's rule: NaN wins, ties give the first."""
    sign = ">=" if op == "max" else "<="
    if dtype in FLOATS:
        first = b.or_(b.fcmp_ordered(sign, x, y), b.fcmp_unordered("uno", x, x))
    else:
        first = (b.icmp_unsigned if dtype[0] in "ub" else b.icmp_signed)(sign, x, y)
    return b.select(first, x, y)


def _cast(b, old, new, x):
    """Cast as C does."""
    kind = _scalar(new)
    if new == "b1":
        zero = ir.Constant(x.type, 0)
        return b.fcmp_unordered("!=", x, zero) if old in FLOATS else b.icmp_signed("!=", x, zero)
    if old in FLOATS:
        if new in FLOATS:
            return x if old == new else b.fpext(x, kind) if new == "f8" else b.fptrunc(x, kind)
        return (b.fptoui if new[0] == "u" else b.fptosi)(x, kind)
    if new in FLOATS:
        return (b.uitofp if old[0] in "ub" else b.sitofp)(x, kind)
    if x.type.width >= kind.width:
        return x if x.type == kind else b.trunc(x, kind)
    return (b.zext if old[0] in "ub" else b.sext)(x, kind)


def _abs(b, dtype, x):
    negative = b.icmp_signed("<", x, ir.Constant(x.type, 0))
    return x if dtype[0] == "u" else b.select(negative, b.neg(x), x)


def _bit_count(b, dtype, x):
    count = b.ctpop(x)
    return count if count.type == I8 else b.trunc(count, I8)


def _sign_bit(b, dtype, x):
    kind = {"f4": I32, "f8": I64}.get(dtype)
    x = x if kind is None else b.bitcast(x, kind)
    return b.icmp_signed("<", x, ir.Constant(x.type, 0))


def _bits(b, dtype, x):
    return b.sub(ir.Constant(I64, 64), b.ctlz(x, ir.Constant(I1, 0)))


# Operations of one operand: dtype of the result (None: that of the operand), and how it is made.
ONE = {"abs": (None, _abs), "bit_count": ("u1", _bit_count), "signbit": ("b1", _sign_bit), "bits": ("i8", _bits)}


def _power(b, unsigned, x, n):
    """Integer power by squaring; negative exponents, which are failures elsewhere, give 1."""
    zero, one = ir.Constant(x.type, 0), ir.Constant(x.type, 1)
    more = (b.icmp_unsigned if unsigned else b.icmp_signed)
    odd = lambda k: b.icmp_unsigned("!=", b.and_(k, one), zero)
    return _while(b, [one, x, n], lambda r, p, k: more(">", k, zero),
                  lambda r, p, k: (b.select(odd(k), b.mul(r, p), r), b.mul(p, p), b.lshr(k, one)))[0]


def _divisor(b, unsigned, x, y):
    """Greatest common divisor, by Euclid's algorithm."""
    zero = ir.Constant(x.type, 0)
    if not unsigned:
        x, y = (b.select(b.icmp_signed("<", v, zero), b.sub(zero, v), v) for v in (x, y))
    return _while(b, [x, y], lambda p, q: b.icmp_unsigned("!=", q, zero), lambda p, q: (q, b.urem(p, q)))[0]


def _multiple(b, unsigned, x, y):
    """Least common multiple; 0 if one of the numbers is 0."""
    zero, one = ir.Constant(x.type, 0), ir.Constant(x.type, 1)
    divisor = _divisor(b, unsigned, x, y)
    if not unsigned:
        x, y = (b.select(b.icmp_signed("<", v, zero), b.sub(zero, v), v) for v in (x, y))
    return b.mul(b.udiv(x, b.select(b.icmp_unsigned("==", divisor, zero), one, divisor)), y)


LOOPS = {"int_power": _power, "int_gcd": _divisor, "int_lcm": _multiple}


def _while(b, start, condition, step):
    """Emit a loop over some values; return the last ones."""
    before = b.block
    head, inside, after = (b.append_basic_block(name) for name in ("head", "inside", "after"))
    b.branch(head)
    b.position_at_end(head)
    values = [b.phi(x.type) for x in start]
    for value, x in zip(values, start):
        value.add_incoming(x, before)
    b.cbranch(condition(*values), inside, after)
    b.position_at_end(inside)
    for value, x in zip(values, step(*values)):
        value.add_incoming(x, b.block)
    b.branch(head)
    b.position_at_end(after)
    return values
