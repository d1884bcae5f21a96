"""What templates of persistent kernels share, with a schedule of three geometries: the cheapest, records, slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from persistent_layers import GPU, geometry_of, unit_of

from tvm_rnn import ConfigError
from tvm_rnn.cuda.model.template_base import MOST_ROWS, PersistentTemplate, allowed, rows_per_group, width_of
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.schedule.schedule_template import Knobs, template
from tvm_rnn.target import Target


class Slow(PersistentTemplate):
    """More rows of a cluster take longer."""

    choices: Mapping[str, tuple[int, ...]] = {"rows": (8, 16, 24)}

    @staticmethod
    def geometry(unit: Any, **knobs: int) -> Geometry:
        return geometry_of(unit.step, unit.precision, "cluster", stored=unit.stored, shared_words=1 << 20, **knobs)

    @classmethod
    def geometries(cls, unit: Any, target: Target, record: Mapping[str, int]) -> Iterator[Geometry]:
        for rows in allowed(record, "rows", (24, 8, 16)):
            yield cls.geometry(unit, ctas=record.get("ctas", 8), rows=rows)


class Nothing(Slow):
    @classmethod
    def geometries(cls, unit: Any, target: Target, record: Mapping[str, int]) -> Iterator[Geometry]:
        return iter(())


UNIT = unit_of("lstm", 64, "bfloat16", 33)


def test_the_cheapest_is_taken_and_its_choices_are_kept() -> None:
    own, knobs = template("slow", kinds=("recurrent",), targets=("cuda",))(Slow), Knobs()
    config = own.configure(UNIT, GPU, knobs)
    assert own.every is not None and own.predict is not None
    times = {c["rows"]: own.predict(UNIT, c, GPU) for c in own.every(UNIT, GPU)}
    assert set(times) == {8, 16, 24} and config == {"ctas": 8, "rows": min(times, key=lambda rows: times[rows])}
    assert knobs.space == {"ctas": tuple(range(1, GPU.sms + 1)), "rows": (8, 16, 24)}
    made: Any = own.schedule(None, UNIT, config)
    assert isinstance(made, Geometry) and (made.ctas, made.rows) == (8, config["rows"])


def test_records_and_what_does_not_fit() -> None:
    assert Slow.configure(UNIT, GPU, Knobs({"rows": 24, "ctas": 4})) == {"ctas": 4, "rows": 24}
    with pytest.raises(ConfigError, match="knob rows has no such value"):
        Slow.configure(UNIT, GPU, Knobs({"rows": 32}))
    assert Nothing.configure(UNIT, GPU, Knobs()) == {} and list(Nothing.every(UNIT, GPU)) == []


def test_slices_of_a_batch() -> None:
    assert width_of(UNIT) == 64
    assert rows_per_group(33, 1) == [40] and rows_per_group(33, 3) == [16, 24, 40]
    assert rows_per_group(1, 0) == [8] and rows_per_group(1000, 2) == [MOST_ROWS]
