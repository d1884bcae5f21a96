"""Values that shells complete: names of the package's own lists, in the process that a shell starts."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tvm_rnn import cells
from tvm_rnn.cli import app, completion
from tvm_rnn.compiler.stage_texts import CODE_STAGES, GPU_STAGES
from tvm_rnn.target import resolve


def completed(*words: str) -> list[str]:
    asked = {"COMP_WORDS": " ".join(("tvm-rnn", *words)), "COMP_CWORD": str(len(words))}
    env = {"_TVM_RNN_COMPLETE": "complete_bash", **asked}
    return CliRunner().invoke(app, [], env=env, prog_name="tvm-rnn").stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("compile", "lstm_l"), ["lstm_layer_norm"]),
        (("explain", "lstm", "--beside", "rwkv7"), ["rwkv7"]),
        (("compile", "lstm", "--target", "nvidia-h2"), ["nvidia-h200"]),
        (("compile", "lstm", "--dtype", "b"), ["bfloat16"]),
        (("compile", "lstm", "--without", "hoist"), ["hoist_gemms"]),
        (("show", "lstm", "--stage", "ti"), ["tile_layers_and_time", "tir"]),
        (("bench", "--suite", "cpu-g"), ["cpu-grid"]),
        (("compile", "no_such"), []),  # shells offer files then
    ],
)
def test_names_behind_options(words: tuple[str, ...], found: list[str]) -> None:
    assert sorted(completed(*words)) == found


def test_what_is_offered_is_taken() -> None:
    assert completion.cells("") == cells.names()
    for name in completion.targets(""):
        assert name in ("llvm", "cuda") or resolve(name).name
    assert {*CODE_STAGES, *GPU_STAGES, *completion.passes("")} <= {*completion.stages("")}
    assert completion.dtypes("float32,bf") == ["float32,bfloat16"]


@pytest.mark.broad
def test_no_shell_waits_for_the_compiler() -> None:
    every = "completion.cells, completion.targets, completion.passes, completion.stages, completion.suites"
    code = f"import sys\nfrom tvm_rnn.cli import completion\nassert all(f('') for f in ({every}))\n"
    subprocess.run([sys.executable, "-c", f"{code}assert 'tvm' not in sys.modules"], check=True)
