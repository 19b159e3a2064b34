"""Lanes of unequal length: the step of a loop without the masks of lanes that have ended.

A loop with `lengths` asks by the row ``live`` which lanes run (`nscan.lanes`). Where no lane depends on another, and a step
changes nothing in a lane that has ended, the kernel need not ask: each step runs over the lanes that are live alone
(`nscan.cpu.ragged`), for which every mask is true. Both are read off the tape. With the masks taken as false, a new state
must be the old one, rows must be zero, and sums must grow by nothing; with the masks taken as true what is left of the
step is that of a loop without lengths. Derivatives of such loops are such loops.
"""

import dataclasses

from nscan.optimise import remove_dead
from nscan.plan.axes import ONE, Axes
from nscan.tape import Eqn, Lit, Tape, Var

# Rows that give zeros for zeros in their first operand, or in any operand.
OF_FIRST = {"negative", "conjugate", "real", "imag", "cast", "copy", "stop_gradient", "grad_clip", "grad_scale", "divide", "ratio",
            "sum", "reshape", "transpose", "broadcast_to", "fill", "index", "cumsum"}
OF_ANY = {"multiply", "safe_mul", "contract"}
OF_ALL = {"add", "subtract", "concatenate", "complex"}
KEEP_TRUTH = {"reshape", "transpose", "broadcast_to", "copy"}


@dataclasses.dataclass(frozen=True, eq=False)
class Live:
    """A loop whose steps run over the lanes that are live alone.

    Attributes
    ----------
    loop : Loop
        Without the masks.
    numbers : int
        The sequence that numbers the steps.
    lengths : int
        The constant that holds the number of steps of each lane.
    seeds : tuple of (Var, int)
        States and rows of the step, and which of their axes is that of the lanes.
    read : callable
        What stands for a value of the step with masks.
    """

    loop: object
    numbers: int
    lengths: int
    seeds: tuple
    read: object


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Where the lanes of a kernel are that runs over those that are live.

    Attributes
    ----------
    numbers, lengths : int
        As in `Live`.
    inputs, rows, finals : tuple of int or None
        For each array which of its axes is that of the lanes (of sequences and rows the steps are axis 0).
    """

    numbers: int
    lengths: int
    inputs: tuple
    rows: tuple
    finals: tuple


def suits(p):
    """Whether the lanes may be fewer from call to call: they are found, and lead in what lies in memory between calls."""
    return p.lane is not None and not p.scatters and not any(p.lane in p.axes.get(v)[1:] for v in p.stages.from_invariant)


def ragged(p):
    """Return the Ragged of a kernel that is being planned."""
    def axes_of_lanes(values):
        return tuple([c.index(p.lane) if p.lane in c else None for c in map(p.axes.get, values)])
    return Ragged(p.live.numbers, p.live.lengths, *map(axes_of_lanes, (p.inputs[1:], p.rows, p.finals)))


def find_live(loop):
    """Return the Live of a prepared loop; None where there are no lanes that end, or ended ones count."""
    if loop.stop:
        return None
    seqs, _, _, consts = loop.split_step_inputs(loop.step.inputs)
    pairs = {q.inputs for q in loop.step.eqns if q.row.name == "live"}
    if len(pairs) != 1:
        return None
    number, lengths = pairs.pop()
    if number not in seqs or lengths not in consts or not _is_still(loop, _Fold(loop.step, False)):
        return None
    seeds = _seeds(loop, lengths)
    if seeds is None:
        return None
    running = _Fold(loop.step, True)
    seeds = tuple([(running.read(v), axis) for v, axis in seeds])
    if any(type(v) is Lit for v, _ in seeds):
        return None
    return Live(dataclasses.replace(loop, step=running.tape()), seqs.index(number), consts.index(lengths), seeds, running.read)


def _is_still(loop, ended):
    """Whether nothing happens in a lane that has ended."""
    _, states, sums, _ = loop.split_step_inputs(loop.step.inputs)
    news, new_sums, rows, _, _ = loop.split_step_outputs(loop.step.outputs)
    return (all(ended.read(new) is v for v, new in zip((*states, *sums), (*news, *new_sums)))
            and (loop.private or all(ended.is_zero(v) for v in rows)))


def _walked(loop):
    """Axes of a step, those of the old and the new state being the same."""
    axes = Axes()
    axes.walk(loop.step)
    news = loop.split_step_outputs(loop.step.outputs)[0]
    for v, new in zip(loop.split_step_inputs(loop.step.inputs)[1], news):
        for a, b in zip(axes.new(v), axes.new(new) if type(new) is Var else ()):
            axes.join(a, b)
    return axes


def _seeds(loop, lengths):
    """States and rows with their axis of lanes; None if a state has another first axis, or a row has none."""
    axes = _walked(loop)
    _, states, _, _ = loop.split_step_inputs(loop.step.inputs)
    rows = loop.split_step_outputs(loop.step.outputs)[2]
    lane = axes.get(lengths)[0]
    found = [(v, axes.get(v).index(lane)) if type(v) is Var and lane in axes.get(v) else None for v in (*states, *rows)]
    if lane is ONE or None in found or any(k for _, k in found[:len(states)]):
        return None
    return tuple(found)


def meeting(loop):
    """Return an equation of a step with `lengths` that combines what its lanes hold at that step, or None.

    Sums, products, sorts and the like along the axis of lanes are found; an index along it is not, since lanes that are taken
    apart may be put together again.
    """
    masks = [q for q in loop.step.eqns if q.row.name == "live"]
    if not masks:
        return None
    axes, (number, lengths) = _walked(loop), masks[0].inputs
    lane = axes.get(lengths)[0]
    if lane is ONE:
        return None
    varying = set(loop.step.inputs[:loop.seqs + loop.states]) - {number}
    for q in loop.step.eqns:
        if q in masks or not any(v in varying for v in q.inputs):
            continue
        varying.update(q.outputs)
        if any(type(v) is Var and v in varying and lane in _combined(axes, q, k) for k, v in enumerate(q.inputs)):
            return q
    return None


def _combined(axes, q, k):
    """Classes of the axes of an operand whose elements an equation combines."""
    classes, params, kind = axes.get(q.inputs[k]), q.params, q.row.kind
    if kind == "reduction":
        return [classes[a] for a in params["axes"]]
    if q.row.name == "contract":
        return [c for label, c in zip(params["lb" if k else "la"], classes) if label not in params["lo"]]
    if kind in ("running", "order") and "axis" in params:
        return [classes[params["axis"]]] if len(classes) == len(q.outputs[0].shape) else []
    return classes[-2:] if kind == "linalg" and len(classes) > 1 and k == 0 else []


class _Fold:
    """What follows for the values of a tape if all masks are true, or all are false.

    Attributes
    ----------
    truth : dict
        Var to the bool that it holds in every element.
    zero : set of Var
        Values that are zeros.
    same : dict
        Var to what it equals.
    by_mask : set of Var
        Values that are known by a mask, not by numbers of the user's code alone.
    idle : set of Var
        What the masks leave out: equations that make nothing else need not run, whether they could fail or not.
    """

    def __init__(self, tape, flag):
        self.given = tape
        self.truth, self.zero, self.same, self.by_mask, self.idle, self.eqns = {}, set(), {}, set(), set(), []
        for q in tape.eqns:
            q = Eqn(q.row, tuple([self.read(v) for v in q.inputs]), q.outputs, q.params, q.where)
            if q.row.name == "live":
                self.truth[q.outputs[0]] = flag
            else:
                if not self._fold(q):
                    self.zero.update(_zeros(q, self.is_zero))
                if any(v in self.by_mask for v in q.inputs):
                    self.by_mask.update(q.outputs)
            self.eqns.append(q)

    def read(self, v):
        """What stands for a value."""
        return self.same.get(v, v) if type(v) is Var else v

    def is_zero(self, v):
        """Whether a value is known to be zeros."""
        v = self.read(v)
        return v.value == 0 if type(v) is Lit else v in self.zero

    def tape(self):
        """The tape with what was found."""
        longest = {q.inputs[1:] for q in self.eqns if q.row.name == "index" and q.outputs[0] in self.idle}
        self.idle.update(q.outputs[0] for q in self.eqns if q.row.name == "index" and q.inputs[1:] in longest)
        return remove_dead(Tape(self.given.inputs, tuple(self.eqns), tuple(map(self.read, self.given.outputs))), self.idle)

    def _fold(self, q):
        """Note what an equation gives if that is known as a whole; return whether it is."""
        name, out, known = q.row.name, q.outputs[0] if q.outputs else None, [self.truth.get(v) for v in q.inputs if type(v) is Var]
        if name in KEEP_TRUTH and known and known[0] is not None:
            self.truth[out] = known[0]
            return True
        if name in ("logical_and", "bitwise_and") and out.dtype.kind == "b":
            return self._logical(q, False)
        if name in ("logical_or", "bitwise_or") and out.dtype.kind == "b":
            return self._logical(q, True)
        if name in ("logical_not", "invert") and known and known[0] is not None:
            self.truth[out] = not known[0]
            return True
        if name == "select" and self.truth.get(q.inputs[0]) is not None:
            chosen, other = q.inputs[1:] if self.truth[q.inputs[0]] else q.inputs[:0:-1]
            self.by_mask.add(out)
            self.idle.add(other)
            return self._equals(out, chosen)
        if name in ("add", "subtract", "index_add"):
            x, y = q.inputs[:2]
            if self.is_zero(y) and (y in self.by_mask or name != "index_add"):
                self.idle.add(out)
                return self._equals(out, x)
            if name == "add" and self.is_zero(x):
                return self._equals(out, y)
        return False

    def _logical(self, q, decides):
        """And (decided by False) or or (by True)."""
        out, known = q.outputs[0], [self.truth.get(v) if type(v) is Var else bool(v.value) for v in q.inputs]
        if decides in known or None not in known:
            self.truth[out] = decides if decides in known else not decides
            return True
        other = [v for v, flag in zip(q.inputs, known) if flag is None]
        return len(other) == 1 and self._equals(out, other[0])

    def _equals(self, out, v):
        """Note that a value is another one; of another type it may still be known to be zeros."""
        if self.is_zero(v):
            self.zero.add(out)
        elif v in self.truth:
            self.truth[out] = self.truth[v]
        elif type(v) is Var and tuple(v.shape) == tuple(out.shape) and v.dtype == out.dtype:
            self.same[out] = v
        else:
            return False
        return True


def _zeros(q, is_zero):
    """Outputs of an equation that are zeros, given which operands are."""
    name, inputs = q.row.name, q.inputs
    if q.row.kind == "loop":
        return _zeros_of_loop(q, is_zero) if name == "loop" else _zeros_of_branches(q, is_zero) if name == "cond" else ()
    found = (name in OF_FIRST and is_zero(inputs[0]) or name in OF_ANY and any(map(is_zero, inputs[:2]))
             or name in OF_ALL and all(map(is_zero, inputs))
             or name in ("select", "solve") and all(map(is_zero, inputs[1:]))
             or name in ("index_update", "index_add") and all(map(is_zero, inputs[:2]))
             or name in ("maximum", "minimum") and _is_limit(name, *inputs, is_zero))
    return q.outputs[:1] if found else ()


def _is_limit(name, a, b, is_zero):
    """Whether a number leaves zeros as they are."""
    return any(is_zero(x) and (is_zero(y) or type(y) is Lit and (y.value <= 0 if name == "maximum" else y.value >= 0))
               for x, y in ((a, b), (b, a)))


def _zeros_of_tape(tape, inputs):
    """Outputs of a tape inside a step that are zeros, as flags, given which inputs are."""
    zero = {v for v, flag in zip(tape.inputs, inputs) if flag}
    is_zero = lambda v: v.value == 0 if type(v) is Lit else v in zero  # noqa: E731
    for q in tape.eqns:
        zero.update(_zeros(q, is_zero))
    return [is_zero(v) for v in tape.outputs]


def _zeros_of_loop(q, is_zero):
    """The same for a loop: states that start as zeros and stay so."""
    loop = q.params["loop"]
    _, seqs, states, sums, consts = loop.split_inputs([is_zero(v) for v in q.inputs])
    states, sums = list(states), list(sums)
    while True:
        outs = _zeros_of_tape(loop.step, [*seqs, *states, *sums, *consts])
        news, new_sums, rows, _, _ = loop.split_step_outputs(outs)
        kept = [a and b for a, b in zip((*states, *sums), (*news, *new_sums))]
        if kept == [*states, *sums]:
            break
        states, sums = kept[:loop.states], kept[loop.states:]
    return [v for v, flag in zip(q.outputs, [*rows, *kept]) if flag]


def _zeros_of_branches(q, is_zero):
    then, other = ([*_zeros_of_tape(tape, [is_zero(v) for v in q.inputs[1:]])] for tape in q.params["cond"].tapes())
    return [v for v, a, b in zip(q.outputs, then, other) if a and b]


__all__ = ["Live", "Ragged", "find_live", "meeting", "ragged", "suits"]
