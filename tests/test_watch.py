"""Watching loops: profile, progress bar, the first NaN; and that a loop which is not watched knows nothing of it."""

import inspect
import json
import re
import sys

import numpy as np
import pytest

import nscan as ns

RNG = np.random.default_rng(5)


def line_of(function, mark):
    """Line of the source of a function that ends in a mark."""
    lines, first = inspect.getsourcelines(function)
    return first + next(k for k, text in enumerate(lines) if text.rstrip().endswith(f"# {mark}"))


# --------------------------------------------------------------------------------------------------- profile
def cell(x, h, w, v):
    """A step whose lines are told apart: products in two lines, an elementwise one, an output that feeds nothing."""
    z = x @ v  # input
    h = np.tanh(z + h @ w)  # state
    return h, np.sum(np.exp(h @ w))  # output


def loss(w, xs, v):
    """Loss of the last cell."""
    h, out = ns.scan(cell, xs, [np.zeros((16, 40)), None], [w, v])
    return np.sum(out)


CELL = RNG.normal(size=(40, 40)) / 7, RNG.normal(size=(50, 16, 24)), RNG.normal(size=(24, 40)) / 5


def test_times_add_up(mode):
    for f in (loss, ns.grad(loss)):
        taken = ns.profile(f)(*CELL)
        assert taken.seconds == pytest.approx(sum(taken.sections.values()), rel=1e-6)
        assert taken.seconds == pytest.approx(sum(taken.parts.values()), rel=1e-6)
        assert all(t >= -1e-9 for t in taken.parts.values())
        assert sum(loop.seconds for loop in taken.loops) <= taken.sections["kernels"]
        for loop in taken.loops:
            assert loop.seconds > 0
            assert loop.seconds == pytest.approx(sum(loop.stages.values()), rel=1e-3)
            assert loop.seconds == pytest.approx(sum(loop.lines.values()), rel=1e-3)


def test_loops_and_lines_are_named(mode):
    taken = ns.profile(ns.grad(loss))(*CELL)
    assert [(loop.name, loop.direction, loop.calls, loop.steps) for loop in taken.loops] == [
        ("cell", "forward", 1, 50), ("adjoint of cell", "backward", 1, 50)]
    for loop in taken.loops:
        lines = {place.line: t for place, t in loop.lines.items() if place is not None and place.file == __file__}
        for mark in ("input", "state", "output")[loop.direction == "backward":]:
            assert lines[line_of(cell, mark)] > 0, mark
    text = str(taken)
    assert re.search(r"profile of 'loss': [\d.]+ m?s\n  forward +[\d.]+ %", text)
    assert "loop 'adjoint of cell' (backward): 1 call, 50 steps" in text and "h = np.tanh(z + h @ w)  # state" in text


def test_stages_are_told_apart(compiled):
    forward, backward = ns.profile(ns.grad(loss))(*CELL).loops
    assert all(forward.stages[stage] > 0 for stage in ("once", "pre", "core", "post"))
    assert all(backward.stages[stage] > 0 for stage in ("core", "post"))
    where = {stage: {p.line for (s, p), t in forward.times.items() if s == stage and p is not None and t > 0} for stage in forward.stages}
    assert line_of(cell, "input") in where["pre"] and line_of(cell, "input") not in where["core"]
    assert line_of(cell, "state") in where["core"]
    assert line_of(cell, "output") in where["post"] and line_of(cell, "output") not in where["core"]


def test_the_costly_line_has_the_time(compiled):
    def step(x, h):
        a = np.sum(h * x)  # cheap
        b = np.sum(np.sin(np.exp(np.cos(np.exp(np.sin(h))))))  # costly
        return h + a * 1e-9 + b * 1e-9

    loop, = ns.profile(ns.scan)(step, RNG.normal(size=(300, 500)), np.zeros(500)).loops
    times = {place.line: t for place, t in loop.lines.items() if place is not None}
    assert times[line_of(step, "costly")] > 3 * times[line_of(step, "cheap")]


def test_a_profiled_loop_computes_the_same_bits(mode):
    cases = [lambda **o: ns.scan(cell, CELL[1], [np.zeros((16, 40)), None], [CELL[0], CELL[2]], **o),
             lambda **o: ns.map(lambda x: np.exp(x).sum(), RNG.normal(size=(5000, 300)), **o),
             lambda **o: ns.scan(lambda h: (h * 1.01, ns.until(h > 1e3)), None, 1.0, **o),
             lambda **o: ns.scan(inner_loops, np.arange(40.0).reshape(4, 10), 0.0, **o)]
    for case in cases:
        before = RNG.bit_generator.state
        plain = case()
        RNG.bit_generator.state = before
        watched = ns.profile(lambda case=case: case(check_finite=True))()
        for a, b in zip(np.atleast_1d(plain) if not isinstance(plain, tuple) else plain, _listed(watched.result)):
            np.testing.assert_array_equal(a, b)
        assert watched.loops[0].seconds > 0


def _listed(x):
    return x if isinstance(x, tuple) else np.atleast_1d(x)


def inner_loops(x, h):
    """A step with a loop and a branch."""
    g = ns.scan(lambda y, s: np.tanh(s + y), x, h)  # inner
    return ns.cond(g[-1] > 0, lambda a: np.sum(a * x), lambda a: a[0], g)


def test_a_profile_of_loops_in_loops(mode):
    loop, = ns.profile(ns.scan)(inner_loops, RNG.normal(size=(40, 3000)), 0.0).loops
    assert {line_of(inner_loops, "inner")} <= {place.line for place in loop.lines if place is not None}


def test_equal_steps_on_two_lines_have_times_of_their_own(mode):
    first = lambda x, h: np.tanh(h + x)  # noqa: E731
    second = lambda x, h: np.tanh(h + x)  # noqa: E731
    xs = np.ones((30, 60))
    loops = ns.profile(lambda: (ns.scan(first, xs, np.zeros(60)), ns.scan(second, xs, np.zeros(60))))().loops
    lines = [next(place.line for place in loop.lines if place is not None) for loop in loops]
    assert lines == [f.__code__.co_firstlineno for f in (first, second)]


def test_profile_as_an_option_writes_a_table(mode, capsys):
    ns.scan(cell, CELL[1], [np.zeros((16, 40)), None], [CELL[0], CELL[2]], profile=True)
    assert re.search(r"^profile of 'cell'.*loop 'cell' \(forward\): 1 call, 50 steps", capsys.readouterr().err, re.DOTALL)
    out, pull = ns.vjp(lambda w: ns.scan(lambda x, h, w: np.tanh(h * w + x), np.ones(20), 0.0, w, name="unit", profile=True)[-1], 0.5)
    assert "loop 'unit' (forward)" in capsys.readouterr().err
    pull(1.0)
    assert "loop 'adjoint of unit' (backward)" in capsys.readouterr().err
    ns.loop(lambda c, x: (c + x, None), 0.0, np.ones(3), name="carry", profile=True)
    ns.reduce(lambda x, c: c + x, np.ones(3), 0.0, name="fold", profile=True)
    ns.foldr(lambda x, c: c + x, np.ones(3), 0.0, name="right", profile=True)
    ns.map(lambda x: x + 1, np.ones(3), name="rows", profile=True)
    ns.while_loop(lambda x: x < 9, lambda x: x + 1, 0.0, profile=True)
    said = capsys.readouterr().err
    for name in ("carry", "fold", "right", "rows", "<lambda>"):
        assert f"loop {name!r} (forward)" in said
    ns.scan(lambda x, h: h + x, np.ones(3), 0.0)
    assert capsys.readouterr().err == ""


def test_the_picture_of_a_profile(mode, tmp_path):
    pytest.importorskip("matplotlib")
    figure = ns.profile(ns.grad(loss))(*CELL).plot(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == 3
    labels = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert any("np.tanh" in label for label in labels) and "core" in labels
    assert len(figure.axes[1].patches) == len(labels)


def test_bad_arguments_of_profile(monkeypatch):
    with pytest.raises(ns.errors.SpecError, match=r"profile takes a function and gives one, ns.profile\(f\)\(\*args\); got 3"):
        ns.profile(3)
    taken = ns.profile(lambda: 1)()
    assert taken.result == 1 and taken.loops == ()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ns.errors.MissingPackageError, match="picture of a profile needs Matplotlib: pip install matplotlib"):
        taken.plot()


def test_errors_pass_through_a_profile():
    with pytest.raises(ZeroDivisionError):
        ns.profile(lambda: 1 / 0)()
    assert ns.profile(lambda: 1)().sections.keys() == {"the rest"}


# ------------------------------------------------------------------------------------------------- no cost
def test_an_unwatched_kernel_is_what_it_was():
    """The program of a loop is the same to the letter with and without watching; only a profile has clocks."""
    def program(**options):
        return [x.program for x in ns.explain(ns.grad(lambda w: np.sum(ns.scan(cell, CELL[1], [np.zeros((16, 40)), None], [w, CELL[2]],
                                                                              **options)[1])))(CELL[0]).loops]
    plain = program()
    for options in ({"check_finite": True}, {"progress": True}):
        assert [p.text for p in program(**options)] == [p.text for p in plain]
        assert [p.keys for p in program(**options)] == [p.keys for p in plain]
    clocked = program(profile=True)
    for p, q in zip(plain, clocked, strict=True):
        assert not p.marks and '"tick"' not in p.text and ("clock",) not in p.keys
        assert q.marks and q.text.count('"tick"') >= len(q.marks)
        assert _without_clock(q) == _without_clock(p)


def _without_clock(program):
    """Count operations of a program but for those of the clock."""
    count = {}

    def visit(s):
        if isinstance(s, list) and s and isinstance(s[0], str):
            name = s[0] if s[0] != "let" else f"let {s[2]}"
            if name in ("store", "load", "range", "fold", "if", "while", "call", "fail"):
                count[name] = count.get(name, 0) + 1
        for part in s if isinstance(s, list) else ():
            visit(part)
    visit(json.loads(program.text))
    return count


# ---------------------------------------------------------------------------------------------- first NaN
def volatility(x, v):
    v = 0.1 + 0.9 * v - 0.3 * x
    return v, np.log(v)  # log


def test_where_an_output_is_spoilt(mode):
    x = np.zeros(100)
    x[37] = 50
    with pytest.raises(ns.errors.NonFiniteError) as caught:
        ns.scan(volatility, x, [1.0, None], check_finite=True)
    assert re.fullmatch(rf"NaN first appears at step 37 of 'volatility', in output 1; it is made at {re.escape(__file__)}:"
                        rf"{line_of(volatility, 'log')}: return v, np.log\(v\)  # log, as log\(-14\)", str(caught.value))
    assert isinstance(caught.value, FloatingPointError)


def test_which_element_of_a_state_is_spoilt(mode):
    def step(x, h):
        return h / x  # divide
    xs = np.ones((6, 2, 3))
    xs[4, 1, 2] = 0
    with pytest.raises(ns.errors.NonFiniteError, match=rf"^inf first appears at step 4 of 'step', in state 'h' \(outputs_info\[0\]\), "
                       rf"index \(1, 2\); it is made at .*:{line_of(step, 'divide')}: .* as divide\(1, 0\)$"):
        ns.scan(step, xs, np.ones((2, 3)), check_finite=True)


def test_what_nobody_uses_is_not_looked_at(mode):
    def step(x, h):
        return h + np.where(x > 0, np.log(x), 0)
    out = ns.scan(step, np.array([1.0, -1.0, 2.0]), 0.0, check_finite=True)
    np.testing.assert_allclose(out, [0, 0, np.log(2)])
    with pytest.raises(ns.errors.NonFiniteError, match=r"step 2 .* as divide\(1, 0\)"):
        ns.scan(lambda x: np.where(x > 0, 1 / (x - 2), np.log(x)), np.array([1.0, -1.0, 2.0])[[0, 0, 2]], check_finite=True)


def test_a_state_that_is_no_output(mode):
    """The state is not finite for one step in the middle: nothing of the result says so."""
    def body(c, x):
        return np.where(x > 5, 1 / (x - 6), c + 0 * x), None
    xs = np.array([1.0, 2.0, 6.0, 1.0, 9.0, 2.0])
    assert np.isfinite(ns.loop(body, np.ones(2), np.where(xs == 6, 7, xs), check_finite=True)[0]).all()
    for reverse in (False, True):
        rows = xs[::-1] if reverse else xs
        with pytest.raises(ns.errors.NonFiniteError, match=r"inf first appears at step 2 of 'body', in state 'init', index 0; .* "
                           r"divide\(1, 0\)"):
            ns.loop(body, np.ones(2), rows, reverse=reverse, check_finite=True)


def test_the_first_nan_of_a_backward_pass(mode):
    def root(x, h, w):
        return w * np.sqrt(h * x + 0.0)  # root
    xs = np.array([1.0, 1.0, 0.0, 1.0])

    def last(w, **options):
        return ns.scan(root, xs, 1.0, w, **options)[-1]
    assert np.isfinite(last(2.0, check_finite=True))
    with pytest.raises(ns.errors.NonFiniteError, match=r"^inf first appears at step 3 of the backward pass of 'root', in the cotangent of "
                       rf"a state; it is made by the derivative of .*:{line_of(root, 'root')}: .* as divide\(0.5, 0\)$"):
        ns.grad(lambda w: last(w, check_finite=True))(2.0)


def test_a_sum_of_a_backward_pass(mode):
    """Only the cotangent of a constant is spoilt, in the middle of the loop: found by halving."""
    def root(x, w):
        return np.sqrt(w * x + 0.0)
    xs = np.ones(300)
    xs[[20, 123]] = 0
    with pytest.raises(ns.errors.NonFiniteError, match=r"NaN first appears at step 123 of the backward pass of 'root', in the cotangent of "
                       r"a constant; it is made by the derivative of"):
        ns.grad(lambda w: np.sum(ns.scan(root, xs, None, w, check_finite=True)))(2.0)


def test_loops_inside_name_the_inner_line(mode):
    def inner(y, s):
        return s / y  # inner

    def outer(x, h):
        return h + x + ns.scan(inner, h - np.arange(3.0) + 1, 1.0)[-1]
    with pytest.raises(ns.errors.NonFiniteError, match=r"at step 0 of 'outer', .*, in a loop or branch: inf first appears at step 1 of "
                       rf"'inner', in state 's' .*:{line_of(inner, 'inner')}: .* as divide\(1, 0\)"):
        ns.scan(outer, np.ones(4), 0.0, check_finite=True)
    with pytest.raises(ns.errors.NonFiniteError, match=rf":{line_of(inner, 'inner')}: .* as divide"):
        ns.scan(lambda x, h: ns.cond(x > 2, lambda h: inner(x - 3, h), lambda h: h, h + x), np.arange(5.0), 1.0, check_finite=True)


@pytest.mark.parametrize("checkpoint", ["all", "states", 3])
def test_the_first_nan_under_checkpoints(checkpoint, mode):
    def root(x, h, w):
        return w * np.sqrt(h * x + 0.0) + 0.1
    xs = np.ones(200)
    xs[71] = 0

    def last(w):
        return ns.scan(root, xs, 1.0, w, check_finite=True, checkpoint=checkpoint)[-1]
    with pytest.raises(ns.errors.NonFiniteError, match=r"^(NaN|inf) first appears at step 71 of the backward pass of 'root', "
                       r".*divide\(0.5, 0\)$"):
        ns.grad(last)(2.0)
    taken = ns.profile(ns.grad(lambda w: ns.scan(root, xs + 1, 1.0, w, checkpoint=checkpoint)[-1]))(0.4)
    assert {"forward", "backward"} == {loop.direction for loop in taken.loops}
    assert all(loop.seconds > 0 and loop.steps >= 200 for loop in taken.loops)


def test_options_of_a_loop_in_a_branch_in_a_step(mode):
    def step(x, h):
        return ns.cond(h > 0, lambda h: ns.scan(lambda y, s: s / y, h - 2 + np.zeros(2), 1.0, check_finite=True)[-1], lambda h: h, h + x)
    with pytest.raises(ns.errors.NonFiniteError, match="as divide"):
        ns.scan(step, np.ones(4), 0.0)


def test_what_came_in_already(mode):
    with pytest.raises(ns.errors.NonFiniteError, match="step 1 .*; it comes in with that row of sequence 0 already"):
        ns.scan(lambda x, h: h + x, np.array([1, np.nan, 3]), 0.0, check_finite=True)
    with pytest.raises(ns.errors.NonFiniteError, match=r"step 0 .*; it comes in with the initial value of state 'h' \(outputs_info\[0\]\), "
                       "index 1"):
        ns.scan(lambda x, h: h + x, np.ones(3), np.array([1.0, np.inf]), check_finite=True)
    with pytest.raises(ns.errors.NonFiniteError, match=r"step 0 .*; it comes in with a constant, an array of shape \(3,\), index 2"):
        ns.map(lambda x, w: x @ w, np.ones((5, 3)), np.array([1, 2, np.inf]), check_finite=True)


def test_until_and_integers_and_no_steps(mode):
    with pytest.raises(ns.errors.NonFiniteError, match=r"inf first appears at step 308 .* as multiply\(1e\+308, 10\)"):
        ns.scan(lambda h: (h * 10, ns.until(h < 0)), None, 1.0, check_finite=True)
    assert ns.scan(lambda x, k: k + x, np.arange(3), 0, check_finite=True).tolist() == [0, 1, 3]
    assert ns.scan(lambda x, h: h / x, np.zeros(0), 0.0, check_finite=True).shape == (0,)
    assert ns.while_loop(lambda x: x < 9, lambda x: x * 2, 1.0, check_finite=True) == 16


def test_every_order_is_checked(mode):
    def f(w):
        return ns.scan(lambda x, h, w: h + np.abs(w * x) ** 1.5, np.array([1.0, 0.0, 1.0]), 0.0, w, check_finite=True)[-1]
    assert np.isfinite(ns.grad(f)(1.0))
    with pytest.raises(ns.errors.NonFiniteError):
        ns.grad(ns.grad(lambda w: ns.scan(lambda h, w: np.sqrt(h * w), None, 1.0, w, n_steps=2, check_finite=True)[-1]))(0.0)


# ------------------------------------------------------------------------------------------------ progress
def test_a_progress_bar(mode, capsys):
    ns.scan(lambda x, h: h + x, np.ones(3000), 0.0, name="sum", progress=True)
    said = capsys.readouterr().err
    assert "sum: 100%" in said and "3000/3000" in said
    ns.scan(lambda h: (h + 1, ns.until(h >= 70)), None, 0.0, name="open", progress=True)
    assert "open: 71step" in capsys.readouterr().err
    ns.grad(lambda w: ns.scan(lambda x, h: np.tanh(h * w + x), np.ones(40), 0.0, name="unit", progress=True)[-1])(0.5)
    said = capsys.readouterr().err
    assert "unit: 100%" in said and "adjoint of unit: 100%" in said
    ns.scan(lambda x, h: h + ns.scan(lambda y, s: y + s, np.ones(2), x, progress=True)[0], np.ones(3), 0.0)
    assert capsys.readouterr().err == ""


def test_a_progress_bar_moves_while_the_loop_runs(compiled, monkeypatch):
    from nscan.cpu import launch, run
    seen = []
    original = run.LoopRun._done
    monkeypatch.setattr(run.LoopRun, "_done", lambda self, r: seen.append(original(self, r)) or seen[-1])
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.002)
    for case in (lambda: ns.scan(lambda x, h: np.tanh(h + x), np.ones((3000, 1)), np.zeros(20_000), progress=True),
                 lambda: ns.map(lambda x: np.sum(np.sin(x)), np.ones((9000, 3000)), progress=True)):
        seen.clear()
        case()
        assert any(0 < k < 3000 for k in seen) and seen == sorted(seen) and 0 <= seen[0] and seen[-1] <= 9000


def test_progress_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ns.errors.MissingPackageError, match="progress=True needs tqdm: pip install tqdm"):
        ns.scan(lambda x, h: h + x, np.ones(3), 0.0, progress=True)


@pytest.mark.parametrize("name", ["check_finite", "progress", "profile"])
def test_bad_options(name):
    for call in (lambda **o: ns.scan(lambda x: x, np.ones(3), **o), lambda **o: ns.map(lambda x: x, np.ones(3), **o),
                 lambda **o: ns.loop(lambda c, x: (c, x), 0.0, np.ones(3), **o),
                 lambda **o: ns.reduce(lambda x, c: c, np.ones(3), 0.0, **o),
                 lambda **o: ns.foldl(lambda x, c: c, np.ones(3), 0.0, **o),
                 lambda **o: ns.while_loop(lambda x: x < 3, lambda x: x + 1, 0.0, **o)):
        with pytest.raises(ns.errors.SpecError, match=f"^{name} must be True or False, got 'yes'$"):
            call(**{name: "yes"})
