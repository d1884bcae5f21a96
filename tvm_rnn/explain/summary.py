"""An explanation in four sentences: what was compiled, how fast it is, how far from the roof, the one thing to change.

In: the facts of one network. Out: a `Summary`, which the report begins with. It only picks among what was measured,
predicted and decided; nothing is estimated here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from .facts import NetworkFacts, WorkFacts
from .tables import number_text, percent

NEAR = 0.75  # of the roof: passes, schedules and knobs have little left to find
WAITING = 0.3  # of the time
FLOORS = {"memory": "moving bytes", "arithmetic": "arithmetic"}


# Fields of a summary, and what they answer.
QUESTIONS = {
    "what": "What it is",
    "speed": "How fast",
    "distance": "How far from the roof",
    "change": "What to change first",
}


class Summary(NamedTuple):
    """Each a sentence or two. share: of the roof, None where no time is known."""

    what: str
    speed: str
    distance: str
    change: str
    share: float | None


def summary(own: NetworkFacts) -> Summary:
    """The summary of one network, by its largest batch size that has a time."""
    timed = [row for row in own["work"] if _us(row) is not None]
    row = max(timed or own["work"], key=lambda row: row["batch"])
    share = None if _busy(row) else row.get("share")
    return Summary(_what(own), _speed(timed), _distance(row), next(_changes(own, row)), share)


def _busy(row: WorkFacts) -> bool:
    """Whether the roof was measured while the machine had other work: it is too low, and no share of it is one."""
    return "busy" in row["ceilings_from"]


def _us(row: WorkFacts) -> float | None:
    return row["measured_us"] if "measured_us" in row else row.get("predicted_us")


def _source(row: WorkFacts) -> str:
    return "measured" if "measured_us" in row else "predicted"


def _what(own: NetworkFacts) -> str:
    layers = f"{own['layers']} layers" if own["layers"] > 1 else "One layer"
    both = ", both directions" if own["directions"] == 2 else ""
    stored = "" if own["weights"] in (own["precision"], own["dtype"]) else f", weights in {own['weights']}"
    where = ", ".join(own["target"]["archs"]) or own["target"]["mcpu"]
    kind = f"{own['memory']['parameters']:,} parameters, {own['precision']}{stored}"
    return f"{layers} of {own['cell']}{both}: {kind}, for {where}.{_origin(own)}"


def of_file(own: NetworkFacts) -> str:
    """The file of a whole model, in words; "" where it is from none."""
    file = own.get("origin", {}).get("file")
    return f" of {os.path.basename(str(file))}" if file else ""


def _origin(own: NetworkFacts) -> str:
    """The model that it is part of, and what of that the explanation leaves out."""
    origin, around = own.get("origin", {}), own.get("around", 0)
    words = f" It was {origin['layer']}{of_file(own)}." if origin else ""
    more = f"{around} operation{'s' * (around > 1)} around it {'run' if around > 1 else 'runs'}"
    return words + (f" {more} too, not counted here." if around else "")


def _speed(timed: list[WorkFacts]) -> str:
    if not timed:
        return "No time is known yet."
    each = [f"{number_text((_us(row) or 0.0) / row['steps'])} us per step at B = {row['batch']}" for row in timed]
    rows = max(timed, key=lambda row: row["batch"])
    rate = 1e6 * rows["batch"] * rows["steps"] / (_us(rows) or 1.0)
    return f"{', '.join(each)}, {_source(rows)}; {number_text(rate)} steps of a row a second."


def _distance(row: WorkFacts) -> str:
    floors = row.get("floor_us", {})
    if not floors:
        return "What this device does at best is not known."
    if _busy(row):
        return "Not known: this machine was busy as its roof was measured."
    worst = max(floors, key=lambda name: floors[name])
    least = f"{number_text(floors[worst] / row['steps'])} us per step, by {FLOORS.get(worst, worst)}"
    if "share" not in row:
        return f"At best it could take {least}."
    return f"{percent(row['share'])} of the roof at B = {row['batch']}: at best it could take {least}."


def _changes(own: NetworkFacts, row: WorkFacts) -> Iterator[str]:
    """What to change, the first thing first."""
    us, floors, share = _us(row), row.get("floor_us", {}), row.get("share", 0.0)
    on_gpu = bool(own["target"]["archs"])
    if us is None:
        do = "tvm-rnn bench times it where the GPU is" if on_gpu else "--measure times it on this CPU"
        yield f"First measure it: {do}."
        return
    if _busy(row):
        yield "First measure it again on an idle machine."
    if share >= NEAR:
        yield "Nothing in the compiler: little is left to gain but fewer operations, fewer bits or a larger machine."
    if on_gpu:
        refused = [d for d in own["regimes"] if not d["done"] and "persistent" in d["what"] and d.get("why")]
        alone = any(d["done"] and d["what"] == "step by step" for d in own["regimes"])
        if alone and refused:
            kernel, why = refused[-1]["what"], refused[-1]["why"]
            yield f"Steps are launches of their own. {kernel} would be one launch, but: {why}."
        if row.get("in_turn_us", 0.0) > WAITING * us:
            waits = percent(row["in_turn_us"] / us)
            yield f"More rows or layers at once: for {waits} of the time blocks wait for each other's values."
    elif floors and floors.get("memory", 0.0) >= max(floors.values()) and own["weights"] == own["dtype"]:
        yield 'Fewer bytes: weights="int8_dynamic" or "int8", as each step takes as long as reading its weights.'
    if all(row.get("record") == "default" for row in own["templates"]):
        yield "Try tuning: every schedule has its default knobs (tvm-rnn tune)."
    yield "A larger batch: what each step costs once is shared by more rows."
