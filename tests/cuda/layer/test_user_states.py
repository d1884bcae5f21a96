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
    assert found is not None and found.state(0) == found.state(1) == Place(dtype, 10, 4 if dtype == "bfloat16" else 8)
    assert found.shadow(0) is None
    graph = found.graph
    assert [target.kind for target in found.targets(graph.results[0], "step")] == ["state", "output"]
    source = found.source(graph.states[0], product=True)
    assert source is not None and (source.kind, source.place) == ("old", found.state(0))


@pytest.mark.parametrize(
    ("precision", "hidden", "copied"),
    [
        ("bfloat16", 512, False),  # rows of whole pieces of 16 bytes
        ("bfloat16", 510, True),  # long ones of pieces of 4
        ("bfloat16", 10, False),  # short ones
        ("bfloat16", 7, True),  # single elements
        ("tf32", 7, False),
        ("tf32", 131, True),
        ("float32", 131, False),  # not for tensor cores
    ],
)
def test_products_read_copies_of_rows_that_the_hardware_is_slow_to_bring(
    precision: str, hidden: int, copied: bool
) -> None:
    layout = layout_of("lstm", precision, "float32" if precision == "tf32" else precision, hidden)
    found = user_states(layout)
    assert found is not None and [own.name for own in found.copied_rows] == ["h"] * copied
    state = found.graph.states[0]
    source = found.source(state, product=True)
    assert source is not None and source.kind == ("copied row" if copied else "old")
    elsewhere = found.source(state)  # where the cell reads it itself
    assert elsewhere is not None and elsewhere.place == found.state(0)
    if copied:
        lanes = 4 if precision == "tf32" else 8
        assert source.place.row_stride == -(-hidden // lanes) * lanes


def test_layers_whose_steps_need_copies() -> None:
    layout = layout_of("lstm", "bfloat16")
    assert user_states(layout) is not None
    assert user_states(replace(layout, dtype="float32")) is None  # products read another dtype
    assert user_states(replace(layout, kept=(layout.graph.results[0],))) is None
    assert user_states(layout_of("min_gru", "bfloat16")) is None  # nothing is left for steps
    # Another group reads the new state, which must not be rounded in between.
    narrow, wide = layout_of("lstm_layer_norm", "bfloat16"), layout_of("lstm_layer_norm", "float32")
    assert user_states(narrow) is None and user_states(wide) is not None
