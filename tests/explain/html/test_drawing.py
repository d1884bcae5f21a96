"""drawing: boxes for values, arrows for what is read, nothing on top of something else."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

import tvm_rnn as rnn
from tvm_rnn.explain.html.drawing import draw
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve

pytest.importorskip("grandalf")
SVG = "{http://www.w3.org/2000/svg}"


def picture(name: str, stage: int) -> ElementTree.Element:
    stages = pipeline.run(rnn.RNN(rnn.cells.get(name), 8, 16), resolve("x86-64-v4"))
    return ElementTree.fromstring(draw(stages[stage][1].graphs[0], "a & b"))


@pytest.mark.parametrize("name", ["lstm", "gru_reset_before", "mlstm"])
@pytest.mark.parametrize("stage", [0, -1])
def test_boxes_do_not_overlap_and_lie_inside(name: str, stage: int) -> None:
    found = picture(name, stage)
    _, _, width, height = map(float, found.attrib["viewBox"].split())
    boxes = [tuple(float(r.attrib[k]) for k in ("x", "y", "width", "height")) for r in found.iter(f"{SVG}rect")]
    assert len(boxes) > 5
    for i, (x, y, w, h) in enumerate(boxes):
        assert x >= 0 and y >= 0 and x + w <= width + 1 and y + h <= height + 1
        for ox, oy, ow, oh in boxes[:i]:
            assert x >= ox + ow or ox >= x + w or y >= oy + oh or oy >= y + h


def test_regions_groups_and_results_are_marked() -> None:
    classes = [g.attrib["class"].split() for g in picture("lstm", -1).iter(f"{SVG}g")]
    for kind in ("state", "leaf", "before", "step", "kept", "root"):
        assert any(kind in words for words in classes), kind
    assert sum("root" in words for words in classes) == 2
    assert not any("before" in g.attrib["class"].split() for g in picture("lstm", 0).iter(f"{SVG}g"))


def test_the_title_is_there_for_those_who_do_not_see_it() -> None:
    title = picture("elman", 0).find(f"{SVG}title")
    assert title is not None and title.text == "a & b"


def test_a_graph_is_drawn_the_same_every_time() -> None:
    """Wherever its values lie in memory: grandalf keeps edges in sets."""
    graph = pipeline.run(rnn.RNN(rnn.cells.lem, 8, 16), resolve("x86-64-v4"))[-1][1].graphs[0]
    others = list[object]()  # they keep their places: each picture's objects get new ones
    pictures = set()
    for number in range(8):
        others.append([object() for _ in range(37 * number)])
        pictures.add(draw(graph, "lem"))
    assert len(pictures) == 1
