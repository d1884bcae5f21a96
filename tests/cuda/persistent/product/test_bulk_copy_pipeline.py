"""A pipeline, run on the CPU: no wait is missing, whichever warp is slow, and clusters fetch for each other."""

from __future__ import annotations

import re
from typing import Any

import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.test_kernel import grid
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.oracle.tolerance import tolerance


def pipelined(ctas: int, rows: int, **knobs: int) -> dict[str, Any]:
    return grid(ctas, rows, **{"warps_u": 2, "warps_k": 4, "ring": 3, "register_words": 8, **knobs})


def text(**geometry: Any) -> str:
    made = geometry_of(step("lstm", 128), "bfloat16", **geometry)
    return text_of(persistent.kernel("k", made, layout_of("lstm", 128)))


def test_a_stage_waits_for_all_that_is_copied_into_it() -> None:
    counts = re.findall(r"expect_tx_shared_b64\(.*, \(uint\)(\d+)\)", text(**pipelined(8, 8, shared_words=0)))
    operand, weights = 8 * 64, 4096
    assert set(counts) == {str(operand), str(operand + weights)}  # one block of K in registers, one streamed


def test_blocks_of_a_cluster_copy_for_all() -> None:
    alone, pair = (text(**pipelined(8, 8, together=n, register_words=16)) for n in (1, 2))
    assert "multicast" not in alone and "multicast" in pair and "clusterDim" not in alone
    assert (
        persistent.kernel(
            "k", geometry_of(step("lstm", 128), "bfloat16", **pipelined(8, 8, together=2)), layout_of("lstm", 128)
        ).cluster
        == 2
    )


@pytest.mark.broad
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize("together", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ring", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 4))])
def test_no_stage_is_filled_or_read_too_early(ring: int, together: int, seed: int) -> None:
    case = Case("lstm", 256, 9, 5, "bfloat16")
    geometry = pipelined(16, 16, ring=ring, together=together, shared_words=8)
    assert persistent_error(case, geometry, seed=seed) < tolerance("bfloat16", 5)


@pytest.mark.parametrize("knobs", [{"ring": 1}, {"warps_k": 1}, {"passes": 2}])
def test_what_a_pipeline_needs(knobs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a pipeline has two stages"):
        text(**{**pipelined(8, 8), **knobs})
