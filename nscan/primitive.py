"""One primitive is one row: its NumPy names, eager rule, shape rule, derivatives and scalar spelling.

`TABLE` holds every row. A row is made by one of four makers (the first one is in `nscan.elementwise`, the others are here):

=============  ==================================================  ========================================
maker          you write                                           you get
=============  ==================================================  ========================================
`pointwise`    partials as text over inputs a, b, c and output y,  broadcasting, jvp, vjp, every target,
               a spelling, holomorphic or not                      tests
`linear`       the transpose                                       jvp is the row itself, vjp the transpose
`reduction`    identity, combination, partials                     loops, fixed partial sums, parallel form
`custom`       every rule                                          nothing hidden
=============  ==================================================  ========================================

`composite` adds a NumPy name that is spelled with other names and needs no row.
"""

import dataclasses
import sys

import numpy as np

from nscan import errors
from nscan.tape import Var


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A primitive operation.

    Attributes
    ----------
    name : str
        Its name on tapes.
    kind : str
        The maker: pointwise, linear, reduction or custom.
    infer : callable
        ``infer(*inputs, **params)`` gives a tuple of (shape, dtype), one for each output.
    eager : callable
        ``eager(*arrays, **params)`` computes the outputs with NumPy.
    jvp, vjp : callable or None
        ``jvp(tangents, at, **params)`` and ``vjp(cotangents, at, **params)``, `at` a `Point`; None where
        every derivative is zero. Zero tangents and cotangents are None.
    spelling : dict
        Scalar text by kind of dtype: ``{"f": "sqrt(a*a + b*b)"}``; complex ones have two texts.
    outputs : int or None
        Number of outputs; None if it depends on the parameters.
    why : str
        For rows without derivatives of some input: the reason that an error gives.
    joint : callable or None
        ``joint(values, tangents, params)`` where value and tangent are computed together (loops).
    pair : callable or None
        ``pair(inputs, params, active)`` gives the parameters with which the equation also keeps what its
        backward pass reads, and the number of outputs that the user sees (loops).
    partials : tuple
        Texts of the partials of a pointwise row.
    function : ufunc, str or None
        The NumPy ufunc of a pointwise row, or the name of SciPy's.
    sample : dict
        Where tests sample the row: domains of the inputs, exclusions, tolerances.
    asymmetric : bool
        The vjp is not the transpose of the jvp, by intention (custom_vjp, grad_clip, grad_scale).
    cost : int
        Cost of one element of a pointwise row, in multiplications. What is dear is kept for a backward pass rather than
        computed again, and stored where it is read more than once.
    """

    name: str
    kind: str
    infer: object
    eager: object
    jvp: object = None
    vjp: object = None
    spelling: dict = dataclasses.field(default_factory=dict)
    outputs: int = 1
    why: str = ""
    joint: object = None
    pair: object = None
    partials: tuple = ()
    function: object = None
    sample: dict = dataclasses.field(default_factory=dict)
    asymmetric: bool = False
    cost: int = 1

    def __repr__(self):
        return f"Row({self.name})"


class Point:
    """Where a derivative is taken: inputs and outputs of an equation, read only when a rule asks for them.

    Which values the rules of a step read decides what a loop keeps for its backward pass.
    """

    __slots__ = ("_inputs", "_outputs", "_read", "needs")

    def __init__(self, inputs, outputs, read, needs):
        self._inputs = inputs
        self._outputs = outputs
        self._read = read
        self.needs = needs

    def x(self, i):
        """Value of input i."""
        return self._read(self._inputs[i])

    def y(self, j=0):
        """Value of output j."""
        return self._read(self._outputs[j])

    def shape(self, i):
        """Shape of input i; run-time sizes are read, the others cost nothing."""
        shape = getattr(self._inputs[i], "shape", ())
        return tuple([self._read(d) if type(d) is Var else d for d in shape])

    def ndim(self, i):
        """Return the number of axes of input i."""
        return len(getattr(self._inputs[i], "shape", ()))

    def dtype(self, i):
        """Return the dtype of input i (costs nothing)."""
        return dtype_of(self._inputs[i])

    @property
    def count(self):
        """Number of inputs."""
        return len(self._inputs)


class Table:
    """All rows by name, and what stands for each NumPy and SciPy function."""

    def __init__(self):
        self.rows = {}
        self.fronts = {}
        self.scipy = {}
        self._scipy_seen = False

    def add(self, row, *names):
        """Enter a row; `names` are NumPy functions or texts such as ``scipy.special.expit``."""
        assert row.name not in self.rows, row.name
        self.rows[row.name] = row
        for name in names:
            self.add_front(name, row)
        return row

    def add_front(self, name, front):
        """Let a row, or a function spelled with others, stand for a NumPy or SciPy function."""
        if isinstance(name, str):
            self.scipy[name.rpartition(".")[2]] = front
        elif name is not None:
            self.fronts[name] = front

    def front(self, function):
        """Return what stands for a NumPy or SciPy function, or None."""
        found = self.fronts.get(function)
        if found is None and not self._scipy_seen and "scipy.special" in sys.modules:
            self.fronts.update({ufunc_of(n): f for n, f in self.scipy.items()})
            self._scipy_seen = True
            found = self.fronts.get(function)
        return found

    def __getitem__(self, name):
        return self.rows[name]

    def __iter__(self):
        return iter(self.rows.values())


TABLE = Table()


def dtype_of(x):
    """Return the dtype of an array, a traced array, a Var, or a number."""
    return x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype


# ---------------------------------------------------------------------------------------------- shapes
def broadcast(*shapes):
    """Broadcast shapes by NumPy's rule; a size known only at run time equals itself and meets 1."""
    first = shapes[0]
    if all(not s or s is first or same_shape(s, first) for s in shapes[1:]) and (first or not any(shapes)):
        return first
    ndim = max(map(len, shapes))
    out = []
    for axis in range(-ndim, 0):
        size = 1
        for shape in shapes:
            if len(shape) < -axis:
                continue
            d = shape[axis]
            if type(d) is int and d == 1 or d is size:
                continue
            if type(size) is int and size == 1:
                size = d
            elif type(d) is not int or type(size) is not int or d != size:
                raise errors.SizeError("operands could not be broadcast together with shapes "
                                       f"{' '.join(map(shape_text, shapes))}{sliced(shapes)}")
        out.append(size)
    return tuple(out)


def same_shape(a, b):
    """Tell whether two shapes are the same; a size known only at run time equals itself."""
    return len(a) == len(b) and all([d is e or type(d) is int and type(e) is int and d == e for d, e in zip(a, b)])


def sliced(*groups):
    """Add to a message about shapes what a size is that is known only at run time."""
    known = all(type(d) is int for shapes in groups for shape in shapes for d in shape)
    return "" if known else ("; ? is the size of a slice whose bounds are data: two such sizes are equal where the bounds are the same "
                             "variables. Read whole arrays instead, by indices and a mask: i = np.arange(n) - k, then "
                             "np.where(i >= 0, a[np.maximum(i, 0)], 0)")


def shape_text(shape):
    """Write a shape as a tuple, sizes known only at run time as ``?``."""
    inner = ", ".join(str(d) if type(d) is int else "?" for d in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def repeat_to(x, shape):
    """Broadcast an array to a shape that may hold run-time sizes (NumPy's function does not see these in real arrays)."""
    if all(type(d) is int for d in shape):
        return np.broadcast_to(x, shape)
    sizes = [d for d in shape if type(d) is not int]
    return bind(TABLE["broadcast_to"], (x, *sizes), {"template": tuple(d if type(d) is int else None for d in shape)})


def unbroadcast(x, shape):
    """Sum a cotangent over the axes along which an operand of that shape was repeated."""
    if x is None or same_shape(x.shape, shape):
        return x
    lead = len(x.shape) - len(shape)
    axes = tuple(range(lead)) + tuple(
        lead + k for k, d in enumerate(shape) if type(d) is int and d == 1 and x.shape[lead + k] is not d
        and not (type(x.shape[lead + k]) is int and x.shape[lead + k] == 1))
    if axes:
        x = np.sum(x, axis=axes)
    return x if same_shape(x.shape, shape) else np.reshape(x, shape)


# ---------------------------------------------------------------------------------------------- makers

def ufunc_of(function):
    """Return a NumPy ufunc, or SciPy's by its name."""
    if not isinstance(function, str):
        return function
    import scipy.special
    name = function.rpartition(".")[2]
    found = getattr(scipy.special, name)
    # A few names are Python functions around a ufunc (zeta).
    return found if isinstance(found, np.ufunc) else getattr(scipy.special._ufuncs, f"_{name}")


def linear(name, *functions, infer, eager, transpose, spelling=None, sample=None, inputs=1):
    """Add a row that is linear in its first `inputs` inputs (jointly); the others carry no derivative.

    ``transpose(cotangent, at, **params)`` gives the cotangents of those inputs as a tuple.
    """
    def jvp(tangents, at, **params):
        moving = tangents[:inputs]
        if all(t is None for t in moving):
            return (None,)
        full = [zeros_like(at, i) if t is None else t for i, t in enumerate(moving)]
        return (bind(TABLE[name], (*full, *[at.x(i) for i in range(inputs, at.count)]), params),)

    def vjp(cotangents, at, **params):
        out = transpose(cotangents[0], at, **params)
        return (*out, *[None] * (at.count - len(out)))

    row = Row(name, "linear", infer, eager, jvp, vjp, spelling or {}, sample=sample or {})
    return TABLE.add(row, *functions)


def zeros_like(at, i):
    """Zeros with shape and dtype of input i of a Point, without reading it."""
    return full(at.shape(i), 0, at.dtype(i))


def full(shape, value, dtype):
    """Make an array of one value; a traced one where a size is known only at run time."""
    if all(type(d) is int for d in shape):
        return np.broadcast_to(np.asarray(value, dtype), shape)
    sizes = [d for d in shape if type(d) is not int]
    template = tuple(d if type(d) is int else None for d in shape)
    return bind(TABLE["fill"], (np.asarray(value, dtype), *sizes), {"template": template})


def custom(name, *functions, infer, eager, kind="custom", **rules):
    """Add a row with every rule written out; `rules` are fields of `Row`."""
    return TABLE.add(Row(name, kind, infer, eager, **rules), *functions)


def composite(*functions):
    """Let a Python function, spelled with other NumPy names, stand for NumPy functions; None is one that this NumPy lacks."""
    def enter(function):
        for f in functions:
            if f is not None:
                TABLE.add_front(f, function)
        return function
    return enter


# The trace fills this in: rows know how to apply themselves without importing what traces them.
_BIND = []


def bind(row, inputs, params=None):
    """Apply a row to arrays, traced arrays and numbers; see `nscan.trace.bind`."""
    return _BIND[0](row, inputs, params or {})
