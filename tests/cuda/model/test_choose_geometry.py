"""geometry: what a record says of a time loop is what it gets, where it fits; else the model chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from persistent_layers import GPU, configured, step, unit_of

from tvm_rnn.cuda.model.choose_geometry import LAYER_BY_LAYER, STEP_BY_STEP, choose_geometry
from tvm_rnn.records import Choice, Record, Records
from tvm_rnn.schedule.schedule_template import space, templates
from tvm_rnn.target import Target

GRID = "persistent_grid_cuda"


def machine(*choices: Choice, batch: int = 16) -> Target:
    """The GPU, with a record of these choices."""
    work = {"cell": "other", "hidden": 1, "batch": batch, "precision": "bfloat16"}
    return replace(GPU, records=Records([Record(GPU.name, work, choices, 1.0, 2.0, date="2026-01-02T03")]))


def grid_choice(hidden: int, batch: int, number: int = 3) -> Choice:
    """Not the default."""
    unit = unit_of("lstm", hidden, "bfloat16", batch)
    config = list(space(templates()[GRID], unit, GPU))[number]
    return Choice(unit.key, GRID, templates()[GRID].version, config)


def test_without_records_the_model_chooses() -> None:
    found = choose_geometry(step("lstm", 256, "bfloat16"), GPU, "bfloat16", 16)
    assert found is not None and found.geometry is not None and not found.recorded and found.record == "default"


def test_a_record_for_this_unit_wins_whatever_the_model_says() -> None:
    choice = grid_choice(256, 16)
    found = choose_geometry(step("lstm", 256, "bfloat16"), machine(choice), "bfloat16", 16)
    assert found is not None and found.template == GRID and found.recorded
    assert {name: found.knobs[name] for name in choice.knobs} == choice.knobs


@pytest.mark.broad
def test_a_record_of_one_cell_serves_another_of_the_same_products() -> None:
    found = choose_geometry(step("lstm_peephole", 256, "bfloat16"), machine(grid_choice(256, 16)), "bfloat16", 16)
    assert found is not None and found.template == GRID and found.recorded


@pytest.mark.parametrize("word", [STEP_BY_STEP, LAYER_BY_LAYER])
def test_a_record_may_say_that_no_persistent_kernel_runs(word: str) -> None:
    choice = Choice(unit_of("lstm", 256, "bfloat16", 16).key, word, 1, {})
    found = choose_geometry(step("lstm", 256, "bfloat16"), machine(choice), "bfloat16", 16)
    assert found is not None and found.geometry is None and found.recorded


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    "change", [{"version": 99}, {"template": "gone"}, {"knobs": {"ctas": 1, "strange": 2}}, {"knobs": {"ctas": 999}}]
)
@pytest.mark.broad
def test_a_stale_record_is_passed_over(change: dict[str, object]) -> None:
    choice = replace(grid_choice(256, 16), **change)
    found = choose_geometry(step("lstm", 256, "bfloat16"), machine(choice), "bfloat16", 16)
    assert found == choose_geometry(step("lstm", 256, "bfloat16"), GPU, "bfloat16", 16)


@pytest.mark.broad
def test_the_nearest_record_counts_where_the_model_has_nothing_against_it() -> None:
    unit = unit_of("lstm", 1024, "bfloat16", 16)
    config, _ = configured(GRID, unit)
    near = machine(Choice(unit.key, GRID, 1, config))
    found = choose_geometry(step("lstm", 1024, "bfloat16"), near, "bfloat16", 12)
    assert found is not None and found.record.startswith("nearest record") and not found.recorded
    worst = max(space(templates()[GRID], unit, GPU), key=lambda c: templates()[GRID].predict(unit, c, GPU))
    slow = machine(Choice(unit.key, GRID, 1, worst))
    found = choose_geometry(step("lstm", 1024, "bfloat16"), slow, "bfloat16", 12)
    assert found is not None and found.record == "default"
    assert choose_geometry(step("lstm", 1024, "bfloat16"), near, "bfloat16", 128).record == "default"


@pytest.mark.broad
def test_layers_of_a_wave_have_records_of_their_own() -> None:
    choice = grid_choice(256, 16)
    part = replace(machine(choice), sms=GPU.sms // 3)
    found = choose_geometry(step("lstm", 256, "bfloat16"), part, "bfloat16", 16, layers=3)
    assert found is not None and not found.recorded
