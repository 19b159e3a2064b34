"""Rows that act on each element: NumPy's and SciPy's ufuncs, and a few helpers of derivative rules.

Partials are texts over the inputs a, b, c and the output y. Spellings are texts over the same names in the
small scalar language that every target prints (`nscan.plan.scalar`); rows without a spelling are primitives
of that language. Complex spellings are pairs of texts over ``ar, ai, br, bi`` (or ``yr, yi``).

Derivatives of kinks: ``abs`` and ``sign`` have slope 0 at 0; ties of maximum and minimum share equally.
Sources: elementary calculus; the conventions of DESIGN 2.4 for complex numbers (adjoints of the real inner
product), so the vjp of a holomorphic row multiplies by the conjugate of its partial.
"""

import numpy as np

from nscan import buffers, errors
from nscan.array import apply_ufunc, as_operand, astype, resolve
from nscan.elementwise import pointwise
from nscan.primitive import TABLE, bind, broadcast, composite, custom, dtype_of, unbroadcast

F64 = np.dtype("f8")
BOOL = np.dtype(bool)
REAL = {"low": -3.0, "high": 3.0}
POSITIVE = {"low": 0.1, "high": 4.0}
NONZERO = {"low": 0.3, "high": 3.0, "signs": True}
UNIT = {"low": -0.9, "high": 0.9}

# ------------------------------------------------------------------------------------------- arithmetic
pointwise("add", np.add, partials=("1", "1"), spelling={"*": "a + b", "b": "a | b", "c": ("ar + br", "ai + bi")})
pointwise("subtract", np.subtract, partials=("1", "-1"), spelling={"*": "a - b", "c": ("ar - br", "ai - bi")})
pointwise("multiply", np.multiply, partials=("b", "a"),
          spelling={"*": "a * b", "b": "a & b", "c": ("ar*br - ai*bi", "ar*bi + ai*br")})
pointwise("divide", np.divide, cost=6, partials=("1/b", "-y/b"), sample={"b": NONZERO},
          spelling={"*": "a / b", "c": ("cdiv_re(ar, ai, br, bi)", "cdiv_im(ar, ai, br, bi)")})
pointwise("negative", np.negative, partials=("-1",), spelling={"*": "-a", "c": ("-ar", "-ai")})
pointwise("positive", np.positive, partials=("1",), spelling={"*": "a", "c": ("ar", "ai")})
pointwise("floor_divide", np.floor_divide, partials=(None, None), sample={"b": NONZERO},
          spelling={"f": "float_floor_divide(a, b)", "i": "int_floor_divide(a, b)", "u": "uint_divide(a, b)"})
pointwise("remainder", np.remainder, partials=("1", "-floor_divide(a, b)"), sample={"b": NONZERO},
          spelling={"f": "float_remainder(a, b)", "i": "int_remainder(a, b)", "u": "uint_remainder(a, b)"})
pointwise("fmod", np.fmod, partials=("1", "-trunc(a/b)"), sample={"b": NONZERO},
          spelling={"f": "fmod(a, b)", "i": "int_fmod(a, b)", "u": "uint_remainder(a, b)"})
pointwise("square", np.square, partials=("2*a",), spelling={"*": "a * a", "c": ("ar*ar - ai*ai", "ar*ai + ai*ar")})
pointwise("reciprocal", np.reciprocal, cost=6, partials=("-y*y",), sample={"a": NONZERO},
          spelling={"f": "1 / a", "i": "int_reciprocal(a)", "u": "int_reciprocal(a)",
                    "c": ("cdiv_re(1, 0, ar, ai)", "cdiv_im(1, 0, ar, ai)")})
pointwise("sqrt", np.sqrt, cost=6, partials=("0.5/y",), sample={"a": POSITIVE},
          spelling={"c": ("csqrt_re(ar, ai)", "csqrt_im(ar, ai)")})
pointwise("cbrt", np.cbrt, "scipy.special.cbrt", cost=20, partials=("1/(3*y*y)",), sample={"a": NONZERO})


def _power_eager(a, b):
    """Power; what NumPy refuses in integers is an error of the step that has it."""
    try:
        return np.power(a, b)
    except ValueError as error:
        raise errors.ArithmeticStepError(str(error)) from None


pointwise("power", np.power, eager=_power_eager, sample={"a": POSITIVE, "b": REAL},
          cost=40, partials=("select(b == 0, 0, b*power(a, select(b == 0, 1, b - 1)))",
                    "select(a == 0, 0, y*log(select(a == 0, 1, a)))"),
          spelling={"f": "pow(a, b)", "i": "int_power(a, b)", "u": "int_power(a, b)",
                    "c": ("cpow_re(ar, ai, br, bi)", "cpow_im(ar, ai, br, bi)")})
pointwise("float_power", np.float_power, sample={"a": POSITIVE, "b": REAL},
          cost=40, partials=("select(b == 0, 0, b*power(a, select(b == 0, 1, b - 1)))",
                    "select(a == 0, 0, y*log(select(a == 0, 1, a)))"),
          spelling={"f": "pow(a, b)", "c": ("cpow_re(ar, ai, br, bi)", "cpow_im(ar, ai, br, bi)")})
pointwise("hypot", np.hypot, cost=12, partials=("ratio(a, y)", "ratio(b, y)"), sample={"a": NONZERO})
pointwise("copysign", np.copysign, partials=("sign(a)*copysign(1, b)", None), sample={"a": NONZERO, "b": NONZERO})
pointwise("degrees", np.degrees, np.rad2deg, partials=("57.29577951308232",), plain=(0,), spelling="a * 57.29577951308232")
pointwise("radians", np.radians, np.deg2rad, partials=("0.017453292519943295",), plain=(0,), spelling="a * 0.017453292519943295")

# -------------------------------------------------------------------------- exponentials and logarithms
pointwise("exp", np.exp, cost=12, partials=("y",), spelling={"c": ("exp(ar)*cos(ai)", "cexp_im(ar, ai)")})
pointwise("exp2", np.exp2, "scipy.special.exp2", cost=12, partials=("y*0.6931471805599453",),
          spelling={"c": ("exp(ar*0.6931471805599453)*cos(ai*0.6931471805599453)",
                          "cexp_im(ar*0.6931471805599453, ai*0.6931471805599453)")})
pointwise("expm1", np.expm1, "scipy.special.expm1", cost=14, partials=("y + 1",),
          spelling={"c": ("expm1(ar)*cos(ai) - 2*sin(ai*0.5)*sin(ai*0.5)", "cexp_im(ar, ai)")})
pointwise("log", np.log, cost=14, partials=("1/a",), sample={"a": POSITIVE},
          spelling={"c": ("log(hypot(ar, ai))", "arctan2(ai, ar)")})
pointwise("log2", np.log2, cost=14, partials=("1.4426950408889634/a",), sample={"a": POSITIVE},
          spelling={"c": ("log2(hypot(ar, ai))", "arctan2(ai, ar)*1.4426950408889634")})
pointwise("log10", np.log10, cost=14, partials=("0.4342944819032518/a",), sample={"a": POSITIVE},
          spelling={"c": ("log10(hypot(ar, ai))", "arctan2(ai, ar)*0.4342944819032518")})
pointwise("log1p", np.log1p, "scipy.special.log1p", cost=16, partials=("1/(1 + a)",), sample={"a": POSITIVE},
          spelling={"c": ("log(hypot(1 + ar, ai))", "arctan2(ai, 1 + ar)")})
pointwise("logaddexp", np.logaddexp, cost=30, partials=("softshare(a, b)", "softshare(b, a)"))
pointwise("logaddexp2", np.logaddexp2, cost=30, partials=("softshare(a*0.6931471805599453, b*0.6931471805599453)",
                                                 "softshare(b*0.6931471805599453, a*0.6931471805599453)"),
          spelling="logaddexp(a*0.6931471805599453, b*0.6931471805599453)*1.4426950408889634")

# ----------------------------------------------------------------------------------------- trigonometry
pointwise("sin", np.sin, cost=16, partials=("cos(a)",),
          spelling={"c": ("sin(ar)*cosh(ai)", "cos(ar)*sinh(ai)")})
pointwise("cos", np.cos, cost=16, partials=("-sin(a)",),
          spelling={"c": ("cos(ar)*cosh(ai)", "-sin(ar)*sinh(ai)")})
pointwise("tan", np.tan, cost=24, partials=("1 + y*y",), sample={"a": UNIT},
          spelling={"c": ("ctanh_im(-ai, ar)", "-ctanh_re(-ai, ar)")})
pointwise("arcsin", np.arcsin, cost=24, partials=("1/sqrt(1 - a*a)",), sample={"a": UNIT},
          spelling={"c": ("casin_re(ar, ai)", "casin_im(ar, ai)")})
pointwise("arccos", np.arccos, cost=24, partials=("-1/sqrt(1 - a*a)",), sample={"a": UNIT},
          spelling={"c": ("cacos_re(ar, ai)", "-casin_im(ar, ai)")})
pointwise("arctan", np.arctan, cost=20, partials=("1/(1 + a*a)",),
          spelling={"c": ("catanh_im(-ai, ar)", "catanh_re(ai, ar)")})
pointwise("arctan2", np.arctan2, cost=30, partials=("b/(a*a + b*b)", "-a/(a*a + b*b)"), sample={"a": NONZERO, "b": NONZERO})
pointwise("sinh", np.sinh, cost=24, partials=("cosh(a)",), spelling={"c": ("sinh(ar)*cos(ai)", "cosh(ar)*sin(ai)")})
pointwise("cosh", np.cosh, cost=24, partials=("sinh(a)",), spelling={"c": ("cosh(ar)*cos(ai)", "sinh(ar)*sin(ai)")})
pointwise("tanh", np.tanh, cost=16, partials=("1 - y*y",),
          spelling={"c": ("ctanh_re(ar, ai)", "ctanh_im(ar, ai)")})
pointwise("arcsinh", np.arcsinh, cost=24, partials=("1/sqrt(1 + a*a)",),
          spelling={"c": ("casin_im(ai, ar)", "casin_re(ai, ar)")})
pointwise("arccosh", np.arccosh, cost=24, partials=("1/sqrt(a*a - 1)",), sample={"a": {"low": 1.2, "high": 4.0}},
          spelling={"c": ("abs(casin_im(ar, ai))", "copysign(cacos_re(ar, ai), ai)")})
pointwise("arctanh", np.arctanh, cost=24, partials=("1/(1 - a*a)",), sample={"a": UNIT},
          spelling={"c": ("catanh_re(ar, ai)", "catanh_im(ar, ai)")})
pointwise("sinc", None, cost=24, partials=("sinc_slope(a)",), eager=np.sinc, dtypes=lambda d: d,
          spelling={"*": "select(a == 0, 1, sin(a*3.141592653589793)/select(a == 0, 1, a*3.141592653589793))",
                    "c": ("csinc_re(ar*3.141592653589793, ai*3.141592653589793)", "csinc_im(ar*3.141592653589793, ai*3.141592653589793)")})

# ------------------------------------------------------------------------------------- kinks and rounding
pointwise("maximum", np.maximum, partials=("tieshare(a, b)", "tieshare(b, a)"), plain=(0, 1),
          spelling={"*": "select((a >= b) | (a != a), a, b)", "b": "a | b",
                    "c": ("select(cat_least(ar, ai, br, bi) | cnan(ar, ai), ar, br)",
                          "select(cat_least(ar, ai, br, bi) | cnan(ar, ai), ai, bi)")})
pointwise("minimum", np.minimum, partials=("tieshare(b, a)", "tieshare(a, b)"), plain=(0, 1),
          spelling={"*": "select((a <= b) | (a != a), a, b)", "b": "a & b",
                    "c": ("select(cat_least(br, bi, ar, ai) | cnan(ar, ai), ar, br)",
                          "select(cat_least(br, bi, ar, ai) | cnan(ar, ai), ai, bi)")})
pointwise("fmax", np.fmax, partials=("tieshare_number(a, b)", "tieshare_number(b, a)"), plain=(0, 1),
          spelling={"*": "select((a >= b) | (b != b), a, b)", "b": "a | b",
                    "c": ("select(cat_least(ar, ai, br, bi) | cnan(br, bi), ar, br)",
                          "select(cat_least(ar, ai, br, bi) | cnan(br, bi), ai, bi)")})
pointwise("fmin", np.fmin, partials=("tieshare_number(-a, -b)", "tieshare_number(-b, -a)"), plain=(0, 1),
          spelling={"*": "select((a <= b) | (b != b), a, b)", "b": "a & b",
                    "c": ("select(cat_least(br, bi, ar, ai) | cnan(br, bi), ar, br)",
                          "select(cat_least(br, bi, ar, ai) | cnan(br, bi), ai, bi)")})
pointwise("floor", np.floor, partials=(None,), spelling={"i": "a", "u": "a", "b": "a"})
pointwise("ceil", np.ceil, partials=(None,), spelling={"i": "a", "u": "a", "b": "a"})
pointwise("trunc", np.trunc, partials=(None,), spelling={"i": "a", "u": "a", "b": "a"})
pointwise("rint", np.rint, partials=(None,), spelling={"c": ("rint(ar)", "rint(ai)")})
pointwise("heaviside", np.heaviside, partials=(None, "1 - abs(sign(a))"),
          spelling="select(a != a, a, select(a == 0, b, select(a < 0, 0, 1)))")
pointwise("nextafter", np.nextafter, partials=("1", None))
pointwise("spacing", np.spacing, partials=(None,), spelling="float_spacing(a)")
pointwise("signbit", np.signbit, partials=(None,), spelling="signbit(a)")
pointwise("ldexp", np.ldexp, partials=("ldexp(ones_like(a), b)", None), spelling="float_ldexp(a, b)")

# ------------------------------------------------------------------------------------ comparison and logic
for _name, _sign, _pair in (("less", "<", None), ("less_equal", "<=", None), ("greater", ">", None),
                            ("greater_equal", ">=", None), ("equal", "==", "(ar == br) & (ai == bi)"),
                            ("not_equal", "!=", "(ar != br) | (ai != bi)")):
    _texts = {"*": f"a {_sign} b"}
    _texts["c"] = (_pair or f"(ar {_sign} br) & (ar != br) | (ar == br) & (ai {_sign} bi)",)
    pointwise(_name, getattr(np, _name), partials=(None, None), spelling=_texts)
pointwise("logical_and", np.logical_and, partials=(None, None),
          spelling={"*": "(a != 0) & (b != 0)", "c": ("cbool(ar, ai) & cbool(br, bi)",)})
pointwise("logical_or", np.logical_or, partials=(None, None),
          spelling={"*": "(a != 0) | (b != 0)", "c": ("cbool(ar, ai) | cbool(br, bi)",)})
pointwise("logical_xor", np.logical_xor, partials=(None, None),
          spelling={"*": "(a != 0) ^ (b != 0)", "c": ("cbool(ar, ai) ^ cbool(br, bi)",)})
pointwise("logical_not", np.logical_not, partials=(None,), spelling={"*": "a == 0", "c": ("(ar == 0) & (ai == 0)",)})
pointwise("isnan", np.isnan, partials=(None,), spelling={"f": "a != a", "*": "False", "c": ("(ar != ar) | (ai != ai)",)})
pointwise("isinf", np.isinf, partials=(None,),
          spelling={"f": "abs(a) == inf", "*": "False", "c": ("(abs(ar) == inf) | (abs(ai) == inf)",)})
pointwise("isfinite", np.isfinite, partials=(None,),
          spelling={"f": "abs(a) < inf", "*": "True", "c": ("(abs(ar) < inf) & (abs(ai) < inf)",)})
pointwise("bitwise_and", np.bitwise_and, partials=(None, None), spelling="a & b")
pointwise("bitwise_or", np.bitwise_or, partials=(None, None), spelling="a | b")
pointwise("bitwise_xor", np.bitwise_xor, partials=(None, None), spelling="a ^ b")
pointwise("invert", np.invert, partials=(None,), spelling="~a")
pointwise("left_shift", np.left_shift, partials=(None, None), spelling="shift_left(a, b)")
pointwise("right_shift", np.right_shift, partials=(None, None), spelling="shift_right(a, b)")
pointwise("bitwise_count", np.bitwise_count, partials=(None,), spelling="bit_count(a)")
pointwise("gcd", np.gcd, partials=(None, None), spelling="int_gcd(a, b)")
pointwise("lcm", np.lcm, partials=(None, None), spelling="int_lcm(a, b)")

# ----------------------------------------------------------------------------------- scipy.special ufuncs
_S = "scipy.special."
pointwise("expit", _S + "expit", cost=16, partials=("y*(1 - y)",), spelling="sigmoid(a)")
pointwise("log_expit", _S + "log_expit", cost=24, partials=("expit(-a)",), spelling="log_sigmoid(a)")
pointwise("logit", _S + "logit", cost=20, partials=("1/(a*(1 - a))",), sample={"a": {"low": 0.1, "high": 0.9}},
          spelling="log(a/(1 - a))")
pointwise("erf", _S + "erf", cost=24, partials=("1.1283791670955126*exp(-a*a)",))
pointwise("erfc", _S + "erfc", cost=24, partials=("-1.1283791670955126*exp(-a*a)",))
pointwise("erfcx", _S + "erfcx", cost=30, partials=("2*a*y - 1.1283791670955126",))
pointwise("erfinv", _S + "erfinv", cost=40, partials=("0.8862269254527580*exp(y*y)",), sample={"a": UNIT})
pointwise("ndtr", _S + "ndtr", cost=24, partials=("0.3989422804014327*exp(-0.5*a*a)",),
          spelling="0.5*erfc(a*-0.7071067811865476)")
pointwise("log_ndtr", _S + "log_ndtr", cost=40, partials=("0.3989422804014327*exp(-0.5*a*a - y)",))
pointwise("ndtri", _S + "ndtri", cost=40, partials=("2.5066282746310002*exp(0.5*y*y)",), sample={"a": {"low": 0.1, "high": 0.9}})
pointwise("gammaln", _S + "gammaln", cost=40, partials=("psi(a)",), sample={"a": POSITIVE})
pointwise("gamma", _S + "gamma", cost=40, partials=("y*psi(a)",), sample={"a": POSITIVE})
pointwise("psi", _S + "psi", cost=40, partials=("zeta(2, a)",), sample={"a": POSITIVE})
pointwise("zeta", _S + "zeta", cost=80, partials=("?", "-a*zeta(a + 1, b)"), why="the derivative of zeta in its order is not implemented",
          sample={"a": {"low": 2.0, "high": 5.0}, "b": POSITIVE})
pointwise("xlogy", _S + "xlogy", cost=16, partials=("log(b)", "a/b"), sample={"b": POSITIVE},
          spelling="select((a == 0) & (b == b), 0, a*log(b))")
pointwise("xlog1py", _S + "xlog1py", cost=18, partials=("log1p(b)", "a/(1 + b)"), sample={"b": POSITIVE},
          spelling="select((a == 0) & (b == b), 0, a*log1p(b))")
pointwise("entr", _S + "entr", cost=16, partials=("-log(a) - 1",), sample={"a": POSITIVE},
          spelling="select(a > 0, -a*log(a), select(a == 0, 0, select(a != a, a, -inf)))")
pointwise("rel_entr", _S + "rel_entr", cost=40, partials=("log(a/b) + 1", "-a/b"), sample={"a": POSITIVE, "b": POSITIVE},
          spelling="select((a > 0) & (b > 0), a*select(a/b == inf, log(a) - log(b), log(a/b)), select((a == 0) & (b >= 0), 0, "
                   "select((a != a) | (b != b), a + b, inf)))")
pointwise("kl_div", _S + "kl_div", cost=24, partials=("log(a/b)", "1 - a/b"), sample={"a": POSITIVE, "b": POSITIVE},
          spelling="select((a > 0) & (b > 0), a*log(a/b) - a + b, select((a == 0) & (b >= 0), b, "
                   "select((a != a) | (b != b), a + b, inf)))")
pointwise("i0", _S + "i0", np.i0, cost=40, partials=("i1(a)",))
pointwise("i1", _S + "i1", cost=40, partials=("i0(a) - select(a == 0, 0.5, y/select(a == 0, 1, a))",))
pointwise("i0e", _S + "i0e", cost=40, partials=("i1e(a) - sign(a)*y",), sample={"a": NONZERO})
pointwise("i1e", _S + "i1e", cost=40, partials=("i0e(a) - sign(a)*y - select(a == 0, 0.5, y/select(a == 0, 1, a))",))
pointwise("j0", _S + "j0", cost=40, partials=("-j1(a)",))
pointwise("j1", _S + "j1", cost=40, partials=("j0(a) - select(a == 0, 0.5, y/select(a == 0, 1, a))",))
pointwise("betaln", _S + "betaln", cost=120, partials=("psi(a) - psi(a + b)", "psi(b) - psi(a + b)"),
          sample={"a": POSITIVE, "b": POSITIVE}, spelling="gammaln(a) + gammaln(b) - gammaln(a + b)")
pointwise("exp10", _S + "exp10", cost=14, partials=("y*2.302585092994046",), spelling="exp2(a*3.321928094887362)")
pointwise("softplus", None, cost=24, partials=("expit(a)",), eager=lambda a: np.logaddexp(np.zeros_like(a), a),
          dtypes=lambda d: d)

# Which lanes run at a step, by their numbers of steps: a row of its own, so that the plan can find it.
pointwise("live", None, partials=(None, None), dtypes=lambda *_: BOOL, eager=np.less, spelling="a < b")

# -------------------------------------------------------------------------- helpers of derivative rules


def _like(a, *rest):
    return a


def _safe_mul(c, p):
    """Multiply, but give 0 where c is exactly 0 (p may be inf or NaN there)."""
    out = buffers.apply(np.multiply, c, p)
    return out if np.isfinite(out.sum()) else np.where(c == 0, np.zeros_like(c), out)


pointwise("ratio", None, partials=("select(b == 0, 0, 1/select(b == 0, 1, b))", "-y*select(b == 0, 0, 1/select(b == 0, 1, b))"),
          dtypes=_like, eager=lambda a, b: np.where(b == 0, np.zeros_like(a), a / np.where(b == 0, np.ones_like(b), b)),
          spelling={"*": "select(b == 0, 0, a / select(b == 0, 1, b))",
                    "c": ("select(cbool(br, bi), cdiv_re(ar, ai, br, bi), 0)", "select(cbool(br, bi), cdiv_im(ar, ai, br, bi), 0)")})
pointwise("tieshare", None, partials=(None, None), dtypes=_like,
          spelling={"*": "select(a == b, 0.5, select(a > b, 1, 0))",
                    "c": ("select(cequal(ar, ai, br, bi), 0.5, select(cgreater(ar, ai, br, bi), 1, 0))", "0")},
          eager=lambda a, b: np.where(a == b, 0.5, a > b).astype(a.dtype))
pointwise("tieshare_number", None, partials=(None, None), dtypes=_like,
          spelling={"*": "select(a == b, 0.5, select((a > b) | (b != b), 1, 0))",
                    "c": ("select(cequal(ar, ai, br, bi), 0.5, select(cgreater(ar, ai, br, bi) | cnan(br, bi), 1, 0))", "0")},
          eager=lambda a, b: np.where(a == b, 0.5, (a > b) | (b != b)).astype(a.dtype))
pointwise("softshare", None, cost=22, partials=("y*(1 - y)", "-y*(1 - y)"), dtypes=_like,
          spelling={"*": "select(a == b, 0.5, sigmoid(a - b))", "c": tuple(
              f"select(cequal(ar, ai, br, bi), {tie}, cdiv_{p}(1, 0, 1 + exp(br - ar)*cos(bi - ai), exp(br - ar)*sin(bi - ai)))"
              for p, tie in (("re", 0.5), ("im", 0)))},
          eager=lambda a, b: np.where(a == b, 0.5, 1 / (1 + np.exp(b - a))).astype(a.dtype))


def _sinc_slope(a):
    """Slope of sinc: (cos(x) - sin(x)/x)/a with x = pi*a; near 0, where that cancels, its Taylor series."""
    x = np.square(np.pi * a)
    series = 1.0
    for k in (6, 5, 4, 3, 2):
        series = 1.0 - series * x * (k / ((k - 1) * 2 * k * (2 * k + 1)))
    safe = np.where(abs(a) < 0.125, 1, a)
    return np.where(abs(a) < 0.125, a * (-np.pi**2 / 3) * series, (np.cos(np.pi * a) - np.sinc(a)) / safe).astype(a.dtype)[()]


_SERIES = ("(1 - s*0.1*(1 - s*0.03571428571428571*(1 - s*0.018518518518518517*(1 - s*0.011363636363636364*"
           "(1 - s*0.007692307692307693)))))")


def _complex_sinc_slope():
    """Spelling of the slope for complex numbers: real and imaginary part."""
    re, im = "1", "0"
    square = "9.869604401089358*(ar*ar - ai*ai), 19.739208802178716*ar*ai"
    for c in (0.007692307692307693, 0.011363636363636364, 0.018518518518518517, 0.03571428571428571, 0.1):
        re, im = f"horner_re({c}, {square}, {re}, {im})", f"horner_im({c}, {square}, {re}, {im})"
    x, y = "ar*3.141592653589793", "ai*3.141592653589793"
    gap = f"cos({x})*cosh({y}) - csinc_re({x}, {y}), -sin({x})*sinh({y}) - csinc_im({x}, {y})"
    near = {"re": f"ar*({re}) - ai*({im})", "im": f"ar*({im}) + ai*({re})"}
    return tuple(f"select(hypot(ar, ai) < 0.125, -3.289868133696453*({near[p]}), cdiv_{p}({gap}, ar, ai))" for p in ("re", "im"))


pointwise("sinc_slope", None, dtypes=_like, eager=_sinc_slope,
          cost=50, partials=("select(a == 0, -3.289868133696453, (-9.869604401089358*sinc(a) - 2*y/select(a == 0, 1, a)))",),
          spelling={"*": f"select(abs(a) < 0.125, a*-3.289868133696453*{_SERIES}, (cos(a*3.141592653589793) - "
                         "sin(a*3.141592653589793)/(a*3.141592653589793))/a)".replace("s*", "a*a*9.869604401089358*"),
                    "c": _complex_sinc_slope()})


# d(c*p) = safe_mul(dc, p) + safe_mul(c, dp): where c is exactly 0 the slope of p does not count, whatever it is.
# That is a rule of its own: the derivative of a select would lose safe_mul(dc, p) there.
def _safe_jvp(tangents, at):
    row = TABLE["safe_mul"]
    dc, dp = tangents
    terms = [] if dc is None else [bind(row, (dc, at.x(1)))]
    terms += [] if dp is None else [bind(row, (at.x(0), dp))]
    return (terms[0] + terms[1] if len(terms) == 2 else terms[0],)


def _safe_vjp(cotangents, at):
    row, ct = TABLE["safe_mul"], cotangents[0]
    return [unbroadcast(bind(row, (ct, _conjugated(at.x(1)))), at.shape(0)) if at.needs[0] else None,
            unbroadcast(bind(row, (_conjugated(at.x(0)), ct)), at.shape(1)) if at.needs[1] else None]


def _conjugated(x):
    return np.conj(x) if dtype_of(x).kind == "c" else x


custom("safe_mul", kind="pointwise", eager=_safe_mul, jvp=_safe_jvp, vjp=_safe_vjp, partials=("b", "a"),
       infer=lambda a, b: ((broadcast(a.shape, b.shape), np.result_type(a.dtype, b.dtype)),),
       spelling={"*": "select(a == 0, 0, a * b)",
                 "c": ("select((ar == 0) & (ai == 0), 0, ar*br - ai*bi)",
                       "select((ar == 0) & (ai == 0), 0, ar*bi + ai*br)")})


# ------------------------------------------------------------------------ power by a constant exponent
def _integer_power_eager(a, n):
    return np.power(a, n) if n >= 0 or np.asarray(a).dtype.kind in "fc" else np.float_power(a, n)


def _integer_power_slope(at, n):
    a = at.x(0)
    if n == 1:
        return np.ones_like(a)
    if n == 2:
        return 2 * a
    return n * bind(TABLE["integer_power"], (a,), {"n": n - 1})


def _integer_power_vjp(cotangents, at, n):
    p = _integer_power_slope(at, n)
    p = np.conj(p) if dtype_of(p).kind == "c" else p
    return [bind(TABLE["safe_mul"], (cotangents[0], p))]


custom("integer_power", kind="pointwise", eager=_integer_power_eager, infer=lambda a, n: ((a.shape, a.dtype),),
       jvp=lambda tangents, at, n: (bind(TABLE["safe_mul"], (tangents[0], _integer_power_slope(at, n))),),
       vjp=_integer_power_vjp, partials=("n",), spelling={"*": "integer_power"})
MAX_POWER = 64


@composite(np.power)
def power(x1, x2):
    """Power; an exponent that is a number shapes the code: squares, products, roots."""
    base, exponent = as_operand(x1), as_operand(x2)
    if hasattr(base, "node") and not hasattr(exponent, "node") and np.ndim(exponent) == 0:
        n = exponent.item() if hasattr(exponent, "item") else exponent
        types = (base.dtype, exponent.dtype if hasattr(exponent, "dtype") else type(exponent))
        dtype = resolve(TABLE["power"], types)[1]
        if isinstance(n, (int, float)) and dtype.kind in "fc" and (n == int(n) if abs(n) <= MAX_POWER else False):
            return _constant_power(astype(base, dtype), int(n))
        if n == 0.5 and dtype.kind in "fc":
            return np.sqrt(astype(base, dtype))
        if isinstance(n, int) and dtype.kind in "iu" and 0 <= n <= MAX_POWER:
            return _constant_power(astype(base, dtype), n)
        if isinstance(n, int) and n < 0 and dtype.kind in "iu":
            raise errors.ArithmeticStepError("Integers to negative integer powers are not allowed.")
    return apply_ufunc(TABLE["power"], (base, exponent))


def _constant_power(base, n):
    if n == 0:
        return np.ones_like(base)
    if n == 1:
        return +base
    if n == 2:
        return np.square(base)
    if n == -1:
        return np.reciprocal(base)
    return bind(TABLE["integer_power"], (base,), {"n": n})


@composite(np.divmod)
def divmod_(x1, x2):
    """Quotient and remainder."""
    return np.floor_divide(x1, x2), np.remainder(x1, x2)


@composite(np.modf)
def modf(x):
    """Fractional and integral parts."""
    x = astype(x, F64) if x.dtype.kind in "iub" else x
    whole = np.trunc(x)
    return np.copysign(x - whole, x), whole
