"""Emitters of the logarithms, the functions made of them, and the inverse hyperbolic functions."""

import math

from . import math_tables as tables
from .math_exp import LN2_HIGH, LN2_LOW, exp_of_negative

SQRT_HALF = math.sqrt(0.5)
# log2(e), and log10(2) and log10(e), each in two parts (float32, float64). The leading part of log10(2) is
# short, as that of ln(2) is.
LOG2_E_PARTS = ((1.442695, 1.925963e-08), (1.4426950408889634, 2.0355273740931033e-17))
LOG10_2_PARTS = ((0.3010254, 4.605039e-06), (0.30102999566395283, 2.8363394551044964e-14))
LOG10_E_PARTS = ((0.4342945, -1.010305e-08), (0.4342944819032518, 1.098319650216765e-17))


def split_exponent(ops, x):
    """Write a positive finite x as ``2**exponent * fraction``, ``sqrt(1/2) <= fraction < sqrt(2)``.

    Both results are floating-point numbers.
    """
    shift = ops.fraction_bits + 1
    is_subnormal = ops.compare("<", x, ops.smallest_normal)
    normal = ops.select(is_subnormal, ops.mul(x, 2.0**shift), x)
    lowest = ops.bit_pattern(SQRT_HALF)
    bits = ops.int_add(ops.to_bits(normal), ops.bit_pattern(1.0) - lowest)
    fraction = ops.from_bits(ops.int_add(ops.int_and(bits, ops.fraction_mask), lowest))
    # Few hosts can convert vectors of 64-bit integers, hence by way of the bits: those of the biased
    # exponent, put below the leading bit of this number, add to it.
    carrier = 2.0**ops.fraction_bits
    biased = ops.builder.or_(
        ops.shift_right(bits, ops.fraction_bits), ops.int_constant(ops.bit_pattern(carrier))
    )
    excess = ops.select(is_subnormal, carrier + ops.bias + shift, carrier + ops.bias)
    return ops.sub(ops.from_bits(biased), excess), fraction


def log1p_tail(ops, f):
    """Return ``log(1 + f) - f`` for ``sqrt(1/2) <= 1 + f < sqrt(2)``."""
    square = ops.mul(f, f)
    cubic = ops.mul(ops.mul(square, f), ops.polynomial(f, ops.choose(*tables.LOG)))
    return ops.fma(square, -0.5, cubic)


def log_of_parts(ops, exponent, f, f_low=None):
    """Return ``exponent * ln(2) + log(1 + f + f_low)``."""
    tail = ops.fma(exponent, ops.choose(*LN2_LOW), log1p_tail(ops, f))
    if f_low is not None:
        tail = ops.add(tail, f_low)
    return ops.fma(exponent, ops.choose(*LN2_HIGH), ops.add(f, tail))


def log_of_sum(ops, high, low, lowest=None, extra_exponent=None):
    """Return ``log(high + low + lowest) + extra_exponent * ln(2)``.

    The first term has to be positive, normal and finite, and each of the following ones much smaller than
    the one before, unless that is 0.
    """
    exponent, fraction = split_exponent(ops, high)
    # 2**-exponent, or 0 where this would be subnormal.
    bits = ops.int_sub(ops.int_add(ops.to_bits(fraction), ops.bit_pattern(1.0)), ops.to_bits(high))
    scale = ops.from_bits(ops.int_at_least(bits, 0))
    f = ops.fma(low, scale, ops.sub(fraction, 1.0))
    if extra_exponent is not None:
        exponent = ops.add(exponent, extra_exponent)
    return log_of_parts(ops, exponent, f, None if lowest is None else ops.mul(lowest, scale))


def with_log_specials(ops, x, result, pole=0.0):
    """Put in the results at and below the pole, for infinity and for NaN."""
    result = ops.select(ops.compare("<", x, math.inf), result, x)
    special = ops.select(ops.compare("==", x, pole), -math.inf, math.nan)
    return ops.select(ops.compare("<=", x, pole), special, result)


def log(ops, x):
    """Emit log."""
    exponent, fraction = split_exponent(ops, x)
    return with_log_specials(ops, x, log_of_parts(ops, exponent, ops.sub(fraction, 1.0)))


def log_in_base(ops, x, log_2, log_e):
    """Return the logarithm in a base in which 2 and e have the logarithms given, each in two parts."""
    exponent, fraction = split_exponent(ops, x)
    f = ops.sub(fraction, 1.0)
    tail = ops.fma(f, log_e[1], ops.mul(log1p_tail(ops, f), log_e[0]))
    if log_2[1]:
        tail = ops.fma(exponent, log_2[1], tail)
    if ops.fused:
        small = ops.fma(f, log_e[0], tail)
    else:
        # The rounding error of the product would be the largest one.
        small, product_low = ops.two_product(f, log_e[0])
        small = ops.add(small, ops.add(product_low, tail))
    return with_log_specials(ops, x, ops.fma(exponent, log_2[0], small))


def log2(ops, x):
    """Emit log2."""
    return log_in_base(ops, x, (1.0, 0.0), ops.choose(*LOG2_E_PARTS))


def log10(ops, x):
    """Emit log10."""
    return log_in_base(ops, x, ops.choose(*LOG10_2_PARTS), ops.choose(*LOG10_E_PARTS))


def log1p(ops, x):
    """Emit log1p."""
    high = ops.add(x, 1.0)
    low = ops.sub(x, ops.sub(high, 1.0))
    # The sign matters for zeros only.
    result = ops.copysign(log_of_sum(ops, high, low), x)
    return with_log_specials(ops, x, result, -1.0)


def softplus(ops, x):
    """Emit ``log(1 + exp(x))``, as ``max(x, 0) + log1p(exp(-abs(x)))``."""
    decay = exp_of_negative(ops, ops.abs(x))
    # 1 + decay <= 2, halved where it is beyond sqrt(2).
    is_large = ops.compare(">", decay, math.sqrt(2) - 1)
    f = ops.select(is_large, ops.fma(decay, 0.5, -0.5), decay)
    exponent = ops.select(is_large, 1.0, 0.0)
    return ops.add(ops.at_least(x, 0.0), log_of_parts(ops, exponent, f))


def log_sigmoid(ops, x):
    """Emit ``-log(1 + exp(-x))``."""
    return ops.neg(softplus(ops, ops.neg(x)))


def asinh(ops, x):
    """Emit asinh."""
    a = ops.abs(x)
    square = ops.mul(a, a)
    near_zero = ops.fma(ops.mul(a, square), ops.polynomial(square, ops.choose(*tables.ASINH)), a)
    # Beyond the bound the root is as good as a, and the square might overflow.
    is_large = ops.compare(">", a, ops.choose(2.0**13, 2.0**28))
    root = ops.sqrt(ops.fma(a, a, 1.0))
    high, low = ops.fast_two_sum(root, a)
    high = ops.select(is_large, a, high)
    low = ops.select(is_large, 0.0, low)
    away = log_of_sum(ops, high, low, extra_exponent=ops.select(is_large, 1.0, 0.0))
    away = ops.select(ops.compare("<", a, math.inf), away, a)
    is_near = ops.compare("<", a, ops.choose(0.75, 0.5))
    return ops.copysign(ops.select(is_near, near_zero, away), x)


def acosh(ops, x):
    """Emit acosh."""
    t = ops.sub(x, 1.0)
    is_large = ops.compare(">", x, ops.choose(2.0**13, 2.0**28))
    excess, lowest = ops.fast_two_sum(ops.sqrt(ops.fma(t, t, ops.add(t, t))), t)
    high = ops.add(excess, 1.0)
    low = ops.sub(excess, ops.sub(high, 1.0))
    high = ops.select(is_large, x, high)
    low, lowest = ops.select(is_large, 0.0, low), ops.select(is_large, 0.0, lowest)
    result = log_of_sum(ops, high, low, lowest, ops.select(is_large, 1.0, 0.0))
    result = ops.select(ops.compare("<", x, math.inf), result, x)
    return ops.select(ops.compare("<", x, 1.0), math.nan, result)


def atanh(ops, x):
    """Emit atanh."""
    a = ops.abs(x)
    square = ops.mul(a, a)
    near_zero = ops.fma(ops.mul(a, square), ops.polynomial(square, ops.choose(*tables.ATANH)), a)
    # 1 - a is exact for a >= 1/2.
    quotient = ops.div(ops.add(a, 1.0), ops.sub(1.0, a))
    exponent, fraction = split_exponent(ops, quotient)
    away = ops.mul(log_of_parts(ops, exponent, ops.sub(fraction, 1.0)), 0.5)
    away = with_log_specials(ops, quotient, away)
    return ops.copysign(ops.select(ops.compare("<", a, 0.5), near_zero, away), x)
