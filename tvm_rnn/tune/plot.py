"""A picture of a tuning run: every trial and the best so far, and how much each knob matters.

In: the outcomes of a run and the units' parts. Out: an SVG file's text. What failed is a cross at the bottom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from tvm_rnn.records import Choice

from .journal import Outcome

LEFT, WIDTH, HEIGHT, ROW = 60, 620, 240, 18
LABELS = 300  # room for the names of knobs
BLUE, ORANGE, GREY, RED = "#1b6ca8", "#e07b39", "#999999", "#c44536"


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
    knobs = influences(outcomes)
    trials = _trials(outcomes, top=60)
    bars = _bars(knobs, top=60 + HEIGHT + 70)
    note = ", ".join(f"{name} {value}" for name, value in (facts or {}).items())
    height = 60 + HEIGHT + 90 + ROW * len(knobs)
    parts = [_text(LEFT, 22, title, size=14), _text(LEFT, 40, note, colour=GREY), *trials, *bars]
    size = f'width="{LEFT + WIDTH + 40}" height="{height}" font-family="sans-serif" font-size="11"'
    body = "\n".join(parts)
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{ground}\n{body}\n</svg>\n'


def _trials(outcomes: Sequence[Outcome], top: float) -> list[str]:
    """Gain over the defaults of each trial, from left to right, and the best so far as a line."""
    gains = [1 / o.ratio for o in outcomes if o.valid]
    high, low = max([1.05, *gains]), max(0.0, min([0.95, *gains]))
    bottom = top + HEIGHT

    def x(number: float) -> float:
        return LEFT + WIDTH * number / max(1, len(outcomes))

    def y(gain: float) -> float:
        return bottom - (HEIGHT - 10) * (gain - low) / (high - low)

    parts, best, line = list[str](), 1.0, [f"{x(0):.1f},{y(1.0):.1f}"]
    for step in _ticks(low, high):
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y(step):.1f}" y2="{y(step):.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y(step) + 4, f"{step:g}x", "end"))
    for number, outcome in enumerate(outcomes, 1):
        if not outcome.valid:
            parts.append(_text(x(number), bottom + 12, "x", "middle", colour=RED))
            continue
        gain = 1 / outcome.ratio
        parts.append(f'<circle cx="{x(number):.1f}" cy="{y(gain):.1f}" r="2.5" fill="{ORANGE}" fill-opacity="0.6"/>')
        line.append(f"{x(number):.1f},{y(best):.1f}")
        if gain > best:
            best = gain
            line.append(f"{x(number):.1f},{y(best):.1f}")
    line.append(f"{x(len(outcomes)):.1f},{y(best):.1f}")
    parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{BLUE}" stroke-width="2"/>')
    parts.append(_text(LEFT, bottom + 28, f"trials 1 to {len(outcomes)}: speed over the defaults; best {best:.3f}x"))
    return parts


def _ticks(low: float, high: float) -> list[float]:
    step = 10 ** math.floor(math.log10(high - low))
    for factor in (1, 0.5, 0.25, 0.1):
        found = [step * factor * i for i in range(math.ceil(low / step / factor), int(high / step / factor) + 1)]
        if len(found) >= 4:
            break
    return found


def _bars(knobs: Sequence[Influence], top: float) -> list[str]:
    """How much slower the median trial with a knob's worst value is than that with its best."""
    if not knobs:
        return []
    parts = [_text(LEFT, top - 12, "knobs: median speed with the best value over that with the worst")]
    longest = max(k.ratio for k in knobs) - 1 or 1.0
    for number, knob in enumerate(knobs):
        y = top + ROW * number
        width = (LEFT + WIDTH - LABELS - 60) * (knob.ratio - 1) / longest
        parts.append(_text(LABELS - 8, y + 12, f"{knob.unit}: {knob.knob} (best {knob.best})", "end"))
        parts.append(f'<rect x="{LABELS}" y="{y + 2}" width="{width:.1f}" height="{ROW - 5}" fill="{BLUE}"/>')
        parts.append(_text(LABELS + width + 5, y + 12, f"{knob.ratio:.2f}"))
    return parts


def _text(x: float, y: float, text: str, anchor: str = "start", *, size: int = 11, colour: str = "black") -> str:
    style = f'text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
