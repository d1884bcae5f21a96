"""The picture of a GPU benchmark: a dot for every ratio, points in order, an axis with 1 on it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tvm_rnn.bench.run.plot import chart, plot, ticks
from tvm_rnn.bench.run.tables import Report, report

FACTS: dict[str, Any] = {"kind": "facts", "device": "a <device>", "versions": {"torch": "2.11"}, "ceilings": {}}


def row(point: str, framework: str, us: float | None) -> dict[str, Any]:
    base = {"kind": "point", "point": point, "framework": framework, "precision": "bfloat16"}
    return {**base, "reason": "it hung"} if us is None else {**base, "us_per_step": us}


def found() -> Report:
    rows = [("slow", 4.0, 2.0, 6.0), ("quick", 1.0, 8.5, None), ("odd", 1.0, None, 3.0), ("alone", None, 1.0, 1.0)]
    names = ("tvm_rnn", "torch", "cudnn")
    return report([FACTS, *(row(point, name, us) for point, *own in rows for name, us in zip(names, own, strict=True))])


def spec_of(of: Report) -> Any:
    return json.loads(json.dumps(chart(of)))


def test_points_are_in_order_of_the_first_ratio_they_have() -> None:
    spec = spec_of(found())
    dots, figures = spec["hconcat"]
    for part in (figures, *dots["layer"][1:]):
        assert part["encoding"]["y"]["sort"] == ["quick", "odd", "slow"]
    assert spec["title"]["subtitle"] == ["a <device>; torch 2.11", "1 point without a ratio"]


def test_every_ratio_is_a_dot_in_the_row_of_its_point_with_its_figure_beside() -> None:
    dots, figures = spec_of(found())["hconcat"]
    assert {(dot["point"], dot["peer"]): dot["ratio"] for dot in dots["data"]["values"]} == {
        ("quick", "torch"): 8.5,
        ("odd", "cudnn"): 3.0,
        ("slow", "torch"): 0.5,
        ("slow", "cudnn"): 1.5,
    }
    texts = {(figure["point"], figure["column"]): figure["text"] for figure in figures["data"]["values"]}
    assert texts["quick", "torch"] == "8.50" and texts["slow", "us/step"] == "4" and len(texts) == 3 + 4
    domain = dots["layer"][2]["encoding"]["x"]["scale"]["domain"]
    assert domain == [0.5, 10] and dots["layer"][2]["encoding"]["x"]["axis"]["values"] == [0.5, 1, 2, 5, 10]


def test_the_picture_shows_all_of_it() -> None:
    pytest.importorskip("vl_convert")
    tree = ET.fromstring(plot(found()))
    words = {node.text for node in tree.iter() if node.text}
    assert {"quick", "odd", "slow", "8.50", "us/step", "torch", "a <device>; torch 2.11"} <= words
    assert len([node for node in tree.iter() if node.get("aria-roledescription") == "point"]) == 4
    rows = {node.get("transform") for node in tree.iter() if node.text in ("quick", "odd", "slow")}
    assert len(rows) == 3  # none over another


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (0.8, 8.9, [0.5, 1, 2, 5, 10]),
        (2.0, 2.0, [1, 2]),
        (1.0, 1.0, [1, 2]),
        (0.02, 0.1, [0.02, 0.05, 0.1, 0.2, 0.5, 1]),
    ],
)
def test_the_axis_has_round_numbers_around_all_ratios_and_1(least: float, most: float, expected: list[float]) -> None:
    marks = ticks(least, most)
    assert marks[: len(expected)] == pytest.approx(expected) and len(marks) - len(expected) <= 1


def test_a_run_without_ratios_is_a_picture_that_says_so() -> None:
    pytest.importorskip("vl_convert")
    text = plot(report([FACTS, row("a", "tvm_rnn", 1.0)]))
    assert "1 point without a ratio" in text and "a &lt;device&gt;; torch 2.11" in text
    assert ET.fromstring(plot(report([FACTS]))) is not None
