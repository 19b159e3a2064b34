"""Fit the polynomial coefficients used by ``nscan.cpu.math``.

This script writes the module of coefficients::

    python benchmarks/fit_math.py >nscan/cpu/math_tables.py
    python benchmarks/fit_math.py LOG SINE   # only some, to look at

It gives, for each approximation and for both precisions, the coefficients (lowest order first) and the
largest weighted error that is left after the coefficients were rounded to the working precision.

Method: the Remez exchange in multiple precision for ``max |weight * (target - polynomial)|``. The
leading terms, whose rounding would matter, are chosen to be exact (such as ``x`` and ``x**2 / 2``) and are
no part of the fit, so that plain rounding of the fitted coefficients does no harm.
"""

import os
import sys

# A sibling is called math.py, and the script's own folder, which comes first on the path, would make it hide
# the standard library's module of that name.
FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]

import textwrap  # noqa: E402

import mpmath as mp  # noqa: E402
import numpy as np  # noqa: E402

HEADER = '''"""Polynomial coefficients, written by benchmarks/fit_math.py.

Each entry holds the coefficients for float32 and for float64, the lowest order first.
"""'''

mp.mp.dps = 60
HALF = mp.mpf(1) / 2
HALF_LN2 = mp.log(2) / 2
# Reduced arguments overshoot the nominal interval a little, as the multiple to subtract is itself rounded;
# those of the trigonometric functions do so more, having the larger multiples.
SLACK = mp.mpf("1.0005")
QUARTER_PI = mp.mpf("1.01") * mp.pi / 4


def solve_reference(targets, weights, points, degree):
    """Solve for the coefficients of the polynomial whose weighted error alternates on `points`."""
    size = degree + 2
    matrix = mp.matrix(size, size)
    for row, point in enumerate(points):
        for column in range(degree + 1):
            matrix[row, column] = point**column
        matrix[row, size - 1] = (-1) ** row / weights[row]
    return list(mp.lu_solve(matrix, mp.matrix(targets)))[:-1]


def alternating_extrema(errors, count):
    """Choose `count` indices of extrema of alternating sign, the largest one among them."""
    extrema = []
    for index, error in enumerate(errors):
        if extrema and (errors[extrema[-1]] > 0) == (error > 0):
            if abs(error) > abs(errors[extrema[-1]]):
                extrema[-1] = index
        else:
            extrema.append(index)
    while len(extrema) > count:
        extrema.pop(0 if abs(errors[extrema[0]]) < abs(errors[extrema[-1]]) else -1)
    return extrema


def remez(target, weight, interval, degree, iterations=12):
    """Fit a polynomial to `target`; return its coefficients, lowest order first."""
    low, high = interval
    count = degree + 2
    size = 24 * count
    # Chebyshev's spacing, shifted so that it avoids the ends and 0, where a target may be 0/0.
    cosines = [mp.cos(mp.pi * (k + mp.mpf(1) / 3) / size) for k in range(size)]
    grid = [low + (high - low) * (1 - cosine) / 2 for cosine in cosines]
    targets, weights = [target(x) for x in grid], [abs(weight(x)) for x in grid]
    chosen = [round((size - 1) * k / (count - 1)) for k in range(count)]
    largest = mp.inf
    for _ in range(iterations):
        coefficients = solve_reference(
            [targets[k] for k in chosen], [weights[k] for k in chosen], [grid[k] for k in chosen], degree
        )
        errors = [w * (t - evaluate(coefficients, x)) for x, t, w in zip(grid, targets, weights, strict=True)]
        previous, largest = largest, max(abs(error) for error in errors)
        extrema = alternating_extrema(errors, count)
        if len(extrema) < count or abs(previous - largest) < largest / 10**4:
            break
        chosen = extrema
    return coefficients


def evaluate(coefficients, x):
    """Evaluate a polynomial whose coefficients come lowest order first."""
    return mp.polyval(coefficients[::-1], x)


def round_to(value, bits):
    """Round a number to `bits` significant bits (24 and 53 in the two types)."""
    exponent = mp.floor(mp.log(abs(value), 2)) + 1 - bits
    return mp.nint(value / mp.mpf(2) ** exponent) * mp.mpf(2) ** exponent


def fit_rounded(target, weight, interval, degree, bits):
    """Fit a polynomial; return its coefficients, rounded to `bits` bits, and the weighted error."""
    rounded = [round_to(value, bits) for value in remez(target, weight, interval, degree)]
    low, high = interval
    samples = [low + (high - low) * (k + mp.mpf(1) / 3) / 1000 for k in range(1000)]
    return rounded, max(abs(weight(x) * (target(x) - evaluate(rounded, x))) for x in samples)


def relative(function, leading, power):
    """Return target and weight of ``(f(x) - leading(x)) / x**power``, for the relative error of f."""
    return (
        lambda x: (function(x) - leading(x)) / x**power,
        lambda x: x**power / function(x),
    )


def in_square(function):
    """Turn an even or odd function of x into one of ``z = x**2``."""
    return lambda z: function(mp.sqrt(z))


def odd(function):
    """Return target and weight, in ``z = x**2``, of ``(f(x) - x) / x**3``, for the relative error of f."""
    return relative(in_square(function), mp.sqrt, 3 * HALF)


def up_to(bound):
    """Return the interval of ``x**2`` for ``abs(x) <= bound``."""
    return mp.mpf(0), mp.mpf(bound) ** 2


def erf_tail():
    """Return target and weight of ``-log(erfc(1 + t))``, for the relative error of erf."""
    return (
        lambda t: -mp.log(mp.erfc(1 + t)),
        lambda t: mp.erfc(1 + t) / mp.erf(1 + t),
    )


def erfc_variable(a):
    """Return the variable that erfc is fitted in."""
    return (mp.mpf(a) - 4) / (mp.mpf(a) + 4)


def erfc_numerator(t):
    """Return ``(a + 4) * exp(a**2) * erfc(a)`` as a function of the variable above."""
    a = 4 * (1 + t) / (1 - t)
    return (a + 4) * mp.exp(a * a) * mp.erfc(a)


def pow_log2():
    """Return target and weight, in ``z = s**2``, of all but two terms of ``log2((1 + s) / (1 - s)) / s``."""

    def series(z):
        return 2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) / mp.log(2)

    first = 2 / mp.log(2)
    return relative(series, lambda z: first + first / 3 * z, 2)


def exponential_fits():
    """Return the approximations of exponential and hyperbolic functions; see `all_fits`."""
    reduced, square = (-HALF_LN2 * SLACK, HALF_LN2 * SLACK), up_to(HALF_LN2 * SLACK)
    exp2 = (lambda r: (mp.mpf(2) ** r - 1) / r, lambda r: r / mp.mpf(2) ** r)
    cosh = relative(in_square(mp.cosh), lambda z: 1, 1)
    return {
        "EXPONENTIAL": (
            "(exp(r) - 1 - r) / r**2 for abs(r) <= ln(2)/2",
            relative(mp.expm1, lambda r: r, 2), reduced, (4, 9),
        ),
        "EXP2": ("(2**r - 1) / r for abs(r) <= 1/2", exp2, (-HALF * SLACK, HALF * SLACK), (5, 10)),
        "SINH": ("(sinh(r) - r) / r**3 in r**2, for abs(r) <= ln(2)/2", odd(mp.sinh), square, (1, 5)),
        "COSH": ("(cosh(r) - 1) / r**2 in r**2, for abs(r) <= ln(2)/2", cosh, square, (2, 6)),
        "TANH": ("(tanh(x) - x) / x**3 in x**2, for abs(x) <= 5/8", odd(mp.tanh), up_to(0.625), (4, 11)),
    }


def logarithmic_fits():
    """Return the approximations of logarithms and inverse hyperbolic functions; see `all_fits`."""
    octave = (mp.sqrt(HALF) - 1, mp.sqrt(2) - 1)
    return {
        "LOG": (
            "(log(1 + f) - f + f**2/2) / f**3 for sqrt(1/2) <= 1 + f <= sqrt(2)",
            relative(mp.log1p, lambda f: f - f * f / 2, 3), octave, (7, 18),
        ),
        "POW_LOG2": (
            "log2((1 + s) / (1 - s)) / s less two terms, over s**4, in s**2, for abs(s) <= 3 - 2*sqrt(2)",
            pow_log2(), up_to(3 - 2 * mp.sqrt(2)), (2, 6),
        ),
        "INVERSE_CUBE_ROOT": (
            "(1 + f)**(-1/3) for sqrt(1/2) <= 1 + f <= sqrt(2)",
            (lambda f: 1 / mp.cbrt(1 + f), lambda f: mp.cbrt(1 + f)), octave, (3, 6),
        ),
        "ASINH": (
            "(asinh(x) - x) / x**3 in x**2, for abs(x) <= 3/4 and 1/2",
            odd(mp.asinh), (up_to(0.75), up_to(0.5)), (6, 11),
        ),
        "ATANH": ("(atanh(x) - x) / x**3 in x**2, for abs(x) <= 1/2", odd(mp.atanh), up_to(0.5), (5, 12)),
    }


def other_fits():
    """Return the approximations of trigonometric and error functions; see `all_fits`."""
    octant = up_to(QUARTER_PI)
    cosine = relative(in_square(mp.cos), lambda z: 1 - z / 2, 2)
    erf = relative(in_square(mp.erf), mp.sqrt, HALF)
    lowest, *highest = (erfc_variable(a) for a in (0.5, 10.1, 27.3))
    return {
        "SINE": ("(sin(r) - r) / r**3 in r**2, for abs(r) <= pi/4", odd(mp.sin), octant, (2, 5)),
        "COSINE": ("(cos(r) - 1 + r**2/2) / r**4 in r**2, for abs(r) <= pi/4", cosine, octant, (2, 5)),
        "TANGENT": ("(tan(r) - r) / r**3 in r**2, for abs(r) <= pi/4", odd(mp.tan), octant, (6, 13)),
        "ARCSINE": ("(asin(x) - x) / x**3 in x**2, for abs(x) <= 1/2", odd(mp.asin), up_to(0.5), (4, 11)),
        "ARCTANGENT": ("(atan(x) - x) / x**3 in x**2, for abs(x) <= 1", odd(mp.atan), up_to(1), (8, 19)),
        "ERF": ("(erf(x) - x) / x in x**2, for abs(x) <= 1", erf, up_to(1), (6, 11)),
        "ERF_TAIL": (
            "-log(erfc(1 + t)) for 0 <= t <= 3 and 5, for the error of erf",
            erf_tail(), ((mp.mpf(0), mp.mpf(3)), (mp.mpf(0), mp.mpf(5))), (7, 18),
        ),
        "ERFC": (
            "(a + 4) * exp(a**2) * erfc(a) in (a - 4) / (a + 4), for 1/2 <= a <= 10.1 and 27.3",
            (erfc_numerator, lambda t: 1 / erfc_numerator(t)),
            tuple((lowest, high) for high in highest), (10, 20),
        ),
    }


def all_fits():
    """Return a dict name -> (description, target and weight, interval, degrees).

    There are two degrees, for float32 and for float64, and either one interval or two.
    """
    return {**exponential_fits(), **logarithmic_fits(), **other_fits()}


def table_text(name, description, functions, intervals, degrees):
    """Fit one approximation for both types and return its lines of the table."""
    if not isinstance(intervals[0], tuple):
        intervals = (intervals, intervals)
    lines, errors = [f"{name} = ("], []
    kinds = (np.float32, np.float64)
    for degree, bits, kind, interval in zip(degrees, (24, 53), kinds, intervals, strict=True):
        coefficients, error = fit_rounded(*functions, interval, degree, bits)
        errors.append(f"2**{float(mp.log(error, 2)):.1f}")
        numbers = ", ".join(str(kind(float(value))) for value in coefficients)
        lines.append(textwrap.fill(f"({numbers}),", 110, initial_indent=" " * 4, subsequent_indent=" " * 5))
    comment = f"{description}; degrees {degrees[0]} and {degrees[1]}, errors {errors[0]} and {errors[1]}."
    return "\n".join([textwrap.fill(comment, 110, initial_indent="# ", subsequent_indent="# "), *lines, ")"])


def main(names):
    """Fit and print the approximations called `names` (all if there are none)."""
    table = all_fits()
    print(HEADER)
    for name in names or table:
        print("\n" + table_text(name, *table[name]))


if __name__ == "__main__":
    main(sys.argv[1:])
