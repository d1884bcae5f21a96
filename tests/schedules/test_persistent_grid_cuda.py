"""persistent_grid_cuda: geometries that are resident, records, and kernels that nvcc compiles without spills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from persistent_layers import (
    GPU,
    TENSOR_CORES,
    compiled_without_spills,
    configured,
    geometry_by,
    unit_of,
)

from tvm_rnn.cuda.model.persistent_step_time import able_to_run, resident_groups

NAME = "persistent_grid_cuda"


@pytest.mark.broad_after(9)
@pytest.mark.slow_after(6)
@pytest.mark.parametrize("precision", TENSOR_CORES)
@pytest.mark.parametrize(("name", "hidden"), [("lstm", 64), ("gru_reset_before", 130), ("lstm", 1024)])
@pytest.mark.parametrize("batch", [1, 20, 200])
def test_the_default_fits(name: str, hidden: int, batch: int, precision: str) -> None:
    unit = unit_of(name, hidden, precision, batch)
    config, knobs = configured(NAME, unit)
    assert set(knobs.space) == set(config) and all(config[knob] in values for knob, values in knobs.space.items())
    geometry = geometry_by(NAME, unit, config)
    assert able_to_run(geometry, GPU) and geometry.exchange.name == "grid"
    assert 1 <= geometry.ctas <= GPU.sms and resident_groups(geometry, GPU) >= 1
    assert geometry.rows == batch == 1 or geometry.rows % (8 * geometry.warps_n) == 0
    assert geometry.tiles % geometry.passes == 0
    assert geometry.ctas * geometry.units(hidden) >= hidden


def test_nothing_fits() -> None:
    assert configured(NAME, unit_of("lstm", 4096, "bfloat16", 16))[0] == {}
    assert configured(NAME, unit_of("lstm", 2048, "float32", 16))[0] == {}  # 67 MB of weights


def test_in_float32_lanes_multiply_one_tile_of_rows_at_a_time() -> None:
    config, _ = configured(NAME, unit_of("lstm", 64, "float32", 16))
    geometry = geometry_by(NAME, unit_of("lstm", 64, "float32", 16), config)
    assert geometry.pass_tiles == 1 and config["copied"] == config["polled"] == config["ring"] == 0


@pytest.mark.parametrize("batch", [1, 33, 64, 513])
def test_in_float32_groups_of_any_batch_take_turns(batch: int) -> None:
    """Two groups of 768 units have room at once, or one."""
    unit = unit_of("lstm", 768, "float32", batch)
    geometry = geometry_by(NAME, unit, configured(NAME, unit)[0])
    assert able_to_run(geometry, GPU) and geometry.rows <= 32


@pytest.mark.broad
def test_rows_are_sliced_where_several_teams_fit() -> None:
    """64 blocks per group: two groups of 32 rows each hold 64 rows."""
    unit = unit_of("lstm", 512, "bfloat16", 64)
    geometry = geometry_by(NAME, unit, configured(NAME, unit)[0])
    slices = -(-64 // geometry.rows)
    assert slices <= resident_groups(geometry, GPU) and slices * geometry.rows < 64 + 8 * slices


def test_a_record_is_replayed() -> None:
    unit = unit_of("lstm", 512, "bfloat16", 16)
    config, _ = configured(NAME, unit)
    assert configured(NAME, unit, config)[0] == config
    other = 1 if config["ahead"] != 1 else 3
    assert configured(NAME, unit, {"ahead": other})[0]["ahead"] == other


@pytest.mark.broad_after(2)
@pytest.mark.parametrize(
    ("name", "hidden", "precision", "batch", "ring"),
    [
        ("lstm", 2048, "bfloat16", 64, 3),
        ("lstm", 2048, "float16", 16, 4),
        ("gru", 2048, "bfloat16", 128, 2),
        ("lstm", 1024, "bfloat16", 128, 8),
        ("lstm", 1024, "tf32", 64, 3),
        ("lstm", 1024, "bfloat16", 1, 0),
    ],
)
def test_pipelines_where_they_were_faster(name: str, hidden: int, precision: str, batch: int, ring: int) -> None:
    unit = unit_of(name, hidden, precision, batch)
    config = configured(NAME, unit)[0]
    assert config.get("ring", 0) == ring and (not ring or geometry_by(NAME, unit, config).together == 1)
    assert not configured(NAME, unit, {"ring": 0})[0].get("ring")


def test_many_rows_take_turns_where_one_round_has_no_room() -> None:
    unit = unit_of("lstm", 2048, "bfloat16", 128)
    assert geometry_by(NAME, unit, configured(NAME, unit)[0]).rows == 64


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("precision", TENSOR_CORES)
def test_kernels_do_not_spill(precision: str, tmp_path: Path) -> None:
    check_spills(("lstm", 64, precision, 8), tmp_path, {})


@pytest.mark.slow
@pytest.mark.parametrize("precision", TENSOR_CORES)
@pytest.mark.parametrize("hidden", [64, 512])
@pytest.mark.parametrize("name", ["elman", "gru", "gru_reset_before", "lstm_layer_norm", "lstm_peephole", "slstm"])
def test_kernels_of_many_cells_hardly_spill(name: str, hidden: int, precision: str, tmp_path: Path) -> None:
    for masked in (None, {}):
        check_spills((name, hidden, precision, 16), tmp_path, masked, most=256)


def check_spills(work: tuple[str, int, str, int], folder: Path, initial: Any, most: int = 0) -> None:
    kernel, _ = compiled_without_spills(NAME, work, folder, initial, most)
    assert kernel.resident and kernel.cluster == 1
