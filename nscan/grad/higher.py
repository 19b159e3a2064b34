"""Derivatives of functions: vjp, grad, jvp, products with Hessians and Jacobians."""

import functools

import numpy as np

from nscan import edge, errors, tree
from nscan.array import as_array
from nscan.grad.flow import deciders, only_decides
from nscan.grad.reverse import backward, literal_or, total
from nscan.primitive import TABLE, bind, custom, same_shape, shape_text
from nscan.trace import TangentTrace, Traced, ValueTrace, rules


def _stop_rule(x):
    return ((x.shape, x.dtype),)


custom(
    "stop_gradient",
    kind="pointwise",
    infer=_stop_rule,
    eager=lambda x: x,
    partials=(None,),
    spelling={"*": "a", "c": ("ar", "ai")},
)


def stop_gradient(x):
    """Return a nest of arrays through which no derivative passes.

    Parameters
    ----------
    x : nest of arrays or numbers

    Returns
    -------
    nest

    Examples
    --------
    >>> import nscan as ns
    >>> ns.grad(lambda x: x * ns.stop_gradient(x))(3.0)
    np.float64(3.0)
    """
    return tree.map_leaves(lambda leaf: bind(TABLE["stop_gradient"], (leaf,)) if isinstance(leaf, Traced) else leaf, x)


consider_constant = stop_gradient


def is_differentiated(values):
    """Tell whether any value may carry a derivative, now or when the enclosing step is differentiated."""
    return any(isinstance(x, Traced) for x in values)


def input_leaf(x, path):
    """Check an argument that is differentiated and return it as an array."""
    value = as_array(x)
    value = value[()] if isinstance(value, np.ndarray) else value
    if value.dtype.kind not in "fc":
        raise errors.GradientTypeError(f"cannot differentiate with respect to {path}: its dtype is {value.dtype}; "
                                       "convert it to float first")
    return value


def _is_scalar(x):
    return not isinstance(x, np.ndarray) and not (isinstance(x, Traced) and not x.scalar)


class _Sample:
    """Remembers up to 64 entries of an array, to notice that it was overwritten."""

    def __init__(self, x):
        self.array = x if isinstance(x, np.ndarray) and x.size else None
        if self.array is not None:
            large = x.size > 64
            self.places = np.unravel_index(np.linspace(0, x.size - 1, 64).astype(int), x.shape) if large else ()
            self.values = self.array[self.places] if large else np.array(x)

    def check(self, path):
        """Raise if an entry has changed."""
        if self.array is None:
            return
        if not np.array_equal(self.array[self.places], self.values, equal_nan=self.values.dtype.kind in "fc"):
            raise errors.ChangedError(f"{path} was overwritten between vjp and pull; its derivative needs the values it had")


def vjp(f, *args, has_aux=False):
    """Evaluate a function and prepare its vector-Jacobian product.

    Parameters
    ----------
    f : callable
        Function of nests of arrays, in NumPy, with any number of loops.
    *args : nests of float or complex arrays
    has_aux : bool, default False
        `f` returns (output, auxiliary data).

    Returns
    -------
    out : nest
        ``f(*args)``.
    pull : callable
        ``pull(ct)`` gives a tuple, one nest for each argument: the cotangents for cotangent `ct`, a nest like
        `out` in which None stands for zeros. It keeps references to arrays until it is dropped; do not overwrite them.
    aux : nest
        Only with `has_aux`.

    Raises
    ------
    GradientTypeError
        An argument holds integers or bools.
    CotangentError
        From ``pull``: `ct` does not fit `out`.
    ChangedError
        From ``pull``: an argument was overwritten.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> out, pull = ns.vjp(np.sin, 0.0)
    >>> pull(2.0)
    (np.float64(2.0),)
    """
    leaves, structure = tree.flatten(args)
    paths = tree.paths(structure, "argument")
    values = [input_leaf(x, p) for x, p in zip(leaves, paths)]
    trace = ValueTrace()
    with trace:
        inputs = [trace.new_input(v, scalar=_is_scalar(x)) for v, x in zip(values, leaves)]
        variables = [x.node for x in inputs]
        result = edge.call(f, tree.unflatten(structure, inputs))
        result, aux = result if has_aux else (result, None)
        outs, out_structure = tree.flatten(result)
        outs = [_scalar(as_array(x)) for x in outs]
        out_vars = [trace.var_of(_synced(x)) if isinstance(x, Traced) and x.home is trace else None for x in outs]
        aux = tree.map_leaves(lambda x: _given(x, trace), aux)
    out_values = [_given(x, trace) for x in outs]
    samples = [_Sample(v) for v in values]

    def pull(ct):
        """Return the cotangents of the arguments."""
        cts = tree.leaves_like(ct, out_structure)
        if cts is None:
            raise errors.CotangentError(f"the cotangent has structure {tree.describe(tree.flatten(ct)[1])}, the output "
                                        f"{tree.describe(out_structure)}")
        for sample, path in zip(samples, paths):
            sample.check(path)
        if trace.changed():
            raise errors.ChangedError("an array that the function used was overwritten between vjp and pull; its derivative "
                                      "needs the values it had")
        cts = [_fit(c, v) for c, v in zip(cts, out_values)]
        back = _pull(trace, variables, out_vars, cts)
        _check_silent(trace, variables, back, paths)
        held = {id(_owner(x)) for x in (*trace.values.values(), *cts)}
        return tree.unflatten(structure, [_finish(b, v, held) for b, v in zip(back, values)])

    out = tree.unflatten(out_structure, out_values)
    return (out, pull, aux) if has_aux else (out, pull)


def _scalar(x):
    """Return a NumPy scalar for a real 0-d array."""
    return x[()] if isinstance(x, np.ndarray) else x


def _synced(x):
    if x.base is not None:
        x.sync()
    return x


def _given(x, trace):
    """Return the value of a result as an array of the caller's, who may write to it: a copy of what rules read yet."""
    value = _lower(x, trace)
    if not isinstance(value, np.ndarray) or not value.ndim or x is value:
        return value
    return value if any(x.node in q.outputs for q in trace.eqns if q.row.kind == "loop") else np.array(value)


def _lower(x, trace):
    """Return the value of an array one level down."""
    return _synced(x).value if isinstance(x, Traced) and x.home is trace else x


def _fit(ct, value, what="a cotangent", of="output"):
    """Check a cotangent (None: zero) against the output it belongs to, or a tangent against its argument."""
    if ct is None:
        return None
    ct = as_array(ct)
    if not same_shape(ct.shape, value.shape):
        raise errors.CotangentError(f"{what} has shape {shape_text(ct.shape)}, its {of} {shape_text(value.shape)}")
    if value.dtype.kind not in "fc":
        return None
    if ct.dtype.kind == "c" and value.dtype.kind != "c":
        raise errors.CotangentError(f"a cotangent is {ct.dtype}, its output {value.dtype}")
    return ct if ct.dtype == value.dtype else bind(TABLE["cast"], (ct,), {"dtype": value.dtype})


def _pull(trace, variables, out_vars, cts):
    pending = {}
    for v, ct in zip(out_vars, cts):
        if v is not None and ct is not None and v in trace.active:
            pending.setdefault(v, []).append(ct)
    with np.errstate(all="ignore"), rules():
        read = trace.values.__getitem__
        backward(trace.eqns, literal_or(read), pending, trace.active)
        return [total(v, pending.get(v), read) for v in variables]


def _check_silent(trace, variables, back, paths):
    """Refuse an argument that no cotangent reaches although it decides when a loop stops."""
    if any(ct is None for ct in back):
        found = deciders(trace.eqns)
        for v, ct, path in zip(variables, back, paths):
            if ct is None and v in found:
                raise only_decides(path)


def _finish(ct, value, held):
    """Give a cotangent shape and dtype of its argument, as an ordinary array of its own: none of those that others hold."""
    if ct is None:
        return np.zeros(value.shape, value.dtype)[()]
    if isinstance(ct, Traced):
        return ct
    ct = np.asarray(ct, value.dtype)
    owner = _owner(ct)
    if ct.ndim and not (ct.flags.writeable and ct.flags.c_contiguous and ct.nbytes == owner.nbytes and id(owner) not in held):
        ct = owner = np.array(ct, order="C")
    held.add(id(owner))
    return ct[()]


def _owner(x):
    """Return the array whose memory an array shows: itself, or what it is a view of."""
    return x.base if isinstance(x, np.ndarray) and isinstance(x.base, np.ndarray) else x


def value_and_grad(f, argnums=0, has_aux=False):
    """Make a function that returns value and gradient.

    Parameters
    ----------
    f : callable
        Returns one real number (with `has_aux`: that and auxiliary data).
    argnums : int or tuple of int
        Which arguments to differentiate.
    has_aux : bool

    Returns
    -------
    callable
        Returns ``(value, gradient)``, or ``((value, aux), gradient)``; the gradient is a nest like the argument,
        a tuple of nests for a tuple `argnums`. It may be pickled if `f` may.

    Raises
    ------
    NotScalarError
        `f` does not return one real number.
    GradientTypeError
        An argument holds integers or bools.

    Examples
    --------
    >>> import nscan as ns
    >>> ns.value_and_grad(lambda x: x ** 3)(2.0)
    (np.float64(8.0), np.float64(12.0))
    """
    return ValueAndGrad(f, argnums, has_aux)


def positions(argnums, args):
    """Places of the arguments to differentiate, and whether several were asked for."""
    many = isinstance(argnums, (tuple, list))
    where = list(argnums) if many else [argnums]
    if any(isinstance(k, bool) or not isinstance(k, (int, np.integer)) for k in where):
        raise errors.SpecError(f"argnums must be an int or a tuple of ints, got {argnums!r}")
    if any(not -len(args) <= k < len(args) for k in where):
        raise errors.SpecError(f"argnums={argnums} but the function is called with {len(args)} arguments")
    return [k % len(args) for k in where], many


class ValueAndGrad:
    """A function that returns value and gradient; see `value_and_grad`."""

    def __init__(self, f, argnums, has_aux):
        edge.check_function(f, "f")
        self.f, self.argnums, self.has_aux = f, argnums, has_aux
        functools.update_wrapper(self, f, updated=())

    def __call__(self, *args, **kwargs):
        """Evaluate the function and its gradient."""
        where, many = positions(self.argnums, args)

        def restricted(*chosen):
            full = list(args)
            for k, x in zip(where, chosen):
                full[k] = x
            return self.f(*full, **kwargs)

        self._check_types([args[k] for k in where], where)
        out = vjp(restricted, *[args[k] for k in where], has_aux=self.has_aux)
        value, pull = out[0], out[1]
        back = pull(_unit(value))
        gradient = back if many else back[0]
        return ((value, out[2]) if self.has_aux else value), gradient

    def _check_types(self, chosen, where):
        name = getattr(self.f, "__name__", "the function")
        for k, nest in zip(where, chosen):
            leaves, structure = tree.flatten(nest)
            for x, path in zip(leaves, tree.paths(structure, f"argument {k} of {name}")):
                input_leaf(x, path)


def _unit(value):
    """Cotangent 1 of a real scalar; anything else is refused."""
    if not hasattr(value, "dtype"):
        if isinstance(value, (tuple, list, dict)) or value is None:
            raise errors.NotScalarError(f"grad needs a scalar, the function returned a {type(value).__name__}; use ns.vjp, or "
                                        "has_aux=True for auxiliary data")
        value = np.asarray(value)
    if tuple(value.shape) != ():
        raise errors.NotScalarError(f"grad needs a scalar, the function returned shape {shape_text(value.shape)}; reduce it "
                                    "(np.sum), or use ns.vjp or ns.jacobian")
    if value.dtype.kind == "c":
        raise errors.NotScalarError("grad needs a real scalar, the function returned a complex one; use np.real, np.abs or "
                                    "ns.vjp")
    if value.dtype.kind != "f":
        raise errors.NotScalarError(f"grad needs a float, the function returned {value.dtype}")
    return np.ones((), value.dtype)[()]


class Grad(ValueAndGrad):
    """A function that returns the gradient; see `grad`."""

    def __call__(self, *args, **kwargs):
        """Evaluate the gradient."""
        value, gradient = super().__call__(*args, **kwargs)
        return (gradient, value[1]) if self.has_aux else gradient


def grad(f, argnums=0, has_aux=False):
    """Make a function that returns the gradient; see `value_and_grad`.

    Parameters
    ----------
    f : callable
    argnums : int or tuple of int
    has_aux : bool

    Returns
    -------
    callable
        Returns the gradient, or ``(gradient, aux)``.

    Raises
    ------
    NotScalarError, GradientTypeError
        See `value_and_grad`.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.grad(lambda w: np.sum(w ** 2))(np.array([1.0, 2.0]))
    array([2., 4.])
    """
    return Grad(f, argnums, has_aux)


def jvp(f, args, tangents, has_aux=False):
    """Evaluate a function and its derivative along tangents.

    Parameters
    ----------
    f : callable
    args : tuple of nests of float or complex arrays
    tangents : tuple of nests, like `args`
    has_aux : bool

    Returns
    -------
    out, dout : nest
        ``f(*args)`` and its derivative; with `has_aux` also the auxiliary data.

    Raises
    ------
    CotangentError
        Tangents do not fit the arguments.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.jvp(np.sin, (0.0,), (2.0,))
    (np.float64(0.0), np.float64(2.0))
    """
    for name, given in (("args", args), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise errors.SpecError(f"{name} of jvp must be a tuple with an entry for each argument, got "
                                   f"{type(given).__name__} object {given!r:.60}; for one argument write (x,) and (tangent,)")
    leaves, structure = tree.flatten(tuple(args))
    moves, found = tree.flatten(tuple(tangents))
    if found != structure:
        raise errors.CotangentError(f"the tangents have structure {tree.describe(found)}, the arguments "
                                    f"{tree.describe(structure)}")
    values = [input_leaf(x, p) for x, p in zip(leaves, tree.paths(structure, "argument"))]
    moves = [_fit(t, v, "a tangent", "argument") for t, v in zip(moves, values)]
    trace = TangentTrace()
    with trace:
        inputs = [trace.new_input(v, t, scalar=_is_scalar(x)) for v, t, x in zip(values, moves, leaves)]
        result = edge.call(f, tree.unflatten(structure, inputs))
        result, aux = result if has_aux else (result, None)
        outs, out_structure = tree.flatten(result)
        outs = [_scalar(as_array(x)) for x in outs]
        plain = [_lower(x, trace) for x in outs]
        aux = tree.map_leaves(lambda x: _lower(x, trace), aux)
    douts = [_tangent(x, trace) for x in outs]
    douts = [_finish_tangent(t, v) for t, v in zip(douts, plain)]
    pairs = tree.unflatten(out_structure, plain), tree.unflatten(out_structure, douts)
    return (*pairs, aux) if has_aux else pairs


def _tangent(x, trace):
    return x.tangent if isinstance(x, Traced) and x.home is trace else None


def _finish_tangent(t, value):
    dtype = value.dtype if value.dtype.kind in "fc" else np.dtype("f8")
    if t is None:
        return np.zeros(value.shape, dtype)[()]
    return t if isinstance(t, Traced) else np.array(t, dtype)[()]


def hvp(f, x, v):
    """Product of the Hessian of a real function with a vector (forward over reverse).

    Parameters
    ----------
    f : callable
        Function of one nest that returns a real number.
    x : nest of arrays
    v : nest like `x`

    Returns
    -------
    nest like `x`

    Raises
    ------
    NotScalarError
        `f` does not return one real number.
    CotangentError
        `v` does not fit `x`.
    GradientTypeError
        `x` holds integers or bools.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.hvp(lambda x: np.sum(x ** 3), np.array([1.0, 2.0]), np.array([1.0, 0.0]))
    array([6., 0.])
    """
    return jvp(grad(f), (x,), (v,))[1]


def Rop(f, x, v):
    """Jacobian times vector: the R-operator (Pearlmutter 1994).

    Parameters
    ----------
    f : callable
        Function of one nest.
    x, v : nest of arrays

    Returns
    -------
    nest like ``f(x)``

    Raises
    ------
    CotangentError
        `v` does not fit `x`.
    GradientTypeError
        `x` holds integers or bools.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.Rop(np.sin, np.array([0.0, 0.0]), np.array([1.0, 2.0]))
    array([1., 2.])
    """
    return jvp(f, (x,), (v,))[1]


def Lop(f, x, ct):
    """Vector times Jacobian: the L-operator.

    Parameters
    ----------
    f : callable
        Function of one nest.
    x : nest of arrays
    ct : nest like ``f(x)``

    Returns
    -------
    nest like `x`

    Raises
    ------
    CotangentError
        `ct` does not fit ``f(x)``.
    GradientTypeError
        `x` holds integers or bools.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.Lop(np.sin, np.array([0.0, 0.0]), np.array([1.0, 2.0]))
    array([1., 2.])
    """
    return vjp(f, x)[1](ct)[0]
