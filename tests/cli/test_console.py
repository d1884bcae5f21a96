"""What commands print with."""

from __future__ import annotations

import json

import pytest

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


def test_progress_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (True, False):
        with progress(quiet) as stage:
            stage("working")
    assert capsys.readouterr() == ("", "")
