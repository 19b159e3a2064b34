"""Products with a looped summed axis, emitted as tiled loops.

*Outer form*: lanes along an axis of the result that is the last axis of one operand (unit stride); a tile of
rows times one vector of columns is accumulated in registers over the summed axis. *Inner form*: lanes along
the summed axis where it is the last axis of both operands; the lanes are folded at the end. Every element of
the result is a sum in a fixed order, whatever the tile, so tile sizes never change a bit.
"""

import dataclasses
import itertools

from nscan.plan.elements import Place
from nscan.plan.nests import bound_of, copy, emitter, fold_lanes, set_place, workspace
from nscan.tape import Lit

ROWS = 6
COLUMNS = 4
LANES = {4: 16, 8: 8}


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
    place = s.into if s.into is not None else body.places(v)[0]
    a, b = (in_memory(e, x) for x in eqn.inputs)
    classes = {}
    for labels, x in ((p["la"], eqn.inputs[0]), (p["lb"], eqn.inputs[1])):
        classes.update(zip(labels, e.axes.get(x)))
    emit_product(e, Product(p["la"], p["lb"], p["lo"], a, b, place, classes, s.into is not None, v.dtype))
    if s.into is None:
        set_place(body, v, place)


def in_memory(e, x):
    """Return a Place of a value; a virtual one is stored first."""
    assert type(x) is not Lit, "an operand of a product has axes"
    how = e.define[x]
    if type(how) is tuple and how[0] == "alias":
        found = alias_place(e, how)
        if found is not None:
            return found
    if type(how) is Place:
        return how
    found = view_place(e, x, how)
    if found is not None:
        return found
    place = workspace(e, x)
    copy(e, x, place)
    return place


def alias_place(e, how):
    """Place of an alias of something in memory: the leading indices move the base."""
    _, target, lead = how
    inner = e.define[target]
    if type(inner) is tuple and inner[0] == "alias":
        inner = alias_place(e, inner)
    if type(inner) is not Place:
        return None
    base = inner.base
    for i, stride in zip(lead, inner.strides):
        base = e.b.add(base, e.b.mul(i, stride))
    return Place(inner.slot, base, inner.strides[len(lead):], inner.dtype, inner.contiguous)


def view_place(e, x, how):
    """Place of a transpose or a static slice of something in memory."""
    if type(how) is not tuple or how[0] != "eqn":
        return None
    q = how[1]
    if q.row.name not in ("transpose", "index") or q.row.name == "index" and not q.params["spec"].is_static:
        return None
    source = q.inputs[0]
    inner = e.define.get(source)
    if type(inner) is tuple and inner[0] == "alias":
        inner = alias_place(e, inner)
    elif type(inner) is not Place:
        inner = view_place(e, source, inner)
    if inner is None:
        return None
    if q.row.name == "transpose":
        return Place(inner.slot, inner.base, tuple(inner.strides[k] for k in q.params["perm"]), inner.dtype)
    return _sliced_place(e, q, inner)


def _sliced_place(e, q, inner):
    base, strides, axis = inner.base, [], 0
    for entry in q.params["spec"].entries:
        if entry[0] == "new":
            strides.append(e.b.const(0))
            continue
        stride = inner.strides[axis]
        base = e.b.add(base, e.b.mul(e.number(q.inputs[0], axis, entry[1]), stride))
        if entry[0] == "slice":
            strides.append(e.b.mul(stride, e.b.const(entry[3])))
        axis += 1
    return Place(inner.slot, base, tuple(strides), inner.dtype)


def emit_product(e, p):
    """Choose the form of a product and emit it."""
    looped = [k for k in p.classes if not p.classes[k].unrolled]
    last_a, last_b = p.la[-1], p.lb[-1]
    if last_b in p.lo and last_b in looped:
        return Outer(e, p, last_b).emit()
    if last_a in p.lo and last_a in looped:
        swapped = dataclasses.replace(p, la=p.lb, lb=p.la, a=p.b, b=p.a)
        return Outer(e, swapped, last_a).emit()
    if last_a == last_b and last_a not in p.lo and last_a in looped:
        return Inner(e, p, last_a).emit()
    free = [k for k in p.lo if k in looped]
    return Outer(e, p, free[-1] if free and not e.vector and p.dtype.kind != "c" else None).emit()


class Tiled:
    """Common part: indices by label, loops over outer labels, multiply-add."""

    def __init__(self, e, p):
        self.e, self.p = e, p
        self.looped = [k for k in p.classes if not p.classes[k].unrolled]
        self.summed = [k for k in p.la if k not in p.lo]

    def loops(self, labels, at, then):
        """Emit loops over labels, then what is inside."""
        e = self.e
        if not labels:
            return then(at)
        with e.b.range(e.b.const(0), e.size(self.p.classes[labels[0]]), written={self.p.out.slot}) as loop:
            self.loops(labels[1:], {**at, labels[0]: loop.index}, then)
        return None

    def unrolled(self, labels):
        """All points of unrolled labels, as dicts of constants."""
        sizes = [range(self.p.classes[k].size) for k in labels]
        return [dict(zip(labels, [self.e.b.const(n) for n in point])) for point in itertools.product(*sizes)]

    def load(self, which, at):
        """Element of an operand (``"a"``, ``"b"``) or of the result."""
        place, labels = {"a": (self.p.a, self.p.la), "b": (self.p.b, self.p.lb), "o": (self.p.out, self.p.lo)}[which]
        return self.e.load(place, tuple(at[k] for k in labels))

    def multiply_add(self, a, b, acc):
        """acc + a*b, fused for real floats."""
        if len(a) == 1 and a[0].dtype[0] == "f":
            return (self.e.b.op("fma", a[0].dtype, a[0], b[0], acc[0]),)
        return self.e.plus(acc, self.e.multiply(a, b))

    def start(self, at):
        """First value of an accumulator."""
        return self.e.constant(0, self.p.dtype)

    def finish(self, at, parts):
        """Store an element of the result, or add it to what is there."""
        idx = tuple(at[k] for k in self.p.lo)
        if self.p.add:
            parts = self.e.plus(self.e.load(self.p.out, idx), parts)
        self.e.store(self.p.out, idx, parts)

    def sum_over(self, labels, at, carried, step):
        """Loops over summed looped labels with carried accumulators."""
        e = self.e
        if not labels:
            return step(at, carried)
        with e.b.range(e.b.const(0), e.size(self.p.classes[labels[0]]), carries=carried, written={self.p.out.slot}) as loop:
            loop.again(self.sum_over(labels[1:], {**at, labels[0]: loop.index}, loop.carried, step))
        return loop.results


class Outer(Tiled):
    """Lanes along a label of the result; tiles of rows."""

    def __init__(self, e, p, lane):
        super().__init__(e, p)
        self.lane = lane
        rest = [k for k in p.lo if k in self.looped and k != lane]
        rows = [k for k in rest if k in p.la and k not in p.lb]
        self.row = rows[-1] if rows else None
        self.outer = [k for k in rest if k != self.row]
        self.fixed = [k for k in p.lo if k not in self.looped]
        self.inner = [k for k in self.summed if k in self.looped]
        self.width = LANES[8 if p.dtype.itemsize >= 8 else 4] if lane is not None and not e.vector else 1
        self.wide = self.width * 4 if self.row is None and len(self.unrolled(self.fixed)) <= 2 else self.width

    def emit(self):
        """Emit loops: outer labels, lanes, tiles of rows, summed labels."""
        self.loops(self.outer, {}, self._lanes)

    def _lanes(self, at):
        e, b = self.e, self.e.b
        if self.lane is None:
            return self._rows(at)
        size = e.size(self.p.classes[self.lane])
        start = b.const(0)
        if self.wide > self.width:
            whole = b.mul(b.op("int_div", "i8", size, b.const(self.wide)), b.const(self.wide))
            self._lane_loop(at, start, whole, self.wide)
            start = whole
        return self._lane_loop(at, start, size, self.width)

    def _lane_loop(self, at, lo, hi, width):
        e = self.e
        with e.b.range(lo, hi, width, written={self.p.out.slot}) as loop:
            e.vector += width > 1
            self._rows({**at, self.lane: loop.index})
            e.vector -= width > 1

    def _rows(self, at):
        e, b = self.e, self.e.b
        if self.row is None:
            return self._tile(at, 1)
        size = e.size(self.p.classes[self.row])
        blocks = b.op("int_div", "i8", size, b.const(ROWS))
        with b.range(b.const(0), blocks, written={self.p.out.slot}) as loop:
            self._tile({**at, self.row: b.mul(loop.index, b.const(ROWS))}, ROWS)
        with b.range(b.mul(blocks, b.const(ROWS)), size, written={self.p.out.slot}) as loop:
            self._tile({**at, self.row: loop.index}, 1)
        return None

    def _tile(self, at, rows):
        e = self.e
        points = [{**at, **fixed, **({self.row: e.b.add(at[self.row], e.b.const(r))} if self.row is not None else {})}
                  for fixed in self.unrolled(self.fixed) for r in range(rows)]
        count = 2 if self.p.dtype.kind == "c" else 1
        carried = [v for _ in points for v in e.constant(0, self.p.dtype)]
        small = [k for k in self.summed if k not in self.looped]

        def step(now, carried):
            out = []
            for n, point in enumerate(points):
                acc = tuple(carried[n * count:(n + 1) * count])
                for fixed in self.unrolled(small):
                    place = {**point, **now, **fixed}
                    acc = self.multiply_add(self.load("a", place), self.load("b", place), acc)
                out += acc
            return out
        total = self.sum_over(self.inner, {}, carried, step)
        for n, point in enumerate(points):
            self.finish(point, tuple(total[n * count:(n + 1) * count]))


class Inner(Tiled):
    """Lanes along the summed label; tiles of columns."""

    def __init__(self, e, p, lane):
        super().__init__(e, p)
        self.lane = lane
        rest = [k for k in p.lo if k in self.looped]
        columns = [k for k in rest if k in p.lb and k not in p.la]
        rows = [k for k in rest if k in p.la and k not in p.lb]
        self.column = columns[-1] if columns else rows[-1] if rows else None
        self.outer = [k for k in rest if k != self.column]
        self.fixed = [k for k in p.lo if k not in self.looped]
        self.inner = [k for k in self.summed if k in self.looped and k != lane]
        self.width = LANES[8 if p.dtype.itemsize >= 8 else 4] if not e.vector else 1

    def emit(self):
        """Emit loops: outer labels, tiles of columns, summed labels, lanes."""
        self.loops(self.outer, {}, self._columns)

    def _columns(self, at):
        e, b = self.e, self.e.b
        if self.column is None:
            return self._tile(at, 1)
        size = e.size(self.p.classes[self.column])
        blocks = b.op("int_div", "i8", size, b.const(COLUMNS))
        with b.range(b.const(0), blocks, written={self.p.out.slot}) as loop:
            self._tile({**at, self.column: b.mul(loop.index, b.const(COLUMNS))}, COLUMNS)
        with b.range(b.mul(blocks, b.const(COLUMNS)), size, written={self.p.out.slot}) as loop:
            self._tile({**at, self.column: loop.index}, 1)
        return None

    def _tile(self, at, columns):
        e = self.e
        points = [{**at, **fixed, **({self.column: e.b.add(at[self.column], e.b.const(r))} if self.column is not None else {})}
                  for fixed in self.unrolled(self.fixed) for r in range(columns)]
        count = 2 if self.p.dtype.kind == "c" else 1
        zeros = [v for _ in points for v in e.constant(0, self.p.dtype)]
        small = [k for k in self.summed if k not in self.looped]

        def lanes(now, carried):
            with e.b.range(e.b.const(0), e.size(self.p.classes[self.lane]), self.width, carries=zeros,
                           written={self.p.out.slot}) as loop:
                e.vector += self.width > 1
                out = []
                for n, point in enumerate(points):
                    acc = tuple(loop.carried[n * count:(n + 1) * count])
                    for fixed in self.unrolled(small):
                        place = {**point, **now, **fixed, self.lane: loop.index}
                        acc = self.multiply_add(self.load("a", place), self.load("b", place), acc)
                    out += acc
                loop.again(out)
                e.vector -= self.width > 1
            totals = [fold_lanes(e, "sum", v) for v in loop.results] if self.width > 1 else loop.results
            grouped = [tuple(totals[n * count:(n + 1) * count]) for n in range(len(points))]
            before = [tuple(carried[n * count:(n + 1) * count]) for n in range(len(points))]
            return [v for x, y in zip(before, grouped) for v in e.plus(x, y)]
        total = self.sum_over(self.inner, {}, zeros, lanes)
        for n, point in enumerate(points):
            self.finish(point, tuple(total[n * count:(n + 1) * count]))


__all__ = ["bound_of", "emit_product", "in_memory"]
