"""The loop, its adjoint and the conditional: rows whose parameters hold tapes."""

import math

import numpy as np

from nscan.grad import branch, forward, second
from nscan.grad import loop as rule
from nscan.interpret import Residual, evaluate_arrays, run_loop
from nscan.primitive import TABLE, Row
from nscan.tape import RESIDUAL, Output, Var

INT = np.dtype("i8")


def _loop_infer(*values, loop):
    n, _, states, sums, consts = loop.split_inputs(values)
    names = dict(zip(loop.step.inputs[loop.seqs + loop.states + loop.sums:], consts))
    length = Output(loop.rows + loop.states + loop.sums) if loop.stop else _length(n)
    step_states, step_sums, rows, hidden, _ = loop.split_step_outputs(loop.step.outputs)
    out = [((length, *_outer_shape(v, names)), v.dtype) for v in rows]
    out += [(tuple(s.shape), v.dtype) for v, s in zip(step_states, states)]
    out += [(tuple(s.shape), v.dtype) for v, s in zip(step_sums, sums)]
    if loop.stop:
        out.append(((), INT))
    if loop.hidden:
        out.append(((), RESIDUAL))
    return tuple(out)


def _length(n):
    return int(n.value) if hasattr(n, "value") and not hasattr(n, "home") else n


def _outer_shape(v, names):
    return tuple(d if type(d) is int else names[d] for d in v.shape)


def run_in_python(row, values, params):
    """Run a loop row on real arrays in python mode."""
    if row.name == "loop":
        return run_loop(params["loop"], values, run_in_python)
    if row.name == "cond":
        return run_cond(params["cond"], values)
    return run_adjoint(values, run_in_python, **params)


def run_cond(cond, values):
    """Run the taken branch of a conditional."""
    tape = cond.then if bool(np.asarray(values[0])) else cond.other
    return tuple(evaluate_arrays(tape, values[1:], run_in_python))


def run_adjoint(values, runner, loop, active, with_ct):
    """Run a backward loop on real arrays; `runner` runs loop rows."""
    adjoint, operands = rule.adjoint_operands(loop, active, with_ct, values)
    arrays = []
    for x in operands:
        if isinstance(x, rule.Zero):
            arrays.append(_zeros(tuple([int(d) for d in x.shape]), x.dtype))
        elif isinstance(x, rule.Hidden):
            arrays.append(x.residual.row(x.index))
        else:
            arrays.append(x)
    count, n_seqs = int(arrays[0]), adjoint.backward.seqs
    arrays[1:1 + n_seqs] = [s if len(s) == count else s[:count] for s in arrays[1:1 + n_seqs]]
    outs = runner(TABLE["loop"], arrays, {"loop": adjoint.backward})
    inputs = rule.split_adjoint(loop, with_ct, values)[1]
    results = rule.adjoint_results(adjoint, loop, active, outs, inputs)
    shapes = [np.shape(x) for x, flag in zip(inputs, active) if flag]
    return tuple(_filled(x, shape) for x, shape in zip(results, shapes))


def _zeros(shape, dtype):
    """Zeros to start from; large ones take no memory."""
    return np.zeros(shape, dtype) if math.prod(shape) <= 4096 else np.broadcast_to(np.zeros((), dtype), shape)


def _filled(x, shape):
    """Turn a Zero into zeros; lengthen rows of a sequence by zeros for steps that did not run."""
    if isinstance(x, rule.Zero):
        return np.zeros(tuple(int(d) for d in x.shape), x.dtype)
    if x.shape != shape:
        out = np.zeros(shape, x.dtype)
        out[:len(x)] = x
        return out
    return x


TABLE.add(Row("loop", "loop", _loop_infer, None, jvp=None, vjp=rule.loop_vjp, outputs=None, joint=forward.joint, pair=rule.pair))
TABLE.add(Row("loop_adjoint", "loop", rule.adjoint_infer, None, vjp=second.adjoint_vjp, outputs=None, joint=second.adjoint_joint))
TABLE.add(Row("cond", "loop", lambda pred, *args, cond: tuple((_branch_shape(v, cond, args), v.dtype) for v in cond.then.outputs),
              None, vjp=branch.cond_vjp, outputs=None, joint=branch.cond_joint))


def _branch_shape(v, cond, args):
    names = dict(zip(cond.then.inputs, args))
    return tuple(d if type(d) is not Var else names[d] for d in v.shape)


__all__ = ["Residual", "run_adjoint", "run_cond", "run_in_python"]
