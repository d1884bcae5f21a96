"""The layout of a call of one step: states as the user has them, where nothing is rounded that was not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compiled_kernels import graph_of

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.user_states import user_states
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights


def layout_of(name: str, precision: str, dtype: str = "", hidden: int = 10) -> Layout:
    graph = graph_of(name, hidden=hidden)
    return Layout(graph, precision, Weights(graph, 0, precision), dtype or precision)


@pytest.mark.parametrize(("precision", "dtype"), [("bfloat16", "bfloat16"), ("tf32", "float32")])
def test_products_read_and_steps_write_the_users_states(precision: str, dtype: str) -> None:
    found = user_states(layout_of("lstm", precision, dtype))
    assert found is not None and found.state(0) == found.state(1) == Place(dtype, 10) and found.shadow(0) is None
    graph = found.graph
    assert [target.kind for target in found.targets(graph.results[0], "step")] == ["state", "output"]
    source = found.source(graph.states[0], product=True)
    assert source is not None and (source.kind, source.place) == ("old", Place(dtype, 10))


def test_layers_whose_steps_need_copies() -> None:
    layout = layout_of("lstm", "bfloat16")
    assert user_states(layout) is not None
    assert user_states(replace(layout, dtype="float32")) is None  # products read another dtype
    assert user_states(layout_of("lstm", "bfloat16", hidden=7)) is None  # and rows in pieces of 4 bytes
    assert user_states(replace(layout, kept=(layout.graph.results[0],))) is None
    assert user_states(layout_of("min_gru", "bfloat16")) is None  # nothing is left for steps
    # Another group reads the new state, which must not be rounded in between.
    narrow, wide = layout_of("lstm_layer_norm", "bfloat16"), layout_of("lstm_layer_norm", "float32")
    assert user_states(narrow) is None and user_states(wide) is not None
