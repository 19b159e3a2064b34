"""Marks in a program that tell where its time goes; there are none unless a profile is asked for.

A mark adds the time since the mark before it to a counter of its own. It stands behind a group of statements whose
work is worth reading a clock; smaller ones are put together. What is fused into one nest is measured as one, and
divided between its equations by their expected work.
"""

import contextlib
import dataclasses

from nscan.plan.lanes import work_of
from nscan.plan.program import Const
from nscan.plan.storage import part_number

# Work (in multiplications) that is worth a mark, which costs some ten nanoseconds.
MARK_WORK = 512
# Rounds of a loop whose number is not known while planning.
ROUNDS = 16
STAGES = ("once", "pre", "core", "post")


@dataclasses.dataclass(frozen=True, eq=False)
class Mark:
    """A counter: the stage it belongs to, and equations with their shares of the work (none: what the stage does besides)."""

    stage: str
    shares: tuple


class Clock:
    """Sets the marks of a program.

    Parameters
    ----------
    axes : Axes
    """

    def __init__(self, axes):
        self.axes = axes
        self.marks = []
        self.stage = STAGES[0]
        self.pending = []

    def begin(self, e, stage):
        """Begin a stage: time counts from here."""
        self.stage, self.pending = stage, []
        self._tick(e, -1)

    def ran(self, e, eqns):
        """Note equations that were emitted, and set a mark if they are worth one."""
        self.pending += [(q, work_of(self.axes, q)) for q in eqns if q.row.kind != "loop"]
        if sum(work for _, work in self.pending) * (MARK_WORK if e.time is not None else 1) >= MARK_WORK:
            self.mark(e)

    def close(self, e, eqns):
        """End a stage some of whose equations were emitted by another way than a `Body`."""
        self.pending += [(q, work_of(self.axes, q)) for q in eqns]
        self.mark(e)

    def mark(self, e):
        """Set a mark for what is pending."""
        self._tick(e, len(self.marks))
        self.marks.append(Mark(self.stage, tuple(self.pending)))
        self.pending = []

    def _tick(self, e, number):
        b = e.b
        base, size = e.params.get(b, ("clock",)), e.params.get(b, ("clock size",))
        own = b.add(base, b.mul(part_number(b), size))
        b.statement("tick", own.id, number)

    @contextlib.contextmanager
    def body(self, e, rounds, outer):
        """Context: the body of a loop is emitted. What is pending at its end waits for a mark outside, if there is none inside."""
        if self.pending and not outer:
            self.mark(e)
        before = len(self.marks)
        yield
        if self.pending and len(self.marks) > before:
            self.mark(e)
        times = rounds.value if type(rounds) is Const else ROUNDS
        self.pending = [(q, work * times) for q, work in self.pending]

    @contextlib.contextmanager
    def branch(self, e):
        """Context: a branch is emitted; it accounts for its own time."""
        yield
        if self.pending:
            self.mark(e)


class NoClock:
    """Sets no marks: the program is what it is without a profile."""

    marks = ()

    def begin(self, *_):
        """Do nothing."""

    ran = mark = close = begin

    def body(self, *_):
        """Return a context that does nothing."""
        return contextlib.nullcontext()

    branch = body
