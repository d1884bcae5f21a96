"""A benchmark as a picture: for each point how many times as long the others take, the largest first.

In: a `Report`. Out: the text of an SVG file: a row per point with a dot per framework on a logarithmic axis, where
right of 1 means that tvm_rnn is faster, and the figures beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tvm_rnn.vega_lite import BLUE, GREEN, GREY, ORANGE, PAPER, PURPLE, RED, Spec, svg

from .compare import OURS
from .tables import Line, Report, number

COLOURS = (ORANGE, BLUE, GREEN, PURPLE, RED, GREY)
ROW, WIDTH, COLUMN = 18, 480, 90  # in pixels: a point's height, the axis, a column of figures
STEPS = (1, 2, 5)  # of each decade
TITLE = "time of the others / tvm_rnn's; right of 1: tvm_rnn is faster"


class Dot(NamedTuple):
    """How many times as long a framework takes at a point."""

    point: str
    peer: str
    ratio: float


def plot(found: Report) -> str:
    """The picture. Points where nothing can be compared are counted above it."""
    return svg(chart(found), TITLE)


def chart(found: Report) -> Spec:
    """What `plot` draws: dots at the left, figures at the right."""
    peers = [peer for peer in found.peers if any(line.ratio(peer) for line in found.lines)]
    lines = ordered(found, peers)
    dots = [Dot(line.point, peer, ratio) for line in lines for peer in peers if (ratio := line.ratio(peer)) is not None]
    figures = [{"point": line.point, "column": "us/step", "text": number(line.us(OURS))} for line in lines]
    figures += [{"point": dot.point, "column": dot.peer, "text": f"{dot.ratio:.2f}"} for dot in dots]
    return {
        **PAPER,
        "title": {"text": TITLE, "subtitle": [*notes(found, len(lines))], "anchor": "start", "offset": 16},
        "hconcat": [_dots(dots, lines, peers), _figures(figures, lines, peers)],
    }


def _dots(dots: Sequence[Dot], lines: Sequence[Line], peers: Sequence[str]) -> Spec:
    ratios = [dot.ratio for dot in dots]
    marks = ticks(min(ratios, default=1.0), max(ratios, default=1.0))
    scale = {"type": "log", "domain": [marks[0], marks[-1]], "nice": False}
    x = {"field": "ratio", "type": "quantitative", "scale": scale, "title": None}
    axis = {"values": marks, "orient": "top", "format": "~g"}
    colour = {"field": "peer", "type": "nominal", "title": None, "scale": {"domain": peers, "range": COLOURS}}
    y = _points(lines, {"labelLimit": 400, "labelPadding": 8, "ticks": False, "domain": False})
    one = {"data": {"values": [{"ratio": 1.0}]}, "mark": {"type": "rule", "color": "#555555"}, "encoding": {"x": x}}
    reach = {
        "mark": {"type": "rule", "color": "#bbbbbb"},
        "encoding": {"y": y, "x": {**x, "aggregate": "min"}, "x2": {"field": "ratio", "aggregate": "max"}},
    }
    dot = {
        "mark": {"type": "point", "filled": True, "size": 64, "opacity": 1},
        "encoding": {"y": y, "x": {**x, "axis": axis}, "color": {**colour, "legend": {"orient": "top"}}},
    }
    return {
        "width": WIDTH,
        "height": {"step": ROW},
        "data": {"values": [dot._asdict() for dot in dots]},
        "layer": [one, reach, dot],
    }


def _figures(figures: Sequence[dict[str, str]], lines: Sequence[Line], peers: Sequence[str]) -> Spec:
    columns = ["us/step", *peers]
    axis = {"orient": "top", "labelAngle": 0, "ticks": False, "domain": False}
    x = {"field": "column", "type": "nominal", "sort": columns, "title": None, "axis": axis}
    return {
        "width": {"step": COLUMN},
        "height": {"step": ROW},
        "data": {"values": list(figures)},
        "mark": {"type": "text"},
        "encoding": {"x": x, "y": _points(lines, None), "text": {"field": "text", "type": "nominal"}},
    }


def _points(lines: Sequence[Line], axis: Spec | None) -> Spec:
    return {"field": "point", "type": "nominal", "sort": [line.point for line in lines], "title": None, "axis": axis}


def ordered(found: Report, peers: Sequence[str]) -> list[Line]:
    """The points that have a ratio, by that to the first framework that has one there, the largest first."""
    keys = {line.point: next((ratio for peer in peers if (ratio := line.ratio(peer))), None) for line in found.lines}
    lines = [line for line in found.lines if keys[line.point]]
    return sorted(lines, key=lambda line: -(keys[line.point] or 0.0))


def ticks(least: float, most: float) -> list[float]:
    """Round numbers (1, 2, 5 of each decade) from below the least to above the most, 1 among them; at least two."""
    least, most = min(least, 1.0), max(most, 1.0)
    decades = range(math.floor(math.log10(least)) - 1, math.ceil(math.log10(most)) + 2)
    marks = [step * 10.0**decade for decade in decades for step in STEPS]
    first = max(mark for mark in marks if mark <= least * 1.0001)
    last = min(mark for mark in marks if mark >= most / 1.0001 and mark > first)
    return [mark for mark in marks if first <= mark <= last]


def notes(found: Report, drawn: int) -> Iterator[str]:
    """What it was measured on, and how many of the points are not among the `drawn`."""
    if found.facts:
        versions = ", ".join(f"{name} {version}" for name, version in found.facts["versions"].items())
        yield f"{found.facts['device']}; {versions}"
    if missing := len(found.lines) - drawn:
        yield f"{missing} point{'s' * (missing > 1)} without a ratio"
