"""Sums to which steps add at places of their own: which parts of the steps may run at the same time.

The cotangent of an array that the steps of a map read in windows is such a sum. Instead of a copy for each part,
all parts add to one array: an inspector, which is plain NumPy over the bounds of the windows, finds the box of
places that each part touches. Parts get colours so that those of one colour touch disjoint boxes; colours run one
after another, parts of a colour at the same time. What is added to a place is then added in an order that
depends on data and shapes alone, not on threads. (Graph colouring of conflicts, first fit: Saltz et al., the
inspector-executor scheme, 1991.)
"""

import numpy as np

from nscan.tape import Lit, Var


def find_scatters(terms):
    """Return the sums that are only added to at indexed places: number of the sum to its equations."""
    found, dense = {}, set()
    for k, t in terms:
        if type(t) is Var or type(t) is Lit:
            dense.add(k)
        else:
            found.setdefault(k, []).append(t)
    return {k: eqns for k, eqns in found.items() if k not in dense}


def colours(loop, scatters, arrays, edges):
    """Colour the parts of the steps.

    Parameters
    ----------
    loop : Loop
        As it was planned.
    scatters : dict of int to list of Eqn
    arrays : list of ndarray
        Operands of the loop, without the number of steps.
    edges : sequence of (int, int)
        First and last step of each part.

    Returns
    -------
    list of list of int
        Parts by colour.
    """
    count = len(arrays[0]) if loop.seqs else 0
    boxes = []
    for first, last in edges:
        rows = slice(count - last, count - first) if loop.reverse else slice(first, last)
        inspector = _Inspector(loop, arrays, rows)
        boxes.append([inspector.box(eqns) for eqns in scatters.values()])
    out, colour_of = [], []
    for k, mine in enumerate(boxes):
        taken = {colour_of[j] for j in range(k) if any(map(_overlap, mine, boxes[j]))}
        colour = next(c for c in range(k + 1) if c not in taken)
        colour_of.append(colour)
        if colour == len(out):
            out.append([])
        out[colour].append(k)
    return out


def _overlap(a, b):
    """Whether two boxes (None: empty) share a place."""
    return a is not None and b is not None and bool(np.all((a[:, 0] < b[:, 1]) & (b[:, 0] < a[:, 1])))


class _Inspector:
    """Computes the numbers behind an index for all steps of a part at once; None where it does not know how."""

    def __init__(self, loop, arrays, rows):
        seqs, states, sums, consts = loop.split_step_inputs(loop.step.inputs)
        self.whole = dict(zip(consts, arrays[loop.seqs + loop.states + loop.sums:]))
        self.rows = {v: x[rows] for v, x in zip(seqs, arrays)}
        self.maker = {v: q for q in loop.step.eqns for v in q.outputs}
        self.known = {v: None for v in (*states, *sums)}

    def box(self, eqns):
        """Places that equations touch: array of (first, last + 1) for each axis, or None if there are none."""
        boxes = [b for b in map(self._box_of, eqns) if b is not None]
        return np.stack([np.min([b[:, 0] for b in boxes], axis=0), np.max([b[:, 1] for b in boxes], axis=0)], 1) if boxes else None

    def _box_of(self, q):
        operands, out, sizes = q.inputs[2:], [], iter(q.inputs[0].shape)
        for entry in q.params["spec"].entries:
            if entry[0] == "new":
                continue
            size = next(sizes)
            first, last = self._range(entry, operands, size)
            if last <= first:
                return None
            out.append((max(0, first), min(size, last)))
        return np.array(out).reshape(-1, 2)

    def _range(self, entry, operands, size):
        """First place and the one after the last that an entry of an index reaches along its axis."""
        kind = entry[0]
        if kind == "at":
            return entry[1], entry[1] + 1
        start = entry[1] if kind == "slice" else self.value(operands[entry[1]])
        count = entry[2] if kind == "slice" else self.value(operands[entry[2]]) if kind == "dyn" else 1
        if start is None or count is None or kind == "arr":
            return 0, size
        start, count = np.broadcast_arrays(start, count)
        if kind == "atop":
            start = np.where(start < 0, start + size, start)
        ends = np.stack([start, start + (count - 1) * (1 if kind == "atop" else entry[3])])[..., count > 0]
        return (int(ends.min()), int(ends.max()) + 1) if ends.size else (0, 0)

    def value(self, v):
        """Values of a number for the steps of the part (or one for all), or None."""
        if type(v) is Lit:
            return v.value
        if v not in self.known:
            self.known[v] = self._compute(v)
        return self.known[v]

    def _compute(self, v):
        if v.shape:
            return None
        if v in self.rows:
            return self.rows[v]
        if v in self.whole:
            return self.whole[v]
        q = self.maker[v]
        if q.row.name == "index":
            return self._read(q)
        if q.row.kind != "pointwise" and q.row.name not in SIZES:
            return None
        values = [self.value(x) for x in q.inputs]
        if any(x is None for x in values):
            return None
        with np.errstate(all="ignore"):
            return SIZES.get(q.row.name, q.row.eager)(*values, **q.params)

    def _read(self, q):
        """Read one entry of a constant, or of the row of a sequence."""
        x, entries = q.inputs[0], q.params["spec"].entries
        if any(e[0] not in ("at", "atop") for e in entries):
            return None
        places = [e[1] if e[0] == "at" else self.value(q.inputs[1 + e[1]]) for e in entries]
        if any(p is None for p in places):
            return None
        places = [np.clip(p, -size, size - 1) for p, size in zip(places, x.shape)]
        if x in self.whole:
            return self.whole[x][tuple(places)]
        return self.rows[x][(np.arange(len(self.rows[x])), *places)] if x in self.rows else None


def _bound(v, n, low, high):
    return np.clip(np.where(v < 0, v + n, v), low, n + high)


def _size(a, b, step):
    return np.maximum(0, -((a - b) // step) if step > 0 else -((b - a) // -step))


# The sizes of slices, for many steps at once.
SIZES = {"slice_bound": _bound, "slice_size": _size, "same_size": lambda a, b: a}
