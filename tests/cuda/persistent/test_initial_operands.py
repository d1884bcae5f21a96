"""The first operands: initial states of every precision, and zeros where no unit ever writes."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import Case, persistent_error

from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.oracle.tolerance import tolerance


@pytest.mark.broad
@pytest.mark.parametrize(
    "precision", ["bfloat16", *(pytest.param(p, marks=pytest.mark.slow) for p in ("float16", "tf32"))]
)
@pytest.mark.parametrize("geometry", [cluster(1, 8, warps_k=2), grid(2, 8, warps_k=2)], ids=["cluster", "grid"])
def test_one_step_from_given_states(precision: str, geometry: dict[str, Any]) -> None:
    """20 units in K blocks of 16 or 32, shared by two warps: most of the last block is nobody's."""
    assert persistent_error(Case("gru", 20, 5, 1, precision), geometry) < tolerance(precision, 1)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("geometry", [cluster(2, 8), grid(2, 8, warps_k=2)], ids=["cluster", "grid"])
def test_a_reset_before_the_first_step(geometry: dict[str, Any]) -> None:
    case = Case("slstm", 20, 9, 1, "bfloat16")
    case.reset[:] = True
    assert persistent_error(case, geometry, False, True, True) < tolerance("bfloat16", 1)
