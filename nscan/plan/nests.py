"""Loop nests: a group of statements over the same axes, walked together."""

from nscan.plan.folds import Job, elements_of, enter, fold, points_of


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
