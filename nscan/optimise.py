"""Tape to tape: equal equations once, dead ones never, algebra that changes no bit, and stable formulas.

Runs once for each structure, where a trace ends: on the user's steps before they are differentiated, so that whatever it
decides about rounding is decided for the forward and the backward pass alike, and on derived steps.
"""

import dataclasses

from nscan.primitive import TABLE
from nscan.rewrites import is_number, rewrite
from nscan.tape import Eqn, Lit, Tape, Var, operand_key, params_key

# Rows that cannot fail; others stay, since the Python loop would raise what they raise.
NEVER_FAIL = {"reshape", "transpose", "broadcast_to", "fill", "matmul"}


def optimise(tape, stable=False):
    """Simplify a tape.

    Parameters
    ----------
    tape : Tape
    stable : bool
        Whether formulas may be rewritten (`nscan.rewrites`).

    Returns
    -------
    Tape
        With the same inputs, and outputs of the same types.
    """
    return remove_dead(_Simplifier(tape, stable).run())


def remove_dead(tape, idle=()):
    """Drop equations that no output depends on, unless they may fail and do not make a value of `idle`."""
    needed = {v for v in tape.outputs if type(v) is Var}
    kept = []
    for q in reversed(tape.eqns):
        if may_fail(q) and q.outputs[0] not in idle or any(v in needed for v in q.outputs):
            q = _without_dead_rows(q, needed)
            kept.append(q)
            needed.update(v for v in q.inputs if type(v) is Var)
            needed.update(d for v in (*q.inputs, *q.outputs) for d in v.shape if type(d) is Var)
    return Tape(tape.inputs, tuple(reversed(kept)), tape.outputs)


def _without_dead_rows(q, needed):
    """Let a loop keep only the rows that somebody reads, and one output in any case."""
    loop = q.params["loop"] if q.row.name == "loop" else None
    if loop is None or loop.hidden or loop.watch or all(v in needed for v in q.outputs[:loop.rows]):
        return q
    rows = tuple([k for k in range(loop.rows) if q.outputs[k] in needed]) or ((0,) if len(q.outputs) == loop.rows else ())
    return Eqn(q.row, q.inputs, (*[q.outputs[k] for k in rows], *q.outputs[loop.rows:]), {"loop": _with_rows(loop, rows)}, q.where)


def _with_rows(loop, rows):
    """Return a loop with some of its rows, the same object every time."""
    found = loop.variants.get(rows)
    if found is None:
        a, outputs = loop.states + loop.sums, loop.step.outputs
        outputs = (*outputs[:a], *[outputs[a + k] for k in rows], *outputs[a + loop.rows:])
        step = remove_dead(Tape(loop.step.inputs, loop.step.eqns, outputs))
        found = loop.variants[rows] = dataclasses.replace(loop, step=step, rows=len(rows))
    return found


def may_fail(q):
    """Whether an equation can stop a loop with an error."""
    row = q.row
    if row.kind == "pointwise":
        return "power" in row.name and q.outputs[0].dtype.kind in "iu"
    if row.name == "index":
        return not q.params["spec"].is_static
    return row.kind != "reduction" and row.name not in NEVER_FAIL


class _Simplifier:
    """Rebuilds a tape equation by equation.

    Attributes
    ----------
    maker : dict
        New Var to the new equation that makes it.
    softmaxes : dict
        See `nscan.rewrites`.
    """

    def __init__(self, tape, stable):
        self.tape = tape
        self.stable = stable
        self.env = {v: v for v in tape.inputs}
        self.maker = {}
        self.seen = {}
        self.softmaxes = {}
        self.eqns = []
        self.where = None
        self.count = max([v.id for v in tape.inputs] + [v.id for q in tape.eqns for v in q.outputs], default=0)

    def run(self):
        """Return the simplified tape."""
        for q in self.tape.eqns:
            self._equation(q)
        return Tape(self.tape.inputs, tuple(self.eqns), tuple(self.read(v) for v in self.tape.outputs))

    def read(self, v):
        """Value that stands for an old one."""
        return v if type(v) is Lit else self.env[v]

    def _equation(self, q):
        self.where = q.where
        inputs = tuple([v if type(v) is Lit else self.env[v] for v in q.inputs])
        found = simplify(q, inputs, self.maker)
        if found is None and self.stable and q.outputs and q.outputs[0].dtype.kind == "f":
            found = rewrite(q.row.name, inputs, self)
        if found is not None and found.dtype == q.outputs[0].dtype and tuple(found.shape) == self._shape(q.outputs[0]):
            self.env[q.outputs[0]] = found
            return
        made = self._append(q.row, inputs, q.params, q.outputs)
        self.env.update(zip(q.outputs, made))

    def _shape(self, v):
        return tuple([d if type(d) is int else self.env.get(d, d) for d in v.shape])

    def emit(self, name, inputs, **params):
        """Append an equation with one output and return that."""
        row, inputs = TABLE[name], tuple(inputs)
        (shape, dtype), = row.infer(*inputs, **params)
        return self._append(row, inputs, params, (Var(shape, dtype, 0),))[0]

    def _append(self, row, inputs, params, like):
        """Append an equation, unless there is an equal one; its outputs."""
        key = row, params_key(params), *map(operand_key, inputs), *[self._shape(v) for v in like]
        known = self.seen.get(key)
        if known is not None:
            return known
        outputs = [None] * len(like)
        for k in reversed(range(len(like))):  # the size of an output may be a later output
            self.count += 1
            outputs[k] = self.env[like[k]] = Var(self._shape(like[k]), like[k].dtype, self.count)
        made = Eqn(row, inputs, tuple(outputs), params, self.where)
        self.eqns.append(made)
        self.maker.update((v, made) for v in outputs)
        self.seen[key] = made.outputs
        return made.outputs


def simplify(q, inputs, maker):
    """Return an existing value that equals an equation's output bit by bit, or None."""
    name = q.row.name
    x = inputs[0] if inputs else None
    before = maker.get(x) if type(x) is Var else None
    if name in _ARITHMETIC:
        return _arithmetic(name, *inputs, maker)
    if name in ("positive", "copy"):
        return x
    if name == "negative" and before is not None and before.row.name == "negative":
        return before.inputs[0]
    if name in ("conjugate", "real") and x.dtype.kind != "c" or name == "cast" and x.dtype == q.params["dtype"]:
        return x
    if name == "transpose":
        return _transpose(x, q.params["perm"], before)
    if name in ("reshape", "broadcast_to") and tuple(x.shape) == tuple(q.outputs[0].shape):
        return x
    if name == "select" and inputs[1] is inputs[2]:
        return inputs[1]
    return None


# Numbers that change nothing on the right, and on the left: adding 0.0 changes -0.0, so floats add -0.0 only.
_ARITHMETIC = {"add": (0, 0), "subtract": (0, None), "multiply": (1, 1), "divide": (1, None)}


def _arithmetic(name, a, b, maker):
    right, left = _ARITHMETIC[name]
    if name == "add" and a.dtype.kind in "fc":
        return None
    if is_number(b, right, maker):
        return a
    if left is not None and is_number(a, left, maker):
        return b
    return None


def _transpose(x, perm, before):
    if perm == tuple(range(len(perm))):
        return x
    if before is not None and before.row.name == "transpose":
        first = before.params["perm"]
        if tuple([first[k] for k in perm]) == tuple(range(len(perm))):
            return before.inputs[0]
    return None
