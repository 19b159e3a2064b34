"""The option checkpoint: the same bits under every plan, what is kept and what runs again, memory as predicted."""

import dataclasses
import functools
import tracemalloc

import numpy as np
import pytest
from product import Case, floats, grid, inputs
from product_check import functional, like

import nscan as ns
from nscan import buffers, checkpoint
from nscan.cpu import run as runs
from nscan.cpu import segments
from nscan.trace import HOOKS

# Options that are compared with "all"; 0 stands for a budget that nothing fits into.
OPTIONS = ("states", 1, 2, 3, 0)


@pytest.fixture
def tight(monkeypatch):
    """Let nothing fit under "auto"."""
    monkeypatch.setenv("NSCAN_CHECKPOINT_BYTES", "1")


def derivatives(case, option):
    """Values, gradient, product with the Hessian (both ways) of a loop under an option."""
    given = inputs(case)
    options = {"truncate_gradient": case.truncate} if case.truncate != -1 else {}
    f = functional(case, ns, given, {**options, "checkpoint": option or "auto"})
    args, rng = floats(given), np.random.default_rng(3)
    v = [like(x, rng) for x in args]
    outs, pull = ns.vjp(f, *args)
    cts = [like(x, rng) for x in outs]

    def slope(*xs):
        back = ns.grad(lambda *ys: sum(np.sum(np.real(np.conj(c) * y * y)) for c, y in zip(cts, f(*ys), strict=True)),
                       argnums=tuple(range(len(xs))))(*xs)
        return sum(np.sum(np.real(np.conj(b) * d)) for b, d in zip(back, v, strict=True))
    first = [*outs, *pull(tuple(cts))]
    if not outs or case.dtype == "f4":
        return first
    return [*first, ns.jvp(slope, args, tuple(v))[1], *ns.grad(slope, argnums=tuple(range(len(args))))(*args)]


def assert_equal_bits(case, option):
    """Compare an option with "all"."""
    for a, b in zip(derivatives(case, "all"), derivatives(case, option), strict=True):
        assert a.dtype == b.dtype, (case, option)
        np.testing.assert_array_equal(a, b, err_msg=f"{case} under checkpoint={option!r}")


def sample(step):
    """Every so many cases of the grid, with more steps."""
    return [dataclasses.replace(c, steps=c.steps + 4, n_steps=None if c.n_steps is None else c.n_steps + 3, stop=c.stop + 4)
            for c in grid()[::step]]


@pytest.mark.parametrize("case", sample(4), ids=str)
def test_same_bits_in_python_mode(case, tight, monkeypatch):
    monkeypatch.setenv("NSCAN_MODE", "python")
    for option in OPTIONS:
        assert_equal_bits(case, option)


@pytest.mark.parametrize("case", sample(16), ids=str)
def test_same_bits_compiled(case, tight, compiled):
    for option in OPTIONS:
        assert_equal_bits(case, option)


@pytest.mark.parametrize("option", ["states", 2])
def test_sums_over_short_axes_have_one_order(option, tight, compiled):
    """The loop that stops unrolls an axis of two that the one without the condition takes for lanes."""
    assert_equal_bits(Case(states=((-2,),), until="count", inside="taps", steps=8, stop=6, seed=15), option)


def nested(how):
    """A recurrent loop with a sequence, in the step of a scan or of a map: (gradient of weights under an option, arrays)."""
    rng = np.random.default_rng(0)
    w, xs, start = rng.normal(size=(3, 3)) / 2, rng.normal(size=(3, 23, 3)), rng.normal(size=3)

    def inner(x, h, w):
        z = np.tanh(h @ w + x)
        return z * np.cos(h), np.sum(z)

    def loss(option, w, xs, start):
        def step(x, h, w):
            hs, s = ns.scan(inner, x, [h, None], w, go_backwards=how == "backwards", checkpoint=option)
            return hs[-1] + 0.01 * np.sum(np.sin(hs), axis=0) + np.sum(s)
        return np.sum((ns.map(step, xs, [start, w]) if how == "map" else ns.scan(step, xs, start, w)) ** 2)
    return loss, (w, xs, start)


@pytest.mark.parametrize("how", ["scan", pytest.param("backwards", marks=pytest.mark.sweep), pytest.param("map", marks=pytest.mark.sweep)])
def test_loops_in_a_step_have_segments(how, compiled):
    loss, args = nested(how)
    def gradients(option):
        first = lambda *xs: ns.grad(functools.partial(loss, option), (0, 1, 2))(*xs)
        return [*first(*args), *ns.jvp(first, args, tuple(map(np.cos, args)))[1]]
    want = gradients("all")
    for option in ("states", 1, 5):  # 5: segments of 5 steps, and 3 beyond
        for a, b in zip(want, gradients(option), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"checkpoint={option!r}")


def test_loops_in_a_step_take_less_memory_in_segments(compiled):
    loss, (w, _, start) = nested("scan")
    xs = np.ones((2, 1000, 3))
    sizes = {option: sum(x.workspace_bytes for x in ns.explain(ns.grad(functools.partial(loss, option), 0))(w, xs, start).loops)
             for option in ("all", 32)}
    assert sizes[32] < 0.8 * sizes["all"]
    with pytest.raises(ns.errors.SpecError, match=r"checkpoint='1KB' is too small for a loop of 1000 steps in a step.* take \d+ bytes"):
        ns.grad(functools.partial(loss, "1KB"))(w, xs, start)


# ------------------------------------------------------------------------------------------ longer loops, compiled
def lstm(steps, lanes=3, size=8, dtype="f8"):
    """An LSTM whose last state is summed: (loss of weights and option, weights)."""
    rng = np.random.default_rng(0)
    w, u = (np.asarray(rng.normal(size=(size, 4 * size)) / 3, dtype) for _ in range(2))
    xs = np.asarray(rng.normal(size=(steps, lanes, size)), dtype)

    def cell(x, h, c, w, u):
        i, f, g, o = np.split(x @ w + h @ u, 4, axis=-1)
        c = ns.sigmoid(f) * c + ns.sigmoid(i) * np.tanh(g)
        return ns.sigmoid(o) * np.tanh(c), c

    def loss(w, u, option):
        start = np.zeros((lanes, size), dtype)
        return np.sum(ns.scan(cell, xs, [start, start], [w, u], checkpoint=option)[0][-1] ** 2)
    return loss, (w, u)


def garch(steps):
    """The likelihood of a GARCH model, added up in a state."""
    returns = np.random.default_rng(1).normal(size=steps)

    def step(carry, x, w, a, b):
        v = w + a * x * x + b * carry[0]
        return (v, carry[1] + np.log(v) + x * x / v), None

    def loss(p, option):
        return ns.loop(step, (1.0, 0.0), returns, non_sequences=[p[0], p[1], p[2]], checkpoint=option)[0][1]
    return loss, (np.array([0.1, 0.1, 0.8]),)


def writes(steps, size=40):
    """Entries of a large state are overwritten one by one."""
    rng = np.random.default_rng(2)
    xs, ks = rng.normal(size=steps), rng.integers(0, size, steps)

    def step(state, row):
        x, k = row
        state[k] = np.sin(x * state[k]) + state[k - 1]
        return state, None

    def loss(state, option):
        return np.sum(ns.loop(step, state, (xs, ks), checkpoint=option)[0] ** 2)
    return loss, (rng.normal(size=size),)


def newton(limit):
    """A loop whose length follows from its values, which are all read by its gradient."""
    def loss(x, option):
        def body(carry):
            y, k, total = carry
            y = y * 0.97 + 0.03 * np.cos(x * y)
            return y, k + 1, total + np.sin(y) * y
        return ns.while_loop(lambda carry: carry[1] < limit, body, (x, 0, 0.0 * x), checkpoint=option)[2]
    return lambda x, option: np.sum(loss(x, option)), (np.float64(0.7),)


LOOPS = {"lstm": (lstm(75), (1, 5, 20)), "lstm float32": (lstm(40, 33, 16, "f4"), (4,)),
         "garch": (garch(9000), (1, 2, 50, "250KB")), "writes": (writes(700), (1, 9, 64, "4KB", "2KB", "1KB")),
         "newton": (newton(1500), (1, 2, 7, "20KB", "2KB", "1KB"))}


def gradient(loss, args, option):
    """Value, gradient and product with the Hessian as a list of arrays."""
    where = tuple(range(len(args)))
    value, slope = ns.value_and_grad(loss, where)(*args, option)
    moved = ns.jvp(lambda *xs: ns.grad(loss, where)(*xs, option), args, tuple(np.cos(x) for x in args))[1]
    return [value, *slope, *moved]


@pytest.fixture
def poisoned(monkeypatch):
    """Fill fresh memory of kernels with NaN."""
    class Poisoned:
        def __getattr__(self, name):
            return getattr(np, name)

        def empty(self, shape, dtype=float):
            x = np.empty(shape, dtype)
            x.fill(255 if x.dtype == np.uint8 else np.nan if x.dtype.kind in "fc" else 99)
            return x
    monkeypatch.setattr(runs, "np", Poisoned())


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.sweep] if name == "lstm" else []) for name in LOOPS])
def test_long_loops(name, compiled, poisoned, monkeypatch):
    (loss, args), options = LOOPS[name]
    want = gradient(loss, args, "all")
    assert all(np.all(np.isfinite(x)) for x in want)
    plans = []
    make = segments.Segments.__init__
    monkeypatch.setattr(segments.Segments, "__init__", lambda self, *a: (plans.append(a[2]), make(self, *a))[0])
    for option in ("states", "auto", *options):
        plans.clear()
        for a, b in zip(want, gradient(loss, args, option), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{name} under checkpoint={option!r}")
        assert bool(plans) == (option in options), option
        for plan in plans:
            assert plan.slots <= (max(2, option) if isinstance(option, int) else plan.steps)
            if isinstance(option, str):
                assert plan.bytes <= checkpoint.bytes_of(option)


@pytest.mark.parametrize("option", [3, 17, "4KB", "2KB"])
def test_steps_run_again_as_predicted(option, compiled, monkeypatch):
    loss, args = writes(700)
    done, advance = [], runs.LoopRun.advance
    monkeypatch.setattr(runs.LoopRun, "advance",
                        lambda run, a, b, fresh: (done.append((run.loop, b - a)), advance(run, a, b, fresh))[1])
    seen = ns.explain(ns.grad(loss))(*args, option).loops[0]
    again = sum(n for loop, n in done if loop.name == "step" and loop.rows)
    assert seen.extra_steps == again >= 700
    assert f"{again:,} steps run again" in seen.describe(("plan",))


# Loops and the bytes of what they return, with its cotangent.
MEASURED = {"lstm": (lstm(1000, 8, 32), 3 * 1000 * 8 * 32 * 8), "garch": (garch(100_000), 0), "writes": (writes(50_000), 0)}


@pytest.mark.parametrize("option", ["all", "states", 10, 100, "300KB"])
@pytest.mark.parametrize("name", MEASURED)
def test_memory_is_as_predicted(name, option, compiled, monkeypatch):
    monkeypatch.setattr(runs, "PAGED_BYTES", 1 << 60)  # else large workspaces are not seen by tracemalloc
    (loss, args), visible = MEASURED[name]
    function = ns.value_and_grad(loss, tuple(range(len(args))))
    loops = ns.explain(function)(*args, option).loops
    predicted = loops[0].residual_bytes + sum(x.workspace_bytes for x in loops)
    function(*args, option)
    buffers.clear()
    tracemalloc.start()
    function(*args, option)
    measured = tracemalloc.get_traced_memory()[1] - visible
    tracemalloc.stop()
    objects = 100_000  # of Python: the tape, the states that are kept
    assert 0.7 * predicted <= measured <= 1.3 * predicted + objects, (measured, predicted)


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_overwritten_entries_are_kept_and_no_copies(size, compiled):
    loss, args = writes(1000, size)
    seen = ns.explain(ns.grad(loss))(*args, "all")
    assert seen.loops[0].residual_bytes <= 1000 * 3 * 8
    assert all(loop.workspace_bytes <= 1 << 16 for loop in seen.loops)
    assert all(loop.program.work <= 1000 for loop in seen.loops)


# ------------------------------------------------------------------------------------------------- the arithmetic
@functools.cache
def least(count, slots):
    """Fewest segments to pass when `count` of them are reversed, by dynamic programming."""
    if count <= 1:
        return 0
    if slots == 1:
        return count * (count - 1) // 2
    return min(k + least(count - k, slots - 1) + least(k, slots) for k in range(1, count))


def test_binomial_order_passes_the_fewest_segments():
    for slots in range(1, 7):
        for count in range(1, 41):
            kept = (0, *checkpoint.descent(0, count, slots))
            passed = kept[-1] + sum(j - i for what, i, j in checkpoint.moves(count, slots, kept))
            assert passed == least(count, slots), (count, slots)


def test_reversal_visits_each_step_once_and_never_keeps_too_many():
    for steps in (1, 7, 64, 1000):
        for forward in (1, 8):
            for backward in (1, 8, 64):
                grain = checkpoint.Grain(100, 40, forward, backward)
                for option in (1, 2, 5, 30):
                    plan = checkpoint.plan(option, steps, grain)
                    left = steps
                    for pos, lo, hi in checkpoint.reversals(plan.starts, steps, backward):
                        assert hi == left and pos <= lo <= hi and pos % forward == 0 and (lo == 0 or (steps - lo) % backward == 0)
                        left = lo
                    assert left == 0
                    kept = list(plan.kept)
                    for what, i, j in checkpoint.moves(len(plan.starts), plan.slots, plan.kept):
                        assert i in kept
                        kept += [j] * (what == "keep")
                        assert len(kept) <= max(option, 1)
                        kept = [k for k in kept if what != "reverse" or k < i]


@pytest.mark.parametrize(("text", "size"), [("256MB", 256_000_000), ("1.5 KiB", 1536), ("10B", 10), ("2gb", 2_000_000_000)])
def test_budgets(text, size):
    assert checkpoint.bytes_of(text) == size


@pytest.mark.parametrize("option", ["everything", "12", "12 parsecs", 0, -3, True, 2.5, None])
def test_bad_options(option):
    with pytest.raises(ns.errors.SpecError, match="checkpoint.*'256MB'"):
        ns.scan(lambda x, h: h + x, np.ones(3), 0.0, checkpoint=option)


def test_budget_too_small(compiled):
    loss, args = writes(40)
    with pytest.raises(ns.errors.SpecError, match=r"checkpoint='100B' is too small for a loop of 40 steps: one state .* take \d+ bytes"):
        ns.grad(loss)(*args, "100B")


def test_each_loop_runs_once_unless_in_segments(mode):
    loss, args = writes(60)
    ran, before = [], HOOKS["runner"]
    HOOKS["runner"] = lambda row, values, params: ran.append(row.name) or before(row, values, params)
    try:
        for option in ("all", "states", 4):
            ns.grad(loss)(*args, option)
    finally:
        HOOKS["runner"] = before
    assert ran == ["loop", "loop_adjoint"] * 3
