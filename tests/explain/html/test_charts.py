"""charts: Vega-Lite specifications, and the SVG that they become."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tvm_rnn import ConfigError
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.explain.html import charts
from tvm_rnn.explain.html.charts import ablation_rows, gains
from tvm_rnn.tune.journal import Outcome
from tvm_rnn.tune.workload import Candidate
from tvm_rnn.vega_lite import svg

KERNELS = [{"name": "R @ h", "flops": 1e6, "bytes": 1e5}, {"name": "W @ x", "flops": 1e9, "bytes": 1e6}]


@pytest.mark.parametrize(
    ("order", "last"),
    [("wave", 3 + 4 - 2), ("time-major", 3 * 4 - 1), ("layer-major", 3 * 4 - 1)],
)
def test_turns(order: str, last: int) -> None:
    found = charts.turns(3, 4, order)
    assert len(found) == 12 and found[-1]["turn"] == last
    at = {(row["layer"], row["tile"]): row["turn"] for row in found}
    for layer, tile in at:  # a tile begins when the layer below has it, and after the tile before
        assert layer == 0 or at[layer, tile] > at[layer - 1, tile]
        assert tile == 0 or at[layer, tile] > at[layer, tile - 1]


def test_phases_of_a_step_follow_each_other() -> None:
    first = charts.PhaseRow(kind="gemm", units=512, exchange=0.5, product=1.0, cells=0.25)
    second = charts.PhaseRow(kind="reduce", units=1, exchange=0.5, product=0.0, cells=0.04)
    bars = charts.step_timeline([first, second])["data"]["values"]
    assert [(bar["from"], bar["to"]) for bar in bars] == [(0, 0.5), (0.5, 1.5), (1.5, 1.75), (1.75, 2.25), (2.25, 2.29)]
    assert bars[0]["phase"] == "1: product, 512 units" and bars[-1]["phase"] == "2: reduction, 1 units"
    pytest.importorskip("vl_convert")
    assert ElementTree.fromstring(svg(charts.step_timeline([first, second]), "a step")) is not None


def test_layers_of_a_wave_follow_each_other() -> None:
    """By one step of the slowest; a layer that has less to do waits for it."""
    quick = charts.PhaseRow(kind="gemm", units=8, exchange=0.5, product=0.5, cells=0.25)
    slow = charts.PhaseRow(kind="gemm", units=8, exchange=0.5, product=1.25, cells=0.25)
    spec = charts.wave_timeline([[quick], [slow, quick]], steps=3)
    bars, names = (layer["data"]["values"] for layer in spec["layer"])
    assert [(row["layer"], row["from"]) for row in names] == [(n, 3.25 * (n + t)) for n in (0, 1) for t in range(3)]
    for layer in (0, 1):
        own = [bar for bar in bars if bar["layer"] == layer]
        assert all(first["to"] == second["from"] for first, second in pairwise(own))
        assert (own[0]["from"], own[-1]["to"]) == (3.25 * layer, 3.25 * (layer + 3))
    assert sum(bar["us"] for bar in bars if bar["layer"] == 0 and "waits" in bar["part"]) == 3 * (2.0 + 0.5)


def test_no_kernel_is_above_the_roof() -> None:
    spec = charts.roofline([*KERNELS, KERNELS[0]], {"memory_tb_s": 2.0, "tflops": 100.0}, 5.0)
    points = {p["name"]: p for p in spec["layer"][1]["data"]["values"]}
    assert points["R @ h"]["tflops"] == pytest.approx(20.0) and points["W @ x"]["tflops"] == 100.0
    assert points["all of it"]["tflops"] == 5.0 and len(points) == 3


@pytest.mark.parametrize(
    "spec",
    [
        charts.roofline(KERNELS, {"memory_tb_s": 2.0, "tflops": 100.0}, 5.0),
        charts.wavefront(charts.turns(2, 3, "wave"), "step"),
        charts.ablation([{"without": "nothing", "us": 1.0}, {"without": "hoist_gemms", "us": 2.0}]),
    ],
)
def test_charts_become_svg(spec: dict[str, object]) -> None:
    pytest.importorskip("vl_convert")
    found = ElementTree.fromstring(svg(spec, "a title"))
    assert found.attrib["role"] == "img" and len(list(found.iter("{http://www.w3.org/2000/svg}path"))) > 3


def test_names_of_kernels_are_beside_the_roof_and_not_cut() -> None:
    """Below to the right of their points, each on a line of its own, which ends within the chart."""
    spec = charts.roofline(KERNELS, {"memory_tb_s": 2.0, "tflops": 100.0}, 5.0, "predicted")
    points, names = spec["layer"][1], spec["layer"][2:]
    kinds = [row["kind"] for row in points["data"]["values"]]
    assert sorted(kinds) == ["a kernel: a bound, not measured"] * 2 + ["all of it, predicted"]
    assert sum(len(layer["data"]["values"]) for layer in names) == len(kinds)
    assert all(layer["mark"]["dx"] == 8 and layer["mark"]["dy"] for layer in names)
    low, end = points["encoding"]["x"]["scale"]["domain"]
    for row in points["data"]["values"]:
        at = math.log(row["intensity"] / low) / math.log(end / low) * charts.WIDTH
        assert at + 8 + 6 * len(row["name"]) < charts.WIDTH


def test_tiles_have_a_colour_each() -> None:
    colour = charts.wavefront(charts.turns(2, 2, "wave"), "tiles")["encoding"]["color"]
    assert colour["type"] == "ordinal" and colour["title"] == "tiles"


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_times_without_passes(tmp_path: Path) -> None:
    point = Point("lstm", 8, 8, 10, 1, "float32")
    less = Point("lstm", 8, 8, 10, 1, "float32", without=("hoist_gemms",))
    rows = [
        {"kind": "facts"},
        {**point.record, "framework": "tvm_rnn", "us_per_step": 2.0},
        {**point.record, "framework": "torch", "us_per_step": 9.0},
        {**less.record, "framework": "tvm_rnn", "us_per_step": 3.0},
    ]
    found = ablation_rows(write(tmp_path / "a.jsonl", *rows))
    assert found == [{"without": "nothing", "us": 2.0}, {"without": "hoist_gemms", "us": 3.0}]


def test_trials(tmp_path: Path) -> None:
    rows = [
        {"journal": 1},
        Outcome(Candidate(), ratio=0.5, median_us=1.0, default_us=2.0).as_dict(),
        Outcome(Candidate(), "crashed", reason="it ended").as_dict(),
    ]
    assert gains(write(tmp_path / "j.jsonl", *rows)) == [2.0, None]


def test_files_that_hold_nothing_of_the_kind(tmp_path: Path) -> None:
    empty = write(tmp_path / "x.jsonl", {"kind": "facts"})
    for read in (ablation_rows, gains):
        with pytest.raises(ConfigError, match="in this file"):
            read(empty)
        with pytest.raises(ConfigError, match="cannot be read"):
            read(tmp_path / "missing")


def test_names_on_a_roofline_lie_apart() -> None:
    rng = random.Random(0)
    for _ in range(50):
        count = rng.randint(1, 6)
        places = [(rng.uniform(0, 400), rng.uniform(5, charts.HEIGHT)) for _ in range(count)]
        names = ["x" * rng.randint(3, 30) for _ in range(count)]
        boxes = [
            (left, left + charts.LETTER * len(name), top + down)
            for (left, top), name, down in zip(places, names, charts.label_shifts(places, names), strict=True)
        ]
        for n, (left, right, y) in enumerate(boxes):
            assert y <= charts.HEIGHT - charts.LINE / 2
            assert all(right < first or last < left or abs(y - at) >= charts.LINE for first, last, at in boxes[:n])
