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
import textwrap

# A sibling is called math.py; as the script's own folder comes first on the path it would hide the
# standard library's module of that name.
sys.path = [entry for entry in sys.path if os.path.abspath(entry or ".") != os.path.dirname(os.path.abspath(__file__))]

import mpmath as mp  # noqa: E402
import numpy as np  # noqa: E402

HEADER = '''"""Polynomial coefficients, written by benchmarks/fit_math.py.

Each entry holds the coefficients for float32 and for float64, the lowest order first.
"""'''

mp.mp.dps = 60
HALF_LN2 = mp.log(2) / 2
QUARTER_PI = mp.pi / 4
# Reduced arguments overshoot the nominal interval a little, as the multiple to subtract is itself rounded.
SLACK = mp.mpf("1.0005")


def solve_reference(target, weight, points, powers):
    """Solve for the coefficients whose weighted error alternates on `points`."""
    size = len(points)
    matrix = mp.matrix(size, size)
    for row, point in enumerate(points):
        for column, power in enumerate(powers):
            matrix[row, column] = point**power
        matrix[row, size - 1] = (-1) ** row / weight(point)
    solution = mp.lu_solve(matrix, mp.matrix([target(point) for point in points]))
    return [solution[index] for index in range(size - 1)]


def alternating_extrema(errors, count):
    """Choose `count` indices of extrema of alternating sign, holding the largest one."""
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


def remez(target, weight, interval, powers, iterations=12):
    """Fit ``sum(c * x**p for p in powers)`` to `target` and return the coefficients and the error."""
    count = len(powers) + 1
    low, high = interval
    grid_size = 24 * count
    # Chebyshev spacing, which avoids both ends (and 0, where a target may be 0/0).
    grid = [low + (high - low) * (1 - mp.cos(mp.pi * (k + mp.mpf(1) / 3) / grid_size)) / 2 for k in range(grid_size)]
    targets = [target(x) for x in grid]
    weights = [abs(weight(x)) for x in grid]
    lookup = dict(zip(grid, range(grid_size)))
    chosen = [round((grid_size - 1) * k / (count - 1)) for k in range(count)]
    coefficients, largest = [], mp.inf
    for _ in range(iterations):
        coefficients = solve_reference(
            lambda x: targets[lookup[x]], lambda x: weights[lookup[x]], [grid[k] for k in chosen], powers
        )
        errors = [w * (t - evaluate(coefficients, powers, x)) for x, t, w in zip(grid, targets, weights)]
        previous, largest = largest, max(abs(error) for error in errors)
        extrema = alternating_extrema(errors, count)
        if len(extrema) < count or abs(previous - largest) < largest / 10**4:
            break
        chosen = extrema
    return coefficients, largest


def evaluate(coefficients, powers, x):
    """Evaluate a sparse polynomial."""
    return mp.fsum(c * x**p for c, p in zip(coefficients, powers))


def round_to(value, bits):
    """Round a number to `bits` significant bits (24 and 53 are the two float types)."""
    if value == 0:
        return mp.mpf(0)
    exponent = mp.floor(mp.log(abs(value), 2)) + 1 - bits
    return mp.nint(value / mp.mpf(2) ** exponent) * mp.mpf(2) ** exponent


def fit_rounded(target, weight, interval, degree, bits):
    """Fit a polynomial of the given degree, its coefficients rounded to `bits` bits."""
    powers = range(degree + 1)
    coefficients, _ = remez(target, weight, interval, powers)
    rounded = [round_to(c, bits) for c in coefficients]
    low, high = interval
    samples = [low + (high - low) * (k + mp.mpf(1) / 3) / 1000 for k in range(1000)]
    error = max(abs(weight(x) * (target(x) - evaluate(rounded, powers, x))) for x in samples)
    return rounded, error


def odd_remainder(function):
    """Return target and weight (in z = x*x) of ``(f(x) - x) / x**3``, for the relative error of f."""
    return (
        lambda z: (function(mp.sqrt(z)) - mp.sqrt(z)) / mp.sqrt(z) ** 3,
        lambda z: mp.sqrt(z) ** 3 / function(mp.sqrt(z)),
    )


def relative_remainder(function, leading, power):
    """Return target and weight of ``(f(x) - leading(x)) / x**power``, for the relative error of f."""
    return (
        lambda x: (function(x) - leading(x)) / x**power,
        lambda x: x**power / function(x),
    )


def in_square(function):
    """Turn an even function of x into a function of z = x*x."""
    return lambda z: function(mp.sqrt(z))


def erf_tail():
    """Return target and weight of ``-log(erfc(1 + t))``, for the relative error of erf."""
    return (
        lambda t: -mp.log(mp.erfc(1 + t)),
        lambda t: mp.erfc(1 + t) / mp.erf(1 + t),
    )


def erfc_numerator(centre):
    """Return target and weight of ``(a + centre) * exp(a**2) * erfc(a)``, and the function that gives t of a."""

    def target(t):
        a = centre * (1 + t) / (1 - t)
        return (a + centre) * mp.exp(a * a) * mp.erfc(a)

    return (target, lambda t: 1 / target(t)), lambda a: (mp.mpf(a) - centre) / (mp.mpf(a) + centre)


def pow_log2():
    """Return target and weight in z of what follows the first two terms of ``log2((1 + s) / (1 - s)) / s``."""

    def series(z):
        return 2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) / mp.log(2)

    first = 2 / mp.log(2)
    return (lambda z: (series(z) - first - first / 3 * z) / z**2, lambda z: z**2 / series(z))


def fits():
    """Return a dict name -> (description, target and weight, interval, degrees of float32 and float64)."""
    exponential = (-HALF_LN2 * SLACK, HALF_LN2 * SLACK)
    hyperbolic = (mp.mpf(0), (HALF_LN2 * SLACK) ** 2)
    octant = (mp.mpf(0), (QUARTER_PI * mp.mpf("1.01")) ** 2)
    numerator, variable = erfc_numerator(4)
    return {
        "EXPONENTIAL": (
            "(exp(r) - 1 - r) / r**2 for abs(r) <= ln(2)/2",
            relative_remainder(mp.expm1, lambda r: r, 2), exponential, (4, 9),
        ),
        "EXP2": (
            "(2**r - 1) / r for abs(r) <= 1/2",
            (lambda r: (mp.mpf(2) ** r - 1) / r, lambda r: r / mp.mpf(2) ** r), (-SLACK / 2, SLACK / 2), (5, 10),
        ),
        "SINH": ("(sinh(r) - r) / r**3 in r**2, for abs(r) <= ln(2)/2", odd_remainder(mp.sinh), hyperbolic, (1, 5)),
        "COSH": (
            "(cosh(r) - 1) / r**2 in r**2, for abs(r) <= ln(2)/2",
            relative_remainder(in_square(mp.cosh), lambda z: 1, 1), hyperbolic, (2, 6),
        ),
        "LOG": (
            "(log(1 + f) - f + f**2/2) / f**3 for sqrt(1/2) <= 1 + f <= sqrt(2)",
            relative_remainder(mp.log1p, lambda f: f - f * f / 2, 3), (mp.sqrt(0.5) - 1, mp.sqrt(2) - 1), (7, 18),
        ),
        "SINE": ("(sin(r) - r) / r**3 in r**2, for abs(r) <= pi/4", odd_remainder(mp.sin), octant, (2, 5)),
        "COSINE": (
            "(cos(r) - 1 + r**2/2) / r**4 in r**2, for abs(r) <= pi/4",
            relative_remainder(in_square(mp.cos), lambda z: 1 - z / 2, 2), octant, (2, 5),
        ),
        "TANGENT": ("(tan(r) - r) / r**3 in r**2, for abs(r) <= pi/4", odd_remainder(mp.tan), octant, (6, 13)),
        "ARCSINE": ("(asin(x) - x) / x**3 in x**2, for abs(x) <= 1/2", odd_remainder(mp.asin), (0, mp.mpf(1) / 4), (4, 11)),
        "ARCTANGENT": ("(atan(x) - x) / x**3 in x**2, for abs(x) <= 1", odd_remainder(mp.atan), (0, mp.mpf(1)), (8, 19)),
        "ASINH": ("(asinh(x) - x) / x**3 in x**2, for abs(x) <= 3/4 and 1/2", odd_remainder(mp.asinh), ((0, mp.mpf(9) / 16), (0, mp.mpf(1) / 4)), (6, 11)),
        "ATANH": ("(atanh(x) - x) / x**3 in x**2, for abs(x) <= 1/2", odd_remainder(mp.atanh), (0, mp.mpf(1) / 4), (5, 12)),
        "ERF": ("(erf(x) - x) / x in x**2, for abs(x) <= 1", relative_remainder(in_square(mp.erf), mp.sqrt, mp.mpf(0.5)), (0, mp.mpf(1)), (6, 11)),
        "ERF_TAIL": ("-log(erfc(1 + t)) for 0 <= t <= 3 and 5", erf_tail(), ((0, mp.mpf(3)), (0, mp.mpf(5))), (7, 18)),
        "ERFC": ("(a + 4) * exp(a**2) * erfc(a) in (a - 4) / (a + 4), for 1/2 <= a <= 10.1 and 27.3", numerator, ((variable(0.5), variable(10.1)), (variable(0.5), variable(27.3))), (10, 20)),
        "POW_LOG2": ("log2((1 + s) / (1 - s)) / s less its first two terms, over s**4, in s**2, for abs(s) <= 3 - 2*sqrt(2)", pow_log2(), (mp.mpf(0), (3 - 2 * mp.sqrt(2))**2), (2, 6)),
        "INVERSE_CUBE_ROOT": ("(1 + f)**(-1/3) for sqrt(1/2) <= 1 + f <= sqrt(2)", (lambda f: 1 / mp.cbrt(1 + f), lambda f: mp.cbrt(1 + f)), (mp.sqrt(0.5) - 1, mp.sqrt(2) - 1), (3, 6)),
        "TANH": ("(tanh(x) - x) / x**3 in x**2, for abs(x) <= 5/8", odd_remainder(mp.tanh), (0, mp.mpf(25) / 64), (4, 11)),
    }


def table_text(name, description, target, weight, interval, degrees):
    """Fit one approximation for both precisions and return its lines of the table."""
    lines, errors = [f"{name} = ("], []
    intervals = interval if isinstance(interval[0], tuple) else (interval, interval)
    for degree, bits, kind, limits in zip(degrees, (24, 53), (np.float32, np.float64), intervals):
        coefficients, error = fit_rounded(target, weight, limits, degree, bits)
        errors.append(f"2**{float(mp.log(error, 2)):.1f}")
        numbers = ", ".join(str(kind(float(value))) for value in coefficients)
        lines.append(textwrap.fill(f"({numbers}),", 110, initial_indent=" " * 4, subsequent_indent=" " * 5))
    comment = f"{description}; degrees {degrees[0]} and {degrees[1]}, weighted errors {errors[0]} and {errors[1]}."
    return "\n".join([textwrap.fill(comment, 110, initial_indent="# ", subsequent_indent="# "), *lines, ")"])


def main(names):
    """Fit and print the approximations called `names` (all if there are none)."""
    table = fits()
    print(HEADER)
    for name in names or table:
        description, (target, weight), interval, degrees = table[name]
        print("\n" + table_text(name, description, target, weight, interval, degrees))


if __name__ == "__main__":
    main(sys.argv[1:])
