"""How times changed from commit to commit: every version of the files of records that git has.

In: the history of `pages/records/` in git. Out: a row for each time of tvm_rnn in each version, a chart of them, and a
table with the mean change from one version of a file to the next. Without git, or in a clone of one commit alone, there
is nothing to draw, and the page says so.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import stored_records

from tvm_rnn.bench.run.tables import Report
from tvm_rnn.vega_lite import Spec

Row = dict[str, Any]
OURS = "tvm_rnn"


class Version(NamedTuple):
    """A file of records as one commit has it."""

    suite: str
    commit: str
    records: Report


def _git(folder: Path, *words: str) -> str:
    """What git prints; "" where it fails, or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def versions(folder: Path) -> Iterator[Version]:
    """Every run that was ever stored, by file, the oldest first. A commit that changed no figure is none of its own.

    folder: of the records, in a checkout."""
    for path in sorted(folder.glob("*.jsonl")):
        seen = set[str]()
        for commit in reversed(_git(folder, "log", "--format=%h", "--", path.name).split()):
            text = _git(folder, "show", f"{commit}:./{path.name}")
            one = stored_records.read(text)
            if one.lines and one.facts.get("date") and one.facts["date"] not in seen:
                seen.add(one.facts["date"])
                yield Version(path.stem, commit, one)


def _ours(one: Report) -> dict[str, float]:
    """Microseconds per step of tvm_rnn by point."""
    return {line.point: us for line in one.lines if (us := line.us(OURS))}


def rows(found: Sequence[Version]) -> list[Row]:
    """A row per point and version, of points that more than one version of a file has."""
    times = [(version, _ours(version.records)) for version in found]
    made = []
    for version, own in times:
        one = version.records
        for line in one.lines:
            again = [other for other, known in times if other.suite == version.suite and line.point in known]
            if line.point in own and len(again) > 1:
                known = {key: line.ours[key] for key in ("cell", "hidden", "batch")}
                facts = {key: one.facts[key] for key in ("device", "date", "load")}
                made.append(
                    {**known, **facts, "point": line.point, "suite": version.suite, "commit": version.commit}
                    | {"dtype": stored_records.dtype(line.ours), "us": float(f"{own[line.point]:.4g}")}
                )
    return made


def chart(data: Sequence[Row], params: Sequence[Spec], kept: Sequence[Spec]) -> Spec:
    """A line for each point, over the dates of runs. params, kept: the page's filters."""
    tips = [{"field": name} for name in ("point", "us", "commit", "date", "load", "device", "suite")]
    x = {"field": "date", "type": "temporal", "title": "run on"}
    y = {"field": "us", "type": "quantitative", "scale": {"type": "log"}, "title": "microseconds per step"}
    return {
        "width": "container",
        "autosize": {"type": "fit-x", "contains": "padding"},
        "height": 360,
        "params": list(params),
        "data": {"values": list(data)},
        "transform": list(kept),
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": x,
            "y": {**y, "axis": {"format": "~g"}},
            "detail": [{"field": "point"}, {"field": "device"}],
            "color": {"field": "cell", "type": "nominal", "title": None, "legend": {"orient": "top", "columns": 4}},
            "tooltip": tips,
        },
    }


def table(found: Sequence[Version]) -> Iterator[str]:
    """Each version of each file, and its times over those of the version before, as the geometric mean of the points
    that both have."""
    if not found:
        yield "This checkout has no history in git: nothing to show."
        return
    yield "| records | commit | run on | load | points | time / time of the run before |\n|---|---|---|---:|---:|---:|"
    before: Version | None = None
    for version in found:
        facts, own, change = version.records.facts, _ours(version.records), "-"
        if before is not None and before.suite == version.suite:
            earlier = _ours(before.records)
            logs = [math.log(us / earlier[point]) for point, us in own.items() if point in earlier]
            change = f"{math.exp(sum(logs) / len(logs)):.2f} over {len(logs)}" if logs else "-"
        day = facts["date"][:16].replace("T", " ")
        yield f"| {version.suite} | {version.commit} | {day} | {facts['load']:.1f} | {len(own)} | {change} |"
        before = version
