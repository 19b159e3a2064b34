"""The rules of the conditional: the derivative of the branch that is taken."""

import dataclasses

from nscan.grad.forward import copy_inputs, only_arrays, or_zeros, paired, some, spread, value_and_tangent
from nscan.grad.reverse import backward, literal_or, shape_of, spread_active, total
from nscan.interpret import evaluate, run_equations
from nscan.primitive import TABLE, bind, full
from nscan.tape import Tape, Var, spares
from nscan.trace import StepTrace, TangentTrace, rules


def cond_joint(values, tangents, params):
    """Value and tangent of a conditional: the taken branch beside its tangent."""
    cond = params["cond"]
    active = tuple(t is not None for t in tangents[1:])
    moving = [any(flags) for flags in zip(*[_joint_branch(tape, active)[2] for tape in cond.tapes()])]
    branches = [_joint_branch(tape, active, moving)[:2] for tape in cond.tapes()]
    outs = _bind_branches(branches, (*values, *some(tangents[1:])), cond)
    count = len(cond.then.outputs)
    return outs[:count], tuple(spread(outs[count:], moving))


def _bind_branches(branches, operands, cond):
    """Bind a conditional of two new branches, each with arrays of its own behind the operands."""
    (then, first), (other, second) = branches
    own = len(other.inputs) - len(second)
    shared, same = then.inputs[:own], other.inputs[:own]
    for_then = spares(other.inputs[own:], zip(same, shared))
    for_other = spares(then.inputs[own:], zip(shared, same))
    then = Tape((*then.inputs, *for_then), then.eqns, then.outputs)
    other = Tape((*same, *for_other, *other.inputs[own:]), other.eqns, other.outputs)
    return bind(TABLE["cond"], (*operands, *first, *second), {"cond": dataclasses.replace(cond, then=then, other=other)})


def _joint_branch(tape, active, moving=None):
    """Trace a branch beside its tangent: (tape, arrays that rules read, which outputs move)."""
    with StepTrace("cond") as outer:
        args = copy_inputs(outer, tape.inputs)
        ts = [outer.new_input(x.shape, x.dtype) if m else None for x, m in zip(args, active)]
        with TangentTrace("cond") as inner:
            outs = evaluate(tape, [paired(inner, x, t) for x, t in zip(args, ts)])
            pairs = [value_and_tangent(inner, x) for x in outs]
        found = [t is not None for _, t in pairs]
        douts = [or_zeros(x, t) for (x, t), m in zip(pairs, moving or found) if m]
        made, extra = outer.finish([*[x for x, _ in pairs], *douts])
    return made, only_arrays(extra), found


def cond_vjp(cts, at, cond):
    """Cotangents of the operands of a conditional: the backward pass of the taken branch."""
    active = tuple(at.needs[1:])
    with_ct = tuple(ct is not None for ct in cts)
    branches = [_backward_branch(tape, active, with_ct) for tape in cond.tapes()]
    values = [at.x(i) for i in range(at.count)]
    outs = _bind_branches(branches, (*values, *some(cts)), cond)
    return [None, *spread(outs, active)]


def _backward_branch(tape, active, with_ct):
    """Trace the backward pass of a branch: (tape, arrays that rules read)."""
    with StepTrace("cond") as trace:
        args = copy_inputs(trace, tape.inputs)
        wanted = [v for v, flag in zip(tape.inputs, active) if flag]
        env = dict(zip(tape.inputs, args))
        read = literal_or(env.__getitem__)
        with rules():
            run_equations(tape.eqns, env)
        outs = [v for v, flag in zip(tape.outputs, with_ct) if flag]
        cts = [trace.new_input(shape_of(v, read), v.dtype) for v in outs]
        flow = spread_active(tape.eqns, wanted)
        pending = {}
        for v, ct in zip(outs, cts):
            if type(v) is Var and v in flow:
                pending.setdefault(v, []).append(ct)
        backward(tape.eqns, read, pending, flow)
        with rules():
            back = [total(v, pending.get(v), read) if pending.get(v) else full(shape_of(v, read), 0, v.dtype) for v in wanted]
        made, extra = trace.finish(back)
    return made, only_arrays(extra)
