"""The one parallel driver of all kernels: a kernel is a function over ranges, behind a pointer.

It is compiled once and cached, so that the first parallel run of a new kernel compiles nothing. A
process-wide lock guards it, since Numba's thread pools take one caller at a time; a second Python thread, and
a forked child, run their parts one after another. A long run leaves the main thread free to show progress and
to take Ctrl-C: a word in memory asks the driver to stop after the block at hand.
"""

import contextlib
import dataclasses
import os
import threading

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic, register_jitable

from nscan.cpu.parts import whole_spans

I64 = ir.IntType(64)
# A run that is expected to take longer (in multiplications, about 50 ms) gets a thread of its own.
LONG_WORK = 1 << 26
POLL_SECONDS = 0.02


@dataclasses.dataclass(eq=False)
class Run:
    """Ranges of a kernel that are to run.

    Attributes
    ----------
    function : ctypes function
    address : int
        Of the same function.
    parts : ndarray of int64, shape (n, 4)
        step0, step1, lane0, lane1 of each part.
    spans : pair of ndarray
        What each part runs, one after another (see `nscan.cpu.parts.Lanes.spans`); by default all its steps over all its lanes.
    groups : list of ndarray of int64
        Numbers of the parts that may run at the same time; groups run one after another. By default all parts.
    rooms : int
        Number of workspaces: one for each part, or for each that runs at a time.
    each : int
        Steps of a block.
    status : ndarray of int64, shape (n, 8)
        A status word for each part.
    block : ndarray of int64
        The block of numbers.
    fresh : bool
        Whether parts start here; otherwise they go on from where the run before ended.
    once : bool
        Whether there is something to do for all parts together, beforehand.
    lanes : int
        Number of lanes in all.
    control : ndarray of int64, shape (1 + n,)
        Whether to stop (written by others), and the steps that each part has done.
    work : int
        Expected cost, in multiplications.
    """

    function: object
    address: int
    parts: np.ndarray
    each: int
    status: np.ndarray
    block: np.ndarray
    fresh: bool = True
    once: bool = False
    lanes: int = 0
    control: np.ndarray = None
    work: int = 0
    groups: list = None
    rooms: int = 1
    spans: tuple = None

    def __post_init__(self):
        self.is_whole = self.spans is None
        if self.is_whole:
            self.spans = whole_spans(self.parts)
        if self.groups is None:
            self.groups = [np.arange(len(self.parts))]
        if self.control is None:
            self.control = np.zeros(1 + len(self.parts), np.int64)

    @property
    def addresses(self):
        """Where status, control and block lie."""
        return self.status.ctypes.data, self.control.ctypes.data, self.block.ctypes.data


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
def word_at(context, address):
    """Read the int64 at an address."""
    def emit(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], I64.as_pointer()), typ=I64)
    return types.int64(address), emit


@intrinsic
def put_word(context, address, value):
    """Store an int64 at an address."""
    def emit(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], I64.as_pointer()))
        return context.get_dummy_value()
    return types.void(address, value), emit


@register_jitable
def run_part(kernel, p, room, parts, spans, offsets, each, fresh, status, control, block):
    """Run the spans of a part in blocks of steps; arguments as in `Run`, most arrays by address."""
    first, word, start = parts[p, 0], status + 64 * p, fresh
    for s in range(offsets[p], offsets[p + 1]):
        at, last = spans[s, 0], spans[s, 1]
        while True:
            stop = min(last, first + ((at - first) // each + 1) * each)
            flags = start + (2 if stop > at else 0) + (4 if stop == last and spans[s, 3] else 0)
            call(kernel, flags, word, at, stop, parts[p, 2], spans[s, 2], p + (room << 32), block)
            at, start = stop, 0
            put_word(control + 8 * p + 8, at - first)
            if word_at(word) != 0 or word_at(control) != 0:
                return
            if at >= last:
                break
    put_word(control + 8 * p + 8, parts[p, 1] - first)


@njit(cache=True, nogil=True)
def drive_one(kernel, p, room, parts, spans, offsets, each, fresh, status, control, block):
    """Run one part; arguments as in `run_part`."""
    run_part(kernel, p, room, parts, spans, offsets, each, fresh, status, control, block)


@njit(parallel=True, cache=True, nogil=True)
def drive(kernel, parts, spans, offsets, group, rooms, each, fresh, status, control, block):
    """Run the parts of a group; arguments as in `run_part`."""
    for room in prange(rooms):
        for k in range(room, group.shape[0], rooms):
            run_part(kernel, group[k], room, parts, spans, offsets, each, fresh, status, control, block)


def drive_serially(run):
    """Do the same without threads of Numba."""
    status, control, block = run.addresses
    parts = run.parts.tolist()
    for p in (int(p) for group in run.groups for p in group):
        first, last, lane0, lane1 = parts[p]
        at = first
        room = p if run.rooms == len(parts) else 0
        if not run.is_whole:
            drive_one(run.address, p, room, run.parts, *run.spans, run.each, int(run.fresh), status, control, block)
            continue
        while True:
            stop = min(last, at + run.each)
            flags = 2 + (at == first and run.fresh) + 4 * (stop == last)
            run.function(flags, status + 64 * p, at, stop, lane0, lane1, p + (room << 32), block)
            at = stop
            run.control[1 + p] = at - first
            if at >= last or run.status[p, 0] or run.control[0]:
                break


def rooms(parts):
    """Return how many of some parts run at the same time at most."""
    return min(parts, numba.get_num_threads()) if parts > 1 else parts


_LOCK = threading.Lock()
_OWNER = [os.getpid()]


def run_parts(run):
    """Run the parts of a kernel, in parallel where that is possible."""
    if run.once:
        run.function(8, run.status.ctypes.data, 0, 0, 0, run.lanes, 0, run.block.ctypes.data)
        if run.status[0, 0]:
            return
    if len(run.parts) > 1 and os.getpid() == _OWNER[0] and _LOCK.acquire(blocking=False):
        try:
            for group in run.groups:
                drive(run.address, run.parts, *run.spans, group, min(run.rooms, len(group)), run.each, int(run.fresh), *run.addresses)
        finally:
            _LOCK.release()
    else:
        drive_serially(run)


def run_watched(run, watch=None):
    """Run parts; if that may take long, in a thread of its own, so that Ctrl-C is heard.

    Parameters
    ----------
    run : Run
    watch : callable, optional
        Called now and then, while a long run goes on.

    Raises
    ------
    KeyboardInterrupt
        After all parts came to the end of a block.
    """
    if run.work < LONG_WORK and watch is None:
        return run_parts(run)
    threads, failed, ended, gate = numba.get_num_threads(), [], [], threading.Lock()
    gate.acquire()

    def work():
        try:
            numba.set_num_threads(threads)
            run_parts(run)
        except BaseException as error:  # handed on to the thread that waits
            failed.append(error)
        finally:
            ended.append(True)
            gate.release()
    threading.Thread(target=work, name="nscan").start()
    try:
        # An interrupted Thread.join takes the thread for finished (before Python 3.13), and an interrupted Event.wait may
        # keep the lock of the event: what is waited for is a bare lock, and a list says whether the work has ended.
        while not (gate.acquire(timeout=POLL_SECONDS) or ended):
            if watch is not None:
                watch()
    except BaseException:
        run.control[0] = 1
        while not ended:
            with contextlib.suppress(KeyboardInterrupt):
                gate.acquire(timeout=POLL_SECONDS)
        raise
    if failed:
        raise failed[0]
    return None


def _after_fork():
    """Let a forked child run serially: its thread pool did not survive."""
    _OWNER[0] = -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
