"""The product of all options of a loop: values and derivatives of random loops against the law.

``pytest tests/test_product.py -m sweep`` draws 20,000 random loops (1,000 in compiled mode), in processes of their own on
all cores. A failure prints the case. In compiled mode each order of derivatives doubles the number of kernels of a loop, so
that the tests that always run stop one order earlier there.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import conftest
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from product import Case, cases, grid
from product_check import check

import nscan as ns


def named(case):
    """Name a case."""
    return f"{case.api}-{case.seed}"


@pytest.mark.wide
@pytest.mark.parametrize("case", grid(), ids=named)
def test_grid(mode, case):
    check(case, {"python": 2 + (case.seed % 3 == 0), "compiled": 1 + (case.seed % 8 == 0)}[mode])


@pytest.mark.parametrize("case", grid()[::4], ids=named)
def test_a_part_of_the_grid_compiled(compiled, case):
    check(case, 1 + (case.seed % 16 == 0))


@pytest.mark.parametrize("taps, steps, truncate, extra, seed", [((-1, -2), 3, 1, 0, 0), ((-1, -3), 4, 2, 1, 1)])
def test_reset_before_the_last_steps(mode, taps, steps, truncate, extra, seed):
    """What truncation leaves of a state was set back on the way: the steps after see its initial values still."""
    check(Case(seqs=(), states=(taps,), rows=0, shape=(), steps=steps, n_steps=steps, extra=(0, 0, extra), truncate=truncate,
               reset="rows", seed=seed), 1)


def draw(count, order, start=None):
    """Check random loops: always the same ones, or those that a number starts."""

    @settings(max_examples=count, deadline=None, database=None, derandomize=start is None, print_blob=False,
              suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink))
    @given(cases())
    def run(case):
        check(case, order)

    (run if start is None else seed(start)(run))()


def test_random_loops(mode):
    draw(*{"python": (300, 2), "compiled": (60, 1)}[mode])


def test_random_loops_to_a_higher_order(mode):
    draw(*{"python": (40, 3), "compiled": (15, 2)}[mode])


def draw_in(mode, count, start):
    """Check random loops to second order in a process of their own, which gives the memory of its kernels back."""
    ns.config.mode = mode
    with conftest.without_optimisations():
        draw(count, 2, start)


@pytest.mark.sweep
def test_many_random_loops(mode):
    count, parts = {"python": (500, 40), "compiled": (25, 40)}[mode]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for part in [pool.submit(draw_in, mode, count, start) for start in range(parts)]:
            part.result()
