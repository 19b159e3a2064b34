"""Random loops: small descriptions from which a step, its call and its arrays are built.

A `Case` is frozen and prints as the expression that makes it, so a failure is reproduced by pasting it. What must hold for
each stands in `product_check`.
"""

import dataclasses
import itertools

import numpy as np
from hypothesis import strategies as st


@dataclasses.dataclass(frozen=True)
class Case:
    """A loop in words.

    Attributes
    ----------
    api : str
        scan, loop, map, foldl, foldr, while_loop.
    seqs : tuple of tuple of int
        Taps of each sequence.
    states : tuple of tuple of int
        Taps of each state.
    rows : int
        Number of outputs without feedback.
    shape : tuple of int
        Of every row.
    steps : int
        Number of steps that the shortest sequence offers.
    n_steps : int or None
        Handed over; at most `steps`.
    extra : tuple of int
        Rows of each sequence beyond those that are needed.
    until : str
        "", "count" (a state of integers fires), "flag" (a float row fires), "never".
    stop : int
        Number of the step that fires.
    truncate : int
    backwards : bool
    dtype : str
        f4, f8, c16, or mixed: real sequences and starts beside a complex constant.
    order : str
        Memory of the arrays: C, F, strided, reversed.
    inside : str
        What stands in the step besides arithmetic: "", scan, until, while, map, cond, taps, deep, slice.
    write : str
        What the step writes in place: "", whole, view, index, add_at, mask, buffer.
    nest : bool
        Constants come as one nest.
    scalar_start : bool
        States start from a number that is broadcast.
    lengths : bool
        The first axis of a row are lanes of unequal length; what lies beyond their ends is NaN.
    reset : str
        "", "rows" (a flag for each step) or "lanes" (one for each lane too).
    seed : int
    """

    api: str = "scan"
    seqs: tuple = ((0,),)
    states: tuple = ((-1,),)
    rows: int = 1
    shape: tuple = (2,)
    steps: int = 4
    n_steps: int | None = None
    extra: tuple = (0, 0, 0)
    until: str = ""
    stop: int = 2
    truncate: int = -1
    backwards: bool = False
    dtype: str = "f8"
    order: str = "C"
    inside: str = ""
    write: str = ""
    nest: bool = False
    scalar_start: bool = False
    lengths: bool = False
    reset: str = ""
    seed: int = 0


# ------------------------------------------------------------------------------------------------- strategies
def taps(low, high, size):
    return st.lists(st.integers(low, high), min_size=1, max_size=size, unique=True).map(tuple)


@st.composite
def cases(draw):
    """Draw a case that is allowed (see `legal`)."""
    api = draw(st.sampled_from(["scan"] * 12 + ["loop"] * 4 + ["map"] * 2 + ["foldl", "foldr", "while_loop"]))
    plain = api != "scan"
    seqs = draw(st.lists(st.just((0,)) if plain else taps(-2, 2, 3), max_size=2))
    states = draw(st.lists(st.just((-1,)) if plain else taps(-3, -1, 3), max_size=2))
    case = Case(
        api=api,
        seqs=tuple(seqs),
        states=tuple(states),
        rows=draw(st.integers(0, 2)),
        shape=draw(st.sampled_from([(), (2,), (1,), (2, 3), (3, 1)])),
        steps=draw(st.integers(0, 5)),
        n_steps=draw(st.sampled_from([None, None, 0, 1, 2, 5])),
        extra=draw(st.tuples(*[st.integers(0, 2)] * 3)),
        until=draw(st.sampled_from(["", "", "", "count", "flag", "never"])),
        stop=draw(st.integers(0, 5)),
        truncate=draw(st.sampled_from([-1, -1, -1, 1, 2, 7])),
        backwards=draw(st.booleans()),
        dtype=draw(st.sampled_from(["f8", "f8", "f8", "f4", "c16", "mixed"])),
        order=draw(st.sampled_from(["C", "F", "strided", "reversed"])),
        inside=draw(st.sampled_from(["", "", "", "", "scan", "until", "while", "map", "cond", "taps", "deep", "slice"])),
        write=draw(st.sampled_from(["", "", "whole", "view", "index", "add_at", "mask", "buffer"])),
        nest=draw(st.booleans()),
        scalar_start=draw(st.booleans()),
        lengths=draw(st.sampled_from([False, False, True])),
        reset=draw(st.sampled_from(["", "", "rows", "lanes"])),
        seed=draw(st.integers(0, 99)),
    )
    return legal(case)


def legal(case):
    """Return the nearest case that the API allows."""
    change = {}
    if case.api != "scan":
        change.update(
            until="" if case.api != "loop" else case.until,
            truncate=-1 if case.api in ("foldl", "foldr", "while_loop") else case.truncate,
            n_steps=None,
            scalar_start=False,
            extra=(0, 0, 0),
        )
    if case.dtype == "mixed" and case.write:
        change["write"] = "buffer"  # real rows cannot hold what is complex
    if case.api in ("map", "foldl", "foldr") and not case.seqs:
        change["seqs"] = ((0,),)
    if case.api == "map":
        change["states"] = ()
    if case.api in ("foldl", "foldr", "while_loop", "loop") and not case.states:
        change["states"] = ((-1,),)
    if case.api in ("foldl", "foldr"):
        change["rows"] = 0
    if case.api == "while_loop":
        change.update(seqs=(), rows=0, backwards=False)
    if case.api == "scan" and not case.states and not case.rows:
        change["rows"] = 1
    case = dataclasses.replace(case, **change)
    case = dataclasses.replace(case, **legal_lanes(case))
    if case.api == "scan" and not case.seqs and case.n_steps is None and not case.until:
        case = dataclasses.replace(case, n_steps=case.steps)
    if case.n_steps is not None and case.seqs:
        case = dataclasses.replace(case, n_steps=min(case.n_steps, case.steps))
    if not case.seqs and case.n_steps is None and case.until == "never":
        case = dataclasses.replace(case, until="count")
    return case


def legal_lanes(case):
    """Return what changes in a case with `lengths` or `reset`."""
    if case.api != "scan" or case.until or not (case.lengths or case.reset):
        return dict(lengths=False, reset="")
    change = dict(n_steps=case.steps if case.n_steps is None else min(case.n_steps, case.steps))
    change.update(reset="rows" if case.reset and case.shape == () else case.reset, lengths=case.lengths and case.shape != ())
    if change["lengths"]:  # the number of the step is no sequence with lanes
        change["write"] = "" if case.write in ("index", "mask") else case.write
        change["inside"] = "scan" if case.inside in ("cond", "slice") else case.inside
        if case.truncate != -1 and case.write == "view":
            change["write"] = "whole"  # lanes that meet: the law of truncation takes lanes alone
    return change


def grid():
    """Cases that always run: all pairs of the main axes, the other axes cycling."""
    seqs = [(), ((0,),), ((-1, 0),), ((1,), (0,)), ((2, -1),)]
    states = [(), ((-1,),), ((-2,),), ((-3, -1), (-1,))]
    untils, truncates, counts = ["", "count", "flag"], [-1, 1, 2], [None, 0, 1, 2]
    insides, writes = (
        ["", "scan", "until", "while", "map", "cond", "taps", "deep", "slice"],
        ["", "whole", "view", "index", "add_at", "mask", "buffer"],
    )
    out, k = [], 0
    for s in seqs:
        for h in states:
            for until in untils:
                for backwards in (False, True):
                    k += 1
                    out.append(
                        legal(
                            Case(
                                seqs=s,
                                states=h,
                                rows=k % 3,
                                shape=[(2,), (), (2, 3)][k % 3],
                                steps=3 + k % 2,
                                n_steps=counts[k % 4 if k % 5 else 0],
                                extra=(k % 2, (k // 2) % 2, 0),
                                until=until,
                                stop=k % 4,
                                truncate=truncates[k % 3 if k % 2 else 0],
                                backwards=backwards,
                                dtype=["f8", "f8", "c16", "f4", "mixed"][(k // 3) % 5],
                                order=["C", "F", "strided", "reversed"][k % 4],
                                inside=insides[k % 9],
                                write=writes[(k // 2) % 7],
                                nest=k % 2 == 0,
                                scalar_start=k % 6 == 0,
                                seed=k,
                            )
                        )
                    )
    for k, (backwards, truncate, reset, lengths) in enumerate(
        itertools.product([False, True], [-1, 1, 3], ["", "rows", "lanes"], [False, True])
    ):
        out.append(
            legal(
                Case(
                    seqs=seqs[1 + k % 4],
                    states=states[(k // 2) % 4],
                    rows=1 + k % 2,
                    shape=[(3, 2), (4,), (2, 3)][k % 3],
                    steps=4 + k % 2,
                    n_steps=[None, None, 3][k % 3],
                    extra=(k % 2, (k // 2) % 2, 0),
                    truncate=truncate,
                    backwards=backwards,
                    dtype=["f8", "f8", "c16", "f4", "mixed"][k % 5],
                    order=["C", "F", "strided", "reversed"][k % 4],
                    inside=["", "scan", "while", "map", "taps", "deep"][k % 6],
                    write=["", "whole", "view", "add_at", "buffer"][k % 5],
                    nest=k % 2 == 0,
                    scalar_start=k % 7 == 0,
                    lengths=lengths,
                    reset=reset,
                    seed=200 + k,
                )
            )
        )
    for k, api in enumerate(["loop", "map", "foldl", "foldr", "while_loop"] * 4):
        out.append(
            legal(
                Case(
                    api=api,
                    seqs=((0,),) * (1 + k % 2),
                    states=((-1,),) * (1 + k % 2),
                    rows=k % 3,
                    until=["", "count"][k % 2],
                    backwards=k % 3 == 0,
                    truncate=[-1, 2][k % 2],
                    inside=insides[k % 9],
                    write=writes[k % 7],
                    nest=k % 2 == 0,
                    seed=k,
                )
            )
        )
    return out


# --------------------------------------------------------------------------------------------------- arrays
def laid_out(x, order):
    """Return equal arrays with another memory order."""
    if order == "F" and x.ndim:
        return np.asfortranarray(x)
    if order == "strided" and x.ndim:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if order == "reversed" and x.ndim:
        return np.ascontiguousarray(x[::-1])[::-1]
    return x


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The floats of a case in the order in which they are differentiated, and the rest."""

    seqs: list
    states: list
    constants: list
    index: object
    flag: object
    start: int = 0
    lengths: object = None
    reset: object = None
    reset_to: object = None


def inputs(case, dtype=None):
    """Draw the arrays of a case."""
    rng = np.random.default_rng(case.seed)
    mixed = case.dtype == "mixed"
    dtype = np.dtype("f8" if mixed else dtype or case.dtype)

    def draw(*shape, dtype=dtype):
        x = rng.uniform(-1.0, 1.0, shape)
        y = rng.uniform(-1.0, 1.0, shape)
        return laid_out(np.asarray(x + 1j * y if dtype.kind == "c" else x, dtype), case.order)

    def rows_of(taps, k):
        return case.steps + max(0, *taps) - min(0, *taps) + case.extra[k]

    starts = [() if case.scalar_start else case.shape] * len(case.states)
    seqs = [draw(rows_of(t, k), *case.shape) for k, t in enumerate(case.seqs)]
    states = [draw(*([] if t == (-1,) else [-min(t) + case.extra[2]]), *s) for t, s in zip(case.states, starts, strict=True)]
    constants = [draw(*case.shape), draw(dtype=np.dtype("c16") if mixed else dtype)]
    count = max(case.steps, case.n_steps or 0, case.stop + 1) + 1
    index = rng.integers(0, case.shape[0] if case.shape else 2, count)
    flag = np.where(np.arange(count) == case.stop, 5.0, 0.0)
    n = case.n_steps if case.n_steps is not None else case.steps
    lengths, reset = None, None
    if case.lengths:
        lengths = rng.integers(0, n + 1, case.shape[0])
        for x, t in zip(seqs, case.seqs, strict=True):
            for lane, length in enumerate(lengths):
                x[length + max(0, *t) - min(0, *t) :, lane] = np.nan
    if case.reset:
        reset = rng.random((n, *case.shape[:1] * (case.reset == "lanes"))) < 0.3
    return Inputs(seqs, states, constants, index, flag, lengths=lengths, reset=reset)


def floats(given):
    """The arrays that carry derivatives, as one flat tuple."""
    return (*given.seqs, *given.states, *given.constants)


# ---------------------------------------------------------------------------------------------------- the step
def bounded(x):
    """A smooth bounded function, not holomorphic on complex numbers."""
    return x / (1.0 + np.real(x * np.conj(x))) if x.dtype.kind == "c" else np.tanh(x)


def weighted_sum(values, first):
    """A sum in which no two terms weigh the same."""
    total = None
    for k, x in enumerate(values):
        term = np.cos(first + 1.7 * k) * x
        total = term if total is None else total + term
    return total


def zeros(w):
    return 0.0 * w


def inner(case, lib, base, h, w, index):
    """What stands in the step besides arithmetic: uses base, a state (or base again), a constant."""

    def grow(g):
        return bounded(0.7 * g + 0.2 * w + base)

    if case.inside == "scan":
        return lib.scan(lambda y, g: bounded(0.6 * g + y * w), [np.stack([base, 2.0 * base, h])], [h])[-1]
    if case.inside == "taps":
        out = lib.scan(
            lambda a, b, g, f: (bounded(0.5 * g - 0.3 * f + a * w), b * g),
            [dict(input=np.stack([base, h, 2.0 * base, h]), taps=[0, 1])],
            [dict(initial=np.stack([h, base]), taps=[-1, -2]), None],
        )
        return out[0][-1] + np.sum(out[1], axis=0)
    if case.inside == "deep":

        def middle(y, g):
            return lib.scan(
                lambda k, f: ((k + 1, bounded(f * 0.8 + y)), lib.until(k >= 1)), None, [np.int64(0), g + w], n_steps=3
            )[1][-1]

        return lib.scan(middle, [np.stack([base, h])], [h])[-1]
    if case.inside == "slice":
        if case.shape == ():
            return zeros(base)
        head, tail = h[: index + 1] + base[: index + 1], base[index:]
        folded = lib.reduce(lambda y, g: bounded(g * 0.5 + np.sum(y) * 0.1), [head], np.sum(w) * 0.1)
        rows = lib.scan(lambda y, g: bounded(g + y), [tail], [w[0]])
        return np.sum(np.sin(head)) * w + folded + rows[-1] + np.mean(tail)
    if case.inside == "until":
        return lib.scan(lambda k, g: ((k + 1, grow(g)), lib.until(k >= 1)), None, [np.int64(0), h], n_steps=5)[1][-1]
    if case.inside == "while":
        return lib.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, grow(c[1])), (0, h))[1]
    if case.inside == "map":
        return np.sum(lib.map(lambda y, w: bounded(y * w + base), [np.stack([base, h])], [w]), axis=0)
    if case.inside == "cond":
        return lib.cond(index % 2 == 0, lambda b, g: bounded(b * w + g), lambda b, g: grow(b) - g, base, h)
    return zeros(base)


def written(case, base, h, w, index):
    """What the step writes in place; h is the step's own copy of a state or of a row."""
    if case.write == "":
        return h
    if case.write == "buffer":
        z = np.zeros_like(base)
        z += w
        z *= h
        return z
    if case.shape == ():
        h = h * 1.0
        h += base
        return h
    if case.write == "whole":
        g = h
        h *= 0.5
        h += base
        return g
    if case.write == "view":
        part = h[::-1][:1]
        part += base[:1]
        h.T[...] *= 0.9
        h[:1] += 0.5 * part
        return h
    if case.write == "index":
        h[index] = base[0] * w.ravel()[0]
        return h
    if case.write == "add_at":
        np.add.at(h, [0, 0], base[0])
        return h
    mask = (np.arange(case.shape[0]) + index) % 2 == 0
    h[mask] *= 0.5
    h[mask] += 0.3 * w.ravel()[0]
    return h


def make_step(case, lib):
    """Build the step: ``step(seq rows, state rows, constants, index, flag, count) -> (news, rows, condition)``."""

    def step(xs, hs, ws, index, flag, count):
        w, c = (ws["w"], ws["more"][0]) if case.nest else ws
        base = weighted_sum([*xs, *[h for group in hs for h in group]], 0.3)
        base = w + 0.0 if base is None else base * c + 0.1 * w
        old = hs[0][0] if hs else base * 0.5
        h = old + zeros(w) if case.scalar_start or not hs else old
        extra = inner(case, lib, base, h, w, index)
        h = written(case, base, h, w, index)
        news = [bounded(base * (0.5 + k) + 0.3 * h + 0.4 * extra + 0.2 * group[-1]) for k, group in enumerate(hs)]
        rows = [np.sin(np.real(base)) * (k + 1.0) + h * extra if k else base * h - extra for k in range(case.rows)]
        conditions = {"count": lambda: count >= case.stop, "flag": lambda: flag > 2.5, "never": lambda: count > 10**6}
        return news, rows, conditions[case.until]() if case.until else None

    return step


# ---------------------------------------------------------------------------------------------------- the call
def run(case, lib, given, options=None):
    """Run the loop of a case; return its outputs as a tuple of arrays."""
    calls = {"scan": run_scan, "loop": run_loop, "map": run_map, "foldl": run_fold, "foldr": run_fold, "while_loop": run_while}
    return calls[case.api](case, lib, given, options or {})


def constants_of(case, given):
    w, c = given.constants
    return [dict(w=w, more=[c])] if case.nest else [w, c]


def entries_of(case, states):
    return [dict(initial=x, taps=list(t)) if t != (-1,) else x for x, t in zip(states, case.states, strict=True)]


def run_scan(case, lib, given, options):
    step, many = make_step(case, lib), sum(map(len, case.seqs))
    state_counts = list(map(len, case.states))
    counted = case.until == "count" or case.until == "never"

    def flat(*args):
        args = list(args)
        xs, args = args[:many], args[many:]
        index, flag = (args.pop(0), args.pop(0)) if needs_steps else (0, None)
        hs = []
        for n in state_counts:
            hs.append(args[:n])
            args = args[n:]
        count = args.pop(0) if counted else None
        ws = args[0] if case.nest else args
        news, rows, stop = step(xs, hs, ws, index, flag, count)
        outs = (*news, *([count + 1] if counted else []), *rows)
        return outs if stop is None else (outs, lib.until(stop))

    needs_steps = case.until == "flag" or case.write in ("index", "mask") or case.inside in ("cond", "slice")
    sequences = [dict(input=x, taps=list(t)) if t != (0,) else x for x, t in zip(given.seqs, case.seqs, strict=True)]
    sequences += [given.index, given.flag] if needs_steps else []
    states = entries_of(case, given.states) + ([np.int64(given.start)] if counted else [])
    lanes = {k: v for k in ("lengths", "reset") if (v := getattr(given, k)) is not None}
    if given.reset_to is not None:
        lanes["reset_to"] = entries_of(case, given.reset_to)
    outs = lib.scan(
        flat,
        sequences,
        [*states, *[None] * case.rows],
        constants_of(case, given),
        n_steps=case.n_steps,
        go_backwards=case.backwards,
        return_list=True,
        **lanes,
        **options,
    )
    return tuple(outs)


def run_loop(case, lib, given, options):
    step, counted = make_step(case, lib), bool(case.until)
    n = case.steps

    def body(carry, x):
        news, rows, stop = step(
            x["xs"], [[h] for h in carry["h"]], ws if not case.nest else ws[0], x["index"], x["flag"], carry["k"]
        )
        out = dict(h=tuple(news), k=carry["k"] + 1), rows
        return out if stop is None else (*out, lib.until(stop))

    ws = constants_of(case, given)
    xs = dict(xs=[x[:n] for x in given.seqs], index=given.index[:n], flag=given.flag[:n])
    options = {**options, "reverse": case.backwards}
    final, ys = lib.loop(body, dict(h=tuple(given.states), k=np.int64(given.start)), xs, **options)
    return (*final["h"], final["k"], *ys) if counted else (*final["h"], *ys)


def run_map(case, lib, given, options):
    step, n = make_step(case, lib), case.steps

    def body(nest, index, *ws):
        news, rows, _ = step(nest["xs"], [], ws[0] if case.nest else ws, index, None, None)
        return tuple(rows)

    options = {**options, "go_backwards": case.backwards}
    outs = lib.map(body, [dict(xs=[x[:n] for x in given.seqs]), given.index[:n]], constants_of(case, given), **options)
    return tuple(outs) if isinstance(outs, (tuple, list)) else (outs,)


def run_fold(case, lib, given, options):
    step, many = make_step(case, lib), len(case.seqs)

    def body(*args):
        xs, hs, ws = args[:many], args[many : many + len(case.states)], args[many + len(case.states) :]
        return tuple(step(xs, [[h] for h in hs], ws[0] if case.nest else ws, 0, None, None)[0])

    outs = getattr(lib, case.api)(body, list(given.seqs), list(given.states), constants_of(case, given), **options)
    return outs if isinstance(outs, tuple) else (outs,)


def run_while(case, lib, given, options):
    step, ws = make_step(case, lib), constants_of(case, given)

    def body(carry):
        news, _, _ = step([], [[h] for h in carry["h"]], ws[0] if case.nest else ws, 0, None, None)
        return dict(h=tuple(news), k=carry["k"] + 1)

    final = lib.while_loop(lambda carry: carry["k"] < case.steps, body, dict(h=tuple(given.states), k=np.int64(0)), **options)
    return (*final["h"], final["k"])
