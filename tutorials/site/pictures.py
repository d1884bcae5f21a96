"""The pictures on pages of explanation: what the compiler draws of small networks.

In: a page with marks such as `<!-- graph hoist_gemms -->`. Out: the page with pictures at its marks. A picture shows
what this version of the compiler does, and is drawn by what draws reports.
"""

from __future__ import annotations

import re

import tvm_rnn as rnn
from tvm_rnn.explain.html import charts
from tvm_rnn.explain.html.drawing import draw
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve
from tvm_rnn.vega_lite import svg

MARK = re.compile(r"<!-- (graph|step|turns|steps) ([\w-]+) -->")
LAYERS, TILES = 4, 8
STEPS, CHUNKS = 16, 4


def illustrated(text: str) -> str:
    """A page with its pictures. Raises KeyError where a mark names none."""
    drawing = {"graph": graph, "step": step, "turns": turns, "steps": steps}
    return MARK.sub(lambda found: f'<div class="wide" tabindex="0">{drawing[found[1]](found[2])}</div>', text)


def graph(stage: str) -> str:
    """An LSTM's graph after a stage."""
    stages = dict(pipeline.run(rnn.RNN(rnn.cells.lstm, 8, 16), resolve("x86-64-v4")))
    return draw(stages[stage].graphs[0], f"an LSTM after {stage}")


def step(cell: str) -> str:
    """One step of a layer of 512 units for 16 rows, in bfloat16 on an H200, over time."""
    net = rnn.RNN(rnn.cells.get(cell), 512, 512, dtype="bfloat16")
    facts = rnn.explain(net, "nvidia-h200", batch=16, records="none").facts["networks"][0]
    (found,) = (row for row in facts["regimes"] if row["done"] and "phase_times" in row.get("facts", {}))
    return svg(charts.step_timeline(found["facts"]["phase_times"]), f"one step of {cell} over time")


def turns(order: str) -> str:
    """Four layers over eight tiles of time."""
    words = "colours: tiles of time, from the first to the last"
    return svg(charts.wavefront(charts.turns(LAYERS, TILES, order), words), f"layers over time, {order}")


def steps(order: str) -> str:
    """Sixteen steps of a row: which run in which turn."""
    if order == "sequential":
        rows = [{"turn": n, "layer": 0, "tile": n // (STEPS // CHUNKS)} for n in range(STEPS)]
    elif order == "chunks":
        every = range(CHUNKS)
        rows = [{"turn": 0, "layer": n, "tile": n} for n in every]
        rows += [{"turn": 1 + n, "layer": n, "tile": n} for n in every]
        rows += [{"turn": 1 + CHUNKS, "layer": n, "tile": n} for n in every]
    else:
        raise KeyError(order)
    spec = charts.wavefront([charts.Turn(**row) for row in rows], "colours: chunks of four steps")
    spec["encoding"]["y"]["title"] = "chunk" if order == "chunks" else "row"
    return svg(spec, f"sixteen steps, {order}")
