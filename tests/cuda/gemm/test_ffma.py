"""Kernels without tensor cores: every gate count, float32 and float64, few rows and many."""

from __future__ import annotations

import pytest
from compiled_kernels import text_of
from gemm_groups import hoisted, lstm_step, made

from tvm_rnn.cuda.gemm.ffma import LanesSplitKTile, LanesTile, spread
from tvm_rnn.cuda.gemm.group_kernels import Variant
from tvm_rnn.cuda.layer.pipeline_barriers import COPIERS
from tvm_rnn.target import resolve


@pytest.mark.broad_after(2)
@pytest.mark.parametrize("gates", [1, 2, 3, 5, 8])
def test_every_number_of_gates(gates: int) -> None:
    text = text_of(made(hoisted(gates, 20), "float32").variants[-1].kernel)
    assert "mma" not in text and "ld_vec_shared_v4_f32" in text


def test_float64_is_float64() -> None:
    text = text_of(made(lstm_step(8, 8), "float64").variants[0].kernel)
    assert "ld_vec_shared_v2_f64" in text and "float " not in text.split("{", 1)[1]


def test_threads_of_a_tile() -> None:
    tile = LanesTile(64, split=8, across=4, high=8)
    assert (tile.down, tile.lanes, tile.threads) == (8, 4, 256)
    assert LanesTile(128).threads == 256


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
def test_lanes_that_read_the_same_are_side_by_side(lanes: int) -> None:
    """Each lane has a place of its own; half a warp reads at once where the lanes' numbers differ as here."""
    places = [spread(lane, lanes) for lane in range(32)]
    assert {*places} == {(x, y) for x in range(lanes) for y in range(32 // lanes)}
    if lanes in (1, 32):
        return
    for lane, (x, y) in enumerate(places):
        assert places[lane ^ 1][1] == y and places[lane ^ 2][0] == x


def shared(width: int, precision: str = "float32", **options: object) -> list[Variant]:
    return [v for v in made(lstm_step(width, width), precision, **options).variants if "_share" in v.kernel.name]


def test_k_is_shared_out() -> None:
    (variant,) = shared(2560)
    assert variant.condition == "rows >= 33 && rows <= 64" and variant.kernel.cluster == 2
    assert variant.kernel.threads == 256 + COPIERS
    assert variant.kernel.shared_bytes <= resolve("nvidia-h200").shared_bytes
    text = text_of(variant.kernel)
    assert "mbarrier_try_wait" in text and "st_vec_shared__cluster_v4_f32" in text and "mma" not in text


def test_small_steps_and_other_gpus_have_none() -> None:
    assert not shared(256) and not shared(2560, "float64") and not shared(2560, target="nvidia-a100")


def test_operands_that_are_not_aligned_are_gathered() -> None:
    (variant,) = shared(512, stride=1)
    assert "st_vec_shared_v4_f32" in text_of(variant.kernel)


def test_threads_that_copy_are_beside_those_that_multiply() -> None:
    tile = LanesSplitKTile(64, split=2, stages=8, cluster=2, across=8, high=4, groups=5)
    assert tile.members == 256 and tile.copiers == COPIERS and tile.threads == 256 + COPIERS
    assert tile.shared_bytes == max(8 * (tile.stage_bytes + 16), 256 * 4 * 20 * 4)


def test_a_warp_has_a_whole_tile_whose_weights_are_streamed() -> None:
    """Rows that are too few for the lanes leave them to units; all warps have a part of K."""
    for across, high, lanes in ((4, 2, 4), (8, 4, 8), (16, 8, 16)):
        tile = LanesTile(16, split=8, across=across, high=high)
        assert (tile.lanes, tile.down * tile.lanes, tile.threads) == (lanes, 32, 256)
