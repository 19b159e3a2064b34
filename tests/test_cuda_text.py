"""CUDA text: its helpers mean what the printer means, and it compiles where CUDA's compiler is installed."""

import functools
import re
import shutil
import subprocess

import numba
import numpy as np
import plain
import pytest
from text_cases import gathered, integers, recurrence, two_taps

import nscan as ns
from nscan import source, tree
from nscan.cpu import kernel as kernels
from nscan.cpu import launch
from nscan.explain import explain
from nscan.gpu import helpers
from nscan.plan import scalar


def compile_ptx(text, capability=(9, 0)):
    """PTX of a text."""
    from numba import cuda
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
def test_text_compiles_for_cuda(dtype, toolkit, tmp_path, monkeypatch):
    monkeypatch.setitem(ns.config._assigned, "mode", "python")
    for loop in explain(recurrence(dtype, 5))().loops:
        ptx = compile_ptx(source.cuda_text(kernels.planned(loop.loop, ("cuda",)).program))
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
    return np.array([2, 1, 7, 5, 100] if narrow else [info.max, 1, 12, 18, 7, info.min + 1, 100], dtype)


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


@functools.cache
def compiled(text):
    """The kernel of a text, compiled for the CPU with the helpers of CUDA."""
    space = {name: helpers.helper(name) for name in source.called(text)}
    exec(compile(text, "<program>", "exec"), space)
    return numba.njit(space["kernel"])


@pytest.mark.parametrize("f", [integers, gathered, two_taps], ids=lambda f: f.__name__)
def test_text_is_typed_as_it_is_meant(f, monkeypatch):
    """Programs without libdevice, compiled for the CPU with the helpers of CUDA: Numba's types are those of NumPy."""
    monkeypatch.setitem(ns.config._assigned, "mode", "compiled")
    wanted = tree.flatten(f())[0]
    monkeypatch.setattr(launch, "run_parts", functools.partial(plain.run_parts, make=compiled))
    for x, y in zip(tree.flatten(f())[0], wanted):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_allclose(x, y, rtol=1e-14)


def test_formulas_of_cuda():
    """Sigmoid and softplus as they are composed for CUDA, with NumPy in place of libdevice."""
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
    with pytest.raises(ns.errors.KernelError, match="the CUDA target has no libcall of f8"):
        helpers.helper("libcall_f8")


def test_every_operation_has_an_operator_or_a_helper():
    known = {*source.OPERATORS, "select", "cast", "from_bits"}  # the last is in the list and made by nothing
    missing = []
    for op in sorted((scalar.PRIMITIVES | scalar.MATH) - known):
        for dtype in ("f8", "i8"):
            try:
                helpers.helper(f"{op}_{dtype}")
                break
            except ns.errors.KernelError:
                continue
        else:
            missing.append(op)
    assert not missing
