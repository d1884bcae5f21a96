"""`tvm-rnn write-c`: the folder is what `rnn.write_c` writes; what it says is true."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from tvm_rnn.cli.commands import app

LSTM = ("write-c", "lstm", "--input-size", "2", "--hidden-size", "3", "--seed", "0")


def call(*words: str, code: int = 0) -> str:
    """stdout of a command that must exit with `code` (stderr, where that is not 0)."""
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_floats_and_integers(tmp_path: Path) -> None:
    amp, samples = str(tmp_path / "amp"), str(tmp_path / "x.npy")
    said = call(*LSTM, "-o", amp)
    assert "lstm in C99, float32, 288 bytes of numbers, 72 of a stream" in said and "float64" not in said
    np.save(samples, np.random.default_rng(0).normal(size=(20, 2, 2)))
    said = call(*LSTM, "-o", amp, "--bits", "8", "--samples", samples)
    assert "weights in 8 bits" in said and "y differs from float64 by 0.0" in said
    facts = json.loads(call(*LSTM, "-o", amp, "--bits", "16", "--samples", f"x={samples}", "--json"))
    assert facts["bits"] == 16 and 0 < facts["error"] < 1e-3 and facts["folder"] == amp
    assert sorted(p.name for p in Path(amp).iterdir()) == ["README.md", "amp.c", "amp.h", "amp_weights.h", "example.c"]


def test_what_is_wrong_is_said_first(tmp_path: Path) -> None:
    assert "give samples=x" in call(*LSTM, "-o", str(tmp_path / "amp"), "--bits", "8", code=2)
    assert "no weights" in call(*LSTM[:-2], "-o", str(tmp_path / "amp"), code=1)
    assert "not a name in C" in call(*LSTM, "-o", str(tmp_path / "2amp"), code=2)
