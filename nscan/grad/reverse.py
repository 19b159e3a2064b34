"""Reverse mode on a tape: from cotangents of its outputs to cotangents of its inputs.

The rules of the rows say what they read (`nscan.primitive.Point`); this module only passes cotangents on
and adds them up. A cotangent that touches part of an array (`nscan.ops.index.Scatter`) is added in place to
the sum of the others, so reading one entry of a large array costs one entry backwards.
"""

from nscan import errors
from nscan.primitive import Point, full
from nscan.tape import Lit, Var, locate
from nscan.trace import STATE, rules


def is_float(v):
    """Tell whether a value can carry a derivative."""
    return v.dtype.kind in "fc"


def spread_active(eqns, active):
    """Return the Vars through which a derivative flows from the active ones."""
    active = set(active)
    for eqn in eqns:
        if eqn.row.vjp is None and not eqn.row.why:
            continue
        if any(type(v) is Var and v in active for v in eqn.inputs):
            active.update(v for v in eqn.outputs if is_float(v))
    return active


def backward(eqns, read, pending, active):
    """Pass cotangents backwards through equations.

    Parameters
    ----------
    eqns : sequence of Eqn
    read : callable
        Gives the value of a Var or Lit; called only for values that a rule needs.
    pending : dict
        Var to list of cotangents; holds those of the outputs, and afterwards those of the inputs.
    active : set of Var
        Where derivatives are wanted.
    """
    before = STATE.where
    try:
        with rules():
            for eqn in reversed(eqns):
                if any(v in pending for v in eqn.outputs):
                    _backward_one(eqn, read, pending, active)
    finally:
        STATE.where = before


def _backward_one(eqn, read, pending, active):
    STATE.where = eqn.where
    cts = [total(v, pending.pop(v, None), read) for v in eqn.outputs]
    needs = [type(v) is Var and v in active for v in eqn.inputs]
    if all(ct is None for ct in cts) or not any(needs):
        return
    if eqn.row.vjp is None:
        if eqn.row.why:
            raise no_derivative(eqn)
        return
    back = eqn.row.vjp(cts, Point(eqn.inputs, eqn.outputs, read, needs), **eqn.params)
    for v, ct, needed in zip(eqn.inputs, back, needs):
        if needed and ct is not None:
            pending.setdefault(v, []).append(ct)


def no_derivative(eqn):
    """Build the error for a row that says why it has no derivative."""
    place = locate(eqn.where)
    at = f" at {place}: {place.text}" if place else ""
    return errors.GradientTypeError(f"no derivative passes through {eqn.row.name}{at}: {eqn.row.why}")


def total(v, parts, read, start=None):
    """Add up the cotangents of a value: whole arrays first, then those that touch a part.

    ``read`` gives the sizes of `v` that are known only at run time.
    """
    if not parts:
        return start
    dense, scatters, fresh = start, [], False
    for part in parts:
        if hasattr(part, "add_to"):
            scatters.append(part)
        else:
            dense, fresh = (part, False) if dense is None else (dense + part, True)
    for part in scatters:
        dense = part.add_to(full(shape_of(v, read), 0, v.dtype) if dense is None else dense, fresh)
        fresh = True
    return dense


def shape_of(v, read):
    """Shape of a value, its run-time sizes read where the backward pass stands."""
    return tuple([read(d) if type(d) is Var else d for d in v.shape])


def literal_or(read):
    """Make a reader that returns literals as numbers."""
    return lambda v: v.value if type(v) is Lit else read(v)
