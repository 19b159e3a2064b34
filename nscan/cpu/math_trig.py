"""Emitters of the trigonometric functions and their inverses."""

import math

from . import math_tables as tables
from .math_core import widen
from .math_libm import replace_by_libm

# pi/2 and what its rounding (float32, float64) left.
HALF_PI = (1.5707964, 1.5707963267948966)
HALF_PI_LOW = (-4.371139e-08, 6.123233995736766e-17)
# pi/2 in parts of 24 and of 53 bits, and in parts of 33 bits with a last one of 53 bits.
HALF_PI_24 = (1.5707964, -4.371139e-08, -1.7151245e-15)
HALF_PI_53 = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
HALF_PI_SHORT = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
HALF_PI_WIDE = 6.077100506506192e-11


def subtract_multiple(ops, x, n, parts):
    """Subtract n times the sum of `parts` from x, part by part."""
    for part in parts:
        x = ops.fma(n, -part, x)
    return x


def reduce_widened(ops, a, n):
    """Subtract n times pi/2 from float32 by way of float64, in two parts."""
    wide, a, n = widen(ops, a, n)
    difference = subtract_multiple(wide, a, n, (HALF_PI_SHORT[0], HALF_PI_WIDE))
    r = ops.builder.fptrunc(difference, ops.type)
    low = wide.sub(difference, widen(ops, r)[1])
    return r, ops.builder.fptrunc(low, ops.type)


def reduce_compensated(ops, a, n):
    """Subtract n times pi/2 from float32 in two parts, with fused operations."""
    exact = ops.fma(n, -HALF_PI_24[0], a)
    product, product_low = ops.two_product(n, -HALF_PI_24[1])
    # The low part is exact even if exact is smaller than product: it has far fewer bits after the point.
    r, low = ops.fast_two_sum(exact, product)
    return r, ops.fma(n, -HALF_PI_24[2], ops.add(low, product_low))


def count_quadrants(ops, a):
    """Return the integer nearest to ``a / (pi/2)``, after a number whose low bits hold it."""
    shifted = ops.fma(a, 2 / math.pi, ops.shifter)
    return shifted, ops.sub(shifted, ops.shifter)


def reduce_quadrants(ops, a):
    """Write a as ``n * pi/2 + r``; return a number whose low bits hold n, and r.

    Cody and Waite's reduction: pi/2 is subtracted in parts. A fused operation needs no spare bits in the
    parts; otherwise their products with n have to be exact.
    """
    shifted, n = count_quadrants(ops, a)
    if ops.fused:
        return shifted, subtract_multiple(ops, a, n, ops.choose(HALF_PI_24, HALF_PI_53))
    if ops.double:
        return shifted, subtract_multiple(ops, a, n, HALF_PI_SHORT)
    return shifted, reduce_widened(ops, a, n)[0]


def largest_angle(ops):
    """Return the bound of the arguments that `reduce_quadrants` is made for."""
    if ops.double:
        return 2.0**30 if ops.fused else 2.0**20
    return 2.0**17


def sine_polynomial(ops, r, square):
    """Return sin(r) for a reduced argument."""
    return ops.fma(ops.mul(r, square), ops.polynomial(square, ops.choose(*tables.SINE)), r)


def cosine_polynomial(ops, square):
    """Return cos(r) for a reduced argument."""
    curved = ops.fma(square, ops.polynomial(square, ops.choose(*tables.COSINE)), -0.5)
    return ops.fma(square, curved, 1.0)


def is_odd(ops, bits):
    """Test the lowest bit."""
    return ops.builder.icmp_unsigned("!=", ops.int_and(bits, 1), ops.int_constant(0))


def sin(ops, x):
    """Emit sin."""
    a = ops.abs(x)
    shifted, r = reduce_quadrants(ops, a)
    quadrant = ops.to_bits(shifted)
    square = ops.mul(r, r)
    sine, cosine = sine_polynomial(ops, r, square), cosine_polynomial(ops, square)
    result = ops.select(is_odd(ops, quadrant), cosine, sine)
    # Negative in the upper two quadrants.
    sign = ops.builder.xor(ops.shift_left(quadrant, ops.bits - 2), ops.to_bits(x))
    result = ops.flip_sign(result, sign)
    return replace_by_libm(ops, ops.compare(">", a, largest_angle(ops)), result, "sin", x)


def cos(ops, x):
    """Emit cos."""
    a = ops.abs(x)
    shifted, r = reduce_quadrants(ops, a)
    quadrant = ops.to_bits(shifted)
    square = ops.mul(r, r)
    sine, cosine = sine_polynomial(ops, r, square), cosine_polynomial(ops, square)
    result = ops.select(is_odd(ops, quadrant), sine, cosine)
    # Negative in the middle two quadrants.
    result = ops.flip_sign(result, ops.shift_left(ops.int_add(quadrant, 1), ops.bits - 2))
    return replace_by_libm(ops, ops.compare(">", a, largest_angle(ops)), result, "cos", x)


def tan(ops, x):
    """Emit tan."""
    a = ops.abs(x)
    low = None
    if ops.double:
        shifted, r = reduce_quadrants(ops, a)
    else:
        # Twice the relative error of r goes into the result, which is too much for float32.
        shifted, n = count_quadrants(ops, a)
        r, low = reduce_compensated(ops, a, n) if ops.fused else reduce_widened(ops, a, n)
    square = ops.mul(r, r)
    tail = ops.mul(ops.mul(r, square), ops.polynomial(square, ops.choose(*tables.TANGENT)))
    if low is not None:
        # The derivative is 1 + tan(r)**2, near enough 1 + 1.5 * r**2.
        tail = ops.add(tail, ops.fma(ops.mul(square, 1.5), low, low))
    tangent = ops.add(r, tail)
    odd = is_odd(ops, ops.to_bits(shifted))
    result = ops.div(ops.select(odd, -1.0, tangent), ops.select(odd, tangent, 1.0))
    if low is not None:
        # What rounding left of the tangent. The derivative is that of -1/t; the term is too small to matter
        # where the result is t itself.
        tangent_low = ops.add(ops.sub(r, tangent), tail)
        result = ops.fma(ops.mul(result, result), tangent_low, result)
    result = ops.flip_sign(result, ops.to_bits(x))
    return replace_by_libm(ops, ops.compare(">", a, largest_angle(ops)), result, "tan", x)


def add_to_base(ops, base, base_low, leading, tail):
    """Return the sum of four terms, base being 0 or larger than the leading term, and the others small."""
    high, low = ops.fast_two_sum(base, leading)
    return ops.add(high, ops.add(ops.add(low, base_low), tail))


def half_angle_parts(ops, a):
    """Prepare asin(a): return whether a > 1/2, and the argument and its square for the polynomial.

    Where a > 1/2, the argument is ``sqrt((1 - a) / 2)``, of which ``asin(a) = pi/2 - 2*asin(argument)``.
    """
    is_large = ops.compare(">", a, 0.5)
    square = ops.select(is_large, ops.fma(a, -0.5, 0.5), ops.mul(a, a))
    return is_large, ops.select(is_large, ops.sqrt(square), a), square


def arcsine_tail(ops, argument, square):
    """Return ``asin(argument) - argument``."""
    return ops.mul(ops.mul(argument, square), ops.polynomial(square, ops.choose(*tables.ARCSINE)))


def asin(ops, x):
    """Emit asin."""
    is_large, argument, square = half_angle_parts(ops, ops.abs(x))
    argument = ops.mul(argument, ops.select(is_large, -2.0, 1.0))
    base = ops.select(is_large, ops.choose(*HALF_PI), 0.0)
    base_low = ops.select(is_large, ops.choose(*HALF_PI_LOW), 0.0)
    tail = arcsine_tail(ops, argument, square)
    return ops.copysign(add_to_base(ops, base, base_low, argument, tail), x)


def acos(ops, x):
    """Emit acos."""
    is_large, argument, square = half_angle_parts(ops, ops.abs(x))
    # -x where abs(x) <= 1/2, else twice the root with the sign of x.
    argument = ops.select(is_large, ops.copysign(ops.add(argument, argument), x), ops.neg(x))
    is_negative = ops.compare("<", x, 0.0)
    high, low = ops.choose(*HALF_PI), ops.choose(*HALF_PI_LOW)
    base = ops.select(is_large, ops.select(is_negative, 2 * high, 0.0), high)
    base_low = ops.select(is_large, ops.select(is_negative, 2 * low, 0.0), low)
    return add_to_base(ops, base, base_low, argument, arcsine_tail(ops, argument, square))


def arctangent_tail(ops, u):
    """Return ``atan(u) - u`` for ``abs(u) <= 1``."""
    square = ops.mul(u, u)
    return ops.mul(ops.mul(u, square), ops.polynomial(square, ops.choose(*tables.ARCTANGENT)))


def atan(ops, x):
    """Emit atan."""
    a = ops.abs(x)
    is_large = ops.compare(">", a, 1.0)
    u = ops.div(ops.select(is_large, -1.0, a), ops.select(is_large, a, 1.0))
    base = ops.select(is_large, ops.choose(*HALF_PI), 0.0)
    base_low = ops.select(is_large, ops.choose(*HALF_PI_LOW), 0.0)
    return ops.copysign(add_to_base(ops, base, base_low, u, arctangent_tail(ops, u)), x)


def atan2(ops, y, x):
    """Emit atan2."""
    a, b = ops.abs(y), ops.abs(x)
    is_steep = ops.compare(">", a, b)
    numerator, denominator = ops.select(is_steep, b, a), ops.select(is_steep, a, b)
    u = ops.div(numerator, denominator)
    # 0/0 and infinity/infinity.
    u = ops.select(ops.compare("==", denominator, 0.0), 0.0, u)
    u = ops.select(ops.compare("==", numerator, math.inf), 1.0, u)
    is_left = ops.has_sign(x)
    high, low = ops.choose(*HALF_PI), ops.choose(*HALF_PI_LOW)
    base = ops.select(is_steep, high, ops.select(is_left, 2 * high, 0.0))
    base_low = ops.select(is_steep, low, ops.select(is_left, 2 * low, 0.0))
    # To be subtracted where exactly one of the two conditions holds.
    u = ops.select(ops.builder.xor(is_steep, is_left), ops.neg(u), u)
    result = ops.copysign(add_to_base(ops, base, base_low, u, arctangent_tail(ops, u)), y)
    return ops.select(ops.is_unordered(x, y), ops.add(x, y), result)
