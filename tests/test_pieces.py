"""Long bodies of loops are compiled in pieces: their results, failures and profiles are those of one block."""

import gc

import numpy as np
import pytest
from conftest import without_optimisations
from llvmlite import ir
from text_cases import LOOPS, draw, gathered

import nscan as ns
from nscan import build, tree
from nscan.cpu import kernel as kernels
from nscan.cpu import llvm, llvm_control, llvm_pieces
from nscan.cpu.llvm_values import I64
from nscan.explain import explain
from nscan.plan.dead import size
from nscan.state import collector_paused


@pytest.fixture(autouse=True)
def settings():
    """Put the settings back after each test."""
    assigned = dict(ns.config._assigned)
    ns.config.mode = "compiled"
    yield
    ns.config._assigned.clear()
    ns.config._assigned.update(assigned)


def in_pieces(folder, length, f, *args):
    """What a function returns where every loop is cut into pieces of so many statements, and how many pieces there are."""
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llvm_control, "LONG", 0)
        patch.setattr(llvm_pieces, "PIECE", length)
        patch.setattr(kernels, "_KERNELS", {})
        patch.setenv("NSCAN_CACHE_DIR", str(folder))
        patch.setattr(build, "kernel_name", lambda *args, old=build.kernel_name: f"{old(*args)}_{folder.name}")
        patch.setattr(llvm_pieces.LongBody, "function",
                      lambda self, piece, *args, old=llvm_pieces.LongBody.function: made.append(piece) or old(self, piece, *args))
        return f(*args), len(made)


def bits(result):
    """Types, shapes and bytes of the arrays of a result."""
    return [(x.dtype, x.shape, x.tobytes()) for x in map(np.asarray, tree.flatten(result)[0])]


# ------------------------------------------------------------------------------------------------------- results
@pytest.mark.parametrize("length", (1, 7))
@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
def test_pieces_do_what_one_block_does(f, length, tmp_path):
    with without_optimisations():
        (cut, count), whole = in_pieces(tmp_path, length, f), f()
    assert bits(cut) == bits(whole)
    assert count > (length == 1)


def chain(operations, states=5):
    """A loss over steps of scalar states, integers, flags, branches and an inner loop; and its arguments."""
    def step(x, n, *h):
        h = list(h)
        for k in range(operations):
            a, b = h[k % states], h[(k * 3 + 1) % states]
            h[k % states] = np.where(a > b * x, 0.9 * a + np.sin(b), a - 0.25 * b * x) if k % 3 else 0.5 * (a + n % 7) - b
            n = n + (a > b) * (k % 5)
        total = ns.reduce(lambda v, s: 0.5 * s + v * h[0], np.stack(h), 0.0)
        h[0] = ns.cond(total > 0, lambda h: 0.1 * h, lambda h: h + 0.3, h[1])
        return n, *h

    def loss(xs, start):
        rows = ns.scan(step, xs, [np.int64(2), *[start[k] for k in range(states)]])
        return np.sum(rows[1] * rows[2]) + np.sum(rows[0])
    return loss, (draw(13), draw(states))


@pytest.mark.parametrize("length", (10, 60))
def test_optimised_pieces_do_what_one_block_does(length, tmp_path):
    loss, args = chain(40)
    call = ns.value_and_grad(loss, argnums=(0, 1))
    cut, count = in_pieces(tmp_path, length, call, *args)
    assert bits(cut) == bits(call(*args))
    assert count > 5
    ns.config.mode = "python"
    for x, y in zip(tree.flatten(cut)[0], tree.flatten(call(*args))[0]):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)


def test_pieces_report_the_first_failure(tmp_path):
    with pytest.raises(ns.errors.IndexRangeError, match="index 12 is out of bounds for an axis with size 12 .step 3") as cut:
        in_pieces(tmp_path, 1, gathered, 12)
    with pytest.raises(ns.errors.IndexRangeError) as whole:
        gathered(12)
    assert str(cut.value) == str(whole.value)


def test_pieces_read_the_clock(tmp_path):
    """A profile measures operations of a step where they lie in functions of their own."""
    call = lambda: ns.scan(lambda x, h: np.tanh(h) @ draw(40, 40) + x, draw(200, 40), np.zeros(40))  # noqa: E731
    (rows, profile), count = in_pieces(tmp_path, 1, lambda: (call(), str(ns.profile(call)())))
    assert bits(rows) == bits(call())
    assert count > 1 and "@" in profile


# -------------------------------------------------------------------------------------------------------- lengths
def functions_of(loop):
    """Number of instructions in each function of the module that a loop is printed into."""
    module = ir.Module("pieces")
    kind = ir.FunctionType(ir.VoidType(), [I64, I64.as_pointer(), *[I64] * 5, I64.as_pointer()])
    function = ir.Function(module, kind, "kernel")
    builder = ir.IRBuilder(function.append_basic_block("entry"))

    class Context:
        get_dummy_value = staticmethod(lambda: None)
    llvm.kernel_body(Context, builder, list(function.args), kernels.planned(loop.loop).program.text, ())
    return {f.name: sum(len(b.instructions) for b in f.blocks) for f in module.functions}


def gradient_of_states(operations):
    """The loops of the value and gradient of a step of so many operations, as they were planned."""
    loss, args = chain(operations)
    ns.config.mode = "python"
    return explain(ns.value_and_grad(loss))(*args).loops


def test_functions_do_not_grow_with_the_body():
    """Longer bodies become more functions, not longer ones."""
    found = []
    for operations in (180, 540):
        loop = max(gradient_of_states(operations), key=lambda loop: len(loop.text))
        counts = [n for name, n in functions_of(loop).items() if name.startswith("nscan.piece")]
        found.append((len(counts), max(counts)))
    (few, small), (many, large) = found
    assert many >= 2.5 * few > 5
    assert large <= 1.5 * small


def test_short_bodies_are_not_cut():
    for loop in gradient_of_states(30):
        assert not [name for name in functions_of(loop) if name.startswith("nscan.piece")]


# ------------------------------------------------------------------------------------------------------- the cuts
def let(v, *args):
    return ("let", v, "add", "f8", list(args))


def test_pieces_have_about_the_same_size(monkeypatch):
    monkeypatch.setattr(llvm_pieces, "PIECE", 10)
    body = [let(v, v - 1, v - 1) for v in range(1, 96)]
    pieces = llvm_pieces.cut(body, [{v - 1} for v in range(1, 96)])
    assert [s for piece in pieces for s in piece] == body
    assert len(pieces) == 10 and {size(p) for p in pieces} <= {9, 10}


def test_lanes_side_by_side_stay_in_one_piece(monkeypatch):
    """A loop with lanes leaves a vector behind; the statement that folds it is not cut off, nor what lies between."""
    monkeypatch.setattr(llvm_pieces, "PIECE", 1)
    loop = ("range", 1, 0, 8, 4, [(2, 3, "f8", 4)], [let(5, 2, 2)], [5])
    body = [let(6, 0, 0), loop, let(7, 6, 6), ("fold", 8, "add", "f8", 4), let(9, 8, 7)]
    pieces = llvm_pieces.cut(body, [{0}, {3}, {6}, {4}, {8, 7}])
    assert pieces == [body[:1], body[1:4], body[4:]]


# ------------------------------------------------------------------------------------------------------ collection
def test_cycles_are_searched_for_again_after_compiling(tmp_path):
    """Neither a kernel nor one that cannot be compiled leaves the search off, nor does it turn on what was off."""
    assert gc.isenabled()
    in_pieces(tmp_path, 5, LOOPS[0])
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collector_paused():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    try:
        in_pieces(tmp_path, 5, LOOPS[1])
        assert not gc.isenabled()
    finally:
        gc.enable()
