"""The row of random numbers: the block cipher Threefry-2x64 with 20 rounds, as a function of key, step and lane.

A draw has no state, so it does not depend on threads, on blocks of steps, or on the order in which values are
computed, and a backward pass draws it again.

References
----------
J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel random numbers: as easy as 1, 2, 3. SC'11 (2011).
"""

import numpy as np

from nscan.elementwise import pointwise

ROTATIONS = (16, 42, 12, 31, 16, 32, 24, 21)
PARITY = 0x1BD11BDAA9FC1A22
ROUNDS = 20
U64 = np.dtype("u8")


def threefry(key, step, lane, rotate_and_mix, add, parity_of):
    """Apply the cipher to the counter (step, lane) under the key (key, 0), in any arithmetic of 64 bits.

    Parameters
    ----------
    key, step, lane : values of uint64
    rotate_and_mix : callable
        ``(x1, r, x0)`` gives ``rotate_left(x1, r) ^ x0``.
    add : callable
        ``(x, y)`` gives their sum modulo 2**64; y may be an int.
    parity_of : callable
        ``(key)`` gives ``PARITY ^ key``.

    Returns
    -------
    tuple of two values
    """
    words = (key, None, parity_of(key))  # the second word of the key is 0
    x0, x1 = add(step, key), lane
    for r in range(ROUNDS):
        x0 = add(x0, x1)
        x1 = rotate_and_mix(x1, ROTATIONS[r % 8], x0)
        if r % 4 == 3:
            k = r // 4 + 1
            first, second = words[k % 3], words[(k + 1) % 3]
            x0 = x0 if first is None else add(x0, first)
            x1 = add(x1 if second is None else add(x1, second), k)
    return x0, x1


def _on_arrays(which):
    def eager(key, step, lane):
        key, step, lane = (np.asarray(x, U64) for x in (key, step, lane))
        # At least one axis, since NumPy warns of scalars that wrap around.
        shape = np.broadcast_shapes(key.shape, step.shape, lane.shape)
        key, step, lane = (np.broadcast_to(x, shape or (1,)) for x in (key, step, lane))
        out = threefry(key, step, lane, lambda x, r, y: (x << np.uint64(r) | x >> np.uint64(64 - r)) ^ y,
                       lambda x, y: x + (np.uint64(y) if type(y) is int else y), lambda k: k ^ np.uint64(PARITY))[which]
        return out.reshape(shape)[()]
    return eager


for _which, _name in enumerate(("threefry_first", "threefry_second")):
    pointwise(_name, None, cost=60, partials=(None, None, None), dtypes=lambda *_: U64, eager=_on_arrays(_which),
              spelling=f"{_name}(a, b, c)", sample={"integer": True})
