"""The documentation: its examples run, its generated parts are whole, what it names exists."""

import builtins
import doctest
import importlib
import inspect
import os
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import nscan as ns

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted({*DOCS.glob("*.rst")} - {DOCS / "sg_execution_times.rst"})
FLAGS = doctest.ELLIPSIS
COMPILERS = ("numba", "llvmlite", "scipy", "nscan.plan", "nscan.build", "nscan.cpu", "nscan.gpu")


@pytest.fixture(scope="module")
def ext():
    """Import the modules of ``docs/_ext``."""
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        yield {name: importlib.import_module(name) for name in ("nscan_pages", "ladder", "error_examples")}
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def run_python(code, *args):
    """Run code in another process, in this folder."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True,
                          check=False, env={**os.environ, "PYTHONPATH": path})


# ------------------------------------------------------------------------------------------------ examples
@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "adding_an_op.rst"], ids=lambda p: p.name)
def test_examples_of_a_page(page, mode):
    assert not doctest.testfile(str(page), module_relative=False, optionflags=FLAGS).failed


def test_examples_that_add_operations(mode):
    """Run them in a process of their own, since rows do not leave the table again."""
    code = ("import doctest, sys, nscan; nscan.config.mode = sys.argv[1]; "
            "sys.exit(doctest.testfile(sys.argv[2], module_relative=False, "
            "optionflags=doctest.ELLIPSIS).failed)")
    done = run_python(code, mode, DOCS / "adding_an_op.rst")
    assert done.returncode == 0, done.stdout + done.stderr


def modules():
    """Return the modules of the package that hold examples."""
    found = {m.name: m.module_finder.find_spec(m.name).origin
             for m in pkgutil.walk_packages(ns.__path__, "nscan.") if not m.ispkg}
    return [name for name, path in found.items() if ">>>" in pathlib.Path(path).read_text()]


@pytest.mark.parametrize("name", modules())
def test_examples_of_a_module(name, mode, monkeypatch):
    if name == "nscan.config":
        monkeypatch.delenv("NSCAN_MODE", raising=False)
        del ns.config.mode
    result = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert result.attempted and not result.failed


def test_every_public_function_has_an_example():
    functions = [name for name in ns.__all__ if callable(getattr(ns, name))]
    without = [name for name in functions if ">>>" not in (getattr(ns, name).__doc__ or "")]
    assert not without, without


# ------------------------------------------------------------------------------------------ generated parts
def test_the_page_of_errors_covers_every_class(ext):
    pages = ext["nscan_pages"]
    classes = [name for name, kind in vars(ns.errors).items()
               if inspect.isclass(kind) and issubclass(kind, ns.errors.NscanError)]
    assert [kind.__name__ for kind in pages.error_classes()] == classes
    assert {*ext["error_examples"].EXAMPLES} == {*classes} - {*pages.NO_EXAMPLE}


def test_every_example_of_an_error_raises_it(ext, mode):
    examples = dict(ext["error_examples"].EXAMPLES)
    if mode == "python":
        # NumPy itself raises there, the ValueError that this class is.
        del examples["ArithmeticStepError"]
    for name, code in examples.items():
        assert type(ext["nscan_pages"].run_example(code)).__name__ == name


def test_the_page_of_errors_shows_the_messages(ext):
    with ext["nscan_pages"].compiled():
        text = ext["nscan_pages"].errors_page()
    assert "TapError: taps of outputs_info[0] must be negative" in text
    assert text.count(".. code-block:: text") == len(ext["error_examples"].EXAMPLES)


def test_the_page_of_support_lists_every_row_and_function(ext):
    pages = ext["nscan_pages"]
    table, text = pages.TABLE, pages.supported_page()
    missing = [name for name in (*table.rows, *table.scipy) if f"* - ``{name}``" not in text]
    listed = {id(front) for _, front in pages.fronts()} | {id(row) for row in table.scipy.values()}
    missing += [function.__name__ for function, front in table.fronts.items() if id(front) not in listed]
    assert not missing, missing


def test_the_stages_of_a_loop_are_shown(ext):
    stages = ext["nscan_pages"].stages()
    assert "tanh" in stages["tape"]
    assert "safe_mul" in stages["backward"]
    assert "tanh.f8" in stages["program"]


def test_examples_are_gathered_for_the_gallery(ext, tmp_path):
    gather, source, target = ext["nscan_pages"].gather_examples, tmp_path / "examples", tmp_path / "made"
    assert gather(source, target) is None
    assert (target / "gallery.rst").read_text() == ""
    source.mkdir()
    (source / "plot_quick.py").write_text('"""Quick\n=====\n"""\n')
    (source / "plot_slow.py").write_text('"""Slow\n====\n"""\n# docs: do not run\n')
    found = gather(source, target)
    assert found.quick == ["plot_quick.py"]
    assert (found.folder / "GALLERY_HEADER.rst").exists() and (found.folder / "plot_slow.py").exists()
    assert "gallery/index" in (target / "gallery.rst").read_text()


# -------------------------------------------------------------------------------------------------- layout
def test_every_module_stands_on_the_ladder(ext):
    missing = sorted(name for name, row in ext["ladder"].report().items() if row[0] is None)
    assert not missing, f"{missing} must be placed in RUNGS of docs/_ext/ladder.py"


def test_imports_go_down_the_ladder(ext):
    report = ext["ladder"].report()
    assert not ext["ladder"].upward(report, 1)
    targets = ("plan", "build", "cpu", "gpu", "api")
    wrong = [(name, target) for name, (_, outer, inner) in report.items() if name.startswith(("ops", "grad"))
             for target in outer | inner if target.split(".")[0] in targets]
    assert not wrong, wrong


def test_importing_the_package_loads_no_compiler():
    done = run_python("import sys, nscan; print(*sys.modules, sep='\\n')")
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert not [name for name in loaded if any(name == c or name.startswith(c + ".") for c in COMPILERS)]


# --------------------------------------------------------------------------------------------------- names
def test_every_public_name_is_in_the_reference():
    text = (DOCS / "api.rst").read_text()
    missing = [name for name in ns.__all__ if not re.search(rf"(?:^   |:: |``){name}\b", text, re.MULTILINE)]
    assert not missing, missing


def exists(name):
    """Tell whether a dotted name that starts with nscan is a module, or something that one holds."""
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        try:
            for part in parts[k:]:
                value = getattr(value, part)
        except AttributeError:
            continue
        return True
    return False


def is_known(name):
    """Tell whether a name in single backticks is public, a parameter of scan, or a builtin."""
    return name in ns.__all__ or name in inspect.signature(ns.scan).parameters or hasattr(builtins, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_names_nothing_that_does_not_exist(page):
    text = page.read_text()
    names = [f"nscan{name}" for name in re.findall(r"\bns((?:\.[A-Za-z_]\w*)+)", text)]
    names += re.findall(r"(?<![\w/.-])nscan(?:\.[A-Za-z_]\w*)+", text)
    files = re.findall(r"\b(?:nscan|tests)/[\w/]+\.py\b", text)
    wrong = [name for name in names if not exists(name)]
    wrong += [name for name in files if not (ROOT / name).exists()]
    wrong += [name for name in re.findall(r"(?<![`:\w])`([A-Za-z_]\w*)`(?![`_])", text) if not is_known(name)]
    assert not wrong, wrong


def test_the_layout_names_modules_that_exist(ext):
    names = [name for name in ext["ladder"].report() if name]
    text = (DOCS / "layout.rst").read_text() + (DOCS / "design.md").read_text()
    found = re.findall(r"`((?:plan|cpu|grad|ops|gpu)\.\w+)[.`]", text)
    found += [name for line in re.findall(r"^\d\. .*: (``.*)$", text, re.MULTILINE)
              for name in re.findall(r"``([\w.]+)``", line)]
    wrong = [name for name in found if name not in names and name.rpartition(".")[0] not in names]
    assert not wrong, wrong
