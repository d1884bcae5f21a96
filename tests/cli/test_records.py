"""`tvm-rnn records`: lists, merges and prunes folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from tests.test_records import MACHINE, record
from tvm_rnn.cli.commands import app
from tvm_rnn.schedule.record_files import merge, read


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["records", *words], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_listing(tmp_path: Path) -> None:
    other = replace(record(), workload={**record().workload, "hidden": 64})
    merge(tmp_path, [record(), other])
    assert "2 records" in call("--records", str(tmp_path))
    assert "1.25" in call("--records", str(tmp_path), "--only", "H=64")
    found = json.loads(call("--records", str(tmp_path), "--json", "--only", "H=64"))["records"]
    assert [row["workload"]["hidden"] for row in found] == [64] and found[0]["gain"] == 1.25
    assert found[0]["stale"].startswith("made with tvm 1")
    assert "no such folder" in call("--records", str(tmp_path / "none"), code=2)
    assert "no such folder" in call("--records", "x" * 300, code=2)


def test_merging_keeps_the_newer_one(tmp_path: Path) -> None:
    merge(tmp_path / "a", [replace(record(date="2026-01-01"), median_us=1.0)])
    merge(tmp_path / "b", [replace(record(date="2026-02-01"), median_us=2.0)])
    assert "1 records merged" in call("merge", str(tmp_path / "a"), "--records", str(tmp_path / "b"))
    assert read([tmp_path / "b"], MACHINE.name).records[0].median_us == 2.0
    call("merge", str(tmp_path / "b"), "--records", str(tmp_path / "a"), "--json")
    assert read([tmp_path / "a"], MACHINE.name).records[0].median_us == 2.0


def test_pruning_takes_what_nothing_can_use(tmp_path: Path) -> None:
    fine = replace(record(), versions={}, workload={**record().workload, "hidden": 64})
    merge(tmp_path, [record(), fine])
    assert "1 of 2 records are stale" in call("prune", "--records", str(tmp_path), "--dry-run")
    assert len(read([tmp_path], MACHINE.name)) == 2
    removed = json.loads(call("prune", "--records", str(tmp_path), "--json"))["removed"]
    assert [row["reason"][:10] for row in removed] == ["made with "]
    assert [r.workload["hidden"] for r in read([tmp_path], MACHINE.name).records] == [64]


def test_comparing_is_for_records_of_this_machine(tmp_path: Path) -> None:
    merge(tmp_path, [record()])
    assert json.loads(call("compare", "--records", str(tmp_path), "--json")) == []
