"""What must hold for a loop of `product`: values as the law says, derivatives as differences of the law say.

`check(case)` runs the loop on nscan and on the law, compares values, and compares derivatives of orders one to three with
differences of the law (never of nscan).
"""

import dataclasses

import law
import numpy as np
from product import floats, inputs, run

import nscan as ns


def functional(case, lib, given, options=None):
    """Return the loop as a function of its floats, which returns its float outputs."""

    def f(*arrays):
        parts = list(arrays)
        seqs, parts = parts[: len(given.seqs)], parts[len(given.seqs) :]
        states, constants = parts[: len(given.states)], parts[len(given.states) :]
        outs = run(case, lib, dataclasses.replace(given, seqs=seqs, states=states, constants=constants), options)
        return tuple(x for x in outs if x.dtype.kind in "fc")

    return f


def executed(case, given):
    """Number of steps that run."""
    outs = run(case, law, given)
    if case.api == "loop" and case.until:
        return int(outs[len(case.states)]) - given.start
    return case.steps if case.api in ("loop", "map") else len(outs[0])


def steps_from(case, given, first, last):
    """The loop of steps first to last - 1 alone, its states not yet set: (case, inputs)."""

    def cut(x):
        if case.api == "scan":
            return x[: len(x) - first] if case.backwards else x[first:]
        n = case.steps
        return x[n - last : n - first] if case.backwards else x[first:last]

    lengths = given.lengths if given.lengths is None else np.clip(given.lengths - first, 0, last - first)
    reset = given.reset if given.reset is None else cut(given.reset)
    if reset is not None:
        reset = reset[len(reset) - (last - first) :] if case.backwards and lengths is None else reset[: last - first]
    part = dataclasses.replace(case, steps=last - first, n_steps=last - first if case.api == "scan" else None)
    return part, dataclasses.replace(
        given, seqs=[cut(x) for x in given.seqs], index=cut(given.index), flag=cut(given.flag), start=given.start + first,
        lengths=lengths, reset=reset,
    )


def truncated_law(case, given):
    """The law whose first steps are held at the given point; the last ones see the arrays that the function is called with."""
    n = executed(case, given)
    head = n - case.truncate
    if head <= 0:
        return functional(case, law, given)
    if case.lengths:
        first = [x[:head] for x in run(case, law, given)]
    else:
        first = run(*(lambda part: (part[0], law, part[1]))(steps_from(case, given, 0, head)))
    if case.api == "scan" and given.reset is not None:  # a reset changes all that later steps see of a state
        windows = []
        run(case, law, given, {"windows_at": (head, windows)})
        middle = [w[0] if t == (-1,) else np.stack(w) for w, t in zip(windows, case.states, strict=False)]
    else:
        middle = [last_rows(x, t, out) for x, t, out in zip(given.states, case.states, first, strict=False)]

    def f(*arrays):
        parts = list(arrays)
        seqs, states = parts[: len(given.seqs)], parts[len(given.seqs) : len(given.seqs) + len(given.states)]
        moved = dataclasses.replace(given, seqs=seqs, states=states, constants=parts[len(seqs) + len(states) :])
        part, later = steps_from(case, moved, head, n)
        restart = moved.states if given.reset is not None else None
        outs = run(part, law, dataclasses.replace(later, states=middle, reset_to=restart))
        return tuple(x for x in joined(case, first, outs) if x.dtype.kind in "fc")

    return f


def last_rows(initial, taps, out):
    """The values of a state that the step after `out` sees (`out`: its rows, or in `loop` its last value)."""
    if np.ndim(out) == np.ndim(initial) and taps == (-1,):
        return out
    if taps == (-1,):
        return out[-1]
    before = np.broadcast_to(
        initial[: -min(taps)].reshape(-min(taps), *[1] * (out.ndim - initial.ndim), *initial.shape[1:]),
        (-min(taps), *out.shape[1:]),
    )
    return np.concatenate([before, out])[min(taps) :]


def joined(case, first, later):
    """Outputs of a whole loop from those of its first and its last steps."""
    finals = len(case.states) + bool(case.until) if case.api == "loop" else 0
    rows = [
        np.concatenate([b, a] if case.api == "loop" and case.backwards else [a, b])
        for a, b in zip(first[finals:], later[finals:], strict=True)
    ]
    return (*later[:finals], *rows)


def assert_same(case, got, want):
    """Compare types and shapes exactly, floats to 64 ulp of the largest value."""
    assert len(got) == len(want), (case, len(got), len(want))
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape), (case, g.dtype, g.shape, w.dtype, w.shape)
        if w.dtype.kind in "fc":
            slack = 64 * np.finfo(w.dtype).eps
            np.testing.assert_allclose(g, w, rtol=slack, atol=slack * max(1.0, np.max(np.abs(w), initial=0.0)), err_msg=str(case))
        else:
            np.testing.assert_array_equal(g, w, err_msg=str(case))


def check(case, order=2):
    """Compare values and derivatives of a case with the law."""
    given = inputs(case)
    before = [np.array(x) for x in floats(given)]
    options = {"truncate_gradient": case.truncate} if case.truncate != -1 else {}
    assert_same(case, run(case, ns, given, options), run(case, law, given))
    f = functional(case, ns, given, options)
    wide = inputs(case, "f8") if case.dtype == "f4" else given
    g = functional(case, law, wide) if case.truncate == -1 else truncated_law(case, wide)
    if f(*floats(given)):
        check_derivatives(case, f, g, floats(given), [np.array(x) for x in floats(wide)], order)
    for x, old in zip(floats(given), before, strict=True):
        np.testing.assert_array_equal(x, old, err_msg=str(case))


# Central differences: places, weights, order of the derivative, step.
FIRST = ((-2, -1, 1, 2), (1 / 12, -8 / 12, 8 / 12, -1 / 12), 1, 2.5e-4)
SECOND = ((-3, -2, -1, 0, 1, 2, 3), (1 / 90, -3 / 20, 3 / 2, -49 / 18, 3 / 2, -3 / 20, 1 / 90), 2, None)
THIRD = ((-4, -3, -2, -1, 1, 2, 3, 4), (-7 / 240, 3 / 10, -169 / 120, 61 / 30, -61 / 30, 169 / 120, -3 / 10, 7 / 240), 3, None)


def differences(f, args, v, rule):
    """Derivative of a tuple of arrays along v by central differences."""
    places, weights, order, h = rule
    outs = [f(*[x + k * h * d for x, d in zip(args, v, strict=True)]) for k in places]
    return [sum(w * out[i] for w, out in zip(weights, outs, strict=True)) / h**order for i in range(len(outs[0]))]


def inner_product(a, b):
    """Real inner product of lists of arrays."""
    return float(sum(np.sum(np.real(np.conj(x) * y)) for x, y in zip(a, b, strict=True)))


def like(x, rng):
    v = rng.standard_normal(np.shape(x))
    return np.asarray(v + 1j * rng.standard_normal(np.shape(x)) if x.dtype.kind == "c" else v, x.dtype)[()]


def check_derivatives(case, f, g, args, wide, order):
    """Compare jvp, vjp, hvp (and the third derivative) of f with differences of g."""
    rng = np.random.default_rng(case.seed + 1000)
    v = [like(x, rng) for x in args]
    out, moved = ns.jvp(f, args, tuple(v))
    cts = [like(x, rng) for x in out]
    want = differences(g, wide, v, FIRST)
    loose = 2e-3 if case.dtype == "f4" else 1e-6
    for m, w, x in zip(moved, want, out, strict=True):
        assert (m.dtype, m.shape) == (x.dtype, x.shape), case
        np.testing.assert_allclose(m, w, rtol=loose, atol=loose * max(1.0, np.max(np.abs(w), initial=0.0)), err_msg=str(case))
    back = ns.vjp(f, *args)[1](tuple(cts))
    for b, x in zip(back, args, strict=True):
        assert (b.dtype, b.shape) == (x.dtype, x.shape), case
    compare(case, "vjp", inner_product(back, v), inner_product(cts, want), cts, want, loose)
    if ns.config.mode == "compiled":
        check_modes(case, f, args, v, cts, [*moved, *back])
    if order > 1 and case.dtype != "f4":
        check_higher(case, f, g, args, wide, v, cts, order)


def check_modes(case, f, args, v, cts, found):
    """Compare tangents and cotangents with those of python mode, to rounding."""
    ns.config.mode = "python"
    try:
        want = [*ns.jvp(f, args, tuple(v))[1], *ns.vjp(f, *args)[1](tuple(cts))]
    finally:
        ns.config.mode = "compiled"
    slack = 1e-4 if case.dtype == "f4" else 1e-11
    for got, x in zip(found, want, strict=True):
        np.testing.assert_allclose(got, x, rtol=slack, atol=slack * max(1.0, np.max(np.abs(x), initial=0.0)), err_msg=str(case))


def compare(case, what, got, want, cts, parts, tolerance, spread=0.0):
    scale = sum(float(np.sum(np.abs(c) * np.abs(p))) for c, p in zip(cts, parts, strict=True))
    assert abs(got - want) <= tolerance * max(1.0, scale) + spread, f"{what} of {case}: got {got!r}, differences give {want!r}"


def check_higher(case, f, g, args, wide, v, cts, order):
    """Second derivative along v of a number that is not linear in the outputs, by all four combinations; the third by one."""

    def loss(outs):
        return sum(
            np.sum(np.real(np.conj(c) * y)) + 0.5 * np.sum(np.real(np.conj(y) * y)) for c, y in zip(cts, outs, strict=True)
        )

    def of_loss(*xs):
        return loss(f(*xs))

    def forward(h):
        return lambda *xs: ns.jvp(h, xs, tuple(v))[1]

    def reverse(h):
        return lambda *xs: sum(
            np.sum(np.real(np.conj(b) * d)) for b, d in zip(ns.grad(h, argnums=tuple(range(len(xs))))(*xs), v, strict=True)
        )

    def numeric(rule):
        return differences(lambda *xs: (loss(g(*xs)),), wide, v, rule)[0]

    parts = differences(g, wide, v, (*SECOND[:3], 4e-3))
    want, coarse = (numeric((*SECOND[:3], h)) for h in (4e-3, 8e-3))
    for name, derivative in {
        "forward over reverse": forward(reverse(of_loss)),
        "reverse over reverse": reverse(reverse(of_loss)),
        "reverse over forward": reverse(forward(of_loss)),
        "forward over forward": forward(forward(of_loss)),
    }.items():
        compare(case, name, float(derivative(*args)), want, cts, parts, 1e-5, 1e-5 * abs(want) + abs(coarse - want))
    if order > 2:
        coarse, fine = (numeric((*THIRD[:3], h)) for h in (2e-2, 1e-2))
        got = (forward if case.seed % 2 else reverse)(forward(reverse(of_loss)))(*args)
        compare(case, "third derivative", float(got), fine, cts, parts, 1e-4, 1e-4 * abs(fine) + abs(coarse - fine))
