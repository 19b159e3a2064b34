"""The LLVM printer, operations: arithmetic, comparisons, casts, elementary functions, of scalars or of lanes side by side."""

from llvmlite import ir

from nscan.cpu import math as functions
from nscan.cpu.llvm_values import FLOATS, I1, I8, I32, I64, Affine, Values, fold_int, type_name

PAIR = ir.LiteralStructType([ir.DoubleType()] * 2)
MOST_IN_PLACE = 32  # of one mathematical function; 600 scalar tanh in place take 4 s to compile
INTRINSICS = {"sqrt": "llvm.sqrt", "floor": "llvm.floor", "ceil": "llvm.ceil", "trunc": "llvm.trunc", "rint": "llvm.rint",
              "copysign": "llvm.copysign"}


class Operations(Values):
    """Prints operations; needs `uses`, `status`, `args`, `block` and `fma` of the printer."""

    def print_let(self, v, op, dtype, args):
        """Print a pure operation."""
        self.values[v] = self.operate(op, dtype, args)
        self.remember(v, op, dtype, args)

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
            values = [self.vector(x) for x in values]
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
