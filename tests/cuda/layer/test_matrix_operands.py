"""Operands of matrix recurrences: parts of stored values where they are, copied where they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.suites.recurrences import CELLS
from tvm_rnn.cuda.layer.matrix_operands import NUMBER, AgainOperands, MatrixOperands, is_matrix, marked, prepared
from tvm_rnn.graph.graph import Graph
from tvm_rnn.options import Options
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")


def graph_of(name: str, heads: int, **more: int) -> Graph:
    net = rnn.RNN(rnn.cells.get(name), 5, 8, N=heads, dtype="bfloat16", **more)
    return passed(net, Options(GPU, precision="bfloat16")).layers.graphs[0]


def operands_of(name: str, heads: int = 3, **more: int) -> MatrixOperands:
    _, (own,) = prepared(graph_of(name, heads, **more), lambda node: node.leaf)
    assert isinstance(own, MatrixOperands)
    return own


def test_parts_of_a_product_lie_where_it_is() -> None:
    own = operands_of("retnet")
    found = [own.located(operand) for operand in own.vectors]
    assert not own.copies and {base.op for base, _ in found} == {"gemm"}
    assert len({offset for _, offset in found}) == 3 and all(offset % 24 == 0 for _, offset in found)
    assert own.group_size((own.key, -1)) == 1
    assert own.erase is None and own.decay is not None and own.numbers == [own.decay]


def test_a_key_of_several_heads() -> None:
    own = operands_of("mamba2", 2, M=3)
    assert own.group_size((own.key, -1)) == 3 and own.group_size((own.value, -2)) == 1


def test_what_is_no_part_of_a_stored_value_is_copied() -> None:
    graph, (own,) = prepared(graph_of("retnet", 2), lambda node: False)
    (copy,) = own.copies.values()  # the decay, of which there is no array
    group = next(g for g in graph.groups if copy in g.stored)
    assert own.located((own.numbers[0], NUMBER)) == (copy, 0) and group.nodes == (copy,)
    assert graph.groups.index(group) < next(i for i, g in enumerate(graph.groups) if is_matrix(g))


def test_what_is_written_is_taken_apart_where_nothing_else_reads_it() -> None:
    graph = graph_of("mamba2", 2, M=3)
    (scan,) = (g for g in graph.groups if is_matrix(g))
    assert scan.root is not None
    product = scan.root.args[3].args[0]
    new, (own,) = prepared(graph, lambda node: node.leaf)
    assert isinstance(own, MatrixOperands) and product.op == "mul"
    assert own.located((own.value, -2))[0].op == "gemm" and own.value_scale in own.numbers
    assert own.value_scale is not None and own.value_scale.shape == (2, 3, 1, 1)
    assert any(product in g.nodes for g in graph.groups) and not any(product in g.nodes for g in new.groups)
    trained = passed(
        rnn.RNN(rnn.cells.mlstm, 5, 8, N=2, dtype="bfloat16"), Options(GPU, precision="bfloat16", training=True)
    )
    back = trained.training("values")[-1][1].graphs[0].backward
    assert back is not None
    _, (own, _) = prepared(back, lambda node: node.leaf)  # of both the product is read, which is stored then
    assert isinstance(own, MatrixOperands) and own.value_scale is None


@pytest.mark.parametrize("name", ["gated_delta_net", "delta_net"])
def test_what_is_erased_is_read_by_the_key_and_scaled(name: str) -> None:
    own = operands_of(name)
    assert own.erase is not None and own.located((own.erase, -1)) == own.located((own.key, -1))
    assert own.erase_scale is not None and own.erase_scale in own.numbers
    assert (own.decay is None) == (name == "delta_net")


@pytest.mark.parametrize("training", [False, True])
def test_constants_are_left_to_kernels(training: bool) -> None:
    """Of vectors that lie in inputs; what else reads a product makes it, and it is not stored."""
    net = rnn.RNN(CELLS["gated_delta"], 2 * (3 * 16 + 2), 16, N=2, M=1, dtype="bfloat16")
    own = passed(net, Options(GPU, precision="bfloat16", training=training))
    graph = own.training("values")[-1][1].graphs[0].backward if training else own.layers.graphs[0]
    assert graph is not None
    new, found = prepared(graph, lambda node: node.leaf, lambda node: True)
    assert len(found) == 1 + training
    for one in found:
        along = {scale for (_, axis), (_, scale) in one.bare.items() if axis == -1}
        assert along == {16**-0.5} and not one.copies
        assert {one.located((node, axis))[0].op for node, axis in one.bare if axis == -1} == {"input"}
        rows = {(one.located(own)[0].op, scale) for own, (_, scale) in one.bare.items() if own[1] == -2}
        assert rows == ({("mul", -1.0)} if isinstance(one, AgainOperands) else set())
    products = {n for g in graph.groups for n in g.stored if n.op == "mul" and n.args[-1].scalar == 16**-0.5}
    made = {n for n in products if n.args[0].op == "reshape" and n.args[0].args[0].op == "slice"}
    assert len(made) == 2 and not made & {n for g in new.groups for n in g.stored}


def test_constants_that_no_kernel_takes_stay() -> None:
    """Where each key decays by itself, and where there is no vector without the constant."""

    @rnn.cell(states="S", output="y")
    def by_key(x: "I", S: "H K=I", *, V: "H I"):
        k = rnn.rename(0.5 * x, "K")
        S = rnn.sigmoid(k)[None, :] * S + rnn.outer(V @ x, k)
        return S, rnn.matvec(S, k)

    net = rnn.RNN(by_key, 8, 8, dtype="bfloat16")
    graph = passed(net, Options(GPU, precision="bfloat16")).layers.graphs[0]
    _, (own,) = prepared(graph, lambda node: node.leaf, lambda node: True)
    assert not own.bare and not own.scalable
    net = rnn.RNN(CELLS["gated_delta"], 2 * (3 * 16 + 2), 16, N=2, M=1, dtype="bfloat16")
    graph = passed(net, Options(GPU, precision="bfloat16")).layers.graphs[0]
    _, (own,) = prepared(graph, lambda node: node.leaf, lambda node: False)
    assert own.scalable and not own.bare


def test_a_sum_over_keys_is_read_by_a_vector_of_ones() -> None:
    """What is one for all elements of an axis is copied, for each."""

    @rnn.cell(states="S", output="y")
    def summed(x: "I", S: "H K=H", *, W: "2 H I", V: "K I"):
        v, o = W @ x
        S = 0.5 * S + rnn.outer(v, V @ x)
        return S, rnn.sum(S, axis=-1) * o

    net = rnn.RNN(summed, 5, 8, K=3)
    _, (own,) = prepared(passed(net, Options(GPU, precision="float32")).layers.graphs[0], lambda node: False)
    (read,) = own.reads
    assert read.args[1].shape != (1, 3) and own.copies[read.args[1], -1].shape == (1, 3)


def test_what_training_makes_again() -> None:
    net = rnn.RNN(rnn.cells.gated_delta_net, 5, 8)
    (graph,) = passed(net, Options(GPU, precision="float32")).training("values")[-1][1].graphs
    back = graph.backward
    assert back is not None and marked(graph) == marked(back) == [0]
    _, found = prepared(back, lambda node: False)
    recurrence, again = found
    assert isinstance(recurrence, MatrixOperands) and isinstance(again, AgainOperands)
    assert {*again.made} == {back.states[0], back.inputs[1 + len(graph.inputs)]} and again.along == -2
    assert recurrence.along == -1 and {*recurrence.copies.values()} & {*again.copies.values()}
    assert not marked(passed(net, Options(GPU, precision="float32")).layers.graphs[0])


@pytest.mark.parametrize("name", ["gated_delta_net", "mamba2", "retnet"])
def test_what_is_written_to_a_gradient_decays_with_it(name: str) -> None:
    """So products with the decay are read by nobody, and not made."""
    net = rnn.RNN(rnn.cells.get(name), 5, 8, N=2, dtype="bfloat16")
    (graph,) = passed(net, Options(GPU, precision="bfloat16", training=True)).training("values")[-1][1].graphs
    back = graph.backward
    assert back is not None
    _, found = prepared(back, lambda node: node.leaf, lambda node: True)
    (own,) = (one for one in found if isinstance(one, AgainOperands))
    ((row, bare),) = own.undecayed.items()
    assert row.args[0] is back.states[0] and own.writes(row) == bare
    before = [node for pair in replace(own, undecayed={}).writes(row) for node in pair]
    after = [node for pair in bare for node in pair]
    changed = [node for node, other in zip(before, after, strict=True) if node is not other]
    assert len(changed) == len(bare) and not {*changed} & own.stored
    assert {own.located((node, -1))[0] for node in after} <= own.stored | {*back.inputs}


def test_graphs_without_matrices_stay_as_they_are() -> None:
    net = rnn.RNN(rnn.cells.min_gru, 5, 8)
    graph = passed(net, Options(GPU, precision="float32")).layers.graphs[0]
    assert prepared(graph, lambda node: False)[0] is graph
