"""Elementary operations that the emitters of `nscan.cpu.math` are written in.

An `Arithmetic` object wraps an IR builder and one floating-point type, scalar or vector. Its methods take
IR values or Python numbers, which become (splatted) constants. No operation carries a fast-math flag.
"""

import numpy as np
from llvmlite import ir


class Arithmetic:
    """Emit operations on one floating-point type.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Builder positioned where the code has to go.
    type_ : llvmlite.ir.Type
        ``float``, ``double``, or a vector of one of them.
    fused : bool
        Whether `fma` is one fused operation, or a multiplication and an addition.
    """

    def __init__(self, builder, type_, fused):
        self.builder = builder
        self.type = type_
        self.fused = fused
        self.lanes = type_.count if isinstance(type_, ir.VectorType) else 0
        self.scalar_type = type_.element if self.lanes else type_
        if not isinstance(self.scalar_type, (ir.FloatType, ir.DoubleType)):
            raise TypeError(f"expected float, double or a vector of one of them, got {type_}")
        self.double = isinstance(self.scalar_type, ir.DoubleType)
        self.bits = 64 if self.double else 32
        self.fraction_bits = 52 if self.double else 23
        self.bias = 1023 if self.double else 127
        scalar_int_type = ir.IntType(self.bits)
        self.int_type = ir.VectorType(scalar_int_type, self.lanes) if self.lanes else scalar_int_type
        # Adding and subtracting this number rounds to an integer (to even), and after the addition
        # alone the low bits of the sum hold that integer in two's complement.
        self.shifter = 1.5 * 2.0**self.fraction_bits
        self.smallest_normal = 2.0 ** (1 - self.bias)
        self.sign_mask = 1 << (self.bits - 1)
        self.exponent_mask = (2 * self.bias + 1) << self.fraction_bits
        self.fraction_mask = (1 << self.fraction_bits) - 1

    # Constants

    def choose(self, single, double):
        """Return the first argument for float32 and the second one for float64."""
        return double if self.double else single

    def constant(self, number):
        """Return a number as a constant of the type; pass IR values through."""
        if isinstance(number, ir.Value):
            return number
        number = float(number if self.double else np.float32(number))
        return ir.Constant(self.type, [number] * self.lanes if self.lanes else number)

    def int_constant(self, number):
        """Return an integer as a constant of the integer type of the same width."""
        if isinstance(number, ir.Value):
            return number
        return ir.Constant(self.int_type, [number] * self.lanes if self.lanes else number)

    def bit_pattern(self, number):
        """Return the bits of a floating-point number as a Python integer."""
        if self.double:
            return int(np.float64(number).view(np.int64))
        return int(np.float32(number).view(np.int32))

    # Arithmetic

    def add(self, a, b):
        """Add."""
        return self.builder.fadd(self.constant(a), self.constant(b))

    def sub(self, a, b):
        """Subtract."""
        return self.builder.fsub(self.constant(a), self.constant(b))

    def mul(self, a, b):
        """Multiply."""
        return self.builder.fmul(self.constant(a), self.constant(b))

    def div(self, a, b):
        """Divide."""
        return self.builder.fdiv(self.constant(a), self.constant(b))

    def neg(self, a):
        """Flip the sign."""
        return self.builder.fneg(a)

    def fma(self, a, b, c):
        """Return ``a * b + c``, rounded once if the host has the instruction."""
        if self.fused:
            return self.intrinsic("fma", a, b, c)
        return self.add(self.mul(a, b), c)

    def abs(self, a):
        """Clear the sign."""
        return self.intrinsic("fabs", a)

    def sqrt(self, a):
        """Take the square root."""
        return self.intrinsic("sqrt", a)

    def copysign(self, magnitude, sign):
        """Combine the magnitude of one value with the sign of another."""
        return self.intrinsic("copysign", magnitude, sign)

    def intrinsic(self, name, *args):
        """Call an LLVM intrinsic whose arguments and result all have the type."""
        suffix = f"{f'v{self.lanes}' if self.lanes else ''}f{self.bits}"
        kind = ir.FunctionType(self.type, [self.type] * len(args))
        return self.builder.call(
            get_function(self.builder.module, f"llvm.{name}.{suffix}", kind), [self.constant(a) for a in args]
        )

    def nearest(self, a):
        """Round to an integer, to even in a tie, where ``abs(a) < 2**22`` (or 2**51)."""
        return self.sub(self.add(a, self.shifter), self.shifter)

    def polynomial(self, x, coefficients):
        """Evaluate a polynomial, the lowest coefficient first."""
        if len(coefficients) <= 9:
            return self.horner(x, coefficients)
        # Two independent chains: half the latency for one more multiplication.
        square = self.mul(x, x)
        even = self.horner(square, coefficients[::2])
        odd = self.horner(square, coefficients[1::2])
        return self.fma(odd, x, even)

    def horner(self, x, coefficients):
        """Evaluate a polynomial by Horner's rule."""
        value = self.constant(coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            value = self.fma(value, x, coefficient)
        return value

    # Comparison and selection

    def compare(self, operator, a, b):
        """Compare; false if an operand is NaN."""
        return self.builder.fcmp_ordered(operator, self.constant(a), self.constant(b))

    def is_unordered(self, a, b):
        """Test whether one of two values is NaN."""
        return self.builder.fcmp_unordered("uno", a, b)

    def has_sign(self, a):
        """Test whether the sign bit is set, as for -0.0 as well."""
        return self.builder.icmp_signed("<", self.to_bits(a), self.int_constant(0))

    def select(self, condition, a, b):
        """Choose between two floating-point values."""
        return self.builder.select(condition, self.constant(a), self.constant(b))

    def select_int(self, condition, a, b):
        """Choose between two integers."""
        return self.builder.select(condition, self.int_constant(a), self.int_constant(b))

    def at_least(self, a, bound):
        """Clamp from below; NaN stays."""
        return self.select(self.compare("<", a, bound), bound, a)

    def at_most(self, a, bound):
        """Clamp from above; NaN stays."""
        return self.select(self.compare(">", a, bound), bound, a)

    def both(self, a, b):
        """Combine two conditions with "and"."""
        return self.builder.and_(a, b)

    def either(self, a, b):
        """Combine two conditions with "or"."""
        return self.builder.or_(a, b)

    def any_lane(self, condition):
        """Reduce a condition to one bit that tells whether it holds in any lane."""
        if not self.lanes:
            return condition
        packed = self.builder.bitcast(condition, ir.IntType(self.lanes))
        return self.builder.icmp_unsigned("!=", packed, ir.Constant(packed.type, 0))

    # Bits

    def to_bits(self, a):
        """Reinterpret as integer."""
        return self.builder.bitcast(a, self.int_type)

    def from_bits(self, a):
        """Reinterpret an integer as floating-point number."""
        return self.builder.bitcast(a, self.type)

    def int_add(self, a, b):
        """Add integers."""
        return self.builder.add(self.int_constant(a), self.int_constant(b))

    def int_sub(self, a, b):
        """Subtract integers."""
        return self.builder.sub(self.int_constant(a), self.int_constant(b))

    def int_and(self, a, b):
        """Combine bits with "and"."""
        return self.builder.and_(self.int_constant(a), self.int_constant(b))

    def int_at_least(self, a, bound):
        """Clamp an integer from below."""
        return self.select_int(self.builder.icmp_signed("<", a, self.int_constant(bound)), bound, a)

    def int_at_most(self, a, bound):
        """Clamp an integer from above."""
        return self.select_int(self.builder.icmp_signed(">", a, self.int_constant(bound)), bound, a)

    def shift_left(self, a, count):
        """Shift to the left."""
        return self.builder.shl(a, self.int_constant(count))

    def shift_right(self, a, count):
        """Shift to the right, filling in zeros."""
        return self.builder.lshr(a, self.int_constant(count))

    def flip_sign(self, a, bits):
        """Flip the sign of `a` where the top bit of the integer `bits` is set."""
        sign = self.int_and(bits, self.sign_mask)
        return self.from_bits(self.builder.xor(self.to_bits(a), sign))

    def exponent_to_power(self, shifted):
        """Return ``2**n`` where the low bits of `shifted` (see `shifter`) hold ``n + bias``."""
        return self.from_bits(self.shift_left(self.to_bits(shifted), self.fraction_bits))

    # Double-word arithmetic: pairs (high, low) whose sum is the value. Names as in the literature
    # (Dekker 1971; Muller et al., Handbook of Floating-Point Arithmetic).

    def fast_two_sum(self, a, b):
        """Add exactly, where ``abs(a) >= abs(b)`` or a is 0."""
        high = self.add(a, b)
        return high, self.add(self.sub(a, high), b)

    def two_product(self, a, b):
        """Multiply exactly (barring overflow and underflow)."""
        a, b = self.constant(a), self.constant(b)
        if not self.fused and not self.double:
            return self._two_product_widened(a, b)
        high = self.mul(a, b)
        if self.fused:
            return high, self.fma(a, b, self.neg(high))
        (a_high, a_low), (b_high, b_low) = self._split(a), self._split(b)
        low = self.sub(self.mul(a_high, b_high), high)
        low = self.add(self.add(low, self.mul(a_high, b_low)), self.mul(a_low, b_high))
        return high, self.add(low, self.mul(a_low, b_low))

    def _split(self, a):
        """Split into two halves of 26 bits (Veltkamp)."""
        scaled = self.mul(a, 2.0**27 + 1)
        high = self.sub(scaled, self.sub(scaled, a))
        return high, self.sub(a, high)

    def _two_product_widened(self, a, b):
        """Multiply float32 exactly by way of float64, whose 53 bits hold the product."""
        wide, a, b = widen(self, a, b)
        product = wide.mul(a, b)
        high = self.builder.fptrunc(product, self.type)
        low = wide.sub(product, widen(self, high)[1])
        return high, self.builder.fptrunc(low, self.type)


def get_function(module, name, kind):
    """Return the function of that name in a module, declaring it the first time."""
    if name in module.globals:
        return module.globals[name]
    return ir.Function(module, kind, name)


def widen(ops, *values):
    """Convert float32 values to float64; return the operations on float64 and the values."""
    kind = ir.VectorType(ir.DoubleType(), ops.lanes) if ops.lanes else ir.DoubleType()
    return Arithmetic(ops.builder, kind, ops.fused), *(ops.builder.fpext(value, kind) for value in values)
