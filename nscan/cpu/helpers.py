"""Helpers of kernels, called by address: sorting of rows, LAPACK on one matrix, rows times panels.

Each is a small Numba function in a file of its own (written and cached like a kernel), made for one dtype on
first use. LAPACK comes from ``scipy.linalg.cython_lapack`` by address. Matrices are copied to column order
first, as NumPy does, so results (signs of vectors included) are those of the same routine there.
"""

import functools

import llvmlite.binding as llvm
import numba.extending
import numpy as np

from nscan import build
from nscan.plan.program import program_text
from nscan.plan.strips import ARGUMENTS as STRIP_ARGUMENTS
from nscan.plan.strips import strip_program

HEAD = '''"""A helper of nscan: {name}."""
import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

INT = types.int64
WORD = ir.IntType(64)


@intrinsic
def at(context, address, kind):
    """Turn an address into a typed pointer."""
    def emit(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))
    return types.CPointer(kind.dtype)(address, kind), emit


@intrinsic
def lapack(context, function, args):
    """Call a Fortran routine whose arguments are all addresses."""
    def emit(context, builder, signature, values):
        count = len(signature.args[1])
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer] * count)
        parts = [builder.inttoptr(builder.extract_value(values[1], k), pointer) for k in range(count)]
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), parts)
        return context.get_dummy_value()
    return types.void(function, args), emit
'''

SORT = '''

@njit(inline="never")
def before(a, b):
    return a < b or {nan_after}


@njit
def sift(x, root, n):
    while True:
        child = 2 * root + 1
        if child >= n:
            return
        if child + 1 < n and before(x[child], x[child + 1]):
            child += 1
        if not before(x[root], x[child]):
            return
        x[root], x[child] = x[child], x[root]
        root = child


@cfunc(types.void(INT, INT, INT, INT), cache={cache}, error_model="numpy")
def helper(keys, out, n, scratch):
    """Heapsort in place (Knuth, TAOCP 5.2.3)."""
    x = carray(at(keys, np.{dtype}), n)
    for root in range(n // 2 - 1, -1, -1):
        sift(x, root, n)
    for last in range(n - 1, 0, -1):
        x[0], x[last] = x[last], x[0]
        sift(x, 0, last)
'''

ARGSORT = '''

@njit(inline="never")
def before(a, b):
    return a < b or {nan_after}


@cfunc(types.void(INT, INT, INT, INT), cache={cache}, error_model="numpy")
def helper(keys, out, n, scratch):
    """Bottom-up merge sort of indices, stable."""
    x = carray(at(keys, np.{dtype}), n)
    a = carray(at(out, np.int64), n)
    b = carray(at(scratch, np.int64), n)
    for k in range(n):
        a[k] = k
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            i, j = low, middle
            for k in range(low, high):
                if i < middle and (j >= high or not before(x[a[j]], x[a[i]])):
                    b[k] = a[i]
                    i += 1
                else:
                    b[k] = a[j]
                    j += 1
        for k in range(n):
            a[k] = b[k]
        width *= 2
'''

NAN = {"f": "(a == a and b != b)", "c": "(a == a and b != b)"}

ZETA = '''
# Bernoulli numbers B(2k) over (2k)!.
BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)


@cfunc(types.float64(types.float64, types.float64), cache={cache}, error_model="numpy")
def helper(x, q):
    """Hurwitz zeta function by Euler and Maclaurin's formula (Abramowitz and Stegun 23.2.9), x > 1 and q > 0."""
    if not (x > 1.0 and q > 0.0):
        return np.inf if x == 1.0 or q == 0.0 else np.nan
    total = 0.0
    for k in range(12):
        total += (q + k) ** -x
    a = q + 12
    power = a ** -x
    total += power * a / (x - 1.0) + 0.5 * power
    factor, term = x / a, power
    for k in range(len(BERNOULLI)):
        term *= factor
        total += term * BERNOULLI[k]
        factor = (x + 2 * k + 1) * (x + 2 * k + 2) / (a * a)
    return total

'''

STRIP = '''

FEATURES = {features!r}
TEXT = (
{text}
)


@intrinsic
def body(context, {names}):
    def emit(context, builder, signature, arguments):
        from nscan.cpu.llvm import helper_body
        return helper_body(context, builder, arguments, TEXT, FEATURES)
    return types.void({names}), emit


@cfunc(types.void({ints}), cache={cache}, error_model="numpy")
def helper({names}):
    """Rows times panels (see nscan.plan.strips)."""
    body({names})
'''

MATRIX = '''

@cfunc(INT({ints}), cache={cache}, error_model="numpy")
def helper({names}, n, m, k, address, second, work, small):
    """{doc}"""
    T = np.{dtype}
    w = carray(at(work, T), 12 * max(n, m, k) * max(n, m, k))
    numbers = carray(at(small, np.int32), 16)
    letters = carray(at(small + 64, np.uint8), 16)
    pivots = carray(at(small + 128, np.int32), 8 * max(n, m, k))
    rest = small + 128 + 32 * max(n, m, k)
    p = small
    q = small + 64
{body}
'''

# Bodies work on col-major copies in w; numbers[0..] are int32 arguments by address p + 4*i, letters at q + i.
LOAD = '''    a = carray(at(a_, T), (n, m))
    for j in range(m):
        for i in range(n):
            w[j * n + i] = a[i, j]
    numbers[0] = n
    numbers[1] = m
    numbers[2] = k
    numbers[3] = 0
'''
FACTOR = LOAD + '''    lapack(address, (p, p, work, p, small + 128, p + 12))
    singular = numbers[3] > 0
'''
BODIES = {
    "solve": ("a_, b_, x_", "getrf", "getrs", FACTOR + '''    if singular:
        return 1
    b, x = carray(at(b_, T), (n, k)), carray(at(x_, T), (n, k))
    base = n * n
    for j in range(k):
        for i in range(n):
            w[base + j * n + i] = b[i, j]
    letters[0] = 78
    lapack(second, (q, p, p + 8, work, p, small + 128, work + base * {size}, p, p + 12))
    for j in range(k):
        for i in range(n):
            x[i, j] = w[base + j * n + i]
    return 0
'''),
    "inv": ("a_, x_", "getrf", "getrs", FACTOR + '''    if singular:
        return 1
    x = carray(at(x_, T), (n, n))
    base = n * n
    for j in range(n):
        for i in range(n):
            w[base + j * n + i] = T(1) if i == j else T(0)
    letters[0] = 78
    lapack(second, (q, p, p, work, p, small + 128, work + base * {size}, p, p + 12))
    for j in range(n):
        for i in range(n):
            x[i, j] = w[base + j * n + i]
    return 0
'''),
    "det": ("a_, x_", "getrf", "getrf", FACTOR + '''    total = T(1)
    for i in range(n):
        total *= w[i * n + i]
        if pivots[i] != i + 1:
            total = -total
    carray(at(x_, T), 1)[0] = total
    return 0
'''),
    "slogdet": ("a_, s_, x_", "getrf", "getrf", FACTOR + '''    sign = T(1)
    total = np.{real}(0)
    for i in range(n):
        d = w[i * n + i]
        size = abs(d)
        if size == 0:
            sign = T(0)
            total = -np.inf
            break
        sign *= d / size
        total += np.log(size)
        if pivots[i] != i + 1:
            sign = -sign
    carray(at(s_, T), 1)[0] = sign
    carray(at(x_, np.{real}), 1)[0] = total
    return 0
'''),
    "cholesky": ("a_, x_", "potrf", "potrf", LOAD + '''    letters[0] = 76
    lapack(address, (q, p, work, p, p + 12))
    if numbers[3] != 0:
        return 1
    x = carray(at(x_, T), (n, n))
    for i in range(n):
        for j in range(n):
            x[i, j] = w[j * n + i] if j <= i else T(0)
    return 0
'''),
    "eigh": ("a_, w_, v_", "{sy}evd", "{sy}evd", LOAD + '''    letters[0] = 86
    letters[1] = 76
    numbers[4] = 2 * n * n + 6 * n + 1
    numbers[5] = 2 * n * n + 5 * n + 1
    numbers[6] = 5 * n + 3
    values = carray(at(w_, np.{real}), n)
    base = work + n * n * {size}
    further = base + (2 * n * n + 6 * n + 1) * {size}
    {eigh_call}
    if numbers[3] != 0:
        return 1
    v = carray(at(v_, T), (n, n))
    for i in range(n):
        for j in range(n):
            v[i, j] = w[j * n + i]
    return 0
'''),
    "svd": ("a_, u_, s_, v_", "gesdd", "gesdd", LOAD + '''    c = min(n, m)
    letters[0] = 83
    numbers[4] = c
    numbers[5] = 4 * c * c + 7 * c + 3 * max(n, m)
    base = work + n * m * {size}
    vt = base + n * c * {size}
    room = vt + c * m * {size}
    further = room + numbers[5] * {size}
    {svd_call}
    if numbers[3] != 0:
        return 1
    u, v = carray(at(u_, T), (n, c)), carray(at(v_, T), (c, m))
    left, right = carray(at(base, T), n * c), carray(at(vt, T), c * m)
    for j in range(c):
        for i in range(n):
            u[i, j] = left[j * n + i]
        for i in range(m):
            v[j, i] = right[i * c + j]
    return 0
'''),
    "qr": ("a_, q_, r_", "geqrf", "{or}gqr", LOAD + '''    c = min(n, m)
    tau = work + n * m * {size}
    room = tau + c * {size}
    numbers[4] = 32 * m
    numbers[5] = c
    lapack(address, (p, p + 4, work, p, tau, room, p + 16, p + 12))
    r = carray(at(r_, T), (c, m))
    for i in range(c):
        for j in range(m):
            r[i, j] = w[j * n + i] if j >= i else T(0)
    lapack(second, (p, p + 20, p + 20, work, p, tau, room, p + 16, p + 12))
    o = carray(at(q_, T), (n, c))
    for i in range(n):
        for j in range(c):
            o[i, j] = w[j * n + i]
    return 0
'''),
}
REAL_EIGH = "lapack(address, (q, q + 1, p, work, p, w_, base, p + 16, small + 128, p + 24, p + 12))"
COMPLEX_EIGH = "lapack(address, (q, q + 1, p, work, p, w_, base, p + 16, further, p + 20, small + 128, p + 24, p + 12))"
REAL_SVD = "lapack(address, (q, p, p + 4, work, p, s_, base, p, vt, p + 16, room, p + 20, small + 128, p + 12))"
COMPLEX_SVD = "lapack(address, (q, p, p + 4, work, p, s_, base, p, vt, p + 16, room, p + 20, further, small + 128, p + 12))"
LETTER = {"f4": "s", "f8": "d", "c8": "c", "c16": "z"}
_LOADED = {}


def address(name):
    """Address of a helper such as ``sort_f8`` or ``solve_c16``; compiled on first use."""
    if name not in _LOADED:
        text = _text(name)
        digest = build.kernel_name(text(True), (name, host_features()))
        _LOADED[name] = build.build_text(digest, text).helper
    return _LOADED[name].address


def lapack_addresses(name):
    """Addresses of the one or two LAPACK routines of a helper."""
    routine, _, kind = name.rpartition("_")
    _, first, second, _ = BODIES[routine]
    names = {"sy": "sy" if kind[0] == "f" else "he", "or": "or" if kind[0] == "f" else "un"}
    get = numba.extending.get_cython_function_address
    return [get("scipy.linalg.cython_lapack", LETTER[kind] + text.format(**names)) for text in (first, second)]


def _text(name):
    """Make the maker of a helper's text: a function of whether it may be cached."""
    if name == "zeta":
        return lambda cache: HEAD.format(name=name) + ZETA.format(cache=cache)
    if name.startswith("strip"):
        return functools.partial(_strip_text, name)
    routine, _, kind = name.rpartition("_")
    dtype = "uint8" if kind == "b1" else np.dtype(kind).name

    def text(cache):
        head = HEAD.format(name=name)
        if routine in ("sort", "argsort"):
            body = SORT if routine == "sort" else ARGSORT
            return head + body.format(dtype=dtype, nan_after=NAN.get(kind[0], "False"), cache=cache)
        names, _, _, body = BODIES[routine]
        size = np.dtype(kind).itemsize
        real = f"float{8 * size // (2 if kind[0] == 'c' else 1)}"
        is_complex = kind[0] == "c"
        body = body.format(size=size, real=real, eigh_call=COMPLEX_EIGH if is_complex else REAL_EIGH,
                           svd_call=COMPLEX_SVD if is_complex else REAL_SVD)
        ints = ", ".join(["INT"] * (len(names.split(",")) + 7))
        return head + MATRIX.format(ints=ints, names=names, doc=routine, dtype=dtype, body=body, cache=cache)
    return text


def _strip_text(name, cache):
    """Text of a strip such as ``strip_f4_8_32``: dtype, rows of a tile, columns of a panel."""
    _, kind, rows, width = name.split("_")
    program = program_text(strip_program(kind, int(rows), int(width)))
    lines = "\n".join(f"    {program[k:k + 110]!r}" for k in range(0, len(program), 110))
    return HEAD.format(name=name) + STRIP.format(features=host_features(), text=lines, names=", ".join(STRIP_ARGUMENTS),
                                                 ints=", ".join(["INT"] * len(STRIP_ARGUMENTS)), cache=cache)


def host_features():
    """What the host can do, as far as it changes what is printed."""
    if not _FEATURES:
        found = llvm.get_host_cpu_features()
        _FEATURES.append(tuple(name for name in ("fma", "avx512f") if found.get(name)))
    return _FEATURES[0]


_FEATURES = []
