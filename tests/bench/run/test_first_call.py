"""first_call: a process that compiles, later ones that do not, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.run import first_call

pytestmark = pytest.mark.peers


def test_the_median_of_later_processes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter([[1.0, 2, 3, 40, 5, 6], [1, 0.1, 0.1, 0.1, 0, 0], [1, 0.2, 0.2, 0.2, 0, 0], [9, 0.3, 0.3, 0.3, 0, 0]])
    monkeypatch.setattr(first_call, "_process", lambda sizes, folder: next(made))
    found = first_call.run((3, 4, 1), 3, str(tmp_path / "records.jsonl"))
    assert [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()] == found
    facts, cold, warm = found
    assert facts["kind"] == "facts" and (cold["cache"], cold["total"]) == ("empty", 45)
    assert (warm["cache"], warm["total"], warm["point"]) == ("warm", 0.6, "lstm-i3-h4-l1")
    assert "| import torch | 1.00 | 1.00 |" in first_call.table(found) and "**0.60**" in first_call.table(found)


def test_a_process_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_call, "PROGRAM", "raise ValueError('told')")
    with pytest.raises(rnn.TvmRnnError, match="ValueError: told"):
        first_call._process((1, 1, 1), str(tmp_path))


@pytest.mark.slow
def test_both_kinds_of_processes_go_through_all_stages() -> None:
    pytest.importorskip("torch")
    _, cold, warm = first_call.run((3, 4, 1), 1)
    assert [*cold["seconds"]] == [*warm["seconds"]] == [*first_call.STAGES] and warm["total"] > 0
