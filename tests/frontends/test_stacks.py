"""Stacks: which chains between two nodes come to nothing, and which pairs must stay two networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node, onnx_runtime, weights

import tvm_rnn as rnn
from tvm_rnn.frontends.folding import Recurrent, Steps, add_network
from tvm_rnn.frontends.stacks import Stacks, build_networks, needed, ordered, without_identities
from tvm_rnn.network.model import Model
from tvm_rnn.network.origin import Origin
from tvm_rnn.network.program import NETWORK, Declared, Step
from tvm_rnn.oracle.tolerance import assert_close

H = 4
JOINED = [node("Transpose", ["Y0"], ["t"], perm=[0, 2, 1, 3]), node("Reshape", ["t", "shape"], ["z"])]
SQUEEZED = [node("Squeeze", ["Y0", "one"], ["z"])]
LONG = [
    node("Transpose", ["Y0"], ["t"], perm=[2, 0, 1, 3]),  # [B, T, D, H], as batch-first exporters go through
    node("Shape", ["t"], ["s"]),
    node("Slice", ["s", "nought", "two"], ["front"]),
    node("Concat", ["front", "rest"], ["whole"], axis=0),
    node("Reshape", ["t", "whole"], ["r"]),
    node("Identity", ["r"], ["i"]),
    node("Transpose", ["i"], ["z"], perm=[1, 0, 2]),
]
# Right for the same elements, in another order: only a run tells it from JOINED.
WRONG = [node("Reshape", ["Y0", "shape"], ["z"])]
CONSTANTS = {
    "shape": np.array([0, 0, -1]),
    "one": np.array([1]),
    "nought": np.array([0]),
    "two": np.array([2]),
    "rest": np.array([-1]),
}


def model(
    chain: list[Any], directions: int = 1, second: str = "GRU", hidden: int = H, more: Any = (), **changes: Any
) -> Any:
    """Two recurrent nodes with a chain between them. more: nodes behind; their first outputs are outputs too."""
    rng = np.random.default_rng(0)
    lower, upper = weights("GRU", directions, 3, H, rng), weights(second, directions, directions * H, hidden, rng)
    arrays = {f"{n}{i}": own[n] for i, own in enumerate((lower, upper)) for n in "WRB"}
    direction = {"direction": "bidirectional"} if directions == 2 else {}
    first = node("GRU", ["X", "W0", "R0", "B0", *changes.get("first", [])], ["Y0", "H0"], hidden_size=H, **direction)
    inputs = ["z", "W1", "R1", "B1", *changes.get("upper", [])]
    last = node(second, inputs, ["Y1", "H1"], hidden_size=hidden, **direction, **changes.get("attributes", {}))
    given = {"X": ("f4", ["T", "B", 3]), **changes.get("inputs", {})}
    outputs = {"Y1": "f4", "H0": "f4", "H1": "f4", **{n.output[0]: "f4" for n in more}}
    return model_of([first, *chain, last, *more], given, outputs, arrays | CONSTANTS)


def networks_of(made: Any, **feeds: Any) -> int:
    """How many networks it became; what they compute is what ONNX Runtime computes."""
    net = rnn.from_onnx(made)
    x = np.random.default_rng(1).normal(size=(5, 2, 3)).astype("f4")
    assert_close(rnn.reference(net).run({"X": x, **feeds}), onnx_runtime(made, {"X": x, **feeds}), "float32", 5)
    return len(net.networks) if hasattr(net, "networks") else 1


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("chain", [JOINED, LONG], ids=["joined", "long"])
def test_chains_that_come_to_nothing(chain: list[Any], directions: int) -> None:
    assert networks_of(model(chain, directions)) == 1


def test_sizes_and_states_may_differ_by_layer() -> None:
    made = model(SQUEEZED, hidden=6, first=["", "h"], inputs={"h": ("f4", [1, "B", H])})
    net = rnn.from_onnx(made)
    assert net.num_layers == 2 and [layer.sizes["H"] for layer in net.layers] == [H, 6]
    assert networks_of(made, h=np.ones((1, 2, H), "f4")) == 1
    assert net.origin is not None and net.origin.layer == "GRU 'Y0', GRU 'Y1'"


def test_lengths_that_are_the_same_for_both() -> None:
    given: dict[str, Any] = {"first": ["n"], "inputs": {"n": ("i4", ["B"])}}
    lengths = np.array([5, 2], "i4")
    assert networks_of(model(JOINED, 2, upper=["n"], **given), n=lengths) == 1
    assert networks_of(model(JOINED, 2, **given), n=lengths) == 2


@pytest.mark.parametrize(
    "made",
    [
        model(WRONG, 2),
        model([node("Tanh", ["Y0"], ["t"]), node("Squeeze", ["t", "one"], ["z"])]),
        model(SQUEEZED, second="RNN"),
        model(SQUEEZED, attributes={"direction": "reverse"}),
        model(SQUEEZED, attributes={"linear_before_reset": 1}),
        model(SQUEEZED, upper=["", "H0"]),  # its first state is the lower one's last
        model(SQUEEZED, more=[node("Identity", ["z"], ["seen"])]),
        model(SQUEEZED, more=[node("Add", ["Y1", "Y0"], ["residual"])]),
    ],
    ids=["other order", "tanh", "other kind", "reverse", "other cell", "state", "seen", "residual"],
)
def test_what_must_stay_two_networks(made: Any) -> None:
    assert networks_of(made) == 2


def test_three_layers_and_a_branch() -> None:
    """The first two are one network, whose y two others read."""
    rng = np.random.default_rng(0)
    own = [weights("RNN", 1, 3 if i == 0 else H, H, rng) for i in range(4)]
    arrays = {f"{n}{i}": w[n] for i, w in enumerate(own) for n in "WRB"} | CONSTANTS

    def layer(i: int, x: str) -> list[Any]:
        inputs = [x, f"W{i}", f"R{i}", f"B{i}"]
        return [node("RNN", inputs, [f"Y{i}"], hidden_size=H), node("Squeeze", [f"Y{i}", "one"], [f"z{i}"])]

    nodes = [*layer(0, "X"), *layer(1, "z0"), *layer(2, "z1"), *layer(3, "z1")]
    made = model_of(nodes, {"X": ("f4", [None, None, 3])}, {"z2": "f4", "z3": "f4"}, arrays)
    net = rnn.from_onnx(made)
    assert [n.num_layers for n in net.networks] == [2, 1, 1]
    assert networks_of(made) == 3


def step(op: str, inputs: str, outputs: str) -> Step:
    return Step(op, tuple(inputs.split()), tuple(outputs.split()))


def test_only_what_is_needed_in_order() -> None:
    steps = [step("Add", "c a", "d"), step("Neg", "a", "b"), step("Split", "a", "c e"), step(NETWORK, "d", "f g")]
    assert needed(steps, ["f"]) == [steps[0], steps[2], steps[3]]
    assert ordered(steps) == [steps[2], steps[0], steps[1], steps[3]]
    assert needed(steps, []) == []


def test_names_alone_are_no_steps() -> None:
    steps = [
        step("Neg", "a", "b"),
        step("Identity", "b", "c"),
        step("Abs", "c", "d"),
        step("Identity", "d", "Y"),
        step("Identity", "d", "Z"),
        step("Identity", "a", "A"),
    ]
    found = without_identities(steps, ["Y", "Z", "A"])
    assert [(s.op, *s.inputs, *s.outputs) for s in found] == [
        ("Neg", "a", "b"),
        ("Abs", "b", "Y"),
        ("Identity", "Y", "Z"),
        ("Identity", "a", "A"),
    ]


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
    return build_networks(steps, stacks, SOURCE)


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
