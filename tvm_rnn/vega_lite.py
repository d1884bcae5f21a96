"""Charts as SVG: Vega-Lite specifications, drawn by vl-convert, which holds Vega and needs no network.

In: a specification, such as `explain/html/charts.py`, `bench/run/plot.py` and `tune/plot.py` make. Out: an SVG element.
Text and background are those of the page around it; what is to be a file of its own has a background of its own
(`PAPER`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from html import escape

from .errors import ConfigError, message, not_installed

Spec = dict[str, object]

BLUE, ORANGE, GREEN, GREY, RED, PURPLE = "#3b82c4", "#e07b39", "#4c9f70", "#888888", "#c44536", "#8d5a97"
PAPER = {"background": "white", "padding": 16}
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name that Vega-Lite knows: nothing is fetched
WIDTH = 480
INK = "currentColor"
AXIS: Spec = {
    "labelColor": INK,
    "titleColor": INK,
    "domainColor": GREY,
    "tickColor": GREY,
    "gridColor": GREY,
    "gridOpacity": 0.2,
}
LEGEND: Spec = {"labelColor": INK, "titleColor": INK}
TEXT: Spec = {"color": INK, "fill": INK}
CONFIG = {
    "background": "transparent",
    "view": {"stroke": None, "continuousWidth": WIDTH, "discreteWidth": WIDTH},
    "axis": AXIS,
    "legend": LEGEND,
    "title": {"color": INK, "subtitleColor": INK},
    "text": TEXT,
    "font": "system-ui, sans-serif",
}


def svg(spec: Mapping[str, object], title: str) -> str:
    """A chart as an SVG element.

    spec: Vega-Lite, without what all charts share. title: for those who do not see it. Raises ConfigError without
    vl-convert.
    """
    try:
        import vl_convert
    except ImportError:
        raise ConfigError(not_installed("vl-convert-python")) from None
    whole = {"$schema": SCHEMA, "config": CONFIG, "description": title, **spec}
    drawn: str = vl_convert.vegalite_to_svg(json.dumps(whole))
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)


def check_plot(path: str) -> None:
    """Whether a chart can be drawn into this file: asked before what it shows is measured. Raises ConfigError."""
    if not path.endswith(".svg"):
        raise ConfigError(message("--plot draws one kind of file", got=path, expected="a name ending in .svg"))
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ConfigError(message("--plot: no such folder", got=repr(folder), do="make it first"))
    svg({"mark": "point"}, "nothing")
