"""The suite of benchmarks: its loops mean the same in NumPy and in nscan, and its harness notices what differs."""

import numpy as np
import pytest

from benchmarks import harness, report
from benchmarks.libraries import Nscan, NumPy
from benchmarks.loops import LOOPS
from benchmarks.remote import Remote


@pytest.mark.parametrize("name", [name for name, loop in LOOPS.items() if "numpy" not in loop.without])
def test_formula(name, mode):
    if mode != "python" and name not in ("garch", "biquad", "kalman"):
        pytest.skip("the suite itself compares compiled results")
    loop = LOOPS[name]
    data = loop.arrays(200 if name == "lorenz" else 5)  # its step of time is 2 / n
    wanted = [np.asarray(x) for x in loop.run(NumPy(), **data)]
    found = [np.asarray(x) for x in loop.run(Nscan(), **data)]
    assert harness.differences(wanted, found) < loop.tolerance


def test_differences_are_noticed():
    a = (np.array([1.0, 2.0]), np.array(3.0))
    assert harness.differences(a, a) == 0
    assert harness.differences(a, (np.array([1.0, 2.5]), np.array(3.0))) == pytest.approx(0.25)
    with pytest.raises(AssertionError, match="1 results, not 2"):
        harness.differences(a, a[:1])
    with pytest.raises(AssertionError, match=r"shape \(1,\), not \(2,\)"):
        harness.differences(a, (a[0][:1], a[1]))
    with pytest.raises(AssertionError, match="not finite"):
        harness.differences(a, (np.array([1.0, np.nan]), a[1]))


def test_turns(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(harness, "clock", lambda: now[0])

    def implementation(name, seconds, factor=1.0):
        def call():
            now[0] += seconds
        return harness.Local(name, {"forward": call}, factor)
    figures = harness.compare([implementation("a", 0.002), implementation("b", 0.006), implementation("c", 1.0, 10.0)],
                              "forward", 5)
    assert figures["a"]["ratio"] == 1
    assert figures["b"] == {"seconds": pytest.approx(0.006), "ratio": pytest.approx(3)}
    assert figures["c"] == {"seconds": pytest.approx(10), "ratio": pytest.approx(5000)}


def test_a_peer_that_is_not_installed():
    with pytest.raises(ImportError, match="no interpreter given"):
        Remote(None, "pytensor", LOOPS["garch"])


def test_page(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(report, "PICTURE", tmp_path / "picture.svg")
    side = {"nscan": {"seconds": 0.002, "ratio": 1.0, "kernel": 0.001}, "jax": {"seconds": 0.001, "ratio": 0.5}}
    report.write({
        "machine": {"processor": "one", "cores": 2, "date": "today", "turns": 3, "load": 1.0, "clock": "wall time"},
        "loops": {"a": {"text": "Loop a", "missing": {"torch": "not there"}, "forward": side}},
        "growth": [{"kind": "lanes", "size": 8, **dict.fromkeys(
            harness.DIRECTIONS, {"seconds": 0.1, "kernel": 0.1, "floor": 0.05, "ratio": 2.0})}],
        "compile": {"lstm": {"gradient": {"failed": "it failed"}}}})
    page = report.PAGE.read_text()
    assert "| Loop a | 2 | 1 | -- | -- | 0.50 |" in page
    assert "PyTorch, Loop a: `not there`" in page and "it failed" in page
    assert report.PICTURE.read_text().startswith("<?xml")
