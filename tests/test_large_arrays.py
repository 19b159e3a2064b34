"""Derivatives of NumPy on large arrays, which go in pieces, and results that are arrays of their own."""

import numpy as np
import pytest

import nscan as ns
from nscan import elementwise

N = 2 * elementwise.PIECE + 77


def drawn(*shape, dtype="f8"):
    return np.random.default_rng(1).uniform(0.5, 1.5, shape).astype(dtype)


FUNCTIONS = {
    "square": lambda x, y: np.square(x),
    "tanh": lambda x, y: np.tanh(x) + y,
    "power": lambda x, y: x**y,
    "quotient": lambda x, y: np.log(x / y),
    "two axes": lambda x, y: (x.reshape(-1, 7) * y.reshape(-1, 7)) ** 3,
    "transposed": lambda x, y: np.exp(x.reshape(7, -1).T) * y.reshape(-1, 7),
    "broadcast": lambda x, y: np.sin(x) * y[:1],
}


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_pieces_are_the_whole(name, dtype, monkeypatch):
    x, y, t = drawn(7 * (N // 7 + 1), dtype=dtype), drawn(7 * (N // 7 + 1), dtype=dtype)[::-1], drawn(7 * (N // 7 + 1), dtype=dtype)
    f, found = FUNCTIONS[name], []
    for size in (elementwise.PIECE, x.size):
        monkeypatch.setattr(elementwise, "PIECE", size)
        out, pull = ns.vjp(f, x, y)
        found.append([*pull(np.ones_like(out)), *pull(out * out), *ns.grad(lambda x, y: np.mean(f(x, y) ** 2), (0, 1))(x, y),
                      ns.jvp(f, (x, y), (t, t))[1], ns.hvp(lambda x: np.mean(f(x, y) ** 3), x, t)])
    for a, b in zip(*found, strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=4e-7 if dtype == "f4" else 1e-15)


def test_pieces_of_complex_numbers():
    z = drawn(N) + 1j * drawn(N)[::-1]
    close = np.testing.assert_allclose
    close(ns.grad(lambda z: np.sum(np.abs(np.exp(z)) ** 2))(z), 2 * np.exp(2 * z.real), rtol=1e-12)


def test_a_zero_cotangent_meets_no_infinity_in_a_piece():
    x = drawn(N)
    x[[3, -1]] = 0
    g = ns.grad(lambda x: np.sum(np.where(x > 0, np.log(np.where(x > 0, x, 1)), 0) + np.sqrt(x) * (x > 0)))(x)
    assert g[3] == g[-1] == 0 and np.isfinite(g).all()


WHERE = [np.s_[5:], np.s_[:-5], np.s_[::2], np.s_[::-1], np.s_[3], np.s_[4:4], np.s_[2:-2, :], np.s_[1:, 3], np.s_[1:, 1:],
         np.s_[[1, 1, -1]], np.s_[1:, None], np.s_[..., 2:]]


@pytest.mark.parametrize("where", WHERE, ids=str)
def test_a_part_of_a_large_array(where):
    """The cotangent of the rest is zero, also in memory that was used before."""
    x = drawn(60_000, 5)
    for _ in range(3):
        expected = np.zeros_like(x)
        np.add.at(expected, where, 3 * x[where] ** 2)
        np.testing.assert_allclose(ns.grad(lambda x: np.sum(x[where] ** 3))(x), expected, rtol=1e-14)


@pytest.mark.parametrize("n", [3, N])
def test_cotangents_are_arrays_of_their_own(n):
    a, b, ct = drawn(n), drawn(n), drawn(n)
    both = ns.grad(lambda a, b: np.sum((a + b) ** 2), (0, 1))(a, b)
    assert not np.shares_memory(*both)
    out, pull = ns.vjp(lambda a, b: (a + b, a * 1), a, b)
    back = pull((ct, ct))
    again = ns.vjp(lambda a: a.reshape(-1, 1)[:, 0], a)[1](ct)
    product = ns.grad(lambda a: a @ b)(a)
    others = [a, b, ct, *out, *both, *back, *again, product]
    for k, x in enumerate(others):
        assert not any(np.shares_memory(x, y) for y in others[k + 1:]) and x.flags.writeable


@pytest.mark.parametrize("n", [3, N])
def test_a_rule_that_returns_an_array_of_the_user(n):
    w = drawn(n)

    @ns.custom_vjp
    def f(x):
        return np.sum(x)
    f.defvjp(lambda x: (np.sum(x), None), lambda _, ct: (w,))
    g = ns.grad(f)(drawn(n))
    assert not np.shares_memory(g, w)
    np.testing.assert_array_equal(g, w)


def test_a_large_gradient_is_not_copied(compiled):
    """It shows memory of a loop; a copy has no base."""
    x = drawn(300_000)
    g = ns.grad(lambda x: ns.scan(lambda x, s: s * 0.5 + x, x, 0.0)[-1])(x)
    assert g.base is not None and g.flags.writeable
