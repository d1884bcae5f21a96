"""The charts of a report, by Vega-Lite: roofline, layers and time, ablation.

In: facts of an explanation; lines of JSON that `tvm-rnn bench --suite ablation --records FILE` and `tvm-rnn tune`
write. Out: specifications, which `vega_lite.py` draws when the page is written, so that the page itself needs no
library. Colours are the page's: text takes its colour from the style sheet, marks are readable on light and dark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, log, log10
from typing import Literal, TypedDict

from tvm_rnn.decisions import Figures
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.explain.facts import GroupFacts
from tvm_rnn.tune.journal import Outcome
from tvm_rnn.vega_lite import BLUE, GREY, ORANGE, WIDTH, Spec

LETTER = 7  # pixels of a label's letter
LINE = 15  # pixels from a name to the one below
HEIGHT = 260  # pixels of a roofline
FEW = {"labelOverlap": "greedy", "labelSeparation": 8, "tickCount": 6}  # labels of an axis
KINDS = ("a kernel: a bound, not measured", "all of it, {source}")  # what a point of a roofline is


class AblationRow(TypedDict):
    """Microseconds per step without some passes."""

    without: str
    us: float


class Turn(TypedDict):
    """Which layer works on which tile in a turn."""

    turn: int
    layer: int
    tile: int


def roofline(
    kernels: Sequence[GroupFacts], ceilings: Mapping[str, float], rate: float | None, source: str = "measured"
) -> Spec:
    """What the device does at best over FLOPs per byte, with each kernel at its own intensity, as high as the roof
    lets it be, and the whole network where a time is known.

    kernels: name, flops, bytes. ceilings: memory_tb_s, tflops. rate: TFLOP/s of the whole; None: unknown. source: where
    that is from.
    """
    memory, peak = ceilings["memory_tb_s"], ceilings["tflops"]
    points, merged = list[tuple[float, float, str, str]](), dict[str, GroupFacts]()
    for kernel in kernels:  # layers whose kernels have one name are one point
        group = merged.setdefault(kernel["name"], GroupFacts(name=kernel["name"], flops=0.0, bytes=0.0))
        group["flops"] += kernel["flops"]
        group["bytes"] += kernel["bytes"]
    for kernel in merged.values():
        intensity = kernel["flops"] / max(1.0, kernel["bytes"])
        points.append((intensity, min(peak, intensity * memory), kernel["name"], KINDS[0]))
    if rate is not None:
        flops, size = sum(k["flops"] for k in kernels), sum(k["bytes"] for k in kernels)
        points.append((flops / max(1.0, size), rate, "all of it", KINDS[1].format(source=source)))
    points = sorted(p for p in points if p[0] > 0 and p[1] > 0)
    ridge = peak / memory
    low = min([ridge / 10, *(p[0] / 2 for p in points)])
    high = max([ridge * 10, *(p[0] * 2 for p in points)])
    names = LETTER * max((len(p[2]) for p in points), default=0) / WIDTH  # what names at the right take of the width
    end = low * (high / low) ** (1 / (1 - min(names, 0.6)))
    drawn = [dict(zip(("intensity", "tflops", "name", "kind"), point, strict=True)) for point in points]
    line = [{"intensity": x, "tflops": min(peak, x * memory)} for x in (low, ridge, high)]
    x = {"field": "intensity", "type": "quantitative", "title": "FLOPs per byte moved", "axis": FEW}
    x |= {"scale": {"type": "log", "nice": False, "domain": [low, end]}}
    rates = [*(row["tflops"] for row in line), *(p[1] for p in points)]
    bottom, top = (10.0 ** way(log10(rate)) for way, rate in ((floor, min(rates)), (ceil, max(rates))))
    y: Spec = {"field": "tflops", "type": "quantitative", "title": "TFLOP/s"}
    y |= {"scale": {"type": "log", "nice": False, "domain": [bottom, top]}}
    kind: Spec = {"field": "kind", "type": "nominal", "title": None}
    kind |= {"legend": {"orient": "bottom", "labelLimit": 0, "direction": "vertical"}}
    kinds = [words for words in (KINDS[0], KINDS[1].format(source=source)) if any(p[3] == words for p in points)]
    colour = {**kind, "scale": {"domain": kinds, "range": [BLUE, ORANGE]}}
    shape = {**kind, "scale": {"domain": kinds, "range": ["circle", "square"]}}
    name: Spec = {"x": x, "y": y, "text": {"field": "name"}}
    places = [(WIDTH * _part(p[0], low, end), HEIGHT * (1 - _part(p[1], bottom, top))) for p in points]
    lines = [{"align": "left", "dx": 8, "dy": down} for down in label_shifts(places, [p[2] for p in points])]
    return {
        "height": HEIGHT,
        "layer": [
            {"data": {"values": line}, "mark": {"type": "line", "color": GREY}, "encoding": {"x": x, "y": y}},
            {
                "data": {"values": drawn},
                "mark": {"type": "point", "filled": True, "size": 90},
                "encoding": {"x": x, "y": y, "color": colour, "shape": shape},
            },
            *(
                {"data": {"values": [point]}, "mark": {"type": "text", **place}, "encoding": name}
                for point, place in zip(drawn, lines, strict=True)
            ),
        ],
    }


def _part(value: float, first: float, last: float) -> float:
    """How far along a logarithmic axis it is."""
    return log(value / first) / log(last / first)


def label_shifts(places: Sequence[tuple[float, float]], names: Sequence[str]) -> list[float]:
    """Pixels from each point down to the middle of its name: no name lies on another one or on the axis. places: of the
    points, from the left and from the top. A roof rises and then is level, so there is room below to the right of a
    point; where that is too near the bottom, above it."""
    found, taken = dict[int, float](), list[tuple[float, float, float]]()
    for number in sorted(range(len(places)), key=lambda n: places[n][1]):
        left, top = places[number]
        right = left + LETTER * len(names[number])

        def free(y: float, left: float = left, right: float = right) -> bool:
            return all(abs(y - at) >= LINE or right < first or last < left for at, first, last in taken)

        below = [top + LINE * (1 + n) for n in range(len(places)) if top + LINE * (1.5 + n) <= HEIGHT]
        above = [top - LINE * (1 + n) for n in range(len(places))]
        y = next(filter(free, [*below, *above]), top + LINE)
        found[number] = y - top
        taken.append((y, left, right))
    return [found[number] for number in range(len(places))]


class PhaseRow(TypedDict):
    """Where the time of one phase of a step goes, in microseconds: as the model of time has it, or as clocks say."""

    kind: str
    units: int
    exchange: float
    product: float
    cells: float


PARTS = {"exchange": "waits for other blocks' values", "product": "products", "cells": "pointwise work, publishing"}
_PARTS_IN_TURN: tuple[Literal["exchange", "product", "cells"], ...] = ("exchange", "product", "cells")
PHASES = {"gemm": "product", "reduce": "reduction", "pointwise": "pointwise"}


def step_us(phases: Sequence[PhaseRow]) -> float:
    """What a step takes."""
    return sum(phase["exchange"] + phase["product"] + phase["cells"] for phase in phases)


def step_timeline(phases: Sequence[PhaseRow], source: str = "predicted", longest: float = 0.0) -> Spec:
    """One step of a persistent kernel over time: a row for each phase, a bar for each thing that it does. source: of
    the times; longest: how long a step the axis has room for, to compare with another one."""
    rows, at = [], 0.0
    for number, phase in enumerate(phases, 1):
        name = f"{number}: {PHASES.get(phase['kind'], phase['kind'])}, {phase['units']} units"
        for part in _PARTS_IN_TURN:
            us = phase[part]
            rows.append({"phase": name, "part": PARTS[part], "from": at, "to": at + us, "us": round(us, 3)})
            at += us
    title, whole = f"microseconds of one step, {source}", max(longest, step_us(phases))
    x: Spec = {"field": "from", "type": "quantitative", "title": title, "axis": FEW, "scale": {"domain": [0, whole]}}
    return {
        "height": {"step": 28},
        "padding": {"left": 48, "right": 8, "top": 4, "bottom": 4},  # labels are wider where fonts are
        "data": {"values": [row for row in rows if row["us"]]},
        "mark": {"type": "bar", "height": 18},
        "encoding": {
            "y": {"field": "phase", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 0}},
            "x": x,
            "x2": {"field": "to"},
            "color": _part_colours(),
        },
    }


def wave_timeline(layers: Sequence[Sequence[PhaseRow]], steps: int = 4) -> Spec:
    """The first steps of layers in a wave: a row for each layer, which works on a step while the one below works on the
    next. layers: by layer the phases of its step. All wait for the layer whose step takes longest."""
    period, rows, names = max(map(step_us, layers)), [], []
    for layer, phases in enumerate(layers):
        for step in range(steps):
            at = (layer + step) * period
            names.append({"layer": layer, "from": at, "name": f"step {step}"})
            parts = [(part, phase[part]) for phase in phases for part in _PARTS_IN_TURN]
            for part, us in [("exchange", period - step_us(phases)), *parts]:
                rows.append({"layer": layer, "part": PARTS[part], "from": at, "to": at + us, "us": round(us, 3)})
                at += us
    x: Spec = {"field": "from", "type": "quantitative", "title": "microseconds, predicted", "axis": FEW}
    x |= {"scale": {"domain": [0, (len(layers) + steps - 1) * period]}}
    y: Spec = {"field": "layer", "type": "ordinal", "sort": "descending", "title": "layer"}
    return {
        "height": {"step": 44},
        "encoding": {"y": y, "x": x},
        "layer": [
            {
                "data": {"values": [row for row in rows if row["us"]]},
                "mark": {"type": "bar", "height": 18, "yOffset": 7},
                "encoding": {"x2": {"field": "to"}, "color": _part_colours()},
            },
            {
                "data": {"values": names},
                "mark": {"type": "text", "align": "left", "dx": 2, "dy": -11},
                "encoding": {"text": {"field": "name"}},
            },
        ],
    }


def _part_colours() -> Spec:
    scale = {"domain": [*PARTS.values()], "range": [GREY, BLUE, ORANGE]}
    legend = {"orient": "bottom", "labelLimit": 0, "columnPadding": 32}
    return {"field": "part", "type": "nominal", "title": None, "scale": scale, "legend": legend}


def wavefront(turns: Sequence[Turn], words: str) -> Spec:
    """Layers over the order in which they run. turns: turn, layer, tile, in order; words: what a tile is."""
    return {
        "height": max(60, 28 * len({row["layer"] for row in turns})),
        "data": {"values": list(turns)},
        "mark": {"type": "rect", "stroke": GREY, "strokeWidth": 0.5, "aria": True},
        "encoding": {
            "x": {"field": "turn", "type": "ordinal", "title": "turn", "axis": {"labelAngle": 0, "labelOverlap": True}},
            "y": {"field": "layer", "type": "ordinal", "title": "layer", "sort": "descending"},
            "color": {
                **{"field": "tile", "type": "ordinal", "title": words, "scale": {"scheme": "viridis"}},
                "legend": {"orient": "bottom", "columns": 12, "titleLimit": 0},
            },
        },
    }


def ablation(rows: Sequence[AblationRow]) -> Spec:
    """Bars: microseconds per step with passes left out. rows: without, us."""
    value = {"field": "us", "type": "quantitative", "title": "microseconds per step"}
    return {
        "height": {"step": 24},
        "data": {"values": list(rows)},
        "encoding": {"y": {"field": "without", "type": "nominal", "sort": None, "title": "left out"}, "x": value},
        "layer": [
            {"mark": {"type": "bar", "color": BLUE}},
            {"mark": {"type": "text", "align": "left", "dx": 4}, "encoding": {"text": {**value, "format": ".3s"}}},
        ],
    }


def turns(layers: int, tiles: int, order: str) -> list[Turn]:
    """Which layer works on which tile in which turn. order: "wave" (layer l on tile t in turn t + l, side by side),
    "time-major" (a tile through all layers, one after the other) or "layer-major" (all tiles of a layer first)."""
    found = []
    for layer in range(layers):
        for tile in range(tiles):
            turn = {"wave": tile + layer, "time-major": tile * layers + layer, "layer-major": layer * tiles + tile}
            found.append(Turn(turn=turn[order], layer=layer, tile=tile))
    return sorted(found, key=lambda row: (row["turn"], row["layer"]))


def ablation_rows(path: str | os.PathLike[str]) -> list[AblationRow]:
    """without (the passes that were left out, in words) and us (per step) of our own rows. Raises ConfigError."""
    rows = [row for row in _lines(path) if row.get("framework") == "tvm_rnn" and row.get("us_per_step")]
    several = len({row.get("point") for row in rows}) > 1 and len({_network(row) for row in rows}) > 1
    found = []
    for row in rows:
        without = ", ".join(row.get("without") or ()) or "nothing"
        words = f"{_network(row)}: {without}" if several else without
        found.append(AblationRow(without=words, us=row["us_per_step"]))
    if not found:
        do = "write it with: tvm-rnn bench --suite ablation --records FILE"
        raise ConfigError(message("--ablation: no times of tvm_rnn in this file", got=os.fspath(path), do=do))
    return found


def _network(row: Figures) -> str:
    return f"{row.get('cell')} H={row.get('hidden')} B={row.get('batch')}"


def gains(path: str | os.PathLike[str]) -> list[float | None]:
    """The speed over the defaults of each trial of a journal, None where it failed. Raises ConfigError."""
    found: list[float | None] = []
    for row in _lines(path):
        if "state" in row and "choices" in row:
            outcome = Outcome.from_dict(row)
            found.append(1 / outcome.ratio if outcome.valid else None)
    if not found:
        do = "give a file of the folder .tuning beside tuned records"
        raise ConfigError(message("--journal: no trials in this file", got=os.fspath(path), do=do))
    return found


def _lines(path: str | os.PathLike[str]) -> Iterator[Figures]:
    try:
        with open(path) as file:
            for line in file:
                if line.strip():
                    yield dict(json.loads(line))
    except (OSError, ValueError, TypeError) as reason:
        raise ConfigError(message("this file cannot be read", where=os.fspath(path), got=str(reason))) from None
