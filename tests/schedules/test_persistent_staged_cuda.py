"""persistent_staged_cuda: geometries of waves that fit, records, and kernels that nvcc compiles with few spills."""

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
from tvm_rnn.cuda.model.persistent_step_time import able_to_run
from tvm_rnn.cuda.persistent import kernel as persistent

NAME = "persistent_staged_cuda"
LAYERS = 4


def unit(name: str = "lstm", hidden: int = 512, batch: int = 64, precision: str = "bfloat16") -> RecurrentUnit:
    """One of four layers in a wave, which multiplies as many inputs as it has units."""
    step = step_of(layer(name, hidden, precision, hidden)[1])
    return choose_geometry.unit_of(step, GPU, precision, batch, LAYERS)


@pytest.mark.parametrize(("name", "precision"), [("lstm", "bfloat16"), ("gru", "float16")])
def test_the_default_fits(name: str, precision: str) -> None:
    made = unit(name, precision=precision)
    config, knobs = configured(NAME, made)
    assert set(knobs.space) == set(config) and all(config[knob] in values for knob, values in knobs.space.items())
    geometry = geometry_by(NAME, made, config)
    assert able_to_run(geometry, GPU) and geometry.possible and geometry.ctas * geometry.units(512) >= 512


@pytest.mark.broad
def test_layers_alone_and_what_does_not_fit() -> None:
    assert configured(NAME, replace(unit(), layers=1))[0] == {}
    assert configured(NAME, unit(hidden=2048))[0] == {}


def test_a_record_is_replayed() -> None:
    made = unit()
    config, _ = configured(NAME, made)
    assert configured(NAME, made, config)[0] == config
    assert configured(NAME, made, {**config, "ahead": 8})[0]["ahead"] == 8


@pytest.mark.slow
def test_four_layers_of_512_units(tmp_path: Path) -> None:
    made: Any = unit()
    config, _ = configured(NAME, made)
    assert config | {"ahead": 0} == {"ctas": 16, "rows": 32, "warps_k": 2, "register_words": 128, "ahead": 0}
    kernel = persistent.kernel("k", geometry_by(NAME, made, config), layer("lstm", 512, "bfloat16", 512)[1])
    registers, spilled = registers_and_spills(kernel, tmp_path)
    assert registers <= 255 and spilled <= 64
