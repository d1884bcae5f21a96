"""compile_times: CPU seconds of both compilations, or the reason why there are none; which are within the bars."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tvm_rnn.bench.run import compile_times
from tvm_rnn.bench.run.compile_times import Options, run, table

ANSWERS = """
import json, sys
for line in sys.stdin:
    name = json.loads(line)["network"]
    if name == "gru": sys.exit("ValueError: no compiler")
    print(json.dumps({"inference": 2.0, "training": 20.0 if name == "lstm" else 8.0}), flush=True)
"""


def test_a_record_for_each_and_a_line_for_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile_times, "COMMAND", ("-c", ANSWERS))
    told, records = list[str](), tmp_path / "records.jsonl"
    found = run(["lif", "lstm", "gru"], Options(), records, progress=told.append)
    assert [json.loads(line) for line in records.read_text().splitlines()] == found
    facts, *own = found
    assert facts["clock"] == "CPU time" and [r["network"] for r in own] == ["lif", "lstm", "gru"]
    assert own[0]["training"] == 8.0 and "no compiler" in str(own[2]["reason"])
    assert told[0] == "1 of 3: lif: 2.00 s inference, 8.00 s training"
    shown, text = table(found)
    assert shown.row_count == 3 and text == "1 of 3 take at most 3 s for inference and 10 s with training"


@pytest.mark.broad
def test_seconds_are_of_the_compilation() -> None:
    found = compile_times.seconds_of("elman")
    assert 0 < found["inference"] < found["training"]
