"""The scalar language: formulas of rows as operations of a loop program.

A row's spelling is a text such as ``"select(a == b, 0.5, sigmoid(a - b))"``. `emit` turns it into values of
a `Builder`. What a target must know is the list `PRIMITIVES`; every other name is defined here by a formula.
Complex numbers are pairs of real values, and their formulas come in pairs (``cdiv_re``, ``cdiv_im``).
"""

import ast
import functools

import numpy as np

from nscan.ops.draw import PARITY, threefry
from nscan.plan.program import I64, Const

B = "b1"
COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}
BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.BitAnd: "and", ast.BitOr: "or",
          ast.BitXor: "xor"}
UNARY = {ast.USub: "neg", ast.Invert: "not"}

# Operations that a target prints. Those of the second group are the functions of its mathematics module.
PRIMITIVES = {"add", "sub", "mul", "div", "neg", "not", "and", "or", "xor", "lt", "le", "gt", "ge", "eq", "ne", "select", "cast",
              "abs", "floor", "ceil", "trunc", "rint", "sqrt", "copysign", "fma", "signbit", "shl", "shr", "int_div",
              "int_rem", "bit_count", "bits", "min", "max"}
MATH = {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "softplus", "log_sigmoid", "tanh", "sinh", "cosh", "sin",
        "cos", "tan", "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "erf", "erfc", "pow", "cbrt", "hypot", "fmod",
        "gamma", "lgamma", "nextafter"}
# Scalar functions of SciPy, called by address: those of real numbers, and those of complex ones.
LIBRARY = {"psi", "zeta", "erfinv", "erfcx", "log_ndtr", "ndtri", "i0", "i1", "i0e", "i1e", "j0", "j1"}
COMPLEX_LIBRARY = {"erf", "erfc", "erfcx", "ndtr", "log_ndtr", "gamma", "psi", "xlogy", "xlog1py"}

DEFINITIONS = {
    "logaddexp": ("a, b", "select(a == b, a + 0.6931471805599453, select(a > b, a + log1p(exp(b - a)), "
                          "select(a < b, b + log1p(exp(a - b)), a + b)))"),
    "arcsin": ("a", "asin(a)"), "arccos": ("a", "acos(a)"), "arctan": ("a", "atan(a)"), "arctan2": ("a, b", "atan2(a, b)"),
    "arcsinh": ("a", "asinh(a)"), "arccosh": ("a", "acosh(a)"), "arctanh": ("a", "atanh(a)"), "expit": ("a", "sigmoid(a)"),
    "gammaln": ("a", "lgamma(a)"), "absolute": ("a", "abs(a)"), "power": ("a, b", "pow(a, b)"),
    # NumPy's rules: the remainder has the sign of the divisor; the quotient is rounded to the nearest whole number.
    "float_remainder": ("a, b", "remainder_fix(fmod(a, b), b)"),
    "remainder_fix": ("m, b", "select(b == 0, m, select(m == 0, copysign(0, b), select((m < 0) != (b < 0), m + b, m)))"),
    "float_floor_divide": ("a, b", "select(b == 0, a/b, floor_quotient(a, b, fmod(a, b)))"),
    "floor_quotient": ("a, b, m", "round_quotient((a - m)/b - select((m != 0) & ((m < 0) != (b < 0)), 1, 0), a/b)"),
    "round_quotient": ("q, r", "select(q == 0, copysign(0, r), floor(q) + select(q - floor(q) > 0.5, 1, 0))"),
    "float_spacing": ("a", "select(abs(a) < inf, copysign(nextafter(abs(a), inf) - abs(a), a), a - a)"),
    # Integers: division by zero gives 0, as in NumPy.
    "int_floor_divide": ("a, b", "select(b == 0, 0, floor_fix(a, b, int_div(a, select(b == 0, 1, b))))"),
    "floor_fix": ("a, b, q", "q - select((a != q*b) & ((a < 0) != (b < 0)), 1, 0)"),
    "int_remainder": ("a, b", "select(b == 0, 0, a - b*int_floor_divide(a, b))"),
    "int_fmod": ("a, b", "select(b == 0, 0, int_rem(a, select(b == 0, 1, b)))"),
    "uint_divide": ("a, b", "select(b == 0, 0, int_div(a, select(b == 0, 1, b)))"),
    "uint_remainder": ("a, b", "select(b == 0, 0, int_rem(a, select(b == 0, 1, b)))"),
    "int_reciprocal": ("a", "select(a == 0, int_infinity(a), int_div(1, select(a == 0, 1, a)))"),
    # Complex division by Smith's method, square root and tanh without overflow, as NumPy computes them.
    "cdiv_re": ("ar, ai, br, bi", "select(abs(br) >= abs(bi), select((br == 0) & (bi == 0), ar/abs(br), "
                                  "(ar + ai*smith(bi, br))*smith_scale(br, bi)), (ar*smith(br, bi) + ai)*smith_scale(bi, br))"),
    "cdiv_im": ("ar, ai, br, bi", "select(abs(br) >= abs(bi), select((br == 0) & (bi == 0), ai/abs(br), "
                                  "(ai - ar*smith(bi, br))*smith_scale(br, bi)), (ai*smith(br, bi) - ar)*smith_scale(bi, br))"),
    "smith": ("p, q", "p/select(q == 0, 1, q)"),
    "smith_scale": ("p, q", "1/(p + q*smith(q, p))"),
    "cexp_im": ("ar, ai", "select(ai == 0, ai, exp(ar)*sin(ai))"),
    "csqrt_re": ("ar, ai", "select(ar >= 0, csqrt_half(ar, ai), select(csqrt_half(-ar, ai) == 0, 0, "
                           "abs(ai)/(2*csqrt_half(-ar, ai))))"),
    "csqrt_im": ("ar, ai", "select(ar >= 0, select(csqrt_half(ar, ai) == 0, ai, ai/(2*csqrt_half(ar, ai))), "
                           "copysign(csqrt_half(-ar, ai), ai))"),
    "csqrt_half": ("p, q", "sqrt(0.5*(p + hypot(p, q)))"),
    "ctanh_re": ("ar, ai", "select(abs(ar) > 20, copysign(1, ar), sinh(ar)*cosh(ar)/ctanh_scale(ar, ai))"),
    "ctanh_im": ("ar, ai", "select(abs(ar) > 20, 4*sin(ai)*cos(ai)*exp(-2*abs(ar)), sin(ai)*cos(ai)/ctanh_scale(ar, ai))"),
    "ctanh_scale": ("ar, ai", "sinh(ar)*sinh(ar) + cos(ai)*cos(ai)"),
    # Complex numbers in NumPy's order, by real parts, then by imaginary ones.
    "cnan": ("ar, ai", "(ar != ar) | (ai != ai)"), "cbool": ("ar, ai", "(ar != 0) | (ai != 0)"),
    "cequal": ("ar, ai, br, bi", "(ar == br) & (ai == bi)"),
    "cbeyond": ("ar, ai, br, bi", "(ar > br) & (ai == ai) & (bi == bi)"),
    "cgreater": ("ar, ai, br, bi", "cbeyond(ar, ai, br, bi) | (ar == br) & (ai > bi)"),
    "cat_least": ("ar, ai, br, bi", "cbeyond(ar, ai, br, bi) | (ar == br) & (ai >= bi)"),
    # Inverse functions: T. E. Hull, T. F. Fairgrieve, P. T. P. Tang, "Implementing the complex arcsine and arccosine
    # functions using exception handling" (1997), for x, y >= 0 with r = |z + 1|, s = |z - 1|, p = (r + s)/2; W. Kahan,
    # "Branch cuts for complex elementary functions" (1987) for arctanh.
    "casin_re": ("ar, ai", "copysign(hull_angle(abs(ar), abs(ai), hypot(abs(ar) + 1, ai), hypot(abs(ar) - 1, ai)), ar)"),
    "casin_im": ("ar, ai", "copysign(hull_size(abs(ar), abs(ai), hypot(abs(ar) + 1, ai), hypot(abs(ar) - 1, ai)), ai)"),
    "cacos_re": ("ar, ai", "hull_reflect(ar, hull_coangle(abs(ar), abs(ai), hypot(abs(ar) + 1, ai), hypot(abs(ar) - 1, ai)))"),
    "hull_reflect": ("x, t", "select(x < 0, 3.141592653589793 - t, t)"),
    "hull_angle": ("x, y, r, s", "select(x <= 0.6417*(0.5*(r + s)), asin(min(1, x/(0.5*(r + s)))), atan2(x, hull_other(x, y, r, s)))"),
    "hull_coangle": ("x, y, r, s", "select(x <= 0.6417*(0.5*(r + s)), acos(min(1, x/(0.5*(r + s)))), atan2(hull_other(x, y, r, s), x))"),
    "hull_other": ("x, y, r, s", "select(x <= 1, sqrt(0.5*(0.5*(r + s) + x)*(y*(y/(r + x + 1)) + (s + (1 - x)))), "
                                 "y*sqrt(0.5*((0.5*(r + s) + x)/(r + x + 1) + (0.5*(r + s) + x)/(s + (x - 1)))))"),
    "hull_size": ("x, y, r, s", "select((x < 1) & (y <= 1e-9*(1 - x)), y/sqrt((1 - x)*(1 + x)), hull_log(0.5*(r + s), "
                                "0.5*(y*(y/(r + x + 1)) + select(x < 1, y*(y/(s + (1 - x))), s + (x - 1)))))"),
    "hull_log": ("p, m", "select(p > 1.5, select(p > 1e8, log(p) + 0.6931471805599453, log(p + sqrt(p*p - 1))), "
                         "log1p(m + sqrt(m*(p + 1))))"),
    "catanh_re": ("ar, ai", "copysign(0.25*log1p(4*abs(ar)/((1 - abs(ar))*(1 - abs(ar)) + ai*ai)), ar)"),
    "catanh_im": ("ar, ai", "0.5*atan2(2*ai, (1 - ar)*(1 + ar) - ai*ai)"),
    "horner_re": ("c, sr, si, pr, pi", "1 - c*(sr*pr - si*pi)"), "horner_im": ("c, sr, si, pr, pi", "-c*(sr*pi + si*pr)"),
    "csin_re": ("ar, ai", "sin(ar)*cosh(ai)"), "csin_im": ("ar, ai", "cos(ar)*sinh(ai)"),
    "csinc_re": ("x, y", "select((x == 0) & (y == 0), 1, cdiv_re(csin_re(x, y), csin_im(x, y), x, y))"),
    "csinc_im": ("x, y", "select((x == 0) & (y == 0), 0, cdiv_im(csin_re(x, y), csin_im(x, y), x, y))"),
    "cpow_re": ("ar, ai, br, bi", "select((br == 0) & (bi == 0), 1, select((ar == 0) & (ai == 0), 0, "
                                  "cpow_size(ar, ai, br, bi)*cos(cpow_angle(ar, ai, br, bi))))"),
    "cpow_im": ("ar, ai, br, bi", "select((br == 0) & (bi == 0), 0, select((ar == 0) & (ai == 0), 0, "
                                  "cpow_size(ar, ai, br, bi)*sin(cpow_angle(ar, ai, br, bi))))"),
    "cpow_size": ("ar, ai, br, bi", "exp(br*log(hypot(ar, ai)) - bi*atan2(ai, ar))"),
    "cpow_angle": ("ar, ai, br, bi", "bi*log(hypot(ar, ai)) + br*atan2(ai, ar)"),
}


@functools.lru_cache(None)
def _parsed(text):
    return ast.parse(text, mode="eval").body


def emit(b, text, names, dtype):
    """Turn a formula into values.

    Parameters
    ----------
    b : Builder
    text : str
    names : dict of str to value
    dtype : str
        What bare numbers are.

    Returns
    -------
    Value or Const
    """
    return _Emitter(b, names, dtype).visit(_parsed(text))


class _Emitter:
    def __init__(self, b, names, dtype):
        self.b, self.names, self.dtype = b, names, dtype

    def visit(self, node):
        return getattr(self, f"visit_{type(node).__name__}")(node)

    def visit_Name(self, node):
        if node.id == "inf":
            return float("inf")
        return self.names[node.id]

    def visit_Constant(self, node):
        return node.value

    def visit_UnaryOp(self, node):
        x = self.visit(node.operand)
        if isinstance(x, (int, float)):
            return -x
        return op(self.b, UNARY[type(node.op)], x)

    def visit_BinOp(self, node):
        x, y = self._same(self.visit(node.left), self.visit(node.right))
        return op(self.b, BINARY[type(node.op)], x, y)

    def visit_Compare(self, node):
        x, y = self._same(self.visit(node.left), self.visit(node.comparators[0]))
        return op(self.b, COMPARE[type(node.ops[0])], x, y)

    def _same(self, *values):
        dtype = next((v.dtype for v in values if hasattr(v, "dtype")), self.dtype)
        return [v if hasattr(v, "dtype") else self.b.const(_python(v, dtype), dtype) for v in values]

    def visit_Call(self, node):
        name = node.func.id
        args = [self.visit(a) for a in node.args]
        if name == "select":
            c = args[0] if hasattr(args[0], "dtype") else self.b.const(bool(args[0]), B)
            return op(self.b, "select", c, *self._same(*args[1:]))
        args = self._same(*args)
        return apply(self.b, name, args, self.dtype)


def _python(value, dtype):
    return bool(value) if dtype == B else float(value) if dtype[0] == "f" else int(value)


def apply(b, name, args, dtype):
    """Apply a named function of the scalar language."""
    if name in SPECIAL:
        return SPECIAL[name](b, *args)
    if name in DEFINITIONS:
        parameters, text = DEFINITIONS[name]
        return emit(b, text, dict(zip([p.strip() for p in parameters.split(",")], args)), args[0].dtype)
    return op(b, name, *args)


def code(dtype):
    """Dtype of one component, as text: f8 for float64 and for complex128."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return f"f{dtype.itemsize // 2}"
    return dtype.str[1:]


def largest(b, x, y):
    """Larger one of two int64 values."""
    if type(x) is Const and type(y) is Const:
        return b.const(max(x.value, y.value))
    return op(b, "select", b.op("ge", "b1", x, y), x, y)


def smallest(b, x, y):
    """Smaller one of two int64 values."""
    return op(b, "select", b.op("le", "b1", x, y), x, y)


def op(b, name, *args):
    """Apply a primitive; simplify what is constant."""
    out = _result(name, args)
    if name == "select":
        c, x, y = args
        if type(c) is Const:
            return x if c.value else y
        if x is y:
            return x
    if name == "select" and out == B:
        return op(b, "or", op(b, "and", args[0], args[1]), op(b, "and", op(b, "not", args[0]), args[2]))
    return b.op(name, out, *args)


def _result(name, args):
    if name in ("lt", "le", "gt", "ge", "eq", "ne", "signbit"):
        return B
    if name == "select":
        return args[1].dtype
    if name == "bit_count":
        return "u1"
    return args[0].dtype


def cast(b, x, dtype):
    """Cast a value."""
    if x.dtype == dtype:
        return x
    if type(x) is Const:
        value = np.asarray(x.value, np.dtype(x.dtype)).astype(dtype)
        return b.const(_python(value, dtype), dtype)
    if dtype == B:
        return op(b, "ne", x, b.const(_python(0, x.dtype), x.dtype))
    return b.op("cast", dtype, x)


def _shift(name):
    def run(b, x, k):
        """Shift; by NumPy's rule a count beyond the width gives 0 (or the sign)."""
        bits = 8 * int(x.dtype[1:])
        wide = op(b, "or", op(b, "lt", k, b.const(0, k.dtype)), op(b, "ge", k, b.const(bits, k.dtype)))
        safe = op(b, "select", wide, b.const(0, k.dtype), k)
        out = b.op("shl" if name == "left" else "shr", x.dtype, x, safe)
        if name == "left" or x.dtype[0] == "u":
            beyond = b.const(0, x.dtype)
        else:
            beyond = b.op("shr", x.dtype, x, b.const(bits - 1, x.dtype))
        return op(b, "select", wide, beyond, out)
    return run


def integer_power(b, parts, n, multiply):
    """Power by repeated squaring of a value that `multiply` knows how to multiply."""
    result, base = None, parts
    while n:
        if n & 1:
            result = base if result is None else multiply(result, base)
        n >>= 1
        base = multiply(base, base) if n else base
    return result


def _int_power(b, x, n):
    """Integer power of integers by a loop over the bits of the exponent (Knuth, TAOCP 4.6.3)."""
    return b.op("int_power", x.dtype, x, n)


def _bit_count(b, x):
    magnitude = x if x.dtype[0] in "ub" else op(b, "select", op(b, "lt", x, b.const(0, x.dtype)), op(b, "neg", x), x)
    return b.op("bit_count", "u1", magnitude)


def _ldexp(b, x, n):
    """Scale by a power of two, in two halves so that no intermediate overflows."""
    n = cast(b, n, I64)
    half = op(b, "shr", n, b.const(1))
    rest = b.sub(n, half)
    scale = [apply(b, "exp2", [cast(b, k, x.dtype)], x.dtype) for k in (half, rest)]
    return op(b, "mul", op(b, "mul", x, scale[0]), scale[1])


def _threefry(which):
    """Random bits; see `nscan.ops.draw`."""
    def run(b, key, step, lane):
        u8 = "u8"

        def const(n):
            return b.const(n - (1 << 64) if n >> 63 else n, u8)

        def mix(x, r, y):
            rotated = b.op("or", u8, b.op("shl", u8, x, const(r)), b.op("shr", u8, x, const(64 - r)))
            return b.op("xor", u8, rotated, y)
        return threefry(key, step, lane, mix, lambda x, y: b.op("add", u8, x, const(y) if type(y) is int else y),
                        lambda k: b.op("xor", u8, k, const(PARITY)))[which]
    return run


SPECIAL = {
    "threefry_first": _threefry(0), "threefry_second": _threefry(1),
    "shift_left": _shift("left"), "shift_right": _shift("right"), "int_power": _int_power, "bit_count": _bit_count,
    "float_ldexp": _ldexp,
    # What a cast of an infinite float gives in C, on hosts that NumPy is built for.
    "int_infinity": lambda b, x: b.const(-(1 << 8 * int(x.dtype[1:]) - 1) if x.dtype in ("i4", "i8") else 0, x.dtype),
    "int_gcd": lambda b, x, y: b.op("int_gcd", x.dtype, x, y),
    "int_lcm": lambda b, x, y: b.op("int_lcm", x.dtype, x, y),
}
