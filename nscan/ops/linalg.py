"""Linear algebra: rows of `numpy.linalg`, batched over leading axes.

Derivatives (Giles 2008, *Collected matrix derivative results*; Murray 2016 for Cholesky; Magnus 1985 for
eigenvalues): of X = A^-1 B: dX = A^-1 (dB - dA X), dB = A^-H ct, dA = -dB X^H.
"""

import numpy as np

from nscan import errors
from nscan.array import as_array, astype
from nscan.primitive import TABLE, bind, broadcast, composite, custom, dtype_of, same_shape, shape_text, unbroadcast, zeros_like


def _H(x):
    """Conjugate transpose."""
    x = np.swapaxes(x, -1, -2)
    return np.conj(x) if x.dtype.kind == "c" else x


def _check_square(a):
    if len(a.shape) < 2 or not same_shape(a.shape[-1:], a.shape[-2:-1]):
        raise errors.SizeError(f"last 2 dimensions of the array must be square, got shape {shape_text(a.shape)}")
    return a


def _float(a):
    a = as_array(a)
    return a if a.dtype.kind in "fc" else astype(a, np.float64)


def _guard(function):
    """Raise our error where NumPy raises LinAlgError."""
    def run(*arrays, **params):
        try:
            return function(*arrays, **params)
        except np.linalg.LinAlgError as error:
            raise errors.SingularError(str(error)) from None
    return run


# --------------------------------------------------------------------------------------------------- solve
def _solve_infer(a, b):
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    return (((*batch, *b.shape[-2:]), b.dtype),)


def _solve(a, b):
    return bind(TABLE["solve"], (a, b))


def _solve_jvp(tangents, at):
    a, y = at.x(0), at.y()
    ta, tb = tangents
    right = tb if ta is None else -(ta @ y) if tb is None else tb - ta @ y
    return (_solve(a, right),)


def _solve_vjp(cts, at):
    back = _solve(_H(at.x(0)), cts[0])
    da = unbroadcast(-(back @ _H(at.y())), at.shape(0)) if at.needs[0] else None
    return [da, unbroadcast(back, at.shape(1)) if at.needs[1] else None]


custom("solve", infer=_solve_infer, eager=_guard(np.linalg.solve), jvp=_solve_jvp, vjp=_solve_vjp, kind="linalg")


@composite(np.linalg.solve)
def solve(a, b):
    """Solve a linear system."""
    a, b = _check_square(_float(a)), _float(b)
    dtype = np.result_type(a.dtype, b.dtype)
    a, b = astype(a, dtype), astype(b, dtype)
    vector = len(b.shape) == 1
    b = b[:, None] if vector else b
    if not same_shape(a.shape[-1:], b.shape[-2:-1]):
        raise errors.SizeError(f"solve: shapes {shape_text(a.shape)} and {shape_text(b.shape)} do not fit")
    x = _solve(a, b)
    return x[..., 0] if vector else x


# ----------------------------------------------------------------------------------------------------- inv
def _inv_jvp(tangents, at):
    y = at.y()
    return (-(y @ tangents[0] @ y),)


def _inv_vjp(cts, at):
    y = _H(at.y())
    return [-(y @ cts[0] @ y)]


custom("inv", infer=lambda a: ((a.shape, a.dtype),), eager=_guard(np.linalg.inv), jvp=_inv_jvp, vjp=_inv_vjp, kind="linalg")


@composite(np.linalg.inv)
def inv(a):
    """Invert a matrix."""
    return bind(TABLE["inv"], (_check_square(_float(a)),))


# --------------------------------------------------------------------------------------- determinants
# d det = tr(adj(A) dA): the adjugate is exact for singular matrices too.
def _det_jvp(tangents, at):
    return (np.sum(_adjugate(at) * np.swapaxes(tangents[0], -1, -2), axis=(-2, -1)),)


def _det_vjp(cts, at):
    slope = np.swapaxes(_adjugate(at), -1, -2)
    slope = np.conj(slope) if slope.dtype.kind == "c" else slope
    return [cts[0][..., None, None] * slope]


def _adjugate(at):
    """Adjugate by cofactors for small matrices, by the inverse for larger ones."""
    a = at.x(0)
    n = a.shape[-1]
    if n == 1:
        return np.ones_like(a)
    if n == 2:
        return np.stack([np.stack([a[..., 1, 1], -a[..., 0, 1]], -1), np.stack([-a[..., 1, 0], a[..., 0, 0]], -1)], -2)
    if n <= 4:
        rows = [[_cofactor(a, i, j) for i in range(n)] for j in range(n)]
        return np.stack([np.stack(r, -1) for r in rows], -2)
    return at.y()[..., None, None] * np.linalg.inv(a)


def _cofactor(a, i, j):
    n = a.shape[-1]
    rows, columns = [k for k in range(n) if k != i], [k for k in range(n) if k != j]
    minor = np.stack([np.stack([a[..., r, c] for c in columns], -1) for r in rows], -2)
    return np.linalg.det(minor) * (-1.0) ** (i + j)


custom("det", infer=lambda a: ((a.shape[:-2], a.dtype),), eager=np.linalg.det, jvp=_det_jvp, vjp=_det_vjp, kind="linalg")


@composite(np.linalg.det)
def det(a):
    """Compute determinants."""
    return bind(TABLE["det"], (_check_square(_float(a)),))


def _real_dtype(dtype):
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _slogdet_infer(a):
    return (a.shape[:-2], a.dtype), (a.shape[:-2], _real_dtype(a.dtype))


def _slogdet_jvp(tangents, at):
    slope = np.sum(np.linalg.inv(at.x(0)) * np.swapaxes(tangents[0], -1, -2), axis=(-2, -1))
    if at.dtype(0).kind != "c":
        return None, slope
    return at.y(0) * astype(np.imag(slope), at.dtype(0)) * np.asarray(1j, at.dtype(0))[()], np.real(slope)


def _slogdet_vjp(cts, at):
    ct = cts[1]
    if ct is None and (at.dtype(0).kind != "c" or cts[0] is None):
        return [None]
    if at.dtype(0).kind != "c":
        return [ct[..., None, None] * np.swapaxes(np.linalg.inv(at.x(0)), -1, -2)]
    weight = 0 if ct is None else astype(ct, at.dtype(0))
    if cts[0] is not None:
        weight = weight + astype(np.imag(np.conj(at.y(0)) * cts[0]), at.dtype(0)) * np.asarray(1j, at.dtype(0))[()]
    return [weight[..., None, None] * _H(np.linalg.inv(at.x(0)))]


custom("slogdet", infer=_slogdet_infer, eager=lambda a: tuple(np.linalg.slogdet(a)), jvp=_slogdet_jvp, vjp=_slogdet_vjp,
       outputs=2, kind="linalg")


@composite(np.linalg.slogdet)
def slogdet(a):
    """Sign and logarithm of the determinant."""
    sign, logdet = bind(TABLE["slogdet"], (_check_square(_float(a)),))
    return SlogdetResult(sign, logdet)


SlogdetResult = type(np.linalg.slogdet(np.eye(1)))


# ------------------------------------------------------------------------------------------------ cholesky
def _half_lower(x):
    """Lower triangle with half the diagonal."""
    n = x.shape[-1]
    mask = np.tril(np.ones((n, n), _real_dtype(dtype_of(x)))) - 0.5 * np.eye(n, dtype=_real_dtype(dtype_of(x)))
    return x * mask


# NumPy reads the lower triangle of a Hermitian matrix only, and the real parts of its diagonal: so do derivatives.
def _from_lower(x):
    """Hermitian matrix of a lower triangle."""
    strict = np.tril(x, -1)
    return strict + _H(strict) + _real_diagonal(x)


def _to_lower(x):
    """Transpose of `_from_lower`."""
    return np.tril(x + _H(x), -1) + _real_diagonal(x)


def _real_diagonal(x):
    return _diagonal_part(astype(np.real(x), x.dtype) if x.dtype.kind == "c" else x)


def _cholesky_jvp(tangents, at):
    y, t = at.y(), _from_lower(tangents[0])
    inner = _solve(y, _H(_solve(y, _H(t))))
    return (y @ _half_lower(inner),)


def _cholesky_vjp(cts, at):
    y = at.y()
    inner = _half_lower(_H(y) @ cts[0])
    return [_to_lower(_H(_solve(_H(y), _H(_solve(_H(y), inner)))))]


custom("cholesky", infer=lambda a: ((a.shape, a.dtype),), eager=_guard(np.linalg.cholesky), jvp=_cholesky_jvp,
       vjp=_cholesky_vjp, kind="linalg")


@composite(np.linalg.cholesky)
def cholesky(a, /, *, upper=False):
    """Cholesky factor; only one triangle of the matrix is read."""
    a = _check_square(_float(a))
    y = bind(TABLE["cholesky"], (_H(a) if upper else a,))
    return _H(y) if upper else y


# ------------------------------------------------------------------------------------------- eigenvalues
def _eigh_infer(a):
    return (a.shape[:-1], _real_dtype(a.dtype)), (a.shape, a.dtype)


def _gaps(w):
    """1/(w_j - w_i) off the diagonal, 0 on it and between equal eigenvalues."""
    d = w[..., None, :] - w[..., :, None]
    return bind(TABLE["ratio"], (np.ones_like(d), d))


def _eigh_jvp(tangents, at):
    w, v = at.y(0), at.y(1)
    inner = _H(v) @ _from_lower(tangents[0]) @ v
    dw = np.real(np.diagonal(inner, 0, -2, -1))
    return dw, v @ (inner * astype(_gaps(w), dtype_of(inner)))


def _eigh_vjp(cts, at):
    w, v = at.y(0), at.y(1)
    cw, cv = cts
    inner = None
    if cw is not None:
        inner = np.eye(v.shape[-1], dtype=at.dtype(0)) * astype(cw, at.dtype(0))[..., None, :]
    if cv is not None:
        part = (_H(v) @ cv) * astype(_gaps(w), at.dtype(0))
        inner = part if inner is None else inner + part
    return [_to_lower(v @ inner @ _H(v))]


custom("eigh", infer=_eigh_infer, eager=_guard(lambda a: tuple(np.linalg.eigh(a))), jvp=_eigh_jvp, vjp=_eigh_vjp, outputs=2,
       kind="linalg")
EighResult = type(np.linalg.eigh(np.eye(1)))


@composite(np.linalg.eigh)
def eigh(a, UPLO="L"):
    """Eigenvalues and eigenvectors of a symmetric (Hermitian) matrix."""
    a = _check_square(_float(a))
    return EighResult(*bind(TABLE["eigh"], (_H(a) if UPLO == "U" else a,)))


@composite(np.linalg.eigvalsh)
def eigvalsh(a, UPLO="L"):
    """Eigenvalues of a symmetric (Hermitian) matrix."""
    return np.linalg.eigh(a, UPLO)[0]


# ------------------------------------------------------------------------------- singular values, QR, norms
def _svd_infer(a):
    m, n = a.shape[-2:]
    k = min(m, n)
    batch = a.shape[:-2]
    return ((*batch, m, k), a.dtype), ((*batch, k), _real_dtype(a.dtype)), ((*batch, k, n), a.dtype)


def _svd_jvp(tangents, at):
    """Tangents of a thin decomposition (Townsend 2016; complex phases: Wan and Zhang 2019)."""
    u, s, vh = at.y(0), at.y(1), at.y(2)
    t, dtype = tangents[0], at.dtype(0)
    inner = _H(u) @ t @ _H(vh)
    ds = np.real(np.diagonal(inner, 0, -2, -1))
    gaps = astype(_gaps(s * s), dtype)
    columns, rows = inner * astype(s, dtype)[..., None, :], inner * astype(s, dtype)[..., :, None]
    du, dv = u @ (gaps * (columns + _H(columns))), _H(vh) @ (gaps * (rows + _H(rows)))
    one_over = astype(1 / s, dtype)[..., None, :]
    if dtype.kind == "c":
        du = du + u * (np.diagonal(inner - _H(inner), 0, -2, -1)[..., None, :] * one_over / 2)
    if at.shape(0)[-2] > at.shape(0)[-1]:
        part = t @ _H(vh)
        du = du + (part - u @ (_H(u) @ part)) * one_over
    if at.shape(0)[-2] < at.shape(0)[-1]:
        part = _H(t) @ u
        dv = dv + (part - _H(vh) @ (vh @ part)) * one_over
    return du, ds, _H(dv)


def _svd_vjp(cts, at):
    cu, cs, cv = cts
    if cu is None and cv is None:
        return [(at.y(0) * astype(cs, at.dtype(0))[..., None, :]) @ at.y(2)]
    return [_transposed(_svd_jvp, cts, at)]


def _transposed(jvp, cts, at):
    """Cotangent of a matrix through the transpose of its jvp, found by reverse mode at a zero tangent."""
    from nscan.grad.higher import vjp
    outs, pull = vjp(lambda t: jvp((t,), at), zeros_like(at, 0))
    return pull(tuple(np.zeros_like(x) if ct is None else ct for ct, x in zip(cts, outs)))[0]


custom("svd", infer=_svd_infer, eager=_guard(lambda a: tuple(np.linalg.svd(a, full_matrices=False))), jvp=_svd_jvp,
       vjp=_svd_vjp, outputs=3, kind="linalg")
SVDResult = type(np.linalg.svd(np.eye(1)))


@composite(np.linalg.svdvals)
def svdvals(x, /):
    """Singular values."""
    return bind(TABLE["svd"], (_float(x),))[1]


@composite(np.linalg.svd)
def svd(a, full_matrices=True, compute_uv=True, hermitian=False):
    """Singular values (with vectors only if full_matrices is False)."""
    out = bind(TABLE["svd"], (_float(a),))
    if not compute_uv:
        return out[1]
    if full_matrices and a.shape[-1] != a.shape[-2]:
        raise errors.UnsupportedError("np.linalg.svd on traced arrays needs full_matrices=False or compute_uv=False")
    return SVDResult(*out)


def _qr_infer(a):
    m, n = a.shape[-2:]
    k = min(m, n)
    return ((*a.shape[:-2], m, k), a.dtype), ((*a.shape[:-2], k, n), a.dtype)


def _qr_jvp(tangents, at):
    """Differentiate Q and R (tall or square, full rank): Townsend 2018. The diagonal of R is real."""
    q, r = at.y(0), at.y(1)
    ta = _right_solve(tangents[0], r)
    inner = _H(q) @ ta
    lower = np.tril(inner, -1)
    skew = lower - _H(lower)
    if at.dtype(0).kind == "c":
        skew = skew + _diagonal_part(inner) - _real_diagonal(inner)
    return q @ (skew - inner) + ta, (inner - skew) @ r


def _right_solve(x, r):
    return _H(_solve(_H(r), _H(x)))


def _qr_vjp(cts, at):
    if at.dtype(0).kind == "c":
        return [_transposed(_qr_jvp, cts, at)]
    q, r = at.y(0), at.y(1)
    cq, cr = cts
    m = np.zeros_like(r) if cr is None else r @ _H(cr)
    m = m if cq is None else m - _H(cq) @ q
    lower = np.tril(m, -1)
    symmetric = lower + _H(lower) + _diagonal_part(m)
    right = q @ symmetric if cq is None else cq + q @ symmetric
    return [_H(_solve(r, _H(right)))]


def _diagonal_part(m):
    return m * np.eye(m.shape[-1], dtype=_real_dtype(dtype_of(m)))


custom("qr", infer=_qr_infer, eager=lambda a: tuple(np.linalg.qr(a)), jvp=_qr_jvp, vjp=_qr_vjp, outputs=2, kind="linalg")


@composite(np.linalg.qr)
def qr(a, mode="reduced"):
    """QR factors; those of a wide matrix follow from its first square part."""
    if mode != "reduced":
        raise errors.UnsupportedError(f"np.linalg.qr(mode={mode!r}) is not supported on traced arrays; use mode='reduced'")
    a = _float(a)
    rows, columns = a.shape[-2:]
    if rows >= columns:
        return QRResult(*bind(TABLE["qr"], (a,)))
    q, r = bind(TABLE["qr"], (a[..., :rows],))
    return QRResult(q, np.concatenate([r, _H(q) @ a[..., rows:]], axis=-1))


QRResult = type(np.linalg.qr(np.eye(1)))


@composite(np.linalg.pinv)
def pinv(a, rcond=None, hermitian=False, *, rtol=None):
    """Pseudo-inverse of a matrix of full rank."""
    a = _float(a)
    if a.shape[-2] >= a.shape[-1]:
        return np.linalg.solve(_H(a) @ a, _H(a))
    return _H(np.linalg.solve(a @ _H(a), a))


@composite(np.linalg.lstsq)
def lstsq(a, b, rcond=None):
    """Refuse: the rank decides the form of the result."""
    raise errors.UnsupportedError("numpy.linalg.lstsq is not supported on traced arrays: its rank decision has no derivative; "
                                  "use np.linalg.solve(A.T @ A, A.T @ b), or np.linalg.qr and np.linalg.solve")


composite(np.linalg.matrix_transpose)(lambda x, /: np.swapaxes(x, -1, -2))
composite(np.linalg.diagonal)(lambda x, /, *, offset=0: np.diagonal(x, offset, -2, -1))
composite(np.linalg.trace)(lambda x, /, *, offset=0, dtype=None: np.trace(x, offset, -2, -1))
composite(np.linalg.matmul)(lambda x1, x2, /: np.matmul(x1, x2))
composite(np.linalg.vecdot)(lambda x1, x2, /, *, axis=-1: np.vecdot(x1, x2, axis=axis))
