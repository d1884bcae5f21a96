"""Sums over all rows: which share a launch, and those that are no product of two rows, emulated."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import pytest
from emulated import encoded, rounded, run

from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.codegen.workspace_size import working_memory
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.training.weight_gradient_mma import MmaWeightGradientTile
from tvm_rnn.cuda.training.weight_gradient_sums import COLUMNS, FOLDERS, WeightGradients
from tvm_rnn.graph.graph import Node, make


def leaf(name: str, *shape: int) -> Node:
    return Node("input", shape=shape, name=name)


def weight_gradients(*nodes: Node) -> WeightGradients:
    def reads(node: Node) -> Place | None:
        return Place("float32", prod(node.shape)) if node.leaf and node.scalar is None else None

    return WeightGradients("t", nodes, "float32", reads, reads)


X, H, A, B, C = leaf("x", 8), leaf("h", 16), leaf("a", 16), leaf("b", 16), leaf("c", 2, 3)


def product(a: Node, b: Node, spec: str = "a,k->ak") -> Node:
    return make("einsum_rows", a, b, spec=spec)


def test_products_with_one_operand_share_a_launch() -> None:
    """An LSTM: gates times x, gates times h, and the gates' own sums."""
    sums = [make("sum_rows", gate, rank=1) for gate in (A, B)]
    found = weight_gradients(product(A, X), product(A, H), product(B, X), product(B, H), *sums)
    assert [len(launch.nodes) for launch in found.launches] == [2, 2, 2]
    assert [launch.size for launch in found.launches] == [2 * 16 * 8, 2 * 16 * 16, 2 * 16]
    program = Program()
    found.reserve(program, "T * B")
    places = found.pointers(program, {})
    assert len({place.text for place in places.values()}) == 6
    host = program.sequence
    found.run(host, lambda node, product: program.input(0), "T * B", places, "tile > 0")
    assert sum("RUN(call" in line for line in host.lines) == 6  # each launch, and its parts added up


def test_biases_are_summed_by_the_products_that_read_the_same_values() -> None:
    """A GRU: two gates are the left operands of both products, two of one each; in 16 bits, by wgmma."""
    x, h, *gates = (leaf(name, 128) for name in "xhrzmn")
    r, z, m, n = gates
    products = [product(a, right) for right, lefts in ((x, (r, z, m)), (h, (r, z, n))) for a in lefts]
    sums = [make("sum_rows", gate, rank=1) for gate in gates]

    def reads(node: Node) -> Place | None:
        return Place("bfloat16", 128) if node.leaf else None

    found = WeightGradients("t", [*products, *sums], "bfloat16", reads, reads, "sm_90a")
    first, second = found.launches
    assert first.totals == (tuple(sums[:3]),) and second.totals == ((sums[3],),)
    assert first.size == 3 * 128 * 128 + 3 * 128 and second.made == [second.nodes, *second.totals]
    program = Program()
    found.reserve(program, "T * B")
    places = found.pointers(program, {first.totals[0]: program.input(1).cast("float32")})
    assert {*places} == {*products, *sums} and places[sums[1]].text.startswith(f"({places[sums[0]].text}")
    operand = program.input(0).cast("bfloat16")
    found.run(program.sequence, lambda node, product: operand, "T * B", places, "tile > 0")
    assert sum("RUN(call" in line for line in program.sequence.lines) == 4  # of each, and of all its arrays the parts
    elsewhere = WeightGradients("t", [*products, *sums], "bfloat16", reads, reads, "sm_80")
    assert [len(launch.totals) for launch in elsewhere.launches] == [0, 0, 0]


def test_biases_of_heads_are_summed_by_the_products_that_read_them_as_units() -> None:
    """A product of units takes what is seen as heads elsewhere: elements have the same order."""
    x, gate = leaf("x", 64), leaf("gate", 4, 32)
    units = make("reshape", gate, rank=2, to=(128,))
    sums = make("sum_rows", gate, rank=2)

    def reads(node: Node) -> Place | None:
        return Place("bfloat16", prod(node.shape)) if node.leaf else None

    found = WeightGradients("t", [product(units, x), sums], "bfloat16", reads, reads, "sm_90a")
    (launch,) = found.launches
    assert launch.totals == ((sums,),)


def test_products_of_members_share_a_launch_and_lie_in_their_gradients() -> None:
    """A GRU's, whose left operands a block multiplies together: one launch, which writes where each right operand's
    sums go, and whose clusters add up two parts."""
    x, h, *gates = (leaf(name, 16, 128) for name in "xhrzmn")
    r, z, m, n = gates
    products = [product(a, right, "cb,ck->cbk") for right, lefts in ((x, (r, z, m)), (h, (r, z, n))) for a in lefts]
    sums = [make("sum_rows", gate, rank=2) for gate in gates]
    both, biases = [tuple(products[:3]), tuple(products[3:])], tuple(sums[:3])

    def reads(node: Node) -> Place | None:
        return Place("bfloat16", 16 * 128) if node.leaf else None

    found = WeightGradients("t", [*products, *sums], "bfloat16", reads, reads, "sm_90a", beside=[*both, biases])
    (launch,) = found.launches
    assert launch.rights == 2 and launch.made == [*both, biases, (sums[3],)] and found.in_heads == {*launch.made}
    assert launch.adds == launch.kernel.cluster == 2
    program = Program()
    found.reserve(program, "T * B")
    ready = {nodes: program.input(number).cast("float32") for number, nodes in enumerate(both)}
    places = found.pointers(program, ready)
    assert [places[nodes[0]].text for nodes in both] == [pointer.text for pointer in ready.values()]
    operand = program.input(2).cast("bfloat16")
    found.run(program.sequence, lambda node, product: operand, "T * B", places, "tile > 0")
    assert sum("RUN(call" in line for line in program.sequence.lines) == 2
    few = WeightGradients("t", products, "bfloat16", reads, reads, "sm_90a", 1000)
    assert [launch.rights for launch in few.launches] == [1, 1] and not few.in_heads


def test_parts_that_the_steps_have_left_are_added_up() -> None:
    """One for each batch row; no kernel multiplies again."""
    sums, made = [make("sum_rows", A, rank=1)], product(A, H)
    found = WeightGradients(
        "t", sums, "float32", *[lambda node: Place("float32", prod(node.shape))] * 2, accumulated=[made]
    )
    assert [launch.nodes for launch in found.launches] == [(*sums,)]
    program = Program()
    found.reserve(program, "T * B")
    places = found.pointers(program, {})
    assert {*places} == {*sums, made} and len({place.text for place in places.values()}) == 2
    found.add_parts(program.sequence, {made: program.input(0)}, places, "tile > 0")
    (line,) = [line for line in program.sequence.lines if "kernels::" in line]
    assert "t_fold" in line and f"int64_t({16 * 16}), int64_t(B)" in line and "tile > 0" in line


def test_sums_are_made_beside_the_steps_alone() -> None:
    found = WeightGradients("t", [], "float32", lambda node: None, lambda node: None, accumulated=[product(A, H)])
    program = Program()
    found.reserve(program, "T * B")
    found.run(program.sequence, lambda node, product: program.input(0), "T * B", found.pointers(program, {}), "1")
    assert not found.launches and not any("kernels::" in line for line in program.sequence.lines)


def test_kernels_know_where_their_operands_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Operand] = []

    def spy(tile: MmaWeightGradientTile, lefts: Sequence[Operand], rights: Sequence[Operand]) -> list[tuple[str, str]]:
        seen.extend((*lefts, *rights))
        return [(one.name, one.place.dtype) for one in (*lefts, *rights)]

    monkeypatch.setattr(MmaWeightGradientTile, "pointers", spy)
    weight_gradients(product(A, X), product(B, X))
    assert [o.name for o in seen] == ["a0", "a1", "x1"] and all(o.told for o in seen)


def test_operands_of_large_products_are_put_in_order_once() -> None:
    """Both gates once for both products, x and h each; in buffers that the products take in turn."""
    x, h, a, b = (leaf(name, size) for name, size in (("x", 700), ("h", 1024), ("a", 1024), ("b", 1024)))

    def reads(node: Node) -> Place | None:
        return Place("float32", prod(node.shape)) if node.leaf else None

    sums = [product(gate, other) for other in (x, h) for gate in (a, b)]
    found = WeightGradients("t", sums, "tf32", reads, reads, "sm_90a")
    assert [len(launch.packed) for launch in found.launches] == [2, 2]
    program = Program()
    found.reserve(program, "T * B")
    places = found.pointers(program, {})
    found.run(program.sequence, lambda node, product: program.input(0), "T * B", places, "tile > 0")
    launched = [line.split("kernels::")[1].split(",")[0] for line in program.sequence.lines if "kernels::" in line]
    order = ["t_ordered0", "t_ordered1", "t_ordered2", "t_totals0", "t_fold_several", "t_ordered3"]
    order += ["t_totals1", "t_fold_several"]
    assert launched == order
    # 32 rows by 64 columns are a square; 16 of a gate, 16 of h at most.
    bytes_of = working_memory(program, 132)
    assert bytes_of(64, 1) - bytes_of(32, 1) >= (2 * 16 + 16) * 8192


def test_sums_of_all_rows_at_once_need_no_memory_beside_the_gradient() -> None:
    """A large product is one part: its sums are added to those of other rows where these are."""
    left, right = leaf("a", 2048), leaf("x", 2048)
    place = [lambda n: Place("float32", prod(n.shape)) if n.leaf else None] * 2

    def bytes_of(again: str) -> int:
        program = Program()
        WeightGradients("t", [product(left, right)], "tf32", *place, "sm_90a").reserve(program, "T * B", again=again)
        return working_memory(program, 132)(64, 4)

    assert bytes_of("T > 32") == bytes_of("T > 64") < 2048 * 2048 * 4 + 64 * 4 * 2048 * 2


def test_layers_at_once_have_memory_of_their_own() -> None:
    """Of both operands in another order, and of the parts' sums; and a part of the multiprocessors each."""
    sums = [product(leaf("a", 1024), leaf("x", 700))]
    found = WeightGradients(
        "t", sums, "tf32", *[lambda n: Place("float32", prod(n.shape)) if n.leaf else None] * 2, "sm_90a"
    )
    program = Program()
    found.reserve(program, "T * B", "3", "2")
    places = found.pointers(program, {})
    for copy in (0, 2):
        found.run(program.sequence, lambda node, product: program.input(0), "T * B", places, "1", copy)
    calls = [line for line in program.sequence.lines if "RUN(call" in line]
    first, third = calls[: len(calls) // 2], calls[len(calls) // 2 :]
    assert all(a != b and "(2) * size" in b and "(2) * size" not in a for a, b in zip(first, third, strict=True))
    one, alone = Program(), weight_gradients(product(A, X))
    alone.reserve(one, "T * B")
    assert "sms / (1 * 1)" in one.layout[0] and "* 2))" in program.layout[0]


def test_sums_may_have_a_place_already() -> None:
    """Those of one launch, in its order, and no others."""
    found = weight_gradients(product(A, X), product(B, X), make("sum_rows", A, rank=1))
    program = Program()
    given = program.input(1).cast("float32")
    places = found.pointers(program, {found.launches[0].nodes: given, found.launches[0].nodes[:1]: program.input(2)})
    first, second, third = places.values()
    assert first.text == given.text and second.text.startswith(f"({given.text}") and "work" in third.text


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (make("sum_rows", make("mul", A, B), rank=1), lambda a, b, c: (a * b).sum(0)),
        (product(C, A, "gk,a->gka"), lambda a, b, c: np.einsum("rgk,ra->gka", c, a)),
        pytest.param(
            product(C, C, "gk,hk->gh"), lambda a, b, c: np.einsum("rgk,rhk->gh", c, c), marks=pytest.mark.slow
        ),
    ],
    ids=["pointwise", "outer", "inner"],
)
def test_sums_by_column(node: Node, expected: object) -> None:
    rng, rows, parts = np.random.default_rng(0), 37, 2
    found = weight_gradients(node).launches[0]
    values = {n: rng.normal(size=(rows, *n.shape)).astype("f4") for n in (A, B, C)}
    arrays = {argument.name: values[argument.node] for argument in found.arguments}
    arrays["sums"] = np.full((parts, *node.shape), np.nan, "f4")
    run(found.kernel, arrays, {"rows": rows, "parts": parts}, parts * -(-prod(node.shape) // COLUMNS))
    assert callable(expected)
    np.testing.assert_allclose(arrays["sums"].sum(0), expected(*values.values()), rtol=1e-4, atol=1e-4)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("dtype", "shape", "each"), [("bfloat16", (3, 48), 4), ("float32", (130,), 2), ("bfloat16", (25,), 1)]
)
def test_sums_of_values_as_they_lie_are_of_words(dtype: str, shape: tuple[int, ...], each: int) -> None:
    both = [Node("input", shape=shape, name=name) for name in "ab"]
    size, rows, parts = prod(shape), 37, 3
    nodes = [make("sum_rows", node, rank=len(shape)) for node in both]

    def reads(node: Node) -> Place | None:
        return Place(dtype, size + 8) if node in both else None

    (found,) = WeightGradients("t", nodes, dtype, reads, reads, "sm_80").launches
    assert found.blocks == -(-size // (COLUMNS * each))
    values = [np.random.default_rng(i).normal(size=(rows, size + 8)).astype("f4") for i in range(2)]
    arrays = {a.name: encoded(values[both.index(a.node)], dtype) for a in found.arguments}
    arrays["sums"] = np.full((parts, 2, size), np.nan, "f4")
    run(found.kernel, arrays, {"rows": rows, "parts": parts}, parts * found.blocks)
    expected = [rounded(value, dtype).astype("f8").sum(0)[:size] for value in values]
    np.testing.assert_allclose(arrays["sums"].sum(0), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("of_thread", [1, 4])
@pytest.mark.parametrize("add", [0, 1])
def test_parts_are_added_up(of_thread: int, add: int) -> None:
    """Of two arrays, one of which a block's threads have no element of, and ends inside of a block."""
    kernel = WeightGradients("t", [], "float32", lambda node: None, lambda node: None).fold(2, of_thread)
    rng, sizes, parts = np.random.default_rng(of_thread), (3, 700), 3
    arrays = {f"sums{n}": rng.normal(size=(parts, size)).astype("f4") for n, size in enumerate(sizes)}
    there = [rng.normal(size=size).astype("f4") if add else np.full(size, np.nan, "f4") for size in sizes]
    arrays |= {f"totals{n}": np.append(own, np.float32(7)) for n, own in enumerate(there)}
    blocks = sum(-(-size // (of_thread * FOLDERS)) for size in sizes)
    run(kernel, arrays, {"size0": sizes[0], "size1": sizes[1], "parts": parts, "add": add}, blocks)
    for n, own in enumerate(there):
        expected = arrays[f"sums{n}"].sum(0) + (own if add else 0)
        np.testing.assert_allclose(arrays[f"totals{n}"], np.append(expected, 7), rtol=1e-5, atol=1e-6)


def test_threads_have_several_elements_where_one_each_would_wait() -> None:
    found = WeightGradients("t", [], "float32", lambda node: None, lambda node: None)
    host = Program().sequence
    for size in (1000, 1_000_000):
        found._fold_all(host, [(Pointer("sums", "float32"), Pointer("totals", "float32"), size)], 2, "false")
    assert list(found.folds) == [(1, 1), (1, 4)]
