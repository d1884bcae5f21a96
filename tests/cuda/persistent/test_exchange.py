"""How values travel: where pieces of a value lie, how many bytes a barrier waits for, and that no wait is missing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.product.test_operands_staged import staged
from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS
from tvm_rnn.oracle.tolerance import tolerance


def text(cell: str, hidden: int, **geometry: Any) -> str:
    geometry = geometry_of(step(cell, hidden), "bfloat16", **geometry)
    return text_of(persistent.kernel("k", geometry, layout_of(cell, hidden)))


def test_a_barrier_waits_for_all_units_of_all_rows() -> None:
    counts = re.findall(r"expect_tx_shared_b64\(.*, \(uint\)(\d+)\)", text("lstm", 64, **cluster(4, 8)))
    assert set(counts) == {str(64 * 8 * 2)}


def test_reductions_have_barriers_of_their_own() -> None:
    counts = re.findall(r"expect_tx_shared_b64\(.*, \(uint\)(\d+)\)", text("lstm_layer_norm", 64, **cluster(4, 8)))
    assert set(counts) == {str(64 * 8 * 2), str(4 * 8 * 2 * 4)}  # two numbers for 8 rows from 4 warps


def test_waits_for_values_and_parts_leave_the_level_1_cache_alone() -> None:
    """To acquire for a cluster is to empty it: once before the first step and once behind the last one, in no wait."""
    body = text("lstm_layer_norm", 64, **cluster(4, 8))
    body = body[body.index("{") :]
    assert body.count("try_wait_parity_shared__cta") == 2 * (1 + 2)  # in each of two steps: a value, two reductions
    assert body.count("acquire") == 2


@pytest.mark.parametrize(("how", "seen"), [("cluster alone", False), ("cluster", True)])
def test_the_compiler_sees_no_loop_where_other_warps_copy(how: str, seen: bool) -> None:
    """One wait in each of two steps, which warps that copy do not make."""
    geometry = {**cluster(2, 8, warps_u=2, register_words=160), "exchange": how}
    body = text("lstm", 43, **geometry)
    body = body[body.index("{") :]
    loops, unseen = body.count("try_wait_parity_shared__cta"), body.count("wait_for_bytes(")
    assert (loops, unseen) == ((2, 0) if seen else (0, 2))


def test_values_have_two_copies() -> None:
    geometry = geometry_of(step("gru_reset_before", 64), "bfloat16", **cluster(4, 8))
    assert sorted(geometry.value_at.values()) == [0, 2 * geometry.value_words(geometry.published[0])]
    assert geometry.value_words(geometry.published[0]) == 64 // geometry.block_k * 8 * BLOCK_WORDS


def test_a_grid_counts_blocks_once_per_event() -> None:
    body = text("lstm_layer_norm", 64, **grid(4, 8))
    body = body[body.index("{") :]
    assert body.count("red_release_gpu_global_add_u32(") == 1 + 2 * 3  # at the start; a value and two reductions


def test_a_cluster_of_one_block_sends_itself_no_messages() -> None:
    body = text("lstm_layer_norm", 64, **cluster(1, 8))
    assert "st_async" not in body and "mapa" not in body and "wait_for_bytes" not in body


@pytest.mark.broad
@pytest.mark.parametrize("cell", ["lstm_layer_norm", pytest.param("gru_reset_before", marks=pytest.mark.slow)])
def test_values_of_a_cluster_of_one_block(cell: str) -> None:
    """Reductions, or two values of a step, between several warps, which share K too."""
    case = Case(cell, 24, 3, 4, "bfloat16")
    assert persistent_error(case, cluster(1, 8, warps_u=3, warps_k=2)) < tolerance("bfloat16", 4)


@pytest.mark.broad
@pytest.mark.parametrize("ctas", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("exchange", [cluster, grid])
def test_any_number_of_blocks(ctas: int, exchange: Any) -> None:
    case = Case("lstm", 24, 3, 4, "tf32")
    assert persistent_error(case, exchange(ctas, 8, warps_k=2)) < tolerance("tf32", 4)


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(4))
def test_a_slow_warp_still_sends_what_the_step_staged(seed: int) -> None:
    """The rest of its block may be a step ahead of it by then."""
    case = Case("lstm", 64, 16, 5, "bfloat16")
    assert persistent_error(case, cluster(4, 16, warps_u=2), seed=seed) < tolerance("bfloat16", 5)


def test_all_tiles_are_staged_before_the_first_is_handed_over() -> None:
    geometry = geometry_of(step("elman", 64), "bfloat16", **staged(2, 24))
    assert geometry.staged_tiles == 3 and geometry.stage_words == 4 * 3 * 32
    text = text_of(persistent.kernel("k", geometry, layout_of("elman", 64, "bfloat16")))
    steps = text[text.index("wgmma") :]
    loads, hands = "ld_vec_shared_v4_b32(", "st_vec_relaxed_gpu_global_v4_b32("
    first = steps.index(hands)
    assert steps[:first].count(loads) == 3  # every tile is loaded before one is stored
    assert steps.index("st_vec_global_v4_b32(") > [m.end() for m in re.finditer(re.escape(hands), steps)][2]


@pytest.mark.broad
@pytest.mark.parametrize(
    "precision", ["bfloat16", *(pytest.param(p, marks=pytest.mark.slow) for p in ("float16", "tf32"))]
)
@pytest.mark.parametrize("geometry", [cluster(1, 8, warps_k=2), grid(2, 8, warps_k=2)], ids=["cluster", "grid"])
def test_one_step_from_given_states(precision: str, geometry: dict[str, Any]) -> None:
    """20 units in K blocks of 16 or 32, shared by two warps: most of the last block is nobody's."""
    assert persistent_error(Case("gru", 20, 5, 1, precision), geometry) < tolerance(precision, 1)


@pytest.mark.broad
@pytest.mark.parametrize("geometry", [cluster(2, 8), grid(2, 8, warps_k=2)], ids=["cluster", "grid"])
def test_a_reset_before_the_first_step(geometry: dict[str, Any]) -> None:
    case = Case("slstm", 20, 9, 1, "bfloat16")
    case.reset[:] = True
    assert persistent_error(case, geometry, False, True, True) < tolerance("bfloat16", 1)
