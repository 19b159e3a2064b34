"""The text of loop programs: run as plain Python it does what the kernel does; as CUDA it runs in a simulator, and compiles."""

import collections
import hashlib
import os
import re
import shutil
import subprocess
import sys

import minisim
import numpy as np
import plain
import pytest
import scipy.special

import nscan as ns
from nscan import source, tree
from nscan.cpu import launch, llvm, run
from nscan.explain import explain


# ----------------------------------------------------------------------------------------------------- loops
def draw(*shape, dtype="f8"):
    """Numbers between -1 and 1, the same each time."""
    return np.random.default_rng(sum(shape) + len(shape)).uniform(-1, 1, shape).astype(dtype)


def scalar_state():
    return ns.scan(lambda r, v: 0.1 + 0.2 * r * r + 0.7 * v, draw(9), 0.5)


def vector_state():
    return ns.scan(lambda x, h, b: np.tanh(0.5 * h + x) * b, draw(6, 21, dtype="f4"), draw(21, dtype="f4"), draw(21, dtype="f4"))


def written_in_place():
    def step(x, k, table):
        table[k % 5] += x
        table[1:3] *= 0.5
        return k + 1, table
    return ns.scan(step, draw(8), [0, np.zeros((5, 12))])


def gathered(last=11):
    table = draw(12, 3)
    return ns.map(lambda k: ns.array(table)[k] + table.sum(), np.array([0, -1, 5, last]))


def small_algebra():
    def step(a, x):
        a = a + 3 * np.eye(3)
        return np.linalg.solve(a, x) + np.linalg.det(a) * a[0]
    return ns.scan(step, draw(5, 3, 3), np.ones(3))


def products():
    return ns.scan(lambda x, h, w, u: np.tanh(x @ w + h @ u), draw(7, 3, 19), np.zeros((3, 13)), [draw(19, 13), draw(13, 13)])


def reductions():
    def step(x, h):
        y = x * h
        return h + y.max(), y.sum(), np.argmin(y), (y > 0).any(), np.prod(y, axis=-1)
    return ns.scan(step, draw(5, 11, 21), [draw(11, 21), None, None, None, None])


def until():
    def step(k, y):
        return (k + 1, y * 1.5), ns.until(y > 20)
    rows = ns.scan(step, outputs_info=[0, 1.0], n_steps=50)
    return rows, ns.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 2, c[1] * c[0]), (0, 1.5))


def conditional():
    return ns.scan(lambda x, h: ns.cond(h.sum() > x, lambda h: h * 0.5 - 1, lambda h: h + np.abs(x), h), draw(9), np.ones(14))


def nested():
    def outer(x, h):
        inner = ns.scan(lambda a, s: s * 0.5 + a * h, x, np.zeros(10))
        return h + inner[-1].sum() * 0.1
    return ns.scan(outer, draw(4, 6, 10), 0.3)


def integers():
    def step(k, n, flag):
        wide = (n << 3) ^ (k.astype("i8") >> 1)
        narrow = k * np.int16(300) // np.int16(7) - (k % np.int16(5)) ** 3
        return (wide + narrow) % 1000, np.logical_xor(flag, ~(k > 0)), narrow, (k.astype("u1") + np.uint8(250)) // np.uint8(3)
    return ns.scan(step, np.arange(-6, 7, dtype="i2") * 37, [np.int64(5), np.True_, None, None])


def complex_numbers():
    z = draw(6, 12) + 1j * draw(6, 12)[::-1]
    return ns.scan(lambda a, h: np.exp(a * np.tanh(h)) / (2 + h) + np.conj(a), z, z[0])


def backwards():
    return ns.loop(lambda c, x: (np.minimum(c + x, x), c), draw(9), draw(6, 9), reverse=True)


def gradient():
    def loss(w, h0, x):
        h = ns.scan(lambda x, h, w: np.tanh(x * w[0] + h * w[1] + w[2]), x, h0, w)
        return np.sum(h * h)
    return ns.value_and_grad(loss, argnums=(0, 1, 2))(draw(3, 17), draw(17), draw(6, 17))


def gradient_of_products():
    def loss(w, u):
        return np.sum(ns.scan(lambda x, h, w, u: np.tanh(x @ w + h @ u), draw(7, 3, 19), np.zeros((3, 13)), [w, u])[-1])
    return ns.value_and_grad(loss, argnums=(0, 1))(draw(19, 13), draw(13, 13))


def mathematics(dtype="f8"):
    def step(x, h):
        y = np.sqrt(np.abs(x)) + np.floor(3 * x) * np.sin(x) + np.hypot(x, h) + np.copysign(0.5, x)
        z = np.log1p(np.exp(y)) + np.arctan2(x, h) + np.maximum(x, h) ** 3 + np.cbrt(x) + scipy.special.expit(x) + np.fmod(x, 0.3)
        return np.where(np.signbit(x), np.expm1(-z), np.cosh(x)) * 0.25
    return ns.scan(step, draw(4, 10, dtype=dtype), draw(10, dtype=dtype))


def single_precision():
    return mathematics("f4")


def libraries():
    def step(a, h):
        return np.sort(a[:, 0] * h) + np.linalg.solve(a + 12 * np.eye(12), h) + scipy.special.erfcx(h[0])
    return ns.scan(step, draw(3, 12, 12), draw(12))


LOOPS = (scalar_state, vector_state, written_in_place, gathered, small_algebra, products, reductions, until, conditional, nested,
         integers, complex_numbers, backwards, gradient, gradient_of_products, mathematics, single_precision, libraries)


@pytest.fixture(autouse=True)
def settings():
    """Put the settings back after each test."""
    assigned = dict(ns.config._assigned)
    yield
    ns.config._assigned.clear()
    ns.config._assigned.update(assigned)


def in_mode(mode, f, *args):
    """Leaves of what a function returns in a mode."""
    ns.config.mode = mode
    return [np.asarray(x) for x in tree.flatten(f(*args))[0]]


def in_text(f, *args):
    """Leaves of what a function returns where printed programs run in place of kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_parts", plain.run_parts)
        return in_mode("compiled", f, *args)


def agree(got, want, ulps):
    """Equal types and shapes; equal integers, floats within some ulps of the largest of them."""
    assert len(got) == len(want)
    for x, y in zip(got, want):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if x.dtype.kind in "fc":
            assert np.max(np.abs(x - y), initial=0) <= ulps * np.finfo(x.dtype).eps * np.max(np.abs(y), initial=0)
        else:
            assert np.array_equal(x, y)


# -------------------------------------------------------------------------------------------------- as Python
@pytest.mark.parametrize("f", LOOPS, ids=lambda f: f.__name__)
def test_text_does_what_the_kernel_does(f):
    text, kernel = in_text(f), in_mode("compiled", f)
    agree(text, kernel, 64)
    agree(text, in_mode("python", f), 256)


def test_text_runs_parts_of_the_lanes_and_steps(monkeypatch):
    """A call in several parts: lanes of a recurrence, steps of a map, each with a sum of its own."""
    x = draw(6, 40)

    def loss(w):
        last = ns.scan(lambda x, h, w: np.tanh(w * h + x), x, np.zeros(40), w)[-1]
        return np.sum(last) + np.sum(ns.map(lambda r: np.exp(w * r[0]), x))
    monkeypatch.setattr(run, "WORTH", 40)
    seen = []
    monkeypatch.setattr(plain, "program_at", lambda address, found=plain.program_at: seen.append(address) or found(address))
    text = in_text(ns.value_and_grad(loss), 0.7)
    assert len(seen) >= 3
    agree(text, in_mode("compiled", ns.value_and_grad(loss), 0.7), 64)


def test_text_reports_the_failure_of_the_kernel():
    found, said = [], "index 12 is out of bounds for an axis with size 12 .step 3"
    for how in (in_text, lambda f, *args: in_mode("compiled", f, *args)):
        with pytest.raises(ns.errors.IndexRangeError, match=said) as caught:
            how(gathered, 12)
        found.append(str(caught.value))
    assert found[0] == found[1]


def test_codes_of_failures_are_those_of_the_kernels():
    assert source.REASONS == llvm.REASONS


PRINT = """
import hashlib, sys
import nscan as ns
ns.config.mode = "python"
import test_text
print(test_text.digest())
"""


def texts():
    """The texts of all loops, in both dialects, planned and not compiled."""
    ns.config.mode = "python"
    for f in LOOPS:
        for loop in explain(f)().loops:
            yield loop.text
            if loop.program.lane and f is not libraries:
                yield source.cuda_text(loop.program)


def digest():
    return hashlib.sha256("".join(texts()).encode()).hexdigest()


def test_text_is_the_same_in_every_process():
    path = os.pathsep.join(sys.path)
    for seed in ("1", "2"):
        done = subprocess.run([sys.executable, "-c", PRINT], env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == digest()


def test_values_that_nobody_reads_are_not_printed():
    """What a text assigns it reads."""
    for text in texts():
        seen = collections.Counter(re.findall(r"\bv\d+\b", text))
        assert not [name for name, count in seen.items() if count == 1]


# ---------------------------------------------------------------------------------------------------- as CUDA
def recurrence(dtype, lanes):
    """Value and derivatives of a tanh recurrence with parameters for each lane and for all."""
    def loss(a, b, scale, h0, x):
        h = ns.scan(lambda x, h, a, b, scale: np.tanh(a * h + x) * scale + b, x, h0, [a, b, scale])
        return np.sum(h[-1] * h[0])
    args = draw(lanes, dtype=dtype), draw(lanes, dtype=dtype) * 2, np.dtype(dtype).type(0.8), draw(lanes, dtype=dtype)
    return lambda: ns.value_and_grad(loss, argnums=(0, 1, 2, 3, 4))(*args, draw(6, lanes, dtype=dtype))


def simulated(f, seed, threads=4):
    """Leaves of what a function returns where each lane is a thread of the simulator."""
    def divide(kernel, n):
        lanes = kernel.program.lane
        return np.array([(0, n, k, k + 1) for k in range(lanes)], np.int64), True

    def run_parts(_, address, parts, each, status, block):
        text = source.cuda_text(plain.program_at(address))
        n, steps = len(parts), parts[0, 1]
        args = (n, steps, np.int64(each), np.int64(status.ctypes.data), block)
        with np.errstate(all="ignore"):
            minisim.launch(text, plain.namespace(text), -(-n // threads), threads, args, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "divide", divide)
        patch.setattr(launch, "run_parts", run_parts)
        return in_mode("compiled", f)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_threads_of_lanes_do_what_the_kernel_does(dtype):
    for lanes in (9, 10, 13):
        kernel = in_mode("compiled", recurrence(dtype, lanes))
        runs = [simulated(recurrence(dtype, lanes), seed) for seed in (None, 1, 2)]
        agree(runs[0], kernel, 64)
        for other in runs[1:]:
            assert all(np.array_equal(x, y) for x, y in zip(runs[0], other))


def test_products_of_lanes_run_in_blocks_of_steps(monkeypatch):
    """Values that are kept for a block of steps: the kernel goes through the blocks one after another."""
    def f():
        return ns.scan(lambda x, h, w, u: np.tanh(x @ w + h @ u), draw(7, 9, 19), np.zeros((9, 13)), [draw(19, 13), draw(13, 13)])
    kernel = in_mode("compiled", f)
    for found in run._KERNELS.values():
        monkeypatch.setattr(found, "steps_of_block", min(found.steps_of_block, 3))
    agree(simulated(f, 3), kernel, 64)


def test_loops_that_no_gpu_can_run_are_refused():
    ns.config.mode = "python"
    with pytest.raises(ns.errors.KernelError, match="no axis along which it is independent"):
        source.cuda_text(explain(scalar_state)().loops[0].program)
    sorted_rows = explain(lambda: ns.map(np.sort, draw(3, 40, 12)))().loops[0].program
    assert sorted_rows.lane
    with pytest.raises(ns.errors.KernelError, match="calls a routine of a CPU library"):
        source.cuda_text(sorted_rows)


SHIFT = """
def kernel(a, b, n):
    i = cuda.grid(1)
    st_i8(a + i8(8) * i8(i), i8(10) * i8(i))
    {barrier}
    st_i8(b + i8(8) * i8(i), ld_i8(a + i8(8) * i8((i + 1) % n)))
"""


def test_simulator_notices_a_missing_barrier():
    wanted = np.arange(1, 9) % 8 * 10
    for barrier, right in (("cuda.syncthreads()", True), ("pass", False)):
        text = SHIFT.format(barrier=barrier)
        results = []
        for seed in range(4):
            a, b = np.full(8, -1), np.full(8, -1)
            minisim.launch(text, plain.namespace(text), 1, 8, (a.ctypes.data, b.ctypes.data, 8), seed)
            results.append(np.array_equal(b, wanted))
        assert all(results) is right


def test_simulator_notices_a_barrier_that_not_all_reach():
    text = SHIFT.format(barrier="if i < 5: cuda.syncthreads()")
    a, b = np.zeros(8, np.int64), np.zeros(8, np.int64)
    with pytest.raises(minisim.SimulatorError, match="5 threads wait at lines .*, 3 have ended"):
        minisim.launch(text, plain.namespace(text), 1, 8, (a.ctypes.data, b.ctypes.data, 8))


# --------------------------------------------------------------------------------------------- compiled CUDA
def compile_ptx(text, capability=(9, 0)):
    """PTX of a text."""
    from numba import cuda

    from nscan.gpu import helpers
    kernel = helpers.kernel(text)
    found, _ = cuda.compile(kernel, helpers.kernel_signature(), device=False, abi="numba", cc=capability, output="ptx")
    return found.decode() if isinstance(found, bytes) else found


@pytest.fixture(scope="module")
def toolkit():
    """Skip where CUDA's compiler is not installed."""
    try:
        compile_ptx("def kernel(n, steps, each, status, block):\n    pass\n")
    except Exception as error:
        pytest.skip(f"CUDA's compiler cannot be used here: {type(error).__name__}")


def assemble(ptx, folder):
    """What ptxas says: registers, spills, stack."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("compiled to PTX; ptxas is not installed")
    (folder / "kernel.ptx").write_text(ptx)
    command = [ptxas, "-arch=sm_90", "-v", folder / "kernel.ptx", "-o", folder / "kernel.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_text_compiles_for_cuda(dtype, toolkit, tmp_path):
    ns.config.mode = "python"
    for loop in explain(recurrence(dtype, 9))().loops:
        ptx = compile_ptx(source.cuda_text(loop.program))
        if dtype == "f4":
            assert not re.findall(r"\b(?:[a-z]+\.)+f64\b", ptx), "a float32 kernel computes in float64"
        said = assemble(ptx, tmp_path)
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
        assert int(re.search(r"Used (\d+) registers", said).group(1)) <= 64


INTEGERS = ("int_div", "int_rem", "shl", "shr", "max", "min", "int_power", "int_gcd", "int_lcm", "abs", "bit_count")
PAIRS = {*INTEGERS[:9], "atan2", "pow", "hypot", "fmod", "nextafter", "copysign"}
COUNTED = ("shl", "shr", "int_power", "int_div", "int_rem")


def call_text(name, out, first, second):
    """A line that stores what a helper makes of numbers at two addresses."""
    op, _, dtype = name.rpartition("_")
    operand, result = (op[5:], dtype) if op.startswith("cast_") else (dtype, {"signbit": "b1", "bit_count": "u1"}.get(op, dtype))
    count = 3 if op == "fma" else 2 if op in PAIRS else 1
    args = ", ".join(f"ld_{operand}({at})" for at in (first, second, first)[:count])
    return f"st_{result}({out}, {name}({args}))"


def float_names():
    from nscan.gpu import helpers
    return [f"{op}_{d}" for d in ("f4", "f8") for op in sorted({*helpers.LIBDEVICE, *helpers.FORMULAS, "max", "min", "signbit"})]


def plain_names():
    """Helpers that need no library of CUDA."""
    names = [f"{op}_{d}" for d in ("i2", "i8", "u4") for op in INTEGERS if d[0] == "i" or op != "abs"]
    names += [f"{op}_{d}" for d in ("f4", "f8") for op in ("max", "min", "signbit")]
    kinds = ("f4", "f8", "b1", "i1", "i8", "u2", "u8")
    return [*names, "bits_i8", *[f"cast_{a}_{b}" for a in kinds for b in kinds if a != b]]


def test_every_helper_compiles_for_cuda(toolkit):
    """Each operation of the scalar language has a helper on CUDA, for the dtypes it may have."""
    names = [*float_names(), *plain_names()]
    lines = [call_text(name, f"status + i8({8 * k})", "status", "status") for k, name in enumerate(names)]
    lines = ["def kernel(n, steps, each, status, block):", *lines, "fail(status, i8(1), n, i8(2), n, n)"]
    assert ".entry" in compile_ptx("\n    ".join(lines) + "\n")


def samples(dtype, narrow):
    """Numbers to try an operation on: the ends of the range too, unless it is a cast or has a count or an exponent."""
    if dtype[0] == "f":
        return np.array([0.0, 1.5, 2.5, 100.75, 7.0] + ([] if narrow else [-0.0, -3.5, np.nan, np.inf]), dtype)
    if dtype == "b1":
        return np.array([True, False])
    info = np.iinfo(dtype)
    return np.array([1, 2, 7, 5, 100] if narrow else [info.max, 1, 12, 18, 7, info.min + 1, 100], dtype)


def trial(name, start):
    """What a helper is tried on: lines of text that use three addresses from a number on, operands, and room for results."""
    op, _, dtype = name.rpartition("_")
    cast = op.startswith("cast_")
    operand = op[5:] if cast else dtype
    first = samples(operand, cast)
    second = np.resize(samples(operand, True), len(first)) if op in COUNTED else first[::-1].copy()
    if op in ("shl", "shr"):
        second = second % np.array(8 * second.itemsize, second.dtype)
    at = [f"block[{start + k}] + j * i8({size})" for k, size in enumerate((8, first.itemsize, first.itemsize))]
    return [f"for j in range(i8(0), i8({len(first)})):", f"    {call_text(name, *at)}"], (np.zeros(len(first)), first, second)


@pytest.mark.parametrize("group", ["operations", "casts"])
def test_helpers_of_cuda_mean_what_the_printer_means(group):
    """Those without libdevice run on the CPU too: the same text, compiled with them and uncompiled."""
    import numba

    from nscan.gpu import helpers
    names = [name for name in plain_names() if name.startswith("cast_") is (group == "casts")]
    trials = [trial(name, 3 * k) for k, name in enumerate(names)]
    text = "\n    ".join(["def kernel(block):", *[line for lines, _ in trials for line in lines]]) + "\n"
    block = np.array([x.ctypes.data for _, arrays in trials for x in arrays])
    space = {name: helpers.helper(name) for name in source.called(text)}
    exec(compile(text, "<helpers>", "exec"), space)
    results = []
    for kernel in (plain.function(text), numba.njit(space["kernel"])):
        with np.errstate(all="ignore"):
            kernel(block)
        results.append([arrays[0].view("u8").tolist() for _, arrays in trials])
    wrong = [name for name, x, y in zip(names, *results) if x != y]
    assert not wrong, wrong


def test_formulas_of_cuda():
    """Sigmoid and softplus as they are composed for CUDA, with NumPy in place of libdevice."""
    from nscan.gpu import helpers

    class Functions:
        one, add, div, neg = 1.0, np.add, np.divide, np.negative

        def __call__(self, name, x):
            return getattr(np, name)(x)

        def positive(self, x):
            return np.where(x < 0, 0, x)
    x = np.array([-800.0, -40, -1, 0, 0.5, 30, 800, np.nan])
    with np.errstate(all="ignore"):
        for name, formula in helpers.FORMULAS.items():
            np.testing.assert_allclose(formula(Functions(), x), plain.FUNCTIONS[name](x), rtol=1e-15)


def test_what_cuda_has_no_helper_for_is_an_error():
    from nscan.gpu import helpers
    with pytest.raises(ns.errors.KernelError, match="the CUDA target has no libcall of f8"):
        helpers.helper("libcall_f8")
