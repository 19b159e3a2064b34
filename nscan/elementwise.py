"""Rows that act on each element, and the texts in which their partial derivatives are written."""

import numpy as np

from nscan import buffers, errors
from nscan.primitive import TABLE, Row, bind, broadcast, dtype_of, ufunc_of, unbroadcast
from nscan.tape import Lit

# Names of the inputs in a text; elements of a piece of a large array.
NAMES = "abcd"
PIECE = 1 << 15


class Text:
    """A formula over a, b, c (inputs) and y (output), evaluated on arrays or on traced arrays."""

    def __init__(self, source):
        self.source = source
        self.code = compile(source, f"<nscan {source}>", "eval")
        self.names = set(self.code.co_names)

    def __call__(self, at):
        """Evaluate the formula at a Point."""
        scope = {name: at.y() if name == "y" else at.x(NAMES.index(name)) if name in NAMES else FORMULAS[name]
                 for name in self.names}
        return eval(self.code, {}, scope)


class _Formulas(dict):
    """Names that formulas may use: NumPy's, SciPy's ufuncs, and rows without a NumPy name."""

    def __missing__(self, name):
        row = TABLE.rows.get(name)
        if row is not None and isinstance(row.function, str):
            value = ufunc_of(row.function)
        elif hasattr(np, name) and name not in ("where", "select"):
            value = getattr(np, name)
        else:
            def value(*args):
                return bind(row, args)
        self[name] = value
        return value


FORMULAS = _Formulas()


def pointwise(name, *functions, cost=1, partials=(), plain=(), spelling=None, holomorphic=True, dtypes=None,
              eager=None, sample=None, why=""):
    """Add a row that acts on each element.

    Parameters
    ----------
    name : str
    *functions : NumPy functions (ufuncs) or texts ``"scipy.special.name"``
        The first one is the eager rule unless `eager` is given.
    cost : int
        Of one element, in multiplications.
    partials : tuple of str or None
        One for each input, over a, b, c and y. None: the derivative is zero. ``"1"``, ``"-1"``: as is.
        ``"?"``: the derivative is not known; asking for it is an error that says `why`.
    plain : tuple of int
        Inputs whose partial is finite whatever the inputs are, NaN and infinities included: a plain product
        serves instead of `safe_mul`.
    spelling : dict or str or None
        Scalar text for each kind of dtype (f, i, u, b, c); a str serves all; None: the row's own name.
    holomorphic : bool
        The vjp conjugates the partial of complex arguments.
    dtypes : callable or None
        ``dtypes(*dtypes)`` gives the dtype of the output; by default the eager ufunc resolves it.
    sample : dict or None
        Domains for tests.
    """
    count = len(partials)
    formulas = tuple(Text(p) if p not in (None, "1", "-1", "?") else p for p in partials)
    run = eager or _eager(functions[0])
    resolve = dtypes or ufunc_dtype(functions[0])

    def infer(*inputs):
        return ((broadcast(*[x.shape for x in inputs]), resolve(*[x.dtype for x in inputs])),)

    def jvp(tangents, at):
        total = None
        for i, tangent in enumerate(tangents):
            if tangent is None or formulas[i] is None:
                continue
            _check_known(formulas[i], name, why)
            term = _scaled(tangent, formulas[i], at, i in plain, False)
            total = term if total is None else total + term
        return (total,)

    def vjp(cotangents, at):
        ct = cotangents[0]
        out = []
        for i in range(count):
            if formulas[i] is None or not at.needs[i]:
                out.append(None)
                continue
            _check_known(formulas[i], name, why)
            out.append(unbroadcast(_scaled(ct, formulas[i], at, i in plain, holomorphic), at.shape(i)))
        return out

    zero = all(p is None for p in partials)
    texts = {"*": spelling} if isinstance(spelling, str) else (spelling or {})
    row = Row(name, "pointwise", infer, run, None if zero else jvp, None if zero else vjp, texts,
              partials=tuple(partials), function=functions[0], sample=sample or {}, why=why, cost=cost)
    return TABLE.add(row, *functions)


def _check_known(formula, name, why):
    if formula == "?":
        raise errors.GradientTypeError(f"no derivative passes through {name}: {why}")


def _scaled(ct, formula, at, plain, conjugate):
    """Multiply a tangent or cotangent by a partial derivative; that of large arrays in pieces that stay in the cache."""
    if formula == "1":
        return ct
    if formula == "-1":
        return -ct
    if not isinstance(ct, np.ndarray) or ct.size <= 2 * PIECE:
        return _times(ct, formula, at, plain, conjugate)
    given = {name: at.y() if name == "y" else at.x(NAMES.index(name)) for name in formula.names.intersection((*NAMES, "y"))}
    if not all(isinstance(x, np.ndarray) and x.shape == ct.shape and x.flags.c_contiguous for x in given.values()):
        return _times(ct, formula, at, plain, conjugate)
    flat = np.broadcast_to(ct.flat[:1], ct.size) if not any(ct.strides) else ct.reshape(-1)
    given, out = {name: x.reshape(-1) for name, x in given.items()}, None
    for start in range(0, ct.size, PIECE):
        piece = slice(start, start + PIECE)
        part = _times(flat[piece], formula, _Piece({name: x[piece] for name, x in given.items()}), plain, conjugate)
        out = buffers.empty((ct.size,), part.dtype) if out is None else out
        out[piece] = part
    return out.reshape(ct.shape)


class _Piece:
    """Pieces of inputs and output of an equation, in place of a Point."""

    def __init__(self, given):
        self.given = given

    def x(self, i):
        """Return the piece of an input."""
        return self.given[NAMES[i]]

    def y(self):
        """Return the piece of the output."""
        return self.given["y"]


def _times(ct, formula, at, plain, conjugate):
    p = formula(at)
    if conjugate and dtype_of(p).kind == "c":
        p = np.conj(p)
    number = p.value if type(p) is Lit else p
    finite = isinstance(number, np.number) and np.isfinite(number)
    return ct * p if plain or finite else FORMULAS["safe_mul"](ct, p)


def _eager(function):
    if isinstance(function, str):
        return lambda *arrays: ufunc_of(function)(*arrays)
    return function


def ufunc_dtype(function):
    """Make the rule that asks a ufunc for its output dtype, remembered for each tuple of dtypes."""
    known = {}

    def resolve(*dtypes):
        found = known.get(dtypes)
        if found is None:
            found = known[dtypes] = ufunc_of(function).resolve_dtypes((*dtypes, None))[-1]
        return found
    return resolve
