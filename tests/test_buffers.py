"""Memory that later calls use again: never while somebody holds it, never the user's, and not without bound."""

import threading

import numpy as np
import pytest

import nscan as ns
from nscan.cpu import buffers

BIG = (1 << 14,)  # 128 KB of float64


@pytest.fixture(autouse=True)
def nothing_free(monkeypatch):
    monkeypatch.setattr(buffers, "_FREE", [])


def address(x):
    return x.__array_interface__["data"][0]


def test_memory_is_used_again():
    x = buffers.empty(BIG, "f8")
    x[...] = 3
    before = address(x)
    del x
    y = buffers.empty((BIG[0] // 4, 2, 2), "f8")
    assert address(y) == before and y.flags.c_contiguous and y.flags.writeable and not buffers._FREE


def test_memory_of_about_the_same_size_serves_too():
    x = buffers.empty((100_000,), "u1")
    before = address(x)
    del x
    assert address(buffers.empty((90_000,), "u1")) != before
    assert address(buffers.empty((106_000,), "u1")) == before


def test_memory_with_a_view_is_not_free():
    x = buffers.empty(BIG, "f8")
    view, before = x[::2], address(x)
    del x
    assert address(buffers.empty(BIG, "f8")) != before
    del view
    assert before in [address(m) for m in buffers._FREE]


def test_small_and_huge_arrays_are_ordinary():
    for size in (0, 10, buffers.KEPT + 1):
        assert buffers.empty((size,), "u1").base is None
    assert not buffers._FREE


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(buffers, "KEPT", 5 * buffers.LEAST)
    many = [buffers.empty((buffers.LEAST + 16 * k,), "u1") for k in range(9)]
    del many
    assert 0 < sum(map(len, buffers._FREE)) <= buffers.KEPT
    monkeypatch.setattr(buffers, "KEPT", 1 << 40)
    monkeypatch.setattr(buffers, "MOST", 3)
    many = [buffers.empty((buffers.LEAST + 16 * k,), "u1") for k in range(9)]
    del many
    assert len(buffers._FREE) == 3


def problem():
    x = np.random.default_rng(0).normal(size=(3000, 8))

    def step(x, h, a):
        return np.tanh(a * h + np.sin(x))
    return lambda a: ns.scan(step, x, np.zeros(8), a), np.linspace(0.1, 0.9, 8)


def test_gradients_use_memory_again_and_results_do_not(compiled, monkeypatch):
    f, a = problem()
    taken, make = [], buffers.empty
    monkeypatch.setattr(buffers, "empty", lambda *args: taken.append(make(*args)) or taken[-1])
    rows = f(a)
    assert rows.base is None or rows.base.base is None  # the user's memory is the user's
    slope = ns.grad(lambda a: np.sum(f(a) ** 2))
    want = slope(a)
    hidden = [address(x) for x in taken if x.nbytes >= buffers.LEAST]
    assert hidden
    taken.clear()
    waiting = {address(m) for m in buffers._FREE}
    np.testing.assert_array_equal(slope(a), want)
    assert [address(x) in waiting for x in taken if x.nbytes >= buffers.LEAST] == [True] * len(hidden)


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
