"""Kernels for states: which values they touch, and that they compile for states of every shape."""

from __future__ import annotations

import pytest
from compiled_kernels import layers_of, text_of

from tvm_rnn.cuda.kernel import Kernel
from tvm_rnn.cuda.layout import Layout
from tvm_rnn.cuda.states import StateKernels
from tvm_rnn.cuda.weights import Weights


def kernels(name: str, precision: str) -> StateKernels:
    net, layers = layers_of(name)
    graph = layers.graphs[0]
    return StateKernels(Layout(graph, precision, Weights(graph, 0, precision), precision), "g0", net.cell.initial)


def names(kernel: Kernel) -> list[str]:
    return [name for name, _ in kernel.pointers]


def test_storage_copies_follow_the_states() -> None:
    states = kernels("lstm", "bfloat16")
    assert names(states._load) == ["user0", "user1", "state0", "state1", "shadow0"]
    assert names(states._save) == ["state0", "state1", "user0", "user1"]
    assert names(states._restart) == ["state0", "state1", "shadow0", "reset", "lengths"]
    expected = ["old0", "old1", "old_shadow0", "state0", "state1", "shadow0", "output", "lengths"]
    assert names(states._freeze) == expected


@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["lstm_projection", "mlstm"])
def test_states_of_several_shapes(name: str, precision: str) -> None:
    states = kernels(name, precision)
    text = text_of(states._load, states._save, states._restart, states._freeze)
    assert text.count("__launch_bounds__(128)") >= 4


def test_a_restart_writes_the_initial_value() -> None:
    states = kernels("slstm", "float32")
    assert "-1.000000e+30" in text_of(states._restart)
