"""Shared by all tests: the fixture `mode`, which runs a test in python mode, compiled mode, or both."""

import contextlib
import inspect

import pytest

import nscan as ns

MODES = ("python", "compiled")
# Modules whose kernels are compiled as users have them; others do without LLVM's optimisations, which take most of the time.
OPTIMISED = {"test_cases", "test_law", "test_main", "test_math", "test_runtime"}


def pytest_addoption(parser):
    """Let ``--modes`` choose how loops run: ``python``, ``compiled``, or ``python,compiled``."""
    parser.addoption("--modes", default="python,compiled", help="modes to test, separated by commas (default: both)")


def pytest_generate_tests(metafunc):
    """Run tests that ask for `mode` once in each mode of ``--modes``."""
    if "mode" in metafunc.fixturenames:
        modes = metafunc.config.getoption("--modes").split(",")
        unknown = sorted(set(modes) - set(MODES))
        if unknown:
            raise pytest.UsageError(f"--modes: unknown {', '.join(unknown)}; there are {', '.join(MODES)}")
        wide = metafunc.definition.get_closest_marker("wide") is not None
        marks = {mode: [pytest.mark.sweep] if wide and mode == "compiled" else [] for mode in modes}
        metafunc.parametrize("mode", [pytest.param(mode, marks=marks[mode]) for mode in modes], indirect=True)


def pytest_runtest_setup(item):
    """Skip tests marked ``needs("name")`` while neither a public name nor an option of scan is called so."""
    known = {*ns.__all__, *inspect.signature(ns.scan).parameters}
    missing = [name for mark in item.iter_markers("needs") for name in mark.args if name not in known]
    if missing:
        pytest.skip(f"nscan has no {missing[0]} yet")


@contextlib.contextmanager
def without_optimisations():
    """Compile without LLVM's optimisations: a plan's results do not depend on them, and they take most of the time."""
    from numba.core import config
    before, config.OPT = config.OPT, config._OptLevel(0)
    try:
        yield
    finally:
        config.OPT = before


@contextlib.contextmanager
def in_mode(name, module):
    """Set the mode for a test of a module, and put the old one back."""
    assigned = dict(ns.config._assigned)
    ns.config.mode = name
    plain = name == "compiled" and module not in OPTIMISED
    with without_optimisations() if plain else contextlib.nullcontext():
        yield
    ns.config._assigned.clear()
    ns.config._assigned.update(assigned)


@pytest.fixture
def mode(request):
    """Run a test in one of the modes."""
    with in_mode(request.param, request.module.__name__):
        yield request.param


@pytest.fixture
def compiled(request):
    """Run a test in compiled mode alone."""
    with in_mode("compiled", request.module.__name__):
        yield
