"""Lanes of unequal length in compiled loops: what they return, what they cost, and what is refused.

Results are compared with those of python mode, which runs all lanes to the end of the longest one under a mask, and (without
derivatives) with the law. The cost is counted: a kernel is called for ranges of steps and lanes.
"""

import law
import numba
import numpy as np
import plain
import pytest

import nscan as ns
from nscan import tree
from nscan.cpu import kernel, launch, parts, run

B, T, D, H = 21, 13, 5, 12


def rng():
    return np.random.default_rng(7)


def rnn(x, h, w, u, mu):
    return np.tanh(x @ w + h @ u + mu)


def lstm(x, h, c, w, u, mu):
    z = np.concatenate([x @ w + mu, h @ u], axis=1)
    i, f = z[:, :H], z[:, H:]
    c = ns.sigmoid(f) * c + ns.sigmoid(i) * np.tanh(i)
    return np.tanh(c) * f, c


def garch(x, h, w, u, mu):
    return 0.1 + 0.5 * h + mu * mu * x[:, :1] ** 2 + u[0] ** 2


def linear(x, h, w, u, mu):
    return h + x @ w


def rows(x, h, w, u, mu):
    h = np.tanh(x @ w + mu * h)
    return h, np.sum(np.exp(h) @ u, axis=1), (np.exp(h.T) * h.T).T


def still(x, w, u, mu):
    return np.exp(x @ w) @ u


def older(x, third, first, w, u, mu):
    return np.tanh(x @ w + third @ u + mu * first)


def solved(x, h, w, u, mu):
    eye = np.eye(H) + 0.1 * u * h[:, :, None]
    return np.linalg.solve(eye, (x @ w)[:, :, None])[:, :, 0] + mu * h


def nested(x, h, w, u, mu):
    return ns.scan(lambda k, h, y: np.tanh(h + k * y), np.arange(3.0), h, x @ w)[-1] * mu


TAPS = {"initial": 0, "taps": [-3, -1]}
STEPS = {"rnn": (rnn, [0]), "lstm": (lstm, [0, 0]), "garch": (garch, [0]), "linear": (linear, [0]), "rows": (rows, [0, None, None]),
         "still": (still, None), "older": (older, [TAPS]), "solved": (solved, [0]), "nested": (nested, [0])}


def lengths_of(kind):
    """Number of steps of each lane."""
    drawn = rng().integers(0, T + 1, B)
    return {"drawn": drawn, "sorted": np.sort(drawn)[::-1], "equal": np.full(B, T), "short": drawn // 2, "none": np.zeros(B, int),
            "one": np.r_[np.ones(B - 1, int), T]}[kind]


def problem(name, kind="drawn", dtype="f8", lib=ns, **options):
    """A function of arrays that runs a loop, and the arrays; what lies beyond the end of a lane is NaN."""
    g, (step, states), ends = rng(), STEPS[name], lengths_of(kind)
    x = g.normal(size=(T, B, D))
    for lane, end in enumerate(ends):
        x[end:, lane] = np.nan
    start, w, u, mu = g.normal(size=(3, B, H)), g.normal(size=(D, H)) / 3, g.normal(size=(H, H)) / 3, g.normal(size=(B, 1))

    def f(x, start, w, u, mu):
        made = None if states is None else [
            {"initial": start, "taps": s["taps"]} if isinstance(s, dict) else None if s is None else start[s] for s in states]
        return lib.scan(step, x, made, [w, u, mu], lengths=ends, **options)
    return f, [a.astype(dtype) for a in (x, start, w, u, mu)]


def total(f):
    """A number made of all that a function returns."""
    return lambda *args: sum(np.sum(y**3) + np.sum(y) for y in tree.flatten(f(*args))[0])


def results(f, args, order=1):
    """What a function returns, its gradients, and a product with its second derivative in the weights, in a list."""
    out = tree.flatten(f(*args))[0]
    if order > 0:
        out += ns.grad(total(f), argnums=tuple(range(len(args))))(*args)
    if order > 1:
        out += ns.hvp(lambda both: total(f)(*args[:2], both[0], args[3], both[1]), (args[2], args[4]), (args[2], args[4]))
    return tree.flatten(out)[0]


def close(got, want):
    """Whether arrays agree in types, and in values but for rounding."""
    for x, y in zip(got, want, strict=True):
        assert (np.shape(x), x.dtype) == (np.shape(y), y.dtype)
        tolerance = 1e-10 if x.dtype == np.float64 else 2e-4
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1.0, np.abs(y).max(initial=0.0)))


def in_both_modes(f, args, order=1):
    """Compare compiled mode with python mode."""
    got = results(f, args, order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ns.config, "mode", "python")
        want = results(f, args, order)
    close(got, want)


@pytest.fixture(autouse=True)
def always(request, monkeypatch):
    """Small loops run over their live lanes too, though masks would be cheaper."""
    if "pays" not in request.node.name:
        monkeypatch.setattr(parts, "COPY", 0)
        monkeypatch.setattr(parts, "CHANGE", 0)


@pytest.fixture
def counted(compiled, monkeypatch):
    """For each run of a kernel with lengths: the steps of lanes that it ran, and those of all its lanes."""
    found, make = [], parts.Lanes.spans

    def spans(self, given, fresh):
        made = make(self, given, fresh)
        owner = np.repeat(given[:, 2], np.diff(made[1]))
        found.append((int(np.sum((made[0][:, 1] - made[0][:, 0]) * (made[0][:, 2] - owner))), self))
        return made
    monkeypatch.setattr(parts.Lanes, "spans", spans)
    return found


# ----------------------------------------------------------------------------------------------- results
GRID = [("drawn", {}), ("drawn", {"go_backwards": True}), ("sorted", {"truncate_gradient": 4}), ("one", {"reset": "rows"}),
        ("short", {"reset": "lanes", "go_backwards": True}), ("drawn", {"checkpoint": 3}), ("drawn", {"checkpoint": "states"}),
        ("equal", {"go_backwards": True, "truncate_gradient": 5}), ("none", {}), ("one", {"checkpoint": 2, "go_backwards": True})]


def options_of(options):
    """Options with the flags that they name."""
    flags = {"rows": rng().random(T) < 0.3, "lanes": rng().random((T, B)) < 0.3}
    return {k: flags[v] if k == "reset" else v for k, v in options.items()}


@pytest.mark.parametrize("kind, options", GRID, ids=lambda x: str(x))
@pytest.mark.parametrize("name", STEPS)
def test_both_modes_agree(name, kind, options, compiled):
    options = options_of({k: v for k, v in options.items() if k != "reset" or STEPS[name][1]})
    in_both_modes(*problem(name, kind, **options), order=2 if name in ("rnn", "lstm", "older") else 1)


@pytest.mark.parametrize("name", ["lstm", "garch", "rows", "linear"])
def test_single_precision(name, compiled):
    in_both_modes(*problem(name, dtype="f4"))


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", [name for name in STEPS if name != "nested"])
def test_rows_are_those_of_the_law(name, backwards, mode):
    (f, args), (g, _) = (problem(name, lib=lib, go_backwards=backwards) for lib in (ns, law))
    close(tree.flatten(f(*args))[0], tree.flatten(g(*args))[0])


def test_one_lane_is_a_loop_of_its_own(mode):
    """Each lane returns what a call for it alone returns, with as many steps as it has."""
    f, args = problem("older")
    ends, whole = lengths_of("drawn"), f(*args)
    x, start, w, u, mu = args
    for lane, end in enumerate(ends):
        one = slice(lane, lane + 1)
        alone = ns.scan(older, x[:end, one], {"initial": start[:, one], "taps": [-3, -1]}, [w, u, mu[one]])
        close([whole[:end, lane]], [alone[:, 0]])
        assert not whole[end:, lane].any()


def test_the_order_of_lanes_does_not_count(compiled, monkeypatch):
    """The same bits, where both run over live lanes alone."""
    monkeypatch.setattr(parts.Lanes, "pays", lambda *_: True)
    f, args = problem("lstm")
    order = np.argsort(-lengths_of("drawn"), kind="stable")
    g, _ = problem("lstm", "sorted")
    x, start, w, u, mu = args
    for a, b in zip(f(*args), g(x[:, order], start[:, order], w, u, mu[order]), strict=True):
        np.testing.assert_array_equal(a[:, order], b)


def test_a_state_is_never_run_beyond_the_end(mode):
    """A matrix that is singular one step after the end of each lane."""
    def step(h):
        return h - np.linalg.inv(h[:, None, None] * np.eye(2))[:, 0, 0] * h
    start = np.array([1.0, 3.0, 2.0])
    rows = ns.scan(step, None, start, n_steps=4, lengths=[1, 3, 2])
    np.testing.assert_allclose(rows, [[0, 2, 1], [0, 1, 0], [0, 0, 0], [0, 0, 0]], atol=1e-15)
    with pytest.raises(ns.errors.SingularError):
        ns.scan(step, None, start, n_steps=4, lengths=[2, 3, 2])


def test_options_that_watch(mode):
    """A search for the first NaN, a profile: they see the user's lanes, and change nothing."""
    f, args = problem("rnn")
    want = f(*args)
    for option in ({"check_finite": True}, {"profile": True}):
        close([problem("rnn", **option)[0](*args)], [want])
    lane = int(np.argmax(lengths_of("drawn")))
    args[0][2, lane] = np.nan
    with pytest.raises(ns.errors.NonFiniteError, match=rf"step 2 of 'rnn'.*index \({lane}, 0\)"):
        problem("rnn", check_finite=True)[0](*args)


# -------------------------------------------------------------------------------------------------- cost
@pytest.mark.parametrize("kind, options", [(kind, o) for kind, o in GRID if kind != "none"], ids=lambda x: str(x))
@pytest.mark.parametrize("name", [name for name in STEPS if name not in ("nested", "still")])
def test_the_cost_is_the_sum_of_the_lengths(name, kind, options, counted):
    """Each kernel, forward and backward, runs the steps of each lane and no more."""
    f, args = problem(name, kind, **options_of(options))
    total(f)(*args)
    ran = sum(n for n, _ in counted)
    assert ran == lengths_of(kind).sum()
    counted.clear()
    ns.grad(total(f), argnums=(0, 1, 2, 4))(*args)
    again = {lanes: 0 for _, lanes in counted}
    for n, lanes in counted:
        again[lanes] += n
    assert len({lanes.grows for lanes in again}) == 1 + (kind != "equal")
    if "checkpoint" not in options:
        assert sum(again.values()) <= 2 * ran
        assert all(n == lanes.counts.sum() for lanes, n in again.items())


@pytest.mark.parametrize("cells, kind, live", [(1, "drawn", False), (1, "sorted", False), (1, "one", False),
                                               (64, "one", True), (64, "sorted", True)])
def test_lanes_are_put_in_order_where_it_pays(cells, kind, live, counted):
    """A step of little work is cheaper under masks than the copies and the changes of the number of lanes."""
    ends = {"drawn": rng().integers(0, 51, 99), "one": np.where(np.arange(99) == 7, 50, 5)}
    ends["sorted"] = np.sort(ends["drawn"])[::-1]
    x, w = rng().normal(size=(50, 99, cells)), rng().normal(size=(cells, cells)) / 9

    def step(x, h, w):
        return x + (np.tanh(h @ w) if cells > 1 else h * 0.5)
    start = np.zeros((99, cells))
    got = ns.scan(step, x, start, w, lengths=ends[kind])
    close([got], [law.scan(step, x, start, w, lengths=ends[kind])])
    assert bool(counted) == live


def test_second_derivatives_cost_the_sum_too(counted):
    f, args = problem("lstm")
    ns.hvp(lambda w: total(f)(*args[:2], w, *args[3:]), args[2], args[2])
    ends = lengths_of("drawn").sum()
    assert len(counted) >= 4
    assert all(n == ends for n, _ in counted)


def test_a_lane_that_is_read_by_all_is_not_refused(counted):
    """Elements along the axis of lanes may be taken apart and put together; such a step runs under masks."""
    def step(x, h):
        return np.stack([h[k] * 0.5 + x[k] for k in range(3)])
    x, ends = rng().normal(size=(6, 3, 4)), [2, 6, 3]
    got = ns.scan(step, x, np.zeros((3, 4)), lengths=ends)
    close([got], [law.scan(step, x, np.zeros((3, 4)), lengths=ends)])
    assert not counted


# ---------------------------------------------------------------------------------------------- division
def test_threads_do_not_change_bits(compiled, monkeypatch):
    monkeypatch.setattr(parts, "WORTH", 1 << 9)
    seen, make = [], parts.Lanes.divide
    monkeypatch.setattr(parts.Lanes, "divide", lambda self, *args: seen.append(make(self, *args)) or seen[-1])
    g = rng()
    ends, x, w = g.integers(0, 20, 90), g.normal(size=(19, 90, 40)), g.normal(size=(40, 40)) / 9

    def f(x, w):
        return ns.scan(lambda x, h, w: np.tanh(x + h @ w), x, np.zeros((90, 40)), w, lengths=ends)
    runs, before = [], numba.get_num_threads()
    try:
        for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(threads)
            runs.append(results(f, [x, w]))
    finally:
        numba.set_num_threads(before)
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(len(found) > 2 and by_lanes for found, by_lanes in seen)
    work = [sum(np.sort(ends)[::-1][a:b]) for a, b in seen[0][0][:, 2:].tolist()]
    assert max(work) < 1.6 * sum(work) / len(work) + ends.max() * 16


@pytest.mark.parametrize("name", ["lstm", "garch", "older"])
def test_checkpoint_plans_do_not_change_bits(name, compiled):
    want = results(*problem(name, checkpoint="all"))
    for option in ("states", 2, 5):
        for a, b in zip(results(*problem(name, checkpoint=option)), want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_printed_programs_run_the_same_spans(compiled, monkeypatch):
    f, args = problem("rows")
    want = results(f, args)
    monkeypatch.setattr(launch, "run_parts", plain.run_parts)
    close(results(f, args), want)


def test_lengths_that_are_given_in_a_step_run_under_masks(mode):
    """An inner loop has no ranges of lanes; its lengths may be data."""
    x, ends = rng().normal(size=(4, 5, 3)), np.array([[0, 2, 5], [5, 5, 5], [1, 0, 0], [3, 4, 2]])
    got = ns.map(lambda x, n: ns.scan(lambda x, h: np.tanh(h + x), x, np.zeros(3), lengths=n), [x, ends])
    close([got], [np.stack([law.scan(lambda x, h: np.tanh(h + x), a, np.zeros(3), lengths=n) for a, n in zip(x, ends, strict=True)])])


def test_lanes_that_do_not_end_in_order_of_steps_run_under_masks(compiled):
    """The kernel itself is asked with numbers of steps that go up and down."""
    f, args = problem("garch")
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts.Lanes, "is_monotone", False)
        patch.setattr(run, "kernel_of", lambda *a, **k: seen.append(k) or kernel.kernel_of(*a, **k))
        got = results(f, args)
    assert {"masked": True} in seen
    close(got, results(f, args))


def test_an_error_names_step_and_line(mode):
    """The lanes are sorted and the masks are gone; the message is that of the user's loop."""
    table, x = np.arange(5.0), np.tile(np.arange(6)[:, None], (1, 3))

    def step(k, h):
        h = np.tanh(h) + k
        found = ns.array(table)[k]
        return h * found
    with pytest.raises(ns.errors.IndexRangeError, match=r"index 5 .*step 5 of 'step'") as error:
        ns.scan(step, x, np.zeros(3), lengths=[2, 6, 0])
    assert "found = ns.array(table)[k]" in str(error.value)
    ns.scan(step, x, np.zeros(3), lengths=[2, 5, 0])


# ----------------------------------------------------------------------------------------------- refused
MEETING = {
    "np.mean(h, axis=0)": lambda x, h: h - np.mean(h, axis=0) + x,
    "np.max(np.abs(x))": lambda x, h: h + x / np.max(np.abs(x)),
    "np.cumsum(h, axis=0)": lambda x, h: np.cumsum(h, axis=0) + x,
    "np.sort(h, axis=0)": lambda x, h: np.sort(h, axis=0) + x,
    "np.ones((3, 3)) @ h": lambda x, h: np.ones((3, 3)) @ h + x,
    "h.T @ x": lambda x, h: h + x @ (h.T @ x),
}


@pytest.mark.parametrize("text", MEETING)
def test_steps_that_combine_lanes_are_refused(text, mode):
    x = rng().normal(size=(5, 3, 4))
    with pytest.raises(ns.errors.SpecError, match="no lane may depend on another") as found:
        ns.scan(MEETING[text], x, np.zeros((3, 4)), lengths=[5, 1, 2], name="mixed")
    assert text in str(found.value)
    assert "'mixed'" in str(found.value)
    ns.scan(MEETING[text], x, np.zeros((3, 4)))


def test_what_is_no_combination_of_lanes_is_accepted(mode):
    """Sums over other axes, of constants with an axis of lanes, and squares in which two axes have one size."""
    x, mu = rng().normal(size=(5, 4, 4)), np.arange(4.0)

    def call(lib):
        return lib.scan(lambda x, h, mu: 0.1 * h + x * mu.mean() + np.sum(mu[:, None] * h, axis=1)[:, None], x, np.zeros((4, 4)), mu,
                        lengths=[5, 0, 2, 3])
    close([call(ns)], [call(law)])
