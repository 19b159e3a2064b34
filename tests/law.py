"""The law: `scan` and its relatives as plain Python loops over real NumPy arrays, in values only.

Every other way to run a loop must return what these functions return. Nothing here is fast: it is obvious.
"""

import dataclasses
import functools
import itertools
import operator

import numpy as np

NUMBERS = (int, float, complex)  # values of exactly these types have no dtype of their own


class until:
    """Marker beside the outputs of a step. Another class can be assigned to ``law.until``."""

    def __init__(self, condition):
        self.condition = condition


def walk(function, nest):
    """Apply a function to each leaf of tuples, lists, dicts, named tuples, dataclasses; None is empty."""
    if nest is None:
        return None
    if dataclasses.is_dataclass(nest):
        return type(nest)(**walk(function, {x.name: getattr(nest, x.name) for x in dataclasses.fields(nest)}))
    if isinstance(nest, dict):
        return {key: walk(function, part) for key, part in nest.items()}
    if isinstance(nest, (tuple, list)):
        parts = [walk(function, part) for part in nest]
        return type(nest)(*parts) if hasattr(nest, "_fields") else type(nest)(parts)
    return function(nest)


def leaves(nest):
    """Return the leaves of a nest, in order."""
    found = []
    walk(found.append, nest)
    return found


def rebuild(nest, values):
    """Return a nest like this one, its leaves taken from an iterator."""
    return walk(lambda _: next(values), nest)


def entries(given):
    """Return a list of entries; a bare array counts as a list of one."""
    return [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]


class Weak(np.lib.mixins.NDArrayOperatorsMixin):
    """A Python number inside a step, while dtypes are found: what NumPy makes of such numbers stays Weak."""

    def __init__(self, value):
        self.value = value

    def __getattr__(self, name):
        return getattr(np.asarray(self.value)[()], name)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return self.__array_function__(getattr(ufunc, method), (), inputs, options)

    def __array_function__(self, function, types, inputs, options):
        result = function(*strong(inputs), **options)
        weak = isinstance(result, np.generic) and all(type(x) in (Weak, *NUMBERS) for x in inputs)
        return Weak(result.item()) if weak and type(result.item()) in NUMBERS else result


def strong(nest):
    """Replace Weak by the number in it."""
    return walk(lambda x: x.value if type(x) is Weak else x, nest)


class Sequence:
    """An array read along its first axis: tap `k` at step `t` is row ``t + k - lo``."""

    def __init__(self, entry):
        entry = entry if isinstance(entry, dict) else {"input": entry}
        self.array, self.taps = np.asarray(entry["input"]), entries(entry.get("taps", 0))
        self.lo = min(0, *self.taps)
        self.offered = max(0, len(self.array) - (max(0, *self.taps) - self.lo))

    def rows(self, i, go_backwards, lengths):
        """Return the rows of all taps for iteration `i`; with lengths each lane goes back from its own last step."""
        if self.offered == 0:  # no step can run: only shapes and dtypes are looked at
            return [np.zeros(self.array.shape[1:], self.array.dtype) for _ in self.taps]
        t = i if not go_backwards else (self.offered if lengths is None else lengths) - 1 - i
        lanes = [np.arange(len(t))] if np.ndim(t) else []
        return [self.array[(np.maximum(t, 0) + tap - self.lo, *lanes)] for tap in self.taps]


class State:
    """An initial value: its first rows (oldest first), dtype (a Python zero: none of its own) and shape."""

    def __init__(self, entry):
        entry = entry if isinstance(entry, dict) else {"initial": entry}
        initial, self.taps = entry["initial"], entries(entry.get("taps", -1))
        if max(self.taps) >= 0 or len(set(self.taps)) < len(self.taps):
            raise ValueError(f"taps of a state are distinct negative integers, not {self.taps}")
        need = -min(self.taps)
        if self.taps != [-1] and (np.ndim(initial) == 0 or len(initial) < need):
            raise ValueError(f"taps {self.taps} need {need} rows, the initial value has {np.shape(initial)}")
        self.first = [initial] if self.taps == [-1] else list(np.asarray(initial)[:need])
        self.dtype = type(initial)(0) if type(initial) in NUMBERS else np.asarray(self.first[0]).dtype
        self.shape = np.shape(self.first[0])

    def window(self):
        """Return the first rows in the state's dtype, broadcast from 0-d if the step asks for it."""
        if type(self.dtype) in NUMBERS:
            return [Weak(type(self.dtype)(self.first[0]))]
        return [np.array(np.broadcast_to(row, self.shape), self.dtype)[()] for row in self.first]

    def join(self, value):
        """Move up to the shape and dtype that the step returned for this state."""
        if self.shape not in ((), np.shape(value)):
            raise ValueError(f"a state has shape {self.shape}, the step returns shape {np.shape(value)}")
        self.shape, value = np.shape(value), strong(value)
        kind = type(value)(0) if type(value) in NUMBERS else np.asarray(value).dtype
        weak = type(kind) in NUMBERS and type(self.dtype) in NUMBERS
        self.dtype = kind + self.dtype if weak else np.result_type(kind, self.dtype)
        return self


def split(result):
    """Split what a step returned into its outputs and the stop condition (None: no marker)."""
    outputs = entries(result)
    if not (outputs and isinstance(outputs[-1], until)):
        return outputs, None
    stop = bool(strong(outputs.pop().condition))
    return entries(outputs[0]) if len(outputs) == 1 else outputs, stop


def settle(call, states, exact):
    """Run step 0 until no state changes dtype or shape; return all states (None: a row) and that result."""
    while True:
        before = [(repr(s.dtype), s.shape) for s in states if s]
        outputs, stop = call(0, [s and s.window() for s in states])
        if len(outputs) < len(states) or exact and len(outputs) > len(states):
            raise ValueError(f"{len(outputs)} outputs, outputs_info has {len(states)} entries")
        known = [s.join(value) for s, value in zip(states, outputs, strict=False) if s]
        if before == [(repr(s.dtype), s.shape) for s in known]:
            if all(isinstance(s.dtype, np.dtype) for s in known):
                return states + [None] * (len(outputs) - len(states)), outputs, stop
            for s in known:
                s.dtype = np.result_type(s.dtype)  # of a Python number: int64, float64, complex128


def choose(mask, new, old):
    """Return `new` in the lanes where the mask holds, `old` in the others."""
    return np.where(np.reshape(mask, np.shape(mask) + (1,) * (np.ndim(new) - np.ndim(mask))), new, old)[()]


@np.errstate(all="ignore")
def run(fn, sequences, outputs_info, non_sequences, n_steps, go_backwards, lengths, reset, exact=True, reset_to=None,
        windows_at=None):
    """Run a loop; return the stacked rows of each output, and the final value of each (None for a row).

    `reset_to` is what a reset goes back to, where the loop starts elsewhere; like outputs_info. ``windows_at=(i, found)``
    puts into the list `found` what step i sees of each state: its last values.
    """
    sequences = [Sequence(entry) for entry in entries(sequences)]
    states = [None if entry is None else State(entry) for entry in entries(outputs_info)]
    constants = walk(lambda a: np.broadcast_to(a, a.shape) if isinstance(a, np.ndarray) else a,  # read-only
                     entries(non_sequences))
    offered = min([s.offered for s in sequences], default=np.inf)
    n = offered if n_steps is None else operator.index(n_steps)
    lengths = None if lengths is None else np.asarray(lengths)
    if not 0 <= n <= offered or lengths is not None and not np.all((lengths >= 0) & (lengths <= n)):
        raise ValueError(f"n_steps is {n}, lengths {lengths}; the sequences offer {offered} steps")

    def seen(row, i):  # a lane that has ended sees what the longest one sees; what the step returns there is dropped
        if lengths is None or np.ndim(row) == 0 or np.all(i < lengths):
            return row
        return choose(i < lengths, row, np.broadcast_to(row[np.argmax(lengths)], np.shape(row)))

    def call(i, windows):  # hands over copies: arrays, or a NumPy scalar for a 0-d row
        args = [seen(row, i) for s in sequences for row in s.rows(i, go_backwards, lengths)]
        windows = [w and [a if type(a) is Weak else seen(a, i) for a in w] for w in windows]
        args += [w[tap] for s, w in zip(states, windows, strict=False) if s for tap in s.taps]
        return split(fn(*[a if type(a) is Weak else np.array(a)[()] for a in args], *constants))

    states, outputs, stop = settle(call, states, exact and outputs_info is not None)
    if n == np.inf if stop is None else (lengths is not None or reset is not None):
        raise ValueError("give a sequence, n_steps or until; until does not combine with lengths or reset")
    like = [np.asarray(value, s and s.dtype) for s, value in zip(states, outputs, strict=True)]
    first = [s and s.window() for s in states]
    stacked, windows = [[] for _ in states], list(first)
    if reset_to is not None:
        first = [s and [np.broadcast_to(row, s.shape) for row in State(entry).window()]
                 for s, entry in itertools.zip_longest(states, reset_to)]
    for i in itertools.count() if n == np.inf else range(n):
        if windows_at is not None and i == windows_at[0]:
            windows_at[1].extend(windows)
        live = True if lengths is None else i < lengths
        if not np.any(live):
            stacked = [rows + [np.zeros_like(x)] for rows, x in zip(stacked, like, strict=True)]
            continue
        if reset is not None:  # a flag belongs to a row of the sequences
            t = i if not go_backwards else (n if lengths is None else np.maximum(lengths, i + 1)) - 1 - i
            by_lane = np.ndim(t) and np.ndim(reset) == 2
            again = np.asarray(reset)[(t, np.arange(len(lengths))) if by_lane else t] & live
            windows = [w and [choose(again, a, b) for a, b in zip(f, w, strict=True)]
                       for f, w in zip(first, windows, strict=True)]
        outputs, stop = call(i, windows)
        for j, (value, wanted) in enumerate(zip(outputs, like, strict=True)):
            value = np.asarray(value, wanted.dtype)[()]
            if np.shape(value) != wanted.shape:
                raise ValueError(f"output {j}: shape {wanted.shape} at step 0, {np.shape(value)} at step {i}")
            stacked[j].append(choose(live, value, np.zeros_like(value)))
            if windows[j]:
                windows[j] = windows[j][1:] + [choose(live, value, windows[j][-1])]
        if stop:
            break
    rows = [np.reshape(np.array(r, x.dtype), (len(r), *x.shape)) for r, x in zip(stacked, like, strict=True)]
    return rows, [w and w[-1] for w in windows]


def scan(fn, sequences=None, outputs_info=None, non_sequences=None, n_steps=None, go_backwards=False,
         return_list=False, lengths=None, reset=None, **watched):
    """Return the rows that the step returned, stacked: one array for each output."""
    rows, _ = run(fn, sequences, outputs_info, non_sequences, n_steps, go_backwards, lengths, reset, **watched)
    return rows if return_list else rows[0] if len(rows) == 1 else tuple(rows)


def loop(fn, init, xs=None, length=None, reverse=False, lengths=None, reset=None):
    """Return (final carry, ys) of ``fn(carry, x) -> (carry, y)`` or ``(carry, y, until(condition))``."""
    made = []

    def step(*args):
        args = iter(args)
        x = rebuild(xs, args)
        carry, y, *stop = fn(rebuild(init, args), x)
        made[:] = [y]
        return (leaves(carry) + leaves(y), *stop) if stop else leaves(carry) + leaves(y)

    rows, finals = run(step, leaves(xs), leaves(init), None, length, reverse, lengths, reset, exact=False)
    ys = [row[::-1] if reverse else row for row in rows[len(leaves(init)):]]
    return rebuild(init, iter(finals)), rebuild(made[0], iter(ys))


def map(fn, sequences, non_sequences=None, go_backwards=False):
    """Return the rows of ``fn(x, *non_sequences)``; an entry of `sequences` is a nest of arrays."""
    def step(*args):
        return fn(*rebuild(entries(sequences), rest := iter(args)), *rest)

    return scan(step, leaves(entries(sequences)), None, non_sequences, go_backwards=go_backwards)


def reduce(fn, sequences, outputs_info, non_sequences=None, go_backwards=False):
    """Return the last values of ``fn(x, acc, *non_sequences)``; without steps the initial ones."""
    rows, finals = run(fn, sequences, outputs_info, non_sequences, None, go_backwards, None, None)
    last = [row[-1] if final is None else final for row, final in zip(rows, finals, strict=True)]
    return last[0] if len(last) == 1 else tuple(last)


foldl = functools.partial(reduce, go_backwards=False)
foldr = functools.partial(reduce, go_backwards=True)


def while_loop(cond, body, init, max_steps=None):
    """Return the carry after ``carry = body(carry)`` while ``cond(carry)``, at most `max_steps` times."""
    def step(*values):
        carry = leaves(body(rebuild(init, iter(values))))
        return carry, until(not cond(rebuild(init, iter(carry))))

    _, finals = run(step, None, leaves(init), None, max_steps if cond(init) else 0, False, None, None)
    return rebuild(init, iter(finals))


def cond(pred, then, other, *args):
    """Return what the taken function returns."""
    return (then if pred else other)(*args)
