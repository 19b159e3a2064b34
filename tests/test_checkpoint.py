"""The option checkpoint: the same bits under every plan, what is kept and what runs again, memory as predicted."""

import dataclasses

import numpy as np
import pytest
from product import floats, grid, inputs
from product_check import functional, like

import nscan as ns

# Options that are compared with "all"; 0 stands for a budget that nothing fits into.
OPTIONS = ("states", 1, 2, 3, 0)


@pytest.fixture
def compiled(monkeypatch):
    """Run compiled."""
    monkeypatch.setenv("NSCAN_MODE", "compiled")


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
