"""ONNX's own node tests through from_onnx and compile: passed, refused by name, wrong; none may be wrong."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_rnn as rnn
from tvm_rnn.errors import TvmRnnError

OPERATORS = {
    "recurrence": ("RNN", "LSTM", "GRU", "Scan", "Loop", "If", "LinearAttention"),
    "convolution": ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv"),
    "pooling": ("MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "MaxUnpool"),
    "quantised": ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul"),
    "resizing": ("Resize",),
    "moves": ("Transpose", "Concat", "Slice", "Split", "Pad", "Gather", "Reshape", "Squeeze", "Unsqueeze", "Expand"),
    "numbers": ("Clip", "Pow", "Softmax", "LogSoftmax", "LayerNormalization", "BatchNormalization", "Gemm", "MatMul"),
}


def cases(operators: tuple[str, ...], modules: tuple[str, ...] = ()) -> Iterator[tuple[str, Any, list[Any], list[Any]]]:
    """Name, model, inputs and outputs of each test of one node. modules: of ONNX, that define them; else all."""
    from onnx.backend.test.case import node as node_tests

    with np.errstate(all="ignore"):
        for module in modules:
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
        found = [*node_tests._NodeTestCases] if modules else node_tests.collect_testcases(None)
    for case in found:
        nodes = [] if case.model is None else case.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in operators and case.data_sets:
            inputs, outputs = case.data_sets[0]
            if any(np.asarray(value).dtype == object for value in inputs):  # sequences; numbers that NumPy lacks
                continue
            yield case.name, case.model, inputs, outputs


def fixed(model: Any, inputs: list[Any]) -> tuple[Any, dict[str, Any]]:
    """The model with small inputs behind the first as constants, as files have them, and the others by name."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    given = dict(zip([value.name for value in model.graph.input], inputs, strict=True))
    for value in list(made.graph.input)[1:]:
        array = np.asarray(given[value.name])
        small = array.dtype.kind in "iub" or array.size == 1 or value.name in ("roi", "scales")
        if small or len(model.graph.input) > 2:
            made.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
            made.graph.input.remove(value)
            del given[value.name]
    return made, given


def outcome(model: Any, inputs: list[Any], outputs: list[Any]) -> str:
    try:
        made, given = fixed(model, inputs)
        found = rnn.compile(rnn.from_onnx(made)).run(given)
    except (TvmRnnError, TypeError, AttributeError) as reason:
        assert isinstance(reason, TvmRnnError) or not isinstance(inputs[0], np.ndarray), reason
        return "refused"
    for got, expected in zip(found.values(), outputs, strict=False):
        if got.shape != np.shape(expected) or got.dtype != np.asarray(expected).dtype:
            return f"wrong: {got.dtype} {got.shape}, not {np.asarray(expected).dtype} {np.shape(expected)}"
        if not np.allclose(got.astype("f8"), np.asarray(expected).astype("f8"), 1e-3, 1e-5, equal_nan=True):
            return "wrong: values"
    return "passed"


def test_small_inputs_are_constants() -> None:
    (name, model, inputs, _), *_ = (case for case in cases(("Squeeze",), ("squeeze",)) if len(case[2]) == 2)
    made, given = fixed(model, inputs)
    assert name.startswith("test_squeeze") and [*given] == [model.graph.input[0].name]
    assert made.graph.initializer[0].name == model.graph.input[1].name


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPERATORS)
def test_node_tests(kind: str) -> None:
    found = {name: outcome(model, inputs, outputs) for name, model, inputs, outputs in cases(OPERATORS[kind])}
    print(kind, Counter(text.split(":")[0] for text in found.values()))
    print("refused:", ", ".join(name for name, text in found.items() if text == "refused"))
    assert {name: text for name, text in found.items() if text.startswith("wrong")} == {}
    assert "passed" in found.values()
