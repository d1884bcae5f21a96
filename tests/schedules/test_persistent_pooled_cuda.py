"""persistent_pooled_cuda: which layers it takes, geometries that fit, records, and kernels that nvcc compiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from persistent_layers import GPU, configured, geometry_by, layout_of, registers_and_spills, unit_of
from training_plans import trained

from tvm_rnn.cuda.model import choose_geometry
from tvm_rnn.cuda.model.persistent_step_time import able_to_run, predict, resident_groups
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.schedule.schedule_template import templates

NAME = "persistent_pooled_cuda"
MOST_SPILLED = 64  # bytes, of stores and loads together: values of a step's start and end


def chosen(name: str, hidden: int, batch: int, precision: str = "bfloat16", **record: int) -> Geometry:
    unit = unit_of(name, hidden, precision, batch)
    geometry: Any = geometry_by(NAME, unit, configured(NAME, unit, record)[0])
    return geometry


@pytest.mark.broad_after(3)
@pytest.mark.parametrize(
    ("name", "hidden", "batch", "precision"),
    [
        ("lstm", 2560, 64, "bfloat16"),
        ("lstm", 2560, 1, "float16"),
        ("gru", 2817, 33, "bfloat16"),
        ("lstm", 2048, 128, "bfloat16"),
        ("lstm", 2048, 64, "tf32"),
        ("gru_reset_before", 2048, 20, "bfloat16"),
    ],
)
def test_the_default_fits(name: str, hidden: int, batch: int, precision: str) -> None:
    unit = unit_of(name, hidden, precision, batch)
    config, knobs = configured(NAME, unit)
    assert set(knobs.space) == set(config) and all(config[knob] in values for knob, values in knobs.space.items())
    geometry: Any = geometry_by(NAME, unit, config)
    assert able_to_run(geometry, GPU) and geometry.ctas % geometry.together == 0
    assert (
        1 <= geometry.ctas <= GPU.sms
        and resident_groups(geometry, GPU) >= 1
        and geometry.ctas * geometry.units(hidden) >= hidden
    )
    every = templates()[NAME].every
    assert every is not None
    assert predict(geometry, batch, GPU) == min(
        predict(geometry_by(NAME, unit, c), batch, GPU) for c in every(unit, GPU)
    )


def test_layers_that_are_on_the_chip_anyway_are_not_its_own() -> None:
    assert configured(NAME, unit_of("lstm", 1024, "bfloat16", 64))[0] == {}
    assert configured(NAME, unit_of("lstm", 2560, "float32", 64))[0] == {}  # no tensor cores
    assert configured(NAME, replace(unit_of("lstm", 2560, "bfloat16", 64), layers=2))[0] == {}
    assert configured(NAME, replace(unit_of("lstm", 2560, "bfloat16", 64), stored="float8_e4m3"))[0] == {}
    assert configured(NAME, unit_of("lstm", 8192, "bfloat16", 64))[0] == {}  # units have no room on a cluster


def test_backward_steps_are_not_its_own() -> None:
    _, plans = trained("lstm", 32, "bfloat16")
    regime: Any = plans.backward.code[0].regimes[0]
    step = regime.geometry.step
    assert step.graph.kind == "backward"
    assert configured(NAME, choose_geometry.unit_of(step, GPU, "bfloat16", 64), {"ring": 3})[0] == {}


def test_weights_are_streamed_where_they_do_not_fit() -> None:
    large, small = chosen("lstm", 2560, 64), chosen("gru", 2048, 64)
    assert all(s.streamed and s.registers and s.shared for parts in large.shares.values() for s in parts)
    assert not any(s.streamed for parts in small.shares.values() for s in parts)


def test_a_record_is_replayed() -> None:
    unit = unit_of("lstm", 2560, "bfloat16", 64)
    config, _ = configured(NAME, unit)
    assert configured(NAME, unit, config)[0] == config
    assert chosen("lstm", 2560, 64, together=4, register_words=0).together == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hidden", "batch", "precision"),
    [
        ("lstm", 2560, 64, "bfloat16"),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("lstm", 2560, 16, "float16"),
                ("gru", 2816, 32, "bfloat16"),
                ("lstm", 2048, 128, "bfloat16"),
                ("gru", 2048, 128, "bfloat16"),
                ("lstm", 2048, 64, "tf32"),
            )
        ),
    ],
)
def test_kernels_hardly_spill(name: str, hidden: int, batch: int, precision: str, tmp_path: Path) -> None:
    geometry = chosen(name, hidden, batch, precision)
    for initial in (None, {}):
        kernel = persistent.kernel("k", geometry, layout_of(name, hidden, precision), initial)
        assert kernel.resident and kernel.cluster == geometry.together
        registers, spilled = registers_and_spills(kernel, tmp_path)
        assert spilled <= MOST_SPILLED and 0 < registers <= 65536 // geometry.threads
