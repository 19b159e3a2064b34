"""The plan: what is written in place, which axis is split between threads, how loops of unknown length grow."""

import numpy as np
import pytest

import nscan as ns
from nscan.cpu import run
from nscan.explain import explain


@pytest.fixture(autouse=True)
def compiled_mode(monkeypatch):
    """Run compiled unless a test says otherwise."""
    monkeypatch.setenv("NSCAN_MODE", "compiled")


def both(function):
    """Return what a function returns in compiled mode and in python mode."""
    compiled = function()
    assigned = dict(ns.config._assigned)
    ns.config.mode = "python"
    try:
        return compiled, function()
    finally:
        ns.config._assigned.clear()
        ns.config._assigned.update(assigned)


# ---------------------------------------------------------------------------------- writes that read the array
def shift_rows(x, k, t):
    """Write once, then move rows that were just written."""
    t[0] += x
    t[1:3] = t[:2]
    return k + 1, t


def shift_all(x, k, t):
    """A shift register."""
    t[1:] = t[:-1] * 2
    t[0] = x
    return k + 1, t


def flip(x, k, t):
    """Overwrite everything by its mirror image."""
    t[0] = x
    t[:] = t[::-1]
    return k + t[0, 0], t


def gather_twice(x, k, t):
    """An index array that selects rows twice."""
    i = np.array([0, 1, 1, 0])
    t[i] = t[i] + x
    return k, t


def overlap(x, k, t):
    """Augmented writes to overlapping slices."""
    t[1:3] += x * t[0]
    t[2:4] += t[1:3]
    return k, t


def columns(x, k, t):
    """Slices of columns, reversed rows, an inner rectangle."""
    t[:, 2:] = t[:, :-2]
    t[0] = t[0, ::-1]
    t[2:4, 1:5] = t[2:4, 1:5] * 2 + x
    return k, t


def through_view(x, k, t):
    """A write through a transposed view."""
    t[0] += x
    t.T[1:] = t.T[:-1]
    return k, t


def index_from_itself(x, k, t):
    """The index is read from the array that is written to."""
    t[t[:, 0].astype(np.int64) % 5] = x
    return k, t


@pytest.mark.parametrize("step", [shift_rows, shift_all, flip, gather_twice, overlap, columns, through_view, index_from_itself])
def test_a_write_reads_what_stood_there_before(step):
    """The right side of an indexed write is evaluated before anything is written, as in NumPy."""
    xs, table = np.arange(1, 4.), np.arange(60.).reshape(5, 12)

    def run_it():
        def forward(t):
            return ns.scan(step, xs, [1., t])
        final = forward(table)
        slope = ns.grad(lambda t: np.sum(np.sin(forward(t)[1])))(table / 60)
        return [*final, slope]
    compiled, expected = both(run_it)
    for a, b in zip(compiled, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------------------ lanes
def test_cotangents_of_one_row_keep_the_lanes():
    """The adjoint of reading ``p[1]`` writes to a row of zeros; the axis of lanes goes through it."""
    def loss(p):
        return np.sum(ns.scan(lambda x, h, p: np.tanh(p[0] * h + x) + p[1], np.ones(5), np.zeros(40), p))
    lanes = [loop.program.lane for loop in explain(ns.grad(loss))(np.full((3, 40), .3)).loops]
    assert lanes == [40, 40]


# ------------------------------------------------------------------------------------------ loops that stop late
@pytest.mark.parametrize("last", [1, run.GROW - 1, run.GROW, run.GROW + 1, 3 * run.GROW, 5000])
def test_rows_grow_until_the_loop_stops(last):
    """A loop of unknown length keeps its rows while its room grows, and does no step twice."""
    def forward(a):
        return ns.scan(lambda i, h, a: (i + 1, h * a + i, ns.until(i + 1 >= last)), None, [0, 0.], a)
    (i, h), (i2, h2) = both(lambda: forward(.5))
    np.testing.assert_array_equal(i, np.arange(1, last + 1))
    np.testing.assert_array_equal(i, i2)
    np.testing.assert_allclose(h, h2, rtol=1e-14)
    slope, slope2 = both(lambda: ns.grad(lambda a: forward(a)[1][-1])(.5))
    np.testing.assert_allclose(slope, slope2, rtol=1e-12)


def test_growing_resumes_where_it_was(monkeypatch):
    """Each step of a growing loop runs once: the ranges of the calls follow one another."""
    ranges, real = [], run.launch.run_parts

    def noting(launched):
        ranges.append(tuple(launched.parts[0, :2]))
        return real(launched)
    monkeypatch.setattr(run.launch, "run_parts", noting)
    out = ns.scan(lambda i: (i + 1, ns.until(i >= 5000)), None, 0)
    assert len(out) == 5001
    assert ranges[0][0] == 0 and all(a[1] == b[0] for a, b in zip(ranges, ranges[1:])) and len(ranges) > 2


# ------------------------------------------------------------------------------------------------------ memory
def test_workspace_is_used_again_after_its_last_reader():
    """A chain of products of n x n matrices needs the memory of a few of them, not of all."""
    n, rng = 40, np.random.default_rng(0)
    a = rng.standard_normal((n, n)) / n

    def step(h, a):
        for _ in range(8):
            h = np.tanh(h @ a)
        return h
    ways = explain(lambda: ns.scan(step, None, np.eye(n), a, n_steps=3))()
    (loop,) = ways.loops
    assert loop.workspace_bytes < 6 * n * n * 8
    expected = np.eye(n)
    for k in range(3):
        expected = step(expected, a)
        np.testing.assert_allclose(ways.result[k], expected, rtol=1e-12, atol=1e-13)


def test_numbers_of_the_code_are_in_the_kernel_and_numbers_from_outside_are_operands():
    def run(rate):
        found = explain(lambda: ns.scan(lambda h: h * 0.25 + rate, None, 1.0, n_steps=3))()
        np.testing.assert_array_equal(found.result, [0.25 + rate, (0.25 + rate) * 0.25 + rate,
                                                     ((0.25 + rate) * 0.25 + rate) * 0.25 + rate])
        return found.loops[0].program.text

    assert run(0.125) == run(3.0)
    text = run(0.125)
    assert "0.25" in text and "0.125" not in text
