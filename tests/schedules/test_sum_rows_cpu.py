"""sum_rows_cpu: legal defaults on every instruction set, and the choices it has."""

from __future__ import annotations

from itertools import product

import pytest

from tvm_rnn import target
from tvm_rnn.schedule.schedule_template import Knobs, Unit, best, templates

TARGETS = tuple(target.TABLE.values())


def unit(height: int, width: int, dtype: str = "float32") -> Unit:
    return Unit("sum_rows", "after", dtype, 1, width, (height,))


@pytest.mark.parametrize("machine", [t for t in TARGETS if t.kind == "llvm"], ids=lambda t: t.name)
def test_the_default_tile_stays_in_registers(machine: target.Target) -> None:
    for dtype, height, width in product(("float32", "float64"), (1, 2, 5, 7, 130), (1, 7, 16, 130, 1024)):
        summed = unit(height, width, dtype)
        chosen, config, _ = best(summed, machine)
        assert chosen.name == "sum_rows_cpu", summed
        assert config["rows"] <= height and config["panels"] <= -(-width // machine.lanes(dtype)), summed
        loaded = config["panels"] if config["rows"] > 1 else 1
        assert config["rows"] * config["panels"] + loaded + 1 <= machine.vector_registers, summed


def test_a_sum_of_single_values_has_several_chains() -> None:
    assert best(unit(1, 1024), target.TABLE["x86-64-v4"]).knobs == {"rows": 1, "panels": 8}


def test_the_space_is_every_choice() -> None:
    knobs = Knobs()
    templates()["sum_rows_cpu"].configure(unit(64, 64), target.TABLE["x86-64-v4"], knobs)
    assert set(knobs.space) == {"rows", "panels"} and all(len(v) > 1 for v in knobs.space.values())
    replayed = best(unit(64, 64), target.TABLE["x86-64-v4"], {"rows": 3, "panels": 1}).knobs
    assert replayed == {"rows": 3, "panels": 1}
