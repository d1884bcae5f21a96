"""Who sees the stages of a compilation."""

from __future__ import annotations

import io
import sys

import pytest

import tvm_rnn as rnn
from tvm_rnn.compiler.watched import VARIABLE, watched


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def seen(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, progress: bool | None = None) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with watched(progress) as tell:
        tell("code generation\nof many")
        tell("linking")
    return stream.getvalue()


def test_a_terminal_sees_one_line_that_is_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    text = seen(monkeypatch, Terminal())
    assert "\n" not in text
    _, first, second, blank, end = text.split("\r")
    assert (first, second.rstrip()) == ("compiling: code generation", "compiling: linking")
    assert len(second) == len(first) and not blank.strip() and end == ""


def test_a_notebook_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    assert "linking" in seen(monkeypatch, stream)


def test_files_and_those_who_want_none_see_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(monkeypatch, io.StringIO()) == seen(monkeypatch, io.StringIO(), True) == ""
    assert seen(monkeypatch, Terminal(), False) == ""
    monkeypatch.setenv(VARIABLE, "0")
    assert seen(monkeypatch, Terminal()) == "" and "linking" in seen(monkeypatch, Terminal(), True)


def test_the_line_is_gone_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with pytest.raises(rnn.ConfigError):
        rnn.compile(rnn.RNN(rnn.cells.elman, 2, 2), "no such target")
    with pytest.raises(ValueError, match="told"), watched(None) as tell:
        tell("passes")
        raise ValueError("told")
    assert stream.getvalue().endswith("\r")
