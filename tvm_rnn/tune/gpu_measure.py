"""Measure the candidates of a plan on the GPU at hand, in a process that may crash or hang without ending the run.

In: a folder that `gpu_plan.py` filled, here or on another machine. Out: results.jsonl in it (or elsewhere), a line per
candidate as it is measured: a run that is stopped goes on from there. Needs torch, tvm_ffi and a GPU, and no compiler.

First every candidate is checked against float64 and timed briefly; then the best few of a point and the default run in
alternating rounds, each from poisoned memory 20 times first: only a result of those can become a record.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tvm_rnn.bench.run.gpu_suite import PATIENCE_SECONDS, WorkerEnded, ask, process
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.worker_process import Reply, Request, WorkerProcess

PLAN, RESULTS = "plan.json", "results.jsonl"
FINALISTS, BRIEFLY = 4, 3  # rounds of the first timing
WORTH = 0.985  # of the default's time: what is closer is noise, and the default stays
Progress = Callable[[str], None]
Row = Reply


@dataclass
class Results:
    """What is known of each candidate: {file: row}, of the first round and of the final one."""

    path: Path
    first: dict[str, Row] = field(default_factory=dict)
    final: dict[str, Row] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Results:
        """An unfinished last line, of a run that was killed, is passed over."""
        found = Results(path)
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            with contextlib.suppress(ValueError, KeyError):
                found.note(json.loads(line))
        return found

    def note(self, row: Row) -> None:
        if "file" in row:
            (self.final if row.get("final") else self.first)[row["file"]] = row

    def write(self, rows: Sequence[Row]) -> None:
        with open(self.path, "a") as file:
            for row in rows:
                self.note(row)
                file.write(json.dumps(row) + "\n")
            file.flush()


def read_plan(folder: str | os.PathLike[str]) -> Reply:
    """What is in a folder. Raises ConfigError where it is no plan."""
    path = Path(folder, PLAN)
    try:
        plan: Reply = json.loads(path.read_text())
        if plan["format"] != 1:
            raise ValueError(f"format {plan['format']}")
        return plan
    except (OSError, ValueError, KeyError, TypeError) as reason:
        do = "make one: tvm-rnn tune --plan DIR"
        raise ConfigError(
            message("there is no plan of candidates here", where=str(path), got=str(reason), do=do)
        ) from None


def measure(
    folder: str | os.PathLike[str],
    results: str | os.PathLike[str] | None = None,
    *,
    limit: float | None = None,
    rounds: int = 9,
    patience: float = PATIENCE_SECONDS,
    progress: Progress | None = None,
) -> Results:
    """Measure what a plan holds and results.jsonl does not yet. limit: seconds for all.

    Raises ConfigError where there is no plan, TvmRnnError where there is no GPU.
    """
    plan, tell = read_plan(folder), progress or (lambda text: None)
    found = Results.read(Path(results) if results is not None else Path(folder, RESULTS))
    ends = time.monotonic() + limit if limit is not None else float("inf")
    with process() as worker:
        tell("starting")
        found.write([{"kind": "facts", **ask(worker, {"facts": True}, patience)["facts"]}])
        for number, point in enumerate(plan["points"]):
            tell(f"{number + 1} of {len(plan['points'])}: {point['name']}")
            request = {"point": located(point["point"], folder), "folder": os.path.abspath(folder)}
            for candidate in point["candidates"]:
                file = candidate["file"]
                if time.monotonic() > ends:
                    tell(f"stopped after {limit:g} s, {len(plan['points']) - number} points are left")
                    return found
                if file not in found.first and "reason" not in candidate and Path(folder, file).exists():
                    found.write(_ask(worker, {**request, "files": [file], "rounds": BRIEFLY}, patience))
            best = finalists(point, found)
            if any(file not in found.final for file in best):
                rows = _ask(worker, {**request, "files": best, "rounds": rounds, "final": True}, patience)
                found.write([{**row, "final": True} for row in rows])
    return found


def _ask(worker: WorkerProcess, request: Request, patience: float) -> list[Row]:
    """A row per file. One that ends the process, or silences it, has the reason; the others are asked for again."""
    try:
        return list(ask(worker, request, patience)["rows"])
    except WorkerEnded as end:
        blamed = end.config if end.config in request["files"] else request["files"][0]
        left = [file for file in request["files"] if file != blamed]
        rows = _ask(worker, {**request, "files": left}, patience) if left else []
        return [*rows, {"file": blamed, "reason": str(end)}]


def located(point: Request, folder: str | os.PathLike[str]) -> Reply:
    """A plan's point with the path of its cell's file, which lies beside the plan."""
    own = dict(point)
    return {**own, "cell": os.path.join(os.path.abspath(folder), own["cell"])} if ".py" in own["cell"] else own


def finalists(point: Request, found: Results) -> list[str]:
    """The default's file and those of the candidates that were faster, the best first, FINALISTS in all."""
    files = [c["file"] for c in point["candidates"]]
    timed = {f: found.first[f]["us"] for f in files if "us" in found.first.get(f, {})}
    default, others = files[0], sorted((f for f in timed if f != files[0]), key=lambda f: timed[f])
    fast = [f for f in others if default not in timed or timed[f] < timed[default]]
    return [f for f in (default, *fast) if f in timed][:FINALISTS]


def outcome(point: Request, found: Results) -> tuple[Request, Row, Row] | None:
    """(candidate, its final row, the default's) of the fastest of a point; None where nothing was measured."""
    final = {c["file"]: c for c in point["candidates"] if "us" in found.final.get(c["file"], {})}
    default = point["candidates"][0]["file"]
    if default not in final:
        return None
    best = min(final, key=lambda f: found.final[f]["us"])
    if found.final[best]["us"] > WORTH * found.final[default]["us"]:
        best = default
    return final[best], found.final[best], found.final[default]
