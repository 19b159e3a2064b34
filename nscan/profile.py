"""Where the time of a call goes: by stage, by loop, and by line of the user's code."""

import contextlib
import dataclasses
import functools
import time

from nscan import errors
from nscan.state import STATE

STAGES = ("once", "pre", "core", "post")
SECTIONS = {"trace": "tracing steps and their derivatives", "plan": "planning kernels", "compile": "compiling or loading them"}
LINES = 12


def profile(f):
    """Make a function that runs `f` and returns where the time went.

    Kernels that are profiled read a clock between groups of their work, so they are compiled apart from those of an
    ordinary call, and run a little slower.

    Parameters
    ----------
    f : callable
        Function of arrays that runs loops; ``ns.grad(f)`` and its kin too, which run backward loops.

    Returns
    -------
    callable
        Takes the arguments of `f`, calls it once, and returns a `Profile`: print it for a table, call its `plot`
        for a picture.

    Raises
    ------
    SpecError
        `f` is no function; give ``ns.profile(f)(*args)``.

    Notes
    -----
    Statements that are fused into one loop nest are measured as one; their time is divided between their lines by
    expected work. In python mode every equation is measured, and all of a loop is its stage ``core``.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> def last(w):
    ...     return ns.scan(lambda x, h, w: np.tanh(w*h + x), np.ones(400), 0.0, w, name="unit")[-1]
    >>> profile = ns.profile(ns.grad(last))(0.9)
    >>> [loop.name for loop in profile.loops]
    ['unit', 'adjoint of unit']
    >>> 0 < sum(loop.seconds for loop in profile.loops) < profile.seconds
    True
    """
    if not callable(f):
        raise errors.SpecError(f"profile takes a function and gives one, ns.profile(f)(*args); got {f!r:.60}")

    @functools.wraps(f, updated=())
    def profiled(*args, **kwargs):
        with collect() as taken:
            taken.result = f(*args, **kwargs)
        return taken.profile(getattr(f, "__name__", type(f).__name__))
    return profiled


@contextlib.contextmanager
def collect():
    """Context: the time of everything inside, in this thread, goes to a `Collector`."""
    before, STATE.profile = STATE.profile, Collector()
    try:
        yield STATE.profile
    finally:
        STATE.profile.close()
        STATE.profile = before


class Collector:
    """Gathers times while something runs."""

    def __init__(self):
        self.result = None
        self.start = self.mark = time.perf_counter()
        self.seconds = 0.0
        self.sections = {}
        self.open = ["the rest"]
        self.loops = {}

    def enter(self, name, now):
        """Begin a section; the one around it pauses."""
        self._count(now)
        self.open.append(name)

    def leave(self, now):
        """End a section."""
        self._count(now)
        self.open.pop()

    def _count(self, now):
        name = self.open[-1]
        self.sections[name] = self.sections.get(name, 0.0) + now - self.mark
        self.mark = now

    def close(self):
        """Stop."""
        now = time.perf_counter()
        self._count(now)
        self.seconds = now - self.start

    def add_run(self, loop, steps, seconds, times, fresh=True):
        """Add a run of a loop (unless it is `fresh`, one that goes on); `times` is a list of (stage, place or None, seconds)."""
        found = self.loops.setdefault(loop.key, [loop.name, 0, 0, 0.0, {}])
        found[1] += fresh
        found[2] += steps
        found[3] += seconds
        for stage, place, part in times:
            found[4][stage, place] = found[4].get((stage, place), 0.0) + part

    def profile(self, name):
        """Return what was gathered."""
        loops = tuple(LoopProfile(*entry) for entry in self.loops.values())
        return Profile(name, self.result, self.seconds, dict(self.sections), loops)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LoopProfile:
    """Where the time of the runs of a loop went.

    Attributes
    ----------
    name : str
        A backward loop is the ``adjoint of`` its loop.
    calls, steps : int
        Runs, and steps of all of them.
    seconds : float
        Of all runs.
    times : dict of float
        Seconds by (stage, place): the stages are ``once``, ``pre`` (for many steps beforehand), ``core`` (step by
        step) and ``post`` (for many steps afterwards); a place has the attributes `file`, `line` and `text`, and is
        None for what a stage does besides.
    """

    name: str
    calls: int
    steps: int
    seconds: float
    times: dict

    @property
    def direction(self):
        """``forward`` or ``backward``."""
        return "backward" if self.name.startswith("adjoint of ") else "forward"

    @property
    def stages(self):
        """Seconds of each stage."""
        return {s: sum(t for (stage, _), t in self.times.items() if stage == s) for s in STAGES}

    @property
    def lines(self):
        """Seconds of each line, by place, the longest first; those of no line by None, at the end."""
        out = {}
        for (_, place), t in self.times.items():
            out[place] = out.get(place, 0.0) + t
        return dict(sorted(((k, t) for k, t in out.items() if t > 0), key=lambda item: (item[0] is None, -item[1])))

    def __str__(self):
        calls = f"{self.calls} call{'s' * (self.calls != 1)}, {self.steps:,} steps"
        each = f", {_duration(self.seconds / self.steps)} a step" if self.steps else ""
        out = [f"loop {self.name!r} ({self.direction}): {calls}, {_duration(self.seconds)}{each}"]
        out.append("  " + "   ".join(f"{stage} {_percent(t, self.seconds)}" for stage, t in self.stages.items()))
        lines = list(self.lines.items())
        for place, t in lines[:LINES]:
            text = f"{place}  {place.text}" if place is not None else "copies, reading and writing states"
            out.append(f"  {_percent(t, self.seconds)}  {_duration(t):>9}  {text}")
        if len(lines) > LINES:
            rest = sum(t for _, t in lines[LINES:])
            out.append(f"  {_percent(rest, self.seconds)}  {_duration(rest):>9}  {len(lines) - LINES} more lines")
        return "\n".join(out)

    __repr__ = __str__


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Profile:
    """Where the time of a call went; `str` is a table.

    Attributes
    ----------
    name : str
        Of the function.
    result :
        What it returned.
    seconds : float
        Of the whole call.
    sections : dict of float
        Seconds of ``trace``, ``plan``, ``compile``, ``kernels`` and ``the rest``; they add up to `seconds`.
    loops : tuple of LoopProfile
        Distinct loops, in the order of their first run.
    """

    name: str
    result: object
    seconds: float
    sections: dict
    loops: tuple

    @property
    def parts(self):
        """Seconds of forward loops, backward loops, trace, plan, compile and the rest; they add up to `seconds`."""
        out = {way: sum(loop.seconds for loop in self.loops if loop.direction == way) for way in ("forward", "backward")}
        out.update((name, self.sections.get(name, 0.0)) for name in SECTIONS)
        out["the rest"] = self.seconds - sum(out.values())
        return out

    def __str__(self):
        notes = {"forward": "loops", "backward": "loops of the gradient", **SECTIONS, "the rest": "NumPy and Python around the loops"}
        out = [f"profile of {self.name!r}: {_duration(self.seconds)}"]
        out += [f"  {name:<9} {_percent(t, self.seconds)}  {_duration(t):>9}  {notes[name]}" for name, t in self.parts.items()]
        return "\n\n".join(["\n".join(out), *map(str, self.loops)])

    __repr__ = __str__

    def plot(self, file=None):
        """Draw the profile: a bar of the parts, and for each loop a bar of its stages and of its lines.

        Parameters
        ----------
        file : path or file, optional
            Where to save the picture; its ending says the format.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        MissingPackageError
            Matplotlib is not installed.

        Examples
        --------
        >>> import numpy as np
        >>> import nscan as ns
        >>> taken = ns.profile(ns.scan)(lambda x, h: np.tanh(h + x), np.ones(400), 0.0)
        >>> figure = taken.plot()
        >>> [axes.get_title() for axes in figure.axes][0]
        'scan'
        """
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            raise errors.MissingPackageError("the picture of a profile needs Matplotlib: pip install matplotlib") from None
        panels = [(self.name, self.parts)]
        panels += [(f"{loop.name}, {_duration(loop.seconds)}", _bars(loop)) for loop in self.loops]
        figure = Figure(figsize=(9, 0.6 + sum(0.7 + 0.28 * len(bars) for _, bars in panels)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(panels), squeeze=False, gridspec_kw={"height_ratios": [1 + 0.4 * len(b) for _, b in panels]})
        for axes, (title, bars) in zip(grid[:, 0], panels):
            axes.barh(range(len(bars)), [1e3 * t for t in bars.values()], color=["C1" if k in STAGES else "C0" for k in bars])
            axes.set_yticks(range(len(bars)), list(bars), fontsize=7)
            axes.invert_yaxis()
            axes.set_title(title, loc="center", fontsize=9)
            axes.set_xlabel("milliseconds", fontsize=7)
            axes.tick_params(axis="x", labelsize=7)
        if file is not None:
            figure.savefig(file, dpi=120)
        return figure


def _bars(loop):
    """Bars of a loop: its stages, then its longest lines."""
    bars = {stage: t for stage, t in loop.stages.items() if t}
    for place, t in list(loop.lines.items())[:LINES]:
        if place is not None:
            bars[f"line {place.line}: {place.text[:48]}".replace("$", r"\$")] = t
    return bars


def _percent(t, whole):
    return f"{100 * t / whole if whole else 0.0:5.1f} %"


def _duration(t):
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if t >= scale:
            return f"{t / scale:.3g} {unit}"
    return f"{t / 1e-9:.3g} ns"
