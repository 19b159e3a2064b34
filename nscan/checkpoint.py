"""How much a loop keeps for its backward pass: the option ``checkpoint``, and the arithmetic of segments.

A *segment* is a number of steps whose hidden rows are computed again, from a state that was kept before it, when the
backward pass reaches it. Nothing here knows loops or arrays; these are plans in numbers of steps and bytes.
"""

import dataclasses
import math
import re

from nscan import errors
from nscan.config import config

UNITS = {"B": 1, "KB": 10 ** 3, "MB": 10 ** 6, "GB": 10 ** 9, "TB": 10 ** 12, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
# Work (in multiplications) of a segment below which the calls of kernels would cost more than what they compute.
SEGMENT_WORK = 1 << 20


def parse(option):
    """Check the option ``checkpoint``: "all", "states", "auto", a number of states, or a budget like "256MB".

    Returns
    -------
    str or int
        The same; a budget stays as it is written.
    """
    if isinstance(option, str):
        if option not in ("all", "states", "auto"):
            bytes_of(option)
        return option
    if isinstance(option, int) and not isinstance(option, bool) and option >= 1:
        return option
    raise errors.SpecError(f"checkpoint must be 'all', 'states', 'auto', a number of states (at least 1) or a budget like '256MB', "
                           f"got {option!r}")


def bytes_of(text):
    """Bytes of a budget like "256MB" or "1.5 GiB"."""
    found = re.fullmatch(r"\s*([0-9]+\.?[0-9]*)\s*([kKmMgGtT]?i?[bB])\s*", text)
    unit = UNITS.get(found[2].upper()) if found else None
    if unit is None:
        raise errors.SpecError(f"checkpoint={text!r} is no budget: write a number and a unit among B, KB, MB, GB, KiB, MiB, GiB "
                               "('256MB'), or one of 'all', 'states', 'auto'")
    return int(float(found[1]) * unit)


def budget(option):
    """Bytes that the rows kept may take, or None if the option names no number of bytes."""
    if option == "auto":
        return config.checkpoint_bytes
    return bytes_of(option) if isinstance(option, str) and option not in ("all", "states") else None


def choose(option, steps, whole, states):
    """Choose how rows are kept: "all" rows, the "states" alone, or "segments".

    Parameters
    ----------
    option : str or int
    steps : int or None
        Number of steps, if it is known.
    whole : int or None
        Bytes of a step if all rows that the backward pass reads are kept; None if a size is known only at run time.
    states : callable
        Gives the same if the states alone are kept.
    """
    if option in ("all", "states"):
        return option
    if isinstance(option, int):
        return "segments" if steps is None or option < steps else "states"
    if whole is None:
        return "all" if option == "auto" else "segments"
    if steps is None:
        return "segments"
    limit = budget(option)
    if whole * steps <= limit:
        return "all"
    each = states()
    return "states" if each is not None and each * steps <= limit else "segments"


@dataclasses.dataclass(frozen=True)
class Grain:
    """What the plan of segments depends on, besides the number of steps.

    Attributes
    ----------
    row, state : int
        Bytes of the hidden rows of a step, and of a state.
    forward, backward : int
        A segment starts at a multiple of `forward` steps, and its end is a multiple of `backward` steps from the last
        one, so that sums over blocks of steps are added up in the same order under every plan.
    work : int
        Of a step, in multiplications.
    """

    row: int
    state: int
    forward: int = 1
    backward: int = 1
    work: int = 1


@dataclasses.dataclass(frozen=True)
class Plan:
    """Segments of a loop, and which states are kept before the backward pass.

    Attributes
    ----------
    steps : int
    starts : tuple of int
        First step of each segment.
    kept : tuple of int
        Numbers of the segments before which the state is kept at first; the first is 0.
    slots : int
        How many states are kept at a time.
    grain : Grain
    """

    steps: int
    starts: tuple
    kept: tuple
    slots: int
    grain: Grain

    @property
    def room(self):
        """Rows of the longest segment."""
        return segment_room(self.starts, self.steps, self.grain.backward)

    @property
    def bytes(self):
        """Bytes of the states and of the rows of one segment."""
        return min(self.slots, len(self.starts)) * self.grain.state + self.room * self.grain.row

    @property
    def extra_steps(self):
        """Steps that run again."""
        total = 0
        for what, i, j in moves(len(self.starts), self.slots, self.kept):
            if what != "reverse":
                total += self.starts[j] - self.starts[i]
        return total + sum(hi - pos for pos, _, hi in reversals(self.starts, self.steps, self.grain.backward))


def reversals(starts, steps, grid):
    """Yield (first step to compute, first step to reverse, end) of each segment, the last one first.

    The steps reversed end a whole number of `grid` before the last step; what is computed before them waits for the next.
    """
    hi = steps
    for pos in reversed(starts):
        lo = 0 if pos == 0 else hi - (hi - pos) // grid * grid
        yield pos, lo, hi
        hi = lo


def segment_room(starts, steps, grid):
    """Rows of the longest segment."""
    return max((hi - pos for pos, _, hi in reversals(starts, steps, grid)), default=0)


# -------------------------------------------------------------------------------------------- order of reversal
def split(count, slots):
    """How many of `count` segments to pass before the next state is kept (binomial: Griewank and Walther, 2000)."""
    r = 1
    while math.comb(slots + r, slots) < count:
        r += 1
    return min(count - 1, max(1, count - math.comb(slots + r - 1, slots - 1), math.comb(slots + r - 2, slots)))


def descent(first, last, slots):
    """Yield the segments before which to keep a state, on the way from one that is kept; `slots` counts that one."""
    while slots > 1 and last - first > 1:
        first += split(last - first, slots)
        slots -= 1
        yield first


def moves(count, slots, kept):
    """Yield what a reversal does: ("keep" or "pass", i, j), steps from segment i to j, or ("reverse", i, i)."""
    kept = list(kept)
    for i in reversed(range(count)):
        for j in descent(kept[-1], i + 1, slots - len(kept) + 1):
            yield "keep", kept[-1], j
            kept.append(j)
        if kept[-1] < i:
            yield "pass", kept[-1], i
        yield "reverse", i, i
        if kept[-1] == i:
            kept.pop()


# ---------------------------------------------------------------------------------------------------- the plan
def plan(option, steps, grain):
    """Plan the segments of a loop of known length.

    Parameters
    ----------
    option : str or int
    steps : int
    grain : Grain

    Returns
    -------
    Plan

    Raises
    ------
    SpecError
        The budget does not hold one state and the shortest segment.
    """
    if isinstance(option, int):
        return _plan(steps, _up(-(-steps // option), grain.backward), option, grain)
    limit = budget(option)
    least = _up(math.ceil(math.sqrt(max(1, steps * grain.state // max(1, grain.row)))), grain.backward)
    two = _plan(steps, least, steps, grain)
    if two.bytes <= limit:
        wide = _plan(steps, _up(max(least, SEGMENT_WORK // max(1, grain.work)), grain.backward), steps, grain)
        return wide if wide.bytes <= limit else two
    found = None
    unit = grain.backward
    while (unit + grain.forward - 1) * grain.row + grain.state <= limit and unit < 2 * steps:
        slots = (limit - (unit + grain.forward - 1) * grain.row) // max(1, grain.state)
        new = _plan(steps, unit, int(slots), grain)
        if new.bytes <= limit and (found is None or new.extra_steps <= found.extra_steps):
            found = new
        unit *= 2
    if found is not None or option == "auto":
        return found or two
    least = grain.backward + grain.forward - 1
    raise errors.SpecError(f"checkpoint={option!r} is too small for a loop of {steps} steps: one state and the rows of {least} steps "
                           f"take {grain.state + least * grain.row} bytes")


def two_levels(option, steps, row, state):
    """Steps of a segment of a loop in a step, where each is computed again once from a state that is kept.

    Parameters
    ----------
    option : str or int
    steps : int
    row, state : int
        Bytes of the hidden rows of a step, and of a state.
    """
    if isinstance(option, int):
        return -(-steps // option)
    near = max(1, math.ceil(math.sqrt(steps * state / max(1, row))))
    total, unit = min((steps // unit * state + (unit + steps % unit) * row, unit) for unit in range(-(-near // 2), 2 * near + 1))
    if option != "auto" and total > budget(option):
        raise errors.SpecError(f"checkpoint={option!r} is too small for a loop of {steps} steps in a step of another loop: {steps // unit} "
                               f"states and the rows of {unit + steps % unit} steps take {total} bytes")
    return unit


def _plan(steps, unit, slots, grain):
    """Segments of `unit` steps, counted from the last step."""
    starts = tuple(sorted({max(0, steps - k * unit) // grain.forward * grain.forward for k in range(1, -(-steps // unit) + 1)} | {0}))
    slots = min(slots, len(starts))
    return Plan(steps, starts, (0, *descent(0, len(starts), slots)), slots, grain)


def _up(n, grid):
    return -(-max(1, n) // grid) * grid


@dataclasses.dataclass(frozen=True)
class OpenPlan:
    """Segments of a loop of unknown length: every `unit` steps a state is kept; each time the slots are full every second one goes.

    Attributes
    ----------
    unit : int
        Steps of the segments at first.
    slots : int
        At least 2.
    grow : bool
        Whether segments grow as the kept states thin out; otherwise those that went are computed again.
    whole : int
        So many steps are tried first with all rows kept.
    grain : Grain
    """

    unit: int
    slots: int
    grow: bool
    whole: int
    grain: Grain

    def closed(self, steps):
        """Return the plan when the number of steps is known."""
        stride = self.unit
        while -(-steps // stride) > self.slots:
            stride *= 2
        starts = tuple(range(0, steps, stride if self.grow else self.unit)) or (0,)
        each = 1 if self.grow else stride // self.unit
        return Plan(steps, starts, tuple(range(0, len(starts), each)), self.slots, self.grain)


def open_plan(option, grain):
    """Plan the segments of a loop whose number of steps is not known."""
    if isinstance(option, int):
        return OpenPlan(grain.forward, max(2, option), True, 0, grain)
    limit = budget(option)
    unit = _up(limit // 2 // max(1, grain.row) - grain.backward + 1, grain.forward)
    if unit > grain.forward:
        unit -= grain.forward
    slots = (limit - (unit + grain.backward - 1) * grain.row) // max(1, grain.state)
    if slots < 2 and option != "auto":
        raise errors.SpecError(f"checkpoint={option!r} is too small: two states and the rows of {unit} steps take "
                               f"{2 * grain.state + (unit + grain.backward - 1) * grain.row} bytes")
    return OpenPlan(unit, max(2, int(slots)), False, limit // max(1, grain.row), grain)
