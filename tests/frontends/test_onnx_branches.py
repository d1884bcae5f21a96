"""If in ONNX models: the branch that is taken, where a condition is known; what to fix, where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, onnx_runtime, weights

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError

RNG = np.random.default_rng(0)


def branch(nodes: list[Any], *outputs: str, constants: dict[str, np.ndarray] | None = None) -> Any:
    made = [onnx.helper.make_tensor_value_info(name, 1, None) for name in outputs]
    return onnx.helper.make_graph(
        nodes, "branch", [], made, [onnx.numpy_helper.from_array(v, n) for n, v in (constants or {}).items()]
    )


def condition(cond: str, outputs: list[str], then: Any, other: Any) -> Any:
    return node("If", [cond], outputs, then_branch=then, else_branch=other)


def vad(rate: Any = (), shape: Any = (None, None)) -> Any:
    """As a speech detector is: a network for each rate, of a convolution and a GRU. How many steps there are, and
    how many axes, are conditions; names of both networks are the same."""

    def network(width: int, units: int) -> Any:
        own = weights("GRU", 1, 2, 2, RNG)
        constants = {"k": RNG.uniform(-1, 1, (2, 1, width)).astype("f4"), **{n: own[n] for n in "WRB"}}
        constants |= {"last": np.array([-1]), "first": np.array([0]), "one": np.array([1]), "two": np.array(2)}
        squeeze = condition(
            "single",
            ["s"],
            branch([node("Squeeze", ["c", "last"], ["c1"])], "c1"),
            branch([node("Identity", ["c"], ["c2"])], "c2"),
        )
        nodes = [
            node("Unsqueeze", ["x", "one"], ["u"]),
            node("Conv", ["u", "k"], ["c"], strides=[4]),
            node("Shape", ["c"], ["shape"]),
            node("Gather", ["shape", "last"], ["steps"]),
            node("Equal", ["steps", "one"], ["single"]),
            squeeze,
            node("Shape", ["s"], ["shape.s"]),
            node("Size", ["shape.s"], ["rank"]),
            node("Equal", ["rank", "two"], ["flat"]),
            condition(
                "flat",
                ["t"],
                branch([node("Unsqueeze", ["s", "first"], ["t1"])], "t1"),
                branch([node("Transpose", ["s"], ["t2"], perm=[2, 0, 1])], "t2"),
            ),
            node("GRU", ["t", "W", "R", "B", "", "h"], ["y", "after"], hidden_size=2),
        ]
        return branch(nodes, "y", "after", constants=constants)

    nodes = [
        node("Equal", ["rate", "high"], ["is.high"]),
        condition("is.high", ["out", "state"], network(8, 2), network(4, 2)),
        node("Tanh", ["out"], ["k"]),  # a name of both branches
    ]
    inputs = {"x": ("f4", shape), "h": ("f4", [1, None, 2]), "rate": ("i8", rate)}
    return model_of(nodes, inputs, {"k": "f4", "state": "f4"}, {"high": np.array(16)})


CASES = [(16, 8), (8, 4), (8, 8)]


@pytest.mark.parametrize(("rate", "width"), CASES)
def test_a_model_of_branches(rate: int, width: int) -> None:
    made = vad()
    net = rnn.from_onnx(made, given={"rate": rate}, shapes={"x": ["B", width]})
    assert [d.name for d in net.program.inputs] == ["x", "h"]
    assert {step.op for step in net.program.steps}.isdisjoint(("If", "Shape", "Equal"))


@pytest.mark.broad
@pytest.mark.parametrize(("rate", "width"), CASES)
def test_results_are_those_of_onnx_runtime(rate: int, width: int) -> None:
    made = vad()
    mod = rnn.compile(rnn.from_onnx(made, given={"rate": rate}, shapes={"x": ["B", width]}))
    feeds = {"x": RNG.uniform(-1, 1, (3, width)).astype("f4"), "h": RNG.uniform(-1, 1, (1, 3, 2)).astype("f4")}
    want = onnx_runtime(made, {**feeds, "rate": np.array(rate)})
    for name, value in mod.run(feeds).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6)


def test_what_conditions_depend_on_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        rnn.from_onnx(vad())
    assert "If 'out': its condition is not known before the model runs: " in str(caught.value)
    assert "fix it by given={'rate': ...}, shapes={'x': [..., ...]" in str(caught.value)
    assert "give what the file leaves open, as it is said here; or cut out" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        rnn.from_onnx(vad(), given={"rate": 16})
    assert "If 's': " in str(caught.value) and "If 't': " in str(caught.value)
    assert "given" not in str(caught.value)


def test_the_users_model_stays_as_it_is() -> None:
    made = vad()
    before = made.SerializeToString()
    rnn.from_onnx(made, given={"rate": 16}, shapes={"x": ["B", 8]})
    assert made.SerializeToString() == before


def folded(nodes: list[Any], constants: dict[str, np.ndarray], outputs: str = "z") -> list[str]:
    """The operators of a model with a GRU, x [T, B, 2], and these nodes."""
    own = weights("GRU", 1, 2, 3, RNG)
    gru = node("GRU", ["x", "W", "R", "B"], ["y", "last"], hidden_size=3)
    known = {**{n: own[n] for n in "WRB"}, **constants}
    made = model_of([gru, *nodes], {"x": ("f4", ["T", "B", 2])}, dict.fromkeys([*outputs.split(), "last"], "f4"), known)
    return [step.op for step in rnn.from_onnx(made).program.steps if step.op not in ("Network", "Reshape", "Transpose")]


RELU, TANH = branch([node("Relu", ["y"], ["r"])], "r"), branch([node("Tanh", ["y"], ["r"])], "r")


@pytest.mark.parametrize("value", [True, False])
def test_a_constant_condition(value: bool) -> None:
    found = folded([condition("c", ["z"], RELU, TANH)], {"c": np.array([value])})
    assert ["Relu", "Tanh"][not value] in found and len({"Relu", "Tanh"} & {*found}) == 1


def test_branches_of_two_nodes_may_have_the_same_names() -> None:
    twice = [condition("c", ["z"], RELU, TANH), condition("d", ["w"], RELU, TANH)]
    found = folded(twice, {"c": np.array(True), "d": np.array(False)}, "z w")
    assert found.count("Relu") == found.count("Tanh") == 1


def test_a_branch_of_constants_and_of_values_around_it() -> None:
    kept = branch([], "k", "last", constants={"k": np.ones((1, 1, 1, 3), "f4")})
    nodes = [condition("c", ["a", "b"], kept, kept), node("Add", ["a", "b"], ["z"])]
    assert "Add" in folded(nodes, {"c": np.array(True)})


def test_a_size_that_is_not_known_decides_nothing() -> None:
    other = branch([node("Flatten", ["y"], ["r"])], "r")
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "i"], ["steps"], axis=0),
        node("Equal", ["steps", "n"], ["c"]),
        condition("c", ["z"], RELU, other),
    ]
    n = {"n": np.array(2)}
    assert "Relu" in folded(nodes, {"i": np.array(2), **n})
    with pytest.raises(ConfigError, match=r"shapes=.'x': "):
        folded(nodes, {"i": np.array(0), **n})
    nodes[1] = node("Add", ["shape", "i"], ["steps"])  # arithmetic on it
    with pytest.raises(ConfigError, match=r"shapes=.'x': "):
        folded(nodes, {"i": np.array(0), **n})


def test_damaged_nodes_are_refused() -> None:
    one = condition("c", ["z"], RELU, TANH)
    del one.attribute[1]
    for broken in (one, node("If", [], ["z"], then_branch=RELU, else_branch=TANH)):
        with pytest.raises(ConfigError, match="If 'z'"):
            folded([broken], {"c": np.array(one.attribute[0].name != "then_branch")})


def test_branches_that_make_different_shapes_are_named() -> None:
    """As torch writes `squeeze` of an axis whose size it does not know."""
    then = branch([node("Squeeze", ["x", "first"], ["a"])], "a", constants={"first": np.array([0])})
    other = branch([node("Identity", ["x"], ["b"])], "b")
    made = model_of([condition("c", ["z"], then, other)], {"x": ("f4", [1, 3]), "c": ("bool", [])}, {"z": "f4"})
    with pytest.raises(ConfigError) as caught:
        rnn.from_onnx(made)
    assert "but they make 'z' as float32 [3] or float32 [1, 3]; " in str(caught.value)
    assert "given={'c': ...}" in str(caught.value) and "onnx.utils.extract_model(" in str(caught.value)


def test_where_only_a_run_shows_it_both_branches_run_and_one_is_taken() -> None:
    """Networks in branches too."""
    own = weights("GRU", 1, 2, 3, RNG)
    first = node("Squeeze", ["g", "one"], ["r"])
    then = branch(
        [node("GRU", ["x", "W", "R", "B"], ["g", ""], hidden_size=3), first], "r", constants={"one": np.array([1])}
    )
    inner = condition(
        "d", ["r"], branch([node("Exp", ["q"], ["r1"])], "r1"), branch([node("Neg", ["q"], ["r2"])], "r2")
    )
    other = branch([node("MatMul", ["x", "m"], ["q"]), inner], "r")
    known = {**{n: own[n] for n in "WRB"}, "m": RNG.uniform(-1, 1, (2, 3)).astype("f4")}
    inputs = {"x": ("f4", ["T", "B", 2]), "c": ("bool", []), "d": ("bool", [])}
    made = model_of([condition("c", ["z"], then, other)], inputs, {"z": "f4"}, known)
    mod = rnn.compile(rnn.from_onnx(made))
    for c in (True, False):
        for d in (True, False):
            x = RNG.uniform(-1, 1, (4, 2, 2)).astype("f4")
            feeds = {"x": x, "c": np.array(c), "d": np.array(d)}
            np.testing.assert_allclose(mod.run(feeds)["z"], onnx_runtime(made, feeds)["z"], atol=1e-6)
