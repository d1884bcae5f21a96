"""persistent_fma_cuda: geometries of waves in strict float32, records, kernels that nvcc compiles without spills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emulated import layer
from persistent_layers import GPU, configured, geometry_by, registers_and_spills

from tvm_rnn.cuda.model import choose_geometry
from tvm_rnn.cuda.model.choose_geometry import RecurrentUnit
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.model.persistent_step_time import able_to_run, lacking, predict
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.schedule.schedule_template import templates

NAME = "persistent_fma_cuda"
LAYERS = 4
PART = replace(GPU, sms=GPU.sms // LAYERS)


def unit(name: str = "lstm", hidden: int = 512, batch: int = 64, precision: str = "float32") -> RecurrentUnit:
    """One of four layers in a wave, which multiplies as many inputs as it has units."""
    return choose_geometry.unit_of(step_of(layer(name, hidden, precision, hidden)[1]), GPU, precision, batch, LAYERS)


@pytest.mark.parametrize(
    ("name", "hidden", "batch"), [("lstm", 512, 64), ("gru", 256, 1), ("gru_reset_before", 100, 33)]
)
def test_the_default_fits(name: str, hidden: int, batch: int) -> None:
    made = unit(name, hidden, batch)
    config, knobs = configured(NAME, made)
    assert set(knobs.space) == set(config) and all(config[knob] in values for knob, values in knobs.space.items())
    geometry = geometry_by(NAME, made, config)
    assert (
        able_to_run(geometry, GPU)
        and geometry.possible
        and geometry.stages
        and geometry.ctas * geometry.units(hidden) >= hidden
    )


@pytest.mark.slow
def test_layers_alone_other_precisions_and_what_does_not_fit() -> None:
    assert configured(NAME, replace(unit(), layers=1))[0] == {}
    assert configured(NAME, unit(precision="tf32"))[0] == {}
    wide: Any = unit(hidden=4096)
    assert configured(NAME, wide)[0] == {}
    geometry = geometry_by(NAME, wide, {"ctas": 64, "rows": 8, "fma": 2, "shared_words": 0})
    assert not able_to_run(geometry, GPU) and "bytes of shared memory" in lacking(geometry, GPU).reason


def test_a_record_is_replayed() -> None:
    made = unit()
    config, _ = configured(NAME, made)
    assert configured(NAME, made, config)[0] == config
    assert configured(NAME, made, {**config, "fma": 3})[0]["fma"] == 3


def test_every_geometry_runs_on_a_quarter_of_the_gpu() -> None:
    made: Any = unit()
    every = list(templates()[NAME].every(made, PART))
    assert len(every) > 1 and {config["ctas"] for config in every} > {32}
    for config in every:
        geometry = geometry_by(NAME, made, config)
        assert able_to_run(geometry, PART) and predict(geometry, 64, PART) > 17  # FFMA alone


@pytest.mark.slow
@pytest.mark.parametrize("masked", [None, {}])
def test_four_layers_of_512_units(masked: dict[str, float] | None, tmp_path: Path) -> None:
    made: Any = unit()
    config: Any = templates()[NAME].configure(made, PART, configured(NAME, made)[1])
    assert config == {"ctas": 32, "rows": 64, "fma": 2, "shared_words": 0}
    kernel = persistent.kernel("k", geometry_by(NAME, made, config), layer("lstm", 512, "float32", 512)[1], masked)
    registers, spilled = registers_and_spills(kernel, tmp_path)
    assert registers <= 255 and spilled == 0
