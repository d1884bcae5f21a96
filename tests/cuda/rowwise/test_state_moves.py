"""Kernels for states: which values they touch, and that they compile for states of every shape."""

from __future__ import annotations

import pytest
from compiled_kernels import layers_of, text_of

from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.rowwise.state_moves import COPIES, Buffers, StateCopy, StateKernels, Step, Tile, copy_states


def kernels(name: str, precision: str) -> StateKernels:
    net, layers = layers_of(name)
    graph = layers.graphs[0]
    return StateKernels(Layout(graph, precision, Weights(graph, 0, precision), precision), "g0", net.cell.initial)


def names(kernel: Kernel) -> list[str]:
    return [name for name, _ in kernel.pointers]


def test_storage_copies_follow_the_states() -> None:
    states = kernels("lstm", "bfloat16")
    assert names(states._restart) == ["state0", "state1", "shadow0", "reset", "lengths"]
    expected = ["old0", "old1", "old_shadow0", "state0", "state1", "shadow0", "output", "lengths"]
    assert names(states._freeze) == expected


@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["lstm_projection", "mlstm"])
def test_states_of_several_shapes(name: str, precision: str) -> None:
    states = kernels(name, precision)
    text = text_of(states._restart, states._freeze)
    assert text.count("__launch_bounds__(128)") >= 2


def test_a_restart_writes_the_initial_value() -> None:
    states = kernels("slstm", "float32")
    assert "-1.000000e+30" in text_of(states._restart)


def test_moves_of_several_layers_are_one_launch() -> None:
    program = Program("bfloat16")
    copies = [
        StateCopy(Pointer("a", "bfloat16"), Pointer("b", "float32"), n + 1, Place("float32", 8)) for n in range(COPIES)
    ]
    copy_states(program.sequence, "load", copies)
    assert len(program.kernels) == 1
    copy_states(program.sequence, "save", [*copies, *copies[:3]])
    assert sorted(program.kernels) == ["load0", "save0", "save1"]
    assert names(program.kernels["save1"])[:2] == ["from0", "to0"] and len(program.kernels["save1"].pointers) == 6
    text_of(*program.kernels.values())


def test_what_has_to_be_said() -> None:
    x, y = Pointer("x", "float32"), Pointer("y", "float32")
    tile = Tile([x], y, "start", "count", False, 0)
    assert tile.kept == [] and Buffers({}, [(x, y)], {}, {}, {}).mask_keys is None
    assert Step(tile, "t", [x], [y], {}, {}).tile is tile
