"""Kernels of matrix states on the emulator, beside the oracle."""

from __future__ import annotations

import pytest
from emulated import Case
from matrix_steps import TOLERANCE, matrix_error


@pytest.mark.broad
@pytest.mark.parametrize(("hidden", "precision"), [(20, "bfloat16"), (24, "float16"), (9, "float32"), (40, "bfloat16")])
def test_all_steps(hidden: int, precision: str) -> None:
    """Rows and columns that fill tiles, and that do not."""
    assert matrix_error(Case("m2rnn", hidden, 2, 6, precision)) < TOLERANCE[precision]


def test_one_step() -> None:
    assert matrix_error(Case("m2rnn", 20, 2, 1, "bfloat16")) < TOLERANCE["bfloat16"]
