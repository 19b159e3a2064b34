"""How residuals are kept: a pass from tape to tape, after all differentiation.

`prepare` makes a loop ready for planning: every tape inside it is copied (so that each value belongs to one
place), adjoint equations become ordinary loops over the reversed steps, and residuals become the rows that
they stand for ("all": each hidden row is kept).
"""

import collections
import dataclasses

from nscan.grad import loop as rule
from nscan.grad.loop import Hidden, Zero
from nscan.plan import nested
from nscan.primitive import TABLE
from nscan.tape import RESIDUAL, Eqn, Lit, Loop, Tape, Var


def prepare(loop):
    """Copy a loop with everything inside it, without residuals and adjoint equations.

    Parameters
    ----------
    loop : Loop

    Returns
    -------
    loop : Loop
    order : tuple of int
        For each state of the given loop, its number among states and sums of the new one: a state that only
        accumulates has become a sum.
    """
    return copied(loop)[:2]


def copied(loop):
    """Do the same; return also what became of the values of the step, as a dict."""
    copier = _Copier()
    return (*accumulators_to_sums(copier.parameters(loop)), copier.env)


def accumulators_to_sums(loop):
    """Make sums of states that are only added to and that nobody reads: they need no sequential part."""
    _, states, sums, _ = loop.split_step_inputs(loop.step.inputs)
    news, new_sums, rows, hidden, stop = loop.split_step_outputs(loop.step.outputs)
    makers = {q.outputs[0]: q for q in loop.step.eqns}
    reads = collections.Counter(x for q in loop.step.eqns for x in q.inputs if type(x) is Var)
    reads.update(x for x in loop.step.outputs if type(x) is Var)
    moved = [k for k, (v, new) in enumerate(zip(states, news)) if _accumulates(v, new, makers, reads)]
    stay = [k for k in range(loop.states) if k not in moved]
    order = [stay.index(k) if k in stay else len(stay) + moved.index(k) for k in range(loop.states)]
    if not moved:
        return loop, tuple(range(loop.states))
    seqs, _, _, consts = loop.split_step_inputs(loop.step.inputs)
    inputs = (*seqs, *[states[k] for k in stay], *[states[k] for k in moved], *sums, *consts)
    outputs = (*[news[k] for k in stay], *[news[k] for k in moved], *new_sums, *rows, *hidden, *([stop] if loop.stop else []))
    names = tuple(name for k, name in enumerate(loop.state_names) if k in stay)
    return dataclasses.replace(loop, step=Tape(inputs, loop.step.eqns, outputs), states=len(stay), sums=loop.sums + len(moved),
                               state_names=names), tuple(order)


def _accumulates(v, new, makers, reads):
    """Whether a state is its old value plus terms, read by nothing else."""
    if type(new) is not Var or new is v or reads[v] != 1:
        return False
    while new is not v:
        q = makers.get(new)
        if q is None or q.row.name != "add" or reads[new] != 1 or new.dtype.kind == "b":
            return False
        left, right = (type(x) is Var and _reaches(x, v, makers) for x in q.inputs)
        if left == right or tuple(q.inputs[0 if left else 1].shape) != tuple(new.shape):
            return False
        new = q.inputs[0 if left else 1]
    return True


def _reaches(x, v, makers):
    """Whether a value is the old state plus something."""
    while x is not v:
        q = makers.get(x)
        if q is None or q.row.name != "add":
            return False
        first = q.inputs[0]
        x = first if type(first) is Var and (first is v or _is_sum(first, makers)) else q.inputs[1]
        if type(x) is not Var:
            return False
    return True


def _is_sum(x, makers):
    q = makers.get(x)
    return q is not None and q.row.name == "add"


def residual_types(tape, v):
    """Shapes and dtypes of the rows that stand for a residual which a tape is given, by its consumer."""
    for q in tape.eqns:
        if v not in q.inputs:
            continue
        if q.row.name == "loop_adjoint":
            p = q.params
            adjoint = rule.adjoint_of(p["loop"], p["active"], p["with_ct"][:p["loop"].rows])
            plan = nested.layout(adjoint.forward, q.inputs[0])
            if plan is not None:
                return nested.residual_types(adjoint.forward, plan)
            return [((_length(q.inputs[0]), *h.shape), h.dtype) for h in adjoint.kept]
        inner = next(t for value in q.params.values() for t in getattr(value, "tapes", tuple)())
        return residual_types(inner, inner.inputs[q.inputs.index(v) - 1])
    return []


class _Copier:
    """Copies tapes; `rows` holds the rows that stand for each residual."""

    def __init__(self):
        self.count = 0
        self.rows = {}
        self.env = {}  # of the tape copied last: the outermost one at the end

    def new(self, shape, dtype, env):
        """Make a fresh Var."""
        self.count += 1
        return Var(tuple(d if type(d) is int else env[d] for d in shape), dtype, self.count)

    def tape(self, tape, env):
        """Copy a tape."""
        env = dict(env)
        for v in sorted(tape.inputs, key=lambda v: v.dtype is RESIDUAL or bool(v.shape)):  # sizes before what has them
            env[v] = self.new(v.shape, v.dtype, env)
            if v.dtype is RESIDUAL:
                self.rows[env[v]] = [self.new(shape, dtype, env) for shape, dtype in residual_types(tape, v)]
        inputs, eqns = self.expanded([env[v] for v in tape.inputs]), []
        for q in tape.eqns:
            self.equation(q, env, eqns)
        read = lambda v: v if type(v) is Lit else env[v]  # noqa: E731
        self.env = env
        return Tape(tuple(inputs), tuple(eqns), tuple(map(read, tape.outputs)))

    def expanded(self, values):
        """Replace residuals by the rows that stand for them."""
        return [u for v in values for u in (self.rows[v] if type(v) is Var and v.dtype is RESIDUAL else [v])]

    def parameters(self, loop):
        """Copy the parameters of a loop."""
        step = self.tape(loop.step, {})
        return dataclasses.replace(loop, step=step, consts=loop.consts + len(step.inputs) - len(loop.step.inputs))

    def equation(self, q, env, eqns):
        """Copy an equation; loops and adjoints are expanded."""
        ins = [v if type(v) is Lit else env[v] for v in q.inputs]
        if q.row.name == "loop":
            return self.loop(q, ins, env, eqns)
        if q.row.name == "loop_adjoint":
            return self.adjoint(q, ins, env, eqns)
        if q.row.kind == "identity":
            env.update(zip(q.outputs, ins))
            return None
        params = q.params
        if q.row.name == "cond":
            ins = self.expanded(ins)
            cond = params["cond"]
            params = {"cond": dataclasses.replace(cond, then=self.tape(cond.then, {}), other=self.tape(cond.other, {}))}
        outs = []
        for v in q.outputs:
            env[v] = self.new(v.shape, v.dtype, env)
            outs.append(env[v])
        eqns.append(Eqn(q.row, tuple(ins), tuple(outs), params, q.where))
        return None

    def loop(self, q, ins, env, eqns):
        """Copy a loop; its residual becomes further rows."""
        loop = q.params["loop"]
        plan = nested.layout(loop, ins[0])
        if plan is not None:
            outs, kept = nested.forward(self, loop, plan, self.expanded(ins), eqns, q.where)
            residual = env[q.outputs[-1]] = self.new((), RESIDUAL, {})
            self.rows[residual] = kept
            env.update(zip(q.outputs, outs))
            return
        inner = dataclasses.replace(self.parameters(loop), rows=loop.rows + loop.hidden, hidden=0)
        sizes = [x.shape[0] for x in ins[1:1 + loop.seqs] if x.shape[0] is not ins[0]]
        if type(ins[0]) is Var or any(type(d) is Var for d in sizes):
            ins[0] = env[q.inputs[0]] = self._checked(ins[0], sizes, loop.name, eqns, q.where)
        visible = q.outputs[:loop.visible]
        for v in reversed(visible):
            env[v] = self.new(v.shape, v.dtype, _with_sizes(v, env, self))
        outs = [env[v] for v in visible]
        count = outs[loop.visible - 1] if loop.stop else ins[0]
        hidden_vars = loop.split_step_outputs(loop.step.outputs)[3]
        consts = dict(zip(loop.split_step_inputs(loop.step.inputs)[3], loop.split_inputs(ins)[4]))
        hidden = [self.new((_length(count), *v.shape), v.dtype, {**{d: consts.get(d) for d in v.shape if type(d) is Var},
                                                                 count: count}) for v in hidden_vars]
        if loop.hidden:
            residual = self.new((), RESIDUAL, {})
            env[q.outputs[-1]] = residual
            self.rows[residual] = hidden
        ordered = [*outs[:loop.rows], *hidden, *outs[loop.rows:]]
        eqns.append(Eqn(q.row, tuple(self.expanded(ins)), tuple(ordered), {"loop": inner}, q.where))

    def _checked(self, n, sizes, name, eqns, where):
        """Check a number of steps that is data before a loop runs it."""
        sizes = [Lit(d, n.dtype) if type(d) is int else d for d in dict.fromkeys(sizes)]
        out = self.new((), n.dtype, {})
        eqns.append(Eqn(TABLE["step_count"], (n, *sizes), (out,), {"name": name}, where))
        return out

    def adjoint(self, q, ins, env, eqns):
        """Replace an adjoint equation by its backward loop."""
        loop, active, with_ct = q.params["loop"], q.params["active"], q.params["with_ct"]
        found, operands = rule.adjoint_operands(loop, active, with_ct, ins)
        inputs = rule.split_adjoint(loop, with_ct, ins)[1]
        plan = nested.layout(found.forward, ins[0]) if found.hidden else None
        if plan is not None:
            kept = self.rows[next(x.residual for x in operands if isinstance(x, Hidden))]
            values = [x if isinstance(x, Hidden) else self._operand(x, eqns, q.where) for x in operands]
            outs = nested.backward(self, found.forward, plan, found, values, inputs, kept, eqns, q.where)
        else:
            outs = self._backward(found.backward, [self._operand(x, eqns, q.where) for x in operands], eqns, q.where)
        results = rule.adjoint_results(found, loop, active, outs, inputs)
        targets = [x for x, flag in zip(inputs, active) if flag]
        for v, result, target in zip(q.outputs, results, targets):
            env[v] = self._fit(self._operand(result, eqns, q.where), target, eqns, q.where)

    def _backward(self, loop, values, eqns, where):
        back = self.parameters(loop)
        outs = [self.new(shape, dtype, {d: d for d in shape if type(d) is Var})
                for shape, dtype in TABLE["loop"].infer(*values, loop=back)]
        eqns.append(Eqn(TABLE["loop"], tuple(values), tuple(outs), {"loop": back}, where))
        return outs

    def _operand(self, x, eqns, where):
        if isinstance(x, Hidden):
            return self.rows[x.residual][x.index]
        if isinstance(x, Zero):
            return self._fill(x.shape, x.dtype, eqns, where)
        return x

    def _fill(self, shape, dtype, eqns, where):
        if not shape:
            return Lit(0, dtype)
        shape = tuple(_length(d) for d in shape)
        out = self.new(shape, dtype, {d: d for d in shape if type(d) is Var})
        sizes = tuple(d for d in shape if type(d) is Var)
        template = tuple(d if type(d) is int else None for d in shape)
        eqns.append(Eqn(TABLE["fill"], (Lit(0, dtype), *sizes), (out,), {"template": template}, where))
        return out

    def _fit(self, x, target, eqns, where):
        """Lengthen the rows of a sequence by zeros for steps that did not run."""
        if not x.shape or tuple(x.shape) == tuple(target.shape):
            return x
        from nscan.ops.index import IndexSpec
        base = self._fill(target.shape, x.dtype, eqns, where)
        rest = tuple(("slice", 0, d, 1) for d in x.shape[1:])
        operands = (Lit(0, "i8"), x.shape[0]) if type(x.shape[0]) is Var else ()
        first = ("dyn", 0, 1, 1) if operands else ("slice", 0, x.shape[0], 1)
        out = self.new(target.shape, x.dtype, {d: d for d in target.shape if type(d) is Var})
        eqns.append(Eqn(TABLE["index_update"], (base, x, *operands), (out,), {"spec": IndexSpec((first, *rest))}, where))
        return out


def _length(n):
    return int(n.value) if type(n) is Lit else n


def _with_sizes(v, env, copier):
    """Sizes of an output may be another output of the same equation: it gets its copy first."""
    for d in v.shape:
        if type(d) is Var and d not in env:
            env[d] = copier.new(d.shape, d.dtype, env)
    return env


__all__ = ["Loop", "prepare"]
