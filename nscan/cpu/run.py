"""Run loop rows on the CPU: fill numbers into a kernel's block, call it, collect what it made."""

import math
import mmap
import time

import numpy as np

from nscan import buffers, errors
from nscan.cpu import launch
from nscan.cpu.kernel import kernel_of, lay_out
from nscan.cpu.parts import Lanes, LiveRow, add_parts, divide, partial_sums
from nscan.interpret import Residual
from nscan.plan import kernel as planner
from nscan.plan.live import find_live
from nscan.plan.memory import prepare
from nscan.plan.scatter import colours
from nscan.state import STATE, section
from nscan.tape import locate

# Room for copies of a sum, one for each part. Where they would need more, and the plan allows it, parts share one array.
COPY_BYTES = 1 << 22
# A workspace from this size on is mapped page by page.
PAGED_BYTES = 1 << 21
# A loop of unknown length runs this far at first, with room for as many rows; both double.
GROW = 1 << 10


def run_loop(loop, values, watch=None):
    """Run a loop on real arrays.

    Parameters
    ----------
    loop : Loop
    values : list
        Operands of the loop equation.
    watch : callable, optional
        Called now and then with the number of steps done.
    """
    from nscan.cpu import segments
    n = int(values[0])
    if n and any(type(v) is segments.SegmentRow for v in values):
        return segments.backward(loop, n, values[1:], watch)
    arrays = [x if type(x) is LiveRow else np.asarray(x) for v in values[1:] for x in (v.arrays if isinstance(v, Residual) else (v,))]
    if n == 0:
        return no_steps(loop, arrays)
    if loop.hidden and loop.keep == "segments":
        return segments.forward(loop, n, arrays, watch)
    return run_kernel(loop, n, arrays, watch=watch)


def run_kernel(loop, n, arrays, marks=None, limit=None, watch=None):
    """Run a loop by its kernel.

    Parameters
    ----------
    marks : optional
        What keeps states on the way (see `LoopRun.finish`).
    limit : int, optional
        A loop of unknown length that needs room for more rows is given up: None is returned.
    watch : callable, optional
        See `run_loop`.
    """
    kernel, lanes = chosen(loop, n, arrays, marks is not None)
    arrays = reordered(kernel, loop, arrays, lanes)
    while True:
        run = LoopRun(loop, kernel, n, arrays, limit and min(n, GROW, limit), watch, lanes)
        word = run.finish(marks, limit)
        if word is None:
            return run.results()
        if word == GIVEN_UP:
            return None
        make_room(loop, kernel, run.layout, word)
        if marks is not None:
            marks.restart()


def make_room(loop, kernel, layout, word):
    """Raise the error of a status word, unless it asks for more room for inner loops: then make that."""
    if word[0] != NO_ROOM:
        raise failure(loop, word, kernel.program.live is not None)
    if kernel.layout.capacity <= layout.capacity:
        lay_out(kernel, 2 * layout.capacity)


def chosen(loop, n, arrays, pauses=False):
    """Return the kernel of a loop, and how its lanes end where running over the live ones alone pays.

    Where lanes join, the initial value of a state that lives in rows stands in the row before the first one of its lane: so
    these must be no hidden rows, and the run may not pause.
    """
    kernel = kernel_of(loop)
    if kernel.program.live is None:
        return kernel, None
    lanes = Lanes(kernel, n, arrays)
    if lanes.is_monotone and not (lanes.grows and (pauses or kernel.program.before)) and lanes.pays(kernel, arrays):
        return kernel, lanes
    return kernel_of(loop, masked=True), None


def reordered(kernel, loop, arrays, lanes=None):
    """Arrange initial values in the order of the kernel, and lanes in theirs."""
    a, b = loop.seqs, loop.seqs + loop.states
    place = sorted(range(loop.states), key=kernel.order.__getitem__)
    arrays = [*arrays[:a], *[arrays[a + k] for k in place], *arrays[b:]]
    return [np.asarray(x) for x in arrays] if lanes is None else lanes.arrays(arrays)


def no_steps(loop, arrays):
    """Results of a loop that runs no step: nothing is computed."""
    _, _, rows, hidden, _ = loop.split_step_outputs(loop.step.outputs)
    outs = [np.empty((0, *v.shape), v.dtype) for v in (*rows, *hidden)]
    return arranged(loop, outs, [np.array(x) for x in arrays[loop.seqs:loop.seqs + loop.states + loop.sums]], 0)


# ------------------------------------------------------------------------------------------------- one run
class LoopRun:
    """One run of a kernel: the memory it works on, and how far it is.

    Parameters
    ----------
    loop : Loop
        As the caller knows it.
    kernel : Kernel
    n : int
        Number of steps, or the largest number of them.
    arrays : list of ndarray
        Operands in the order of the kernel.
    room : int, optional
        Rows that there is room for; a run with less room than steps is started for a part of them by `restart`.
    watch : callable, optional
        See `run_loop`.
    lanes : Lanes, optional
        How its lanes end; the operands are in their order.
    """

    def __init__(self, loop, kernel, n, arrays, room=None, watch=None, lanes=None):
        self.loop, self.kernel, self.n, self.arrays, self.layout = loop, kernel, n, arrays, kernel.layout
        self.watch, self.lanes = watch, lanes
        self.room = room or (min(n, GROW) if loop.stop else n)
        self.parts, by_lanes = lanes.divide(kernel.program, n) if lanes else divide(kernel, self.room if loop.stop else n)
        # By how many rows arrays begin later than those of all steps, by their number; they may change between calls.
        self.shift, self.block = {}, None
        self._by_steps = len(self.parts) > 1 and not by_lanes
        rows, finals = kernel.types
        states = kernel.loop.states
        self.whole = [self._row_array(k, shape, dtype) for k, (shape, dtype) in enumerate(rows)]
        self._lead(self.room)
        self.lasts = [np.empty(shape, dtype) for shape, dtype in finals[:states]]
        self.groups = None
        self.sums, self.distances = self._sums(finals[states:], by_lanes)
        # Parts of steps run to their end at once; parts of lanes may pause, and go on with what they left.
        self.rooms = launch.rooms(len(self.parts)) if self._by_steps else len(self.parts)
        self.workspace = memory(self.layout.shared + self.layout.workspace * self.rooms + 64)
        self.counter = np.zeros(len(self.parts), np.int64)
        self.clock = np.zeros((len(self.parts), 1 + len(kernel.program.marks)), np.int64)

    def _lead(self, count):
        """Put initial values before the first of some number of rows where the plan says so."""
        for j, i in self.kernel.program.led.items():
            if self.lanes and self.lanes.grows:
                self.whole[j][self.lanes.places_before(), np.arange(self.kernel.program.lane)] = self.arrays[self.loop.seqs + i]
            else:
                self.whole[j][count if self.loop.reverse else 0] = self.arrays[self.loop.seqs + i]

    def restart(self, states, lo, hi):
        """Make ready to run the steps from lo to hi alone, from given states (in the order of the caller)."""
        a = self.loop.seqs
        states = [states[k] for k in sorted(range(len(states)), key=self.kernel.order.__getitem__)]
        for k, x in enumerate(states if self.lanes is None else self.lanes.initial(states), a):
            if self.block is None:
                self.arrays[k] = np.array(x)
            else:
                self.arrays[k][...] = x
        self._lead(hi - lo)
        first = self.n - hi if self.loop.reverse else lo
        self.shift = {len(self.arrays) + k: first for k in range(len(self.whole))}

    def _row_array(self, k, shape, dtype):
        """Array of a row, with an initial value before the first one where the plan says so."""
        program = self.kernel.program
        if k in program.before:
            return None
        visible = k < self.loop.rows and not self.loop.private
        empty = np.zeros if self.lanes and visible and not self.lanes.is_restored(k) else buffers.empty
        return empty((self.room + (k in program.led), *shape), dtype)

    def _sums(self, types, by_lanes):
        """Room for sums; where parts share an array, find out which of them may run at the same time."""
        loop, program, count = self.kernel.loop, self.kernel.program, len(self.parts)
        size = {k: count * np.dtype(types[k][1]).itemsize * math.prod(types[k][0]) for k in program.scatters}
        shared = {k: eqns for k, eqns in program.scatters.items() if count > 1 and not by_lanes and size[k] > COPY_BYTES}
        if shared:
            found = colours(loop, shared, self.arrays, self.parts[:, :2].tolist())
            self.groups = [np.array(group, np.int64) for group in found]
        initial = self.arrays[loop.seqs + loop.states:]
        return partial_sums(self.kernel, types, count, by_lanes, {k: initial[k] for k in shared})

    def rows(self):
        """Return the rows proper; some are views of others, one step before."""
        program = self.kernel.program
        early, late = (slice(None, -1), slice(1, None))[::-1 if self.loop.reverse else 1]
        return [self.whole[program.before[k]][early] if k in program.before else x[late] if k in program.led else x
                for k, x in enumerate(self.whole)]

    def finish(self, marks=None, limit=None):
        """Run to the end; return the status word of the first failure, or None.

        Parameters
        ----------
        marks : optional
            ``upcoming(done)`` is the next step after which the run pauses, or None; then ``keep(run, done)`` is called.
        limit : int, optional
            Rows at which a loop of unknown length is given up.
        """
        done, fresh = 0, True
        while True:
            pause = marks and marks.upcoming(done)
            stop = self.room if pause is None else min(self.room, pause)
            word = self.advance(done, stop, fresh)
            if word is not None:
                return word
            fresh, done = False, stop
            if done == self.n or self.counter[0] < 0:
                return None
            if done == pause:
                marks.keep(self, done)
            if done == self.room:
                if limit is not None and done >= limit:
                    return GIVEN_UP
                self.room = min(self.n, 2 * self.room, limit or self.n)
                self._grow()

    def advance(self, start, stop, fresh):
        """Run steps of all parts, which go on from where they are unless they are to start; return a status word or None."""
        kernel = self.kernel
        parts = self.parts
        if not self._by_steps:
            parts[:, 0], parts[:, 1] = start, stop
        status = np.zeros((len(parts), 8), np.int64)
        work = kernel.program.work * int(parts[-1, 1] - parts[0, 0])
        spans = None
        if self.lanes:
            spans, work = self.lanes.spans(parts, fresh), int(work * self.lanes.share(start, stop))
        run = launch.Run(kernel.function, kernel.address, parts, kernel.block, status, self._block(), fresh,
                         once=fresh and bool(kernel.program.once), lanes=kernel.program.lane, work=work, groups=self.groups,
                         rooms=self.rooms, spans=spans)
        with section("kernels"):
            begin = time.perf_counter()
            launch.run_watched(run, None if self.watch is None else lambda: self.watch(self._done(run)))
            seconds = time.perf_counter() - begin
        if kernel.program.marks and STATE.profile is not None:
            steps = min(self.steps, stop) - start if self.loop.stop else stop - start
            STATE.profile.add_run(self.loop, steps, seconds, times_of(kernel, self.clock, seconds), bool(fresh))
            self.clock[:, 1:] = 0
        return min((w for w in status.tolist() if w[0]), key=lambda w: (w[1], w[2]), default=None)

    def _done(self, run):
        """Steps that are done: of all parts together where they split the steps, on average where they split lanes."""
        first, last = int(self.parts[0, 0]), int(self.parts[-1, 0])
        return first + int(run.control[1:].sum() if last > first else run.control[1:].mean())

    @property
    def steps(self):
        """Number of steps that ran."""
        count = int(self.counter[0])
        return (~count if count < 0 else count) if self.loop.stop else self.n

    def _grow(self):
        """Make room for more rows behind those there are."""
        self.block = None
        for k, (old, (shape, dtype)) in enumerate(zip(self.whole, self.kernel.types[0])):
            if old is not None:
                self.whole[k] = self._row_array(k, shape, dtype)
                self.whole[k][:len(old)] = old

    def _block(self):
        """Fill addresses, strides and what else changes from call to call into a block of numbers."""
        arrays = [*self.arrays, *self.rows(), *self.lasts, *self.sums]
        numbers = self._numbers()
        if self.block is None:
            self.block = self._whole_block(arrays)
        for k in (*numbers, *self.shift):
            for place in self.kernel.places.get(k, ()):
                self.block[place] = numbers.get(k) or arrays[k].ctypes.data - self._shifted(k, arrays)
        return self.block

    def _whole_block(self, arrays):
        block = self.layout.template.copy()
        first_sum = len(arrays) - len(self.sums)
        shared = -(-self.workspace.ctypes.data // 64) * 64
        for k, key in self.kernel.moving:
            kind = key[0]
            if kind == "address":
                block[k] = arrays[key[1]].ctypes.data
            elif kind == "stride":
                block[k] = arrays[key[1]].strides[key[2]]
            elif kind == "shared":
                block[k] = shared
            elif kind == "workspace":
                block[k] = shared + self.layout.shared
            elif kind == "steps":
                block[k] = self.n
            elif kind == "counter":
                block[k] = self.counter.ctypes.data
            elif kind == "clock":
                block[k] = self.clock.ctypes.data
            else:
                block[k] = self.distances[key[1] - first_sum]
        return block

    def _shifted(self, k, arrays):
        """Bytes from where an array would begin, if it held the rows of all steps, to where it begins."""
        return self.shift[k] * arrays[k].strides[0] if k in self.shift else 0

    def _numbers(self):
        """Lay operands without axes side by side in memory: the address of each."""
        given = [k for k, x in enumerate(self.arrays) if not x.ndim]
        self.given = np.frombuffer(b"".join([self.arrays[k].tobytes().ljust(16) for k in given]), np.uint8)
        first = self.given.ctypes.data
        return {k: first + 16 * j for j, k in enumerate(given)}

    def totals(self):
        """States and sums after the last step that has run, in the order of the caller."""
        sums = [add_parts(s) if d > 0 else s for s, d in zip(self.sums, self.distances)]
        totals = [*self.lasts, *sums]
        if self.lanes:
            totals = list(map(self.lanes.restored, totals, self.lanes.live.finals))
        return [*[totals[k] for k in self.kernel.order], *totals[self.loop.states:]]

    def results(self):
        """Outputs in the order of the loop equation."""
        rows = self.rows()
        if self.lanes:
            if self.lanes.grows:
                for k in self.kernel.program.led:
                    self.whole[k][self.lanes.places_before(), np.arange(self.kernel.program.lane)] = 0
            rows = self.lanes.rows(rows, 0 if self.loop.private else self.loop.rows)
        return arranged(self.loop, rows, self.totals(), self.steps)


def memory(size):
    """Return room for a number of bytes.

    Buffers of windows are laid out for the largest window, and little of them is touched; NumPy asks for huge pages
    for such an array, and would take all of it.
    """
    return np.frombuffer(mmap.mmap(-1, size), np.uint8) if size > PAGED_BYTES else buffers.empty((size,), np.uint8)


def arranged(loop, outs, lasts, done):
    """Arrange outputs in the order of the loop equation."""
    if loop.stop:
        outs = [o if len(o) == done else o[:done].copy() for o in outs]
    rows, hidden = outs[:loop.rows], outs[loop.rows:]
    result = [*rows, *[x if x.ndim else x[()] for x in lasts]]
    if loop.stop:
        result.append(np.int64(done))
    if loop.hidden:
        result.append(Residual(hidden))
    return tuple(result)


NO_ROOM, GIVEN_UP = 6, "given up"
REASONS = {1: (errors.IndexRangeError, "index {} is out of bounds for an axis with size {}"),
           2: (errors.SingularError, "Singular matrix"), 3: (errors.SingularError, "Matrix is not positive definite"),
           4: (errors.SizeError, "operands could not be broadcast together: sizes {} and {}"),
           5: (errors.ArithmeticStepError, "Integers to negative integer powers are not allowed."),
           7: (errors.SizeError, "{name!r} cannot run {} steps"), 8: (errors.SizeError, "{name!r} cannot run {} steps over {} rows")}


def failure(loop, word, live=False):
    """Build the error that a status word of a kernel stands for (`live`: of one without the masks of ended lanes)."""
    code, step, equation, first, second = word[:5]
    kind, text = REASONS[code]
    prepared = prepare(loop)[0]
    eqn = tuple(planner.numbered((find_live(prepared).loop if live else prepared).step))[equation]
    message = f"{text.format(first, second, **eqn.params)} (step {step} of {loop.name!r})"
    place = locate(eqn.where)
    if place is not None:
        message += f", at {place}: {place.text}" if place.text else f", at {place}"
    out = kind(message)
    out.placed = True
    return out


def times_of(kernel, clock, seconds):
    """Divide the time of a run by the ticks of its clocks: a list of (stage, place or None, seconds)."""
    ticks = clock[:, 1:].sum(axis=0)
    unit = seconds / max(1, int(ticks.sum()))
    out = []
    for mark, count in zip(kernel.program.marks, ticks.tolist()):
        total = sum(work for _, work in mark.shares)
        shares = mark.shares if total else ((None, 1),)
        out += [(mark.stage, None if q is None else locate(q.where), count * unit * work / (total or 1)) for q, work in shares]
    return out
