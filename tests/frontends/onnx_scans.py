"""Bodies of Scan nodes for tests: operators in a row on values of a step, in a model with constants for them.

In: operators with the names of their inputs. Out: models, inputs for them, and the comparison with ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx_models import node, onnx_runtime, scan_of

import tvm_rnn as rnn
from tvm_rnn.oracle.tolerance import assert_close

# Values of a step: a [B, 2, 3], b [B, 3], p [B, 3] above 0, the state s [B, 3]. Constants:
MATRIX = np.linspace(-1, 1, 12).reshape(3, 4).astype("f4")
CONSTANTS = {
    "axis0": np.array([0], "i8"),
    "W": MATRIX,
    "V": MATRIX[:, :3].copy(),
    "row": np.array([[0.5, -1.0, 2.0]], "f4"),
    "bias": np.array([0.5, -1.0, 2.0, 0.0], "f4"),
    "bias3": np.array([0.5, -1.0, 2.0], "f4"),
    "gain": np.array([[0.5, -1.0, 2.0], [1.0, 2.0, 3.0]], "f4"),
    "taps": np.linspace(-1, 1, 16, dtype="f4").reshape(4, 2, 2),
    "group": np.linspace(-1, 1, 8, dtype="f4").reshape(4, 1, 2),
    "square": np.linspace(-1, 1, 12, dtype="f4").reshape(3, 1, 2, 2),
    "half": np.array(0.5, "f4"),
    "one": np.array([1.0], "f4"),
    "minus": np.array(-0.7, "f4"),
    "zero": np.array(0, "i8"),
    "axis1": np.array([1], "i8"),
    "axis2": np.array([2], "i8"),
    "last": np.array([-1], "i8"),
    "start": np.array([1], "i8"),
    "end": np.array([1 << 60], "i8"),
    "places": np.array([2, 0, -1], "i8"),
    "flat": np.array([0, -1], "i8"),
    "open": np.array([-1, 3, 2], "i8"),
    "parts": np.array([1, 2], "i8"),
    "wide": np.array([1, 2, 3], "i8"),
    "few": np.array([3], "i8"),
}

# Constants of the body's own, for what is refused.
MORE = {
    "wide.2": np.zeros((2, 2), "i8"),
    "huge": np.array([1, 1 << 30, 3], "i8"),
    "bias2": np.ones((5, 2), "f4"),
    "scattered": np.array([0, 2] * 40),
    "many": np.ones(2000, "i8"),
}


def body(*steps: Any) -> list[Any]:
    """Nodes of (op, inputs[, attributes]): the last one makes y, each reads the one before as "_"."""
    nodes, before = [], ""
    for at, (op, inputs, *rest) in enumerate(steps):
        name = "y" if at == len(steps) - 1 else f"v{at}"
        names = [before if n == "_" else n for n in inputs.split(" ")]
        nodes.append(node(op, ["" if n == "-" else n for n in names], [name], **(rest[0] if rest else {})))
        before = name
    return nodes


def model(nodes: list[Any], **options: Any) -> Any:
    """A Scan whose state goes on, and which gives out y."""
    nodes = [*nodes, node("Mul", ["s", "half"], ["s.half"]), node("Sub", ["b", "s.half"], ["new_s"])]
    inputs = {"a": ["B", 2, 3], "b": ["B", 3], "p": ["B", 3]}
    return scan_of(nodes, {"s": ["B", 3]}, inputs, ["y"], CONSTANTS, **options)


def feeds(steps: int = 4, batch: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = {"s_0": (batch, 3), "as": (steps, batch, 2, 3), "bs": (steps, batch, 3)}
    arrays = {name: rng.normal(size=shape).astype("f4") for name, shape in found.items()}
    return arrays | {"ps": rng.uniform(0.5, 2, (steps, batch, 3)).astype("f4")}


def agrees(made: Any) -> None:
    """What a model computes is what ONNX Runtime does."""
    given = feeds()
    assert_close(rnn.reference(rnn.from_onnx(made)).run(given), onnx_runtime(made, given), "float32", 4)


# --- a simple recurrence ---------------------------------------------------------------------------------------------

rng = np.random.default_rng(0)
W, R = rng.uniform(-0.5, 0.5, (3, 4)).astype("f4"), rng.uniform(-0.5, 0.5, (4, 4)).astype("f4")
STEP = [  # h' = tanh(x W + h R)
    node("MatMul", ["x", "W"], ["xW"]),
    node("MatMul", ["h", "R"], ["hR"]),
    node("Add", ["xW", "hR"], ["sum"]),
    node("Tanh", ["sum"], ["new_h"]),
    node("Identity", ["new_h"], ["y"]),
]


def simple(**options: Any) -> Any:
    """A model of STEP. options: of `scan_of`."""
    given: dict[str, Any] = {
        "nodes": STEP,
        "states": {"h": ["B", 4]},
        "inputs": {"x": ["B", 3]},
        "outputs": ["y"],
        "constants": {"W": W, "R": R},
    }
    return scan_of(**{**given, **options})


def simple_feeds(steps: int = 5, batch: int = 2) -> dict[str, Any]:
    own = np.random.default_rng(1)
    found = {"h_0": own.normal(size=(batch, 4)), "xs": own.normal(size=(steps, batch, 3))}
    return {name: value.astype("f4") for name, value in found.items()}


def compared(model: Any, feeds: dict[str, Any], compiled: bool = False) -> Any:
    net = rnn.from_onnx(model)
    for runs in (rnn.reference(net), *([rnn.compile(net)] if compiled else [])):
        assert_close(runs.run(feeds), onnx_runtime(model, feeds), "float32", 5)
    return net
