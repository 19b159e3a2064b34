"""How a run of a kernel is divided: parts that may run at the same time, and the lanes that each step of a part runs over.

Lanes of unequal length (`nscan.plan.live`) are sorted by their lengths, the longest first, so that those that are live are
the first ones: arrays are sorted on the way in and on the way out, and only what is live is copied. Forward loops have
fewer and fewer lanes, backward loops more and more of them. A part is a list of spans of steps with one number of lanes.
"""

import dataclasses
import math

import numpy as np
from numba import njit

from nscan import buffers

# A part of the lanes or steps is worth at least WORTH multiplications.
WORTH, MAX_PARTS = 1 << 21, 64
# What it costs to run over live lanes alone, in multiplications: eight bytes copied, a change of the number of lanes.
COPY, CHANGE = 64, 10_000


def divide(kernel, n):
    """Divide a call into parts of lanes, or of steps where steps are independent.

    Returns
    -------
    ndarray of int64, shape (parts, 4)
        step0, step1, lane0, lane1. A function of shapes, dtypes and the number of steps alone.
    by_lanes : bool
    """
    program = kernel.program
    if steps_alone(kernel.loop, n):
        count = int(min(MAX_PARTS, program.work * n // WORTH, n))
        if count > 1:
            return parts_of_steps(count, n, program.lane), False
    count = int(min(MAX_PARTS, program.work * n // WORTH, -(-program.lane // max(1, program.lane_block)))) if program.lane else 1
    if count > 1:
        each = -(-program.lane // count)
        edges = [*range(0, program.lane, each), program.lane]
        return np.array([(0, n, a, b) for a, b in zip(edges, edges[1:])], np.int64), True
    return np.array([(0, n, 0, program.lane)], np.int64), False


def steps_alone(loop, n):
    """Whether the steps of a run may be divided."""
    return not loop.states and not loop.stop and n > 1


def parts_of_steps(count, n, lane):
    """Return parts of equally many steps."""
    edges = [n * k // count for k in range(count + 1)]
    return np.array([(a, b, 0, lane) for a, b in zip(edges, edges[1:])], np.int64)


def whole_spans(parts):
    """Return the spans of parts whose lanes all run from the first step to the last, and where those of each part begin."""
    spans = np.ones((len(parts), 4), np.int64)
    spans[:, :2], spans[:, 2] = parts[:, :2], parts[:, 3]
    return spans, np.arange(len(parts) + 1)


def partial_sums(kernel, types, count, by_lanes, shared):
    """Room for sums: one for each part, unless parts write to different lanes of it, or share it (number to initial value)."""
    sums, distances = [], []
    for k, (shape, dtype) in enumerate(types):
        if k in shared:
            sums.append(np.array(shared[k], dtype, order="C"))
            distances.append(-1)
            continue
        whole = count == 1 or by_lanes and k in kernel.program.lane_sums
        sums.append(buffers.empty(shape if whole else (count, *shape), dtype))
        distances.append(0 if whole else sums[-1].nbytes // count)
    return sums, distances


def add_parts(sums):
    """Add up the parts of a sum, in order."""
    total = sums[0].copy()
    for part in sums[1:]:
        total += part
    return total


def units(x):
    """View a contiguous array as rows of lanes of unsigned integers, as wide as they can be."""
    lane = x.nbytes // max(1, x.shape[0] * x.shape[1])
    width = next(w for w in (8, 4, 2, 1) if lane % w == 0)
    return x.reshape(-1).view(f"u{width}").reshape(*x.shape[:2], lane // width)


@njit(cache=True, nogil=True)
def take_live(x, order, counts, out):
    """Copy from each row of lanes those that are live, in order."""
    for t in range(len(counts)):
        for k in range(counts[t]):
            lane = order[k]  # read here, or LLVM reads it again for each item
            for i in range(x.shape[2]):
                out[t, k, i] = x[t, lane, i]


@njit(cache=True, nogil=True)
def put_live(x, order, counts, out):
    """Copy them back, with zeros where a lane has ended."""
    for t in range(len(counts)):
        for k in range(counts[t]):
            lane = order[k]
            for i in range(x.shape[2]):
                out[t, lane, i] = x[t, k, i]
        for k in range(counts[t], len(order)):
            lane = order[k]
            for i in range(x.shape[2]):
                out[t, lane, i] = 0


class Lanes:
    """The lanes of a run that end at different steps.

    Parameters
    ----------
    kernel : Kernel
        Whose program has `live`.
    n : int
        Number of steps.
    arrays : list of ndarray
        Operands.

    Attributes
    ----------
    lengths : ndarray of int64
        Sorted, the longest first.
    order : ndarray of int64 or None
        Number of each lane in the caller's arrays; None if they are sorted already.
    counts : ndarray of int64
        For each step in the order of iteration how many lanes run.
    grows : bool
        Whether lanes join; otherwise they leave.
    steps : ndarray of int64
        For each lane how many steps it runs.
    """

    def __init__(self, kernel, n, arrays):
        self.live, self.loop = kernel.program.live, kernel.loop
        a = self.loop.seqs + self.loop.states + self.loop.sums
        lengths = np.asarray(arrays[a + self.live.lengths])
        order = np.argsort(-lengths, kind="stable")
        self.lengths = lengths[order]
        self.order = None if np.array_equal(lengths, self.lengths) else order
        numbers = np.asarray(arrays[self.live.numbers])[:n]
        numbers = numbers[::-1] if self.loop.reverse else numbers
        self.counts = len(lengths) - np.searchsorted(self.lengths[::-1], numbers, side="right")
        self.grows = n > 1 and bool(self.counts[0] < self.counts[-1])
        self.steps = np.searchsorted(-self.counts[::-1] if self.grows else -self.counts, -np.arange(len(lengths)), side="left")

    @property
    def is_monotone(self):
        """Whether lanes only leave, or only join."""
        change = np.diff(self.counts)
        return bool(np.all(change >= 0) if self.grows else np.all(change <= 0))

    def pays(self, kernel, arrays):
        """Whether the steps that are spared take longer than putting the lanes in order and changing their number."""
        run, all_lanes = int(self.steps.sum()), len(self.counts) * len(self.lengths)
        spared = kernel.program.work / max(1, len(self.lengths)) * (all_lanes - run)
        moved = sum(x.nbytes for x, axis in zip(arrays[:self.loop.seqs], self.live.inputs) if axis == 1 and type(x) is not LiveRow)
        rows = zip(kernel.types[0][:self.loop.rows], self.live.rows)
        moved += sum(math.prod(shape) * dtype.itemsize * len(self.counts) for (shape, dtype), axis in rows if axis is not None)
        moved *= 0 if self.order is None else run / max(1, all_lanes)
        return spared >= COPY * moved / 8 + CHANGE * np.count_nonzero(np.diff(self.counts))

    # ------------------------------------------------------------------------------------------ division
    def divide(self, program, n):
        """Divide a run as `divide` does, into parts that have about as many steps of lanes to run."""
        before = np.cumsum(self.steps)
        worth = min(MAX_PARTS, program.work * int(before[-1]) // (WORTH * program.lane))
        if steps_alone(self.loop, n) and worth > 1:
            return parts_of_steps(min(worth, n), n, program.lane), False
        block = max(1, program.lane_block)
        count = int(min(worth, -(-program.lane // block)))
        if count <= 1:
            return np.array([(0, n, 0, program.lane)], np.int64), False
        shares = np.searchsorted(before, before[-1] * np.arange(1, count) / count)
        edges = np.unique([0, *np.clip((shares + block // 2) // block * block, block, program.lane), program.lane])
        return np.array([(0, n, a, b) for a, b in zip(edges, edges[1:])], np.int64), True

    def spans(self, parts, fresh):
        """Return the spans of parts: first step, last step, end of the lanes, whether final values are to be stored.

        A span without steps starts all lanes of a part, or stores the final values of all.

        Returns
        -------
        spans : ndarray of int64, shape (m, 4)
        offsets : ndarray of int64
            Where those of each part begin.
        """
        out, offsets = [], [0]
        for first, last, lane0, lane1 in parts.tolist():
            counts = np.clip(self.counts[first:last], lane0, lane1)
            cuts = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist(), last - first]
            found = [(first + a, first + b, int(counts[a]), not self.grows) for a, b in zip(cuts, cuts[1:]) if counts[a] > lane0]
            if fresh and (not found or found[0][2] < lane1):
                found.insert(0, (first, first, lane1, not self.grows))
            if self.grows:
                found.append((last, last, lane1, True))
            out += found
            offsets.append(len(out))
        return np.array(out, np.int64).reshape(-1, 4), np.array(offsets)

    def share(self, start, stop):
        """Return which part of the steps of all lanes a range of steps has to run."""
        return self.counts[start:stop].mean() / max(1, len(self.lengths))

    def is_restored(self, k):
        """Whether a row is copied when the run has ended, but for what does not run."""
        return self.order is not None and self.live.rows[k] == 1

    # ----------------------------------------------------------------------------------------------- order
    def arrays(self, arrays):
        """Return the operands of a run in the order of its lanes."""
        return [x.array if type(x) is LiveRow and self._matches(x.lanes) else self.sorted(np.asarray(x), axis, k < self.loop.seqs)
                for k, (x, axis) in enumerate(zip(arrays, self.live.inputs))]

    def _matches(self, other):
        return np.array_equal(self.lengths, other.lengths) and (self.order is other.order or np.array_equal(self.order, other.order))

    def sorted(self, x, axis, by_steps=False):
        """Return an array with its lanes in order; of what has an axis of steps only what is live."""
        if self.order is None or axis is None or not len(x):
            return x
        if not by_steps or axis != 1:
            return np.take(x, self.order, axis)
        out = buffers.empty(x.shape, x.dtype)
        take_live(units(np.ascontiguousarray(x)), self.order, self.counts_of_rows(), units(out))
        return out

    def restored(self, x, axis, by_steps=False):
        """Return an array with its lanes in the order of the caller; rows are zero where a lane does not run."""
        if self.order is None or axis is None:
            return x
        if not by_steps or axis != 1:
            return np.take(x, np.argsort(self.order), axis)
        out = buffers.empty(x.shape, x.dtype)
        put_live(units(np.ascontiguousarray(x)), self.order, self.counts_of_rows(), units(out))
        return out

    def initial(self, states):
        """Return initial values of states (in the order of the kernel) with their lanes in order."""
        return [self.sorted(np.asarray(x), axis) for x, axis in zip(states, self.live.inputs[self.loop.seqs:])]

    def rows(self, rows, visible):
        """Return rows for the caller; the hidden ones, after the first `visible`, stay in order."""
        return [self.restored(x, axis, True) if k < visible else x if axis is None else LiveRow(x, self, axis)
                for k, (x, axis) in enumerate(zip(rows, self.live.rows))]

    def counts_of_rows(self):
        """Return the number of lanes of each row, in the order of rows."""
        return np.ascontiguousarray(self.counts[::-1]) if self.loop.reverse else self.counts

    def places_before(self):
        """For each lane that joins the row before its first one, in an array with a further row (see `Program.led`)."""
        return self.steps if self.loop.reverse else len(self.counts) - self.steps


@dataclasses.dataclass(frozen=True, eq=False)
class LiveRow:
    """A hidden row of all steps as a run left it: lanes in its order, and nothing where they do not run.

    Attributes
    ----------
    array : ndarray
    lanes : Lanes
    axis : int
        That of the lanes.
    """

    array: np.ndarray
    lanes: Lanes
    axis: int

    @property
    def shape(self):
        """Shape of the array."""
        return self.array.shape

    @property
    def dtype(self):
        """Type of its elements."""
        return self.array.dtype

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        return np.asarray(self)[index]

    def __array__(self, dtype=None, copy=None):
        """Lanes in the order of the caller, and values of the longest lane where one does not run."""
        lanes, x = self.lanes, np.moveaxis(self.array, self.axis, 1).copy()
        counts = lanes.counts_of_rows()
        ended = np.arange(x.shape[1]) >= counts[:, None]
        x[ended] = x[np.nonzero(ended)[0], 0]
        x = x if lanes.order is None else x[:, np.argsort(lanes.order)]
        return np.asarray(np.moveaxis(x, 1, self.axis), dtype)
