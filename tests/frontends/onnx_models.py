"""ONNX models for tests: nodes in a graph, random recurrent nodes with any attributes, and ONNX Runtime's results.

In: nodes and arrays, or a seed. Out: ModelProtos, inputs for them, and what ONNX Runtime computes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime

from tvm_rnn.frontends.onnx_cells import GATES, PARAMETERS, STATES

helper = onnx.helper
Feeds = dict[str, np.ndarray]
# ONNX's type of an input of each dtype.
TYPES = {
    np.dtype(name): helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in ("f4", "f8", "f2", "i4", "i8", "?")
}


def model_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[str, Sequence[Any]]],
    outputs: Mapping[str, str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
) -> Any:
    """A model. inputs: dtype and shape by name. outputs: dtype by name."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(n, TYPES[np.dtype(dtype)], shape) for n, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(n, TYPES[np.dtype(dtype)], None) for n, dtype in outputs.items()],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any) -> Any:
    """A node; its name is its first output's if it has none."""
    return helper.make_node(op, list(inputs), list(outputs), name=name or next(filter(None, outputs)), **attributes)


def scan_of(
    nodes: Sequence[Any],
    states: Mapping[str, Sequence[Any]],
    inputs: Mapping[str, Sequence[Any]],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 17,
    dtype: str = "f4",
    inner: Mapping[str, np.ndarray] | None = None,
    **attributes: Any,
) -> Any:
    """A model with a Scan. states, inputs: shapes in the body, of state h and input x there. The body makes new_h, and
    outputs for each step; the model has h_0 and xs, and gives out h_n and ys for an output y. inner: constants of the
    body's own."""
    element = TYPES[np.dtype(dtype)]

    def value(name: str, shape: Sequence[Any] | None) -> Any:
        return helper.make_tensor_value_info(name, element, shape)

    new = [f"new_{name}" for name in states]
    body = helper.make_graph(
        list(nodes),
        "body",
        [value(name, shape) for name, shape in (*states.items(), *inputs.items())],
        [value(name, None) for name in (*new, *outputs)],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in (inner or {}).items()],
    )
    given, made = [*(f"{n}_0" for n in states), *(f"{n}s" for n in inputs)], [f"{n}_n" for n in states]
    scan = node(
        "Scan", given, [*made, *(f"{n}s" for n in outputs)], body=body, num_scan_inputs=len(inputs), **attributes
    )
    ranks = {f"{n}_0": len(s) for n, s in states.items()} | {f"{n}s": len(s) + 1 for n, s in inputs.items()}
    declared = {name: (dtype, [None] * rank) for name, rank in ranks.items()}
    return model_of([scan], declared, dict.fromkeys(scan.output, dtype), constants, opset)


def weights(kind: str, directions: int, inputs: int, hidden: int, rng: Any, dtype: str = "f4") -> dict[str, Any]:
    """Random W, R, B and P."""
    rows = GATES[kind] * hidden
    shapes = {"W": (rows, inputs), "R": (rows, hidden), "B": (2 * rows,), "P": (3 * hidden,)}
    return {name: rng.uniform(-0.5, 0.5, (directions, *shape)).astype(dtype) for name, shape in shapes.items()}


def of_16_bits(dtype: str) -> Any:
    """x [B, 3, T] of float16 or bfloat16: a convolution, an LSTM, a product of all its steps, its softmax, and the
    LSTM's last state."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    own, rng = weights("LSTM", 1, 5, 8, np.random.default_rng(0)), np.random.default_rng(1)
    known = {"k": rng.normal(size=(5, 3, 3)), "w": rng.normal(size=(8, 7)), **{name: own[name] for name in "WRB"}}
    nodes = [
        node("Conv", ["x", "k"], ["c"], pads=[1, 1]),
        node("Relu", ["c"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[2, 0, 1]),
        node("LSTM", ["t", "W", "R", "B"], ["y", "last"], hidden_size=8),
        node("Squeeze", ["y", "one"], ["s"]),
        node("MatMul", ["s", "w"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
    ]
    code = helper.np_dtype_to_tensor_dtype(kind)
    shapes = {"x": ["B", 3, "T"], "p": None, "last": None}
    x, *outputs = (helper.make_tensor_value_info(name, code, shape) for name, shape in shapes.items())
    constants = [onnx.numpy_helper.from_array(value.astype(kind), name) for name, value in known.items()]
    constants.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    graph = helper.make_graph(nodes, "test", [x], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def onnx_runtime(model: Any, feeds: Feeds) -> Feeds:
    """What ONNX Runtime makes of it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@dataclass
class Case:
    """A model with one recurrent node, inputs for it, and the same with layout 0, which ONNX Runtime wants."""

    model: Any
    feeds: Feeds
    plain: Any
    plain_feeds: Feeds
    steps: int
    batch_first: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)

    def expected(self) -> Feeds:
        found = onnx_runtime(self.plain, self.plain_feeds)
        if not self.batch_first:
            return found
        axes = {"Y": (2, 0, 1, 3), "Y_h": (1, 0, 2), "Y_c": (1, 0, 2)}
        return {name: value.transpose(axes[name]) for name, value in found.items()}


def _functions(kind: str, directions: int, rng: Any) -> dict[str, Any]:
    """Activations with parameters; those that ONNX Runtime reads as the standard says."""
    count = {"RNN": 1, "LSTM": 3, "GRU": 2}[kind]
    plain = ["Relu", "Tanh", "Sigmoid", "Softsign", "Softplus"]
    if kind == "RNN":  # its parameters are counted by direction there, not by function
        name = str(rng.choice([*plain, *PARAMETERS]))
        names, given = [name] * directions, len(PARAMETERS.get(name, ()))
        counts = [directions if given > which else 0 for which in (0, 1)]
    else:
        names = [str(n) for n in rng.choice([*plain, *PARAMETERS], count * directions)]
        counts = [sum(len(PARAMETERS.get(n, ())) > which for n in names) for which in (0, 1)]
    found: dict[str, Any] = {"activations": names}
    for word, number in zip(("activation_alpha", "activation_beta"), counts, strict=True):
        if number:
            found[word] = [float(v) for v in rng.uniform(0.1, 0.6, number)]
    return found


def random_case(seed: int) -> Case:
    """One node of any kind, with any of its attributes, inputs and outputs."""
    rng = np.random.default_rng(seed)
    kind, direction = str(rng.choice(["RNN", "LSTM", "GRU"])), str(rng.choice(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    T, B, width, H = (int(rng.integers(1, most)) for most in (7, 5, 6, 7))
    coins = dict(zip(("f", "clip", "forget", "reset", "B", "n", "h", "c", "P"), rng.random(9) < 0.5, strict=True))
    attributes: dict[str, Any] = {"hidden_size": H, "direction": direction}
    attributes |= _functions(kind, directions, rng) if coins["f"] else {}
    attributes |= {"clip": float(rng.uniform(0.2, 2))} if coins["clip"] else {}
    attributes |= {"input_forget": 1} if coins["forget"] and kind == "LSTM" else {}
    attributes |= {"linear_before_reset": 1} if coins["reset"] and kind == "GRU" else {}
    own = weights(kind, directions, width, H, rng)
    feeds = {"X": rng.normal(size=(T, B, width)).astype("f4")}
    lengths = rng.integers(1 if kind == "RNN" else 0, T + 1, B)  # ONNX Runtime's RNN reads beside its memory for 0
    lengths[0] = max(1, lengths[0])  # and others leave results unwritten where all are 0
    if coins["n"]:
        feeds["sequence_lens"] = lengths.astype("i4")
    for state in STATES[kind]:
        if coins[state]:
            feeds[f"initial_{state}"] = rng.uniform(-1, 1, (directions, B, H)).astype("f4")
    names = [
        "X",
        "W",
        "R",
        "B" if coins["B"] else "",
        *(n if n in feeds else "" for n in ("sequence_lens", "initial_h")),
    ]
    if kind == "LSTM":
        names += ["initial_c" if "initial_c" in feeds else "", "P" if coins["P"] else ""]
    outputs = ["Y", *(f"Y_{state}" for state in STATES[kind])]
    wanted = [name if w else "" for name, w in zip(outputs, rng.random(len(outputs)) < 0.7, strict=True)]
    wanted = wanted if any(wanted) else outputs
    constants = {name: own[name] for name in names if name in own}
    opset = int(rng.choice([7, 11, 14, 22]))

    def built(layout: int, opset: int) -> Any:
        more = {"layout": 1} if layout else {}
        swapped = {n: v.swapaxes(0, 1) if layout and v.ndim == 3 else v for n, v in feeds.items()}
        inputs = {n: (v.dtype.str, [None] * v.ndim) for n, v in swapped.items()}
        made = node(kind, names, wanted, **attributes, **more)
        return model_of([made], inputs, {n: "f4" for n in wanted if n}, constants, opset), swapped

    batch_first = opset >= 14 and bool(rng.random() < 0.3)
    model, given = built(int(batch_first), opset)
    plain, plain_feeds = built(0, 14)
    return Case(model, given, plain, plain_feeds, T, batch_first, {"kind": kind, **attributes})


def standard_cases(*kinds: str) -> list[Any]:
    """The standard's own tests of models whose first node is one of these."""
    for module in {"RNN": ("rnn", "lstm", "gru"), "LinearAttention": ("linear_attention",)}[kinds[0]]:
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    from onnx.backend.test.case.node import _NodeTestCases

    return [case for case in _NodeTestCases if case.model.graph.node[0].op_type in kinds]


def meets(case: Any, run: Callable[[dict[str, Any]], Mapping[str, Any]], **tolerance: float) -> None:
    """Whether a model's results are those of the standard's own test."""
    tolerance = tolerance or {"rtol": case.rtol, "atol": case.atol}
    for given, expected in case.data_sets:
        found = run(dict(zip([i.name for i in case.model.graph.input], given, strict=True)))
        for output, value in zip(case.model.graph.output, expected, strict=True):
            np.testing.assert_allclose(found[output.name], value, **tolerance, err_msg=case.name)
