"""Products with a looped summed axis, emitted as tiled loops.

*Outer form*: lanes along an axis of the result that is the last axis of one operand (unit stride); a tile of
rows times one vector of columns is accumulated in registers over the summed axis. *Inner form*: lanes along
the summed axis where it is the last axis of both operands; the lanes are folded at the end. Every element of
the result is a sum in a fixed order, whatever the tile, so tile sizes never change a bit.

Where a product runs for a block of steps at a time, the axis of steps is one more label: many small products
become one large one, and the product of a sum over steps sums over steps too.
"""

import dataclasses
import itertools

from nscan.plan.elements import Place, Rows
from nscan.plan.nests import block_rows, copy, emitter, fold_lanes, set_place, workspace
from nscan.tape import Lit

ROWS = 6
COLUMNS = 4
TIME = -1
# Lanes of the inner form are partial sums, so their number is part of the result; those of the outer form are not.
PARTIAL_BYTES = 64


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


@emitter("dot")
def emit_dot(body, s):
    """A contraction: operands in memory, the result in its place."""
    e, eqn, v = body.e, s.eqn, s.v
    p = eqn.params
    stored = target = s.into if s.into is not None else body.places(v)[0]
    operands = [in_memory(e, x) for x in eqn.inputs]
    classes = {} if e.time is None else {TIME: e.time}
    for labels, x in ((p["la"], eqn.inputs[0]), (p["lb"], eqn.inputs[1])):
        classes.update(zip(labels, e.axes.get(x)))
    if e.time is None:
        target = e.here(target)
    (la, a), (lb, b), (lo, out) = (_timed(labels, how) for labels, how in zip((p["la"], p["lb"], p["lo"]), (*operands, target)))
    emit_product(e, Product(la, lb, lo, a, b, out, classes, s.into is not None, v.dtype))
    if s.into is None:
        set_place(body, v, target, stored)


def _timed(labels, how):
    """Add the axis of steps to what is kept for many steps."""
    if type(how) is not Rows:
        return tuple(labels), how
    first = how.first
    return (TIME, *labels), Place(first.slot, first.base, (how.stride, *first.strides), first.dtype)


def in_memory(e, x):
    """Return the Place (or Rows, where products run for many steps) of a value; a virtual one is stored first."""
    assert type(x) is not Lit, "an operand of a product has axes"
    found = find_place(e, x)
    if found is not None:
        return found if e.time is not None else e.here(found)
    target = workspace(e, x) if e.time is None else block_rows(e, x)
    copy(e, x, target)
    return target


def find_place(e, x):
    """Place or Rows of something in memory, seen through transposes and static slices; None for others."""
    how = e.define.get(x)
    if type(how) in (Place, Rows):
        return how
    if type(how) is not tuple:
        return None
    if how[0] == "alias":
        inner = find_place(e, how[1])
        return None if inner is None else _map_place(inner, lambda p: _moved(e, p, how[2]))
    if how[0] == "eqn":
        q = how[1]
        if q.row.name not in ("transpose", "index") or q.row.name == "index" and not q.params["spec"].is_static:
            return None
        inner = find_place(e, q.inputs[0])
        if inner is None:
            return None
        if q.row.name == "transpose":
            perm = q.params["perm"]
            return _map_place(inner, lambda p: Place(p.slot, p.base, tuple(p.strides[k] for k in perm), p.dtype))
        return _map_place(inner, lambda p: _sliced(e, q, p))
    return None


def _map_place(how, change):
    return Rows(change(how.first), how.stride) if type(how) is Rows else change(how)


def _moved(e, p, lead):
    base = p.base
    for i, stride in zip(lead, p.strides):
        base = e.b.add(base, e.b.mul(i, stride))
    return Place(p.slot, base, p.strides[len(lead):], p.dtype, p.contiguous)


def _sliced(e, q, p):
    base, strides, axis = p.base, [], 0
    for entry in q.params["spec"].entries:
        if entry[0] == "new":
            strides.append(e.b.const(0))
            continue
        stride = p.strides[axis]
        base = e.b.add(base, e.b.mul(e.number(q.inputs[0], axis, entry[1]), stride))
        if entry[0] == "slice":
            strides.append(e.b.mul(stride, e.b.const(entry[3])))
        axis += 1
    return Place(p.slot, base, tuple(strides), p.dtype)


def emit_product(e, p):
    """Choose the form of a product and emit it."""
    looped = [k for k in p.classes if not p.classes[k].unrolled]
    last_a, last_b = p.la[-1], p.lb[-1]
    if last_b in p.lo and last_b in looped and last_b != TIME:
        return Outer(e, p, last_b).emit()
    if last_a in p.lo and last_a in looped and last_a != TIME:
        swapped = dataclasses.replace(p, la=p.lb, lb=p.la, a=p.b, b=p.a)
        return Outer(e, swapped, last_a).emit()
    if last_a == last_b and last_a not in p.lo and last_a in looped:
        return Inner(e, p, last_a).emit()
    free = [k for k in p.lo if k in looped and k != TIME]
    return Outer(e, p, free[-1] if free and not e.vector and p.dtype.kind != "c" else None).emit()


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
            self.e.store(self.p.out, idx, parts)

    def sum_over(self, labels, at, carried, step):
        """Loops over summed looped labels with carried accumulators."""
        if not labels:
            return step(at, carried)
        with self.loop(labels[0], carries=carried) as loop:
            loop.again(self.sum_over(labels[1:], {**at, labels[0]: loop.index}, loop.carried, step))
        return loop.results

    def blocks(self, label, at, size, tile):
        """Emit a loop over blocks of a label, then one over what is left."""
        b = self.e.b
        lo, hi = self.e.bounds(self.p.classes[label])
        count = b.op("int_div", "i8", b.sub(hi, lo), b.const(size))
        with b.range(b.const(0), count, written=self.written) as loop:
            tile({**at, label: b.add(lo, b.mul(loop.index, b.const(size)))}, size)
        with b.range(b.add(lo, b.mul(count, b.const(size))), hi, written=self.written) as loop:
            tile({**at, label: loop.index}, 1)

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
        rows = [k for k in rest if k in p.la and k not in p.lb]
        self.row = rows[-1] if rows else None
        if TIME in rows and type(p.classes[self.row].size) is int and p.classes[self.row].size < 4 * ROWS:
            self.row = TIME
        self.outer = [k for k in rest if k != self.row]
        self.inner = [k for k in self.summed if k in self.looped]
        self.width = e.product_bytes // min(8, p.dtype.itemsize) if lane is not None and not e.vector else 1
        self.wide = 256 // p.dtype.itemsize if self.width > 1 and self.row is None and len(self.unrolled(self.fixed)) <= 2 else self.width

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
            whole = b.mul(b.op("int_div", "i8", size, b.const(self.wide)), b.const(self.wide))
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
