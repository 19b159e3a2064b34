"""Loops in a step whose rows are kept in segments: loops of loops.

The forward loop becomes a loop over segments with a loop over their steps inside; it keeps the states before each segment.
The backward loop becomes one over the same segments in reverse, whose step computes the hidden rows of a segment again and
goes through them. What does not fill a segment comes after the others, with all its rows kept. Sums are handed on from
segment to segment, so that they are added up in the same order as without segments.
"""

import dataclasses
import math

import numpy as np

from nscan import checkpoint
from nscan.grad import loop as rule
from nscan.ops.index import IndexSpec
from nscan.optimise import remove_dead
from nscan.primitive import TABLE
from nscan.tape import RESIDUAL, Eqn, Lit, Tape, Var

INT = np.dtype("i8")


def again_loop(loop):
    """Return the loop that computes hidden rows alone, and which states of the loop it has."""
    seqs, states, sums, consts = loop.split_step_inputs(loop.step.inputs)
    news, _, _, hidden, _ = loop.split_step_outputs(loop.step.outputs)
    live, needed = [], -1
    while len(live) != needed:
        needed = len(live)
        tape = remove_dead(Tape(loop.step.inputs, loop.step.eqns, (*[news[k] for k in live], *hidden)))
        read = {v for q in tape.eqns for v in q.inputs} | set(tape.outputs)
        live = [k for k, v in enumerate(states) if v in read]
    tape = Tape((*seqs, *[states[k] for k in live], *consts), tape.eqns, tape.outputs)
    names = tuple(loop.state_names[k] for k in live) if loop.state_names else ()
    number = {v: k for k, v in enumerate(loop.step.inputs)}
    return dataclasses.replace(loop, step=tape, states=len(live), sums=0, rows=loop.hidden, hidden=0, stop=False, plain=True,
                               partner=None, private=True, state_names=names,
                               origin=(loop, tuple([number[v] for v in tape.inputs]))), live


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """How a loop in a step is divided.

    Attributes
    ----------
    again : Loop
        Computes hidden rows alone.
    live : list of int
        The states that it has.
    unit, count, rest : int
        Steps of a segment, number of segments, steps beyond the last one.
    """

    again: object
    live: list
    unit: int
    count: int
    rest: int

    def first(self, loop, segment):
        """Return the first row of a segment."""
        return self.rest + (self.count - 1 - segment) * self.unit if loop.reverse else segment * self.unit


def layout(loop, n):
    """Divide a loop with hidden rows in a step; None if all its rows are kept."""
    if loop.keep != "segments" or not loop.hidden or loop.stop or type(n) is not Lit:
        return None
    values = (*loop.step.inputs, *loop.step.outputs)
    if any(v.dtype is RESIDUAL or any(type(d) is Var for d in v.shape) for v in values):
        return None
    again, live = again_loop(loop)
    size = lambda values: sum(v.dtype.itemsize * math.prod(v.shape) for v in values)  # noqa: E731
    states = again.split_step_inputs(again.step.inputs)[1]
    unit = checkpoint.two_levels(loop.checkpoint, int(n.value), size(loop.split_step_outputs(loop.step.outputs)[3]), size(states))
    count = int(n.value) // unit
    return Layout(again, live, unit, count, int(n.value) - count * unit) if count > 1 else None


def residual_types(loop, plan):
    """Shapes and dtypes of what is kept: states before the segments, hidden rows of the steps beyond the last one."""
    states = plan.again.split_step_inputs(plan.again.step.inputs)[1]
    hidden = loop.split_step_outputs(loop.step.outputs)[3]
    return [((plan.count, *v.shape), v.dtype) for v in states] + [((plan.rest, *v.shape), v.dtype) for v in hidden if plan.rest]


class _Writer:
    """Writes equations into a list, with Vars of a copier."""

    def __init__(self, copier, eqns, where):
        self.copier, self.eqns, self.where = copier, eqns, where

    def bind(self, name, ins, params):
        """Write an equation; return its results."""
        row = TABLE[name]
        outs = [self.copier.new(shape, dtype, {}) for shape, dtype in row.infer(*ins, **params)]
        self.eqns.append(Eqn(row, tuple(ins), tuple(outs), params, self.where))
        return outs

    def rows(self, x, first, count):
        """Rows of a sequence from `first` (a number, or a Var or Lit) on."""
        if type(first) is int and count == x.shape[0]:
            return x
        entry = ("slice", first, count, 1) if type(first) is int else ("dyn", 0, 1, 1)
        spec = IndexSpec((entry, *[("slice", 0, d, 1) for d in x.shape[1:]]))
        if type(first) is int:
            return self.bind("index", [x], {"spec": spec})[0]
        out = self.copier.new((count, *x.shape[1:]), x.dtype, {})
        self.eqns.append(Eqn(TABLE["index"], (x, first, Lit(count, INT)), (out,), {"spec": spec}, self.where))
        return out

    def joined(self, segments, rest, loop):
        """All rows of a loop: those of the segments (count, unit, ...), and of the steps beyond."""
        whole = (segments.shape[0] * segments.shape[1], *segments.shape[2:])
        x = self.bind("reshape", [segments], {"template": whole})[0]
        if rest is None:
            return x
        return self.bind("concatenate", [rest, x] if loop.reverse else [x, rest], {"axis": 0})[0]

    def over_segments(self, loop, plan, backward, carried, consts, seqs, step):
        """Write the loop over segments.

        Parameters
        ----------
        carried, consts, seqs : list of Var or Lit
        step : callable
            ``step(writer, first row of the segment, carried, consts, seqs)`` returns new carried values and rows.
        """
        inner = [self.copier.new(v.shape, v.dtype, {}) for v in (*carried, *consts)]
        mine = [self.copier.new(v.shape[1:], v.dtype, {}) for v in seqs]
        first = self.copier.new((), INT, {})
        eqns, count = [], len(carried)
        writer = _Writer(self.copier, eqns, self.where)
        news, rows = step(writer, first, inner[:count], inner[count:], mine)
        forth = plan.unit if loop.reverse == backward else -plan.unit
        after = writer.bind("add", [first, Lit(forth, INT)], {})[0]
        tape = Tape((*mine, *inner[:count], first, *inner[count:]), tuple(eqns), (*news, after, *rows))
        whole = dataclasses.replace(loop, step=tape, seqs=len(seqs), states=count + 1, sums=0, consts=len(consts), rows=len(rows),
                                    hidden=0, reverse=loop.reverse != backward, partner=None, origin=None, state_names=())
        start = Lit(plan.first(loop, plan.count - 1 if backward else 0), INT)
        outs = self.bind("loop", [Lit(plan.count, INT), *seqs, *carried, start, *consts], {"loop": whole})
        return outs[len(rows):len(rows) + count], outs[:len(rows)]


def forward(copier, loop, plan, ins, eqns, where):
    """Write a forward loop in segments.

    Returns
    -------
    outs : list of Var
        Rows and final states.
    kept : list of Var
        See `residual_types`.
    """
    writer = _Writer(copier, eqns, where)
    _, seqs, states, _, consts = loop.split_inputs(ins)

    def step(inside, first, carried, given, _):
        blocks = [inside.rows(x, first, plan.unit) for x in given[:loop.seqs]]
        outs = inside.bind("loop", [Lit(plan.unit, INT), *blocks, *carried, *given[loop.seqs:]], {"loop": copier.parameters(loop.bare)})
        return outs[loop.rows:], [*outs[:loop.rows], *[carried[k] for k in plan.live]]
    finals, rows = writer.over_segments(loop, plan, False, states, [*seqs, *consts], [], step)
    rows, kept, last = rows[:loop.rows], rows[loop.rows:], [None] * loop.rows
    if plan.rest:
        whole = dataclasses.replace(copier.parameters(loop), rows=loop.rows + loop.hidden, hidden=0)
        begin = 0 if loop.reverse else plan.unit * plan.count
        outs = writer.bind("loop", [Lit(plan.rest, INT), *[writer.rows(x, begin, plan.rest) for x in seqs], *finals, *consts],
                           {"loop": whole})
        last, kept, finals = outs[:loop.rows], [*kept, *outs[loop.rows:whole.rows]], outs[whole.rows:]
    return [*[writer.joined(x, y, loop) for x, y in zip(rows, last)], *finals], kept


def backward(copier, loop, plan, found, operands, inputs, kept, eqns, where):
    """Write a backward loop in segments.

    Parameters
    ----------
    loop : Loop
        The forward loop with its hidden rows.
    found : nscan.grad.loop.Adjoint
    operands : list
        Those of ``found.backward``; a hidden row is a `nscan.grad.loop.Hidden`.
    inputs : list of Var or Lit
        Operands of the forward loop.
    kept : list of Var
        See `residual_types`.

    Returns
    -------
    list of Var
        Outputs of ``found.backward``.
    """
    writer, back = _Writer(copier, eqns, where), found.backward
    _, seqs, states, sums, consts = back.split_inputs(operands)
    before, last = kept[:len(plan.live)], kept[len(plan.live):]
    carried, ends = [*states, *sums], [None] * back.rows
    if plan.rest:
        begin = 0 if loop.reverse else plan.unit * plan.count
        parts = [last[x.index] if isinstance(x, rule.Hidden) else writer.rows(x, begin, plan.rest) for x in seqs]
        outs = writer.bind("loop", [Lit(plan.rest, INT), *parts, *carried, *consts], {"loop": copier.parameters(back)})
        ends, carried = outs[:back.rows], outs[back.rows:]
    _, own, _, _, fixed = loop.split_inputs(inputs)
    given = [x for x in seqs if not isinstance(x, rule.Hidden)]

    def step(inside, first, inner, values, before):
        own_rows, given_rows = values[:len(own)], values[len(own):len(own) + len(given)]
        rest = values[len(own) + len(given):]
        blocks = [inside.rows(x, first, plan.unit) for x in own_rows]
        hidden = inside.bind("loop", [Lit(plan.unit, INT), *blocks, *before, *rest[:len(fixed)]],
                             {"loop": copier.parameters(plan.again)})
        left = iter(given_rows)
        rows = [hidden[x.index] if isinstance(x, rule.Hidden) else inside.rows(next(left), first, plan.unit) for x in seqs]
        outs = inside.bind("loop", [Lit(plan.unit, INT), *rows, *inner, *rest[len(fixed):]], {"loop": copier.parameters(back)})
        return outs[back.rows:], outs[:back.rows]
    finals, rows = writer.over_segments(loop, plan, True, carried, [*own, *given, *fixed, *consts], before, step)
    return [*[writer.joined(x, y, loop) for x, y in zip(rows, ends)], *finals]


__all__ = ["again_loop", "backward", "forward", "layout", "residual_types"]
