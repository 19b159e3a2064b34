"""The documentation: its examples run, its generated parts are whole, and it names nothing that does not exist."""

import contextlib
import doctest
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import nscan as ns

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.rst"))
FLAGS = doctest.ELLIPSIS


@pytest.fixture(scope="module")
def ext():
    """Import the modules of ``docs/_ext``."""
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        yield {name: importlib.import_module(name) for name in ("nscan_pages", "ladder", "error_examples")}
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def public_objects():
    """Return the modules that hold public names, and the public objects."""
    return {name: getattr(ns, name) for name in ns.__all__}


# ------------------------------------------------------------------------------------------------ examples
@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "adding_an_op.rst"], ids=lambda p: p.name)
def test_examples_of_a_page(page, mode):
    failed, _ = doctest.testfile(str(page), module_relative=False, optionflags=FLAGS)
    assert not failed


def test_examples_that_add_operations(mode):
    """Run in a process of its own, since rows cannot be taken out of the table again."""
    code = ("import doctest, sys; sys.exit(doctest.testfile(sys.argv[1], module_relative=False, "
            "optionflags=doctest.ELLIPSIS).failed)")
    command = [sys.executable, "-c", f"import nscan; nscan.config.mode = {mode!r}; {code}",
               str(DOCS / "adding_an_op.rst")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def modules():
    """Return the modules of the package that hold examples."""
    names = [m.name for m in pkgutil.walk_packages(ns.__path__, "nscan.") if not m.ispkg]
    return [name for name in names if ">>>" in pathlib.Path(importlib.util.find_spec(name).origin).read_text()]


@pytest.mark.parametrize("name", modules())
def test_examples_of_a_module(name, mode, monkeypatch):
    if name == "nscan.config":
        monkeypatch.delenv("NSCAN_MODE", raising=False)
        del ns.config.mode
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert tried and not failed


def test_every_public_function_has_an_example():
    without = [name for name, value in public_objects().items() if callable(value) and ">>>" not in (value.__doc__ or "")]
    assert not without, without


# ------------------------------------------------------------------------------------------ generated parts
def test_the_page_of_errors_covers_every_class(ext):
    pages = ext["nscan_pages"]
    classes = [name for name, kind in vars(ns.errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)]
    assert [kind.__name__ for kind in pages.error_classes()] == classes
    assert {*ext["error_examples"].EXAMPLES} == {*classes} - {*pages.NO_EXAMPLE}


def test_every_example_of_an_error_raises_it(ext, mode):
    pages = ext["nscan_pages"]
    for name, code in ext["error_examples"].EXAMPLES.items():
        assert type(pages.run_example(code)).__name__ == name


def test_the_page_of_errors_has_its_messages(ext):
    with ext["nscan_pages"].compiled():
        text = ext["nscan_pages"].errors_page()
    assert "TapError: taps of outputs_info[0] must be negative" in text
    assert text.count(".. code-block:: text") == len(ext["error_examples"].EXAMPLES)


def test_the_page_of_support_lists_every_row_and_function(ext):
    pages = ext["nscan_pages"]
    text = pages.supported_page()
    missing = [row.name for row in pages.TABLE if f"* - ``{row.name}``" not in text]
    missing += [name for name in pages.TABLE.scipy if f"* - ``{name}``" not in text]
    listed = {id(front) for _, front in pages.fronts()}
    missing += [f.__name__ for f, front in pages.TABLE.fronts.items() if id(front) not in listed]
    assert not missing, missing


def test_the_stages_of_a_loop_can_be_shown(ext):
    stages = ext["nscan_pages"].stages()
    assert "tanh" in stages["tape"] and "safe_mul" in stages["backward"] and "for v" in stages["program"]


# ------------------------------------------------------------------------------------------------- layout
def test_every_module_stands_on_the_ladder(ext):
    report = ext["ladder"].report()
    placed = [name for name, row in report.items() if row[0] is not None]
    assert placed == [*report], f"not in RUNGS of docs/_ext/ladder.py: {sorted({*report} - {*placed})}"


def test_imports_go_down_the_ladder(ext):
    ladder = ext["ladder"]
    report = ladder.report()
    assert not ladder.upward(report, 1)
    for name, (_, outer, inner) in report.items():
        if name.startswith(("ops", "grad")):
            assert not [t for t in outer | inner if t.startswith(("plan", "build", "cpu", "gpu", "api"))], name


def test_the_package_loads_no_compiler():
    code = ("import sys, nscan; sys.exit(str([m for m in sys.modules if m.split('.')[0] in ('numba', 'llvmlite', 'scipy') "
            "or m.startswith(('nscan.plan', 'nscan.cpu', 'nscan.build'))] or ''))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert not done.stderr.strip(), done.stderr


# ------------------------------------------------------------------------------------------------- names
def test_every_public_name_is_in_the_reference():
    text = (DOCS / "api.rst").read_text()
    missing = [name for name in ns.__all__ if not re.search(rf"(^   |:: |``|`){name}\b", text, re.MULTILINE)]
    assert not missing, missing


def exists(name):
    """Tell whether a dotted name that starts with nscan can be imported or read."""
    first, *rest = name.split(".")
    value = importlib.import_module(first)
    for k, part in enumerate(rest):
        if not hasattr(value, part):
            with contextlib.suppress(ImportError):
                value = importlib.import_module(".".join([first, *rest[:k + 1]]))
                continue
            return False
        value = getattr(value, part)
    return True


def is_known(name):
    """Tell whether a name in single backticks is public, or a parameter of scan."""
    return name in ns.__all__ or name in inspect.signature(ns.scan).parameters or name in dir(__builtins__)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_names_nothing_that_does_not_exist(page):
    text = page.read_text()
    wrong = [name for name in re.findall(r"\bns((?:\.[A-Za-z_]\w*)+)", text) if not exists("nscan" + name)]
    wrong += [name for name in re.findall(r"(?<![\w/.-])(nscan(?:\.[A-Za-z_]\w*)+)", text) if not exists(name)]
    wrong += [path for path in re.findall(r"\b((?:nscan|tests)/[\w/]+\.py)\b", text) if not (ROOT / path).exists()]
    roles = re.findall(r"(?<![`:\w])`([A-Za-z_]\w*)`(?![`_])", text)
    wrong += [name for name in roles if not is_known(name)]
    assert not wrong, wrong


def test_the_layout_names_modules_that_exist(ext):
    names = {name for name in ext["ladder"].report() if name}
    text = (DOCS / "layout.rst").read_text() + (DOCS / "design.rst").read_text()
    dotted = re.findall(r"``((?:plan|cpu|grad|ops|gpu)\.\w+)", text)
    heads = [name for line in re.findall(r"^\d\. .*: (.*)$", text, re.MULTILINE) for name in re.findall(r"``(\w+)", line)]
    wrong = [name for name in dotted + heads if name not in names and not any(n.startswith(name + ".") for n in names)]
    assert not wrong, wrong
