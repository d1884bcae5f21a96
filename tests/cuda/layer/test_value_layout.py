"""Where values live: dtypes by use, padding, and that what is read is written somewhere."""

from __future__ import annotations

from math import prod

import pytest
from compiled_kernels import graph_of, layers_of
from training_plans import trained

import tvm_rnn as rnn
from tvm_rnn.cuda.layer.matrix_operands import NUMBER
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.graph.graph import Graph, is_scan


def layout_of(graph: Graph, precision: str = "bfloat16", directions: int = 1) -> Layout:
    dtype = "float32" if precision == "tf32" else precision
    return Layout(graph, precision, Weights(graph, 0, precision), dtype, directions)


def test_states_of_16_bit_networks_have_a_copy_for_products() -> None:
    layout = layout_of(graph_of("lstm"))
    assert layout.state(0).dtype == layout.state(1).dtype == "float32"
    shadow = layout.shadow(0)
    assert shadow is not None and (shadow.dtype, shadow.row_stride) == ("bfloat16", 8)  # 7, in rows of 16 bytes
    assert layout.shadow(1) is None  # no product reads c
    assert layout_of(graph_of("lstm"), "float32").shadow(0) is None


def test_products_by_tensor_cores_read_states_in_rows_of_16_bytes() -> None:
    layout = layout_of(graph_of("lstm"), "tf32")  # of 7 units: the hardware would bring 4 bytes at a time
    assert layout.state(0).row_stride == 7
    shadow = layout.shadow(0)
    assert shadow is not None and (shadow.dtype, shadow.row_stride) == ("float32", 8)
    assert layout_of(graph_of("lstm", hidden=8), "tf32").shadow(0) is None  # they begin there as they are


def test_hoisted_vectors_are_stored_small_and_numbers_whole() -> None:
    layout = layout_of(graph_of("m2rnn"))
    dtypes = {prod(n.shape) > 1: layout.hoisted(n).dtype for n in layout.hoisted_nodes if "step" in layout.read_by[n]}
    assert dtypes == {True: "bfloat16", False: "float32"}


@pytest.mark.parametrize("name", ["lif", "alif", "plif"])
def test_what_spikes_are_made_of_is_whole(name: str) -> None:
    layout = layout_of(graph_of(name))
    (product,) = layout.hoisted_nodes
    assert layout.hoisted(product).dtype == "float32"
    assert step_of(layout).wide == {product}  # copied ahead it would be taken for values of 16 bits
    lstm = layout_of(graph_of("lstm"))
    assert {lstm.hoisted(node).dtype for node in lstm.hoisted_nodes} == {"bfloat16"} and not step_of(lstm).wide


def test_the_new_state_goes_to_all_that_read_it() -> None:
    graph = graph_of("lstm")
    layout = layout_of(graph, directions=2)
    targets = layout.targets(graph.results[0], "step")
    assert [t.kind for t in targets] == ["state", "shadow", "output"]
    assert targets[-1].place.row_stride == 14 and targets[-1].place.align == 2  # rows of both directions


def test_products_read_the_storage_copy() -> None:
    graph = graph_of("gru_reset_before")
    layout = layout_of(graph)
    (reset,) = [n for n in layout.operands["step"] if n.op != "state"]
    source = layout.source(reset, product=True)
    assert source is not None and source.kind == "step" and source.place.dtype == "bfloat16"
    state = layout.source(graph.states[0], product=True)
    assert state is not None and state.kind == "old shadow"
    plain = layout.source(graph.states[0])
    assert plain is not None and plain.kind == "old"


@pytest.mark.few_cells
@pytest.mark.parametrize("name", rnn.cells.names())
def test_what_groups_read_has_a_place(name: str) -> None:
    _, layers = layers_of(name)
    for precision in ("float64", "float32", "tf32", "float16"):
        _check_places(layout_of(layers.graphs[0], precision))


def _check_places(layout: Layout) -> None:
    for group in layout.graph.groups:
        for node in group.stored:
            assert layout.targets(node, group.region), node.op
    for node in layout.operands["step"] | layout.operands["before"]:
        source = layout.source(node, product=True)
        assert source is not None and source.place.dtype == layout.storage
    for result in layout.graph.roots:
        if is_scan(result):  # its last value is the new state, whether its steps are stored or not
            assert any(g.kind == "scan" and result in g.nodes for g in layout.graph.groups)
        else:
            region = "step" if layout.has_steps else "before"
            assert any(g.region == region and result in g.stored for g in layout.graph.groups)


def test_vectors_between_kernels_of_a_layer_of_matrices_are_stored_small() -> None:
    """Numbers of heads, and decays that a scan multiplies over all time, are whole."""
    _, found = trained("gla", 16, "bfloat16")
    for code in (found.forward.code[0], found.backward.code[0]):
        layout = code.layout
        decays = {own.located((n, NUMBER))[0] for own in layout.matrices for n in own.numbers}
        wide = [n for n in layout.hoisted_nodes if prod(n.shape) > 1]
        assert wide and all((layout.hoisted(n).dtype == "float32") == (n in decays) for n in wide)
