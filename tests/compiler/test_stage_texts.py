"""The text of every stage: golden files for the passes, plain checks for generated code.

Golden files hold what `tvm-rnn show CELL --stage PASS` prints at I=8, H=16 for x86-64-v4. After a change that is meant,
rewrite them with TVM_RNN_UPDATE_GOLDEN=1 and read the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.compiler import stage_texts
from tvm_rnn.graph.graph_text import layers_text
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.passes import pipeline

GOLDEN = Path(__file__).parents[1] / "golden"
CELLS = ("lstm", "gru", "gru_reset_before", "lstm_layer_norm", "multiplicative_lstm", "mlstm", "indrnn")
STAGES = ("trace", "normalise", *PASS_NAMES)


def net_of(name: str, **options: object) -> rnn.RNN:
    return rnn.RNN(rnn.cells.get(name), 8, 16, **options)


def graph_stages(net: rnn.RNN, without: tuple[str, ...] = (), training: bool = False) -> dict[str, str]:
    machine = target.resolve("x86-64-v4")
    return {name: layers_text(layers) for name, layers in pipeline.run(net, machine, without, training=training)}


def compare(file: Path, text: str) -> None:
    if os.environ.get("TVM_RNN_UPDATE_GOLDEN") == "1":
        file.write_text(text + "\n")
    assert file.is_file(), f"no golden file {file.name}: run with TVM_RNN_UPDATE_GOLDEN=1 and read it"
    assert text + "\n" == file.read_text()


@pytest.mark.parametrize("name", CELLS)
def test_every_stage_of_a_cell(name: str) -> None:
    stages = graph_stages(net_of(name))
    assert tuple(stages) == STAGES
    for stage, text in stages.items():
        compare(GOLDEN / f"{name}.{stage}.txt", text)


@pytest.mark.parametrize("off", PASS_NAMES)
def test_lstm_with_a_pass_switched_off(off: str) -> None:
    text = list(graph_stages(net_of("lstm"), (off,)).values())[-1]
    compare(GOLDEN / f"lstm.without_{off}.txt", text)


@pytest.mark.parametrize("name", ["lstm", "gru", "mlstm"])
def test_the_graphs_of_training(name: str) -> None:
    stages = graph_stages(net_of(name), training=True)
    assert tuple(stages) == ("trace", "differentiate", *PASS_NAMES)
    for stage in ("differentiate", "tile_layers_and_time"):
        compare(GOLDEN / f"{name}.training.{stage}.txt", stages[stage])


def test_layers_that_share_a_graph_are_shown_once() -> None:
    text = graph_stages(net_of("lstm", num_layers=4))["tile_layers_and_time"]
    assert text.count("graph lstm forward") == 2
    assert "layers 0\n" in text and "layers 1,2,3\n" in text


def test_text_does_not_depend_on_what_was_shown_before() -> None:
    first = graph_stages(net_of("gru"))
    graph_stages(net_of("lstm"))
    assert graph_stages(net_of("gru")) == first


def defines(script: str, name: str) -> bool:
    """Whether a function is there; from Python 3.12 on TVM writes the sizes of its buffers as type parameters."""
    return re.search(rf"def {name}[(\[]", script) is not None


def test_code_stages() -> None:
    stages = dict(stage_texts.stages(net_of("gru"), "x86-64-v4"))
    assert tuple(stages) == (*STAGES, *stage_texts.CODE_STAGES)
    assert "T.sblock" in stages["te"] and "T.tanh" in stages["te"]
    assert defines(stages["tir"], "sequence") and defines(stages["tir"], "pack_0")
    assert "define" in stages["llvm"] and "target triple" in stages["llvm"]
    assert "zmm" in stages["asm"] and "vfmadd" in stages["asm"]
    assert "TVMBackendAllocWorkspace" not in stages["asm"]


@pytest.mark.broad
@pytest.mark.parametrize(("name", "register", "fma"), [("x86-64-v3", "ymm", True), ("x86-64", "xmm", False)])
def test_code_for_other_instruction_sets(name: str, register: str, fma: bool) -> None:
    asm = dict(stage_texts.stages(net_of("lstm"), name))["asm"]
    assert register in asm and "zmm" not in asm
    assert ("vfmadd" in asm) == fma


@pytest.mark.broad
def test_code_stages_of_training() -> None:
    stages = dict(stage_texts.stages(rnn.RNN(rnn.cells.elman, 8, 8), "x86-64-v4", training=True))
    for name in ("sequence", "forward_train", "backward", "backward_pack_0", "finish_0"):
        assert defines(stages["tir"], name)
    assert "graph elman backward" in stages["differentiate"] and "normalise" not in stages


@pytest.mark.broad
def test_code_stages_of_a_gpu() -> None:
    stages = dict(stage_texts.stages(net_of("gru"), "nvidia-h200", precision="tf32"))
    assert tuple(stages) == (*STAGES, *stage_texts.GPU_STAGES)
    assert "__global__" in stages["cuda"] and "EXPORT(sequence)" in stages["host"] and "def " in stages["tir"]


@pytest.mark.slow
def test_weights_in_8_bits_on_a_gpu() -> None:
    net = rnn.RNN(rnn.cells.gru, 8, 16, dtype="float16")
    stages = dict(stage_texts.stages(net, "nvidia-h200", (1,), precision=None, weights="float8_e4m3"))
    assert "cvt.rn.f16x2.e4m3x2" in stages["cuda"]


@pytest.mark.broad
def test_code_for_another_machine_is_shown() -> None:
    assert "fmla" in dict(stage_texts.stages(net_of("lstm"), "aarch64"))["asm"]
