"""lower_training: the order of time in both functions, and code that does not grow with layers."""

from __future__ import annotations

import re

import pytest
from networks import network

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.cpu.lower_network import verify
from tvm_rnn.cpu.training.lower_backward import Backward
from tvm_rnn.cpu.training.lower_forward import ForwardTrain
from tvm_rnn.cpu.training.tape_layout import TapeLayout
from tvm_rnn.graph.graph import Layers
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]


def both(net: rnn.RNN) -> tuple[ForwardTrain, Backward]:
    layers = pipeline.run(net, V4, training=True)[-1][1]
    backs = Layers(tuple(g.backward for g in layers.graphs if g.backward is not None), layers.of_layer)
    forward, backward = ForwardTrain(net, layers, Options(V4), number=1), Backward(net, backs, Options(V4), number=2)
    for part in (forward, backward):
        part.use(TapeLayout(net, layers, part.lanes))
    return forward, backward


@pytest.mark.parametrize("directions", [False, True], ids=["forward", "both ways"])
def test_code_does_not_grow_with_layers(directions: bool) -> None:
    texts = []
    for layers in (3, 7):
        net = network("elman", 16, 8 if directions else 16, num_layers=layers, bidirectional=directions)
        functions = [part.functions() for part in both(net)]
        scripts = [functions[0]["forward_train"].script(), functions[1]["backward"].script()]
        texts.append([re.sub(r"\d+", "N", script) for script in scripts])
    assert texts[0] == texts[1]


def test_time_is_in_order_in_both_functions() -> None:
    forward, backward = both(network("gru", 8, 8))
    for func in (forward.functions()["forward_train"], backward.functions()["backward"]):
        verify(func)
        assert re.search(r"for .*\btile\b.* in ", func.script()) and "for step in" in func.script()
