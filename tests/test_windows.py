"""Windows whose bounds are data, over the steps of a map: memory, parts that share one array, the same bits for any threads."""

import os
import pathlib
import subprocess
import sys

import numba
import numpy as np
import pytest
from window_memory import problem, value_and_cotangent

import nscan as ns
from nscan.cpu import parts, run
from nscan.plan import scatter


@pytest.fixture
def compiled(mode):
    if mode == "python":
        pytest.skip("python mode runs steps one after another")


@pytest.fixture
def shared(compiled, monkeypatch):
    """Many parts, even of small calls, which share every sum that can be shared; gives the colours that were found."""
    found = []

    def colours(*args):
        found.append(scatter.colours(*args))
        return found[-1]
    monkeypatch.setattr(parts, "WORTH", 1 << 9)
    monkeypatch.setattr(run, "COPY_BYTES", 0)
    monkeypatch.setattr(run, "colours", colours)
    return found


@pytest.mark.skipif(not pathlib.Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from Linux")
def test_memory_of_bilateral_windows(compiled):
    """A (3, 512, 512) image: less than 10 MB above inputs and outputs, forward and gradient."""
    script = pathlib.Path(__file__).with_name("window_memory.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=script.parent.parent, check=True,
                          env=run_environment())
    forward, both = map(int, done.stdout.split())
    assert forward < 10e6
    assert both < 10e6


def run_environment():
    root = str(pathlib.Path(ns.__file__).parent.parent)
    return {**os.environ, "NSCAN_MODE": "compiled", "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def test_parts_that_are_far_apart_run_together(shared):
    image, places = problem(96, 4)
    cotangent = np.random.default_rng(2).standard_normal((len(places[0]), 3))
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = value_and_cotangent(image, places, cotangent)[1]
        numba.set_num_threads(before)
        two = value_and_cotangent(image, places, cotangent)[1]
    finally:
        numba.set_num_threads(before)
    np.testing.assert_array_equal(one, two)
    groups = shared[0]
    assert sum(map(len, groups)) == 64
    assert len(groups) < 12


def gradients(function, args, argnums, monkeypatch):
    """Gradients in compiled and in python mode."""
    out = [ns.grad(function, argnums=argnums)(*args)]
    monkeypatch.setattr(ns.config, "mode", "python")
    return [*out, ns.grad(function, argnums=argnums)(*args)]


STEPS, ROWS = 60, 40
RNG = np.random.default_rng(1)
X, V = RNG.standard_normal((ROWS, 3)), RNG.standard_normal(STEPS)
K = RNG.integers(-ROWS, ROWS, STEPS)
LOW = np.clip(np.arange(STEPS) - 12, 0, ROWS)
HIGH = np.clip(LOW + RNG.integers(0, 4, STEPS), 0, ROWS)
TABLE = np.stack([LOW, HIGH], 1)


def by_bounds(low, high, k, v, x, scale):
    return np.sum(np.sin(x[low:high] * v)) * scale


def by_rows_of_bounds(bounds, k, v, x, scale):
    return np.sum(x[bounds[0]:bounds[1]] ** 2) * v * scale


def by_a_table(low, high, k, v, x, scale):
    at = np.abs(k) % STEPS
    table = ns.array(TABLE)
    return np.sum(x[table[at, 0]:table[at, 1]] ** 2) * v * scale


def by_numbers(low, high, k, v, x, scale):
    return np.sum(x[k] * v + x[low // 2] ** 2) * scale


def by_arrays(low, high, k, v, x, scale):
    return np.sum(x[np.stack([k, low // 2])] * v) * scale


def with_a_stride(low, high, k, v, x, scale):
    return np.sum(x[high:low:-2, 1] * v) + np.sum(x[low:high:2] ** 2) * scale + np.sum(x[-3:])


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("step", [by_bounds, by_rows_of_bounds, by_a_table, by_numbers, by_arrays, with_a_stride])
def test_shared_sums_are_right(shared, monkeypatch, step, backwards):
    def loss(x, v, scale):
        bounds = [TABLE] if step is by_rows_of_bounds else [LOW, HIGH]
        return np.sum(np.cos(ns.map(step, [*bounds, K, v], [x, scale], go_backwards=backwards)))

    for got, want in zip(*gradients(loss, (X, V, np.array(0.7)), (0, 1, 2), monkeypatch), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    assert shared
    if step in (by_bounds, by_rows_of_bounds, by_a_table):
        assert len(shared[0]) < sum(map(len, shared[0]))


def test_second_derivatives_through_shared_sums(shared, monkeypatch):
    def loss(x, v):
        return np.sum(ns.map(by_bounds, [LOW, HIGH, K, v], [x, 0.5]) ** 2)

    def hvp(x, v):
        return ns.hvp(lambda x: loss(x, v), x, np.cos(x))
    got = hvp(X, V)
    monkeypatch.setattr(ns.config, "mode", "python")
    np.testing.assert_allclose(got, hvp(X, V), rtol=1e-11, atol=1e-12)
    assert shared


def test_an_index_out_of_range_is_still_an_error(shared):
    k = np.where(np.arange(STEPS) == 41, ROWS, K)
    with pytest.raises(IndexError, match=rf"index {ROWS} is out of bounds for.* size {ROWS}.*41"):
        ns.grad(lambda x: np.sum(ns.map(lambda k, v, x: np.sum(x[k] ** 2) * v, [k, V], x)))(X)


def test_colours_are_the_first_that_fit():
    """Boxes 0-3, 2-5, 4-7, 9-10 and one over all: 0, 1, 0, 0, 2."""
    seen = iter([[0, 3], [2, 5], [4, 7], [9, 10], [0, 10]])

    class Fixed(scatter._Inspector):
        def __init__(self, *_):
            pass

        def box(self, eqns):
            return np.array([next(seen)])

    class Loop:
        seqs, reverse = 1, False
    before, scatter._Inspector = scatter._Inspector, Fixed
    try:
        assert scatter.colours(Loop, {0: ()}, [np.zeros(5)], [(k, k + 1) for k in range(5)]) == [[0, 2, 3], [1], [4]]
    finally:
        scatter._Inspector = before
