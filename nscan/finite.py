"""Where the first NaN or infinity of a loop was made.

A loop is run with further rows that say whether each state is finite. If something is not, the loop is run again up
to the step before, that step is repeated in NumPy, and what is not finite is followed back to the equation that made
it of finite operands. So an unwatched kernel has no trace of this.
"""

import dataclasses
import functools

import numpy as np

from nscan import errors
from nscan.grad.forward import copy_inputs
from nscan.interpret import Residual, evaluate, evaluate_arrays
from nscan.ops.loop import run_adjoint, run_in_python
from nscan.tape import RESIDUAL, Lit, Var, locate, remember
from nscan.trace import StepTrace

CHUNK = 1 << 20


def run(loop, values, plain, again):
    """Run a loop and raise if something that it computes is not finite.

    Parameters
    ----------
    loop : Loop
    values : list
        Operands of the loop equation.
    plain, again : callable
        Both run a loop on real arrays; `again` runs parts of it a second time.

    Raises
    ------
    NonFiniteError
    """
    shown, states = with_flags(loop)
    outs = list(plain(shown, values))
    flags = outs[loop.rows:shown.rows]
    del outs[loop.rows:shown.rows]
    steps = int(outs[loop.visible - 1]) if loop.stop else int(values[0])
    found = _first(loop, values, outs, flags, states, steps, again)
    if found is not None:
        raise _error(loop, values, *found, again)
    return tuple(outs)


_FLAGGED = {}


def with_flags(loop):
    """Return a loop with a further row for each state that is no row: whether it is finite; and which states those are.

    A loop that stops by itself stops there too: a condition that compares NaN may never hold.
    """
    news, _, rows, _, _ = loop.split_step_outputs(loop.step.outputs)
    states = [k for k, v in enumerate(news) if type(v) is Var and v.dtype.kind in "fc" and not any(v is r for r in rows)]
    if not states and not loop.stop:
        return loop, states
    found = _FLAGGED.get(loop.key)
    if found is None:
        with StepTrace(loop.name) as trace:
            outs = evaluate(loop.step, copy_inputs(trace, loop.step.inputs))
            news, sums, rows, hidden, stop = loop.split_step_outputs(outs)
            flags = [np.all(np.isfinite(news[k])) for k in states]
            if loop.stop:
                parts = [*flags, *[np.all(np.isfinite(x)) for x in rows if x.dtype.kind in "fc"]]
                stop = functools.reduce(np.logical_or, map(np.logical_not, parts), stop)
            tape, extra = trace.finish([*news, *sums, *rows, *flags, *hidden, *([stop] if loop.stop else [])])
        assert not extra, "a tape reads nothing but its inputs"
        found = remember(_FLAGGED, loop.key, dataclasses.replace(loop, step=tape, rows=loop.rows + len(states)))
    return found, states


def _first(loop, values, outs, flags, states, steps, again):
    """Find the first iteration after which something is not finite: (iteration, kind, number), or None."""
    rows, finals, sums, _, _ = loop.split_outputs(outs)
    found = []
    for k, x in enumerate(rows):
        t = _first_row(x, loop.reverse)
        found += [] if t is None else [(steps - 1 - t if loop.reverse else t, "row", k)]
    for k, x in zip(states, flags):
        bad = np.flatnonzero(~x)
        found += [(steps - 1 - int(bad[-1]) if loop.reverse else int(bad[0]), "state", k)] if len(bad) else []
    best = min(found, default=None)
    if any(not _finite(x) for x in sums):
        hi = steps if best is None else best[0] + 1
        m = _first_sum(loop, values, steps, hi, again)
        if m is not None and (best is None or m < best[0]):
            best = m, "sum", next(k for k, x in enumerate(_sums_after(loop, values, steps, m + 1, again)) if not _finite(x))
    return best


def _finite(x):
    return x.dtype.kind not in "fc" or bool(np.isfinite(x).all())


def _first_row(x, backwards):
    """First row in the order of the iteration that is not finite, or None; a few rows at a time."""
    if x.dtype.kind not in "fc" or not x.size:
        return None
    each = max(1, CHUNK * len(x) // x.size)
    starts = range(0, len(x), each)
    for a in reversed(starts) if backwards else starts:
        bad = np.flatnonzero(~np.isfinite(x[a:a + each]).reshape(len(x[a:a + each]), -1).all(axis=1))
        if len(bad):
            return a + int(bad[-1 if backwards else 0])
    return None


def _first_sum(loop, values, steps, hi, again):
    """First iteration after which a sum is not finite; since sums are only added to, they stay so."""
    if all(map(_finite, _sums_after(loop, values, steps, hi, again))):
        return None
    lo = 0
    while hi - lo > 1:
        middle = (lo + hi) // 2
        lo, hi = (middle, hi) if all(map(_finite, _sums_after(loop, values, steps, middle, again))) else (lo, middle)
    return hi - 1


def _sums_after(loop, values, steps, m, again):
    return _after(loop, values, steps, m, again)[1]


def _after(loop, values, steps, m, again):
    """States and sums after m of the steps."""
    loop = loop.bare
    _, seqs, states, sums, _ = loop.split_inputs(values)
    if m == 0:
        return list(states), list(sums)
    outs = again(loop, _part(loop, values, steps, 0, m))
    _, states, sums, _, _ = loop.split_outputs(outs)
    return list(states), list(sums)


def _part(loop, values, steps, first, last):
    """Operands of some of the iterations of a loop that ran a number of steps, but for the states at their start."""
    n, seqs, states, sums, consts = loop.split_inputs(values)
    cut = slice(steps - last, steps - first) if loop.reverse else slice(first, last)
    seqs = [Residual([a[cut] for a in x.arrays]) if isinstance(x, Residual) else np.asarray(x)[cut] for x in seqs]
    return [np.int64(last - first), *seqs, *states, *sums, *consts]


# ------------------------------------------------------------------------------------------------------ where
def _error(loop, values, i, kind, k, again):
    """Build the error for something that is not finite after iteration i."""
    steps = i + 1 if not loop.reverse else int(values[0])
    states, sums = _after(loop, values, steps, i, again)
    base = loop.bare
    _, seqs, _, _, consts = base.split_inputs(_part(base, values, steps, i, i + 1))
    seqs = [x.arrays[0] if isinstance(x, Residual) else x[0] for x in seqs]
    tape, inputs = base.step, [*seqs, *states, *sums, *consts]
    new_states, new_sums, rows, _, _ = base.split_step_outputs(tape.outputs)
    v = {"row": rows, "state": new_states, "sum": new_sums}[kind][k]
    back = loop.name.startswith("adjoint of ")
    at = f"step {int(values[0]) - 1 - i} of the backward pass" if back else f"step {i}"
    name = loop.name.removeprefix("adjoint of ")
    what = _named(loop, v, kind, k, back)
    env = _values_of(tape, inputs)
    x = _read(env, v)
    if _finite(np.asarray(x)):
        return errors.NonFiniteError(f"something that is not finite first appears at {at} of {name!r}, in {what}; NumPy computes "
                                     "a finite value there, so rounding decides")
    index = _bad_index(x)
    made = "it is made by the derivative of" if back else "it is made at"
    text = f"{_kind(x, index)} first appears at {at} of {name!r}, in {what}{_index_text(index)}"
    return errors.NonFiniteError(f"{text}; {_origin(tape, inputs, env, v, index, made, base)}")


def _named(loop, v, kind, k, back):
    """What the user calls an output of a step."""
    news = loop.split_step_outputs(loop.step.outputs)[0]
    if back:
        return {"row": "the cotangent of a sequence", "state": "the cotangent of a state", "sum": "the cotangent of a constant"}[kind]
    names = [name for new, name in zip(news, loop.state_names) if new is v and name]
    return names[0] if names else f"output {k}" if kind == "row" else f"{kind} {k}"


def _values_of(tape, inputs):
    """Every value of a tape."""
    env = dict(zip(tape.inputs, inputs))
    with np.errstate(all="ignore"):
        evaluate_arrays(tape, inputs, run_in_python, lambda eqn, ins, outs: env.update(zip(eqn.outputs, outs)))
    return env


def _read(env, v):
    return v.value if type(v) is Lit else env[v]


def _kind(x, index):
    value = np.asarray(x)[index]
    return "NaN" if np.isnan(value) else "-inf" if not np.iscomplexobj(value) and value < 0 else "inf"


def _bad_index(x):
    return tuple(int(k) for k in np.argwhere(~np.isfinite(np.asarray(x)))[0])


def _index_text(index):
    return f", index {index if len(index) > 1 else index[0]}" if index else ""


def _origin(tape, inputs, env, v, index, made, loop=None):
    """Say which equation made a value that is not finite of finite ones, following it back."""
    makers = {out: q for q in tape.eqns for out in q.outputs}
    while v in makers:
        q = makers[v]
        source = next((u for u in _suspects(q, env, index) if _bad_at(q, env, u, index)), None)
        if source is None:
            return _made(q, env, index, made)
        index = _index_in(q, env, source, index)
        v = source
    return _came_in(tape, v, index, loop)


def _suspects(q, env, index):
    """Operands that may have spoilt an element of a result: of a select only the chosen one."""
    if q.row.name == "select":
        chosen = np.broadcast_to(_read(env, q.inputs[0]), np.shape(env[q.outputs[0]]))[index]
        return [u for u in (q.inputs[1 if chosen else 2],) if type(u) is Var]
    return [u for u in q.inputs if type(u) is Var and u.dtype is not RESIDUAL and u.dtype.kind in "fc"]


def _bad_at(q, env, u, index):
    x = np.asarray(env[u])
    if q.row.kind == "pointwise":
        return not np.isfinite(np.broadcast_to(x, np.shape(env[q.outputs[0]]))[index])
    return not np.isfinite(x).all()


def _index_in(q, env, u, index):
    """The element of an operand to follow."""
    x = np.asarray(env[u])
    if q.row.kind != "pointwise":
        return _bad_index(x)
    return tuple(0 if d == 1 else k for k, d in zip(index[len(index) - x.ndim:], x.shape))


def _made(q, env, index, made):
    """Say what an equation made of what."""
    place = locate(q.where)
    at = f"{place}: {place.text}" if place is not None and place.text else f"{place}" if place is not None else "an unknown line"
    ins = [_read(env, u) if type(u) is Lit or u.dtype is not RESIDUAL else env[u] for u in q.inputs]
    if q.row.kind == "loop":
        return f"{made} {at}, in a loop or branch{_inside(q, ins, made)}"
    if q.row.kind == "pointwise":
        shape = np.shape(env[q.outputs[0]])
        given = ", ".join(f"{np.broadcast_to(x, shape)[index]:.6g}" if np.asarray(x).dtype.kind != "b" else
                          str(np.broadcast_to(x, shape)[index]) for x in ins)
        return f"{made} {at}, as {q.row.name}({given})"
    return f"{made} {at}, as {q.row.name} of finite values"


def _inside(q, ins, made):
    """Look for the origin inside of an inner loop."""
    def checked(row, values, params):
        return run(params["loop"], values, _python, _python) if row.name == "loop" else run_in_python(row, values, params)
    try:
        if q.row.name == "loop_adjoint":
            run_adjoint(ins, checked, **q.params)
        elif q.row.name == "loop":
            checked(q.row, ins, q.params)
        else:
            cond = q.params["cond"]
            tape = cond.then if bool(np.asarray(ins[0])) else cond.other
            env = _values_of(tape, ins[1:])
            v = next(v for v in tape.outputs if not _finite(np.asarray(_read(env, v))))
            return f"; {_origin(tape, ins[1:], env, v, _bad_index(env[v]), made)}"
    except errors.NonFiniteError as error:
        return f": {error}"
    return ""


def _python(loop, values):
    from nscan.primitive import TABLE
    return run_in_python(TABLE["loop"], values, {"loop": loop})


def _came_in(tape, v, index, loop):
    """Say where a value came from that no equation made."""
    k = tape.inputs.index(v)
    if loop is None:
        return "it comes in from outside of the branch"
    a, b = loop.seqs, loop.seqs + loop.states
    if k < a:
        return f"it comes in with that row of sequence {k} already{_index_text(index)}"
    if k < b:
        name = loop.state_names[k - a] if loop.state_names else f"state {k - a}"
        return f"it comes in with the initial value of {name}{_index_text(index)}"
    return f"it comes in with a constant, an array of shape {tuple(v.shape)}{_index_text(index)}"
