"""Files of records as the site reads them: whatever a suite of `bench` writes, in one form.

In: the text of a file. Out: a `Report`, in which every record has what pages choose and sort by. A record of a whole
model has no cell, sizes or steps: its call is what a step is elsewhere. What is no point has a table of its own
(`others`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvm_rnn.bench.run.tables import Report, report
from tvm_rnn.bench.suites.gpu import SHORT

Record = dict[str, Any]
WHOLE = "a whole model"
# Of kinds of records that are no points: the fields of their table, each with its heading and its form.
OTHERS = {
    "compile": {
        "network": ("network", ""),
        "inference": ("inference, CPU s", ".2f"),
        "training": ("training, CPU s", ".2f"),
    },
    "instructions": {
        "point": ("point", ""),
        "framework": ("framework", ""),
        "numbers": ("numbers", ""),
        "instructions": ("instructions", ","),
        "error": ("error", ".1e"),
    },
}
# What a record of a whole model lacks; "hidden" 0: it has several sizes.
OF_A_MODEL: Record = {"cell": WHOLE, "hidden": 0, "steps": 1, "batch": 1, "precision": "float32"}


def read(text: str) -> Report:
    """The report of a file's text. Fields that no page knows are left alone; a line that is cut off is no record."""
    return report(whole(own) for own in _records(text) if own["kind"] not in OTHERS)


def _records(text: str) -> Iterator[Record]:
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def whole(record: Record) -> Record:
    """A record with a point, sizes and microseconds per step, where it has a time."""
    if record["kind"] == "facts":
        return {"device": "?", "versions": {}, "ceilings": {}, "date": "", "command": "", "load": 0.0, **record}
    if record["kind"] == "stopped":
        return record
    point = record.get("point") or record.get("model") or record.get("name") or "?"
    made = {**OF_A_MODEL, **record, "kind": "point", "point": str(point)}
    if "us_per_step" not in made and made.get("us") is not None:
        made["us_per_step"] = made["us"] / made["steps"]
    return made


def stored(folder: Path) -> Iterator[tuple[Path, Report]]:
    """Every file of a folder that has a point, or what has a table of its own, the newest first."""
    every = [(path, read(path.read_text())) for path in folder.glob("*.jsonl")]
    found = [(path, one) for path, one in every if one.facts and (one.lines or others(path))]
    yield from sorted(found, key=lambda pair: (pair[1].facts["date"], pair[0].name), reverse=True)


def others(path: Path) -> list[Record]:
    """What is no point in a file: what took longest to compile first, else as it was written."""
    found = [own for own in _records(path.read_text()) if own["kind"] in OTHERS and "reason" not in own]
    return sorted(found, key=lambda own: -float(own.get("training", 0.0)))


def dtype(record: Record) -> str:
    """The short name of a record's precision."""
    return SHORT.get(record["precision"], str(record["precision"]))
