"""The LLVM printer, long bodies of loops: cut into functions, so that compiling them takes time in proportion to their length.

Scheduling and register allocation of one block of ten thousand operations take several times what they take for the
same operations in twenty functions. What one piece computes and another one reads goes through an array of the caller.
Addresses that a few operations make of the block of numbers are made anew in each piece instead.
"""

from llvmlite import ir

from nscan.cpu.llvm_values import I1, I8, I64
from nscan.plan.dead import reads, results, size

# Statements. Shorter bodies compile as fast in one block; pieces of 200 and of 400 take about as long as those of 300.
LONG, PIECE = 3000, 300
REMADE, FEW = ("param", "arg", "add", "sub", "mul"), 6


def cut(body, needs):
    """Divide statements into pieces of about the same size, in order.

    Lanes side by side, which a loop with lanes leaves behind, do not go from piece to piece.

    Parameters
    ----------
    body : list of statements
    needs : list of sets of int
        What each statement reads.
    """
    sizes = [size((s,)) for s in body]
    each = sum(sizes) / -(-sum(sizes) // PIECE)
    lanes = [set(results(s)) if s[0] == "range" and s[4] > 1 else set() for s in body]
    last = {v: k for k, read in enumerate(needs) for v in read}
    until, done, pieces = 0, 0, []
    for k, s in enumerate(body):
        if k > until and done >= each * len(pieces) or not pieces:
            pieces.append([])
        pieces[-1].append(s)
        until = max([until, *[last.get(v, k) for v in lanes[k]]])
        done += sizes[k]
    return pieces


class Places:
    """An array of eight bytes a place, as one function sees it."""

    def __init__(self, pointer):
        self.pointers = {I64: pointer}

    def at(self, b, k, kind):
        """Pointer to a place, for a value of a type."""
        if kind not in self.pointers:
            with b.goto_entry_block():
                self.pointers[kind] = b.bitcast(self.pointers[I64], kind.as_pointer())
        bits = {ir.DoubleType(): 64, ir.FloatType(): 32}.get(kind) or kind.width
        return b.gep(self.pointers[kind], [ir.Constant(I64, k * 64 // bits)], source_etype=kind)


class ShortBody:
    """The body of a loop, printed where it stands."""

    def __init__(self, printer, changing, body, yields):
        self.printer, self.body = printer, body

    def print(self):
        """Print the body."""
        self.printer.print(self.body)


class LongBody:
    """The body of a loop without lanes as functions that are called one after another; to be made before the loop.

    Parameters
    ----------
    printer : Printer
        Of the function with the loop.
    changing : list of int
        The index, and what is carried into a round.
    body : list of statements
    yields : list of operands
        What the loop carries on.
    """

    def __init__(self, printer, changing, body, yields):
        self.printer, self.yields = printer, [y for y in yields if type(y) is int]
        needs = [reads(s) for s in body]
        self.needs = dict(zip(map(id, body), needs))
        self.pieces = cut(body, needs)
        read = [set().union(*[self.needs[id(s)] for s in piece]) for piece in self.pieces]
        every = set().union(*read)
        self.changing = [v for v in changing if v in every]
        fixed = sorted(v for v in every if v in printer.values and v not in printer.known)
        self.kinds, self.slots = {}, {v: k for k, v in enumerate((*fixed, *self.changing))}
        with printer.b.goto_entry_block():
            self.memory = Places(printer.b.alloca(I64, self.place(read), "between"))
        for v in fixed:
            self.store(printer, self.memory, v)

    def place(self, read):
        """Give places to values that other pieces read, each until its last reader; return how many there are."""
        last = {v: k for k, piece in enumerate(read) for v in piece}
        last.update((v, len(self.pieces)) for v in self.yields)
        count, free, ends = len(self.slots), [], {}
        for k, piece in enumerate(self.pieces):
            free += ends.pop(k - 1, [])
            for v in sorted(v for s in piece for v in results(s) if last.get(v, k) > k):
                if not free:
                    free.append(count)
                    count += 1
                self.slots[v] = free.pop()
                ends.setdefault(last[v], []).append(self.slots[v])
        return count

    def store(self, printer, memory, v):
        """Store a value in its place, if it has one."""
        if v in self.slots:
            x = printer.values[v]
            self.kinds[v] = x.type
            x = printer.b.zext(x, I8) if x.type == I1 else x
            printer.b.store(x, memory.at(printer.b, self.slots[v], x.type), align=8)

    def load(self, printer, memory, v):
        """Load a value from its place."""
        held = I8 if self.kinds[v] == I1 else self.kinds[v]
        x = printer.b.load(memory.at(printer.b, self.slots[v], held), typ=held, align=8)
        printer.values[v] = printer.b.trunc(x, I1) if self.kinds[v] == I1 else x

    def bring(self, printer, memory, v):
        """Make a value known in a piece, unless it belongs to a statement that is still to be printed."""
        if v in printer.values:
            return
        if v in self.kinds:
            self.load(printer, memory, v)
        elif v in printer.known:
            _, op, dtype, args = printer.known[v]
            for a in args:
                if type(a) is int:
                    self.bring(printer, memory, a)
            printer.values[v] = printer.operate(op, dtype, args)

    def print(self):
        """Print the body."""
        printer = self.printer
        for v in self.changing:
            self.store(printer, self.memory, v)
        given = [self.memory.pointers[I64], printer.status, *printer.args, printer.block]
        for piece in self.pieces:
            printer.b.call(self.function(piece, [x.type for x in given]), given)
        for v in self.yields:
            self.bring(printer, self.memory, v)

    def function(self, piece, types):
        """Print a piece as a function."""
        module = self.printer.module
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), types), module.get_unique_name("nscan.piece"))
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.args[0].add_attribute("noalias")
        memory = Places(function.args[0])
        inner = self.printer.beside(ir.IRBuilder(function.append_basic_block("entry")), function.args[1:])
        for s in piece:
            for v in sorted(self.needs[id(s)]):
                self.bring(inner, memory, v)
            inner.print([s])
            for v in results(s):
                self.store(inner, memory, v)
        inner.b.ret_void()
        return function
