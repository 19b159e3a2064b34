"""In-place writes, views, aliases and object arrays behave in a step as in NumPy.

Each function below is run as it stands by the law, on real arrays, and by nscan, on traced ones: once as a map, where its
arguments are rows of sequences, and once in a loop whose state is the matrix that it may have written to. Values are
compared to the bit, gradients with differences of the law.
"""

import law
import numpy as np
import pytest

import nscan as ns

pytestmark = pytest.mark.usefixtures("mode")

RNG = np.random.default_rng(11)
N = 3
V, M, S = RNG.standard_normal((N, 4)), RNG.standard_normal((N, 3, 4)), RNG.standard_normal(N)
I, J = np.array([0, 2, -1]), np.array([[0, 1], [2, 2], [3, 0]])
FUNCTIONS = []


def step(function):
    """Enter a function of a vector v (4,), a matrix m (3, 4), a number s, an index i and two indices j into the table."""
    FUNCTIONS.append(function)
    return function


# Names of one array


@step
def alias_sees_an_in_place_sum(v, m, s, i, j):
    p = v
    v += 1.0
    return p


@step
def rebinding_leaves_the_alias(v, m, s, i, j):
    p = v
    v = v + 1.0
    return p, v


@step
def copy_is_apart(v, m, s, i, j):
    p = v.copy()
    v *= 2.0
    return p, v


@step
def np_copy_is_apart(v, m, s, i, j):
    p = np.copy(v)
    p[0] = 9.0
    return p, v


@step
def positive_is_a_copy(v, m, s, i, j):
    p = +v
    p[1] = 5.0
    return p, v


@step
def astype_is_a_copy(v, m, s, i, j):
    p = v.astype(float)
    p[1] = 5.0
    return p, v


@step
def number_plus_equals_rebinds(v, m, s, i, j):
    t = s
    s += 1.0
    return t, s


# Scalars are values, slices are views


@step
def swap_of_two_elements(v, m, s, i, j):
    t = v[0]
    v[0] = v[1]
    v[1] = t
    return v


@step
def swap_by_tuple(v, m, s, i, j):
    v[0], v[3] = v[3], v[0]
    return v


@step
def swap_at_traced_places(v, m, s, i, j):
    v[j[0]], v[j[1]] = v[j[1]], v[j[0]]
    return v


@step
def swap_of_rows_by_copies(v, m, s, i, j):
    m[0], m[1] = m[1].copy(), m[0].copy()
    return m


@step
def swap_of_rows_that_are_views(v, m, s, i, j):
    m[0], m[1] = m[1], m[0]
    return m


@step
def element_plus_equals_does_not_write_back(v, m, s, i, j):
    t = v[2]
    t += 10.0
    return t, v


@step
def element_with_ellipsis_is_a_view(v, m, s, i, j):
    t = v[2, ...]
    t += 10.0
    return t, v


@step
def element_with_ellipsis_reads_later_writes(v, m, s, i, j):
    t = m[1, 2, ...]
    m[1] = 7.0
    return t * s


@step
def sum_is_a_number(v, m, s, i, j):
    t = np.sum(v)
    u = t
    t += 1.0
    return t, u


@step
def full_reduction_then_write(v, m, s, i, j):
    t = v.max()
    v[:] = 0.0
    return t, v


# Views read and write through


@step
def slice_writes_through(v, m, s, i, j):
    w = v[1:]
    w += s
    return v


@step
def slice_reads_later_writes(v, m, s, i, j):
    w = v[1:3]
    v *= 3.0
    return w


@step
def row_writes_through(v, m, s, i, j):
    r = m[0]
    r[:] = 5.0 * s
    return m


@step
def column_writes_through(v, m, s, i, j):
    c = m[:, 1]
    c[0] = s
    return m, c


@step
def view_of_a_view(v, m, s, i, j):
    a = m[1:]
    b = a[0]
    b[2] = s
    a[1, 0] = 2.0 * s
    return m, a, b


@step
def two_views_of_one_base(v, m, s, i, j):
    a, b = v[:3], v[1:]
    a[1] = s
    b[1] = 2.0
    return a, b, v


@step
def overlapping_shift(v, m, s, i, j):
    v[1:] = v[:-1]
    return v


@step
def overlapping_sum(v, m, s, i, j):
    v[1:] += v[:-1]
    return v


@step
def transposed_view(v, m, s, i, j):
    t = m.T
    t[0] = s
    return m, t


@step
def transposed_view_reads_later_writes(v, m, s, i, j):
    t = m.T
    m[0, 1] = 8.0
    return t


@step
def swapaxes_view(v, m, s, i, j):
    t = np.swapaxes(m, 0, 1)
    t[3, 2] = s
    return m


@step
def moveaxis_view(v, m, s, i, j):
    t = np.moveaxis(m, 0, -1)
    t += v[:, None]
    return m


@step
def reshape_view(v, m, s, i, j):
    r = m.reshape(4, 3)
    r[0] = s
    return m


@step
def reshape_view_reads_later_writes(v, m, s, i, j):
    r = np.reshape(m, (2, 6))
    m[1] *= 2.0
    return r


@step
def ravel_view(v, m, s, i, j):
    r = m.ravel()
    r[5] = s
    r[:2] += 1.0
    return m


@step
def flatten_is_a_copy(v, m, s, i, j):
    r = m.flatten()
    r[5] = s
    return m, r


@step
def new_axis_view(v, m, s, i, j):
    w = v[:, None]
    w[2, 0] = s
    return v


@step
def expand_dims_view(v, m, s, i, j):
    w = np.expand_dims(v, 0)
    w *= 2.0
    return v


@step
def squeeze_view(v, m, s, i, j):
    w = np.squeeze(m[:1])
    w[1] = s
    return m


@step
def diagonal_reads_later_writes(v, m, s, i, j):
    d = np.diagonal(m)
    m[1, 1] = s
    return d * 2.0


@step
def diag_is_a_copy(v, m, s, i, j):
    d = np.diag(m).copy()
    m[0, 0] = s
    return d


@step
def fill_diagonal(v, m, s, i, j):
    np.fill_diagonal(m, s)
    return m


@step
def split_parts_are_views(v, m, s, i, j):
    a, b = np.split(v, 2)
    a[0] = s
    b += a
    return v


@step
def hsplit_parts_are_views(v, m, s, i, j):
    left, right = np.hsplit(m, 2)
    left[:] = right
    return m


@step
def flip_is_a_view(v, m, s, i, j):
    w = np.flip(v)
    w[0] = s
    return v


@step
def negative_step_view(v, m, s, i, j):
    w = v[::-1]
    w[:2] = [1.0, 2.0]
    return v


@step
def negative_step_read(v, m, s, i, j):
    return v[::-2], m[::-1, 3:0:-1], v[-1:-3:-1]


@step
def strided_write(v, m, s, i, j):
    v[::2] = s
    m[::2, 1::2] *= 10.0
    return v, m


@step
def real_part_of_a_real_array_is_a_view(v, m, s, i, j):
    w = v.real
    w[0] = s
    return v


@step
def unpacked_rows_are_views(v, m, s, i, j):
    a, b, c = m
    b[0] = s
    a += c
    return m


@step
def loop_over_rows_writes_through(v, m, s, i, j):
    for k, row in enumerate(m):
        row[k] = s * k
    return m


@step
def elements_of_a_list_are_numbers(v, m, s, i, j):
    items = list(v)
    items[0] += 1.0
    return np.stack(items), v


@step
def broadcast_to_is_read(v, m, s, i, j):
    b = np.broadcast_to(v, (2, 4))
    return b + s, np.broadcast_to(s, 3)


# Writing at places


@step
def write_at_a_traced_place(v, m, s, i, j):
    v[i] = s
    return v


@step
def write_at_a_traced_row(v, m, s, i, j):
    m[i] = v
    return m


@step
def write_at_a_traced_row_and_column(v, m, s, i, j):
    m[i, j[0]] = s
    return m


@step
def write_at_a_traced_row_and_slice(v, m, s, i, j):
    m[i, 1:3] = [s, 2.0]
    return m


@step
def add_at_a_traced_place(v, m, s, i, j):
    v[i] += s
    m[:, j[1]] -= 1.0
    return v, m


@step
def view_at_a_traced_row(v, m, s, i, j):
    r = m[i]
    r *= 2.0
    return m, r


@step
def slice_with_traced_start(v, m, s, i, j):
    k = j[0]
    return np.sum(v[k:]), np.sum(v[:k + 1]), np.sum(m[:, k:k + 2])


@step
def write_through_a_slice_with_traced_start(v, m, s, i, j):
    w = v[j[0]:]
    w *= 2.0
    return v


@step
def write_to_a_slice_with_traced_bounds(v, m, s, i, j):
    v[j[0]:j[0] + 2] = s
    return v


@step
def fancy_read_is_a_copy(v, m, s, i, j):
    w = v[[0, 2]]
    w[0] = s
    return v, w


@step
def fancy_write(v, m, s, i, j):
    v[[0, 2]] = [s, 3.0]
    return v


@step
def fancy_write_of_a_number(v, m, s, i, j):
    m[[0, 2], 1] = s
    return m


@step
def fancy_write_twice_keeps_the_last(v, m, s, i, j):
    v[[1, 1, 1]] = [s, 2.0 * s, 3.0 * s]
    return v


@step
def fancy_write_at_traced_places(v, m, s, i, j):
    v[j] = np.array([1.0, 2.0]) * s
    return v


@step
def fancy_add_counts_once(v, m, s, i, j):
    v[[1, 1]] += s
    return v


@step
def add_at_counts_twice(v, m, s, i, j):
    np.add.at(v, [1, 1], s)
    return v


@step
def add_at_traced_places(v, m, s, i, j):
    np.add.at(v, j, v[:2])
    np.subtract.at(m, (i, slice(None)), 1.0)
    return v, m


@step
def fancy_rows_and_columns(v, m, s, i, j):
    return m[[0, 1], [2, 3]], m[:, [3, 0]], m[[2, 0]][:, [1, 1]], m[np.ix_([0, 2], [1, 3])]


@step
def fancy_with_an_integer_between(v, m, s, i, j):
    t = np.stack([m, 2.0 * m])
    return t[0, :, [0, 1]], t[:, 1, [0, 1]], t[[0, 1], :, 2], t[i * 0, [0, 1]], t[..., [0]]


@step
def fancy_write_of_rows(v, m, s, i, j):
    m[[0, 1]] = v
    m[:, [1, 2]] = m[:, [2, 1]]
    return m


@step
def ellipsis_write(v, m, s, i, j):
    m[..., 0] = s
    m[..., 1:3] += 1.0
    v[...] = 2.0 * v
    return m, v


@step
def ellipsis_is_a_view(v, m, s, i, j):
    w = v[...]
    w[0] = s
    return v


# Masks


@step
def real_mask_write(v, m, s, i, j):
    v[np.array([True, False, True, False])] = s
    return v


@step
def real_mask_read(v, m, s, i, j):
    return v[np.array([True, False, True, False])], m[np.array([True, False, True])]


@step
def real_matrix_mask(v, m, s, i, j):
    mask = np.arange(12).reshape(3, 4) % 3 == 0
    m[mask] = s
    return m, m[mask]


@step
def traced_mask_write(v, m, s, i, j):
    v[v > 0.0] = s
    return v


@step
def traced_mask_of_rows(v, m, s, i, j):
    m[m[:, 0] > 0.0] = 1.0
    return m


@step
def traced_mask_of_elements(v, m, s, i, j):
    m[m < s] = 0.0
    return m


@step
def traced_mask_in_place(v, m, s, i, j):
    v[v < 0.0] *= -2.0
    m[m > 0.5] -= 1.0
    return v, m


@step
def putmask_and_place(v, m, s, i, j):
    np.putmask(v, v > 0.0, s)
    return v


@step
def copyto_where(v, m, s, i, j):
    np.copyto(v, 2.0 * v, where=v > 0.0)
    return v


# Whole arrays in place


@step
def fill(v, m, s, i, j):
    v.fill(s)
    m[0].fill(2.0)
    return v, m


@step
def sort_in_place(v, m, s, i, j):
    p = v
    v.sort()
    m.sort(axis=0)
    return p, m


@step
def sort_of_a_view(v, m, s, i, j):
    m[1].sort()
    m[:, 2].sort()
    return m


@step
def sorted_copy(v, m, s, i, j):
    w = np.sort(v)
    w[0] = s
    return v, w


@step
def out_of_a_ufunc(v, m, s, i, j):
    np.multiply(v, 2.0, out=v)
    np.add(v, s, out=v[:])
    return v


@step
def out_is_another_array(v, m, s, i, j):
    z = np.empty_like(v)
    r = np.sin(v, out=z)
    r[0] = 1.0
    return z, v


@step
def out_of_a_reduction(v, m, s, i, j):
    z = np.zeros_like(v)
    np.sum(m, axis=0, out=z)
    np.cumsum(v, out=v)
    return z, v


@step
def out_as_a_tuple(v, m, s, i, j):
    np.exp(v, out=(v,))
    return v


@step
def put_and_put_along_axis(v, m, s, i, j):
    np.put(v, [0, 3], [s, 4.0])
    np.put_along_axis(m, np.array([[1], [0], [2]]), 0.5, 1)
    return v, m


@step
def itemset_by_index(v, m, s, i, j):
    m[(1, 2)] = s
    m[1][3] = 2.0 * s
    m[-1, -1] += 1.0
    return m


# Broadcasting and casting


@step
def in_place_broadcast(v, m, s, i, j):
    m += v
    m -= v[:3, None]
    m *= s
    return m


@step
def assignment_broadcast(v, m, s, i, j):
    m[1:] = v
    m[:, :2] = m[:, 2:3]
    m[0] = s
    return m


@step
def leading_axes_of_size_one(v, m, s, i, j):
    v[:] = m[:1]
    v[1:3] = np.array([[1.0, 2.0]])
    return v


@step
def in_place_operators(v, m, s, i, j):
    v += 1.0
    v -= 0.5
    v *= 2.0
    v /= 3.0
    v **= 2
    v %= 1.5
    v //= 0.25
    return v


@step
def in_place_power_and_matmul(v, m, s, i, j):
    w = np.abs(v) + 1.0
    w **= 0.5
    q = m[:, :3].copy()
    q @= np.eye(3) * s
    return w, q


@step
def float_into_integers(v, m, s, i, j):
    k = np.array([1, 2, 3]) * (i - i + 1)
    k[0] = 7.9
    k[1] = s * 0.0 + 2.6
    return k


@step
def integers_in_place(v, m, s, i, j):
    k = j * 10
    k += 1
    k //= 2
    k <<= 1
    k |= 1
    k ^= i
    k &= 127
    return k


@step
def float32_in_place_keeps_its_type(v, m, s, i, j):
    w = v.astype(np.float32)
    w += 1.0
    w *= v
    w[0] = s
    return w


@step
def bool_array_in_place(v, m, s, i, j):
    b = v > 0.0
    b |= v < -1.0
    b[0] = True
    b &= ~(m[0] > 1.0)
    return b


@step
def complex_in_place(v, m, s, i, j):
    z = v + 1j * m[0]
    z *= 1j
    z[0] = s
    z.real[1] = 5.0
    z.imag[2:] += 1.0
    return np.real(z), np.imag(z)


# Buffers and nested lists


@step
def scratch_buffer(v, m, s, i, j):
    z = ns.array(np.zeros(3))
    z[0] = s
    z[1:] += v[:2]
    return z


@step
def array_of_numbers_is_written(v, m, s, i, j):
    z = ns.array([s, v[0], 2.0])
    z[2] = s
    return z


@step
def object_array_of_numbers(v, m, s, i, j):
    o = np.array([s, v[0], 0.5])
    return o * 2.0, o + v[1], v[:3] + o, np.sum(o)


@step
def nested_object_array(v, m, s, i, j):
    a = np.array([[np.cos(s), -np.sin(s)], [np.sin(s), np.cos(s)]])
    return a @ v[:2], v[:2] @ a, a @ a, a.T


@step
def object_array_in_functions(v, m, s, i, j):
    o = np.array([s, v[0], v[1]])
    return np.exp(o), np.dot(o, o), m[:, :3] @ o, np.outer(o, v[:2])


@step
def list_of_numbers_in_stack(v, m, s, i, j):
    return np.stack([s, v[0], s * 2.0]), np.concatenate([[s], v[:1], [1.0]]), np.array([v[0], v[1]])


@step
def object_array_assigned_to_a_view(v, m, s, i, j):
    v[1:3] = np.array([s, 2.0 * s])
    m[0] = [s, v[0], 1.0, 2.0]
    return v, m


@step
def zeros_like_is_a_buffer(v, m, s, i, j):
    z = np.zeros_like(m)
    z[0] = v
    z[1:, 1] = s
    z.T[3] += 1.0
    return z


@step
def buffer_of_the_step_that_is_read_before_it_is_written(v, m, s, i, j):
    c = np.zeros(4)
    a = v + c
    c[0] = 5.0
    return a, v + c


@step
def list_state_of_the_step(v, m, s, i, j):
    parts = []
    for k in range(3):
        parts.append(v[k] * k)
        v[k] = 0.0
    return np.stack(parts), v


@step
def write_between_reads(v, m, s, i, j):
    a = np.sin(v)
    v[1] = s
    b = np.sin(v)
    v[2:] = a[:2]
    return a, b, v


@step
def gauss_seidel(v, m, s, i, j):
    for k in range(1, 3):
        v[k] = 0.5 * (v[k - 1] + v[k + 1])
    return v


@step
def triangular_solve(v, m, s, i, j):
    x = np.zeros_like(v[:3])
    for k in range(3):
        x[k] = (v[k] - m[k, :k] @ x[:k]) / (2.0 + m[k, k] ** 2)
    return x


@step
def running_product_in_place(v, m, s, i, j):
    w = v.copy()
    for k in range(1, 4):
        w[k] *= w[k - 1]
    return w


@step
def write_to_what_a_function_was_given(v, m, s, i, j):
    def double(w):
        w *= 2.0
    double(v[1:])
    double(m.T[0])
    return v, m


@step
def roll_tile_repeat_are_copies(v, m, s, i, j):
    a, b, c = np.roll(v, 0), np.tile(v, 1), np.repeat(v, 1)
    for w in (a, b, c):
        w[0] = s
    return v, a, b, c


@step
def nan_to_num_round_and_clip_are_copies(v, m, s, i, j):
    a, b, c, d = np.nan_to_num(v), np.clip(v, -9.0, 9.0), np.round(j), np.nan_to_num(j)
    for w in (a, b, c, d):
        w[0] = 1
    return v, j, a, b, c, d


@step
def atleast_returns_the_array_itself(v, m, s, i, j):
    w = np.atleast_1d(v)
    w[0] = s
    u = np.atleast_2d(v)
    u[0, 1] = s
    return v


@step
def rot90_is_a_view(v, m, s, i, j):
    w = np.rot90(m)
    w[0, 0] = s
    u = np.rot90(m, 0)
    u[1, 1] = s
    return m


@step
def triangles_are_copies(v, m, s, i, j):
    w = np.tril(m)
    w[0] = s
    return m, w


@step
def flat_reads_and_writes(v, m, s, i, j):
    m.flat[3] = s
    return m, m.flat[5]


@step
def len_iteration_and_unpacking(v, m, s, i, j):
    first, *rest = v
    total = 0.0
    for x in m[0]:
        total = total + x
    return first * len(v), rest[-1], total


def test_there_are_enough():
    assert len(FUNCTIONS) >= 80


def flat(result):
    """Return the parts of what a function returned as a tuple of arrays."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def as_map(lib, function, *arrays):
    """Rows of sequences are the function's own."""
    return flat(lib.map(lambda *a: flat(function(*a)), list(arrays)))


def as_loop(lib, function, v, m, s, i, j):
    """The matrix, as the function leaves it, is the state."""
    def step(v, s, i, j, m):
        out = flat(function(v, m, s, i, j))
        return 0.5 * m + 0.1, *out

    outputs = len(flat(function(*[np.array(x[0])[()] for x in (V, M, S, I, J)])))
    return flat(lib.scan(step, [v, s, i, j], [m[0], *[None] * outputs]))


@pytest.mark.parametrize("run", [as_map, as_loop])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values(run, function):
    if function is nan_to_num_round_and_clip_are_copies and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("NumPy 2.0 rounds integers without a copy")
    kept = [x.copy() for x in (V, M, S, I, J)]
    got, want = run(ns, function, V, M, S, I, J), run(law, function, V, M, S, I, J)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=1e-13, atol=1e-13)
    for x, old in zip((V, M, S, I, J), kept, strict=True):
        np.testing.assert_array_equal(x, old)


def weighted(parts):
    """A number that depends on every float among arrays."""
    floats = [x for x in parts if x.dtype.kind == "f"]
    return sum(np.sum(np.cos(np.arange(1.0, x.size + 1).reshape(x.shape)) * x) for x in floats) if floats else None


DIFFERENTIABLE = [f for f in FUNCTIONS if f.__name__ not in ("in_place_operators", "float32_in_place_keeps_its_type")]


@pytest.mark.wide
@pytest.mark.parametrize("run", [as_map, as_loop])
@pytest.mark.parametrize("function", DIFFERENTIABLE, ids=lambda f: f.__name__)
def test_gradients(run, function):
    def loss(lib, v, m, s):
        return weighted(run(lib, function, v, m, s, I, J))

    if loss(law, V, M, S) is None:
        return
    rng = np.random.default_rng(3)
    d = [rng.standard_normal(x.shape) for x in (V, M, S)]
    h = 1e-4
    values = [loss(law, *[x + k * h * t for x, t in zip((V, M, S), d, strict=True)]) for k in (-2, -1, 1, 2)]
    want = np.dot([1.0, -8.0, 8.0, -1.0], values) / (12 * h)
    gradients = ns.grad(lambda v, m, s: loss(ns, v, m, s), argnums=(0, 1, 2))(V, M, S)
    got = sum(np.sum(g * t) for g, t in zip(gradients, d, strict=True))
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-7)
    moved = ns.jvp(lambda v, m, s: loss(ns, v, m, s), (V, M, S), tuple(d))[1]
    np.testing.assert_allclose(moved, want, rtol=1e-7, atol=1e-7)


# Errors are NumPy's


def bad_shape(v, m, s, i, j):
    v[:2] = m[0]
    return v


def bad_in_place_shape(v, m, s, i, j):
    v += m
    return v


def bad_cast(v, m, s, i, j):
    k = i * np.array([1, 2])
    k += 0.5
    return k


def bad_bool(v, m, s, i, j):
    b = v > 0.0
    b += v
    return b


def bad_index(v, m, s, i, j):
    v[4] = 1.0
    return v


def bad_axis(v, m, s, i, j):
    return m[0, 1, 2]


def write_to_a_number(v, m, s, i, j):
    t = v[0]
    t[()] = 1.0
    return v


def write_to_a_broadcast(v, m, s, i, j):
    np.broadcast_to(v, (2, 4))[0] = 1.0
    return v


def write_to_a_diagonal(v, m, s, i, j):
    np.diagonal(m)[0] = 1.0
    return m


@pytest.mark.parametrize("function", [bad_shape, bad_in_place_shape, bad_cast, bad_bool, bad_index, bad_axis, write_to_a_number,
                                      write_to_a_broadcast, write_to_a_diagonal])
def test_what_numpy_refuses(function):
    with pytest.raises((ValueError, TypeError, IndexError)) as law_says:
        as_map(law, function, V, M, S, I, J)
    kind = next(k for k in (IndexError, ValueError, TypeError) if isinstance(law_says.value, k))
    with pytest.raises(kind):
        as_map(ns, function, V, M, S, I, J)


def test_an_enclosing_array_is_read_only():
    def outer(v):
        def inner(x):
            v[0] = x
            return x
        return ns.map(inner, [v])

    with pytest.raises(ns.errors.ReadOnlyError, match="state"):
        ns.map(outer, [V])


def test_a_branch_may_not_write_to_its_arguments():
    def write(v):
        v[0] = 1.0
        return v

    with pytest.raises(ns.errors.ReadOnlyError):
        ns.map(lambda v: ns.cond(v[0] > 0.0, write, lambda v: v, v), [V])


def test_large_arrays_that_change_while_they_are_traced_are_refused():
    z = np.zeros(10000)

    def step(x):
        out = x + z
        z[:] = 1.0
        return np.sum(out)

    with pytest.raises(ns.errors.TracedValueError, match=r"ns\.array"):
        ns.map(step, [np.ones(3)])


def test_views_under_grad_outside_steps():
    def f(x):
        y = x * 1.0
        view = y[1:]
        view *= 3.0
        y[0] = y[1]
        return np.sum(y ** 2)

    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(ns.grad(f)(x), [0.0, 2 * 2 * 9 * 2.0, 2 * 9 * 3.0])
    np.testing.assert_allclose(ns.jvp(f, (x,), (np.ones(3),))[1], 72.0 + 54.0)
