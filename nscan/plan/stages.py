"""Fission of a step: what runs once, what runs for a whole block of steps at a time, what runs step by step.

=============  =================================================================================
stage          equations
=============  =================================================================================
invariant      depend on constants only: run once, before the first step
pre            depend on no state: run for a block of steps before its sequential part
core           on a cycle through a state, or impossible to run for many steps at a time
post           feed no state: run for a block of steps after its sequential part
=============  =================================================================================

An equation leaves the core only where that pays: products (many small ones become one large one), costly
functions of scalar steps (the lanes are then steps), sums over steps of what is at hand anyway.
"""

import dataclasses

from nscan.plan.kinds import is_library, sources, special_kind, split_sums
from nscan.tape import Eqn, Var

COSTLY = 6


@dataclasses.dataclass
class Stages:
    """The equations of a step by stage; virtual ones stand in every list that needs them.

    Attributes
    ----------
    invariant, pre, core, post : list of Eqn
    from_invariant : list of Var
        Results of invariant equations that later stages read from memory.
    from_pre : list of Var
        Results of pre that core and post read from the buffers of a block.
    from_core : list of Var
        Results of the core, and states before the step, that post reads.
    core_terms, post_terms : list of (number of the sum, Var, Lit or Eqn)
    late : tuple of bool
        Which of all terms, in order, are those of post.
    post_rows : set of int
        Rows that post stores.
    varying : set of Var
        Values that may differ from step to step.
    outers : set of Eqn
        Outer products that go nowhere but into a sum.
    """

    invariant: list
    pre: list
    core: list
    post: list
    from_invariant: list
    from_pre: list
    from_core: list
    core_terms: list
    post_terms: list
    post_rows: set
    varying: set
    outers: set
    late: tuple

HANDED = 4  # a value that the sequential part hands on is stored and loaded: what reads it afterwards must be worth that


class _Splitter:
    def __init__(self, e, loop, late):
        self.e = e
        step = loop.step
        self.seqs, self.states, self.sums, _ = loop.split_step_inputs(step.inputs)
        self.news, new_sums, rows, hidden, self.stop = loop.split_step_outputs(step.outputs)
        self.rows = [*rows, *hidden]
        self.eqns, terms = split_sums(step.eqns, {new: (v, k) for k, (v, new) in enumerate(zip(self.sums, new_sums))})
        self.terms = [(k, t) for t, k in terms]
        self.late = late if late is not None and len(late) == len(terms) else None
        self.maker = {v: q for q in self.eqns for v in q.outputs}
        self.varying = self._reach([*self.seqs, *self.states, *self.sums])
        self.stateful = self._reach(self.states)
        self.outers = e.outers = {self.maker[t] for _, t in self.terms if self._is_outer(t)}
        self.changing = [q for q in self.eqns if any(v in self.varying for v in q.outputs)]
        self.scalar = not any(e.looped(v) for q in self.changing for v in q.outputs)

    # ------------------------------------------------------------------------------------------- helpers
    def _reach(self, start):
        """Values that depend on some inputs."""
        found = set(start)
        for q in self.eqns:
            if any(v in found for v in sources(q)):
                found.update(q.outputs)
        return found

    def _needed(self, wanted, stop=()):
        """Equations behind some values, not looking behind those of `stop`."""
        stop = set(stop)
        needed, out = {v for v in wanted if type(v) is Var}, []
        for q in reversed(self.eqns):
            if any(v in needed for v in q.outputs) and not any(v in stop for v in q.outputs):
                out.append(q)
                needed.update(sources(q))
        return out[::-1]

    def _is_stateful(self, q):
        return any(v in self.stateful for v in q.outputs)

    def _is_outer(self, t):
        """Whether a term of a sum is an outer product that nobody else reads."""
        q = self.maker.get(t) if type(t) is Var else None
        if q is None or q.row.name != "contract" or sum(v is t for p in self.eqns for v in p.inputs) or t in self.news or t in self.rows:
            return False
        both = ((q.params["la"], q.params["lb"], q.inputs[0]), (q.params["lb"], q.params["la"], q.inputs[1]))
        return sum(v is t for _, v in self.terms) == 1 and all(type(x) is Var and any(
            k not in other and not c.unrolled for k, c in zip(mine, self.e.axes.get(x))) for mine, other, x in both)

    def _is_dot(self, q):
        return special_kind(self.e, q) == "dot"

    def _batchable(self, q):
        """Whether an equation can run for many steps at a time."""
        if q.row.kind in ("loop", "size", "running", "order") or q.row.name in ("argmax", "argmin") or is_library(self.e, q):
            return False
        if any(type(d) is Var for v in (*q.inputs, *q.outputs) for d in v.shape):
            return False
        return special_kind(self.e, q) in (None, "dot")

    # -------------------------------------------------------------------------------------------- stages
    def split(self):
        """Return the Stages."""
        stuck = self._stuck()
        post = self._post(stuck)
        moves = self.late
        if moves is None:
            moves = tuple([self._moves(t, post) for _, t in self.terms])
        else:
            post.difference_update(self._needed([t for (_, t), flag in zip(self.terms, moves) if not flag]))
        post_terms = [term for term, flag in zip(self.terms, moves) if flag]
        core_terms = [term for term, flag in zip(self.terms, moves) if not flag]
        post_rows = {k for k, v in enumerate(self.rows) if self.maker.get(v) in post}
        wanted = [*self.news, self.stop, *[v for k, v in enumerate(self.rows) if k not in post_rows]]
        wanted += [v for _, t in core_terms for v in (sources(t) if type(t) is Eqn else [t])]
        late_reads = {v for q in post for v in sources(q)} | {t for _, t in post_terms}
        behind = self._needed(late_reads, self._from_core(post, stuck, late_reads))
        late_reads |= {v for q in behind if q in stuck for v in q.outputs}
        from_core = self._from_core(post, stuck, late_reads)
        core = [q for q in self._needed([*wanted, *from_core]) if q not in post]
        from_pre = self._roots(core, [q for q in post if not self._is_dot(q)], stuck)
        core = [q for q in self._needed([*wanted, *from_core], from_pre) if q not in post]
        pre = self._needed(from_pre)
        late = self._needed([v for q in post for v in q.outputs] + [t for _, t in post_terms], {*from_pre, *from_core})
        kept, invariant, lists = self._invariant((core, pre, late))
        return Stages(invariant, lists[1], lists[0], lists[2], kept, from_pre, from_core, core_terms, post_terms, post_rows,
                      self.varying, self.outers, moves)

    def _stuck(self):
        """Equations that run step by step: they feed states, or cannot run for many steps, or feed such ones."""
        needed = {v for v in (*self.news, self.stop) if type(v) is Var}
        needed |= {v for _, t in self.terms if type(t) is Eqn for v in sources(t)}
        stuck = set()
        for q in reversed(self.changing):
            if any(v in needed for v in q.outputs) and self._is_stateful(q) or not self._batchable(q):
                stuck.add(q)
                needed.update(sources(q))
        return stuck

    def _post(self, stuck):
        """Equations that run after the sequential part."""
        if self.stop is not None:
            return set()
        early = self._read_early(stuck)
        late = [q for q in self.changing if q not in stuck and (self._is_stateful(q) or not any(v in early for v in q.outputs))]
        if not stuck and not self.states:
            return set(self.changing)
        if self.scalar:
            weight = sum(q.row.cost for q in late)
            made = {v for q in late for v in q.outputs}
            handed = {v for q in late for v in sources(q) if v in self.stateful and v not in made}
            return set(late) if weight >= max(COSTLY, HANDED * len(handed)) else set()
        post = set()
        for q in late:
            reads = {self.maker.get(v) for v in sources(q)}
            if self._is_dot(q) or reads & post:
                post.add(q)
        at_hand = {v for q in post for v in sources(q) if v in self.stateful}
        for q in late:
            reads = [v for v in sources(q) if v in self.stateful]
            if q not in post and reads and all(v in at_hand or self.maker.get(v) in post for v in reads):
                post.add(q)
        return post

    def _read_early(self, stuck):
        """Values that the core reads, directly or not."""
        core = [*self.news, self.stop, *[v for _, t in self.terms if type(t) is Eqn for v in sources(t)]]
        early = {v for v in core if type(v) is Var}
        for q in reversed(self.eqns):
            if q in stuck or any(v in early for v in q.outputs):
                early.update(sources(q))
        return early

    def _moves(self, t, post):
        """Whether a term of a sum is added after the sequential part."""
        if type(t) is not Var:
            return False
        q = self.maker.get(t)
        if q in post:
            return True
        at_hand = {v for p in post for v in sources(p)}
        return bool(post) and (t in at_hand or t not in self.stateful and (q is None or self._batchable(q)))

    def _from_core(self, post, stuck, late_reads):
        """Results of the core, and states before the step, that post reads."""
        values = [*self.states, *[v for q in self.changing for v in q.outputs if q not in post]]
        return [v for v in values if v in late_reads and (v in self.stateful or self.maker.get(v) in stuck)]

    def _roots(self, core, post, stuck):
        """Results without states that are worth computing for a block of steps beforehand."""
        if not self.states or self.stop is not None:
            return []
        read = {v for q in (*core, *post) for v in sources(q)} | {v for v in (*self.news, *self.rows) if type(v) is Var}
        roots = []
        for q in core:
            if q in stuck or self._is_stateful(q) or not any(v in self.varying for v in q.outputs):
                continue
            costly = self.scalar and q.row.cost >= COSTLY
            if q.outputs[0] in read and (costly or self._is_dot(q)) and not any(p in stuck for p in self._needed(q.outputs)):
                roots.append(q.outputs[0])
        return roots

    # ----------------------------------------------------------------------------------------- invariant
    def _invariant(self, stages):
        """Costly results of constants that the stages read, directly or not: computed once, kept in memory."""
        more = set()
        while True:
            found = [self._live(stage, more) for stage in stages]
            reads = dict.fromkeys(v for _, reads in found for v in reads)
            kept = [v for v in reads if v in more or self._is_costly_invariant(v)]
            once = {v for k in kept for v in self.maker[k].outputs}
            if all(v in kept for v in reads if v in once):  # what runs once gives all of its results that are read
                behind = set(self._needed(kept))
                return kept, [q for q in self.eqns if q in behind], [live for live, _ in found]
            more |= once

    def _live(self, stage, more):
        """Equations of a stage that are not kept from before the first step, and what they read, in order."""
        reads = dict.fromkeys(v for v in (*self.news, self.stop, *self.rows, *[t for _, t in self.terms]) if type(v) is Var)
        live = []
        for q in reversed(stage):
            if any(v in self.varying or v in reads and v not in more and not self._is_costly_invariant(v) for v in q.outputs):
                live.append(q)
                reads.update(dict.fromkeys(sources(q)))
        return live[::-1], reads

    def _is_costly_invariant(self, v):
        q = self.maker.get(v)
        if q is None or v in self.varying:
            return False
        if q.row.kind in ("reduction", "loop", "running", "order") or special_kind(self.e, q) is not None:
            return True
        return self._weight(v) >= COSTLY and (bool(self.e.looped(v)) or q.row.kind == "linalg")

    def _weight(self, v):
        """Cost of computing an invariant value where it is read."""
        q = self.maker.get(v)
        if q is None or v in self.varying:
            return 0
        own = COSTLY if q.row.kind == "linalg" else q.row.cost
        return own + sum(self._weight(x) for x in q.inputs if type(x) is Var)


def split(e, loop, late=None):
    """Split the step of a loop into stages; `late` may say which terms of sums are added afterwards (see `Stages`)."""
    return _Splitter(e, loop, late).split()
