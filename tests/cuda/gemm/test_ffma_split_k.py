"""Large steps in float32: when they share K over a cluster, and what their kernel is made of."""

from __future__ import annotations

import pytest
from compiled_kernels import text_of
from gemm_groups import lstm_step, made

from tvm_rnn.cuda.gemm.ffma_split_k import COPIERS, SharedLanesTile
from tvm_rnn.cuda.gemm.group_kernels import Variant
from tvm_rnn.target import resolve


def shared(width: int, precision: str = "float32", **options: object) -> list[Variant]:
    return [v for v in made(lstm_step(width, width), precision, **options).variants if "_share" in v.kernel.name]


def test_k_is_shared_out() -> None:
    (variant,) = shared(2560)
    assert variant.condition == "rows > 32 && rows <= 64" and variant.kernel.cluster == 2
    assert variant.kernel.threads == 256 + COPIERS
    assert variant.kernel.shared_bytes <= resolve("nvidia-h200").shared_bytes
    text = text_of(variant.kernel)
    assert "mbarrier_try_wait" in text and "st_vec_shared__cluster_v4_f32" in text and "mma" not in text


def test_small_steps_and_other_gpus_have_none() -> None:
    assert not shared(256) and not shared(2560, "float64") and not shared(2560, target="nvidia-a100")


def test_operands_that_are_not_aligned_are_gathered() -> None:
    (variant,) = shared(512, stride=1)
    assert "st_vec_shared_v4_f32" in text_of(variant.kernel)


@pytest.mark.parametrize("copying", [False, True])
def test_threads_as_each_side_sees_them(copying: bool) -> None:
    tile = SharedLanesTile(64, split=2, stages=8, cluster=2, across=8, high=4, groups=5, copying=copying)
    assert tile.threads == (COPIERS if copying else 256) and tile.members == 256
    assert tile.shared_bytes == max(8 * (tile.stage_bytes + 16), 256 * 4 * 20 * 4)
