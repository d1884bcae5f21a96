"""gemm_cuda: tiles that exist for every shape and precision, choices, and replay of records."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tvm_rnn import ConfigError, target
from tvm_rnn.cuda.gemm.ffma import LanesTile
from tvm_rnn.cuda.gemm.mma_sync import MmaTile
from tvm_rnn.cuda.gemm.wgmma import WgmmaTile
from tvm_rnn.cuda.gemm.wgmma_split_k import SplitKTile
from tvm_rnn.cuda.layer.packed_layout import Fragments, Lanes
from tvm_rnn.schedule.schedule_template import Config, Knobs, Unit, best, templates

GPU = target.resolve("nvidia-h200")


def unit(dtype: str, gates: int = 4, width: int = 256, depth: int = 256, region: str = "step", rows: int = 64) -> Unit:
    return Unit("gemm", region, dtype, gates, width, (depth,), batches=(rows,))


def check_tensor(u: Unit, knobs: Config) -> None:
    size = "float32" if u.dtype == "tf32" else u.dtype
    layout = Fragments(u.gates, u.width, size, knobs["span"], knobs["widest"])
    for name in ("few", "many"):
        names = ("rows", "split", "stages", "cluster", "columns", "warps", "along", "pace")
        parts = {k: knobs[f"{name}_{k}"] for k in names}
        tile = MmaTile(**parts)
        assert tile.rows % (16 * tile.warps) == 0 and tile.threads <= 1024
        assert layout.columns % tile.columns == 0 and tile.broad * 8 // tile.cluster % layout.block == 0
        assert tile.shared_bytes <= GPU.shared_bytes
        assert tile.sums <= 128 * 4 or u.gates > 16, "accumulators in registers"
    if knobs["wide_columns"]:
        wide = WgmmaTile(**{k: knobs[f"wide_{k}"] for k in ("columns", "stages", "cluster")})
        assert wide.shared_bytes <= GPU.shared_bytes and layout.columns % wide.columns == 0 and wide.columns <= 256
        assert wide.columns % layout.block == 0 and wide.columns % (8 * wide.cluster) == 0


def check_lanes(u: Unit, knobs: Config) -> None:
    groups = Lanes(u.gates, u.width, u.dtype, knobs["units"]).groups
    size = 8 if u.dtype == "float64" else 4
    for name in ("few", "many"):
        parts = {k: knobs[f"{name}_{k}"] for k in ("rows", "split", "stages", "across", "high", "pace")}
        tile = LanesTile(groups=groups, size=size, **parts)
        assert tile.rows % tile.high == 0 and tile.down * tile.lanes % 32 == 0 and tile.threads <= 1024
        assert tile.shared_bytes <= GPU.shared_bytes and 8 % tile.split == 0


@pytest.mark.parametrize("dtype", ["float16", "tf32", "float32", "float64"])
@pytest.mark.parametrize("gates", [1, 2, 3, 4, 5, 8, 11, 40])
def test_the_default_tiles_can_be_built(dtype: str, gates: int) -> None:
    for width, region, rows in product((1, 7, 16, 130, 1024, 2560), ("before", "step"), (1, 16, 64, 1000)):
        u = unit(dtype, gates, width, width, region, rows)
        chosen, knobs, _ = best(u, GPU)
        assert chosen.name == "gemm_cuda", u
        (check_tensor if dtype in ("float16", "tf32") else check_lanes)(u, knobs)


def test_steps_are_spread_over_multiprocessors() -> None:
    assert best(unit("bfloat16", width=1024), GPU)[1]["few_columns"] == 32
    assert [best(unit("float32", width=w), GPU)[1]["few_across"] for w in (1024, 2560, 4096)] == [4, 4, 8]
    for width, most in ((256, 512), (512, 512), (2560, 128)):  # while larger tiles would leave half of a GPU idle
        assert best(unit("float32", width=width), GPU)[1]["few"] == most


def test_fewer_rows_have_tiles_of_their_own_without_wgmma() -> None:
    """A tile takes its time however few of its rows are there; its blocks are as many as there are multiprocessors."""
    several = Unit("gemm", "step", "bfloat16", 4, 2048, (2048,), batches=(1, 16, 64, 128))
    knobs = best(several, target.resolve("nvidia-a100"))[1]
    assert [knobs[f"{size}_rows"] for size in ("least", "fewer", "few")] == [16, 64, 128]
    assert [knobs[f"{size}_along"] for size in ("least", "fewer", "few")] == [1, 2, 2]
    assert "least" not in best(several, GPU)[1]


def test_wgmma_is_for_many_rows_on_hopper() -> None:
    assert best(unit("bfloat16", region="before"), GPU)[1]["wide_columns"] == 256
    step = best(unit("bfloat16", width=512, rows=256), GPU)[1]
    assert (step["wide"], step["wide_columns"], step["few"]) == (64, 256, 64)
    assert 256 < step["mid"] < best(unit("bfloat16", width=512, region="before"), GPU)[1]["mid"]
    assert best(unit("bfloat16", region="before"), target.resolve("nvidia-a100"))[1]["wide_columns"] == 0


def test_a_record_is_replayed_and_checked() -> None:
    assert best(unit("bfloat16"), GPU, {"few_stages": 5})[1]["few_stages"] == 5
    with pytest.raises(ConfigError, match="knob few_stages has no such value"):
        best(unit("bfloat16"), GPU, {"few_stages": 7})


def test_the_space_is_every_choice() -> None:
    knobs = Knobs()
    templates()["gemm_cuda"].configure(unit("bfloat16"), GPU, knobs)
    assert {"span", "few_rows", "many_columns", "overlap"} <= set(knobs.space)


def test_tiles_of_a_call_of_one_step_leave_room_for_those_beside_them() -> None:
    """The hoisted product and the step's have half of the multiprocessors each, where the narrowest tiles are that few;
    of 65 to 128 rows blocks share K only where such tiles would be too few or too many. Where units are few and K is
    deep, blocks share K of more rows."""
    hoisted, step = (best(unit("tf32", 4, 512, 512, region), GPU)[1] for region in ("before", "step"))
    assert hoisted["slim"] == step["slim"] == 257 and hoisted["share_most"] == hoisted["wide"] == 64
    narrow = best(unit("bfloat16", 4, 64, 2000, "before"), GPU)[1]
    assert narrow["wide"] == 128 < narrow["share_most"] <= 1024
    shallow = best(unit("bfloat16", 4, 64, 200, "before"), GPU)[1]
    assert shallow["share_most"] == shallow["wide"] == 128


def test_few_tiles_share_k() -> None:
    """Where K is deep and the others' tiles are few; not where K is short, nor where they are many."""
    deep = best(unit("tf32", 4, 326, 2960, "before", rows=390), GPU)[1]
    assert deep["tall_from"] <= 390 <= deep["tall"] and deep["tall_cluster"] > 1
    assert SplitKTile(deep["tall_rows"], columns=deep["tall_columns"], block=64, stages=4).fits
    assert not best(unit("tf32", 4, 326, 2960, "step", rows=390), GPU)[1]["taller"]  # one number of rows, one shape
    any_batch = replace(unit("tf32", 4, 326, 2960, "step"), batches=())
    steps = best(any_batch, GPU)[1]  # for more rows, fewer blocks share K
    assert steps["tall"] < steps["taller_from"] <= 390 <= steps["taller"]
    assert steps["tall_cluster"] > steps["taller_cluster"] > 1
    for other in (unit("tf32", 4, 512, 512, rows=256), unit("bfloat16", 4, 2048, 2048, rows=256)):
        assert not best(other, GPU)[1]["tall"]
    assert not best(unit("tf32", 4, 326, 2960, "before", rows=390), target.resolve("nvidia-a100"))[1]["tall"]


def test_a_list_takes_the_tile_of_the_rows_that_it_soon_has() -> None:
    """Of a step; a hoisted product's list has its rows all the time."""
    step, hoisted = (
        best(replace(unit("tf32", 3, 1044, 1044, region), batches=()), GPU)[1] for region in ("step", "before")
    )
    assert step["tall_from"] <= step["tall"] < 305 <= step["tall_listed"] < step["taller_from"]
    assert all(hoisted[f"{name}_listed"] == hoisted[name] > 0 for name in ("tall", "taller"))
