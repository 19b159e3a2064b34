"""Check derivatives against finite differences, along random directions and through inner products.

The idea is that of ``autograd.test_util.check_grads`` (Maclaurin, Duvenaud, Johnson): the derivative along a
random direction is compared with a central difference; the vjp is compared with the jvp through
``<ct, J v> = <J' ct, v>``; the next order is checked by checking the derivative itself.
"""

import numpy as np

from nscan import errors, tree
from nscan.grad.higher import jvp, vjp

STEP = {"f4": 1e-2, "c8": 1e-2, "f8": 1e-4, "c16": 1e-4}
TOLERANCE = {"f4": 2e-2, "c8": 2e-2, "f8": 1e-5, "c16": 1e-5}


def _like(nest, rng):
    def draw(x):
        x = np.asarray(x)
        v = rng.standard_normal(x.shape)
        if x.dtype.kind == "c":
            v = v + 1j * rng.standard_normal(x.shape)
        return v.astype(x.dtype)[()]
    return tree.map_leaves(draw, nest)


def _inner(a, b):
    total = 0.0
    for x, y in zip(tree.flatten(a)[0], tree.flatten(b)[0]):
        total += float(np.real(np.sum(np.conj(np.asarray(x)) * np.asarray(y))))
    return total


def _shift(nest, v, h):
    return tree.map_leaves(lambda x, d: (np.asarray(x) + np.asarray(h * np.asarray(d), np.asarray(x).dtype))[()], nest, v)


def _largest(nest):
    leaves = [np.asarray(x) for x in tree.flatten(nest)[0]]
    dtypes = [x.dtype for x in leaves if x.dtype.kind in "fc"]
    if not dtypes:
        return np.dtype("f8")
    return max(dtypes, key=lambda d: (d.itemsize == 4 or d.itemsize == 8 and d.kind == "c", d.itemsize))


def check_grads(f, args, order=2, modes=("forward", "reverse"), rtol=None, atol=None, eps=None, seed=0):
    """Compare derivatives of a function with numerical ones.

    Parameters
    ----------
    f : callable
        Function of nests of float or complex arrays.
    args : tuple of nests
    order : int, default 2
        Orders to check; the second is checked by differentiating the first.
    modes : tuple of str
        Among ``"forward"`` and ``"reverse"``.
    rtol, atol, eps : float, optional
        Tolerances and step of the differences; by default from the dtype.
    seed : int
        Of the random directions.

    Raises
    ------
    GradientCheckError
        A derivative differs; the text holds mode, order and both numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.check_grads(lambda x: np.sin(x) * x, (0.7,))
    """
    args = tuple(args)
    rng = np.random.default_rng(seed)
    narrow = _largest(args)
    code = narrow.str[1:]
    eps = STEP.get(code, 1e-4) if eps is None else eps
    rtol = TOLERANCE.get(code, 1e-5) if rtol is None else rtol
    atol = rtol if atol is None else atol
    _check(f, args, order, modes, rtol, atol, eps, rng, 1)


def _check(f, args, order, modes, rtol, atol, eps, rng, level):
    v = _like(args, rng)
    outs = [f(*_shift(args, v, k * eps)) for k in (-2, -1, 1, 2)]
    numeric = tree.map_leaves(
        lambda a, b, c, d: (np.asarray(a) - 8.0 * np.asarray(b) + 8.0 * np.asarray(c) - np.asarray(d)) / (12 * eps), *outs)
    ct = _like(outs[0], rng)
    want = _inner(ct, numeric)
    pairs = zip(tree.flatten(ct)[0], tree.flatten(numeric)[0])
    scale = sum(float(np.sum(np.abs(np.asarray(c) * np.asarray(n)))) for c, n in pairs)
    if "forward" in modes:
        got = _inner(ct, jvp(f, args, v)[1])
        _compare(got, want, scale, rtol, atol, "forward", level)
    if "reverse" in modes:
        got = _inner(vjp(f, *args)[1](ct), v)
        _compare(got, want, scale, rtol, atol, "reverse", level)
    if order > 1:
        if "forward" in modes:
            _check(lambda *a: jvp(f, a, v)[1], args, order - 1, modes, rtol, atol, eps, rng, level + 1)
        if "reverse" in modes:
            _check(lambda *a: vjp(f, *a)[1](ct), args, order - 1, modes, rtol, atol, eps, rng, level + 1)


def _compare(got, want, scale, rtol, atol, mode, level):
    if not abs(got - want) <= atol + rtol * scale:
        raise errors.GradientCheckError(f"{mode} derivative of order {level}: got {got:.10g}, finite differences give "
                                        f"{want:.10g}")
