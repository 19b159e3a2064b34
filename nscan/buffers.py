"""Memory of large arrays, used again by later calls.

A page of fresh memory costs more than what most operations do with it, and a gradient is computed again and again for the
same shapes. Arrays from here are ordinary arrays, except that their memory waits for the next call when the last view of it
is gone.
"""

import math
import os
import threading

import numpy as np

# A buffer has at least LEAST bytes; buffers that wait have at most KEPT bytes in all.
LEAST, KEPT = 1 << 20, 1 << 27
_FREE, _HELD = {}, [0]


def _new_lock():
    """Make the lock; anew in a forked child, where the thread that held it may be gone."""
    global _LOCK
    _LOCK = threading.RLock()


_new_lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


class _Buffer:
    """What owns the memory of arrays, and gives it back when the last of them is gone.

    That may happen anywhere, inside `empty` too: it only ever adds to a list that is there, or drops all of them.
    """

    __slots__ = ("memory", "__array_interface__")

    def __init__(self, memory, shape, dtype):
        self.memory = memory
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (memory.ctypes.data, False), "version": 3}

    def __del__(self):
        size = len(self.memory)
        with _LOCK:
            if _HELD[0] + size > KEPT:
                clear()
            _FREE.setdefault(size, []).append(self.memory)
            _HELD[0] += size


def clear():
    """Give all memory that waits back to the system."""
    _FREE.clear()
    _HELD[0] = 0


def empty(shape, dtype):
    """Return an array whose memory comes from a call before, if there is some of about that size."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if not LEAST <= size <= KEPT:
        return np.empty(shape, dtype)
    unit = 1 << size.bit_length() - 4
    whole = -(-size // unit) * unit  # of eight sizes up to the next power of two
    with _LOCK:
        waiting = _FREE.get(whole)
        memory = waiting.pop() if waiting else None
        if memory is not None:
            _HELD[0] = max(0, _HELD[0] - whole)
    return np.asarray(_Buffer(np.empty(whole, np.uint8) if memory is None else memory, shape, dtype))


def apply(ufunc, *arrays):
    """Return ``ufunc(*arrays)``, in memory from here if it is large."""
    if ufunc.nout > 1 or max([getattr(x, "nbytes", 0) for x in arrays]) < LEAST:
        return ufunc(*arrays)
    shape = np.broadcast_shapes(*[np.shape(x) for x in arrays])
    types = ufunc.resolve_dtypes((*[type(x) if type(x) in (int, float, complex) else x.dtype for x in arrays], None))
    return ufunc(*arrays, out=empty(shape, types[-1]))
