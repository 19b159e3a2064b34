"""What becomes of the loops of a call, stage by stage, in the order of the pipeline."""

import dataclasses
import functools
import math

from nscan import errors
from nscan.config import config
from nscan.grad import loop as rule
from nscan.interpret import Residual
from nscan.tape import Var, type_text
from nscan.trace import HOOKS

STAGES = ("call", "tape", "stages", "plan", "program")
SHOWN = STAGES[:-1]


def explain(f, show=SHOWN):
    """Make a function that runs `f` and returns what became of its loops.

    Parameters
    ----------
    f : callable
        Function of arrays that runs loops; ``ns.grad(f)`` and its kin too, which run backward loops.
    show : str or sequence of str
        Stages to print, among ``call`` (what goes in), ``tape`` (the equations of the step), ``stages`` (which of
        them run once, for many steps at a time, or step by step, and what is kept between them), ``plan`` (lanes,
        blocks, bytes) and ``program`` (the loop program as text); ``"all"`` for all, by default all but the last.

    Returns
    -------
    callable
        Takes the arguments of `f`, calls it once, and returns an `Explanation`; print it, or read its attributes.
        In python mode it plans the loops without compiling them.

    Raises
    ------
    SpecError
        There is no such stage.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> def last(w):
    ...     return ns.scan(lambda x, h, w: np.tanh(w*h + x), np.ones(4), 0.0, w, name="unit")[-1]
    >>> ns.explain(last, show="call")(0.9)
    loop 'unit': 4 steps
      call
        sequence  f8[4]
        state 'h' (outputs_info[0])  f8
        constant  f8
        -> rows f8[4], final states f8
    >>> ns.explain(ns.grad(last))(0.9).loops[1].name
    'adjoint of unit'
    """
    wanted = STAGES if show == "all" else (show,) if isinstance(show, str) else tuple(show)
    unknown = [stage for stage in wanted if stage not in STAGES]
    if unknown:
        raise errors.SpecError(f"there is no stage {unknown[0]!r} to show; there are {', '.join(STAGES)}, and 'all'")

    @functools.wraps(f, updated=())
    def explained(*args, **kwargs):
        watch = _Watch(HOOKS["runner"])
        HOOKS["runner"] = watch
        try:
            result = f(*args, **kwargs)
        finally:
            HOOKS["runner"] = watch.runner
        return Explanation(result, tuple(_explain(seen) for seen in watch.seen.values()), wanted)
    return explained


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What a call returned, and the loops that it ran.

    Attributes
    ----------
    result :
        What the function returned.
    loops : tuple of ExplainedLoop
        Distinct loops, in the order of their first run.
    show : tuple of str
        The stages that are printed.
    """

    result: object
    loops: tuple
    show: tuple = SHOWN

    def __str__(self):
        return "\n\n".join(loop.describe(self.show) for loop in self.loops) or "no loop was run"

    __repr__ = __str__


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ExplainedLoop:
    """A loop and what became of it.

    Attributes
    ----------
    name : str
    calls : int
        How often a loop of this structure was run.
    steps : int
        Steps of its first run.
    operands : tuple of (str, str)
        What went into that run: kind and type.
    loop : Loop
        As it was traced or derived: its `step` is a tape.
    prepared : Loop
        As it is planned: with adjoints of inner loops as loops, and states that only add up as sums.
    program : Program
        Its `stages` are the fission of the step.
    parts : int
        Parts of the lanes or steps of that run.
    steps_of_block : int
        Steps of a block at most; 0 if nothing is kept for a block.
    workspace_bytes : int
        Of all parts together.
    residual_bytes : int or None
        What is kept for the backward loop alone, by the plan of `checkpoint` (see `nscan.scan`): rows, or states and the
        rows of one segment at a time. None if their size is known only while the loop runs.
    extra_steps : int
        Steps that the backward loop runs again because of that plan.
    segments : nscan.checkpoint.Plan or None
        That plan, where steps run again.
    """

    name: str
    calls: int
    steps: int
    operands: tuple
    loop: object
    prepared: object
    program: object
    parts: int
    steps_of_block: int
    workspace_bytes: int
    residual_bytes: object
    extra_steps: int = 0
    segments: object = None

    @property
    def text(self):
        """The loop program as text; see `nscan.source.python_text`."""
        from nscan import source
        return source.python_text(self.program)

    def __str__(self):
        return self.describe()

    __repr__ = __str__

    def describe(self, show=SHOWN):
        """Text of some stages."""
        calls = f", {self.calls} calls" if self.calls > 1 else ""
        head = f"loop {self.name!r}: {_count(self.steps, 'step')}{calls}"
        return "\n".join([head, *[_indent([stage, *DESCRIBE[stage](self)]) for stage in STAGES if stage in show]])


# --------------------------------------------------------------------------------------------------- watching
class _Watch:
    """A runner that notes each loop and hands it on."""

    def __init__(self, runner):
        self.runner = runner
        self.seen = {}

    def __call__(self, row, values, params):
        outs = self.runner(row, values, params)
        if row.name == "loop":
            loop = params["loop"]
            self.note(loop, values, int(outs[loop.visible - 1]) if loop.stop else int(values[0]))
        elif row.name == "loop_adjoint":
            adjoint, operands = rule.adjoint_operands(**params, values=values)
            arrays = [x.residual.row(x.index) if isinstance(x, rule.Hidden) else x for x in operands]
            self.note(adjoint.backward, arrays, int(arrays[0]))
        return outs

    def note(self, loop, values, steps):
        """Remember a run: [loop, kinds and types of its operands, steps, number of runs]."""
        _, seqs, states, sums, consts = loop.split_inputs(values)
        names = loop.state_names or ["state"] * loop.states
        kinds = ["sequence"] * len(seqs) + list(names) + ["sum"] * len(sums) + ["constant"] * len(consts)
        types = [_type(x) for x in (*seqs, *states, *sums, *consts)]
        seen = self.seen.setdefault(loop.key, [loop, tuple(zip(kinds, types)), steps, 0])
        seen[3] += 1


def _type(x):
    return "rows that were kept" if isinstance(x, Residual) else type_text(x)


def _explain(seen):
    """Plan a loop that was run, and describe the plan in numbers."""
    from nscan.cpu import launch, run, segments
    loop, operands, steps, calls = seen
    kernel = _kernel(loop)
    parts = len(run.divide(kernel, steps)[0]) if steps else 0
    plan = segments.predicted(loop, steps) if loop.hidden and loop.keep == "segments" and steps else None
    kept, extra = (residual_bytes(kernel, steps), 0) if plan is None else (plan.bytes, plan.extra_steps)
    return ExplainedLoop(loop.name, calls, steps, operands, loop, kernel.loop, kernel.program, parts, kernel.block,
                         kernel.layout.shared + launch.rooms(parts) * kernel.layout.workspace, kept, extra, plan)


def _kernel(loop):
    """Return the kernel of a loop; in python mode one that is planned and not compiled."""
    from nscan.cpu.kernel import kernel_of, planned
    return kernel_of(loop) if config.mode == "compiled" else planned(loop)


def residual_bytes(kernel, steps):
    """Bytes of the hidden rows of a loop, but for those that are other rows one step before."""
    total = 0
    for k, v in enumerate(kernel.loop.split_step_outputs(kernel.loop.step.outputs)[3], kernel.loop.rows):
        if any(type(d) is Var for d in v.shape):
            return None
        total += 0 if k in kernel.program.before else steps * v.dtype.itemsize * math.prod(v.shape)
    return total


# ----------------------------------------------------------------------------------------------------- writing
def _count(n, noun):
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _indent(lines):
    """Text of a section: its title by two spaces, its lines by four."""
    return "\n".join([f"  {lines[0]}", *[f"    {line}" for line in lines[1:]]])


def _types(values):
    return ", ".join(f"{v}:{type_text(v)}" if type(v) is Var else repr(v) for v in values)


def _call(x):
    loop = x.loop
    _, _, rows, hidden, _ = loop.split_step_outputs(loop.step.outputs)
    _, states, sums, _ = loop.split_step_inputs(loop.step.inputs)
    stacked = lambda v: type_text(Var((x.steps, *v.shape), v.dtype, 0))
    outs = [("rows", map(stacked, rows)), ("final states", map(type_text, states)), ("sums", map(type_text, sums)),
            ("number of steps", ["i8"] * loop.stop), ("kept for the backward loop:", map(stacked, hidden))]
    made = [f"{name} {', '.join(types)}" for name, types in ((name, list(types)) for name, types in outs) if types]
    return [*[f"{kind}  {text}" for kind, text in x.operands], f"-> {', '.join(made)}"]


def _tape(x):
    return str(x.prepared.step).splitlines()


def _stages(x):
    s = x.program.stages
    term = lambda k, t: f"sum {k} += {t if type(t) is Var else repr(t)}"
    parts = (("invariant (once)", s.invariant, (), ("kept: ", s.from_invariant)),
             ("pre (for a block of steps)", s.pre, (), ("kept for the block: ", s.from_pre)),
             ("core (step by step)", s.core, s.core_terms, ("kept for post: ", s.from_core)),
             ("post (for a block of steps)", s.post, s.post_terms, ("", ())))
    out = []
    for title, eqns, terms, (what, kept) in parts:
        lines = [*map(repr, eqns), *[term(k, t) for k, t in terms], *([what + _types(kept)] if kept else [])]
        out += [title, *[f"  {line}" for line in lines]] if lines else []
    return out or ["nothing is computed"]


def _plan(x):
    p = x.program
    lanes = f"{p.lane:,} independent lanes" if p.lane else "none: nothing is independent along an axis"
    whole = f"{x.steps_of_block:,}"
    residual = "known when it runs" if x.residual_bytes is None else _count(x.residual_bytes, "byte")
    if x.segments is not None:
        residual += (f": {_count(x.segments.slots, 'state')} and {_count(x.segments.room, 'row')} at a time; "
                     f"{_count(x.extra_steps, 'step')} run again")
    return [f"lanes  {lanes}", f"parts that can run in parallel  {x.parts}", f"steps of a block  {whole}",
            f"workspace  {_count(x.workspace_bytes, 'byte')}", f"kept for the backward loop  {residual}",
            f"work of a step  about {p.work:,} multiplications"]


def _program(x):
    return x.text.splitlines()


DESCRIBE = {"call": _call, "tape": _tape, "stages": _stages, "plan": _plan, "program": _program}
