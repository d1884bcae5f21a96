"""Lengths and resets inside persistent kernels: both directions, tiles of time, initial values of the cell."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from emulated import Case, persistent_error
from persistent_layers import step

from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.cuda.persistent.lengths_and_resets import resettable
from tvm_rnn.oracle.tolerance import tolerance

MODES = [mode for mode in product((False, True), repeat=3) if mode[1] or mode[2]]


def check(case: Case, geometry: dict[str, Any], modes: list[tuple[bool, bool, bool]]) -> None:
    for mode in modes:
        found = persistent_error(case, geometry, *mode)
        assert found < tolerance(case.precision, case.steps), (found, mode)


@pytest.mark.broad
@pytest.mark.parametrize("geometry", [cluster(2, 8), pytest.param(grid(2, 16, warps_k=2), marks=pytest.mark.slow)])
def test_lengths_and_resets(geometry: dict[str, Any]) -> None:
    check(Case("lstm", 20, 9, 5, "bfloat16"), geometry, MODES)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("start", "total"), [(2, 9), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, 7), (2, 6)))]
)
def test_tiles_of_time(start: int, total: int) -> None:
    """A flag right behind a tile counts backwards only, one at its start forwards only."""
    check(Case("gru", 24, 10, 4, "bfloat16", start, total), cluster(1, 8, warps_k=2), MODES)


@pytest.mark.broad
def test_initial_values_that_are_not_zero() -> None:
    check(Case("slstm", 20, 9, 5, "bfloat16"), grid(3, 8, warps_k=2), [(False, True, True), (True, False, True)])


def test_products_of_the_same_step_see_no_reset() -> None:
    assert resettable(step("lstm", 32)) and resettable(step("lstm_projection", 32))
    kinds = {name: resettable(step(name, 32)) for name in ("lem", "gru_reset_before", "cornn")}
    assert kinds["gru_reset_before"]
    for name in (n for n, able in kinds.items() if not able):
        check(Case(name, 24, 9, 4, "bfloat16"), cluster(2, 8), [(False, True, False), (True, True, False)])
