"""Relax graphs as lists of calls: what is fused, what is named, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from tvm_rnn.surroundings.calls import Graph, Unsupported, calls_of


def graph_of(*made: Any, x: Any = None) -> Graph:
    """Of an x [n, 4] and what functions make of it, one after the other."""
    from tvm import tirx

    builder, given = relax.BlockBuilder(), relax.Var("x", relax.TensorType([tirx.Var("n", "int64"), 4], "float32"))
    with builder.function("main", [given]):
        with builder.dataflow():
            value = given
            for make in made:
                value = builder.emit(make(value))
            found = builder.emit_output(value)
        builder.emit_func_output(found)
    return calls_of(builder.get())


def test_pointwise_operations_are_one_call() -> None:
    graph = graph_of(relax.op.tanh, relax.op.exp)
    assert len(graph.calls) == 1
    (call,) = graph.calls
    assert call.inputs == graph.inputs and call.outputs == graph.outputs
    assert graph.outputs[0].shape[1] == 4 and str(graph.outputs[0].shape[0]) == "n"


def test_constants_are_values() -> None:
    weights = relax.const(np.ones((4, 4), "f4"))
    graph = graph_of(lambda x: relax.op.matmul(x, weights), lambda x: relax.op.matmul(x, weights))
    assert [value.array.shape for call in graph.calls for value in call.inputs[1:]] == [(4, 4)] * 2


def test_what_constants_make_is_computed_before() -> None:
    weights = relax.const(np.arange(8, dtype="f4").reshape(2, 4))
    (call,) = graph_of(lambda x: relax.op.matmul(x, relax.op.permute_dims(weights))).calls
    np.testing.assert_array_equal(call.inputs[1].array, np.arange(8).reshape(2, 4).T)


def test_constants_with_other_axes_are_constants() -> None:
    """By NumPy: no function is built for them."""
    weights = relax.const(np.arange(24, dtype="f4").reshape(2, 3, 4))

    def make(x: Any) -> Any:
        return relax.op.matmul(x, relax.op.reshape(relax.op.permute_dims(weights, [2, 0, 1]), (4, 6)))

    (call,) = graph_of(make).calls
    np.testing.assert_array_equal(call.inputs[1].array, weights.value.numpy().transpose(2, 0, 1).reshape(4, 6))


def test_places_are_inside_of_the_array() -> None:
    (call,) = graph_of(lambda x: relax.op.take(x, relax.const(np.array([1, 9])), 1)).calls
    assert "T.min" in call.function.script()


def test_results_that_a_tuple_has() -> None:
    graph = graph_of(lambda x: relax.op.split(x, 2, 1), lambda pair: pair[1])
    assert graph.outputs[0].shape[1] == 2


def test_sizes_that_only_a_run_shows() -> None:
    with pytest.raises(Unsupported, match="sizes that only a run shows"):
        graph_of(relax.op.nonzero)


def test_scalars_are_stacked() -> None:
    """Relax's change of layouts ends the process at them."""
    graph = graph_of(lambda x: relax.op.stack([relax.op.max(x), relax.op.min(x)], 0))
    assert [int(n) for n in graph.outputs[0].shape] == [2]


def test_channels_stay_last_through_what_is_pointwise() -> None:
    """Between two convolutions there is no other order of axes."""
    weights, order = relax.const(np.ones((4, 4, 3), "f4")), [0, 2, 1]

    def conv(x: relax.Var) -> relax.Expr:
        return relax.op.nn.conv1d(x, weights, padding=1)

    between = (lambda x: relax.op.clip(x, 0, 6), relax.op.nn.leakyrelu, relax.op.round)
    given = (lambda x: relax.op.expand_dims(x, 0), lambda x: relax.op.permute_dims(x, order))
    graph = graph_of(*given, conv, *between, conv)
    texts = [call.function.script() for call in graph.calls]
    assert sum("conv1d_nwc" in text for text in texts) == 2
    assert not any("transpose" in text for text in texts[1:-1])
