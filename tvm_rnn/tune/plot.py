"""A picture of a tuning run: every trial and the best so far, and how much each knob matters.

In: the outcomes of a run and the units' parts. Out: an SVG file's text. What failed is a cross at the bottom.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tvm_rnn.records import Choice
from tvm_rnn.vega_lite import BLUE, ORANGE, PAPER, RED, Spec, svg

from .journal import Outcome

HEIGHT, ROW = 220, 18  # in pixels: of the trials, and of a knob


class Influence(NamedTuple):
    """A knob of a unit: the median gain over the defaults of trials with its best value over that with its worst."""

    unit: str
    knob: str
    best: int
    ratio: float


def unit_name(choice: Choice) -> str:
    """Such as "step gemm width=256"; units of one network differ by it."""
    kind, *region = [str(part) for part in choice.unit.get("shape", ["unit"])[:2]]
    sizes = choice.unit.get("sizes", {})
    wide = sizes.get("width") or sizes.get("phases") or []
    return " ".join([*region, kind, *([f"{wide[0]}"] if wide else [])])


def influences(outcomes: Sequence[Outcome]) -> list[Influence]:
    """Every knob that was tried with several values, the strongest first."""
    gains: dict[tuple[str, str], dict[int, list[float]]] = {}
    for outcome in outcomes:
        if outcome.valid:
            for choice in outcome.candidate.choices:
                for knob, value in choice.knobs.items():
                    gains.setdefault((unit_name(choice), knob), {}).setdefault(value, []).append(1 / outcome.ratio)
    found = []
    for (unit, knob), values in gains.items():
        medians = {value: statistics.median(own) for value, own in values.items()}
        if len(medians) > 1:
            best = max(medians, key=lambda value: medians[value])
            found.append(Influence(unit, knob, best, medians[best] / min(medians.values())))
    return sorted(found, key=lambda i: -i.ratio)


def plot(outcomes: Sequence[Outcome], title: str, facts: Mapping[str, str] | None = None) -> str:
    """The picture. facts: what to print below the title, by name."""
    charts = [history([1 / outcome.ratio if outcome.valid else None for outcome in outcomes])]
    charts += [_bars(knobs)] if (knobs := influences(outcomes)) else []
    note = ", ".join(f"{name} {value}" for name, value in (facts or {}).items())
    words = {"text": title, "subtitle": note, "anchor": "start", "offset": 16}
    return svg({**PAPER, "title": words, "vconcat": charts}, title)


def history(gains: Sequence[float | None]) -> Spec:
    """Speed over the defaults by trial (None: it failed, a cross at the bottom), and the best so far."""
    rows, best = [], 1.0
    for number, gain in enumerate(gains, 1):
        best = max(best, gain or 0.0)
        rows.append({"trial": number, "gain": gain, "best": best})
    failed = [row for row in rows if row["gain"] is None]
    x = {"field": "trial", "type": "quantitative", "title": f"trial; best {best:.3f}x", "axis": {"tickMinStep": 1}}
    y = {"type": "quantitative", "title": "speed over the defaults", "scale": {"zero": False}}
    return {
        "height": HEIGHT,
        "data": {"values": rows},
        "layer": [
            {
                "transform": [{"filter": "datum.gain !== null"}],
                "mark": {"type": "point", "filled": True, "color": ORANGE},
                "encoding": {"x": x, "y": {**y, "field": "gain"}},
            },
            {
                "mark": {"type": "line", "interpolate": "step-after", "color": BLUE},
                "encoding": {"x": x, "y": {**y, "field": "best"}},
            },
            {
                "data": {"values": failed},
                "mark": {"type": "text", "text": "x", "dy": -6, "color": RED},
                "encoding": {"x": x, "y": {"value": HEIGHT}},
            },
        ],
    }


def _bars(knobs: Sequence[Influence]) -> Spec:
    """How much slower the median trial with a knob's worst value is than that with its best."""
    rows = [{"knob": f"{k.unit}: {k.knob} (best {k.best})", "ratio": k.ratio} for k in knobs]
    ratio = {"field": "ratio", "type": "quantitative"}
    title = "median speed with a knob's best value over that with its worst"
    axis = {"labelLimit": 400}
    names = {"field": "knob", "type": "nominal", "sort": None, "title": None, "axis": axis}
    return {
        "height": {"step": ROW},
        "data": {"values": rows},
        "encoding": {"y": names, "x": {**ratio, "title": title, "scale": {"domainMin": 1}}},
        "layer": [
            {"mark": {"type": "bar", "color": BLUE}, "encoding": {"x2": {"datum": 1}}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4},
                "encoding": {"text": {**ratio, "format": ".2f"}},
            },
        ],
    }
