"""Elements on demand: what one element of a value is, as operations of a loop program.

A value of a tape is *placed* in memory, or an *alias* of (part of) another, or *virtual*: its elements are
computed where they are needed, by the rule of its row over elements of the row's inputs. So transposes,
slices, broadcasts and reshapes are index arithmetic, chains of elementwise rows are fused, and what is
materialised is a decision of the plan, never of a rule. An element is a tuple of components: one, or real and
imaginary part.
"""

import dataclasses

import numpy as np

from nscan.plan import scalar, small
from nscan.plan.axes import ONE, factor_pairs
from nscan.plan.program import I64, Const
from nscan.tape import Lit

ZERO = Const(0, I64)


def code(dtype):
    """Dtype of one component, as text: f8 for float64 and for complex128."""
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        return f"f{dtype.itemsize // 2}"
    return dtype.str[1:]


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """Memory of a value: slot, address of its first element, byte strides of its axes.

    Attributes
    ----------
    slot : hashable
        Two places of one slot may overlap, places of two slots never do.
    base : Value or Const
        Byte address.
    strides : tuple of Value or Const
        Bytes from one element to the next, for each axis.
    dtype : numpy.dtype
    contiguous : bool
        In C order without gaps.
    """

    slot: object
    base: object
    strides: tuple
    dtype: object
    contiguous: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Memory of a value for many steps: a Place for each step, at a fixed distance.

    Attributes
    ----------
    first : Place
        That of step 0 (it may lie outside of the memory, if step 0 does).
    stride : Value or Const
        Bytes from one step to the next.
    """

    first: Place
    stride: object

    @property
    def slot(self):
        """Slot of the memory."""
        return self.first.slot


class Elements:
    """Computes elements of values; `define` says how each value of the program is to be had.

    Attributes
    ----------
    b : Builder
    axes : Axes
    params : Params
        Numbers that the kernel is given at run time.
    define : dict
        Var to Place or Rows, to ("alias", Var, leading indices), to ("scalars", components by point), or to
        ("eqn", eqn, output number).
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
    """

    def __init__(self, b, axes, params):
        self.b, self.axes, self.params = b, axes, params
        self.define = {}
        self.numbers = {}
        self.writable = set()
        self.vector = 0
        self.now = ZERO
        self.time = self.span = self.lane = None
        self.product_bytes = 64
        self.panels, self.outers, self.buffers, self.strips = {}, (), {}, True

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
        key = ("elem", v, self.now.id, *[i.id for i in idx])
        for scope in reversed(self.b.scopes):
            found = scope.extra.get(key)
            if found is not None:
                return found
        parts = self._compute(v, idx)
        self.b.scopes[self.b._level(parts)].extra[key] = parts
        return parts

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
            return self.library(row, eqn, args)
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
            return self.library(row, None, args)
        return (scalar.apply(self.b, row.name, [a[0] for a in args], dtype),)

    def library(self, row, eqn, args):
        """Call a scalar function of SciPy by address, in float64."""
        if row.name not in scalar.LIBRARY:
            from nscan import errors
            raise errors.UnsupportedError(f"np.{row.name} of complex numbers is not compiled yet; run with config.mode = 'python'")
        address = self.params.get(self.b, ("function", row.name))
        dtype = args[0][0].dtype
        wide = [scalar.cast(self.b, a[0], "f8") for a in args]
        return (scalar.cast(self.b, self.b.op("libcall", "f8", address, *wide), dtype),)

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


# ------------------------------------------------------------------------------------------ rules of rows
def _pointwise(e, eqn, idx, k):
    return e.formula(eqn.row, eqn, [e.elem(x, e.align(x, idx)) for x in eqn.inputs])


def _first(e, eqn, idx, k):
    x = eqn.inputs[0]
    return e.elem(x, e.align(x, idx))


def _transpose(e, eqn, idx, k):
    perm = eqn.params["perm"]
    back = [None] * len(perm)
    for to, at in enumerate(perm):
        back[at] = idx[to]
    return e.elem(eqn.inputs[0], tuple(back))


def _reshape(e, eqn, idx, k):
    return e.elem(eqn.inputs[0], reshaped_index(e, eqn.inputs[0], eqn.outputs[0], idx))


def reshaped_index(e, x, y, idx):
    """Index of x that belongs to an index of its reshaped form y."""
    out = [ZERO] * len(x.shape)
    for of_x, of_y in factor_pairs(x.shape, y.shape):
        if len(of_x) == 1 and len(of_y) == 1:
            out[of_x[0]] = idx[of_y[0]]
            continue
        flat = e.b.const(0)
        for j in of_y:
            flat = e.b.add(e.b.mul(flat, e.dim(y, j)), idx[j])
        for i in reversed(of_x[1:]):
            size = e.dim(x, i)
            out[i] = _int(e, "int_rem", flat, size)
            flat = _int(e, "int_div", flat, size)
        out[of_x[0]] = flat
    return tuple(out)


def _int(e, name, a, b):
    if type(a) is Const and type(b) is Const:
        return e.b.const(a.value % b.value if name == "int_rem" else a.value // b.value)
    if type(b) is Const and b.value == 1:
        return e.b.const(0) if name == "int_rem" else a
    return e.b.op(name, I64, a, b)


def _index(e, eqn, idx, k):
    x = eqn.inputs[0]
    at = e.region(eqn, eqn.params["spec"], x, eqn.inputs[1:], idx)
    return dynamic(e, x, at)


def dynamic(e, x, idx):
    """Return an element at indices that may be data on unrolled axes without memory: chosen among all."""
    for axis, (i, c) in enumerate(zip(idx, e.axes.get(x))):
        if type(i) is not Const and c.unrolled and c is not ONE and needs_constant(e, x):
            parts = dynamic(e, x, (*idx[:axis], e.b.const(0), *idx[axis + 1:]))
            for n in range(1, c.size):
                other = dynamic(e, x, (*idx[:axis], e.b.const(n), *idx[axis + 1:]))
                parts = e.select(e.b.op("eq", "b1", i, e.b.const(n)), other, parts)
            return parts
    return e.elem(x, idx)


def needs_constant(e, x):
    """Whether elements of a value on unrolled axes exist for constant indices only."""
    how = e.define[x]
    if type(how) in (Place, Rows):
        return False
    if how[0] == "alias":
        return needs_constant(e, how[1])
    if how[0] == "scalars":
        return True
    eqn = how[1]
    if eqn.row.kind in ("pointwise", "linear") and eqn.row.name not in ("concatenate", "index_update", "index_add"):
        return any(needs_constant(e, v) for v in eqn.inputs if type(v) is not Lit and v.shape)
    return True


def _concatenate(e, eqn, idx, k):
    axis = eqn.params["axis"]
    at, start = idx[axis].value, 0
    for x in eqn.inputs:
        size = x.shape[axis]
        if at < start + size:
            return e.elem(x, (*idx[:axis], e.b.const(at - start), *idx[axis + 1:]))
        start += size
    raise AssertionError("an index beyond the end of a concatenation")


def _reduce(e, eqn, idx, k):
    """A reduction whose reduced axes are unrolled, or a loop in place."""
    x, axes = eqn.inputs[0], eqn.params["axes"]
    classes = e.axes.get(x)
    if all(classes[a].unrolled for a in axes):
        return _reduce_unrolled(e, eqn, idx, axes)
    from nscan.plan.nests import fold_here
    return fold_here(e, eqn, idx)


def full_index(ndim, axes, kept, reduced):
    """Merge indices of kept and reduced axes."""
    kept, reduced = iter(kept), iter(reduced)
    return tuple(next(reduced) if a in axes else next(kept) for a in range(ndim))


def _reduce_unrolled(e, eqn, idx, axes):
    x = eqn.inputs[0]
    sizes = [x.shape[a] for a in axes]
    points = [full_index(len(x.shape), axes, idx, [e.b.const(int(n)) for n in point]) for point in np.ndindex(*sizes)]
    name = eqn.row.name
    if name in ("argmax", "argmin"):
        return _arg_unrolled(e, x, points, name)
    parts = [e.elem(x, p) for p in points]
    if not parts:
        return identity(e, name, eqn.outputs[0].dtype)
    return combine_all(e, name, parts)


def combine_all(e, name, parts):
    """Combine elements pairwise, as a balanced tree."""
    while len(parts) > 1:
        parts = [combine(e, name, parts[n], parts[n + 1]) if n + 1 < len(parts) else parts[n] for n in range(0, len(parts), 2)]
    return parts[0]


def combine(e, name, a, b):
    """Combine two elements of a reduction."""
    if name == "sum":
        return e.plus(a, b)
    if name == "prod":
        return e.multiply(a, b)
    op = {"max": "max", "min": "min", "all": "and", "any": "or"}[name]
    if a[0].dtype == "b1":
        op = {"max": "or", "min": "and"}.get(op, op)
    return tuple(scalar.op(e.b, op, x, y) for x, y in zip(a, b))


def identity(e, name, dtype):
    """Neutral element of a reduction."""
    if name in ("sum", "any"):
        return e.constant(0, dtype)
    if name in ("prod", "all"):
        return e.constant(1, dtype)
    low = name in ("max", "argmax")
    if dtype.kind == "f":
        return e.constant(-np.inf if low else np.inf, dtype)
    if dtype.kind == "b":
        return e.constant(not low, dtype)
    info = np.iinfo(dtype)
    return e.constant(info.min if low else info.max, dtype)


def better(e, name, a, b):
    """Whether element a takes the place of b as an extremum: strictly better, or the first NaN."""
    wins = e.b.op("gt" if name in ("argmax", "cummax_place") else "lt", "b1", a[0], b[0])
    if a[0].dtype[0] == "f":
        nan = e.b.op("and", "b1", e.b.op("ne", "b1", a[0], a[0]), e.b.op("eq", "b1", b[0], b[0]))
        wins = e.b.op("or", "b1", wins, nan)
    return wins


def as_number(e, parts):
    """Bools as small integers, so that they can be ordered."""
    return tuple(scalar.cast(e.b, p, "u1") if p.dtype == "b1" else p for p in parts)


def _arg_unrolled(e, x, points, name):
    best, at = as_number(e, e.elem(x, points[0])), e.b.const(0)
    for n, p in enumerate(points[1:], 1):
        other = as_number(e, e.elem(x, p))
        wins = better(e, name, other, best)
        best = e.select(wins, other, best)
        at = scalar.op(e.b, "select", wins, e.b.const(n), at)
    return (at,)


def _contract(e, eqn, idx, k):
    """A product whose summed axes are unrolled."""
    p = eqn.params
    a, b = eqn.inputs
    fixed = dict(zip(p["lo"], idx))
    summed = [n for n in p["la"] if n not in p["lo"]]
    sizes = dict(zip(p["la"], a.shape))
    parts = []
    for point in np.ndindex(*[sizes[n] for n in summed]):
        at = {**fixed, **{n: e.b.const(int(i)) for n, i in zip(summed, point)}}
        parts.append(e.multiply(e.elem(a, tuple(at[n] for n in p["la"])), e.elem(b, tuple(at[n] for n in p["lb"]))))
    return combine_all(e, "sum", parts) if parts else e.constant(0, eqn.outputs[0].dtype)


def _running(e, eqn, idx, k):
    """A running reduction along an unrolled axis."""
    axis, name = eqn.params["axis"], eqn.row.name
    at = idx[axis].value
    here = e.elem(eqn.inputs[0], idx)
    before = (*idx[:axis], e.b.const(at - 1), *idx[axis + 1:])
    if name in ("cummax_place", "cummin_place"):
        return _place_unrolled(e, eqn, idx, axis, at)
    if name == "linear_running":
        drive = e.elem(eqn.inputs[1], idx)
        return e.plus(e.multiply(here, e.elem(eqn.outputs[0], before)), drive) if at else drive
    if not at:
        return here
    return combine(e, {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}[name],
                   e.elem(eqn.outputs[0], before), here)


def _place_unrolled(e, eqn, idx, axis, at):
    points = [(*idx[:axis], e.b.const(n), *idx[axis + 1:]) for n in range(at + 1)]
    return _arg_unrolled(e, eqn.inputs[0], points, eqn.row.name)


def _update(e, eqn, idx, k):
    """An indexed write into a value whose axes are unrolled: each element chooses."""
    x, v = eqn.inputs[:2]
    spec = eqn.params["spec"]
    old = e.elem(x, idx)
    region_shape = small.region_shape(spec, x, eqn.inputs[2:])
    for point in np.ndindex(*region_shape):
        at = tuple(e.b.const(int(i)) for i in point)
        where = e.region(eqn, spec, x, eqn.inputs[2:], at)
        new = e.elem(v, e.align(v, at))
        if eqn.row.name == "index_add":
            new = e.plus(old, new)
        if all(type(i) is Const and type(w) is Const for i, w in zip(idx, where)):
            if all(i.value == w.value for i, w in zip(idx, where)):
                old = new
            continue
        hit = e.b.const(True, "b1")
        for i, w in zip(idx, where):
            if not (type(i) is Const and type(w) is Const and i.value == w.value):
                same = e.b.op("eq", "b1", i, w)
                hit = same if type(hit) is Const else e.b.op("and", "b1", hit, same)
        if not any(type(i) is Const and type(w) is Const and i.value != w.value for i, w in zip(idx, where)):
            old = e.select(hit, new, old)
    return old


def _size(e, eqn, idx, k):
    """Bounds and sizes of slices whose bounds are data."""
    b = e.b
    args = [e.elem(x, ())[0] for x in eqn.inputs]
    if eqn.row.name == "same_size":
        e.fail(b.op("ne", "b1", args[0], args[1]), "size", eqn, *args)
        return (args[0],)
    if eqn.row.name == "slice_bound":
        v, n = args
        v = scalar.op(b, "select", b.op("lt", "b1", v, b.const(0)), b.add(v, n), v)
        low, high = b.const(eqn.params["low"]), b.add(n, b.const(eqn.params["high"]))
        v = scalar.op(b, "select", b.op("lt", "b1", v, low), low, v)
        return (scalar.op(b, "select", b.op("gt", "b1", v, high), high, v),)
    start, stop = args
    step = eqn.params["step"]
    gap = b.sub(stop, start) if step > 0 else b.sub(start, stop)
    if abs(step) > 1:
        gap = _int(e, "int_div", b.add(gap, b.const(abs(step) - 1)), b.const(abs(step)))
    return (scalar.op(b, "select", b.op("lt", "b1", gap, b.const(0)), b.const(0), gap),)


def _searchsorted(e, eqn, idx, k):
    """Place in a sorted array by bisection with a fixed number of steps: no branch depends on data."""
    b = e.b
    a, v = eqn.inputs
    want = e.elem(v, idx)[0]
    n = e.dim(a, 0)
    rounds = b.op("bits", I64, n)
    with b.range(b.const(0), rounds, carries=(b.const(0), n)) as loop:
        low, high = loop.carried
        middle = b.op("shr", I64, b.add(low, high), b.const(1))
        safe = scalar.op(b, "select", b.op("lt", "b1", low, high), middle, b.const(0))
        here = dynamic(e, a, (safe,))[0]
        goes = b.op("lt" if eqn.params["side"] == "left" else "le", "b1", here, want)
        if here.dtype[0] == "f":
            nan = b.op("and", "b1", b.op("ne", "b1", want, want), b.op("eq", "b1", here, here))
            goes = b.op("or", "b1", goes, nan)
        inside = b.op("lt", "b1", low, high)
        up = b.op("and", "b1", goes, inside)
        down = b.op("and", "b1", b.op("not", "b1", goes), inside)
        loop.again([scalar.op(b, "select", up, b.add(middle, b.const(1)), low), scalar.op(b, "select", down, middle, high)])
    return (loop.results[0],)


RULES = {
    "pointwise": _pointwise, "fill": lambda e, eqn, idx, k: e.elem(eqn.inputs[0], ()), "broadcast_to": _first,
    "transpose": _transpose, "reshape": _reshape, "index": _index, "concatenate": _concatenate, "reduction": _reduce,
    "contract": _contract, "running": _running, "index_update": _update, "index_add": _update, "size": _size,
    "searchsorted": _searchsorted, "linalg": small.element,
}
