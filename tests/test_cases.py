"""Every real-world case of `tests/cases`, values and gradients, in both modes."""

import pytest
from cases import check

import nscan as ns


def test_every_case_is_found():
    assert len(check.case_paths()) == 55


@pytest.mark.parametrize("path", check.case_paths(), ids=check.case_name)
def test_case(mode, path):
    bad, _ = check.run(ns, path)
    assert not bad, bad
