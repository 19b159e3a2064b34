"""Products of two arrays summed over shared axes: one row, `contract`, for matmul, dot, einsum and kin.

Axes carry labels (small integers). A label of both operands that is not in the output is summed; one that
is, is a batch axis; a label of one operand must be in the output. ``A @ B`` is labels (0, 1), (1, 2), out
(0, 2). The vjp of a contraction is a contraction again: dA = contract(ct, B) and dB = contract(A, ct).
"""

import numpy as np

from nscan import buffers, errors
from nscan.array import FRONT_OPERATORS, as_array, astype
from nscan.ops.reduction import axes_of
from nscan.primitive import TABLE, bind, broadcast, composite, custom, dtype_of, same_shape, shape_text


def _sizes(a, b, la, lb):
    sizes = dict(zip(la, a.shape))
    for label, d in zip(lb, b.shape):
        e = sizes.setdefault(label, d)
        if d is not e and type(d) is int and type(e) is int and d != e:
            raise errors.SizeError(f"shapes {shape_text(a.shape)} and {shape_text(b.shape)} do not fit: {e} and {d} elements "
                                   "to be summed or paired")
    return sizes


def _infer(a, b, la, lb, lo):
    sizes = _sizes(a, b, la, lb)
    return ((tuple(sizes[k] for k in lo), a.dtype),)


def _eager(a, b, la, lb, lo):
    _sizes(a, b, la, lb)
    batch = [k for k in lo if k in la and k in lb]
    rows = [k for k in la if k not in lb]
    columns = [k for k in lb if k not in la]
    summed = [k for k in la if k in lb and k not in lo]
    left = np.transpose(a, [la.index(k) for k in (*batch, *rows, *summed)])
    right = np.transpose(b, [lb.index(k) for k in (*batch, *summed, *columns)])
    nb = len(batch)
    head = left.shape[:nb]
    m, k = _size(left.shape[nb:nb + len(rows)]), _size(left.shape[nb + len(rows):])
    n = _size(right.shape[nb + len(summed):])
    out = buffers.empty((*head, m, n), a.dtype)
    np.matmul(left.reshape((*head, m, k)), right.reshape((*head, k, n)), out=out)
    out = out.reshape((*head, *left.shape[nb:nb + len(rows)], *right.shape[nb + len(summed):]))
    have = [*batch, *rows, *columns]
    return np.transpose(out, [have.index(k) for k in lo])[()]


def _size(shape):
    total = 1
    for d in shape:
        total *= d
    return total


def contract(a, b, la, lb, lo):
    """Bind the row for operands of one dtype."""
    return bind(TABLE["contract"], (a, b), {"la": tuple(la), "lb": tuple(lb), "lo": tuple(lo)})


def _jvp(tangents, at, la, lb, lo):
    ta, tb = tangents
    terms = []
    if ta is not None:
        terms.append(contract(ta, at.x(1), la, lb, lo))
    if tb is not None:
        terms.append(contract(at.x(0), tb, la, lb, lo))
    return (terms[0] if len(terms) == 1 else terms[0] + terms[1],)


def _vjp(cts, at, la, lb, lo):
    ct = cts[0]
    return [contract(ct, np.conj(at.x(1)) if dtype_of(ct).kind == "c" else at.x(1), lo, lb, la) if at.needs[0] else None,
            contract(np.conj(at.x(0)) if dtype_of(ct).kind == "c" else at.x(0), ct, la, lo, lb) if at.needs[1] else None]


custom("contract", infer=_infer, eager=_eager, jvp=_jvp, vjp=_vjp)


def product(a, b, la, lb, lo):
    """Contract operands of any dtypes; sums over labels of one operand first, drops axes of size 1."""
    a, b = as_array(a), as_array(b)
    dtype = np.result_type(a.dtype, b.dtype)
    a, la = _prepare(astype(a, dtype), list(la), lb, lo)
    b, lb = _prepare(astype(b, dtype), list(lb), la, lo)
    a, la, b, lb = _squeeze_ones(a, la, b, lb, lo)
    b, lb, a, la = _squeeze_ones(b, lb, a, la, lo)
    have = [k for k in lo if k in la or k in lb]
    sizes = _sizes(a, b, la, lb)
    if not any(k in la and k in lb and k not in lo for k in la):
        out = _outer(a, b, la, lb, have)
    else:
        out = contract(a, b, la, lb, have)
    if have != list(lo):
        out = np.reshape(out, tuple(sizes.get(k, 1) for k in lo))
    return out


def _prepare(x, labels, other, lo):
    """Take diagonals of repeated labels and sum over labels that nobody else has."""
    for label in set(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            x = np.diagonal(x, 0, i, j)
            labels = [k for n, k in enumerate(labels) if n not in (i, j)] + [label]
    alone = tuple(n for n, k in enumerate(labels) if k not in other and k not in lo)
    if alone:
        x = np.sum(x, axis=alone, dtype=x.dtype)
        labels = [k for n, k in enumerate(labels) if n not in alone]
    return x, labels


def _squeeze_ones(x, labels, y, others, lo):
    """Drop axes of size 1 of x that are broadcast against y."""
    size = dict(zip(others, y.shape))
    ones = [n for n, k in enumerate(labels) if type(x.shape[n]) is int and x.shape[n] == 1 and k in size and not (
        type(size[k]) is int and size[k] == 1 and k in lo and n < 0)]
    ones = [n for n in ones if not (type(size[labels[n]]) is int and size[labels[n]] == 1)]
    if ones:
        gone = [labels[n] for n in ones if labels[n] not in lo]
        x = np.reshape(x, tuple(d for n, d in enumerate(x.shape) if n not in ones))
        labels = [k for n, k in enumerate(labels) if n not in ones]
        if gone:
            axes = tuple(n for n, k in enumerate(others) if k in gone)
            y = np.sum(y, axis=axes, dtype=y.dtype)
            others = [k for k in others if k not in gone]
    return x, labels, y, others


def _outer(a, b, la, lb, lo):
    """Product without a sum: an elementwise product of expanded operands."""
    def expanded(x, labels):
        order = sorted(range(len(labels)), key=lambda n: lo.index(labels[n]))
        x = x if order == list(range(len(labels))) else np.transpose(x, tuple(order))
        sizes = dict(zip([labels[n] for n in order], x.shape))
        shape = tuple(sizes.get(k, 1) for k in lo)
        return x if same_shape(shape, x.shape) else np.reshape(x, shape)
    return np.multiply(expanded(a, la), expanded(b, lb))


def _differ(d, e):
    return type(d) is int and type(e) is int and d != e


def _dims_error(a, b, name):
    raise errors.SizeError(f"{name}: shapes {shape_text(a.shape)} and {shape_text(b.shape)} do not fit")


@composite(np.matmul)
def matmul(x1, x2):
    """Matrix product, batched over leading axes."""
    a, b = as_array(x1), as_array(x2)
    if not a.shape or not b.shape:
        raise ValueError("matmul: Input operand does not have enough dimensions")
    na, nb = len(a.shape), len(b.shape)
    rows, inner, columns = 1000, 1001, 1002
    la = ([rows] if na > 1 else []) + [inner]
    lb = [inner] + ([columns] if nb > 1 else [])
    if _differ(a.shape[-1], b.shape[-min(nb, 2)]):
        _dims_error(a, b, "matmul")
    batch_a, batch_b = a.shape[:-2] if na > 1 else (), b.shape[:-2] if nb > 1 else ()
    depth = max(len(batch_a), len(batch_b))
    broadcast(batch_a, batch_b)
    la = list(range(depth - len(batch_a), depth)) + la
    lb = list(range(depth - len(batch_b), depth)) + lb
    lo = list(range(depth)) + ([rows] if na > 1 else []) + ([columns] if nb > 1 else [])
    return product(a, b, la, lb, lo)


FRONT_OPERATORS["matmul"] = lambda a, b: matmul(a, b)


@composite(np.dot)
def dot(a, b, out=None):
    """Sum over the last axis of a and the second-last of b."""
    a, b = as_array(a), as_array(b)
    if not a.shape or not b.shape:
        return np.multiply(a, b)
    na, nb = len(a.shape), len(b.shape)
    la = list(range(na))
    lb = [na + k for k in range(nb)]
    lb[max(nb - 2, 0)] = na - 1
    if _differ(a.shape[-1], b.shape[max(nb - 2, 0)]):
        _dims_error(a, b, "dot")
    return product(a, b, la, lb, la[:-1] + [k for k in lb if k != na - 1])


@composite(np.vdot)
def vdot(a, b, /):
    """Inner product of flattened arrays, the first one conjugated."""
    return np.dot(np.conj(np.ravel(as_array(a))), np.ravel(as_array(b)))


@composite(np.inner)
def inner(a, b, /):
    """Sum over the last axes."""
    a, b = as_array(a), as_array(b)
    if not a.shape or not b.shape:
        return np.multiply(a, b)
    la = list(range(len(a.shape)))
    lb = [len(la) + k for k in range(len(b.shape))]
    lb[-1] = la[-1]
    return product(a, b, la, lb, la[:-1] + lb[:-1])


@composite(np.vecdot)
def vecdot(x1, x2, axis=-1):
    """Inner product along an axis, the first operand conjugated."""
    terms = np.conj(x1) * x2
    return np.sum(terms, axis=axis, dtype=terms.dtype)


@composite(getattr(np, "matvec", None))  # NumPy 2.2
def matvec(x1, x2):
    """Matrix times vector, batched."""
    return np.matmul(x1, as_array(x2)[..., None])[..., 0]


@composite(getattr(np, "vecmat", None))  # NumPy 2.2
def vecmat(x1, x2):
    """Conjugated vector times matrix, batched."""
    return np.matmul(np.conj(as_array(x1))[..., None, :], x2)[..., 0, :]


@composite(np.outer, np.linalg.outer)
def outer(a, b, out=None):
    """Outer product of flattened arrays."""
    return np.ravel(as_array(a))[:, None] * np.ravel(as_array(b))[None, :]


@composite(np.tensordot, np.linalg.tensordot)
def tensordot(a, b, axes=2):
    """Sum over several axes of two arrays."""
    a, b = as_array(a), as_array(b)
    if isinstance(axes, (int, np.integer)):
        first, second = range(len(a.shape) - axes, len(a.shape)), range(axes)
    else:
        first, second = (x if isinstance(x, (list, tuple)) else [x] for x in axes)
    first, second = [k % len(a.shape) for k in first], [k % len(b.shape) for k in second]
    la = list(range(len(a.shape)))
    lb = [len(la) + k for k in range(len(b.shape))]
    for i, j in zip(first, second):
        lb[j] = i
    return product(a, b, la, lb, [k for k in la if k not in first] + [k for k in lb if k >= len(la)])


@composite(np.kron)
def kron(a, b):
    """Kronecker product."""
    a, b = as_array(a), as_array(b)
    ndim = max(len(a.shape), len(b.shape))
    sa = (1,) * (ndim - len(a.shape)) + tuple(a.shape)
    sb = (1,) * (ndim - len(b.shape)) + tuple(b.shape)
    wide_a = tuple(d for k in sa for d in (k, 1))
    wide_b = tuple(d for k in sb for d in (1, k))
    return np.reshape(np.reshape(a, wide_a) * np.reshape(b, wide_b), tuple(i * j for i, j in zip(sa, sb)))


@composite(np.cross, np.linalg.cross)
def cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None):
    """Vector product in three dimensions."""
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = np.moveaxis(as_array(a), axisa, -1), np.moveaxis(as_array(b), axisb, -1)
    if a.shape[-1] != 3 or b.shape[-1] != 3:
        raise errors.UnsupportedError("np.cross on traced arrays needs vectors of length 3")
    out = np.stack([a[..., 1] * b[..., 2] - a[..., 2] * b[..., 1], a[..., 2] * b[..., 0] - a[..., 0] * b[..., 2],
                    a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]], axis=-1)
    return np.moveaxis(out, -1, axisc)


# -------------------------------------------------------------------------------------------------- einsum
@composite(np.einsum)
def einsum(*operands, out=None, optimize=False, **kwargs):
    """Sum products in Einstein's notation."""
    if kwargs.get("dtype") is not None:
        raise errors.UnsupportedError("np.einsum(dtype=) is not supported on traced arrays; cast the operands")
    if isinstance(operands[0], str):
        labels, arrays = _einsum_labels(operands[0], [as_array(x) for x in operands[1:]])
    else:
        arrays = [as_array(x) for x in operands[0:len(operands) - len(operands) % 2:2]]
        marks = list(operands[1::2])
        last = operands[-1] if len(operands) % 2 else None
        text = ",".join("".join(chr(97 + k) for k in m) for m in marks)
        text += "" if last is None else "->" + "".join(chr(97 + k) for k in last)
        labels, arrays = _einsum_labels(text, arrays)
    *inputs, target = labels
    x, lx = arrays[0], list(inputs[0])
    for n in range(1, len(arrays)):
        later = set().union(*map(set, inputs[n + 1:]), target)
        keep = [k for k in dict.fromkeys([*lx, *inputs[n]]) if k in later]
        x, lx = product(x, arrays[n], lx, inputs[n], keep), keep
    if len(arrays) == 1:
        x, lx = _prepare(x, lx, (), target)
    return np.transpose(x, tuple(lx.index(k) for k in target)) if list(lx) != list(target) else +x


def _einsum_labels(text, arrays):
    text = text.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(arrays):
        raise ValueError(f"einsum: {len(terms)} terms for {len(arrays)} operands")
    dots = max((len(x.shape) - len(t.replace("...", "")) for t, x in zip(terms, arrays) if "..." in t), default=0)
    def expand(term, count):
        names = [f"...{k}" for k in range(dots - count, dots)]
        head, mark, tail = term.partition("...")
        return [*head, *(names if mark else []), *tail]
    inputs = []
    for term, x in zip(terms, arrays):
        labels = expand(term, len(x.shape) - len(term.replace("...", "")))
        if len(labels) != len(x.shape):
            raise ValueError(f"einsum: term {term!r} does not fit an operand of {len(x.shape)} axes")
        inputs.append(labels)
    if arrow:
        target = expand(right, dots)
    else:
        every = [k for labels in inputs for k in labels]
        target = [f"...{k}" for k in range(dots)] + sorted(k for k in set(every) if every.count(k) == 1 and len(k) == 1)
    number = {k: n for n, k in enumerate(dict.fromkeys([*[k for labels in inputs for k in labels], *target]))}
    return [[number[k] for k in labels] for labels in (*inputs, target)], arrays


@composite(np.linalg.multi_dot)
def multi_dot(arrays, *, out=None):
    """Product of several matrices, from the left."""
    x = arrays[0]
    for y in arrays[1:]:
        x = np.dot(x, y)
    return x


@composite(np.linalg.matrix_power)
def matrix_power(a, n):
    """Power of a square matrix by repeated squaring."""
    a = as_array(a)
    if n < 0:
        return matrix_power(np.linalg.inv(a), -n)
    if n == 0:
        return np.broadcast_to(np.eye(a.shape[-1], dtype=a.dtype), a.shape) + np.zeros_like(a)
    result, base = None, a
    while n:
        if n & 1:
            result = base if result is None else result @ base
        base, n = base @ base if n > 1 else base, n >> 1
    return result


@composite(np.convolve)
def convolve(a, v, mode="full"):
    """Discrete convolution of two vectors."""
    a, v = as_array(a), as_array(v)
    if v.shape[0] > a.shape[0]:
        a, v = v, a
    return _slide(a, np.flip(v), mode)


@composite(np.correlate)
def correlate(a, v, mode="valid"):
    """Cross-correlation of two vectors."""
    a, v = as_array(a), as_array(v)
    if v.shape[0] > a.shape[0]:
        return np.flip(np.conj(correlate(v, a, mode)))
    return _slide(a, np.conj(v), mode)


def _slide(a, v, mode):
    """Inner products of v with every window of a, padded by mode."""
    m = v.shape[0]
    left, right = {"full": (m - 1, m - 1), "same": (m // 2, (m - 1) // 2), "valid": (0, 0)}[mode]
    dtype = np.result_type(a.dtype, v.dtype)
    a, v = astype(a, dtype), astype(v, dtype)
    if left or right:
        zero = np.zeros(max(left, right), dtype)
        a = np.concatenate([zero[:left], a, zero[:right]])
    count = a.shape[0] - m + 1
    windows = np.arange(count)[:, None] + np.arange(m)[None, :]
    return np.take(a, windows, axis=0) @ v


@composite(np.polyval)
def polyval(p, x):
    """Polynomial by Horner's rule, highest power first."""
    p, x = as_array(p), as_array(x)
    y = np.zeros_like(x)
    for k in range(p.shape[0]):
        y = y * x + p[k]
    return y


def moved(axis, x):
    """Normalise one axis."""
    return axes_of(x, axis)[0]
