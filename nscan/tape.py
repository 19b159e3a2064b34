"""The tape: a typed list of equations in single-assignment form, its printer and its checker.

A `Var` is a value that an equation (or the caller) defines once; a `Lit` is a number that shapes the code.
Shapes hold ints, or a `Var` where a size is known only at run time (a 0-d int64 of the same tape).
"""

import dataclasses
import functools
import linecache

import numpy as np


class Var:
    """A value of a tape: shape, dtype and a number that is unique in its tape."""

    __slots__ = ("shape", "dtype", "id")

    def __init__(self, shape, dtype, id):
        self.shape = shape
        self.dtype = dtype
        self.id = id

    @property
    def ndim(self):
        """Number of axes."""
        return len(self.shape)

    def __repr__(self):
        return f"v{self.id}"


class Lit:
    """A number that is part of the code: an exponent, 0, 1, a constant of a derivative rule."""

    __slots__ = ("value", "dtype", "key")
    shape = ()
    ndim = 0

    def __init__(self, value, dtype):
        self.dtype = np.dtype(dtype)
        self.value = np.asarray(value, self.dtype)[()]
        self.key = self.dtype, self.value.tobytes()

    def __repr__(self):
        return f"{self.value}"


class Opaque:
    """The dtype of a residual: a bundle of arrays that only one consumer understands."""

    kind = "R"
    name = "residual"

    def __repr__(self):
        return self.name


RESIDUAL = Opaque()


class Eqn:
    """An equation: outputs = row(inputs; params), and where in the user's code it was made."""

    __slots__ = ("row", "inputs", "outputs", "params", "where")

    def __init__(self, row, inputs, outputs, params, where=None):
        self.row = row
        self.inputs = inputs
        self.outputs = outputs
        self.params = params
        self.where = where

    def __repr__(self):
        left = ", ".join(f"{v}:{type_text(v)}" for v in self.outputs)
        params = "".join(f" {k}={v if not hasattr(v, 'brief') else v.brief()}" for k, v in self.params.items())
        return f"{left} = {self.row.name}{params} {' '.join(map(repr, self.inputs))}"


class Key:
    """What tells a structure apart from others: its hash is computed once, and a key equals itself at once."""

    __slots__ = ("items", "hash")

    def __init__(self, items):
        self.items = items
        self.hash = hash(items)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        return self is other or type(other) is Key and self.hash == other.hash and self.items == other.items


@dataclasses.dataclass(frozen=True, eq=False)
class Tape:
    """Equations in order, from inputs to outputs.

    Attributes
    ----------
    inputs : tuple of Var
    eqns : tuple of Eqn
    outputs : tuple of Var or Lit
    """

    inputs: tuple
    eqns: tuple
    outputs: tuple

    def __str__(self):
        head = "inputs  " + ", ".join(f"{v}:{type_text(v)}" for v in self.inputs)
        lines = [head]
        for eqn in self.eqns:
            lines.append(f"  {eqn}")
            for part in eqn.params.values():
                for tape in getattr(part, "tapes", tuple)():
                    lines += [f"    | {line}" for line in str(tape).splitlines()]
        return "\n".join([*lines, "outputs " + ", ".join(map(repr, self.outputs))])

    @functools.cached_property
    def key(self):
        """What tells two tapes apart: rows, dtypes, shapes, structure and literals.

        Arrays and numbers that the step captured are inputs of the tape, so their values are not in the key.
        """
        inputs = tuple([(v.id, v.dtype, shape_key(v.shape)) for v in self.inputs])
        return Key((inputs, tuple(map(_eqn_key, self.eqns)), tuple(map(operand_key, self.outputs))))


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """The parameters of a loop equation: the step's tape and the number of slots of each kind.

    Inputs of the equation: the number of steps, then sequences, initial states, initial sums, constants.
    Inputs of the step: a row of each sequence, states, sums, constants. Outputs of the step: new states, new
    sums, rows, hidden rows, and (with `stop`) a bool after which the loop ends. Outputs of the equation:
    rows, final states, final sums, with `stop` the number of steps done, and the residual (the hidden rows in
    one opaque value) if there are hidden rows.

    Attributes
    ----------
    step : Tape
    seqs, states, sums, consts, rows, hidden : int
        Sums are states that are only added to: never saved, never read by other equations.
    stop : bool
        A post-test: the row that fires is kept.
    reverse : bool
        Rows are read and written from the last to the first.
    checkpoint : str or int
        What the user said about rows for a backward pass (`nscan.checkpoint`).
    keep : str or None
        How these rows are kept, once that is decided: "all", "states" or "segments".
    partner : Loop or None
        Of a forward loop in segments, its backward loop; of a backward loop that computes rows again from states, the one
        that is given all rows: both divide the steps into the same blocks.
    origin : (Loop, tuple of int or None) or None
        Of a loop that computes values of another loop's step again: that loop, and for each input of this step its number
        among the values of that one (inputs first, then results of equations). Sums have the same order in both.
    plain : bool
        Every step follows from the one before it in the order of the tape (`nscan.plan.affine`): rows are computed again.
    name : str
        Name of the user's step, for messages.
    private : bool
        Nobody but its backward loop reads its rows.
    state_names : tuple of str
    watch : tuple of str
        What the user wants to see of a run: among "finite", "profile", "progress".
    """

    step: Tape
    seqs: int
    states: int
    consts: int
    rows: int
    sums: int = 0
    hidden: int = 0
    stop: bool = False
    reverse: bool = False
    name: str = "step"
    state_names: tuple = ()
    checkpoint: object = "auto"
    watch: tuple = ()
    keep: object = None
    partner: object = None
    plain: bool = False
    origin: object = None
    private: bool = False

    @functools.cached_property
    def key(self):
        """What tells two loops apart, without names."""
        return Key((self.structure, self.checkpoint, self.keep, self.partner and self.partner.structure))

    @functools.cached_property
    def structure(self):
        """What tells two kernels apart; a loop that is watched has places of its own."""
        return Key((self.step.key, self.seqs, self.states, self.consts, self.rows, self.sums, self.hidden, self.stop,
                    self.reverse, self.plain, self.private, self.partner.structure if self.partner and not self.hidden else None,
                    self.origin and (self.origin[0].structure, self.origin[1]),
                    *((self.watch, places(self.step)) if self.watch else ())))

    @functools.cached_property
    def bare(self):
        """The loop without hidden rows."""
        if not self.hidden:
            return self
        states, sums, rows, _, stop = self.split_step_outputs(self.step.outputs)
        outputs = (*states, *sums, *rows, *([stop] if self.stop else []))
        return dataclasses.replace(self, step=Tape(self.step.inputs, self.step.eqns, outputs), hidden=0, partner=None)

    @functools.cached_property
    def shown(self):
        """The loop without hidden rows where these are computed again from its states."""
        return dataclasses.replace(self.bare, plain=True)

    @functools.cached_property
    def variants(self):
        """Loops made of this one, by what was changed."""
        return {}

    @functools.cached_property
    def settled(self):
        """The loop as it was traced: whether it is to run in a plain way is decided with its derivative."""
        return dataclasses.replace(self, plain=False) if self.plain else self

    def keeping(self, keep):
        """Return the loop with another `keep`, in plain order like all whose rows are read, the same object every time."""
        found = self.variants.get(keep)
        if found is None:
            found = self.variants[keep] = dataclasses.replace(self, keep=keep, plain=True)
        return found

    def tapes(self):
        """Tapes inside, for printing and for passes."""
        return (self.step,)

    def brief(self):
        """Short text for printed tapes."""
        marks = ", until" * self.stop + ", reverse" * self.reverse
        counts = f"{self.seqs} sequences, {self.states} states, {self.sums} sums, {self.rows}+{self.hidden} rows"
        return f"{self.name}({counts}{marks})"

    def split_inputs(self, values):
        """Split the operands of the equation into n, sequences, states, sums, constants."""
        a, b = 1 + self.seqs, 1 + self.seqs + self.states
        return values[0], values[1:a], values[a:b], values[b:b + self.sums], values[b + self.sums:]

    def split_step_inputs(self, values):
        """Split the inputs of the step into rows of sequences, states, sums, constants."""
        a, b = self.seqs, self.seqs + self.states
        return values[:a], values[a:b], values[b:b + self.sums], values[b + self.sums:]

    def split_step_outputs(self, values):
        """Split the outputs of the step into states, sums, rows, hidden rows, stop (or None)."""
        a = self.states + self.sums
        b, c = a + self.rows, a + self.rows + self.hidden
        return values[:self.states], values[self.states:a], values[a:b], values[b:c], values[c] if self.stop else None

    def split_outputs(self, values):
        """Split the outputs of the equation into rows, states, sums, count (or None), residual (or None)."""
        a, b = self.rows, self.rows + self.states
        c = b + self.sums
        return (values[:a], values[a:b], values[b:c], values[c] if self.stop else None,
                values[-1] if self.hidden else None)

    @property
    def visible(self):
        """Number of outputs without the residual."""
        return self.rows + self.states + self.sums + self.stop


@dataclasses.dataclass(frozen=True, eq=False)
class Cond:
    """The parameters of a conditional equation: a tape for each branch, over the same operands."""

    then: Tape
    other: Tape

    @functools.cached_property
    def key(self):
        """What tells two conditionals apart."""
        return Key((self.then.key, self.other.key))

    def tapes(self):
        """Tapes inside, for printing and for passes."""
        return self.then, self.other

    def brief(self):
        """Short text for printed tapes."""
        return "(then | other)"


def spares(inputs, same=()):
    """Make Vars of the types of a tape's inputs, for a tape that ignores them.

    Parameters
    ----------
    inputs : sequence of Var
    same : iterable of (Var, Var)
        Inputs of the one tape, and what the other one calls them: sizes may be among them.
    """
    env = dict(same)
    for k, v in enumerate(sorted(inputs, key=lambda v: bool(v.shape)), 1):
        env[v] = Var(tuple(d if type(d) is int else env[d] for d in v.shape), v.dtype, -k)
    return tuple(env[v] for v in inputs)


class Output:
    """A size that is another output of the same equation (the number of steps of a loop that stops)."""

    def __init__(self, index):
        self.index = index


def type_text(v):
    """Write dtype and shape of a value as ``f4[3, 4]``."""
    dtype = v.dtype
    short = dtype.name if isinstance(dtype, Opaque) else dtype.str.lstrip("<|=>")
    return short + ("[" + ", ".join(map(str, v.shape)) + "]" if v.shape else "")


def uses(tape):
    """Count how often each Var is read by an equation or is an output."""
    count = {}
    for v in _reads(tape):
        if type(v) is Var:
            count[v] = count.get(v, 0) + 1
    return count


def _reads(tape):
    for eqn in tape.eqns:
        yield from eqn.inputs
        for out in eqn.outputs:
            yield from (d for d in out.shape if type(d) is Var)
    yield from tape.outputs


def check(tape):
    """Raise AssertionError unless each Var is defined once, before it is read, with the row's own types."""
    known = set()
    for v in tape.inputs:
        assert v not in known, f"{v} is an input twice"
        known.add(v)
    for eqn in tape.eqns:
        for v in eqn.inputs:
            assert type(v) is Lit or v in known, f"{v} is read before it is defined, in {eqn}"
        for v in eqn.outputs:
            assert v not in known, f"{v} is defined twice"
            known.add(v)
        inferred = eqn.row.infer(*eqn.inputs, **eqn.params)
        assert len(inferred) == len(eqn.outputs), f"{eqn} has {len(eqn.outputs)} outputs, not {len(inferred)}"
        for v, (shape, dtype) in zip(eqn.outputs, inferred):
            assert tuple(v.shape) == tuple(shape) and v.dtype == dtype, f"{eqn}: {shape} {dtype} inferred"
    for v in tape.outputs:
        assert type(v) is Lit or v in known, f"output {v} is not defined"
    return tape


def shape_key(shape):
    """Hashable form of a shape, sizes known only at run time by number."""
    for d in shape:
        if type(d) is not int:
            return tuple([("v", d.id) if type(d) is Var else d for d in shape])
    return shape


def places(tape):
    """Where each equation of a tape, and of the tapes inside it, was made; hashable."""
    out = []
    for eqn in tape.eqns:
        out.append(eqn.where)
        out += [places(inner) for part in eqn.params.values() for inner in getattr(part, "tapes", tuple)()]
    return tuple(out)


def operand_key(v):
    """Hashable form of an operand: the number of a Var, the content of a Lit."""
    return v.id if type(v) is Var else v.key


def params_key(params):
    """Hashable form of the parameters of an equation."""
    return tuple([(k, getattr(p, "key", p)) for k, p in params.items()]) if params else ()


def _eqn_key(eqn):
    return (eqn.row.name, tuple(map(operand_key, eqn.inputs)), params_key(eqn.params),
            eqn.outputs[0].id if eqn.outputs else -1)


def remember(cache, key, value, limit=10_000):
    """Enter a derived value into a cache that does not grow without bound, and return it."""
    if len(cache) >= limit:
        cache.clear()
    cache[key] = value
    return value


@dataclasses.dataclass(frozen=True)
class Where:
    """A place in the user's code: file, line, and the text of the line when it can be read."""

    file: str
    line: int

    def __str__(self):
        return f"{self.file}:{self.line}"

    @property
    def text(self):
        """The line of source, or an empty string."""
        return linecache.getline(self.file, self.line).strip()


class Place:
    """An instruction of the user's code, one object for each: what an equation keeps to say where it was made.

    `literals` are the ids of the constants of that code.
    """

    __slots__ = ("code", "instruction", "literals")

    def __init__(self, code, instruction, literals=frozenset()):
        self.code = code
        self.instruction = instruction
        self.literals = literals


def locate(where):
    """Turn the `Place` that an equation keeps into a `Where`; None if it has none."""
    if where is None or isinstance(where, Where):
        return where
    code, instruction = where.code, where.instruction
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
    return Where(code.co_filename, line)
