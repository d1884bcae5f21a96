"""gemm_cpu: legal defaults on every instruction set, replay of records, and the choices it has."""

from __future__ import annotations

from itertools import product

import pytest

from tvm_rnn import ConfigError, target
from tvm_rnn.schedule.schedule_template import Knobs, Unit, best, space, templates

TARGETS = tuple(target.TABLE.values())


@pytest.mark.parametrize("machine", TARGETS, ids=lambda t: t.name)
def test_the_default_tile_stays_in_registers(machine: target.Target) -> None:
    for dtype, gates, width in product(("float32", "float64"), (1, 2, 3, 4, 5, 8, 11, 40), (1, 7, 16, 130, 1024)):
        unit = Unit("gemm", "step", dtype, gates, width, (width,))
        chosen, config, _ = best(unit, machine)
        assert chosen.name == "gemm_cpu", unit
        assert config["rows"] == 1 or config["rows"] * gates < machine.vector_registers, unit
        assert config["panels"] == 1 or config["panels"] * gates < machine.vector_registers, unit
        assert config["panels"] <= -(-width // machine.lanes(dtype)), unit


@pytest.mark.parametrize(
    ("machine", "region", "depth", "batches", "parts"),
    [
        ("x86-64-v3", "step", 256, (10,), 2),
        ("x86-64-v3", "step", 512, (), 4),
        ("x86-64-v3", "before", 256, (10,), 1),
        ("x86-64-v3", "step", 128, (10,), 1),  # 16 KB
        ("x86-64-v3", "step", 256, (3,), 1),  # one tile
        ("x86-64-v3", "step", 250, (10,), 1),  # no equal parts
        ("x86-64-v4", "step", 256, (64,), 1),
    ],
    ids=str,
)
def test_parts_of_terms_have_weights_in_the_first_cache(
    machine: str, region: str, depth: int, batches: tuple[int, ...], parts: int
) -> None:
    unit = Unit("gemm", region, "float32", 4, 256, (depth,), 1, batches)
    config = best(unit, target.TABLE[machine])[1]
    assert config["parts"] == parts, config


@pytest.mark.parametrize(
    ("gates", "batches", "rows"),
    [
        *[
            (4, (), 4),
            (4, (1,), 4),
            (4, (2, 1), 4),
            (4, (3,), 3),
            (4, (5,), 5),
            (4, (6, 12), 6),
            (4, (64,), 6),
            (4, (6 << 60,), 6),
            (4, (13,), 5),
            (4, (21,), 6),
            (4, (29,), 6),
        ],
        *[(3, (), 8), (3, (1,), 8), (3, (7,), 7), (3, (11,), 7), (3, (1, 16), 8)],
    ],
    ids=str,
)
def test_a_named_batch_reads_weights_as_rarely_as_can_be(gates: int, batches: tuple[int, ...], rows: int) -> None:
    """A tile of few rows takes as long as one of three; other batches than the named ones keep tall tiles."""
    unit = Unit("gemm", "step", "float32", gates, 64, (64,), 1, batches)
    assert best(unit, target.TABLE["x86-64-v4"])[1]["rows"] == rows


@pytest.mark.parametrize(
    ("name", "gates", "rows"),
    [("x86-64-v4", 4, 6), ("x86-64-v4", 3, 8), ("x86-64-v3", 4, 3), ("x86-64-v3", 3, 4), ("x86-64-v3", 8, 1)],
)
def test_products_before_the_loop_fill_the_registers(name: str, gates: int, rows: int) -> None:
    """With sums, each term's values of the shorter side, and one of the other."""
    unit = Unit("gemm", "before", "float32", gates, 64, (64,), 1, (3,))
    assert best(unit, target.TABLE[name])[1]["rows"] == rows
    assert (rows + 1) * gates <= target.TABLE[name].vector_registers


def test_a_record_is_replayed() -> None:
    machine = target.TABLE["x86-64-v4"]
    unit = Unit("gemm", "step", "float32", 4, 64, (64,))
    knobs = {"rows": 2, "broad": 1, "panels": 4, "ahead": 8, "next": 0, "shared": 0, "turns": 1, "parts": 1}
    assert best(unit, machine, knobs)[1] == knobs


def test_a_value_that_no_knob_has_is_an_error() -> None:
    machine = target.TABLE["x86-64-v4"]
    with pytest.raises(ConfigError, match=r"knob rows has no such value[\s\S]*got: +9"):
        best(Unit("gemm", "step", "float32", 4, 64, (64,)), machine, {"rows": 9})


def test_the_space_is_every_choice() -> None:
    knobs = Knobs()
    templates()["gemm_cpu"].configure(Unit("gemm", "step", "float32", 4, 64, (64,)), target.TABLE["x86-64-v4"], knobs)
    names = {"rows", "broad", "panels", "ahead", "next", "shared", "turns", "parts"}
    assert set(knobs.space) == names
    assert all(len(v) > 1 for n, v in knobs.space.items() if n not in ("broad", "next", "parts"))
    assert knobs.chosen == {k: v for k, v in knobs.chosen.items() if v in knobs.space[k]}


@pytest.mark.broad_after(4)
@pytest.mark.parametrize("machine", TARGETS, ids=lambda t: t.name)
def test_no_choice_wants_more_registers_than_there_are(machine: target.Target) -> None:
    for region, gates, batch in product(("before", "step"), (1, 3, 4, 8, 40), (1, 4, 64)):
        unit = Unit("gemm", region, "float32", gates, 130, (64,), batches=(batch,))
        found = list(space(templates()["gemm_cpu"], unit, machine))
        default = found[0]["rows"]
        assert found[0] == best(unit, machine)[1], unit
        for config in found:
            rows = config["rows"]
            assert rows == default or (rows + 1) * gates < machine.vector_registers, unit
            broad = config["broad"]
            assert broad == 1 or (rows + 1) * broad * gates < machine.vector_registers, unit
            assert config["panels"] % broad == 0 and (rows > 1 or broad == 1), unit
            assert rows == default or rows > 1, f"one row alone is slow at every other batch size: {unit}"
            assert rows == default or region == "before" or rows <= batch, unit
    assert {config["turns"] for config in found} == ({0, 1} if region == "step" else {0})


@pytest.mark.parametrize(("region", "width", "asked"), [("step", 684, 1), ("step", 128, 0), ("before", 684, 0)])
def test_weights_that_a_cache_does_not_hold_are_asked_for_early(region: str, width: int, asked: int) -> None:
    unit = Unit("gemm", region, "float32", 4, width, (width,), batches=(13,))
    assert best(unit, target.TABLE["x86-64-v4"]).knobs["next"] == asked


def test_one_panel_has_nothing_to_share_or_to_turn() -> None:
    machine = target.TABLE["x86-64-v4"]
    found = list(space(templates()["gemm_cpu"], Unit("gemm", "step", "float32", 4, 16, (16,)), machine))
    assert {(c["shared"], c["turns"], c["panels"]) for c in found} == {(1, 0, 1)}


def test_few_gates_mean_broad_tiles() -> None:
    machine = target.TABLE["x86-64-v4"]
    broad = {g: best(Unit("gemm", "step", "float32", g, 256, (256,)), machine).knobs["broad"] for g in (1, 2, 3, 4)}
    assert broad == {1: 2, 2: 1, 3: 1, 4: 1}
    assert best(Unit("gemm", "step", "float32", 1, 16, (16,)), machine).knobs["broad"] == 1  # one panel
