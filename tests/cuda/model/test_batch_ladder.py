"""batch_ladder: rungs are added where a batch would take too long, and none that others make up for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any

import pytest
from persistent_layers import GPU, layout_of

from tvm_rnn.cuda.model import batch_ladder
from tvm_rnn.cuda.model.batch_ladder import BATCHES, WITHIN, Rung, ladder, ladder_us
from tvm_rnn.cuda.model.choose_geometry import ChosenGeometry, choose_geometry, unit_of
from tvm_rnn.cuda.model.choose_regime import Persistent, choose, step_of
from tvm_rnn.cuda.model.launched_step_time import predict_steps
from tvm_rnn.cuda.model.persistent_step_time import StepTime


@dataclass
class Time:
    """A kernel whose rounds take a microsecond and a twentieth of one for each row."""

    at_once: int

    def us(self, batch: int) -> float:
        return ceil(batch / self.at_once) * (1 + self.at_once / 20)

    def whole(self, batch: int) -> int:
        return batch // self.at_once * self.at_once or batch


@dataclass
class Flat(Time):
    """One whose rounds take so long, whatever their rows."""

    round_us: float

    def us(self, batch: int) -> float:
        return ceil(batch / self.at_once) * self.round_us


def rung(rows: int, most: int | None, record: str = "default") -> Any:
    time: Any = Time(rows)
    return Rung(rows, most, ChosenGeometry(0.0, str(rows), None, record), time)


def test_what_whole_rounds_leave_takes_the_rung_of_so_many_rows() -> None:
    rungs = [rung(8, 8), rung(64, None)]
    assert ladder_us(rungs, 64, float) == Time(64).us(64)
    assert ladder_us(rungs, 65, float) == Time(64).us(64) + Time(8).us(1)
    assert ladder_us(rungs, 136, float) == Time(64).us(128) + Time(8).us(8)
    assert ladder_us([rung(8, 8)], 20, lambda rows: rows / 2) == 10.0


@pytest.fixture
def every(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(rung(rows, None).chosen, Time(rows)) for rows in range(8, 129, 8)]
    monkeypatch.setattr(batch_ladder, "_best", lambda unit, target: iter(found))


@pytest.mark.usefixtures("every")
def test_every_batch_is_within_the_bound_and_every_rung_is_needed() -> None:
    given, steps = [rung(8, 8), rung(64, 64), rung(128, None)], lambda rows: 1e9
    unit: Any = unit_of(step_of(layout_of("lstm", 64, "bfloat16")), GPU, "bfloat16", 0)
    found = ladder(given, unit, GPU, lambda chosen, batch: None, steps)
    least = {b: min(Time(rows).us(b) for rows in range(8, 129, 8)) for b in BATCHES}
    assert all(ladder_us(found, b, steps) <= WITHIN * least[b] for b in BATCHES)
    assert all(ladder_us(found, own.batch, steps) <= ladder_us(given, own.batch, steps) for own in given)
    ends = [float("inf") if own.most is None else own.most for own in found]
    assert ends == sorted(set(ends)) and found[-1].most is None and len(given) < len(found) < 12
    assert ladder([], unit, GPU, lambda chosen, batch: None, steps) == []


@pytest.mark.usefixtures("every")
def test_measured_geometries_stay_and_step_by_step_is_not_beaten_where_it_is_quicker() -> None:
    measured = rung(16, 16, "record of this size")
    unit: Any = unit_of(step_of(layout_of("lstm", 64, "bfloat16")), GPU, "bfloat16", 0)
    found = ladder([measured, rung(128, 256)], unit, GPU, lambda chosen, batch: 0, lambda rows: 14.9)
    assert measured in found and found[-1].most == 256


@pytest.mark.usefixtures("every")
def test_a_given_geometry_serves_what_one_round_of_it_takes() -> None:
    """Batches beyond the one that it was chosen for, and in place of a slower one."""
    unit: Any = unit_of(step_of(layout_of("lstm", 64, "bfloat16")), GPU, "bfloat16", 0)
    quick: Any = Flat(120, 1.0)
    given = [replace(rung(64, 64), time=quick), rung(128, None)]
    found = ladder(given, unit, GPU, lambda chosen, batch: None, lambda rows: 1e9)
    assert all(ladder_us(found, batch, float) <= WITHIN for batch in BATCHES if batch <= 120)
    assert [one.most for one in found if one.time is quick] == [120]


def test_what_a_rung_no_longer_reaches_has_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one serves any batch until a quicker one is added that reaches less far."""
    unit: Any = unit_of(step_of(layout_of("lstm", 64, "bfloat16")), GPU, "bfloat16", 0)
    half, last = Flat(256, 5.0), Flat(1024, 10.0)
    able = [(rung(one.at_once, None).chosen, one) for one in (half, last)]
    monkeypatch.setattr(batch_ladder, "_best", lambda unit, target: iter(able))
    one: Any = replace(rung(1024, 1024), batch=128, time=last)
    found = ladder([one], unit, GPU, lambda chosen, batch: max(batch, int(chosen.template)), lambda rows: 50.0)
    for batch in BATCHES:
        assert ladder_us(found, batch, lambda rows: 50.0) <= WITHIN * min(half.us(batch), last.us(batch)), batch


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "tf32", "float32"])
@pytest.mark.parametrize(
    ("cell", "hidden"), [("lstm", 512), ("gru", 2048), ("lstm", 2048), ("elman", 333), ("gru", 96)]
)
def test_any_batch_is_as_quick_as_in_a_module_for_it(cell: str, hidden: int, precision: str) -> None:
    """By the model's prediction, at every B from 1 to 512."""
    layout = layout_of(cell, hidden, precision)
    steps = partial(predict_steps, layout, precision, target=GPU)
    found = [one for one in choose(layout, GPU, precision, (), {}) if isinstance(one, Persistent)]
    rungs = [Rung(0, o.most, ChosenGeometry(0, "", o.geometry, ""), StepTime(o.geometry, GPU)) for o in found]
    assert len(rungs) < 13
    for batch in (1, 7, 33, 65, 100, 129, 200, 257, 300, 385, 512):
        best = choose_geometry(step_of(layout), GPU, precision, batch)
        own = steps(batch) if best is None or best.geometry is None else min(steps(batch), best.us)
        assert ladder_us(rungs, batch, steps) <= 1.15 * own + 1e-9, batch
