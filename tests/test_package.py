"""The package: its public names, what it ships, and what importing it costs and touches."""

import importlib.metadata
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

import pytest

import nscan as ns

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = pathlib.Path(ns.__file__).parent


def python(code, **environment):
    """Run code in a fresh interpreter that finds this nscan; return what it prints."""
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parent), **environment}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------------------------------------- what it is
def test_public_names():
    """`__all__` is sorted as a set of names that exist; everything public is in it or is a module."""
    assert len(set(ns.__all__)) == len(ns.__all__)
    assert all(hasattr(ns, name) for name in ns.__all__)
    public = {name for name, x in vars(ns).items() if not name.startswith("_") and not is_module_of_nscan(x)}
    assert public - {"PackageNotFoundError", "version"} == {*ns.__all__} - {"errors", "random"}


def is_module_of_nscan(x):
    """Tell whether a value is a module of the package."""
    return getattr(x, "__spec__", None) is not None


def test_public_names_have_docstrings():
    """Every public name says what it is."""
    assert [name for name in ns.__all__ if not getattr(ns, name).__doc__] == []


def test_version():
    """The version is that of the metadata, in three numbers."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", ns.__version__)
    written = re.search(r"^version = (.*)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE).group(1)
    assert ns.__version__ in (written, "0.0.0")


def test_files_are_shipped():
    """The marker of typed packages and the novel lie in the package."""
    assert (FOLDER / "py.typed").exists()
    assert (FOLDER / "data" / "persuasion.txt").stat().st_size > 400_000


def test_metadata():
    """The installed package declares its extras, its licence and what it needs."""
    try:
        found = importlib.metadata.metadata("nscan")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nscan is not installed, it is used from its folder")
    assert {"main", "test", "docs"} <= set(found.get_all("Provides-Extra"))
    assert "BSD-3-Clause" in (found.get("License-Expression") or found.get("License"))
    shipped = {str(file) for file in importlib.metadata.files("nscan")}
    assert {"nscan/py.typed", "nscan/data/persuasion.txt"} <= shipped or "nscan/__init__.py" not in shipped
    needs = [line for line in found.get_all("Requires-Dist") if "extra ==" not in line]
    assert {re.match(r"[\w-]+", line).group() for line in needs} == {"numpy", "numba", "llvmlite", "scipy",
                                                                     "platformdirs"}


# ------------------------------------------------------------------------------------- what importing it does
TIME_IMPORT = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"


def test_import_time():
    """`import nscan` costs at most 0.15 s more than `import numba` (medians of processor time)."""
    for name in ("numba", "nscan"):
        python(TIME_IMPORT.format(name))
    times = {"numba": [], "nscan": []}
    for _ in range(7):
        for name, found in times.items():
            found.append(float(python(TIME_IMPORT.format(name))))
    numba, nscan = [statistics.median(found) for found in times.values()]
    assert nscan - numba <= 0.15


RECORD = """
import collections.abc, json, os
import llvmlite.binding, numba, numpy

class Recorder(collections.abc.MutableMapping):
    def __init__(self, real):
        self.real, self.seen = real, []
    def __getitem__(self, name):
        self.seen.append(name)
        return self.real[name]
    def __setitem__(self, name, value):
        self.seen.append(name)
        self.real[name] = value
    def __delitem__(self, name):
        self.seen.append(name)
        del self.real[name]
    def __iter__(self):
        self.seen.append("everything")
        return iter(self.real)
    def __len__(self):
        return len(self.real)

recorder = os.environ = Recorder(os.environ)
os.getenv = lambda name, default=None: recorder.get(name, default)
import nscan
at_import = list(recorder.seen)
nscan.config.mode
print(json.dumps([at_import, recorder.seen]))
"""


def test_import_reads_no_environment():
    """Settings are read when they are used, not at import."""
    at_import, later = json.loads(python(RECORD, PYTHONDONTWRITEBYTECODE="1"))
    assert at_import == []
    assert later == ["NSCAN_MODE"]


UNWANTED = ("scipy", "tqdm", "matplotlib", "numba.cuda", "platformdirs", "nscan.demo", "nscan.gpu")


def test_import_touches_little():
    """`import nscan` imports no CUDA, SciPy, tqdm or matplotlib."""
    code = f"import sys; import nscan; print([name for name in {UNWANTED!r} if name in sys.modules])"
    assert python(code).strip() == "[]"


def test_import_makes_no_folder(tmp_path):
    """`import nscan` writes nothing, neither at home nor where it runs."""
    code = f"import os; os.chdir({str(tmp_path)!r}); import nscan"
    python(code, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")
    assert not list(tmp_path.iterdir())


def test_python_mode_makes_no_folder(tmp_path):
    """Python mode needs no kernels, so it writes none."""
    code = "import nscan as ns; ns.config.mode = 'python'; ns.scan(lambda x: x, sequences=[[1.0, 2.0]])"
    python(code, NSCAN_CACHE_DIR=str(tmp_path / "kernels"))
    assert not list(tmp_path.iterdir())
