"""Maps around loops: batching of tapes, and the exchange of a map with the loop in it, against the loop without."""

import inspect
import itertools

import numpy as np
import pytest
from front_calls import ARRAYS, CALLS

import nscan as ns
from nscan import exchange
from nscan.batch import Unbatchable, batch
from nscan.interpret import evaluate_arrays
from nscan.ops.loop import run_in_python
from nscan.tape import check
from nscan.trace import StepTrace
from nscan.tree import flatten

LANES = 3
FRONTS = [pytest.param(call, id=f"{name}-{k}") for name, calls in CALLS.items() for k, call in enumerate(calls)]


def traced(function, arrays):
    """Return the tape of a function, and what it captured."""
    trace = StepTrace()
    with trace:
        outs = flatten(function(*[trace.new_input(x.shape, x.dtype) for x in arrays]))[0]
        return trace.finish([trace.var_of(x) for x in outs])


def lanes_of(x):
    """Several versions of an array."""
    factors = [1.0, 0.75, 1.25] if x.dtype.kind in "fc" else [1] * LANES
    return np.stack([x * x.dtype.type(f) if x.dtype.kind != "b" else x for f in factors])


@pytest.mark.parametrize("call", FRONTS)
def test_batched_rows(call):
    """A batched tape does to each lane what the tape does; only indices that differ from lane to lane are refused."""
    arrays = [ARRAYS[name] for name in inspect.signature(call).parameters]
    tape, captured = traced(call, arrays)
    many = [lanes_of(x) for x in arrays]
    done = 0
    for chosen in itertools.product([False, True], repeat=len(arrays)):
        flags = [*chosen, *[False] * len(captured)]
        try:
            batched, found = batch(tape, flags, LANES)
        except Unbatchable:
            assert {"index", "index_update", "index_add", "searchsorted"} & {q.row.name for q in tape.eqns}
            continue
        done += 1
        check(batched)
        with np.errstate(all="ignore"):
            outs = evaluate_arrays(batched, [*[m if f else x for m, x, f in zip(many, arrays, chosen)], *captured], run_in_python)
            for lane in range(LANES):
                args = [m[lane] if f else x for m, x, f in zip(many, arrays, chosen)]
                for got, flag, want in zip(outs, found, evaluate_arrays(tape, [*args, *captured], run_in_python), strict=True):
                    got = got[lane] if flag else got
                    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)
                    assert np.shape(got) == np.shape(want) and np.asarray(got).dtype == np.asarray(want).dtype
    assert done


# ------------------------------------------------------------------------------------------------ the exchange
RNG = np.random.default_rng(3)
MANY, STEPS = 37, 5
ROWS = RNG.uniform(0.2, 1.2, (MANY, STEPS))
PAIRS = RNG.uniform(0.2, 1.2, (MANY, STEPS, 2))
STARTS = RNG.uniform(0.3, 0.9, MANY)
WEIGHTS = np.array([[0.8, 0.1], [-0.2, 0.7]])
TABLE_ = np.array([0.4, 0.9, 1.3])


def astype(x):
    """Whole numbers from 0 to 2 or 3."""
    return np.floor(3 * x).astype(int)


def average(row, rate):
    return ns.scan(lambda x, h: h + rate * (x - h), row, row[0])


def likelihood(row, rate):
    """A loop that starts from what is computed of the row, and work on its rows behind it."""
    level = np.mean(row * row)
    v = ns.scan(lambda x, v: 0.1 + rate * x * x + 0.5 * v, row, level)
    return np.sum(np.log(v) + row * row / v), v[-1]


def filtered(rows, noise):
    """Covariances do not depend on the row: they have no lanes."""
    def step(y, m, p):
        m, p = WEIGHTS @ m, WEIGHTS @ p @ WEIGHTS.T + noise * np.eye(2)
        gain = p @ np.linalg.inv(p + np.eye(2))
        return m + gain @ (y - m), p - gain @ p, np.log(np.linalg.det(p + np.eye(2))) + (y - m) @ (y - m)
    means, covariances, terms = ns.scan(step, rows, [np.zeros(2), np.eye(2), None])
    return means, covariances[-1], np.mean(terms)


def carried(row, rate):
    """Final states and rows, several outputs, a nested closure, a constant of the loop that is a row of the map."""
    def inner(x, weight):
        def step(carry, u):
            a, b = carry
            return (np.tanh(a * weight + u), b + a * x[0]), (a * b, u)
        return step
    (a, b), (ys, us) = ns.loop(inner(row, rate), (row[1], 0.0), row)
    return a, b, ys, us[1:]


def backwards(row, rate):
    first = ns.scan(lambda x, h: np.sin(h) + x, row, 0.0, go_backwards=True)
    return ns.scan(lambda x, y, h: h * rate + x * y, [first, dict(input=row, taps=[0])], [np.ones(2) * 0.5])[::-1]


def written(row, rate):
    """Writes to a state in place, slices, and a table that steps read at places of their own."""
    def step(x, z):
        z[0] = z[1] * rate
        z[1:] += x
        return z, z[::-1] * 2.0
    zs, twice = ns.scan(step, row, [np.arange(3.0), None])
    return zs, np.concatenate([twice[0], TABLE_]), np.sort(twice, axis=0)[-1], np.cumsum(twice, axis=0)


def nested(row, rate):
    """A loop in the loop, which reads its state."""
    def step(x, h):
        inner = ns.scan(lambda g: 0.5 * g + h * x, None, h, n_steps=3)
        return h + rate * np.sum(inner)
    return ns.scan(step, row, 0.1)


def counted(start, rate):
    return ns.scan(lambda x: rate * x * (1 - x), None, start, n_steps=STEPS)


def none(row, rate):
    """No step at all: the final state is the initial one."""
    final, ys = ns.loop(lambda h, x: (h * x, h), row[0] * rate, row[:0])
    return final, ys


def one(row, rate):
    return ns.scan(lambda x, h: h * x + rate, row[:1], row[1])


def taps(row, rate):
    return ns.scan(lambda a, b, h, g: np.cos(h) * a + b * g * rate, dict(input=row, taps=[-1, 0]),
                   dict(initial=row[:2], taps=[-1, -2]))


def drawn(row, rate):
    return ns.scan(lambda x, t, h: rate * h + x * ns.random.normal(7, t, (2,)), [row, np.arange(STEPS)], np.zeros(2))


def looked_up(row, rate):
    """A loop over rows that are the same for all, with a row of the map as its constant."""
    return ns.scan(lambda w, h, x: h * rate + x[1] * w, TABLE_, 0.0, [row])


def by_index(row, rate):
    """Places of each lane in arrays that are the same for all."""
    k = astype(row)
    table = ns.array(np.outer(TABLE_, TABLE_))

    def step(x, k, h, table):
        return h * rate + table[:, k] * x + table[k, 1]
    return ns.scan(step, [row, k], np.zeros(3), table), table[k], table[1:, k]


BODIES = {f.__name__: (f, x) for f, x in (
    (average, ROWS), (likelihood, ROWS), (filtered, PAIRS), (carried, ROWS), (backwards, ROWS), (written, ROWS), (nested, ROWS),
    (counted, STARTS), (none, ROWS), (one, ROWS), (taps, ROWS), (drawn, ROWS), (looked_up, ROWS),
    (by_index, ROWS / 2))}


def over(body, rows, rate):
    found = ns.map(body, [rows], [rate])
    return found if isinstance(found, tuple) else (found,)


def as_loop(body, rows, rate):
    """Apply a body to one row after another, and stack what it returns."""
    found = [body(row, rate) for row in rows]
    found = [x if isinstance(x, tuple) else (x,) for x in found]
    return tuple(np.stack(parts) for parts in zip(*found, strict=True))


def close(got, want, scale=1e-11):
    for x, y in zip(flatten(got)[0], flatten(want)[0], strict=True):
        assert (np.shape(x), np.asarray(x).dtype) == (np.shape(y), np.asarray(y).dtype)
        np.testing.assert_allclose(x, y, rtol=scale, atol=scale * np.max(np.abs(y), initial=0.0))


@pytest.fixture
def taken(monkeypatch, compiled):
    """What `exchanged` answered, call by call."""
    found = []

    def watched(loop, n, safe):
        found.append(exchange.exchanged(loop, n, safe))
        return found[-1]
    monkeypatch.setattr("nscan.step.exchanged", watched)
    return found


def plain(function):
    """Run a function in python mode, which exchanges nothing."""
    mode, ns.config.mode = ns.config.mode, "python"
    try:
        return function()
    finally:
        ns.config.mode = mode


@pytest.mark.parametrize("name", BODIES)
def test_values_and_derivatives(name, taken):
    """The exchanged map, its gradient and a product with its Hessian, against the loop over bodies and python mode."""
    body, rows = BODIES[name]

    def run(rows, rate):
        return over(body, rows, rate)
    found = run(rows, 0.7)
    assert any(taken), "the map was not exchanged"
    close(found, plain(lambda: as_loop(body, rows, 0.7)))
    cts = [np.cos(np.arange(y.size, dtype=float)).reshape(y.shape) for y in found]

    def loss(at):
        return sum(np.sum(ct * y + y * y) for ct, y in zip(cts, run(at["rows"], at["rate"]), strict=True))
    at = {"rows": rows, "rate": 0.7}
    way = {"rows": np.sin(rows * 50), "rate": 0.3}
    close(ns.grad(loss)(at), plain(lambda: ns.grad(loss)(at)), 1e-9)
    close(ns.hvp(loss, at, way), plain(lambda: ns.hvp(loss, at, way)), 1e-8)


@pytest.mark.parametrize("dtype", ["f4", "c8", "c16"])
def test_dtypes(dtype, taken):
    rows = (ROWS + (1j * ROWS[::-1] if dtype[0] == "c" else 0)).astype(dtype)
    rate = np.asarray(0.7, dtype)[()]
    scale = 1e-11 if dtype == "c16" else 1e-5

    def loss(rows, rate):
        return np.sum(np.abs(over(average, rows, rate)[0]) ** 2)
    found = over(average, rows, rate)
    assert any(taken) and found[0].dtype == rows.dtype
    close(found, plain(lambda: as_loop(average, rows, rate)), scale)
    close(ns.grad(loss, (0, 1))(rows, rate), plain(lambda: ns.grad(loss, (0, 1))(rows, rate)), 100 * scale)


@pytest.mark.parametrize("n", [16, 47, 83, 120])
def test_numbers_of_rows(n, taken):
    """Whatever the number of rows is, they go in blocks of at least 16 lanes that cover them all."""
    rows = RNG.uniform(0.2, 1.2, (n, STEPS))
    found = over(carried, rows, 0.7)
    close(found, plain(lambda: over(carried, rows, 0.7)))
    assert any(taken)
    slope = ns.grad(lambda r: sum(np.sum(y) for y in over(carried, r, 0.7)))
    close(slope(rows), plain(lambda: slope(rows)))


def test_blocks():
    for n in range(16, 2000):
        for best in (16, 23, 40):
            parts = exchange.blocks(n, best)
            assert sum(count * lanes for count, lanes in parts) == n
            assert all(16 <= lanes < 2 * best for _, lanes in parts) and len(parts) <= 2
    assert exchange.blocks(1000, 40) == [(25, 40)]


def test_order_and_truncation(taken):
    """A map that goes backwards, and one whose first elements are frozen."""
    def reverse(rows):
        return ns.map(average, [rows], [0.7], go_backwards=True)

    def frozen(rows):
        return ns.map(average, [rows], [0.7], truncate_gradient=20)
    for f in (reverse, frozen):
        close(f(ROWS), plain(lambda: f(ROWS)))  # noqa: B023
        slope = ns.grad(lambda rows: np.sum(f(rows) ** 2))  # noqa: B023
        close(slope(ROWS), plain(lambda: slope(ROWS)))  # noqa: B023
    assert any(taken)


def test_closures_and_nests(taken):
    """Arrays that the steps close over, a map in a map, a map in a step."""
    bias = np.linspace(0.1, 0.3, STEPS)
    rows = RNG.uniform(0.2, 1.2, (3, 20, STEPS))

    def inner(row):
        return ns.scan(lambda x, b, h: h + 0.3 * (x - h) * b, [row, bias], 0.0)

    def twice(rows):
        return ns.map(lambda block: ns.map(inner, block), rows)

    def in_step(rows):
        return ns.scan(lambda block, h: ns.map(lambda row, h: inner(row * h), [block], [h]).sum(), rows, 1.0)
    for f in (twice, in_step):
        taken.clear()
        close(f(rows), plain(lambda: f(rows)))  # noqa: B023
        assert any(taken)
        slope = ns.grad(lambda rows: np.sum(f(rows) ** 2))  # noqa: B023
        close(slope(rows), plain(lambda: slope(rows)))  # noqa: B023


def test_keys_of_each_lane(taken):
    """Draws are those of the loop, number by number."""
    def walk(seed, start):
        key = ns.random.key(seed)
        return ns.scan(lambda t, x: x + ns.random.integers(key, t, (2,), 0, 1000), np.arange(4), np.stack([start, start]))
    seeds, starts = np.arange(20), np.arange(20) * 1000
    found = ns.map(walk, [seeds, starts])
    assert any(taken)
    np.testing.assert_array_equal(found, np.stack([walk(*pair) for pair in zip(seeds, starts)]))


def test_directions_of_a_jacobian(taken):
    """Tangents along many directions are lanes of one loop."""
    def path(x):
        return ns.scan(lambda w, h: np.tanh(h * w), x, 0.5)
    found = ns.jacobian(path)(np.linspace(0.5, 1.5, 20))
    assert any(taken)
    close(found, plain(lambda: ns.jacobian(path)(np.linspace(0.5, 1.5, 20))))


@pytest.mark.parametrize("name", ["average", "likelihood", "filtered", "carried", "backwards", "nested", "taps"])
def test_derivatives_of_each_row(name, taken):
    """A map whose function holds a gradient: the adjoint inside goes over lanes too; and its own gradient."""
    body, rows = BODIES[name]

    def slopes(rows, rate):
        def loss(row, rate):
            return sum(np.sum(y * y) for y in flatten(body(row, rate))[0])
        return ns.map(lambda row, rate: ns.grad(loss, (0, 1))(row, rate), [rows], [rate])
    found = slopes(rows, 0.7)
    assert any(taken), "the map was not exchanged"
    close(found, plain(lambda: slopes(rows, 0.7)), 1e-9)
    again = ns.grad(lambda rows, rate: sum(np.sum(np.cos(y)) for y in slopes(rows, rate)), (0, 1))
    close(again(rows, 0.7), plain(lambda: again(rows, 0.7)), 1e-8)


def test_loop_that_is_the_same_for_all(taken):
    """A loop without lanes whose cotangents, or products with them, have lanes."""
    def slope(row, weights):
        def loss(weights):
            return np.sum(row * ns.scan(lambda w, h: np.tanh(h + w), weights, 0.3)) ** 2
        return ns.grad(loss)(weights)

    def slopes(rows, weights):
        return ns.map(slope, [rows], [weights])
    weights = np.linspace(0.1, 0.5, STEPS)
    close(slopes(ROWS, weights), plain(lambda: slopes(ROWS, weights)), 1e-9)
    assert any(taken)
    again = ns.grad(lambda w: np.sum(slopes(ROWS, w) ** 2))
    close(again(weights), plain(lambda: again(weights)), 1e-8)


def test_hessian(taken):
    """Directions of a Hessian are lanes of a loop and of its adjoint."""
    def loss(w):
        return np.sum(ns.scan(lambda h: np.tanh(w[:16].reshape(4, 4) @ h + w[16:]), None, np.ones(4) * 0.3, n_steps=6) ** 2)
    at = np.sin(np.arange(20.0))
    found = ns.hessian(loss)(at)
    assert any(taken)
    close(found, plain(lambda: ns.hessian(loss)(at)), 1e-9)


def test_errors_speak_of_the_element(taken):
    """A map that fails fails as it does without the exchange."""
    def body(row):
        return ns.scan(lambda x, h: np.linalg.inv(h * x), row, np.eye(2))
    rows = ROWS.copy()
    rows[21, 3] = 0.0
    with pytest.raises(ns.errors.SingularError) as found:
        ns.map(body, rows)
    assert any(taken)
    taken[:] = []
    with pytest.raises(ns.errors.SingularError) as wanted:
        ns.scan(lambda row, n: (body(row), n), rows, [None, 0], name="body")
    assert not any(taken)
    assert str(found.value) == str(wanted.value) and "step 21 of 'body'" in str(found.value)


def test_profile(taken, capsys):
    """A profile is one of the loop that runs."""
    close(ns.map(average, [ROWS], [0.7], profile=True), plain(lambda: as_loop(average, ROWS, 0.7)[0]))
    assert any(taken) and "test_exchange.py" in capsys.readouterr().err


def wide(row):
    return ns.scan(lambda x, h: np.tanh(h * x), row, np.ones(50))


def long_steps(row):
    return ns.scan(lambda x, h: 0.5 * h + x, np.repeat(row, 2000), 0.0)[-1]


def stopping(row):
    return ns.while_loop(lambda h: h < 5.0, lambda h: h + np.sum(row), 0.0)


def until(row):
    return ns.scan(lambda x, h: (h + x, ns.until(h > 2.0)), row, 0.0)[-1]


def window(row):
    return ns.scan(lambda x, h: h + np.sum(row[:astype(x)]), row, 0.0)[-1]


def branch(row):
    return ns.cond(row[0] > 0.7, lambda r: ns.scan(lambda x, h: h + x, r, 0.0)[-1], lambda r: r[0], row)


def indexed(row):
    return ns.scan(lambda x, h: h + row[astype(x)], row, 0.0)[-1]


@pytest.mark.parametrize("body", [wide, long_steps, stopping, until, window, branch, indexed])
def test_left_alone(body, taken):
    """Steps that have lanes, long cheap loops, loops that stop, sizes and branches that are data, indices of each lane."""
    found = ns.map(body, ROWS)
    assert taken and not any(taken)
    close(found, plain(lambda: ns.map(body, ROWS)))


def test_others_left_alone(taken):
    """Few elements, none, a loop with states, a loop that is watched; and python mode."""
    assert ns.map(lambda row: average(row, 0.7), ROWS[:0]).shape == (0, STEPS)
    ns.map(lambda row: average(row, 0.7), ROWS[:15])
    ns.scan(lambda row, h: h + average(row, 0.7), ROWS, np.zeros(STEPS))
    ns.map(lambda row: average(row, 0.7), ROWS, check_finite=True)
    plain(lambda: ns.map(lambda row: average(row, 0.7), ROWS))
    assert taken and not any(taken)


def test_unread_rows_are_dropped():
    """A loop in a step keeps the rows that somebody reads, and computes what they need."""
    def body(row):
        hs, gs, us = ns.scan(lambda x, h, g: (h + x, g * x, np.exp(h)), row, [0.0, 1.0, None])
        return gs[-1]
    trace = StepTrace()
    with trace:
        out = body(trace.new_input((STEPS,), np.dtype("f8")))
        tape, _ = trace.finish([out])
    loop = next(q.params["loop"] for q in tape.eqns if q.row.name == "loop")
    assert (loop.rows, loop.states) == (1, 2) and "exp" not in str(loop.step)
    check(tape)
    close(ns.map(body, ROWS), np.prod(ROWS, axis=1))


def test_a_loop_that_nobody_reads(mode):
    """All its rows are dead, but it stays since an index in its step may be out of range."""
    table, places = np.arange(4.0), np.array([0, 3, 1])

    def f(x, places):
        def one(x, places):
            ns.map(lambda k, table: table[k] * 2, places, table)
            return 2 * x
        return ns.map(one, x, places)
    x = np.linspace(0, 1, 20)
    np.testing.assert_array_equal(f(x, places), 2 * x)
    np.testing.assert_array_equal(ns.grad(lambda x: np.sum(f(x, places)))(x), np.full(20, 2.0))
