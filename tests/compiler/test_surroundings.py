"""Models with convolutions around networks: compiled whole, in Python, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, of_16_bits, onnx_runtime, weights

import tvm_rnn as rnn
from tvm_rnn.compiler.surroundings import Around, with_functions
from tvm_rnn.errors import ConfigError
from tvm_rnn.network.model import widened
from tvm_rnn.runtime.runtime_model import call_compiled
from tvm_rnn.target import resolve

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-0.5, 0.5, shape).astype("f4")


def speech(cell: str = "GRU") -> Any:
    """x [B, 2, T]: a convolution, a norm, pooling, a network, and a convolution of all its steps."""
    own = weights(cell, 1, 4, 3, RNG)
    nodes = [
        node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1]),
        node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2], strides=[2]),
        node("Transpose", ["p"], ["t"], perm=[2, 0, 1]),
        node(cell, ["t", "W", "R", "B"], ["y", "last"], hidden_size=3),
        node("Squeeze", ["y", "one"], ["s"]),
        node("Transpose", ["s"], ["z"], perm=[1, 2, 0]),
        node("Conv", ["z", "k2"], ["c2"], pads=[1, 1], strides=[2]),
        node("InstanceNormalization", ["c2", "b", "b"], ["i"]),
        node("GlobalAveragePool", ["i"], ["out"]),
    ]
    known = {"k": random(4, 2, 3), "b": random(4), "v": np.abs(random(4)), "k2": random(4, 3, 3), "one": np.array([1])}
    inputs, outputs = {"x": ("f4", ["B", 2, "T"])}, {"out": "f4", "last": "f4", "c2": "f4"}
    return model_of(nodes, inputs, outputs, known | {name: own[name] for name in "WRB"})


def test_other_networks_stay_as_they_are() -> None:
    net = rnn.RNN(rnn.cells.gru, 2, 3)
    assert with_functions(net, resolve("llvm")) == (net, Around())


def test_a_model_without_networks_is_one_function() -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    made = model_of(nodes, {"x": ("f4", ["B", 3])}, {"y": "f4"}, {"w": random(3, 5)})
    net = rnn.from_onnx(made)
    assert net.networks == [] and [step.op for step in net.program.steps] == ["MatMul", "Relu"]
    assert [step.op for step in with_functions(net, resolve("llvm"))[0].program.steps] == ["Compiled"]
    mod, feeds = rnn.compile(net), {"x": random(7, 3)}
    np.testing.assert_allclose(mod.run(feeds)["y"], onnx_runtime(made, feeds)["y"], rtol=1e-5, atol=1e-6)
    assert repr(mod) == "<ModelModule x -> y, on llvm: no networks>"
    with pytest.raises(ConfigError, match="no recurrent network is in this model"):
        rnn.explain(mod)
    mod.threads = 1
    assert mod.threads == 1


def attributes_of(net: Any, target: str) -> list[dict[str, Any]]:
    return [step.attributes for step in with_functions(net, resolve(target))[0].program.steps if step.op == "Compiled"]


def test_functions_for_a_gpu_are_kernels() -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    net = rnn.from_onnx(model_of(nodes, {"x": ("f4", ["B", 3])}, {"y": "f4"}, {"w": random(3, 5)}))
    _, around = with_functions(net, resolve("nvidia-h200"))
    assert not around.functions and [own.name for own in around.on_gpu] == ["around_0"]
    (facts,) = attributes_of(net, "nvidia-h200")
    assert facts["on"] == "gpu" and facts["constants"] == 1


def test_what_no_kernel_is_made_of_is_for_the_host_and_says_why() -> None:
    nodes = [node("Reshape", ["x", "s"], ["y"])]
    net = rnn.from_onnx(model_of(nodes, {"x": ("f4", ["B", 3]), "s": ("i8", [2])}, {"y": "f4"}, {}))
    _, around = with_functions(net, resolve("nvidia-h200"))
    assert len(around.functions) == 2 and not around.on_gpu
    assert resolve("nvidia-h200").host.name == "x86-64-v3"
    (facts,) = attributes_of(net, "nvidia-h200")
    assert (facts["on"], facts["why"]) == ("cpu", "elements of arrays decide sizes")
    assert "on" not in attributes_of(net, "llvm")[0]


@pytest.mark.slow
def test_a_file_for_gpus_has_what_runs_on_the_host() -> None:
    own = weights("GRU", 1, 4, 3, RNG)
    nodes = [node("GRU", ["x", "W", "R", "B"], ["y", "last"], hidden_size=3), node("Reshape", ["last", "s"], ["p"])]
    inputs = {"x": ("f4", ["T", "B", 4]), "s": ("i8", [2])}
    net = rnn.from_onnx(model_of(nodes, inputs, {"p": "f4"}, {n: own[n] for n in "WRB"}))
    mod = rnn.compile(net, target="nvidia-h200")
    assert "avx2" in mod.manifest.target.features
    (step,) = [step for step in mod.manifest["model"]["steps"] if step["op"] == "Compiled"]
    x = random(1, 5, 3)
    (found,) = call_compiled(mod, [x, np.array([3, 5])], step["attributes"])  # without the GPU that the network needs
    np.testing.assert_array_equal(found, x.reshape(3, 5))


def test_what_relax_reads_is_compiled_whatever_is_around_it() -> None:
    """A head of a model without any operator that must be compiled."""
    own = weights("GRU", 1, 4, 3, RNG)
    nodes = [node("GRU", ["x", "W", "R", "B"], ["y"], hidden_size=3), node("Softmax", ["y"], ["p"], axis=-1)]
    net = rnn.from_onnx(model_of(nodes, {"x": ("f4", ["T", "B", 4])}, {"p": "f4"}, {n: own[n] for n in "WRB"}))
    assert [step.op for step in with_functions(net, resolve("llvm"))[0].program.steps] == ["Network", "Compiled"]


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("cell", ("LSTM", "GRU"))
def test_a_whole_model(cell: str) -> None:
    made = speech(cell)
    mod = rnn.compile(rnn.from_onnx(made))
    for batch, steps in ((1, 2), (1, 9), (2, 40), (3, 101)):
        feeds = {"x": np.random.default_rng(steps).normal(size=(batch, 2, steps)).astype("f4")}
        found = mod.run(feeds)
        for name, value in onnx_runtime(made, feeds).items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.broad
def test_a_model_of_two_networks() -> None:
    made = speech()
    own = weights("LSTM", 1, 4, 5, RNG)
    for name in "WRB":
        made.graph.initializer.append(onnx.numpy_helper.from_array(own[name], f"{name}2"))
    made.graph.node.append(node("Transpose", ["c2"], ["t2"], perm=[2, 0, 1]))
    made.graph.node.append(node("LSTM", ["t2", "W2", "R2", "B2"], ["y2"], hidden_size=5))
    made.graph.output.append(onnx.helper.make_tensor_value_info("y2", 1, None))
    mod = rnn.compile(rnn.from_onnx(made))
    feeds = {"x": random(2, 2, 21)}
    found = mod.run(feeds)
    for name, value in onnx_runtime(made, feeds).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.broad
def test_infinities_and_nan_do_not_vanish_as_onnx_runtime_has_it() -> None:
    """Of a product with 0, of what is subtracted from itself or compared with itself, inside of other operators too."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Mul", ["r", "zero"], ["product"]),
        node("Mul", ["negative", "x"], ["turned"]),
        node("Mul", ["x", "row"], ["masked"]),
        node("Div", ["zero", "x"], ["none"]),
        node("Sub", ["x", "x"], ["rest"]),
        node("Tanh", ["rest"], ["later"]),
        node("Equal", ["r", "r"], ["same"]),
        node("Not", ["same"], ["other"]),
        node("Where", ["other", "one", "x"], ["filled"]),
    ]
    names = ["product", "turned", "masked", "none", "rest", "later", "filled"]
    known = {"zero": np.float32(0), "negative": np.float32(-0.0), "one": np.float32(1), "row": np.float32([0, 0, 1, 0])}
    model = model_of(nodes, {"x": ("f4", ["T", 4])}, dict.fromkeys(names, "f4"), known)
    x = np.array([[1, np.inf, -np.inf, np.nan], [-3, 0, np.nan, -np.inf]], "f4")
    found, expected = rnn.compile(rnn.from_onnx(model), progress=False).run({"x": x}), onnx_runtime(model, {"x": x})
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name], name)
        np.testing.assert_array_equal(np.isnan(found[name]), np.isnan(expected[name]), name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernels_around_networks_of_16_bits_read_and_write_their_arrays(dtype: str) -> None:
    """What the caller gives and gets is as the file has it; bfloat16, which NumPy lacks, is float32."""
    net: Any = rnn.from_onnx(of_16_bits(dtype))
    made, around = with_functions(widened(net, None), resolve("nvidia-h200"))
    before, after = (step.attributes for step in made.program.steps if step.op == "Compiled")
    ends = dtype if dtype == "float16" else "float32"
    assert [own["on"] for own in (before, after)] == ["gpu", "gpu"] and not around.functions
    assert (before["takes"], before["dtypes"]) == ([ends], [dtype])
    assert {*after["takes"]} == {dtype} and {*after["dtypes"]} == {ends}
