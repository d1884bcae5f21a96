"""Kernels of matrix states on the emulator, beside the oracle."""

from __future__ import annotations

import pytest
from emulated import Case
from matrix_steps import TOLERANCE, matrix_error


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("hidden", "precision"), [(20, "bfloat16"), (24, "float16"), (9, "float32"), (40, "bfloat16")])
def test_all_steps(hidden: int, precision: str) -> None:
    """Rows and columns that fill tiles, and that do not."""
    assert matrix_error(Case("m2rnn", hidden, 2, 6, precision)) < TOLERANCE[precision]


def test_one_step() -> None:
    assert matrix_error(Case("m2rnn", 20, 2, 1, "bfloat16")) < TOLERANCE["bfloat16"]


@pytest.mark.broad
def test_a_block_is_wrong_where_a_step_is_left_out() -> None:
    """The comparison sees one step of six."""
    case = Case("m2rnn", 20, 2, 6, "bfloat16")
    short = Case("m2rnn", 20, 2, 5, "bfloat16")
    right, _ = case.expected(False, False, False)
    other, _ = short.expected(False, False, False)
    assert right.shape[0] == other.shape[0] + 1 and matrix_error(case) < TOLERANCE["bfloat16"]
