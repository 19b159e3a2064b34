"""Whole derivatives: jacobian, hessian, and the Gauss-Newton product.

Directions are batched: one loop over the numbers of the unit vectors, whose step is the derivative along one of them.
The function itself keeps its values there, only tangents (or cotangents) depend on the direction, so it may contain
Python control flow on values.
"""

import functools

import numpy as np

from nscan import errors, step, tree
from nscan.array import as_array, astype
from nscan.grad.higher import grad, hvp, input_leaf, jvp, positions, vjp


def _size(leaves):
    return sum(int(np.prod(x.shape)) for x in leaves)


def _unit(k, leaves, structure):
    """Nest of zeros with a 1 at flat place k (a traced integer) of the leaves as one vector."""
    out, first = [], 0
    for x in leaves:
        size = _size([x])
        out.append(np.reshape(astype(np.arange(first, first + size) == k, x.dtype), tuple(x.shape)))
        first += size
    return tree.unflatten(structure, out)


def _along_units(derivative, leaves, structure, name):
    """Rows of derivatives along every unit vector of a nest: (leaves of shape (N, ...), structure)."""
    made = []

    def flat_step(rows, states, constants):
        found, structure_ = tree.flatten(derivative(_unit(rows[0], leaves, structure)))
        made[:] = [structure_]
        return [], [as_array(x) for x in found], None

    call = step.Call(flat_step, [np.arange(_size(leaves))], [], [], [], name, functions=(derivative,))
    rows = step.run(step.trace_call(call), _size(leaves), [np.arange(_size(leaves))])[0]
    return rows, made[0]


def _columns(rows, leaves, structure):
    """Turn rows over the directions of a nest into a nest of arrays, the axes of the direction last."""
    out, first = [], 0
    for x in leaves:
        size = _size([x])
        part = np.moveaxis(rows[first:first + size], 0, -1)
        out.append(_finished(np.reshape(part, (*part.shape[:-1], *x.shape))))
        first += size
    return tree.unflatten(structure, out)


def _finished(x):
    """Return an ordinary array of its own, a scalar for a 0-d one."""
    return np.array(x)[()] if isinstance(x, np.ndarray) else x


class Jacobian:
    """A function that returns a Jacobian; see `jacobian`."""

    def __init__(self, f, argnums, forward=None):
        self.f, self.argnums, self.forward = f, argnums, forward
        functools.update_wrapper(self, f, updated=())

    def __call__(self, *args, **kwargs):
        """Evaluate the Jacobian."""
        where, many = positions(self.argnums, args)
        chosen = tuple(args[k] for k in where)
        leaves, structure = tree.flatten(chosen if many else chosen[0])
        name = getattr(self.f, "__name__", "the function")
        values = [input_leaf(x, p) for x, p in zip(leaves, tree.paths(structure, f"the argument of {name}"))]

        def restricted(nest):
            given = list(args)
            for k, x in zip(where, nest if many else (nest,)):
                given[k] = x
            return self.f(*given, **kwargs)

        x = tree.unflatten(structure, leaves)
        return self._forward(restricted, x, values, structure, name) if self._is_forward(restricted, x, values) else \
            self._reverse(restricted, x, values, structure, name)

    def _is_forward(self, f, x, values):
        """Forward unless the results are smaller than the arguments, or a real result depends on complex arguments."""
        if self.forward is not None:
            return self.forward
        outs = [as_array(y) for y in tree.flatten(f(x))[0]]
        complex_ = any(v.dtype.kind == "c" for v in values)
        return not (_size(outs) < _size(values) or complex_ and any(y.dtype.kind != "c" for y in outs))

    @staticmethod
    def _forward(f, x, values, structure, name):
        rows, found = _along_units(lambda unit: jvp(f, (x,), (unit,))[1], values, structure, name)
        return tree.unflatten(found, [_columns(r, values, structure) for r in rows])

    @staticmethod
    def _reverse(f, x, values, structure, name):
        out, pull = vjp(f, x)
        outs, found = tree.flatten(out)
        rows, _ = _along_units(lambda unit: pull(unit)[0], outs, found, name)
        result, first = [], 0
        for y in outs:
            size = _size([y])
            parts = [np.reshape(r[first:first + size], (*y.shape, *v.shape)) for r, v in zip(rows, values)]
            parts = [np.conj(p) if y.dtype.kind == "c" and p.dtype.kind == "c" else p for p in parts]
            result.append(tree.unflatten(structure, [_finished(p) for p in parts]))
            first += size
        return tree.unflatten(found, result)


def jacobian(f, argnums=0):
    """Make a function that returns the derivative of every output in every input.

    Parameters
    ----------
    f : callable
        Function of nests of float or complex arrays; returns a nest of arrays.
    argnums : int or tuple of int
        Which arguments to differentiate.

    Returns
    -------
    callable
        Returns, for each array of shape (p, ...) in the result of `f`, a nest like the argument (a tuple of nests for a
        tuple `argnums`) of arrays of shape (p, ..., q, ...). It may be pickled if `f` may.

    Raises
    ------
    GradientTypeError
        An argument holds integers or bools.

    Notes
    -----
    The directions are the steps of one loop: tangents along the inputs, or cotangents of the outputs where there are
    fewer of these; then `f` runs once more beforehand, to see the shapes. A real result of complex arguments has the
    convention of `grad`, d/dRe + 1j*d/dIm; a complex result of complex arguments must be holomorphic.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.jacobian(lambda x: x ** 2)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """
    return Jacobian(f, argnums)


class Hessian(Jacobian):
    """A function that returns a Hessian; see `hessian`."""

    def __init__(self, f, argnums):
        super().__init__(grad(f, argnums), argnums, forward=True)

    def __call__(self, *args, **kwargs):
        """Evaluate the Hessian."""
        for nest in args:
            if any(getattr(x, "dtype", np.dtype(bool)).kind == "c" for x in tree.flatten(nest)[0]):
                raise errors.GradientTypeError("hessian needs real arguments; split complex ones into real and imaginary parts")
        return super().__call__(*args, **kwargs)


def hessian(f, argnums=0):
    """Make a function that returns the second derivatives of a real function (forward over reverse).

    Parameters
    ----------
    f : callable
        Returns one real number.
    argnums : int or tuple of int

    Returns
    -------
    callable
        Returns for an array argument of shape (p, ...) an array of shape (p, ..., p, ...); for a nest a nest of nests;
        for a tuple `argnums` a tuple of tuples. It may be pickled if `f` may.

    Raises
    ------
    NotScalarError
        `f` does not return one real number.
    GradientTypeError
        An argument holds integers, bools or complex numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.hessian(lambda x: x[0] ** 2 * x[1])(np.array([1.0, 2.0]))
    array([[4., 2.],
           [2., 0.]])
    """
    return Hessian(f, argnums)


def gauss_newton_vp(model, loss, x, v):
    """Product ``J' H J v`` of the Gauss-Newton matrix of ``loss(model(x))`` with a vector.

    J is the Jacobian of the model at x, H the Hessian of the loss at the model's output.

    Parameters
    ----------
    model : callable
        Function of one nest; returns a nest.
    loss : callable
        Function of that nest; returns a real number.
    x : nest of float arrays
    v : nest like `x`

    Returns
    -------
    nest like `x`

    Raises
    ------
    NotScalarError
        `loss` does not return one real number.
    CotangentError
        `v` does not fit `x`.
    GradientTypeError
        `x` holds integers or bools.

    References
    ----------
    Schraudolph 2002, *Fast curvature matrix-vector products for second-order gradient descent*.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.gauss_newton_vp(np.sin, lambda y: np.sum(y ** 2), np.zeros(2), np.array([1.0, 2.0]))
    array([2., 4.])
    """
    out, pull = vjp(model, x)
    moved = jvp(model, (x,), (v,))[1]
    return pull(hvp(loss, out, moved))[0]
