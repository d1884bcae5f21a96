"""Hoisted values on their way: which come early, any share of a block, sequences shorter than the way, slow warps."""

from __future__ import annotations

import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, step

from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.cuda.persistent.geometry import PREFETCH_STEPS
from tvm_rnn.cuda.persistent.hoisted_value_prefetch import prefetched
from tvm_rnn.oracle.tolerance import tolerance


def test_rows_of_eight_units_come_early() -> None:
    team = geometry_of(step("lstm", 64), "bfloat16", **cluster(2, 8))
    assert len(prefetched(team)) == 4
    # steps, warps, gates, blocks of units, words of 8 x 8
    assert team.prefetch_words == PREFETCH_STEPS * 1 * 4 * 4 * 32
    assert not prefetched(geometry_of(step("lstm", 20), "bfloat16", **cluster(1, 8)))


def test_with_weights_in_8_bits_warps_without_cells_copy_nothing() -> None:
    wide, narrow = (
        geometry_of(step("lstm", 64), "bfloat16", **cluster(2, 8, warps_k=4), stored=stored)
        for stored in ("", "float8_e4m3")
    )
    assert (wide.prefetching_warps, narrow.prefetching_warps) == (4, 1)
    assert wide.prefetch_words == 4 * narrow.prefetch_words
    every = geometry_of(step("lstm", 64), "bfloat16", **cluster(2, 32, warps_k=4), stored="float8_e4m3")
    assert every.prefetching_warps == 4


GEOMETRIES = [cluster(2, 16, warps_k=2), grid(3, 16, warps_k=2), grid(2, 16, warps_n=2)]
USUAL = ((0, 1), (0, 7), (1, 2), (2, 7))  # the others with the slow tests


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("geometry", "steps"),
    [
        pytest.param(geometry, steps, marks=() if (number, steps) in USUAL else pytest.mark.slow)
        for number, geometry in enumerate(GEOMETRIES)
        for steps in (1, 2, 7)
    ],
)
def test_any_number_of_steps(geometry: dict[str, object], steps: int) -> None:
    for cell, precision in (("gru_reset_before", "bfloat16"), ("lstm", "tf32")):
        case = Case(cell, 40, 11, steps, precision)
        assert persistent_error(case, geometry) < tolerance(precision, steps)


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_warp_reads_its_own_copies(seed: int) -> None:
    case = Case("gru", 64, 20, 6, "float16")
    assert persistent_error(case, cluster(2, 8, warps_u=2, warps_k=2), True, True, True, seed) < tolerance("float16", 6)
