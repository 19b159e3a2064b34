"""Derivatives of the adjoint of a loop: the higher orders.

The adjoint is a row, ``A(x, c) = J(x)' c``; no rule looks into a residual. Since ``<v, J' c> = <c, J v>``, both
derivatives of A come from the joint loop (primal x, tangent v) with cotangent c on its tangents: its adjoint in x is
the derivative of A in x, its tangent is the derivative of A in c.

Where a step has a row whose vjp is not the transpose of its jvp (`custom_vjp`, `grad_clip`, `grad_scale`), that
equation does not hold: there the adjoint is written out as two ordinary loops, and these are differentiated.
"""

import dataclasses

from nscan.array import traced
from nscan.grad.forward import joint_loop, paired, some, spread, value_and_tangent
from nscan.grad.loop import Hidden, Zero, adjoint_of, adjoint_operands, adjoint_results, bind_adjoint, decided, split_adjoint
from nscan.primitive import TABLE, bind, full, same_shape
from nscan.tape import Lit, remember
from nscan.trace import TangentTrace, Traced


def _twin_flags(loop, both, wanted, active):
    """Active flags of the operands of a joint loop: the primal operands that are wanted, no tangent."""
    n, seqs, states, sums, consts = loop.split_inputs(wanted)
    _, aseqs, _, _, aconsts = loop.split_inputs(active)
    return (n, *seqs, *[False] * sum(aseqs), *states, *[False] * sum(both.states), *sums, *consts,
            *[False] * (sum(aconsts) + len(both.extra)))


def _twin_cts(loop, both, cts):
    """Cotangents of a joint loop's rows and finals: those of the loop on its tangents, none on its values."""
    trows = [ct for ct, m in zip(cts[:loop.rows], both.rows) if m]
    tfinals = [ct for ct, m in zip(cts[loop.rows:], both.states) if m]
    return [*[None] * loop.rows, *trows, *[None] * loop.states, *tfinals]


def _adjoint_of_twin(twin, operands, flags, cts):
    with_ct = tuple(ct is not None for ct in cts)
    twin = decided(twin.bare, operands[0], flags).forward.bare
    adjoint = adjoint_of(twin, flags, with_ct[:twin.rows])
    count, residual, outs = operands[0], None, None
    if adjoint.forward.hidden or twin.stop:
        outs = bind(TABLE["loop"], operands, {"loop": adjoint.forward})
        residual = outs[-1] if adjoint.forward.hidden else None
        count = outs[twin.visible - 1] if twin.stop else count
    return bind_adjoint(twin, flags, with_ct, operands, count, some(cts), residual), outs


def adjoint_joint(values, tangents, params):
    """Value and tangent of the adjoint row, from one adjoint of the joint loop."""
    loop, active, with_ct = params["loop"], params["active"], params["with_ct"]
    if is_asymmetric(loop):
        return _written_out_joint(values, tangents, params)
    outs = bind(TABLE["loop_adjoint"], values, params)
    _, inputs, cts, _ = split_adjoint(loop, with_ct, values)
    _, tinputs, tcts, _ = split_adjoint(loop, with_ct, tangents)
    parts = [None] * len(outs)
    if any(t is not None for t in tcts):
        part = _again(loop, active, tcts, inputs, values, params)
        parts = part
    if any(t is not None for t in tinputs):
        moving = tuple(t is not None for t in tinputs)
        both = joint_loop(loop, moving)
        flags = _twin_flags(loop, both, active, moving)
        two = _twin_cts(loop, both, cts)
        back, _ = _adjoint_of_twin(both.twin, both.operands(loop, inputs, tinputs), flags, two)
        second = [b for b, flag in zip(back, flags) if flag]
        parts = [b if a is None else a if b is None else a + b for a, b in zip(parts, second)]
    return outs, tuple(parts)


def _again(loop, active, cts, inputs, values, params):
    """Apply the adjoint to other cotangents at the same point (it is linear in them)."""
    with_ct = tuple(ct is not None for ct in cts)
    residual = split_adjoint(loop, params["with_ct"], values)[3]
    return [x for x, flag in zip(bind_adjoint(loop, active, with_ct, inputs, values[0], some(cts), residual), active) if flag]


def adjoint_vjp(cts, at, loop, active, with_ct):
    """Cotangents of the operands of the adjoint row: derivatives along `cts` from the joint loop."""
    values = [at.x(i) for i in range(at.count)]
    if is_asymmetric(loop):
        return _written_out_vjp(cts, values, at.needs, loop, active, with_ct)
    _, inputs, outer, _ = split_adjoint(loop, with_ct, values)
    _, need_inputs, need_cts, _ = split_adjoint(loop, with_ct, at.needs)
    left = iter(cts)
    v = [next(left) if flag else None for flag in active]
    moving = tuple(x is not None for x in v)
    both = joint_loop(loop, moving)
    operands = both.operands(loop, inputs, v)
    flags = _twin_flags(loop, both, tuple(need_inputs), moving)
    two = _twin_cts(loop, both, outer)
    dcts = [None] * len(outer)
    if any(need_inputs) and any(c is not None for c in two):
        back, outs = _adjoint_of_twin(both.twin, operands, flags, two)
        dinputs = _primal_part(loop, back, moving, both.states)
    else:
        dinputs, outs = [None] * len(inputs), None
    if any(need_cts):
        if outs is None:
            outs = bind(TABLE["loop"], operands, {"loop": both.twin})
        dcts = _tangent_outputs(loop, both, outs)
    return [None, *dinputs, *[d for d, flag in zip(dcts, with_ct) if flag], *[None] * (at.count - 1 - len(inputs) - sum(with_ct))]


def _primal_part(loop, back, moving, moving_states):
    """Pick the cotangents of the primal operands out of those of a joint loop."""
    _, seqs, _, _, consts = loop.split_inputs(moving)
    a = 1 + loop.seqs
    b = a + sum(seqs)
    c = b + loop.states + sum(moving_states)
    return [*back[:a], *back[b:b + loop.states], *back[c:c + loop.sums + loop.consts]]


def _tangent_outputs(loop, both, outs):
    rows, finals = both.twin.split_outputs(outs)[:2]
    return [*spread(rows[loop.rows:], both.rows), *spread(finals[loop.states:], both.states)]


# ------------------------------------------------------------------------------ the adjoint, written out
_ASYMMETRIC = {}


def is_asymmetric(loop):
    """Tell whether some row in a loop has a vjp that is not the transpose of its jvp."""
    key = loop.key
    found = _ASYMMETRIC.get(key)
    return remember(_ASYMMETRIC, key, any(map(_has_asymmetric, loop.tapes()))) if found is None else found


def _has_asymmetric(tape):
    parts = [part for eqn in tape.eqns for part in eqn.params.values() if hasattr(part, "tapes")]
    return any(eqn.row.asymmetric for eqn in tape.eqns) or any(_has_asymmetric(inner) for part in parts for inner in part.tapes())


def written_out(values, loop, active, with_ct):
    """Compute what the adjoint row computes, by two ordinary loops: one that shows what it keeps, and its backward loop."""
    count, inputs, _, _ = split_adjoint(loop, with_ct, values)
    count = count if isinstance(count, Traced) else int(count.value if type(count) is Lit else count)
    adjoint = adjoint_of(loop, active, with_ct[:loop.rows])
    shown = dataclasses.replace(adjoint.forward, rows=loop.rows + adjoint.forward.hidden, hidden=0)
    kept = bind(TABLE["loop"], inputs, {"loop": shown})[loop.rows:] if adjoint.forward.hidden else ()
    operands = adjoint_operands(loop, active, with_ct, values)[1]
    operands = [kept[x.index] if isinstance(x, Hidden) else _filled(x) for x in operands]
    n = adjoint.backward.seqs
    operands[1:1 + n] = [_first_rows(x, count) for x in operands[1:1 + n]]
    outs = bind(TABLE["loop"], operands, {"loop": _sums_as_states(adjoint.backward)})
    results = adjoint_results(adjoint, loop, active, outs, inputs)
    return [_padded(_filled(x), like) for x, like in zip(results, [x for x, flag in zip(inputs, active) if flag])]


def _sums_as_states(loop):
    """Return a loop that saves its sums like other states, so that it can be differentiated."""
    return dataclasses.replace(loop, states=loop.states + loop.sums, sums=0)


def _filled(x):
    return full(x.shape, 0, x.dtype) if isinstance(x, Zero) else x


def _first_rows(x, count):
    """Cut a sequence to the steps that ran."""
    return x if same_shape(x.shape[:1], (count,)) else traced(x)[:count]


def _padded(x, like):
    """Lengthen rows of a sequence by zeros for the steps that did not run."""
    from nscan.ops.indexing import parse
    if same_shape(x.shape, like.shape):
        return x
    spec, operands = parse(like, slice(0, x.shape[0]))
    return bind(TABLE["index_update"], (full(like.shape, 0, x.dtype), x, *operands), {"spec": spec})


def _written_out_joint(values, tangents, params):
    with TangentTrace() as trace:
        outs = written_out([paired(trace, x, t) for x, t in zip(values, tangents)], **params)
    pairs = [value_and_tangent(trace, x) for x in outs]
    return tuple([x for x, _ in pairs]), tuple([t for _, t in pairs])


def _written_out_vjp(cts, values, needs, loop, active, with_ct):
    from nscan.grad.higher import vjp
    where = [k for k, flag in enumerate(needs) if flag]

    def function(*chosen):
        given = list(values)
        for k, x in zip(where, chosen):
            given[k] = x
        return written_out(given, loop, active, with_ct)

    outs, pull = vjp(function, *[values[k] for k in where])
    back = dict(zip(where, pull([_filled(Zero(x.shape, x.dtype)) if ct is None else ct for x, ct in zip(outs, cts)])))
    return [back.get(k) for k in range(len(values))]
