"""Control flow by values: while_loop and cond."""

import numpy as np

from nscan import edge, errors, spec, step, tree, watch
from nscan.array import as_array, astype
from nscan.primitive import TABLE, bind, same_shape, shape_text
from nscan.step import FOREVER
from nscan.tape import Cond, Tape, spares
from nscan.trace import StepTrace, Traced, current_step


def while_loop(cond, body, init, max_steps=None, *, checkpoint="auto", check_finite=False, progress=False, profile=False):
    """Repeat ``carry = body(carry)`` while ``cond(carry)`` holds.

    Parameters
    ----------
    cond : callable
        ``cond(carry)`` gives a 0-d bool, tested before each step.
    body : callable
        ``body(carry)`` gives the next carry, of the same structure.
    init : nest of arrays or numbers
    max_steps : int, optional
        Stop after that many steps in any case.
    checkpoint : str or int, default "auto"
        What to keep for a backward pass; see `scan`.
    check_finite, progress, profile : bool, default False
        As in `scan`.

    Returns
    -------
    nest
        The last carry. Reverse derivatives need no `max_steps`.

    Raises
    ------
    OutputTypeError
        The condition is no 0-d bool or number.
    StructureError, StateShapeError, StateTypeError
        `body` returns a carry of another structure, shape or kind.
    StepsTypeError, LengthError
        `max_steps` is no integer, or negative.

    Examples
    --------
    >>> import nscan as ns
    >>> ns.while_loop(lambda x: x < 100, lambda x: 2 * x, 3)
    np.int64(192)
    """
    marks = watch.marks(check_finite, progress, profile)
    limit = spec.steps(max_steps, "max_steps")
    limit = FOREVER if limit is None else limit
    name = getattr(body, "__name__", "body")
    asked = f"the condition of while_loop with {name!r}"
    leaves, structure = tree.flatten(init)
    paths = tree.paths(structure, "init")
    carries = [step.Carry([spec.as_leaf(x, p)], f"state {p!r}") for x, p in zip(leaves, paths)]

    def flat_step(rows, states, constants):
        result = edge.call(body, [tree.unflatten(structure, states)])
        found_leaves, found = tree.flatten(result)
        if found != structure:
            raise errors.StructureError(f"{name!r} returns a carry of structure {tree.describe(found)}, init has "
                                        f"{tree.describe(structure)}")
        news = [as_array(edge.leaf(x, f"the carry of {name!r}")) for x in found_leaves]
        settled = [astype(x, c.dtype) if c.weak is None and np.can_cast(x.dtype, c.dtype, "safe") else x
                   for x, c in zip(news, carries)]
        again = edge.condition(edge.call(cond, [tree.unflatten(structure, settled)]), asked)
        return news, [], np.logical_not(again)

    with watch.reported(profile, name):
        traced = step.trace_call(step.Call(flat_step, [], carries, [], [], name, functions=(body, cond), checkpoint=checkpoint,
                                           watch=marks))
        first = [x for c in carries for x in c.values()]
        again = edge.call(cond, [tree.unflatten(structure, [x if isinstance(x, Traced) else x[()] for x in first])])
        again = edge.condition(again, asked)
        if isinstance(again, Traced) and again.home.symbolic:
            n = np.where(again, np.int64(limit), np.int64(0))
        else:
            n = limit if bool(again) else 0
        _, finals, _ = step.run(traced, n, [])
    return tree.unflatten(structure, finals)


def cond(pred, then, other, *args):
    """Run one of two functions; only the taken one runs, in a compiled loop too.

    Parameters
    ----------
    pred : 0-d bool
    then, other : callable
        Called with `args`; both return nests of one structure, with equal shapes; dtypes are promoted.
    *args : nests of arrays

    Returns
    -------
    nest
        What the taken function returns.

    Raises
    ------
    SpecError
        The condition is not 0-d; `then` or `other` is no function.
    StructureError, OutputsError
        In a step: the functions return nests of different structure or shapes.

    Examples
    --------
    >>> import nscan as ns
    >>> ns.cond(True, lambda x: x + 1, lambda x: x - 1, 5)
    6
    """
    for name, branch in (("then", then), ("other", other)):
        edge.check_function(branch, f"{name} of cond", "; between two arrays np.where chooses")
    pred = as_array(pred)
    if tuple(pred.shape) not in ((), (1,)):
        raise errors.SpecError(f"the condition of cond must be 0-d, got shape {shape_text(pred.shape)}")
    symbolic = current_step() is not None and isinstance(pred, Traced) and pred.home.symbolic
    if not symbolic:
        return edge.call(then if bool(pred) else other, args)
    pred = pred if pred.dtype.kind == "b" else pred != 0
    pred = pred if not pred.shape else pred[0]
    leaves, structure = tree.flatten(args)
    found = [_trace_branch(f, leaves, structure) for f in (then, other)]
    if found[0][1] != found[1][1]:
        raise errors.StructureError(f"the branches of cond return {tree.describe(found[0][1])} and {tree.describe(found[1][1])}")
    dtypes = [np.result_type(a, b) for a, b in zip(found[0][2], found[1][2])]
    tapes = [_trace_branch(f, leaves, structure, dtypes) for f in (then, other)]
    for a, b in zip(*[_outer_shapes(tape, captured) for tape, _, _, captured in tapes]):
        if not same_shape(a, b):
            raise errors.StateShapeError(f"the branches of cond return shapes {shape_text(a)} and {shape_text(b)}")
    operands, then_tape, other_tape = _one_signature(tapes)
    outs = bind(TABLE["cond"], (pred, *operands), {"cond": Cond(then_tape, other_tape)})
    return tree.unflatten(found[0][1], outs)


ifelse = cond


def _trace_branch(fn, leaves, structure, dtypes=None):
    """Trace a branch; every argument is captured: (tape, structure of outputs, dtypes, captured values)."""
    with StepTrace(getattr(fn, "__name__", "branch")) as trace:
        args = tree.unflatten(structure, [_branch_argument(trace, x) for x in leaves])
        result = edge.call(fn, args)
        outs, out_tree = tree.flatten(result)
        outs = [as_array(edge.leaf(x, f"output {k} of a branch of cond")) for k, x in enumerate(outs)]
        found = [x.dtype for x in outs]
        if dtypes is not None:
            outs = [astype(x, d) for x, d in zip(outs, dtypes)]
        tape, captured = trace.finish(outs, stable=True)
    return tape, out_tree, found, captured


def _outer_shapes(tape, captured):
    """Shapes of a branch's outputs, a captured size by the Var that it has outside; other sizes are refused."""
    outer = {v: x.node for v, x in zip(tape.inputs, captured) if isinstance(x, Traced)}
    for v in tape.outputs:
        if any(type(d) is not int and d not in outer for d in v.shape):
            raise errors.SizeError("a branch of cond returns an array whose size is computed in the branch; reduce it there, or "
                                   "compute the size before")
    return [tuple(d if type(d) is int else outer[d] for d in v.shape) for v in tape.outputs]


def _branch_argument(trace, x):
    """Hand an array on to a branch, read-only: the caller would not see what a branch that is not taken writes."""
    if not isinstance(x, (Traced, np.ndarray)):
        return x
    out = trace.handle(trace.var_of(x), scalar=isinstance(x, Traced) and x.scalar)
    out.owner = "an argument of cond"
    return out


def _one_signature(tapes):
    """Give both branches the same inputs: what the one captured, then what the other did."""
    (a, _, _, first), (b, _, _, second) = tapes
    then = Tape((*a.inputs, *spares(b.inputs)), a.eqns, a.outputs)
    other = Tape((*spares(a.inputs), *b.inputs), b.eqns, b.outputs)
    return [*first, *second], then, other
