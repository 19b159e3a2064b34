"""Reductions in a fixed order: over unrolled axes, over loops, over the lanes of a loop."""

import numpy as np

from nscan.plan import scalar
from nscan.plan.kinds import Statement
from nscan.tape import Var


def elements_of(e, eqn, kept, index):
    """Elements that a reduction combines at a point, one for each point of its unrolled reduced axes.

    Returns
    -------
    list of (components, place among all reduced elements)
    """
    x, axes = eqn.inputs[0], eqn.params["axes"]
    classes = e.axes.get(x)
    unrolled = [a for a in axes if classes[a].unrolled]
    out = []
    for q in np.ndindex(*[x.shape[a] for a in unrolled]):
        at = dict(zip(unrolled, q))
        reduced = [e.b.const(int(at[a])) if a in at else index[classes[a]] for a in axes]
        flat = e.b.const(0)
        for a, i in zip(axes, reduced):
            flat = e.b.add(e.b.mul(flat, e.dim(x, a)), i)
        out.append((e.elem(x, full_index(len(x.shape), axes, kept, reduced)), flat))
    return out


def points_of(e, v):
    """Points of the unrolled axes of a value."""
    if type(v) is not Var:
        return [()]
    return list(np.ndindex(*[d for d, c in zip(v.shape, e.axes.get(v)) if c.unrolled]))


class Job:
    """One accumulator: components, or (best value, its place) for argmax and argmin."""

    def __init__(self, e, s, point, elements):
        self.e, self.s, self.point, self.elements = e, s, point, elements
        self.name = "sum" if s.eqn is None else s.eqn.row.name
        self.is_place = self.name in ("argmax", "argmin")
        self.count = 2 if self.is_place or s.v.dtype.kind == "c" else 1

    def start(self):
        """Neutral element."""
        e = self.e
        if self.is_place:
            return [*as_number(e, identity(e, self.name, self.s.eqn.inputs[0].dtype)), e.b.const(0)]
        return list(identity(e, self.name, self.s.v.dtype))

    def add(self, acc):
        """Take in the elements at the present point."""
        e = self.e
        if not self.is_place:
            for parts, _ in self.elements():
                acc = combine(e, self.name, acc, parts)
            return list(acc)
        best, at = acc
        for parts, place in self.elements():
            parts = as_number(e, parts)
            wins = better(e, self.name, parts, (best,))
            best, at = scalar.op(e.b, "select", wins, parts[0], best), scalar.op(e.b, "select", wins, place, at)
        return [best, at]

    def finish(self, total):
        """Return the components of the result."""
        return (total[1],) if self.is_place else tuple(total)


def fold(e, index, order, jobs, width, written, inner=lambda: None):
    """Emit loops over reduced axes with their accumulators.

    Parameters
    ----------
    index : dict
        Axis class to loop index; filled in on the way.
    order : list of AxisClass
    jobs : list of Job
    width : int
        Lanes of the innermost loop: each lane has an accumulator of its own, combined in a fixed tree.
    inner : callable
        Emits what else is done at each point.

    Returns
    -------
    list of tuple
        Components of each result.
    """
    b = e.b

    def level(k, carried):
        last = k == len(order) - 1
        wide = last and width > 1 and not e.vector
        start = [v for job in jobs for v in job.start()] if wide else carried
        lo, hi = e.bounds(order[k])
        before = e.now
        with b.range(lo, hi, width if wide else 1, carries=start, written=written) as loop:
            e.vector += wide
            enter(e, index, order[k], loop.index)
            if last:
                left = iter(loop.carried)
                inside = [v for job in jobs for v in job.add(tuple(next(left) for _ in range(job.count)))]
                inner()
            else:
                inside = level(k + 1, loop.carried)
            loop.again(inside)
            e.vector -= wide
        e.now = before
        return join_lanes(loop.results, carried) if wide else loop.results

    def join_lanes(lanes, carried):
        out, lanes, carried = [], iter(lanes), iter(carried)
        for job in jobs:
            total = tuple(fold_lanes(e, job.name, next(lanes)) for _ in range(job.count))
            out += combine(e, job.name, tuple(next(carried) for _ in range(job.count)), total)
        return out

    left = iter(level(0, [v for job in jobs for v in job.start()]))
    return [job.finish([next(left) for _ in range(job.count)]) for job in jobs]


def enter(e, index, c, at):
    """Note the index of a loop; that of the axis of steps is the present step."""
    index[c] = at
    if c is e.time:
        e.now = at


FOLDS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "all": "and", "any": "or"}


def fold_lanes(e, name, v):
    """Combine the lanes of a vector accumulator."""
    op = FOLDS[name]
    if v.dtype == "b1":
        op = {"add": "or", "mul": "and", "max": "or", "min": "and"}.get(op, op)
    r = e.b.new(v.dtype)
    e.b.statement("fold", r.id, op, v.dtype, v.id)
    return r


def fold_here(e, eqn, idx):
    """A reduction over loops in the middle of an expression (nobody planned it as a statement)."""
    classes = e.axes.get(eqn.inputs[0])
    order = [classes[a] for a in eqn.params["axes"] if not classes[a].unrolled]
    index = {}
    job = Job(e, Statement(eqn, eqn.outputs[0], "reduce"), (), lambda: elements_of(e, eqn, idx, index))
    return fold(e, index, order, [job], 1, set())[0]


def full_index(ndim, axes, kept, reduced):
    """Merge indices of kept and reduced axes."""
    kept, reduced = iter(kept), iter(reduced)
    return tuple(next(reduced) if a in axes else next(kept) for a in range(ndim))


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
