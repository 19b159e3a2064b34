"""What to write instead of what traced arrays do not support: by function, and by what stands in the user's line."""

import difflib
import re

from nscan import errors
from nscan.primitive import TABLE

SIZE = "the size of its result would follow from values, and arrays in a step have fixed shapes; "
OURS = {"logsumexp": "ns.logsumexp", "softmax": "ns.softmax", "log_softmax": "ns.log_softmax"}
INSTEAD = {
    **{name: f"use {ours}" for name, ours in OURS.items()},
    **dict.fromkeys(("nonzero", "flatnonzero", "argwhere", "extract"),
                    SIZE + "use np.where(mask, a, b), np.argmax(mask) for the first place, np.sum(mask) for the number"),
    **dict.fromkeys(("unique", "unique_values", "unique_counts", "unique_inverse", "unique_all", "union1d", "intersect1d", "setdiff1d",
                     "setxor1d", "trim_zeros"),
                    SIZE + "sort with np.sort and mark where neighbours differ"),
    **dict.fromkeys(("bincount", "histogram", "histogram2d", "histogramdd"),
                    "count into an array of known size: z = ns.array(np.zeros(n)), then np.add.at(z, k, 1), where k is "
                    "np.searchsorted(edges, x) or the numbers themselves"),
    "polyfit": "solve the normal equations: X = np.vander(x, n), then np.linalg.solve(X.T @ X, X.T @ y)",
    "matrix_rank": "count np.linalg.svd(a, compute_uv=False) > tolerance",
    **dict.fromkeys(("eig", "eigvals", "roots"), "use np.linalg.eigh or eigvalsh for a symmetric matrix, or compute it before the loop"),
}
# What stands in the user's line, and what to write: NumPy's functions of real arrays do not ask traced arguments.
LINES = (
    (r"\bnp\.take\(", "np.take of a real array by traced indices is np.take(ns.array(table), k)"),
    (r"\bnp\.(arange|zeros|ones|empty|eye)\((?![\d.])", "an array whose size is traced: make the largest one and mask it, "
     "np.arange(n) < k, or slice a traced array, ns.array(table)[:k]"),
    (r"\bnp\.(roll|repeat|pad|tile)\(", "a shift or count must be known while tracing; roll by a traced one is "
     "ns.array(table)[(np.arange(n) - k) % n]"),
    (r"\bnp\.[rc]_\[", "np.r_ is np.concatenate, np.append or np.insert, and np.c_ is np.column_stack"),
    (r"\brange\(", "a loop over a traced number of steps is ns.scan with n_steps=k, or ns.loop with length=k"),
    (r"\w\[[^]]*\]\s*[-+*/]?=[^=]", "to write traced values into an array, make it traced first: z = ns.array(z)"),
)
FOURIER = "multiply by the matrix F = np.fft.fft(np.eye(n)), made outside of the step, or transform before the loop"


def unsupported(function):
    """Build the error for a function without a row: it says what to write instead, or names the nearest supported one."""
    name = getattr(function, "__name__", str(function))
    module = (getattr(function, "__module__", "") or "numpy").replace("_core", "").split("._")[0].rstrip(".")
    text = f"{module}.{name} is not supported on traced arrays"
    advice = FOURIER if module == "numpy.fft" else INSTEAD.get(name)
    if advice:
        return errors.UnsupportedError(f"{text}; {advice}")
    near = difflib.get_close_matches(name, sorted({getattr(f, "__name__", "") for f in TABLE.fronts} - {name}), 1, 0.75)
    return errors.UnsupportedError(text + (f"; the nearest supported function is np.{near[0]}" if near else ""))


def instead(place):
    """What to write instead of what stands in a line, as far as it is known; it begins with a semicolon."""
    return "".join(f"; {text}" for word, text in LINES if place is not None and re.search(word, place.text))
