"""Tuning for a GPU that is elsewhere: candidates built here into a folder, which that machine measures.

In: workloads, a target. Out: a folder of modules and plan.json, for `gpu_measure.py`; later, from the results that it
wrote, records: `collect`. The machine with the GPU needs neither a compiler nor TVM. Processes of this file
(`python -m tvm_rnn.tune.gpu_plan`) propose and build candidates, several at a time.

Which candidates: for each unit that has something to choose, those that the templates' models predict to be fastest,
few of each family so that a model that errs is found out; each alone, with the defaults for all other units.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import tvm

from tvm_rnn import this_machine
from tvm_rnn.bench.suites.gpu import Point, network
from tvm_rnn.cuda.model.choose_geometry import LAYER_BY_LAYER, STEP_BY_STEP
from tvm_rnn.errors import ConfigError, TvmRnnError, message
from tvm_rnn.frontends.spec import find_cell
from tvm_rnn.npy_files import text_writer, write_whole
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.records import Choice, Record
from tvm_rnn.schedule.record_files import merge
from tvm_rnn.schedule.schedule_template import DEFAULT, Unit, space
from tvm_rnn.target import Target, resolve
from tvm_rnn.version import __version__
from tvm_rnn.worker_process import Lost, Pool, Reply, Request, WorkerProcess, channel

from .gpu_measure import PLAN, RESULTS, Results, located, outcome, read_plan
from .workload import Candidate, Trial, Workload, able, choice_of

COMMAND = ("-m", "tvm_rnn.tune.gpu_plan")
WORTH_STEPS_US = 4.0  # a step that takes less in a persistent kernel takes more in several launches
FAMILY = ("ctas", "rows", "warps_u", "polled", "copied", "ring", "share_cluster", "share")  # knobs that name a family
EACH = 2  # of a family, before the next one has its turn
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """A candidate of a workload. predicted_us: per step, 0 if unknown."""

    point: Point
    candidate: Candidate
    predicted_us: float = 0.0

    @property
    def file(self) -> str:
        if not self.candidate.choices:
            return f"{self.point.name}-default.so"
        return f"{self.point.name}-{hashlib.sha256(self.candidate.key.encode()).hexdigest()[:12]}.so"

    def as_dict(self) -> Reply:
        choices = [choice.as_dict() for choice in self.candidate.choices]
        return {"file": self.file, "choices": choices, "predicted_us": round(self.predicted_us, 3)}


def workload_of(point: Point) -> Workload:
    """What a point of a suite is to the records."""
    return Workload(network(point), point.steps, point.batch, point.precision)


def asked_units(work: Workload, target: Target) -> list[Unit]:
    """The units that a compilation for a GPU asks templates for."""
    from tvm_rnn.cuda.plan.network import plan

    trial = Trial()
    machine = replace(target, records=trial)
    plan(passed(work.net, Options(machine, (work.batch,), precision=work.precision)), machine)
    return [unit for unit in trial.asked.values() if unit.key["sizes"].get("batch")]


def candidates(point: Point, target: Target, count: int) -> list[Planned]:
    """The default, then about `count` others over all units."""
    found = [Planned(point, Candidate())]
    units = asked_units(workload_of(point), target)
    loops = [unit for unit in units if unit.kind in ("recurrent", "scan")]
    others = [unit for unit in units if unit not in loops]
    for unit in loops:
        found += _of_loop(point, unit, target, max(4, count // len(loops)))
    best = min((one.predicted_us for one in found if one.predicted_us), default=WORTH_STEPS_US)
    steps = tuple(Choice(unit.key, STEP_BY_STEP, 1, {}) for unit in loops if unit.kind == "recurrent")
    for unit in others:
        if unit.region == "step" and best < WORTH_STEPS_US:
            continue  # it would never run
        every = list(_choices(unit, target))[1 : 1 + max(4, count // 4)]
        together = steps if unit.region == "step" else ()
        found += [Planned(point, Candidate((*together, choice))) for choice in every]
    return found


def _of_loop(point: Point, unit: Unit, target: Target, count: int) -> Iterator[Planned]:
    layers, every = getattr(unit, "layers", 1), list[tuple[float, Choice]]()
    for choice in _choices(unit, target):
        predict = next(t.predict for t in able(unit, target) if t.name == choice.template)
        every.append((predict(unit, dict(choice.knobs), target) if predict is not None else 0.0, choice))
    for us, choice in shortlist(every, count):
        yield Planned(point, Candidate((choice,)), us)
    if unit.kind == "recurrent":
        yield Planned(point, Candidate((Choice(unit.key, LAYER_BY_LAYER if layers > 1 else STEP_BY_STEP, 1, {}),)))


def _choices(unit: Unit, target: Target) -> Iterator[Choice]:
    machine = replace(target, sms=target.sms // getattr(unit, "layers", 1))
    for own in able(unit, machine):
        for config in space(own, unit, machine):
            yield choice_of(own, unit, config)


def shortlist(every: Sequence[tuple[float, Choice]], count: int) -> list[tuple[float, Choice]]:
    """The best by prediction, at most EACH of a family in turn."""
    families: dict[tuple[str | int | None, ...], list[tuple[float, Choice]]] = {}
    for us, choice in sorted(every, key=lambda found: found[0]):
        key = (choice.template, *(choice.knobs.get(name) for name in FAMILY))
        families.setdefault(key, []).append((us, choice))
    found: list[tuple[float, Choice]] = []
    turn = 0
    while len(found) < count and any(len(f) > turn * EACH for f in families.values()):
        round_ = [one for f in families.values() for one in f[turn * EACH : (turn + 1) * EACH]]
        found += sorted(round_, key=lambda f: f[0])[: count - len(found)]
        turn += 1
    return found


# --- building --------------------------------------------------------------------------------------------------------


def build_candidates(
    points: Sequence[Point],
    folder: str | os.PathLike[str],
    *,
    target: str | Target = "nvidia-h200",
    count: int = 24,
    jobs: int | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Reply:
    """Build the candidates of points into a folder, and its plan.json. Returns what that says.

    count: candidates per point, about. jobs: processes that build (default: one per CPU). A module that is there
    already is kept. Raises ConfigError where the folder cannot be made or the target is no GPU.
    """
    machine, tell = resolve(target), progress or (lambda text: None)
    if machine.kind != "cuda":
        raise ConfigError(message("plans are for GPUs", got=machine.name, do="tune a CPU on the spot: tvm-rnn tune"))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as reason:
        raise ConfigError(message("--plan: this folder cannot be made", got=str(reason))) from None
    points = [_carried(point, Path(folder)) for point in points]
    plan: Reply = {"format": 1, "target": machine.name, "command": command}
    with tempfile.TemporaryDirectory(prefix="tvm_rnn-plan-") as scratch:
        pool = Pool(lambda: WorkerProcess(COMMAND, scratch), jobs or this_machine.cpus())
        try:
            asked = [{"point": point.as_dict(), "target": machine.name} for point in points]
            found = dict(pool.map([{**one, "count": count} for one in asked], math.inf))
            rows = plan["points"] = [_row(point, found[number]) for number, point in enumerate(points)]
            write_whole({os.path.join(folder, PLAN): text_writer(json.dumps(plan, indent=1))})
            wanted = {
                own["file"]: {**one, **own, "folder": os.path.abspath(folder)}
                for one, row in zip(asked, rows, strict=True)
                for own in row["candidates"]
                if not Path(folder, own["file"]).exists()
            }
            reasons, files = dict[str, str](), list(wanted)
            for done, (number, answer) in enumerate(pool.map(list(wanted.values()), math.inf), 1):
                file = files[number]
                why = f"the process that built it ended: {answer}" if isinstance(answer, Lost) else answer["reason"]
                reasons |= {file: why} if why else {}
                tell(f"{done} of {len(files)}: {file}{': ' + why if why else ''}")
        finally:
            pool.end()
    for row in rows:
        for own in row["candidates"]:
            own.update({"reason": reasons[own["file"]]} if own["file"] in reasons else {})
    write_whole({os.path.join(folder, PLAN): text_writer(json.dumps(plan, indent=1))})
    return plan


def _carried(point: Point, folder: Path) -> Point:
    """The point, with its cell's file beside the plan, so that the other machine has it too."""
    path, colon, name = point.cell.rpartition(":") if ".py:" in point.cell else (point.cell, "", "")
    if not path.endswith(".py"):
        return point
    find_cell(point.cell)  # raises ConfigError where there is no such file or cell
    copy = folder.resolve() / Path(path).name
    if copy != Path(path).resolve():
        shutil.copyfile(path, copy)
    return replace(point, cell=f"{copy}{colon}{name}")


def _row(point: Point, found: Reply | Lost) -> Reply:
    if isinstance(found, Lost):
        raise TvmRnnError(message("the process that proposes candidates ended", where=point.name, got=str(found)))
    if "refused" in found:
        raise ConfigError(found["refused"])
    facts = point.as_dict()
    if ".py" in point.cell:
        facts["cell"] = os.path.basename(point.cell)  # in the folder, wherever that will be
    workload = workload_of(point).facts
    return {"point": facts, "name": point.name, "workload": workload, "candidates": found["candidates"]}


def answer(request: Request) -> Reply:
    """In a process that proposes and builds: a point's candidates, or why one of them could not be built."""
    point, target = Point.from_dict(dict(request["point"])), request["target"]
    if "count" in request:
        try:
            found = candidates(point, resolve(target), request["count"])
        except TvmRnnError as reason:
            return {"refused": str(reason)}
        return {"candidates": [one.as_dict() for one in found]}
    candidate = Candidate(tuple(map(Choice.from_dict, request["choices"])))
    return {"reason": _build(Planned(point, candidate), target, request["folder"])}


def _build(one: Planned, target: str, folder: str) -> str:
    """Compile and write one candidate; returns why it could not be."""
    from tvm_rnn.compiler.compile import compile

    options: Reply = {} if one.point.precision == one.point.dtype else {"precision": one.point.precision}
    try:
        trial = Trial(one.candidate, lean=True)
        module = compile(network(one.point), target, one.point.batch, records=trial, **options)
        rows = module.manifest["templates"]
        used = {row["template"] for row in rows if str(row.get("record", "")).startswith("record")}
        if passed_over := [c.template for c in one.candidate.choices if c.knobs and c.template not in used]:
            return f"{passed_over[0]} cannot have these knobs here"
        module.export(os.path.join(folder, one.file))
    except TvmRnnError as error:
        return str(error).splitlines()[0]
    except Exception as error:  # a template's or TVM's: this candidate's fault, not the plan's
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"
    return ""


# --- records ---------------------------------------------------------------------------------------------------------


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
    loops = [u.key for u in asked_units(work, target) if u.kind in ("recurrent", "scan")]
    # For loops that nothing was better for: no nearest record is to take the default's place.
    defaults = [Choice(key, DEFAULT, 1, {}) for key in loops if all(c.unit != key for c in choices)]
    return Record(
        target.records_name,
        work.facts,
        (*choices, *defaults),
        row["us"],
        default["us"],
        row["spread"],
        sum("us" in found.first.get(c["file"], {}) for c in point["candidates"]),
        {"tvm": tvm.__version__, "tvm_rnn": __version__},
        datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command,
    )


if __name__ == "__main__":
    with channel() as reply:
        for line in sys.stdin:
            reply(answer(json.loads(line)))
