"""What a kernel is given at run time: one block of int64 numbers, each known by a key.

===========================  ==================================================================
key                          number
===========================  ==================================================================
("size", class)              size of an axis class
("capacity", class)          room for rows of an inner loop whose number of steps is not known
("number", k)                a start or index that an equation holds (k counts them in order)
("address", k)               address of caller's array k
("stride", k, axis)          byte stride of that array
("slot", k)                  byte offset of workspace slot k
("shared",)                  address of the workspace that all parts of lanes or steps share
("workspace",)               address of the workspace of the first part
("partial", k)               bytes between the parts of a sum, array k (0: all write to one array; -1: which the caller has started)
("part",)                    bytes of the workspace of a part
("function", name)           address of a library function
("lapack", name, k)          address of the LAPACK routine k of a helper
("clock",)                   address of the clock of the first part (only in a profile)
("clock size",)              bytes of the clock of a part
("counter",)                 address of the steps done by each part, for loops that stop by themselves
("steps",)                   number of steps of the outermost loop
("block",)                   largest number of steps of a block (sizes of slots only)
===========================  ==================================================================
"""

import dataclasses

from nscan.plan.program import I64


@dataclasses.dataclass(frozen=True)
class Slot:
    """A piece of workspace: bytes of an element times sizes, and at least a number of elements.

    Sizes are ints, keys of the block of numbers, or ``("padded", class, k)``: rounded up to a multiple of k.
    """

    itemsize: int
    sizes: tuple
    least: int = 0
    shared: bool = False


class Params:
    """Keys of the block, in order; numbers and slots that were asked for."""

    def __init__(self):
        self.keys = {}
        self.numbers = []
        self.slots = []

    def get(self, b, key):
        """Return a number of the block as a value."""
        index = self.keys.setdefault(key, len(self.keys))
        return b.op("param", I64, b.const(index))

    def count_number(self, value):
        """Remember a number of an equation and return its position."""
        self.numbers.append(int(value))
        return len(self.numbers) - 1

    def new_slot(self, itemsize, sizes, least=0, shared=False):
        """Ask for a piece of workspace, of each part or of all parts together, and return its number."""
        self.slots.append(Slot(itemsize, tuple(sizes), least, shared))
        return len(self.slots) - 1
