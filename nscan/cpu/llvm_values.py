"""What the LLVM printer prints with: types, and operands that are the same in all lanes or differ between them."""

from llvmlite import ir

I64, I32, I8, I1 = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.IntType(1)
FLOATS = {"f4": ir.FloatType(), "f8": ir.DoubleType()}


def scalar_type(dtype):
    """LLVM type of a component in registers."""
    if dtype in FLOATS:
        return FLOATS[dtype]
    return I1 if dtype == "b1" else ir.IntType(8 * int(dtype[1:]))


def memory_type(dtype):
    """LLVM type of a component in memory."""
    return I8 if dtype == "b1" else scalar_type(dtype)


def size_of(dtype):
    """Bytes of a component."""
    return int(dtype[1:])


def type_name(kind):
    """Write a type as LLVM writes it in names of intrinsics."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{type_name(kind.element)}"
    if isinstance(kind, ir.DoubleType):
        return "f64"
    if isinstance(kind, ir.FloatType):
        return "f32"
    return f"i{kind.width}"


def fold_int(b, op, x, y):
    """Arithmetic of steps; constants stay constants."""
    if isinstance(x, ir.Constant) and isinstance(y, ir.Constant):
        value = {"add": x.constant + y.constant, "sub": x.constant - y.constant, "mul": x.constant * y.constant}[op]
        return ir.Constant(I64, value)
    return {"add": b.add, "sub": b.sub, "mul": b.mul}[op](x, y)


class Affine:
    """An int64 that differs between lanes by a fixed step: base + lane * step."""

    __slots__ = ("base", "step")

    def __init__(self, base, step):
        self.base, self.step = base, step


class Values:
    """Values of a program by number, and the lanes that run side by side where one is printed.

    Parameters
    ----------
    builder : ir.IRBuilder
    dtypes : dict
        Number of a value to its dtype.
    """

    def __init__(self, builder, dtypes):
        self.b, self.module = builder, builder.module
        self.dtypes = dtypes
        self.values = {}
        self.lanes = 0
        self.mask = None
        self.full = None

    def get(self, operand):
        """Value of an operand."""
        if isinstance(operand, list):
            _, dtype, value = operand
            if dtype in FLOATS:
                return ir.Constant(FLOATS[dtype], float(value))
            return ir.Constant(scalar_type(dtype), int(value))
        return self.values[operand]

    def is_vector(self, x):
        """Whether a value differs between lanes."""
        return isinstance(x, Affine) or isinstance(x.type, ir.VectorType)

    def vector(self, x):
        """A value as a vector."""
        if isinstance(x, Affine):
            lanes = ir.Constant(ir.VectorType(I64, self.lanes), list(range(self.lanes)))
            return self.b.add(self.splat(x.base), self.b.mul(self.splat(x.step), lanes))
        return x if isinstance(x.type, ir.VectorType) else self.splat(x)

    def splat(self, x):
        """Repeat a scalar in every lane."""
        kind = ir.VectorType(x.type, self.lanes)
        if isinstance(x, ir.Constant) and not isinstance(x.constant, str):
            return ir.Constant(kind, [x.constant] * self.lanes)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), x, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)

    def type_of(self, dtype, vector):
        """LLVM type of a value."""
        kind = scalar_type(dtype)
        return ir.VectorType(kind, self.lanes) if vector else kind

    def intrinsic(self, name, v):
        """Call an LLVM intrinsic that is overloaded on its argument type."""
        return self.call_intrinsic(f"{name}.{type_name(v[0].type)}", v[0].type, v)

    def call_intrinsic(self, name, result, v):
        """Call an LLVM intrinsic by its full name."""
        found = self.module.globals.get(name)
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(result, [x.type for x in v]), name)
        return self.b.call(found, v)

    def choose(self, condition, kind, then, other):
        """Branch between two ways to compute a value."""
        b = self.b
        with b.if_else(condition, likely=True) as (yes, no):
            with yes:
                first = then()
                first_block = b.block
            with no:
                second = other()
                second_block = b.block
        if kind is None:
            return None
        out = b.phi(kind)
        out.add_incoming(first, first_block)
        out.add_incoming(second, second_block)
        return out

    def in_lane(self, x, lane):
        """The int64 of one lane of a value."""
        b = self.b
        if isinstance(x, Affine):
            return b.add(x.base, b.mul(x.step, lane))
        x = b.extract_element(x, lane) if isinstance(x.type, ir.VectorType) else x
        return b.sext(x, I64) if x.type.width < 64 else x
