"""The traced array: what a step receives instead of an ndarray, with NumPy's behaviour.

Values never change; what changes is which value a traced array stands for. An in-place operation makes a
new value and lets the array (and the base it is a view of) stand for it, so every name of it sees the write,
as in NumPy.
"""

import numpy as np

from nscan import errors
from nscan.hints import OURS, instead, unsupported
from nscan.places import is_literal, scipy_caller, user_place
from nscan.primitive import TABLE, bind, same_shape, shape_text, ufunc_of
from nscan.tape import Lit, locate
from nscan.trace import CLASS, KINDS, REFUSED, STATE, WEAK, Traced, check_array, check_dtype, current_step


class TracedArray(Traced):
    """An array of a step (or of a function under ``grad``), known by shape and dtype.

    It takes part in NumPy expressions, functions and indexing; see *What works in a step* in the
    documentation. Python control flow and conversions to Python numbers need a value and raise.
    """

    __slots__ = ()
    __array_priority__ = 1000.0
    __hash__ = object.__hash__

    # ------------------------------------------------------------------------------- views and writes
    def sync(self):
        """Read the base again if it has changed since this view was made."""
        base = self.base
        if base.base is not None:
            base.sync()
        if base.version != self.base_version:
            row, operands, params = self.recipe
            self.become(bind(row, (base, *operands), params))
            self.base_version = base.version

    def write(self, content):
        """Let this array, and what it is a view of, stand for other content of its shape and dtype."""
        self._check_writable()
        if content.home.level > self.home.level:
            raise errors.ReadOnlyError(
                "assignment destination is read-only: an array from outside of the function that is differentiated, or of the step; "
                "write to a copy made inside, ns.array(x), and return it")
        if self.base is not None:
            row, operands, params = self.recipe
            base = self.base
            base.write(TABLE_WRITE[row.name](base, content, operands, params))
            self.base_version = base.version
        self.become(content if content.home is self.home else bind(TABLE["copy"], (content,), {}))

    def _check_writable(self):
        if self.home.closed:
            bind(TABLE["copy"], (self,), {})
        if self.owner is not None and self.owner.startswith(READ_ONLY):
            maker = self.owner.removeprefix(READ_ONLY)
            raise errors.ReadOnlyError(f"assignment destination is read-only: {maker} gives a read-only view, as in NumPy; "
                                       "write to the array itself, or to a copy")
        if self.owner is not None:
            raise errors.ReadOnlyError(
                f"assignment destination is read-only: {self.owner} belongs to the outside of the loop. "
                "Make it a state of the loop (and return it), or write to a copy")
        step = current_step()
        if step is not None and self.home.level < step.level:
            raise errors.ReadOnlyError(
                "assignment destination is read-only: an array of the enclosing step or function. "
                "Make it a state of the inner loop, or write to a copy")

    def _in_place(self, name, other):
        if self.scalar:
            return NotImplemented
        result = _binary(name, self, other)
        if result is NotImplemented:
            return result
        if not np.can_cast(result.dtype, self.dtype, "same_kind"):
            raise errors.DtypeError(f"cannot cast the result of {name} from {result.dtype} to {self.dtype} "
                                    "in an in-place operation")
        if not same_shape(result.shape, self.shape):
            raise errors.SizeError(f"non-broadcastable output operand with shape {shape_text(self.shape)} "
                                   f"does not match the broadcast shape {shape_text(result.shape)}")
        self.write(astype(result, self.dtype))
        return self

    # ----------------------------------------------------------------------------------------- attributes
    @property
    def ndim(self):
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self):
        """Number of elements."""
        total = 1
        for d in self.shape:
            total = d * total
        return total

    @property
    def itemsize(self):
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self):
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def T(self):
        """The transposed array, a view."""
        return np.transpose(self)

    @property
    def mT(self):
        """The matrix transpose, a view."""
        return np.swapaxes(self, -1, -2)

    @property
    def real(self):
        """Real part."""
        return np.real(self)

    @property
    def imag(self):
        """Imaginary part."""
        return np.imag(self)

    @property
    def flat(self):
        """The elements in C order, as a flat view."""
        return self.reshape(-1)

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of unsized object")
        if type(self.shape[0]) is not int:
            raise traced_value("len()", "the size of this axis is known only while the loop runs; "
                                        "x.shape[0] is a traced integer")
        return self.shape[0]

    def __iter__(self):
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        kind = "traced" if self.home.symbolic else "active"
        return f"<{kind} array, shape {shape_text(self.shape)}, {self.dtype}>"

    def __format__(self, spec):
        if spec and self.value is None:
            raise traced_value(f"formatting with {spec!r}", "it has no value while the step is traced")
        return format(self.value, spec) if spec else repr(self)

    # ------------------------------------------------------------------------------- conversions that raise
    def __bool__(self):
        if self.base is not None:
            self.sync()
        if self.value is not None:
            return bool(self.value)
        raise traced_value("the truth value of a traced array", "use np.where(condition, a, b), ns.cond, or "
                           "np.logical_and/or/not for Python's and/or/not", "Python if, while, and, or, not")

    def _refuse(self, what):
        if self.home.symbolic:
            return traced_value(what, "it has no value while the step is traced; use NumPy's function "
                                "(np.tanh instead of math.tanh), or ns.array to index a table")
        return traced_value(what, "the derivative would be lost silently; keep computing with the array (to write it into an "
                            "array, make that one traced first: z = ns.array(z))")

    def __float__(self):
        raise self._refuse("float()")

    def __int__(self):
        raise self._refuse("int()")

    def __complex__(self):
        raise self._refuse("complex()")

    def __index__(self):
        raise self._refuse("use as an index of a real array or a list, or in range(),")

    def __copy__(self):
        return np.copy(self)

    def __deepcopy__(self, memo):
        return np.copy(self)

    def item(self, *args):
        """Raise: a traced array has no Python number."""
        raise self._refuse(".item()")

    def tolist(self):
        """Raise: a traced array has no Python numbers."""
        raise self._refuse(".tolist()")

    def __round__(self, ndigits=None):
        out = np.round(self, ndigits or 0)
        return astype(out, np.int64) if ndigits is None else out

    def __array__(self, dtype=None, copy=None):
        """Let ``np.array([t, t])`` be an object array of 0-d traced arrays; refuse every other conversion."""
        if self.shape or dtype is not None or scipy_caller():
            raise traced_value("conversion to a real array (np.array, np.asarray, assignment into a real array)",
                               "use np.stack or ns.array([...]) for nested lists, ns.array(z) for an array that "
                               "the step writes to, x.astype(dtype) for another dtype")
        out = np.empty((), object)
        out[()] = self
        return out

    # ----------------------------------------------------------------------------------- NumPy's protocols
    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        out = kwargs.pop("out", None)
        if out is not None and any(isinstance(o, np.ndarray) for o in out):
            return _ufunc_into_real(ufunc, method, inputs, kwargs, out)
        row = TABLE.front(ufunc)
        if row is None:
            raise unsupported(ufunc)
        if method != "__call__":
            from nscan.ops import ufunc_methods
            result = ufunc_methods.call(ufunc, method, inputs, kwargs)
        elif kwargs.pop("where", True) is not True:
            raise errors.UnsupportedError(f"np.{ufunc.__name__}(where=) is not supported; use np.where")
        else:
            result = mark_weak(_call_front(row, inputs, kwargs), inputs)
        if out is None:
            return result
        return _store_out(out[0], result)

    def __array_function__(self, function, types, args, kwargs):
        front = TABLE.front(function)
        if front is None:
            raise unsupported(function)
        before = STATE.where
        STATE.where = before or user_place()  # once for all the equations that spell the function
        try:
            out = front(*args, **kwargs) if callable(front) else _call_front(front, args, kwargs)
        finally:
            STATE.where = before
        return mark_weak(out, args) if args else out

    # --------------------------------------------------------------------------------------------- indexing
    def __getitem__(self, index):
        return INDEXING["read"](self, index)

    def __setitem__(self, index, value):
        INDEXING["assign"](self, index, value)


def _call_front(front, inputs, kwargs):
    if callable(front):
        return front(*inputs, **kwargs)
    dtype = kwargs.pop("dtype", None)
    kwargs.pop("casting", None)
    kwargs.pop("order", None)
    kwargs.pop("subok", None)
    if kwargs:
        raise errors.UnsupportedError(f"option {next(iter(kwargs))!r} of np.{front.name} is not supported")
    if dtype is not None:
        inputs = [astype(as_operand(x), dtype) for x in inputs]
    return apply_ufunc(front, inputs)


def _store_out(out, result):
    """Honour ``out=`` where it is a traced array."""
    if out is None:
        return result
    out.write(astype(result, out.dtype))
    return out


def _ufunc_into_real(ufunc, method, inputs, kwargs, out):
    """Handle ``z += t`` and ``ufunc(..., out=z)`` for a real array z: the write would be lost."""
    raise traced_value(f"writing a traced value into a real array (np.{ufunc.__name__} with out=, or an in-place "
                       "operator)", "make the buffer a traced array first: z = ns.array(z)")


def traced_value(what, advice, hint=""):
    """Build the error for something that needs the value of a traced array, with the user's line."""
    place = locate(user_place())
    at = f" at {place}: {place.text}" if place else ""
    names = scipy_caller()
    if names:
        ours = next((OURS[name] for name in names if name in OURS), None)
        name = next((name for name in names if name in OURS), names[-1])
        return errors.UnsupportedError(f"SciPy's {name} works on real arrays only{at}; use " + (
            ours or "SciPy's ufuncs, or NumPy's functions, on traced arrays"))
    hint = f" ({hint})" if hint else ""
    return errors.TracedValueError(f"{what}{hint} is not possible{at}; {advice}{instead(place)}")


CLASS[0] = TracedArray


# ------------------------------------------------------------------------------------- operands and ufuncs
def as_operand(x):
    """Return x as a traced or real array; nested lists and object arrays of traced scalars are stacked."""
    if isinstance(x, (Traced, np.generic)) or type(x) in WEAK or type(x) is bool:
        return x
    if isinstance(x, np.ndarray):
        return untangle(x) if x.dtype.kind == "O" else check_array(x)
    if isinstance(x, (list, tuple)):
        if any(isinstance(leaf, Traced) or isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O"
               for leaf in _leaves(x)):
            return np.stack([as_array(item) for item in x])
        return check_array(np.asarray(x))
    if hasattr(x, "__array__") and not isinstance(x, (str, bytes)):
        return check_array(np.asarray(x))
    raise errors.DtypeError(f"{type(x).__name__} object {x!r:.60} is no array")


def as_array(x):
    """Return x as a traced or real array; Python numbers become NumPy's."""
    x = as_operand(x)
    return x if hasattr(x, "dtype") else np.asarray(x)


def traced(x):
    """Return x as an array of the current step, so that traced integers may index it (unchanged outside of steps)."""
    step = current_step()
    if step is None or isinstance(x, Traced):
        return x
    return step.handle(step.var_of(as_array(x)), scalar=False)


def _leaves(x):
    for item in x:
        if isinstance(item, (list, tuple)):
            yield from _leaves(item)
        else:
            yield item


def untangle(x):
    """Stack an object array whose elements are traced scalars (and numbers) into a traced array."""
    items = list(x.ravel())
    if not any(isinstance(item, Traced) for item in items):
        raise errors.DtypeError("an array of dtype object without traced scalars; numbers are expected")
    return np.reshape(np.stack([as_array(item) for item in items]), x.shape)


_RESOLVED = {}


def resolve(row, types):
    """Return (dtypes of the inputs, dtype of the output) of a ufunc row, by NumPy's own rule."""
    key = (row.name, types)
    found = _RESOLVED.get(key)
    if found is None:
        ufunc = ufunc_of(row.function)
        try:
            dtypes = ufunc.resolve_dtypes((*types, *[None] * ufunc.nout))
            if any(d.kind == "O" for d in dtypes):  # a comparison of Python numbers alone
                dtypes = ufunc.resolve_dtypes((*map(np.dtype, types), *[None] * ufunc.nout))
        except TypeError as error:
            names = ", ".join(getattr(t, "name", getattr(t, "__name__", str(t))) for t in types)
            raise errors.DtypeError(f"np.{row.name} is not defined for {names}: {error}") from None
        check_known(dtypes[-1], f"the result of np.{row.name}")
        found = _RESOLVED[key] = tuple([SINGLE if d == np.float16 else d for d in dtypes[:len(types)]]), dtypes[-1]
    return found


def check_known(dtype, what):
    """Refuse a dtype that kernels do not know (NumPy makes float16 of functions of small integers)."""
    if dtype.kind not in KINDS or dtype.itemsize in REFUSED.get(dtype.kind, ()):
        raise errors.DtypeError(f"{what} has dtype {dtype}, which kernels do not know; cast the operands first, x.astype(float)")


def apply_ufunc(row, inputs):
    """Apply a pointwise row as NumPy applies its ufunc: promotion, weak Python numbers, broadcasting."""
    home = next((x.home for x in inputs if isinstance(x, Traced)), None)
    out = None if home is None else home.elementwise(row, inputs)
    if out is not None:
        return out
    inputs = [x if isinstance(x, Traced) else as_operand(x) for x in inputs]
    types = tuple([WEAK.get(x.weak, x.dtype) if isinstance(x, Traced) else x.dtype if hasattr(x, "dtype") else
                   WEAK.get(type(x), BOOL) for x in inputs])
    wanted, dtype = resolve(row, types)
    weak_counts = _note_weak(row, inputs, types, (wanted, dtype))
    operands = []
    for x, new in zip(inputs, wanted):
        if hasattr(x, "dtype"):
            operands.append(x if x.dtype is new or x.dtype == new else astype(x, new))
        elif row.name in BEYOND and type(x) is int and new.kind in "iu" and not _fits(x, new):
            return _beyond(row.name, inputs, operands, x)
        else:
            value = np.asarray(x, new)[()]
            operands.append(Lit(value, value.dtype) if is_literal(x, user_place()) else value)
    out = bind(row, operands)
    if type(types[0]) is type and type(types[-1]) is type:
        mark_weak(out, inputs)
    if home is not None and home.symbolic:
        home.learn(row, inputs, operands, out, weak_counts)
    return out


def _note_weak(row, inputs, types, found):
    """Tell whether dtypes would be others if the operands without a dtype of their own had one; their trace remembers that."""
    weak = [x for x in inputs if isinstance(x, Traced) and x.weak is not None]
    if not weak:
        return False
    strong = tuple([x.dtype if isinstance(x, Traced) else t for x, t in zip(inputs, types)])
    counts = resolve(row, strong) != found
    for x in weak:
        x.home.weak_counts = x.home.weak_counts or counts
    return counts


def mark_weak(out, inputs):
    """Let what is made of Python numbers alone have no dtype of its own, as the numbers: it takes that of its partner."""
    if isinstance(out, Traced) and not out.shape and all(type(x) in WEAK or getattr(x, "weak", None) in WEAK for x in inputs):
        out.weak = {"i": int, "f": float, "c": complex}.get(out.dtype.kind)
    return out


# What a comparison of a small number with a larger one gives, for the Python integers that a dtype cannot hold.
BEYOND = {"less": True, "less_equal": True, "greater": False, "greater_equal": False, "equal": False, "not_equal": True}


def _fits(x, dtype):
    limits = np.iinfo(dtype)
    return limits.min <= x <= limits.max


def _beyond(name, inputs, before, x):
    """Compare with a Python integer outside the range of a dtype, as NumPy does."""
    array = inputs[0] if before else inputs[1]
    result = BEYOND[name] if name in ("equal", "not_equal") else BEYOND[name] == ((x > 0) == bool(before))
    return np.full_like(array, result, dtype=bool)


BOOL = np.dtype(bool)
SINGLE = np.dtype(np.float32)  # in place of float16, into which NumPy casts small integers for some functions


def astype(x, dtype):
    """Cast an array; nothing happens if it has the dtype already."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    if isinstance(x, Traced):
        check_dtype(dtype, "a traced array cannot have")
    return bind(TABLE["cast"], (x,), {"dtype": dtype})


# What ``x[index]`` and ``x[index] = value`` do; filled by `nscan.ops.indexing`.
INDEXING = {}
# How a write to a view changes its base; filled by the rows that make views.
TABLE_WRITE = {}


def view(row, base, operands, params):
    """Apply a row whose result shares the elements of its first operand, and remember that it is a view."""
    out = bind(TABLE[row], (base, *operands), params)
    if hasattr(base, "home") and not base.scalar:
        out.base = base
        out.recipe = (TABLE[row], tuple(operands), params)
        out.base_version = base.version
        out.owner = base.owner
        out.scalar = False
    return out


def read_only(x, maker):
    """Mark what NumPy returns as a read-only view."""
    if isinstance(x, Traced):
        x.owner = READ_ONLY + maker
    return x


READ_ONLY = "read-only view of "


def _operator(name, reverse=False, in_place=False):
    if in_place:
        return lambda self, other: self._in_place(name, other)
    if reverse:
        return lambda self, other: _binary(name, other, self)
    return lambda self, other: _binary(name, self, other)


def _binary(name, a, b):
    if name not in FRONT_OPERATORS:
        out = (a if isinstance(a, TracedArray) else b).home.elementwise(TABLE[name], (a, b))
        if out is not None:
            return out
    other = b if isinstance(a, TracedArray) else a
    if isinstance(other, (str, bytes, dict, set)) or other is None:
        return NotImplemented
    if name in FRONT_OPERATORS:
        return mark_weak(FRONT_OPERATORS[name](a, b), (a, b))
    return apply_ufunc(TABLE[name], (a, b))


def promotable(x):
    """Return what stands for an operand in ``np.result_type``: a dtype, or a Python number that is weak."""
    weak = getattr(x, "weak", None)
    if weak:
        x.home.weak_counts = True
    return weak(0) if weak else x.dtype if hasattr(x, "dtype") else x


# Operators whose NumPy function is spelled with more than one row.
FRONT_OPERATORS = {}

_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift", "divmod": "divmod",
}
for _name, _row in _BINARY.items():
    setattr(TracedArray, f"__{_name}__", _operator(_row))
    setattr(TracedArray, f"__r{_name}__", _operator(_row, reverse=True))
    if _name not in ("divmod",):
        setattr(TracedArray, f"__i{_name}__", _operator(_row, in_place=True))
for _name, _row in (("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal"),
                    ("eq", "equal"), ("ne", "not_equal")):
    setattr(TracedArray, f"__{_name}__", _operator(_row))
for _name, _row in (("neg", "negative"), ("pos", "positive"), ("abs", "absolute"), ("invert", "invert")):
    setattr(TracedArray, f"__{_name}__", lambda self, _row=_row: apply_ufunc(TABLE[_row], (self,)))
