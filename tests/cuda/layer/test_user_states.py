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
    copying, found = user_states(layout_of("lstm", precision, dtype))
    assert found.state(0) == found.state(1) == Place(dtype, 10, 4 if dtype == "bfloat16" else 8)
    assert found.shadow(0) is None
    graph = found.graph
    assert [target.kind for target in found.targets(graph.results[0], "step")] == ["state", "output"]
    source = found.source(graph.states[0], product=True)
    assert source is not None and (source.kind, source.place) == ("old", found.state(0))
    source = copying.source(graph.states[0], product=True)
    assert source is not None and source.kind == "copied row" and source.place.row_stride in (12, 16)
    assert copying.state(0) == found.state(0)  # where the cell reads and writes it


def test_rows_are_copied_where_products_cannot_read_them() -> None:
    """Rows of whole pieces of 16 bytes never are; those of single elements always, whatever the batch is."""
    for hidden, copied in ((16, [False]), (10, [True, False]), (7, [True])):
        assert [own.aligned for own in user_states(layout_of("lstm", "bfloat16", hidden=hidden))] == copied
    assert [own.aligned for own in user_states(layout_of("lstm", "float32", hidden=7))] == [False]  # no tensor cores


def test_layers_whose_steps_need_copies() -> None:
    layout = layout_of("lstm", "bfloat16")
    assert user_states(layout)
    assert not user_states(replace(layout, dtype="float32"))  # products read another dtype
    assert not user_states(replace(layout, kept=(layout.graph.results[0],)))
    assert not user_states(layout_of("min_gru", "bfloat16"))  # nothing is left for steps
    # Another group reads the new state, which must not be rounded in between.
    narrow, wide = layout_of("lstm_layer_norm", "bfloat16"), layout_of("lstm_layer_norm", "float32")
    assert not user_states(narrow) and user_states(wide)
