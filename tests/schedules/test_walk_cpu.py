"""walk_cpu: tiles of time that fit a cache, layers inside where that is allowed; any choice computes the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tvm_rnn as rnn
from schedules.walk_cpu import EVEN_ROWS, MIN_ROWS
from tvm_rnn.passes import pipeline
from tvm_rnn.records import Choice
from tvm_rnn.schedule.schedule_template import Unit, best, space, templates
from tvm_rnn.target import TABLE, resolve
from tvm_rnn.tune.workload import Candidate, Trial

MACHINE = TABLE["x86-64-v3"]


def unit(width: int = 1024, gates: int = 1, region: str = "layers", batch: int = 16) -> Unit:
    return Unit("walk", region, "float32", gates, width, (256, 256), batches=(batch,))


def test_the_default_fits_half_of_the_level_2_cache() -> None:
    rows = best(unit(), MACHINE).knobs["rows"]
    assert rows * (1024 + 512) * 4 <= MACHINE.l2_bytes // 2
    assert best(unit(), replace(MACHINE, l2_bytes=2 * MACHINE.l2_bytes)).knobs["rows"] > rows


def test_a_tile_without_steps_fits_two_caches() -> None:
    """For threads share it. In even parts, of whole tiles of products; the least is left where a row is large."""
    rows, size = best(replace(unit(), stages=2), MACHINE).knobs["rows"], (1024 + 512) * 4
    assert 2 * MACHINE.l2_bytes - EVEN_ROWS * size < rows * size <= 2 * MACHINE.l2_bytes and rows % EVEN_ROWS == 0
    assert best(replace(unit(1 << 20), stages=2), MACHINE).knobs["rows"] == MIN_ROWS


@pytest.mark.parametrize(("name", "expected"), [("mlstm", 3), ("lstm", 0)])
def test_what_goes_through_a_tile_at_once(name: str, expected: int) -> None:
    tiling = pipeline.run(rnn.RNN(rnn.cells.get(name), 4, 8), MACHINE)[-1][1].graphs[0].tiling
    assert tiling is not None and tiling.unit is not None and tiling.unit.stages == expected


def test_weights_too_large_for_caches_are_read_seldom() -> None:
    wide = replace(unit(4096), depths=(1024, 1024))
    assert best(wide, replace(MACHINE, l2_bytes=1 << 20)).knobs["rows"] == 512
    assert best(wide, replace(MACHINE, l2_bytes=1 << 23)).knobs["rows"] == 512
    assert best(wide, replace(MACHINE, l2_bytes=1 << 24)).knobs["rows"] == 341  # it holds them


@pytest.mark.parametrize(("width", "expected"), [(1024, 256), (1 << 18, 63), (1 << 20, 32)])
def test_backward_tiles_are_tall_unless_they_would_fill_the_memory(width: int, expected: int) -> None:
    assert best(unit(width, gates=2, region="backward"), MACHINE).knobs == {"rows": expected, "layers_first": 1}


@pytest.mark.parametrize(
    ("gates", "region", "expected"), [(1, "layers", {0, 1}), (1, "layer", {0}), (2, "layers", {1})]
)
def test_layers_go_first_where_that_is_allowed(gates: int, region: str, expected: set[int]) -> None:
    found = list(space(templates()["walk_cpu"], unit(gates=gates, region=region), MACHINE))
    assert {config["layers_first"] for config in found} == expected and len(found) > len(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bidirectional", "reverse"),
    [
        pytest.param(False, False, marks=pytest.mark.slow),
        (True, False),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_every_walk_computes_the_same(bidirectional: bool, reverse: bool) -> None:
    net = rnn.RNN(rnn.cells.lstm, 10, 5, 2, bidirectional, reverse=reverse).init(1)  # layers share code
    x = np.random.default_rng(0).standard_normal((40, 3, 10)).astype("float32")
    expected, trial = rnn.reference(net)(x)[0], Trial()
    rnn.compile(net, batch=3, records=trial)
    own = [u for u in trial.asked.values() if u.kind == "walk"]
    found = list(space(templates()["walk_cpu"], own[0], resolve("llvm")))
    for config in found[:: max(1, len(found) // 3)]:
        choices = tuple(Choice(u.key, "walk_cpu", templates()["walk_cpu"].version, config) for u in own)
        module = rnn.compile(net, batch=3, records=Trial(Candidate(choices)))
        assert np.abs(module(x)[0] - expected).max() < 1e-5
