"""Run loop rows on the CPU: plan and compile on first sight, then fill in numbers and call."""

import ctypes
import dataclasses

import numpy as np

from nscan import build, errors
from nscan.cpu import library
from nscan.interpret import Residual
from nscan.ops.loop import run_adjoint, run_cond
from nscan.plan import kernel as planner
from nscan.plan.memory import prepare
from nscan.tape import locate

START, BLOCK, END = 1, 2, 4
PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int64] * 4, ctypes.c_void_p)
GROW = 1 << 10
BLOCK_BYTES, MIN_BLOCK, MAX_BLOCK = 1 << 19, 8, 1 << 12
CAPACITY = 64
NO_ROOM = 6


def host_features():
    """What the host can do, as far as it changes what is printed."""
    if not _FEATURES:
        import llvmlite.binding as llvm
        found = llvm.get_host_cpu_features()
        _FEATURES.append(tuple(name for name in ("fma",) if found.get(name)))
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
    template : ndarray of int64
        The block of numbers with everything filled in that does not change from call to call.
    addresses, strides : list
        (position in the block, array) and (position, array, axis) of what does.
    workspace : int
        Bytes.
    contiguous : set
        Arrays that must be in C order (initial values).
    steps_of_block : int
        Steps of a block: as many as the buffers of a block have room for; 0 where there are no such buffers.
    capacity : int
        Room for rows of inner loops of unknown length; it doubles when it is not enough.
    """

    loop: object
    program: object
    function: object
    template: np.ndarray
    addresses: list
    strides: list
    workspace_at: int
    steps_at: int
    workspace: int
    contiguous: set
    capacity: int
    steps_of_block: int


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
    prepared = prepare(loop)
    program = planner.plan(prepared)
    module = build.build(program.text, host_features())
    template = np.zeros(len(program.keys) + 1, np.int64)
    addresses, strides = [], []
    workspace_at = steps_at = -1
    for k, key in enumerate(program.keys):
        kind = key[0]
        if kind == "size":
            template[k] = program.sizes[key[1]]
        elif kind == "number":
            template[k] = program.numbers[key[1]]
        elif kind == "function":
            template[k] = library.address(key[1])
        elif kind == "address":
            addresses.append((k, key[1]))
        elif kind == "stride":
            strides.append((k, key[1], key[2]))
        elif kind == "workspace":
            workspace_at = k
        elif kind == "steps":
            steps_at = k
    first = 1 + loop.seqs
    contiguous = set(range(first - 1, first - 1 + loop.states + loop.sums))
    kernel = Kernel(prepared, program, PROTOTYPE(module.kernel.address), template, addresses, strides, workspace_at, steps_at, 0,
                    contiguous, CAPACITY, block_length(program))
    lay_out(kernel)
    return kernel


def block_length(program):
    """Steps of a block: its buffers fill about half of a second-level cache. A function of shapes alone."""
    bytes_of_step = 0
    for slot in program.slots:
        if ("block",) in slot.sizes:
            size = slot.itemsize
            for d in slot.sizes:
                size *= d if isinstance(d, int) else 1 if d[0] == "block" else program.sizes[d[1]]
            bytes_of_step += size
    return min(MAX_BLOCK, max(MIN_BLOCK, BLOCK_BYTES // bytes_of_step)) if bytes_of_step else 0


def lay_out(kernel):
    """Fill in offsets of the workspace slots and the bytes of all, for the present capacity."""
    program, offsets, total = kernel.program, [], 0
    for slot in program.slots:
        size = slot.itemsize
        for d in slot.sizes:
            size *= d if isinstance(d, int) else slot_size(kernel, d)
        offsets.append(total)
        total += -(-size // 64) * 64
    for k, key in enumerate(program.keys):
        if key[0] == "slot":
            kernel.template[k] = offsets[key[1]]
        elif key[0] == "capacity":
            kernel.template[k] = kernel.capacity
    kernel.workspace = total + 64


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
    arrays = [np.ascontiguousarray(x).reshape(x.shape) if k in kernel.contiguous else x for k, x in enumerate(arrays)]
    rows, finals = output_types(loop)
    if n == 0:
        return no_steps(loop, arrays, rows)
    if loop.stop and n > GROW and rows:
        return run_growing(loop, kernel, n, arrays, rows, finals)
    outs = [np.empty((n, *shape), dtype) for shape, dtype in rows]
    return call(loop, kernel, n, n, arrays, outs, finals)


def no_steps(loop, arrays, rows):
    """Results of a loop that runs no step: nothing is computed."""
    outs = [np.empty((0, *shape), dtype) for shape, dtype in rows]
    return results(loop, outs, [np.array(x) for x in arrays[loop.seqs:loop.seqs + loop.states + loop.sums]], 0)


def output_types(loop):
    """Shapes and dtypes of rows (hidden ones included) and of final states and sums."""
    states, sums, rows, hidden, _ = loop.split_step_outputs(loop.step.outputs)
    row_types = [(tuple(v.shape), v.dtype) for v in (*rows, *hidden)]
    _, state_vars, sum_vars, _ = loop.split_step_inputs(loop.step.inputs)
    return row_types, [(tuple(v.shape), v.dtype) for v in (*state_vars, *sum_vars)]


def fill_block(kernel, n, arrays):
    """Fill addresses and strides into the block of numbers."""
    block = kernel.template.copy()
    for k, which in kernel.addresses:
        block[k] = arrays[which].ctypes.data
    for k, which, axis in kernel.strides:
        block[k] = arrays[which].strides[axis]
    if kernel.steps_at >= 0:
        block[kernel.steps_at] = n
    return block


def call(loop, kernel, n, room, arrays, outs, finals, first=0, state=None):
    """Run steps, from `first` to `room` at most, and collect the results."""
    lasts = [np.empty(shape, dtype) for shape, dtype in finals]
    count = np.zeros((), np.int64)
    everything = [*arrays, *outs, *lasts, *([count] if loop.stop else [])]
    workspace = state if state is not None else np.empty(kernel.workspace, np.uint8)
    block = fill_block(kernel, n, everything)
    if kernel.workspace_at >= 0:
        block[kernel.workspace_at] = -(-workspace.ctypes.data // 64) * 64
    status = np.zeros(8, np.int64)
    run_blocks(kernel, status, first, room, block)
    if status[0] == NO_ROOM:
        kernel.capacity *= 2
        lay_out(kernel)
        return call(loop, kernel, n, room, arrays, outs, finals, first)
    if status[0]:
        raise failure(loop, kernel, status)
    return results(loop, outs, lasts, int(count) if loop.stop else n)


def run_blocks(kernel, status, first, last, block):
    """Call the kernel for one block of steps after another."""
    each = kernel.steps_of_block or last - first
    at, numbers = first, block.ctypes.data
    while True:
        stop = min(last, at + each)
        flags = BLOCK | (START if at == first else 0) | (END if stop == last else 0)
        kernel.function(flags, status.ctypes.data, at, stop, 0, 0, numbers)
        if status[0] or stop == last:
            return
        at = stop


def results(loop, outs, lasts, done):
    """Arrange outputs in the order of the loop equation."""
    if loop.stop:
        outs = [o[:done] if len(o) == done else o[:done].copy() for o in outs]
    rows, hidden = outs[:loop.rows], outs[loop.rows:]
    result = [*rows, *[x[()] for x in lasts]]
    if loop.stop:
        result.append(np.int64(done))
    if loop.hidden:
        result.append(Residual(hidden))
    return tuple(result)


def run_growing(loop, kernel, n, arrays, rows, finals):
    """Run a loop of unknown length: the room for rows doubles until the loop stops by itself."""
    room = GROW
    while True:
        room = min(room, n)
        outs = [np.empty((room, *shape), dtype) for shape, dtype in rows]
        result = call(loop, kernel, n, room, arrays, outs, finals)
        done = int(result[loop.visible - 1])
        if done < room or room == n:
            return result
        room *= 2


REASONS = {1: (errors.IndexRangeError, "index {} is out of bounds for an axis with size {}"),
           2: (errors.SingularError, "Singular matrix"), 3: (errors.SingularError, "Matrix is not positive definite"),
           4: (errors.SizeError, "operands could not be broadcast together: sizes {} and {}"),
           5: (errors.ArithmeticStepError, "Integers to negative integer powers are not allowed.")}


def failure(loop, kernel, status):
    """Build the error that a status word stands for."""
    code, step, equation, first, second = (int(x) for x in status[:5])
    kind, text = REASONS[code]
    message = f"{text.format(first, second)} (step {step} of {loop.name!r})"
    eqns = tuple(planner.numbered(loop.step)) if not loop.hidden else kernel.program.eqns
    place = locate(eqns[equation].where) if equation < len(eqns) else None
    if place is not None:
        message += f", at {place}: {place.text}" if place.text else f", at {place}"
    out = kind(message)
    out.placed = True
    return out
