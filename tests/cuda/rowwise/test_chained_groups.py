"""Chains: which groups share a kernel, where its barriers are, and that it reads what it stored itself."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from compiled_kernels import graph_of, text_of
from emulated import POISON, run

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.row_kernels import Rows
from tvm_rnn.cuda.rowwise import chained_groups as chains
from tvm_rnn.cuda.rowwise.chained_groups import ASKED, HELD, MOST_WORK, chained_groups, chained_groups_kernel, work_of
from tvm_rnn.graph.graph import Group, Node, constant, make

BARRIERS = {40: "warp_sync();", 400: "cta_sync();"}  # by elements of a row: a warp has it, or a block


def leaf(name: str, *shape: int) -> Node:
    return Node("state", shape=shape, name=name)


def group(*nodes: Node, root: Node | None = None, stored: tuple[Node, ...] = ()) -> Group:
    return Group("reduce" if root is not None else "pointwise", "step", 1, root, nodes, stored or nodes[-1:])


def kernel_of(groups: list[Group], precision: str = "float32") -> Rows:
    home = {n: g for g in groups for n in g.stored}
    dtype = "float64" if precision == "float64" else "float32"

    def reads(own: Group, node: Node) -> Place | None:
        known = node.leaf or (node in home and home[node] is not own)
        return Place(dtype, prod(node.shape)) if known and node.scalar is None else None

    return chained_groups_kernel(
        "chain",
        groups,
        precision=precision,
        reads=reads,
        writes=lambda own, node: [Place(dtype, prod(node.shape))],
        elsewhere=lambda own: frozenset(n for n in own.nodes if n.leaf),
    )


def test_layer_normalisation_is_one_chain_after_each_product() -> None:
    graph = graph_of("lstm_layer_norm")
    found = chained_groups(graph.groups)
    assert [g for part in found for g in part] == list(graph.groups)
    assert [part[0].kind == "gemm" for part in found] == [True, False, True, False]


def test_large_groups_stay_alone() -> None:
    h = leaf("h", MOST_WORK + 1)
    small, large = group(make("tanh", leaf("g", 8))), group(make("tanh", h))
    assert work_of(large) > MOST_WORK
    assert chained_groups([small, small, large, small]) == [[small, small], [large], [small]]
    matrix = make("einsum", leaf("m", 200, 200), leaf("v", 200), spec="ij,j->i")
    assert work_of(group(matrix, root=matrix)) == 200 * 200


def test_chains_meet_before_or_behind_what_is_between_them() -> None:
    """Of rows for all steps: the second reads nothing of it, or it nothing of the first."""
    x, g = leaf("x", 4, 32), leaf("g", 4, 32)

    def early(node: Node, kind: str = "pointwise") -> Group:
        return Group(kind, "before", 0, node if kind != "pointwise" else None, (node,), (node,))

    first = make("tanh", x)
    own, of_first, of_x = early(first), early(make("tanh", first), "gemm"), early(make("tanh", g), "gemm")
    both = early(make("mul", first, of_x.nodes[0]))
    assert chained_groups([own, of_first, early(make("mul", first, x))])[1:] == [[of_first]]
    assert chained_groups([own, of_x, both]) == [[of_x], [own, both]]
    late = early(make("mul", first, of_first.nodes[0]))
    assert chained_groups([own, of_first, late]) == [[own], [of_first], [late]]
    uneven = early(make("tanh", leaf("h", 33)))
    assert chained_groups([own, of_x, uneven]) == [[own], [of_x], [uneven]]  # registers do not hold it


@pytest.mark.parametrize("size", BARRIERS)
def test_a_barrier_stands_between_a_value_and_its_readers(size: int) -> None:
    h, g = leaf("h", size), leaf("g", size)
    total = make("sum", make("mul", h, h), axis=-1, keepdims=True)
    scaled = make("div", h, total)
    apart = make("tanh", g)
    groups = [group(make("mul", h, h), total, root=total), group(apart), group(scaled)]
    text = text_of(kernel_of(groups).kernel)
    assert text.count(BARRIERS[size]) == (1 if size < 256 else 3)  # two inside a sum of a block
    alone = text_of(kernel_of([group(apart), group(make("tanh", h))]).kernel)
    assert "_sync();" not in alone


def test_what_the_chain_stored_is_read_through_the_pointer_that_wrote_it() -> None:
    """Pointers are declared as not overlapping: a second one to the same memory could be read too early."""
    h = leaf("h", 40)
    first = make("tanh", h)
    second = make("mul", first, first)
    made = kernel_of([group(first), group(second)])
    assert [(a.role, a.node) for a in made.arguments] == [("read", h), ("write", first), ("write", second)]


def test_a_copied_state_is_still_read_from_where_it_was() -> None:
    h = leaf("h", 40)
    made = kernel_of([group(h), group(make("tanh", h))])
    assert [a.role for a in made.arguments] == ["read", "write", "write"]
    text = text_of(made.kernel)
    assert text.count("= _ptr[") == 2


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(
    ("op", "shapes", "spec"),
    [
        ("sum", [(700,)], ""),
        ("max", [(33,)], ""),
        ("einsum", [(50, 60), (60,)], "ij,j->i"),
        ("einsum", [(60, 50), (60,)], "ji,j->i"),
        ("einsum", [(2, 50), (50,)], "ij,j->i"),
    ],
)
def test_every_way_to_reduce(op: str, shapes: list[tuple[int, ...]], spec: str, precision: str) -> None:
    leaves = [leaf(f"s{i}", *s) for i, s in enumerate(shapes)]
    attrs = {"spec": spec} if spec else {"axis": -1, "keepdims": False}
    root = make(op, *leaves, **attrs)
    made = kernel_of([group(root, root=root), group(make("tanh", root))], precision)
    text_of(made.kernel)
    assert made.kernel.threads % 32 == 0


@pytest.mark.broad
@pytest.mark.parametrize(("heads", "size"), [(3, 70), (2, 600)])
def test_heads_are_rows_of_their_own(heads: int, size: int) -> None:
    """Of a warp each, or of a block."""
    h = leaf("h", heads, size)
    first = make("mul", h, h)
    total = make("sum", first, axis=-1, keepdims=False)
    parts = make("div", first, make("reshape", total, rank=1, to=(heads, 1)))
    last = make("reshape", parts, rank=2, to=(heads * size,))
    made = kernel_of([group(first), group(total, root=total), group(last)])
    rows, value = 5, np.random.default_rng(1).standard_normal((5, heads, size)).astype("float32")
    arrays = {a.name: np.full((rows, *a.node.shape), POISON, "float32") for a in made.arguments}
    arrays |= {a.name: value for a in made.arguments if a.node is h}
    items = rows * heads
    run(made.kernel, arrays, {"rows": rows}, -(-items // 4) if size < 256 else items)
    expected = value.astype(float) ** 2 / (value.astype(float) ** 2).sum(-1, keepdims=True)
    name = next(a.name for a in made.arguments if a.node is last)
    assert np.abs(arrays[name].reshape(value.shape) - expected).max() < 1e-6


@pytest.mark.broad
def test_a_few_terms_are_a_threads() -> None:
    """Of heads that share a key, say: a warp for each sum would have nothing to do but for two lanes."""
    h = leaf("h", 2, 80)
    total = make("sum", make("transpose", h, axes=(1, 0)), axis=-1, keepdims=False)
    made = kernel_of([group(*total.args, total, root=total), group(make("tanh", total))])
    value = np.random.default_rng(1).standard_normal((5, 2, 80)).astype("float32")
    arrays = {a.name: np.full((5, *a.node.shape), POISON, "float32") for a in made.arguments}
    arrays |= {a.name: value for a in made.arguments if a.node is h}
    run(made.kernel, arrays, {"rows": 5}, 5 if made.kernel.threads != 128 else 2)
    name = next(a.name for a in made.arguments if a.node is total)
    assert np.abs(arrays[name] - value.sum(1)).max() < 1e-6


@pytest.mark.broad
@pytest.mark.parametrize("op", ["max", "sum"])
def test_a_long_reduction_asks_for_several_elements_at_once(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are fewer than a thread asks for; numbers below 0, so that no 0 is the largest."""
    monkeypatch.setattr(chains, "MOST_THREADS", 96)
    h = leaf("h", size := 96 * HELD + 7)
    root = make(op, h, axis=-1, keepdims=False)
    made = kernel_of([group(root, root=root), group(make("neg", root))])
    assert made.kernel.threads == 96 and text_of(made.kernel).count(f", {size - 1}") == ASKED
    value = -1.0 - np.random.default_rng(1).random((5, size), "float32")
    arrays = {a.name: np.full((5, *a.node.shape), POISON, "float32") for a in made.arguments}
    arrays |= {a.name: value for a in made.arguments if a.node is h}
    run(made.kernel, arrays, {"rows": 5}, 5)
    name = next(a.name for a in made.arguments if a.node is root)
    expected = value.astype(float).max(1) if op == "max" else value.astype(float).sum(1)
    assert np.abs(arrays[name].ravel() / expected - 1).max() < 1e-6


@pytest.mark.parametrize("rest", [0, 7])
def test_what_a_reduction_read_is_there_for_the_next_one(rest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of the largest element: each thread's are in registers, and what counts up is no load."""
    monkeypatch.setattr(chains, "MOST_THREADS", 96)
    h = leaf("h", size := 96 * 2 * ASKED + rest)
    top, counted = make("max", h, axis=-1, keepdims=True), constant(np.arange(float(size)), 1)
    place = make("where", make("equal", h, top), counted, constant(0.0, 1))
    found = make("sum", place, axis=-1, keepdims=False)
    made = kernel_of([group(top, root=top), group(place, found, root=found, stored=(found,))])
    assert made.kernel.threads == 96
    text, (first, second, *_) = text_of(made.kernel), made.arguments
    assert (first.node, second.node) == (h, counted)
    assert text.count("= _ptr[") == -(-size // 96)
    signature = text[text.index("__launch_bounds__") :].split(";")[0]
    assert signature.count("float*") == len(made.arguments) - 1  # what nothing reads is no parameter
    value = -1.0 - np.random.default_rng(1).random((5, size), "float32")
    arrays = {a.name: np.full((5, *a.node.shape), POISON, "float32") for a in made.arguments}
    arrays |= {a.name: value for a in made.arguments if a.node is h}
    run(made.kernel, arrays, {"rows": 5}, 5)
    name = next(a.name for a in made.arguments if a.node is found)
    np.testing.assert_array_equal(arrays[name].ravel(), value.argmax(1))
