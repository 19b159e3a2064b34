"""Memory of values: places, rows of many steps, pieces of workspace."""

import dataclasses

from nscan.plan.axes import ONE
from nscan.plan.program import I64


def workspace(e, v, shared=False):
    """Return a Place for a value in a fresh piece of workspace, in C order."""
    classes = e.axes.get(v)
    slot = e.params.new_slot(v.dtype.itemsize, [bound_of(c) for c in classes], shared=shared)
    return Place(("work", slot), slot_base(e, slot), row_major(e, classes, v.dtype), v.dtype, True)


def row_major(e, classes, dtype, size=None):
    """Byte strides of an array in C order."""
    strides, step = [], e.b.const(dtype.itemsize)
    for k, c in enumerate(reversed(classes), 1):
        strides.append(step)
        # The first size is in no stride; it may be the number of steps of a loop that has not run yet.
        if k < len(classes):
            step = e.b.mul(step, (size or e.size)(c))
    return tuple(reversed(strides))


def bytes_of(e, v, size=None):
    """Bytes of a value, as a value of the program."""
    total = e.b.const(v.dtype.itemsize)
    for c in e.axes.get(v):
        total = e.b.mul(total, (size or e.size)(c))
    return total


def slot_base(e, slot):
    """Address of a workspace slot: every part that runs at a time has a workspace of its own, but for what all share.

    An argument of the kernel holds the number of the part, and in its upper half that of its workspace.
    """
    b, get = e.b, e.params.get
    if e.params.slots[slot].shared:
        return b.add(get(b, ("shared",)), get(b, ("slot", slot)))
    room = b.op("shr", I64, b.op("arg", I64, b.const(4)), b.const(32))
    return b.add(b.add(get(b, ("workspace",)), b.mul(room, get(b, ("part",)))), get(b, ("slot", slot)))


def part_number(b):
    """Return the number of the part of lanes or steps."""
    return b.op("and", I64, b.op("arg", I64, b.const(4)), b.const(0xFFFFFFFF))


def block_rows(e, v):
    """Return Rows for a value in a fresh piece of workspace that holds a block of steps."""
    classes = e.axes.get(v)
    slot = e.params.new_slot(v.dtype.itemsize, [("block",), *[bound_of(c) for c in classes]])
    stride = bytes_of(e, v)
    base = e.b.sub(slot_base(e, slot), e.b.mul(e.b.op("arg", I64, e.b.const(0)), stride))
    return Rows(Place(("work", slot), base, row_major(e, classes, v.dtype), v.dtype, True), stride)


def bound_of(c):
    """Largest size of an axis class: an int, or a key of the block (a capacity grows when it is not enough)."""
    if c is ONE or type(c) is int:
        return 1 if c is ONE else c
    c = c.find()
    if c.dynamic:
        if c.bound is None:
            return ("capacity", c.number)
        return bound_of(c.bound)
    return c.size if c.unrolled else ("size", c.number)


def retyped(how, dtype):
    """The same memory for elements of another dtype of equal size."""
    if type(how) is Rows:
        return dataclasses.replace(how, first=dataclasses.replace(how.first, dtype=dtype))
    return dataclasses.replace(how, dtype=dtype)


def find_place(e, x):
    """Place or Rows of something in memory, seen through transposes and static slices; None for others."""
    how = e.define.get(x)
    if type(how) in (Place, Rows):
        return how
    if type(how) is not tuple:
        return None
    if how[0] == "alias":
        inner = find_place(e, how[1])
        return None if inner is None else _map_place(inner, lambda p: _moved(e, p, how[2]))
    if how[0] == "eqn":
        q = how[1]
        if q.row.name not in ("transpose", "index") or q.row.name == "index" and not q.params["spec"].is_static:
            return None
        inner = find_place(e, q.inputs[0])
        if inner is None:
            return None
        if q.row.name == "transpose":
            perm = q.params["perm"]
            return _map_place(inner, lambda p: Place(p.slot, p.base, tuple(p.strides[k] for k in perm), p.dtype))
        return _map_place(inner, lambda p: _sliced(e, q, p))
    return None


def _map_place(how, change):
    return Rows(change(how.first), how.stride) if type(how) is Rows else change(how)


def _moved(e, p, lead):
    base = p.base
    for i, stride in zip(lead, p.strides):
        base = e.b.add(base, e.b.mul(i, stride))
    return Place(p.slot, base, p.strides[len(lead):], p.dtype, p.contiguous)


def _sliced(e, q, p):
    base, strides, axis = p.base, [], 0
    for entry in q.params["spec"].entries:
        if entry[0] == "new":
            strides.append(e.b.const(0))
            continue
        stride = p.strides[axis]
        base = e.b.add(base, e.b.mul(e.number(q.inputs[0], axis, entry[1]), stride))
        if entry[0] == "slice":
            strides.append(e.b.mul(stride, e.b.const(entry[3])))
        axis += 1
    return Place(p.slot, base, tuple(strides), p.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """Memory of a value: slot, address of its first element, byte strides of its axes.

    Attributes
    ----------
    slot : hashable
        Two places of one slot may overlap, places of two slots never do.
    base : Value or Const
        Byte address.
    strides : tuple of Value or Const
        Bytes from one element to the next, for each axis.
    dtype : numpy.dtype
    contiguous : bool
        In C order without gaps.
    """

    slot: object
    base: object
    strides: tuple
    dtype: object
    contiguous: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Memory of a value for many steps: a Place for each step, at a fixed distance.

    Attributes
    ----------
    first : Place
        That of step 0 (it may lie outside of the memory, if step 0 does).
    stride : Value or Const
        Bytes from one step to the next.
    """

    first: Place
    stride: object

    @property
    def slot(self):
        """Slot of the memory."""
        return self.first.slot
