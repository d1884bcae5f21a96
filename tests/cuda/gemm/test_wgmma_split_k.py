"""Kernels for large steps: when there are any, what they need, and which tiles they choose."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import text_of
from emulated import POISON, decoded, encoded, run
from gemm_groups import hoisted, lstm_step, made

from tvm_rnn.cuda.gemm.group_kernels import Variant
from tvm_rnn.cuda.gemm.wgmma_split_k import SplitKTile
from tvm_rnn.cuda.layer.packed_layout import Pack
from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.target import resolve


def shared(width: int, precision: str = "bfloat16", most: int = 64, **options: object) -> list[Variant]:
    found = made(lstm_step(width, width), precision, record={"share": most}, **options).variants
    return [v for v in found if "_share" in v.kernel.name]


@pytest.mark.parametrize(
    ("precision", "instruction"),
    [
        ("bfloat16", "m64n160k16_f32_bf16_bf16"),
        ("float16", "m64n160k16_f32_f16_f16"),
        ("tf32", "m64n160k8_f32_tf32_tf32"),
    ],
)
def test_large_steps_share_k_in_clusters(precision: str, instruction: str) -> None:
    (variant,) = shared(2560, precision)
    assert variant.condition == "rows >= 1 && rows <= 64 && ((uintptr_t)x0 & 15) == 0"
    assert variant.kernel.cluster == 2 and variant.kernel.shared_bytes <= resolve("nvidia-h200").shared_bytes
    text = text_of(variant.kernel)
    assert instruction in text and "cp_async_bulk" in text and "prefetch_global_L2" in text


def test_more_rows_have_a_kernel_of_their_own() -> None:
    conditions = [v.condition.split(" && ((")[0] for v in shared(2048, most=128)]
    assert conditions == ["rows >= 1 && rows <= 64", "rows >= 65 && rows <= 128"]


def test_it_is_for_hopper() -> None:
    assert not shared(2048, target="nvidia-a100")


@pytest.mark.parametrize(
    ("gates", "width", "depth", "precision", "cluster", "most"),
    [
        (4, 502, 160, "bfloat16", 2, 128),
        (3, 512, 1024, "bfloat16", 4, 128),
        (4, 1312, 1312, "tf32", 4, 64),
        (4, 19, 40, "float16", 1, 128),
    ],
)
def test_products_of_few_rows_are_spread(
    gates: int, width: int, depth: int, precision: str, cluster: int, most: int
) -> None:
    """Over as many blocks as there are multiprocessors for, each with a tile of K; rows beyond 64 have more of them,
    where no narrow tiles keep half of the multiprocessors at work."""
    (variant, *_), own = made(hoisted(gates, width, (depth,)), precision).variants, f"kernel_share1 {cluster}"
    assert f"{variant.kernel.name} {variant.kernel.cluster}" == own
    assert variant.condition == f"rows >= 1 && rows <= {most} && ((uintptr_t)x0 & 15) == 0"


def whole_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Eighths, which every dtype has exactly."""
    return rng.integers(-8, 9, shape) / 8


def in_order(pack: Pack, value: np.ndarray) -> np.ndarray:
    """A weight as its kernel reads it."""
    index, valid = pack.index(np.arange(pack.elements))
    return np.where(valid, value[tuple(np.where(valid, i, 0) for i in index)], 0.0)


@pytest.mark.broad
@pytest.mark.parametrize(
    ("gates", "width", "depth", "precision", "rows", "cluster"),
    [
        (4, 70, 200, "bfloat16", 130, 4),
        (3, 50, 72, "float16", 65, 2),
        (2, 24, 74, "bfloat16", 33, 1),  # rows of multiples of 4 bytes, no more
        (2, 20, 77, "tf32", 67, 2),
        (2, 16, 850, "tf32", 11, 1),  # stages are filled again, while copies of several are under way
        pytest.param(4, 40, 132, "tf32", 70, 2, marks=pytest.mark.slow),
        pytest.param(3, 40, 1160, "tf32", 9, 8, marks=pytest.mark.slow),
    ],
)
def test_hoisted_products_of_few_rows(
    gates: int, width: int, depth: int, precision: str, rows: int, cluster: int
) -> None:
    found = made(hoisted(gates, width, (depth,)), precision, record={"share_cluster": cluster})
    kernel, dtype, rng = found.variants[0].kernel, storage(precision), np.random.default_rng(rows)
    weight, x, bias = (whole_numbers(rng, *shape) for shape in ((gates, width, depth), (rows, depth), (gates, width)))
    arrays = {"w0": encoded(in_order(found.packs[0], weight), dtype), "x0": encoded(x, dtype)}
    arrays |= {name: bias.astype(np.float32) for name, _ in kernel.pointers if name.startswith("r")}
    results = [name for name, _ in kernel.pointers if name.startswith("y")]
    arrays |= {name: encoded(np.full((rows, width), POISON), dtype) for name in results}
    tiles = -(-rows // 64) * -(-width // (found.knobs["share_columns"] // gates))
    run(kernel, arrays, {"rows": rows}, tiles * kernel.cluster)
    wanted = np.einsum("rk,guk->gru", x, weight) + bias[:, None]
    for name, expected in zip(results, wanted, strict=True):
        assert np.allclose(decoded(arrays[name], dtype), expected, rtol=2**-8, atol=1e-6)


def test_they_are_chosen_for_up_to_128_rows() -> None:
    names = [v.kernel.name for v in made(lstm_step(2560, 2560)).variants if "_share" in v.kernel.name]
    assert names == ["kernel_share1", "kernel_share2"]


def test_many_rows_fetch_weights_early() -> None:
    """Quicker there (GRU 2048 bf16, 128 rows: 15.5 us against 16.7), not with few (16 rows: 8.9 against 8.7)."""
    one, two = (text_of(v.kernel) for v in shared(2048, most=128))
    assert "griddepcontrol" in two and "griddepcontrol" not in one


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("width", "precision", "kept"),
    [(2048, "bfloat16", 0), (2048, "tf32", 39), (2560, "bfloat16", 50), (2560, "tf32", 25)],
)
def test_half_of_l2_is_kept_for_weights_that_do_not_fit(width: int, precision: str, kept: int) -> None:
    assert made(lstm_step(width, width), precision).knobs["share_kept"] == kept


def test_blocks_have_no_more_stages_than_tiles_of_k() -> None:
    """So that blocks of both directions' products fit on a multiprocessor; deep products take all of it."""
    (short, *_), (deep, *_) = (made(hoisted(1, 508, (k,)), "tf32").variants for k in (1016, 16384))
    room = resolve("nvidia-h200").sm_shared_bytes
    assert 2 * (short.kernel.shared_bytes + 1024) <= room < 2 * deep.kernel.shared_bytes


def test_rows_that_do_not_exist_are_neither_copied_nor_exchanged() -> None:
    """All threads skip what no row of the block is in, a quarter or half of the tile; blocks of a cluster exchange sums
    of rows alone."""
    (variant, *_) = made(hoisted(1, 64, (256,)), "tf32", record={"share_cluster": 2}).variants
    lines = text_of(variant.kernel).splitlines()
    copies = [lines[n - 1] for n, line in enumerate(lines) if "ptx_cp_async_cg_src_size" in line and "  " in line[:4]]
    assert sum("if ((" in line and "rows" in line for line in copies) == 2 and len(copies) == 4
    stores = [lines[n - 2 : n] for n, line in enumerate(lines) if "ptx_st_vec_shared__cluster" in line]
    assert all(any("if (" in line for line in before) for before in stores if "  " in before[0][:4])


def test_a_block_leaves_room_for_another_where_stages_are_used_twice_at_most() -> None:
    """Two directions' products of one step run side by side."""
    (twice, *_), (often, *_) = (made(hoisted(1, 507, (k,)), "tf32").variants for k in (1521, 8192))
    room = resolve("nvidia-h200").sm_shared_bytes
    assert 2 * (twice.kernel.shared_bytes + 1024) <= room < 2 * often.kernel.shared_bytes


def test_no_kernel_for_rows_that_are_not_aligned() -> None:
    assert not shared(2048, stride=1)


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_every_item_has_one_block(cluster: int) -> None:
    tile = SplitKTile(columns=160, block=32, cluster=cluster)
    assert tile.items == 10 and tile.own * cluster >= 10 > (tile.own - 1) * cluster
    assert tile.shared_bytes >= cluster * tile.own * tile.members * 32


def split_k(columns: int, along: int, stages: int = 4) -> SplitKTile:
    return SplitKTile(128, columns=columns, block=32, along=along, stages=stages)


def test_tiles_that_do_not_fit_are_left_out() -> None:
    """Of an LSTM of 6144, 128 rows leave room for three stages; 640 threads do not have 144 columns' sums."""
    assert [v.kernel.name for v in shared(6144, most=128)] == ["kernel_share1"]
    assert split_k(144, 1).fits and split_k(256, 2).fits
    assert not split_k(288, 2).fits and not split_k(256, 1, stages=3).fits
