"""The forward rule of the loop: the tangent step runs beside the step, in the same loop (`joint_loop`)."""

import dataclasses

from nscan.grad.flow import deciding_operands, only_decides, operand_flow
from nscan.interpret import evaluate
from nscan.primitive import TABLE, bind, full
from nscan.state import section
from nscan.tape import Loop, remember
from nscan.trace import StepTrace, TangentTrace, Traced, make


@dataclasses.dataclass(frozen=True, eq=False)
class Joint:
    """A loop and its tangent loop as one.

    Attributes
    ----------
    twin : Loop
        Sequences, states, constants and rows of the loop, each group followed by the tangents of those that have
        one; at the end of the constants the arrays `extra`.
    states, rows : tuple of bool
        Which states and rows have a tangent.
    extra : tuple of ndarray
        Arrays that the rules of the step read (masks, index tables).
    """

    twin: Loop
    states: tuple
    rows: tuple
    extra: tuple

    def operands(self, loop, inputs, tangents):
        """Operands of the twin, given those of the loop and their tangents (None for zeros)."""
        n, seqs, states, sums, consts = loop.split_inputs(inputs)
        _, tseqs, tstates, _, tconsts = loop.split_inputs(tangents)
        tstates = [or_zeros(s, t) for t, s, m in zip(tstates, states, self.states) if m]
        return (n, *seqs, *some(tseqs), *states, *tstates, *sums, *consts, *some(tconsts), *self.extra)


def joint(values, tangents, params):
    """Run a loop together with its tangent loop: outputs and their tangents (None for zeros)."""
    loop = params["loop"]
    assert not loop.sums, "sums belong to adjoints, which have rules of their own"
    active = tuple(t is not None for t in tangents)
    _check_flow(loop, active)
    both = joint_loop(loop, active)
    outs = bind(TABLE["loop"], both.operands(loop, values, tangents), {"loop": both.twin})
    rows, finals, totals, count, residual = both.twin.split_outputs(outs)
    rest = [x for x, flag in ((count, loop.stop), (residual, loop.hidden)) if flag]
    plain = (*rows[:loop.rows], *finals[:loop.states], *totals, *rest)
    drows, dfinals = spread(rows[loop.rows:], both.rows), spread(finals[loop.states:], both.states)
    return plain, (*drows, *dfinals, *[None] * (loop.sums + len(rest)))


def _check_flow(loop, active):
    """Refuse tangents of nothing but values that decide when the loop stops."""
    if any(active) and loop.stop and not any(a and f for a, f in zip(active, operand_flow(loop, (True,) * loop.visible))):
        if any(a and d for a, d in zip(active[1:], deciding_operands(loop)[1:])):
            raise only_decides(f"what {loop.name!r} reads")


def spread(values, moving):
    """Put values where the flags are True and None elsewhere."""
    left = iter(values)
    return [next(left) if m else None for m in moving]


_JOINT = {}


def joint_loop(loop, active):
    """Build (and remember) the loop that computes values and tangents side by side.

    Parameters
    ----------
    loop : Loop
    active : tuple of bool
        Which operands of the equation have a tangent.

    Returns
    -------
    Joint
    """
    key = (loop.key, active)
    found = _JOINT.get(key)
    if found is None:
        _, seqs, states, _, consts = loop.split_inputs(active)
        moving = list(states)
        while True:
            with section("trace"):
                tape, extra, rows, news = _joint_step(loop, seqs, moving, consts)
            grown = [a or b for a, b in zip(moving, news)]
            if grown == moving:
                break
            moving = grown
        twin = dataclasses.replace(
            loop, step=tape, seqs=loop.seqs + sum(seqs), states=loop.states + sum(moving),
            consts=loop.consts + sum(consts) + len(extra), rows=loop.rows + sum(rows),
            state_names=loop.state_names + ("",) * sum(moving), origin=None)
        found = remember(_JOINT, key, Joint(twin, tuple(moving), tuple(rows), tuple(extra)))
    return found


def _joint_step(loop, seqs, moving, consts):
    """Trace step and tangent step: (tape, arrays that rules read, which rows move, which new states move)."""
    step = loop.step
    with StepTrace(loop.name) as outer:
        copied = loop.split_step_inputs(copy_inputs(outer, step.inputs))
        tangents = [[outer.new_input(x.shape, x.dtype) if m else None for x, m in zip(group, flags)]
                    for group, flags in zip(copied, (seqs, moving, [False] * loop.sums, consts))]
        with TangentTrace(loop.name) as inner:
            outs = evaluate(step, [paired(inner, x, t) for group, ts in zip(copied, tangents) for x, t in zip(group, ts)])
            pairs = [value_and_tangent(inner, x) for x in outs]
        states, sums, rows, hidden, stop = loop.split_step_outputs(pairs)
        moving_rows = [t is not None for _, t in rows]
        outputs = [*[x for x, _ in states], *[or_zeros(x, t) for (x, t), m in zip(states, moving) if m], *[x for x, _ in sums],
                   *[x for x, _ in rows], *[t for _, t in rows if t is not None], *[x for x, _ in hidden]]
        outputs += [stop[0]] if loop.stop else []
        outer.inputs = [x.node for x in (*copied[0], *some(tangents[0]), *copied[1], *some(tangents[1]), *copied[2], *copied[3],
                                        *some(tangents[3]))]
        tape, extra = outer.finish(outputs)
    return tape, only_arrays(extra), moving_rows, [t is not None for _, t in states]


def some(values):
    """Leave out None."""
    return [v for v in values if v is not None]


def only_arrays(captured):
    """Check that a traced rule read real arrays only, besides its inputs."""
    assert not any(isinstance(x, Traced) for x in captured), "a tape reads nothing but its inputs"
    return captured


def copy_inputs(trace, inputs):
    """Declare inputs of a trace like those of another tape, where a size may come after what has it."""
    env = {}
    for v in sorted(inputs, key=lambda v: bool(v.shape)):
        env[v] = trace.new_input(tuple(d if type(d) is int else env[d] for d in v.shape), v.dtype)
    copied = [env[v] for v in inputs]
    trace.inputs = [x.node for x in copied]
    return copied


def paired(trace, x, tangent):
    """Make a value with its tangent on a tangent trace; without a tangent it is a constant there."""
    return x if tangent is None else make(trace, None, x.shape, x.dtype, x, tangent)


def value_and_tangent(trace, x):
    """Split what a tangent trace has made."""
    return (x.value, x.tangent) if getattr(x, "home", None) is trace else (x, None)


def or_zeros(x, tangent):
    """Return the tangent, or zeros like the value."""
    return full(x.shape, 0, x.dtype) if tangent is None else tangent
