"""What arrays hold at the time when they are used: to notice that somebody wrote to them later."""

import numpy as np


class Content:
    """What a real array held when a step used it: a copy of a small one, up to 64 entries of a large one."""

    SMALL = 4096

    def __init__(self, x):
        self.copy = np.array(x) if x.size <= self.SMALL else None
        self.entries = None if self.copy is not None else x[self._places(x)]

    @staticmethod
    def _places(x):
        return np.unravel_index(np.linspace(0, x.size - 1, 64).astype(int), x.shape)

    def holds(self, x):
        """Tell whether the array still has that content."""
        now, before = (x, self.copy) if self.copy is not None else (x[self._places(x)], self.entries)
        return np.array_equal(now, before, equal_nan=x.dtype.kind in "fc")
