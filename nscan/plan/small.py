"""Linear algebra of small matrices, written out: products, solve, inverse, determinant, Cholesky.

The matrices are unrolled (both axes), batch axes are loops around. LU factors with partial pivoting, the
pivot row found by comparisons and swapped by selects, so that lanes of a batch run side by side. Source:
Golub and Van Loan, *Matrix Computations*, algorithms 3.4.1 and 4.2.2.
"""

from nscan.ops.index import result_shape
from nscan.plan import scalar


def region_shape(spec, x, operands):
    """Shape of the part of an array that a specification without run-time sizes addresses."""
    return result_shape(spec, x.shape, operands)


def element(e, eqn, idx, k):
    """One element of the result of a small linear algebra row; the whole result is computed once."""
    matrix = {"solve": 2, "inv": 2, "cholesky": 2, "det": 0, "slogdet": 0}[eqn.row.name]
    batch, inner = idx[:len(idx) - matrix], idx[len(idx) - matrix:]
    key = ("block", eqn, e.now.id, *[i.id for i in batch])
    for scope in reversed(e.b.scopes):
        if key in scope.extra:
            return scope.extra[key][k][tuple(i.value for i in inner)]
    block = RULES[eqn.row.name](e, eqn, batch)
    parts = [p for out in block for element_ in out.values() for p in element_]
    e.b.scopes[e.b._level(parts)].extra[key] = block
    return block[k][tuple(i.value for i in inner)]


def _matrix(e, x, batch):
    """Elements of a matrix as nested lists."""
    n, m = x.shape[-2:]
    lead = batch[len(batch) - (len(x.shape) - 2):]
    lead = tuple(e.b.const(0) if type(d) is int and d == 1 else i for d, i in zip(x.shape, lead))
    return [[e.elem(x, (*lead, e.b.const(i), e.b.const(j))) for j in range(m)] for i in range(n)]


def factor(e, a, right):
    """Eliminate below the diagonal, swapping rows; `right` are further columns that take part.

    Returns
    -------
    pivots : list of elements
    swapped : value
        Whether the number of row swaps is odd.
    """
    n = len(a)
    rows = [[*a[i], *right[i]] for i in range(n)]
    odd = e.b.const(False, "b1")
    for k in range(n):
        for i in range(k + 1, n):
            larger = e.b.op("gt", "b1", e.magnitude(rows[i][k]), e.magnitude(rows[k][k]))
            odd = scalar.op(e.b, "xor", odd, larger)
            for j in range(k, len(rows[k])):
                p, q = rows[k][j], rows[i][j]
                rows[k][j], rows[i][j] = e.select(larger, q, p), e.select(larger, p, q)
        inverse = e.reciprocal(rows[k][k])
        for i in range(k + 1, n):
            f = e.multiply(rows[i][k], inverse)
            for j in range(k + 1, len(rows[k])):
                rows[i][j] = e.minus(rows[i][j], e.multiply(f, rows[k][j]))
    for i in range(n):
        a[i], right[i] = rows[i][:n], rows[i][n:]
    return [rows[k][k] for k in range(n)], odd


def _check_pivots(e, eqn, pivots):
    zero = e.b.const(0.0, pivots[0][0].dtype)
    bad = None
    for p in pivots:
        is_zero = e.b.op("eq", "b1", p[0], zero)
        if len(p) > 1:
            is_zero = e.b.op("and", "b1", is_zero, e.b.op("eq", "b1", p[1], zero))
        bad = is_zero if bad is None else e.b.op("or", "b1", bad, is_zero)
    e.fail(bad, "singular", eqn)


def _substitute(e, a, right):
    """Solve with the upper triangle that `factor` left."""
    n, m = len(a), len(right[0])
    out = {}
    for i in reversed(range(n)):
        inverse = e.reciprocal(a[i][i])
        for j in range(m):
            total = right[i][j]
            for k in range(i + 1, n):
                total = e.minus(total, e.multiply(a[i][k], out[k, j]))
            out[i, j] = e.multiply(total, inverse)
    return out


def _solve(e, eqn, batch):
    a, right = _matrix(e, eqn.inputs[0], batch), _matrix(e, eqn.inputs[1], batch)
    pivots, _ = factor(e, a, right)
    _check_pivots(e, eqn, pivots)
    return [_substitute(e, a, right)]


def _inv(e, eqn, batch):
    a = _matrix(e, eqn.inputs[0], batch)
    dtype = eqn.inputs[0].dtype
    right = [[e.constant(int(i == j), dtype) for j in range(len(a))] for i in range(len(a))]
    pivots, _ = factor(e, a, right)
    _check_pivots(e, eqn, pivots)
    return [_substitute(e, a, right)]


def _pivots(e, eqn, batch):
    a = _matrix(e, eqn.inputs[0], batch)
    return factor(e, a, [[] for _ in a])


def _det(e, eqn, batch):
    pivots, odd = _pivots(e, eqn, batch)
    total = pivots[0]
    # A zero pivot makes what follows NaN, but the product up to it is 0 already.
    zero = e.constant(0, eqn.inputs[0].dtype)
    for p in pivots[1:]:
        is_zero = e.b.op("eq", "b1", e.magnitude(total), e.b.const(0.0, total[0].dtype))
        total = e.select(is_zero, zero, e.multiply(total, p))
    return [{(): e.select(odd, e.minus(zero, total), total)}]


def _slogdet(e, eqn, batch):
    """Sign and logarithm; of a singular matrix 0 and -inf."""
    b = e.b
    pivots, odd = _pivots(e, eqn, batch)
    dtype = eqn.inputs[0].dtype
    real = pivots[0][0].dtype
    sign = e.select(odd, e.constant(-1, dtype), e.constant(1, dtype))
    total, singular = b.const(0.0, real), b.const(False, "b1")
    for p in pivots:
        size = e.magnitude(p)
        is_zero = b.op("eq", "b1", size, b.const(0.0, real))
        singular = b.op("or", "b1", singular, is_zero)
        safe = scalar.op(b, "select", is_zero, b.const(1.0, real), size)
        total = scalar.op(b, "add", total, b.op("log", real, safe))
        sign = e.multiply(sign, tuple(scalar.op(b, "div", part, safe) for part in p))
    logdet = scalar.op(b, "select", singular, b.const(float("-inf"), real), total)
    return [{(): e.select(singular, e.constant(0, dtype), sign)}, {(): (logdet,)}]


def _cholesky(e, eqn, batch):
    """Lower factor; a pivot that is not positive is a failure."""
    b = e.b
    a = _matrix(e, eqn.inputs[0], batch)
    n = len(a)
    conj = lambda p: p if len(p) == 1 else (p[0], scalar.op(b, "neg", p[1]))  # noqa: E731
    out = {(i, j): e.constant(0, eqn.inputs[0].dtype) for i in range(n) for j in range(n)}
    for j in range(n):
        total = (a[j][j][0],)
        for k in range(j):
            square = e.multiply(out[j, k], conj(out[j, k]))
            total = (scalar.op(b, "sub", total[0], square[0]),)
        bad = b.op("not", "b1", b.op("gt", "b1", total[0], b.const(0.0, total[0].dtype)))
        e.fail(bad, "definite", eqn)
        root = b.op("sqrt", total[0].dtype, total[0])
        pad = (b.const(0.0, root.dtype),) * (len(a[0][0]) - 1)
        out[j, j] = (root, *pad)
        inverse = scalar.op(b, "div", b.const(1.0, root.dtype), root)
        for i in range(j + 1, n):
            t = a[i][j]
            for k in range(j):
                t = e.minus(t, e.multiply(out[i, k], conj(out[j, k])))
            out[i, j] = tuple(scalar.op(b, "mul", p, inverse) for p in t)
    return [out]


RULES = {"solve": _solve, "inv": _inv, "det": _det, "slogdet": _slogdet, "cholesky": _cholesky}
