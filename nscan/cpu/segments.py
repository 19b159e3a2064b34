"""Segments: a loop keeps states at some steps, and its backward loop runs the steps between them again.

The forward loop runs without its hidden rows (`forward`). The backward loop goes on as one run, segment by segment
(`backward`); before each, `Segments` computes the hidden rows of the segment into the memory of the one before it. Ranges
of steps are cut where the blocks of an undivided run end, so sums are added up in the same order.
"""

import dataclasses
import math

import numpy as np

from nscan import checkpoint
from nscan.cpu import run as runs
from nscan.cpu.kernel import grid, kernel_of, plan_of
from nscan.interpret import Residual
from nscan.plan.nested import again_loop


# ---------------------------------------------------------------------------------------------------- the loops
def grain_of(loop):
    """Bytes and grids of the segments of a loop with hidden rows."""
    again, live = again_loop(loop)
    _, states, _, _ = loop.split_step_inputs(loop.step.inputs)
    size = lambda v: v.dtype.itemsize * math.prod(v.shape)  # noqa: E731
    hidden = loop.split_step_outputs(loop.step.outputs)[3]
    return checkpoint.Grain(sum(map(size, hidden)), sum(size(states[k]) for k in live), grid(plan_of(loop.shown)),
                            grid(plan_of(loop.partner)), plan_of(again).program.work)


def plan_of_steps(loop, steps):
    """Plan the segments of a loop with hidden rows; an open plan if the number of steps is not known."""
    grain = grain_of(loop)
    return checkpoint.open_plan(loop.checkpoint, grain) if steps is None else checkpoint.plan(loop.checkpoint, steps, grain)


def predicted(loop, steps):
    """Return the plan that a loop with hidden rows follows if it runs some number of steps; None if all rows are kept."""
    if not loop.stop:
        return plan_of_steps(loop, steps)
    plan = plan_of_steps(loop, None)
    return None if steps <= plan.whole else plan.closed(steps)


# -------------------------------------------------------------------------------------------------- the forward
class _Marks:
    """The steps at which a run keeps its states."""

    def __init__(self, steps):
        self.steps = sorted(steps, reverse=True)
        self.restart()

    def restart(self):
        """Begin again."""
        self.left, self.kept = list(self.steps), []

    def upcoming(self, done):
        """Return the next step after `done` at which states are kept."""
        while self.left and self.left[-1] <= done:
            self.left.pop()
        return self.left[-1] if self.left else None

    def keep(self, run, done):
        """Keep the states before a step."""
        self.kept.append((done, [np.array(x) for x in run.totals()]))


class _OpenMarks(_Marks):
    """The same where the number of steps is not known: when the slots are full, every second state goes."""

    def __init__(self, plan):
        self.plan = plan
        self.restart()

    def restart(self):
        """Begin again."""
        self.stride, self.kept = self.plan.unit, []

    def upcoming(self, done):
        """Return the next step after `done` at which states are kept."""
        return (done // self.stride + 1) * self.stride

    def keep(self, run, done):
        """Keep the states before a step, one slot being that of the start."""
        if 1 + len(self.kept) == self.plan.slots:
            self.stride *= 2
            self.kept = [(step, states) for step, states in self.kept if step % self.stride == 0]
        if done % self.stride == 0:
            super().keep(run, done)


def forward(loop, n, arrays, watch=None):
    """Run a loop with hidden rows; what it returns for these is a `Segments`.

    Parameters
    ----------
    loop : Loop
    n : int
        Number of steps, or the largest number of them.
    arrays : list of ndarray
        Its operands.
    watch : callable, optional
        See `nscan.cpu.run.run_loop`.
    """
    again, live = again_loop(loop)
    plan = plan_of_steps(loop, None if loop.stop else n)
    if loop.stop:
        outs = runs.run_kernel(loop, n, arrays, limit=plan.whole, watch=watch) if plan.whole else None
        if outs is not None:
            return outs
        marks = _OpenMarks(plan)
    else:
        marks = _Marks(plan.starts[i] for i in plan.kept[1:])
    outs = runs.run_kernel(loop.shown, n, arrays, marks, watch=watch)
    if loop.stop:
        plan = plan.closed(int(outs[-1]))
    first = arrays[loop.seqs:loop.seqs + loop.states]
    number = {step: i for i, step in enumerate(plan.starts)}
    kept = {number[step]: [states[k] for k in live] for step, states in [(0, first), *marks.kept]}
    assert tuple(kept) == plan.kept, "the states kept are not those of the plan"
    operands = [*arrays[:loop.seqs], *arrays[len(arrays) - loop.consts:]]
    return (*outs, Segments(again, operands, plan, kept))


# ------------------------------------------------------------------------------------------------- the residual
class Segments(Residual):
    """A residual of which states are kept, and rows are computed segment by segment.

    Parameters
    ----------
    loop : Loop
        See `again_loop`.
    operands : list of ndarray
        Its sequences and constants.
    plan : nscan.checkpoint.Plan
    kept : dict
        Number of a segment to the states before it.
    """

    def __init__(self, loop, operands, plan, kept):
        self.loop, self.operands, self.plan, self.kept = loop, operands, plan, kept

    @property
    def arrays(self):
        """All rows at once, for those who cannot take them segment by segment."""
        _, states = min(self.kept.items())
        return [np.asarray(x) for x in runs.run_kernel(self.loop, self.plan.steps, self._operands(states))[:self.loop.rows]]

    def row(self, k):
        """Hidden row k of all steps."""
        return SegmentRow(self, k)

    def _operands(self, states):
        a = self.loop.seqs
        return [*self.operands[:a], *states, *self.operands[a:]]

    def segments(self, masked=False):
        """Yield (first step to reverse, end, rows, first row) of each segment, the last one first.

        Lanes of unequal length stand in their order, unless they are to run on under a mask.
        """
        plan, kept = self.plan, dict(self.kept)
        operands = self._operands(kept[0])
        kernel, lanes = (kernel_of(self.loop, masked=True), None) if masked else runs.chosen(self.loop, plan.steps, operands)
        run = runs.LoopRun(self.loop, kernel, plan.steps, runs.reordered(kernel, self.loop, operands, lanes), plan.room, lanes=lanes)
        spans = list(checkpoint.reversals(plan.starts, plan.steps, plan.grain.backward))[::-1]
        states = kept[0]
        for what, i, j in checkpoint.moves(len(plan.starts), plan.slots, plan.kept):
            if what == "reverse":
                pos, lo, hi = spans[i]
                for k in [k for k in kept if k > i]:
                    del kept[k]
                run = self._advance(run, states if i not in kept else kept[i], pos, hi)
                yield lo, hi, run.rows(), plan.steps - hi if self.loop.reverse else pos
                continue
            lo, end, states = plan.starts[i], plan.starts[j], kept[i]
            while lo < end:
                hi = min(end, lo + plan.room // plan.grain.forward * plan.grain.forward)
                run = self._advance(run, states, lo, hi)
                states = [np.array(x) for x in run.totals()]
                lo = hi
            if what == "keep":
                kept[j] = states

    def _advance(self, run, states, lo, hi):
        """Run the steps from lo to hi from given states; in a new run where inner loops needed more room."""
        while True:
            run.restart(states, lo, hi)
            word = run.advance(lo, hi, True)
            if word is None:
                return run
            runs.make_room(self.loop, run.kernel, run.layout, word)
            run = runs.LoopRun(self.loop, run.kernel, run.n, run.arrays, run.room, lanes=run.lanes)


class SegmentRow:
    """A hidden row of all steps, of which one segment at a time is in memory."""

    def __init__(self, residual, index):
        v = residual.loop.split_step_outputs(residual.loop.step.outputs)[2][index]
        self.residual, self.index, self.dtype = residual, index, v.dtype
        self.shape = (residual.plan.steps, *v.shape)

    def __len__(self):
        return self.shape[0]

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.residual.arrays[self.index], dtype)


def backward(loop, n, operands, watch=None):
    """Run a backward loop some of whose sequences are `SegmentRow`, segment by segment."""
    rows = {k: x for k, x in enumerate(operands) if type(x) is SegmentRow}
    residual = next(iter(rows.values())).residual
    arrays = [np.empty((0, *x.shape[1:]), x.dtype) if k in rows else np.asarray(x) for k, x in enumerate(operands)]
    kernel, lanes = runs.chosen(loop, n, arrays)
    if lanes is not None and plan_of(residual.loop).program.live is None:
        kernel, lanes = kernel_of(loop, masked=True), None
    grain = dataclasses.replace(residual.plan.grain, backward=grid(kernel))
    residual = Segments(residual.loop, residual.operands, dataclasses.replace(residual.plan, grain=grain), residual.kept)
    while True:
        run = runs.LoopRun(loop, kernel, n, runs.reordered(kernel, loop, arrays, lanes), watch=watch, lanes=lanes)
        word, hi = None, n
        for lo, hi, values, first_row in residual.segments(masked=lanes is None):
            if lo < hi:
                for k, x in rows.items():
                    run.arrays[k], run.shift[k] = values[x.index], first_row
                word = run.advance(n - hi, n - lo, hi == n)
                if word is not None:
                    break
        if word is None:
            return run.results()
        runs.make_room(loop, kernel, run.layout, word)


__all__ = ["Segments", "backward", "forward", "predicted"]
