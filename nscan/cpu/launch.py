"""The one parallel driver of all kernels: a kernel is a function over ranges, behind a pointer.

It is compiled once and cached, so that the first parallel run of a new kernel compiles nothing. A
process-wide lock guards it, since Numba's thread pools take one caller at a time; a second Python thread, and
a forked child, run their parts one after another.
"""

import os
import threading

from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

I64 = ir.IntType(64)


@intrinsic
def call(context, kernel, flags, status, step0, step1, lane0, lane1, part, block):
    """Call a kernel by address; `status` and `block` are addresses too."""
    def emit(context, builder, signature, args):
        pointer = I64.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [I64, pointer, I64, I64, I64, I64, I64, pointer])
        values = list(args)
        for k in (2, 8):
            values[k] = builder.inttoptr(values[k], pointer)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()
    return types.void(kernel, flags, status, step0, step1, lane0, lane1, part, block), emit


@intrinsic
def code_at(context, address):
    """Read the int64 at an address."""
    def emit(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], I64.as_pointer()), typ=I64)
    return types.int64(address), emit


@njit(parallel=True, cache=True, nogil=True)
def drive(kernel, parts, each, status, block):
    """Run all parts, each in blocks of steps.

    Parameters
    ----------
    kernel : int
        Address of the kernel.
    parts : ndarray of int64, shape (n, 4)
        step0, step1, lane0, lane1 of each part.
    each : int
        Steps of a block.
    status : int
        Address of n status words of 8 numbers.
    block : int
        Address of the block of numbers.
    """
    for p in prange(parts.shape[0]):
        first, last = parts[p, 0], parts[p, 1]
        at = first
        word = status + 64 * p
        while True:
            stop = min(last, at + each)
            flags = 2 + (1 if at == first else 0) + (4 if stop == last else 0)
            call(kernel, flags, word, at, stop, parts[p, 2], parts[p, 3], p, block)
            at = stop
            if at >= last or code_at(word) != 0:
                break


_LOCK = threading.Lock()
_OWNER = [os.getpid()]


def run_parts(function, address, parts, each, status, block):
    """Run the parts of a kernel, in parallel where that is possible.

    Parameters
    ----------
    function : ctypes function
        The kernel, for running parts one after another.
    address : int
        The same kernel.
    parts : ndarray of int64, shape (n, 4)
    each : int
        Steps of a block.
    status : ndarray of int64, shape (n, 8)
    block : ndarray of int64
    """
    if len(parts) > 1 and os.getpid() == _OWNER[0] and _LOCK.acquire(blocking=False):
        try:
            drive(address, parts, each, status.ctypes.data, block.ctypes.data)
        finally:
            _LOCK.release()
        return
    words, numbers = status.ctypes.data, block.ctypes.data
    for p, (first, last, lane0, lane1) in enumerate(parts.tolist()):
        at = first
        while True:
            stop = min(last, at + each)
            flags = 2 + (at == first) + 4 * (stop == last)
            function(flags, words + 64 * p, at, stop, lane0, lane1, p, numbers)
            at = stop
            if at >= last or status[p, 0]:
                break


def _after_fork():
    """Let a forked child run serially: its thread pool did not survive."""
    _OWNER[0] = -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

