"""fuse_pointwise: groups, what they store, and their order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from networks import network

import tvm_rnn as rnn
from tvm_rnn import PassError, cell, concat, matvec, mean, sin, tanh, target, where
from tvm_rnn.graph.graph import Graph, Group, Node, depends
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.fuse_pointwise import FusePointwise, bases, read_at_last

V4, H200 = target.TABLE["x86-64-v4"], target.resolve("nvidia-h200")


def fused(c: rnn.Cell, without: tuple[str, ...] = ()) -> Graph:
    sizes = {n: 3 for n in c.size_names if n not in ("I", "H")}
    width = 7 if "I" not in c.size_names else 5
    return dict(pipeline.run(rnn.RNN(c, width, 7, **sizes), V4, without))["fuse_pointwise"].graphs[0]


def kinds(graph: Graph, region: str) -> list[str]:
    return [g.kind for g in graph.groups if g.region == region]


def test_an_lstm_is_one_group_in_each_region() -> None:
    graph = fused(rnn.cells.lstm)
    assert kinds(graph, "before") == ["gemm"] and kinds(graph, "step") == ["gemm"]
    (step,) = [g for g in graph.groups if g.region == "step"]
    assert set(step.stored) == set(graph.results)


def test_gru_reset_before_has_two_phases() -> None:
    step = [g for g in fused(rnn.cells.gru_reset_before).groups if g.region == "step"]
    assert [g.phase for g in step] == [1, 2] and [g.kind for g in step] == ["gemm", "gemm"]


def test_switched_off_every_node_is_a_group() -> None:
    graph = fused(rnn.cells.lstm, ("fuse_pointwise",))
    assert all(len(g.nodes) == 1 for g in graph.groups)
    assert all(set(g.stored) == set(g.nodes) for g in graph.groups)


def test_what_only_a_reduction_reads_is_inlined() -> None:
    @cell(states="h")
    def energy(x: "H", h: "H"):
        return tanh(x + h) * mean(h * h, keepdims=True)

    graph = fused(energy)
    reduce = next(g for g in graph.groups if g.kind == "reduce")
    assert "mul" in [n.op for n in reduce.nodes]
    assert all(n.op != "mul" or n.shape != (7,) for g in graph.groups for n in g.stored if g is reduce)


@cell(states="h c", output="y")
def gates_of_sums(x: "H", h: "N H", c: "N H", *, R: "2 N H H"):
    i, g = (matvec(R[k], h) + x for k in range(2))
    c = c + tanh(i) * tanh(g)
    return tanh(c), c, c.reshape(-1)


@cell(states="h c", output="y")
def gates_that_are_states(x: "H", h: "N H", c: "N H", *, R: "2 N H H"):
    i, g = (tanh(matvec(R[k], h) + x) for k in range(2))
    return i * g, i, (i * g).reshape(-1)


@pytest.mark.parametrize(
    ("c", "expected"),
    [
        (gates_of_sums, ["reduce", "reduce", "pointwise"]),
        (gates_that_are_states, ["reduce", "pointwise", "reduce", "pointwise"]),
    ],
)
def test_gates_of_sums_are_made_where_they_are_read(c: rnn.Cell, expected: list[str]) -> None:
    """But for those that are stored in any case."""
    graph = fused(c)
    (*found, _) = kinds(graph, "step")
    assert found == expected
    made = [g for g in graph.groups if g.region == "step" and g.kind == "pointwise" and g.nodes[0].op != "reshape"]
    assert {n for g in made for n in g.stored} == set(graph.results)


def test_truth_values_are_never_stored() -> None:
    @cell(states="h")
    def gate(x: "I", h: "H", *, W: "H I", R: "H H"):
        a, b = W @ x > 0, R @ h
        return where(a & (b > 0), h, b)

    graph = fused(gate)
    assert not any(n.boolean for g in graph.groups for n in g.stored)
    assert all(not b.boolean for n in graph.nodes() for b in bases(n))


def test_what_one_group_reads_is_made_there() -> None:
    net = rnn.RNN(rnn.cells.mlstm_capped, 5, 8, N=2, K=8, dtype="bfloat16")
    graph = pipeline.passed(net, Options(H200, precision="bfloat16")).layers.graphs[0]
    (scan,) = (g for g in graph.groups if g.root is not None and g.root.op == "scan")
    assert [n.op for n in scan.stored] == ["scan"]  # nothing that does not read it
    (gate,) = (g for g in graph.groups if any(n.op == "sigmoid" for n in g.nodes))
    assert {n.op for n in gate.nodes} == {"sigmoid", "div", "mul"} and [n.op for n in gate.stored] == ["mul"]


def test_heads_of_a_product_that_nothing_else_reads_are_made_in_its_epilogue() -> None:
    def products(name: str, **sizes: int) -> list[Group]:
        net = rnn.RNN(rnn.cells.get(name), 5, 8, **sizes, dtype="bfloat16")
        graph = pipeline.passed(net, Options(H200, precision="bfloat16")).layers.graphs[0]
        return [g for g in graph.groups if g.kind == "gemm"]

    (_, own) = products("mlstm", N=2)  # gates of numbers, then q k v o, each with a bias
    assert own.root not in own.stored and [n.shape for n in own.stored] == [(16,)] * 4
    (_, own, _) = products("mlstm_capped", N=2, K=6)  # q is read as it is
    assert own.stored == (own.root,)


def test_a_reduction_behind_a_recurrence_reads_one_product() -> None:
    net = rnn.RNN(rnn.cells.gla, 5, 8, N=2, dtype="bfloat16")
    own = pipeline.passed(net, Options(H200, precision="bfloat16", training=True))
    back = own.training("values")[-1][1].graphs[0].backward
    assert back is not None
    (last,) = (g for g in back.groups if g.root is not None and g.root.op == "sum" and g.root.attrs["axis"] == -2)
    (product,) = (n for n in last.root.args if last.root is not None)
    assert product.op == "mul" and last.nodes == (last.root,) and any(product in g.stored for g in back.groups)


def test_a_joined_operand_of_a_reduction_is_read_in_place() -> None:
    @cell(states="h k")
    def both(x: "H", h: "H", k: "H"):
        m = mean(concat([h, k]), keepdims=True)
        return x * m, h

    graph = fused(both)
    assert graph.results[1] in {n for g in graph.groups for n in g.stored}  # a result that is a leaf is copied


def test_a_view_that_is_a_result_and_is_read_is_stored_apart() -> None:
    @cell(states="h k")
    def both(x: "H", h: "2*H", k: "H", *, R: "H H"):
        joined = concat([R @ k, k + x])
        return joined, x * mean(joined, keepdims=True)

    graph = fused(both)
    assert graph.results[0] not in {a for n in graph.nodes() for a in n.args}
    assert graph.groups[-1].stored == (graph.results[0],)


def test_what_the_step_reads_through_a_hoisted_join_is_stored() -> None:
    @cell(states="h")
    def cheap(x: "I", h: "H+I", *, W: "H I", p: "I"):
        return sin(h) * concat([tanh(W @ x), x * p])

    stored = {n.op for g in fused(cheap).groups if g.region == "before" for n in g.stored}
    assert stored == {"tanh", "mul"}


@pytest.mark.few_cells
@pytest.mark.broad_after(len(rnn.cells.names()))
@pytest.mark.parametrize("name", rnn.cells.names())
@pytest.mark.parametrize("off", [(), ("hoist_gemms",), ("combine_gemms",), ("fuse_pointwise",)], ids=str)
def test_every_operand_is_ready_when_it_is_read(name: str, off: tuple[str, ...]) -> None:
    graph = fused(
        rnn.cells.get(name), off
    )  # ensures() ran in the pipeline; here the converse: nothing is stored in vain
    leaves = depends(graph.nodes())
    read = {b for n in graph.nodes() for a in n.args for b in (a, *bases(a))} | set(graph.roots)
    for group in graph.groups:
        assert group.nodes and all(leaves[n] or n in graph.roots for n in group.nodes)
        assert all(n in read or any(n in bases(r) for r in graph.roots) for n in group.stored)


@pytest.mark.few_cells
@pytest.mark.broad_after(len(rnn.cells.names()))
@pytest.mark.parametrize("name", rnn.cells.names())
@pytest.mark.parametrize("off", [(), ("hoist_gemms",), ("combine_gemms",), ("fuse_pointwise",)], ids=str)
def test_what_is_read_after_all_steps_is_stored(name: str, off: tuple[str, ...]) -> None:
    net = network(name, 5, 7)
    back = pipeline.run(net, V4, off, training=True)[-1][1].graphs[0].backward
    assert back is not None
    stored = {n: g.region for g in back.groups for n in g.stored}
    for node in read_at_last(back):  # the step carries a state, which no group stores
        assert node in stored or node.op == "state"
    sums = [n for n in back.nodes() if n.op in ("sum_rows", "einsum_rows")]
    own = {b for n in sums for a in n.args for b in bases(a) if not b.leaf}
    assert own <= set(read_at_last(back))
    assert all(g.phase == 0 or g.region == "step" for g in back.groups)


def test_sums_that_are_made_elsewhere_read_nothing() -> None:
    """Gradients of gates are read for those of the input too, but where the input's product is after the loop."""
    back = pipeline.run(network("elman", 5, 7), V4, training=True)[-1][1].graphs[0].backward
    assert back is not None
    sums = [n for n in back.nodes() if n.op in ("sum_rows", "einsum_rows")]
    alone, rest = read_at_last(back), read_at_last(back, sums)
    assert {*rest} <= {*alone} and not any(n.op == "state" for n in rest)


def test_a_forward_graph_reads_nothing_after_all_steps() -> None:
    assert read_at_last(fused(rnn.cells.lstm)) == []


def test_ensures_refuses_groups_in_the_wrong_order() -> None:
    graph = fused(rnn.cells.gru_reset_before)
    groups: tuple[Group, ...] = tuple(reversed(graph.groups))
    with pytest.raises(PassError, match="no earlier group stores"):
        FusePointwise().ensures(replace(graph, groups=groups))


def test_ensures_refuses_a_result_that_is_not_stored() -> None:
    graph = fused(rnn.cells.elman)
    groups = tuple(replace(g, stored=()) if g.region == "step" else g for g in graph.groups)
    with pytest.raises(PassError, match="result is stored by no group"):
        FusePointwise().ensures(replace(graph, groups=groups))


@pytest.mark.parametrize(("machine", "groups"), [("nvidia-h200", 1), ("llvm", 2)])
def test_what_a_recurrence_reads_first_joins_its_loop_on_gpus(machine: str, groups: int) -> None:
    """What its gradient and its epilogue read both: 1 - z of min_gru's backward. Not stored; on CPUs it is."""
    net = rnn.RNN(rnn.cells.min_gru, 8, 8, dtype="bfloat16" if machine != "llvm" else "float32")
    graph = pipeline.run(net, target.resolve(machine), training="values")[-1][1].graphs[0].backward
    assert graph is not None
    assert [kind for kind in kinds(graph, "before") if kind != "gemm"] == ["pointwise", "scan"][-groups:]
    (scan,) = [g for g in graph.groups if g.kind == "scan"]
    assert ("sub" in [n.op for n in scan.nodes]) == (groups == 1)
    assert all(n.op != "sub" for n in scan.stored)


@pytest.mark.parametrize("name", ["gated_delta_net", "mlstm"])
def test_sums_are_made_where_their_values_are_at_hand(name: str) -> None:
    """None is left behind a product or a recurrence, where groups in front of that have made or read all its values."""
    net = rnn.RNN(rnn.cells.get(name), 5, 8, dtype="bfloat16")
    back = pipeline.run(net, H200, training="values")[-1][1].graphs[0].backward
    assert back is not None
    leaves, stretches, sums = depends(back.nodes()), [set[Node]()], 0
    for group in (g for g in back.groups if g.region == "before"):
        read = {b for n in group.nodes for a in n.args for b in bases(a) if b not in group.nodes and leaves[b]}
        if group.kind not in ("pointwise", "reduce"):
            stretches.append(set())
            continue
        if group.kind == "reduce":
            sums += 1
            assert not any(read <= known for known in stretches[:-1])
        stretches[-1] |= {*group.nodes, *read}
    assert sums > 2
