"""The LLVM printer: a loop program becomes one function of an LLVM module.

Loops with lanes are printed as vector code: a value that differs between lanes is an LLVM vector, an address
that grows by a fixed step from lane to lane stays a scalar with that step, so that a load becomes a vector
load where the step is the size of an element. The step of caller's arrays is known only at run time; such
loads test it. Lanes beyond the end of a loop are masked. Nothing carries fast-math flags.

Pointers are typed where llvmlite 0.44 wants them typed; newer ones print them all as ``ptr``.

The only file that touches ``numba.core``: `kernel_body` is called while Numba compiles a kernel file.
"""

import collections
import json

from llvmlite import ir

from nscan.cpu import math as functions
from nscan.plan.dead import bodies

I64, I32, I8, I1 = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.IntType(1)
FLOATS = {"f4": ir.FloatType(), "f8": ir.DoubleType()}
PAIR = ir.LiteralStructType([ir.DoubleType()] * 2)
TWICE = 400


def scalar_type(dtype):
    """LLVM type of a component in registers."""
    if dtype in FLOATS:
        return FLOATS[dtype]
    return I1 if dtype == "b1" else ir.IntType(8 * int(dtype[1:]))


MOST_IN_PLACE = 32  # of one mathematical function; 600 scalar tanh in place take 4 s to compile


class Affine:
    """An int64 that differs between lanes by a fixed step: base + lane * step."""

    __slots__ = ("base", "step")

    def __init__(self, base, step):
        self.base, self.step = base, step


def count_statements(statements):
    """Number of statements, inner ones included."""
    return len(statements) + sum(count_statements(inner) for s in statements for inner in bodies(s))


def operations(statements):
    """Names of the operations of statements, inner ones included."""
    for s in statements:
        if s[0] == "let":
            yield s[2]
        for inner in bodies(s):
            yield from operations(inner)


class Printer:
    """Prints statements with an LLVM builder.

    Parameters
    ----------
    builder : ir.IRBuilder
    arguments : tuple
        status, step0, step1, lane0, lane1, part, block.
    features : collection of str
        What the host can do: ``fma`` makes fused multiply-adds one instruction.
    uses : collections.Counter
        How often an operation stands in the program.
    """

    def __init__(self, builder, arguments, features, uses):
        self.b = builder
        self.uses = uses
        self.status, self.args, self.block = arguments[0], arguments[1:-1], arguments[-1]
        self.fma = "fma" in features
        self.values = {}
        self.lanes = 0
        self.mask = None
        self.full = None
        self.module = builder.module

    # ------------------------------------------------------------------------------------------ operands
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

    def vector(self, x, type_):
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

    # ---------------------------------------------------------------------------------------- statements
    def print(self, statements):
        """Print statements one after another."""
        for s in statements:
            getattr(self, f"print_{s[0]}")(*s[1:])

    def print_let(self, v, op, dtype, args):
        """Print a pure operation."""
        self.values[v] = self.operate(op, dtype, args)

    def operate(self, op, dtype, args):
        """Apply an operation to operands."""
        if op == "param":
            return self.b.load(self.b.gep(self.block, [self.get(args[0])], source_etype=I64), typ=I64)
        if op == "arg":
            return self.args[args[0][2]]
        if op == "healthy":
            code = self.b.load(self.status, typ=I64)
            return self.b.icmp_signed("==", code, ir.Constant(I64, 0))
        values = [self.get(a) for a in args]
        if op == "round_down":
            x, width = values
            return x.base if isinstance(x, Affine) else self.b.and_(x, ir.Constant(I64, -width.constant))
        if any(self.is_vector(x) for x in values):
            if dtype == "i8" and op in ("add", "sub", "mul"):
                found = self.affine(op, *values)
                if found is not None:
                    return found
            values = [self.vector(x, None) for x in values]
        kinds = [a[1] if isinstance(a, list) else None for a in args]
        return self.apply(op, dtype, values, args, kinds)

    def function(self, op, values):
        """Apply a mathematical function: in place, or by a call where the program has so many that code would swell."""
        if self.uses[op] <= MOST_IN_PLACE:
            return functions.emit(self.b, op, *values, fma=self.fma)
        kind = values[0].type
        name = f"nscan.{op}.{type_name(kind)}"
        found = self.module.globals.get(name)
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(kind, [kind] * len(values)), name)
            found.linkage = "internal"
            found.attributes.add("noinline")
            inner = ir.IRBuilder(found.append_basic_block("entry"))
            inner.ret(functions.emit(inner, op, *found.args, fma=self.fma))
        return self.b.call(found, values)

    def affine(self, op, x, y):
        """Keep int64 arithmetic on addresses scalar: sums, and products with what all lanes share."""
        for v in (x, y):
            if not isinstance(v, Affine) and self.is_vector(v):
                return None
        b, zero = self.b, ir.Constant(I64, 0)
        base = lambda v: v.base if isinstance(v, Affine) else v  # noqa: E731
        step = lambda v: v.step if isinstance(v, Affine) else zero  # noqa: E731
        if op == "mul":
            if isinstance(x, Affine) and isinstance(y, Affine):
                return None
            a, k = (x, y) if isinstance(x, Affine) else (y, x)
            return Affine(b.mul(a.base, k), fold_int(b, "mul", a.step, k))
        combine = b.add if op == "add" else b.sub
        return Affine(combine(base(x), base(y)), fold_int(b, op, step(x), step(y)))

    def apply(self, op, dtype, values, args, kinds):
        """Apply an operation to scalars, or to vectors of equal lanes."""
        x = values[0]
        element = x.type.element if isinstance(x.type, ir.VectorType) else x.type
        is_float = isinstance(element, (ir.FloatType, ir.DoubleType))
        if op in functions.FUNCTIONS or op in functions.LIBM:
            return self.function(op, values)
        if op == "cast":
            return self.cast(x, self.dtypes[args[0]] if not isinstance(args[0], list) else kinds[0], dtype)
        if op in ("lt", "le", "gt", "ge", "eq", "ne"):
            return self.compare(op, values, is_float, args, kinds)
        if op in ("int_div", "int_rem", "shr", "int_power", "int_gcd", "int_lcm", "min", "max"):
            return self.signed(op, dtype, values, is_float)
        if op in INTRINSICS:
            return self.intrinsic(INTRINSICS[op], values)
        return getattr(self, f"op_{op}")(values, is_float)

    # ------------------------------------------------------------------------------------------ operations
    def op_add(self, v, is_float):
        """Sum."""
        return self.b.fadd(*v) if is_float else self.b.add(*v)

    def op_sub(self, v, is_float):
        """Difference."""
        return self.b.fsub(*v) if is_float else self.b.sub(*v)

    def op_mul(self, v, is_float):
        """Product."""
        return self.b.fmul(*v) if is_float else self.b.mul(*v)

    def op_div(self, v, is_float):
        """Quotient of floats."""
        return self.b.fdiv(*v)

    def op_neg(self, v, is_float):
        """Opposite."""
        return self.b.fneg(v[0]) if is_float else self.b.neg(v[0])

    def op_not(self, v, is_float):
        """Bitwise not."""
        return self.b.not_(v[0])

    def op_and(self, v, is_float):
        """Bitwise and."""
        return self.b.and_(*v)

    def op_or(self, v, is_float):
        """Bitwise or."""
        return self.b.or_(*v)

    def op_xor(self, v, is_float):
        """Bitwise exclusive or."""
        return self.b.xor(*v)

    def op_shl(self, v, is_float):
        """Shift to the left."""
        return self.b.shl(*v)

    def op_select(self, v, is_float):
        """Choose."""
        return self.b.select(*v)

    def op_fma(self, v, is_float):
        """Fused multiply-add where the host has it."""
        if self.fma:
            return self.intrinsic("llvm.fma", v)
        return self.b.fadd(self.b.fmul(v[0], v[1]), v[2])

    def op_abs(self, v, is_float):
        """Absolute value."""
        if is_float:
            return self.intrinsic("llvm.fabs", v[:1])
        zero = ir.Constant(v[0].type, 0 if not isinstance(v[0].type, ir.VectorType) else [0] * v[0].type.count)
        return self.b.select(self.b.icmp_signed("<", v[0], zero), self.b.neg(v[0]), v[0])

    def op_bit_count(self, v, is_float):
        """Number of ones."""
        count = self.intrinsic("llvm.ctpop", v[:1])
        to = ir.VectorType(I8, count.type.count) if isinstance(count.type, ir.VectorType) else I8
        return count if count.type == to else self.b.trunc(count, to)

    def op_bits(self, v, is_float):
        """Number of binary digits of an int64."""
        flag = ir.Constant(I1, 0)
        zeros = self.call_intrinsic(f"llvm.ctlz.{type_name(v[0].type)}", v[0].type, [v[0], flag])
        return self.b.sub(ir.Constant(I64, 64), zeros)

    def op_signbit(self, v, is_float):
        """Whether the sign bit is set."""
        if not is_float:
            return self.b.icmp_signed("<", v[0], ir.Constant(v[0].type, 0))
        element = v[0].type.element if isinstance(v[0].type, ir.VectorType) else v[0].type
        bits = I64 if isinstance(element, ir.DoubleType) else I32
        kind = ir.VectorType(bits, v[0].type.count) if isinstance(v[0].type, ir.VectorType) else bits
        zero = ir.Constant(kind, [0] * kind.count) if isinstance(kind, ir.VectorType) else ir.Constant(kind, 0)
        return self.b.icmp_signed("<", self.b.bitcast(v[0], kind), zero)

    def op_libcall(self, v, is_float):
        """A double function by address, lane by lane."""
        return self.call_lanes(v, ir.DoubleType(), lambda out: out)

    def op_complex_call_re(self, v, is_float):
        """Real part of a function of complex numbers by address, lane by lane."""
        return self.call_lanes(v, PAIR, lambda out: self.b.extract_value(out, 0))

    def op_complex_call_im(self, v, is_float):
        """Imaginary part of the same."""
        return self.call_lanes(v, PAIR, lambda out: self.b.extract_value(out, 1))

    def call_lanes(self, v, result, change):
        """Call a function of doubles by address, for each lane."""
        address, args = v[0], v[1:]
        if isinstance(address.type, ir.VectorType):
            address = self.b.extract_element(address, ir.Constant(I32, 0))
        pointer = self.b.inttoptr(address, ir.FunctionType(result, [ir.DoubleType()] * len(args)).as_pointer())
        call = lambda parts: change(self.b.call(pointer, parts))  # noqa: E731
        return self.by_lane(args, call) if isinstance(args[0].type, ir.VectorType) else call(args)

    def by_lane(self, args, function):
        """Apply a scalar function to each lane."""
        out = None
        for k in range(args[0].type.count):
            index = ir.Constant(I32, k)
            part = function([self.b.extract_element(a, index) for a in args])
            if out is None:
                out = ir.Constant(ir.VectorType(part.type, args[0].type.count), ir.Undefined)
            out = self.b.insert_element(out, part, index)
        return out

    def signed(self, op, dtype, v, is_float):
        """Operations that depend on the sign of the type."""
        b, unsigned = self.b, dtype[0] in "ub"
        if op == "int_div":
            return (b.udiv if unsigned else b.sdiv)(*v)
        if op == "int_rem":
            return (b.urem if unsigned else b.srem)(*v)
        if op == "shr":
            return (b.lshr if unsigned else b.ashr)(*v)
        if op in ("min", "max"):
            return self.extremum(op, v, is_float, unsigned)
        helper = integer_helper(self.module, op, v[-1].type.element if isinstance(v[-1].type, ir.VectorType) else v[-1].type, unsigned)
        if isinstance(v[0].type, ir.VectorType):
            return self.by_lane(v, lambda parts: b.call(helper, parts))
        return b.call(helper, v)

    def extremum(self, op, v, is_float, unsigned):
        """Maximum or minimum by NumPy's rule: NaN wins, ties give the first."""
        sign = ">=" if op == "max" else "<="
        if is_float:
            first = self.b.or_(self.b.fcmp_ordered(sign, *v), self.b.fcmp_unordered("uno", v[0], v[0]))
        else:
            first = (self.b.icmp_unsigned if unsigned else self.b.icmp_signed)(sign, *v)
        return self.b.select(first, *v)

    def compare(self, op, v, is_float, args, kinds):
        """Comparison."""
        sign = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}[op]
        if is_float:
            return self.b.fcmp_unordered(sign, *v) if op == "ne" else self.b.fcmp_ordered(sign, *v)
        dtype = kinds[0] or self.dtypes[args[0]]
        return (self.b.icmp_unsigned if dtype[0] in "ub" else self.b.icmp_signed)(sign, *v)

    def cast(self, x, old, new):
        """Cast between component types, as C does."""
        b = self.b
        kind = self.type_of(new, isinstance(x.type, ir.VectorType))
        if new == "b1":
            zero = ir.Constant(x.type, [0] * x.type.count if isinstance(x.type, ir.VectorType) else 0)
            return b.fcmp_unordered("!=", x, zero) if old in FLOATS else b.icmp_signed("!=", x, zero)
        if old in FLOATS and new in FLOATS:
            return b.fpext(x, kind) if new == "f8" else b.fptrunc(x, kind)
        if old in FLOATS:
            return b.fptoui(x, kind) if new[0] == "u" else b.fptosi(x, kind)
        if new in FLOATS:
            return b.uitofp(x, kind) if old[0] in "ub" else b.sitofp(x, kind)
        before, after = 1 if old == "b1" else int(old[1:]) * 8, int(new[1:]) * 8
        if before == after:
            return x
        if after < before:
            return b.trunc(x, kind)
        return b.zext(x, kind) if old[0] in "ub" else b.sext(x, kind)

    def intrinsic(self, name, v):
        """Call an LLVM intrinsic that is overloaded on its argument type."""
        return self.call_intrinsic(f"{name}.{type_name(v[0].type)}", v[0].type, v)

    def call_intrinsic(self, name, result, v):
        """Call an LLVM intrinsic by its full name."""
        found = self.module.globals.get(name)
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(result, [x.type for x in v]), name)
        return self.b.call(found, v)

    # ------------------------------------------------------------------------------------- loads and stores
    def print_load(self, v, dtype, slot, address):
        """Load a value from memory."""
        at = self.get(address)
        if isinstance(at, Affine):
            out = self.load_lanes(dtype, at)
        elif self.is_vector(at):
            out = self.gather(dtype, at)
        else:
            out = self.b.load(self.pointer(at, dtype), typ=memory_type(dtype), align=size_of(dtype))
        self.values[v] = self.from_memory(out, dtype)

    def pointer(self, address, dtype):
        """Pointer from a byte address."""
        return self.b.inttoptr(address, memory_type(dtype).as_pointer())

    def from_memory(self, x, dtype):
        """Bools are bytes in memory."""
        if dtype != "b1":
            return x
        zero = ir.Constant(x.type, [0] * x.type.count if isinstance(x.type, ir.VectorType) else 0)
        return self.b.icmp_unsigned("!=", x, zero)

    def to_memory(self, x, dtype):
        """Bools are bytes in memory."""
        if dtype != "b1":
            return x
        return self.b.zext(x, ir.VectorType(I8, x.type.count) if isinstance(x.type, ir.VectorType) else I8)

    def load_lanes(self, dtype, at):
        """Load lanes at a fixed distance: a vector load where the distance is the size of an element."""
        kind = ir.VectorType(memory_type(dtype), self.lanes)
        size = size_of(dtype)
        if isinstance(at.step, ir.Constant):
            if at.step.constant == size:
                return self.load_run(kind, at.base, size)
            if at.step.constant == 0:
                one = self.b.load(self.pointer(at.base, dtype), typ=memory_type(dtype), align=size)
                return self.splat(one)
            return self.gather(dtype, at)
        unit = self.b.icmp_signed("==", at.step, ir.Constant(I64, size))
        return self.choose(unit, kind, lambda: self.load_run(kind, at.base, size), lambda: self.gather(dtype, at))

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

    def load_run(self, kind, base, size):
        """Load lanes that lie side by side; those beyond the end of the loop are not touched."""
        def plain():
            return self.b.load(self.b.inttoptr(base, kind.as_pointer()), typ=kind, align=size)

        def masked():
            name = f"llvm.masked.load.{type_name(kind)}.p0"
            found = self.module.globals.get(name)
            if found is None:
                found = ir.Function(self.module, ir.FunctionType(kind, [kind.as_pointer(), I32, self.mask.type, kind]), name)
            zero = ir.Constant(kind, [0] * kind.count)
            pointer = self.b.inttoptr(base, kind.as_pointer())
            return self.b.call(found, [pointer, ir.Constant(I32, size), self.mask, zero])
        return self.by_mask(kind, plain, masked)

    def by_mask(self, kind, plain, masked):
        """Use the plain form where every lane is inside the loop."""
        if self.full is True:
            return plain()
        if self.full is False:
            return masked()
        return self.choose(self.full, kind, plain, masked)

    def gather(self, dtype, at):
        """Load lanes from addresses of their own."""
        kind = ir.VectorType(memory_type(dtype), self.lanes)
        addresses = self.vector(at, None)
        pointers = self.b.inttoptr(addresses, ir.VectorType(kind.element.as_pointer(), self.lanes))
        name = f"llvm.masked.gather.{type_name(kind)}.v{self.lanes}p0"
        found = self.module.globals.get(name)
        mask = self.mask
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(kind, [pointers.type, I32, mask.type, kind]), name)
        return self.b.call(found, [pointers, ir.Constant(I32, size_of(dtype)), mask, ir.Constant(kind, [0] * kind.count)])

    def print_store(self, dtype, slot, address, value):
        """Store a value."""
        at, x = self.get(address), self.get(value)
        if not self.lanes or not self.is_vector(at) and not self.is_vector(x):
            x = self.to_memory(x, dtype)
            self.b.store(x, self.pointer(at, dtype), align=size_of(dtype))
            return
        x = self.to_memory(self.vector(x, None), dtype)
        size = size_of(dtype)
        if isinstance(at, Affine) and isinstance(at.step, ir.Constant) and at.step.constant == size:
            self.store_run(x, at.base, size)
        elif isinstance(at, Affine) and not isinstance(at.step, ir.Constant):
            unit = self.b.icmp_signed("==", at.step, ir.Constant(I64, size))
            self.choose(unit, None, lambda: self.store_run(x, at.base, size), lambda: self.scatter(x, at, size))
        else:
            self.scatter(x, at, size)

    def store_run(self, x, base, size):
        """Store lanes side by side."""
        def plain():
            self.b.store(x, self.b.inttoptr(base, x.type.as_pointer()), align=size)

        def masked():
            name = f"llvm.masked.store.{type_name(x.type)}.p0"
            found = self.module.globals.get(name)
            if found is None:
                kind = ir.FunctionType(ir.VoidType(), [x.type, x.type.as_pointer(), I32, self.mask.type])
                found = ir.Function(self.module, kind, name)
            self.b.call(found, [x, self.b.inttoptr(base, x.type.as_pointer()), ir.Constant(I32, size), self.mask])
        self.by_mask(None, plain, masked)

    def scatter(self, x, at, size):
        """Store lanes to addresses of their own; a later lane wins where two meet."""
        if not self.is_vector(at):
            at = Affine(at, ir.Constant(I64, 0))
        pointers = self.b.inttoptr(self.vector(at, None), ir.VectorType(x.type.element.as_pointer(), self.lanes))
        name = f"llvm.masked.scatter.{type_name(x.type)}.v{self.lanes}p0"
        found = self.module.globals.get(name)
        if found is None:
            kind = ir.FunctionType(ir.VoidType(), [x.type, pointers.type, I32, self.mask.type])
            found = ir.Function(self.module, kind, name)
        self.b.call(found, [x, pointers, ir.Constant(I32, size), self.mask])

    # ---------------------------------------------------------------------------------------- structure
    def print_range(self, index, lo, hi, width, carries, body, yields):
        """Print a loop."""
        lo, hi = self.get(lo), self.get(hi)
        if width == 1:
            return self.scalar_loop(index, lo, hi, carries, body, yields)
        return self.lane_loop(index, lo, hi, width, carries, body, yields)

    def scalar_loop(self, index, lo, hi, carries, body, yields):
        """Print a loop without lanes of its own (it may stand inside a loop with lanes)."""
        b = self.b
        initial = [self.get(c[1]) for c in carries]
        if self.lanes:
            initial = [self.vector(x, None) if self.varies(c, body, yields) or self.is_vector(x) else x
                       for x, c in zip(initial, carries)]
        before = b.block
        head, inside, after = (b.append_basic_block(n) for n in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(lo, before)
        phis = []
        for x, (c, _, dtype, _) in zip(initial, carries):
            phi = b.phi(x.type)
            phi.add_incoming(x, before)
            phis.append(phi)
            self.values[c] = phi
            self.dtypes[c] = dtype
        b.cbranch(b.icmp_signed("<", i, hi), inside, after)
        b.position_at_end(inside)
        self.values[index] = i
        self.print(body)
        news = [self.get(y) for y in yields]
        news = [self.vector(n, None) if isinstance(p.type, ir.VectorType) else n for n, p in zip(news, phis)]
        i.add_incoming(b.add(i, ir.Constant(I64, 1)), b.block)
        for phi, new in zip(phis, news):
            phi.add_incoming(new, b.block)
        b.branch(head)
        b.position_at_end(after)
        for phi, (_, _, dtype, r) in zip(phis, carries):
            self.values[r] = phi
            self.dtypes[r] = dtype

    def varies(self, carry, body, yields):
        """Whether a carried value may differ between lanes (inside a loop with lanes: always assumed)."""
        return True

    def lane_loop(self, index, lo, hi, width, carries, body, yields):
        """Print a loop with lanes: whole rounds first, then one round with a mask."""
        b = self.b
        assert not self.lanes, "loops with lanes do not nest"
        self.lanes = width
        n = b.sub(hi, lo)
        whole = b.and_(n, ir.Constant(I64, ~(width - 1)))
        middle = b.add(lo, whole)
        lanes = ir.Constant(ir.VectorType(I64, width), list(range(width)))
        start = [self.splat(self.get(c[1])) for c in carries]
        if count_statements(body) <= TWICE:
            self.full, self.mask = True, ir.Constant(ir.VectorType(I1, width), [1] * width)
            start = self.rounds(index, lo, middle, width, carries, start, body, yields)
            self.full = False
            self.mask = b.icmp_signed("<", lanes, self.splat(b.sub(hi, middle)))
            start = self.rounds(index, middle, hi, width, carries, start, body, yields)
        else:
            start = self.rounds(index, lo, hi, width, carries, start, body, yields, hi)
        for x, (_, _, dtype, r) in zip(start, carries):
            self.values[r] = x
            self.dtypes[r] = dtype
        self.lanes, self.full, self.mask = 0, None, None

    def rounds(self, index, lo, hi, width, carries, start, body, yields, end=None):
        """Print rounds of a loop with lanes from lo while below hi."""
        b = self.b
        before = b.block
        head, inside, after = (b.append_basic_block(n) for n in ("lanes.head", "lanes.body", "lanes.after"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(lo, before)
        phis = []
        for x, (c, _, dtype, _) in zip(start, carries):
            phi = b.phi(x.type)
            phi.add_incoming(x, before)
            phis.append(phi)
            self.values[c] = phi
            self.dtypes[c] = dtype
        b.cbranch(b.icmp_signed("<", i, hi), inside, after)
        b.position_at_end(inside)
        if end is not None:
            left = b.sub(end, i)
            lanes = ir.Constant(ir.VectorType(I64, width), list(range(width)))
            self.mask = b.icmp_signed("<", lanes, self.splat(left))
            self.full = b.icmp_signed(">=", left, ir.Constant(I64, width))
        self.values[index] = Affine(i, ir.Constant(I64, 1))
        self.print(body)
        i.add_incoming(b.add(i, ir.Constant(I64, width)), b.block)
        for phi, y in zip(phis, yields):
            new = self.vector(self.get(y), None)
            new = new if self.full is True else b.select(self.mask, new, phi)
            phi.add_incoming(new, b.block)
        b.branch(head)
        b.position_at_end(after)
        return phis

    def print_fold(self, v, op, dtype, value):
        """Combine lanes pairwise: upper half with lower half, until one is left."""
        x = self.get(value)
        count = x.type.count
        while count > 1:
            half = count // 2
            undefined = ir.Constant(x.type, ir.Undefined)
            low = self.b.shuffle_vector(x, undefined, ir.Constant(ir.VectorType(I32, half), list(range(half))))
            high = self.b.shuffle_vector(x, undefined, ir.Constant(ir.VectorType(I32, half), list(range(half, count))))
            x = self.pair(op, dtype, low, high)
            count = half
        self.values[v] = self.b.extract_element(x, ir.Constant(I32, 0))
        self.dtypes[v] = dtype

    def pair(self, op, dtype, x, y):
        """Combine two vectors."""
        is_float = dtype in FLOATS
        if op in ("min", "max"):
            return self.extremum(op, [x, y], is_float, dtype[0] in "ub")
        return getattr(self, f"op_{op}")([x, y], is_float)

    def print_if(self, condition, then, other, results):
        """Print a branch."""
        b = self.b
        blocks, values = [], []
        with b.if_else(self.get(condition)) as branches:
            for branch, statements, k in zip(branches, (then, other), (2, 3)):
                with branch:
                    self.print(statements)
                    values.append([self.get(r[k]) for r in results])
                    blocks.append(b.block)
        for n, (v, dtype, _, _) in enumerate(results):
            phi = b.phi(values[0][n].type)
            for k in range(2):
                phi.add_incoming(values[k][n], blocks[k])
            self.values[v] = phi
            self.dtypes[v] = dtype

    def print_while(self, carries, body, yields):
        """Print a loop that runs while its first carried value is true."""
        b = self.b
        before = b.block
        head, inside, after = (b.append_basic_block(n) for n in ("while.head", "while.body", "while.after"))
        initial = [self.get(c[1]) for c in carries]
        b.branch(head)
        b.position_at_end(head)
        phis = []
        for x, (c, _, dtype, r) in zip(initial, carries):
            phi = b.phi(x.type)
            phi.add_incoming(x, before)
            phis.append(phi)
            self.values[c] = self.values[r] = phi
            self.dtypes[c] = self.dtypes[r] = dtype
        b.cbranch(phis[0], inside, after)
        b.position_at_end(inside)
        self.print(body)
        for phi, y in zip(phis, yields):
            phi.add_incoming(self.get(y), b.block)
        b.branch(head)
        b.position_at_end(after)

    def print_call(self, kind, address, args, result=None):
        """Call a helper by address; its arguments are int64 numbers (addresses and sizes)."""
        args = [self.get(a) for a in args]
        function = ir.FunctionType(I64 if result is not None else ir.VoidType(), [I64] * len(args))
        out = self.b.call(self.b.inttoptr(self.get(address), function.as_pointer()), args)
        if result is not None:
            self.values[result] = out
            self.dtypes[result] = "i8"

    def print_fail(self, condition, reason, equation, step, first, second):
        """Record a failure, if it is the first one."""
        b = self.b
        c, zero = self.get(condition), ir.Constant(I64, 0)
        numbers = [self.get(x) for x in (step, first, second)]
        bits = None
        if self.is_vector(c):
            bits = b.bitcast(b.and_(c, self.mask), ir.IntType(self.lanes))
            c = b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))
        with b.if_then(c, likely=False):
            lane = zero
            if bits is not None:
                lane = self.call_intrinsic(f"llvm.cttz.i{self.lanes}", bits.type, [bits, ir.Constant(I1, 0)])
                lane = b.zext(lane, I64) if self.lanes < 64 else lane
            numbers = [self.in_lane(x, lane) for x in numbers]
            code = ir.Constant(I64, REASONS[reason])
            b.call(fail_function(self.module), [self.status, code, numbers[0], ir.Constant(I64, equation), *numbers[1:], lane])

    def print_tick(self, address, number):
        """Read the clock and add the time since it was read last to a counter."""
        b = self.b
        clock = b.inttoptr(self.get(address), I64.as_pointer())
        now = self.clock()
        if number >= 0:
            counter = b.gep(clock, [ir.Constant(I64, 1 + number)], source_etype=I64)
            passed = b.sub(now, b.load(clock, typ=I64))
            b.store(b.add(b.load(counter, typ=I64), passed), counter)
        b.store(now, clock)

    def clock(self):
        """Ticks of the host's counter; on ARM of the virtual timer, since programs may not read the other one."""
        kind = ir.FunctionType(I64, [])
        if "aarch64" in self.module.triple or "arm64" in self.module.triple:
            return self.b.asm(kind, "mrs $0, cntvct_el0", "=r", [], side_effect=True)
        function = self.module.globals.get("llvm.readcyclecounter") or ir.Function(self.module, kind, "llvm.readcyclecounter")
        return self.b.call(function, [])

    def in_lane(self, x, lane):
        """The int64 of one lane of a value."""
        b = self.b
        if isinstance(x, Affine):
            return b.add(x.base, b.mul(x.step, lane))
        x = b.extract_element(x, lane) if isinstance(x.type, ir.VectorType) else x
        return b.sext(x, I64) if x.type.width < 64 else x


INTRINSICS = {"sqrt": "llvm.sqrt", "floor": "llvm.floor", "ceil": "llvm.ceil", "trunc": "llvm.trunc", "rint": "llvm.rint",
              "copysign": "llvm.copysign"}
REASONS = {"index": 1, "singular": 2, "definite": 3, "size": 4, "power": 5, "grow": 6, "negative": 7, "steps": 8}


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


def fail_function(module):
    """Function that keeps the first failure: the smallest (step, equation)."""
    name = "nscan.fail"
    found = module.globals.get(name)
    if found is not None:
        return found
    kind = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), *[I64] * 6])
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("cold")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    status, code, step, equation, *rest = function.args
    at = lambda k: b.gep(status, [ir.Constant(I64, k)], source_etype=I64)  # noqa: E731
    none = b.icmp_signed("==", b.load(at(0), typ=I64), ir.Constant(I64, 0))
    old_step, old_equation = b.load(at(1), typ=I64), b.load(at(2), typ=I64)
    earlier = b.icmp_signed("<", step, old_step)
    same = b.and_(b.icmp_signed("==", step, old_step), b.icmp_signed("<", equation, old_equation))
    with b.if_then(b.or_(none, b.or_(earlier, same))):
        for k, x in enumerate((code, step, equation, *rest)):
            b.store(x, at(k))
    b.ret_void()
    return function


def integer_helper(module, op, kind, unsigned):
    """Scalar functions with loops: integer power by squaring, greatest common divisor by Euclid."""
    name = f"nscan.{op}.{'u' if unsigned else 'i'}{kind.width}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function = ir.Function(module, ir.FunctionType(kind, [kind, kind]), name)
    function.linkage = "internal"
    b = ir.IRBuilder(function.append_basic_block("entry"))
    x, y = function.args
    zero, one = ir.Constant(kind, 0), ir.Constant(kind, 1)
    if op == "int_power":
        result, _, _ = _loop(b, [one, x, y], lambda r, p, k: b.icmp_signed("!=", k, zero) if unsigned else b.icmp_signed(">", k, zero),
                             lambda r, p, k: (b.select(b.icmp_signed("!=", b.and_(k, one), zero), b.mul(r, p), r), b.mul(p, p),
                                              b.lshr(k, one)))
        b.ret(result)
        return function
    if not unsigned:
        x, y = (b.select(b.icmp_signed("<", v, zero), b.neg(v), v) for v in (x, y))
    a, _ = _loop(b, [x, y], lambda p, q: b.icmp_signed("!=", q, zero), lambda p, q: (q, b.urem(p, q)))
    if op == "int_lcm":
        safe = b.select(b.icmp_signed("==", a, zero), one, a)
        a = b.mul(b.udiv(x, safe), y)
    b.ret(a)
    return function


def _loop(b, start, condition, step):
    """Print a small while loop; return the last values."""
    before = b.block
    head, inside, after = (b.append_basic_block(n) for n in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    phis = [b.phi(x.type) for x in start]
    for phi, x in zip(phis, start):
        phi.add_incoming(x, before)
    b.cbranch(condition(*phis), inside, after)
    b.position_at_end(inside)
    for phi, x in zip(phis, step(*phis)):
        phi.add_incoming(x, b.block)
    b.branch(head)
    b.position_at_end(after)
    return phis


def collect_dtypes(statements, dtypes):
    """Dtype of every value that is defined by a let or a load."""
    for s in statements:
        if s[0] == "let":
            dtypes[s[1]] = s[3]
        elif s[0] == "load":
            dtypes[s[1]] = s[2]
        elif s[0] == "range":
            dtypes[s[1]] = "i8"
            collect_dtypes(s[6], dtypes)
        elif s[0] == "while":
            collect_dtypes(s[2], dtypes)
        elif s[0] == "if":
            collect_dtypes(s[2], dtypes)
            collect_dtypes(s[3], dtypes)
    return dtypes


def helper_body(context, builder, arguments, text, features):
    """Print the program of a helper, whose parameters are its arguments, into the function that Numba is compiling."""
    statements = json.loads(text)
    printer = HelperPrinter(builder, (None, *arguments), features, collections.Counter(operations(statements)))
    printer.dtypes = collect_dtypes(statements, {})
    printer.print(statements)
    return context.get_dummy_value()


class HelperPrinter(Printer):
    """Printer of a helper: what a kernel reads from its block of numbers are arguments."""

    def __init__(self, builder, arguments, features, uses):
        super().__init__(builder, (*arguments, None), features, uses)

    def operate(self, op, dtype, args):
        """Apply an operation to operands."""
        return self.args[args[0][2]] if op == "param" else super().operate(op, dtype, args)


def kernel_body(context, builder, arguments, text, features):
    """Print a program into the function that Numba is compiling.

    Parameters
    ----------
    context : Numba's target context (unused; part of the intrinsic's protocol)
    builder : ir.IRBuilder
    arguments : sequence of LLVM values
        flags, status, step0, step1, lane0, lane1, part, block.
    text : str
        The program, as `nscan.plan.kernel.Program.text`.
    features : tuple of str
    """
    once, start, block, end = json.loads(text)
    flags, *rest = arguments
    uses = collections.Counter(op for part in (once, start, block, end) for op in operations(part))
    for bit, part in ((8, once), (1, start), (2, block), (4, end)):
        wanted = builder.icmp_signed("!=", builder.and_(flags, ir.Constant(I64, bit)), ir.Constant(I64, 0))
        with builder.if_then(wanted):
            printer = Printer(builder, rest, features, uses)
            printer.dtypes = collect_dtypes(part, {})
            printer.print(part)
    return context.get_dummy_value()
