"""Run the real-world cases against nscan.

    python check.py [--module nscan] [--mode python] [--values] [part of a case name ...]

Each numbered file beside this one stands alone (NumPy only) and holds a step as a user would write it, the
call (SPEC), a plain reference and numerical gradients; README.md lists the fields. A line per case; the exit
status is the number of cases that fail (at most 100). `case_paths` and `run` serve the test suite.
"""

import argparse
import glob
import importlib
import importlib.util
import os
import sys
import time
import traceback
import warnings

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


def case_paths(folder=HERE):
    """Return the paths of the case files, in order."""
    return sorted(glob.glob(os.path.join(folder, "[0-9]*.py")))


def case_name(path):
    """Return the name of a case: its file name without extension."""
    return os.path.basename(path)[:-3]


def load(path):
    """Import a case file under a name of its own."""
    spec = importlib.util.spec_from_file_location("case_" + case_name(path), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bind(case, inputs):
    """Return SPEC with the names of inputs replaced by arrays."""
    arrays = dict(zip(case.INPUTS, inputs, strict=True))

    def replace(value):
        if isinstance(value, str):
            return arrays[value]
        if isinstance(value, dict):
            return {k: replace(v) if k in ("input", "initial") else v for k, v in value.items()}
        if isinstance(value, list):
            return [replace(v) for v in value]
        return value

    return {key: replace(value) for key, value in case.SPEC.items()}


def outputs(ns, case, inputs):
    """Run the call of a case; return its outputs as a tuple."""
    call = getattr(ns, getattr(case, "API", "scan"))
    out = call(case.step, **bind(case, inputs))
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def close(got, want, rtol, atol):
    """Tell whether two arrays agree in shape and values."""
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True)


def differs(what, got, want):
    """Return a short text about two arrays that ought to agree."""
    return f"{what}: {np.shape(got)} {np.ravel(got)[:4]} wanted {np.shape(want)} {np.ravel(want)[:4]}"


def check_values(ns, case, inputs, bad):
    """Compare outputs, their types and dtypes with the reference; the inputs must not change."""
    before = [np.array(v, copy=True) for v in inputs]
    outs = outputs(ns, case, inputs)
    want = case.reference(*inputs)
    want = want if isinstance(want, tuple) else (want,)
    if len(outs) != len(want):
        bad.append(f"{len(outs)} outputs, reference has {len(want)}")
    rtol, atol = getattr(case, "RTOL", 1e-9), getattr(case, "ATOL", 1e-9)
    for j, (o, w) in enumerate(zip(outs, want, strict=False)):
        if type(o) is not np.ndarray and not np.isscalar(o):
            bad.append(f"output {j} is a {type(o).__name__}, not an ndarray")
        if w is not None and not close(o, w, rtol, atol):
            bad.append(differs(f"output {j}", o, w))
    for j, (o, d) in enumerate(zip(outs, getattr(case, "OUT_DTYPES", ()), strict=False)):
        if d and np.asarray(o).dtype != np.dtype(d):
            bad.append(f"output {j}: dtype {np.asarray(o).dtype}, wanted {d}")
    for v, b, name in zip(inputs, before, case.INPUTS, strict=True):
        if not close(v, b, 0, 0):
            bad.append(f"input {name} was changed")


def gradients(ns, case, inputs, names):
    """Return the gradients in the named inputs: `grad` of the loss, or `vjp` with given cotangents."""
    where = [case.INPUTS.index(name) for name in names]
    args = [np.asarray(inputs[i]) for i in where]

    def plain(*some):
        full = list(inputs)
        for i, a in zip(where, some, strict=True):
            full[i] = a
        return outputs(ns, case, full)

    if hasattr(case, "COTANGENTS"):
        _, pull = ns.vjp(plain, *args)
        return pull(case.COTANGENTS())
    return ns.grad(lambda *some: case.loss(*plain(*some)), argnums=tuple(range(len(args))))(*args)


def check_gradients(ns, case, inputs, bad):
    """Compare the gradient in each input of GRAD_ARGS with exact or numerical ones."""
    names = list(case.GRAD_ARGS)
    direction = case.DIRECTION(0) if hasattr(case, "DIRECTION") else None
    wrt = names + ([direction[0]] if direction and direction[0] not in names else [])
    exact = case.grad_reference(*inputs) if hasattr(case, "grad_reference") else {}
    for name, g in zip(wrt, gradients(ns, case, inputs, wrt), strict=True):
        x = np.asarray(inputs[case.INPUTS.index(name)])
        if np.shape(g) != x.shape or (x.dtype.kind in "fc" and np.asarray(g).dtype != x.dtype):
            bad.append(f"gradient in {name}: {np.asarray(g).dtype}{np.shape(g)}, input {x.dtype}{x.shape}")
            continue
        if name in getattr(case, "ZERO_GRAD", ()) and np.any(np.asarray(g) != 0):
            bad.append(f"gradient in {name} is not exactly zero")
        if direction and name == direction[0]:
            check_direction(case, inputs, direction, g, bad)
        if name in names:
            check_gradient(case, inputs, name, g, exact, bad)
    if hasattr(case, "HVP_ARG"):
        check_hvp(ns, case, inputs, bad)


def check_gradient(case, inputs, name, g, exact, bad):
    """Compare one gradient with what the case offers: exact values, one-sided slopes or differences."""
    i = case.INPUTS.index(name)
    if name in exact:
        want = exact[name]
    elif name in getattr(case, "SUBGRAD", ()):
        check_kink(case, inputs, name, g, bad)
        return
    elif name in getattr(case, "NO_NUMERIC", ()):
        return
    else:
        want = case.numgrad(case.loss_reference, inputs, i)
    single = np.asarray(inputs[i]).dtype in (np.float32, np.complex64)
    rtol, atol = (2e-3, 1e-4) if single else (1e-5, 1e-6)
    if not close(g, want, rtol, atol):
        bad.append(differs(f"gradient in {name}", g, want))


def check_direction(case, inputs, direction, g, bad):
    """Compare a large gradient along one direction."""
    name, along = direction
    i, h = case.INPUTS.index(name), 1e-5

    def moved(s):
        return case.loss_reference(*inputs[:i], inputs[i] + s * along, *inputs[i + 1:])

    slope = (moved(-2 * h) - 8 * moved(-h) + 8 * moved(h) - moved(2 * h)) / (12 * h)
    if not np.isclose(np.sum(g * along), slope, rtol=1e-5, atol=1e-7):
        bad.append(f"directional gradient in {name}: {np.sum(g * along)} wanted {slope}")


def check_hvp(ns, case, inputs, bad):
    """Compare a Hessian-vector product with differences of numerical gradients."""
    i, h = case.INPUTS.index(case.HVP_ARG), 1e-4

    def loss(a):
        return case.loss(*outputs(ns, case, (*inputs[:i], a, *inputs[i + 1:])))

    def slope(s):
        moved = (*inputs[:i], inputs[i] + s * case.HVP_DIR, *inputs[i + 1:])
        return case.numgrad(case.loss_reference, moved, i)

    got, want = ns.hvp(loss, np.asarray(inputs[i]), case.HVP_DIR), (slope(h) - slope(-h)) / (2 * h)
    if not close(got, want, 1e-3, 1e-4):
        bad.append(differs(f"hvp in {case.HVP_ARG}", got, want))


def check_kink(case, inputs, name, g, bad):
    """At a kink any value between the one-sided slopes is right (SUM_RULE: and the entries add up to 0)."""
    i = case.INPUTS.index(name)
    x, h = np.asarray(inputs[i], float), 1e-7

    def moved(d):
        return case.loss_reference(*inputs[:i], x + d, *inputs[i + 1:])

    mid = moved(np.zeros_like(x))
    for k in np.ndindex(x.shape):
        d = np.zeros_like(x)
        d[k] = h
        sides = sorted(((moved(d) - mid) / h, (mid - moved(-d)) / h))
        if not sides[0] - 1e-4 <= np.asarray(g)[k] <= sides[1] + 1e-4:
            bad.append(f"gradient in {name}{list(k)}: {np.asarray(g)[k]} outside {sides}")
    if "add up to 0" in getattr(case, "SUM_RULE", "") and abs(np.sum(g)) > 1e-6:
        bad.append(f"gradient in {name}: entries add up to {np.sum(g)}, not 0")


def check_error(ns, case, inputs, bad):
    """Expect a refusal (or, with OR_VALUE, the right values); return its text."""
    try:
        if hasattr(case, "ERROR_GRAD"):
            i = case.INPUTS.index(case.ERROR_GRAD)
            total = getattr(case, "loss", lambda *o: np.sum(o[-1]))
            ns.grad(lambda a: total(*outputs(ns, case, (*inputs[:i], a, *inputs[i + 1:]))))(inputs[i])
        else:
            outputs(ns, case, inputs)
    except NotImplementedError:
        raise
    except (ValueError, TypeError, IndexError) as e:
        return f"(refused: {type(e).__name__}: {str(e)[:110]})"
    if getattr(case, "OR_VALUE", False):
        check_values(ns, case, inputs, bad)
    else:
        bad.append(f"not refused; an error such as {case.EXPECT_ERROR!r} is right")
    return ""


def run(ns, path, values_only=False):
    """Run one case file against a module.

    Parameters
    ----------
    ns : module
        Has ``scan``, ``map``, ``reduce``, ``foldr``, ``until``; for gradients ``grad``, ``vjp``, ``hvp``.
    path : str
        The case file.
    values_only : bool
        Leave derivatives out.

    Returns
    -------
    bad : list of str
        What is wrong; empty if the case passes.
    note : str
        The text of an error that was expected.
    """
    bad, note = [], ""
    case = load(path)
    for name in ("until", "scan"):
        if hasattr(case, name):
            setattr(case, name, getattr(ns, name))
    for seed in (0, 1):
        inputs = tuple(case.make_inputs(seed))
        if hasattr(case, "EXPECT_ERROR"):
            note = check_error(ns, case, inputs, bad)
            continue
        check_values(ns, case, inputs, bad)
        if hasattr(case, "GRAD_ARGS") and not values_only:
            check_gradients(ns, case, inputs, bad)
        if getattr(case, "SLOW_IN_PYTHON", False):
            break
    if hasattr(case, "CHANGE"):
        case.CHANGE()
        check_values(ns, case, inputs, bad)
    return bad, note


def report(ns, path, values_only, show_traceback):
    """Run one case, print its line, and tell whether it passed."""
    start, note = time.perf_counter(), ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            bad, note = run(ns, path, values_only)
        except Exception as e:
            bad = [f"{type(e).__name__}: {str(e)[:300]}"]
            if show_traceback:
                traceback.print_exc()
    text = "FAIL " + " | ".join(bad) if bad else "ok"
    print(f"{case_name(path):46s} {time.perf_counter() - start:6.1f}s", text, note, flush=True)
    return not bad


def main(argv=None):
    """Run the command line; return the number of failures, at most 100."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--module", default="nscan")
    parser.add_argument("--cases", default=HERE)
    parser.add_argument("--mode", help="sets NSCAN_MODE: 'python' runs the tape in NumPy, without kernels")
    parser.add_argument("--values", action="store_true", help="no gradients")
    parser.add_argument("--traceback", action="store_true")
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args(argv)
    if options.mode:
        os.environ["NSCAN_MODE"] = options.mode
    ns = importlib.import_module(options.module)
    paths = [path for path in case_paths(options.cases)
             if not options.parts or any(part in case_name(path) for part in options.parts)]
    passed = [report(ns, path, options.values, options.traceback) for path in paths]
    print(f"{sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return min(len(passed) - sum(passed), 100)


if __name__ == "__main__":
    sys.exit(main())
