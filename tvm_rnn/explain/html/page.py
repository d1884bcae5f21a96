"""The report as one HTML file: nothing is fetched, and all of it can be read without scripts.

In: an `Explanation`, records of an ablation, outcomes of tuning. Out: the text of a page: a summary, what was decided,
equations, the graph at every stage behind a slider, layers over time, roofline, bars, generated code. Style and script
are `page.css` and `page.js`, written into it.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_rnn.decisions import DecisionFacts, Figures
from tvm_rnn.explain.facts import ExplanationFacts, KernelFacts, NetworkFacts, PassFacts
from tvm_rnn.explain.summary import QUESTIONS, of_file, summary
from tvm_rnn.explain.tables import percent
from tvm_rnn.explain.text import cpu_text, in_turn_text, launches_text, phase_text, subject_text, text, told_text
from tvm_rnn.graph.equations import equations, math
from tvm_rnn.passes.pipeline import PASSES
from tvm_rnn.tune.plot import history as trials
from tvm_rnn.vega_lite import AXIS, CONFIG, LEGEND, TEXT, Spec, svg

from . import charts
from .drawing import draw

if TYPE_CHECKING:
    from tvm_rnn.explain.module import Looked

HERE = Path(__file__).parent
FONT = HERE / "equations.woff2"
LETTERS: Spec = {"labelFontSize": 12, "titleFontSize": 12}  # still to be read where a page is narrow
LEGIBLE = {**CONFIG, "axis": AXIS | LETTERS, "legend": LEGEND | LETTERS, "text": TEXT | {"fontSize": 12}}
# What readers may not know of the signs in equations.
SIGNS = {
    "&#8857;": "&#8857; is element by element",
    "<mo>[": "[g] is part g",
    "&sigma;": "&sigma; is the logistic function",
}
TILES = 24  # at most, in the picture of layers and time


def page(
    facts: ExplanationFacts,
    looked: Sequence[Looked | None] = (),
    command: str = "",
    ablation: Sequence[charts.AblationRow] = (),
    history: Sequence[float | None] = (),
) -> str:
    """The whole page. looked: the networks themselves, for equations, graphs and code; None where one is not at hand.
    ablation: without, us. history: speed over the defaults by trial."""
    networks = facts["networks"]
    title = " and ".join(f"{own['cell']}{of_file(own)} for {_where(own)}" for own in networks)
    body = [f"<h1>{escape(title)}</h1>", *map(_summary, networks)]
    body += [_contents(networks[0], bool(looked and looked[0]), bool(ablation), bool(history))]
    for number, own in enumerate(networks):
        net = looked[number] if number < len(looked) else None
        body += _network(own, net, number)
    if ablation:
        body += [_h2("ablation", "What each pass is worth")]
        body += [_chart(charts.ablation(ablation), "time without each pass")]
    if history:
        body += [_h2("tuning", "Tuning"), _chart(trials(history), "speed over the defaults by trial")]
    for number, net in enumerate(looked):
        body += _code(net, number) if net is not None else ()
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    body += [_h2("made", "How this page was made"), f'<pre class="command">{escape(command)}</pre>' if command else ""]
    body += [f'<p class="soft">{escape(versions)}. Charts by Vega-Lite, layout of graphs by grandalf.</p>']
    return document(title, body)


def document(title: str, body: Sequence[str]) -> str:
    """A page with the style, the font of equations and the script in it."""
    style, script = ((HERE / name).read_text() for name in ("page.css", "page.js"))
    if any("<math" in part for part in body):
        style += _font()
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    inside = f"<main>{''.join(body)}</main><script>{script}</script>"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}<title>{escape(title)}</title><style>{style}</style></head>'
        f"<body>{inside}</body></html>\n"
    )


def _font() -> str:
    letters = base64.b64encode(FONT.read_bytes()).decode()
    return f'@font-face {{ font-family: "tvm_rnn equations"; src: url("data:font/woff2;base64,{letters}"); }}'


def _summary(own: NetworkFacts) -> str:
    """What a reader in a hurry wants: four answers, and a bar as long as the share of the roof."""
    found = summary(own)
    answers = {field: re.sub(r"--[\w-]+", r"<code>\g<0></code>", escape(getattr(found, field))) for field in QUESTIONS}
    if found.share is not None:
        answers["distance"] = _meter(found.share) + answers["distance"]
    cards = "".join(f"<div><dt>{words}</dt><dd>{answers[field]}</dd></div>" for field, words in QUESTIONS.items())
    return f'<dl class="summary">{cards}</dl>'


def _meter(share: float) -> str:
    words = f"{percent(share)} of the roof"
    return f'<meter min="0" max="1" value="{min(1.0, share):.3f}" aria-label="{words}">{words}</meter>'


def _where(own: NetworkFacts) -> str:
    return ", ".join(own["target"]["archs"]) or own["target"]["mcpu"]


def _contents(own: NetworkFacts, looked: bool, ablation: bool, history: bool) -> str:
    parts = [("decided", "What was decided"), *([("equations", "Equations"), ("graph", "Graph")] if looked else [])]
    parts += [("time", "Layers and time"), *([("step", "One step on the GPU")] if _timelines(own) else [])]
    parts += [("work", "Work")]
    parts += [("ablation", "Ablation")] if ablation else []
    parts += [("tuning", "Tuning")] if history else []
    parts += [("code", "Code")] if looked else []
    links = "".join(f'<a href="#{at}">{words}</a>' for at, words in (*parts, ("made", "How it was made")))
    return f'<nav aria-label="Contents">{links}</nav>'


def _folded(summary: str, words: str) -> str:
    """Text that is shown on demand. Who has no mouse can scroll it too."""
    return f'<details><summary>{escape(summary)}</summary><pre tabindex="0">{escape(words)}</pre></details>'


def _h2(at: str, words: str) -> str:
    return f'<h2 id="{at}">{escape(words)}</h2>'


def _chart(spec: Spec, title: str, at: str = "") -> str:
    own = f' id="{at}"' if at else ""
    return f'<div class="chart wide"{own}>{svg({**spec, "config": LEGIBLE}, title)}</div>'


def _network(own: NetworkFacts, net: Looked | None, number: int) -> Iterator[str]:
    more = f"-{number}" if number else ""
    yield _h2(f"decided{more}", "What was decided, and why not otherwise")
    yield from _decided(own)
    if net is not None:
        yield _h2(f"equations{more}", "Equations of one step")
        for graph in net.stages[0][1].graphs[:1]:
            rows = "".join(math(row) for _, row in equations(graph))
            yield f'<div class="wide" tabindex="0">{rows}</div>'
            words = "; ".join(meaning for sign, meaning in SIGNS.items() if sign in rows)
            yield f'<p class="soft">{words}.</p>' if words else ""
        yield _h2(f"graph{more}", "The graph before and after each pass")
        yield _graphs(net, f"stages{number}")
    elif "not_drawn" in own:
        yield _h2(f"graph{more}", "No equations and graphs")
        yield f"<p>{escape(own['not_drawn'])}.</p>"
    yield _h2(f"time{more}", "Layers and time")
    yield from _time(own, f"turns{number}")
    yield from _steps(own, more)
    yield _h2(f"work{more}", "Work, and the least time for it")
    yield from work(own)
    yield _folded("All of it as text", text({"networks": [own]}))


def _decided(own: NetworkFacts) -> Iterator[str]:
    for name, rows in own["passes"].items():
        if any(rows.values()):
            yield f"<h3>{escape(name)}</h3>{_purpose(name)}{_told(rows['did'], rows['did_not'], own['graphs'])}"
    if own["phases"]:
        items = "".join(f'<li class="did">{escape(phase_text(row, own["graphs"]))}</li>' for row in own["phases"])
        yield f'<h3>What runs in one go</h3><ul class="told">{items}</ul>'
    if not own["target"]["archs"]:
        yield f'<h3>Who runs the steps</h3><ul class="told"><li class="did">{escape(cpu_text(own["work"]))}</li></ul>'
    elif own["regimes"]:
        did, rest = ([row for row in own["regimes"] if row["done"] == done] for done in (True, False))
        plain = f'<ul class="told"><li class="did">{launches_text(own["phases"])}</li></ul>'
        yield f"<h3>Who runs the steps</h3>{_told(did, [], own['graphs']) if did else plain}"
        if rest:
            words = f"What else could, and why it does not ({len(rest)})"
            yield f"<details><summary>{words}</summary>{_told([], rest, own['graphs'])}</details>"
    if own["kernels"]:
        yield _kernels(own["kernels"])


def _purpose(name: str) -> str:
    """What a pass is for: the first words of its file. Nothing of one that this version has not."""
    for step in PASSES:
        if step.name == name:
            words = (sys.modules[type(step).__module__].__doc__ or "").partition("\n\n")[0]
            return f'<p class="soft purpose">{escape(" ".join(words.split()))}</p>'
    return ""


def _told(did: Sequence[DecisionFacts], rest: Sequence[DecisionFacts], graphs: Sequence[Sequence[int]]) -> str:
    rows = [("did", row) for row in did] + [("not", row) for row in rest]
    items = [f'<li class="{kind}">{escape(told_text(row, graphs))}</li>' for kind, row in rows]
    return f'<ul class="told">{"".join(items)}</ul>'


def _kernels(rows: Sequence[KernelFacts]) -> str:
    columns = ("kernel", "registers", "spill_bytes", "shared_bytes", "dynamic_shared_bytes", "threads", "occupancy")
    head = "".join(f'<th scope="col">{escape(name.replace("_", " "))}</th>' for name in columns)
    lines = []
    for row in rows:
        cells = [f"<td>{escape(str(row['kernel']))}</td>"]
        for name in columns[1:]:
            value = row.get(name, "")
            shown = f"{value:.0%}" if name == "occupancy" and value != "" else str(value)
            cells.append(f'<td class="number">{escape(shown)}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<h3>Kernels</h3><div class="wide" tabindex="0"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _graphs(net: Looked, at: str) -> str:
    from tvm_rnn.graph.graph_text import graph_text

    stages = net.stages
    slider = (
        f'<p><label for="{at}-slider">Stage: <strong id="{at}-name">{escape(stages[-1][0])}</strong></label><br>'
        f'<input class="stages" id="{at}-slider" data-of="{at}" type="range" min="0" max="{len(stages) - 1}"'
        f' value="{len(stages) - 1}" step="1"></p>'
    )
    kinds = ("state", "weights", "before", "step", "after")
    key = "".join(f'<span class="{kind}">{kind}</span>' for kind in kinds)
    parts = []
    for number, (name, layers) in enumerate(stages):
        pictures = []
        for graph in layers.graphs[:1]:
            pictures.append(f'<div class="graph wide" tabindex="0">{draw(graph, f"{graph.cell} after {name}")}</div>')
            pictures.append(_folded("As text", graph_text(graph)))
        hidden = "" if number == len(stages) - 1 else " hidden"
        parts.append(f'<div class="stage" data-name="{escape(name)}"{hidden}>{"".join(pictures)}</div>')
    buttons = (("0.8", "smaller", "&minus;"), ("1.25", "larger", "+"), ("0", "fit: all of it", "fit"))
    zoom = "".join(
        f'<button type="button" data-by="{by}" aria-label="{words}">{text}</button> ' for by, words, text in buttons
    )
    tools = f'<p class="zoom" data-of="{at}">{zoom}<span class="soft">drag to move</span></p>'
    note = "Numbers at boxes are groups that run in one go; thick frames are stored."
    return f'{slider}<p class="key">{key}</p>{tools}<div id="{at}">{"".join(parts)}</div><p class="soft">{note}</p>'


def _time(own: NetworkFacts, at: str) -> Iterator[str]:
    """How layers take turns: from what was decided of waves and tiles."""
    row = own["work"][0]
    wave = any(d["done"] and d["stage"] == "wave" for d in own["regimes"])
    tiles = own["passes"].get("tile_layers_and_time", PassFacts(did=[], did_not=[]))
    asked = [d["facts"]["rows"] for d in tiles["did"] if "rows" in d.get("facts", {})]
    rows = min(asked, default=0)  # all layers go through one tile: the least of what they ask for
    each = min(max(1, rows // row["batch"]), row["steps"]) if rows else 1 if wave else row["steps"]
    count = -(-row["steps"] // each)
    through = wave or any("through all" in d["what"] or "side by side" in d["what"] for d in tiles["did"])
    order = "wave" if wave else "time-major" if through else "layer-major"
    shown = min(count, TILES)
    words = {
        "wave": "Layers run side by side: each works on a step as soon as the layer below has written it.",
        "time-major": "A tile of steps goes through all layers while it is in cache.",
        "layer-major": "Each layer runs over all steps before the next one begins.",
    }[order]
    if own["layers"] == count == 1:
        yield f"<p>One layer runs over all T = {row['steps']} steps.</p>"
        return
    more = f" The first {shown} of {count} are drawn." if shown < count else ""
    rows_of = " and ".join(map(str, asked))
    least = f" Layers ask for tiles of {rows_of} rows: the least counts." if len({*asked}) > 1 else ""
    tiles_of = f"{count} steps" if each == 1 else f"{count} x tile of {each} steps"
    sizes = f"T = {row['steps']}, B = {row['batch']}"
    yield f"<p>{words} {sizes}: {tiles_of} for {own['layers']} layer{'s' * (own['layers'] > 1)}.{least}{more}</p>"
    yield f'<p><button class="play" data-of="{at}" type="button">Play once</button></p>'
    turns = charts.turns(own["layers"], shown, order)
    yield _chart(charts.wavefront(turns, f"colours: {tiles_of}"), f"layers over time: {words}", at)


def _timelines(own: NetworkFacts) -> list[DecisionFacts]:
    """What was decided of kernels whose step has phases: waves first, as they run where there are some."""
    done = [row for row in own["regimes"] if row["done"]]
    return [row for name in ("layer_times", "phase_times") for row in done if name in row.get("facts", {})]


def _steps(own: NetworkFacts, more: str) -> Iterator[str]:
    """One step of each persistent kernel over time."""
    rows = _timelines(own)
    if rows:
        yield _h2(f"step{more}", "One step on the GPU")
        words = "By the model of time that chose this kernel. All steps run in one launch: this repeats T times."
        if any("clocked_times" in row["facts"] for row in rows):
            words += " Below it, where the kernel ran: by clocks in it, the mean of its blocks and warps."
            words += " Clocks take time of their own."
        yield f'<p class="soft">{words}</p>'
    for row in rows:
        title = f"{row['what']}{subject_text(row, own['graphs'])}"
        yield f"<h3>{escape(title)}</h3>"
        if "layer_times" in row["facts"]:
            words = "Each layer has multiprocessors of its own, and follows the layer below by one step."
            yield f'<p class="soft">{words}</p>'
            yield _chart(charts.wave_timeline(row["facts"]["layer_times"]), f"the first steps of {title}")
        else:
            yield from _step_charts(row["facts"], title)


def _step_charts(facts: Figures, title: str) -> Iterator[str]:
    """A step as predicted and, where there are clocks, as measured, over one axis."""
    predicted = facts["phase_times"]
    if "clocked_times" not in facts:
        yield _chart(charts.step_timeline(predicted), f"one step of {title}")
        return
    measured = facts["clocked_times"]
    longest = max(charts.step_us(predicted), charts.step_us(measured))
    yield _chart(charts.step_timeline(predicted, longest=longest), f"one step of {title}, predicted")
    source = f"measured at {facts['clocked_by']}"
    yield _chart(charts.step_timeline(measured, source, longest), f"one step of {title}, measured")


def work(own: NetworkFacts) -> Iterator[str]:
    """A roofline for each batch size."""
    for row in own["work"]:
        peak = row["ceilings"].get(f"{row['precision']}_tflops")
        if not peak or not row["kernels"]:
            continue
        timed = row.get("measured_us") or row.get("predicted_us")
        measured = row["flops"] / timed * 1e-6 if timed else None
        roof = {"memory_tb_s": row["ceilings"]["memory_tb_s"], "tflops": peak}
        yield f"<h3>B = {row['batch']}</h3>"
        source = "measured" if "measured_us" in row else "predicted"
        yield _chart(charts.roofline(row["kernels"], roof, measured, source), f"roofline, B = {row['batch']}")
        bound = "Kernels lie on the roof by construction: a bound, not measured."
        share = f" All of it, {source}: {escape(percent(row['share']))} of the roof." if "share" in row else ""
        turns = f" {escape(in_turn_text(row))}." if row.get("exchanges") else ""
        yield f'<p class="soft">{bound} Ceilings: {escape(row["ceilings_from"])}.{share}{turns}</p>'


def _code(net: Looked, number: int) -> Iterator[str]:
    at = f"code{number}" if number else "code"
    yield _h2(at, "Generated code")
    if net.options is None:
        show = f"tvm-rnn show {net.net.cell.name} --stage all"
        words = f"{show}, with its sizes and --target, prints what this version writes."
        yield f"<p>{escape(f'A module has machine code alone. {words}')}</p>"
        return
    yield f'<p><label>Search <input class="search" type="search" data-of="{at}-folds"></label> '
    yield f'<span id="{at}-folds-found" role="status"></span></p><div id="{at}-folds">'
    for name, words in net.code():
        yield _folded(f"{name}, {words.count(chr(10)) + 1} lines", words)
    yield "</div>"
