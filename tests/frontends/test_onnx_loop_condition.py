"""Loop nodes that a condition ends, with a most of steps, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import model_of, node, onnx_runtime

import tvm_rnn as rnn
from tvm_rnn.errors import ConfigError

helper = onnx.helper
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
RNG = np.random.default_rng(0)
W = RNG.uniform(-0.4, 0.4, (5, 5)).astype("f4")
# The state settles: h' = tanh(h @ W + bias); it goes on while one of its elements moves by more than `enough`.
STEP = [
    node("MatMul", ["h", "W"], ["sum"]),
    node("Add", ["sum", "bias"], ["more"]),
    node("Tanh", ["more"], ["new_h"]),
]
MOVES = [
    *(node("Sub", ["new_h", "h"], ["by"]), node("Abs", ["by"], ["size"])),
    node("ReduceMax", ["size"], ["most"], axes=[0, 1], keepdims=0),
    node("Greater", ["most", "enough"], ["goes_on"]),
]


def loop(nodes: Sequence[Any], outputs: Sequence[str] = (), first: str = "true", **more: np.ndarray) -> Any:
    """A model with a Loop of at most 40 steps from h_0 [2, 5]; xs [40, 2, 5] is there for its steps."""
    value = helper.make_tensor_value_info
    made: list[Any] = [value("goes_on", BOOL, []), value("new_h", FLOAT, [2, 5])]
    body = helper.make_graph(
        list(nodes),
        "body",
        [value("i", INT64, []), value("live", BOOL, []), value("h", FLOAT, [2, 5])],
        [*made, *(value(name, FLOAT, [2, 5]) for name in outputs)],
    )
    constants = {"M": np.array(40), "true": np.array(True), "W": W, "enough": np.array(1e-3, "f4"), **more}
    one = node("Loop", ["M", first, "h_0"], ["h_n", *(f"{name}s" for name in outputs)], body=body)
    inputs: dict[str, tuple[str, Sequence[Any]]] = {"h_0": ("f4", [2, 5]), "bias": ("f4", [2, 5])}
    inputs = inputs if "bias" not in more else {"h_0": inputs["h_0"]}
    inputs |= {"xs": ("f4", [40, 2, 5])} if any("xs" in own.input for own in nodes) else {}
    inputs |= {first: ("?", [])} if first not in constants else {}
    return model_of([one], inputs, {"h_n": "f4", **{f"{name}s": "f4" for name in outputs}}, constants)


BIAS = RNG.uniform(-0.2, 0.2, (2, 5)).astype("f4")


def agrees(made: Any, feeds: Mapping[str, np.ndarray], compiled: bool = False) -> np.ndarray:
    net = rnn.from_onnx(made)
    found = (rnn.compile(net).run(feeds) if compiled else rnn.reference(net).run(feeds))["h_n"]
    np.testing.assert_allclose(found, onnx_runtime(made, feeds)["h_n"], atol=2e-6)
    return found


def test_it_ends_where_onnx_runtime_does() -> None:
    """Begun far off, near, and where it is: after many steps, a few, and one."""
    made = loop([*STEP, *MOVES], bias=BIAS)
    settled = agrees(made, {"h_0": np.ones((2, 5), "f4")}).astype("f4")
    again = agrees(made, {"h_0": settled})
    assert 0 < np.abs(again - settled).max() < 1e-3
    agrees(made, {"h_0": settled + np.float32(0.02)}, compiled=True)


def test_what_it_takes_at_each_step() -> None:
    """Steps of xs are added up until their sum is above 3; in the last case all are."""
    nodes = [
        node("Gather", ["xs", "i"], ["x"], axis=0),
        node("Add", ["h", "x"], ["new_h"]),
        node("ReduceMax", ["new_h"], ["most"], axes=[0, 1], keepdims=0),
        node("Less", ["most", "limit"], ["goes_on"]),
    ]
    made, xs = loop(nodes, limit=np.array(3, "f4"), bias=BIAS), RNG.uniform(0, 0.5, (40, 2, 5)).astype("f4")
    for scale in (1, 0.01):
        agrees(made, {"h_0": np.zeros((2, 5), "f4"), "xs": xs * np.float32(scale)})


@pytest.mark.parametrize("begins", [True, False])
def test_a_first_condition_that_a_run_gives(begins: bool) -> None:
    feeds = {"h_0": np.ones((2, 5), "f4"), "begins": np.array(begins)}
    found = agrees(loop([*STEP, *MOVES], first="begins", bias=BIAS), feeds)
    assert begins or (found == 1).all()


def test_a_condition_that_is_false() -> None:
    made = loop([*STEP, *MOVES], first="never", bias=BIAS, never=np.array(False))
    assert (agrees(made, {"h_0": np.ones((2, 5), "f4")}) == 1).all()


def test_a_body_that_takes_nothing_goes_on_to_the_end() -> None:
    agrees(loop([*STEP, node("Identity", ["live"], ["goes_on"])], bias=BIAS), {"h_0": np.ones((2, 5), "f4")})


def test_results_of_each_step_are_refused() -> None:
    twice = node("Add", ["new_h", "new_h"], ["y"])
    with pytest.raises(ConfigError, match="condition 'goes_on' to go on: only a run shows how many steps 'ys' has"):
        rnn.from_onnx(loop([*STEP, *MOVES, twice], ["y"], bias=BIAS))
    made = loop([*STEP, *MOVES, twice], ["y"], bias=BIAS)
    del made.graph.output[1]  # nobody reads them
    agrees(made, {"h_0": np.ones((2, 5), "f4")})
