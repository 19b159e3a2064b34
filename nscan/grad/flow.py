"""Where derivatives flow: which operands of a loop reach its outputs, and which ones only decide when it stops.

A float that a step reads in the condition of `until` alone has no derivative: the result does not change with
it, or jumps. Reverse mode asks `operand_flow` which operands get a cotangent at all, and `deciders` to tell
such a value, whose gradient is refused, from one that is not used, whose gradient is zero.
"""

from nscan import errors
from nscan.grad.reverse import is_float
from nscan.tape import Var, remember


def sources(eqns, targets):
    """Return the Vars from which a derivative reaches one of the targets."""
    live = {v for v in targets if type(v) is Var and is_float(v)}
    for eqn in reversed(eqns):
        flags = tuple([v in live for v in eqn.outputs])
        if any(flags):
            live.update(v for v, flows in zip(eqn.inputs, input_flow(eqn, flags)) if flows and type(v) is Var and is_float(v))
    return live


def input_flow(eqn, flags):
    """Tell for each input of an equation whether a derivative flows from it to an output with a flag."""
    row, count = eqn.row, len(eqn.inputs)
    if row.vjp is None:
        return [bool(row.why)] * count
    if row.name == "loop":
        return operand_flow(eqn.params["loop"], flags)
    if row.name == "cond":
        return _branch_flow(eqn.params["cond"], flags)
    if row.kind == "pointwise" and len(row.partials) == count:
        return [p is not None for p in row.partials]
    return [True] * count


_FLOWS = {}


def operand_flow(loop, flags):
    """Tell for each operand of a loop whether a derivative flows from it to an output of the equation with a flag.

    Parameters
    ----------
    loop : Loop
    flags : sequence of bool
        One for each output of the equation (missing ones count as False).
    """
    flags = tuple([bool(f) for f in flags])
    key = (loop.key, flags)
    found = _FLOWS.get(key)
    return remember(_FLOWS, key, _operand_flow(loop, flags)) if found is None else found


def _operand_flow(loop, flags):
    rows, finals, sums = flags[:loop.rows], list(flags[loop.rows:loop.rows + loop.states]), flags[loop.rows + loop.states:]
    news, _, outs, _, _ = loop.split_step_outputs(loop.step.outputs)
    seqs, states, _, consts = loop.split_step_inputs(loop.step.inputs)
    wanted = [v for v, flag in zip(outs, rows) if flag]
    while True:
        live = sources(loop.step.eqns, [*wanted, *[v for v, flag in zip(news, finals) if flag]])
        grown = [flag or v in live for v, flag in zip(states, finals)]
        if grown == finals:
            break
        finals = grown
    return (False, *[v in live for v in seqs], *finals, *[any(sums)] * loop.sums, *[v in live for v in consts])


def _branch_flow(cond, flags):
    live = [sources(tape.eqns, [v for v, flag in zip(tape.outputs, flags) if flag]) for tape in cond.tapes()]
    return (False, *[a in live[0] or b in live[1] for a, b in zip(cond.then.inputs, cond.other.inputs)])


def deciders(eqns, stops=()):
    """Return the Vars that decide when a loop stops: one of the equations, or that of the step with these conditions."""
    found = {v for v in stops if type(v) is Var}
    for eqn in reversed(eqns):
        flags = _deciding_inputs(eqn)
        if any(v in found for v in eqn.outputs):
            flags = [True] * len(eqn.inputs)
        found.update(v for v, flag in zip(eqn.inputs, flags) if flag and type(v) is Var)
    return found


def _deciding_inputs(eqn):
    if eqn.row.name == "loop":
        return deciding_operands(eqn.params["loop"])
    if eqn.row.name == "cond":
        found = [deciders(tape.eqns) for tape in eqn.params["cond"].tapes()]
        first, second = (tape.inputs for tape in eqn.params["cond"].tapes())
        return (False, *[a in found[0] or b in found[1] for a, b in zip(first, second)])
    return ()


_DECIDING = {}


def deciding_operands(loop):
    """Tell for each operand of a loop whether it decides when this loop, or one inside it, stops."""
    key = loop.key
    found = _DECIDING.get(key)
    if found is None:
        news, _, _, _, stop = loop.split_step_outputs(loop.step.outputs)
        seqs, states, sums, consts = loop.split_step_inputs(loop.step.inputs)
        stops = [stop]
        while True:
            reached = deciders(loop.step.eqns, stops)
            grown = [stop, *[new for v, new in zip(states, news) if v in reached]]
            if len(grown) == len(stops):
                break
            stops = grown
        found = remember(_DECIDING, key, (True, *[v in reached for v in (*seqs, *states, *sums, *consts)]))
    return found


def only_decides(what):
    """Build the error for a derivative with respect to a value that only decides when a loop stops."""
    return errors.GradientTypeError(
        f"no derivative with respect to {what}: it only decides when a loop stops (a condition of until, or a number of steps), "
        "so the result does not change with it, or jumps; leave it out of the arguments, or wrap it in ns.stop_gradient"
    )
