"""From equations to loop nests: what is materialised, in which order, fused with what.

A *statement* is an equation whose result is stored or combined: its elements are walked by a nest of loops
over its looped axes. Statements over the same axes share a nest if each reads the others only at its own
point. Everything else is virtual (`nscan.plan.elements`). Values without looped axes are scalars: computed at
their place, kept in registers.
"""

import dataclasses

import numpy as np

from nscan.plan import scalar
from nscan.plan.axes import ONE
from nscan.plan.elements import Place, Rows, as_number, better, combine, full_index, identity
from nscan.plan.program import I64
from nscan.plan.small import region_shape
from nscan.tape import RESIDUAL, Eqn, Lit, Var

# Cost of one element, in units of a multiplication; a value that costs more and is used more than once is stored.
WEIGHTS = {"exp": 12, "log": 14, "tanh": 16, "expit": 16, "sin": 16, "cos": 16, "power": 40, "sqrt": 6, "divide": 6,
           "logaddexp": 30, "erf": 24, "log1p": 16, "expm1": 14, "softplus": 24, "log_expit": 24}
STORE_FROM = 10


@dataclasses.dataclass(eq=False)
class Statement:
    """An equation to be walked.

    Attributes
    ----------
    eqn : Eqn
    v : Var
        Its (first) output.
    kind : str
        map, reduce, scalar, or the name of an emitter of `EMITTERS`.
    kept, reduced : tuple of AxisClass
        Looped axes of the nest, in the order of the axes of what is walked.
    soft : bool
        Stored only if a statement outside of its nest reads it.
    into : Place or None
        Where the result is added to what is there already (a term of a sum over steps).
    overlaps : bool
        Whether an indexed write reads, for an element, other elements of what it overwrites.
    """

    eqn: object
    v: object
    kind: str
    kept: tuple = ()
    reduced: tuple = ()
    soft: bool = False
    into: object = None
    overlaps: bool = False
    reads: dict = dataclasses.field(default_factory=dict)
    after: set = dataclasses.field(default_factory=set)

    @property
    def domain(self):
        """What statements of one nest have in common."""
        return self.kind == "scalar", self.kept, self.reduced


class Body:
    """A straight list of equations on its way to a program.

    Parameters
    ----------
    e : Elements
    eqns : sequence of Eqn
    dest : dict
        Var to list of Places where its value must be stored.
    terms : list of (Var or Eqn, Place)
        What is added to sums: values, and indexed additions.
    keep : sequence of Var
        Values whose memory must outlive the body; that of others is used again after their last reader.

    Where ``e.time`` is set, every statement runs for all steps of ``e.span``: the axis of steps is the first
    axis of every nest, and results that are stored are `Rows`.
    """

    def __init__(self, e, eqns, dest, terms=(), keep=()):
        self.e, self.dest, self.terms, self.keep = e, dest, list(terms), set(keep)
        self.held, self.free, self.borrowed = {}, {}, []
        self.eqns = list(eqns)
        self.lead = () if e.time is None else (e.time,)
        self.uses = self._count_uses()
        self.statements = []
        self.emitted = set()
        self.mine = set()
        self.reuse = {}

    def _count_uses(self):
        uses = {}
        for q in self.eqns:
            for v in q.inputs:
                if type(v) is Var:
                    uses[v] = uses.get(v, 0) + 1
        for v, places in self.dest.items():
            uses[v] = uses.get(v, 0) + len(places)
        for v, _ in self.terms:
            if type(v) is Var:
                uses[v] = uses.get(v, 0) + 1
        return uses

    # ------------------------------------------------------------------------------------------ planning
    def emit(self):
        """Emit every statement, in an order that respects what each reads."""
        e = self.e
        for q in self.eqns:
            for k, v in enumerate(q.outputs):
                e.define[v] = ("eqn", q, k)
        cost = {}
        for q in self.eqns:
            self._plan_one(q, cost)
        self._copies()
        self._add_terms()
        self.mine = {v: s.v for s in self.statements if s.into is None or s.kind == "dot"
                     for v in (s.eqn.outputs if s.eqn is not None else (s.v,))}
        for s in self.statements:
            s.reads = self._reads_of(s)
        self._plan_in_place()
        self._schedule()

    def _plan_one(self, q, cost):
        """Decide whether an equation is a statement."""
        e = self.e
        v = q.outputs[0]
        name, kind = q.row.name, q.row.kind
        looped = self.lead + self._loops(v)
        own = WEIGHTS.get(name, 1) if kind == "pointwise" else 1
        cost[v] = own + sum(cost.get(x, 0) for x in q.inputs if type(x) is Var)
        if kind == "loop":
            self.statements.append(Statement(q, v, "cond" if name == "cond" else "loop"))
        elif kind == "reduction" and self._reduces_loops(q):
            x = q.inputs[0]
            classes = e.axes.get(x)
            reduced = tuple(classes[a] for a in q.params["axes"] if not classes[a].unrolled)
            cost[v] = 0
            self.statements.append(Statement(q, v, "reduce", looped, reduced))
        elif special_kind(e, q):
            cost[v] = 0
            self.statements.append(Statement(q, v, special_kind(e, q)))
        elif not looped:
            cost[v] = 0
            self.statements.append(Statement(q, v, "scalar"))
        elif v in self.dest:
            self.statements.append(Statement(q, v, "map", looped))
            cost[v] = 0
        elif self.uses.get(v, 0) > 1 and cost[v] >= STORE_FROM and v not in self.dest and kind in ("pointwise", "contract", "linalg", "running"):
            self.statements.append(Statement(q, v, "map", looped, soft=True))
            cost[v] = 0

    def _reduces_loops(self, q):
        classes = self.e.axes.get(q.inputs[0])
        return any(not classes[a].unrolled for a in q.params["axes"])

    def _copies(self):
        """Values that must be stored but are no statements here: inputs of the body."""
        have = {s.v for s in self.statements}
        for v in self.dest:
            if v not in have:
                looped = self.lead + self._loops(v)
                self.statements.append(Statement(None, v, "map" if looped else "scalar", looped))

    def _add_terms(self):
        """Terms of sums: products go to the sum directly, others are added by a nest of their own."""
        made = {s.v: s for s in self.statements}
        for v, place in self.terms:
            if type(v) is Eqn:
                self.statements.append(Statement(v, v.outputs[0], "write", into=place))
                continue
            s = made.get(v)
            if s is not None and self.uses[v] == 1 and (s.kind == "dot" or s.kind == "reduce" and self.lead):
                s.into = place
                if s.kind == "reduce":
                    s.kept, s.reduced = s.kept[1:], self.lead + s.reduced
                continue
            kind = "reduce" if self.lead else "map" if self._loops(v) else "term"
            self.statements.append(Statement(None, v, kind, self._loops(v), self.lead, into=place))

    def _reads_of(self, s):
        """Statements of this body that a statement reads: Var to whether only at its own point."""
        reads = {}
        if s.eqn is None:
            self._follow(s.v, True, reads, set(), s.into is None)
            return reads
        aligned = s.kind in ("map", "reduce", "scalar")
        keeps = aligned and (s.kind == "reduce" or is_aligned(self.e, s.eqn))
        for x in sources(s.eqn):
            self._follow(x, keeps and self._same_loops(x, s), reads, set(), False)
        return reads

    def _same_loops(self, x, s):
        """Whether an operand is walked over exactly the loops of a statement."""
        return self.lead + self._loops(x) == self._whole(s)

    def _follow(self, x, aligned, reads, seen, top):
        """Follow a value through virtual equations to statements."""
        if type(x) is not Var or (x, aligned) in seen:
            return
        seen.add((x, aligned))
        if x in self.mine and not top:
            reads[self.mine[x]] = reads.get(self.mine[x], True) and aligned
            return
        how = self.e.define.get(x)
        if type(how) is tuple and how[0] == "alias":
            self._follow(how[1], False, reads, seen, False)
        elif type(how) is tuple and how[0] == "eqn" and how[1] in self._own():
            keeps = aligned and is_aligned(self.e, how[1])
            for y in sources(how[1]):
                same = keeps and self._loops(y) == self._loops(x)
                self._follow(y, same or keeps and not self._loops(y), reads, seen, False)
        elif type(how) in (Place, Rows):
            reads.setdefault(("memory", x), aligned)

    def _loops(self, v):
        """Looped axes of a value."""
        if type(v) is not Var or v.dtype is RESIDUAL:
            return ()
        return tuple(self.e.axes.get(v)[k] for k in self.e.looped(v))

    def _own(self):
        if not hasattr(self, "_own_set"):
            self._own_set = set(self.eqns)
        return self._own_set

    def _plan_in_place(self):
        """Let an indexed write reuse the memory of the array it writes to, if nobody reads that afterwards."""
        readers = {}
        for s in self.statements:
            for r in s.reads:
                x = r[1] if type(r) is tuple else r
                readers.setdefault(x, []).append(s)
        for s in self.statements:
            if s.kind != "write":
                continue
            x = s.eqn.inputs[0]
            if type(x) is not Var:
                continue
            how = self.e.define.get(x)
            owned = x in self.mine and self._kind_of(x) in ("write", "map", "dot", "running", "sort", "library") and not self.dest.get(x)
            writable = type(how) is Place and how.slot in self.e.writable
            if not owned and not writable:
                continue
            others = [t for t in readers.get(x, []) if t is not s]
            if any(self._depends(t, s.v, set()) for t in others) or any(self._reaches(y, x) for y in s.eqn.inputs[2:]):
                continue
            self.reuse[s.v] = x
            s.overlaps = self._reaches(s.eqn.inputs[1], x, s.eqn)
            s.after.update(t.v for t in others)

    def _reaches(self, y, x, write=None):
        """Whether reading a value reads the memory of x, elsewhere than at the element that is being written."""
        if y is x:
            return True
        how = self.e.define.get(y) if type(y) is Var and y not in self.mine else None
        if type(how) is not tuple or how[0] not in ("alias", "eqn"):
            return False
        if how[0] == "alias":
            return self._reaches(how[1], x)
        q = how[1]
        if write is not None and q.row.name == "index" and q.inputs[0] is x and _same_region(q, write):
            return any(self._reaches(z, x) for z in q.inputs[1:])
        keeps = write if q.row.kind == "pointwise" else None
        return any(self._reaches(z, x, keeps if z.shape == y.shape else None) for z in sources(q))

    def _kind_of(self, v):
        return next((s.kind for s in self.statements if s.v is v), None)

    def _depends(self, t, v, seen):
        """Whether a statement depends on another value."""
        if t.v in seen:
            return False
        seen.add(t.v)
        by = {s.v: s for s in self.statements if s.into is None}
        for r in t.reads:
            if r is v or r in by and self._depends(by[r], v, seen):
                return True
        return False

    # ---------------------------------------------------------------------------------------- scheduling
    def _schedule(self):
        left = list(self.statements)
        while left:
            first = next((s for s in left if self._ready(s, ())), None)
            assert first is not None, "a statement that never becomes ready"
            group = [first]
            if first.kind in ("map", "reduce", "scalar"):
                grew = True
                while grew:
                    grew = False
                    for s in left:
                        if s not in group and s.kind in ("map", "reduce", "scalar") and self._joins(group, s):
                            group.append(s)
                            grew = True
            left = [s for s in left if s not in group]
            self._emit_group(group, left)
            self._release(left)

    def _joins(self, group, s):
        lead = max(group, key=lambda g: len(g.reduced))
        if s.domain == lead.domain:
            return self._ready(s, {g.v for g in group if g.kind != "reduce"})
        whole = self._whole(lead)
        if lead.kind == "reduce" and s.kind == "map" and s.kept == whole:
            return self._ready(s, {g.v for g in group if g.kind == "map"})
        if s.kind == "reduce" and lead.kind == "map" and all(g.kind == "map" for g in group) and self._whole(s) == lead.kept:
            return self._ready(s, {g.v for g in group})
        return False

    def _whole(self, s):
        """Loops of a nest in the order of the axes of what is walked."""
        if s.kind != "reduce":
            return s.kept
        return self.lead + self._loops(s.v if s.eqn is None else s.eqn.inputs[0])

    def _ready(self, s, group):
        for r, aligned in s.reads.items():
            if type(r) is tuple or r in self.emitted:
                continue
            if not (r in group and aligned):
                return False
        return all(v in self.emitted for v in s.after)

    # ------------------------------------------------------------------------------------------ emission
    def _emit_group(self, group, left):
        for s in group:
            if s.soft and not any(s.v in t.reads for t in left):
                s.kind = "virtual"
        live = [s for s in group if s.kind != "virtual"]
        if live:
            kind = live[0].kind
            if kind == "scalar":
                for s in live:
                    self._emit_scalar(s)
            elif kind in ("map", "reduce"):
                self._emit_nest(live)
            else:
                EMITTERS[kind](self, live[0])
        self.emitted.update(s.v for s in group if s.into is None or s.kind == "dot")

    def _emit_scalar(self, s):
        e = self.e
        outs = s.eqn.outputs if s.eqn is not None else (s.v,)
        for v in outs:
            points = list(np.ndindex(*v.shape)) if type(v) is Var else [()]
            parts = {p: e.elem(v, tuple(e.b.const(int(i)) for i in p)) for p in points}
            for place in self.dest.get(v, ()):
                for p, part in parts.items():
                    e.store(place, tuple(e.b.const(int(i)) for i in p), part)
            if type(v) is Var and type(e.define[v]) is tuple and e.define[v][0] == "eqn":
                e.define[v] = ("scalars", parts)

    def places(self, v):
        """Places where a statement's value goes; a fresh piece of workspace if it has none."""
        found = self.dest.get(v)
        if found:
            return found
        how = self.borrow(v)
        self.held[how.slot] = self.borrowed.pop()[0], how, {v}
        return [how]

    def borrow(self, x):
        """Memory for a value that is no statement, until `give_back`."""
        key = x.dtype.itemsize, tuple(self.e.axes.get(x))
        free = self.free.get(key)
        how = retyped(free.pop(), x.dtype) if free else block_rows(self.e, x) if self.lead else workspace(self.e, x)
        self.borrowed.append((key, how))
        return how

    def give_back(self):
        """Free what was borrowed."""
        for key, how in self.borrowed:
            self.free.setdefault(key, []).append(how)
        self.borrowed = []

    def in_memory(self, x):
        """Return the Place (or Rows, for many steps) of an operand; a virtual one is stored in borrowed memory first."""
        found = find_place(self.e, x)
        if found is None:
            found = self.borrow(x)
            copy(self.e, x, found)
        return found if self.lead else self.e.here(found)

    def hold(self, v, slot):
        """Note that a value lies in a slot; if it is one of this body, it is used again after the last reader of all in it."""
        if slot in self.held:
            self.held[slot][2].add(v)

    def _release(self, left):
        """Free the memory of values that no statement reads any more."""
        needed = {r for s in left for r in s.reads}
        for slot, (key, how, values) in list(self.held.items()):
            if not any(v in self.keep or self.mine.get(v, v) in needed for v in values):
                del self.held[slot]
                self.free.setdefault(key, []).append(how)

    def _emit_nest(self, group):
        """Emit statements of one nest: maps store, reductions combine."""
        e = self.e
        lead = max(group, key=lambda g: len(g.reduced))
        whole = self._whole(lead)
        in_registers = not [c for c in whole if c not in lead.reduced]
        targets = {s.v: self.dest.get(s.v, ()) if in_registers and s.kind == "reduce" else self.places(s.v) for s in group
                   if s.into is None}
        width = 1 if not whole else vector_width([s.eqn for s in group if s.eqn is not None], [s.v for s in group])
        Nest(e, group, targets, lead, whole, width).emit()
        for s in group:
            if s.into is None and type(s.v) is Var and targets.get(s.v) and type(e.define.get(s.v)) is tuple and e.define[s.v][0] == "eqn":
                e.define[s.v] = targets[s.v][0]


class Nest:
    """Loops over the axes of a group of statements, being emitted.

    Parameters
    ----------
    e : Elements
    group : list of Statement
    targets : dict
        Var to the Places where its value goes.
    lead : Statement
        One that has the reduced axes of the group, if any has.
    whole : tuple of AxisClass
        All looped axes, in the order of the axes of what is walked.
    width : int
        Lanes of the innermost loop.
    """

    def __init__(self, e, group, targets, lead, whole, width):
        self.e, self.group, self.targets, self.whole, self.width = e, group, targets, whole, width
        self.reduced = [c for c in whole if c in lead.reduced]
        self.kept = [c for c in whole if c not in lead.reduced]
        self.inner_reduced = bool(whole) and whole[-1] in lead.reduced
        self.written = {p.slot for places in targets.values() for p in places} | {s.into.slot for s in group if s.into is not None}
        self.index = {}
        self.change = None

    def emit(self):
        """Emit the loops over kept axes, then those over reduced axes."""
        self._loops(self.kept)

    def _loops(self, rest):
        e = self.e
        if not rest:
            return self._inside()
        wide = self.width > 1 and len(rest) == 1 and not self.inner_reduced
        lo, hi = e.bounds(rest[0])
        before = e.now
        with e.b.range(lo, hi, self.width if wide else 1, written=self.written) as loop:
            e.vector += wide
            enter(e, self.index, rest[0], loop.index)
            self._loops(rest[1:])
            e.vector -= wide
        e.now = before
        return None

    def _inside(self):
        """Combine reductions over the reduced axes and store every result."""
        e = self.e
        maps = [s for s in self.group if s.kind != "reduce"]
        jobs = [Job(e, s, p, self._elements(s, p)) for s in self.group if s.kind == "reduce" for p in points_of(e, s.v)]
        if not jobs:
            return self._store_maps(maps)
        width = self.width if self.inner_reduced else 1
        totals = fold(e, self.index, self.reduced, jobs, width, self.written, lambda: self._store_maps(maps))
        for job, parts in zip(jobs, totals):
            self._store_total(job.s, job.point, parts)
        return None

    def at(self, v, p):
        """Index of a value: loop indices on looped axes, the point p on unrolled ones."""
        p = iter(p)
        return tuple(self.e.b.const(int(next(p))) if c.unrolled else self.index[c] for c in self.e.axes.get(v))

    def _elements(self, s, p):
        if s.eqn is None:
            return lambda: [(self.e.elem(s.v, self.at(s.v, p)), None)]
        return lambda: elements_of(self.e, s.eqn, self.at(s.v, p), self.index)

    def _store_maps(self, statements):
        for s in statements:
            for p in points_of(self.e, s.v):
                at = self.at(s.v, p)
                parts = self.e.elem(s.v, at)
                parts = parts if self.change is None else self.change(parts)
                if s.into is not None:
                    self.e.store(s.into, at, self.e.plus(self.e.load(s.into, at), parts))
                    continue
                for place in self.targets[s.v]:
                    self.e.store(place, at, parts)

    def _store_total(self, s, p, parts):
        """Keep a total in registers if its value has no looped axes, and store it where it was asked for."""
        e = self.e
        if s.into is not None:
            at = self.at(s.v, p)
            e.store(s.into, at, e.plus(e.load(s.into, at), parts))
            return
        if not self.kept:
            known = e.define[s.v]
            table = known[1] if type(known) is tuple and known[0] == "scalars" else {}
            table[p] = parts
            e.define[s.v] = ("scalars", table)
        for place in self.targets[s.v]:
            e.store(place, self.at(s.v, p), parts)


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


def split_sums(eqns, sums):
    """Take the equations that add to sums out of a list: (other equations, terms).

    A term is (Var, Place), or (Eqn, Place) for an indexed addition. ``total = (acc + f) + g`` has the terms f
    and g.
    """
    makers = {q.outputs[0]: q for q in eqns if q.row.name in ("add", "index_add")}
    terms, gone = [], set()
    for out, (acc, place) in sums.items():
        found = []
        while out is not acc:
            q = makers.get(out)
            assert q is not None, "a sum that is not made by additions"
            gone.add(q)
            first = q.row.name == "index_add" or _leads_to(q.inputs[0], acc, makers)
            found.append((q if q.row.name == "index_add" else q.inputs[1 if first else 0], place))
            out = q.inputs[0 if first else 1]
        terms += reversed(found)
    return [q for q in eqns if q not in gone], terms


def _leads_to(v, acc, makers):
    """Whether a value is the accumulator plus something."""
    while v is not acc:
        q = makers.get(v)
        if q is None:
            return False
        v = q.inputs[0]
    return True


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


# ------------------------------------------------------------------------------------------------- helpers
def sources(q):
    """Everything an equation reads: its inputs, run-time sizes, what tapes inside it capture are inputs too."""
    out = [x for x in q.inputs if type(x) is Var]
    for v in (*q.inputs, *q.outputs):
        out += [d for d in v.shape if type(d) is Var and d not in q.outputs]
    return out


ALIGNED = {"broadcast_to", "fill", "concatenate", "contract", "reshape"}


def is_library(e, q):
    """Whether an equation is a call of a library routine."""
    return q.row.kind == "linalg" and not _is_small(e, q)


def _same_region(read, write):
    """Whether a read selects, element by element, what a write stores; a gather may select an element twice."""
    spec = read.params["spec"]
    if spec != write.params["spec"] or any(entry[0] == "arr" and read.inputs[1 + entry[1]].shape for entry in spec.entries):
        return False
    pairs = zip(read.inputs[1:], write.inputs[2:])
    return len(read.inputs) == len(write.inputs) - 1 and all(a is b or type(a) is type(b) is Lit and a.value == b.value for a, b in pairs)


def is_aligned(e, q):
    """Whether an equation reads its operands only at its own point, along looped axes."""
    name, kind = q.row.name, q.row.kind
    if kind in ("pointwise", "size", "linalg", "reduction", "running") or name in ALIGNED:
        return True
    if name == "index":
        return all(entry[0] in ("slice", "at", "new") and (entry[0] != "slice" or entry[3] == 1) for entry in q.params["spec"].entries)
    return False


def special_kind(e, q):
    """Name of the emitter of an equation that is no elementwise walk, or None."""
    name, kind = q.row.name, q.row.kind
    v = q.outputs[0]
    if name in ("index_update", "index_add"):
        return None if _writes_scalars(e, q) else "write"
    if name == "concatenate":
        return None if e.axes.get(v)[q.params["axis"]].unrolled else "concatenate"
    if name == "contract":
        sizes = dict(zip(q.params["la"], e.axes.get(q.inputs[0]) if type(q.inputs[0]) is Var else ()))
        summed = [k for k in q.params["la"] if k not in q.params["lo"]]
        return "dot" if q in e.outers or any(not sizes[k].unrolled for k in summed if k in sizes) else None
    if kind == "running":
        return None if e.axes.get(v)[q.params["axis"]].unrolled else "running"
    if kind == "order" and name != "searchsorted":
        return "sort"
    if is_library(e, q):
        return "library"
    if name == "reshape" and _needs_memory(e, q):
        return "reshape"
    return None


def _is_small(e, q):
    if q.row.name not in ("solve", "inv", "det", "slogdet", "cholesky"):
        return False
    return all(c.unrolled for x in q.inputs if type(x) is Var for c in e.axes.get(x)[-2:])


def _writes_scalars(e, q):
    x = q.inputs[0]
    spec = q.params["spec"]
    classes = e.axes.get(q.outputs[0])
    if any(not c.unrolled for c in classes) or any(entry[0] in ("dyn",) for entry in spec.entries):
        return False
    shape = region_shape(spec, q.outputs[0] if type(x) is not Var else x, q.inputs[2:])
    return all(type(d) is int for d in shape) and int(np.prod(shape, dtype=int)) <= 64


def _needs_memory(e, q):
    """A reshape that merges or splits looped axes is free in memory and costs divisions otherwise."""
    from nscan.plan.axes import factor_pairs
    x, y = q.inputs[0], q.outputs[0]
    if type(x) is not Var:
        return False
    cx, cy = e.axes.get(x), e.axes.get(y)
    for gx, gy in factor_pairs(x.shape, y.shape):
        if len(gx) == 1 and len(gy) == 1 and cx[gx[0]].unrolled == cy[gy[0]].unrolled:
            continue
        if any(not cx[k].unrolled for k in gx) or any(not cy[k].unrolled for k in gy):
            return True
    return False


def vector_width(eqns, vs):
    """Lanes that run side by side: 16 for 4-byte types, 8 for wider ones, 1 where lanes cannot run together."""
    wide = False
    for q in eqns:
        for x in (*q.inputs, *q.outputs):
            if x.dtype.itemsize >= 8 and (type(x) is Var and x.shape):
                wide = True
        if q.row.name in ("argmax", "argmin") or q.row.name == "prod" and q.outputs[0].dtype.kind == "c":
            return 1
    for v in vs:
        wide = wide or v.dtype.itemsize >= 8
    return 8 if wide else 16


def workspace(e, v, shared=False):
    """Return a Place for a value in a fresh piece of workspace, in C order."""
    classes = e.axes.get(v)
    slot = e.params.new_slot(v.dtype.itemsize, [bound_of(c) for c in classes], shared=shared)
    return Place(("work", slot), slot_base(e, slot), row_major(e, classes, v.dtype), v.dtype, True)


def row_major(e, classes, dtype, size=None):
    """Byte strides of an array in C order."""
    strides, step = [], e.b.const(dtype.itemsize)
    for k, c in enumerate(reversed(classes), 1):
        strides.append(step)
        # The first size is in no stride; it may be the number of steps of a loop that has not run yet.
        if k < len(classes):
            step = e.b.mul(step, (size or e.size)(c))
    return tuple(reversed(strides))


def bytes_of(e, v):
    """Bytes of a value, as a value of the program."""
    total = e.b.const(v.dtype.itemsize)
    for c in e.axes.get(v):
        total = e.b.mul(total, e.size(c))
    return total


def slot_base(e, slot):
    """Address of a workspace slot: every part of lanes or steps has a workspace of its own, but for what all share."""
    b, get = e.b, e.params.get
    if e.params.slots[slot].shared:
        return b.add(get(b, ("shared",)), get(b, ("slot", slot)))
    part = b.op("arg", I64, b.const(4))
    return b.add(b.add(get(b, ("workspace",)), b.mul(part, get(b, ("part",)))), get(b, ("slot", slot)))


def block_rows(e, v):
    """Return Rows for a value in a fresh piece of workspace that holds a block of steps."""
    classes = e.axes.get(v)
    slot = e.params.new_slot(v.dtype.itemsize, [("block",), *[bound_of(c) for c in classes]])
    stride = bytes_of(e, v)
    base = e.b.sub(slot_base(e, slot), e.b.mul(e.b.op("arg", I64, e.b.const(0)), stride))
    return Rows(Place(("work", slot), base, row_major(e, classes, v.dtype), v.dtype, True), stride)


def bound_of(c):
    """Largest size of an axis class: an int, or a key of the block (a capacity grows when it is not enough)."""
    if c is ONE or type(c) is int:
        return 1 if c is ONE else c
    c = c.find()
    if c.dynamic:
        if c.bound is None:
            return ("capacity", c.number)
        return bound_of(c.bound)
    return c.size if c.unrolled else ("size", c.number)


def retyped(how, dtype):
    """The same memory for elements of another dtype of equal size."""
    if type(how) is Rows:
        return dataclasses.replace(how, first=dataclasses.replace(how.first, dtype=dtype))
    return dataclasses.replace(how, dtype=dtype)


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


EMITTERS = {}


def add_term(body, s):
    """Add a value without looped axes to a sum in memory."""
    e = body.e
    for p in points_of(e, s.v):
        at = tuple(e.b.const(int(i)) for i in p)
        e.store(s.into, at, e.plus(e.load(s.into, at), e.elem(s.v, at)))


EMITTERS["term"] = add_term


def emitter(kind):
    """Register how a kind of statement is emitted."""
    def enter(function):
        EMITTERS[kind] = function
        return function
    return enter


def set_place(body, v, place, stored=None):
    """Say where a value lies from now on; copy it to the places that were asked for, but for the one `stored`."""
    body.e.define[v] = place
    body.hold(v, place.slot)
    for other in body.dest.get(v, ()):
        if other is not stored:
            copy(body.e, v, other)


def copy(e, v, place, change=None):
    """Copy a value to a place (or to rows, for all steps of the span), by a nest of its own.

    ``change(components)`` may give other components to store.
    """
    whole = (() if e.time is None else (e.time,)) + tuple(e.axes.get(v)[k] for k in e.looped(v))
    s = Statement(None, v, "map", whole)
    nest = Nest(e, [s], {v: [place]}, s, whole, vector_width((), (v,)) if whole else 1)
    nest.change = change
    nest.emit()


__all__ = ["Body", "Nest", "Statement", "bytes_of", "copy", "emitter", "row_major", "set_place", "slot_base", "workspace"]
