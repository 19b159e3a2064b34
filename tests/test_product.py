"""The product of all options of a loop: values and derivatives of random loops against the law.

``pytest tests/test_product.py -m sweep`` draws 20,000 random loops (1,000 in compiled mode). A failure prints the case.
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from product import cases, grid
from product_check import check


@pytest.mark.parametrize("case", grid(), ids=lambda case: f"{case.api}-{case.seed}")
def test_grid(mode, case):
    check(case, order=3 if case.seed % 3 == 0 else 2)


def sweep(count, order, derandomize):
    @settings(max_examples=count, deadline=None, database=None, derandomize=derandomize, suppress_health_check=list(HealthCheck),
              phases=(Phase.generate, Phase.shrink), print_blob=False)
    @given(cases())
    def run(case):
        check(case, order)
    run()


def test_random_loops(mode):
    sweep(300 if mode == "python" else 60, 2, True)


def test_random_loops_to_third_order(mode):
    sweep(40 if mode == "python" else 10, 3, True)


@pytest.mark.sweep
def test_many_random_loops(mode):
    sweep(20_000 if mode == "python" else 1_000, 2, False)
