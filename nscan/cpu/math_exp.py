"""Emitters of the exponential and of the functions made of it."""

import math

from . import math_tables as tables

LOG2_E = 1 / math.log(2)
# ln(2) in two parts, the first one short enough that its product with any exponent is exact
# (Cody and Waite 1980): 16 and 24 bits for float32, 42 and 53 bits for float64.
LN2_HIGH = (0.693145751953125, 0.6931471805598903)
LN2_LOW = (1.4286067653e-06, 5.497923018708371e-14)
# Bounds (float32, float64) of the argument of exp: above the first one the result is infinite, below the
# second one it may be subnormal, and below the third one it is 0.
EXP_LARGEST = (88.72283172607422, 709.782712893384)
EXP_NORMAL = (-87.0, -708.0)
EXP_ZERO = (-104.0, -746.0)
# A bound from which on sinh and cosh are infinite, and which is no larger than need be.
SINH_INFINITE = (89.5, 710.5)
# Subnormal results are computed larger by this power of two and brought down by a multiplication.
SUBNORMAL_SHIFT = (64, 128)


def reduce_by_ln2(ops, x, bias=0):
    """Write x as ``n * ln(2) + high - n * low``.

    Returns
    -------
    shifted : llvmlite.ir.Value
        Number whose low bits hold ``n + bias``.
    n : llvmlite.ir.Value
        Integer nearest to ``x / ln(2)``.
    high : llvmlite.ir.Value
        The exact ``x - n * LN2_HIGH``.
    """
    shifter = ops.shifter + bias
    shifted = ops.fma(x, LOG2_E, shifter)
    n = ops.sub(shifted, shifter)
    return shifted, n, ops.fma(n, -ops.choose(*LN2_HIGH), x)


def exponential_polynomial(ops, r):
    """Return exp(r) for a reduced argument."""
    slope = ops.fma(ops.polynomial(r, ops.choose(*tables.EXPONENTIAL)), r, 1.0)
    return ops.fma(slope, r, 1.0)


def scale_by_power(ops, value, shifted, is_low):
    """Multiply a value near 1 by the power of two whose exponent `shifted` holds.

    Where `is_low` the result may be subnormal. Anywhere else it has to be normal: overflow and NaN are left
    to the caller.
    """
    shift = ops.choose(*SUBNORMAL_SHIFT)
    bits = ops.int_add(ops.to_bits(value), ops.shift_left(ops.to_bits(shifted), ops.fraction_bits))
    bits = ops.select_int(is_low, ops.int_add(bits, shift << ops.fraction_bits), bits)
    scaled = ops.from_bits(bits)
    return ops.select(is_low, ops.mul(scaled, 2.0**-shift), scaled)


def exp(ops, x):
    """Emit exp."""
    clamped = ops.at_least(x, ops.choose(*EXP_ZERO))
    shifted, n, high = reduce_by_ln2(ops, clamped)
    r = ops.fma(n, -ops.choose(*LN2_LOW), high)
    is_low = ops.compare("<", x, ops.choose(*EXP_NORMAL))
    result = scale_by_power(ops, exponential_polynomial(ops, r), shifted, is_low)
    # The product is infinite for large x, and NaN for NaN.
    large = ops.mul(x, 2.0**ops.bias)
    return ops.select(ops.compare("<=", x, ops.choose(*EXP_LARGEST)), result, large)


def exp2_polynomial(ops, r):
    """Return ``2**r`` for ``abs(r) <= 1/2``."""
    return ops.fma(ops.polynomial(r, ops.choose(*tables.EXP2)), r, 1.0)


def exp2(ops, x):
    """Emit exp2."""
    clamped = ops.at_least(x, ops.choose(-151.0, -1076.0))
    shifted = ops.add(clamped, ops.shifter)
    r = ops.sub(clamped, ops.sub(shifted, ops.shifter))
    is_low = ops.compare("<", x, ops.choose(-125.0, -1021.0))
    result = scale_by_power(ops, exp2_polynomial(ops, r), shifted, is_low)
    large = ops.mul(x, 2.0**ops.bias)
    return ops.select(ops.compare("<", x, ops.bias + 1.0), result, large)


def scaled_power(ops, shifted, is_low):
    """Return the power of two for a result that may be subnormal, larger by `SUBNORMAL_SHIFT` if it is.

    Of `shifted` (see `reduce_by_ln2`) the low bits hold the biased exponent.
    """
    shift = ops.choose(*SUBNORMAL_SHIFT) << ops.fraction_bits
    bits = ops.shift_left(ops.to_bits(shifted), ops.fraction_bits)
    return ops.from_bits(ops.select_int(is_low, ops.int_add(bits, shift), bits))


def unscale(ops, value, is_low):
    """Take back what `scaled_power` scaled."""
    return ops.select(is_low, ops.mul(value, 2.0 ** -ops.choose(*SUBNORMAL_SHIFT)), value)


def exp_of_negative(ops, a):
    """Return exp(-a) for a >= 0, infinity and NaN included."""
    x = ops.at_least(ops.neg(a), ops.choose(*EXP_ZERO))
    shifted, n, high = reduce_by_ln2(ops, x, ops.bias)
    value = exponential_polynomial(ops, ops.fma(n, -ops.choose(*LN2_LOW), high))
    is_low = ops.compare("<", x, ops.choose(*EXP_NORMAL))
    return unscale(ops, ops.mul(value, scaled_power(ops, shifted, is_low)), is_low)


def expm1_polynomial(ops, high, low):
    """Return expm1 of the reduced argument ``high - low``."""
    r = ops.sub(high, low)
    square = ops.mul(r, r)
    # The rounding error of r would count in full, thus r enters here by its two parts.
    curved = ops.fma(square, ops.polynomial(r, ops.choose(*tables.EXPONENTIAL)), ops.neg(low))
    return ops.add(high, curved)


def scaled_expm1(ops, n, high):
    """Return expm1 of the argument that `reduce_by_ln2` reduced."""
    return expm1_polynomial(ops, high, ops.mul(n, ops.choose(*LN2_LOW)))


def expm1(ops, x):
    """Emit expm1."""
    clamped = ops.at_most(ops.at_least(x, ops.choose(-18.0, -39.0)), ops.choose(89.0, 710.0))
    # Half the power of two, which otherwise would overflow before the result does.
    shifted, n, high = reduce_by_ln2(ops, clamped, ops.bias - 1)
    half_power = ops.exponent_to_power(shifted)
    half = ops.fma(half_power, scaled_expm1(ops, n, high), ops.sub(half_power, 0.5))
    # Signed zero, and subnormal numbers, whose half is not exact.
    is_tiny = ops.compare("<", ops.abs(x), ops.choose(2.0**-26, 2.0**-55))
    return ops.select(is_tiny, x, ops.add(half, half))


def sigmoid(ops, x):
    """Emit ``1 / (1 + exp(-x))``."""
    # 1 + exp(-x) is 1 at the lower bound of -x, and its reciprocal 0 at the upper one.
    negative = ops.at_least(ops.neg(x), ops.choose(-20.0, -40.0))
    negative = ops.at_most(negative, -ops.choose(*EXP_ZERO))
    shifted, n, high = reduce_by_ln2(ops, negative, ops.bias)
    # Where the result is subnormal, the denominator is scaled down; that the 1 in it is not does not matter.
    is_low = ops.compare(">", negative, -ops.choose(*EXP_NORMAL))
    shift = ops.choose(*SUBNORMAL_SHIFT) << ops.fraction_bits
    bits = ops.shift_left(ops.to_bits(shifted), ops.fraction_bits)
    power = ops.from_bits(ops.select_int(is_low, ops.int_sub(bits, shift), bits))
    # The low part is 0 unless the power is so large that the 1 gets lost.
    base = ops.add(power, 1.0)
    base_low = ops.add(ops.sub(power, base), 1.0)
    denominator = ops.add(base, ops.fma(power, scaled_expm1(ops, n, high), base_low))
    return unscale(ops, ops.div(1.0, denominator), is_low)


def tanh(ops, x):
    """Emit tanh: a polynomial near 0, ``1 - 2 / (exp(2*abs(x)) + 1)`` elsewhere."""
    # 1 - tanh(x) is below half an ulp beyond the bound.
    a = ops.at_most(ops.abs(x), ops.choose(9.5, 20.0))
    square = ops.mul(a, a)
    near_zero = ops.fma(ops.mul(a, square), ops.polynomial(square, ops.choose(*tables.TANH)), a)
    shifted, n, high = reduce_by_ln2(ops, ops.add(a, a), ops.bias)
    power = ops.exponent_to_power(shifted)
    denominator = ops.fma(power, scaled_expm1(ops, n, high), ops.add(power, 1.0))
    away = ops.sub(1.0, ops.div(2.0, denominator))
    return ops.copysign(ops.select(ops.compare("<", a, 0.625), near_zero, away), x)


def hyperbolic_parts(ops, a):
    """Prepare sinh(a) and cosh(a) for a >= 0.

    With ``a = n*ln(2) + r`` they are sums of products of sinh(r) and cosh(r) with the sum and the difference
    of ``growth = 2**n / 4`` and ``decay = 2**-n / 4``, for half of the result, lest it overflow.

    Returns
    -------
    growth, decay : llvmlite.ir.Value
        The powers of two.
    high : llvmlite.ir.Value
        Leading part of r.
    sine_tail, cosine_tail : llvmlite.ir.Value
        ``sinh(r) - high`` and ``cosh(r) - 1``.
    """
    shifted, n, high = reduce_by_ln2(ops, a, ops.bias - 2)
    growth_bits = ops.shift_left(ops.to_bits(shifted), ops.fraction_bits)
    decay_bits = ops.int_sub((2 * ops.bias - 4) << ops.fraction_bits, growth_bits)
    growth, decay = ops.from_bits(growth_bits), ops.from_bits(ops.int_at_least(decay_bits, 0))
    low = ops.mul(n, ops.choose(*LN2_LOW))
    r = ops.sub(high, low)
    square = ops.mul(r, r)
    sine_tail = ops.fma(ops.mul(r, square), ops.polynomial(square, ops.choose(*tables.SINH)), ops.neg(low))
    cosine_tail = ops.mul(square, ops.polynomial(square, ops.choose(*tables.COSH)))
    return growth, decay, high, sine_tail, cosine_tail


def sinh(ops, x):
    """Emit sinh."""
    a = ops.abs(x)
    bounded = ops.at_most(a, ops.choose(*SINH_INFINITE))
    growth, decay, high, sine_tail, cosine_tail = hyperbolic_parts(ops, bounded)
    total, difference = ops.add(growth, decay), ops.sub(growth, decay)
    half = ops.fma(sine_tail, total, ops.mul(cosine_tail, difference))
    half = ops.add(ops.fma(high, total, half), difference)
    # Half of a subnormal number is not exact.
    is_tiny = ops.compare("<", a, ops.choose(2.0**-26, 2.0**-55))
    return ops.copysign(ops.select(is_tiny, a, ops.add(half, half)), x)


def cosh(ops, x):
    """Emit cosh."""
    a = ops.at_most(ops.abs(x), ops.choose(*SINH_INFINITE))
    growth, decay, high, sine_tail, cosine_tail = hyperbolic_parts(ops, a)
    total, difference = ops.add(growth, decay), ops.sub(growth, decay)
    half = ops.fma(sine_tail, difference, ops.fma(cosine_tail, total, decay))
    half = ops.add(ops.fma(high, difference, half), growth)
    return ops.add(half, half)
