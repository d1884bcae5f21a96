"""record_files: folders of records, whole whatever happens, and used by whoever compiles."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tests.test_records import MACHINE, record
from tvm_rnn import ConfigError
from tvm_rnn.records import Record, Records
from tvm_rnn.schedule.record_files import folders, for_target, merge, own_folder, read, remove, resolve
from tvm_rnn.target import resolve as target_of
from tvm_rnn.tune.workload import Candidate, Trial


def other(hidden: int, **changes: Any) -> Record:
    one = record()
    return replace(one, workload={**one.workload, "hidden": hidden}, **changes)


def test_what_is_merged_is_read_again(tmp_path: Path) -> None:
    (path,) = merge(tmp_path, [record(), other(64)])
    assert path == tmp_path / MACHINE.name / "lstm.jsonl"
    lines = path.read_text().splitlines()
    assert json.loads(lines[0]) == {"format": 1, "made by": ["tvm-rnn tune"]} and len(lines) == 3
    assert len(read([tmp_path], MACHINE.name)) == 2 and not len(read([tmp_path], "other"))


def test_one_line_per_workload(tmp_path: Path) -> None:
    merge(tmp_path, [record()])
    merge(tmp_path, [replace(record(), median_us=4.0), other(64)])
    found = {r.workload["hidden"]: r.median_us for r in read([tmp_path], MACHINE.name).records}
    assert found == {256: 4.0, 64: 8.0}
    merge(tmp_path, [replace(record(), median_us=9.0)], keep=lambda old, new: old.median_us <= new.median_us)
    assert {r.median_us for r in read([tmp_path], MACHINE.name).records} == {4.0, 8.0}


def test_the_first_folder_wins(tmp_path: Path) -> None:
    merge(tmp_path / "a", [replace(record(), median_us=1.0)])
    merge(tmp_path / "b", [replace(record(), median_us=2.0), other(64)])
    found = read([tmp_path / "a", tmp_path / "b"], MACHINE.name).records
    assert {r.workload["hidden"]: r.median_us for r in found} == {256: 1.0, 64: 8.0}


def test_what_is_no_record_is_passed_over_with_a_line(tmp_path: Path) -> None:
    (path,) = merge(tmp_path, [record()])
    with open(path, "a") as file:
        file.write('{"target": "x86-64-v3"}\n{"tar\n[]\n')
    found = read([tmp_path], MACHINE.name)
    assert len(found) == 1 and len(found.ignored) == 2
    assert all("not a record" in line for line in found.ignored)


def test_what_cannot_be_read_is_not_lost(tmp_path: Path) -> None:
    (path,) = merge(tmp_path, [record()])
    strange = b'{"format": 99, "target": "x86-64-v3"}\n\xff{"tar\n' + b"[" * 10**5
    path.write_bytes(path.read_bytes() + strange)
    merge(tmp_path, [other(64)])
    found = read([tmp_path], MACHINE.name)
    assert len(found) == 2 and len(found.ignored) == 3 and strange in path.read_bytes()
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="records cannot be read"):
        merge(tmp_path, [other(64)])


def _write(place: str, number: int) -> None:
    for step in range(5):
        merge(place, [other(1000 * number + step)])


def test_several_may_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    work = [context.Process(target=_write, args=(str(tmp_path), number)) for number in range(1, 5)]
    for process in work:
        process.start()
    for process in work:
        process.join()
    assert len(read([tmp_path], MACHINE.name)) == 20


def test_removing(tmp_path: Path) -> None:
    merge(tmp_path, [record(), other(64)])
    gone = remove(tmp_path, lambda r: r.workload["hidden"] == 64)
    assert [r.workload["hidden"] for r in gone] == [64] and len(read([tmp_path], MACHINE.name)) == 1


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="records cannot be written"):
        merge(tmp_path / "file", [record()])


def test_where_records_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_RNN_RECORDS", "none")
    assert folders() == []
    monkeypatch.setenv("TVM_RNN_RECORDS", str(tmp_path))
    assert folders() == [tmp_path] and resolve(None) == [tmp_path]
    monkeypatch.delenv("TVM_RNN_RECORDS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert own_folder() == tmp_path / "tvm_rnn" / "records" and folders()[0] == own_folder()
    assert folders()[1].name == "records" and (folders()[1] / "nvidia-h200" / "lstm.jsonl").is_file()
    assert resolve("none").records == ()
    with pytest.raises(ConfigError, match=r"records: no such folder[\s\S]*/no/such"):
        resolve("/no/such")


@pytest.mark.broad
def test_compile_uses_a_folder_and_the_manifest_says_so(tmp_path: Path) -> None:
    net = rnn.RNN(rnn.cells.lstm, 8, 16).init(0)
    first, machine = Trial(Candidate()), target_of("llvm")
    rnn.compile(net, batch=4, records=first)
    unit = next(u for u in first.asked.values() if u.kind == "gemm" and u.region == "step")
    own = replace(record(unit, rows=2), target=machine.records_name, versions={})
    merge(tmp_path, [own, replace(own, versions={"tvm": "0.1"}, workload={**own.workload, "hidden": 7})])
    told: list[str] = []
    module = rnn.compile(net, batch=4, records=tmp_path, progress=told.append)
    row = next(r for r in module.manifest.templates if r["unit"].startswith("step gemm"))
    assert row["knobs"]["rows"] == 2 and row["record"].startswith("record: lstm")
    assert any("a record is ignored: lstm H=7" in line and "tvm 0.1" in line for line in told)
    assert isinstance(for_target(None, machine), Records) and not len(for_target(None, machine))
