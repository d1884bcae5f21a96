"""Two explanations side by side: what differs between two networks, two machines or two ways to compile.

In: two `Explanation`s. Out: a `Beside`: sections of rows with two values each, as text, as JSON has it, or as one page.
Nothing is computed anew: values are what each explanation says of itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from .explanation import Explanation
from .facts import BesideFacts, NetworkFacts, PairFacts, SectionFacts, WorkFacts
from .summary import QUESTIONS, summary
from .tables import percent, size_text, time_text
from .text import beside_text, cpu_text, subject_text

NOTHING = "-"


@dataclass(frozen=True)
class Beside:
    """Two explanations, and what each is called. `str()` is a page of text; `facts` is ready for json.dumps:

    names: of both
    networks: one entry for each network of a model: sections, each with a title and rows, each with a name, both
        values as text and, of figures, `ratio`: the second over the first
    """

    first: Explanation
    second: Explanation
    names: tuple[str, str]

    @cached_property
    def facts(self) -> BesideFacts:
        """What `tvm-rnn explain --beside --json` prints."""
        pairs = [*zip_longest(self.first.facts["networks"], self.second.facts["networks"])]
        numbers = [f"network {number}: " if len(pairs) > 1 else "" for number in range(len(pairs))]
        networks = [[*_sections(number, *pair)] for number, pair in zip(numbers, pairs, strict=True)]
        return {"names": list(self.names), "networks": networks}

    def __str__(self) -> str:
        return beside_text(self.facts)

    def write_html(self, path: str | os.PathLike[str], *, command: str = "") -> None:
        """One self-contained page: the rows of `facts`, those that differ first to see, and both rooflines.

        path: of the file. command: what the page says that it was made by. Raises ConfigError where the extra "report"
        is not installed, InputError where the file cannot be written.
        """
        from tvm_rnn.explain.html.beside_page import page
        from tvm_rnn.npy_files import write_whole

        whole = page(self.facts, (self.first.facts, self.second.facts), command).encode(errors="replace")
        write_whole({path: lambda file: file.write(whole)})


def _pair(name: str, first: str, second: str) -> PairFacts:
    return {"name": name, "values": [first or NOTHING, second or NOTHING]}


def _figures(name: str, values: Sequence[float | None], words: Sequence[str]) -> PairFacts:
    """Of two numbers, with the second over the first where both are known."""
    found = _pair(name, *words)
    first, second = values
    if first and second is not None:
        found["ratio"] = second / first
    return found


def _sections(number: str, first: NetworkFacts | None, second: NetworkFacts | None) -> Iterator[SectionFacts]:
    """number: before each title. first, second: None where one of two models has fewer networks."""
    yield {"title": f"{number}in short", "rows": [*_short(first, second)]}
    if first is not None and second is not None:
        known = [row for row in _work(first, second) if row["values"] != [NOTHING, NOTHING]]
        yield {"title": f"{number}work of T = {first['work'][0]['steps']} steps", "rows": known}
        yield {"title": f"{number}memory", "rows": [*_memory(first, second)]}
        yield {"title": f"{number}decisions that differ", "rows": [*_decided(first, second)]}
        yield {"title": f"{number}schedules that differ", "rows": [*_schedules(first, second)]}


def _short(first: NetworkFacts | None, second: NetworkFacts | None) -> Iterator[PairFacts]:
    one, other = (None if own is None else summary(own) for own in (first, second))
    for field, words in QUESTIONS.items():
        yield _pair(words, *("" if own is None else str(getattr(own, field)) for own in (one, other)))


def _time(row: WorkFacts) -> float | None:
    return row.get("measured_us", row.get("predicted_us"))


def _time_text(row: WorkFacts) -> str:
    us = _time(row)
    return "" if us is None else f"{time_text(us)} {'measured' if 'measured_us' in row else 'predicted'}"


def _floor(row: WorkFacts) -> float | None:
    return max(row.get("floor_us", {}).values(), default=None)


def _work(first: NetworkFacts, second: NetworkFacts) -> Iterator[PairFacts]:
    """Rows of the batch sizes that both have."""
    others = {row["batch"]: row for row in second["work"]}
    for one in (row for row in first["work"] if row["batch"] in others):
        rows, at = (one, others[one["batch"]]), f"B = {one['batch']}: "
        yield _figures(f"{at}time", [*map(_time, rows)], [*map(_time_text, rows)])
        floors = [*map(_floor, rows)]
        yield _figures(f"{at}floor", floors, ["" if us is None else time_text(us) for us in floors])
        yield _pair(f"{at}share of the roof", *(percent(row["share"]) if "share" in row else "" for row in rows))
        yield _figures(f"{at}MFLOP", [row["flops"] for row in rows], [f"{row['flops'] / 1e6:.4g}" for row in rows])
        for sizes, words in (
            ([row["bytes"] for row in rows], "bytes moved"),
            ([row["step_bytes"] for row in rows], "weights read in each step"),
        ):
            yield _figures(f"{at}{words}", sizes, [size_text(int(size)) for size in sizes])


def _memory(first: NetworkFacts, second: NetworkFacts) -> Iterator[PairFacts]:
    own = (first["memory"], second["memory"])
    counts = [memory["parameters"] for memory in own]
    yield _figures("parameters", counts, [f"{count:,}" for count in counts])
    for sizes, words in (
        ([memory["weight_bytes"] for memory in own], "weights"),
        ([memory["packed_bytes"] for memory in own], "packed for products"),
        ([row["training"]["bytes"] if "training" in row else 0 for row in (first, second)], "tape of training"),
    ):
        if any(sizes):
            yield _figures(words, sizes, [size_text(size) if size else "" for size in sizes])


def _decisions(own: NetworkFacts) -> Mapping[str, str]:
    """Every decision that was taken, with its reason."""
    rows = [("regime", row) for row in own["regimes"] if row["done"]]
    rows += [(name, row) for name, told in own["passes"].items() for row in told["did"]]
    found = {f"{stage}: {row['what']}{subject_text(row, own['graphs'])}": row.get("why", "") for stage, row in rows}
    return found if own["target"]["archs"] else {**found, "who runs the steps": cpu_text(own["work"])}


def _decided(first: NetworkFacts, second: NetworkFacts) -> Iterator[PairFacts]:
    one, other = map(_decisions, (first, second))
    for words in dict.fromkeys([*one, *other]):
        if one.get(words) != other.get(words):
            yield _pair(words, *(own[words] or "done" if words in own else "" for own in (one, other)))


def _units(own: NetworkFacts) -> Mapping[str, str]:
    """The template, knobs and record of every unit."""
    return {
        str(row["unit"]): f"{row['template']} ({row.get('record', '')}) "
        + ", ".join(f"{knob}={value}" for knob, value in row.get("knobs", {}).items())
        for row in own["templates"]
    }


def _schedules(first: NetworkFacts, second: NetworkFacts) -> Iterator[PairFacts]:
    one, other = map(_units, (first, second))
    for unit in dict.fromkeys([*one, *other]):
        if one.get(unit) != other.get(unit):
            yield _pair(unit, one.get(unit, ""), other.get(unit, ""))
