"""persistent_cluster_cuda: geometries that exist, records, and kernels that nvcc compiles without spills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from persistent_layers import (
    GPU,
    compiled_without_spills,
    configured,
    geometry_by,
    step,
    unit_of,
)

from tvm_rnn import ConfigError
from tvm_rnn.cuda.model.persistent_step_time import RESIDENT_CLUSTERS, able_to_run
from tvm_rnn.schedule.schedule_template import templates

NAME = "persistent_cluster_cuda"
# The estimate of registers leaves out part of what reductions and masks hold: these spill more than others.
SPILLS = {("lstm_layer_norm", 256, "tf32"): 512, ("lstm_layer_norm", 256, "float32"): 512}
PRECISIONS = ("bfloat16", "float16", "tf32", "float32")


def test_it_takes_whole_layers_on_gpus() -> None:
    unit = unit_of("lstm", 64, "bfloat16", 8)
    assert templates()[NAME].applies(unit, GPU)
    assert templates()[NAME].kinds == ("recurrent",) and templates()[NAME].targets == ("cuda",)


@pytest.mark.broad_after(12)
@pytest.mark.slow_after(8)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("name", "hidden"), [("lstm", 64), ("gru_reset_before", 130), ("lstm_layer_norm", 96)])
@pytest.mark.parametrize("batch", [1, 20, 200])
def test_the_default_fits(name: str, hidden: int, batch: int, precision: str) -> None:
    unit = unit_of(name, hidden, precision, batch)
    config, knobs = configured(NAME, unit)
    assert set(knobs.space) == set(config) and all(config[knob] in values for knob, values in knobs.space.items())
    geometry = geometry_by(NAME, unit, config)
    assert able_to_run(geometry, GPU) and geometry.ctas in RESIDENT_CLUSTERS
    assert geometry.exchange.name == ("block" if geometry.ctas == 1 else "cluster")
    assert not any(share.streamed for parts in geometry.shares.values() for share in parts)
    assert geometry.rows % (8 * geometry.warps_n) == 0 and geometry.tiles % geometry.passes == 0
    assert geometry.rows < batch + 8
    assert geometry.ctas * geometry.units(hidden) >= hidden


def test_copies_have_warps_of_their_own_where_the_gpu_has_room_for_all_clusters() -> None:
    """15 clusters of 8 on an H200; half as many of half its multiprocessors."""
    knobs = {"ctas": 8, "rows": 8, "warps_u": 1, "warps_n": 1, "warps_k": 1, "register_words": 64, "ahead": 7}
    knobs |= {"passes": 1}
    whole = unit_of("lstm", 64, "bfloat16", 120)
    apart = [
        geometry_by(NAME, unit, knobs).exchange.copies_apart(geometry_by(NAME, unit, knobs))
        for unit in (whole, replace(whole, batch=121), replace(whole, sms=66), replace(whole, sms=66, batch=56))
    ]
    assert apart == [True, False, False, True]


def test_nothing_fits() -> None:
    assert configured(NAME, unit_of("lstm", 2048, "bfloat16", 16))[0] == {}


def test_a_record_is_replayed_and_checked() -> None:
    unit = unit_of("lstm", 128, "bfloat16", 16)
    config, _ = configured(NAME, unit)
    other = 4 if config["ctas"] != 4 else 8
    again, _ = configured(NAME, unit, {"ctas": other})
    assert again["ctas"] == other and again["rows"] in (8, 16)
    assert configured(NAME, unit, again)[0] == again


def test_a_knob_has_its_choices_alone() -> None:
    unit = unit_of("lstm", 64, "bfloat16", 8)
    with pytest.raises(ConfigError, match="knob ahead has no such value"):
        configured(NAME, unit, {"ahead": 5})


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_kernels_do_not_spill(precision: str, tmp_path: Path) -> None:
    check_spills(("lstm", 64, precision, 8), tmp_path, {})


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("hidden", [64, 256])
@pytest.mark.parametrize("name", ["elman", "gru", "gru_reset_before", "lstm_layer_norm", "lstm_peephole", "slstm"])
def test_kernels_of_many_cells_hardly_spill(name: str, hidden: int, precision: str, tmp_path: Path) -> None:
    for masked in (None, {}):
        check_spills((name, hidden, precision, 16), tmp_path, masked, SPILLS.get((name, hidden, precision), 256))


def check_spills(work: tuple[str, int, str, int], folder: Path, initial: Any, most: int = 0) -> None:
    kernel, geometry = compiled_without_spills(NAME, work, folder, initial, most)
    assert kernel.cluster == geometry.ctas and geometry.step == step(*work[:3])
