"""What commands print with."""

from __future__ import annotations

import json

import pytest

from tvm_rnn.cli import console
from tvm_rnn.cli.console import print_json, print_rich, progress


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1]})
    assert json.loads(capsys.readouterr().out) == {"a": [1]}


def test_long_rows_are_not_folded_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_rich("word " * 30)
    assert capsys.readouterr().out.count("\n") == 1


def test_short_work_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (True, False):
        with progress(quiet) as stage:
            stage("working")
    assert capsys.readouterr() == ("", "")


def test_a_log_has_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with progress(False) as stage:
        for now[0], name in ((1.0, "first"), (11.0, "second"), (12.0, "third"), (30.0, "fourth")):
            stage(name)
    assert capsys.readouterr() == ("", "tvm-rnn: second\ntvm-rnn: fourth\n")


def test_a_terminal_is_told_the_time_that_is_left_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    stages = console.Stages()
    stages.text("passes")
    now[0] = 7.2
    stages.text("linking")
    line = console._Now(stages)
    assert str(line.__rich__()) == "linking, 72%, about 3 s left"
    now[0] = 8.0
    assert str(line.__rich__()) == "linking, 80%, about 2 s left"
