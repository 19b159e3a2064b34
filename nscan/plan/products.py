"""Products as tiled loops within a kernel, in two forms.

*Outer form*: lanes along an axis of the result that is the last axis of one operand (unit stride); a tile of
rows times one vector of columns is accumulated in registers over the summed axes. *Inner form*: lanes along the
summed axis where it is the last axis of both operands; the lanes are folded at the end. Every element of the
result is a sum in a fixed order, whatever the tile, so sizes of tiles never change a bit. Large products are
left to a helper that all kernels share (`nscan.plan.strips`).
"""

import dataclasses
import itertools

from nscan.plan.folds import fold_lanes
from nscan.plan.program import I64
from nscan.plan.storage import Place

ROWS = (4, 1)
COLUMNS = (4, 1)
TIME = -1
# Lanes of the inner form are partial sums, so their number is part of the result; those of the outer form are not.
PARTIAL_BYTES = 64
# Lanes of a tile that has one row.
WIDE_BYTES = 256
# Fewer rows than this give way to the axis of steps.
FEW_ROWS = 32


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


def row_label(p, labels):
    """The label of the result along which a tile has rows: one of the first operand's alone, or None."""
    rows = [k for k in labels if k in p.la and k not in p.lb]
    if not rows:
        return None
    size = p.classes[rows[-1]].size
    return TIME if TIME in rows and type(size) is int and size < FEW_ROWS else rows[-1]


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

    def loop(self, label, **options):
        """Open the loop over a label."""
        lo, hi = self.e.bounds(self.p.classes[label])
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
        place, labels = (self.p.a, self.p.la) if which == "a" else (self.p.b, self.p.lb)
        return self.e.load(place, tuple(at[k] for k in labels))

    def multiply_add(self, a, b, acc):
        """Acc + a*b, fused for real floats."""
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
        lo, hi = self.e.bounds(self.p.classes[label])
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
    """Lanes along a label of the result; tiles of rows."""

    def __init__(self, e, p, lane):
        super().__init__(e, p, lane)
        rest = [k for k in p.lo if k in self.looped and k != lane]
        self.row = row_label(p, rest)
        self.outer = [k for k in rest if k != self.row]
        self.inner = [k for k in self.summed if k in self.looped]
        self.width = e.product_bytes // min(8, p.dtype.itemsize) if lane is not None and not e.vector else 1
        few = self.width > 1 and self.row is None and len(self.unrolled(self.fixed)) <= 2
        self.wide = WIDE_BYTES // p.dtype.itemsize if few else self.width

    def emit(self):
        """Emit loops: outer labels, lanes, tiles of rows, summed labels."""
        self.loops(self.outer, {}, self._lanes)

    def _lanes(self, at):
        b = self.e.b
        if self.lane is None:
            return self._rows(at)
        size = self.e.size(self.p.classes[self.lane])
        start = b.const(0)
        if self.wide > self.width:
            whole = b.mul(b.op("int_div", I64, size, b.const(self.wide)), b.const(self.wide))
            self._lane_loop(at, start, whole, self.wide)
            start = whole
        return self._lane_loop(at, start, size, self.width)

    def _lane_loop(self, at, lo, hi, width):
        with self.e.b.range(lo, hi, width, written=self.written) as loop:
            self.e.vector += width > 1
            self._rows({**at, self.lane: loop.index})
            self.e.vector -= width > 1

    def _rows(self, at):
        if self.row is None:
            return self._tile(at, 1)
        return self.blocks(self.row, at, ROWS, self._tile)

    def _tile(self, at, rows):
        points = self.points(at, self.row, rows)
        carried = [v for _ in points for v in self.e.constant(0, self.p.dtype)]
        total = self.sum_over(self.inner, {}, carried, lambda now, acc: self.accumulate(points, now, acc))
        self.finish(points, total)


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
