"""sources: records of an ablation, journals of tuning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tvm_rnn import ConfigError
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.explain.html.sources import ablation_rows, gains
from tvm_rnn.tune.journal import Outcome
from tvm_rnn.tune.workload import Candidate


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def test_times_without_passes(tmp_path: Path) -> None:
    point = Point("lstm", 8, 8, 10, 1, "float32")
    less = Point("lstm", 8, 8, 10, 1, "float32", without=("hoist_gemms",))
    rows = [
        {"kind": "facts"},
        {**point.record, "framework": "tvm_rnn", "us_per_step": 2.0},
        {**point.record, "framework": "torch", "us_per_step": 9.0},
        {**less.record, "framework": "tvm_rnn", "us_per_step": 3.0},
    ]
    found = ablation_rows(write(tmp_path / "a.jsonl", *rows))
    assert found == [{"without": "nothing", "us": 2.0}, {"without": "hoist_gemms", "us": 3.0}]


def test_trials(tmp_path: Path) -> None:
    rows = [
        {"journal": 1},
        Outcome(Candidate(), ratio=0.5, median_us=1.0, default_us=2.0).as_dict(),
        Outcome(Candidate(), "crashed", reason="it ended").as_dict(),
    ]
    assert gains(write(tmp_path / "j.jsonl", *rows)) == [2.0, None]


def test_files_that_hold_nothing_of_the_kind(tmp_path: Path) -> None:
    empty = write(tmp_path / "x.jsonl", {"kind": "facts"})
    for read in (ablation_rows, gains):
        with pytest.raises(ConfigError, match="in this file"):
            read(empty)
        with pytest.raises(ConfigError, match="cannot be read"):
            read(tmp_path / "missing")
