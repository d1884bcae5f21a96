"""Charts and tables of stored benchmarks: the README's figure, and the page with filters.

In: `pages/records/*.jsonl`, which `tvm-rnn bench --suite NAME --records FILE` writes, and the records of tuning that
ship. Out: `pages/images/speed_light.svg` and `speed_dark.svg` (`python tutorials/site/benchmarks.py`, which is `make
figures`), and what `generate.py` puts into the page of benchmarks. Every figure in either is in these files.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import earlier
import history
import stored_records

from tvm_rnn.bench.run.audio_suite import UNCHECKED
from tvm_rnn.bench.run.tables import Line, Report
from tvm_rnn.bench.suites.gpu import SHORT
from tvm_rnn.schedule.record_files import read
from tvm_rnn.vega_lite import BLUE, CONFIG, GREEN, GREY, ORANGE, PURPLE, RED, SCHEMA, Spec, svg

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "pages" / "records"
TUNED = HERE.parent.parent / "schedules" / "records"
OURS = "tvm_rnn"
BUSY = 1.0  # programs at work beside the benchmark
# Cells of the README's figure, and what people call them; frameworks, in the order and colours of all charts.
FIRST = {
    "lstm": "LSTM",
    "gru": "GRU",
    "lstm_layer_norm": "layer-norm LSTM",
    "lem": "LEM",
    "multiplicative_lstm": "multiplicative LSTM",
    "gated_delta_net": "gated delta net",
}
PEERS = {
    "torch": ("PyTorch, its layer", ORANGE),
    "torch-loop": ("PyTorch, step by step", RED),
    "torch-compile": ("torch.compile", PURPLE),
    "torch-cuda": ("PyTorch, token by token", "#a1440d"),
    "torch-cuda-compile": ("torch.compile of a token", "#5e35b1"),
    "torch-cuda-graph": ("CUDA graph of a token", "#00695c"),
    "cudnn": ("cuDNN's own API", "#8a5a44"),
    "onnxruntime": ("ONNX Runtime", GREEN),
    "openvino": ("OpenVINO", "#b59a00"),
    "numpy": ("NumPy", GREY),
    "flashrnn": ("FlashRNN", "#c2185b"),
    "rtneural": ("RTNeural", "#00838f"),
    "onnxruntime-web": ("ONNX Runtime Web", "#6d4c41"),
    UNCHECKED: ("tvm_rnn, arguments unchecked", "#7fb0de"),
    OURS: (OURS, BLUE),
    "defaults": ("defaults", GREY),  # of tuning
    "best found": ("best found", BLUE),
}
OTHERS = ("#546e7a", "#ad1457", "#558b2f", "#283593", "#ef6c00")  # of frameworks that are not among these
PAPERS = {"light": "#1f2328", "dark": "#e6edf3"}  # the ink on each; the page's own background shows through
Row = dict[str, Any]
WIDE: Spec = {
    "width": "container",
    "autosize": {"type": "fit-x", "contains": "padding"},
    "height": {"step": 16},
}  # as the page; a row's
LEGEND = {"orient": "top", "columns": 3, "labelLimit": 0}


def stored() -> Iterator[tuple[Path, Report]]:
    """Every file of records, the newest first."""
    return stored_records.stored(RECORDS)


def rows() -> list[Row]:
    """A row per point and framework that was measured, with how many times as long it takes as tvm_rnn."""
    found = []
    for path, one in stored():
        for line in one.lines:
            for name, record in line.rows.items():
                if record.get("us_per_step") and "point" in record:  # not what a table adds for comparison
                    found.append(
                        {
                            **{key: record[key] for key in ("point", "cell", "hidden", "steps", "batch")},
                            "dtype": stored_records.dtype(record),
                            "device": one.facts["device"],
                            "date": one.facts["date"][:10],
                            "suite": path.stem,
                            "framework": name,
                            "us": float(f"{record['us_per_step']:.4g}"),
                            "spread": round(record.get("spread") or 0.0, 3),
                            "ratio": None if is_ours(name) else rounded(line.ratio(name)),
                        }
                    )
    return found


def of_cell(cell: str) -> list[str]:
    """Lines of a table for a cell's own page: each point, tvm_rnn's time, and the others' with their ratios."""
    points: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows():  # of a point that two files have, the newer one's
        if row["cell"] == cell:
            points.setdefault((row["device"], row["point"]), {}).setdefault(row["framework"], row)
    lines = []
    for (device, point), found in sorted(points.items()):
        if OURS in found:
            others = [row for row in found.values() if row["ratio"] is not None]
            texts = [f"{label(row['framework'])} {row['us']:g} ({row['ratio']:g})" for row in others]
            lines.append(f"| {device} | {point} | {found[OURS]['us']:g} | {', '.join(texts) or '-'} |")
    return lines


def is_ours(framework: str) -> bool:
    """Whether it is tvm_rnn, or another way to run it: "tvm_rnn-graph", or its step without checks."""
    return framework.partition("-")[0] in (OURS, UNCHECKED)


def label(framework: str) -> str:
    """What readers call it."""
    return PEERS[framework][0] if framework in PEERS else framework


def charted(data: Sequence[Row]) -> tuple[list[Row], Spec]:
    """Rows whose frameworks have the names that readers know, and the colours of these."""
    names = colours(data)
    scale = {"domain": [label(name) for name in names], "range": list(names.values())}
    own = {"field": "framework", "type": "nominal", "title": None, "scale": scale}
    return [row | {"framework": label(row["framework"])} for row in data], {**own, "legend": LEGEND}


def colours(data: Sequence[Row]) -> dict[str, str]:
    """A colour for each framework that these rows have: known ones in their order, then any other."""
    there = {row["framework"] for row in data}
    known = {name: colour for name, (_, colour) in PEERS.items() if name in there}
    return known | dict(zip(sorted(there - known.keys()), itertools.cycle(OTHERS), strict=False))


def rounded(ratio: float | None) -> float | None:
    """A ratio with the digits that are worth reading."""
    return None if ratio is None else float(f"{ratio:.3g}")


def tuned() -> list[Row]:
    """What `tvm-rnn tune` recorded, without peers: the best that was found, beside the defaults."""
    found = []
    for folder in sorted(path for path in TUNED.iterdir() if path.is_dir()):
        for record in read([TUNED], folder.name).records:
            work = record.workload
            if work.get("steps"):
                known = {key: work[key] for key in ("cell", "hidden", "steps", "batch")}
                known |= {"dtype": SHORT[work["precision"]], "device": folder.name, "date": record.date[:10]}
                known["point"] = f"{record.name}, T {work['steps']}"
                found.append({**known, "framework": "best found", "us": record.median_us / work["steps"]})
                found.append({**known, "framework": "defaults", "us": record.default_us / work["steps"]})
    return found


# --- the README's figure ---------------------------------------------------------------------------------------------


def first(paper: str) -> Spec:
    """A group of bars for each cell and device: how many times as long each peer takes. paper: a key of PAPERS."""
    ink = PAPERS[paper]
    zoos = [one for path, one in stored() if path.stem.startswith("zoo")]
    peers = [name for name in PEERS if name not in (OURS, "numpy") and any(name in one.peers for one in zoos)]
    text = dict.fromkeys(("labelColor", "titleColor"), ink)
    ratios = [ratio for one in zoos for name in peers for line in _lines(one) if (ratio := line.ratio(name))]
    ends = (0.9 * min(0.7, *ratios), 1.6 * max(ratios))
    return {
        "padding": {"left": 28, "right": 20, "top": 8, "bottom": 8},  # fonts of readers are wider
        "title": {
            "text": [
                "Time that others take for the same work, relative to tvm_rnn",
                "tvm_rnn is the line at 1. Longer is slower; no bar: no such layer.",
            ],
            "anchor": "start",
            "color": ink,
            "fontSize": 12,
            "offset": 12,
        },
        "config": {**CONFIG, "axis": {**CONFIG["axis"], **text}, "legend": text, "text": {"color": ink, "fill": ink}},
        "vconcat": [_group(one, peers, ends, ink) for one in zoos],
        "resolve": {"scale": {"y": "independent"}},
    }


def _lines(one: Report) -> list[Line]:
    """Of the figure's cells."""
    return [line for line in one.lines if line.ours.get("cell") in FIRST]


def _group(one: Report, every: Sequence[str], ends: tuple[float, float], ink: str) -> Spec:
    """One device: bars from 1, the time of tvm_rnn, on a logarithmic axis; to the right where the other is slower. A
    peer that has no such layer has no bar. every: the peers of all devices, which have one legend. ends: of the axis,
    the same for all devices. ink: the colour of words."""
    lines = {line.ours["cell"]: line for line in _lines(one)}
    values = [
        row
        for cell, words in FIRST.items()
        if cell in lines
        for row in _bars(words, {name: lines[cell].ratio(name) for name in every})
    ]
    names, hues = zip(*(PEERS[name] for name in every), strict=True)
    scale = {"type": "log", "domain": list(ends), "nice": False}
    x = {"field": "ratio", "type": "quantitative", "title": None, "scale": scale}
    x |= {"axis": {"values": [0.5, 1, 2, 5, 10, 20, 50, 100], "format": "~g"}}
    y = {"field": "bar", "type": "nominal", "sort": [row["bar"] for row in values], "title": None}
    # The first bar of a cell has its name; a line of spaces stands between cells.
    y |= {"axis": {"labelFontSize": 12, "labelLimit": 0, "ticks": False, "domain": False, "labelPadding": 8}}
    y["axis"]["labelExpr"] = "split(datum.label, '|')[1] == '0' ? split(datum.label, '|')[0] : ''"
    colour = {"field": "peer", "type": "nominal", "sort": list(names), "title": None}
    colour |= {"legend": {"orient": "top", "labelLimit": 0, "columnPadding": 20, "columns": 3}}
    colour |= {"scale": {"domain": list(names), "range": list(hues)}}
    line = {"mark": {"type": "rule", "color": BLUE, "strokeWidth": 2}, "encoding": {"x": {"datum": 1.0}}}
    label = {"mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 10}}
    return {
        "title": {
            "text": one.facts["device"],
            "subtitle": [_sizes(one), *_made_with(one)],
            "anchor": "start",
            "color": ink,
            "subtitleColor": ink,
            "fontSize": 12,
        },
        "width": 320,  # with names some 460: words can be read on a phone
        "height": {"step": 12},
        "data": {"values": values},
        "layer": [
            {
                "mark": {"type": "bar", "height": 11},
                "encoding": {"y": y, "x": x, "x2": {"datum": 1.0}, "color": colour},
            },
            {**label, "encoding": {"y": y, "x": x, "text": {"field": "text"}}},
            line,
        ],
    }


def _bars(cell: str, ratios: Mapping[str, float | None]) -> list[Row]:
    """A bar for each peer that has the cell, and an empty one behind them. One as quick as tvm_rnn is named: it has no
    length.
    """
    known = [(name, ratio) for name, ratio in ratios.items() if ratio is not None]
    made = [
        {"bar": f"{cell}|{number}", "peer": PEERS[name][0], "ratio": ratio, "text": _text(name, ratio)}
        for number, (name, ratio) in enumerate(known)
    ]
    return [*made, {"bar": f"{cell}|end", "peer": None, "ratio": 1.0, "text": ""}]


def _text(name: str, ratio: float) -> str:
    number = f"{ratio:.1f}"
    return f"{number} ({PEERS[name][0]})" if number == "1.0" else number


def _made_with(one: Report) -> list[str]:
    """Date and versions; and a warning where the CPU that was measured had other work."""
    versions = [v if v.lower().startswith(name) else f"{name} {v}" for name, v in _versions(one).items()]
    found = [f"{one.facts['date'][:10]}, {', '.join(versions)}"]
    load, on_gpu = one.facts["load"], "sms" in one.facts
    busy = f"The machine was busy, load average {load:.0f}: ratios are rough."
    return [*found, busy] if load > BUSY and not on_gpu else found


def _versions(one: Report) -> Mapping[str, str]:
    """Of what was measured."""
    every = [row for line in one.lines for row in line.rows.values() if row.get("version")]
    return {str(row["framework"]).partition("-")[0]: str(row["version"]) for row in every}


def _sizes(one: Report) -> str:
    """Of the points, which have one T, B and dtype, and one or two H."""
    every = [line.ours for line in one.lines if "us_per_step" in line.ours]
    large, small = (pick(every, key=lambda row: row["hidden"]) for pick in (max, min))
    words = f"I = H = {large['hidden']}"
    words += (
        f" ({FIRST.get(small['cell'], small['cell'])}: {small['hidden']})" if small["hidden"] < large["hidden"] else ""
    )
    return f"{words}, T = {large['steps']}, B = {large['batch']}, {SHORT[large['precision']]}"


def figures() -> None:
    """Write the README's figure, for light and dark pages."""
    for paper in PAPERS:
        drawn = svg(first(paper), "How many times as long other frameworks take as tvm_rnn, by cell")
        (HERE / "pages" / "images" / f"speed_{paper}.svg").write_text(drawn + "\n")


# --- the page --------------------------------------------------------------------------------------------------------


def script() -> str:
    """Vega, Vega-Lite and what draws the page's charts with them: one file, nothing is fetched."""
    import vl_convert

    library: str = vl_convert.javascript_bundle()
    return library + (HERE / "benchmarks.js").read_text()


def page(text: str) -> str:
    """The page of benchmarks: what was written by hand, with charts and tables at its marks."""
    measured, own, found = rows(), tuned(), [*history.versions(RECORDS)]
    again = history.rows(found)
    parts = {
        "compared": embedded("compared", compared(measured), "how many times as long others take"),
        "times": embedded("times", times(measured), "microseconds per step"),
        "tuned": embedded(
            "tuned", times(own, device="nvidia-h200", cell="lstm"), "microseconds per step, as tuning recorded them"
        ),
        "history": embedded("history", history.chart(again, *_filters(again, {})), "microseconds per step, run by run")
        if again
        else "",
        "versions": folded("Every run that was committed", "\n".join(history.table(found))),
        "counts": counts(measured),
        "summary": "\n".join(summary(measured)),
        "misses": "\n".join(misses(measured)),
        "earlier": earlier.table(RECORDS),
        "runs": "\n".join(runs()),
    }
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    return text


def embedded(name: str, spec: Spec, words: str) -> str:
    """A chart that the page's script draws; without scripts the tables below it say the same."""
    whole = json.dumps({"$schema": SCHEMA, "config": CONFIG, "description": words, **spec}).replace("<", "\\u003c")
    return (
        f'<div class="filters" id="{name}-filters"></div>\n'
        f'<div class="vega"><div id="{name}" role="figure" aria-label="{words}"></div></div>\n'
        f'<script type="application/json" data-for="{name}">{whole}</script>'
    )


def _filters(data: Sequence[Row], chosen: Mapping[str, str]) -> tuple[list[Spec], list[Spec]]:
    """A list to choose from for each column, and what it leaves. chosen: at first; else all."""
    params, kept = list[Spec](), list[Spec]()
    for field, words in {"device": "device", "cell": "cell", "hidden": "H", "batch": "B", "dtype": "dtype"}.items():
        values = sorted({row[field] for row in data})
        bind = {
            "input": "select",
            "options": [None, *values],
            "labels": ["all", *(str(value or "several") for value in values)],
            "name": f"{words} ",
        }
        params.append({"name": f"only_{field}", "value": chosen.get(field), "bind": bind})
        kept.append({"filter": f"only_{field} == null || datum.{field} == only_{field}"})
    return params, kept


def compared(data: Sequence[Row]) -> Spec:
    """Dots on a logarithmic axis, right of 1 where tvm_rnn is faster, left of it where it is slower; on top the points
    where it does worst."""
    params, kept = _filters(data, {})
    known, colour = charted([row for row in data if row["ratio"] is not None])
    x = {"field": "ratio", "type": "quantitative", "scale": {"type": "log"}}
    x |= {
        "title": "their time / ours: right of the line tvm_rnn is faster",
        "axis": {"format": "~g", "orient": "top"},
    }
    tips = [{"field": name} for name in ("framework", "ratio", "us", "spread", "device", "date", "suite")]
    y = {"field": "point", "type": "nominal", "title": None, "axis": {"labelLimit": 190}}
    return {
        **WIDE,
        "params": params,
        "data": {"values": known},
        "transform": kept,
        "layer": [
            {
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": GREY, "aria": False},
                "encoding": {"x": {"datum": 1, "type": "quantitative"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.9},
                "encoding": {
                    "x": x,
                    "y": {**y, "sort": {"op": "min", "field": "ratio", "order": "ascending"}},
                    "color": colour,
                    "shape": {"condition": {"test": "datum.ratio < 1", "value": "cross"}, "value": "circle"},
                    "tooltip": tips,
                },
            },
        ],
    }


def times(data: Sequence[Row], **chosen: str) -> Spec:
    """Microseconds per step of every framework. chosen: what the filters leave at first."""
    params, kept = _filters(data, chosen)
    shown, colour = charted(data)
    tips = [{"field": name} for name in ("framework", "us", "device", "date", "suite")]
    x = {"field": "us", "type": "quantitative", "scale": {"type": "log"}, "title": "microseconds per step"}
    return {
        **WIDE,
        "params": params,
        "data": {"values": shown},
        "transform": kept,
        "mark": {"type": "tick", "thickness": 3, "bandSize": 13},
        "encoding": {
            "x": {**x, "axis": {"format": "~g", "orient": "top"}},
            "y": {"field": "point", "type": "nominal", "title": None, "axis": {"labelLimit": 190}},
            "color": colour,
            "tooltip": tips,
        },
    }


def counts(data: Sequence[Row]) -> str:
    """How often tvm_rnn is faster, and how often not."""
    ratios = [row["ratio"] for row in data if row["ratio"] is not None]
    slower = sum(ratio < 1 for ratio in ratios)
    return f"Of {len(ratios)} comparisons tvm_rnn is faster in {len(ratios) - slower}, slower in {slower}."


def summary(data: Sequence[Row]) -> Iterator[str]:
    """A line for each framework: how it compares over all points."""
    yield "| beside | mean | least | most | tvm_rnn slower in |"
    yield "|---|---:|---:|---:|---:|"
    known = [row for row in data if row["ratio"] is not None]
    for name in colours(known):
        ratios = [row["ratio"] for row in known if row["framework"] == name]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        slower = sum(ratio < 1 for ratio in ratios)
        yield f"| {label(name)} | {mean:.2f} | {min(ratios):.2f} | {max(ratios):.3g} | {slower} of {len(ratios)} |"


def misses(data: Sequence[Row]) -> Iterator[str]:
    """Every comparison in which tvm_rnn is not faster, the worst first."""
    slower = sorted((row for row in data if row["ratio"] and row["ratio"] < 1), key=lambda row: float(row["ratio"]))
    if not slower:
        return
    yield "| where others are faster | records | framework | its time / ours | spread of ours |"
    yield "|---|---|---|---:|---:|"
    ours = {(row["suite"], row["point"]): row["spread"] for row in data if row["framework"] == OURS}
    for row in slower:
        noise = ours.get((row["suite"], row["point"]), 0.0)
        yield f"| {row['point']} | {row['suite']} | {label(row['framework'])} | {row['ratio']:.2f} | {noise:.0%} |"


def runs() -> Iterator[str]:
    """Where each file was made, and what was left out, with the reason."""
    for path, one in stored():
        facts = one.facts
        yield f"### {path.stem}\n"
        yield f"{facts['device']}; {', '.join(f'{name} {version}' for name, version in _versions(one).items())}; on"
        yield f"{facts['date'][:16].replace('T', ' ')} UTC, load average {facts['load']:.1f} at the beginning. As data:"
        yield f"[{path.name}](records/{path.name}).\n"
        if facts["command"]:
            yield f"```console\n$ {facts['command']}\n```\n"
        count = len(one.lines) or len(stored_records.others(path))
        yield folded(f"{count} {'points' if count > 1 else 'point'}", _table(one) if one.lines else _others(path))


def folded(words: str, table: str) -> str:
    """A table that is shown when its words are clicked."""
    return (
        f"<details markdown><summary>{words}</summary>\n\n"
        f'<div class="wide" tabindex="0" markdown>\n\n{table}\n\n</div>\n\n</details>\n'
    )


def _others(path: Path) -> str:
    """Of a file without points: a line for each record."""
    found = stored_records.others(path)
    fields = stored_records.OTHERS[found[0]["kind"]]
    lines = [f"| {' | '.join(heading for heading, _ in fields.values())} |"]
    lines.append("|" + "".join("---:|" if form else "---|" for _, form in fields.values()))
    for own in found:
        lines.append(f"| {' | '.join(format(own[name], form) for name, (_, form) in fields.items())} |")
    return "\n".join(lines)


def _table(one: Report) -> str:
    """Microseconds per step of everyone, with the ratio; "-" where a framework has no such layer."""
    lines = [f"| point | {OURS} | spread | {' | '.join(one.peers)} |", "|---|---:|---:|" + "---:|" * len(one.peers)]
    for line in one.lines:
        theirs = [f"{line.us(name):.4g} ({line.ratio(name):.2f})" if line.ratio(name) else "-" for name in one.peers]
        ours = line.us(OURS)
        spread = line.ours.get("spread")
        own = "- | -" if ours is None else f"{ours:.4g} | {'-' if spread is None else f'{spread:.0%}'}"
        lines.append(f"| {line.point} | {own} | {' | '.join(theirs)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    figures()
