"""Run tapes: on operands of any kind through `bind`, or on real arrays with NumPy (python mode)."""

import numpy as np

from nscan import errors
from nscan.primitive import TABLE
from nscan.tape import RESIDUAL, Lit, locate
from nscan.trace import STATE, bind, current_step, rules

RUN_TIME = (errors.IndexRangeError, errors.SingularError, errors.SizeError, errors.ArithmeticStepError)


def evaluate(tape, args):
    """Replay a tape on traced arrays (or real ones); equations keep their places in the user's code."""
    env = dict(zip(tape.inputs, args))
    with rules():
        run_equations(tape.eqns, env)
    return [read(env, v) for v in tape.outputs]


def read(env, v):
    """Return the value of a Var or Lit."""
    return v if type(v) is Lit else env[v]


def run_equations(eqns, env):
    """Bind equations one after another."""
    before, step = STATE.where, current_step()
    try:
        for eqn in eqns:
            STATE.where = eqn.where
            ins = [v if type(v) is Lit else env[v] for v in eqn.inputs]
            # What is made of numbers alone is no array of the step's that its loops would need as an operand.
            alone = step is not None and all([type(x) is Lit for x in ins])
            outs = step.process(eqn.row, ins, eqn.params) if alone else bind(eqn.row, ins, eqn.params)
            env.update(zip(eqn.outputs, outs if type(outs) is tuple else (outs,)))
    finally:
        STATE.where = before


def evaluate_arrays(tape, args, runner, seen=None):
    """Run a tape on real arrays with the eager rule of each row; `runner` runs loops.

    Where `seen` is given, it is called with each equation, its operands and its results.
    """
    env = dict(zip(tape.inputs, args))
    for eqn in tape.eqns:
        ins = [v.value if type(v) is Lit else env[v] for v in eqn.inputs]
        try:
            if eqn.row.kind == "loop":
                outs = runner(eqn.row, ins, eqn.params)
            else:
                outs = eqn.row.eager(*ins, **eqn.params)
        except RUN_TIME as error:
            raise placed(error, eqn) from None
        outs = outs if type(outs) is tuple else (outs,)
        if seen is not None:
            seen(eqn, ins, outs)
        env.update(zip(eqn.outputs, outs))
    return [v.value if type(v) is Lit else env[v] for v in tape.outputs]


def placed(error, eqn):
    """Add the user's line to an error of an equation, once."""
    place = locate(eqn.where)
    if place is None or getattr(error, "placed", False):
        return error
    out = type(error)(f"{error}, at {place}: {place.text}" if place.text else f"{error}, at {place}")
    out.placed = True
    return out


class Residual:
    """The rows that a loop keeps for its adjoint; an opaque value to everybody else."""

    shape = ()
    ndim = 0
    dtype = RESIDUAL

    def __init__(self, arrays):
        self.arrays = arrays

    def row(self, k):
        """Return hidden row k of all steps."""
        return self.arrays[k]


def run_loop(loop, values, runner, watch=None, seen=None):
    """Run a loop on real arrays, step by step: the living definition of the loop row.

    `watch` is called with the number of steps done after each step, `seen` as in `evaluate_arrays`.
    """
    n, seqs, states, sums, consts = loop.split_inputs(values)
    n = int(TABLE["step_count"].eager(int(n), *[len(s) for s in seqs], name=loop.name))
    step = loop.step
    rows = [[] for _ in range(loop.rows + loop.hidden)]
    state_vars, sum_vars = loop.split_step_inputs(step.inputs)[1:3]
    states = [own(s, v.dtype) for s, v in zip(states, state_vars)]
    sums = [own(s, v.dtype) for s, v in zip(sums, sum_vars)]
    done = n
    with np.errstate(all="ignore"):
        for i in range(n):
            t = n - 1 - i if loop.reverse else i
            try:
                outs = evaluate_arrays(step, [*[s[t] for s in seqs], *states, *sums, *consts], runner, seen)
            except RUN_TIME as error:
                raise at_step(error, i, loop.name) from None
            states, sums, new, hidden, stop = loop.split_step_outputs(outs)
            for kept, row in zip(rows, (*new, *hidden)):
                kept.append(row)
            if watch is not None:
                watch(i + 1)
            if stop is not None and bool(stop):
                done = i + 1
                break
    stacked = [_stack(kept, v, done, loop.reverse)
               for kept, v in zip(rows, step.outputs[loop.states + loop.sums:])]
    out = [*stacked[:loop.rows], *states, *sums]
    if loop.stop:
        out.append(np.int64(done))
    if loop.hidden:
        out.append(Residual(stacked[loop.rows:]))
    return tuple(out)


def own(x, dtype):
    """Return a fresh array or a NumPy scalar of a dtype."""
    return np.array(x, dtype)[()]


def _stack(kept, v, done, reverse):
    if isinstance(v.dtype, type(RESIDUAL)):
        return kept
    if not kept:
        return np.zeros((0, *[d if type(d) is int else 0 for d in v.shape]), v.dtype)
    out = np.empty((done, *np.shape(kept[0])), v.dtype)
    for k, row in enumerate(kept):
        out[done - 1 - k if reverse else k] = row
    return out


def at_step(error, step, name):
    """Add the step number to an error, once (the innermost loop first)."""
    text = f"{error} (step {step} of {name!r})"
    out = type(error)(text)
    out.placed = getattr(error, "placed", False)
    return out
