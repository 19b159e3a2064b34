"""Facts of NumPy and SciPy that traced arrays depend on, fixed on a minimal stand-in.

No test here imports the library. Each states what NumPy does when it meets an object that implements
``__array_ufunc__`` and ``__array_function__``: what reaches these two, what does not, what becomes of object
arrays of such objects, and where the text of an error that the object raises ends up. If one of these tests
fails under a new NumPy, the traced array must be looked at.
"""

import dis
import math
import operator
import sys

import numpy as np
import pytest
import scipy.special


class Refused(TypeError):
    """What the stand-in raises where a value would be needed."""


def refuse(what):
    def method(self, *args):
        raise Refused(f"our text: {what}")
    return method


class Array:
    """A stand-in for a traced array without ``__array__``; results say in `made` how they were made."""

    def __init__(self, shape=(), made="an argument"):
        self.shape, self.made, self.dtype, self.items_read = shape, made, np.dtype(float), 0

    ndim = property(lambda self: len(self.shape))

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        out = " out" if "out" in options else ""
        return type(self)((), f"ufunc {ufunc.__name__} {method}{out}")

    def __array_function__(self, function, types, args, kwargs):
        return type(self)((), f"function {function.__name__}")

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __getitem__(self, key):
        self.items_read += 1
        if not self.shape or (isinstance(key, int) and key >= self.shape[0]):
            raise IndexError("no more items")
        return type(self)(self.shape[1:], "an item")

    __float__ = refuse("float")
    __int__ = refuse("int")
    __complex__ = refuse("complex")
    __index__ = refuse("index")
    __bool__ = refuse("bool")


ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
              "pow": np.power, "matmul": np.matmul}
COMPARISON = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal}


def operator_method(ufunc, reflected):
    def method(self, other):
        operands = (other, self) if reflected else (self, other)
        return self.__array_ufunc__(ufunc, "__call__", *operands)
    return method


for _name, _ufunc in {**ARITHMETIC, **COMPARISON}.items():
    setattr(Array, f"__{_name}__", operator_method(_ufunc, False))
for _name, _ufunc in ARITHMETIC.items():
    setattr(Array, f"__r{_name}__", operator_method(_ufunc, True))
Array.__hash__ = object.__hash__


class Guarded(Array):
    """The same with an ``__array__`` that makes an object array of a 0-d one and refuses everything else."""

    def __array__(self, dtype=None, copy=None):
        if self.shape or dtype is not None:
            raise Refused("our text: array")
        holder = np.empty((), object)
        holder[()] = self
        return holder


class Scalar(Guarded):
    """The same with methods named as NumPy's unary ufuncs, for object arrays."""


for _name in ("exp", "tanh", "sqrt", "conjugate", "__neg__", "__abs__"):
    setattr(Scalar, _name, lambda self, n=_name: Scalar((), f"method {n}"))

REAL = np.ones((3, 3))
t, v = Guarded(), Guarded((3,))


def is_object_array(x, shape):
    return type(x) is np.ndarray and x.dtype == object and x.shape == shape


# What reaches the object

REACHES = {
    "ndarray * t": (lambda: REAL * t, "ufunc multiply __call__"),
    "ndarray @ v": (lambda: REAL @ v, "ufunc matmul __call__"),
    "ndarray < v": (lambda: REAL < v, "ufunc less __call__"),
    "ndarray == v": (lambda: REAL == v, "ufunc equal __call__"),
    "float64 * t": (lambda: np.float64(2.0) * t, "ufunc multiply __call__"),
    "float64 ** t": (lambda: np.float64(2.0) ** t, "ufunc power __call__"),
    "float64 < t": (lambda: np.float64(2.0) < t, "ufunc less __call__"),
    "float64 == t": (lambda: np.float64(2.0) == t, "ufunc equal __call__"),
    "float32 - v": (lambda: np.float32(2.0) - v, "ufunc subtract __call__"),
    "sqrt(2) * t": (lambda: np.sqrt(2) * t, "ufunc multiply __call__"),
    "int64 // t": (lambda: np.int64(2) // t, "ufunc floor_divide __call__"),
    "complex128 * t": (lambda: np.complex128(1j) * t, "ufunc multiply __call__"),
    "bool & t": (lambda: np.True_ & t, "ufunc bitwise_and __call__"),
    "divmod(float64, t)": (lambda: divmod(np.float64(2.0), t), "ufunc divmod __call__"),
    "exp": (lambda: np.exp(v), "ufunc exp __call__"),
    "exp with out": (lambda: np.exp(v, out=np.zeros(3)), "ufunc exp __call__ out"),
    "add with out": (lambda: np.add(REAL, v, out=np.zeros((3, 3))), "ufunc add __call__ out"),
    "heaviside": (lambda: np.heaviside(v, 0), "ufunc heaviside __call__"),
    "add.reduce": (lambda: np.add.reduce(v), "ufunc add reduce"),
    "add.at a real array": (lambda: np.add.at(np.zeros(3), [0, 1], v), "ufunc add at"),
    "maximum.accumulate": (lambda: np.maximum.accumulate(v), "ufunc maximum accumulate"),
    "expit": (lambda: scipy.special.expit(v), "ufunc expit __call__"),
    "log_expit": (lambda: scipy.special.log_expit(v), "ufunc log_expit __call__"),
    "erf": (lambda: scipy.special.erf(v), "ufunc erf __call__"),
    "gammaln": (lambda: scipy.special.gammaln(v), "ufunc gammaln __call__"),
    "xlogy": (lambda: scipy.special.xlogy(2.0, v), "ufunc xlogy __call__"),
    "sum": (lambda: np.sum(v), "function sum"),
    "mean": (lambda: np.mean(v), "function mean"),
    "dot": (lambda: np.dot(REAL, v), "function dot"),
    "einsum": (lambda: np.einsum("ij,j->i", REAL, v), "function einsum"),
    "solve": (lambda: np.linalg.solve(REAL, v), "function solve"),
    "norm": (lambda: np.linalg.norm(v), "function norm"),
    "where": (lambda: np.where(t > 0, v, 0.0), "function where"),
    "where with a real condition": (lambda: np.where(REAL > 0, v, 0.0), "function where"),
    "select": (lambda: np.select([REAL > 0], [v], 0.0), "function select"),
    "clip": (lambda: np.clip(v, 0.0, 1.0), "function clip"),
    "clip of a real array": (lambda: np.clip(REAL, t, None), "function clip"),
    "interp": (lambda: np.interp(t, REAL[0], REAL[0]), "function interp"),
    "convolve": (lambda: np.convolve(REAL[0], v), "function convolve"),
    "polyval": (lambda: np.polyval([1.0, 2.0], t), "function polyval"),
    "kron": (lambda: np.kron(REAL, v), "function kron"),
    "concatenate": (lambda: np.concatenate([REAL[0], v]), "function concatenate"),
    "stack": (lambda: np.stack([REAL[0], v]), "function stack"),
    "hstack": (lambda: np.hstack([REAL[0], v]), "function hstack"),
    "vstack": (lambda: np.vstack([REAL[0], v]), "function vstack"),
    "column_stack": (lambda: np.column_stack([REAL[0], v]), "function column_stack"),
    "block": (lambda: np.block([[REAL, v]]), "function block"),
    "zeros_like": (lambda: np.zeros_like(v), "function zeros_like"),
    "full_like of it": (lambda: np.full_like(v, 1.0), "function full_like"),
    "atleast_1d": (lambda: np.atleast_1d(t), "function atleast_1d"),
    "shape": (lambda: np.shape(v), "function shape"),
    "ndim": (lambda: np.ndim(v), "function ndim"),
    "size": (lambda: np.size(v), "function size"),
    "result_type": (lambda: np.result_type(v, 1.0), "function result_type"),
    "copyto a real array": (lambda: np.copyto(np.zeros(3), v), "function copyto"),
    "put in a real array": (lambda: np.put(np.zeros(3), [0], t), "function put"),
    "sum of a list": (lambda: sum([t, t]), "ufunc add __call__"),
}


@pytest.mark.parametrize("call, made", REACHES.values(), ids=REACHES)
def test_reaches_the_object(call, made):
    assert call().made == made


def test_what_reaches_it_with_a_plain_python_number():
    assert (2.0 * t).made == (t * 2.0).made == "ufunc multiply __call__"


# What does not: real arrays with a traced argument in a place that NumPy does not look at

IGNORES = {
    "take": lambda: np.take(REAL, t, axis=0),
    "roll": lambda: np.roll(REAL, t),
    "repeat": lambda: np.repeat(REAL, t),
    "pad": lambda: np.pad(REAL, 1, constant_values=t),
    "sum with initial": lambda: np.sum(REAL, initial=t),
    "list index": lambda: [1, 2][t],
    "slice of a real array": lambda: REAL[:, 0:t],
    "arange": lambda: np.arange(t),
    "max": lambda: max(t, 0),
    "math.exp": lambda: math.exp(t),
}


if np.lib.NumpyVersion(np.__version__) < "2.1.0":
    del IGNORES["roll"]  # there np.roll computes with the shift


@pytest.mark.parametrize("call", IGNORES.values(), ids=IGNORES)
def test_does_not_reach_it_but_raises_our_text(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    text = str(caught.value) + str(caught.value.__cause__)
    assert "our text" in text


@pytest.mark.parametrize("index", [t, (t, 0), (slice(None), t)])
def test_a_real_array_at_a_traced_index_is_a_bare_index_error(index):
    with pytest.raises(IndexError, match="only integers, slices") as caught:
        REAL[index]
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("call", [
    lambda: scipy.special.logsumexp(v),
    lambda: scipy.special.softmax(v),
    lambda: scipy.special.log_softmax(v),
    lambda: scipy.special.multigammaln(v, 2),
])
def test_python_functions_of_scipy_convert(call):
    with pytest.raises(Refused, match="our text: array"):
        call()


@pytest.mark.parametrize("call", [lambda: np.isscalar(t), lambda: isinstance(t, np.ndarray)])
def test_it_is_no_scalar_and_no_array(call):
    assert call() is False


# np.array of a list of them


@pytest.mark.parametrize("make", [Array, Guarded])
def test_array_of_scalars_is_an_object_array(make):
    a, b = make(), make()
    assert is_object_array(np.array([a, b]), (2,))
    assert is_object_array(np.array([[a, b], [b, a]]), (2, 2))
    mixed = np.array([a, 1.0, 2])
    assert is_object_array(mixed, (3,)) and mixed[0] is a and mixed[1] == 1.0
    assert is_object_array(np.full(3, a), (3,))
    assert is_object_array(np.asarray(a), ()) and np.asarray(a)[()] is a


def test_without_array_a_vector_is_silently_unpacked():
    vector = Array((1000,))
    assert is_object_array(np.asarray(vector), (1000,))
    assert vector.items_read > 1000
    assert is_object_array(np.array([Array((3,)), Array((3,))]), (2, 3))
    assert is_object_array(REAL.dot(Array((3,))), (3,))
    assert is_object_array(np.vectorize(lambda x: 2 * x)(Array((3,))), (3,))


UNPACKS = {
    "asarray": lambda: np.asarray(v),
    "array of two": lambda: np.array([v, v]),
    "array of unequal ones": lambda: np.array([t, v]),
    "array with a dtype": lambda: np.array([t, t], float),
    "ndarray.dot": lambda: REAL.dot(v),
    "ndarray.searchsorted": lambda: REAL[0].searchsorted(v),
    "ndarray[v]": lambda: REAL[v],
    "vectorize": lambda: np.vectorize(lambda x: 2 * x)(v),
    "a draw": lambda: np.random.default_rng(0).normal(v),
}


@pytest.mark.parametrize("call", UNPACKS.values(), ids=UNPACKS)
def test_with_array_the_conversion_raises_our_text_and_reads_nothing(call):
    before = v.items_read
    with pytest.raises(Refused, match="our text: array"):
        call()
    assert v.items_read == before


def test_array_is_asked_without_dtype_or_with_the_dtype_wanted():
    asked = []

    class Asked(Guarded):
        def __array__(self, dtype=None, copy=None):
            asked.append(dtype)
            return super().__array__(dtype, copy)

    np.array([Asked(), 1.0])
    with pytest.raises(Refused):
        np.array([Asked()], float)
    with pytest.raises(Refused):
        np.zeros(3)[:] = Asked()
    assert asked == [None, np.dtype(float), np.dtype(float)]


# What object arrays of them can do

OBJECTS = np.array([Guarded(), Guarded()])
ELEMENTWISE = {
    "o + o": (lambda: OBJECTS + OBJECTS, (2,)),
    "o - o": (lambda: OBJECTS - OBJECTS, (2,)),
    "o * o": (lambda: OBJECTS * OBJECTS, (2,)),
    "o / o": (lambda: OBJECTS / OBJECTS, (2,)),
    "o ** 2": (lambda: OBJECTS ** 2, (2,)),
    "0.5 * o": (lambda: 0.5 * OBJECTS, (2,)),
    "ndarray + o": (lambda: np.ones(2) + OBJECTS, (2,)),
    "ndarray @ o": (lambda: np.ones((5, 2)) @ OBJECTS, (5,)),
    "dot(ndarray, o)": (lambda: np.dot(np.ones((5, 2)), OBJECTS), (5,)),
    "outer": (lambda: np.outer(OBJECTS, OBJECTS), (2, 2)),
    "cumsum": (lambda: np.cumsum(OBJECTS), (2,)),
    "concatenate": (lambda: np.concatenate([OBJECTS, np.ones(3)]), (5,)),
}


@pytest.mark.parametrize("call, shape", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_object_arrays_work_element_by_element(call, shape):
    result = call()
    assert is_object_array(result, shape) and isinstance(result.flat[0], Guarded)


TO_ONE = {
    "sum": (lambda: np.sum(OBJECTS), "ufunc add __call__"),
    "o @ o": (lambda: OBJECTS @ OBJECTS, "ufunc add __call__"),
    "einsum": (lambda: np.einsum("i,i->", OBJECTS, OBJECTS), "ufunc add __call__"),
    "norm": (lambda: np.linalg.norm(OBJECTS), "ufunc sqrt __call__"),
    "t + o": (lambda: t + OBJECTS, "ufunc add __call__"),
    "o + t": (lambda: OBJECTS + t, "ufunc add __call__"),
    "v * o": (lambda: v * OBJECTS, "ufunc multiply __call__"),
    "o @ v": (lambda: OBJECTS @ v, "ufunc matmul __call__"),
    "solve(o, v)": (lambda: np.linalg.solve(np.array([[t, t], [t, t]]), v), "function solve"),
    "concatenate([o, v])": (lambda: np.concatenate([OBJECTS, v]), "function concatenate"),
}


@pytest.mark.parametrize("call, made", TO_ONE.values(), ids=TO_ONE)
def test_object_arrays_meet_the_object(call, made):
    assert call().made == made


def test_a_matrix_times_an_object_array_makes_many_operations():
    made = []

    class Counted(Guarded):
        def __array_ufunc__(self, ufunc, method, *inputs, **options):
            made.append(ufunc.__name__)
            return Counted()

    np.ones((5, 4)) @ np.array([Counted() for _ in range(4)])
    assert made.count("multiply") == 20 and made.count("add") >= 15


NEED_BOOL = {
    "o > 0": lambda: OBJECTS > 0,
    "maximum": lambda: np.maximum(OBJECTS, 0.0),
    "max": lambda: np.max(OBJECTS),
    "clip": lambda: np.clip(OBJECTS, 0.0, 1.0),
    "where": lambda: np.where(OBJECTS > 0, OBJECTS, 0.0),
}


@pytest.mark.parametrize("call", NEED_BOOL.values(), ids=NEED_BOOL)
def test_object_arrays_cannot_compare(call):
    with pytest.raises(Refused, match="our text: bool"):
        call()


def test_object_arrays_have_no_mean_and_no_linear_algebra():
    with pytest.raises(Refused, match="our text: array"):
        OBJECTS.mean()
    for function in (np.linalg.inv, np.linalg.cholesky):
        with pytest.raises(TypeError, match=r"dtype\('O'\)"):
            function(np.array([[t, t], [t, t]]))


@pytest.mark.parametrize("call, method", [
    (np.exp, "exp"), (np.tanh, "tanh"), (np.sqrt, "sqrt"), (np.conj, "conjugate"), (operator.neg, "__neg__"),
    (np.abs, "__abs__"),
])
def test_unary_functions_of_object_arrays_call_methods(call, method):
    result = call(np.array([Scalar(), Scalar()]))
    assert is_object_array(result, (2,)) and result[0].made == f"method {method}"
    with pytest.raises(TypeError):
        call(OBJECTS)


# Writing into real arrays


def assign(array, index, value):
    array[index] = value


HIDDEN = {
    "z[0] = t": lambda: assign(np.zeros(3), 0, t),
    "z[0, 1] = t": lambda: assign(np.zeros((2, 3)), (0, 1), t),
    "z[0] = t, float32": lambda: assign(np.zeros(3, np.float32), 0, t),
    "z[0] = t, bool": lambda: assign(np.zeros(3, bool), 0, t),
    "z.fill(t)": lambda: np.zeros(3).fill(t),
}


@pytest.mark.parametrize("call", HIDDEN.values(), ids=HIDDEN)
def test_our_text_is_only_the_cause(call):
    with pytest.raises(ValueError, match="setting an array element with a sequence") as caught:
        call()
    assert isinstance(caught.value.__cause__, Refused)


OPEN = {
    "z[0] = t, int": (lambda: assign(np.zeros(3, int), 0, t), "int"),
    "z[0] = t, complex": (lambda: assign(np.zeros(3, complex), 0, t), "complex"),
    "z[:] = t": (lambda: assign(np.zeros(3), slice(None), t), "array"),
    "z[:] = v": (lambda: assign(np.zeros(3), slice(None), v), "array"),
    "z[0] = v": (lambda: assign(np.zeros((2, 3)), 0, v), "array"),
    "z[[0, 1]] = t": (lambda: assign(np.zeros(3), [0, 1], t), "array"),
}


@pytest.mark.parametrize("call, text", OPEN.values(), ids=OPEN)
def test_our_text_comes_through(call, text):
    with pytest.raises(Refused, match=f"our text: {text}"):
        call()


def test_without_getitem_our_text_comes_through_at_a_single_place_too():
    class Bare:
        shape, ndim, dtype = (), 0, np.dtype(float)
        __float__ = refuse("float")

    for call in (lambda: assign(np.zeros(3), 0, Bare()), lambda: np.zeros(3).fill(Bare()),
                 lambda: np.array([Bare(), Bare()], float)):
        with pytest.raises(Refused, match="our text: float"):
            call()


@pytest.mark.parametrize("call", [
    lambda: np.full(3, t, dtype=float),
    lambda: np.full_like(np.ones(3), t),
    lambda: np.nan_to_num(np.array([np.nan, 1.0]), nan=t),
])
def test_filling_goes_through_copyto_and_is_silent_if_that_is_handled(call):
    seen = []

    def watched(self, function, types, args, kwargs):
        seen.append(function.__name__)
        return Guarded()

    before, Guarded.__array_function__ = Guarded.__array_function__, watched
    try:
        result = call()
    finally:
        Guarded.__array_function__ = before
    assert "copyto" in seen
    assert type(result) is np.ndarray and result.dtype == float


def test_filling_raises_if_copyto_is_not_handled():
    class Honest(Guarded):
        def __array_function__(self, function, types, args, kwargs):
            return NotImplemented

    for call in (lambda x: np.full(3, x, dtype=float), lambda x: np.full_like(np.ones(3), x)):
        with pytest.raises(TypeError, match="numpy.copyto"):
            call(Honest())


# In-place operators on a real array: only the calling instruction tells them from out=


class Caller(Guarded):
    """Returns the opcode of the instruction that called, and its argument."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        frame = sys._getframe(1)
        code, at = frame.f_code.co_code, frame.f_lasti
        return dis.opname[code[at]], code[at + 1], ufunc.__name__, "out" in options


def test_an_in_place_operator_arrives_with_out():
    z = np.zeros(3)
    alias = z
    z += Caller()
    name, argument, ufunc, out = z
    assert (ufunc, out) == ("add", True)
    np.testing.assert_array_equal(alias, np.zeros(3))
    assert name == "BINARY_OP" and argument >= 13


def test_a_call_with_out_arrives_from_another_instruction():
    z = np.zeros(3)
    name, _, ufunc, out = np.add(z, Caller(), out=z)
    assert (ufunc, out) == ("add", True)
    assert name != "BINARY_OP"


def test_a_plain_operator_arrives_without_out():
    name, argument, ufunc, out = np.zeros(3) + Caller()
    assert (ufunc, out) == ("add", False)
    assert name == "BINARY_OP" and argument < 13


def test_an_in_place_product_arrives_with_out():
    z = np.zeros((3, 3))
    z @= Caller((3, 3))
    assert z[2:] == ("matmul", True)
