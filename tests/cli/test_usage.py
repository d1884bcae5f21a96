"""What all commands share: exit codes, help, how options may be written, completion."""

from __future__ import annotations

import os
import re

import pytest
from typer.testing import CliRunner

from tvm_rnn.cli.commands import app
from tvm_rnn.frontends import spec

SIZES = ["--input-size", "4", "--hidden-size", "8"]


def call(*words: str, code: int = 0, **environment: str) -> str:
    """stdout of a command that must exit with `code` (stderr, where that is not 0)."""
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200", **environment}, prog_name="tvm-rnn")
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["compile", "lstm"],
        ["compile", "lstm", "-o", "x.so"],
        ["compile", "lstm", "-o", "x.so", "--input-size", "0"],
        ["compile", "lstm", "-o", "x.so", *SIZES, "--seed", "1", "--weights", "w"],
        ["run", "lstm.so"],
        ["inspect"],
        ["bench", "lstm.so", "--batch", "many"],
    ],
)
def test_wrong_usage_exits_with_2(words: list[str]) -> None:
    assert "Usage" in call(*words, code=2) or words[0] == "nonsense"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["compile", "lsmt", "-o", "x.so", *SIZES], "did you mean 'lstm'"),
        (["compile", "m.onnx", "-o", "x.so", *SIZES], "this file is a whole network"),
        (["compile", "lstm", "-o", "none/x.so", *SIZES], "no such folder"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--dtype", "int8"], "float32"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--batch", "0"], "--batch"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--size", "Q=3"], "no axis 'Q'"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--without", "nothing"], "no such pass"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--target", "abacus"], "no such target"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--target", "nvidia-h200", "--arch", "sm_1,sm_80"], "no such arch"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--precision", "tf32"], "CPUs compute in"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--weight-dtype", "float8_e4m3"], "weights are not for this target"),
        (["show", "lstm", "--stage", "cuda", "--target", "nvidia-h200", "--weight-dtype", "int4"], "no such dtype"),
        (["show", "lstm", "--stage", "asm", "--target", "nvidia-h200"], "no such stage"),
        (["show", "lstm", "--stage", "normalise", "--training"], "no such stage"),
        (["show", "lstm", "--stage", "tirr"], "did you mean 'tir'"),
        (["cells", "grru"], "did you mean 'gru'"),
        (["bench", "none.so", "--against", "torhc"], "did you mean 'torch'"),
        (["compile", "LSTM", "-o", "x.so", *SIZES], "did you mean 'lstm'"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--dtype", "fp32"], "did you mean 'float32'"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--target", "h200"], "did you mean 'nvidia-h200'"),
        (["compile", "lstm", "-o", "x.so", *SIZES, "--target", "znver3"], "llvm is this CPU"),
        (["compile", "lstm", *SIZES], "none of --output, --bundle and --web"),
        (["show", "lstm", "--stage", "tile"], "did you mean 'tile_layers_and_time'"),
        (["tune", "lstm"], "no --input-size"),
    ],
)
def test_what_was_asked_for_is_wrong(words: list[str], text: str) -> None:
    """Exit code 2, as for words that typer refuses."""
    message = call(*words, code=2)
    assert message.startswith("error: ") and text in message and "Traceback" not in message
    assert not os.path.exists("x.so")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["compile", "lstm", "-o", "x.so", *SIZES, "--weights", "none.safetensors"], "no such weights file"),
        (["inspect", "none.so"], "none.so"),
        (["run", "none.so", "--input", "x.npy", "--output", "y.npy"], "none.so"),
        (["bench", "none.so"], "none.so"),
    ],
)
def test_failures_exit_with_1_and_one_message(words: list[str], text: str) -> None:
    message = call(*words, code=1)
    assert message.startswith("error: ") and text in message and "Traceback" not in message
    assert not os.path.exists("x.so")


def test_ctrl_c_exits_with_130_and_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(spec, "find_cell", interrupted)
    assert "Traceback" not in call("cells", "lstm", code=130)


def test_options_may_have_the_underscores_of_python() -> None:
    assert call("show", "gru", "--input_size", "3", "--hidden_size=5") == call(
        "show", "gru", "--input-size", "3", "--hidden-size", "5"
    )


@pytest.mark.parametrize("command", [(), ("compile",), ("records",), ("records", "prune")])
def test_help_has_a_short_name_and_says_no_type_of_flags(command: tuple[str, ...]) -> None:
    text = call(*command, "-h")
    assert text == call(*command, "--help") and "--help" in text and "bool" not in text


@pytest.mark.parametrize("command", ["compile", "bench", "tune", "generate", "explain"])
def test_help_names_what_an_option_takes(command: str) -> None:
    """TARGET, N or FILE, where typer would show a type of Python's."""
    assert not re.search(r"--\S.*<\w+( range)?>", call(command, "-h"))


def test_help_breaks_lines_where_they_end_and_keeps_brackets() -> None:
    text = call("compile", "-h", COLUMNS="1000")
    assert "A .onnx file says its own sizes and weights" in text
    assert "float32 [default], float64" in text  # not a style of rich
    assert "[one per CPU]" in call("tune", "-h", COLUMNS="1000")


def test_shells_complete_commands_and_options() -> None:
    shown = call("--help")
    assert "--install-completion" in shown and "--show-completion" in shown

    def completed(*words: str) -> list[str]:
        asked = {"COMP_WORDS": " ".join(("tvm-rnn", *words)), "COMP_CWORD": str(len(words))}
        return call(_TVM_RNN_COMPLETE="complete_bash", **asked).split()

    assert completed("comp") == ["compile"] and completed("compile", "--input") == ["--input-size"]
