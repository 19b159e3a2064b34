"""Arrays of any memory order, larger than memory, and dtypes: nothing is copied as a whole, nothing is widened."""

import inspect
import re
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest

import nscan as ns

RNG = np.random.default_rng(11)
BASE = RNG.normal(size=(600, 400)).astype("f4")
W = (RNG.normal(size=400) / 20).astype("f4")



class Mine(np.ndarray):
    """A subclass without anything of its own."""


def layouts(base):
    """The same numbers (or some of them) in memory of many kinds."""
    records = np.zeros(base.shape, [("tag", "i1"), ("x", "f4")])
    records["x"] = base
    return {
        "C": base,
        "backwards": base[::-1],
        "every other row": np.repeat(base, 2, axis=0)[::2],
        "every other column": np.repeat(base, 2, axis=1)[:, ::2],
        "columns backwards": base[:, ::-1],
        "both backwards": base[::-1, ::-1],
        "Fortran": np.asfortranarray(base),
        "equal rows": np.broadcast_to(base[0], base.shape),
        "equal columns": np.broadcast_to(base[:, :1], base.shape),
        "one number": np.broadcast_to(np.float32(0.3), base.shape),
        "field of records": records["x"],
        "subclass": base.view(Mine),
    }


LAYOUTS = layouts(BASE)


def step(x, h, w):
    """Read a row and a constant."""
    return np.tanh(0.5 * h + x @ w)


def over_rows(x, w):
    """A loop over the rows of x."""
    return ns.scan(step, x, np.float32(0), w)[-1]


def as_constant(x, w):
    """A loop that picks rows of x."""
    return ns.scan(lambda k, h, x, w: np.tanh(0.5 * h + x[k] @ w), np.arange(40) * 7 % 600, np.float32(0), [x, w])[-1]


def closed_over(x, w):
    """The same with a closure."""
    return ns.scan(lambda k, h: np.tanh(0.5 * h + ns.array(x)[k] @ w), np.arange(40) * 7 % 600, np.float32(0))[-1]


def shifted(x, w):
    """A loop with taps, backwards."""
    return ns.scan(lambda a, b, h, w: np.tanh(0.5 * h + (a - b) @ w), dict(input=x, taps=[0, -2]), np.float32(0), w, go_backwards=True)[-1]


def peak(f, *args):
    """Bytes that a call allocates at most."""
    tracemalloc.start()
    try:
        f(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("f", [over_rows, as_constant, closed_over, shifted])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_read_as_it_is(layout, f, mode):
    x = LAYOUTS[layout]
    kept, strides = np.array(x), x.strides
    frozen = x.view()
    frozen.flags.writeable = False
    for given in (x, frozen):
        value, slope = ns.value_and_grad(lambda w, given=given: f(given, w))(W)
        want, want_slope = ns.value_and_grad(lambda w: f(kept, w))(W)
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(slope, want_slope, rtol=1e-4, atol=1e-5)
        assert value.dtype == slope.dtype == np.float32
    np.testing.assert_array_equal(x, kept)
    assert x.strides == strides and frozen.strides == strides


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_not_copied(layout, compiled):
    """What is allocated does not grow with the operand: blocks of half a megabyte, where 16 MB are read."""
    x = layouts(np.tile(BASE, (17, 1)))[layout]
    for f in (over_rows, as_constant, shifted):
        for g in (lambda f=f: f(x, W), lambda f=f: ns.grad(lambda w: f(x, w))(W), lambda f=f: ns.jvp(lambda w: f(x, w), (W,), (W,))):
            g()
            assert peak(g) < x.size * 4 / 10


def test_the_gradient_of_any_layout_is_an_ordinary_array(mode):
    want = ns.grad(lambda x: over_rows(x, W))(BASE.copy())
    for layout in ("backwards", "Fortran", "every other column"):
        got = ns.grad(lambda x: over_rows(x, W))(LAYOUTS[layout])
        assert got.flags.c_contiguous and got.flags.writeable and type(got) is np.ndarray
        assert got.dtype == np.float32 and got.shape == BASE.shape
    np.testing.assert_allclose(ns.grad(lambda x: over_rows(x, W))(BASE[::-1][::-1]), want, rtol=1e-4, atol=1e-6)


def test_outputs_are_ordinary_arrays(mode):
    h = np.asfortranarray(RNG.normal(size=(5, 7)))[::-1]
    outs = ns.scan(lambda x, h: (np.tanh(h.T @ h[:, 0] + x), np.tanh(h), x), np.ones((9, 7))[:, ::-1], [None, h, None])
    last, rows = ns.loop(lambda c, x: (c + x, c[::-1]), h[:, :3], np.ones((4, 5, 3)).transpose(0, 1, 2), reverse=True)
    for out in (*outs, last, rows, ns.map(lambda x: x.T, np.ones((4, 2, 3))), ns.scan(lambda h: h, None, np.zeros((3, 2)).T, n_steps=2)):
        assert type(out) is np.ndarray and out.flags.c_contiguous and out.flags.writeable
        before = out.copy()
        out += 1
        np.testing.assert_array_equal(out, before + 1)
    assert h.flags.writeable and not np.shares_memory(last, h)


def test_an_initial_value_is_copied_alone(compiled):
    """What comes back belongs to the caller: writing to it changes no operand."""
    h, x = np.zeros(3), np.ones((4, 3))
    out = ns.scan(lambda x, h: x, x, h)
    out[:] = 7
    final, _ = ns.loop(lambda c, x: (c, None), h, x)
    final[:] = 7
    assert not h.any() and (x == 1).all()


def test_writing_to_a_result_changes_no_gradient(mode):
    x = RNG.normal(size=(50, 40))
    for f in (lambda x: ns.scan(lambda x, h: np.tanh(h * .5 + x), x, np.zeros(40)), lambda x: ns.map(np.exp, x), np.tanh, np.exp,
              lambda x: ns.scan(lambda x, h: np.tanh(h * .5 + x), x[:, 0], 0.0)):
        out, pull = ns.vjp(f, x)
        want, = pull(np.ones_like(out))
        out, pull = ns.vjp(f, x)
        out[...] = 7
        np.testing.assert_array_equal(pull(np.ones_like(out))[0], want)


# -------------------------------------------------------------------------------------------------- dtypes
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_a_dtype_stays(dtype, mode):
    dtype = np.dtype(dtype)
    w, x, h = (RNG.normal(size=s).astype(dtype) for s in (6, (20, 6), 6))

    def model(w, x, h):
        hs, ys = ns.scan(lambda x, h, w: (np.tanh(0.9 * h * w + x / 2 - 1), np.exp(-np.abs(h)) * 3 ** 0.5), x, [h, None], w)
        return np.sum(np.abs(hs[-1]) ** 2) / 2 + np.mean(ys) * 2

    real = np.dtype(dtype.char.lower()) if dtype.kind == "c" else dtype
    value, slopes = ns.value_and_grad(model, argnums=(0, 1, 2))(w, x, h)
    assert value.dtype == real and [s.dtype for s in slopes] == [dtype] * 3
    out, tangent = ns.jvp(model, (w, x, h), (w, x, h))
    assert out.dtype == tangent.dtype == real
    if dtype.kind == "f":
        assert ns.hvp(lambda w: model(w, x, h), w, w).dtype == dtype


@pytest.mark.parametrize(("number", "want"), [(0.5, "f4"), (2, "f4"), (True, "f4"), (np.float32(2), "f4"), (np.float64(2), "f8"),
                                              (np.int64(2), "f8"), (np.int16(2), "f4"), (1j, "c8"), (np.array(0.5), "f8")])
def test_python_numbers_are_weak(number, want, mode):
    x = np.ones(4, "f4")
    plain = (x * number).dtype
    assert plain == np.dtype(want)
    for f in (lambda: ns.map(lambda x: x * number, x), lambda: ns.map(lambda x, c: x * c, x, [number]),
              lambda: ns.scan(lambda x, h: x * number + 0 * h, x, 0), lambda: ns.scan(lambda x, h, c: x * c + 0 * h, x, 0.0, [number])):
        assert f().dtype == plain


@pytest.mark.parametrize("dtype", ["f2", "longdouble", "O", "S3", ">f4", ">i8", ">c16", "M8[s]"])
def test_foreign_dtypes_are_refused_by_name(dtype, mode):
    dtype = np.dtype(dtype)
    if dtype.itemsize == 8 and dtype.kind == "f":
        pytest.skip("longdouble is float64 here")
    bad = np.zeros(5, dtype)
    name = "order of another kind of host; convert it: x.astype" if dtype.str[0] == ">" else re.escape(f"{dtype}")
    ok = np.zeros(5)
    calls = {
        "sequence": lambda: ns.scan(lambda x: x, bad),
        "initial value": lambda: ns.scan(lambda h: h, None, bad, n_steps=2),
        "constant": lambda: ns.map(lambda x, c: x, ok, [bad]),
        "closure": lambda: ns.map(lambda x: x + bad, ok),
        "cast": lambda: ns.map(lambda x: x.astype(dtype), ok),
    }
    frozen = bad.copy()
    frozen.flags.writeable = False
    calls["frozen closure"] = lambda: ns.map(lambda x: x + frozen, ok)
    for what, call in calls.items():
        with pytest.raises(TypeError, match=name) as caught:
            call()
        assert isinstance(caught.value, (ns.errors.DtypeError, ns.errors.UnsupportedError)), what


# ------------------------------------------------------------------------- what a step may not do with arrays
TABLE = np.arange(10.0)


def write_one(x):
    z = np.zeros(3)
    z[0] = x
    return z


def write_slice(x):
    z = np.zeros(3)
    z[:2] = x
    return z


HINTS = {
    "write one": (write_one, r"z\[0\] = x.*to write traced values into an array, make it traced first: z = ns.array\(z\)"),
    "write slice": (write_slice, r"z\[:2\] = x.*make it traced first: z = ns.array\(z\)"),
    "take": (lambda k: np.take(TABLE, k), r"np.take\(ns.array\(table\), k\)"),
    "arange": (lambda k: np.sum(np.arange(k)), r"mask it, np.arange\(n\) < k"),
    "zeros": (lambda k: np.zeros(k), r"a real function got a traced array.*mask it, np.arange\(n\) < k"),
    "ones": (lambda k: np.ones((k, 2)), r"mask it, np.arange\(n\) < k"),
    "roll": (lambda k: np.roll(TABLE, k), r"roll by a traced one is ns.array\(table\)\[\(np.arange\(n\) - k\) % n\]"),
    "repeat": (lambda k: np.repeat(TABLE, k), "count must be known while tracing"),
    "range": (lambda k: sum(range(k)), "ns.scan with n_steps=k"),
}


@pytest.mark.parametrize("name", HINTS)
def test_what_to_write_instead(name):
    if name == "roll" and np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("NumPy 2.0 computes with the shift")
    f, text = HINTS[name]
    with pytest.raises(ns.errors.TracedValueError, match=text) as caught:
        ns.map(f, np.arange(3))
    assert "test_arrays.py:" in str(caught.value)


def test_what_the_hints_recommend(mode):
    k = np.array([2, 0, 1])
    np.testing.assert_array_equal(ns.map(lambda k: np.take(ns.array(TABLE), k), k), TABLE[k])
    np.testing.assert_array_equal(ns.map(lambda k: np.sum(np.where(np.arange(9) < k, TABLE[:9], 0)), k), [1, 0, 0])
    np.testing.assert_array_equal(ns.map(lambda k: np.sum(ns.array(TABLE)[:k]), k), [1, 0, 0])
    np.testing.assert_array_equal(ns.map(lambda k: ns.array(TABLE)[(np.arange(10) - k) % 10], k), [np.roll(TABLE, i) for i in k])


def test_an_array_that_left_its_step_says_where_it_came_from():
    kept = []

    def leak(x, h):
        y = 2 * h  # leak
        kept[:] = [h, y]
        return y + x

    ns.scan(leak, np.ones(3), 0.0)
    line = inspect.getsourcelines(leak)[1] + 1
    with pytest.raises(ns.errors.EscapedError, match=r"^a traced array of shape \(\) left the step 'leak' \(it was an argument of "
                       r"the step\)"):
        kept[0] + 1
    with pytest.raises(ns.errors.EscapedError, match=rf"'leak' \(it was made at .*test_arrays.py:{line}: y = 2 \* h  # leak\); outside "
                       r"it stands for no value. Return it as an output of the step"):
        np.sin(kept[1])
    ns.grad(lambda w: kept.append(w * 2) or w * 3)(1.0)
    with pytest.raises(ns.errors.EscapedError, match=r"left the function that was differentiated; .* return the array too \(see has_aux\)"):
        kept[-1] + 1


def test_strict_sees_numbers_that_shape_the_code():
    half, third, one = 0.5, 1 / 3, np.array(1.0)
    ns.scan(lambda x, h: 0.5 * h + x + 2, np.ones(3), 0.0, strict=True)
    for name, step in {"half": lambda x, h: half * h + x, "third": lambda x, h: third * h + x, "one": lambda x, h: one * h + x}.items():
        with pytest.raises(ns.errors.SpecError, match=f"strict=True, but .* uses what is not among its arguments: {name} "):
            ns.scan(step, np.ones(3), 0.0, strict=True)


def test_methods_with_bounds_and_conditions(mode):
    x = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(ns.map(lambda x: x.compress([True, False, True]), x), x[:, [0, 2]])
    np.testing.assert_array_equal(ns.map(lambda x: x.clip(max=5), x), x.clip(max=5))
    np.testing.assert_array_equal(ns.map(lambda x: x.clip(2, 7), x), x.clip(2, 7))
    with pytest.raises(ns.errors.UnsupportedError, match="np.compress by a traced condition has no fixed shape"):
        ns.map(lambda x: x.compress(x > 1), x)


def test_a_bool_state(mode):
    for start in (True, np.True_, np.array(True)):
        out = ns.scan(lambda h: ~h, None, start, n_steps=3)
        assert out.dtype == bool and out.tolist() == [False, True, False]


def test_a_negative_power_of_an_integer(mode):
    with pytest.raises(ValueError, match=r"^Integers to negative integer powers are not allowed\..*step 1 of"):
        ns.scan(lambda x, h: 2 ** x + 0 * h, np.array([1, -1]), 0)


# ------------------------------------------------------------------------------------------ larger than memory
LARGE = textwrap.dedent("""
    import resource, sys
    import numpy as np
    import nscan as ns

    ns.config.mode = "compiled"

    def step(x, h, w):
        return np.tanh(0.5 * h + x @ w)

    def last(w, x):
        return ns.scan(step, x, np.float32(0), w)[-1]

    def mean(w, x):
        return np.mean(ns.map(lambda x, w: np.tanh(x @ w), x, w))

    w = np.full(1024, 1e-3, "f4")
    few = np.ones((8, 1024), "f4")
    for f in (last, mean):                       # compile first
        f(w, few), ns.grad(f)(w, few)
    x = np.memmap(sys.argv[1], "f4", "r", shape=(65536, 1024))
    for f in (last, mean):
        ns.grad(f)(w, x[:4096])                  # threads and their stacks
    size = 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1])
    resource.setrlimit(resource.RLIMIT_AS, (size + (192 << 20),) * 2)
    try:
        np.empty(200 << 20, np.uint8)
    except MemoryError:
        pass
    else:
        sys.exit("the limit does not hold")
    for f in (last, mean):
        value, slope = ns.value_and_grad(f)(w, x)
        print(float(value), float(slope[0]), float(slope[-1]), slope.dtype)
""")


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_a_memmap_that_does_not_fit_into_memory(tmp_path):
    """256 MB are read where 192 MB may be allocated, threads and their stacks included, forward and backward."""
    file = tmp_path / "large.bin"
    rows = np.linspace(-1, 1, 65536, dtype="f4")
    x = np.memmap(file, "f4", "w+", shape=(65536, 1024))
    x[:] = rows[:, None]
    x.flush()
    done = subprocess.run([sys.executable, "-W", "error", "-c", LARGE, file], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    sums = rows.astype("f8") * 1.024
    h = slope = 0.0
    for s, r in zip(sums, rows.astype("f8")):
        h = np.tanh(0.5 * h + s)
        slope = (1 - h * h) * (0.5 * slope + r)
    for (value, first, last, dtype), want, way in ((found[0], h, slope), (found[1], np.mean(np.tanh(sums)),
                                                   np.mean((1 - np.tanh(sums) ** 2) * rows))):
        assert dtype == "float32"
        np.testing.assert_allclose([float(value), float(first), float(last)], [want, way, way], rtol=1e-3, atol=1e-5)


def test_a_memmap_gives_ordinary_arrays(tmp_path, mode):
    x = np.memmap(tmp_path / "small.bin", "f8", "w+", shape=(6, 3))
    x[:] = np.arange(18).reshape(6, 3)
    for out in (ns.scan(lambda x, h: h + x, x, np.zeros(3)), ns.map(lambda x: x, x), ns.grad(lambda x: np.sum(ns.map(np.sin, x)))(x)):
        assert type(out) is np.ndarray and out.flags.writeable
    np.testing.assert_array_equal(ns.scan(lambda x, h: h + x, x, np.zeros(3)), np.cumsum(x, 0))


def test_the_texts_name_what_they_test():
    assert "RLIMIT_AS" in LARGE and inspect.getsource(step).count("np.tanh") == 1
