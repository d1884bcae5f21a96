"""Operands that lanes copy to shared memory: any share of a block, any phases, slow warps, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import Case, layer, persistent_error
from persistent_layers import geometry_of, layout_of, step

from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.oracle.tolerance import tolerance

GEOMETRIES = [
    grid(2, 16, copied=1, warps_k=2, register_words=32, shared_words=256),
    grid(3, 16, copied=1, warps_u=2, passes=2),
    grid(2, 16, copied=1, warps_n=2, warps_k=2),
]


@pytest.mark.broad
@pytest.mark.parametrize(
    "geometry", [GEOMETRIES[0], *(pytest.param(g, marks=pytest.mark.slow) for g in GEOMETRIES[1:])]
)
def test_operands_are_copied(geometry: dict[str, Any]) -> None:
    for cell, precision in (("lstm", "bfloat16"), ("gru_reset_before", "tf32"), ("lstm_layer_norm", "float16")):
        case = Case(cell, 40, 11, 4, precision)
        assert persistent_error(case, geometry) < 10 * tolerance(precision, 4)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("seed", range(3))
def test_inputs_are_copied_a_step_early(seed: int) -> None:
    case = Case("gru_reset_before", 40, 20, 5, "bfloat16", inputs=72)
    assert persistent_error(case, grid(2, 16, copied=1, warps_k=2), seed=seed) < tolerance("bfloat16", 5)


@pytest.mark.broad
@pytest.mark.parametrize("geometry", [grid(2, 16, copied=1, warps_k=2), grid(2, 16), cluster(2, 16, warps_k=2)])
def test_products_of_inputs_and_states_in_turn(geometry: dict[str, Any]) -> None:
    """The next inputs must not take the place of those that a later product of the step reads."""
    case = Case("lstm", 40, 11, 5, "bfloat16", inputs=40, apart=True)
    assert persistent_error(case, geometry) < tolerance("bfloat16", 5)


def test_inputs_are_copied_in_one_pass() -> None:
    _, layout = layer("lstm", 64, "bfloat16", 64)
    assert not geometry_of(step_of(layout), "bfloat16", **grid(2, 16, copied=1, passes=2)).fits()


def test_memory_is_counted() -> None:
    team = geometry_of(step("lstm", 64), "bfloat16", **grid(2, 16, copied=1, warps_k=2))
    assert team.copy_words == 2 * 1 * 2 * 32 * 4  # warps, K blocks of each, tiles, lanes, words of a piece
    assert persistent.kernel("k", team, layout_of("lstm", 64)).shared_bytes == team.shared_bytes
