"""GEMMs of weight gradients by wgmma, emulated: sums over rows in parts, as they lie and packed, and where it pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compiled_kernels import text_of
from emulated import decoded, encoded, run
from row_products import LIMITS, operand, sums

from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.gemm.wgmma import SQUARE_BYTES
from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.cuda.training.row_product import RowProduct
from tvm_rnn.cuda.training.weight_gradient_wgmma import (
    SHAPES,
    PackedWeightGradientTile,
    WgmmaWeightGradientTile,
    added,
    in_one_cluster,
    pack_kernel,
    packed_tile_for,
    rows_of_stage,
    squares,
    wgmma_tile_for,
)


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
    tile = wgmma_tile_for(precision, lefts, RowProduct(lefts[0], right), "sm_90a", 132)
    assert tile is not None
    kernel = tile.kernel("gradients", lefts, right)
    found, expected = sums(kernel, tile.tiles(2, height, width), lefts, right, rows, parts)
    assert np.linalg.norm(found - expected) < LIMITS[precision] * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("height", "width", "rows"), [(72, 70, 200), pytest.param(130, 260, 70, marks=pytest.mark.slow)]
)
def test_pairs_of_parts_are_added_up(height: int, width: int, rows: int) -> None:
    """Four parts as two, one of which may have no rows; both columns that a pair shares out have ends."""
    lefts = [operand(name, height, -(-height // 8) * 8, "bfloat16") for name in ("a0", "a1")]
    right, rng = operand("b", width, -(-width // 8) * 8, "bfloat16"), np.random.default_rng(1)
    tile = wgmma_tile_for("bfloat16", lefts, RowProduct(lefts[0], right), "sm_90a", 132)
    assert tile is not None
    tile = replace(tile, adds=2, totals=((1,),))
    names = {o.name: rng.normal(size=(rows, o.place.row_stride)) for o in (*lefts, right)}
    arrays = {name: encoded(value, "bfloat16") for name, value in names.items()}
    arrays |= {"sums": np.full((2, 2, height, width), np.nan, "f4"), "totals": np.full((2, 1, height), np.nan, "f4")}
    kernel = tile.kernel("gradients", lefts, right)
    run(kernel, arrays, {"rows": rows, "parts": 4, "add": 0}, 4 * tile.tiles(2, height, width))
    a0, a1, b = (decoded(arrays[o.name], "bfloat16")[:, : o.depth] for o in (*lefts, right))
    for n, one in enumerate((a0, a1)):
        expected = one.T @ b
        assert np.linalg.norm(arrays["sums"].sum(0)[n] - expected) < LIMITS["bfloat16"] * np.linalg.norm(expected)
    np.testing.assert_allclose(arrays["totals"].sum(0)[0], a1.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.broad
def test_rows_of_4_byte_pieces() -> None:
    """Some of each: rows of 132 bytes, rows of 148 of which 4 are before them, and rows of 144."""
    lefts = [operand("a0", 66, 66, "bfloat16"), operand("a1", 66, 74, "bfloat16", 2)]
    for right in (operand("b", 70, 72, "bfloat16"), operand("b", 70, 70, "bfloat16")):
        tile = wgmma_tile_for("bfloat16", lefts, RowProduct(lefts[0], right), "sm_90a", 132)
        assert tile is not None
        kernel = tile.kernel("gradients", lefts, right)
        found, expected = sums(kernel, tile.tiles(2, 66, 70), lefts, right, 70, 1)
        assert np.linalg.norm(found - expected) < 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("precision", "heads", "turned", "totals", "rows", "parts"),
    [
        ("bfloat16", 2, True, (1,), 70, 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("float16", 3, False, (0, 1), 130, 1),
                ("bfloat16", 1, True, (), 200, 3),
                ("bfloat16", 1, False, (0,), 1, 1),
            )
        ),
    ],
)
@pytest.mark.broad
def test_heads_and_the_left_operands_own_sums(
    precision: str, heads: int, turned: bool, totals: tuple[int, ...], rows: int, parts: int
) -> None:
    """Heads lie beside each other in both operands; lines that no tile divides, stored as lines or as columns."""
    height, width = 130, 72
    lefts = [replace(operand(n, height, heads * 136, precision), apart=136) for n in ("a0", "a1")]
    right = replace(operand("b", width, heads * width, precision), apart=width)
    row = RowProduct(lefts[0], right, turned, heads)
    tile = wgmma_tile_for(precision, lefts, row, "sm_90a", 132)
    assert tile is not None
    tile, rng = replace(tile, totals=(totals,) if totals else ()), np.random.default_rng(1)
    arrays = {o.name: encoded(rng.normal(size=(rows, heads, o.apart)), precision) for o in (*lefts, right)}
    shape = (width, height) if turned else (height, width)
    arrays["sums"] = np.full((parts, 2, heads, *shape), np.nan, "f4")
    arrays |= {"totals": np.full((parts, len(totals), heads, height), np.nan, "f4")} if totals else {}
    kernel = tile.kernel("gradients", lefts, right)
    run(kernel, arrays, {"rows": rows, "parts": parts, "add": 0}, parts * tile.tiles(2, height, width))
    a0, a1, b = (decoded(arrays[o.name], precision)[..., : o.depth] for o in (*lefts, right))
    for n, one in enumerate((a0, a1)):
        expected = np.einsum("rhm,rhn->hnm" if turned else "rhm,rhn->hmn", one, b)
        assert np.linalg.norm(arrays["sums"].sum(0)[n] - expected) < LIMITS[precision] * np.linalg.norm(expected)
        if n in totals:
            found = arrays["totals"].sum(0)[totals.index(n)]
            assert np.linalg.norm(found - one.sum(0)) < LIMITS[precision] * np.linalg.norm(one.sum(0))


@pytest.mark.parametrize(
    ("turned", "beside", "heads", "rows", "parts", "adds"),
    [
        (False, True, 2, 70, 2, 1),
        (False, True, 2, 200, 4, 4),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (False, False, 1, 130, 1, 1),
                (True, False, 3, 65, 3, 1),
                (True, True, 2, 200, 4, 2),
                (False, False, 1, 1000, 8, 4),
                (True, False, 1, 60, 4, 4),
            )
        ),
    ],
)
@pytest.mark.broad
def test_all_left_operands_of_one_block(
    turned: bool, beside: bool, heads: int, rows: int, parts: int, adds: int
) -> None:
    """Three lefts of each of two rights, which are read once; totals of some; parts that have no rows; results of a
    head or of a left operand beside each other; parts that clusters add up."""
    height, width, totals = 72, 120, ((0, 4), (2,))
    lefts = [replace(operand(f"a{n}", height, heads * 80, "bfloat16"), apart=80) for n in range(6)]
    rights = [replace(operand(f"b{n}", width, heads * width, "bfloat16"), apart=width) for n in range(2)]
    row = RowProduct(lefts[0], rights[0], turned, heads)
    tile = wgmma_tile_for("bfloat16", lefts[:3], row, "sm_90a", 8)
    assert tile is not None and tile.together == 3
    tile, rng = replace(tile, totals=totals, beside=beside, adds=adds), np.random.default_rng(1)
    assert tile.shared_bytes <= 227 * 1024
    arrays = {o.name: encoded(rng.normal(size=(rows, heads, o.apart)), "bfloat16") for o in (*lefts, *rights)}
    order, size = (heads, 3) if beside else (3, heads), (width, height) if turned else (height, width)
    arrays |= {f"sums{n}": np.full((parts // adds, *order, *size), np.nan, "f4") for n in range(2)}
    for n, own in enumerate(totals):
        order = (heads, len(own)) if beside else (len(own), heads)
        arrays[f"totals{n}"] = np.full((parts // adds, *order, height), np.nan, "f4")
    blocks = parts * tile.tiles(6, height, width)
    run(tile.kernel("gradients", lefts, *rights), arrays, {"rows": rows, "parts": parts, "add": 0}, blocks)
    values = {o.name: decoded(arrays[o.name], "bfloat16")[..., : o.depth] for o in (*lefts, *rights)}
    sums_of = [arrays[f"sums{n}"].sum(0) for n in range(2)]
    for n in range(6):
        one, other = values[f"a{n}"], values[f"b{n // 3}"]
        expected = np.einsum("rhm,rhn->hnm" if turned else "rhm,rhn->hmn", one, other)
        found = sums_of[n // 3][:, n % 3] if beside else sums_of[n // 3][n % 3]
        assert np.linalg.norm(found - expected) < LIMITS["bfloat16"] * np.linalg.norm(expected)
        for array, own in enumerate(totals):
            if n in own:
                found = np.take(arrays[f"totals{array}"].sum(0), own.index(n), 1 if beside else 0)
                assert np.linalg.norm(found - one.sum(0)) < LIMITS["bfloat16"] * np.linalg.norm(one.sum(0))


def test_clusters_add_up_two_parts_where_pairs_keep_multiprocessors_at_work() -> None:
    """None where two parts of all have no room at once, or a third has."""
    assert [added(blocks, 132) for blocks in (16, 32, 60, 44, 120)] == [2, 2, 2, 1, 1]


@pytest.mark.parametrize(("heads", "high", "stages"), [(8, 128, 3), (16, 64, 4), (32, 128, 3)])
def test_tiles_are_low_where_one_cluster_then_adds_up_all_parts(heads: int, high: int, stages: int) -> None:
    """Of 132 multiprocessors, two products of three left operands: of 16 heads 32 tiles leave two sums of two parts
    each, 64 lower ones one of both. With 8 heads a fold is left in any case, with 32 there is none."""
    tile = WgmmaWeightGradientTile("bfloat16", 128, 128, heads=heads, together=3, stages=3)
    found = in_one_cluster(tile, 6, (128, 128), 132)
    assert (found.high, found.stages) == (high, stages)
    assert found.tiles(6, 128, 128) * (2 if found is tile else 1) == 4 * heads


def test_it_is_for_large_results_of_16_bit_rows_on_hopper() -> None:
    left, right, thin = (operand(name, size, size, "bfloat16") for name, size in (("a0", 512), ("b", 512), ("c", 40)))
    tile = wgmma_tile_for("bfloat16", [left], RowProduct(left, right), "sm_90a", 132)
    assert tile == WgmmaWeightGradientTile("bfloat16", 128, 256) and tile.shared_bytes < 227 * 1024
    assert wgmma_tile_for("bfloat16", [left], RowProduct(left, right), "sm_80", 132) is None
    assert wgmma_tile_for("tf32", [left], RowProduct(left, right), "sm_90a", 132) is None
    assert wgmma_tile_for("bfloat16", [thin], RowProduct(thin, right), "sm_90a", 132) is None
    assert wgmma_tile_for("bfloat16", [left], RowProduct(left, thin), "sm_90a", 132) is None
    odd = operand("b", 251, 251, "bfloat16")
    assert wgmma_tile_for("bfloat16", [left], RowProduct(left, odd), "sm_90a", 132) is None


@pytest.mark.parametrize("height", [64, 130, 256, 650, 2560])
def test_the_tile_that_reads_least(height: int) -> None:
    """Of all that fit shared memory and registers: none may be asked to read less than the one that is taken."""
    left, right = operand("a0", height, 2560, "float16"), operand("b", 650, 1024, "float16")
    tile = wgmma_tile_for("float16", [left], RowProduct(left, right), "sm_90a", 132)
    assert tile is not None and tile.threads <= 384 and tile.shared_bytes <= 227 * 1024
    read = tile.tiles(1, height, 650) * (tile.high + tile.wide)
    for high in (64, 128):
        for wide in (64, 128, 256):
            other = WgmmaWeightGradientTile("float16", high, wide)
            assert read <= other.tiles(1, height, 650) * (high + wide)


def test_operands_are_multiplied_as_they_lie() -> None:
    left, right = (operand(name, 64, 64, "bfloat16") for name in ("a0", "b"))
    tile = wgmma_tile_for("bfloat16", [left], RowProduct(left, right), "sm_90a", 132)
    assert tile is not None
    text = text_of(tile.kernel("t", [left], right))
    assert "m64n64k16_f32_bf16_bf16_1_1_1_1" in text and "atomic" not in text


def sides(lefts: int, height: int, width: int) -> tuple[list[Operand], Operand]:
    """Operands whose depths alone matter: others have packed them."""
    left, right = (operand(name, depth, depth, "float32") for name, depth in (("a", height), ("b", width)))
    return [left] * lefts, right


def packed_sums(
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
    arrays |= {"totals": np.full((parts, 1, height), np.nan, "f4")} if tile.totals else {}
    kernel = tile.kernel("gradients", *sides(lefts, height, width))
    run(kernel, arrays, {"rows": rows, "parts": parts, "add": 0}, parts * tile.tiles(lefts, height, width))
    for left in (left for own in tile.totals for left in own):
        np.testing.assert_allclose(arrays["totals"].sum(0)[0], values[left].sum(0), rtol=1e-4, atol=1e-4)
    return arrays["sums"].sum(0), np.stack([left.T @ values[-1] for left in values[:-1]])


@pytest.mark.broad
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
def test_sums_over_rows_that_are_packed(
    precision: str, shape: tuple[int, int], lefts: int, height: int, width: int, rows: int, parts: int
) -> None:
    """Fewer rows than a stage and more, parts that have none, clusters of which a block has no work; in 16 bits the
    last left operand's own sums, too."""
    tile = PackedWeightGradientTile(precision, *shape, totals=() if precision == "tf32" else ((lefts - 1,),))
    found, expected = packed_sums(tile, lefts, height, width, rows, parts)
    assert np.linalg.norm(found - expected) < LIMITS[precision] * np.linalg.norm(expected)


def test_packing_is_for_large_results_on_hopper() -> None:
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
    tile = PackedWeightGradientTile("bfloat16", *shape, totals=((0,),))
    assert tile.shared_bytes <= 227 * 1024 and tile.threads <= 512 and tile.wide % (8 * tile.cluster) == 0
    assert tile.tiles(4, 650, 650) % tile.cluster == 0
    assert replace(tile, cluster=1).tiles(1, 1, 1) == 1


def test_blocks_of_a_cluster_share_what_they_fetch() -> None:
    text = text_of(PackedWeightGradientTile("tf32", 192, 192).kernel("t", *sides(1, 200, 200)))
    assert "multicast__cluster" in text and "m64n192k8_f32_tf32_tf32_1_1" in text and "atomic" not in text


def packed(one: Operand, precision: str, rows: int, values: np.ndarray, spare: int, first: int) -> np.ndarray:
    """What the kernel makes of rows: [stage, square, line, chunk, element], chunks in their order again."""
    dtype = storage(precision)
    whole = np.full((rows + 1, one.place.row_stride), np.nan)
    first_column = one.offset or 0
    whole[:rows, first_column : first_column + one.depth] = values
    own, stages = squares(one.depth), -(-rows // rows_of_stage(precision))
    shape = (stages, own + spare, 64, 8, 16 // np.dtype(storage("float32") if precision == "tf32" else "f2").itemsize)
    into = encoded(np.full(shape, 7.0), dtype)
    kernel = pack_kernel("pack", one, precision, stage_squares=own + spare, first=first)
    run(kernel, {one.name: encoded(whole, one.place.dtype), "packed": into}, {"rows": rows}, stages * own)
    found = decoded(into, dtype).reshape(stages, own + spare, SQUARE_BYTES // 128, 8, -1)
    order = np.arange(8)[None, :] ^ np.arange(64)[:, None] % 8
    return np.take_along_axis(found, order[None, None, :, :, None], 3)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize(
    ("depth", "stride", "offset", "rows"),
    [(130, 136, 0, 70), (64, 80, 16, 1), pytest.param(70, 74, 2, 129, marks=pytest.mark.slow)],
)
def test_every_element_has_its_place(precision: str, depth: int, stride: int, offset: int, rows: int) -> None:
    """Rows inside of others, of 16-byte pieces and of 4-byte ones; squares beside others, which stay as they are."""
    one = operand("r", depth, stride, storage(precision), offset)
    values = np.random.default_rng(1).normal(size=(rows, depth))
    found = packed(one, precision, rows, values, 2, 1)
    deep, own = rows_of_stage(precision), squares(depth)
    assert (found[:, 0] == 7).all() and (found[:, -1] == 7).all()
    expected = np.zeros((found.shape[0] * deep, own * 64))
    expected[:rows, :depth] = decoded(encoded(values, storage(precision)), storage(precision))
    squared = expected.reshape(-1, deep, own, 64).transpose((0, 2, 3, 1) if precision == "tf32" else (0, 2, 1, 3))
    limit = 2.0**-11 if precision == "tf32" else 0  # rounded to 10 bits of mantissa
    got = found[:, 1:-1].reshape(squared.shape)
    np.testing.assert_allclose(got, squared, rtol=limit, atol=0)
    if precision == "tf32":
        assert not (got.astype("f4").view("u4") & 0x1FFF).any()


@pytest.mark.broad
def test_nan_and_inf_stay() -> None:
    one = operand("r", 64, 64, "float32")
    values = np.ones((32, 64))
    values[3, 5], values[4, 6] = np.nan, -np.inf
    found = packed(one, "tf32", 32, values, 0, 0)[0, 0].reshape(64, 32)
    assert np.isnan(found[5, 3]) and found[6, 4] == -np.inf and np.isfinite(found).sum() == 64 * 32 - 2
