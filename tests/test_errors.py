"""Errors: their type, and that the text speaks of the caller's own names, what was got and what is right.

Every refusal is checked by `refused`: the class is an `NscanError` and the builtin that NumPy would raise,
the text holds the essential words, no array of the caller has changed, and a correct call works afterwards.
Texts are matched on words, not on sentences. A line marked ``# here`` is the one that the text must name.
"""

import inspect
import itertools
import math
import os
import re
import time

import numpy as np
import pytest
import scipy.special

import nscan as ns

pytestmark = pytest.mark.usefixtures("mode")

FILE = re.escape(os.path.basename(__file__))
X = np.arange(1.0, 7.0)
ROWS = np.arange(1.0, 19.0).reshape(6, 3)
H0 = np.array(0.5)
V0 = np.array([0.1, 0.2, 0.3])
WEIGHTS = np.array([2.0, 3.0, 4.0])
TABLE = np.arange(5.0)
INDEX = np.array([0, 2, -1, 1])
KEPT = {name: globals()[name].copy() for name in ("X", "ROWS", "H0", "V0", "WEIGHTS", "TABLE", "INDEX")}


def place(function):
    """Return a pattern for ``file:line`` of the line of a function that is marked ``# here``."""
    lines, first = inspect.getsourcelines(function)
    return f"{FILE}:{first + next(k for k, line in enumerate(lines) if '# here' in line)}(?![0-9])"


def refused(call, kinds, *patterns):
    """Expect an error of the library that is also of a builtin kind; its text and notes hold the patterns."""
    with pytest.raises(ns.errors.NscanError) as caught:
        call()
    assert isinstance(caught.value, kinds), type(caught.value).__mro__
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    for pattern in patterns:
        assert re.search(pattern, text), f"no {pattern!r} in: {text}"
    for name, copy in KEPT.items():
        np.testing.assert_array_equal(globals()[name], copy)
    out = ns.scan(lambda x, h: 0.5 * h + x, [np.ones(3)], [np.array(0.0)])
    np.testing.assert_array_equal(out, [1.0, 1.5, 1.75])


def add(x, h):
    """Return a correct step of one sequence and one state."""
    return h + x


def test_every_class_is_also_a_builtin_and_explains_itself():
    base = ns.errors.NscanError
    classes = [kind for kind in vars(ns.errors).values() if isinstance(kind, type) and issubclass(kind, base)]
    classes.remove(base)
    assert classes
    for kind in classes:
        others = set(kind.__mro__) - set(base.__mro__) - {kind}
        assert any(issubclass(other, Exception) and not issubclass(other, base) for other in others), kind
        assert kind.__doc__


# The step and its outputs


def test_wrong_number_of_arguments():
    def takes_three(x, h, w):
        return h + x

    def takes_one(x):
        return x

    refused(lambda: ns.scan(takes_three, [X], [H0]), TypeError, "takes_three", r"\b3\b|\(x, h, w\)", r"\b2\b")
    refused(lambda: ns.scan(takes_one, [X], [H0]), TypeError, "takes_one", r"\b1\b|\(x\)", r"\b2\b")


@pytest.mark.parametrize("step, states, got", [
    (lambda x, h, c: h + x, [H0, H0], 1),
    (lambda x, h: (h + x, h, x), [H0, None], 3),
])
def test_wrong_number_of_outputs(step, states, got):
    refused(lambda: ns.scan(step, [X], states), ValueError, "outputs_info", rf"\b{got}\b", r"\b2\b")


@pytest.mark.parametrize("value, word", [(None, "None"), ("text", "str"), (object(), "object")])
@pytest.mark.parametrize("initial", [H0, None])
def test_an_output_that_is_no_array(value, word, initial):
    def strange_step(x, *rest):
        return value

    refused(lambda: ns.scan(strange_step, [X], [initial]), TypeError, "strange_step", word)


# The entries of the call


@pytest.mark.parametrize("sequences, outputs_info, path, wrong, right", [
    ([X, dict(input=X, tap=[0])], [H0], r"sequences\[1\]", "'tap'", "taps"),
    ([X, dict(seq=X)], [H0], r"sequences\[1\]", "'seq'", "input"),
    ([X, X], [dict(initial=H0, tap=[-1])], r"outputs_info\[0\]", "'tap'", "taps"),
    ([X, X], [dict(init=H0)], r"outputs_info\[0\]", "'init'", "initial"),
])
def test_unknown_keys(sequences, outputs_info, path, wrong, right):
    refused(lambda: ns.scan(lambda x, y, h: h + x, sequences, outputs_info),
            (ValueError, TypeError, KeyError), path, wrong, right)


def test_a_dict_of_the_caller_is_not_changed():
    entry = dict(initial=H0, taps=[-1, -1])
    refused(lambda: ns.scan(lambda x, a, b: a + x, [X], [entry]), ValueError)
    assert entry == dict(initial=H0, taps=[-1, -1])


@pytest.mark.parametrize("taps, word", [([-1, 0], r"\b0\b"), ([-1, 1], r"(?<!-)\b1\b"), (0, r"\b0\b"),
                                        ([-1, -1], "-1"), ([-2, -1, -2], "-2")])
def test_taps_of_a_state(taps, word):
    entry = dict(initial=np.ones(3), taps=taps)
    refused(lambda: ns.scan(lambda *args: args[-2:], [X], [H0, entry]), ValueError, r"outputs_info\[1\]",
            "taps?", word)


def test_a_tap_that_is_no_integer():
    for taps in ([0.5], "0"):
        refused(lambda taps=taps: ns.scan(add, [dict(input=X, taps=taps)], [H0]), (TypeError, ValueError),
                r"sequences\[0\]", "taps?")


@pytest.mark.parametrize("sequences, n_steps, short, rows, needed", [
    ([X, np.arange(9.0)], 7, 0, 6, 7),
    ([ROWS, dict(input=X, taps=[1])], 6, 1, 6, 7),
    ([X, dict(input=X[:5], taps=-2)], 4, 1, 5, 6),
    ([np.arange(30.0), dict(input=X, taps=[3])], 10, 1, 6, 13),
])
def test_too_few_rows_of_a_sequence(sequences, n_steps, short, rows, needed):
    refused(lambda: ns.scan(lambda x, y, h: h + y, sequences, [H0], n_steps=n_steps),
            (ValueError, IndexError), rf"sequences\[{short}\]", rf"\b{rows}\b", rf"\b{needed}\b")


def test_a_sequence_shorter_than_its_taps():
    entry = dict(input=ROWS[:1], taps=[-2, 0])
    refused(lambda: ns.scan(lambda a, b, h: h + a, [entry], [V0], n_steps=1), (ValueError, IndexError),
            r"sequences\[0\]", r"\b1\b", r"\b3\b")
    assert ns.scan(lambda a, b, h: h + a, [entry], [V0]).shape == (0, 3)


@pytest.mark.parametrize("taps, initial, needed", [([-3, -1], np.ones(2), 3), (-2, np.ones((1, 2)), 2),
                                                   ([-4], np.ones(0), 4)])
def test_too_few_rows_of_an_initial_state(taps, initial, needed):
    refused(lambda: ns.scan(lambda x, h, *old: (h + x, old[0]), [X], [H0, dict(initial=initial, taps=taps)]),
            (ValueError, IndexError), r"outputs_info\[1\]", rf"\b{len(initial)}\b", rf"\b{needed}\b")


def test_a_0d_initial_state_has_no_rows_for_taps():
    refused(lambda: ns.scan(lambda x, a: a, [X], [dict(initial=H0, taps=[-2])]), (ValueError, IndexError),
            r"outputs_info\[0\]", r"\b2\b")


@pytest.mark.parametrize("n_steps, kinds, word", [
    (-3, ValueError, "-3"),
    (2.5, (TypeError, ValueError), r"2\.5"),
    (4.0, (TypeError, ValueError), r"4\.0"),
    ("4", (TypeError, ValueError), "str|'4'"),
])
def test_number_of_steps(n_steps, kinds, word):
    refused(lambda: ns.scan(add, [X], [H0], n_steps=n_steps), kinds, "n_steps", word)
    refused(lambda: ns.scan(lambda h: h, None, [H0], n_steps=n_steps), kinds, "n_steps", word)


def test_no_length_and_no_until():
    refused(lambda: ns.scan(lambda h: 0.5 * h, None, [H0]), (ValueError, TypeError), "n_steps", "until")


def test_a_0d_sequence():
    refused(lambda: ns.scan(lambda x, w, h: w * h + x, [X, H0], [H0]), (ValueError, TypeError, IndexError),
            r"sequences\[1\]", r"0-d|\(\)", "non_sequence")
    refused(lambda: ns.scan(add, [3.0], [H0]), (ValueError, TypeError, IndexError), r"sequences\[0\]",
            r"0-d|\(\)", "non_sequence")


WRONG_ARRAYS = {
    "object": (np.array(["a", 1.0, None], object), "object"),
    "string": (np.array(["a", "b", "c"]), "str|<U1"),
    "masked": (np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False]), "(?i)mask"),
    "float16": (np.ones(3, np.float16), "float16"),
}
if np.dtype(np.longdouble) != np.dtype(float):
    WRONG_ARRAYS["longdouble"] = (np.ones(3, np.longdouble), "longdouble|float128|float96")
ROLES = {
    "sequence": (lambda bad: ns.scan(lambda x, bad, h: h + x, [X[:3], bad], [H0]), r"sequences\[1\]"),
    "state": (lambda bad: ns.scan(lambda x, h, bad: (h + x, bad), [X], [H0, bad]), r"outputs_info\[1\]"),
    "non_sequence": (lambda bad: ns.scan(lambda x, h, bad: h + x, [X], [H0], [bad]), r"non_sequences\[0\]"),
}


@pytest.mark.parametrize("call, path", ROLES.values(), ids=ROLES)
@pytest.mark.parametrize("bad, word", WRONG_ARRAYS.values(), ids=WRONG_ARRAYS)
def test_arrays_that_are_refused_by_name(call, path, bad, word):
    refused(lambda: call(bad), TypeError, path, word)


def test_a_list_of_numbers_is_accepted():
    np.testing.assert_array_equal(ns.scan(add, [[1, 2, 3]], [[0, 10]]), [[1, 11], [3, 13], [6, 16]])


# Shapes


def test_a_state_that_grows():
    def step(x, h):
        return np.concatenate([h, x])  # here

    refused(lambda: ns.scan(step, [ROWS[:, :1]], [V0]), ValueError, "'h'", r"outputs_info\[0\]", r"\(3,\)",
            r"\(4,\)", place(step))


def test_a_0d_state_that_grows_again():
    def step(x, total, h):
        return total + x, np.stack([h, h])  # here

    refused(lambda: ns.scan(step, [X], [H0, H0]), ValueError, "'h'", r"outputs_info\[1\]", r"\(2,\)",
            r"\(2, 2\)", place(step))


def test_size_one_is_not_broadcast():
    def step(x, h):
        return h + x  # here

    refused(lambda: ns.scan(step, [ROWS], [np.zeros(1)]), ValueError, "'h'", r"outputs_info\[0\]", r"\(1,\)",
            r"\(3,\)", place(step))


def test_a_row_whose_size_depends_on_data():
    def step(k, table):
        return table[:k]  # here

    refused(lambda: ns.scan(step, [np.array([1, 2, 3])], None, [TABLE]), (ValueError, TypeError),
            "shape|size", place(step))


def test_operands_that_do_not_fit():
    refused(lambda: ns.scan(add, [np.ones((2, 4))], [V0]), ValueError, r"\(3,\)", r"\(4,\)")


def test_a_carry_of_another_structure():
    refused(lambda: ns.loop(lambda carry, x: ([carry["h"] + x], x), dict(h=H0), X), (TypeError, ValueError),
            "init|carry")


def test_a_carry_leaf_is_named_by_its_path():
    def step(carry, x):
        return dict(cell=(np.stack([carry["cell"][0], x]),)), x

    refused(lambda: ns.loop(step, dict(cell=(np.zeros(1),)), np.ones((4, 1))), ValueError,
            r"init\['cell'\]\[0\]", r"\(1,\)", r"\(2, 1\)")


# Hidden state. Each step has an operation of its own: no other trace of this process has its structure


def test_a_draw_in_a_step():
    def step(x):
        return np.arctan(x) * 0.31 + np.random.standard_normal()  # noqa: NPY002

    refused(lambda: ns.scan(step, [X]), ns.errors.HiddenStateError, r"np\.random", "sequence")
    refused(lambda: ns.scan(step, [X]), ns.errors.HiddenStateError)


def test_an_array_of_draws_in_a_step():
    generator = np.random.default_rng(0)

    def step(x, h):
        return np.arcsinh(h) + x * generator.standard_normal(3)

    refused(lambda: ns.scan(step, [ROWS], [V0]), ns.errors.HiddenStateError, r"np\.random", "sequence")


def test_a_counter_in_a_step():
    count = itertools.count(3)

    def step(x):
        return np.sinh(x) + next(count)

    refused(lambda: ns.scan(step, [X]), ns.errors.HiddenStateError, "counter")


def test_a_clock_in_a_step():
    def step(x):
        return np.cosh(x) + time.perf_counter()

    refused(lambda: ns.scan(step, [X]), ns.errors.HiddenStateError, "clock")


def test_draws_before_the_loop_are_right():
    draws = np.random.default_rng(0).standard_normal(6)
    np.testing.assert_array_equal(ns.scan(lambda x, e: x + e, [X, draws]), X + draws)


# Traced values that leave, and Python that needs their values


def test_a_traced_array_that_escaped():
    kept = []

    def step(x, h):
        y = np.tanh(h + x)  # here
        kept.append(y)
        return y

    ns.scan(step, [X], [H0])
    for use in (lambda: kept[0] + 1.0, lambda: np.exp(kept[0]), lambda: ns.scan(lambda x: x * kept[0], [X])):
        refused(use, Exception, "step", place(step))


def branch_if(h):
    if h > 0.0:  # here
        return h
    return -h


def branch_while(h):
    while h > 1.0:  # here
        h = h / 2.0
    return h


def branch_and(h):
    return np.where(h > 0.0 and h < 1.0, h, 0.0)  # here


def branch_not(h):
    return h if not h else 2.0 * h  # here


def branch_chain(h):
    return np.where(0.0 < h < 1.0, h, 0.0)  # here


def branch_max(h):
    return max(h, 0.0)  # here


def branch_assert(h):
    assert h > 0.0  # here
    return h


@pytest.mark.parametrize("branch", [branch_if, branch_while, branch_and, branch_not, branch_chain, branch_max,
                                    branch_assert])
def test_python_control_flow_in_a_step(branch):
    refused(lambda: ns.scan(lambda x, h: h + branch(x), [X], [H0]), (TypeError, ValueError), place(branch),
            r"np\.where|ns\.cond")


def test_python_control_flow_outside_a_step_works_under_grad():
    def loss(x):
        return np.sum(ns.scan(add, [x], [H0])) if x[0] > 0.0 else 0.0 * x[0]

    np.testing.assert_array_equal(ns.grad(loss)(X), [6.0, 5.0, 4.0, 3.0, 2.0, 1.0])


CONVERSIONS = {
    "float": lambda t: float(t),
    "int": lambda t: int(t),
    "complex": lambda t: complex(t),
    "item": lambda t: t.item(),
    "tolist": lambda t: t.tolist(),
    "asarray with a dtype": lambda t: np.asarray(t, dtype=float),
    "array with a dtype": lambda t: np.array([t, t], dtype=float),
    "asarray of a vector": lambda t: np.asarray(t * np.ones(3)),
    "array of vectors": lambda t: np.array([t * np.ones(3), t * np.ones(3)]),
    "math.tanh": lambda t: math.tanh(t),
    "math.floor": lambda t: math.floor(t),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_conversions_in_a_step(convert):
    refused(lambda: ns.scan(lambda x, h: h + np.sum(convert(x)), [X], [H0]), (TypeError, ValueError),
            FILE + r":\d+")


def test_conversions_say_what_to_write_instead():
    def uses_math(x):
        return math.tanh(x)  # here

    def uses_float(x):
        return 2.0 * float(x)  # here

    def uses_asarray(x):
        return np.asarray(x * np.ones(3))  # here

    refused(lambda: ns.scan(uses_math, [X]), TypeError, place(uses_math), r"np\.tanh|NumPy")
    refused(lambda: ns.scan(uses_float, [X]), TypeError, place(uses_float), "float")
    refused(lambda: ns.scan(uses_asarray, [X]), TypeError, place(uses_asarray), r"np\.stack|ns\.array")


@pytest.mark.parametrize("convert", [lambda x: float(x), lambda x: int(x), lambda x: x.item(),
                                     lambda x: np.asarray(x, dtype=float)])
def test_conversions_under_grad(convert):
    refused(lambda: ns.grad(lambda x: convert(x) * x)(2.0), (TypeError, ValueError), FILE + r":\d+")


NEED_AN_INTEGER = {
    "list": lambda k: [1.0, 2.0][k],
    "range": lambda k: range(k),
    "slice": lambda k: TABLE[:k],
    "take": lambda k: np.take(TABLE, k),
    "roll": lambda k: np.roll(TABLE, k),
    "arange": lambda k: np.arange(k),
}


@pytest.mark.parametrize("use", NEED_AN_INTEGER.values(), ids=NEED_AN_INTEGER)
def test_python_and_numpy_that_need_an_integer(use):
    refused(lambda: ns.scan(lambda k, h: h + np.sum(use(k)), [INDEX], [H0]),
            (TypeError, ValueError, IndexError), FILE + r":\d+")


def test_a_real_table_at_a_traced_index():
    def one(k):
        return TABLE[k]  # here

    def row(k):
        return ROWS[k, 1]  # here

    for step in (one, row):
        refused(lambda step=step: ns.scan(step, [INDEX]), IndexError, r"ns\.array", place(step))
    np.testing.assert_array_equal(ns.scan(lambda k: ns.array(TABLE)[k], [INDEX]), TABLE[INDEX])


@pytest.mark.parametrize("function, instead", [
    (scipy.special.logsumexp, r"ns\.logsumexp"),
    (scipy.special.softmax, r"ns\.softmax"),
    (scipy.special.log_softmax, r"ns\.log_softmax"),
])
def test_python_functions_of_scipy(function, instead):
    def step(x):
        return function(x)  # here

    refused(lambda: ns.scan(step, [ROWS]), TypeError, instead, place(step))


# Writing where nothing may be written


def write_item(t, v, z):
    z[0] = t  # here


def write_slice(t, v, z):
    z[:] = v  # here


def write_fill(t, v, z):
    z.fill(t)  # here


def write_in_place(t, v, z):
    z += v  # here


def write_in_place_scalar(t, v, z):
    z *= t  # here


def write_out(t, v, z):
    np.add(v, 1.0, out=z)  # here


def write_out_beside_real(t, v, z):
    np.multiply(z, t, out=z)  # here


def write_copyto(t, v, z):
    np.copyto(z, v)  # here


def write_put(t, v, z):
    np.put(z, [0], t)  # here


def write_add_at(t, v, z):
    np.add.at(z, [0, 1], t)  # here


def write_full(t, v, z):
    np.full(3, t, dtype=float)  # here


def write_full_like(t, v, z):
    np.full_like(z, t)  # here


def write_mask(t, v, z):
    z[z > 2.5] = t  # here


@pytest.mark.parametrize("write", [write_item, write_slice, write_fill, write_in_place, write_in_place_scalar,
                                   write_out, write_out_beside_real, write_copyto, write_put, write_add_at,
                                   write_full, write_full_like, write_mask])
def test_a_traced_value_into_a_real_array(write):
    def step(t, v):
        write(t, v, WEIGHTS)
        return t

    refused(lambda: ns.scan(step, [X, ROWS]), (TypeError, ValueError), r"ns\.array", place(write))


def test_a_scratch_array_and_an_array_of_scalars_are_right():
    def step(t):
        scratch = ns.array(np.zeros(3))
        scratch[1] = t
        return scratch + np.array([t, 2.0 * t, 0.5])

    np.testing.assert_array_equal(ns.scan(step, [X[:2]]), [[1.0, 3.0, 0.5], [2.0, 6.0, 0.5]])


def write_to_a_place(x, h, w):
    w[0] = 1.0
    return h + x


def write_to_all(x, h, w):
    w *= 2.0
    return h + x


def write_to_a_view(x, h, w):
    part = w[1:]
    part += x
    return h + x


def write_by_sorting(x, h, w):
    w.sort()
    return h + x


@pytest.mark.parametrize("step", [write_to_a_place, write_to_all, write_to_a_view, write_by_sorting])
def test_a_non_sequence_is_read_only(step):
    refused(lambda: ns.scan(step, [X], [H0], [WEIGHTS]), ValueError, r"'w'|non_sequences\[0\]",
            "(?i)read-?only|write")


# Errors of values, at a step


def test_an_index_out_of_range():
    def step(k, table):
        return table[k]  # here

    for index, wrong in (([0, 2, 7, 1], "7"), ([4, -5, -6, 9], "-6")):
        refused(lambda index=index: ns.scan(step, [np.array(index)], None, [TABLE]), IndexError, r"step 2\b",
                rf"{wrong}\b", r"\b5\b", place(step))
    np.testing.assert_array_equal(ns.scan(step, [INDEX], None, [TABLE]), TABLE[INDEX])


def test_an_index_out_of_range_that_a_state_makes():
    def step(k, h):
        h[k] = 1.0  # here
        return k + 2, h

    refused(lambda: ns.scan(step, None, [np.array(0), np.zeros(5)], n_steps=9), IndexError, r"step 3\b",
            r"\b6\b", r"\b5\b", place(step))


def test_an_index_out_of_range_in_an_inner_loop():
    def inner(k, table):
        return table[k]  # here

    def outer(ks, table):
        return ns.scan(inner, [ks], None, [table])

    refused(lambda: ns.scan(outer, [np.array([[0, 1], [2, 8]])], None, [TABLE]), IndexError, r"\b8\b",
            r"\b5\b", place(inner))


@pytest.mark.parametrize("solve", [np.linalg.solve, lambda a, b: np.linalg.inv(a) @ b])
def test_a_singular_matrix(solve):
    matrices = np.stack([np.eye(2), 2.0 * np.eye(2), np.eye(2), np.ones((2, 2)), np.zeros((2, 2))])

    def step(a, b):
        return solve(a, b)

    refused(lambda: ns.scan(step, [matrices], None, [np.ones(2)]), np.linalg.LinAlgError, r"step 3\b",
            "(?i)singular", FILE + r":\d+")


def test_the_line_of_a_singular_matrix():
    def step(a, b):
        return np.linalg.solve(a, b)  # here

    refused(lambda: ns.scan(step, [np.zeros((2, 2, 2))], None, [np.ones(2)]), np.linalg.LinAlgError,
            r"step 0\b", place(step))


@pytest.mark.needs("check_finite")
def test_the_first_nan():
    def step(x, h):
        return np.log(h - x)  # here

    x = np.array([1.0, 1.0, 9.0, 1.0])
    refused(lambda: ns.scan(step, [x], [np.array(30.0)], name="decay", check_finite=True), ArithmeticError,
            r"step 2\b", "decay", place(step))
    assert np.isnan(ns.scan(step, [x], [np.array(30.0)], name="decay")[2])


# Derivatives


def test_a_derivative_with_respect_to_integers():
    def loss(k):
        return np.sum(ns.scan(add, [k], [H0]))

    def product(x, k):
        return loss(x) * np.sum(k)

    k = np.arange(3)
    for derivative in (lambda: ns.grad(loss)(k), lambda: ns.vjp(loss, k), lambda: ns.grad(product, 1)(X, k),
                       lambda: ns.value_and_grad(product, argnums=(0, 1))(X, k)):
        refused(derivative, TypeError, "int64", "float")


def test_a_derivative_with_respect_to_bools():
    refused(lambda: ns.grad(lambda m: np.sum(np.where(m, X, 0.0)))(X > 2.0), TypeError, "bool", "float")


def test_grad_of_something_that_is_no_number():
    def path(h0):
        return ns.scan(add, [X], [h0])

    refused(lambda: ns.grad(path)(H0), (TypeError, ValueError), r"\(6,\)", "scalar", "vjp|sum")
    refused(lambda: ns.grad(lambda h: (h, h))(H0), (TypeError, ValueError), "scalar", "tuple|has_aux")


def test_grad_of_an_integer_result():
    refused(lambda: ns.grad(lambda h: np.argmax(h))(V0), (TypeError, ValueError), "int")


def test_a_value_that_only_decides_when_the_loop_stops():
    def loss(limit):
        return np.sum(ns.scan(lambda h: (h + 1.0, ns.until(h > limit)), None, [H0]))

    refused(lambda: ns.grad(loss)(np.array(4.0)), (TypeError, ValueError), "until|stops")


def test_a_cotangent_of_another_shape():
    _, pull = ns.vjp(lambda h: ns.scan(add, [X], [h]), H0)
    refused(lambda: pull(np.ones(5)), (TypeError, ValueError), r"\(6,\)", r"\(5,\)")


def test_a_tangent_of_another_shape():
    refused(lambda: ns.jvp(lambda v: np.sum(v ** 2), (V0,), (np.ones(4),)), (TypeError, ValueError),
            r"\(3,\)", r"\(4,\)")


def test_an_argument_overwritten_before_the_backward_pass():
    x = X.copy()
    _, pull = ns.vjp(lambda x: ns.scan(lambda x, h: h * x, [x], [H0]), x)
    x[:] = 7.0
    refused(lambda: pull(np.ones(6)), Exception, "changed|overwritten")


# Options


def needs(option, *values):
    """Mark a parameter set that needs an option of scan."""
    return pytest.param(*values, marks=pytest.mark.needs(option))


def test_strict_names_what_is_not_an_argument():
    def step(x, h):
        return h * 0.5 + x * WEIGHTS

    def listed(x, h, w):
        return h * 0.5 + x * w

    refused(lambda: ns.scan(step, [ROWS], [V0], strict=True), (TypeError, ValueError, NameError), "WEIGHTS",
            "non_sequences")
    want = ns.scan(step, [ROWS], [V0])
    np.testing.assert_array_equal(ns.scan(listed, [ROWS], [V0], [WEIGHTS], strict=True), want)


def test_strict_names_a_closed_over_array():
    increment = np.array([1.0, 2.0, 3.0])
    refused(lambda: ns.scan(lambda h: h + increment, None, [V0], n_steps=2, strict=True),
            (TypeError, ValueError, NameError), "increment", "non_sequences")


@pytest.mark.parametrize("option, words", [
    (dict(truncate_gradient=0), ("truncate_gradient", r"\b0\b")),
    (dict(truncate_gradient=-2), ("truncate_gradient", "-2")),
    (dict(truncate_gradient=2.0), ("truncate_gradient", r"2\.0")),
    needs("checkpoint", dict(checkpoint="some"), ("checkpoint", "some")),
    needs("checkpoint", dict(checkpoint=0), ("checkpoint", r"\b0\b")),
    needs("lengths", dict(lengths=[2, 3]), ("lengths", r"\b2\b", r"\b3\b")),
    needs("lengths", dict(lengths=[2, 3, 7]), ("lengths", r"\b7\b", r"\b6\b")),
    needs("lengths", dict(lengths=[2.0, 3.0, 1.0]), ("lengths", "float")),
    needs("reset", dict(reset=[True, False]), ("reset", r"\b2\b|\(2,\)", r"\b6\b|\(6,")),
    needs("reset", dict(reset=np.zeros(6)), ("reset", "float64|bool")),
])
def test_options_out_of_range(option, words):
    refused(lambda: ns.scan(add, [ROWS], [V0], **option), (ValueError, TypeError), *words)


@pytest.mark.parametrize("option", [needs("lengths", dict(lengths=[2, 3, 1])), needs("reset", dict(reset=np.zeros(6, bool)))])
def test_options_that_do_not_combine_with_until(option):
    refused(lambda: ns.scan(lambda x, h: (h + x, ns.until(h[0] > 5.0)), [ROWS], [V0], **option),
            (ValueError, TypeError), "until", *option)


def test_an_unknown_option():
    with pytest.raises(TypeError, match="go_backward"):
        ns.scan(add, [X], [H0], go_backward=True)


def test_an_error_of_the_step_itself_passes_unchanged():
    class Mine(Exception):
        pass

    def step(x):
        raise Mine("my own text")

    with pytest.raises(Mine, match="my own text"):
        ns.scan(step, [X])


VECTOR = np.ones(2)
NOT_FITTING = {
    "jvp": (lambda: ns.jvp(np.sin, (VECTOR,), (np.ones(3),)), r"a tangent has shape \(3,\), its argument \(2,\)"),
    "Rop": (lambda: ns.Rop(np.sin, VECTOR, np.ones(3)), r"a tangent has shape \(3,\), its argument \(2,\)"),
    "hvp": (lambda: ns.hvp(lambda x: np.sum(x**2), VECTOR, np.ones(3)), r"a tangent has shape \(3,\), its argument \(2,\)"),
    "Lop": (lambda: ns.Lop(np.sin, VECTOR, np.ones(3)), r"a cotangent has shape \(3,\), its output \(2,\)"),
    "condition": (lambda: ns.while_loop(lambda c: VECTOR > 0, lambda c: c, 1.0),
                  r"the condition of while_loop with '<lambda>' must be 0-d, got shape \(2,\)"),
    "until": (lambda: ns.scan(lambda a: (2 * a, ns.until(VECTOR > 0)), None, 1.0),
              r"the condition of until in '<lambda>' must be 0-d, got shape \(2,\)"),
    "max_steps": (lambda: ns.while_loop(lambda c: c < 3, lambda c: c + 1, 0, max_steps=-1), "max_steps must not be negative, got -1"),
    "one_hot index": (lambda: ns.one_hot(np.array([0.5]), 3), "one_hot needs an index of integers, got float64"),
    "one_hot size": (lambda: ns.one_hot(np.array([1]), -3), "the size of one_hot must be an integer that is not negative, got -3"),
}


@pytest.mark.parametrize("name", NOT_FITTING)
def test_what_does_not_fit_is_named(name, mode):
    call, text = NOT_FITTING[name]
    with pytest.raises(ns.errors.NscanError, match=text):
        call()


def test_one_hot(mode):
    np.testing.assert_array_equal(ns.one_hot(np.array([[1], [5]]), 2, np.int32), [[[0, 1]], [[0, 0]]])
    np.testing.assert_array_equal(ns.map(lambda k: ns.one_hot(k, 3), np.array([2, 0])), [[0, 0, 1], [1, 0, 0]])


# What is written in place of a function, a tuple, a flag

NOT_MEANT = [
    (lambda: ns.map(lambda x: ns.cond(x > 1, x, 2 * x), X), "then of cond must be a function.*np.where"),
    (lambda: ns.cond(True, abs, 3), "other of cond must be a function, got int object 3"),
    (lambda: ns.while_loop(True, lambda c: c + 1, 0), "what is called with 1 argument must be a function, got bool object True"),
    (lambda: ns.grad(3.0)(X), "f must be a function, got float object 3.0"),
    (lambda: ns.jvp(np.sin, X, (X,)), r"args of jvp must be a tuple.*\(x,\)"),
    (lambda: ns.jvp(np.sin, (X,), X), "tangents of jvp must be a tuple"),
    (lambda: ns.scan(add, X, H0, go_backwards="no"), "go_backwards must be True or False, got 'no'"),
    (lambda: ns.loop(lambda c, x: (c, x), H0, X, reverse=2), "reverse must be True or False, got 2"),
    (lambda: ns.scan(add, X, H0, progress=X), r"progress must be True or False, got array"),
    (lambda: ns.scan(lambda x, h: (ns.until(h > 0), h), X, H0), "output 0 of '<lambda>' is ns.until.*behind all outputs"),
    (lambda: ns.scan(add, [1.0, 2.0], H0), r"sequences\[0\] is 0-d.*np.array\(\[...\]\)"),
    (lambda: ns.map(lambda k: ns.array(X)[k:] + ns.array(X)[:6 - k], INDEX[:2]), r"\(\?,\) \(\?,\); \? is the size of a slice"),
    (lambda: ns.scan(lambda x, h: np.r_[h[1:], x], X, V0), r"np.r_ is np.concatenate"),
]


@pytest.mark.parametrize("call, words", NOT_MEANT)
def test_another_thing_than_was_meant(call, words):
    refused(call, (TypeError, ValueError), words)


@pytest.mark.parametrize("name, words", [
    ("unique", "fixed shapes; sort"), ("nonzero", r"np.where\(mask, a, b\)"), ("bincount", "np.add.at"),
    ("fft.fft", r"np.fft.fft\(np.eye\(n\)\)"), ("linalg.eigvals", "np.linalg.eigh"), ("linalg.matrix_rank", "svd"),
])
def test_a_function_without_a_row_says_what_to_write(name, words):
    module, _, last = name.rpartition(".")
    function = getattr(getattr(np, module) if module else np, last)
    refused(lambda: ns.map(function, np.ones((2, 3, 3), int)), TypeError, f"{re.escape(name)} is not supported on traced arrays; ", words)


def test_no_function_of_another_meaning_is_recommended():
    with pytest.raises(ns.errors.UnsupportedError) as caught:
        ns.map(np.lexsort, np.ones((2, 3, 3)))
    assert str(caught.value) == "numpy.lexsort is not supported on traced arrays"


def test_a_method_of_a_ufunc_says_which_there_are():
    refused(lambda: ns.map(np.hypot.reduce, ROWS), TypeError, "np.hypot.reduce is not supported.*add.*logaddexp")
