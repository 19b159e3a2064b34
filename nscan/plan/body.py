"""From equations to loop nests: what is materialised, in which order, fused with what.

A *statement* is an equation whose result is stored or combined: its elements are walked by a nest of loops
over its looped axes. Statements over the same axes share a nest if each reads the others only at its own
point. Everything else is virtual (`nscan.plan.elements`). Values without looped axes are scalars: computed at
their place, kept in registers.
"""

import numpy as np

from nscan.plan.folds import points_of
from nscan.plan.kinds import Statement, is_aligned, same_region, sources, special_kind, vector_width
from nscan.plan.nests import Nest
from nscan.plan.storage import Place, Rows, block_rows, find_place, retyped, workspace
from nscan.tape import RESIDUAL, Eqn, Lit, Var

STORE_FROM = 10


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
    given : dict
        What ``e.define`` says about results that are at hand.

    Where ``e.time`` is set, every statement runs for all steps of ``e.span``: the axis of steps is the first
    axis of every nest, and results that are stored are `Rows`.
    """

    def __init__(self, e, eqns, dest, terms=(), keep=(), given=None):
        self.e, self.dest, self.terms, self.keep = e, dest, list(terms), set(keep)
        self.held, self.free, self.borrowed = {}, {}, []
        self.eqns, self.given = list(eqns), given or {}
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
        e.define.update(self.given)
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
        cost[v] = q.row.cost + sum(cost.get(x, 0) for x in q.inputs if type(x) is Var)
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
        elif (self.uses.get(v, 0) > 1 and cost[v] >= STORE_FROM and v not in self.dest
              and kind in ("pointwise", "contract", "linalg", "running")):
            self.statements.append(Statement(q, v, "map", looped, soft=True))
            cost[v] = 0

    def _reduces_loops(self, q):
        classes = self.e.axes.get(q.inputs[0])
        return any(not classes[a].unrolled for a in q.params["axes"])

    def _copies(self):
        """Values that must be stored but are no statements here: inputs of the body."""
        have = {v for s in self.statements for v in ((s.v,) if s.kind in ("map", "reduce") else s.eqn.outputs)}
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
        if write is not None and q.row.name == "index" and q.inputs[0] is x and same_region(q, write):
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
            group = _Group(first)
            left = [s for s in left if s is not first]
            size = 0
            while first.kind in NESTED and len(group.members) > size:
                size = len(group.members)
                left = [s for s in left if not (s.kind in NESTED and self._joins(group, s) and group.add(s))]
            self._emit_group(group.members, left)
            self._release(left)

    def _joins(self, group, s):
        lead = group.lead
        if lead.kind == s.kind == "reduce" and _width([lead]) != _width([s]):
            return False
        if s.domain == lead.domain:
            return self._ready(s, group.stored)
        whole = self._whole(lead)
        if lead.kind == "reduce" and s.kind == "map" and s.kept == whole:
            return self._ready(s, group.maps)
        if s.kind == "reduce" and lead.kind == "map" and len(group.maps) == len(group.members) and self._whole(s) == lead.kept:
            return self._ready(s, group.stored)
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
        for s in [s for s in group if s.soft]:
            if not any(s.v in t.reads for t in left):
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
            self.e.clock.ran(self.e, self._behind(live))
        self.emitted.update(s.v for s in group if s.into is None or s.kind == "dot")

    def _behind(self, group):
        """Equations that are computed by statements: their own, and virtual ones that are read through."""
        found = dict.fromkeys(s.eqn for s in group if s.eqn is not None)
        stack = [x for s in group for x in (sources(s.eqn) if s.eqn is not None else [s.v])]
        while stack:
            x = stack.pop()
            how = None if type(x) is Lit or x in self.mine else self.e.define.get(x)
            if type(how) is tuple and how[0] == "alias":
                stack.append(how[1])
            elif type(how) is tuple and how[0] == "eqn" and how[1] not in found:
                found[how[1]] = None
                stack += sources(how[1])
        return found

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
        needed = {r for s in left for r in s.reads} if self.held else ()
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
        # The lanes of a reduction are partial sums, so their number hangs on nothing else in the nest.
        width = 1 if not whole else _width([lead] if lead.kind == "reduce" else group)
        Nest(e, group, targets, lead, whole, width).emit()
        for s in group:
            if s.into is None and type(s.v) is Var and targets.get(s.v) and type(e.define.get(s.v)) is tuple and e.define[s.v][0] == "eqn":
                e.define[s.v] = targets[s.v][0]


def _width(statements):
    """Lanes that the loops of some statements run side by side."""
    return vector_width([s.eqn for s in statements if s.eqn is not None], [s.v for s in statements])


NESTED = ("map", "reduce", "scalar")
EMITTERS = {}


class _Group:
    """Statements that share one loop nest, while it is gathered.

    Attributes
    ----------
    members : list of Statement
    lead : Statement
        The (first) one with most reduced axes.
    maps, stored : set of Var
        Results of the maps; of all that is no reduction.
    """

    def __init__(self, first):
        self.members, self.lead, self.maps, self.stored = [], first, set(), set()
        self.add(first)

    def add(self, s):
        """Take a statement in; return True."""
        self.members.append(s)
        if len(s.reduced) > len(self.lead.reduced):
            self.lead = s
        if s.kind == "map":
            self.maps.add(s.v)
        if s.kind != "reduce":
            self.stored.add(s.v)
        return True


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
