"""The parsed call of `scan`: every sequence, state and constant by name, checked before anything is traced."""

import dataclasses
import inspect
import types

import numpy as np

from nscan import errors, tree
from nscan.array import as_operand
from nscan.tape import remember
from nscan.trace import Traced, check_array


@dataclasses.dataclass(frozen=True)
class Sequence:
    """A sequence: its array, its taps as listed, the name of its place."""

    array: object
    taps: tuple
    path: str

    @property
    def low(self):
        """Lowest tap, at most 0."""
        return min(0, *self.taps)

    @property
    def high(self):
        """Highest tap, at least 0."""
        return max(0, *self.taps)

    @property
    def offered(self):
        """Number of steps that the rows allow."""
        rows = self.array.shape[0]
        span = self.high - self.low
        return max(0, rows - span) if type(rows) is int else rows - span


@dataclasses.dataclass(frozen=True)
class State:
    """A state: its initial value, its taps as listed, whether it has a row axis, its output number."""

    initial: object
    taps: tuple
    path: str
    output: int

    @property
    def depth(self):
        """Number of earlier values that the step may see."""
        return -min(self.taps)

    @property
    def has_rows(self):
        """Whether the initial value has a leading axis of rows."""
        return self.taps != (-1,)


@dataclasses.dataclass(frozen=True)
class Spec:
    """A call of `scan`, parsed.

    Attributes
    ----------
    sequences : tuple of Sequence
    states : tuple of State
    outputs : int or None
        Number of entries of outputs_info; None if it was not given.
    constants : list
        The non_sequences as given (nests).
    n_steps : int, traced integer, or None
    go_backwards : bool
    name : str
        Name of the step.
    arguments : tuple of str
        What the step is given, in words, one for each argument.
    """

    sequences: tuple
    states: tuple
    outputs: object
    constants: tuple
    n_steps: object
    go_backwards: bool
    name: str
    arguments: tuple


def parse(fn, sequences, outputs_info, non_sequences, n_steps, go_backwards, name):
    """Parse the arguments of `scan`; raise what is wrong with them, by name."""
    seqs = tuple(_sequence(x, f"sequences[{k}]" if isinstance(sequences, (list, tuple)) else "sequences")
                 for k, x in enumerate(_entries(sequences)))
    entries = None if outputs_info is None else _entries(outputs_info, keep_none=True)
    states = () if entries is None else tuple(
        _state(x, f"outputs_info[{k}]", k) for k, x in enumerate(entries) if x is not None)
    constants = tuple(_entries(non_sequences))
    n_steps = steps(n_steps)
    arguments = [f"{s.path} at tap {t}" if s.taps != (0,) else s.path for s in seqs for t in s.taps]
    arguments += [f"{s.path} at tap {t}" if s.has_rows else s.path for s in states for t in s.taps]
    arguments += [f"non_sequences[{k}]" for k in range(len(constants))]
    check_arity(fn, arguments)
    return Spec(seqs, states, None if entries is None else len(entries), constants, n_steps, flag(go_backwards, "go_backwards"),
                name or getattr(fn, "__name__", type(fn).__name__), tuple(arguments))


def flag(value, name):
    """Return an option that is True or False."""
    if not isinstance(value, (bool, np.bool_)) and not (type(value) is int and value in (0, 1)):
        raise errors.SpecError(f"{name} must be True or False, got {value!r:.60}")
    return bool(value)


def _entries(x, keep_none=False):
    """Return a list of entries: the top list or tuple is the list, anything else is its only entry."""
    if x is None:
        return []
    return list(x) if isinstance(x, (list, tuple)) else [x]


def _keys(entry, path, allowed):
    unknown = [k for k in entry if k not in allowed]
    if unknown:
        raise errors.SpecError(f"{path} has the unknown key {unknown[0]!r}; the keys are {', '.join(map(repr, allowed))}")


def _taps(taps, path):
    taps = [taps] if not isinstance(taps, (list, tuple, np.ndarray, range)) else list(taps)
    for t in taps:
        if isinstance(t, (bool, np.bool_)) or not isinstance(t, (int, np.integer)):
            raise errors.TapError(f"taps of {path} must be integers, got {t!r}")
    if not taps:
        raise errors.TapError(f"taps of {path} are empty; leave the key out for the usual tap")
    return tuple(int(t) for t in taps)


def _array(x, path):
    try:
        x = as_operand(x)
    except errors.DtypeError as error:
        if str(error).startswith((f"{path} ", f"{path}:")):
            raise
        raise errors.DtypeError(f"{path}: {error}") from None
    if not hasattr(x, "dtype"):
        return x
    if not isinstance(x, Traced):
        check_array(x, path)
    return x


def as_leaf(x, path):
    """Return an array operand; errors name its path."""
    if isinstance(x, np.ma.MaskedArray):
        raise errors.DtypeError(f"{path} is a masked array; its mask would be lost: pass x.filled(value)")
    foreign = isinstance(x, np.ndarray) and x.dtype.kind == "O" and not any(isinstance(v, Traced) for v in x.flat)
    if foreign or isinstance(x, (str, bytes)):
        raise errors.DtypeError(f"{path} has dtype {np.asarray(x).dtype}; bool, integers, float32, float64, complex64 and "
                                "complex128 are known")
    return _array(x, path)


def _sequence(entry, path):
    taps = (0,)
    if isinstance(entry, dict):
        _keys(entry, path, ("input", "taps"))
        if "input" not in entry:
            raise errors.SpecError(f"{path} is a dict without the key 'input'")
        taps = _taps(entry.get("taps", (0,)), path)
        entry = entry["input"]
    array = as_leaf(entry, path)
    if not hasattr(array, "shape") or len(array.shape) == 0:
        numbers = path.startswith("sequences[")
        raise errors.SpecError(f"{path} is 0-d: a sequence has an axis of steps; did you mean a non_sequence?"
                               f"{' Of a list each entry is a sequence: pass np.array([...]) for one of numbers' * numbers}")
    return Sequence(array, taps, path)


def _state(entry, path, output):
    taps = (-1,)
    if isinstance(entry, dict):
        _keys(entry, path, ("initial", "taps"))
        if entry.get("initial") is None:
            raise errors.SpecError(f"{path} is a dict without the key 'initial'; an output without feedback has the entry None")
        taps = _taps(entry.get("taps", (-1,)), path)
        entry = entry["initial"]
    for t in taps:
        if t >= 0:
            raise errors.TapError(f"taps of {path} must be negative (the step is about to compute tap 0), got {t}")
    if len(set(taps)) != len(taps):
        raise errors.TapError(f"taps of {path} must be distinct, got {list(taps)}")
    state = State(as_leaf(entry, path), taps, path, output)
    if state.has_rows:
        shape = getattr(state.initial, "shape", ())
        rows = shape[0] if shape else 0
        if type(rows) is int and rows < state.depth:
            raise errors.LengthError(f"{path}: the initial value has {rows} rows; taps {list(taps)} need {state.depth} "
                                     "(y[-m] ... y[-1], the oldest first)")
    return state


def steps(n, name="n_steps"):
    """Check a number of steps, given by the parameter `name`: a non-negative integer, a traced integer, or None."""
    if n is None:
        return None
    if isinstance(n, Traced):
        if n.dtype.kind not in "iu" or n.shape:
            raise errors.StepsTypeError(f"{name} must be an integer, got a traced array of dtype {n.dtype} and shape {n.shape}")
        return n
    if isinstance(n, np.ndarray) and n.ndim == 0:
        n = n[()]
    if isinstance(n, (bool, np.bool_)) or not isinstance(n, (int, np.integer)):
        raise errors.StepsTypeError(f"{name} must be an integer, got {n!r} of type {type(n).__name__}")
    if n < 0:
        raise errors.LengthError(f"{name} must not be negative, got {int(n)}")
    return int(n)


_SIGNATURES = {}


def _signature(fn):
    """Return the signature of a callable (None if it has none) and the numbers of arguments known to fit; plain functions once."""
    plain = type(fn) is types.FunctionType and not fn.__dict__
    key = (fn.__code__, fn.__defaults__ and len(fn.__defaults__), *(fn.__kwdefaults__ or ())) if plain else None
    found = _SIGNATURES.get(key)
    if found is None:
        try:
            found = inspect.signature(fn), set()
        except (TypeError, ValueError):
            found = None, set()
        if plain:
            remember(_SIGNATURES, key, found, 1000)
    return found


def check_arity(fn, arguments):
    """Raise unless the function accepts that many positional arguments."""
    if not callable(fn):
        raise errors.SpecError(f"the step is a {type(fn).__name__} object, not a function")
    signature, fitting = _signature(fn)
    if signature is None or len(arguments) in fitting:
        return
    try:
        signature.bind(*arguments)
        fitting.add(len(arguments))
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        listed = ", ".join(arguments) or "nothing"
        raise errors.ArityError(f"{name}{signature} is given {len(arguments)} arguments ({listed}): {error}") from None


def parameter_names(fn, count):
    """Names of the first parameters of a function, as many as it has; None where it has no name."""
    signature = _signature(fn)[0]
    if signature is None:
        return [None] * count
    names = [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (names + [None] * count)[:count]


def number_of_steps(spec):
    """Return the number of steps of a call, or None where only `until` ends it; check that rows suffice."""
    offered = [s.offered for s in spec.sequences]
    if spec.n_steps is None:
        known = [n for n in offered if type(n) is int]
        unknown = [n for n in offered if type(n) is not int]
        if not offered:
            return None
        out = min(known) if known else unknown[0]
        for n in unknown:
            out = np.minimum(out, n) if n is not out else out
        return out
    if type(spec.n_steps) is int:
        for s in spec.sequences:
            if type(s.offered) is int and s.offered < spec.n_steps:
                need = spec.n_steps + s.high - s.low
                with_taps = f" (with taps {list(s.taps)})" if s.taps != (0,) else ""
                raise errors.LengthError(f"{s.path} has {s.array.shape[0]} rows and offers {s.offered} steps{with_taps}; "
                                         f"n_steps={spec.n_steps} needs {need} rows")
    return spec.n_steps


def flat_constants(constants):
    """Flatten the nests among the non_sequences: (leaves, structures, paths)."""
    leaves, structures, paths = [], [], []
    for k, nest in enumerate(constants):
        found, structure = tree.flatten(nest)
        structures.append((structure, len(found)))
        leaves += found
        paths += tree.paths(structure, f"non_sequences[{k}]")
    return leaves, structures, paths
