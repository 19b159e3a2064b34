"""The loops that users call: scan, loop, map, the folds; and array.

This module alone knows the targets; it hands the loop row its runner.
"""

import numpy as np

from nscan import edge, errors, lanes, observe, ops, spec, step, tree, watch
from nscan.array import as_array, astype
from nscan.array import traced as indexable
from nscan.config import config
from nscan.step import FOREVER
from nscan.trace import HOOKS, STATE, Traced, current_step


def run_loops(row, values, params):
    """Run a loop row on real arrays, by the setting ``config.mode``."""
    if row.name == "cond":
        return ops.loop.run_cond(params["cond"], values)
    if row.name == "loop_adjoint":
        return ops.loop.run_adjoint(values, run_loops, **params)
    loop = params["loop"]
    return observe.run(loop, values, _run_plain) if loop.watch else _run_plain(loop, values)


def _run_plain(loop, values, seen=None):
    """Run a loop on real arrays; `seen` is called now and then with the number of steps done."""
    if config.mode == "python":
        return observe.run_in_python(loop, values, seen)
    from nscan.cpu.run import run_loop
    return run_loop(loop, values, seen)


HOOKS["runner"] = run_loops


# ----------------------------------------------------------------------------------------------------- scan
def scan(fn, sequences=None, outputs_info=None, non_sequences=None, n_steps=None, truncate_gradient=-1, go_backwards=False, *,
         strict=False, name=None, return_list=False, checkpoint="auto", lengths=None, reset=None, check_finite=False,
         progress=False, profile=False):
    """Run a loop whose step is written in NumPy as one compiled kernel.

    The result is that of this Python loop::

        state = initial.astype(d) for each state        # d: see Notes; broadcast only from 0-d
        for i in range(n):
            args  = [seq[t + k - lo] for each sequence, for each of its taps k as listed]
                                                        # t = offered(seq)-1-i if go_backwards else i
            args += [state[i + k]    for each state, for each of its taps k as listed]      # k < 0
            args  = [copy(a) for a in args] + [read_only(a) for a in non_sequences]
            outs[, until(cond)] = step(*args)
            states take their new values together; outputs get one more row
            if cond: break                              # a post-test: the row that fires is kept

    Parameters
    ----------
    fn : callable
        The step. Arguments: the taps of sequence 1 as listed, of sequence 2, ..., the taps of state 1, ...,
        then the non_sequences. Returns as many arrays as there are outputs, perhaps with `until`.
    sequences : array, dict or list of these, optional
        Arrays of shape (n, ...). ``dict(input=x, taps=[-1, 0])``: with ``lo = min(0, *taps)`` tap k at step t
        is row ``t + k - lo``.
    outputs_info : array, None, dict or list of these, optional
        Initial value of each output that feeds back; ``None`` for one that does not. ``dict(initial=y,
        taps=[-2, -1])``: the first rows of the initial value are y[-2], y[-1].
    non_sequences : array, nest of arrays, number, or list of these, optional
        Constants; never copied. Arrays that the step closes over are constants too.
    n_steps : int, optional
        Number of steps; by default the smallest number that any sequence offers.
    truncate_gradient : int, default -1
        k >= 1: derivatives pass through the last k steps only, as if the earlier ones (and their rows) stood
        in `stop_gradient`.
    go_backwards : bool, default False
        Read each sequence from its own last offered step towards its first. A tap keeps its meaning; rows come
        in the order of the iteration.
    strict : bool, default False
        Refuse a step that uses arrays or numbers which are not among its arguments.
    name : str, optional
        Name for messages; by default that of the step.
    return_list : bool, default False
        Return a list also for one output.
    checkpoint : str or int, default "auto"
        What to keep for a backward pass (compiled mode): ``"all"`` that it reads and that is costly; the ``"states"``,
        from which it computes the rest again; a number of states, between which it runs the steps again; a budget in
        bytes like ``"256MB"``, filled by whichever of these runs the fewest steps again; or ``"auto"``, the budget
        ``config.checkpoint_bytes``. The derivatives are the same to the last bit. A loop in a step has segments
        too, in two levels, if its length is known; with ``until`` it keeps all or the states.
    lengths : array_like of int, shape (B,), optional
        Number of steps of each of B lanes, at most that of the loop. Sequences have shape (n, B, ...), states and
        rows a first axis B, and no lane depends on another: a step that sums over the lanes is refused. Lane b runs
        its first ``lengths[b]`` steps (with `go_backwards` from its own last row); its later rows are 0, its state stays.
        What lies beyond the end of a lane is never read, and the cost is that of the sum of the lengths.
    reset : array_like of bool, shape (n,) or (n, B), optional
        Where it is true the step sees the initial state (all taps) instead of the one before, so no derivative
        passes. Flags belong to the rows of the sequences. Neither option combines with `until`.
    check_finite : bool, default False
        Raise at the first NaN or infinity in a state or output, of this loop and of its derivatives.
    progress : bool, default False
        Show a progress bar; needs tqdm. Of loops inside of others the outermost shows one.
    profile : bool, default False
        Write to stderr where the time of the loop went, and of its derivatives when they run; see `profile`.

    Returns
    -------
    ndarray, or tuple of ndarray
        The stacked rows of each output, shape (n, ...). There are no updates.

    Raises
    ------
    SpecError, TapError, LengthError, StepsTypeError
        The arguments do not fit together; the text names the array.
    ArityError, OutputsError, OutputTypeError, StateShapeError, StateTypeError
        The step does not fit the arguments.
    TracedValueError, UnsupportedError, HiddenStateError
        The step does what a traced step cannot do.
    NonFiniteError
        With `check_finite`: something is not finite; the text names step, output and line.
    MissingPackageError
        With `progress`: tqdm is not installed.

    Notes
    -----
    The dtype d of a state is the smallest, at or above that of its initial value, for which the step returns
    d; a Python number as initial value takes what the step returns. Its shape is that of the initial value,
    unless that is 0-d.

    References
    ----------
    The spelling is that of ``theano.scan`` (Bastien et al. 2012, arXiv:1211.5590).

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.scan(lambda x, y: 0.5 * y + x, np.array([1.0, 2.0, 3.0]), outputs_info=0.0)
    array([1.  , 2.5 , 4.25])
    >>> ns.scan(lambda x, y: y + x, np.ones((3, 2)), outputs_info=np.zeros(2), lengths=[1, 3])
    array([[1., 1.],
           [0., 2.],
           [0., 3.]])
    """
    marks = watch.marks(check_finite, progress, profile)
    parsed = spec.parse(fn, sequences, outputs_info, non_sequences, n_steps, go_backwards, name)
    lane_options = lanes.parse_lanes(lengths, reset, spec.number_of_steps(parsed), parsed.sequences)
    with watch.reported(profile, parsed.name):
        rows = _scan(fn, parsed, truncate_gradient, strict, True, checkpoint, marks, lane_options)[0]
    return list(rows) if return_list else rows[0] if len(rows) == 1 else tuple(rows)


def _scan(fn, parsed, truncate_gradient, strict, stacked, checkpoint, marks, options=None):
    """Run a parsed call, perhaps with lanes: (rows, final values)."""
    leaves, structures, paths = spec.flat_constants(parsed.constants)
    _check_truncate(truncate_gradient)
    n = spec.number_of_steps(parsed)
    made = _Made()
    names = spec.parameter_names(fn, len(parsed.arguments))
    carries = _carries(parsed, names)

    def flat_step(rows, states, constants):
        return made.call(fn, parsed, rows, states, _nests(constants, structures), stacked)

    if options is not None:
        return _scan_lanes(parsed, truncate_gradient, strict, options, made,
                           (flat_step, carries, leaves, paths, (fn,), checkpoint, marks))
    seqs = _sequence_views(parsed, n)
    call = step.Call(flat_step, seqs, carries, leaves, paths, parsed.name, strict=strict, functions=(fn,), checkpoint=checkpoint,
                     watch=marks)
    traced = step.trace_call(call)
    if n is None and not traced.loop.stop:
        raise errors.LengthError(f"nothing says how many steps {parsed.name!r} runs: give sequences, n_steps, or return ns.until")
    n = FOREVER if n is None else n
    rows, finals, _ = _run_truncated(traced, n, seqs, truncate_gradient)
    tops = _tops(parsed, finals)
    if stacked:
        return [rows[k] for k in range(made.count)], tops
    return rows, [tops.get(k) for k in range(made.count)]


def _scan_lanes(parsed, truncate, strict, options, made, parts):
    """Run a parsed call with `lengths` or `reset`."""
    flat_step, carries, leaves, paths, functions, checkpoint, marks = parts
    executed, back = options.executed(), parsed.go_backwards
    seqs = [options.rows(s.array, t - s.low, s.offered, back, executed) for s in parsed.sequences for t in s.taps]
    depths = [len(c.initial) for c in carries]
    more, names = options.constants([c.initial for c in carries])
    call = step.Call(options.wrapped(flat_step, depths), [*seqs, *options.sequences(back, executed)], carries, [*leaves, *more],
                     [*paths, *names], parsed.name, strict=strict, functions=functions, before=options.before(depths),
                     moved=options.moved(depths), checkpoint=checkpoint, watch=marks)
    traced = step.trace_call(call)
    options.check_loop(traced.loop)
    rows, finals, _ = _run_truncated(traced, executed, call.seqs, truncate, options.steps)
    return [options.padded([rows[k]], executed)[0] for k in range(made.count)], _tops(parsed, finals)


def _nests(leaves, structures):
    """Rebuild the non_sequences from their leaves."""
    out, k = [], 0
    for structure, count in structures:
        out.append(tree.unflatten(structure, leaves[k:k + count]))
        k += count
    return out


class _Made:
    """What a step returned, checked against outputs_info."""

    count = 0

    def call(self, fn, parsed, rows, states, constants, stacked):
        """Call the step with its arguments in order; return new states, rows and the stop condition."""
        args, k = list(rows), 0
        for state in parsed.states:
            args += [states[k - t - 1] for t in state.taps]
            k += state.depth
        outs, stop = edge.outputs_of(edge.call(fn, [*args, *constants]), parsed.name)
        self.count = len(outs)
        if parsed.outputs is not None and len(outs) != parsed.outputs:
            entries = "entry" if parsed.outputs == 1 else "entries"
            raise errors.OutputsError(
                f"{parsed.name!r} returns {len(outs)} output{'s' * (len(outs) != 1)} but outputs_info has {parsed.outputs} "
                f"{entries}; an output without feedback needs the entry None")
        feeding = {state.output for state in parsed.states}
        news = [as_array(outs[state.output]) for state in parsed.states]
        shown = [as_array(x) for k, x in enumerate(outs) if stacked or k not in feeding]
        return news, shown if stacked else [], stop


def _carries(parsed, names):
    """Make the states: for each its earlier values, newest first, and its name in messages."""
    out, at = [], sum(len(s.taps) for s in parsed.sequences)
    for state in parsed.states:
        name = names[at + (state.taps.index(-1) if -1 in state.taps else 0)]
        at += len(state.taps)
        values = [state.initial[state.depth - 1 - j] for j in range(state.depth)] if state.has_rows else [state.initial]
        label = f"state {name!r} ({state.path})" if name else f"state {state.output} ({state.path})"
        out.append(step.Carry(values, label))
    return out


def _sequence_views(parsed, n):
    """Make views of the sequences, one for each tap: row i is what step i sees."""
    out = []
    for s in parsed.sequences:
        array = indexable(s.array) if isinstance(n, Traced) else s.array
        for tap in s.taps:
            first = tap - s.low
            if parsed.go_backwards:
                last = s.offered + first
                out.append(array[last - n:last][::-1])
            elif type(n) is int and first == 0 and type(array.shape[0]) is int and array.shape[0] == n:
                out.append(array)
            else:
                out.append(array[first:first + n])
    return out


def _tops(parsed, finals):
    """Newest final value of each state, by output number."""
    out, k = {}, 0
    for state in parsed.states:
        out[state.output] = finals[k]
        k += state.depth
    return out


def _check_truncate(k):
    if isinstance(k, (bool, np.bool_)) or not isinstance(k, (int, np.integer)) or not (k == -1 or k >= 1):
        raise errors.SpecError(f"truncate_gradient must be -1 or at least 1, got {k!r}")


def _run_truncated(traced, n, seqs, truncate, total=None):
    """Run a loop; with `truncate` its first steps stand in stop_gradient: all but the last ones of `total` (of n)."""
    from nscan.grad.higher import is_differentiated, stop_gradient
    operands = traced.operands
    if truncate == -1 or not is_differentiated([*seqs, *operands]):
        return step.run(traced, n, seqs)
    loop = traced.loop
    frozen = step.Traced_(loop, [stop_gradient(x) for x in operands], traced.captured)
    if loop.stop:
        n = step.run(frozen, n, [stop_gradient(x) for x in seqs])[2]
    total = n if total is None else total
    head = max(int(total) - truncate, 0) if not isinstance(total, Traced) else np.maximum(total - truncate, 0)
    if total is not n:
        head = min(head, n) if type(n) is int and type(head) is int else np.minimum(head, n)
    seqs = [indexable(x) for x in seqs]
    first, middle, _ = step.run(frozen, head, [stop_gradient(x[:head]) for x in seqs])
    started = [_after(head, x, stop_gradient(m)) for x, m in zip(operands[:loop.states], middle)]
    later = step.Traced_(loop, [*started, *operands[loop.states:]], traced.captured)
    rows, finals, _ = step.run(later, n - head, [x[head:n] for x in seqs])
    joined = [np.concatenate([stop_gradient(a), b], axis=0) for a, b in zip(first, rows)]
    return joined, finals, n if loop.stop else None


def _after(head, initial, middle):
    """State after the frozen steps: the initial one, with its derivative, if there are none."""
    if isinstance(head, Traced):
        return np.where(head > 0, middle, initial)
    return middle if head else initial


# ---------------------------------------------------------------------------------------------------- loop
def loop(fn, init, xs=None, length=None, *, reverse=False, non_sequences=None, truncate_gradient=-1, name=None,
         checkpoint="auto", check_finite=False, progress=False, profile=False):
    """Run a loop in carry style: ``carry, y = fn(carry, x)``.

    The result is that of this Python loop::

        carry, ys = init, []
        for t in (reversed(range(n)) if reverse else range(n)):
            carry, y[, until(cond)] = fn(carry, xs[t])
            ys.append(y)
            if cond: break

    with ``ys`` stacked so that ``ys[t]`` belongs to ``xs[t]``. Where the step returns ``None`` for y, nothing
    is stored: the spelling for large carries.

    Parameters
    ----------
    fn : callable
        ``fn(carry, x) -> (carry, y)`` or ``(carry, y, until)``; x is None without `xs`.
    init : nest of arrays or numbers
        First carry. Its structure is that of every carry.
    xs : nest of arrays, optional
        Each of shape (n, ...).
    length : int, optional
        Number of steps; needed without `xs` (unless the step returns `until`).
    reverse : bool, default False
        Run from the last row to the first.
    non_sequences : list, optional
        Further arguments of the step, after the row.
    truncate_gradient : int, default -1
        See `scan`.
    name : str, optional
        Name for messages.
    checkpoint : str or int, default "auto"
        See `scan`.
    check_finite, progress, profile : bool, default False
        See `scan`.

    Returns
    -------
    carry : nest
        Last carry.
    ys : nest of ndarray, or None
        Stacked outputs.

    Raises
    ------
    StructureError
        The step returns a carry of another structure.
    LengthError
        Nothing says how many steps to run, or rows differ in number.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> final, ys = ns.loop(lambda total, x: (total + x, total), 0.0, np.arange(4.0))
    >>> final
    np.float64(6.0)
    >>> ys
    array([0., 0., 1., 3.])
    """
    marks = watch.marks(check_finite, progress, profile)
    name = name or getattr(fn, "__name__", type(fn).__name__)
    reverse = spec.flag(reverse, "reverse")
    x_leaves, x_tree = tree.flatten(xs)
    x_leaves = [spec.as_leaf(x, p) for x, p in zip(x_leaves, tree.paths(x_tree, "xs"))]
    _check_truncate(truncate_gradient)
    n = _length(x_leaves, tree.paths(x_tree, "xs"), length)
    init_leaves, init_tree = tree.flatten(init)
    init_paths = tree.paths(init_tree, "init")
    carries = [step.Carry([spec.as_leaf(x, p)], f"state {p!r}") for x, p in zip(init_leaves, init_paths)]
    leaves, structures, paths = spec.flat_constants(tuple(spec._entries(non_sequences)))
    spec.check_arity(fn, ["init", "xs", *[f"non_sequences[{k}]" for k in range(len(structures))]])
    result = _LoopResult(fn, name, init_tree, x_tree, structures)
    call = step.Call(result.flat_step, x_leaves, carries, leaves, paths, name, reverse=reverse, functions=(fn,),
                     checkpoint=checkpoint, watch=marks)
    with watch.reported(profile, name):
        return _run_carry(step.trace_call(call), n, reverse, truncate_gradient, result, x_leaves)


def _run_carry(traced, n, reverse, truncate_gradient, result, x_leaves):
    """Run the traced step of `loop`."""
    if n is None and not traced.loop.stop:
        raise errors.LengthError(f"nothing says how many steps {result.name!r} runs: give xs, length, or return ns.until")
    n = FOREVER if n is None else n
    if reverse and (traced.loop.stop or truncate_gradient != -1):
        return _reversed_loop(traced, n, x_leaves, truncate_gradient, result)
    rows, finals, _ = _run_truncated(traced, n, x_leaves, truncate_gradient)
    return tree.unflatten(result.init_tree, finals), tree.unflatten(result.y_tree, rows)


def _reversed_loop(traced, n, xs, truncate, result):
    """Run backwards where the number of steps is not known, on reversed views."""
    import dataclasses
    forwards = step.Traced_(dataclasses.replace(traced.loop, reverse=False), traced.operands, traced.captured)
    rows, finals, _ = _run_truncated(forwards, n, [x[::-1] for x in xs], truncate)
    rows = [np.ascontiguousarray(r[::-1]) if isinstance(r, np.ndarray) else np.flip(r, 0) for r in rows]
    return tree.unflatten(result.init_tree, finals), tree.unflatten(result.y_tree, rows)


def _length(xs, paths, length):
    """Return the number of steps of `loop` and `map`."""
    for x, path in zip(xs, paths):
        if not hasattr(x, "shape") or not len(x.shape):
            raise errors.SpecError(f"{path} is 0-d: it has no axis of steps; did you mean a non_sequence?")
    n = spec.steps(length)
    for x, path in zip(xs, paths):
        rows = x.shape[0]
        if n is None:
            n, first = rows, path
        elif type(rows) is int and type(n) is int and rows != n:
            other = f"{first} has {n}" if length is None else f"length is {n}"
            raise errors.LengthError(f"{path} has {rows} rows, {other}")
    return n


class _LoopResult:
    """Calls a carry-style step on flat lists and remembers the structure of its outputs."""

    def __init__(self, fn, name, init_tree, x_tree, structures):
        self.fn, self.name, self.init_tree, self.x_tree, self.structures = fn, name, init_tree, x_tree, structures
        self.y_tree = None

    def flat_step(self, rows, states, constants):
        """Return new states, rows and the stop condition."""
        carry, x = tree.unflatten(self.init_tree, states), tree.unflatten(self.x_tree, rows)
        result = edge.call(self.fn, [carry, x, *_nests(constants, self.structures)])
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            raise errors.OutputsError(f"{self.name!r} must return (carry, y) or (carry, y, until); it returned "
                                      f"{type(result).__name__}{f' of {len(result)}' if isinstance(result, tuple) else ''}")
        stop = None
        if len(result) == 3:
            mark = result[2] if isinstance(result[2], edge.until) else edge.until(result[2])
            stop = edge.condition(mark.condition, f"the condition of until in {self.name!r}")
        leaves, found = tree.flatten(result[0])
        if found != self.init_tree:
            raise errors.StructureError(f"{self.name!r} returns a carry of structure {tree.describe(found)}, init has "
                                        f"{tree.describe(self.init_tree)}")
        ys, self.y_tree = tree.flatten(result[1])
        news = [as_array(edge.leaf(x, f"the carry of {self.name!r}")) for x in leaves]
        return news, [as_array(edge.leaf(y, f"output {k} of {self.name!r}")) for k, y in enumerate(ys)], stop


# ------------------------------------------------------------------------------------------- map and folds
def map(fn, sequences, non_sequences=None, truncate_gradient=-1, go_backwards=False, *, name=None, **options):
    """Apply a function to the rows of sequences; steps are independent and may run in parallel.

    Parameters
    ----------
    fn : callable
        Gets one row of each sequence, then the non_sequences.
    sequences : array, nest of arrays, or list of these
        Each leaf of shape (n, ...). The top list or tuple is the list of arguments.
    non_sequences : optional
        Constants, as in `scan`.
    truncate_gradient, go_backwards :
        As in `scan`.
    name : str, optional
        Name for messages.
    **options :
        `checkpoint`, `check_finite`, `progress` and `profile`, as in `scan`.

    Returns
    -------
    ndarray, or tuple of ndarray
        Stacked results.

    Raises
    ------
    ArityError, DtypeError, SpecError
        As in `scan`.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.map(lambda row: row @ row, np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([ 5., 25.])
    """
    entries = spec._entries(sequences)
    if all(not isinstance(e, (dict, tuple, list)) or isinstance(e, dict) and set(e) <= {"input", "taps"} for e in entries):
        return scan(fn, sequences, None, non_sequences, None, truncate_gradient, go_backwards, name=name, **options)
    return _map_nests(fn, entries, non_sequences, truncate_gradient, go_backwards, name, options)


def _map_nests(fn, entries, non_sequences, truncate_gradient, go_backwards, name, options):
    """Flatten nests among the sequences of `map`."""
    leaves, structures = [], []
    for nest in entries:
        found, structure = tree.flatten(nest)
        structures.append((structure, len(found)))
        leaves += found

    def flat(*args):
        rows = _nests(list(args[:len(leaves)]), structures)
        return fn(*rows, *args[len(leaves):])
    return scan(flat, leaves, None, non_sequences, None, truncate_gradient, go_backwards,
                name=name or getattr(fn, "__name__", None), **options)


def reduce(fn, sequences, outputs_info, non_sequences=None, go_backwards=False, *, name=None, checkpoint="auto",
           check_finite=False, progress=False, profile=False):
    """Fold rows into an accumulator and keep only its last value.

    Parameters
    ----------
    fn : callable
        ``fn(x, acc)``: a row of each sequence, then the accumulator (not functools' order).
    sequences, outputs_info, non_sequences, go_backwards :
        As in `scan`; every entry of outputs_info is an accumulator.
    name : str, optional
        Name for messages.
    checkpoint : str or int, default "auto"
        See `scan`.
    check_finite, progress, profile : bool, default False
        See `scan`.

    Returns
    -------
    ndarray or scalar, or tuple of these
        Last value of each accumulator; the initial one if there are no rows.

    Raises
    ------
    ArityError, StateShapeError, StateTypeError, DtypeError, SpecError
        As in `scan`.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.reduce(lambda x, acc: acc + x, np.arange(5), 0)
    np.int64(10)
    """
    parsed = spec.parse(fn, sequences, outputs_info, non_sequences, None, go_backwards, name)
    if len(parsed.states) != parsed.outputs or not parsed.states:
        raise errors.SpecError("each entry of outputs_info of a fold is an accumulator: give its initial value")
    marks = watch.marks(check_finite, progress, profile)
    with watch.reported(profile, parsed.name):
        finals = _scan(fn, parsed, -1, False, False, checkpoint, marks)[1]
    return finals[0] if len(finals) == 1 else tuple(finals)


def foldl(fn, sequences, outputs_info, non_sequences=None, *, name=None, **options):
    """Fold rows from the first to the last; see `reduce`.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.foldl(lambda x, acc: 10 * acc + x, np.array([1, 2, 3]), 0)
    np.int64(123)
    """
    return reduce(fn, sequences, outputs_info, non_sequences, False, name=name, **options)


def foldr(fn, sequences, outputs_info, non_sequences=None, *, name=None, **options):
    """Fold rows from the last to the first; see `reduce`.

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> ns.foldr(lambda x, acc: 10 * acc + x, np.array([1, 2, 3]), 0)
    np.int64(321)
    """
    return reduce(fn, sequences, outputs_info, non_sequences, True, name=name, **options)


def array(x, dtype=None):
    """Make an array: outside of traces ``np.array``, in a step or under `grad` a traced array that may be written to.

    There it is what to use for nested lists of traced scalars, for a closed-over table that is indexed by traced
    integers, and for a buffer that traced values are written to.

    Parameters
    ----------
    x : array_like
        May hold traced scalars at any depth of nested lists.
    dtype : dtype, optional

    Returns
    -------
    ndarray or traced array

    Examples
    --------
    >>> import numpy as np
    >>> import nscan as ns
    >>> table = np.array([10.0, 20.0, 30.0])
    >>> ns.map(lambda k: ns.array(table)[k], np.array([2, 0]))
    array([30., 10.])
    """
    x = as_array(x)
    x = x if dtype is None else astype(x, dtype)
    step_trace, innermost = current_step(), STATE.stack[-1] if STATE.stack else None
    if not isinstance(x, Traced) and step_trace is not None:
        x = step_trace.handle(step_trace.var_of(x), scalar=False)
    x = np.copy(x) if isinstance(x, Traced) else np.array(x)
    if innermost is None or innermost is step_trace or isinstance(x, Traced) and x.home is innermost:
        return x
    x = innermost.new_constant(x)
    if isinstance(x, Traced):
        x.scalar = False
    return x
