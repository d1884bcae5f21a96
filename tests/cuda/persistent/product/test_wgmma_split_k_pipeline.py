"""A cluster's pipeline, run on the CPU: no wait is missing, and stages wait for all their bytes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.test_kernel import grid
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.oracle.tolerance import tolerance


def pooled(ctas: int, rows: int, **knobs: int) -> dict[str, Any]:
    own = {"warps_k": 4, "ring": 3, "together": 2, "pace": 1, "register_words": 8, "shared_words": 8}
    return grid(ctas, rows, **{**own, **knobs})


def text(**geometry: Any) -> str:
    made = geometry_of(step("lstm", 256), "bfloat16", **geometry)
    return text_of(persistent.kernel("k", made, layout_of("lstm", 256)))


def test_barriers_wait_for_all_that_is_copied() -> None:
    geometry = pooled(16, 32, warps_u=2, warps_k=2, register_words=16, shared_words=16)
    counts = set(map(int, re.findall(r"expect_tx_shared_b64\(.*, \(uint\)(\d+)\)", text(**geometry))))
    operand, weights = 32 * 64, 2 * 16 * 4 * 64
    # One block of K in registers and one in shared memory share a chunk; two are streamed.
    assert counts == {2 * operand, operand + weights}


def test_weights_are_asked_to_stay_in_l2() -> None:
    assert "L2__cache_hint" in text(**pooled(16, 32, warps_u=2, warps_k=2))
    assert "L2__cache_hint" not in text(**pooled(16, 32, warps_u=2, warps_k=2, shared_words=1000))


@pytest.mark.broad
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize("together", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("apart", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("ring", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 4, 5))])
def test_no_stage_is_filled_or_read_too_early(ring: int, apart: int, together: int, seed: int) -> None:
    case = Case("lstm", 192, 9, 5, "bfloat16")
    geometry = pooled(24, 32, ring=ring, together=together, apart=apart, register_words=0)
    assert persistent_error(case, geometry, seed=seed) < tolerance("bfloat16", 5)


@pytest.mark.parametrize("apart", [0, 1])
def test_a_cluster_that_shares_k_allocates_what_it_needs(apart: int) -> None:
    team = geometry_of(step("lstm", 64), "bfloat16", **pooled(8, 32, apart=apart))
    code = text_of(persistent.kernel("k", team, layout_of("lstm", 64)))
    assert re.findall(r"extern __shared__ __align__\((\d+)\)", code) == ["1024"]


def test_a_group_of_other_than_whole_clusters_is_refused() -> None:
    made = geometry_of(step("lstm", 64), "bfloat16", **pooled(9, 32))
    with pytest.raises(ValueError, match="clusters share K"):
        persistent.kernel("k", made, layout_of("lstm", 64))
