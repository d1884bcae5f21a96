"""One layer among a model's steps: its step's values, and rows without a last state."""

from __future__ import annotations

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.frontends.folding import Steps
from tvm_rnn.frontends.layers import Recurrent, add_network, held_dtype_of, without_empty_rows
from tvm_rnn.network.program import NETWORK
from tvm_rnn.runtime.runtime_ops import OPERATIONS


def layer(dtype: str = "float32") -> Recurrent:
    return Recurrent("the layer", rnn.cells.lstm, 3, 4, False, dtype, [{}, {}])


def test_a_layers_step() -> None:
    steps = Steps()
    y, h, c = add_network(steps, layer(), "x", "n", ["h", ""], 5)
    (step,) = steps.steps
    assert (step.op, step.inputs, step.outputs) == (NETWORK, ("x", "n", "h", ""), (y, h, c))
    assert step.attributes == {"network": 5} and step.node == "the layer" and steps.known(c) and layer().directions == 2


def test_rows_of_length_0_have_a_state_of_0() -> None:
    for dtype in ("float32", "float64", "bfloat16"):
        steps = Steps()
        steps.dtypes["n"] = "int32"
        result = without_empty_rows(steps, layer(dtype), "h", "n")
        values = {"n": np.array([2, 0, 1], "i4"), "h": np.ones((2, 3, 4), held_dtype_of(dtype)), **steps.constants}
        for step in steps.steps:
            values[step.outputs[0]] = OPERATIONS[step.op]([values[name] for name in step.inputs], step.attributes)
        assert values[result].dtype == held_dtype_of(dtype)
        np.testing.assert_array_equal(values[result].sum(axis=(0, 2)), [8, 0, 8])
