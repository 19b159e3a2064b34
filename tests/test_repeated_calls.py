"""Calls of a structure seen before: what has changed is seen, what has not is not done again."""

import numpy as np
import pytest

import nscan as ns
from nscan import errors, trace
from nscan import step as tracing
from nscan.grad import loop as adjoints

XS = np.linspace(-1.0, 1.0, 5)


def plain(step, h=0.5, xs=XS):
    """Run a step of (x, h) as a Python loop."""
    rows = []
    for x in xs:
        h = step(x, h)
        rows.append(h)
    return np.array(rows)


class Setting:
    rate = 0.25
    squared = False
    table = np.array([1.0, 2.0, 3.0])


def by_attribute(x, h):
    h = h + Setting.rate * (x - h)
    return h * h if Setting.squared else h


def test_numbers_branches_and_arrays_that_change_are_seen(mode, monkeypatch):
    for rate, squared in ((0.25, False), (0.75, False), (0.25, True), (1, True), (0.0, True), (0.25, False)):
        monkeypatch.setattr(Setting, "rate", rate)
        monkeypatch.setattr(Setting, "squared", squared)
        np.testing.assert_allclose(ns.scan(by_attribute, XS, 0.5), plain(by_attribute), rtol=1e-14)
        slope = ns.grad(lambda h: ns.scan(by_attribute, XS, h)[-1])(0.5)
        near = (plain(by_attribute, 0.5 + 1e-6)[-1] - plain(by_attribute, 0.5 - 1e-6)[-1]) / 2e-6
        np.testing.assert_allclose(slope, near, rtol=1e-7, atol=1e-9)


def test_an_array_that_is_written_to_between_calls_is_seen(mode):
    table = np.array([1.0, 2.0])
    read = lambda x, h: h * table[0] + x * table[1]  # noqa: E731
    for _ in range(3):
        np.testing.assert_allclose(ns.scan(read, XS, 0.5), plain(read), rtol=1e-14)
        table += 0.125


def test_closures_of_one_function_are_told_apart(mode):
    def make(power, sign):
        def step(x, h):
            y = x ** power
            return h - y if sign < 0 else h + y
        return step
    for power, sign in ((2, 1), (3, 1), (2, -1), (3, -1), (0.5, 1), (2, 1)):
        step = make(power, sign)
        np.testing.assert_allclose(ns.scan(step, XS + 2, 0.5), plain(step, 0.5, XS + 2), rtol=1e-14)


def test_types_are_told_apart(mode):
    step = lambda x, h: 0.5 * h + x  # noqa: E731
    for dtype in ("f4", "f8", "i8", "f4", "c16"):
        for shape in ((5,), (5, 2), (5, 1)):
            xs = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
            got = ns.scan(step, xs, np.zeros(shape[1:], dtype))
            assert got.dtype == np.result_type(dtype, 0.5) and got.shape == shape
            np.testing.assert_allclose(got, plain(step, np.zeros(shape[1:], dtype), xs), rtol=1e-6)


def test_places_with_equal_steps_keep_their_lines(mode):
    table, bad = np.arange(3.0), np.array([0, 7])

    def first(k):
        return ns.array(table)[k]

    def second(k):
        return ns.array(table)[k]
    for step in (first, second, first):
        with pytest.raises(errors.IndexRangeError) as error:
            ns.map(step, bad)
        assert f":{step.__code__.co_firstlineno + 1}:" in str(error.value)


def test_steps_made_anew_each_time(mode):
    """Text that is executed again has new code objects: the structure is the same, and nothing goes wrong."""
    for k in range(3):
        space = {"np": np}
        exec("def step(x, h):\n    return np.tanh(h) * x + x", space)
        np.testing.assert_allclose(ns.scan(space["step"], XS, 0.5), plain(space["step"]), rtol=1e-13)
        assert np.isfinite(ns.grad(lambda h, f=space["step"]: ns.scan(f, XS, h)[-1])(0.5)), k


def test_a_step_that_evaluates_text(mode):
    step = lambda x, h: eval("h * x + x", {}, {"h": h, "x": x})  # noqa: E731
    np.testing.assert_allclose(ns.scan(step, XS, 0.5), plain(step), rtol=1e-14)


def test_another_number_is_no_other_structure(monkeypatch):
    from nscan.cpu import kernel
    planned, count = kernel.planned, []
    monkeypatch.setattr(kernel, "planned", lambda *args: count.append(1) or planned(*args))
    step = lambda x, h: Setting.rate * h + np.sin(x * Setting.rate) - x  # noqa: E731
    ns.config.mode = "compiled"
    try:
        for rate in (0.3, 0.31, 0.7, -4.2):
            monkeypatch.setattr(Setting, "rate", rate)
            np.testing.assert_allclose(ns.scan(step, XS, 0.5), plain(step), rtol=1e-13)
            ns.grad(lambda h: ns.scan(step, XS, h)[-1])(0.5)
            if rate == 0.3:
                first = len(count)
    finally:
        ns.config._assigned.clear()
    assert len(count) == first > 0


def test_nothing_is_derived_or_simplified_twice(mode, monkeypatch):
    total = lambda h: np.sum(ns.scan(by_attribute, XS, h))  # noqa: E731
    both = ns.value_and_grad(total)
    want = both(0.5), ns.hvp(total, np.float64(0.5), np.float64(1.0))

    def never(*args):
        raise AssertionError("this has been done before")
    monkeypatch.setattr(trace, "optimise", never)
    monkeypatch.setattr(adjoints, "_Builder", never)
    assert (both(0.5), ns.hvp(total, np.float64(0.5), np.float64(1.0))) == want


def test_equal_traces_are_one_loop(monkeypatch):
    seen = []
    run = tracing.run
    monkeypatch.setattr(tracing, "run", lambda made, *args: seen.append(made.loop) or run(made, *args))
    ns.config.mode = "python"
    try:
        for rate in (0.3, 0.4):
            monkeypatch.setattr(Setting, "rate", rate)
            ns.scan(by_attribute, XS, 0.5)
            ns.scan(by_attribute, XS, 0.5, name="other")
    finally:
        ns.config._assigned.clear()
    assert seen[0] is seen[2] and seen[1] is seen[3] and seen[0] is not seen[1]
    assert seen[0].key == seen[1].key and seen[1].name == "other"


@pytest.mark.parametrize("xs, h, traces", [
    (XS, 0.5, 1), (XS, np.float64(0.5), 1), (XS.astype("f4"), 0.5, 2), (np.arange(5), 0.5, 1), (XS, 1, 2)])
def test_a_number_as_initial_value_is_traced_once_where_its_type_does_not_count(mode, xs, h, traces):
    calls = []

    def step(x, h):
        calls.append(1)
        return h + x * h
    ns.scan(step, xs, h)
    calls.clear()
    got = ns.scan(step, xs, h)
    assert len(calls) == traces
    assert got.dtype == np.result_type(xs.dtype, h)
    np.testing.assert_allclose(got, plain(step, h, xs), rtol=1e-6)


def test_two_states_whose_types_hang_together(mode):
    """The number takes the other state's float32; float64 comes in later."""
    def step(x, a, b):
        return a * x, b + a
    a, b = ns.scan(step, XS.astype("f4"), [1.0, 0.0])
    assert a.dtype == b.dtype == np.float32
    a, b = ns.scan(step, XS.astype("f4"), [np.float32(1), np.float64(0)])
    assert (a.dtype, b.dtype) == (np.float32, np.float64)
    a, b = ns.scan(lambda x, a, b: (b * x, 2.0 * b), np.ones(3, "f4"), [np.zeros((), "f4"), 1.0])
    assert (a.dtype, b.dtype) == (np.float64, np.float64)


def test_a_loop_runs_once_forward_and_once_backward(monkeypatch):
    """Equal loops share what is derived from them, whatever their names; none runs again to make a residual."""
    names, runner = [], trace.HOOKS["runner"]

    def watched(row, values, params):
        names.append(params["loop"].name if row.name == "loop" else row.name)
        return runner(row, values, params)
    monkeypatch.setitem(trace.HOOKS, "runner", watched)
    ns.config.mode = "python"
    try:
        for name in ("one", "two", "one"):
            names.clear()
            ns.value_and_grad(lambda h, name=name: ns.scan(by_attribute, XS, [h], name=name)[-1] ** 2)(0.5)
            assert names == [name, "loop_adjoint"]
    finally:
        ns.config._assigned.clear()
