"""Emitters of the error function and its complement."""

from . import math_tables as tables
from .math_core import widen
from .math_exp import LN2_LOW, exp_of_negative, expm1_polynomial, reduce_by_ln2, scaled_power, unscale

# The variable of the polynomial for erfc is (a - ERFC_CENTRE) / (a + ERFC_CENTRE).
ERFC_CENTRE = 4.0


def erf_tail_near_zero(ops, x):
    """Return ``erf(x) - x`` for ``abs(x) <= 1``."""
    return ops.mul(x, ops.polynomial(ops.mul(x, x), ops.choose(*tables.ERF)))


def erf(ops, x):
    """Emit erf: a polynomial near 0, ``1 - exp(-polynomial)`` elsewhere."""
    # erf rounds to 1 beyond the bound.
    a = ops.at_most(ops.abs(x), ops.choose(4.0, 6.0))
    near_zero = ops.add(x, erf_tail_near_zero(ops, x))
    logarithm = ops.polynomial(ops.sub(a, 1.0), ops.choose(*tables.ERF_TAIL))
    away = ops.copysign(ops.sub(1.0, exp_of_negative(ops, logarithm)), x)
    return ops.select(ops.compare("<", a, 1.0), near_zero, away)


def erfc_tail(ops, a):
    """Return erfc(a) for ``a >= 1/2``, as ``exp(-a**2) * polynomial / (a + ERFC_CENTRE)``.

    The quotient and the square of a are had in two parts each, as their errors would add up.
    """
    sum_ = ops.add(a, ERFC_CENTRE)
    sum_low = ops.sub(a, ops.sub(sum_, ERFC_CENTRE))
    reciprocal = ops.div(1.0, sum_)
    product, product_low = ops.two_product(reciprocal, sum_)
    # Relative error of the reciprocal.
    correction = ops.sub(ops.sub(ops.sub(1.0, product), product_low), ops.mul(reciprocal, sum_low))
    variable = ops.mul(ops.sub(a, ERFC_CENTRE), reciprocal)
    variable = ops.fma(variable, correction, variable)
    numerator = ops.horner(variable, ops.choose(*tables.ERFC))
    quotient, quotient_low = ops.two_product(numerator, reciprocal)
    quotient_low = ops.fma(quotient, correction, quotient_low)
    square, square_low = ops.two_product(a, a)
    shifted, n, high = reduce_by_ln2(ops, ops.neg(square), ops.bias)
    growth = expm1_polynomial(ops, high, ops.fma(n, ops.choose(*LN2_LOW), square_low))
    value = ops.add(quotient, ops.fma(quotient, growth, quotient_low))
    is_low = ops.compare(">", a, 26.0)
    return unscale(ops, ops.mul(value, scaled_power(ops, shifted, is_low)), is_low)


def erfc_tail_widened(ops, a):
    """Return what `erfc_tail` does for float32, by way of float64.

    In float32, with the products above in two parts, the errors added up to 3.6 ulp. The division is done in
    float32 all the same, being slow, and followed by a Newton step.
    """
    wide, wide_a, reciprocal = widen(ops, a, ops.div(1.0, ops.add(a, ERFC_CENTRE)))
    error = wide.fma(wide.neg(reciprocal), wide.add(wide_a, ERFC_CENTRE), 1.0)
    reciprocal = wide.fma(reciprocal, error, reciprocal)
    variable = wide.mul(wide.sub(wide_a, ERFC_CENTRE), reciprocal)
    quotient = wide.mul(wide.horner(variable, tables.ERFC[0]), reciprocal)
    shifted, _, r = reduce_by_ln2(wide, wide.mul(wide_a, wide.neg(wide_a)), wide.bias)
    slope = wide.fma(wide.polynomial(r, tables.EXPONENTIAL[0]), r, 1.0)
    value = wide.mul(wide.fma(slope, r, 1.0), wide.exponent_to_power(shifted))
    return ops.builder.fptrunc(wide.mul(quotient, value), ops.type)


def erfc(ops, x):
    """Emit erfc."""
    # erfc is 0 beyond the bound.
    a = ops.at_most(ops.abs(x), ops.choose(11.0, 28.0))
    tail = erfc_tail(ops, a) if ops.double else erfc_tail_widened(ops, a)
    away = ops.select(ops.compare("<", x, 0.0), ops.sub(2.0, tail), tail)
    near_zero = ops.sub(ops.sub(1.0, x), erf_tail_near_zero(ops, x))
    return ops.select(ops.compare("<", ops.abs(x), 0.5), near_zero, away)
