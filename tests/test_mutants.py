"""Planted faults: each must be caught by a small fixed set of product cases, or the product tests nothing.

A fault is a function of `monkeypatch` that changes one thing in the library, as a slip of the pen would. The cases run
until one fails; the test fails if none does.
"""

import contextlib
import dataclasses
import importlib

import numpy as np
import pytest
from product import Case, legal
from product_check import check

from nscan import api, elementwise, spec, step, trace
from nscan.grad import flow, forward, loop, reverse, second
from nscan.ops import loop as loop_rows
from nscan.primitive import TABLE

array = importlib.import_module("nscan.array")  # nscan.array is also a function

pytestmark = [pytest.mark.usefixtures("mode"), pytest.mark.wide]

CASES = [
    legal(case)
    for case in (
        Case(),
        Case(seqs=((-1, 0), (2,)), states=((-1, -2), (-1,)), rows=2, extra=(1, 0, 1), write="whole", seed=1),
        Case(seqs=((0,),), states=((-1,),), until="count", stop=2, write="view", backwards=True, extra=(2, 0, 0), seed=2),
        Case(seqs=((0, 1),), states=((-1,), (-3, -1)), truncate=2, nest=True, seed=3),
        Case(dtype="c16", rows=2, inside="scan", seed=4),
        Case(inside="until", until="flag", stop=2, shape=(2, 3), write="index", seed=5),
        Case(inside="cond", write="add_at", scalar_start=True, seed=6),
        Case(inside="while", write="mask", n_steps=3, seed=7),
        Case(api="foldl", inside="taps", write="view", seed=8),
        Case(api="loop", rows=2, until="count", stop=3, backwards=True, seed=9),
        Case(api="loop", states=((-1,), (-1,)), truncate=1, write="buffer", seed=10),
        Case(api="map", rows=2, inside="map", seed=11),
        Case(api="while_loop", steps=0, seed=12),
        Case(dtype="f4", shape=(), seed=13),
    )
]


def caught():
    """Run the cases; return the first failure, or None."""
    for case in CASES:
        try:
            with np.errstate(all="ignore"):
                check(case)
        except Exception as failure:
            return failure
    return None


def test_the_cases_pass_without_a_fault():
    failure = caught()
    assert failure is None, failure


@contextlib.contextmanager
def fresh_caches():
    """Forget what was derived before, so that a fault shows, and afterwards what was derived with it."""
    caches = (loop._ADJOINTS, forward._JOINT, flow._FLOWS, flow._DECIDING, second._ASYMMETRIC, array._RESOLVED, step._SEEN,
              step._LOOPS, trace._TAPES, trace._ELEMENTWISE)
    for cache in caches:
        cache.clear()
    try:
        yield
    finally:
        for cache in caches:
            cache.clear()


class Patch:
    """Changes attributes, also of frozen objects, and puts them back."""

    def __init__(self):
        self.undo = []

    def set(self, owner, name, value):
        self.undo.append((owner, name, owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)))
        (type.__setattr__ if isinstance(owner, type) else object.__setattr__)(owner, name, value)

    def wrap(self, owner, name, wrapper):
        """Replace a function by ``wrapper(original)``."""
        self.set(owner, name, wrapper(getattr(owner, name)))

    def row(self, name, field, wrapper):
        """Replace a rule of a row."""
        self.set(TABLE[name], field, wrapper(getattr(TABLE[name], field)))

    def restore(self):
        for owner, name, value in reversed(self.undo):
            (type.__setattr__ if isinstance(owner, type) else object.__setattr__)(owner, name, value)


FAULTS = []


def fault(function):
    FAULTS.append(function)
    return function


# Reading and writing rows


@fault
def lowest_tap_forgets_zero(patch):
    patch.set(spec.Sequence, "low", property(lambda self: min(self.taps)))


@fault
def earlier_states_in_the_wrong_order(patch):
    def wrapper(original):
        def run(parsed, names):
            out = original(parsed, names)
            for carry in out:
                carry.initial = carry.initial[::-1]
            return out

        return run

    patch.wrap(api, "_carries", wrapper)


@fault
def a_backwards_sequence_is_not_reversed(patch):
    def wrapper(original):
        return lambda parsed, n: [x[::-1] for x in original(parsed, n)] if parsed.go_backwards else original(parsed, n)

    patch.wrap(api, "_sequence_views", wrapper)


@fault
def one_step_too_few(patch):
    patch.wrap(api.spec, "number_of_steps", lambda original: lambda parsed: original(parsed) and original(parsed) - 1)


@fault
def the_row_that_fires_is_dropped(patch):
    def wrapper(original):
        def run(loop, values, runner):
            outs = list(original(loop, values, runner))
            if loop.stop:
                outs[: loop.rows] = [x[1:] if loop.reverse else x[:-1] for x in outs[: loop.rows]]
            return tuple(outs)

        return run

    patch.wrap(loop_rows, "run_loop", wrapper)


@fault
def a_loop_that_stops_runs_one_step_more(patch):
    patch.wrap(api.edge, "condition", lambda original: lambda mark, name: np.logical_not(original(mark, name)))


@fault
def the_first_condition_of_while_is_not_tested(patch):
    patch.wrap(step, "run", lambda original: lambda made, n, seqs: original(made, n if seqs or n else 1, seqs))


@fault
def a_state_keeps_the_type_of_its_start(patch):
    def wrapper(original):
        def run(self, x):
            dtype, shape = self.dtype, self.shape
            original(self, x)
            self.dtype = dtype
            return self.shape != shape

        return run

    patch.wrap(step.Carry, "absorb", wrapper)


@fault
def a_write_to_a_tap_reaches_the_next_step(patch):
    def wrapper(original):
        def run(self, var, scalar=None):  # one traced array for each Var: every later use sees what is written to it
            known = self.__dict__.setdefault("_same", {})
            return known.setdefault(var, original(self, var, scalar))

        return run

    patch.wrap(trace.StepTrace, "handle", wrapper)


# Views


@fault
def a_write_to_a_view_does_not_reach_its_base(patch):
    before = dict(array.TABLE_WRITE)
    patch.set(array, "TABLE_WRITE", {**before, "index": lambda base, content, operands, params: base})


@fault
def a_view_is_not_read_again(patch):
    patch.set(array.TracedArray, "sync", lambda self: None)


@fault
def a_scatter_overwrites(patch):
    patch.row("index_add", "eager", lambda original: TABLE["index_update"].eager)


# Reverse rules


@fault
def operands_of_subtract_are_swapped(patch):
    patch.row("subtract", "vjp", lambda original: lambda cts, at: [None if c is None else -c for c in original(cts, at)])


@fault
def sine_has_the_wrong_sign(patch):
    patch.row("sin", "vjp", lambda original: lambda cts, at: [-original(cts, at)[0]])


@fault
def tanh_forgets_the_square(patch):
    patch.row("tanh", "jvp", lambda original: lambda tangents, at: (tangents[0] * (1 - at.y()),))


@fault
def broadcasting_is_averaged(patch):
    def wrapper(original):
        return lambda x, shape: original(x, shape) if x is None or tuple(x.shape) == tuple(shape) else original(x, shape) * 0.5

    patch.wrap(elementwise, "unbroadcast", wrapper)


@fault
def the_conjugate_is_forgotten(patch):
    patch.wrap(
        elementwise, "_scaled", lambda original: lambda ct, formula, at, plain, conjugate: original(ct, formula, at, plain, False)
    )


@fault
def select_passes_to_both_sides(patch):
    patch.row(
        "select",
        "vjp",
        lambda original: (
            lambda cts, at: [
                None,
                cts[0] if at.needs[1] and at.shape(1) == cts[0].shape else original(cts, at)[1],
                original(cts, at)[2],
            ]
        ),
    )


@fault
def an_overwritten_part_keeps_its_cotangent(patch):
    patch.row(
        "index_update",
        "vjp",
        lambda original: lambda cts, at, spec: [cts[0] if at.needs[0] else None, *original(cts, at, spec)[1:]],
    )


@fault
def concatenate_cuts_one_row_late(patch):
    def wrapper(original):
        return lambda cts, at, axis: [x if x is None else np.roll(x, 1, axis) for x in original(cts, at, axis)]

    patch.row("concatenate", "vjp", wrapper)


@fault
def cotangents_are_not_added(patch):
    patch.set(loop, "total", lambda v, parts, read, start=None: reverse.total(v, parts[-1:] if parts else parts, read, start))
    patch.set(reverse, "total", _last_only(reverse.total))


def _last_only(original):
    return lambda v, parts, read, start=None: original(v, parts[-1:] if parts else parts, read, start)


@fault
def a_stopped_gradient_leaks(patch):
    patch.row("stop_gradient", "vjp", lambda original: lambda cts, at: [cts[0]])
    patch.row("stop_gradient", "jvp", lambda original: lambda tangents, at: (tangents[0],))


# The rule of the loop


@fault
def sums_of_constants_forget_earlier_steps(patch):
    patch.wrap(
        loop,
        "total",
        lambda original: (
            lambda v, parts, read, start=None: original(v, parts, read) if parts else original(v, parts, read, start)
        ),
    )


@fault
def the_adjoint_runs_forwards(patch):
    def wrapper(original):
        def run(self, whole=None):
            made = original(self, whole)
            return dataclasses.replace(made, backward=dataclasses.replace(made.backward, reverse=not made.backward.reverse))

        return run

    patch.wrap(loop._Builder, "build", wrapper)


@fault
def cotangents_of_final_states_are_dropped(patch):
    def wrapper(original):
        return lambda cts, at, loop: original(
            [*cts[: loop.rows], *[None] * loop.states, *cts[loop.rows + loop.states :]], at, loop
        )

    patch.row("loop", "vjp", wrapper)


@fault
def the_first_kept_row_serves_all(patch):
    def wrapper(original):
        def run(*args):
            adjoint, operands = original(*args)
            return adjoint, [dataclasses.replace(x, index=0) if isinstance(x, loop.Hidden) else x for x in operands]

        return run

    patch.wrap(loop, "adjoint_operands", wrapper)


@fault
def cotangents_of_rows_are_shifted_when_a_loop_stops(patch):
    def wrapper(original):
        def run(x, shape):
            out = original(x, shape)
            return out if np.shape(x) == np.shape(out) else np.roll(out, 1, axis=0)

        return run

    patch.wrap(loop_rows, "_filled", wrapper)


@fault
def a_constant_seems_not_to_flow(patch):
    def wrapper(original):
        return lambda loop, flags: (*original(loop, flags)[: 1 + loop.seqs + loop.states + loop.sums], *[False] * loop.consts)

    patch.wrap(flow, "_operand_flow", wrapper)


@fault
def tangents_of_initial_states_are_dropped(patch):
    patch.wrap(forward, "or_zeros", lambda original: lambda x, t: original(x, None))


@fault
def tangents_of_rows_are_swapped(patch):
    patch.wrap(forward, "spread", lambda original: lambda values, moving: original(list(values)[::-1], moving))


@fault
def truncation_is_one_step_late(patch):
    patch.wrap(
        api, "_run_truncated", lambda original: lambda traced, n, seqs, k: original(traced, n, seqs, k if k == -1 else k + 1)
    )


@fault
def the_backward_pass_takes_the_other_branch(patch):
    def wrapper(original):
        return lambda cts, at, cond: original(cts, at, dataclasses.replace(cond, then=cond.other, other=cond.then))

    patch.row("cond", "vjp", wrapper)


# Higher orders


@fault
def a_product_with_a_cotangent_forgets_its_second_term(patch):
    patch.row(
        "safe_mul",
        "jvp",
        lambda original: (
            lambda tangents, at: original((tangents[0], None), at) if tangents[0] is not None else (np.zeros_like(at.y()),)
        ),
    )


@fault
def the_adjoint_forgets_moving_cotangents(patch):
    patch.wrap(second, "_again", lambda original: lambda *args: [np.zeros_like(x) for x in original(*args)])


@fault
def the_adjoint_forgets_moving_inputs(patch):
    patch.wrap(second, "_primal_part", lambda original: lambda *args: [None] * len(original(*args)))


@fault
def the_adjoint_forgets_its_cotangents(patch):
    patch.wrap(second, "_tangent_outputs", lambda original: lambda *args: [None] * len(original(*args)))


def test_there_are_enough():
    assert len(FAULTS) >= 20


@pytest.mark.parametrize("plant", FAULTS, ids=lambda f: f.__name__)
def test_a_planted_fault_is_caught(plant):
    patch = Patch()
    with fresh_caches():
        try:
            plant(patch)
            failure = caught()
        finally:
            patch.restore()
    assert failure is not None, f"nobody noticed: {plant.__name__}"
