"""The text printer: a loop program as text that is plain Python and Numba CUDA at once.

===================  ==============================================================================
in the text          meaning
===================  ==============================================================================
``v12``              value 12 of the program
``block[3]``         number 3 of the block of numbers, an int64
``ld_f8(v10)``       load a float64 from a byte address
``st_f8(v10, v12)``  store it
``f4(0.5)``          a constant of a dtype
``exp_f4(v3)``       what Python has no operator of C's meaning for: a helper, by operation and dtype
``fail(...)``        keep the first failure in the status words at an address
``call(...)``        call a library routine by address
===================  ==============================================================================

Helpers and constants are names that whoever executes the text provides; `called` lists those of a text. Lanes
become loops of width 1, so that sums are taken in another order than in a kernel with vectors. Nothing in the
text depends on anything but the program.
"""

import ast

from nscan import errors
from nscan.plan.dead import bodies
from nscan.plan.program import REASONS

# Operations whose operator means in Python, on values of NumPy and of Numba, what it means in C.
OPERATORS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}", "not": "~{}",
    "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}",
    "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}", "eq": "{} == {}", "ne": "{} != {}",
}
NOT_CHANGED = ("lt", "le", "gt", "ge", "eq", "ne")
# Dtypes that arithmetic keeps: narrower integers become int64 in Numba and are cast back.
KEPT = ("f4", "f8", "i8", "b1")
ARGUMENTS = ("step0", "step1", "lane0", "lane1", "part")
STATUS_BYTES = 64
STEP = "    "


def python_text(program):
    """Print a program as a Python function of the signature that compiled kernels have.

    Parameters
    ----------
    program : Program

    Returns
    -------
    str
        ``def kernel(flags, status, step0, step1, lane0, lane1, part, block)``: bits 8, 1, 2 and 4 of `flags`
        ask for once, start, block and end; `status` is the address of 8 status words, `block` an array of int64.
    """
    printer = _Printer("status")
    printer.line("def kernel(flags, status, step0, step1, lane0, lane1, part, block):")
    with printer:
        for bit, name in ((8, "once"), (1, "start"), (2, "block"), (4, "end")):
            printer.line(f"if flags & {bit}:  # {name}")
            with printer:
                printer.part(getattr(program, name))
    return printer.text()


def cuda_text(program):
    """Print a program as a CUDA kernel in which each thread runs one lane, with the loop over steps inside.

    Parameters
    ----------
    program : Program
        With an axis of lanes, without library calls.

    Returns
    -------
    str
        ``def kernel(n, steps, each, status, block)``: thread i runs lane i of n as part i of the lanes, `steps`
        steps in blocks of `each`; `status` is the address of n times 8 status words.

    Raises
    ------
    KernelError
        The program has no lanes, or it calls a library.
    """
    if not program.lane:
        raise errors.KernelError("this loop cannot run on a GPU: it has no axis along which it is independent, so there is "
                                 "nothing to give to each thread; run it on the CPU, or make it a map over a batch")
    for name in ("once", "start", "block", "end"):
        _refuse_calls(getattr(program, name))
    printer = _Printer("word")
    printer.line("def kernel(n, steps, each, status, block):")
    with printer:
        printer.lines("i = cuda.grid(1)", "if i < n:")
        with printer:
            printer.lines("lane0 = i8(i)", "lane1 = lane0 + i8(1)", "part = lane0 + (lane0 << i8(32))",
                          f"word = status + lane0 * i8({STATUS_BYTES})",
                          "step0 = i8(0)", "step1 = each if each < steps else steps")
            printer.part(program.once)
            printer.part(program.start)
            printer.line("while step0 < steps:")
            with printer:
                printer.line("step1 = step0 + each if step0 + each < steps else steps")
                printer.part(program.block)
                printer.line("step0 = step1")
            printer.part(program.end)
    return printer.text()


def called(text):
    """Return the names of the functions that a text calls: helpers and types, sorted."""
    calls = (node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return sorted({function.id for function in calls if isinstance(function, ast.Name)} - {"range"})


def _refuse_calls(statements):
    for s in statements:
        if s[0] == "call" or s[0] == "let" and s[2] in ("libcall", "complex_call_re", "complex_call_im"):
            raise errors.KernelError("this loop cannot run on a GPU: it calls a routine of a CPU library (sorting, LAPACK, or "
                                     "a function of SciPy); run it on the CPU")
        for body in bodies(s):
            _refuse_calls(body)


# -------------------------------------------------------------------------------------------------- printing
class _Printer:
    """Prints the parts of a program one after another; as a context it is an indented block, never an empty one.

    Parameters
    ----------
    status : str
        Name of the address of the status words.
    """

    def __init__(self, status):
        self.status = status
        self.out, self.depth, self.starts = [], 0, []
        self.first = self.next = 0
        self.names, self.dtypes = {}, {}

    def __enter__(self):
        self.depth += 1
        self.starts.append(len(self.out))

    def __exit__(self, *exc):
        if len(self.out) == self.starts.pop():
            self.line("pass")
        self.depth -= 1

    def line(self, text):
        """Append a line."""
        self.out.append(STEP * self.depth + text)

    def lines(self, *texts):
        """Append lines."""
        for text in texts:
            self.line(text)

    def text(self):
        """Return everything so far."""
        return "\n".join(self.out) + "\n"

    def part(self, statements):
        """Print a part of a program; its values are numbered after those of the parts before it.

        So no variable is used twice with different types.
        """
        self.names, self.dtypes, self.first = {}, {}, self.next
        self.print(statements)

    def print(self, statements):
        """Print statements one after another."""
        for s in statements:
            getattr(self, f"print_{s[0]}")(*s[1:])

    # ---------------------------------------------------------------------------------------------- values
    def get(self, operand):
        """Return the text of an operand."""
        if type(operand) is not tuple:
            return self.names[operand]
        _, dtype, value = operand
        return str(bool(value)) if dtype == "b1" else f"{dtype}({value})"

    def dtype(self, operand):
        """Return the dtype of an operand."""
        return operand[1] if type(operand) is tuple else self.dtypes[operand]

    def define(self, v, dtype, name=None):
        """Give a value a name (one of its own by default) and return it."""
        if name is None:
            name = f"v{self.first + v}"
            self.next = max(self.next, self.first + v + 1)
        self.names[v], self.dtypes[v] = name, dtype
        return name

    def print_let(self, v, op, dtype, args):
        """Print a pure operation."""
        if op == "arg":
            self.define(v, dtype, ARGUMENTS[args[0][2]])
            return
        text = self.operation(op, dtype, args)
        self.line(f"{self.define(v, dtype)} = {text}")

    def operation(self, op, dtype, args):
        """Return the text of an operation."""
        if op == "param":
            return f"block[{args[0][2]}]"
        if op == "healthy":
            return f"ld_i8({self.status}) == i8(0)"
        values = [self.get(a) for a in args]
        if op == "round_down":
            return f"{values[0]} & i8({-args[1][2]})"
        if op == "select":
            return "{1} if {0} else {2}".format(*values)
        if op == "not" and dtype == "b1":
            return f"not {values[0]}"
        if op in OPERATORS:
            text = OPERATORS[op].format(*values)
            return text if op in NOT_CHANGED or dtype in KEPT else f"{dtype}({text})"
        if op == "libcall":
            return f"libcall({', '.join(values)})"
        name = f"cast_{self.dtype(args[0])}_{dtype}" if op == "cast" else f"{op}_{self.dtype(args[0])}"
        return f"{name}({', '.join(values)})"

    def print_load(self, v, dtype, slot, address):
        """Print a load."""
        text = f"ld_{dtype}({self.get(address)})"
        self.line(f"{self.define(v, dtype)} = {text}")

    def print_store(self, dtype, slot, address, value):
        """Print a store."""
        self.line(f"st_{dtype}({self.get(address)}, {self.get(value)})")

    def print_fold(self, v, op, dtype, value):
        """Give the result the name of the one lane: nothing is to be combined."""
        self.define(v, dtype, self.get(value))

    # ------------------------------------------------------------------------------------------- structure
    def carry(self, carries):
        """Print the first values of what a loop carries; what comes out of the loop has the same names."""
        for c, initial, dtype, result in carries:
            text = self.get(initial)
            self.line(f"{self.define(c, dtype)} = {text}")
            self.define(result, dtype, self.names[c])

    def assign(self, carries, yields):
        """Print the values for the next round; together, if one of them is an old value of another."""
        pairs = [(self.names[c[0]], self.get(y)) for c, y in zip(carries, yields)]
        pairs = [(c, y) for c, y in pairs if c != y]
        old = {c for c, _ in pairs}
        if any(y in old for _, y in pairs):
            self.line(f"{', '.join(c for c, _ in pairs)} = {', '.join(y for _, y in pairs)}")
        else:
            self.lines(*[f"{c} = {y}" for c, y in pairs])

    def print_range(self, index, lo, hi, width, carries, body, yields):
        """Print a loop; lanes run one after another."""
        self.carry(carries)
        self.line(f"for {self.define(index, 'i8')} in range({self.get(lo)}, {self.get(hi)}):")
        with self:
            self.print(body)
            self.assign(carries, yields)

    def print_while(self, carries, body, yields):
        """Print a loop that runs while its first carried value is true."""
        self.carry(carries)
        self.line(f"while {self.names[carries[0][0]]}:")
        with self:
            self.print(body)
            self.assign(carries, yields)

    def print_if(self, condition, then, other, results):
        """Print a branch."""
        names = {r[0]: self.define(r[0], r[1]) for r in results}
        for word, body, k in ((f"if {self.get(condition)}:", then, 2), ("else:", other, 3)):
            if word == "else:" and not body and not results:
                break
            self.line(word)
            with self:
                self.print(body)
                self.lines(*[f"{names[r[0]]} = {self.get(r[k])}" for r in results])

    def print_call(self, kind, address, args, result=None):
        """Print a call by address."""
        text = f"({', '.join(map(self.get, (address, *args)))})"
        self.line(f"call{text}" if result is None else f"{self.define(result, 'i8')} = call_i8{text}")

    def print_fail(self, condition, reason, equation, step, first, second):
        """Print a failure."""
        step, first, second = (self.integer(x) for x in (step, first, second))
        self.line(f"if {self.get(condition)}:")
        with self:
            self.line(f"fail({self.status}, i8({REASONS[reason]}), {step}, i8({equation}), {first}, {second})")

    def print_tick(self, address, number):
        """Print a reading of the clock."""
        self.line(f"tick({self.get(address)}, i8({number}))")

    def integer(self, operand):
        """Return the text of an operand as an int64."""
        dtype, text = self.dtype(operand), self.get(operand)
        return text if dtype == "i8" else f"cast_{dtype}_i8({text})"
