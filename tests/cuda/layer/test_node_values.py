"""Values in kernels: what is loaded, what is computed, and that nothing is computed twice."""

from __future__ import annotations

from compiled_kernels import graph_of, text_of

from tvm_rnn.cuda.layer.node_values import sources
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.row_kernels import rows_kernel
from tvm_rnn.graph.graph import Graph, Group, Node, make


def leaf(name: str, *shape: int) -> Node:
    return Node("state", shape=shape, name=name)


def test_sources_stop_at_stored_nodes() -> None:
    a, b = leaf("a", 4), leaf("b", 4)
    product = make("mul", a, b)
    total = make("add", product, make("index", leaf("c", 2, 4), axis=-2, at=1))
    names = [n.name for n in sources([total], lambda n: n.leaf)]
    assert names == ["a", "b", "c"]
    assert sources([total], lambda n: n in (product, a) or n.leaf)[0] is product


def test_an_expression_of_many_uses_is_computed_once() -> None:
    a = leaf("a", 40)
    nodes = [make("sigmoid", a)]
    for _ in range(30):  # written out as a tree this has 2**30 leaves
        nodes.append(make("mul", nodes[-1], nodes[-1]))
    group = Group("pointwise", "step", 1, None, (nodes[-1],), (nodes[-1],))
    place = Place("float32", 40)
    made = rows_kernel(
        "many", group, precision="float32", reads=lambda n: place if n is a else None, writes=lambda n: [place]
    )
    text = text_of(made.kernel)
    assert text.count("__expf(") == 1 and len(text) < 5000


def test_a_16_bit_value_is_loaded_once_and_converted() -> None:
    graph: Graph = graph_of("lstm")
    assert graph.dtype == "float32"
    h = leaf("h", 7)
    total = make("add", make("mul", h, h), h)
    group = Group("pointwise", "step", 1, None, (total,), (total,))
    made = rows_kernel(
        "half",
        group,
        precision="bfloat16",
        reads=lambda n: Place("bfloat16", 8) if n is h else None,
        writes=lambda n: [Place("float32", 7), Place("bfloat16", 8)],
    )
    text = text_of(made.kernel)
    assert text.count("(float)_ptr[") == 1
    assert [a.role for a in made.arguments] == ["read", "write", "write"]
    assert [d for _, d in made.kernel.pointers] == ["bfloat16", "float32", "bfloat16"]
