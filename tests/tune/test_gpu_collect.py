"""tune_collect: what was measured becomes records that a compilation finds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from persistent_layers import GPU, step

from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.cuda.model.choose_geometry import choose_geometry
from tvm_rnn.schedule.record_files import read
from tvm_rnn.tune.gpu_collect import collect
from tvm_rnn.tune.gpu_plan import candidates

POINT = Point("lstm", 64, 64, 8, 16)


def measured(folder: Path, times: list[float]) -> list[dict[str, Any]]:
    """A plan of a point whose candidates took these times; below 0: it failed."""
    found = candidates(POINT, GPU, 6)[: len(times)]
    rows = [one.as_dict() for one in found]
    plan = {"format": 1, "target": GPU.name, "command": "tvm-rnn tune --plan d", "points": []}
    plan["points"] = [{"point": POINT.as_dict(), "name": POINT.name, "candidates": rows}]
    (folder / "plan.json").write_text(json.dumps(plan))
    with open(folder / "results.jsonl", "w") as file:
        for row, us in zip(rows, times, strict=True):
            own = {"file": row["file"], **({"us": us, "spread": 0.01} if us > 0 else {"reason": "it hung"})}
            print(json.dumps(own), file=file)
            if us > 0:
                print(json.dumps({**own, "final": True}), file=file)
    return rows


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


def test_a_point_that_was_not_measured_is_named(tmp_path: Path) -> None:
    measured(tmp_path, [-1.0, 5.0])
    found = collect(tmp_path)
    assert not found.records and found.unmeasured == (POINT.name,)
    assert not (tmp_path / "records").exists()
