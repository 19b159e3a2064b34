"""`explain`: what becomes of the loops of a call, and that looking changes nothing."""

import contextlib
import dataclasses

import numpy as np
import pytest

import nscan as ns
from nscan import build
from nscan.explain import STAGES, explain
from nscan.trace import HOOKS

RNG = np.random.default_rng(0)
X, W, U = RNG.normal(size=(20, 40, 30)), RNG.normal(size=(30, 50)), RNG.normal(size=(50, 50)) / 8


def unit(x, h, w, u):
    return np.tanh(x @ w + h @ u)


def loss(w, u, x=X):
    h = ns.scan(unit, x, np.zeros((x.shape[1], 50)), [w, u])
    return np.sum(h[-1] ** 2)


def test_nothing_is_run_twice(mode):
    calls = []

    def f(w, u):
        calls.append(1)
        return loss(w, u)
    before = HOOKS["runner"]
    rows = []
    HOOKS["runner"] = lambda row, values, params: rows.append(row.name) or before(row, values, params)
    try:
        found = explain(ns.value_and_grad(f, argnums=(0, 1)))(W, U)
    finally:
        HOOKS["runner"] = before
    assert calls == [1]
    assert rows == ["loop", "loop_adjoint"]
    value, (dw, du) = found.result
    again, (dw2, du2) = ns.value_and_grad(loss, argnums=(0, 1))(W, U)
    assert value == again and np.array_equal(dw, dw2) and np.array_equal(du, du2)


def test_stages_of_a_recurrence_and_its_gradient(mode):
    forward, backward = explain(ns.grad(loss, argnums=(0, 1)))(W, U).loops
    assert (forward.name, forward.steps, forward.calls) == ("unit", 20, 1)
    assert forward.operands[0] == ("sequence", "f8[20, 40, 30]")
    assert forward.operands[1] == ("state 'h' (outputs_info[0])", "f8[40, 50]")
    assert backward.name == "adjoint of unit"
    assert [kind for kind, _ in backward.operands].count("sum") == 2
    stages = forward.program.stages
    assert [q.row.name for q in stages.pre] == ["contract"]
    assert [q.row.name for q in stages.core] == ["contract", "add", "tanh"]
    assert [q.row.name for q in backward.program.stages.post] == ["contract", "contract"]
    assert forward.program.lane == 40
    assert forward.steps_of_block > 0
    assert forward.workspace_bytes > forward.steps_of_block * 40 * 50 * 8
    assert 0 < forward.residual_bytes <= 2 * 20 * 40 * 50 * 8
    assert backward.residual_bytes == 0
    text = str(forward)
    for line in ("loop 'unit': 20 steps", "kept for the block: v5:f8[40, 50]", "core (step by step)",
                 "lanes  40 independent lanes", f"kept for the backward loop  {forward.residual_bytes:,} bytes"):
        assert line in text
    assert "sum 0 += " in str(backward)


def test_what_is_shown_is_what_runs():
    """In compiled mode it is the program of the kernel; without compiling, python mode plans the same one."""
    programs = []
    for mode in ("compiled", "python"):
        with setting(mode):
            programs.append([loop.program.text for loop in explain(ns.grad(loss, argnums=(0, 1)))(W, U).loops])
    assert programs[0] == programs[1]


@contextlib.contextmanager
def setting(mode):
    """Set the mode for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ns.config._assigned, "mode", mode)
        yield


def test_python_mode_compiles_nothing(monkeypatch):
    monkeypatch.setattr(build, "build_text", lambda *args: pytest.fail("something was compiled"))
    with setting("python"):
        found = explain(ns.grad(loss, argnums=(0, 1)), show="all")(W, U)
    assert "def kernel(flags, status, step0, step1, lane0, lane1, part, block):" in str(found)


def test_stages_are_chosen():
    found = {stage: str(explain(loss, show=stage)(W, U)) for stage in STAGES}
    for stage, text in found.items():
        assert text.startswith("loop 'unit': 20 steps\n  " + stage)
        assert [line for line in text.splitlines()[1:] if line[2] != " "] == ["  " + stage]
    everything = explain(loss, show="all")(W, U)
    titles = [line[2:] for line in str(everything).splitlines() if line[:2] == "  " and line[2] != " "]
    assert titles == list(STAGES)
    both = str(explain(loss, show=("plan", "call"))(W, U))
    assert both.index("\n  call") < both.index("\n  plan")
    with pytest.raises(ns.errors.SpecError, match="no stage 'llvm' to show; there are call, tape, stages, plan, program"):
        explain(loss, show="llvm")


def test_equal_loops_are_one():
    def f(x):
        for _ in range(3):
            x = ns.scan(lambda r, h: h + r, x, 0.0)
        return x, ns.map(np.exp, x)
    found = explain(f)(np.ones(5))
    assert [(loop.calls, loop.steps) for loop in found.loops] == [(3, 5), (1, 5)]
    assert "loop '<lambda>': 5 steps, 3 calls" in str(found)


def test_loops_that_stop_by_themselves():
    found = explain(lambda: ns.scan(lambda k: (k + 1, ns.until(k >= 6)), outputs_info=0, n_steps=100))()
    assert found.loops[0].steps == 7
    assert "number of steps i8" in str(found)
    assert explain(lambda: ns.while_loop(lambda k: k < 4, lambda k: k + 1, 0))().loops[0].steps == 4


def test_loops_without_steps_and_calls_without_loops(mode):
    found = explain(lambda: ns.scan(lambda x, h: h + x, np.zeros((0, 3)), np.zeros(3)))()
    assert found.loops[0].steps == found.loops[0].parts == 0
    assert "0 steps" in repr(found)
    assert str(explain(np.sin)(0.0)) == "no loop was run"
    assert explain(np.sin)(0.0).result == 0


def test_rows_of_unknown_size_are_said_to_be_unknown():
    def f(x):
        def step(a, h):
            inner = ns.while_loop(lambda c: c[0] < a, lambda c: (c[0] + 1, np.sin(c[1])), (0.0, h))
            return inner[1]
        return ns.scan(step, np.array([1.0, 3.0]), x)[-1]
    found = explain(ns.grad(f), show="all")(0.3)
    assert len(found.loops) == 2
    assert "while v" in str(found)


def test_an_error_leaves_the_runner_alone():
    before = HOOKS["runner"]
    with pytest.raises(ns.errors.IndexRangeError):
        explain(lambda: ns.map(lambda k: ns.array(X[0, 0])[k], np.array([99])))()
    assert HOOKS["runner"] is before


def test_explanations_are_frozen():
    found = explain(loss)(W, U)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.result = None
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.loops[0].steps = 1


def test_equal_loops_keep_their_own_names():
    def loss(w, name):
        return ns.scan(lambda x, h, w: np.tanh(w * h - x), np.ones(4), 0.0, w, name=name)[-1]

    for name in ("first", "second", "first"):
        assert [loop.name for loop in explain(ns.grad(loss))(0.9, name).loops] == [name, f"adjoint of {name}"]
