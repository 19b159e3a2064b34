"""Large products: panels of one operand, and a helper that multiplies rows by panels.

The operand whose columns are the lanes is read from *panels*: copies in which the columns of a tile lie side by
side for one summed index after another. Panels of constants are made once for each call of a kernel, others for
each tile of columns; where the operand is as good as a panel, it is read as it is. The helper that does the
sums, a *strip*, is a program of its own, compiled once for a dtype and called by address, so that a product
costs a kernel next to no time to compile. (BLAS packs its operands for each call; a loop multiplies by the same
weights at every step.)

The order of a sum does not depend on tiles or panels: pieces of CHUNK summed indices, added up one after another.
"""

import dataclasses
import math

from nscan.plan import scalar
from nscan.plan.products import TIME, WIDE_BYTES, row_label
from nscan.plan.program import I64, Builder
from nscan.plan.scalar import code
from nscan.plan.storage import Place, bound_of, slot_base
from nscan.tape import Var

# Rows of the tiles of a strip, and what a strip is called with.
ROWS = (8, 4, 2, 1)
ARGUMENTS = ("rows", "columns", "first", "second", "a", "a_row", "a_first", "a_second", "b", "b_panel", "b_first",
             "b_second", "out", "out_row", "add")
# Products of fewer multiplications (for a row) are printed where they stand.
LARGE = 512
# Summed indices that a panel holds; a longer sum is added up in such pieces.
CHUNK = 512
# Rows of the result from which panels pay, and the span of a tile of b that needs none.
WORTH_ROWS, NEAR_BYTES = 16, 1 << 15
# Panels of constants: not for a call of few steps, and not for operands whose copy would be large.
WORTH_STEPS, PANELS_BYTES = 4, 1 << 26
# What the size of the axis of steps is taken for.
STEPS_GUESS = 64


@dataclasses.dataclass(frozen=True)
class Form:
    """How the labels of a product become a strip.

    Attributes
    ----------
    lane : int
        Label of the columns: the last one of the result.
    row : int or None
        Label of the rows.
    summed : tuple of int
        One or two labels.
    points : tuple of int
        Other labels of the result, one strip for each of their points.
    width : int
        Columns of a panel.
    """

    lane: int
    row: object
    summed: tuple
    points: tuple
    width: int


def form_of(e, p):
    """Return the Form of a product whose operand b has the last label of the result, or None if it takes none."""
    lane = p.lo[-1] if p.lo else None
    if e.vector or not e.strips or p.dtype.kind != "f" or lane is None or lane == TIME or lane not in p.lb or lane in p.la:
        return None
    size = lambda k: p.classes[k].size if type(p.classes[k].size) is int and k != TIME else STEPS_GUESS  # noqa: E731
    looped = [k for k in p.classes if not p.classes[k].unrolled]
    rest = [k for k in p.lo if k != lane]
    summed = tuple(k for k in dict.fromkeys((*p.la, *p.lb)) if k not in p.lo and size(k) > 1)
    both = all(k in p.la and k in p.lb for k in summed)
    if lane not in looped or not both or not 1 <= len(summed) <= 2 or math.prod(map(size, (*summed, lane))) < LARGE:
        return None
    row = row_label(p, [k for k in rest if k in looped])
    row = row_label(p, [k for k in rest if size(k) > 1]) if row is None else row
    width = (WIDE_BYTES if row is None else e.product_bytes) // p.dtype.itemsize
    return Form(lane, row, summed, tuple(k for k in rest if k != row and size(k) > 1), width)


class Strips:
    """A product that is handed to strips.

    Parameters
    ----------
    e : Elements
    p : Product
        Its operand b has the columns.
    form : Form
    """

    def __init__(self, e, p, form):
        self.e, self.p, self.form = e, p, form
        self.written = {p.out.slot}
        self.item = e.b.const(p.dtype.itemsize)
        self.panels = p.panels
        self.first = form.summed[0]
        self.strides = {which: dict(zip(labels, place.strides)) for which, labels, place in
                        (("a", p.la, p.a), ("b", p.lb, p.b), ("out", p.lo, p.out))}
        name = f"strip_{code(p.dtype)}_{1 if form.row is None else ROWS[0]}_{form.width}"
        self.helper = e.params.get(e.b, ("function", name))

    def emit(self):
        """Emit loops over points of the result, over pieces of a long sum, over tiles of columns."""
        self._points(self.form.points, {}, self._pieces)

    def _points(self, labels, at, then):
        if not labels:
            return then(at)
        c = self.p.classes[labels[0]]
        if c.unrolled:
            for n in range(c.size):
                self._points(labels[1:], {**at, labels[0]: self.e.b.const(n)}, then)
            return None
        lo, hi = self.e.bounds(c)
        with self.e.b.range(lo, hi, written=self.written) as loop:
            self._points(labels[1:], {**at, labels[0]: loop.index}, then)
        return None

    def _size(self, label):
        lo, hi = self.e.bounds(self.p.classes[label])
        return self.e.b.sub(hi, lo)

    def _pieces(self, at):
        """Loops over pieces of a long sum."""
        e, b = self.e, self.e.b
        lo, hi = e.bounds(self.p.classes[self.first])
        if not self._is_long():
            return self._columns(at, lo, hi, b.const(self.p.add))
        one, others = b.const(1), b.const(1)
        for k in self.form.summed[1:]:
            others = b.mul(others, self._size(k))
        each = scalar.largest(b, one, b.op("int_div", I64, b.const(CHUNK), scalar.largest(b, one, others)))
        count = b.op("int_div", I64, b.sub(b.add(b.sub(hi, lo), each), one), each)
        with b.range(b.const(0), scalar.largest(b, one, count), written=self.written) as loop:
            start = b.add(lo, b.mul(loop.index, each))
            later = b.op("ne", "b1", loop.index, b.const(0))
            add = b.const(1) if self.p.add else scalar.op(b, "select", later, b.const(1), b.const(0))
            self._columns(at, start, scalar.smallest(b, b.add(start, each), hi), add)
        return None

    def _is_long(self):
        """Whether the sum may have more than CHUNK terms."""
        sizes = [self.p.classes[k].size for k in self.form.summed]
        return TIME in self.form.summed or any(type(d) is not int for d in sizes) or math.prod(sizes) > CHUNK

    def _columns(self, at, lo, hi, add):
        """All columns at once where b, or panels made beforehand, can be read as they are; else tile by tile."""
        e, b, form = self.e, self.e.b, self.form
        size = e.size(self.p.classes[form.lane])
        panels = self.panels
        if panels is not None and panels.use is None:
            return self._strip(at, lo, hi, add, b.const(0), size, self._panel_source(lo))
        direct = self._is_direct(lo, hi)
        whole = direct if panels is None else b.op("or", "b1", direct, panels.use)
        width = b.const(form.width)
        tiles = b.op("int_div", I64, b.add(size, b.const(form.width - 1)), width)
        packed = self._buffer()
        with b.range(b.const(0), scalar.op(b, "select", whole, b.const(1), tiles), written=self.written | {packed.slot}) as loop:
            start = b.mul(loop.index, width)
            count = scalar.op(b, "select", whole, size, scalar.smallest(b, b.sub(size, start), width))
            self._pack(at, packed, lo, scalar.op(b, "select", whole, lo, hi), start, count)
            source = [packed.base, b.const(0), *[packed.strides[self.p.lb.index(k)] for k in form.summed]]
            choose = lambda c, xs, ys: [scalar.op(b, "select", c, x, y) for x, y in zip(xs, ys)]  # noqa: E731
            source = choose(direct, self._direct_source(at, lo), source)
            if panels is not None:
                source = choose(panels.use, self._panel_source(lo), source)
            self._strip(at, lo, hi, add, start, count, source)
        return None

    # ------------------------------------------------------------------------------- where b is read from
    def _is_direct(self, lo, hi):
        """Whether b is read where it is: its lanes lie side by side, and near or for few rows."""
        b, form = self.e.b, self.form
        unit = b.op("eq", "b1", self.strides["b"][form.lane], self.item)
        if form.row is None:
            return unit
        few = b.op("lt", "b1", self._size(form.row), b.const(WORTH_ROWS))
        near = b.op("le", "b1", b.mul(b.sub(hi, lo), self.strides["b"][self.first]), b.const(NEAR_BYTES))
        return b.op("and", "b1", unit, b.op("or", "b1", few, near))

    def _direct_source(self, at, lo):
        """Address of b at the first summed index, distance of panels (columns as they are), strides."""
        b, strides = self.e.b, self.strides["b"]
        base = b.add(self._at(self.p.b.base, "b", at), b.mul(lo, strides[self.first]))
        return [base, self.item, *[strides[k] for k in self.form.summed]]

    def _panel_source(self, lo):
        """The same for panels made beforehand."""
        b, panels = self.e.b, self.panels
        base = b.add(panels.base, b.mul(lo, panels.strides[self.first]))
        return [base, panels.column, *[panels.strides[k] for k in self.form.summed]]

    def _buffer(self):
        """Memory of the panel of a tile, the first summed label outermost."""
        e, b, form = self.e, self.e.b, self.form
        inner = [bound_of(self.p.classes[k]) for k in form.summed[1:]]
        bounds = inner if self._is_long() else [bound_of(self.p.classes[self.first]), *inner]
        key = self.p.b.dtype.itemsize, form.width, tuple(bounds)
        slot = e.buffers.get(key)
        if slot is None:
            slot = e.buffers[key] = e.params.new_slot(key[0], [form.width, *bounds], CHUNK * form.width if self._is_long() else 0)
        strides, step = {form.lane: self.item}, b.const(self.p.b.dtype.itemsize * form.width)
        for k in reversed(form.summed):
            strides[k] = step
            step = b.mul(step, self._size(k)) if k != self.first else step
        return Place(("work", slot), slot_base(e, slot), tuple(strides.get(k, b.const(0)) for k in self.p.lb), self.p.b.dtype)

    def _pack(self, at, packed, lo, hi, start, count):
        """Copy a tile of b, summed indices of the first label from lo to hi, to the buffer."""
        e, b, form = self.e, self.e.b, self.form
        to, lb = dict(zip(self.p.lb, packed.strides)), self.p.lb
        source = Place(self.p.b.slot, b.add(self._at(self.p.b.base, "b", at), b.mul(start, self.strides["b"][form.lane])),
                       self.p.b.strides, self.p.b.dtype)
        target = Place(packed.slot, b.sub(packed.base, b.mul(lo, to[self.first])), packed.strides, packed.dtype)
        zero = b.const(0)

        def columns(here):
            with b.range(zero, count, form.width, written={packed.slot}) as lane:
                idx = tuple({**here, form.lane: lane.index}.get(k, zero) for k in lb)
                e.vector += 1
                e.store(target, idx, e.load(source, idx))
                e.vector -= 1
        with b.range(lo, hi, written={packed.slot}, fence=True) as loop:
            if len(form.summed) == 1:
                columns({self.first: loop.index})
            else:
                lo2, hi2 = e.bounds(self.p.classes[form.summed[1]])
                with b.range(lo2, hi2, written={packed.slot}) as other:
                    columns({self.first: loop.index, form.summed[1]: other.index})

    # ------------------------------------------------------------------------------------------- the call
    def _at(self, base, which, at):
        """Address of a point."""
        for k, stride in self.strides[which].items():
            if k in at:
                base = self.e.b.add(base, self.e.b.mul(at[k], stride))
        return base

    def _strip(self, at, lo, hi, add, start, count, source):
        """Call the helper for all rows and some columns."""
        e, b, form, strides = self.e, self.e.b, self.form, self.strides
        row = form.row
        rows, row_lo = (b.const(1), b.const(0)) if row is None else (self._size(row), e.bounds(self.p.classes[row])[0])
        zero, one = b.const(0), b.const(1)
        a = b.add(self._at(self.p.a.base, "a", at), b.mul(lo, strides["a"][self.first]))
        out = b.add(self._at(self.p.out.base, "out", at), b.mul(start, self.item))
        if row is not None:
            a, out = b.add(a, b.mul(row_lo, strides["a"][row])), b.add(out, b.mul(row_lo, strides["out"][row]))
        sizes = [b.sub(hi, lo), *[self._size(k) for k in form.summed[1:]]]
        a_steps = [strides["a"][k] for k in form.summed]
        base, panel, *b_steps = source
        if len(sizes) == 1:
            sizes, a_steps, b_steps = [one, *sizes], [zero, *a_steps], [zero, *b_steps]
        a_row, out_row = (zero, zero) if row is None else (strides["a"][row], strides["out"][row])
        arguments = (rows, count, *sizes, a, a_row, *a_steps, base, panel, *b_steps, out, out_row, add)
        b.wrote(self.p.out.slot)
        b.statement("call", "strip", self.helper.id, tuple(x.id for x in arguments))


def strip_program(kind, rows, width):
    """Program of a strip: for each tile of columns and rows, sums of products in registers.

    Parameters
    ----------
    kind : str
        f4 or f8.
    rows : int
        Largest number of rows of a tile.
    width : int
        Columns of a panel.

    Returns
    -------
    tuple of statements
        Parameters of the block are `ARGUMENTS`: sizes of the two summed axes are `first` and `second`; all else are
        addresses and byte strides, but for `add`, which says whether sums are added to what is there.
    """
    b = Builder()
    given = {name: b.op("param", I64, b.const(k)) for k, name in enumerate(ARGUMENTS)}
    item, zero = b.const(int(kind[1:])), b.const(0)
    add = b.op("ne", "b1", given["add"], zero)
    with b.range(zero, given["columns"], width, written={"out"}) as lane:
        j = lane.index
        tile = b.op("round_down", I64, j, b.const(width))
        columns = b.sub(b.mul(j, item), b.mul(tile, item))
        panel = b.add(given["b"], b.mul(tile, given["b_panel"]))
        lo = zero
        for size in [r for r in ROWS if r <= rows]:
            count = b.op("int_div", I64, b.sub(given["rows"], lo), b.const(size)) if size > 1 else b.sub(given["rows"], lo)
            with b.range(zero, count, written={"out"}) as block:
                first = b.add(lo, b.mul(block.index, b.const(size)))
                _strip_tile(b, given, kind, [b.add(first, b.const(r)) for r in range(size)], panel, columns, b.mul(j, item), add)
            lo = b.add(lo, b.mul(count, b.const(size)))
    return b.close()


def _strip_tile(b, given, kind, rows, panel, columns, lane, add):
    """Accumulate a tile and store it."""
    zero = b.const(0.0, kind)
    starts = [b.add(given["a"], b.mul(r, given["a_row"])) for r in rows]
    with b.range(b.const(0), given["first"], carries=[zero] * len(rows)) as outer:
        k1 = outer.index
        with b.range(b.const(0), given["second"], carries=outer.carried) as inner:
            k2 = inner.index
            at_b = b.add(b.add(panel, b.mul(k1, given["b_first"])), b.mul(k2, given["b_second"]))
            y = b.load(kind, "b", b.add(at_b, columns))
            new = []
            for start, total in zip(starts, inner.carried):
                at_a = b.add(b.add(start, b.mul(k1, given["a_first"])), b.mul(k2, given["a_second"]))
                new.append(b.op("fma", kind, b.load(kind, "a", at_a), y, total))
            inner.again(new)
        outer.again(inner.results)
    for r, total in zip(rows, outer.results):
        at = b.add(b.add(given["out"], b.mul(r, given["out_row"])), lane)
        before = b.op("select", kind, add, b.load(kind, "out", at), zero)
        b.store("out", at, b.op("add", kind, before, total))


# --------------------------------------------------------------------------------------------------- panels
@dataclasses.dataclass(frozen=True, eq=False)
class Panels:
    """The panels of a constant operand, made once for each call of a kernel.

    Attributes
    ----------
    x : Var
    labels : tuple
        Labels of its axes.
    form : Form
    slot : hashable
    base : Value
        Address of the first panel.
    strides : dict
        Label to bytes from one index to the next, for all labels but the lane's.
    column : Value
        Bytes of a column: panels lie at a distance of `width` of them.
    use : Value or None
        Whether the panels are made and used, where that is known at run time only.
    """

    x: object
    labels: tuple
    form: Form
    slot: object
    base: object
    strides: dict
    column: object
    use: object

    def renamed(self, form, labels):
        """The same panels for another product, with its labels."""
        strides = {new: self.strides[old] for old, new in zip(self.labels, labels) if old in self.strides}
        return dataclasses.replace(self, form=form, labels=labels, strides=strides)

    def emit(self, e):
        """Copy the operand into its panels."""
        b, classes = e.b, dict(zip(self.labels, e.axes.get(self.x)))
        size = e.size(classes[self.form.lane])
        hi = size if self.use is None else scalar.op(b, "select", self.use, size, b.const(0))
        rest = [k for k in self.labels if k != self.form.lane]
        item = b.const(self.x.dtype.itemsize)
        steps = tuple(self.strides.get(k, item) for k in self.labels)

        def copy(labels, at, place):
            if not labels:
                idx = tuple(at[k] for k in self.labels)
                return e.store(place, idx, e.elem(self.x, idx))
            c = classes[labels[0]]
            if c.unrolled:
                for n in range(c.size):
                    copy(labels[1:], {**at, labels[0]: b.const(n)}, place)
                return None
            with b.range(b.const(0), e.size(c), written={self.slot}) as loop:
                copy(labels[1:], {**at, labels[0]: loop.index}, place)
            return None
        with b.range(b.const(0), hi, self.form.width, written={self.slot}, fence=True) as loop:
            tile = b.op("round_down", I64, loop.index, b.const(self.form.width))
            base = b.add(self.base, b.mul(tile, b.sub(self.column, item)))
            e.vector += 1
            copy(rest, {self.form.lane: loop.index}, Place(self.slot, base, steps, self.x.dtype))
            e.vector -= 1


def make_panels(e, form, x, labels, shared, steps):
    """Plan panels for a constant operand of a product that runs at least `steps` times."""
    b, item = e.b, x.dtype.itemsize
    classes = dict(zip(labels, e.axes.get(x)))
    rest = [k for k in labels if k != form.lane]
    size = [("padded", classes[form.lane].number, form.width), *[bound_of(classes[k]) for k in rest]]
    slot = e.params.new_slot(item, size, shared=shared)
    strides, step = {}, b.const(item * form.width)
    for k in reversed(rest):
        strides[k] = step
        step = b.mul(step, e.size(classes[k]))
    column = b.const(item)
    for k in rest:
        column = b.mul(column, e.size(classes[k]))
    use = None
    if type(e.define.get(x)) is Place:
        small = math.prod(c.size for c in classes.values()) * item <= PANELS_BYTES
        flag = e.params.get(b, ("number", e.params.count_number(small)))
        use = b.op("and", "b1", b.op("ne", "b1", flag, b.const(0)), b.op("ge", "b1", steps, b.const(WORTH_STEPS)))
    return Panels(x, labels, form, ("work", slot), slot_base(e, slot), strides, column, use)


def is_worth_panels(e, form, x, labels, varying):
    """Whether an operand with the columns of a product is constant, and made of summed axes but for them."""
    if type(x) is not Var or x in varying:
        return False
    classes = dict(zip(labels, e.axes.get(x)))
    plain = all(type(c.size) is int and c is not e.lane for c in classes.values())
    return plain and all(k in form.summed or k == form.lane or classes[k].size == 1 for k in labels)


__all__ = ["ARGUMENTS", "Form", "Panels", "Strips", "form_of", "is_worth_panels", "make_panels", "strip_program"]
