"""Products with a looped summed axis: where operands lie, and which form of loops they take.

Where a product runs for a block of steps at a time, the axis of steps is one more label: many small products
become one large one, and the product of a sum over steps sums over steps too.
"""

import dataclasses

from nscan.plan.axes import AxisClass
from nscan.plan.body import emitter, set_place
from nscan.plan.products import TIME, Inner, Outer, Product
from nscan.plan.program import ZERO
from nscan.plan.storage import Place, Rows
from nscan.plan.strips import Strips, form_of, is_worth_panels


@emitter("dot")
def emit_dot(body, s):
    """A contraction: operands in memory, the result in its place."""
    e, eqn, v = body.e, s.eqn, s.v
    p = eqn.params
    stored = target = s.into if s.into is not None else body.places(v)[0]
    panels = e.panels.get(eqn)
    operands = [nowhere(x) if panels is not None and panels.use is None and panels.x is x else body.in_memory(x) for x in eqn.inputs]
    classes = {} if e.time is None else {TIME: e.time}
    for labels, x in ((p["la"], eqn.inputs[0]), (p["lb"], eqn.inputs[1])):
        classes.update(zip(labels, e.axes.get(x)))
    if e.time is None:
        target = e.here(target)
    (la, a), (lb, b), (lo, out) = (_timed(labels, how) for labels, how in zip((p["la"], p["lb"], p["lo"]), (*operands, target)))
    product = Product(la, lb, lo, a, b, out, classes, s.into is not None, v.dtype, panels)
    emit_product(e, product if panels is None or panels.x is eqn.inputs[1] else swapped(product))
    if s.into is None:
        set_place(body, v, target, stored)
    body.give_back()


def _timed(labels, how):
    """Add the axis of steps to what is kept for many steps."""
    if type(how) is not Rows:
        return tuple(labels), how
    first = how.first
    return (TIME, *labels), Place(first.slot, first.base, (how.stride, *first.strides), first.dtype)


def nowhere(x):
    """Place of an operand of which only the panels are read."""
    return Place(None, ZERO, (ZERO,) * len(x.shape), x.dtype)


def emit_product(e, p):
    """Choose the form of a product and emit it."""
    looped = [k for k in p.classes if not p.classes[k].unrolled]
    last_a, last_b = p.la[-1], p.lb[-1]
    if p.panels is not None:
        return Strips(e, p, p.panels.form).emit()
    for way in (p, swapped(p)):
        form = form_of(e, way)
        if form is not None:
            return Strips(e, way, form).emit()
    if last_b in p.lo and last_b in looped and last_b != TIME:
        return Outer(e, p, last_b).emit()
    if last_a in p.lo and last_a in looped and last_a != TIME:
        return Outer(e, swapped(p), last_a).emit()
    if last_a == last_b and last_a not in p.lo and last_a in looped:
        return Inner(e, p, last_a).emit()
    free = [k for k in p.lo if k in looped and k != TIME]
    lane = free[-1] if free and not e.vector and p.dtype.kind != "c" else None
    return Outer(e, p if lane is None or lane in p.lb else swapped(p), lane).emit()


def swapped(p):
    """The same product with its operands exchanged."""
    return dataclasses.replace(p, la=p.lb, lb=p.la, a=p.b, b=p.a)


def plan_panels(e, q, batched, varying):
    """Form and operand (its number) of a product whose columns come from a constant that is worth panels, or None.

    Parameters
    ----------
    e : Elements
    q : Eqn
    batched : bool
        Whether the product runs for a block of steps at a time.
    varying : set of Var
        What may differ from step to step.
    """
    lead = [(TIME,) if batched and x in varying else () for x in q.inputs]
    classes = dict(zip((*q.params["la"], *q.params["lb"]), (*e.axes.get(q.inputs[0]), *e.axes.get(q.inputs[1]))))
    classes[TIME] = AxisClass(None)
    lo = (TIME, *q.params["lo"]) if any(lead) and q not in e.outers else q.params["lo"]
    p = Product((*lead[0], *q.params["la"]), (*lead[1], *q.params["lb"]), lo, None, None, None, classes, False, q.outputs[0].dtype)
    for which, way in ((1, p), (0, swapped(p))):
        form = form_of(e, way)
        if form is not None and is_worth_panels(e, form, q.inputs[which], way.lb, varying):
            return form, which
    return None
