"""From a Python step to a loop equation: tracing, the types of states, constants, checks.

The type of a state is a fixed point: the smallest dtype, at or above that of its initial value, for which the
step returns that dtype. A Python number as initial value is weak: it takes what the step returns.
"""

import contextlib
import dataclasses
import functools

import numpy as np

from nscan import checkpoint, errors
from nscan.array import as_operand, astype
from nscan.array import traced as indexable
from nscan.exchange import exchanged
from nscan.interpret import RUN_TIME
from nscan.primitive import TABLE, bind, repeat_to, same_shape, shape_text
from nscan.state import STATE, section
from nscan.tape import RESIDUAL, Lit, Loop, locate, remember
from nscan.trace import StepTrace, Traced, check_array, current_step

# Number of steps of a loop that only its condition ends.
FOREVER = np.iinfo(np.int64).max
WEAK_DTYPES = {bool: np.dtype(bool), int: np.dtype("i8"), float: np.dtype("f8"), complex: np.dtype("c16")}


@dataclasses.dataclass
class Carry:
    """A state while its type is being found.

    Attributes
    ----------
    initial : list of arrays or numbers
        The values y[-1], y[-2], ... that the step may see.
    name : str
        How messages call it: ``state 'h' (outputs_info[0])``.
    dtype, weak, shape :
        Its type so far; `weak` is the Python type of a number that has no dtype of its own.
    """

    initial: list
    name: str
    dtype: object = None
    weak: object = None
    shape: tuple = ()

    def __post_init__(self):
        first = self.initial[0]
        if hasattr(first, "dtype"):
            self.dtype, self.shape = first.dtype, tuple(first.shape)
        else:
            self.weak = type(first)
            self.dtype = WEAK_DTYPES[self.weak]
        self.free_shape = not self.shape

    @property
    def type(self):
        """Hashable type."""
        return self.dtype, self.weak, self.shape

    def absorb(self, x):
        """Let the type follow what the step returns; return whether it changed."""
        before = self.type
        if not same_shape(x.shape, self.shape):
            if not self.free_shape:
                raise errors.StateShapeError(f"{self.name}: the step returns shape {shape_text(x.shape)}{_place(x)}, the initial "
                                             f"value has shape {shape_text(self.shape)}")
            self.shape, self.free_shape = tuple(x.shape), False
        if self.weak is not None:
            self._settle(x)
        elif x.dtype != self.dtype:
            try:
                wider = np.promote_types(self.dtype, x.dtype)
            except TypeError:
                raise errors.StateTypeError(f"{self.name} starts as {self.dtype} but the step returns {x.dtype}"
                                            f"{_place(x)}") from None
            self.dtype = wider if getattr(x, "weak", None) is None else np.result_type(self.dtype, x.weak(0))
        return self.type != before

    def _settle(self, x):
        weak = getattr(x, "weak", None)
        if weak is None:
            self.weak, self.dtype = None, np.result_type(x.dtype, self.weak(0)) if x.dtype.kind != "b" else x.dtype
        elif WEAK_DTYPES[weak] != self.dtype:
            self.dtype = np.promote_types(self.dtype, WEAK_DTYPES[weak])
            self.weak = {"i": int, "f": float, "c": complex}[self.dtype.kind]

    def values(self):
        """Return the initial values, cast and broadcast to the final type."""
        out = []
        for x in self.initial:
            x = astype(x, self.dtype) if hasattr(x, "dtype") else np.asarray(x, self.dtype)
            out.append(x if same_shape(x.shape, self.shape) else repeat_to(x, self.shape))
        return out


def _place(x):
    """Where a traced array was made."""
    if isinstance(x, Traced) and x.home.symbolic:
        for eqn in reversed(x.home.eqns):
            if x.node in eqn.outputs:
                place = locate(eqn.where)
                return f" at {place}: {place.text}" if place else ""
    return ""


@dataclasses.dataclass
class Call:
    """Everything that one loop needs: the flat step and what it runs over.

    Attributes
    ----------
    step : callable
        ``step(seq_rows, state_values, constants)`` gives (new value of each carry, rows, stop or None), flat.
    seqs : list of arrays
        Each with an axis of steps in front.
    carries : list of Carry
    constants : list
        Leaves of the non_sequences, as given.
    paths : list of str
        Names of the constants.
    name : str
    functions : tuple of callable
        The user's functions that the step calls.
    checkpoint : str or int
        What to keep for a backward pass.
    watch : tuple of str
        See `nscan.tape.Loop`.
    before : callable or None
        ``before(seq_rows, state_values, constants)`` gives the earlier values that the step starts from, and hands on.
    moved : callable or None
        ``moved(seq_rows, state_values, constants)`` gives what each earlier value hands on to the next one, if not itself.
    """

    step: object
    seqs: list
    carries: list
    constants: list
    paths: list
    name: str
    reverse: bool = False
    strict: bool = False
    functions: tuple = ()
    checkpoint: object = "auto"
    watch: tuple = ()
    before: object = None
    moved: object = None


@dataclasses.dataclass
class Traced_:
    """A step, traced: the loop, the operands after n and sequences, what was captured (and as the step saw it)."""

    loop: Loop
    operands: list
    captured: list
    originals: list = dataclasses.field(default_factory=list)


def trace_call(call):
    """Trace the step of a call until the types of its states are settled.

    Returns
    -------
    Traced_
    """
    with section("trace"):
        return _traced(call)


def _traced(call):
    while True:
        before = [c.type for c in call.carries]
        traced, news = _trace_once(call)
        changed = [carry.absorb(x) for carry, x in zip(call.carries, news)]
        settled = _is_settled(call.carries, before, news, traced[0])
        if settled or not any(changed):
            for c in call.carries:
                c.weak = None
        if settled:
            break
    made = _finish(call, traced, news)
    _check_hidden_state(call, made)
    if call.strict:
        check_strict(call, made, traced[0].eqns)
    return made


def _is_settled(carries, before, news, trace):
    """Whether a trace of the step with types as before would be the same with the types of the states as they are now."""
    if not all(c.dtype == dtype and same_shape(c.shape, shape) for c, (dtype, _, shape) in zip(carries, before)):
        return False
    if all(c.weak is weak is None for c, (_, weak, _) in zip(carries, before)):
        return True
    return not trace.weak_counts and all(c.dtype == x.dtype or np.promote_types(c.dtype, x.dtype) == c.dtype
                                         for c, x in zip(carries, news))


def _trace_once(call):
    """Run the step on traced arrays once: (open trace with results, new values of the carries)."""
    trace = StepTrace(call.name)
    with trace:
        rows = [trace.new_input(tuple(x.shape[1:]), x.dtype) for x in call.seqs]
        states = []
        for carry in call.carries:
            for _ in carry.initial:
                x = trace.new_input(carry.shape, carry.dtype)
                x.weak = carry.weak
                states.append(x)
        constants = [_constant(trace, x, path) for x, path in zip(call.constants, call.paths)]
        if call.before is not None:
            states = call.before(rows, states, constants)
        # What the step writes to its rows ends with the step: earlier values move on as they came.
        kept = [trace.handle(x.node) for x in states]
        news, outs, stop = call.step(rows, states, constants)
        if call.moved is not None:
            kept = call.moved(rows, kept, constants)
        return (trace, kept, outs, stop), news


def _constant(trace, x, path):
    """Hand on a constant: arrays as read-only inputs, Python numbers as they are."""
    if not hasattr(x, "dtype"):
        if isinstance(x, (bool, int, float, complex, str, bytes)) or callable(x) or x is None:
            return x
        x = as_operand(x)
    if not isinstance(x, Traced):
        check_array(x, path)
    scalar = isinstance(x, np.generic) or isinstance(x, Traced) and x.scalar
    return trace.new_input(tuple(x.shape), x.dtype, scalar=scalar, owner=None if scalar else path)


def _finish(call, traced, news):
    """Close the tape of a traced step and make its loop."""
    trace, states, outs, stop = traced
    trace.closed = False
    with trace:
        new_states, k = [], 0
        for carry, new in zip(call.carries, news):
            depth = len(carry.initial)
            new = astype(new, carry.dtype) if hasattr(new, "dtype") else np.asarray(new, carry.dtype)
            new_states += [new, *states[k:k + depth - 1]]
            k += depth
        results = [*new_states, *outs, *([] if stop is None else [stop])]
        tape, captured = trace.finish(results, stable=True)
    given = [x if hasattr(x, "dtype") else as_operand(x) for x in call.constants if _is_operand(x)]
    names = tuple(c.name for c in call.carries for _ in c.initial)
    _check_row_sizes(call, tape, tape.outputs[len(new_states):len(new_states) + len(outs)], outs)
    loop = _loop(tape, len(call.seqs), len(new_states), len(given) + len(captured), len(outs), 0, 0, stop is not None, call.reverse,
                 call.name, names, checkpoint.parse(call.checkpoint), _watched(call, tape))
    initial = [v for c in call.carries for v in c.values()]
    return Traced_(loop, [*initial, *given, *captured], captured, [x for x, _ in trace.originals])


_LOOPS = {}


def _loop(*fields):
    """Return the loop with these fields, the same object every time."""
    found = _LOOPS.get(fields)
    return remember(_LOOPS, fields, Loop(*fields)) if found is None else found


def _watched(call, tape):
    """What is to be seen of a run: what was asked for here, and of loops inside; a progress bar is of the outermost loop."""
    found = set(call.watch) | ({"profile"} if STATE.profile is not None else set())
    return tuple(sorted(found | _watched_inside(tape) - {"progress"}))


def _watched_inside(tape):
    """Marks of the loops in a tape, and in the branches in it."""
    found = set()
    for eqn in tape.eqns:
        for part in eqn.params.values():
            found.update(getattr(part, "watch", ()))
            if eqn.row.name == "cond":
                found.update(*[_watched_inside(inner) for inner in part.tapes()])
    return found


def _check_row_sizes(call, tape, rows, outs):
    """Refuse a row whose size is computed in the step: rows of one array have one shape."""
    known = set(tape.inputs)
    for k, (v, x) in enumerate(zip(rows, outs)):
        if any(type(d) is not int and d not in known for d in v.shape):
            raise errors.SizeError(
                f"output {k} of {call.name!r} has shape {shape_text(v.shape)}{_place(x)}: a size that depends on data. The rows "
                "of one output must have one shape: fill a buffer of full size (ns.array), or reduce the row"
            )


def _is_operand(x):
    return hasattr(x, "dtype") or not (isinstance(x, (bool, int, float, complex, str, bytes)) or callable(x) or x is None)


_SEEN = {}


def _check_hidden_state(call, made):
    """Trace a step that is new a second time: if its numbers differ, it depends on something hidden.

    New is a pair of code and structure: another function is traced twice even if its tape has a structure seen before.
    """
    if current_step() is not None:
        return
    seen = (made.loop, *[_code(f) for f in call.functions])
    if seen in _SEEN:
        return
    traced, news = _trace_once(call)
    again = _finish(call, traced, news)
    if again.loop.key != made.loop.key or not all(_equal(a, b) for a, b in zip(made.captured, again.captured)):
        raise errors.HiddenStateError(
            f"{call.name!r} gives other numbers when it is called again (np.random, a counter, a clock); the step is traced "
            "once, so its first draw would be repeated: use ns.random with a key and the number of the step, or draw before the "
            "loop and pass the draws as a sequence")
    remember(_SEEN, seen, True)


def _code(function):
    """Return what tells the code of a callable from that of others."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    call = None if code else vars(type(function)).get("__call__")
    return code or getattr(call, "__code__", None) or id(function)


def check_strict(call, made, eqns):
    """Refuse arrays that the step closes over, and numbers that it has as variables, by name."""
    found = []
    for x in made.originals:
        name = next((name for f in call.functions for name, value in _variables(f) if value is x or _same_number(value, x)), None)
        if name is not None or x.shape:
            found.append(f"{name or 'an array'} ({x.dtype}{shape_text(x.shape)})")
    lits = [v.value for eqn in eqns for v in eqn.inputs if type(v) is Lit]
    for name, value in dict(variable for f in call.functions for variable in _variables(f)).items():
        if isinstance(value, (int, float, complex, np.generic, np.ndarray)) and np.ndim(value) == 0 and any(value == x for x in lits):
            found.append(f"{name} ({value!r})")
    if found:
        raise errors.SpecError(f"strict=True, but {call.name!r} uses what is not among its arguments: {', '.join(found)}; pass "
                               "it among the non_sequences")


def _variables(function):
    """Names and values that a function closes over: free variables, globals, and their attributes that it names."""
    function = getattr(function, "__wrapped__", getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        yield name, cell.cell_contents
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    owners = [v for v in (getattr(function, "__self__", None),) if v is not None]
    for owner in owners:
        yield from ((f"self.{name}", getattr(owner, name, None)) for name in code.co_names)


def _same_number(value, x):
    return not x.shape and not isinstance(x, Traced) and type(value) in (int, float, complex) and value == x


def _equal(a, b):
    if isinstance(a, Traced) or isinstance(b, Traced) or a is b or a.dtype is RESIDUAL:
        return True
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def run(made, n, seqs):
    """Bind the loop equation: rows, final states, and the number of steps if it stops by itself."""
    loop = made.loop
    parts = exchanged(loop, n, current_step() is None)
    if parts is not None:
        with contextlib.suppress(RUN_TIME):  # if it fails, the map as it is finds the step and the text of the error
            return _run_blocks(parts, seqs, made.operands), [], None
    n = Lit(n, np.int64) if isinstance(n, (int, np.integer)) else n
    outs = bind(TABLE["loop"], (n, *seqs, *made.operands), {"loop": loop})
    rows, finals, _, count, _ = loop.split_outputs(outs)
    return list(rows), list(finals), count


def _run_blocks(parts, seqs, operands):
    """Run a map in blocks of its elements (`nscan.exchange`); its rows."""
    first, found = 0, []
    for count, lanes, loop in parts:
        last = first + count * lanes
        xs = [x if last - first == x.shape[0] else indexable(x)[first:last] for x in seqs]
        xs = [np.reshape(x, (count, lanes, *x.shape[1:])) for x in xs]
        rows = bind(TABLE["loop"], (Lit(count, np.int64), *xs, *operands), {"loop": loop})
        found.append([np.reshape(y, (last - first, *y.shape[2:])) for y in rows])
        first = last
    return found[0] if len(found) == 1 else [np.concatenate(ys) for ys in zip(*found)]
