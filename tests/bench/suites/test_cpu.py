"""suites_cpu: points in float32 that can be built and named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from peer_problems import FITTING

from tvm_rnn import ConfigError
from tvm_rnn.bench.suites import headed_recurrences
from tvm_rnn.bench.suites.cpu import SUITES
from tvm_rnn.bench.suites.gpu import PASSES, network, select, suite


@pytest.mark.parametrize("name", SUITES)
def test_points_have_names_of_their_own_and_can_be_made(name: str) -> None:
    points = suite(name, SUITES)
    assert points and len({point.name for point in points}) == len(points)
    kinds = {(p.cell, p.layers, p.directions, tuple(axis for axis, _ in p.sizes)): p for p in points}
    for point in kinds.values():
        small = replace(point, input=min(8, point.input), hidden=8, sizes=tuple((axis, 4) for axis, _ in point.sizes))
        given = point.cell in headed_recurrences.CELLS  # whose input has the parts of a step
        assert network(point if given else small).dtype == point.precision == "float32"


def test_the_grid_the_zoo_and_the_ablation_are_whole() -> None:
    grid = suite("cpu-grid", SUITES)
    assert len(grid) == 2 * 6 * 4 and {p.steps for p in grid} == {50} and all(p.input == p.hidden for p in grid)
    assert [p.cell for p in suite("zoo", SUITES)] == FITTING
    assert [len(p.without) for p in suite("ablation", SUITES)] == [*range(len(PASSES), -1, -1)] * 2
    assert len(select(grid, "lstm,h64,h128,b1")) == 2


def test_a_suite_of_gpus_is_none_of_cpus() -> None:
    with pytest.raises(ConfigError, match="no such suite"):
        suite("gpu-grid", SUITES)
