"""Formulas that lose their value to overflow, underflow or cancellation, and what is computed in their place.

`PATTERNS` is the table: a formula as users write it, and one with the same value in exact arithmetic. Names are any
values (the same name the same value); functions are rows. The first row that fits counts, so special ones stand first.
Sums of exponentials over axes follow in `shifted`: exp(x) / sum(exp(x)), its logarithm, and log(sum(exp(x))).

A rewrite may change rounding and what overflows, and nothing else: ``x / abs(x)`` stays as it is, since it has no value
at 0. Formulas are rewritten where a step is traced, before it is differentiated.
"""

import ast

import numpy as np

from nscan.tape import Lit, Var

PATTERNS = (
    # the logistic function, in the ways it is written
    ("1 / (1 + exp(-x))", "expit(x)"),
    ("reciprocal(1 + exp(-x))", "expit(x)"),
    ("exp(x) / (1 + exp(x))", "expit(x)"),
    ("1 - expit(x)", "expit(-x)"),
    ("expit(x) / expit(-x)", "exp(x)"),
    ("logit(expit(x))", "x"),
    ("log(expit(x))", "log_expit(x)"),
    ("log1p(-expit(x))", "log_expit(-x)"),
    # exponentials beside 1
    ("log(1 + exp(x))", "softplus(x)"),
    ("log1p(exp(x))", "softplus(x)"),
    ("log(-expm1(x))", "where(x > -0.6931471805599453, log(-expm1(x)), log1p(-exp(x)))"),
    ("log1p(-exp(x))", "where(x > -0.6931471805599453, log(-expm1(x)), log1p(-exp(x)))"),
    ("exp(x) - 1", "expm1(x)"),
    ("1 - exp(x)", "-expm1(x)"),
    ("(exp(x) - exp(-x)) / (exp(x) + exp(-x))", "tanh(x)"),
    # the normal distribution
    ("log(ndtr(x))", "log_ndtr(x)"),
    ("log(erfc(x))", "log_ndtr(x * -1.4142135623730951) + 0.6931471805599453"),
    ("1 - erf(x)", "erfc(x)"),
    ("1 + erf(x)", "erfc(-x)"),
    ("1 - erfc(x)", "erf(x)"),
    ("1 - ndtr(x)", "ndtr(-x)"),
    # logarithms
    ("log(exp(x))", "x"),
    ("log(exp(x) + exp(y))", "logaddexp(x, y)"),
    ("log(exp(x) + exp(y) + exp(z))", "logaddexp(logaddexp(x, y), z)"),
    ("log(1 + x)", "log1p(x)"),
    ("log(1 - x)", "log1p(-x)"),
    # squares that leave the range
    ("sqrt(square(x))", "absolute(x)"),
    ("sqrt(x * x)", "absolute(x)"),
)

_ROWS = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Gt: "greater", "where": "select"}
_EITHER_WAY = {"add", "multiply"}


def parsed(text):
    """Turn a formula into nested tuples: a name, a number, or (row, operands)."""
    return _tree(ast.parse(text, mode="eval").body)


def _tree(node):
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        inner = _tree(node.operand)
        return -inner if isinstance(inner, (int, float)) else ("negative", inner)
    if isinstance(node, ast.Compare):
        return _ROWS[type(node.ops[0])], _tree(node.left), _tree(node.comparators[0])
    if isinstance(node, ast.BinOp):
        return _ROWS[type(node.op)], _tree(node.left), _tree(node.right)
    return _ROWS.get(node.func.id, node.func.id), *map(_tree, node.args)


def _by_root(patterns):
    out = {}
    for before, after in patterns:
        tree = parsed(before)
        out.setdefault(tree[0], []).append((tree, parsed(after)))
    return out


_TABLE = _by_root(PATTERNS)


def rewrite(name, inputs, tape):
    """Return what stands in place of an equation, or None.

    Parameters
    ----------
    name : str
        The row of the equation.
    inputs : tuple of Var or Lit
    tape :
        The tape under construction: ``maker`` gives the equation of a Var, ``emit(row, inputs, params)`` appends one.
    """
    for pattern, result in _TABLE.get(name, ()):
        found = {}
        if _operands_match(pattern, inputs, tape.maker, found):
            return _built(result, found, tape)
    return shifted(name, inputs, tape)


def _operands_match(pattern, inputs, maker, found):
    orders = (inputs, inputs[::-1]) if pattern[0] in _EITHER_WAY else (inputs,)
    for order in orders:
        trial = dict(found)
        if len(order) == len(pattern) - 1 and all(_matches(p, v, maker, trial) for p, v in zip(pattern[1:], order)):
            found.update(trial)
            return True
    return False


def _matches(pattern, v, maker, found):
    if isinstance(pattern, str):
        return found.setdefault(pattern, v) is v
    if isinstance(pattern, tuple):
        q = maker.get(v) if type(v) is Var else None
        return q is not None and q.row.name == pattern[0] and _operands_match(pattern, q.inputs, maker, found)
    return is_number(v, pattern, maker)


def _built(tree, found, tape):
    if isinstance(tree, str):
        return found[tree]
    if not isinstance(tree, tuple):
        return Lit(tree, found["x"].dtype)
    return tape.emit(tree[0], [_built(part, found, tape) for part in tree[1:]])


def is_number(v, value, maker):
    """Whether a value is a constant number in every element."""
    if type(v) is Lit:
        return bool(v.value == value) and not (value == 0 and v.dtype.kind in "fc" and np.signbit(v.value.real))
    q = maker.get(v)
    return q is not None and q.row.name in ("fill", "broadcast_to", "reshape") and is_number(q.inputs[0], value, maker)


# ------------------------------------------------------------------------------------- sums of exponentials
EXPANDING = ("reshape", "index", "broadcast_to")
PICKING = (*EXPANDING, "transpose")


def shifted(name, inputs, tape):
    """Rewrite formulas with a sum of exponentials over axes, so that the largest exponent is 0."""
    if name == "divide":
        return _softmax(*inputs, tape)
    if name == "log":
        return _log_of_softmax(inputs[0], tape) or _log_of_sum(inputs[0], tape)
    return None


def _softmax(e, divisor, tape):
    """exp(x) / sum(exp(x)): the same with exp(x - max(x)); remembered, in case that its logarithm follows."""
    sums, views = _behind(divisor, tape.maker, EXPANDING)
    exp = tape.maker.get(e) if type(e) is Var else None
    if sums is None or sums.row.name != "sum" or sums.inputs[0] is not e or exp is None or exp.row.name != "exp":
        return None
    axes, shape = sums.params["axes"], _kept(e.shape, sums.params["axes"])
    if not _is_static(e, axes) or any(_moves(q) for q in views) or (1,) * (e.ndim - divisor.ndim) + tuple(divisor.shape) != shape:
        return None
    x = exp.inputs[0]
    if not _is_shifted(x, axes, tape.maker):
        x = tape.emit("subtract", [x, tape.emit("reshape", [_top(x, axes, tape)], template=shape)])
    e = tape.emit("exp", [x])
    total = tape.emit("reshape", [tape.emit("sum", [e], axes=axes)], template=shape)
    out = tape.emit("divide", [e, total])
    tape.softmaxes[out] = x, total
    return out


def _log_of_softmax(v, tape):
    """log(exp(x) / total), or of some of its elements: x - log(total), the same elements."""
    views = []
    while v not in tape.softmaxes:
        q = tape.maker.get(v) if type(v) is Var else None
        if q is None or q.row.name not in PICKING:
            return None
        views.append(q)
        v = q.inputs[0]
    x, total = tape.softmaxes[v]
    return _again(views, tape.emit("subtract", [x, tape.emit("log", [total])]), tape)


def _log_of_sum(v, tape):
    """log(sum(exp(x))), perhaps of a mean: log(sum(exp(x - max(x)))) + max(x)."""
    q, views = _behind(v, tape.maker, PICKING)
    divisor = None
    if q is not None and q.row.name == "divide" and not q.inputs[1].shape:
        divisor = q.inputs[1]
        q, inner = _behind(q.inputs[0], tape.maker, PICKING)
        views += inner
    exp = tape.maker.get(q.inputs[0]) if q is not None and q.row.name == "sum" and type(q.inputs[0]) is Var else None
    if exp is None or exp.row.name != "exp" or not _is_static(exp.inputs[0], q.params["axes"]):
        return None
    x, axes = exp.inputs[0], q.params["axes"]
    if _is_shifted(x, axes, tape.maker):
        return None
    top = _top(x, axes, tape)
    e = tape.emit("exp", [tape.emit("subtract", [x, tape.emit("reshape", [top], template=_kept(x.shape, axes))])])
    out = tape.emit("add", [tape.emit("log", [tape.emit("sum", [e], axes=axes)]), top])
    out = out if divisor is None else tape.emit("subtract", [out, tape.emit("log", [divisor])])
    return _again(views, out, tape)


def _behind(v, maker, names):
    """Follow a value through rows with these names: (the equation behind them or None, the equations passed)."""
    passed = []
    while True:
        q = maker.get(v) if type(v) is Var else None
        if q is None or q.row.name not in names:
            return q, passed
        passed.append(q)
        v = q.inputs[0]


def _again(views, v, tape):
    """Apply equations that were passed to another value."""
    for q in reversed(views):
        v = tape.emit(q.row.name, [v, *q.inputs[1:]], **q.params)
    return v


def _moves(q):
    """Whether an index does more than to add axes."""
    return q.row.name == "index" and not all(e[0] == "new" or e[0] == "slice" and e[1:] == (0, d, 1) for e, d in _entries(q))


def _entries(q):
    """Entries of an index, each with the size of the axis that it stands for."""
    sizes = iter(q.inputs[0].shape)
    return [(e, None if e[0] == "new" else next(sizes)) for e in q.params["spec"].entries]


def _is_static(x, axes):
    """Whether the shape is known and something is summed."""
    return all(type(d) is int for d in x.shape) and all(x.shape[k] > 0 for k in axes)


def _kept(shape, axes):
    return tuple(1 if k in axes else d for k, d in enumerate(shape))


def _top(x, axes, tape):
    """The largest exponent, 0 where that is infinite; no derivative passes, since the result does not depend on it."""
    top = tape.emit("stop_gradient", [tape.emit("max", [x], axes=axes)])
    return tape.emit("select", [tape.emit("isfinite", [top]), top, Lit(0, top.dtype)])


def _is_shifted(x, axes, maker):
    """Whether exponents are differences to their maximum already."""
    q = maker.get(x) if type(x) is Var else None
    if q is None or q.row.name != "subtract":
        return False
    top, _ = _behind(q.inputs[1], maker, (*EXPANDING, "stop_gradient"))
    if top is not None and top.row.name == "select":
        top, _ = _behind(top.inputs[1], maker, (*EXPANDING, "stop_gradient"))
    return top is not None and top.row.name == "max" and top.inputs[0] is q.inputs[0] and set(top.params["axes"]) >= set(axes)
