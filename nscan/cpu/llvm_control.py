"""The LLVM printer, control flow: loops, branches, calls by address, failures, readings of the clock."""

from llvmlite import ir

from nscan.cpu.llvm_pieces import LONG, LongBody, ShortBody
from nscan.cpu.llvm_values import I1, I64, Affine, Values
from nscan.plan.dead import size
from nscan.plan.program import REASONS

TWICE = 400  # statements: a longer body of a loop with lanes is printed once, with a mask in every round


class Control(Values):
    """Prints statements that hold others, and those that are done for their effect; needs `print` of the printer."""

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
            initial = [self.vector(x) for x in initial]
        pieces = self.pieces([index, *[c[0] for c in carries]], body, yields)
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
        pieces.print()
        news = [self.get(y) for y in yields]
        news = [self.vector(n) if isinstance(p.type, ir.VectorType) else n for n, p in zip(news, phis)]
        i.add_incoming(b.add(i, ir.Constant(I64, 1)), b.block)
        for phi, new in zip(phis, news):
            phi.add_incoming(new, b.block)
        b.branch(head)
        b.position_at_end(after)
        for phi, (_, _, dtype, r) in zip(phis, carries):
            self.values[r] = phi
            self.dtypes[r] = dtype

    def pieces(self, changing, body, yields):
        """The body of a loop without lanes of its own, in pieces where it is long; to be called before the loop."""
        cut = self.may_cut and not self.lanes and size(body) > LONG
        return (LongBody if cut else ShortBody)(self, changing, body, yields)

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
        if size(body) <= TWICE:
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
            new = self.vector(self.get(y))
            new = new if self.full is True else b.select(self.mask, new, phi)
            phi.add_incoming(new, b.block)
        b.branch(head)
        b.position_at_end(after)
        return phis

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
        pieces = self.pieces([c[0] for c in carries], body, yields)
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
        pieces.print()
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
