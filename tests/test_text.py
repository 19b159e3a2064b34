"""The text of loop programs: run as plain Python it does what the kernel does; as CUDA it runs in a simulator."""

import collections
import hashlib
import os
import re
import subprocess
import sys
import types

import minisim
import numpy as np
import plain
import pytest
from text_cases import LOOPS, draw, gathered, libraries, recurrence, scalar_state

import nscan as ns
from nscan import source, tree
from nscan.cpu import kernel as kernels
from nscan.cpu import launch, parts, run
from nscan.explain import explain


@pytest.fixture(autouse=True)
def settings():
    """Put the settings back after each test."""
    assigned = dict(ns.config._assigned)
    yield
    ns.config._assigned.clear()
    ns.config._assigned.update(assigned)


def in_mode(mode, f, *args):
    """Leaves of what a function returns in a mode."""
    ns.config.mode = mode
    return [np.asarray(x) for x in tree.flatten(f(*args))[0]]


def in_text(f, *args):
    """Leaves of what a function returns where printed programs run in place of kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_parts", plain.run_parts)
        return in_mode("compiled", f, *args)


def agree(got, want, ulps):
    """Equal types and shapes; equal integers, floats within some ulps of the largest of them."""
    assert len(got) == len(want)
    for x, y in zip(got, want):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if x.dtype.kind in "fc":
            assert np.max(np.abs(x - y), initial=0) <= ulps * np.finfo(x.dtype).eps * np.max(np.abs(y), initial=0)
        else:
            assert np.array_equal(x, y)


# -------------------------------------------------------------------------------------------------- as Python
@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
def test_text_does_what_the_kernel_does(f):
    text, kernel = in_text(f), in_mode("compiled", f)
    agree(text, kernel, 64)
    agree(text, in_mode("python", f), 256)


def test_text_runs_parts_of_the_lanes_and_steps(monkeypatch):
    """A call in several parts: lanes of a recurrence, steps of a map, each with a sum of its own."""
    x = draw(6, 40)

    def loss(w):
        last = ns.scan(lambda x, h, w: np.tanh(w * h + x), x, np.zeros(40), w)[-1]
        return np.sum(last) + np.sum(ns.map(lambda r: np.exp(w * r[0]), x))
    monkeypatch.setattr(parts, "WORTH", 40)
    seen = []
    monkeypatch.setattr(plain, "program_at", lambda address, found=plain.program_at: seen.append(address) or found(address))
    text = in_text(ns.value_and_grad(loss), 0.7)
    assert len(seen) >= 3
    agree(text, in_mode("compiled", ns.value_and_grad(loss), 0.7), 64)


def test_text_reports_the_failure_of_the_kernel():
    found, said = [], "index 12 is out of bounds for an axis with size 12 .step 3"
    for how in (in_text, lambda f, *args: in_mode("compiled", f, *args)):
        with pytest.raises(ns.errors.IndexRangeError, match=said) as caught:
            how(gathered, 12)
        found.append(str(caught.value))
    assert found[0] == found[1]


PRINT = """
import hashlib, sys
import nscan as ns
ns.config.mode = "python"
import test_text
print(test_text.digest())
"""


def texts():
    """The texts of all loops, in both dialects, planned and not compiled."""
    ns.config.mode = "python"
    for f in LOOPS:
        for loop in explain(f)().loops:
            yield loop.text
            program = kernels.planned(loop.loop, ("cuda",)).program
            if program.lane and f is not libraries:
                yield source.cuda_text(program)


def digest():
    return hashlib.sha256("".join(texts()).encode()).hexdigest()


def test_text_is_the_same_in_every_process():
    path = os.pathsep.join(sys.path)
    for seed in ("1", "2"):
        done = subprocess.run([sys.executable, "-c", PRINT], env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == digest()


def test_values_that_nobody_reads_are_not_printed():
    """What a text assigns it reads."""
    for text in texts():
        seen = collections.Counter(re.findall(r"\bv\d+\b", text))
        assert not [name for name, count in seen.items() if count == 1]


# ---------------------------------------------------------------------------------------------------- as CUDA
def simulated(f, seed, threads=4):
    """Leaves of what a function returns where each lane is a thread of the simulator."""
    def divide(kernel, n):
        lanes = kernel.program.lane
        return np.array([(0, n, k, k + 1) for k in range(lanes)], np.int64), True

    def run_parts(run):
        text = source.cuda_text(plain.program_at(run.address))
        n, steps = len(run.parts), run.parts[0, 1]
        args = (n, steps, np.int64(run.each), np.int64(run.status.ctypes.data), run.block)
        with np.errstate(all="ignore"):
            minisim.launch(text, plain.namespace(text), -(-n // threads), threads, args, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "divide", divide)
        patch.setattr(launch, "run_parts", run_parts)
        return in_mode("compiled", f)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_threads_of_lanes_do_what_the_kernel_does(dtype):
    for lanes in (5, 8, 9):
        kernel = in_mode("compiled", recurrence(dtype, lanes))
        runs = [simulated(recurrence(dtype, lanes), seed) for seed in (None, 1, 2)]
        agree(runs[0], kernel, 64)
        for other in runs[1:]:
            assert all(np.array_equal(x, y) for x, y in zip(runs[0], other))


def test_products_of_lanes_run_in_blocks_of_steps(monkeypatch):
    """Values that are kept for a block of steps: the kernel goes through the blocks one after another."""
    def f():
        return ns.scan(lambda x, h, w, u: np.tanh(x @ w + h @ u), draw(7, 9, 49), np.zeros((9, 13)), [draw(49, 13), draw(13, 13)])
    wanted = in_mode("compiled", f)
    features = (*kernels.host_features(), "cuda")
    monkeypatch.setattr(kernels, "host_features", lambda: features)
    monkeypatch.setattr(kernels, "_KERNELS", {})
    kernel = in_mode("compiled", f)
    agree(kernel, wanted, 64)
    for found in kernels._KERNELS.values():
        monkeypatch.setattr(found, "block", min(found.block, 3))
    agree(simulated(f, 3), kernel, 64)


def test_cuda_text_goes_through_blocks_of_steps():
    """A part that notes the lengths of the blocks in which it is called, as digits."""
    one = lambda k: ("c", "i8", k)
    block = (("let", 0, "param", "i8", (one(0),)), ("let", 1, "arg", "i8", (one(0),)), ("let", 2, "arg", "i8", (one(1),)),
             ("load", 3, "i8", "x", 0), ("let", 4, "mul", "i8", (3, one(10))), ("let", 5, "sub", "i8", (2, 1)),
             ("let", 6, "add", "i8", (4, 5)), ("store", "i8", "x", 0, 6))
    text = source.cuda_text(types.SimpleNamespace(lane=1, once=(), start=(), block=block, end=()))
    noted = np.zeros(1, np.int64)
    args = (1, np.int64(7), np.int64(3), np.int64(0), np.array([noted.ctypes.data]))
    minisim.launch(text, plain.namespace(text), 1, 1, args)
    assert noted == 331


def test_loops_that_no_gpu_can_run_are_refused():
    ns.config.mode = "python"
    with pytest.raises(ns.errors.KernelError, match="no axis along which it is independent"):
        source.cuda_text(explain(scalar_state)().loops[0].program)
    sorted_rows = explain(lambda: ns.map(np.sort, draw(3, 40, 12)))().loops[0].program
    assert sorted_rows.lane
    with pytest.raises(ns.errors.KernelError, match="calls a routine of a CPU library"):
        source.cuda_text(sorted_rows)


SHIFT = """
def kernel(a, b, n):
    i = cuda.grid(1)
    st_i8(a + i8(8) * i8(i), i8(10) * i8(i))
    {barrier}
    st_i8(b + i8(8) * i8(i), ld_i8(a + i8(8) * i8((i + 1) % n)))
"""


def test_simulator_notices_a_missing_barrier():
    wanted = np.arange(1, 9) % 8 * 10
    for barrier, right in (("cuda.syncthreads()", True), ("pass", False)):
        text = SHIFT.format(barrier=barrier)
        results = []
        for seed in range(4):
            a, b = np.full(8, -1), np.full(8, -1)
            minisim.launch(text, plain.namespace(text), 1, 8, (a.ctypes.data, b.ctypes.data, 8), seed)
            results.append(np.array_equal(b, wanted))
        assert all(results) is right


def test_simulator_notices_a_barrier_that_not_all_reach():
    text = SHIFT.format(barrier="if i < 5: cuda.syncthreads()")
    a, b = np.zeros(8, np.int64), np.zeros(8, np.int64)
    with pytest.raises(minisim.SimulatorError, match="5 threads wait at lines .*, 3 have ended"):
        minisim.launch(text, plain.namespace(text), 1, 8, (a.ctypes.data, b.ctypes.data, 8))
