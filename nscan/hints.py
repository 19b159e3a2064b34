"""What to write instead of functions that traced arrays do not support."""

import difflib

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
FOURIER = "multiply by the matrix F = np.fft.fft(np.eye(n)), made outside of the step, or transform before the loop"


def unsupported(function):
    """Build the error for a function without a row: it says what to write instead, or names the nearest supported one."""
    name = getattr(function, "__name__", str(function))
    module = (getattr(function, "__module__", "") or "numpy").replace("_core", "").split("._")[0].rstrip(".")
    text = f"{module}.{name} is not supported on traced arrays"
    instead = FOURIER if module == "numpy.fft" else INSTEAD.get(name)
    if instead:
        return errors.UnsupportedError(f"{text}; {instead}")
    near = difflib.get_close_matches(name, sorted({getattr(f, "__name__", "") for f in TABLE.fronts} - {name}), 1, 0.75)
    return errors.UnsupportedError(text + (f"; the nearest supported function is np.{near[0]}" if near else ""))
