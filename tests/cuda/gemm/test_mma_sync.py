"""mma.sync kernels: the instruction of each dtype, and tiles that cannot be."""

from __future__ import annotations

import pytest
from compiled_kernels import text_of
from gemm_groups import hoisted, made

from tvm_rnn.cuda.gemm.mma_sync import STEPS, MmaTile


@pytest.mark.parametrize(
    ("precision", "instruction"),
    [
        ("bfloat16", "m16n8k16_row_col_f32_bf16"),
        ("float16", "m16n8k16_row_col_f32_f16"),
        ("tf32", "m16n8k8_row_col_f32_tf32"),
    ],
)
def test_the_instruction_of_a_precision(precision: str, instruction: str) -> None:
    made_for = made(hoisted(4, 32), precision, target="nvidia-a100")
    assert [v.condition for v in made_for.variants] == ["true"]
    text = text_of(made_for.variants[0].kernel)
    tile = MmaTile(
        *(made_for.knobs[f"many_{k}"] for k in ("rows", "split", "stages")), columns=made_for.knobs["many_columns"]
    )
    assert text.count(instruction + "_") + text.count(instruction + "(") >= tile.high * tile.broad * STEPS


def test_a_tile_is_shared_among_warps() -> None:
    tile = MmaTile(64, split=2, columns=64, warps=2, along=2)
    assert (tile.threads, tile.high, tile.broad) == (256, 2, 4)


def test_sums_are_shared_out_by_item() -> None:
    """A split kernel has each accumulator in one item, of one block of the cluster."""
    tile = MmaTile(32, split=2, columns=64, warps=1, cluster=2)
    assert tile.parts == 4 and tile.sums == 2 * 8 * 16
