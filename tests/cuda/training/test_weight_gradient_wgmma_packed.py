"""The GEMM of weight gradients out of packed operands, emulated in clusters, and where it is worth the packing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compiled_kernels import text_of
from emulated import decoded, encoded, run
from row_products import LIMITS, operand

from tvm_rnn.cuda.gemm.wgmma import SQUARE_BYTES
from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.cuda.training.weight_gradient_pack import pack_kernel, rows_of_stage, squares
from tvm_rnn.cuda.training.weight_gradient_wgmma_packed import (
    SHAPES,
    PackedWeightGradientTile,
    packed_tile_for,
    packed_weight_gradient,
)


def sums(
    tile: PackedWeightGradientTile, lefts: int, height: int, width: int, rows: int, parts: int
) -> tuple[np.ndarray, ...]:
    """Both kernels on random rows, added up over parts, and what it should be. What nobody packs is NaN."""
    rng, dtype = np.random.default_rng(0), storage(tile.precision)
    stages = -(-rows // rows_of_stage(tile.precision))
    arrays, values = {}, []
    for name, count, depth in (("a", lefts, height), ("b", 1, width)):
        each = squares(depth)
        size = stages * count * each + 8
        into = encoded(np.full(size * SQUARE_BYTES // (4 if dtype == "float32" else 2), np.nan), dtype)
        for number in range(count):
            one = operand("r", depth, -(-depth // 8) * 8, dtype)
            row = np.full((rows, one.place.row_stride), np.nan)
            row[:, :depth] = rng.normal(size=(rows, depth))
            given = encoded(row, dtype)
            values.append(decoded(given, dtype)[:, :depth])
            kernel = pack_kernel("pack", one, tile.precision, stage_squares=count * each, first=number * each)
            run(kernel, {"r": given, "packed": into}, {"rows": rows}, stages * each)
        arrays[name] = into
    arrays["sums"] = np.full((parts, lefts, height, width), np.nan, "f4")
    kernel = packed_weight_gradient("totals", tile, lefts, height, width)
    run(kernel, arrays, {"rows": rows, "parts": parts}, parts * tile.blocks(lefts, height, width))
    return arrays["sums"].sum(0), np.stack([left.T @ values[-1] for left in values[:-1]])


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("precision", "shape", "lefts", "height", "width", "rows", "parts"),
    [
        ("bfloat16", (128, 128), 1, 72, 70, 75, 2),
        ("tf32", (128, 128), 1, 72, 70, 75, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("float16", (128, 256), 3, 130, 200, 300, 1),
                ("bfloat16", (192, 192), 2, 330, 191, 65, 1),
                ("bfloat16", (192, 128), 1, 64, 260, 1, 3),
                ("tf32", (192, 192), 2, 200, 130, 97, 1),
                ("tf32", (128, 256), 3, 130, 66, 300, 4),
                ("tf32", (192, 128), 1, 64, 64, 1, 1),
            )
        ),
    ],
)
def test_sums_over_rows(
    precision: str, shape: tuple[int, int], lefts: int, height: int, width: int, rows: int, parts: int
) -> None:
    """Fewer rows than a stage and more, parts that have none, clusters of which a block has no work."""
    tile = PackedWeightGradientTile(precision, shape[1], shape[0])
    found, expected = sums(tile, lefts, height, width, rows, parts)
    assert np.linalg.norm(found - expected) < LIMITS[precision] * np.linalg.norm(expected)


def test_it_is_for_large_results_on_hopper() -> None:
    def tile(precision: str, height: int, width: int, arch: str = "sm_90a") -> PackedWeightGradientTile | None:
        lefts = [operand(f"a{i}", height, height, storage(precision)) for i in range(4)]
        return packed_tile_for(precision, lefts, operand("b", width, width, storage(precision)), arch, 132)

    assert tile("bfloat16", 2560, 2560) and tile("tf32", 2560, 2560) and tile("tf32", 512, 512)
    assert tile("bfloat16", 256, 256) is None and tile("tf32", 64, 64) is None
    assert tile("tf32", 2560, 2560, "sm_80") is None and tile("float32", 2560, 2560) is None
    odd = operand("a0", 2561, 2561, "bfloat16")
    assert packed_tile_for("bfloat16", [odd], operand("b", 2560, 2560, "bfloat16"), "sm_90a", 132) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_fit(shape: tuple[int, int]) -> None:
    """Shared memory, registers, and halves of the right operand of whole 16 bytes."""
    tile = PackedWeightGradientTile("bfloat16", shape[1], shape[0])
    assert tile.shared_bytes <= 227 * 1024 and tile.threads <= 512 and tile.wide % (8 * tile.cluster) == 0
    assert tile.blocks(4, 650, 650) % tile.cluster == 0
    assert replace(tile, cluster=1).blocks(1, 1, 1) == 1


def test_blocks_of_a_cluster_share_what_they_fetch() -> None:
    text = text_of(packed_weight_gradient("t", PackedWeightGradientTile("tf32", 192, 192), 1, 200, 200))
    assert "multicast__cluster" in text and "m64n192k8_f32_tf32_tf32_1_1" in text and "atomic" not in text
