"""Kernels at run time: what compiles again and what does not, the cache, threads, forks, failures."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import conftest
import numba
import numpy as np
import pytest

import nscan as ns
from nscan import build
from nscan.cpu import kernel as kernels
from nscan.cpu import launch

COMPILED = []


@pytest.fixture(autouse=True)
def compiled_mode(tmp_path, monkeypatch):
    """Run compiled, with a kernel folder of one's own, and count what is compiled."""
    monkeypatch.setenv("NSCAN_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("NSCAN_MODE", "compiled")
    COMPILED.clear()
    real = build.build_text

    def counting(name, text):
        if name not in sys.modules:
            COMPILED.append(name)
        return real(name, text)
    monkeypatch.setattr(build, "build_text", counting)


def ewma(x, alpha):
    """Smooth along the first axis."""
    return ns.scan(lambda row, y: y + alpha * (row - y), x, np.zeros(x.shape[1:]))


def reference(x, alpha):
    """The same by a plain loop."""
    y, out = np.zeros(x.shape[1:]), []
    for row in x:
        y = y + alpha * (row - y)
        out.append(y)
    return np.array(out)


# --------------------------------------------------------------------------------------------- the two keys
def test_numbers_and_batch_sizes_compile_once():
    """100 values of a captured number and 20 batch sizes are arguments of one kernel."""
    rng = np.random.default_rng(0)
    special = [0.5, 0.3, 1.0, 2.0, 0.5]
    x = rng.standard_normal((6, 12))
    for alpha in special:
        np.testing.assert_allclose(ewma(x, alpha), reference(x, alpha), rtol=1e-13, atol=1e-13)
    several = len(COMPILED)
    assert several <= 4, "0.5, 1 and 2 shape the code, and all other numbers share one kernel"
    for alpha in rng.uniform(0.01, 0.49, 100):
        np.testing.assert_allclose(ewma(x, alpha), reference(x, alpha), rtol=1e-13, atol=1e-13)
    for batch in rng.permutation(np.arange(2, 101))[:20]:
        y = rng.standard_normal((5, int(batch)))
        np.testing.assert_allclose(ewma(y, 0.3), reference(y, 0.3), rtol=1e-13, atol=1e-13)
    # A batch of up to 8 is unrolled only where it is no lane; here it is one.
    assert len(COMPILED) == several


def test_lengths_and_directions_compile_once():
    """The number of steps, the length of the sequence and its direction are arguments."""
    def total(x, **options):
        return ns.scan(lambda v, y: 0.5 * y + np.arcsinh(v), x, 0.0, **options)
    first = total(np.arange(5.0))
    assert first.shape == (5,) and len(COMPILED) == 1
    for options in ({"n_steps": 2}, {"n_steps": 0}, {"go_backwards": True}, {"n_steps": 1, "go_backwards": True}):
        total(np.arange(7.0), **options)
    total(np.arange(40.0)[::3])
    assert len(COMPILED) == 1


def test_layouts_compile_once():
    """Fortran order, strides, negative strides and broadcast inputs use one kernel and give the same numbers."""
    def run_it(x):
        return ns.scan(lambda row, y: 0.3 * y + np.arctan(row), x, np.zeros(x.shape[1:]))
    x = np.random.default_rng(1).standard_normal((6, 20))
    wide = np.zeros((6, 40))
    wide[:, ::2] = x
    want = run_it(x)
    for same in (np.asfortranarray(x), wide[:, ::2], x[::-1][::-1], np.ascontiguousarray(x[:, ::-1])[:, ::-1]):
        np.testing.assert_array_equal(run_it(same), want)
    flat = np.broadcast_to(x[0], (6, 20))
    np.testing.assert_array_equal(run_it(flat), run_it(np.array(flat)))
    assert len(COMPILED) == 1


# ------------------------------------------------------------------------------------------------ the cache
PROGRAM = textwrap.dedent("""
    import numpy as np, nscan as ns
    from nscan import build
    out = ns.scan(lambda x, y: np.tanh(0.5 * y + x), np.linspace(0, 1, 9), 0.0)
    name = next(n for n in __import__("sys").modules if n.startswith(build.PREFIX))
    kernel = __import__("sys").modules[name].kernel
    print(name, int(kernel.cache_hits), repr(float(out[-1])))
""")


def run_program(folder, text=PROGRAM, **environment):
    """Run a program in a process of its own and return what it prints."""
    env = {**os.environ, "NSCAN_CACHE_DIR": str(folder), **environment}
    done = subprocess.run([sys.executable, "-W", "error", "-c", text], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_second_process_uses_the_cache(tmp_path):
    """The second process loads what the first compiled; the folder is private."""
    first = run_program(tmp_path / "k")
    second = run_program(tmp_path / "k")
    assert first[0] == second[0] and first[2] == second[2]
    assert first[1] == "0" and second[1] == "1"
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o700


def test_the_name_covers_the_emitter(monkeypatch):
    """A change in what emits code gives another name, since Numba's own cache would reuse the old code."""
    before = build.kernel_name("((), (), ())", ("fma",))
    monkeypatch.setattr(build, "_EMITTER_HASH", ["another"])
    assert build.kernel_name("((), (), ())", ("fma",)) != before


def test_the_name_covers_the_level_of_optimisation():
    """A kernel compiled without optimisations is another file."""
    before = build.kernel_name("((), (), ())", ("fma",))
    with conftest.without_optimisations():
        assert build.kernel_name("((), (), ())", ("fma",)) != before


def test_the_emitter_hash_reads_the_sources(monkeypatch, tmp_path):
    """The hash is that of the files: editing a spelling changes it."""
    import shutil
    root = tmp_path / "nscan"
    shutil.copytree(os.path.dirname(build.__file__), root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(build, "__file__", str(root / "build.py"))
    monkeypatch.setattr(build, "_EMITTER_HASH", [])
    first = build.emitter_hash()
    spelling = root / "ops" / "pointwise.py"
    spelling.write_text(spelling.read_text().replace('"a + b"', '"b + a"'))
    monkeypatch.setattr(build, "_EMITTER_HASH", [])
    assert build.emitter_hash() != first


def test_a_damaged_cache_is_rebuilt(tmp_path):
    """Broken index, broken code and a broken source file are replaced."""
    folder = tmp_path / "k"
    first = run_program(folder)
    for file in (folder / "__pycache__").iterdir():
        file.write_bytes(b"damage")
    assert run_program(folder)[2] == first[2]
    (folder / f"{first[0]}.py").write_text("not python (")
    assert run_program(folder)[2] == first[2]


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of posix")
def test_a_folder_that_cannot_be_used(tmp_path):
    """Without a folder kernels live in memory."""
    (tmp_path / "file").write_text("in the way")
    assert run_program(tmp_path / "file" / "k")[1:] == ["0", run_program(tmp_path / "k")[2]]


def test_concurrent_processes(tmp_path):
    """Several processes that start with an empty folder all succeed."""
    env = {**os.environ, "NSCAN_CACHE_DIR": str(tmp_path / "k")}
    running = [subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outs = [p.communicate()[0].split()[2] for p in running]
    assert len(set(outs)) == 1 and all(p.returncode == 0 for p in running)


def test_the_folder_is_bounded(monkeypatch):
    """The oldest kernels go when the folder grows beyond its size."""
    monkeypatch.setenv("NSCAN_CACHE_BYTES", "1")
    ns.scan(lambda x, y: y + np.cos(x), np.arange(3.0), 0.0)
    where = build.folder()
    ns.scan(lambda x, y: y + np.sin(2 * x), np.arange(3.0), 0.0)
    assert len(list(where.glob("*.py"))) <= 1


def test_emission_is_the_same_in_two_processes(tmp_path):
    """The text of a kernel does not depend on hashes or addresses of a process."""
    names = {run_program(tmp_path / f"k{k}", PYTHONHASHSEED=str(k))[0] for k in range(2)}
    assert len(names) == 1


# --------------------------------------------------------------------------------------- threads and forks
def big_rnn():
    """A loop that is large enough for several parts of lanes."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((60, 64, 16)).astype(np.float32)
    w, u = (rng.standard_normal((16, 96)) * 0.3).astype(np.float32), (rng.standard_normal((96, 96)) * 0.1).astype(np.float32)
    h0 = np.zeros((64, 96), np.float32)

    def loss(w, u):
        return np.sum(ns.scan(lambda x, h, w, u: np.tanh(x @ w + h @ u), x, h0, [w, u]) ** 2)
    return ns.value_and_grad(loss, (0, 1)), w, u


def test_parts_and_threads_give_the_same_bits():
    """One thread and two give the same bits; the loop is really divided."""
    f, w, u = big_rnn()
    before = numba.get_num_threads()
    seen = []
    real = launch.run_parts

    def spy(run):
        seen.append(len(run.parts))
        return real(run)
    try:
        launch.run_parts = spy
        results = []
        for threads in (1, min(2, before)):
            numba.set_num_threads(threads)
            results.append(f(w, u))
    finally:
        launch.run_parts = real
        numba.set_num_threads(before)
    assert max(seen) > 1
    (a, ga), (b, gb) = results
    assert a == b and all(np.array_equal(p, q) for p, q in zip(ga, gb))


def test_four_threads_at_once():
    """Python threads may call the same parallel kernel at the same time."""
    f, w, u = big_rnn()
    want = f(w, u)
    results = [None] * 4

    def work(k):
        for _ in range(3):
            results[k] = f(w, u)
    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    for value, gradient in results:
        assert value == want[0] and np.array_equal(gradient[0], want[1][0])


def _child(queue):
    f, w, u = big_rnn()
    queue.put(float(f(w, u)[0]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_after_a_parallel_call():
    """A forked child runs its parts one after another."""
    f, w, u = big_rnn()
    want = float(f(w, u)[0])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    assert queue.get(timeout=120) == want
    child.join(20)
    assert child.exitcode == 0


def square_sum(x):
    """A function that can be pickled."""
    return np.sum(ns.scan(lambda v, y: 0.5 * y + v * v, x, 0.0))


def test_pickling():
    """grad(f) travels if f does."""
    g = pickle.loads(pickle.dumps(ns.grad(square_sum)))
    x = np.array([0.3, -0.2, 0.5])
    np.testing.assert_array_equal(g(x), ns.grad(square_sum)(x))


# ------------------------------------------------------------------------------------------- inside a kernel
ALLOCATIONS = textwrap.dedent("""
    import numpy as np, nscan as ns
    from numba.core.runtime import rtsys
    a = np.random.default_rng(3).standard_normal((50, 3, 3)) + 4 * np.eye(3)
    call = lambda: ns.scan(lambda m, v: np.linalg.solve(m, v) + np.sort(v), a, np.ones(3))
    call()
    before = rtsys.get_allocation_stats()
    call()
    after = rtsys.get_allocation_stats()
    print(after.alloc - before.alloc, after.mi_alloc - before.mi_alloc)
""")


def test_nothing_is_allocated_in_a_kernel(tmp_path):
    """Numba's allocation counters do not move while a kernel runs."""
    assert run_program(tmp_path / "k", ALLOCATIONS, NUMBA_NRT_STATS="1") == ["0", "0"]


def test_the_first_failure_is_reported():
    """Of several failures the first step counts; the arrays are usable afterwards."""
    x, k = np.arange(4.0), np.array([0, 3, 9, -7, 2])
    with pytest.raises(IndexError, match=r"index 9 is out of bounds.*step 2"):
        ns.scan(lambda i, table: table[i], k, None, x)
    np.testing.assert_array_equal(ns.scan(lambda i, table: table[i], k[:2], None, x), [0, 3])


def test_failure_in_the_second_part():
    """A failure in a later part of a divided map is reported with its own step."""
    n = 200_000
    k = np.zeros(n, np.int64)
    k[150_001] = 11
    table = np.arange(5.0)
    with pytest.raises(IndexError, match="index 11 .*step 150001"):
        ns.map(lambda i, t: np.exp(np.tanh(t[i])) + np.log(t[i] + 2), k, table)


def test_kernels_are_kept():
    """The second call of a structure neither plans nor compiles."""
    x = np.arange(5.0)
    ewma(x, 0.3)
    count, compiled = len(kernels._KERNELS), len(COMPILED)
    ewma(x + 1, 0.4)
    assert len(kernels._KERNELS) == count and len(COMPILED) == compiled


def test_ctrl_c_is_heard_in_a_long_run(tmp_path):
    """An interrupt ends a run after the block at hand, and leaves everything usable."""
    code = textwrap.dedent("""
        import os, signal, threading, time
        import nscan as ns
        f = lambda n: ns.scan(lambda x: 1.5 * x * (1 - x), None, 0.3, n_steps=n)
        before = f(5)
        sent = []
        def interrupt():
            time.sleep(0.3)
            sent.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            while True:
                f(50_000_000)
        except KeyboardInterrupt:
            waited = time.perf_counter() - sent[0]
        assert (f(5) == before).all()
        print("interrupted", waited < 5)
    """)
    env = {**os.environ, "NSCAN_CACHE_DIR": str(tmp_path), "NSCAN_MODE": "compiled"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "interrupted True", done.stderr
