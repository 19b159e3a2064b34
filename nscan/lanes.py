"""Lanes of unequal length, and resets: what `lengths` and `reset` of a scan make of its step.

Both are ordinary array code around the user's step, so their derivatives, of any order, are those of the rows
that they are spelled with. In a lane that has ended the step sees the row and the state of the longest lane,
and what it returns there is dropped: nothing is read beyond the end of a lane, and what is multiplied by the
zero cotangents of such a lane is a number of a lane that runs.
"""

import dataclasses

import numpy as np

from nscan import errors
from nscan.array import as_array, astype
from nscan.array import traced as indexable
from nscan.ops.indexing import parse
from nscan.primitive import TABLE, bind, full, same_shape, shape_text
from nscan.tape import locate, remember
from nscan.trace import Traced, check_array


@dataclasses.dataclass(frozen=True)
class Lanes:
    """Options of a call, checked.

    Attributes
    ----------
    lengths : array of int64, shape (B,), or None
        Number of steps of each lane.
    reset : array of bool, shape (n,) or (n, B), or None
    steps : int or traced integer
        Number of rows.
    longest : array of int64, shape (), or None
        Number of the longest lane.
    """

    lengths: object
    reset: object
    steps: object
    longest: object = None

    @property
    def count(self):
        """Number of lanes, or None."""
        return None if self.lengths is None else self.lengths.shape[0]

    def executed(self):
        """Return the number of steps of the longest lane: an int, or a traced integer."""
        if self.lengths is None:
            return self.steps
        most = np.max(self.lengths) if self.count else 0
        return most if isinstance(most, Traced) else int(most)

    def sequences(self, backwards, executed):
        """Return what the step is given beside its own sequences: the number of the step, and its flags of reset."""
        out = [] if self.lengths is None else [_numbers(executed)]
        return out if self.reset is None else [*out, self.rows(self.reset, 0, self.steps, backwards, executed)]

    def rows(self, array, first, offered, backwards, executed):
        """Return the rows that the steps see of an array whose row `first` is the first one offered."""
        array = indexable(array) if any(isinstance(x, Traced) for x in (executed, self.lengths, offered)) else array
        if not backwards:
            return array[first:first + executed]
        if self.lengths is None:
            return array[first:first + offered][::-1][:executed]
        row = np.maximum(self.lengths - 1 - _numbers(executed)[:, None], 0) + first
        return array[row, np.arange(self.count)] if len(array.shape) > 1 else array[row]

    def before(self, depths):
        """Return what sets states back: ``before(rows, states, constants)`` gives the earlier values that a step sees."""
        if self.reset is None:
            return None

        def before(rows, states, constants):
            end = len(constants) - (2 if self.lengths is not None else 0)
            again = rows[-1]
            if self.lengths is not None:
                again = again & bind(TABLE["live"], (rows[-2], constants[end]))
            return [_select(again, x, h) for x, h in zip(constants[end - sum(depths):end], states)]
        return before

    def moved(self, depths):
        """Return what lets earlier values move on where a lane runs only (see `nscan.step.Call`)."""
        if self.lengths is None or max(depths, default=1) == 1:
            return None
        last = {sum(depths[:k + 1]) - 1 for k in range(len(depths))}

        def moved(rows, states, constants):
            live = bind(TABLE["live"], (rows[-1 - (self.reset is not None)], constants[-2]))
            return [x if k in last else _held(live, x, states[k + 1]) for k, x in enumerate(states)]
        return moved

    def wrapped(self, flat_step, depths):
        """Return a flat step that holds still where a lane has ended.

        Its further sequences are `sequences`, its further constants `constants`; `depths` holds for each carry the
        number of its earlier values.
        """
        ended, flags = self.lengths is not None, self.reset is not None
        more = 2 * ended + flags * sum(depths)

        def step(rows, states, constants):
            own = rows[:len(rows) - ended - flags], constants[:len(constants) - more]
            if not ended:
                return flat_step(own[0], states, own[1])
            live = bind(TABLE["live"], (rows[len(own[0])], constants[-2]))
            seen = [[_select(live, x, x[constants[-1]]) if self._has_lanes(x) else x for x in part] for part in (own[0], states)]
            news, outs, stop = flat_step(*seen, own[1])
            newest = [states[sum(depths[:k])] for k in range(len(news))]
            return ([_held(live, new, h) if self._has_lanes(h) else new for new, h in zip(news, newest)],
                    [_select(live, y, np.zeros((), y.dtype)) if self._has_lanes(y) else y for y in outs], stop)
        return step

    def constants(self, initial):
        """Return the further constants of the step, and how messages call them."""
        out = [] if self.reset is None else [x for values in initial for x in values]
        out += [] if self.lengths is None else [self.lengths, self.longest]
        return out, ["outputs_info"] * (len(out) - 2) + ["lengths"] * min(2, len(out))

    def _has_lanes(self, x):
        return bool(x.shape) and same_shape(x.shape[:1], (self.count,))

    def check_loop(self, loop):
        """Refuse a loop that stops by itself, and states and rows without an axis of lanes."""
        if loop.stop:
            option = "lengths" if self.lengths is not None else "reset"
            raise errors.SpecError(f"{option} does not combine with until: {loop.name!r} returns ns.until; let the lanes end by "
                                   "lengths, or mask them yourself")
        if self.lengths is not None:
            _check_apart(loop)
        by_lanes = self.lengths is not None or len(self.reset.shape) == 2
        count = self.count if self.lengths is not None else self.reset.shape[1] if by_lanes else None
        news, _, rows, _, _ = loop.split_step_outputs(loop.step.outputs)
        named = [(name, v) for name, v in zip(loop.state_names, news)]
        named += [(f"output {k}", v) for k, v in enumerate(rows)] if self.lengths is not None else []
        for name, v in named if by_lanes else ():
            if not v.shape or type(v.shape[0]) is int and type(count) is int and v.shape[0] != count:
                option = f"lengths of {count} lanes" if self.lengths is not None else f"reset of shape {tuple(self.reset.shape)}"
                raise errors.StateShapeError(f"{name} of {loop.name!r} has shape {shape_text(v.shape)}: with {option} its first "
                                             f"axis must be the {count} lanes")

    def padded(self, rows, executed):
        """Lengthen rows by zeros for the steps that no lane runs."""
        if self.lengths is None or executed is self.steps or type(executed) is int and executed == self.steps:
            return rows
        out = []
        for x in rows:
            whole = full((self.steps, *x.shape[1:]), 0, x.dtype)
            spec, operands = parse(whole, slice(0, executed))
            out.append(bind(TABLE["index_update"], (whole, x, *operands), {"spec": spec}))
        return out


_APART = {}


def _check_apart(loop):
    """Refuse a step that combines what its lanes hold: where some have ended, that has no meaning."""
    from nscan.plan.live import meeting
    from nscan.plan.memory import prepare
    found = _APART.get(loop.structure)
    if found is None:
        found = remember(_APART, loop.structure, (meeting(prepare(loop)[0]),))
    if found[0] is not None:
        place = locate(found[0].where)
        raise errors.SpecError(f"with lengths no lane may depend on another, but {loop.name!r} combines lanes"
                               f"{f' at {place}: {place.text}' if place else ''}; lanes that have ended would count or not. Leave "
                               "lengths out and mask ended lanes in the step, or combine lanes outside of the loop")


def _numbers(n):
    """Return 0, ..., n - 1."""
    return np.cumsum(full((n,), 1, np.dtype("i8"))) - 1 if isinstance(n, Traced) else np.arange(n)


def _select(mask, new, old):
    """Choose along the first axis; a weak number stays weak, and what has no axis yet stays as it is."""
    if mask.shape:
        ndim = max(len(getattr(x, "shape", ())) for x in (new, old))
        if not ndim:
            return old
        mask = np.reshape(mask, (*mask.shape, *[1] * (ndim - 1)))
    out = np.where(mask, new, old)
    if isinstance(out, Traced):
        out.weak = getattr(old, "weak", None)
    return out


def _held(live, new, old):
    """Return the new state where a lane runs; while types are not settled, the new state."""
    if not same_shape(new.shape, old.shape) or getattr(old, "weak", None) is not None:
        return new
    try:
        wider = np.promote_types(new.dtype, old.dtype)
    except TypeError:
        return new
    return _select(live, astype(new, old.dtype), old) if wider == old.dtype else new


def parse_lanes(lengths, reset, steps, sequences):
    """Check `lengths` and `reset` of a call; None if there are neither.

    Parameters
    ----------
    lengths, reset : array_like or None
    steps : int, traced integer or None
    sequences : tuple of spec.Sequence
    """
    if lengths is None and reset is None:
        return None
    if steps is None:
        option = "lengths" if lengths is not None else "reset"
        raise errors.LengthError(f"{option} needs a number of steps: give sequences or n_steps")
    longest = None
    if lengths is not None:
        lengths = _check_lengths(_array(lengths, "lengths"), steps, sequences)
        longest = np.argmax(lengths) if lengths.shape[0] else np.int64(0)
    if reset is not None:
        reset = _check_reset(_array(reset, "reset"), steps, None if lengths is None else lengths.shape[0])
    return Lanes(lengths, reset, steps, longest)


def _array(x, name):
    x = as_array(x)
    return x if isinstance(x, Traced) else check_array(np.asarray(x), name)


def _check_lengths(lengths, steps, sequences):
    if lengths.dtype.kind not in "iu":
        raise errors.DtypeError(f"lengths must be integers, one for each lane, got dtype {lengths.dtype}")
    if len(lengths.shape) != 1:
        raise errors.SpecError(f"lengths must have shape (B,), one for each lane, got shape {shape_text(lengths.shape)}")
    count = lengths.shape[0]
    for s in sequences:
        shape = s.array.shape
        if len(shape) < 2 or type(shape[1]) is int and type(count) is int and shape[1] != count:
            raise errors.LengthError(f"lengths has {count} lanes but {s.path} has shape {shape_text(shape)}: with lengths a sequence "
                                     f"has shape (n, {count}, ...)")
    if not isinstance(lengths, Traced) and type(steps) is int:
        for k in np.flatnonzero((lengths < 0) | (lengths > steps))[:1]:
            raise errors.LengthError(f"lengths[{k}] is {lengths[k]}; the loop has {steps} steps, so it must be from 0 to {steps}")
    return astype(lengths, np.dtype("i8"))


def _check_reset(reset, steps, count):
    if reset.dtype.kind != "b":
        raise errors.DtypeError(f"reset must be bool, one flag for each step, got dtype {reset.dtype}")
    shape, wanted = reset.shape, f"(n,) or (n, {count or 'B'}) with n = {steps}"
    ok = len(shape) in (1, 2) and (type(steps) is not int or type(shape[0]) is not int or shape[0] == steps)
    if not ok or count is not None and len(shape) == 2 and not same_shape(shape[1:], (count,)):
        raise errors.LengthError(f"reset has shape {shape_text(shape)}; it must have shape {wanted}")
    return reset
