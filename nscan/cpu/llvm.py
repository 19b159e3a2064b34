"""The LLVM printer: a loop program becomes one function of an LLVM module.

Loops with lanes are printed as vector code: a value that differs between lanes is an LLVM vector, an address
that grows by a fixed step from lane to lane stays a scalar with that step, so that a load becomes a vector
load where the step is the size of an element. The step of caller's arrays is known only at run time; such
loads test it. Lanes beyond the end of a loop are masked. Nothing carries fast-math flags.

Pointers are typed where llvmlite 0.44 wants them typed; newer ones print them all as ``ptr``.

`kernel_body` is called while Numba compiles a kernel file.
"""

import collections
import json

from llvmlite import ir

from nscan.cpu.llvm_control import Control
from nscan.cpu.llvm_memory import Memory
from nscan.cpu.llvm_operations import Operations
from nscan.cpu.llvm_pieces import FEW, REMADE
from nscan.cpu.llvm_values import I64
from nscan.plan.dead import bodies


def operations(statements):
    """Names of the operations of statements, inner ones included."""
    for s in statements:
        if s[0] == "let":
            yield s[2]
        for inner in bodies(s):
            yield from operations(inner)


class Printer(Operations, Memory, Control):
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
    dtypes : dict
        Number of a value to its dtype.
    """

    may_cut = True

    def __init__(self, builder, arguments, features, uses, dtypes):
        super().__init__(builder, dtypes)
        self.uses, self.features = uses, features
        self.status, self.args, self.block = arguments[0], arguments[1:-1], arguments[-1]
        self.fma = "fma" in features
        self.known = {}

    def beside(self, builder, arguments):
        """Printer of the same program for another function, which has the same arguments."""
        other = type(self)(builder, arguments, self.features, self.uses, self.dtypes)
        other.known = self.known
        return other

    def remember(self, v, op, dtype, args):
        """Keep how an address or a size follows from the block of numbers, where it takes a few operations."""
        if op in REMADE and dtype == "i8" and not self.lanes:
            made = [self.known.get(a) for a in args if type(a) is int]
            if None not in made and (count := 1 + sum(m[0] for m in made)) <= FEW:
                self.known[v] = (count, op, dtype, args)

    def print(self, statements):
        """Print statements one after another."""
        for s in statements:
            getattr(self, f"print_{s[0]}")(*s[1:])


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
    uses = collections.Counter(operations(statements))
    printer = HelperPrinter(builder, (None, *arguments, None), features, uses, collect_dtypes(statements, {}))
    printer.print(statements)
    return context.get_dummy_value()


class HelperPrinter(Printer):
    """Printer of a helper: what a kernel reads from its block of numbers are arguments."""

    may_cut = False

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
            Printer(builder, rest, features, uses, collect_dtypes(part, {})).print(part)
    return context.get_dummy_value()
