"""Memory that no user sees, used again by later calls: rows that a backward loop alone reads, and workspaces.

Fresh pages cost more than what a kernel does with them, and a gradient is computed again and again for the same shapes.
"""

import math
import threading

import numpy as np

# A buffer has at least LEAST bytes; at most KEPT bytes, in at most MOST buffers, wait for a call.
LEAST, KEPT, MOST = 1 << 16, 1 << 26, 64
_FREE, _LOCK = [], threading.RLock()


class _Buffer:
    """What owns the memory of arrays, and gives it back when the last of them is gone."""

    __slots__ = ("memory", "__array_interface__")

    def __init__(self, memory, shape, dtype):
        self.memory = memory
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (memory.ctypes.data, False), "version": 3}

    def __del__(self):
        with _LOCK:
            _FREE.append(self.memory)
            while len(_FREE) > MOST or sum(map(len, _FREE)) > KEPT:
                del _FREE[0]


def empty(shape, dtype):
    """Return an array whose memory comes from a call before, if there is some of about that size."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if not LEAST <= size <= KEPT:
        return np.empty(shape, dtype)
    unit = 1 << size.bit_length() - 4
    whole = -(-size // unit) * unit  # of eight sizes up to the next power of two
    with _LOCK:
        k = next((k for k, memory in enumerate(_FREE) if len(memory) == whole), None)
        memory = np.empty(whole, np.uint8) if k is None else _FREE.pop(k)
    return np.asarray(_Buffer(memory, shape, dtype))
