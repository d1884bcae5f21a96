"""bench --suite cortex-m: instructions and errors as records, ours and CMSIS-NN's; a missing tool is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.peers import cortex_m
from tvm_rnn.bench.run.cortex_m_suite import NUMBERS, run, table
from tvm_rnn.bench.suites.gpu import Point
from tvm_rnn.errors import BuildError

TINY = Point("gru", 3, 5, 12, 1, "float32")


def test_a_record_for_each_kind_of_numbers(tmp_path: Path) -> None:
    if cortex_m.missing():
        pytest.skip(cortex_m.missing())
    (tmp_path / "CMSIS-NN").mkdir()
    found = run([TINY], rnn.write_c, tmp_path / "records.jsonl", packages=tmp_path / "CMSIS-NN")
    assert [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()] == found
    facts, *own = found
    assert facts["target"] == "cortex-m4" and [row["kind"] for row in own] == ["instructions"] * 5
    assert [row["numbers"] for row in own[:3]] == [*NUMBERS.values()]
    assert all(float(row["instructions"]) > 100 for row in own[:3])
    floats, eight, sixteen = (float(row["error"]) for row in own[:3])
    assert floats < 1e-6 < sixteen < eight < 0.02
    assert all("clone ARM-software/CMSIS-NN" in str(row["reason"]) for row in own[3:])
    assert table(found).row_count == 5


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cortex_m.shutil, "which", lambda name: None)
    with pytest.raises(BuildError, match=r"cortex-m: a tool is missing[\s\S]*gcc-arm-none-eabi"):
        run([TINY], rnn.write_c)
