"""Figures of one GPU at an earlier commit beside those that are stored now, for the page of benchmarks.

In: `pages/records/earlier/*.jsonl`, whose first line says what was measured where, and each other line a point's
microseconds per step and those of the best other framework, the mean of a suite, or a figure that no suite measures;
`pages/records/*.jsonl`, whose newest record of a point counts. Out: a table; a figure without a
record says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stored_records

from tvm_rnn.bench.run.tables import Line, Report

NONE = "no record"
Row = dict[str, Any]


def table(records: Path) -> str:
    """The tables of all files, one below the other."""
    return "\n\n".join("\n".join(_lines(path, records)) for path in sorted((records / "earlier").glob("*.jsonl")))


def _lines(path: Path, records: Path) -> Iterator[str]:
    facts, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    reports = {p.stem: one for p, one in stored_records.stored(records) if one.facts["device"] == facts["device"]}
    yield f"{facts['device']}; then: commit {facts['commit']}, {facts['date'][:10]}. Ratios: to the best other.\n"
    yield "| figure | then, us/step | ratio | now, us/step | ratio | times as fast | records |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    for row in rows:
        yield f"| {' | '.join(_mean(row, reports) if 'mean' in row else _cells(row, reports))} |"


def _cells(row: Row, reports: dict[str, Report]) -> list[str]:
    """What a figure was, and what the newest record of its point says."""
    if "point" not in row:
        return [row["figure"], "", row["was"], NONE, "", "", ""]
    was, best = row["us_per_step"], row.get("best_us_per_step")
    name = f"{row['point']} ({row['note']})" if "note" in row else row["point"]
    then = [name, f"{was:.4g}", f"{best / was:.2f}" if best else ""]
    stem, line = next(_known(row["point"], reports), ("", None))
    us = line.us("tvm_rnn") if line else None
    if line is None or us is None:
        return [*then, NONE, "", "", ""]
    ratio = "" if line.best is None else f"{line.best:.2f}"
    return [*then, f"{us:.4g}", ratio, f"{was / us:.2f}", stem]


def _known(point: str, reports: dict[str, Report]) -> Iterator[tuple[str, Line]]:
    """Where a point is with a time of ours, the newest file first."""
    for stem, one in reports.items():
        yield from ((stem, line) for line in one.lines if line.point == point and line.us("tvm_rnn"))


def _mean(row: Row, reports: dict[str, Report]) -> list[str]:
    """A suite's geometric mean of the ratios to torch."""
    one = reports.get(row["suite"])
    means = [mean for kind, peer, mean, *_ in one.means() if (kind, peer) == ("bfloat16", "torch")] if one else []
    now = f"{means[0]:.2f}" if means else NONE
    return [row["figure"], "", f"{row['mean']:.2f}", "", now, "", row["suite"] if means else ""]
