"""Memory that later calls use again: never while somebody holds it, never the user's, and not without bound."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import nscan as ns
from nscan import buffers

BIG = (buffers.LEAST // 4,)  # of float64: twice the least size


@pytest.fixture(autouse=True)
def nothing_waits():
    buffers.clear()
    yield
    buffers.clear()


def address(x):
    return x.__array_interface__["data"][0]


def waiting():
    return [x for found in buffers._FREE.values() for x in found]


def test_memory_is_used_again():
    x = buffers.empty(BIG, "f8")
    x[...] = 3
    before = address(x)
    del x
    y = buffers.empty((BIG[0] // 4, 2, 2), "f8")
    assert address(y) == before and y.flags.c_contiguous and y.flags.writeable and not waiting()


def test_memory_of_about_the_same_size_serves_too():
    x = buffers.empty((16 * buffers.LEAST // 10,), "u1")
    before = address(x)
    del x
    assert address(buffers.empty((14 * buffers.LEAST // 10,), "u1")) != before
    assert address(buffers.empty((17 * buffers.LEAST // 10,), "u1")) != before
    assert address(buffers.empty((161 * buffers.LEAST // 100,), "u1")) == before


def test_memory_with_a_view_is_not_free():
    x = buffers.empty(BIG, "f8")
    view, before = x[::2], address(x)
    del x
    assert address(buffers.empty(BIG, "f8")) != before
    del view
    assert before in map(address, waiting())


def test_small_and_huge_arrays_come_from_numpy():
    for size in (0, 10, buffers.LEAST - 1, buffers.KEPT + 1):
        assert buffers.empty((size,), "u1").base is None
    assert not waiting()


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(buffers, "KEPT", 5 * buffers.LEAST)
    many = [buffers.empty((buffers.LEAST + k * buffers.LEAST // 8,), "u1") for k in range(9)]
    del many
    assert 0 < sum(map(len, waiting())) == buffers._HELD[0] <= buffers.KEPT


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "i4", "?"])
def test_operations_are_those_of_numpy(dtype):
    x = np.arange(3 * buffers.LEAST // 2).reshape(3, -1).astype(dtype)
    for got, want in ((buffers.apply(np.add, x, x[:1]), x + x[:1]), (buffers.apply(np.multiply, x, 2), x * 2),
                      (buffers.apply(np.equal, x, x), x == x), (buffers.apply(np.multiply, 1.5, x.T), 1.5 * x.T)):
        assert got.dtype == want.dtype and got.flags.c_contiguous
        np.testing.assert_array_equal(got, want)


def problem():
    x = np.random.default_rng(0).normal(size=(20_000, 8))

    def step(x, h, a):
        return np.tanh(a * h + np.sin(x))
    return lambda a: ns.scan(step, x, np.zeros(8), a), np.linspace(0.1, 0.9, 8)


def test_gradients_use_memory_again(compiled, monkeypatch):
    f, a = problem()
    slope = ns.grad(lambda a: np.sum(f(a) ** 2))
    want = slope(a)
    waits, taken, make = {*map(address, waiting())}, [], buffers.empty
    assert len(waits) >= 4
    monkeypatch.setattr(buffers, "empty", lambda *args: taken.append(make(*args)) or taken[-1])
    np.testing.assert_array_equal(slope(a), want)
    large = [address(x) in waits for x in taken if x.nbytes >= buffers.LEAST]
    assert len(large) >= 4 and all(large)


def test_results_are_not_overwritten(compiled):
    f, a = problem()
    rows = f(a)
    kept = rows.copy()
    assert rows.flags.writeable and rows.flags.c_contiguous
    for k in range(3):
        ns.value_and_grad(lambda a: np.sum(f(a) ** 2))(a + k)
    np.testing.assert_array_equal(rows, kept)


def test_pulled_back_twice_after_other_calls(compiled):
    """What a pullback needs is not given away before it is gone."""
    f, a = problem()
    out, pull = ns.vjp(f, a)
    want = pull(np.ones_like(out))[0]
    for k in range(3):
        ns.grad(lambda a: np.sum(f(a)))(a + k)
    np.testing.assert_array_equal(pull(np.ones_like(out))[0], want)


def test_threads(compiled):
    f, a = problem()
    slope = ns.grad(lambda a: np.sum(f(a) ** 2))
    args = [a * (k + 1) / 4 for k in range(4)]
    want = [slope(x) for x in args]
    found = [None] * 4

    def work(k):
        for _ in range(20):
            found[k] = slope(args[k])
            np.testing.assert_array_equal(found[k], want[k])
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for got, x in zip(found, want):
        np.testing.assert_array_equal(got, x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_does_not_wait_for_a_lock_of_its_parent():
    """A process that forks while another thread of it is about to take memory."""
    code = textwrap.dedent("""
        import os, threading
        from nscan import buffers
        held, done = threading.Event(), threading.Event()
        def hold():
            with buffers._LOCK:
                held.set()
                done.wait()
        threading.Thread(target=hold).start()
        held.wait()
        child = os.fork()
        if not child:
            os._exit(buffers.empty((buffers.LEAST,), "u1").nbytes == buffers.LEAST)
        done.set()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1"], done.stderr
