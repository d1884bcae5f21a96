"""Suites: every point can be built and named, the sizes are those that were promised, and words choose points."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from peer_problems import FITTING

import tvm_rnn as rnn
from tvm_rnn.bench.suites import headed_recurrences, recurrences
from tvm_rnn.bench.suites.gpu import (
    ALL,
    CELLS,
    IN_STEPS,
    PASSES,
    SHORT,
    SUITES,
    Point,
    batches,
    beside_peers,
    network,
    part,
    select,
    suite,
)
from tvm_rnn.options import PASS_NAMES

ALONE = {**recurrences.CELLS, **headed_recurrences.CELLS}


@pytest.mark.parametrize("name", SUITES)
def test_points_have_names_of_their_own_and_survive_json(name: str) -> None:
    points = suite(name)
    assert points and len({point.name for point in points}) == len(points)
    for point in points:
        assert Point.from_dict(json.loads(json.dumps(point.as_dict()))) == point
        assert point.precision in SHORT and (point.cell in rnn.cells.names() or point.cell in CELLS)


@pytest.mark.parametrize("name", SUITES)
def test_every_network_of_a_suite_can_be_made(name: str) -> None:
    kinds = {(p.cell, p.layers, p.directions, tuple(axis for axis, _ in p.sizes)): p for p in suite(name)}
    for point in kinds.values():  # small: only the names of the axes are in question
        small = replace(point, input=min(point.input, 8), hidden=8, sizes=tuple((axis, 4) for axis, _ in point.sizes))
        net = network(point if point.cell in ALONE else small)  # whose input has the parts of a step
        assert net.cell.name == point.cell and net.dtype == point.dtype and net.num_layers == point.layers


def test_the_grid_is_the_whole_grid() -> None:
    grid = suite("gpu-grid")
    assert len(grid) == 2 * 4 * 4 * 3 and {p.steps for p in grid} == {128} and {p.layers for p in grid} == {1}
    assert {p.hidden for p in grid} == {256, 512, 1024, 2048} and {p.batch for p in grid} == {1, 16, 64, 128}
    assert {p.precision for p in grid} == {"bfloat16", "float16", "tf32"} and {p.cell for p in grid} == {"lstm", "gru"}
    assert all(p.input == p.hidden for p in grid)


def test_the_articles_networks() -> None:
    found = {(p.layers, p.hidden, p.input, p.batch, p.steps) for p in suite("blog")}
    assert found == {
        (4, 512, 512, 64, 100),
        (1, 2560, 2560, 64, 200),
        (3, 256, 64, 64, 100),
        (1, 256, 256, 32, 1000),
        (1, 768, 768, 16, 1024),
    }
    assert {p.precision for p in suite("blog") if p.layers == 4} == set(ALL)


def test_off_the_grid_a_network_is_called_in_every_way() -> None:
    points = suite("off-grid")
    stack = [p for p in points if p.layers == 4 and p.batch == 64 and not p.training]
    assert [p.name.split("-t100")[1] for p in stack] == ["-bf16", "-eager-bf16", "-lengths-bf16", "-unaligned-bf16"]
    assert len({p.network for p in points if not p.training}) == 3 and sum(p.training for p in points) == 2
    assert batches(points)[stack[0].network] == ()  # compiled for no batch size in particular


def test_the_zoo_is_all_of_it_and_the_ablation_all_passes() -> None:
    assert [p.cell for p in suite("zoo")] == FITTING
    assert (*IN_STEPS, *PASSES) == PASS_NAMES
    assert [len(p.without) for p in suite("ablation")] == [4, 3, 2, 1, 0]


def test_a_record_has_all_of_a_point_and_one_of_each_network_has_the_peers() -> None:
    points = suite("ablation")
    assert Point.from_dict({k: v for k, v in points[0].record.items() if k not in ("kind", "point")}) == points[0]
    assert beside_peers(points) == {points[-1]} and beside_peers(points[:2]) == {points[1]}


def test_a_seed_draws_networks_of_all_kinds() -> None:
    points = suite("random")
    assert suite("random", seed=0) == points != suite("random", seed=1) and len(points) == 200
    assert batches(points[:3]) == {point.network: () for point in points[:3]}
    assert points[0].network == replace(points[0], lengths=True, eager=True).network
    assert "-lengths-eager-" in next(point.name for point in points if point.lengths and point.eager)
    with pytest.raises(rnn.ConfigError, match="not drawn"):
        suite("blog", seed=1)


def test_steps_of_decoding_follow_each_other_in_a_graph() -> None:
    decoded = [point for point in suite("linear") if point.steps == 1]
    assert decoded and all(point.calls > 1 and f"-calls{point.calls}-" in point.name for point in decoded)
    assert {point.calls for point in suite("linear") if point.steps > 1} == {1}
    assert decoded[0].network.calls == 1  # it is compiled once for all


def test_tf32_is_a_way_to_multiply_float32() -> None:
    assert Point("lstm", 4, 4, 1, 1, "tf32").dtype == "float32"
    assert Point("lstm", 4, 4, 1, 1, "float16").dtype == "float16"


def test_names_say_what_differs() -> None:
    point = Point("lstm", 64, 256, 100, 16, "tf32", 3, 2, (("P", 8),), ("hoist_gemms",))
    assert point.name == "lstm-h256-i64-l3-bi-p8-no_hoist-b16-t100-tf32"


def test_words_of_one_kind_are_alternatives_and_kinds_narrow_each_other() -> None:
    grid = suite("gpu-grid")
    found = select(grid, "h256,b16,b64,lstm,bf16")
    assert [p.name for p in found] == ["lstm-h256-b16-t128-bf16", "lstm-h256-b64-t128-bf16"]
    assert select(grid, "") == grid
    assert [p.batch for p in select(grid, "gru-h512-b1-t128-tf32")] == [1]
    assert {p.layers for p in select(suite("blog"), "l1")} == {1}
    both = select(grid, "gru-h512-b1-t128-tf32,lstm,h256,b1,bf16")
    assert [p.cell for p in both] == ["lstm", "gru"]


def test_parts_of_a_suite_are_all_of_it() -> None:
    every = suite("random", seed=1)
    assert [*part(every, ":70"), *part(every, "70:150"), *part(every, "150:")] == part(every, "") == every
    for places, why in (("7", "no part"), ("a:b", "no part"), ("-1:3", "no part"), ("5:5", "no such point")):
        with pytest.raises(rnn.ConfigError, match=why):
            part(every, places)


def test_wrong_names_and_words_are_named() -> None:
    with pytest.raises(rnn.ConfigError, match="did you mean 'gpu-grid'"):
        suite("gpu_grid")
    with pytest.raises(rnn.ConfigError, match="no point has this"):
        select(suite("gpu-grid"), "h257")
    with pytest.raises(rnn.ConfigError, match="no point has all of this"):
        select(suite("blog"), "h768,tf32")


def test_points_of_one_network_share_a_module() -> None:
    found = batches(suite("gpu-grid"))
    assert len(found) == 24 and set(found.values()) == {(1, 16, 64, 128)}
