"""Products as tiled loops, in two forms.

*Outer form*: lanes along an axis of the result; a tile of rows times some vectors of columns is accumulated in
registers over the summed axes. The operand that has the lanes is read from *panels* where that pays: copies in
which the columns of a tile lie side by side for one summed index after another. Panels of constants are made
once for each call of a kernel, others for each tile of columns. *Inner form*: lanes along the summed axis where
it is the last axis of both operands; the lanes are folded at the end.

Every element of the result is a sum in a fixed order, whatever the tile, so sizes of tiles and panels never
change a bit.
"""

import dataclasses
import itertools
import math

from nscan.plan import scalar
from nscan.plan.elements import Place
from nscan.plan.nests import bound_of, fold_lanes, slot_base
from nscan.plan.program import I64
from nscan.tape import Var

ROWS = (8, 4, 2, 1)
COLUMNS = (4, 1)
TIME = -1
# Lanes of the inner form are partial sums, so their number is part of the result; those of the outer form are not.
PARTIAL_BYTES = 64
# Summed indices that a panel holds; a longer sum is added up in such pieces.
CHUNK = 512
# Rows of the result from which panels pay.
WORTH_ROWS = 16
# A tile of b that spans no more than this needs no panel.
NEAR_BYTES = 1 << 15
# Panels of constants: not for a call of few steps, and not for operands whose copy would be large.
WORTH_STEPS, PANELS_BYTES = 4, 1 << 26
# Lanes of a tile that has one row.
WIDE_BYTES = 256


@dataclasses.dataclass
class Product:
    """A contraction on its way to loops.

    Attributes
    ----------
    la, lb, lo : tuple of int
        Labels of the axes of operands and result.
    a, b, out : Place
    classes : dict
        Label to AxisClass.
    add : bool
        The result is added to what is there.
    panels : Panels or None
        Those of b, where they were made beforehand.
    """

    la: tuple
    lb: tuple
    lo: tuple
    a: Place
    b: Place
    out: Place
    classes: dict
    add: bool
    dtype: object
    panels: object = None


class Tiled:
    """Common part: indices by label, loops over outer labels, multiply-add."""

    def __init__(self, e, p, lane):
        self.e, self.p, self.lane = e, p, lane
        self.looped = [k for k in p.classes if not p.classes[k].unrolled]
        self.summed = [k for k in dict.fromkeys((*p.la, *p.lb)) if k not in p.lo]
        self.small = [k for k in self.summed if k not in self.looped]
        self.fixed = [k for k in p.lo if k not in self.looped]
        self.count = 2 if p.dtype.kind == "c" else 1
        self.written = {p.out.slot}
        self.tile_b, self.spans, self.first = p.b, {}, None

    def bounds(self, label):
        """Range of the loop over a label."""
        return self.spans.get(label) or self.e.bounds(self.p.classes[label])

    def loop(self, label, **options):
        """Open the loop over a label."""
        lo, hi = self.bounds(label)
        return self.e.b.range(lo, hi, written=self.written, **options)

    def loops(self, labels, at, then):
        """Emit loops over labels, then what is inside."""
        if not labels:
            return then(at)
        with self.loop(labels[0]) as loop:
            self.loops(labels[1:], {**at, labels[0]: loop.index}, then)
        return None

    def unrolled(self, labels):
        """All points of unrolled labels, as dicts of constants."""
        sizes = [range(self.p.classes[k].size) for k in labels]
        return [dict(zip(labels, [self.e.b.const(n) for n in point])) for point in itertools.product(*sizes)]

    def load(self, which, at):
        """Element of an operand."""
        place, labels = (self.p.a, self.p.la) if which == "a" else (self.tile_b, self.p.lb)
        return self.e.load(place, tuple(at[k] for k in labels))

    def multiply_add(self, a, b, acc):
        """acc + a*b, fused for real floats."""
        if len(a) == 1 and a[0].dtype[0] == "f":
            return (self.e.b.op("fma", a[0].dtype, a[0], b[0], acc[0]),)
        return self.e.plus(acc, self.e.multiply(a, b))

    def accumulate(self, points, at, carried):
        """Add the products at one point of the summed looped labels to every accumulator of a tile."""
        out = []
        for n, point in enumerate(points):
            acc = tuple(carried[n * self.count:(n + 1) * self.count])
            for fixed in self.unrolled(self.small):
                place = {**point, **at, **fixed}
                acc = self.multiply_add(self.load("a", place), self.load("b", place), acc)
            out += acc
        return out

    def finish(self, points, total):
        """Store the elements of a tile, or add them to what is there."""
        for n, point in enumerate(points):
            parts = tuple(total[n * self.count:(n + 1) * self.count])
            idx = tuple(point[k] for k in self.p.lo)
            if self.p.add:
                parts = self.e.plus(self.e.load(self.p.out, idx), parts)
            elif self.first is not None:
                before = self.e.load(self.p.out, idx)
                parts = self.e.plus(self.e.select(self.first, self.e.constant(0, self.p.dtype), before), parts)
            self.e.store(self.p.out, idx, parts)

    def sum_over(self, labels, at, carried, step):
        """Loops over summed looped labels with carried accumulators."""
        if not labels:
            return step(at, carried)
        with self.loop(labels[0], carries=carried) as loop:
            loop.again(self.sum_over(labels[1:], {**at, labels[0]: loop.index}, loop.carried, step))
        return loop.results

    def blocks(self, label, at, sizes, tile):
        """Emit loops over blocks of a label: as many as there are of each size, the largest first."""
        b = self.e.b
        lo, hi = self.bounds(label)
        for size in sizes:
            count = b.op("int_div", I64, b.sub(hi, lo), b.const(size)) if size > 1 else b.sub(hi, lo)
            with b.range(b.const(0), count, written=self.written) as loop:
                tile({**at, label: b.add(lo, b.mul(loop.index, b.const(size)))}, size)
            lo = b.add(lo, b.mul(count, b.const(size)))

    def points(self, at, label, count):
        """Elements of a tile: unrolled labels times `count` neighbours along a label."""
        out = []
        for fixed in self.unrolled(self.fixed):
            for r in range(count):
                moved = {} if label is None else {label: self.e.b.add(at[label], self.e.b.const(r))}
                out.append({**at, **fixed, **moved})
        return out


class Outer(Tiled):
    """Lanes along a label of the result; tiles of rows; the operand with the lanes is b."""

    def __init__(self, e, p, lane):
        super().__init__(e, p, lane)
        rest = [k for k in p.lo if k in self.looped and k != lane]
        rows = [k for k in rest if k in p.la and k not in p.lb]
        self.row = rows[-1] if rows else None
        if TIME in rows and type(p.classes[self.row].size) is int and p.classes[self.row].size < 4 * ROWS[0]:
            self.row = TIME
        self.outer = [k for k in rest if k != self.row]
        self.inner = [k for k in self.summed if k in self.looped]
        self.width = e.product_bytes // min(8, p.dtype.itemsize) if lane is not None and not e.vector else 1
        few = self.width > 1 and self.row is None and len(self.unrolled(self.fixed)) <= 2
        self.wide = WIDE_BYTES // p.dtype.itemsize if few else self.width
        always = p.panels is not None and p.panels.use is None
        self.packs = self.width > 1 and bool(self.inner) and not always and (self.row is not None or p.panels is not None)
        self.first = None

    def emit(self):
        """Emit loops: outer labels, pieces of long sums, lanes, tiles of rows, summed labels."""
        self.loops(self.outer, {}, self._pieces)

    def _pieces(self, at):
        """Loops over pieces of a long sum."""
        if not self.packs and self.p.panels is None or not self._is_long():
            return self._lanes(at)
        e, b, label = self.e, self.e.b, self.inner[0]
        lo, hi = e.bounds(self.p.classes[label])
        one, others = b.const(1), b.const(1)
        for k in self._panel_labels(label):
            others = b.mul(others, e.size(self.p.classes[k]))
        each = scalar.largest(b, one, b.op("int_div", I64, b.const(CHUNK), scalar.largest(b, one, others)))
        count = b.op("int_div", I64, b.sub(b.add(b.sub(hi, lo), each), one), each)
        with b.range(b.const(0), scalar.largest(b, one, count), written=self.written) as loop:
            start = b.add(lo, b.mul(loop.index, each))
            self.spans[label] = start, scalar.smallest(b, b.add(start, each), hi)
            self.first = b.op("eq", "b1", loop.index, b.const(0))
            self._lanes(at)
            self.first = None
        del self.spans[label]
        return None

    def _panel_labels(self, but=None):
        """Labels of b within a panel."""
        return [k for k in self.p.lb if k not in (but, self.lane) and k not in self.outer]

    def _is_long(self):
        """Whether the sum may have more than CHUNK terms."""
        total = 1
        for k in self._panel_labels():
            size = self.p.classes[k].size
            if k == TIME or type(size) is not int:
                return True
            total *= size
        return total > CHUNK

    def _lanes(self, at):
        b = self.e.b
        if self.lane is None:
            return self._rows(at)
        size = self.e.size(self.p.classes[self.lane])
        start = b.const(0)
        if self.p.panels is not None:
            return self._lane_loop(at, start, size, self.p.panels.width)
        if self.wide > self.width:
            whole = b.mul(b.op("int_div", I64, size, b.const(self.wide)), b.const(self.wide))
            self._lane_loop(at, start, whole, self.wide)
            start = whole
        return self._lane_loop(at, start, size, self.width)

    def _lane_loop(self, at, lo, hi, width):
        packed, self.panel_width = self._buffer(width) if self.packs else None, width
        with self.e.b.range(lo, hi, width, written=self.written | ({packed.slot} if packed else set())) as loop:
            self.e.vector += width > 1
            here = {**at, self.lane: loop.index}
            self.tile_b = self._panel(here, packed) if packed or self.p.panels else self.p.b
            self._rows(here)
            self.e.vector -= width > 1

    def _buffer(self, width):
        """Memory of the panel of a tile: its strides by label, the first summed label outermost."""
        e, b, p = self.e, self.e.b, self.p
        labels = [self.inner[0], *self._panel_labels(self.inner[0])]
        bounds = [bound_of(p.classes[k]) for k in (labels[1:] if self._is_long() else labels)]
        slot = e.params.new_slot(p.b.dtype.itemsize, [width, *bounds], least=CHUNK * width)
        strides, step = {self.lane: b.const(p.b.dtype.itemsize)}, b.const(p.b.dtype.itemsize * width)
        for k in reversed(labels):
            strides[k] = step
            if k != labels[0]:
                step = b.mul(step, e.size(p.classes[k]))
        return Place(("work", slot), slot_base(e, slot), tuple(strides.get(k, b.const(0)) for k in p.lb), p.b.dtype)

    def _panel(self, at, packed):
        """Place from which a tile of columns reads b: a panel made beforehand or here, or b itself where that is as good."""
        e, b, p = self.e, self.e.b, self.p
        item = b.const(p.b.dtype.itemsize)
        base, strides, slot = None, None, None
        if packed is not None:
            base, strides, slot = self._pack(at, packed), packed.strides, packed.slot
            base, strides = self._unless_direct(at, base, strides)
        if p.panels is not None:
            made, steps = p.panels.at(e, at[self.lane]), tuple(item if k == self.lane else p.panels.strides[k] for k in p.lb)
            slot = slot or p.panels.slot
            choose = lambda x, y: x if y is None else scalar.op(b, "select", p.panels.use, x, y)  # noqa: E731
            base, strides = choose(made, base), tuple(choose(x, y) for x, y in zip(steps, strides or [None] * len(steps)))
        return Place(slot, base, tuple(item if k == self.lane else x for k, x in zip(p.lb, strides)), p.b.dtype)

    def _direct(self):
        """Whether b is read where it is: its lanes lie side by side, and near or for few rows."""
        e, b, p = self.e, self.e.b, self.p
        steps = dict(zip(p.lb, p.b.strides))
        unit = b.op("eq", "b1", steps[self.lane], b.const(p.b.dtype.itemsize))
        if self.row is None:
            return unit
        lo, hi = e.bounds(p.classes[self.row])
        lo2, hi2 = self.bounds(self.inner[0])
        few = b.op("lt", "b1", b.sub(hi, lo), b.const(WORTH_ROWS))
        near = b.op("le", "b1", b.mul(b.sub(hi2, lo2), steps[self.inner[0]]), b.const(NEAR_BYTES))
        return b.op("and", "b1", unit, b.op("or", "b1", few, near))

    def _pack(self, at, packed):
        """Copy what a tile of columns reads of b, unless it is read elsewhere; return the address of index 0 in it."""
        e, b, p = self.e, self.e.b, self.p
        skip = self._direct()
        if p.panels is not None:
            skip = b.op("or", "b1", skip, p.panels.use)
        first = self.inner[0]
        lo, hi = self.bounds(first)
        place = dict(zip(p.lb, packed.strides))
        base = b.sub(b.sub(packed.base, b.mul(lo, place[first])), b.mul(first_lane(b, at[self.lane], self.panel_width), place[self.lane]))
        target = Place(packed.slot, base, packed.strides, packed.dtype)

        def copy(here):
            e.store(target, tuple(here[k] for k in p.lb), e.load(p.b, tuple(here[k] for k in p.lb)))

        def inside(here):
            looped = [k for k in self._panel_labels(first) if k in self.looped]
            self.loops(looped, here, lambda now: [copy({**now, **fixed}) for fixed in self.unrolled(
                [k for k in self._panel_labels(first) if k not in self.looped])])
        with b.range(scalar.op(b, "select", skip, hi, lo), hi, written={packed.slot}, fence=True) as loop:
            inside({**at, first: loop.index})
        return base

    def _unless_direct(self, at, base, strides):
        """The panel's address and strides, or those of b itself."""
        b, p = self.e.b, self.p
        direct = self._direct()
        whole = p.b.base
        for k, stride in zip(p.lb, p.b.strides):
            if k in self.outer:
                whole = b.add(whole, b.mul(at[k], stride))
        choose = lambda x, y: scalar.op(b, "select", direct, x, y)  # noqa: E731
        mine = [b.const(0) if k in self.outer else x for k, x in zip(p.lb, p.b.strides)]
        return choose(whole, base), tuple(x if k in self.outer else choose(x, y) for k, x, y in zip(p.lb, mine, strides))

    def _rows(self, at):
        if self.row is None:
            return self._tile(at, 1)
        return self.blocks(self.row, at, ROWS, self._tile)

    def _tile(self, at, rows):
        points = self.points(at, self.row, rows)
        carried = [v for _ in points for v in self.e.constant(0, self.p.dtype)]
        total = self.sum_over(self.inner, {}, carried, lambda now, acc: self.accumulate(points, now, acc))
        self.finish(points, total)


def first_lane(b, j, width):
    """First lane of the round of a loop that is `width` lanes wide, wherever it runs lane by lane, too."""
    return b.op("round_down", I64, j, b.const(width))


@dataclasses.dataclass(frozen=True, eq=False)
class Panels:
    """The panels of a constant operand, made once for each call of a kernel.

    Attributes
    ----------
    x : Var
    labels : tuple
        Labels of its axes.
    lane : int
        The label along which it is cut into panels.
    width : int
        Lanes of a panel.
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
    lane: int
    width: int
    slot: object
    base: object
    strides: dict
    column: object
    use: object

    def at(self, e, j):
        """Address of index 0 of the lanes, as seen from the panel that has lane j."""
        b = e.b
        return b.add(self.base, b.mul(first_lane(b, j, self.width), b.sub(self.column, b.const(self.x.dtype.itemsize))))

    def emit(self, e):
        """Copy the operand into its panels."""
        b, classes = e.b, dict(zip(self.labels, e.axes.get(self.x)))
        size = e.size(classes[self.lane])
        hi = size if self.use is None else scalar.op(b, "select", self.use, size, b.const(0))
        rest = [k for k in self.labels if k != self.lane]
        steps = tuple(self.strides.get(k, b.const(self.x.dtype.itemsize)) for k in self.labels)

        def copy(labels, at, place):
            if not labels:
                idx = tuple(at[k] for k in self.labels)
                return e.store(place, idx, e.elem(self.x, idx))
            if classes[labels[0]].unrolled:
                for n in range(classes[labels[0]].size):
                    copy(labels[1:], {**at, labels[0]: b.const(n)}, place)
                return None
            with b.range(b.const(0), e.size(classes[labels[0]]), written={self.slot}) as loop:
                copy(labels[1:], {**at, labels[0]: loop.index}, place)
            return None
        with b.range(b.const(0), hi, self.width, written={self.slot}, fence=True) as loop:
            e.vector += 1
            copy(rest, {self.lane: loop.index}, Place(self.slot, self.at(e, loop.index), steps, self.x.dtype))
            e.vector -= 1


def make_panels(e, q, which, shared, steps):
    """Plan panels for a constant operand of a product; `steps` says how often the product runs."""
    b, p, x = e.b, q.params, q.inputs[which]
    labels, lane, item = tuple(p["lb"] if which else p["la"]), p["lo"][-1], x.dtype.itemsize
    classes = dict(zip(labels, e.axes.get(x)))
    other = q.inputs[1 - which]
    rows = [k for k, c in zip(p["la"] if which else p["lb"], e.axes.get(other)) if k in p["lo"] and not c.unrolled]
    fixed = [k for k in p["lo"] if k not in rows and k != lane]
    few = not rows and math.prod(classes[k].size for k in fixed if k in classes) <= 2
    width = (WIDE_BYTES if few else e.product_bytes) // item
    rest = [k for k in labels if k != lane]
    slot = e.params.new_slot(item, [("padded", classes[lane].number, width), *[bound_of(classes[k]) for k in rest]], shared=shared)
    strides, step = {}, b.const(item * width)
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
    return Panels(x, labels, lane, width, ("work", slot), slot_base(e, slot), strides, column, use)


def constant_operand(e, q, varying):
    """Which operand of a product is worth panels: 0, 1, or None."""
    p, out = q.params, q.outputs[0]
    if not p["lo"] or out.dtype.kind == "c" or e.axes.get(out)[-1].unrolled:
        return None
    for which, (labels, x) in enumerate(((p["la"], q.inputs[0]), (p["lb"], q.inputs[1]))):
        other = p["la"] if which else p["lb"]
        if type(x) is not Var or x in varying or p["lo"][-1] not in labels or p["lo"][-1] in other:
            continue
        classes = dict(zip(labels, e.axes.get(x)))
        plain = all(type(c.size) is int and c is not e.lane for c in classes.values())
        rest = [k for k in labels if k != p["lo"][-1]]
        summed = [k for k in rest if k not in p["lo"] and k in other]
        if plain and any(not classes[k].unrolled for k in summed) and all(k in summed or classes[k].unrolled for k in rest):
            return which
    return None


class Inner(Tiled):
    """Lanes along the summed label; tiles of columns."""

    def __init__(self, e, p, lane):
        super().__init__(e, p, lane)
        rest = [k for k in p.lo if k in self.looped]
        columns = [k for k in rest if k in p.lb and k not in p.la]
        rows = [k for k in rest if k in p.la and k not in p.lb]
        self.column = columns[-1] if columns else rows[-1] if rows else None
        self.outer = [k for k in rest if k != self.column]
        self.inner = [k for k in self.summed if k in self.looped and k != lane]
        self.width = PARTIAL_BYTES // min(8, p.dtype.itemsize) if not e.vector else 1

    def emit(self):
        """Emit loops: outer labels, tiles of columns, summed labels, lanes."""
        self.loops(self.outer, {}, self._columns)

    def _columns(self, at):
        if self.column is None:
            return self._tile(at, 1)
        return self.blocks(self.column, at, COLUMNS, self._tile)

    def _tile(self, at, columns):
        points = self.points(at, self.column, columns)
        zeros = [v for _ in points for v in self.e.constant(0, self.p.dtype)]
        total = self.sum_over(self.inner, {}, zeros, lambda now, acc: self._lanes(points, now, acc, zeros))
        self.finish(points, total)

    def _lanes(self, points, at, carried, zeros):
        e, wide = self.e, self.width > 1
        with self.loop(self.lane, width=self.width, carries=zeros) as loop:
            e.vector += wide
            loop.again(self.accumulate(points, {**at, self.lane: loop.index}, loop.carried))
            e.vector -= wide
        totals = [fold_lanes(e, "sum", v) for v in loop.results] if wide else loop.results
        out = []
        for n in range(len(points)):
            part = slice(n * self.count, (n + 1) * self.count)
            out += e.plus(tuple(carried[part]), tuple(totals[part]))
        return out
