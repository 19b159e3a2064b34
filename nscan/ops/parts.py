"""Rows that act on each element and are no ufunc of one formula: absolute value and sign, complex parts, casts, choice."""

import numpy as np

from nscan.array import TABLE_WRITE, astype, view
from nscan.primitive import TABLE, bind, broadcast, composite, custom, dtype_of, unbroadcast, zeros_like

F64 = np.dtype("f8")


# --------------------------------------------------------------- absolute value, sign and complex parts
def _abs_dtype(d):
    return np.dtype(f"f{d.itemsize // 2}") if d.kind == "c" else d


def _abs_jvp(tangents, at):
    if at.dtype(0).kind == "c":
        return (np.real(bind(TABLE["safe_mul"], (tangents[0], np.conj(_direction(at.x(0)))))),)
    return (bind(TABLE["safe_mul"], (tangents[0], np.sign(at.x(0)))),)


def _abs_vjp(cotangents, at):
    if at.dtype(0).kind == "c":
        return [bind(TABLE["safe_mul"], (astype(cotangents[0], at.dtype(0)), _direction(at.x(0))))]
    return [bind(TABLE["safe_mul"], (cotangents[0], np.sign(at.x(0))))]


def _direction(z):
    """Return z/|z|, and 0 at 0."""
    size = np.abs(z)
    one = bind(TABLE["select"], (size == 0, np.asarray(1, size.dtype), size))
    return z / astype(one, dtype_of(z))


custom(
    "absolute",
    np.absolute,
    kind="pointwise",
    function=np.absolute,
    eager=np.absolute,
    jvp=_abs_jvp,
    vjp=_abs_vjp,
    partials=("sign(a)",),
    infer=lambda a: ((a.shape, _abs_dtype(a.dtype)),),
    spelling={"f": "abs(a)", "i": "select(a < 0, -a, a)", "u": "a", "b": "a", "c": ("hypot(ar, ai)",)},
)


def _sign_jvp(tangents, at):
    if at.dtype(0).kind != "c":
        return (None,)
    z, y = at.x(0), at.y()
    t = bind(TABLE["safe_mul"], (tangents[0], 1 / astype(np.abs(z), dtype_of(z))))
    return (t - y * astype(np.real(np.conj(y) * t), dtype_of(z)),)


def _sign_vjp(cotangents, at):
    if at.dtype(0).kind != "c":
        return [None]
    z, y, ct = at.x(0), at.y(), cotangents[0]
    inner = ct - y * astype(np.real(np.conj(y) * ct), dtype_of(z))
    return [bind(TABLE["safe_mul"], (inner, 1 / astype(np.abs(z), dtype_of(z))))]


custom("sign", np.sign, kind="pointwise", function=np.sign, eager=np.sign, jvp=_sign_jvp, vjp=_sign_vjp, partials=(None,),
       infer=lambda a: ((a.shape, a.dtype),),
       spelling={"f": "select(a > 0, 1, select(a < 0, -1, select(a == 0, 0, a)))", "i": "select(a > 0, 1, select(a < 0, -1, 0))",
                 "u": "select(a > 0, 1, 0)",
                 "c": ("select((ar == 0) & (ai == 0), 0, ar/hypot(ar, ai))",
                       "select((ar == 0) & (ai == 0), 0, ai/hypot(ar, ai))")})
custom("conjugate", np.conjugate, kind="pointwise", function=np.conjugate, eager=np.conjugate, partials=("1",),
       jvp=lambda tangents, at: (np.conj(tangents[0]),), vjp=lambda cotangents, at: [np.conj(cotangents[0])],
       infer=lambda a: ((a.shape, a.dtype),), spelling={"*": "a", "c": ("ar", "-ai")})
custom("real", kind="pointwise", eager=np.real, partials=("1",), infer=lambda a: ((a.shape, _abs_dtype(a.dtype)),),
       jvp=lambda tangents, at: (np.real(tangents[0]),),
       vjp=lambda cotangents, at: [astype(cotangents[0], at.dtype(0))], spelling={"*": "a", "c": ("ar",)})
custom("imag", kind="pointwise", eager=lambda a: np.imag(a).copy(), partials=("1",),
       infer=lambda a: ((a.shape, _abs_dtype(a.dtype)),), jvp=lambda tangents, at: (np.imag(tangents[0]),),
       vjp=lambda cotangents, at: [_complex(np.zeros_like(cotangents[0]), cotangents[0])], spelling={"c": ("ai",)})


def _complex(x, y):
    """Complex number of two real parts (``x + 1j*y`` would make NaN of infinities)."""
    return bind(TABLE["complex"], (x, y))


def _complex_eager(x, y):
    out = np.empty(np.broadcast_shapes(np.shape(x), np.shape(y)), f"c{2 * x.dtype.itemsize}")
    out.real, out.imag = x, y
    return out[()]


custom("complex", kind="pointwise", eager=_complex_eager, partials=("1", "1j"),
       infer=lambda a, b: ((broadcast(a.shape, b.shape), np.dtype(f"c{2 * a.dtype.itemsize}")),),
       jvp=lambda tangents, at: (_complex(*[zeros_like(at, i) if t is None else t for i, t in enumerate(tangents)]),),
       vjp=lambda cotangents, at: [unbroadcast(np.real(cotangents[0]), at.shape(0)) if at.needs[0] else None,
                                   unbroadcast(np.imag(cotangents[0]), at.shape(1)) if at.needs[1] else None],
       spelling={"f": ("a", "b")})
TABLE_WRITE["real"] = lambda base, content, operands, params: _complex(content, bind(TABLE["imag"], (base,)))
TABLE_WRITE["imag"] = lambda base, content, operands, params: _complex(bind(TABLE["real"], (base,)), content)


@composite(np.real)
def real(val):
    """Real part, a view; a real array is its own."""
    return view("real", val, (), {}) if val.dtype.kind == "c" else val


@composite(np.imag)
def imag(val):
    """Imaginary part, a view; zeros for a real array."""
    return view("imag", val, (), {}) if val.dtype.kind == "c" else np.zeros_like(val)


@composite(np.fabs)
def fabs(x):
    """Absolute value as a float."""
    return np.abs(astype(x, F64) if x.dtype.kind in "iub" else x)


@composite(np.angle)
def angle(z, deg=False):
    """Angle of complex numbers."""
    out = np.arctan2(np.imag(z), np.real(z))
    return np.degrees(out) if deg else out


# ------------------------------------------------------------------------------------- cast and selection
def _cast_linear(ct, dtype):
    """Transpose of a cast: the real part where the input is real, nothing where it is no float."""
    if dtype.kind not in "fc":
        return None
    if ct.dtype.kind == "c" and dtype.kind == "f":
        ct = np.real(ct)
    return astype(ct, dtype)


def _cast_eager(a, dtype):
    return np.real(a).astype(dtype) if np.asarray(a).dtype.kind == "c" and dtype.kind != "c" else np.asarray(a).astype(dtype)[()]


def _cast_jvp(tangents, at, dtype):
    return (_cast_linear(tangents[0], dtype),)


def _cast_vjp(cotangents, at, dtype):
    return [_cast_linear(cotangents[0], at.dtype(0))]


custom("cast", kind="pointwise", eager=_cast_eager, infer=lambda a, dtype: ((a.shape, dtype),), jvp=_cast_jvp,
       vjp=_cast_vjp, partials=("1",), spelling={"*": "cast"})
custom("copy", kind="pointwise", eager=lambda a: np.array(a)[()], infer=lambda a: ((a.shape, a.dtype),), partials=("1",),
       jvp=lambda tangents, at: (tangents[0],), vjp=lambda cotangents, at: [cotangents[0]],
       spelling={"*": "a", "c": ("ar", "ai")})


def _select_infer(c, x, y):
    return ((broadcast(c.shape, x.shape, y.shape), x.dtype),)


def _select_jvp(tangents, at):
    _, tx, ty = tangents
    tx = zeros_like(at, 1) if tx is None else tx
    ty = zeros_like(at, 2) if ty is None else ty
    return (bind(TABLE["select"], (at.x(0), tx, ty)),)


def _select_vjp(cotangents, at):
    ct, c = cotangents[0], at.x(0)
    zero = np.asarray(0, ct.dtype)[()]
    return [None,
            unbroadcast(bind(TABLE["select"], (c, ct, zero)), at.shape(1)) if at.needs[1] else None,
            unbroadcast(bind(TABLE["select"], (c, zero, ct)), at.shape(2)) if at.needs[2] else None]


custom("select", kind="pointwise", eager=lambda c, x, y: np.where(c, x, y)[()], infer=_select_infer, jvp=_select_jvp,
       vjp=_select_vjp, partials=(None, "1", "1"),
       spelling={"*": "select(a, b, c)", "c": ("select(a, br, cr)", "select(a, bi, ci)")})


def _formula_select(c, x, y):
    """Choose in formulas: Python numbers take the dtype of the other branch."""
    like = next((v for v in (x, y) if hasattr(v, "dtype") and v.dtype.kind in "fc"), None)
    dtype = F64 if like is None else like.dtype
    x, y = (v if hasattr(v, "dtype") else np.asarray(v, dtype)[()] for v in (x, y))
    if not hasattr(c, "dtype"):
        c = np.asarray(c)
    return bind(TABLE["select"], (c, x, y))


def install_formulas(formulas):
    """Enter the names of formulas that are no NumPy functions."""
    formulas["select"] = _formula_select
