"""Derivatives that the user writes: custom_vjp, custom_jvp, grad_clip, grad_scale.

A custom function is traced like a step. Its own equations stand on the tape as they are; behind them stands a row
that hands its first inputs on and knows the user's rule as a tape. So a rule works wherever rows work: in a step,
under `grad`, to any order.
"""

import contextlib
import dataclasses
import functools
import threading

import numpy as np

from nscan import edge, errors, tree
from nscan.array import as_array, astype
from nscan.grad.reverse import backward, literal_or, spread_active, total
from nscan.interpret import evaluate, run_equations
from nscan.primitive import TABLE, bind, custom, full, same_shape, shape_text, zeros_like
from nscan.tape import Lit, Tape, Var
from nscan.trace import StepTrace, Traced


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """A rule of the user, traced.

    Attributes
    ----------
    tape : Tape
        custom_vjp: from residuals, cotangents and what the rule captured to cotangents of the arguments.
        custom_jvp: from arguments, tangents and what the rule captured to tangents of the results.
    outs, middle, args : int
        Numbers of results, residuals (0 for custom_jvp) and arguments: the first inputs of the row.
    """

    tape: Tape
    outs: int
    middle: int
    args: int

    @property
    def key(self):
        """What tells two rules apart."""
        return self.tape.key, self.outs, self.middle, self.args

    def tapes(self):
        """Tapes inside, for printing and for passes."""
        return (self.tape,)

    def brief(self):
        """Short text for printed tapes."""
        return f"({self.outs} results, {self.args} arguments)"

    def split(self, values):
        """Split the inputs of the row into results, residuals, arguments, captured values."""
        a, b = self.outs, self.outs + self.middle
        c = b + self.args
        return values[:a], values[a:b], values[b:c], values[c:]


def _infer(*inputs, rule):
    return tuple((tuple(x.shape), x.dtype) for x in inputs[:rule.outs])


def _filled(values, at, first):
    return [zeros_like(at, first + k) if v is None else v for k, v in enumerate(values)]


def _values(at):
    return [at.x(i) for i in range(at.count)]


# ------------------------------------------------------------------------------------------------ the rows
def _vjp_rule_jvp(tangents, at, rule):
    """Tangents pass through the equations of the function itself."""
    return tuple(tangents[:rule.outs])


def _vjp_rule_vjp(cts, at, rule):
    a, b = rule.outs, rule.outs + rule.middle
    middle = [at.x(i) for i in range(a, b)]
    captured = [at.x(i) for i in range(b + rule.args, at.count)]
    back = evaluate(rule.tape, [*middle, *_filled(cts, at, 0), *captured])
    return [*[None] * b, *[_read(x) for x in back], *[None] * len(captured)]


def _read(x):
    """Return a literal of a rule's tape as a number."""
    return x.value if type(x) is Lit else x


def _jvp_rule_jvp(tangents, at, rule):
    _, _, args, captured = rule.split(_values(at))
    moves = _filled(rule.split(tangents)[2], at, rule.outs)
    return tuple([_read(x) for x in evaluate(rule.tape, [*args, *moves, *captured])])


def _jvp_rule_vjp(cts, at, rule):
    """Transpose the tape of tangents, which is linear in them: run it backwards at zero tangents."""
    _, _, args, captured = rule.split(_values(at))
    tape, n = rule.tape, rule.args
    env = dict(zip(tape.inputs, [*args, *_filled([None] * n, at, rule.outs), *captured]))
    read = literal_or(env.__getitem__)
    run_equations(tape.eqns, env)
    moves = tape.inputs[n:2 * n]
    flow, pending = spread_active(tape.eqns, [v for v in moves if v.dtype.kind in "fc"]), {}
    for v, ct in zip(tape.outputs, cts):
        if ct is not None and type(v) is Var and v in flow:
            pending.setdefault(v, []).append(ct)
    backward(tape.eqns, read, pending, flow)
    return [*[None] * rule.outs, *[total(v, pending.get(v), read) for v in moves], *[None] * len(captured)]


def _first(*arrays, rule):
    return tuple(arrays[:rule.outs])


custom(
    "custom_vjp", kind="identity", infer=_infer, eager=_first, jvp=_vjp_rule_jvp, vjp=_vjp_rule_vjp, outputs=None, asymmetric=True
)
custom("custom_jvp", kind="identity", infer=_infer, eager=_first, jvp=_jvp_rule_jvp, vjp=_jvp_rule_vjp, outputs=None)


# --------------------------------------------------------------------------------------- custom functions
class _Busy(threading.local):
    functions = ()


_BUSY = _Busy()


@contextlib.contextmanager
def _busy(function):
    """While a rule of a function is traced, calls of the function are plain calls."""
    before = _BUSY.functions
    _BUSY.functions = (*before, function)
    try:
        yield
    finally:
        _BUSY.functions = before


class _Custom:
    """Common part of custom_vjp and custom_jvp: calls the function itself where nothing is traced."""

    def __init__(self, function):
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args):
        """Evaluate the function."""
        leaves, structure = tree.flatten(args)
        if self in _BUSY.functions or not any(isinstance(x, Traced) for x in leaves):
            return self.function(*args)
        moving = [k for k, x in enumerate(leaves) if isinstance(x, (Traced, np.ndarray, np.generic))]
        arrays = [as_array(leaves[k]) for k in moving]

        def rebuild(values):
            full_ = list(leaves)
            for k, x in zip(moving, values):
                full_[k] = x
            return tree.unflatten(structure, full_)
        return self.apply(arrays, rebuild, [tree.flatten(a)[1] for a in args])

    def trace(self, function, arrays, what):
        """Trace a function of arrays: (tape, captured values, structure of the result)."""
        sizes = [d for x in arrays for d in x.shape if type(d) is not int]
        with StepTrace(self.__name__) as trace, _busy(self):
            inputs = [trace.new_input(tuple(x.shape), x.dtype, not x.shape, f"an argument of {self.__name__!r}") for x in arrays]
            outs, structure = tree.flatten(function(inputs))
            outs = [as_array(edge.leaf(x, f"what {what} of {self.__name__!r} returns")) for x in outs]
            tape, captured = trace.finish(outs, stable=True)
        if any(isinstance(x, Traced) and not any(x is d for d in sizes) for x, _ in trace.originals):
            raise errors.TracedValueError(f"{what} of {self.__name__!r} closes over a traced array, whose derivative would be "
                                          "lost; make it an argument of the function")
        return tape, captured, structure


class custom_vjp(_Custom):
    """Give a function a reverse derivative of your own; a decorator.

    Parameters
    ----------
    function : callable
        Function of nests of arrays; what its rules say is not checked against it.

    Raises
    ------
    SpecError
        From a derivative: no rule was given by ``defvjp``.
    CotangentError
        From a derivative: the rule returns too few cotangents, or one that does not fit its argument.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> @ns.custom_vjp
    ... def straight_through(x):
    ...     return np.round(x)
    >>> straight_through.defvjp(lambda x: (np.round(x), None), lambda residual, ct: (ct,))
    >>> ns.grad(lambda x: straight_through(x) ** 2)(1.7)
    np.float64(4.0)
    """

    forward = pull = None

    def defvjp(self, forward, pull):
        """Set the rule.

        Parameters
        ----------
        forward : callable
            ``forward(*args) -> (out, residual)``: what the function returns, and a nest of what `pull` needs. Where
            arrays are traced it is run in place of the function; a forward derivative (`jvp`) is that of its equations.
        pull : callable
            ``pull(residual, ct) -> tuple``: for the cotangent `ct` (a nest like `out`) one cotangent for each argument, a
            nest like it, or None for zero. It may be used at any order, so it should be differentiable itself.

        Notes
        -----
        In its own rule the function is the plain one: higher derivatives of what it returns there are those of its
        equations.
        """
        self.forward, self.pull = forward, pull

    def apply(self, arrays, rebuild, structures):
        """Run the rule on traced arrays."""
        if self.forward is None:
            raise errors.SpecError(f"{self.__name__!r} has no rule yet: call {self.__name__}.defvjp(forward, pull)")
        made = {}

        def forward(inputs):
            result = edge.call(self.forward, rebuild(inputs))
            if not isinstance(result, tuple) or len(result) != 2:
                raise errors.OutputsError(f"the forward rule of {self.__name__!r} must return (out, residual)")
            made["out"], made["residual"] = (tree.flatten(part)[1] for part in result)
            made["count"] = len(tree.flatten(result[0])[0])
            return result

        tape, captured, _ = self.trace(forward, arrays, "the forward rule")
        values = [_read(x) for x in evaluate(tape, [*arrays, *captured])]
        outs, middle = values[:made["count"]], values[made["count"]:]

        def pull(inputs):
            residual = tree.unflatten(made["residual"], inputs[:len(middle)])
            ct = tree.unflatten(made["out"], inputs[len(middle):])
            back = edge.call(self.pull, (residual, ct))
            return self._cotangents(back, rebuild(arrays), structures, arrays)

        rule, extra, _ = self.trace(pull, [*map(as_array, middle), *map(as_array, outs)], "the backward rule")
        rule = Rule(rule, len(outs), len(middle), len(arrays))
        found = bind(TABLE["custom_vjp"], (*outs, *middle, *arrays, *extra), {"rule": rule})
        return tree.unflatten(made["out"], found)

    def _cotangents(self, back, args, structures, arrays):
        """Check what the backward rule returns and list the cotangents of the arrays among the arguments."""
        if not isinstance(back, (tuple, list)) or len(back) != len(args):
            raise errors.CotangentError(f"the backward rule of {self.__name__!r} must return a tuple with a cotangent for "
                                        f"each of its {len(args)} arguments")
        out = []
        for k, (ct, arg, structure) in enumerate(zip(back, args, structures)):
            leaves, given = tree.leaves_like(ct, structure), tree.flatten(arg)[0]
            if leaves is None:
                found = tree.describe(tree.flatten(ct)[1])
                raise errors.CotangentError(f"the backward rule of {self.__name__!r} returns a cotangent of structure {found} "
                                            f"for argument {k}, which has {tree.describe(structure)}")
            what = f"argument {k} of {self.__name__!r}"
            out += [_like(c, x, what) for c, x in zip(leaves, given) if any(x is a for a in arrays)]
        return out


def _like(ct, x, what):
    """Give a cotangent the shape and dtype of its argument; None is zero."""
    if ct is None:
        return full(tuple(x.shape), 0, x.dtype) if x.shape else np.zeros((), x.dtype)
    ct = as_array(ct)
    if not same_shape(ct.shape, x.shape):
        raise errors.CotangentError(f"a custom rule returns shape {shape_text(ct.shape)} for {what}, which has "
                                    f"{shape_text(x.shape)}")
    return astype(ct, x.dtype)


class custom_jvp(_Custom):
    """Give a function a forward derivative of your own; a decorator. The reverse derivative is its transpose.

    Parameters
    ----------
    function : callable
        Function of nests of arrays.

    Raises
    ------
    SpecError
        From a derivative: no rule was given by ``defjvp``.
    OutputsError
        From a derivative: the rule does not return (out, dout).

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> @ns.custom_jvp
    ... def log1pexp(x):
    ...     return np.log(1 + np.exp(x))
    >>> log1pexp.defjvp(lambda primals, tangents: (log1pexp(*primals), ns.sigmoid(primals[0]) * tangents[0]))
    >>> ns.grad(log1pexp)(100.0)
    np.float64(1.0)
    """

    rule = None

    def defjvp(self, rule):
        """Set the rule.

        Parameters
        ----------
        rule : callable
            ``rule(primals, tangents) -> (out, dout)``; linear in the tangents, which are nests like the arguments.
            Tangents of integers and bools are zeros.

        Notes
        -----
        In its own rule the function is the plain one: higher derivatives of what it returns there are those of its
        equations.
        """
        self.rule = rule

    def apply(self, arrays, rebuild, structures):
        """Run the function on traced arrays, its own derivatives left out."""
        if self.rule is None:
            raise errors.SpecError(f"{self.__name__!r} has no rule yet: call {self.__name__}.defjvp(rule)")
        tape, captured, structure = self.trace(lambda inputs: edge.call(self.function, rebuild(inputs)), arrays, "the function")
        frozen = [bind(TABLE["stop_gradient"], (x,)) for x in arrays]
        outs = [_read(x) for x in evaluate(tape, [*frozen, *captured])]

        def tangent(inputs):
            n = len(arrays)
            result = edge.call(self.rule, (rebuild(inputs[:n]), rebuild(inputs[n:])))
            if not isinstance(result, tuple) or len(result) != 2:
                raise errors.OutputsError(f"the rule of {self.__name__!r} must return (out, dout)")
            leaves, found = tree.flatten(result[1])
            if found != structure:
                raise errors.CotangentError(f"the rule of {self.__name__!r} returns a tangent of structure "
                                            f"{tree.describe(found)}, the function returns {tree.describe(structure)}")
            return [_like(t, x, f"the tangent of {self.__name__!r}") for t, x in zip(leaves, outs)]

        rule, extra, _ = self.trace(tangent, [*arrays, *arrays], "the rule")
        rule = Rule(rule, len(outs), 0, len(arrays))
        found = bind(TABLE["custom_jvp"], (*outs, *arrays, *extra), {"rule": rule})
        return tree.unflatten(structure, found)


# ------------------------------------------------------------------------------- clipping and scaling
def _same_type(x, *numbers):
    return ((tuple(x.shape), x.dtype),)


def _clip_vjp(cts, at):
    return [np.clip(cts[0], at.x(1), at.x(2)), None, None]


custom("grad_clip", kind="pointwise", infer=_same_type, eager=lambda x, low, high: x, jvp=lambda tangents, at: (tangents[0],),
       vjp=_clip_vjp, partials=("1", None, None), spelling={"*": "a", "c": ("ar", "ai")}, asymmetric=True)
custom(
    "grad_scale",
    kind="pointwise",
    infer=_same_type,
    eager=lambda x, factor: x,
    jvp=lambda tangents, at: (tangents[0],),
    vjp=lambda cts, at: [cts[0] * at.x(1), None],
    partials=("1", None),
    spelling={"*": "a", "c": ("ar", "ai")},
    asymmetric=True,
)


def _on_leaves(row, x, *numbers):
    def one(leaf):
        if not isinstance(leaf, Traced):
            return leaf
        if leaf.dtype.kind not in "fc" or row == "grad_clip" and leaf.dtype.kind == "c":
            raise errors.GradientTypeError(f"{row} needs a {'real ' * (row == 'grad_clip')}float array, got {leaf.dtype}")
        operands = [astype(as_array(n), leaf.dtype) for n in numbers]
        if any(n.shape for n in operands):
            raise errors.SpecError(f"{row} needs numbers, got shape {next(shape_text(n.shape) for n in operands if n.shape)}")
        return bind(TABLE[row], (leaf, *operands))
    return tree.map_leaves(one, x)


def grad_clip(x, low, high):
    """Return x; in reverse derivatives its cotangent is limited to [low, high], element by element.

    Parameters
    ----------
    x : nest of real arrays
    low, high : float

    Returns
    -------
    nest

    Raises
    ------
    GradientTypeError
        Under a derivative: `x` is not real and floating.
    SpecError
        Under a derivative: a limit is no number.

    Notes
    -----
    A loop whose step clips cotangents keeps exploding gradients in bounds (Pascanu et al. 2013). Forward derivatives
    (`jvp`) pass unchanged.

    Examples
    --------
    >>> import nscan as ns
    >>> ns.grad(lambda x: 5.0 * ns.grad_clip(x, -1.0, 1.0))(3.0)
    np.float64(1.0)
    """
    return _on_leaves("grad_clip", x, low, high)


def grad_scale(x, factor):
    """Return x; in reverse derivatives its cotangent is multiplied by a factor (-1 reverses a gradient).

    Parameters
    ----------
    x : nest of float or complex arrays
    factor : float

    Returns
    -------
    nest

    Raises
    ------
    GradientTypeError
        Under a derivative: `x` is not floating or complex.
    SpecError
        Under a derivative: `factor` is no number.

    Examples
    --------
    >>> import nscan as ns
    >>> ns.grad(lambda x: 5.0 * ns.grad_scale(x, -0.5))(3.0)
    np.float64(-2.5)
    """
    return _on_leaves("grad_scale", x, factor)
