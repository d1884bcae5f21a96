"""The GEMM of weight gradients by wgmma, emulated: sums over rows in parts, of what lies along rows."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import text_of
from row_products import LIMITS, operand, sums

from tvm_rnn.cuda.training.weight_gradient_block import tiles_of
from tvm_rnn.cuda.training.weight_gradient_wgmma import WgmmaWeightGradientTile, wgmma_tile_for, wgmma_weight_gradient


@pytest.mark.parametrize(
    ("precision", "height", "width", "rows", "parts"),
    [
        ("bfloat16", 72, 70, 75, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("float16", 130, 200, 300, 1),
                ("bfloat16", 64, 260, 65, 1),
                ("bfloat16", 390, 260, 200, 1),
                ("bfloat16", 64, 190, 700, 3),
                ("bfloat16", 64, 64, 1, 1),
                ("float16", 64, 64, 130, 4),
            )
        ),
    ],
)
def test_sums_over_rows(precision: str, height: int, width: int, rows: int, parts: int) -> None:
    """Fewer rows than a stage and more, parts that have none, results that no tile divides, rows inside of others."""
    stride = -(-height // 8) * 8
    lefts = [operand("a0", height, stride, precision), operand("a1", height, stride + 24, precision, 16)]
    right = operand("b", width, -(-width // 8) * 8 + 8, precision, 8)
    tile = wgmma_tile_for(precision, lefts, right, "sm_90a")
    assert tile is not None
    kernel = wgmma_weight_gradient("totals", tile, lefts, right)
    found, expected = sums(kernel, 2 * tiles_of(tile, height, width), lefts, right, rows, parts)
    assert np.linalg.norm(found - expected) < LIMITS[precision] * np.linalg.norm(expected)


@pytest.mark.broad
def test_rows_of_4_byte_pieces() -> None:
    """Some of each: rows of 132 bytes, rows of 148 of which 4 are before them, and rows of 144."""
    lefts = [operand("a0", 66, 66, "bfloat16"), operand("a1", 66, 74, "bfloat16", 2)]
    for right in (operand("b", 70, 72, "bfloat16"), operand("b", 70, 70, "bfloat16")):
        tile = wgmma_tile_for("bfloat16", lefts, right, "sm_90a")
        assert tile is not None
        kernel = wgmma_weight_gradient("totals", tile, lefts, right)
        found, expected = sums(kernel, 2 * tiles_of(tile, 66, 70), lefts, right, 70, 1)
        assert np.linalg.norm(found - expected) < 1e-6 * np.linalg.norm(expected)


def test_it_is_for_large_results_of_16_bit_rows_on_hopper() -> None:
    left, right = operand("a0", 512, 512, "bfloat16"), operand("b", 512, 512, "bfloat16")
    tile = wgmma_tile_for("bfloat16", [left], right, "sm_90a")
    assert tile == WgmmaWeightGradientTile("bfloat16", 256, 128) and tile.shared_bytes < 227 * 1024
    assert wgmma_tile_for("bfloat16", [left], right, "sm_80") is None
    assert wgmma_tile_for("tf32", [left], right, "sm_90a") is None
    assert wgmma_tile_for("bfloat16", [operand("a0", 33, 40, "bfloat16")], right, "sm_90a") is None
    assert wgmma_tile_for("bfloat16", [left], operand("b", 33, 40, "bfloat16"), "sm_90a") is None
    odd = operand("b", 251, 251, "bfloat16")
    assert wgmma_tile_for("bfloat16", [left], odd, "sm_90a") is None


@pytest.mark.parametrize("height", [64, 130, 256, 650, 2560])
def test_the_tile_that_reads_least(height: int) -> None:
    """Of all that fit shared memory and registers: none may be asked to read less than the one that is taken."""
    left, right = operand("a0", height, 2560, "float16"), operand("b", 650, 1024, "float16")
    tile = wgmma_tile_for("float16", [left], right, "sm_90a")
    assert tile is not None and tile.threads <= 384 and tile.shared_bytes <= 227 * 1024
    read = tiles_of(tile, height, 650) * (tile.high + tile.wide)
    for high in (64, 128):
        for wide in (64, 128, 256):
            assert read <= tiles_of(WgmmaWeightGradientTile("float16", wide, high), height, 650) * (high + wide)


def test_operands_are_multiplied_as_they_lie() -> None:
    left, right = (operand(name, 64, 64, "bfloat16") for name in ("a0", "b"))
    tile = wgmma_tile_for("bfloat16", [left], right, "sm_90a")
    assert tile is not None
    text = text_of(wgmma_weight_gradient("t", tile, [left], right))
    assert "m64n64k16_f32_bf16_bf16_1_1_1_1" in text and "atomic" not in text
