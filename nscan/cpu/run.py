"""Run loop rows on the CPU: plan and compile on first sight, then fill in numbers and call."""

import ctypes
import dataclasses
import math

import numpy as np

from nscan import build, errors
from nscan.cpu import launch, library
from nscan.interpret import Residual
from nscan.ops.loop import run_adjoint, run_cond
from nscan.plan import kernel as planner
from nscan.plan.memory import prepare
from nscan.tape import locate

PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * 5, ctypes.c_void_p)
GROW = 1 << 10
CAPACITY = 64
# Buffers of a block fill half a megabyte; a part of the lanes or steps is worth at least WORTH multiplications.
BLOCK_BYTES, MIN_BLOCK, MAX_BLOCK = 1 << 19, 8, 1 << 12
WORTH, MAX_PARTS = 1 << 21, 64


def host_features():
    """What the host can do, as far as it changes what is printed."""
    if not _FEATURES:
        import llvmlite.binding as llvm
        found = llvm.get_host_cpu_features()
        _FEATURES.append(tuple(name for name in ("fma", "avx512f") if found.get(name)))
    return _FEATURES[0]


_FEATURES = []


@dataclasses.dataclass(eq=False)
class Kernel:
    """A compiled loop, ready to be called with arrays.

    Attributes
    ----------
    loop : Loop
        As it was planned.
    program : Program
    function : ctypes function
    address : int
        Of the same function.
    template : ndarray of int64
        The block of numbers with everything filled in that does not change from call to call.
    moving : list of (position in the block, key)
        What does change.
    order : tuple of int
        For each state as the caller counts them, its number among the states and sums of the kernel.
    capacity : int
        Room for rows of inner loops of unknown length; it doubles when it is not enough.
    steps_of_block : int
        Steps of a block: as many as the buffers of a block have room for; 0 where there are no such buffers.
    workspace : int
        Bytes of the workspace of a part.
    """

    loop: object
    program: object
    function: object
    address: int
    template: np.ndarray
    moving: list
    order: tuple
    capacity: int = CAPACITY
    steps_of_block: int = 0
    workspace: int = 0


_KERNELS = {}


def run_compiled(row, values, params):
    """Run a loop row on real arrays with compiled kernels."""
    if row.name == "loop":
        return run_loop(params["loop"], values)
    if row.name == "cond":
        return run_cond(params["cond"], values)
    return run_adjoint(values, run_compiled, **params)


def kernel_of(loop):
    """Return the kernel of a loop: planned and compiled once for each structure."""
    key = loop.key()
    found = _KERNELS.get(key)
    if found is None:
        found = _KERNELS[key] = make_kernel(loop)
    return found


def make_kernel(loop):
    """Plan and compile a loop."""
    prepared, order = prepare(loop)
    program = planner.plan(prepared, host_features())
    module = build.build(program.text, host_features())
    template = np.zeros(len(program.keys) + 1, np.int64)
    moving = []
    for k, key in enumerate(program.keys):
        if key[0] == "size":
            template[k] = program.sizes[key[1]]
        elif key[0] == "number":
            template[k] = program.numbers[key[1]]
        elif key[0] == "function":
            template[k] = library.address(key[1])
        elif key[0] == "lapack":
            template[k] = library.lapack_address(key[1], key[2])
        elif key[0] in ("address", "stride", "workspace", "steps", "partial"):
            moving.append((k, key))
    address = module.kernel.address
    kernel = Kernel(prepared, program, PROTOTYPE(address), address, template, moving,
                    order, steps_of_block=block_length(program))
    lay_out(kernel)
    return kernel


def block_length(program):
    """Steps of a block, a function of shapes and dtypes alone."""
    bytes_of_step = 0
    for slot in program.slots:
        if ("block",) in slot.sizes:
            sizes = [d if isinstance(d, int) else 1 if d[0] == "block" else program.sizes[d[1]] for d in slot.sizes]
            bytes_of_step += slot.itemsize * math.prod(sizes)
    if bytes_of_step and program.lane:
        bytes_of_step = max(1, bytes_of_step * min(program.lane_block, program.lane) // program.lane)
    return min(MAX_BLOCK, max(MIN_BLOCK, BLOCK_BYTES // bytes_of_step)) if bytes_of_step else 0


def lay_out(kernel):
    """Fill in offsets of the workspace slots and the bytes of all, for the present capacity."""
    program, offsets, total = kernel.program, [], 0
    for slot in program.slots:
        size = slot.itemsize * math.prod([d if isinstance(d, int) else slot_size(kernel, d) for d in slot.sizes])
        offsets.append(total)
        total += -(-size // 64) * 64
    kernel.workspace = total + 64
    for k, key in enumerate(program.keys):
        if key[0] == "slot":
            kernel.template[k] = offsets[key[1]]
        elif key[0] == "capacity":
            kernel.template[k] = kernel.capacity
        elif key[0] == "part":
            kernel.template[k] = kernel.workspace


def slot_size(kernel, key):
    """Size that a key of a slot stands for."""
    if key[0] == "capacity":
        return kernel.capacity
    return kernel.steps_of_block if key[0] == "block" else kernel.program.sizes[key[1]]


def run_loop(loop, values):
    """Run a loop on real arrays."""
    kernel = kernel_of(loop)
    n = int(values[0])
    arrays = [np.asarray(x) for v in values[1:] for x in (v.arrays if isinstance(v, Residual) else (v,))]
    if n == 0:
        return no_steps(loop, arrays)
    arrays = reordered(kernel, loop, arrays)
    types = output_types(kernel.loop)
    if loop.stop and n > GROW and (loop.rows or loop.hidden):
        return run_growing(loop, kernel, n, arrays, types)
    return call(loop, kernel, n, n, arrays, types)


def reordered(kernel, loop, arrays):
    """Arrange initial values in the order of the kernel."""
    a, b = loop.seqs, loop.seqs + loop.states
    place = sorted(range(loop.states), key=kernel.order.__getitem__)
    return [*arrays[:a], *[arrays[a + k] for k in place], *arrays[b:]]


def no_steps(loop, arrays):
    """Results of a loop that runs no step: nothing is computed."""
    _, _, rows, hidden, _ = loop.split_step_outputs(loop.step.outputs)
    outs = [np.empty((0, *v.shape), v.dtype) for v in (*rows, *hidden)]
    return results(loop, outs, [np.array(x) for x in arrays[loop.seqs:loop.seqs + loop.states + loop.sums]], 0)


def output_types(loop):
    """Shapes and dtypes of rows (hidden ones included) and of final states and sums."""
    _, _, rows, hidden, _ = loop.split_step_outputs(loop.step.outputs)
    _, state_vars, sum_vars, _ = loop.split_step_inputs(loop.step.inputs)
    return ([(tuple(v.shape), v.dtype) for v in (*rows, *hidden)],
            [(tuple(v.shape), v.dtype) for v in (*state_vars, *sum_vars)])


def run_growing(loop, kernel, n, arrays, types):
    """Run a loop of unknown length: the room for rows doubles until the loop stops by itself."""
    room = GROW
    while True:
        room = min(room, n)
        result = call(loop, kernel, n, room, arrays, types)
        if int(result[loop.visible - 1]) < room or room == n:
            return result
        room *= 2


# ------------------------------------------------------------------------------------------------- one call
def divide(kernel, n):
    """Divide a call into parts of lanes, or of steps where steps are independent.

    Returns
    -------
    ndarray of int64, shape (parts, 4)
        step0, step1, lane0, lane1. A function of shapes, dtypes and the number of steps alone.
    by_lanes : bool
    """
    program, loop = kernel.program, kernel.loop
    worth = min(MAX_PARTS, program.work * n // WORTH)
    if not loop.states and not loop.stop and worth > 1 and n > 1:
        count = int(min(worth, n))
        edges = [n * k // count for k in range(count + 1)]
        return np.array([(a, b, 0, program.lane) for a, b in zip(edges, edges[1:])], np.int64), False
    count = int(min(worth, -(-program.lane // max(1, program.lane_block)))) if program.lane else 1
    if count > 1:
        each = -(-program.lane // count)
        edges = [*range(0, program.lane, each), program.lane]
        return np.array([(0, n, a, b) for a, b in zip(edges, edges[1:])], np.int64), True
    return np.array([(0, n, 0, program.lane)], np.int64), False


def call(loop, kernel, n, room, arrays, types):
    """Run steps up to `room` and collect the results."""
    parts, by_lanes = divide(kernel, room)
    rows, finals = types
    states = kernel.loop.states
    outs = make_rows(kernel, room, arrays, rows)
    lasts = [np.empty(shape, dtype) for shape, dtype in finals[:states]]
    sums, distances = partial_sums(kernel, finals[states:], len(parts), by_lanes)
    count = np.zeros((), np.int64)
    everything = [*arrays, *outs, *lasts, *sums, *([count] if loop.stop else [])]
    workspace = np.empty(kernel.workspace * len(parts) + 64, np.uint8)
    first_sum = len(everything) - len(sums) - loop.stop
    block = fill_block(kernel, n, everything, workspace, {first_sum + k: d for k, d in enumerate(distances)})
    status = np.zeros((len(parts), 8), np.int64)
    each = kernel.steps_of_block or room
    launch.run_parts(kernel.function, kernel.address, parts, each, status, block)
    if status[:, 0].any():
        word = min((w for w in status.tolist() if w[0]), key=lambda w: (w[1], w[2]))
        if word[0] == NO_ROOM:
            kernel.capacity *= 2
            lay_out(kernel)
            return call(loop, kernel, n, room, arrays, types)
        raise failure(loop, kernel, word)
    totals = [*lasts, *[add_parts(s) if d else s for s, d in zip(sums, distances)]]
    totals = [*[totals[k] for k in kernel.order], *totals[loop.states:]]
    return results(loop, outs, totals, int(count) if loop.stop else n)


def make_rows(kernel, room, arrays, types):
    """Make the arrays of rows; where a state's initial value is to lie before the first row, it is put there."""
    program, loop = kernel.program, kernel.loop
    outs = [None if k in program.before else np.empty((room + (k in program.led), *shape), dtype)
            for k, (shape, dtype) in enumerate(types)]
    early, late = (slice(None, -1), slice(1, None))[::-1 if loop.reverse else 1]
    whole = {j: outs[j] for j in program.led}
    for j, i in program.led.items():
        whole[j][-1 if loop.reverse else 0] = arrays[loop.seqs + i]
        outs[j] = whole[j][late]
    for k, j in program.before.items():
        outs[k] = whole[j][early]
    return outs


def partial_sums(kernel, types, count, by_lanes):
    """Room for sums: one for each part, unless parts write to different lanes of it."""
    sums, distances = [], []
    for k, (shape, dtype) in enumerate(types):
        whole = count == 1 or by_lanes and k in kernel.program.lane_sums
        sums.append(np.empty(shape if whole else (count, *shape), dtype))
        distances.append(0 if whole else sums[-1].nbytes // count)
    return sums, distances


def add_parts(sums):
    """Add up the parts of a sum, in order."""
    total = sums[0].copy()
    for part in sums[1:]:
        total += part
    return total


def fill_block(kernel, n, arrays, workspace, distances):
    """Fill addresses, strides and what else changes from call to call into the block of numbers."""
    block = kernel.template.copy()
    for k, key in kernel.moving:
        kind = key[0]
        if kind == "address":
            block[k] = arrays[key[1]].ctypes.data
        elif kind == "stride":
            block[k] = arrays[key[1]].strides[key[2]]
        elif kind == "workspace":
            block[k] = -(-workspace.ctypes.data // 64) * 64
        elif kind == "steps":
            block[k] = n
        else:
            block[k] = distances[key[1]]
    return block


def results(loop, outs, lasts, done):
    """Arrange outputs in the order of the loop equation."""
    if loop.stop:
        outs = [o if len(o) == done else o[:done].copy() for o in outs]
    rows, hidden = outs[:loop.rows], outs[loop.rows:]
    result = [*rows, *[x[()] for x in lasts]]
    if loop.stop:
        result.append(np.int64(done))
    if loop.hidden:
        result.append(Residual(hidden))
    return tuple(result)


NO_ROOM = 6
REASONS = {1: (errors.IndexRangeError, "index {} is out of bounds for an axis with size {}"),
           2: (errors.SingularError, "Singular matrix"), 3: (errors.SingularError, "Matrix is not positive definite"),
           4: (errors.SizeError, "operands could not be broadcast together: sizes {} and {}"),
           5: (errors.ArithmeticStepError, "Integers to negative integer powers are not allowed.")}


def failure(loop, kernel, word):
    """Build the error that a status word stands for."""
    code, step, equation, first, second = word[:5]
    kind, text = REASONS[code]
    message = f"{text.format(first, second)} (step {step} of {loop.name!r})"
    eqns = tuple(planner.numbered(loop.step)) if not loop.hidden else kernel.program.eqns
    place = locate(eqns[equation].where) if equation < len(eqns) else None
    if place is not None:
        message += f", at {place}: {place.text}" if place.text else f", at {place}"
    out = kind(message)
    out.placed = True
    return out
