"""The GEMM of weight gradients, emulated: sums over rows in parts, of operands that lie in every way."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import text_of
from row_products import LIMITS, operand, sums

from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.cuda.training.row_product import RowProduct
from tvm_rnn.cuda.training.weight_gradient_mma import THREADS, tile_for


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("precision", "rows", "parts"),
    [
        ("bfloat16", 75, 2),
        ("float32", 37, 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("float16", 33, 1), ("tf32", 37, 3))),
        pytest.param("float64", 20, 4, marks=pytest.mark.slow),
    ],
)
def test_sums_over_rows(precision: str, rows: int, parts: int) -> None:
    """More than a tile of one operand, less of the other; one left operand inside of longer rows."""
    dtype = storage(precision)
    lefts = [operand("a0", 72, 72, dtype), operand("a1", 72, 160, dtype, 80)]
    right, wide = operand("b", 20, 32, dtype), "float64" if precision == "float64" else "float32"
    tile = tile_for(precision, RowProduct(lefts[0], right))
    assert tile.high * tile.wide >= 64 * 64
    kernel = tile.kernel("gradients", lefts, right)
    found, expected = sums(kernel, tile.tiles(2, 72, 20), lefts, right, rows, parts, wide)
    assert np.linalg.norm(found - expected) < LIMITS[precision] * np.linalg.norm(expected)


@pytest.mark.parametrize("precision", [pytest.param(p, marks=pytest.mark.slow) for p in ("bfloat16", "float32")])
def test_rows_that_are_not_made_of_16_bytes(precision: str) -> None:
    """Read one by one; and values kept in float32 are rounded."""
    dtype = storage(precision)
    lefts = [operand("a0", 9, 9, dtype)]
    right = operand("b", 7, 7, dtype)
    tile = tile_for(precision, RowProduct(lefts[0], right))
    found, expected = sums(tile.kernel("gradients", lefts, right), tile.tiles(1, 9, 7), lefts, right, 21, 1)
    assert np.linalg.norm(found - expected) < LIMITS[precision] * np.linalg.norm(expected)


def test_tiles_fit_shared_memory_and_the_result() -> None:
    for precision in LIMITS:
        one, other, least = (operand("a", size, size, storage(precision)) for size in (1024, 512, 20))
        tile = tile_for(precision, RowProduct(one, other))
        assert tile.shared_bytes < 227 * 1024 and tile.high * tile.wide % THREADS == 0
        small = tile_for(precision, RowProduct(least, least))
        assert (small.high, small.wide) == (64, 64) and small.tiles(1, 65, 64) == 2


def test_both_operands_are_turned_on_the_way_to_tensor_cores() -> None:
    left, right = (operand(name, 64, 64, "bfloat16") for name in ("a0", "b"))
    kernel = tile_for("bfloat16", RowProduct(left, right)).kernel("t", [left], right)
    text = text_of(kernel)
    assert "ldmatrix_sync_aligned_m8n8_x4_trans" in text and "atomic" not in text
