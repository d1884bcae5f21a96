"""Results of a plan become records.

In: a plan's folder with the results that `gpu_measure.py` wrote. Out: a record per point, merged into a records folder;
and what was learnt about the model that chooses: how often its choice of a regime is the measured best.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import tvm

from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.records import Choice, Record
from tvm_rnn.schedule.record_files import merge
from tvm_rnn.schedule.schedule_template import DEFAULT, Unit
from tvm_rnn.target import Target, resolve
from tvm_rnn.version import __version__
from tvm_rnn.worker_process import Request

from .gpu_measure import RESULTS, Results, located, outcome, read_plan
from .gpu_plan import asked_units, workload_of


@dataclass(frozen=True)
class Collected:
    """records: the fastest of each point. failed: {file: reason}. unmeasured: names of points without a final run."""

    records: tuple[Record, ...]
    failed: Mapping[str, str]
    unmeasured: tuple[str, ...]


def collect(
    folder: str | os.PathLike[str],
    records: str | os.PathLike[str] | None = None,
    results: str | os.PathLike[str] | None = None,
) -> Collected:
    """Make records of a plan's results. records: the folder to merge them into; None: none is written.

    Raises ConfigError where there is no plan, or records cannot be written.
    """
    plan = read_plan(folder)
    found = Results.read(Path(results) if results is not None else Path(folder, RESULTS))
    target = resolve(plan["target"])
    made, unmeasured = [], []
    for point in plan["points"]:
        here = {**point, "point": located(point["point"], folder)}
        record = _record(here, found, target, str(plan.get("command", "")))
        if record is None:
            unmeasured.append(str(point["name"]))
        else:
            made.append(record)
    if records is not None:
        merge(records, made)
    rows = [*found.first.values(), *found.final.values()]
    return Collected(tuple(made), {r["file"]: r["reason"] for r in rows if "reason" in r}, tuple(unmeasured))


def _record(point: Request, found: Results, target: Target, command: str) -> Record | None:
    best = outcome(point, found)
    if best is None:
        return None
    candidate, row, default = best
    work = workload_of(Point.from_dict(dict(point["point"])))
    choices = tuple(map(Choice.from_dict, candidate["choices"]))
    loops = [u for u in asked_units(work, target) if u.kind in ("recurrent", "scan")]
    return Record(
        target.records_name,
        work.facts,
        (*choices, *_defaults(loops, choices)),
        row["us"],
        default["us"],
        row["spread"],
        sum("us" in found.first.get(c["file"], {}) for c in point["candidates"]),
        {"tvm": tvm.__version__, "tvm_rnn": __version__},
        datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command,
    )


def _defaults(loops: list[Unit], choices: tuple[Choice, ...]) -> list[Choice]:
    """For loops that nothing was better for: no nearest record is to take the default's place."""
    return [Choice(u.key, DEFAULT, 1, {}) for u in loops if all(c.unit != u.key for c in choices)]
