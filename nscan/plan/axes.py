"""Axes of a tape: which of them are the same axis.

A union-find over (value, axis). Two axes are one class if an equation walks them together. A class has one
size; the emitted text names sizes by class, so a new batch size is an argument, not a new text. Classes of
small size may be unrolled.
"""

import numpy as np

from nscan.ops.index import result_shape
from nscan.tape import Lit, Var

UNROLL_AXIS = 8
UNROLL_VALUE = 36


class AxisClass:
    """A class of axes: its size (int, or the Var of a run-time size), number, whether it is unrolled.

    An axis of steps (`stepped`) is walked by a loop, so it is never unrolled. `rivals` are classes of other axes
    of one value: two axes of a value are never one class, since a nest walks each by a loop of its own. Where an
    equation walks rivals together, both are marked as `split`. `fixed` and `mixed` are what another loop has decided
    (`nscan.plan.operands.alike`): whether the axis is unrolled, and whether it is no lane.
    """

    __slots__ = ("parent", "size", "number", "unrolled", "bound", "stepped", "rivals", "split", "fixed", "mixed")

    def __init__(self, size):
        self.parent = self
        self.size = size
        self.number = None
        self.unrolled = False
        self.bound = None
        self.stepped = False
        self.rivals = set()
        self.split = self.mixed = False
        self.fixed = None

    def find(self):
        """Return the representative."""
        root = self
        while root.parent is not root:
            root = root.parent
        while self.parent is not root:
            self.parent, self = root, self.parent
        return root

    @property
    def dynamic(self):
        """Whether the size is known only at run time."""
        return type(self.size) is Var

    def __repr__(self):
        return f"n{self.number}={self.size}" + ("u" if self.unrolled else "")


ONE = AxisClass(1)
ONE.unrolled = True


class Axes:
    """The axis classes of a tape and of the tapes inside it."""

    def __init__(self):
        self.of = {}
        self.all = []
        self.split = []

    def get(self, v):
        """Classes of the axes of a Var (size-1 axes: ONE)."""
        return tuple(c if c is ONE else c.find() for c in self.new(v))

    def new(self, v):
        """Make classes for a Var on first sight."""
        found = self.of.get(v)
        if found is None:
            found = []
            for d in v.shape:
                if type(d) is int and d == 1:
                    found.append(ONE)
                else:
                    c = AxisClass(d)
                    self.all.append(c)
                    found.append(c)
            self.of[v] = found
            for c in found:
                if c is not ONE:
                    c.rivals.update(d for d in found if d is not c and d is not ONE)
        return found

    def join(self, a, b):
        """Unite two classes of equal size."""
        if a is ONE or b is ONE:
            return
        a, b = a.find(), b.find()
        if a is b or a.size is not b.size and a.size != b.size:
            return
        if any(r.find() is b for r in a.rivals) or any(r.find() is a for r in b.rivals):
            a.split = b.split = True
            self.split.append((a, b))
            return
        b.parent = a
        a.rivals |= b.rivals
        a.split = a.split or b.split
        a.bound = a.bound or b.bound
        a.stepped = a.stepped or b.stepped

    def walk(self, tape):
        """Unite the axes that the equations of a tape walk together."""
        for v in tape.inputs:
            self.new(v)
        for eqn in tape.eqns:
            for v in (*eqn.inputs, *eqn.outputs):
                if type(v) is Var:
                    self.new(v)
            rule = RULES.get(eqn.row.name) or RULES.get(eqn.row.kind)
            if rule is not None:
                rule(self, eqn)

    def aligned(self, x, out, skip=0):
        """Unite trailing axes of an operand with those of an output."""
        if type(x) is not Var:
            return
        cx, co = self.new(x), self.new(out)
        for k in range(1 + skip, len(cx) + 1):
            if k <= len(co):
                self.join(cx[-k], co[-k])

    def number(self):
        """Number the classes in order of first appearance and return them."""
        roots = []
        for v in self.of:
            for c in self.get(v):
                if c is not ONE and c.number is None:
                    c.number = len(roots)
                    roots.append(c)
        return roots

    def unroll(self, lane=None):
        """Decide which classes are unrolled: small ones that are no lane and no axis of steps."""
        for v in self.of:
            for c in self.get(v):
                if c is not ONE:
                    small = type(c.size) is int and c.size <= UNROLL_AXIS and not c.stepped and c is not lane
                    c.unrolled = small and c.fixed is not False
        self._limit()

    def _limit(self):
        """Unroll no value of more than UNROLL_VALUE elements: the largest class gives in first, and what is walked with it."""
        changed = True
        while changed:
            changed = False
            for v in self.of:
                classes = [c for c in self.get(v) if c is not ONE and c.unrolled]
                total = int(np.prod([c.size for c in classes])) if classes else 1
                if total > UNROLL_VALUE:
                    max(classes, key=lambda c: (c.fixed is None, c.size, -c.number)).unrolled = False
                    changed = True
            for pair in self.split:
                a, b = (c.find() for c in pair)
                if a.unrolled != b.unrolled:
                    a.unrolled = b.unrolled = False
                    changed = True


def _pointwise(axes, eqn):
    for x in eqn.inputs:
        axes.aligned(x, eqn.outputs[0])


def _reduction(axes, eqn):
    x = eqn.inputs[0]
    kept = [c for k, c in enumerate(axes.new(x)) if k not in eqn.params["axes"]]
    for a, b in zip(kept, axes.new(eqn.outputs[0])):
        axes.join(a, b)


def _transpose(axes, eqn):
    cx = axes.new(eqn.inputs[0])
    for k, c in zip(eqn.params["perm"], axes.new(eqn.outputs[0])):
        axes.join(cx[k], c)


def _reshape(axes, eqn):
    x, y = eqn.inputs[0], eqn.outputs[0]
    for i, j in factor_pairs(x.shape, y.shape):
        if len(i) == 1 and len(j) == 1:
            axes.join(axes.new(x)[i[0]], axes.new(y)[j[0]])


def factor_pairs(a, b):
    """Split two shapes of equal size into groups of axes with equal products; size-1 axes stand alone.

    Returns
    -------
    list of (axes of a, axes of b)
    """
    ia = [k for k, d in enumerate(a) if not (type(d) is int and d == 1)]
    ib = [k for k, d in enumerate(b) if not (type(d) is int and d == 1)]
    pairs, i, j = [], 0, 0
    while i < len(ia) and j < len(ib):
        ga, gb = [ia[i]], [ib[j]]
        pa, pb = a[ia[i]], b[ib[j]]
        i, j = i + 1, j + 1
        while not (pa is pb or type(pa) is int and type(pb) is int and pa == pb):
            if type(pa) is not int or type(pb) is not int:
                ga += ia[i:]
                gb += ib[j:]
                i, j = len(ia), len(ib)
                break
            if pa < pb and i < len(ia) and type(a[ia[i]]) is int:
                pa *= a[ia[i]]
                ga.append(ia[i])
                i += 1
            elif pb < pa and j < len(ib) and type(b[ib[j]]) is int:
                pb *= b[ib[j]]
                gb.append(ib[j])
                j += 1
            else:
                ga += ia[i:]
                gb += ib[j:]
                i, j = len(ia), len(ib)
                break
        pairs.append((ga, gb))
    return pairs


def _concatenate(axes, eqn):
    axis = eqn.params["axis"]
    out = axes.new(eqn.outputs[0])
    for x in eqn.inputs:
        if type(x) is Var:
            for k, c in enumerate(axes.new(x)):
                if k != axis:
                    axes.join(c, out[k])


def _index_read(axes, eqn):
    region(axes, eqn.params["spec"], eqn.inputs[0], axes.new(eqn.outputs[0]), eqn.inputs[1:])


def _index_write(axes, eqn):
    x, value = eqn.inputs[:2]
    whole = eqn.outputs[0]
    for a, b in zip(axes.new(x), axes.new(whole)):
        axes.join(a, b)
    if type(value) is Var:
        shape = result_shape(eqn.params["spec"], whole.shape, eqn.inputs[2:])
        classes = [AxisClass(d) for d in shape[:len(shape) - len(value.shape)]]
        classes += [c if d is e or d == e else AxisClass(d)
                    for c, d, e in zip(axes.new(value), value.shape, shape[len(classes):])]
        region(axes, eqn.params["spec"], whole, classes, eqn.inputs[2:])


def region(axes, spec, x, co, operands):
    """Unite axes of an array with those (classes) of what an index selects in it."""
    cx = axes.new(x)
    axis, k = 0, 0
    arrays = sum(1 for e in spec.entries if e[0] == "arr")
    middle = max([operands[e[1]].ndim for e in spec.entries if e[0] == "arr"], default=0)
    placed = spec.place is None
    for entry in spec.entries:
        if not placed and k == spec.place:
            for e in spec.entries:
                if e[0] == "arr" and type(operands[e[1]]) is Var:
                    cy = axes.new(operands[e[1]])
                    for j in range(1, len(cy) + 1):
                        axes.join(cy[-j], co[k + middle - j])
            k += middle
            placed = True
        kind = entry[0]
        if kind == "new":
            k += 1
            continue
        if kind == "slice":
            whole = entry[1] == 0 and entry[3] == 1 or entry[3] == -1 and entry[1] == entry[2] - 1
            if whole and type(x.shape[axis]) is int and entry[2] == x.shape[axis]:
                axes.join(cx[axis], co[k])
            k += 1
        elif kind == "dyn":
            if co[k] is not ONE:
                co[k].find().bound = cx[axis]
            k += 1
        axis += 1
    if not placed and arrays:
        for e in spec.entries:
            if e[0] == "arr" and type(operands[e[1]]) is Var:
                cy = axes.new(operands[e[1]])
                for j in range(1, len(cy) + 1):
                    axes.join(cy[-j], co[k + middle - j])


def _contract(axes, eqn):
    p = eqn.params
    first = {}
    for labels, v in ((p["la"], eqn.inputs[0]), (p["lb"], eqn.inputs[1]), (p["lo"], eqn.outputs[0])):
        if type(v) is not Var:
            continue
        for label, c in zip(labels, axes.new(v)):
            if label in first:
                axes.join(first[label], c)
            else:
                first[label] = c


def _linalg(axes, eqn):
    for x in eqn.inputs:
        for out in eqn.outputs:
            if type(x) is not Var:
                continue
            cx, co = axes.new(x), axes.new(out)
            depth = len(x.shape) - 2
            lead = {"det": 0, "slogdet": 0}.get(eqn.row.name, None)
            batch = co if lead == 0 else co[:max(0, len(co) - (1 if len(out.shape) == depth + 1 else 2))]
            for k in range(1, depth + 1):
                if k <= len(batch):
                    axes.join(cx[depth - k], batch[len(batch) - k])
    a = eqn.inputs[0]
    out = eqn.outputs[0]
    if eqn.row.name == "solve":
        axes.join(axes.new(eqn.inputs[1])[-1], axes.new(out)[-1])
        axes.join(axes.new(eqn.inputs[1])[-2], axes.new(out)[-2])
    if eqn.row.name in ("inv", "cholesky"):
        for c, d in zip(axes.new(a), axes.new(out)):
            axes.join(c, d)


def _loop(axes, eqn):
    loop = eqn.params["loop"]
    join_loop(axes, loop, eqn.inputs, eqn.outputs)


def join_loop(axes, loop, inputs, outputs):
    """Unite the axes of a loop's operands and results with those of its step."""
    axes.walk(loop.step)
    _, seqs, states, sums, consts = loop.split_inputs(inputs)
    sseqs, sstates, ssums, sconsts = loop.split_step_inputs(loop.step.inputs)
    nstates, nsums, nrows, nhidden, _ = loop.split_step_outputs(loop.step.outputs)
    rows, finals, totals, _, _ = loop.split_outputs(outputs)
    length = None
    for a, b in zip(seqs, sseqs):
        _pair(axes, a, b, 1)
        if type(a) is Var and axes.new(a)[0] is not ONE:
            length = length or axes.new(a)[0]
            axes.new(a)[0].find().stepped = True
    for group in (zip(states, sstates), zip(sums, ssums), zip(consts, sconsts), zip(nstates, sstates), zip(nsums, ssums),
                  zip(finals, sstates), zip(totals, ssums)):
        for a, b in group:
            _pair(axes, a, b, 0)
    for a, b in zip(rows, nrows):
        _pair(axes, a, b, 1)
        first = axes.new(a)[0]
        if first is not ONE:
            first.find().stepped = True
        if first is not ONE and first.find().dynamic:
            first.find().bound = length if length is not None else _bound(inputs[0])
        if length is not None:
            axes.join(length, axes.new(a)[0])


def _bound(n):
    """Largest number of steps of a loop, or None."""
    return int(n.value) if type(n) is Lit and n.value < 1 << 40 else None


def _pair(axes, a, b, skip):
    if type(a) is Var and type(b) is Var:
        for c, d in zip(axes.new(a)[skip:], axes.new(b)):
            axes.join(c, d)


def _cond(axes, eqn):
    for tape in eqn.params["cond"].tapes():
        axes.walk(tape)
        for a, b in zip(eqn.inputs[1:], tape.inputs):
            _pair(axes, a, b, 0)
        for a, b in zip(eqn.outputs, tape.outputs):
            _pair(axes, a, b, 0)


def _searchsorted(axes, eqn):
    for a, b in zip(axes.new(eqn.inputs[1]), axes.new(eqn.outputs[0])):
        axes.join(a, b)


RULES = {"pointwise": _pointwise, "reduction": _reduction, "running": _pointwise, "order": _pointwise, "searchsorted": _searchsorted,
         "transpose": _transpose, "reshape": _reshape, "broadcast_to": _pointwise, "concatenate": _concatenate,
         "index": _index_read, "index_update": _index_write, "index_add": _index_write, "contract": _contract,
         "linalg": _linalg, "loop": _loop, "cond": _cond, "fill": lambda axes, eqn: None}

__all__ = ["ONE", "Axes", "AxisClass", "factor_pairs", "join_loop", "region"]
