"""Loops with a well-known step: linear recurrences, running ufuncs, and scans with an associative operator.

Each is a call of `nscan.loop`, so derivatives of any order are loops of the same kind.
"""

import numpy as np

from nscan import edge, errors, spec, tree
from nscan.api import loop
from nscan.array import as_array, astype
from nscan.primitive import shape_text
from nscan.trace import Traced

# Ufuncs of `accumulate`: how a running value starts without an initial one. From what does not change the
# first element to the last bit; from the first element, which the ufunc takes twice (its cotangents add up to
# one); or behind it, since nothing else leaves its derivatives as they are.
STARTS = {np.add: "identity", np.multiply: "identity", np.maximum: "twice", np.minimum: "twice", np.logaddexp: "behind"}


# ------------------------------------------------------------------------------------------ linear recurrence
def linear_recurrence(a, b, h0=None, axis=0, reverse=False, reset=None):
    """Compute ``h[t] = a[t] * h[t-1] + b[t]``, elementwise.

    The result is that of this Python loop (with the axis of time in front)::

        h = h0
        for t in (reversed(range(n)) if reverse else range(n)):
            h = out[t] = a[t] * (h0 if reset[t] else h) + b[t]

    Parameters
    ----------
    a, b : array_like
        Factors and terms, broadcast against each other. What has no axis of time, or one of size 1, is the same
        in every step and is not copied.
    h0 : array_like, optional
        Value before the first step, by default 0; broadcast against a step of `a` and `b`.
    axis : int, default 0
        Axis of time, after broadcasting.
    reverse : bool, default False
        Run from the last step to the first.
    reset : array_like of bool, shape (n,) or (n, B), optional
        Where it is true the step sees `h0`, and no derivative passes from before. B is the first axis of a step.

    Returns
    -------
    ndarray
        In the shape of `a` and `b` after broadcasting, with the dtype of ``a * h0 + b``.

    Raises
    ------
    SpecError
        Shapes that do not broadcast, no axis of time, a reset of another dtype or shape.
    AxisRangeError
        There is no such axis.

    Notes
    -----
    A factor of 0 is exact: what lies before it has no part in the result nor in its derivatives.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.linear_recurrence(0.5, np.array([1.0, 1.0, 1.0]))
    array([1.  , 1.5 , 1.75])
    >>> ns.grad(lambda a: np.sum(ns.linear_recurrence(a, np.ones(3))))(np.array([0.5, 0.5, 0.0]))
    array([0. , 1. , 1.5])
    """
    a, b = spec.as_leaf(a, "a"), spec.as_leaf(b, "b")
    h0 = False if h0 is None else spec.as_leaf(h0, "h0")
    shape = _broadcast(("a", _shape(a)), ("b", _shape(b)))
    if not shape:
        raise errors.SpecError("a and b are 0-d: give one of them an axis of steps")
    axis = _axis(axis, len(shape), "a and b together")
    rows = [_steps_first(x, axis, len(shape)) for x in (a, b)]
    row = _broadcast(*[(f"a step of {name}", _shape(x)[moving:]) for name, (x, moving) in zip("ab", rows)], ("h0", _shape(h0)))
    h0 = astype(as_array(h0), np.result_type(*[_kind(x) for x in (a, b, h0)]))
    h0 = h0 if tuple(h0.shape) in ((), tuple(row)) else np.broadcast_to(h0, row)
    flags = _flags(reset, shape[axis], [row], ["h"])

    def step(h, x, first, *fixed):
        values, fixed = list(x[1:]), list(fixed)
        factor, term = [values.pop(0) if moving else fixed.pop(0) for _, moving in rows]
        return (new := factor * _choose(x[0], first, h) + term), new

    xs = (flags, *[x for x, moving in rows if moving])
    fixed = [x for x, moving in rows if not moving]
    _, out = loop(step, h0, xs, shape[axis], reverse=bool(reverse), non_sequences=[h0, *fixed], name="linear_recurrence")
    return _back(out, axis)


def _steps_first(x, axis, rank):
    """Move the axis of time to the front: (array, True), or (step, False) where every step has the same."""
    shape = _shape(x)
    own = axis - (rank - len(shape))
    if own < 0:
        return x, False
    if type(shape[own]) is int and shape[own] == 1:
        return np.reshape(x, (*shape[:own], *shape[own + 1:])), False
    return np.moveaxis(x, own, 0), True


def _shape(x):
    return tuple(getattr(x, "shape", ()))


def _kind(x):
    return x.dtype if hasattr(x, "dtype") else x


# ------------------------------------------------------------------------------------------- running ufuncs
def accumulate(op, x, axis=0, reverse=False, exclusive=False, initial=None):
    """Apply a ufunc to all elements up to each one, as ``op.accumulate(x, axis)`` does.

    The result is that of this Python loop (with the axis in front; without `initial` the running value starts
    with the first element)::

        acc = initial
        for t in (reversed(range(n)) if reverse else range(n)):
            before, acc = acc, op(acc, x[t])
            out[t] = before if exclusive else acc

    Parameters
    ----------
    op : ufunc
        ``np.add``, ``np.multiply``, ``np.maximum``, ``np.minimum`` or ``np.logaddexp``; for anything else there
        is `associative_scan`.
    x : array_like, shape (..., n, ...)
    axis : int, default 0
    reverse : bool, default False
        Run from the last element to the first.
    exclusive : bool, default False
        Leave the element itself out. Without `initial` the first result is the ufunc's identity.
    initial : array_like, optional
        Value to start from; broadcast against an element.

    Returns
    -------
    ndarray
        In the shape of `x`, with the dtype of ``op.accumulate`` (small integers and bools are added up as int64).

    Raises
    ------
    UnsupportedError
        Another ufunc.
    AxisRangeError
        There is no such axis.
    SpecError
        A 0-d array, an initial value of another shape, an exclusive maximum without initial value.

    Notes
    -----
    Derivatives are those of the loop: exact where factors are 0; an element that equals the running maximum
    shares the cotangent with it.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.accumulate(np.maximum, np.array([1.0, 3.0, 2.0]))
    array([1., 3., 3.])
    >>> ns.accumulate(np.add, np.array([1, 2, 3]), reverse=True, exclusive=True)
    array([5, 3, 0])
    >>> ns.grad(lambda x: ns.accumulate(np.multiply, x)[-1])(np.array([2.0, 0.0, 5.0]))
    array([ 0., 10.,  0.])
    """
    if not isinstance(op, np.ufunc) or op not in STARTS:
        name = getattr(op, "__name__", repr(op))
        raise errors.UnsupportedError(f"accumulate knows {', '.join('np.' + f.__name__ for f in STARTS)}, not {name}; "
                                      "ns.associative_scan takes any operator")
    x = as_array(spec.as_leaf(x, "x"))
    axis = _axis(axis, len(x.shape), "x")
    xs = np.moveaxis(x, axis, 0)
    dtype = op.accumulate(np.ones(1, x.dtype)).dtype
    if initial is not None:
        initial = _initial(spec.as_leaf(initial, "initial"), xs[:1].shape[1:], "initial", dtype, wider=True)
        return _back(_accumulated(op, xs, initial, reverse, exclusive), axis)
    if exclusive:
        if op.identity is None:
            raise errors.SpecError(f"an exclusive {op.__name__} has no first value: give initial")
        return _back(_accumulated(op, xs, dtype.type(op.identity), reverse, True), axis)
    if type(xs.shape[0]) is int and xs.shape[0] == 0:
        return np.zeros(x.shape, dtype)
    first = xs[-1 if reverse else 0]
    if STARTS[op] == "identity":
        zero = complex(-0.0, -0.0) if dtype.kind == "c" else -0.0 if dtype.kind == "f" else 0
        return _back(_accumulated(op, xs, dtype.type(1 if op is np.multiply else zero), reverse, False), axis)
    if STARTS[op] == "twice":
        return _back(_accumulated(op, xs, first, reverse, False), axis)
    rest = xs[:-1] if reverse else xs[1:]
    return _back(_joined(astype(first, dtype), _accumulated(op, rest, astype(first, dtype), reverse, False), reverse), axis)


def _accumulated(op, xs, start, reverse, exclusive):
    """Run a ufunc along the first axis, from a start."""
    def step(acc, x):
        new = op(acc, x)
        return new, acc if exclusive else new
    return loop(step, start, xs, reverse=bool(reverse), name=f"accumulate({op.__name__})")[1]


def _joined(first, rest, reverse):
    """Put the first result before the others (or behind them)."""
    first = np.expand_dims(first, 0)
    return np.concatenate([rest, first] if reverse else [first, rest], axis=0)


# --------------------------------------------------------------------------------------- associative operators
def associative_scan(op, xs, axis=0, reverse=False, exclusive=False, initial=None, reset=None):
    """Combine all elements up to each one with an operator of one's own.

    The result is that of this Python loop (with the axis in front)::

        acc = initial
        for t in (reversed(range(n)) if reverse else range(n)):
            before = initial if reset[t] else acc
            acc = op(before, xs[t])
            out[t] = before if exclusive else acc

    Without `initial` the first element, and one with a reset, are taken as they are.

    Parameters
    ----------
    op : callable
        ``op(acc, x) -> acc``, in NumPy, on nests like one element of `xs`. It should be associative; it need not
        be commutative: `acc` comes first, also with `reverse`.
    xs : nest of array_like, each of shape (..., n, ...)
    axis : int, default 0
        Axis of the elements in every array of the nest.
    reverse, exclusive : bool, default False
        As in `accumulate`; `exclusive` needs `initial`.
    initial : nest of array_like, optional
        Value to start from, with the structure and dtypes of an element; broadcast against it.
    reset : array_like of bool, shape (n,) or (n, B), optional
        Where it is true everything starts anew, and no derivative passes from before. B is the first axis of
        an element, in every array of the nest.

    Returns
    -------
    nest of ndarray
        Of the structure, shapes and dtypes of `xs`.

    Raises
    ------
    SpecError, LengthError, AxisRangeError
        The arguments do not fit together.
    StructureError, StateShapeError, StateTypeError
        The operator does not return what it is given.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> def compose(first, then):
    ...     return then[0] * first[0], then[0] * first[1] + then[1]
    >>> ns.associative_scan(compose, (np.array([2.0, 3.0, 4.0]), np.array([1.0, 1.0, 1.0])))
    (array([ 2.,  6., 24.]), array([ 1.,  4., 17.]))
    """
    name = getattr(op, "__name__", type(op).__name__)
    spec.check_arity(op, ["acc", "x"])
    leaves, structure = tree.flatten(xs)
    paths = tree.paths(structure, "xs")
    leaves = [as_array(spec.as_leaf(x, p)) for x, p in zip(leaves, paths)]
    if not leaves:
        raise errors.SpecError("xs holds no arrays")
    axes = [_axis(axis, len(x.shape), p) for x, p in zip(leaves, paths)]
    leaves = [np.moveaxis(x, a, 0) for x, a in zip(leaves, axes)]
    n = leaves[0].shape[0]
    for x, p in zip(leaves, paths):
        if type(n) is int and type(x.shape[0]) is int and x.shape[0] != n:
            raise errors.LengthError(f"{p} has {x.shape[0]} elements along the axis, {paths[0]} has {n}")
    starts = None if initial is None else _initial_nest(initial, structure, leaves, paths)
    if starts is None and exclusive:
        raise errors.SpecError("an exclusive scan has no first value: give initial")
    if starts is None and type(n) is int and n == 0:
        raise errors.SpecError("xs has no element to start with: give initial")
    flags = _flags(reset, n, [x.shape[1:] for x in leaves], paths)
    run = _Operator(op, name, structure, paths)
    outs = run.from_start(leaves, flags, starts, reverse, exclusive) if starts is not None else run.from_first(leaves, flags, reverse)
    return tree.unflatten(structure, [_back(out, a) for out, a in zip(outs, axes)])


class _Operator:
    """Runs a user's operator on flat lists of elements."""

    def __init__(self, op, name, structure, paths):
        self.op, self.name, self.structure, self.paths = op, name, structure, paths

    def combine(self, before, x):
        """Call the operator; what it returns must be like an element."""
        result = edge.call(self.op, [tree.unflatten(self.structure, before), tree.unflatten(self.structure, x)])
        news, found = tree.flatten(result)
        if found != self.structure:
            raise errors.StructureError(f"{self.name!r} returns {tree.describe(found)}, an element of xs is "
                                        f"{tree.describe(self.structure)}")
        news = [as_array(edge.leaf(v, f"what {self.name!r} returns for {p}")) for v, p in zip(news, self.paths)]
        for new, old, path in zip(news, x, self.paths):
            if tuple(new.shape) != tuple(old.shape):
                raise errors.StateShapeError(f"{self.name!r} returns shape {shape_text(new.shape)} for {path}, an element has "
                                             f"{shape_text(old.shape)}: an operator returns what it is given")
            if new.dtype != old.dtype:
                raise errors.StateTypeError(f"{self.name!r} returns {new.dtype} for {path}, an element is {old.dtype}: convert xs "
                                            "before, or the result in the operator")
        return news

    def from_start(self, xs, flags, starts, reverse, exclusive):
        """Scan from initial values."""
        def step(acc, x, *first):
            before = [_choose(x[0], f, h) for f, h in zip(first, acc)]
            new = self.combine(before, x[1:])
            return new, before if exclusive else new
        return loop(step, starts, [flags, *xs], reverse=bool(reverse), non_sequences=starts, name=self.name)[1]

    def from_first(self, xs, flags, reverse):
        """Scan from the first element."""
        def step(acc, x):
            new = [_choose(x[0], v, h) for v, h in zip(x[1:], self.combine(acc, x[1:]))]
            return new, new
        rest = slice(None, -1) if reverse else slice(1, None)
        first = [x[-1 if reverse else 0] for x in xs]
        flags = None if flags is None else flags[rest]
        outs = loop(step, first, [flags, *[x[rest] for x in xs]], reverse=bool(reverse), name=self.name)[1]
        return [_joined(f, out, reverse) for f, out in zip(first, outs)]


def _initial_nest(initial, structure, xs, paths):
    """Check the initial value of a nest against its elements; return its leaves."""
    values, found = tree.flatten(initial)
    if found != structure:
        raise errors.StructureError(f"initial is {tree.describe(found)}, an element of xs is {tree.describe(structure)}")
    names = tree.paths(structure, "initial")
    return [_initial(spec.as_leaf(v, name), x.shape[1:], name, x.dtype) for v, x, name in zip(values, xs, names)]


# ------------------------------------------------------------------------------------------------- arguments
def _axis(axis, rank, what):
    """Check an axis; count it from the front."""
    if isinstance(axis, (bool, np.bool_)) or not isinstance(axis, (int, np.integer)):
        raise errors.SpecError(f"axis must be an integer, got {axis!r}")
    if rank == 0:
        raise errors.SpecError(f"{what}: 0-d, there is no axis to run along")
    if not -rank <= axis < rank:
        raise errors.AxisRangeError(f"axis {int(axis)} is out of range: {what} has {rank} {'axis' if rank == 1 else 'axes'}")
    return int(axis) % rank


def _broadcast(*named):
    """Broadcast shapes, pairs of a name and a shape; an error names the arrays."""
    out, before = (), []
    for name, shape in named:
        rank = max(len(out), len(shape))
        pairs = zip((1,) * (rank - len(out)) + out, (1,) * (rank - len(shape)) + shape)
        out = tuple(_broadcast_size(x, y) for x, y in pairs)
        if None in out:
            raise errors.SpecError(f"{name} has shape {shape_text(shape)}, which does not broadcast: {', '.join(before)}")
        before.append(f"{name} has shape {shape_text(shape)}")
    return out


def _broadcast_size(x, y):
    """Size of two axes together, or None if they do not fit; a size that is computed fits what it meets."""
    if type(y) is int and y == 1 or x is y:
        return x
    if type(x) is not int:
        return x
    return y if x == 1 or x == y or type(y) is not int else None


def _initial(value, row, name, dtype, wider=False):
    """Give an initial value the dtype of the running value and, unless it is 0-d, the shape of an element."""
    found = np.result_type(dtype, _kind(value))
    if found != dtype and not wider:
        raise errors.StateTypeError(f"{name} is {_kind(value) if hasattr(value, 'dtype') else type(value).__name__}, an element is "
                                    f"{dtype}: convert xs before")
    value = astype(as_array(value), found)
    if _broadcast(("an element", tuple(row)), (name, tuple(value.shape))) != tuple(row):
        raise errors.SpecError(f"{name} has shape {shape_text(value.shape)}, an element has {shape_text(row)}")
    return value if tuple(value.shape) in ((), tuple(row)) else np.broadcast_to(value, row)


def _flags(reset, n, rows, paths):
    """Check the flags of a reset."""
    if reset is None:
        return None
    reset = as_array(spec.as_leaf(reset, "reset"))
    if reset.dtype.kind != "b":
        raise errors.SpecError(f"reset must be bool, got {reset.dtype}: write reset != 0")
    if len(reset.shape) not in (1, 2) or type(n) is int and reset.shape[0] != n:
        raise errors.SpecError(f"reset has shape {shape_text(reset.shape)}; it must be ({n},) or ({n}, B)")
    for row, path in zip(rows, paths):
        if len(reset.shape) == 2 and (not row or row[0] != reset.shape[1]):
            raise errors.SpecError(f"reset has {reset.shape[1]} columns, a step of {path} has shape {shape_text(row)}: its first axis "
                                   "must have as many")
    return reset


def _choose(flag, yes, no):
    """Choose by a flag for the step, or for each entry of its first axis; without flags it is `no`."""
    if flag is None:
        return no
    if len(flag.shape):
        flag = np.reshape(flag, (*flag.shape, *[1] * (len(no.shape) - 1)))
    return np.where(flag, yes, no)


def _back(out, axis):
    """Move the axis of steps back to its place, in C order."""
    out = np.moveaxis(out, 0, axis)
    return out if isinstance(out, Traced) else np.ascontiguousarray(out)


__all__ = ["accumulate", "associative_scan", "linear_recurrence"]
