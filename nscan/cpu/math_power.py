"""Emitters of pow, cbrt and hypot."""

import math

from . import math_tables as tables
from .math_exp import scale_by_power
from .math_log import split_exponent

# 2/ln(2) and a third of it, each in two parts (float32, float64).
TWO_OVER_LN2 = ((2.88539, 3.851926e-08), (2.8853900817779268, 4.0710547481862066e-17))
TWO_THIRDS_OVER_LN2 = ((0.9617967, -7.028462e-09), (0.9617966939259756, 5.0577616648125906e-17))
# What rounding ln(2) to float32 and float64 leaves.
LN2_ROUNDING = (-1.904654e-09, 2.3190468138462996e-17)


def quotient_of_log(ops, fraction):
    """Return ``s = (fraction - 1) / (fraction + 1)`` in two parts."""
    f = ops.sub(fraction, 1.0)
    denominator = ops.add(fraction, 1.0)
    denominator_low = ops.sub(fraction, ops.sub(denominator, 1.0))
    reciprocal = ops.div(1.0, denominator)
    high = ops.mul(f, reciprocal)
    product, product_low = ops.two_product(high, denominator)
    remainder = ops.sub(ops.sub(f, product), product_low)
    remainder = ops.fma(ops.neg(high), denominator_low, remainder)
    return high, ops.mul(remainder, reciprocal)


def log2_in_two_parts(ops, x):
    """Return log2(x), for a positive finite x, to about 1.3 times the working precision.

    With s as above, ``log2(fraction) = s * (c0 + z * (c1 + z * polynomial(z)))`` where ``z = s**2``,
    everything outside of the polynomial being computed in double-word arithmetic.
    """
    exponent, fraction = split_exponent(ops, x)
    s, s_low = quotient_of_log(ops, fraction)
    z, z_low = ops.two_product(s, s)
    z_low = ops.fma(ops.add(s, s), s_low, z_low)
    c0, c0_low = ops.choose(*TWO_OVER_LN2)
    c1, c1_low = ops.choose(*TWO_THIRDS_OVER_LN2)
    inner, inner_low = ops.fast_two_sum(c1, ops.mul(z, ops.polynomial(z, ops.choose(*tables.POW_LOG2))))
    inner_low = ops.add(inner_low, c1_low)
    product, product_low = ops.two_product(z, inner)
    product_low = ops.add(product_low, ops.fma(z, inner_low, ops.mul(z_low, inner)))
    outer, outer_low = ops.fast_two_sum(c0, product)
    outer_low = ops.add(outer_low, ops.add(product_low, c0_low))
    log, log_low = ops.two_product(s, outer)
    log_low = ops.add(log_low, ops.fma(s, outer_low, ops.mul(s_low, outer)))
    high, low = ops.fast_two_sum(exponent, log)
    return high, ops.add(low, log_low)


def exp2_of_parts(ops, high, low):
    """Return ``2**(high + low)``, low being much smaller than high; it over- and underflows."""
    shifted = ops.add(high, ops.shifter)
    exact = ops.sub(high, ops.sub(shifted, ops.shifter))
    r = ops.add(exact, low)
    # The leading term by itself, so that powers that can be represented come out exactly.
    slope, *coefficients = ops.choose(*tables.EXP2)
    tail = ops.fma(ops.polynomial(r, coefficients), r, ops.choose(*LN2_ROUNDING))
    tail = ops.fma(tail, r, ops.mul(low, slope))
    value = ops.add(ops.fma(exact, slope, tail), 1.0)
    is_low = ops.compare("<", high, ops.choose(-125.0, -1021.0))
    result = scale_by_power(ops, value, shifted, is_low)
    # Slightly beyond the range the bits may be those of NaN.
    result = ops.select(ops.compare("<", result, math.inf), result, math.inf)
    result = ops.select(ops.compare(">", high, ops.bias + 1.25), math.inf, result)
    return ops.select(ops.compare("<", high, ops.choose(-151.0, -1076.0)), 0.0, result)


def integer_kind(ops, y):
    """Return whether y is an integer, and whether it is an odd one."""
    a = ops.abs(y)
    # From here on all numbers are integers, and from twice that even ones.
    bound = 2.0**ops.fraction_bits
    half = ops.mul(a, 0.5)
    is_integer = ops.either(ops.compare("==", ops.nearest(a), a), ops.compare(">=", a, bound))
    half_is_integer = ops.either(ops.compare("==", ops.nearest(half), half), ops.compare(">=", half, bound))
    return is_integer, ops.both(is_integer, ops.builder.not_(half_is_integer))


def pow(ops, x, y):
    """Emit pow."""
    a = ops.abs(x)
    log, log_low = log2_in_two_parts(ops, a)
    is_zero, is_infinite = ops.compare("==", a, 0.0), ops.compare("==", a, math.inf)
    log = ops.select(is_zero, -math.inf, ops.select(is_infinite, math.inf, log))
    # The bound keeps products finite; only the result for log = 0 is not 0 or infinite beyond it.
    bound = ops.choose(2.0**40, 2.0**70)
    bounded = ops.at_least(ops.at_most(y, bound), -bound)
    product, product_low = ops.two_product(bounded, log)
    result = exp2_of_parts(ops, product, ops.fma(bounded, log_low, product_low))
    return with_pow_specials(ops, x, y, result)


def with_pow_specials(ops, x, y, result):
    """Put in the sign, and the results for which NaN and negative x are responsible."""
    is_integer, is_odd = integer_kind(ops, y)
    is_negative = ops.has_sign(x)
    result = ops.select(ops.both(is_negative, is_odd), ops.neg(result), result)
    is_proper = ops.both(ops.compare("<", x, 0.0), ops.compare(">", x, -math.inf))
    result = ops.select(ops.both(is_proper, ops.builder.not_(is_integer)), math.nan, result)
    result = ops.select(ops.is_unordered(x, y), ops.add(x, y), result)
    is_one = ops.either(ops.compare("==", x, 1.0), ops.compare("==", y, 0.0))
    return ops.select(is_one, 1.0, result)


def cbrt(ops, x):
    """Emit cbrt."""
    a = ops.abs(x)
    exponent, fraction = split_exponent(ops, a)
    # exponent = 3 * third + rest, rest being -1, 0 or 1.
    shifter = ops.shifter + ops.bias
    shifted = ops.fma(exponent, 1 / 3, shifter)
    rest = ops.fma(ops.sub(shifted, shifter), -3.0, exponent)
    # 2**rest, exactly, and 2**(-rest/3), both as parabolas through three points.
    number = ops.mul(fraction, ops.fma(rest, ops.fma(rest, 0.25, 0.75), 1.0))
    up, down = 2 ** (1 / 3), 2 ** (-1 / 3)
    scale = ops.fma(rest, ops.fma(rest, (up + down) / 2 - 1, (down - up) / 2), 1.0)
    inverse = ops.polynomial(ops.sub(fraction, 1.0), ops.choose(*tables.INVERSE_CUBE_ROOT))
    inverse = ops.mul(inverse, scale)
    # One step of third order: number * inverse**2 * (1 - h)**(-2/3), h being the error of the inverse. The
    # first product is had in two parts, which makes cubes of integers come out exactly.
    square, square_low = ops.two_product(inverse, inverse)
    root, root_low = ops.two_product(number, square)
    root_low = ops.fma(number, square_low, root_low)
    product, product_low = ops.two_product(root, inverse)
    h = ops.sub(ops.sub(1.0, product), ops.fma(root_low, inverse, product_low))
    root = ops.add(root, ops.fma(ops.mul(root, h), ops.fma(h, 5 / 9, 2 / 3), root_low))
    root = ops.copysign(ops.mul(root, ops.exponent_to_power(shifted)), x)
    is_proper = ops.both(ops.compare(">", a, 0.0), ops.compare("<", a, math.inf))
    return ops.select(is_proper, root, x)


def hypot(ops, x, y):
    """Emit hypot."""
    x, y = ops.abs(x), ops.abs(y)
    is_swapped = ops.compare(">", y, x)
    large, small = ops.select(is_swapped, y, x), ops.select(is_swapped, x, y)
    # Scale by the power of two that brings the large one near 1, if its reciprocal is a normal number, too.
    bits = ops.int_and(ops.to_bits(large), ops.exponent_mask)
    lowest, highest = 1 << ops.fraction_bits, (2 * ops.bias - 1) << ops.fraction_bits
    bits = ops.int_at_most(ops.int_at_least(bits, lowest), highest)
    scale = ops.from_bits(ops.int_sub(2 * ops.bias << ops.fraction_bits, bits))
    large, small = ops.mul(large, scale), ops.mul(small, scale)
    root = ops.sqrt(ops.fma(large, large, ops.mul(small, small)))
    result = ops.mul(root, ops.from_bits(bits))
    is_infinite = ops.either(ops.compare("==", x, math.inf), ops.compare("==", y, math.inf))
    return ops.select(is_infinite, math.inf, result)
