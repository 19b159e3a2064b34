"""Elements on demand: what one element of a value is, as operations of a loop program.

A value of a tape is *placed* in memory, or an *alias* of (part of) another, or *virtual*: its elements are
computed where they are needed, by the rule of its row over elements of the row's inputs. So transposes,
slices, broadcasts and reshapes are index arithmetic, chains of elementwise rows are fused, and what is
materialised is a decision of the plan, never of a rule. An element is a tuple of components: one, or real and
imaginary part.
"""

from nscan import errors
from nscan.plan import scalar
from nscan.plan.axes import ONE
from nscan.plan.clock import NoClock
from nscan.plan.program import I64, ZERO, Const
from nscan.plan.rules import RULES
from nscan.plan.scalar import code
from nscan.plan.storage import Place, Rows
from nscan.tape import Lit, Var

DEEP = 150  # Python's recursion limit is 1,000 frames, and an element takes three.


class Elements:
    """Computes elements of values; `define` says how each value of the program is to be had.

    Attributes
    ----------
    b : Builder
    axes : Axes
    params : Params
        Numbers that the kernel is given at run time.
    define : dict
        Var to Place or Rows, to ("alias", Var, leading indices), to ("scalars", components by point), to ("lanes",
        components of the open lanes by point of the other axes), or to ("eqn", eqn, output number).
    numbers : dict
        Equation to its number in messages.
    writable : set
        Slots that an indexed write may change in place (states and sums kept in one piece of memory).
    vector : int
        How many loops with lanes are open (at most one).
    now : Value
        The step of the outermost loop that is being computed.
    time : AxisClass or None
        The axis of steps, while statements run for many steps at a time; `span` is its range.
    product_bytes : int
        Bytes of the lanes of a product's tile: two registers of the host.
    outers : collection of Eqn
        Outer products that are added up over steps: together they are products with a summed axis.
    strips : bool
        Whether large products are left to helpers.
    buffers : dict
        Scratch slots of products by what they hold; all products share them.
    panels : dict
        Equation to the Panels of its constant operand.
    lane : AxisClass or None
        The axis that is split between threads; its size is that of the part at hand.
    ragged : bool
        Whether that size may change from call to call.
    clock : Clock or NoClock
        Sets marks for a profile.
    """

    def __init__(self, b, axes, params):
        self.b, self.axes, self.params = b, axes, params
        self.define = {}
        self.numbers = {}
        self.depth = 0
        self.writable = set()
        self.vector = 0
        self.now = ZERO
        self.time = self.span = self.lane = None
        self.ragged = False
        self.product_bytes = 64
        self.panels, self.outers, self.buffers, self.strips = {}, (), {}, True
        self.clock = NoClock()

    # ----------------------------------------------------------------------------------------- sizes
    def size(self, c):
        """Size of an axis class as a value."""
        if c is ONE:
            return self.b.const(1)
        c = c.find()
        if c is self.lane:
            return self.b.sub(self.b.op("arg", I64, self.b.const(3)), self.b.op("arg", I64, self.b.const(2)))
        return self.whole_size(c)

    def whole_size(self, c):
        """Size of an axis class, all lanes of all threads included."""
        if c is ONE:
            return self.b.const(1)
        if type(c.size) is not int:
            return self.elem(c.size, ())[0]
        return self.b.const(c.size) if c.unrolled else self.params.get(self.b, ("size", c.number))

    def bounds(self, c):
        """Range of a loop over an axis class."""
        return self.span if c is self.time else (self.b.const(0), self.size(c))

    def here(self, how):
        """Place of the present step, for what is kept for many steps."""
        if type(how) is not Rows:
            return how
        first = how.first
        base = self.b.add(first.base, self.b.mul(self.now, how.stride))
        return Place(first.slot, base, first.strides, first.dtype, first.contiguous)

    def sizes(self, v):
        """Sizes of all axes of a Var."""
        return tuple(self.size(c) for c in self.axes.get(v))

    def looped(self, v):
        """Positions of the axes that are not unrolled."""
        return [k for k, c in enumerate(self.axes.get(v)) if not c.unrolled]

    def dim(self, v, axis):
        """Size of one axis of a Var or Lit."""
        return self.b.const(1) if type(v) is Lit else self.size(self.axes.get(v)[axis])

    # -------------------------------------------------------------------------------------- elements
    def elem(self, v, idx):
        """Return the components of one element.

        Parameters
        ----------
        v : Var or Lit
        idx : tuple of Value or Const
        """
        if type(v) is Lit:
            return self.literal(v)
        found = self._known(v, idx)
        if found is not None:
            return found
        self.depth += 1
        if self.depth % DEEP == 0:
            self._first_things_first(v, idx)
        parts = self._compute(v, idx)
        self.depth -= 1
        self.b.scopes[self.b._level(parts)].extra[self._key(v, idx)] = parts
        return parts

    def _key(self, v, idx):
        return ("elem", v, self.now.id, *[i.id for i in idx])

    def _known(self, v, idx):
        key = self._key(v, idx)
        for scope in reversed(self.b.scopes):
            found = scope.extra.get(key)
            if found is not None:
                return found
        return None

    def _first_things_first(self, v, idx):
        """Compute what stands behind an element, the earliest first, so that a long chain is no deep recursion."""
        stack = [(v, idx)]
        while stack:
            how = self.here(self.define[stack[-1][0]])
            behind = []
            if type(how) is tuple and how[0] == "eqn" and how[1].row.kind == "pointwise":
                at = stack[-1][1]
                behind = [(x, self.align(x, at)) for x in how[1].inputs if type(x) is Var]
                behind = [(x, at) for x, at in behind if self._known(x, at) is None]
            if behind:
                stack += behind
            else:
                x, at = stack.pop()
                if stack:
                    self.elem(x, at)

    def literal(self, v):
        """Components of a literal."""
        dtype = code(v.dtype)
        if v.dtype.kind == "c":
            return self.b.const(float(v.value.real), dtype), self.b.const(float(v.value.imag), dtype)
        return (self.b.const(scalar._python(v.value, dtype), dtype),)

    def _compute(self, v, idx):
        how = self.here(self.define[v])
        if type(how) is Place:
            return self.load(how, idx)
        if how[0] == "alias":
            return self.elem(how[1], (*how[2], *idx))
        if how[0] == "scalars":
            return how[1][tuple(i.value for i in idx)]
        if how[0] == "lanes":
            return how[1][tuple(i.value for i in idx if type(i) is Const)]
        _, eqn, k = how
        rule = RULES.get(eqn.row.name) or RULES[eqn.row.kind]
        return rule(self, eqn, idx, k)

    def address(self, place, idx):
        """Byte address of an element."""
        at = place.base
        for i, stride in zip(idx, place.strides):
            at = self.b.add(at, self.b.mul(i, stride))
        return at

    def load(self, place, idx):
        """Load the components of an element."""
        at = self.address(place, idx)
        dtype = code(place.dtype)
        first = self.b.load(dtype, place.slot, at)
        if place.dtype.kind != "c":
            return (first,)
        return first, self.b.load(dtype, place.slot, self.b.add(at, self.b.const(place.dtype.itemsize // 2)))

    def store(self, place, idx, parts):
        """Store the components of an element."""
        place = self.here(place)
        at = self.address(place, idx)
        for k, part in enumerate(parts):
            self.b.store(place.slot, self.b.add(at, self.b.const(k * place.dtype.itemsize // 2)), part)

    def align(self, x, idx):
        """Index of a broadcast operand that belongs to an index of the result."""
        shape = x.shape
        if not shape:
            return ()
        tail = idx[len(idx) - len(shape):]
        return tuple(ZERO if type(d) is int and d == 1 else i for d, i in zip(shape, tail))

    # ------------------------------------------------------------------------------------- arithmetic
    def formula(self, row, eqn, args):
        """Apply the spelling of a pointwise row to components."""
        dtypes = [x.dtype for x in eqn.inputs]
        out = eqn.outputs[0].dtype
        if row.name == "cast":
            return self.cast(args[0], out)
        if row.name == "integer_power":
            return scalar.integer_power(self.b, args[0], eqn.params["n"], self.multiply) if eqn.params["n"] > 0 else \
                self.reciprocal(scalar.integer_power(self.b, args[0], -eqn.params["n"], self.multiply))
        is_complex = any(d.kind == "c" for d in dtypes)
        kind = "c" if is_complex else dtypes[0].kind
        if row.name == "select":
            is_complex, kind = dtypes[1].kind == "c", dtypes[1].kind
        texts = row.spelling.get(kind) or row.spelling.get("*") if not is_complex else row.spelling.get("c")
        if is_complex and texts is None:
            return self.call_library(row, args)
        if row.name == "power" and kind in "iu" and dtypes[1].kind == "i":
            self.fail(self.b.op("lt", "b1", args[1][0], self.b.const(0, args[1][0].dtype)), "power", eqn, args[1][0])
        names = {}
        for letter, parts in zip("abcd", args):
            names[letter] = parts[0]
            names[letter + "r"], names[letter + "i"] = parts[0], parts[1] if len(parts) > 1 else None
        base = code(next((d for d in dtypes if d.kind != "b"), dtypes[0]))
        if texts is None:
            return self._named(row, args, base)
        texts = texts if isinstance(texts, tuple) else (texts,)
        return tuple(self._typed(scalar.emit(self.b, t, names, base), code(out)) for t in texts)

    def _typed(self, value, dtype):
        if not hasattr(value, "dtype"):
            return self.b.const(scalar._python(value, dtype), dtype)
        return scalar.cast(self.b, value, dtype)

    def _named(self, row, args, dtype):
        if row.name in scalar.LIBRARY:
            return self.call_library(row, args)
        return (scalar.apply(self.b, row.name, [a[0] for a in args], dtype),)

    def call_library(self, row, args):
        """Call a scalar function of SciPy by address, in float64 or complex128."""
        dtype = args[0][0].dtype
        wide = [scalar.cast(self.b, part, "f8") for a in args for part in a]
        is_complex = len(args[0]) > 1
        if row.name not in (scalar.COMPLEX_LIBRARY if is_complex else scalar.LIBRARY):
            raise errors.UnsupportedError(f"{row.name} of {'complex' if is_complex else 'real'} numbers is not compiled: run it with "
                                          "config.mode = 'python'")
        address = self.params.get(self.b, ("function", f"complex_{row.name}" if is_complex else row.name))
        names = ("complex_call_re", "complex_call_im") if is_complex else ("libcall",)
        return tuple(scalar.cast(self.b, self.b.op(name, "f8", address, *wide), dtype) for name in names)

    def cast(self, parts, dtype):
        """Cast components; complex to real drops the imaginary part."""
        target = code(dtype)
        if dtype.kind == "c":
            re = scalar.cast(self.b, parts[0], target)
            im = scalar.cast(self.b, parts[1], target) if len(parts) > 1 else self.b.const(0.0, target)
            return re, im
        if len(parts) > 1 and dtype.kind == "b":
            zero = self.b.const(0.0, parts[0].dtype)
            return (self.b.op("or", "b1", self.b.op("ne", "b1", parts[0], zero), self.b.op("ne", "b1", parts[1], zero)),)
        return (scalar.cast(self.b, parts[0], target),)

    def multiply(self, a, b):
        """Product of two elements."""
        if len(a) == 1:
            return (scalar.op(self.b, "and" if a[0].dtype == "b1" else "mul", a[0], b[0]),)
        mul = lambda x, y: scalar.op(self.b, "mul", x, y)  # noqa: E731
        return (scalar.op(self.b, "sub", mul(a[0], b[0]), mul(a[1], b[1])),
                scalar.op(self.b, "add", mul(a[0], b[1]), mul(a[1], b[0])))

    def plus(self, a, b):
        """Sum of two elements."""
        name = "or" if a[0].dtype == "b1" else "add"
        return tuple(scalar.op(self.b, name, x, y) for x, y in zip(a, b))

    def minus(self, a, b):
        """Difference of two elements."""
        return tuple(scalar.op(self.b, "sub", x, y) for x, y in zip(a, b))

    def divide(self, a, b):
        """Quotient of two elements."""
        if len(a) == 1:
            return (scalar.op(self.b, "div", a[0], b[0]),)
        names = {"ar": a[0], "ai": a[1], "br": b[0], "bi": b[1]}
        return tuple(scalar.emit(self.b, f"cdiv_{p}(ar, ai, br, bi)", names, a[0].dtype) for p in ("re", "im"))

    def reciprocal(self, a):
        """1 / a."""
        one = (self.b.const(1.0, a[0].dtype), self.b.const(0.0, a[0].dtype))[:len(a)]
        return self.divide(one, a)

    def magnitude(self, a):
        """Absolute value, a real value."""
        if len(a) == 1:
            return scalar.op(self.b, "abs", a[0])
        return self.b.op("hypot", a[0].dtype, *a)

    def select(self, c, a, b):
        """Choose between two elements."""
        return tuple(scalar.op(self.b, "select", c, x, y) for x, y in zip(a, b))

    def constant(self, value, dtype):
        """Return an element of a constant value."""
        part = code(dtype)
        first = self.b.const(scalar._python(value, part), part)
        return (first, self.b.const(0.0, part)) if dtype.kind == "c" else (first,)

    # ----------------------------------------------------------------------------------------- indices
    def wrapped(self, eqn, k, size):
        """Wrap a negative index and check it; out of range is recorded and replaced by 0."""
        b = self.b
        zero = b.const(0)
        at = scalar.op(b, "select", b.op("lt", "b1", k, zero), b.add(k, size), k)
        ok = b.op("and", "b1", b.op("ge", "b1", at, zero), b.op("lt", "b1", at, size))
        if type(k) is Const and type(size) is Const:
            return at
        self.fail(b.op("not", "b1", ok), "index", eqn, k, size)
        return scalar.op(b, "select", ok, at, zero)

    def fail(self, condition, reason, eqn, *values):
        """Record a failure where a condition holds."""
        zero = self.b.const(0)
        values = (*values, zero, zero)[:2]
        self.b.statement("fail", condition.id, reason, self.numbers.get(eqn, 0), self.now.id, *[v.id for v in values])

    def region(self, eqn, spec, x, operands, idx):
        """Index of an array that belongs to an index of what a specification reads from it."""
        out, k, axis = [], 0, 0
        middle = max([o.ndim for o in (operands[e[1]] for e in spec.entries if e[0] == "arr")], default=0)
        place = spec.place
        advanced = idx[place:place + middle] if place is not None else ()
        rest = idx if place is None else (*idx[:place], *idx[place + middle:])
        for entry in spec.entries:
            kind = entry[0]
            if kind == "new":
                k += 1
                continue
            if kind == "slice":
                out.append(self.b.add(self.number(x, axis, entry[1]), self.b.mul(rest[k], self.b.const(entry[3]))))
                k += 1
            elif kind == "dyn":
                out.append(self.b.add(self.elem(operands[entry[1]], ())[0], self.b.mul(rest[k], self.b.const(entry[3]))))
                k += 1
            elif kind == "at":
                out.append(self.number(x, axis, entry[1]))
            else:
                o = operands[entry[1]]
                at = self.elem(o, self.align(o, advanced) if kind == "arr" else ())[0]
                out.append(self.wrapped(eqn, at, self.dim(x, axis)))
            axis += 1
        return tuple(out)

    def number(self, x, axis, value):
        """Return a start or index on an axis: part of the code on an unrolled axis, an argument elsewhere."""
        if value == 0 or self.axes.get(x)[axis].unrolled:
            return self.b.const(value)
        return self.params.get(self.b, ("number", self.params.count_number(value)))
