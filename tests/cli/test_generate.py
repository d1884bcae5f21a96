"""`tvm-rnn generate`: what it writes is what the module makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

import tvm_rnn as rnn
from tvm_rnn.cli.commands import app


def call(*words: str, code: int = 0) -> str:
    """stdout of a command that must exit with `code` (stderr, where that is not 0)."""
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_generate_makes_what_the_module_makes(tmp_path: Path) -> None:
    """With a prompt, from a state, and one row alone from zeros; what does not fit is said."""
    at = {name: str(tmp_path / name) for name in ("m.so", "p.npy", "y.npy", "s.npz", "again.npy", "plain.so")}
    sizes = ("--input-size", "1", "--hidden-size", "1")
    said = call("compile", "elman", "-o", at["m.so"], *sizes, "--seed", "3", "--generate")
    assert f"next: tvm-rnn generate {at['m.so']} --steps 100 --output y.npy\n" in said
    np.save(at["p.npy"], np.random.default_rng(0).normal(size=(3, 2, 1)).astype("f4"))
    words = ["generate", at["m.so"], "--prompt", at["p.npy"], "--output", at["y.npy"], "--state-out", at["s.npz"]]
    assert "y float32 [6, 2, 1]" in call(*words, "--steps", "6")
    expected, state, _ = rnn.load(at["m.so"]).generate(6, prompt=np.load(at["p.npy"]))
    np.testing.assert_array_equal(np.load(at["y.npy"]), expected)
    np.testing.assert_array_equal(np.load(at["s.npz"])["h"], state["h"])
    np.save(at["p.npy"], expected[-1:])
    said = call(*words[:4], "--output", at["again.npy"], "--state-in", at["s.npz"], "--steps", "2", "--stop", "9")
    assert np.load(at["again.npy"]).shape == (2, 2, 1) and "outputs of each row: 2, 2" in said
    assert "[4, 1, 1]" in call("generate", at["m.so"], "--steps", "4", "--output", at["again.npy"])
    assert "one file" in call(*words[:6], "--state-out", at["y.npy"], "--steps", "1", code=2)
    assert "has one input" in call(*words, "--steps", "1", "--input", f"z={at['p.npy']}", code=2)
    call("compile", "elman", "-o", at["plain.so"], *sizes, "--seed", "3")
    assert "generate=True" in call("generate", at["plain.so"], "--steps", "1", "--output", at["again.npy"], code=1)
