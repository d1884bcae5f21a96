"""Stacks as networks: weights by layer and direction, origins, weights that are values, and the program around them."""

from __future__ import annotations

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.frontends.folding import Steps
from tvm_rnn.frontends.layers import Recurrent, add_network
from tvm_rnn.frontends.networks import build_networks
from tvm_rnn.frontends.stacks import Stacks
from tvm_rnn.network.model import Model
from tvm_rnn.network.origin import Origin
from tvm_rnn.network.program import Declared

SOURCE = Origin("keras", "", "m.keras", "ab12")


def build(*kinds: rnn.Cell, brought: bool = False) -> rnn.RNN | Model:
    """Layers one on top of the other, both directions of the first cell's, with a constant for every parameter."""
    steps = Steps([Declared("x", "float32", None)], [Declared("y", "float32", None)])
    layers, above, width = [], "x", 3
    for number, cell in enumerate(kinds):
        shapes = rnn.RNN(cell, width, 4, bidirectional=True).layers[0].graph.params
        params = []
        for d in range(2):
            own = {p.name: steps.keep(np.full(p.shape, number + d / 10), "float32") for p in shapes}
            params.append({name: "W" if brought and name == "W" else value for name, value in own.items()})
        pair = (np.zeros(4), np.ones(4))
        layers.append(Recurrent(f"{cell.name} {number}", cell, width, 4, False, "float32", params, [pair, pair]))
        above, *_ = add_network(steps, layers[-1], above, "", [""] * len(cell.states), number)
        width = 8
    steps.outputs = [Declared(above, "float32", None)]
    stacks = Stacks(steps, layers)
    stacks.merge()
    return build_networks(steps, layers, stacks, SOURCE)


def test_a_stack_is_one_network_with_its_weights_in_place() -> None:
    net = build(rnn.cells.elman, rnn.cells.elman, rnn.cells.elman)
    assert isinstance(net, rnn.RNN) and net.num_layers == 3 and net.bidirectional
    assert net.weights["R_l2"][0, 0] == 2 and net.weights["b_l1_reverse"][0] == np.float32(1.1)
    assert net.origin is not None and net.origin.layer == "elman 0, elman 1, elman 2" and net.origin.sha256 == "ab12"
    assert set(net.origin.biases) == {f"b_l{i}{s}" for i in range(3) for s in ("", "_reverse")}
    assert net.program is not None and len(net.program.steps) == 1 and not net.program.constants


def test_cells_that_differ_are_networks_of_their_own() -> None:
    model = build(rnn.cells.elman, rnn.cells.elman_relu, rnn.cells.elman_relu)
    assert isinstance(model, Model) and [net.num_layers for net in model.networks] == [1, 2]
    assert model.origin.layer == "elman 0; elman_relu 1, elman_relu 2" and model.networks[0].program is None


def test_one_weight_that_is_a_value_makes_all_of_them_values() -> None:
    net = build(rnn.cells.elman, brought=True)
    assert isinstance(net, rnn.RNN) and not net.weights and net.program is not None and net.program.brings_weights
    (step,) = net.program.steps
    assert step.attributes["weights"] == list(net.weight_shapes) and step.inputs[3] == "W"
    assert set(net.program.constants) == set(step.inputs[4:6]) | {step.inputs[7], step.inputs[8]}
