"""A simulator of CUDA kernels for printed text: threads are generators, stepped in a shuffled order.

It works on source: `cuda.syncthreads()` becomes a yield, and so does every store (a call of ``st_...``), so that the threads
of all blocks interleave between their stores. A barrier that not all threads of a block reach, or that they reach on
different lines, is reported. Weak memory is not modelled, nor are warps.
"""

import ast
import random


class SimulatorError(AssertionError):
    """The kernel does what a device would not forgive."""


class _Yields(ast.NodeTransformer):
    """Turns statements where threads may be switched into yields: of the line for a barrier, of 0 after a store."""

    def visit_Expr(self, node):
        call = node.value
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "cuda.syncthreads":
            return ast.Expr(ast.Yield(ast.Constant(node.lineno)))
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("st_"):
            return [node, ast.Expr(ast.Yield(ast.Constant(0)))]
        return node


class _Cuda:
    """The name `cuda` of the text, for the thread that runs at present."""

    def __init__(self):
        self.block = self.thread = self.size = 0

    def grid(self, axes):
        """Number of the thread in the whole grid."""
        assert axes == 1
        return self.block * self.size + self.thread


class _Block:
    """The threads of a block: those that can run, and at which barrier the others wait."""

    def __init__(self, number, threads):
        self.number = number
        self.ready = dict(enumerate(threads))
        self.waiting = {}
        self.ended = 0

    def advance(self, thread):
        """Run a thread to its next yield."""
        try:
            line = next(self.ready[thread])
        except StopIteration:
            del self.ready[thread]
            self.ended += 1
            return
        if line:
            self.waiting[thread] = self.ready.pop(thread), line

    def pass_barrier(self):
        """Let all threads go on once all of them wait at one barrier."""
        lines = sorted({line for _, line in self.waiting.values()})
        if self.ended or len(lines) > 1:
            count = len(self.waiting)
            raise SimulatorError(f"block {self.number}: {count} threads wait at lines {lines}, {self.ended} have ended")
        self.ready = {thread: generator for thread, (generator, _) in self.waiting.items()}
        self.waiting = {}


def launch(text, names, blocks, threads, args, seed=None):
    """Run a kernel.

    Parameters
    ----------
    text : str
        Defines ``kernel``.
    names : dict
        What else it needs; `cuda` is added.
    blocks, threads : int
        Size of the grid and of a block.
    args : tuple
    seed : int, optional
        Order of the threads; without it they run one after another.
    """
    cuda = _Cuda()
    cuda.size = threads
    tree = _Yields().visit(ast.parse(text))
    tree.body[-1].body.append(ast.parse("if False: yield").body[0])
    space = {**names, "cuda": cuda}
    exec(compile(ast.fix_missing_locations(tree), "<simulator>", "exec"), space)
    pick = random.Random(seed).choice if seed is not None else lambda items: items[0]
    live = [_Block(k, [space["kernel"](*args) for _ in range(threads)]) for k in range(blocks)]
    while live:
        block = pick(live)
        if block.ready:
            cuda.block, cuda.thread = block.number, pick(list(block.ready))
            block.advance(cuda.thread)
        elif block.waiting:
            block.pass_barrier()
        else:
            live.remove(block)
