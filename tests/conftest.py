"""Shared by all tests: the fixture `mode`, which runs a test in python mode, compiled mode, or both."""

import inspect

import pytest

import nscan as ns

MODES = ("python", "compiled")


def pytest_addoption(parser):
    """Let ``--modes`` choose how loops run: ``python``, ``compiled``, or ``python,compiled``."""
    parser.addoption("--modes", default="python", help="modes to test, separated by commas (default: python)")


def pytest_generate_tests(metafunc):
    """Run tests that ask for `mode` once in each mode of ``--modes``."""
    if "mode" in metafunc.fixturenames:
        modes = metafunc.config.getoption("--modes").split(",")
        unknown = sorted(set(modes) - set(MODES))
        if unknown:
            raise pytest.UsageError(f"--modes: unknown {', '.join(unknown)}; there are {', '.join(MODES)}")
        metafunc.parametrize("mode", modes, indirect=True)


def pytest_runtest_setup(item):
    """Skip tests marked ``needs("name")`` while neither a public name nor an option of scan is called so."""
    known = {*ns.__all__, *inspect.signature(ns.scan).parameters}
    missing = [name for mark in item.iter_markers("needs") for name in mark.args if name not in known]
    if missing:
        pytest.skip(f"nscan has no {missing[0]} yet")


@pytest.fixture
def mode(request):
    """Set the mode for one test, and put the old one back."""
    assigned = dict(ns.config._assigned)
    ns.config.mode = request.param
    yield request.param
    ns.config._assigned.clear()
    ns.config._assigned.update(assigned)
