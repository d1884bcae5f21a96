"""`tvm-rnn fill-cache`: writes what a layer of that size looks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tvm_rnn as rnn
from tvm_rnn.cli.commands import app
from tvm_rnn.compiler import compiled_files


def call(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["fill-cache", *words], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_the_file_that_layers_look_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["elman", "--input-size", "2", "--hidden-size", "3", "--target", "x86-64", "-o", str(tmp_path / "cache")]
    found = json.loads(call(*words, "--json"))
    monkeypatch.setenv("TVM_RNN_CACHE", str(tmp_path / "cache"))
    name, module = compiled_files._filled(rnn.RNN(rnn.cells.elman, 2, 3), "llvm", False)
    assert Path(found["file"]).stem == name and module is not None


def test_refused(tmp_path: Path) -> None:
    assert "give a cell" in call("m.onnx", "--target", "x86-64", "-o", str(tmp_path), code=2)
    words = ["elman", "--input-size", "2", "--hidden-size", "3", "-o", str(tmp_path)]
    assert "no such target" in call(*words, "--target", "x86-65", code=2)
