"""Kernels: planned, compiled and laid out on first sight of a loop, then found again by its structure."""

import ctypes
import dataclasses
import functools
import math

import numpy as np

from nscan import build
from nscan.cpu import library
from nscan.cpu.helpers import host_features
from nscan.plan import kernel as planner
from nscan.plan.affine import BLOCK as POWERS
from nscan.plan.live import find_live
from nscan.plan.memory import copied
from nscan.plan.operands import alike
from nscan.state import collector_paused, section

PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * 5, ctypes.c_void_p)
CAPACITY = 64
# Buffers of a block fill half a megabyte.
BLOCK_BYTES, MIN_BLOCK, MAX_BLOCK = 1 << 19, 8, 1 << 12
# Work (in multiplications) of a block, so that one takes some 10 ms, and progress and Ctrl-C have a say.
BLOCK_WORK = 1 << 24


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Where things lie in the workspace, for some room for rows of inner loops of unknown length.

    Attributes
    ----------
    template : ndarray of int64
        The block of numbers with everything filled in that does not change from call to call.
    workspace : int
        Bytes of the workspace of a part.
    shared : int
        Bytes of the workspace that all parts share.
    capacity : int
        The room.
    """

    template: np.ndarray
    workspace: int
    shared: int
    capacity: int


@dataclasses.dataclass(eq=False)
class Kernel:
    """A loop that is planned, and compiled where it is to run.

    Attributes
    ----------
    loop : Loop
        As it was planned.
    program : Program
    order : tuple of int
        For each state as the caller counts them, its number among the states and sums of the kernel.
    block : int
        Steps of a block: as many as the buffers of a block have room for, and few enough to take short.
    layout : Layout
        Replaced as a whole where inner loops of unknown length need more room.
    function : ctypes function or None
    address : int
        Of the same function.
    """

    loop: object
    program: object
    order: tuple
    block: int
    layout: Layout
    function: object = None
    address: int = 0

    @functools.cached_property
    def moving(self):
        """What changes from call to call: a list of (position in the block of numbers, key)."""
        kinds = ("address", "stride", "workspace", "shared", "steps", "partial", "counter", "clock")
        return [(k, key) for k, key in enumerate(self.program.keys) if key[0] in kinds]

    @functools.cached_property
    def places(self):
        """Number of an array to the places of its address in the block of numbers."""
        out = {}
        for k, key in self.moving:
            if key[0] == "address":
                out.setdefault(key[1], []).append(k)
        return out

    @functools.cached_property
    def types(self):
        """Shapes and dtypes of rows (hidden ones included) and of final states and sums."""
        loop = self.loop
        rows, hidden = loop.split_step_outputs(loop.step.outputs)[2:4]
        states, sums = loop.split_step_inputs(loop.step.inputs)[1:3]
        return ([(tuple(v.shape), v.dtype) for v in (*rows, *hidden)], [(tuple(v.shape), v.dtype) for v in (*states, *sums)])


_KERNELS = {}


def kernel_of(loop, masked=False):
    """Return the kernel of a loop: planned and compiled once for each structure.

    Parameters
    ----------
    loop : Loop
    masked : bool
        Whether lanes that have ended run on under a mask, as the step says (see `nscan.plan.live`).
    """
    kernel = plan_of(loop, masked)
    if kernel.function is None:
        with section("compile"), collector_paused():
            kernel.address = build.build(kernel.program.text, host_features()).kernel.address
        kernel.function = PROTOTYPE(kernel.address)
    return kernel


def plan_of(loop, masked=False):
    """Return the kernel of a loop, perhaps not compiled yet."""
    key = loop.structure
    found = _KERNELS.get(key)
    if found is None:
        with section("plan"), collector_paused():
            found = _KERNELS[key] = planned(loop)
    if not masked or found.program.live is None:
        return found
    return _KERNELS.get((key, masked)) or _KERNELS.setdefault((key, masked), planned(loop, None, masked))


def shared_grid(loop):
    """Whether a loop divides its steps and lanes like another one."""
    return loop.partner is not None and not loop.hidden


def planned(loop, features=None, masked=False):
    """Return the kernel of a loop before it is compiled, for this host or for something with other features."""
    prepared, order, env = copied(loop)
    other = planned(loop.partner, features, masked) if shared_grid(loop) else None
    features = host_features() if features is None else features
    masked = masked or "cuda" in features
    given = (features, other and other.program, alike(loop, env, masked) if loop.origin else None)
    live = None if masked else find_live(prepared)
    program = live and planner.plan(live.loop, *given, live)
    if program is not None:
        prepared = live.loop
    else:
        program = planner.plan(prepared, *given)
    block = block_length(program)
    if other is not None:
        program = dataclasses.replace(program, work=other.program.work, lane_block=other.program.lane_block)
        block = other.block if program.stages.post_terms else min(block, other.block)
    return lay_out(Kernel(prepared, program, order, block, None), CAPACITY)


def grid(kernel):
    """Steps after which a run may pause without a change of rounding."""
    return kernel.block if kernel.program.stages.post_terms else kernel.program.pace


def block_length(program):
    """Steps of a block, a function of shapes and dtypes alone; bits of affine states do not hang on it."""
    bytes_of_step = 0
    for slot in program.slots:
        if ("block",) in slot.sizes:
            sizes = [d if isinstance(d, int) else 1 if d[0] == "block" else program.sizes[d[1]] for d in slot.sizes]
            bytes_of_step += slot.itemsize * math.prod(sizes)
    if not bytes_of_step and program.stages.post_terms:
        bytes_of_step = program.step_bytes
    if bytes_of_step and program.lane:
        bytes_of_step = max(1, bytes_of_step * min(program.lane_block, program.lane) // program.lane)
    if bytes_of_step:
        steps = min(MAX_BLOCK, max(MIN_BLOCK, BLOCK_BYTES // bytes_of_step))
    else:
        steps = max(1, BLOCK_WORK // max(1, program.work))
    return steps // POWERS * POWERS or steps


def lay_out(kernel, capacity):
    """Lay a kernel out for some room for rows of inner loops of unknown length."""
    program, offsets, totals = kernel.program, [], [0, 0]
    rooms = {"capacity": capacity, "block": kernel.block}

    def size_of(d):
        if isinstance(d, int):
            return d
        if d[0] == "padded":
            return -(-program.sizes[d[1]] // d[2]) * d[2]
        return program.sizes[d[1]] if d[0] == "size" else rooms[d[0]]
    for slot in program.slots:
        offsets.append(totals[slot.shared])
        totals[slot.shared] += -(-slot.itemsize * max(slot.least, math.prod(map(size_of, slot.sizes))) // 64) * 64
    part, shared = totals[0] + 64, totals[1]
    fixed = {"size": lambda k: program.sizes[k], "number": lambda k: program.numbers[k], "slot": lambda k: offsets[k],
             "function": library.address, "lapack": library.lapack_address, "capacity": lambda *_: capacity, "part": lambda: part,
             "clock size": lambda: 8 * (1 + len(program.marks))}
    template = np.zeros(len(program.keys) + 1, np.int64)
    for k, key in enumerate(program.keys):
        if key[0] in fixed:
            template[k] = fixed[key[0]](*key[1:])
    kernel.layout = Layout(template, part, shared, capacity)
    return kernel
