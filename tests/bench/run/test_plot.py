"""The picture of a GPU benchmark: a dot for every ratio, points in order, an axis with 1 on it."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tvm_rnn.bench.run.plot import plot, ticks
from tvm_rnn.bench.run.tables import Report, report

FACTS: dict[str, Any] = {"kind": "facts", "device": "a <device>", "versions": {"torch": "2.11"}, "ceilings": {}}


def row(point: str, framework: str, us: float | None) -> dict[str, Any]:
    base = {"kind": "point", "point": point, "framework": framework, "precision": "bfloat16"}
    return {**base, "reason": "it hung"} if us is None else {**base, "us_per_step": us}


def found() -> Report:
    rows = [("slow", 4.0, 2.0, 6.0), ("quick", 1.0, 8.5, None), ("odd", 1.0, None, 3.0), ("alone", None, 1.0, 1.0)]
    names = ("tvm_rnn", "torch", "cudnn")
    return report([FACTS, *(row(point, name, us) for point, *own in rows for name, us in zip(names, own, strict=True))])


def drawn(of: Report) -> tuple[list[tuple[float, float, str]], list[tuple[float, float, str]], ET.Element]:
    """(x, y, colour) of dots; (x, y, text) of texts; the picture."""
    tree = ET.fromstring(plot(of))
    elements = list(tree.iter())
    at = [
        (float(e.get("cx", 0)), float(e.get("cy", 0)), e.get("fill", "")) for e in elements if e.tag.endswith("circle")
    ]
    texts = [(float(e.get("x", 0)), float(e.get("y", 0)), e.text or "") for e in elements if e.tag.endswith("text")]
    return at, texts, tree


def test_points_are_in_order_of_the_first_ratio_they_have() -> None:
    _, texts, _ = drawn(found())
    rows = sorted((y, text) for _, y, text in texts if text in ("slow", "quick", "odd", "alone"))
    assert [text for _, text in rows] == ["quick", "odd", "slow"]
    assert "1 point without a ratio" in {text for *_, text in texts}


def test_every_ratio_is_a_dot_in_the_row_of_its_point() -> None:
    dots, texts, _ = drawn(found())
    legend, dots = dots[:2], dots[2:]
    height = {text: y - 4 for _, y, text in texts if text in ("slow", "quick", "odd")}
    one = next(x for x, _, text in texts if text == "1")
    orange, blue = (colour for *_, colour in legend)
    right = {(y, colour): x > one for x, y, colour in dots}
    assert right == {
        (height["quick"], orange): True,
        (height["odd"], blue): True,
        (height["slow"], orange): False,  # 0.5
        (height["slow"], blue): True,
    }
    figures = [text for *_, text in texts]
    assert {"8.50", "3.00", "0.50", "1.50"} <= set(figures) and figures.count("us/step") == 1


def test_nothing_is_drawn_outside_or_over_another_row() -> None:
    dots, texts, tree = drawn(found())
    width, height = (float(tree.get(name, 0)) for name in ("width", "height"))
    for x, y, _ in (*dots, *texts):
        assert 0 <= x <= width and 0 <= y <= height
    rows = sorted({y for _, y, _ in dots[2:]})
    assert all(after - before >= 12 for before, after in itertools.pairwise(rows))


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
    _, texts, _ = drawn(report([FACTS, row("a", "tvm_rnn", 1.0)]))
    assert {"1 point without a ratio", "a <device>; torch 2.11"} <= {text for *_, text in texts}
    assert ET.fromstring(plot(report([FACTS]))) is not None
