"""Two layers on the same steps in opposite orders become one in both directions; other pairs stay two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import model_of, node, onnx_runtime, weights

import tvm_rnn as rnn
from tvm_rnn.oracle.tolerance import assert_close

H = 4
CONSTANTS = {
    "last": np.array([-1]),
    "front": np.array([np.iinfo(np.int64).min]),
    "nought": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
}


def turned(name: str, made: str, axis: str = "nought") -> Any:
    return node("Slice", [name, "last", "front", axis, "last"], [made])


def pair(
    before: list[Any],
    kind: str = "GRU",
    states: bool = False,
    first: Any = ("x", ""),
    second: Any = ("r", ""),
    **own: Any,
) -> Any:
    """A layer on x and another on r, with the steps that make these of X; own: attributes of the second."""
    rng = np.random.default_rng(0)
    arrays = {f"{n}{i}": value for i in range(2) for n, value in weights(kind, 1, 3, H, rng).items() if n in "WRB"}
    begin = [["h0"], ["h1"]] if states else [[], []]
    nodes = [
        node(
            kind,
            [x, f"W{i}", f"R{i}", f"B{i}", lengths, *begin[i]],
            [f"Y{i}", f"H{i}"],
            hidden_size=H,
            **(own if i else {}),
        )
        for i, (x, lengths) in enumerate((first, second))
    ]
    given = {"X": ("f4", ["T", "B", 3])} | {f"h{i}": ("f4", [1, "B", H]) for i in range(2) if states}
    given |= {"lengths": ("i4", ["B"])} if first[1] else {}
    return model_of([*before, *nodes], given, {f"{n}{i}": "f4" for n in "YH" for i in range(2)}, arrays | CONSTANTS)


def directions_of(made: Any, shape: tuple[int, ...] = (5, 2, 3), **feeds: Any) -> list[int]:
    """The directions of each network; what they compute is what ONNX Runtime computes."""
    net = rnn.from_onnx(made)
    feeds = {"X": np.random.default_rng(1).normal(size=shape).astype("f4"), **feeds}
    assert_close(rnn.reference(net).run(feeds), onnx_runtime(made, feeds), "float32", 5)
    return [own.num_directions for own in getattr(net, "networks", [net])]


SAME = [node("Identity", ["X"], ["x"])]


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_a_layer_on_the_steps_in_reverse_order(kind: str) -> None:
    assert directions_of(pair([*SAME, turned("x", "r")], kind)) == [2]


def test_first_states_are_those_of_both() -> None:
    begin = {f"h{i}": np.random.default_rng(i).normal(size=(1, 2, H)).astype("f4") for i in range(2)}
    assert directions_of(pair([*SAME, turned("x", "r")], states=True), **begin) == [2]


def test_steps_between_may_have_moved_what_was_turned() -> None:
    batch_first = [node("Transpose", [own], [made], perm=[1, 0, 2]) for own, made in (("X", "x"), ("t", "r"))]
    assert directions_of(pair([turned("X", "t", "one"), *batch_first])) == [2]


def test_a_node_of_the_reverse_direction() -> None:
    assert directions_of(pair(SAME, second=("x", ""), direction="reverse")) == [2]
    made = pair(SAME, first=("x", "lengths"), second=("x", "lengths"), direction="reverse")
    assert directions_of(made, lengths=np.array([2, 5], "i4")) == [2]


@pytest.mark.parametrize("axis", ["one", "two"])
def test_another_axis_in_reverse_order_is_no_direction(axis: str) -> None:
    assert directions_of(pair([*SAME, turned("x", "r", axis)])) == [1, 1]


def test_pairs_that_stay_two() -> None:
    assert directions_of(pair(SAME, second=("x", ""))) == [1, 1]  # both from the first step on
    assert directions_of(pair([*SAME, turned("x", "r")], direction="reverse")) == [1, 1]
    made = pair([*SAME, turned("x", "r")], first=("x", "lengths"), second=("r", "lengths"))
    assert directions_of(made, lengths=np.array([2, 5], "i4")) == [1, 1]  # steps after the end would come first
    assert directions_of(pair([*SAME, turned("x", "r")], clip=0.5)) == [1, 1]
