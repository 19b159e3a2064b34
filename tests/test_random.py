"""Random draws: known answers of the cipher, distributions, the same numbers everywhere, derivatives, bad input."""

import numba
import numpy as np
import pytest
from scipy import stats

import nscan as ns
from nscan import random
from nscan.primitive import TABLE, bind

MASK = 2**64 - 1


def threefry_2x64(key, counter):
    """The cipher as Salmon et al. (2011) define it, on Python integers."""
    words = (*key, 0x1BD11BDAA9FC1A22 ^ key[0] ^ key[1])
    a, b = [(c + k) & MASK for c, k in zip(counter, key, strict=True)]
    for r in range(20):
        a = (a + b) & MASK
        turn = (16, 42, 12, 31, 16, 32, 24, 21)[r % 8]
        b = ((b << turn | b >> (64 - turn)) & MASK) ^ a
        if r % 4 == 3:
            k = r // 4 + 1
            a, b = (a + words[k % 3]) & MASK, (b + words[(k + 1) % 3] + k) & MASK
    return a, b


def test_known_answers_of_the_cipher():
    """Three vectors that the authors publish with their library Random123."""
    pi = (0xA4093822299F31D0, 0x082EFA98EC4E6C89), (0x243F6A8885A308D3, 0x13198A2E03707344)
    assert threefry_2x64((0, 0), (0, 0)) == (0xC2B6E3A8C2C69865, 0x6F81ED42F350084D)
    assert threefry_2x64((MASK, MASK), (MASK, MASK)) == (0xE02CB7C4D95D277A, 0xD06633D0893B8B68)
    assert threefry_2x64(*pi) == (0x263C7D30BB0F0AF1, 0x56BE8361D3311526)


def test_bits_are_those_of_the_cipher(mode):
    rng = np.random.default_rng(0)
    keys, steps, lanes = rng.integers(0, MASK, (3, 20), "u8", endpoint=True)
    for k, name in enumerate(("threefry_first", "threefry_second")):
        got = ns.map(lambda *args, name=name: bind(TABLE[name], args), [keys, steps, lanes])
        want = [threefry_2x64((int(a), 0), (int(b), int(c)))[k] for a, b, c in zip(keys, steps, lanes, strict=True)]
        assert got.dtype == np.uint64
        assert got.tolist() == want


DRAWS = [
    (random.uniform, dict(shape=(3, 2), low=-1.0, high=2.5)),
    (random.uniform, dict(dtype=np.float32)),
    (random.normal, dict(shape=(5,), loc=1.0, scale=np.arange(1.0, 6.0))),
    (random.normal, dict(shape=2, dtype=np.float32)),
    (random.exponential, dict(scale=np.array([1.0, 4.0]))),
    (random.integers, dict(shape=(4,), low=-3, high=9)),
    (random.integers, dict(low=200, dtype=np.uint8)),
    (random.bernoulli, dict(shape=(2, 2), p=0.3)),
    (random.choice, dict(a=4, shape=(5,), p=[0.1, 0.2, 0.3, 0.4])),
    (random.choice, dict(a=np.arange(6.0).reshape(3, 2), shape=(2,))),
]


@pytest.mark.parametrize("draw, options", DRAWS)
def test_a_step_draws_what_a_call_outside_draws(mode, draw, options):
    steps, key = np.arange(7), random.key(3, 1)
    inside = ns.map(lambda t, key: draw(key, t, **options), steps, key)
    outside = draw(key, steps, **options)
    assert (inside.dtype, inside.shape) == (outside.dtype, outside.shape)
    slack = 4 * np.finfo(outside.dtype).eps if outside.dtype.kind == "f" else 0
    np.testing.assert_allclose(inside, outside, rtol=slack, atol=8 * slack)
    for t in steps:
        np.testing.assert_array_equal(outside[t], draw(key, int(t), **options))
    assert len(np.unique(outside)) > 1


def test_keys_steps_and_places_give_different_numbers():
    keys = [random.key(0), random.key(1), random.key(0, 0), random.key(0, 1), random.key(1, 0), random.key(0, 0, 0)]
    draws = np.stack([random.uniform(k, np.arange(50), (20,)) for k in keys])
    assert len(np.unique(draws)) == draws.size


def test_draws_do_not_depend_on_threads_and_lanes(mode):
    if mode == "python":
        pytest.skip("python mode has no threads")

    def run(lanes):
        def step(t, h):
            return h * 0.9 + random.normal(5, t, (lanes,))
        return ns.scan(step, np.arange(500), np.zeros(lanes))

    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = run(5000)
        numba.set_num_threads(before)
        np.testing.assert_array_equal(one, run(5000))
        np.testing.assert_allclose(one[:, :100], run(100), rtol=1e-13, atol=1e-13)
    finally:
        numba.set_num_threads(before)


N = 40_000


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distributions_of_floats(dtype):
    cases = [
        (random.uniform(1, np.arange(N // 8), (8,), -2.0, 3.0, dtype), stats.uniform(-2.0, 5.0)),
        (random.normal(2, np.arange(N), None, 1.0, 2.0, dtype), stats.norm(1.0, 2.0)),
        (random.normal(3, 0, (N,), dtype=dtype), stats.norm()),
        (random.exponential(4, np.arange(N), scale=3.0, dtype=dtype), stats.expon(scale=3.0)),
    ]
    for x, law in cases:
        assert x.dtype == dtype
        assert np.all(np.isfinite(x))
        assert stats.kstest(x.ravel(), law.cdf).pvalue > 1e-3


def test_neighbours_are_uncorrelated():
    """In steps, places and keys: the sum of squared correlations is chi-square with as many degrees of freedom."""
    x = np.stack([random.normal(random.key(9, k), np.arange(200), (100,)) for k in range(3)])
    pairs = [(x[:, 1:], x[:, :-1]), (x[:, :, 1:], x[:, :, :-1]), (x[1:], x[:-1]), (x[:, 1:, 1:], x[:, :-1, :-1])]
    pairs += [(a**2, b**2) for a, b in pairs]
    for a, b in pairs:
        r = np.corrcoef(a.ravel(), b.ravel())[0, 1]
        assert abs(r) * np.sqrt(a.size) < 4.0


def test_distributions_of_integers():
    dice = random.integers(6, np.arange(N), low=1, high=7)
    assert stats.chisquare(np.bincount(dice, minlength=7)[1:]).pvalue > 1e-3
    p = np.array([0.1, 0.0, 0.6, 0.3])
    counts = np.bincount(random.choice(7, np.arange(N), 4, p=p), minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[p > 0], N * p[p > 0]).pvalue > 1e-3
    assert stats.binomtest(int(np.sum(random.bernoulli(8, 0, (N,), 0.3))), N, 0.3).pvalue > 1e-3
    table = np.array([10.0, 20.0, 30.0])
    assert stats.chisquare(np.unique(random.choice(9, 0, table, (N,)), return_counts=True)[1]).pvalue > 1e-3
    bits = random.integers(10, 0, (N,), low=0, high=2**62)
    ones = [np.sum(bits >> k & 1) for k in range(62)]
    assert stats.chisquare(ones, np.full(62, np.mean(ones))).pvalue > 1e-3


def test_derivatives_pass_through_parameters(mode):
    """The backward pass draws again: the derivative is that of the same loop over given draws."""
    steps, key = np.arange(12), random.key(4)
    z = random.normal(key, steps, (3,))
    u = random.uniform(random.key(5), steps, (3,))
    e = random.exponential(random.key(6), steps, (3,))

    def drawn(t, h, loc, scale, low):
        x = random.normal(key, t, (3,), loc, scale) + random.uniform(random.key(5), t, (3,), low)
        return np.tanh(0.5 * h + x) * random.exponential(random.key(6), t, (3,), scale)

    def given(z, u, e, h, loc, scale, low):
        return np.tanh(0.5 * h + loc + scale * z + low + (1.0 - low) * u) * scale * e

    args = (np.zeros(3), np.array(0.3), np.array(0.7), np.array([-0.5, 0.0, 0.2]))

    def loss(h, loc, scale, low, free):
        return np.sum(ns.scan(drawn, steps, h, [loc, scale, low]) if free else
                      ns.scan(given, [z, u, e], h, [loc, scale, low]))

    for g, w in zip(*[ns.grad(loss, argnums=(0, 1, 2, 3))(*args, free) for free in (True, False)], strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-12)
    for g, w in zip(*[[ns.hvp(lambda s, f=free: loss(args[0], args[1], s, args[3], f), args[2], np.array(1.0))]
                      for free in (True, False)], strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-10)


def test_draws_of_integers_and_bools_are_constants(mode):
    """As comparisons are: the derivative by a probability is zero, a draw weighs what it multiplies, a key has none."""
    def loss(p, draw):
        return np.sum(ns.scan(lambda t, h, p: 0.9 * h + draw(t, p), np.arange(4), 0.0, p))
    assert ns.grad(loss)(0.4, lambda t, p: random.bernoulli(3, t, p=p) * 1.0) == 0.0
    assert ns.jvp(lambda p: loss(p, lambda t, p: random.bernoulli(3, t, p=p) * 1.0), (0.4,), (1.0,))[1] == 0.0
    drawn = random.integers(3, np.arange(4), low=0, high=3)
    want = np.sum(drawn * (1 - 0.9 ** np.arange(4, 0, -1)) / 0.1)
    np.testing.assert_allclose(ns.grad(loss)(0.4, lambda t, p: random.integers(3, t, low=0, high=3) * p), want, rtol=1e-12)
    with pytest.raises(ns.errors.GradientTypeError, match="its dtype is uint64"):
        ns.grad(lambda key: np.sum(random.normal(key, np.arange(4))))(random.key(3))


def test_float32_stays_float32(mode):
    scale = np.float32(2.0)
    value, slope = ns.value_and_grad(lambda s: np.sum(ns.map(lambda t, s: random.normal(0, t, (4,), 0.0, s, np.float32),
                                                             np.arange(5), s)))(scale)
    assert value.dtype == slope.dtype == np.float32
    np.testing.assert_allclose(slope, value / scale, rtol=1e-5)


def test_draws_in_lanes_of_unequal_length(mode):
    """What a lane draws does not depend on the lengths of others."""
    def step(t, h):
        return h + random.normal(11, t, (4,))
    steps = np.broadcast_to(np.arange(6)[:, None], (6, 3))
    whole = ns.scan(step, [steps], [np.zeros((3, 4))])
    cut = ns.scan(step, [steps], [np.zeros((3, 4))], lengths=[2, 6, 0])
    for lane, length in enumerate([2, 6, 0]):
        np.testing.assert_array_equal(cut[:length, lane], whole[:length, lane])
        np.testing.assert_array_equal(cut[length:, lane], 0.0)


def test_hidden_state_points_here(mode):
    with pytest.raises(ns.errors.HiddenStateError, match=r"ns\.random"):
        ns.scan(lambda h: h + np.random.standard_normal(), None, 0.0, n_steps=3)  # noqa: NPY002


@pytest.mark.parametrize("call, kind, text", [
    (lambda: random.key(0.5), TypeError, "the seed of a random draw must be an integer, got dtype float64"),
    (lambda: random.key(1, "a"), TypeError, "number 0 of the path"),
    (lambda: random.normal(1.0), TypeError, "the key of a random draw must be an integer"),
    (lambda: random.normal(1, 0.5), TypeError, "the step of a random draw must be an integer"),
    (lambda: random.normal(1, 0, (2.5,)), ValueError, "shape must be an int or a tuple of ints"),
    (lambda: random.normal(1, 0, (-1,)), ValueError, "negative sizes"),
    (lambda: random.normal(1, 0, (2,), np.zeros(3)), ValueError, "broadcast"),
    (lambda: random.normal(1, 0, (3,), np.zeros((2, 3))), ValueError, r"shape \(2, 3\).*asks for \(3,\)"),
    (lambda: random.uniform(1, dtype=np.int32), TypeError, "float32 or float64, got dtype int32"),
    (lambda: random.uniform(1, low=1j), TypeError, "must be real"),
    (lambda: random.integers(1, low=5, high=5), ValueError, "low < high, got low=5 and high=5"),
    (lambda: random.integers(1, low=2.5), TypeError, "high of random integers must be an integer"),
    (lambda: random.integers(1, low=2, dtype=np.float32), TypeError, "integer one, got float32"),
    (lambda: random.choice(1, 0, 0), ValueError, "choice needs a positive number"),
    (lambda: random.choice(1, 0, 3, p=[0.5, 0.5]), ValueError, r"3 entries got probabilities of shape \(2,\)"),
])
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=text) as found:
        call()
    assert isinstance(found.value, ns.errors.NscanError) or "broadcast" in text
