"""tune_plan: which candidates a point gets, that they differ from the default, and what is built of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from persistent_layers import GPU, step

from tvm_rnn import BuildError, ConfigError
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.cuda.codegen import nvcc
from tvm_rnn.cuda.model.choose_geometry import LAYER_BY_LAYER, STEP_BY_STEP, choose_geometry
from tvm_rnn.records import Choice
from tvm_rnn.schedule.record_files import read
from tvm_rnn.tune import gpu_plan
from tvm_rnn.tune.gpu_plan import asked_units, build_candidates, candidates, collect, shortlist, workload_of
from tvm_rnn.tune.workload import Candidate, Trial

SMALL = Point("lstm", 64, 64, 8, 16)


def templates_of(point: Point, count: int = 12) -> list[list[str]]:
    return [[c.template for c in one.candidate.choices] for one in candidates(point, GPU, count)]


def test_the_units_are_those_that_compiling_asks_for() -> None:
    found = asked_units(workload_of(SMALL), GPU)
    assert [(u.kind, u.region) for u in found] == [("gemm", "before"), ("gemm", "step"), ("recurrent", "step")]
    assert all(u.key["sizes"]["batch"] == [16] for u in found)


@pytest.mark.broad
def test_the_default_comes_first_then_geometries_then_other_products() -> None:
    found = templates_of(SMALL)
    assert found[0] == [] and ["persistent_cluster_cuda"] in found
    assert [STEP_BY_STEP] in found and ["gemm_cuda"] in found
    assert not any(STEP_BY_STEP in f and len(f) > 1 for f in found)  # it would not be worth while


@pytest.mark.broad
def test_large_layers_are_tried_step_by_step_with_other_knobs() -> None:
    assert [STEP_BY_STEP, "gemm_cuda"] in templates_of(Point("lstm", 2560, 2560, 8, 64))


@pytest.mark.broad
def test_layers_are_tried_in_waves_and_one_by_one() -> None:
    found = candidates(replace(SMALL, layers=3), GPU, 12)
    shapes = [c.unit["shape"] for one in found for c in one.candidate.choices if c.unit["shape"][0] == "recurrent"]
    assert {shape[2] for shape in shapes} == {1, 3}
    assert any(c.template == LAYER_BY_LAYER for one in found for c in one.candidate.choices)


def test_scans_have_candidates() -> None:
    assert ["scan_cuda"] in templates_of(Point("sru", 64, 64, 8, 16))


def test_no_family_takes_all_places() -> None:
    def choice(rows: int, words: int) -> Choice:
        return Choice({}, "a", 1, {"rows": rows, "register_words": words})

    every = [(1.0 + n / 100, choice(8, n)) for n in range(9)] + [(2.0, choice(16, 0)), (3.0, choice(24, 0))]
    found = [c.knobs["rows"] for _, c in shortlist(every, 5)]
    assert found == [8, 8, 16, 24, 8]
    assert len(shortlist(every, 99)) == len(every)


@pytest.mark.slow
def test_a_choice_that_does_not_fit_is_no_candidate(tmp_path: Path) -> None:
    unit = asked_units(workload_of(SMALL), GPU)[-1]
    one = gpu_plan.Planned(SMALL, Candidate((Choice(unit.key, "persistent_cluster_cuda", 1, {"ctas": 3}),)))
    try:
        nvcc.find()
    except BuildError as reason:
        pytest.skip(str(reason).splitlines()[0])
    assert gpu_plan._build(one, "nvidia-h200", str(tmp_path)) == "persistent_cluster_cuda cannot have these knobs here"
    assert not list(tmp_path.iterdir())


@pytest.mark.broad
def test_a_plan_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(one: Any, target: str, folder: str) -> str:
        if "gemm_cuda" in one.candidate.key:
            return "it cannot be built"
        Path(folder, one.file).touch()
        return ""

    class Pool:
        def __init__(self, *_: Any) -> None: ...
        def end(self) -> None: ...
        def map(self, requests: Any, seconds: float) -> Any:
            built.extend(request["file"] for request in requests if "file" in request)
            return ((number, json.loads(json.dumps(gpu_plan.answer(r)))) for number, r in enumerate(requests))

    built: list[str] = []
    monkeypatch.setattr(gpu_plan, "_build", build)
    monkeypatch.setattr(gpu_plan, "Pool", Pool)
    made = build_candidates([SMALL], tmp_path, count=4, command="tvm-rnn tune")
    rows = made["points"][0]["candidates"]
    assert json.loads((tmp_path / "plan.json").read_text()) == json.loads(json.dumps(made))
    assert made["command"] == "tvm-rnn tune"
    assert rows[0]["file"] == f"{SMALL.name}-default.so" and len({row["file"] for row in rows}) == len(rows) == len(
        built
    )
    assert [row["file"] for row in rows if "reason" in row] == [
        row["file"] for row in rows if any(c["template"] == "gemm_cuda" for c in row["choices"])
    ]
    built.clear()
    build_candidates([SMALL], tmp_path, count=4)
    assert all("gemm_cuda" in json.dumps(row) for row in rows if row["file"] in built)


def test_plans_are_for_gpus(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plans are for GPUs"):
        build_candidates([SMALL], tmp_path, target="x86-64-v3")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="this folder cannot be made"):
        build_candidates([SMALL], tmp_path / "file" / "plan")


@pytest.mark.broad
def test_a_lean_module_holds_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_rnn.cuda.plan import network as plan
    from tvm_rnn.options import Options
    from tvm_rnn.passes.pipeline import passed

    def kernels(lean: bool) -> set[str]:
        machine = replace(GPU, records=Trial(lean=lean))
        work = workload_of(SMALL)
        return set(plan.plan(passed(work.net, Options(machine, (16,), precision="bfloat16")), machine).kernels)

    whole, lean = kernels(False), kernels(True)
    assert lean < whole and {name for name in whole - lean if "masked" in name} and any("persistent" in n for n in lean)
    assert not any("step" in name or "masked" in name for name in lean)


def measured(folder: Path, times: list[float]) -> list[dict[str, Any]]:
    """A plan of a point whose candidates took these times; below 0: it failed."""
    found = candidates(SMALL, GPU, 6)[: len(times)]
    rows = [one.as_dict() for one in found]
    plan = {"format": 1, "target": GPU.name, "command": "tvm-rnn tune --plan d", "points": []}
    plan["points"] = [{"point": SMALL.as_dict(), "name": SMALL.name, "candidates": rows}]
    (folder / "plan.json").write_text(json.dumps(plan))
    with open(folder / "results.jsonl", "w") as file:
        for row, us in zip(rows, times, strict=True):
            own = {"file": row["file"], **({"us": us, "spread": 0.01} if us > 0 else {"reason": "it hung"})}
            print(json.dumps(own), file=file)
            if us > 0:
                print(json.dumps({**own, "final": True}), file=file)
    return rows


@pytest.mark.broad
def test_the_fastest_becomes_a_record_that_is_found(tmp_path: Path) -> None:
    rows = measured(tmp_path, [10.0, 9.0, 8.0, -1.0])
    found = collect(tmp_path, tmp_path / "records")
    (record,) = found.records
    assert (record.median_us, record.default_us, record.trials) == (8.0, 10.0, 3) and record.gain == 1.25
    assert record.command == "tvm-rnn tune --plan d" and record.workload["cell"] == "lstm"
    assert found.failed == {rows[3]["file"]: "it hung"} and not found.unmeasured
    machine = replace(GPU, records=read([tmp_path / "records"], GPU.name))
    chosen = choose_geometry(step("lstm", 64, "bfloat16"), machine, "bfloat16", 16)
    assert chosen is not None and chosen.recorded and chosen.record.startswith("record: lstm H=64 B=16 bfloat16")
    wanted = rows[2]["choices"][0]["knobs"]
    assert {name: chosen.knobs[name] for name in wanted} == wanted


@pytest.mark.broad
def test_a_default_that_was_best_is_a_record_too(tmp_path: Path) -> None:
    measured(tmp_path, [10.0, 11.0])
    (record,) = collect(tmp_path, tmp_path / "records").records
    assert record.gain == 1.0
    machine = replace(GPU, records=read([tmp_path / "records"], GPU.name))
    chosen = choose_geometry(step("lstm", 64, "bfloat16"), machine, "bfloat16", 16)
    plain = choose_geometry(step("lstm", 64, "bfloat16"), GPU, "bfloat16", 16)
    assert chosen is not None and plain is not None and chosen.geometry == plain.geometry
    assert chosen.record.endswith("defaults") and not chosen.recorded


@pytest.mark.broad
def test_a_point_that_was_not_measured_is_named(tmp_path: Path) -> None:
    measured(tmp_path, [-1.0, 5.0])
    found = collect(tmp_path)
    assert not found.records and found.unmeasured == (SMALL.name,)
    assert not (tmp_path / "records").exists()
