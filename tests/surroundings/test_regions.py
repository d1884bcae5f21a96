"""Operators that only Relax has, with their neighbours: which steps become one, what is refused, and by what name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import compiled
from onnx_models import model_of, node, onnx_runtime, weights

import tvm_rnn as rnn
from tvm_rnn.compiler.surroundings import with_functions
from tvm_rnn.errors import ConfigError, InputError
from tvm_rnn.surroundings.regions import read_graph
from tvm_rnn.target import host

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-0.5, 0.5, shape).astype("f4")


def front(*after: Any, outputs: str = "y", constants: Any = None) -> Any:
    """x [B, 2, T]: a convolution, pooling, a GRU; then other nodes."""
    nodes = [
        node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2], strides=[2]),
        node("Transpose", ["p"], ["t"], perm=[2, 0, 1]),
        node("GRU", ["t", "W", "R", "B"], ["y", "last"], hidden_size=3),
        *after,
    ]
    own = weights("GRU", 1, 4, 3, RNG)
    known = {"k": random(4, 2, 3), "b": random(4), **{n: own[n] for n in "WRB"}, **(constants or {})}
    return model_of(nodes, {"x": ("f4", ["B", 2, "T"])}, dict.fromkeys(outputs.split(), "f4"), known)


def program(made: Any) -> Any:
    """With its functions, as a module for this CPU has it."""
    return with_functions(rnn.from_onnx(made), host())[0].program


def steps(made: Any) -> list[str]:
    return [step.op for step in program(made).steps]


def test_what_lies_together_is_one_step() -> None:
    (first, *rest) = program(front()).steps
    assert first.op == "Compiled" and first.outputs == ("t",)
    assert [step.op for step in rest] == ["Network", "Compiled"]  # y has another layout than the network's
    assert first.inputs[0] == "x" and "Conv" in first.attributes["operators"]


def test_no_way_leads_out_and_in_again() -> None:
    """Both Convs read x: one is before the network, the other reads what the network makes too."""
    squeeze = node("Squeeze", ["y", "one"], ["s"])
    turn = node("Transpose", ["s"], ["z"], perm=[1, 2, 0])
    side, late = node("Conv", ["x", "q"], ["side"]), node("Conv", ["z", "q2"], ["late"])
    known = {"one": np.array([1]), "q": random(3, 2, 1), "q2": random(3, 3, 1)}
    made = front(squeeze, turn, side, late, outputs="late side", constants=known)
    assert steps(made).count("Compiled") == 2


def test_what_relax_does_not_read_at_once_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_rnn.surroundings import regions

    read = regions.read_graph

    def without_both(model: Any, label: str) -> Any:
        if {"Relu", "MaxPool"} <= {own.op_type for own in model.graph.node}:
            raise regions.Unsupported("a Relu and a MaxPool")
        return read(model, label)

    monkeypatch.setattr(regions, "read_graph", without_both)
    assert steps(front()) == ["Compiled", "Compiled", "Network", "Compiled"]


@pytest.mark.broad
def test_places_that_may_not_be_there_are_looked_at() -> None:
    given = node("Gather", ["x", "at"], ["g"], axis=2)
    made = front(given, outputs="y g", constants={"at": np.array([3])})
    mod = rnn.compile(rnn.from_onnx(made), progress=False)
    x = random(1, 2, 4)
    np.testing.assert_array_equal(mod.run({"x": x})["g"], x[..., 3:])
    with pytest.raises(InputError, match="needed is 3 < T"):
        mod.run({"x": x[..., :3]})


def test_what_relax_cannot_do_is_said_of_every_node() -> None:
    made = front()
    for number in (0, 2):
        made.graph.node[number].attribute.append(onnx.helper.make_attribute("auto_pad", "SAME_UPPER"))
    del made.graph.node[0].attribute[0]
    made.graph.node[0].attribute.append(onnx.helper.make_attribute("strides", [2]))
    with pytest.raises(ConfigError) as caught:
        program(made)
    assert "Conv 'c': TVM does not read it: " in str(caught.value)
    assert "onnx.utils.extract_model(path, 'part.onnx', ['x'], [" in str(caught.value)
    assert "MaxPool 'p': TVM does not read it: " in str(caught.value)


def test_an_output_shape_of_unknown_sizes() -> None:
    last = node("ConvTranspose", ["x", "q"], ["z"], output_shape=[9])
    made = front(last, outputs="z", constants={"q": random(2, 2, 3)})
    made.graph.output.append(onnx.helper.make_tensor_value_info("y", 1, None))
    with pytest.raises(ConfigError, match="ConvTranspose 'z': TVM does not read it: output_shape of sizes"):
        program(made)


OPERATORS: list[tuple[str, dict[str, Any], dict[str, np.ndarray]]] = [
    ("Conv", {"strides": [2], "pads": [0, 1], "dilations": [2]}, {"w": random(6, 4, 3), "b": random(6)}),
    ("Conv", {"group": 2, "auto_pad": "VALID"}, {"w": random(8, 2, 3)}),
    ("ConvTranspose", {"strides": [2], "pads": [1, 1], "output_padding": [1]}, {"w": random(4, 6, 3)}),
    ("MaxPool", {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "ceil_mode": 1}, {}),
    ("AveragePool", {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "count_include_pad": 1}, {}),
    ("AveragePool", {"kernel_shape": [2], "strides": [1], "pads": [0, 1], "ceil_mode": 1}, {}),
    ("GlobalAveragePool", {}, {}),
    ("InstanceNormalization", {}, {"s": random(4), "b": random(4)}),
    ("GroupNormalization", {"num_groups": 2}, {"s": random(4), "b": random(4)}),
    ("Mish", {}, {}),
]


@pytest.mark.broad
@pytest.mark.parametrize(("op", "attributes", "constants"), OPERATORS, ids=str)
def test_operators(op: str, attributes: Any, constants: Any, tmp_path: Path) -> None:
    one = node(op, ["x", *constants], ["y"], **attributes)
    made = model_of([one], {"x": ("f4", ["B", 4, "T"])}, {"y": "f4"}, constants, 21)
    run = compiled(read_graph(made, op), tmp_path)
    for batch, steps in ((1, 5), (2, 7), (1, 16), (3, 37)):
        x = random(batch, 4, steps)
        np.testing.assert_allclose(run(x)[0], onnx_runtime(made, {"x": x})["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", [1, 2])
def test_transposed_convolutions_are_one_region_with_others(axes: int) -> None:
    """Channels come last in convolutions, and not in transposed ones."""
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Erf", ["c"], ["e"])]
    nodes += [node("ConvTranspose", ["e", "w"], ["t"]), node("Conv", ["t", "w"], ["y"])]
    sizes = ("B", 4, *"TU"[:axes])
    made = model_of(nodes, {"x": ("f4", [*sizes])}, {"y": "f4"}, {"w": random(4, 4, *[3] * axes)}, 21)
    assert len(read_graph(made, "all").outputs) == 1


def test_an_input_without_a_shape_is_refused() -> None:
    made = front()
    made.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ConfigError, match="Conv 'c': how many axes 'x' has is not known"):
        program(made)


def test_an_attribute_of_another_version() -> None:
    made = front()
    made.graph.node[0].attribute[0].name = "padding"
    with pytest.raises(ConfigError, match="attribute 'padding' is not one of Conv's"):
        rnn.from_onnx(made)


def test_sizes_are_computed_where_they_are_read() -> None:
    """As exporters write `y.view(x.shape[2] // 2, x.shape[0], -1)`: what -1 stands for follows from sizes, in each
    region."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "ends"], ["two"]),
        node("Div", ["two", "parts"], ["lead"]),
        node("Concat", ["lead", "open"], ["sizes"], axis=0),
        node("Reshape", ["y", "sizes"], ["flat"]),
        node("MatMul", ["flat", "m"], ["out"]),
    ]
    known = {"ends": np.array([2, 0]), "parts": np.array([2, 1]), "open": np.array([-1]), "m": random(3, 2)}
    made, feeds = front(*nodes, outputs="out", constants=known), {"x": random(3, 2, 8)}
    mod = rnn.compile(rnn.from_onnx(made))
    np.testing.assert_allclose(mod.run(feeds)["out"], onnx_runtime(made, feeds)["out"], atol=1e-6)


def test_sizes_of_different_names_are_compared_when_a_model_runs() -> None:
    nodes = [node("Conv", ["x", "k"], ["c"]), node("MatMul", ["c", "z"], ["m"]), node("Add", ["m", "s"], ["y"])]
    shapes = {"x": ("f4", ["B", 2, "T"]), "z": ("f4", ["frames", "U"]), "s": ("f4", ["rows", "U"])}
    made = model_of(nodes, shapes, {"y": "f4"}, {"k": random(4, 2, 3)})
    mod = rnn.compile(rnn.from_onnx(made), progress=False)
    for frames, rows in ((7, 4), (7, 1)):  # one row goes with every row
        feeds = {"x": random(2, 2, 9), "z": random(frames, 5), "s": random(rows, 5)}
        np.testing.assert_allclose(mod.run(feeds)["y"], onnx_runtime(made, feeds)["y"], rtol=1e-4, atol=1e-5)
    for frames, rows, text in ((8, 4, "needed is T - 2 = frames"), (6, 4, "T - 2 = frames"), (7, 3, "needed is")):
        feeds = {"x": random(2, 2, 9), "z": random(frames, 5), "s": random(rows, 5)}
        with pytest.raises(InputError, match=text) as caught:
            mod.run(feeds)
        assert f"float32[{frames}, 5]" in str(caught.value)
    with pytest.raises(InputError, match="needed is T - 2 >= 0"):
        mod.run({"x": random(2, 2, 1), "z": random(0, 5), "s": random(4, 5)})
