"""Tuning for a GPU that is elsewhere: candidates built here into a folder, which that machine measures.

In: workloads, a target. Out: a folder of modules and plan.json, for `gpu_measure.py`; later, from the results that it
wrote, records. The machine with the GPU needs neither a compiler nor TVM.

Which candidates: for each unit that has something to choose, those that the templates' models predict to be fastest,
few of each family so that a model that errs is found out; each alone, with the defaults for all other units.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tvm_rnn.bench.suites.gpu import Point, network
from tvm_rnn.cuda.model.choose_geometry import LAYER_BY_LAYER, STEP_BY_STEP
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.frontends.spec import find_cell
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.records import Choice
from tvm_rnn.schedule.schedule_template import Unit, space
from tvm_rnn.target import Target, resolve
from tvm_rnn.worker_process import Reply, Request

from .workload import Candidate, Trial, Workload, able, choice_of

PLAN = "plan.json"
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
        """The module's name."""
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
    layers = getattr(unit, "layers", 1)
    every = [(_predicted(unit, choice, target), choice) for choice in _choices(unit, target)]
    for us, choice in shortlist(every, count):
        yield Planned(point, Candidate((choice,)), us)
    if unit.kind == "recurrent":
        yield Planned(point, Candidate((Choice(unit.key, LAYER_BY_LAYER if layers > 1 else STEP_BY_STEP, 1, {}),)))


def _choices(unit: Unit, target: Target) -> Iterator[Choice]:
    machine = replace(target, sms=target.sms // getattr(unit, "layers", 1))
    for own in able(unit, machine):
        for config in space(own, unit, machine):
            yield choice_of(own, unit, config)


def _predicted(unit: Unit, choice: Choice, target: Target) -> float:
    own = next(t for t in able(unit, target) if t.name == choice.template)
    return own.predict(unit, dict(choice.knobs), target) if own.predict is not None else 0.0


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
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs or len(os.sched_getaffinity(0)), mp_context=context) as pool:
        found = list(pool.map(partial(candidates, target=machine, count=count), points))
        rows = [_row(point, own) for point, own in zip(points, found, strict=True)]
        plan = {"format": 1, "target": machine.name, "command": command, "points": rows}
        _write(Path(folder, PLAN), plan)
        wanted = {one.file: one for own in found for one in own if not Path(folder, one.file).exists()}
        reasons = _build_all(pool, list(wanted.values()), machine.name, os.path.abspath(folder), tell)
    for point in rows:
        for row in point["candidates"]:
            row.update({"reason": reasons[row["file"]]} if row["file"] in reasons else {})
    _write(Path(folder, PLAN), plan)
    return plan


def _build_all(pool: Executor, wanted: Sequence[Planned], target: str, folder: str, tell: Progress) -> dict[str, str]:
    """Build each; returns {file: why it could not be}."""
    reasons: dict[str, str] = {}
    work = {pool.submit(_build, one, target, folder): one for one in wanted}
    for done, future in enumerate(as_completed(work), 1):
        file = work[future].file
        try:
            why = future.result()
        except BrokenProcessPool:
            why = "the process that built it ended"
        if why:
            reasons[file] = why
        tell(f"{done} of {len(work)}: {file}{': ' + why if why else ''}")
    return reasons


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


def _row(point: Point, own: Sequence[Planned]) -> Reply:
    facts = point.as_dict()
    if ".py" in point.cell:
        facts["cell"] = os.path.basename(point.cell)  # in the folder, wherever that will be
    return {
        "point": facts,
        "name": point.name,
        "workload": workload_of(point).facts,
        "candidates": [one.as_dict() for one in own],
    }


def _write(path: Path, facts: Request) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(facts, indent=1))
    os.replace(temporary, path)


def _build(one: Planned, target: str, folder: str) -> str:
    """Compile and write one candidate; returns why it could not be."""
    from tvm_rnn.compiler.compile import compile
    from tvm_rnn.errors import TvmRnnError

    options: Reply = {} if one.point.precision == one.point.dtype else {"precision": one.point.precision}
    path = os.path.join(folder, one.file)
    try:
        trial = Trial(one.candidate, lean=True)
        module = compile(network(one.point), target, one.point.batch, records=trial, **options)
        if reason := _unused(one.candidate, module.manifest["templates"]):
            return reason
        module.export(path)
    except TvmRnnError as error:
        return str(error).splitlines()[0]
    except Exception as error:  # a template's or TVM's: this candidate's fault, not the plan's
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"
    return ""


def _unused(candidate: Candidate, rows: Sequence[Request]) -> str:
    """The choice that compiling passed over, if there is one. rows: a manifest's templates."""
    used = {row["template"] for row in rows if str(row.get("record", "")).startswith("record")}
    passed = [c.template for c in candidate.choices if c.knobs and c.template not in used]
    return f"{passed[0]} cannot have these knobs here" if passed else ""
