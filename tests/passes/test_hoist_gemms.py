"""hoist_gemms: what does not read state leaves the loop, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tvm_rnn as rnn
from tvm_rnn import PassError, cell, outer, sigmoid, tanh, target
from tvm_rnn.graph.graph import Graph, depends
from tvm_rnn.passes.differentiate import choice, differentiate
from tvm_rnn.passes.hoist_gemms import HoistGemms
from tvm_rnn.passes.normalise import normalise

V4 = target.TABLE["x86-64-v4"]


def hoisted(c: rnn.Cell, **sizes: int) -> Graph:
    net = rnn.RNN(c, 5, 7, **sizes)
    return HoistGemms().apply(normalise(net.layers[0].graph), net, V4)


def ops(graph: Graph, region: str) -> list[str]:
    nodes = graph.nodes()
    leaves = depends(nodes)
    return [n.op for n in nodes if leaves[n] and not n.leaf and graph.region_of(n) == region]


def test_lstm_input_products_and_bias_move_together() -> None:
    graph = hoisted(rnn.cells.lstm)
    assert ops(graph, "before") == ["gemm", "add"] * 4
    assert ops(graph, "step").count("gemm") == 4


def test_state_products_stay() -> None:
    graph = hoisted(rnn.cells.gru_reset_before)
    assert ops(graph, "before").count("gemm") == 3
    assert ops(graph, "step").count("gemm") == 3


def test_a_cell_without_recurrent_products_has_none_in_the_loop() -> None:
    assert "gemm" not in ops(hoisted(rnn.cells.indrnn), "step")
    assert "gemm" not in ops(hoisted(rnn.cells.sru), "step")


def test_a_cell_without_products_keeps_everything() -> None:
    @cell(states="h")
    def leaky(x: "H", h: "H", *, a: "H"):
        return a * h + x

    net = rnn.RNN(leaky, 7, 7)
    graph = HoistGemms().apply(normalise(net.layers[0].graph), net, V4)
    assert ops(graph, "before") == []


def test_a_cheap_function_of_a_kept_value_stays_in_the_loop() -> None:
    """z and 1 - z: only z is kept for all steps."""

    @cell(states="h")
    def mix(x: "I", h: "H", *, W: "H I", R: "H H"):
        z = sigmoid(W @ x)
        return z * tanh(R @ h) + (1 - z) * h

    graph = hoisted(mix)
    kept = [n for n in graph.nodes() if graph.region_of(n) == "before" and n.op == "sub"]
    assert kept == []


def test_outer_products_of_hoisted_vectors_stay_in_the_loop() -> None:
    @cell(states="C h", output="h")
    def memory(x: "I", C: "H H", h: "H", *, K: "H I", V: "H I"):
        C = 0.9 * C + outer(V @ x, K @ x)
        return C, sigmoid(C[0])

    graph = hoisted(memory)
    assert all(len(n.shape) < 2 for n in graph.nodes() if graph.region_of(n) == "before")


def backward(name: str, keep: str = "values") -> Graph:
    net = rnn.RNN(rnn.cells.get(name), 5, 7)
    graph = HoistGemms().apply(differentiate(net.layers[0].graph, choice(keep)), net, V4)
    back = HoistGemms().apply(graph.backward, net, V4) if graph.backward else graph
    HoistGemms().ensures(back)
    return back


def test_products_that_no_gradient_carries_on_leave_for_after() -> None:
    back = backward("lstm")
    assert ops(back, "step").count("gemm") == 4 and ops(back, "before") == []
    late = ops(back, "after")
    assert late.count("gemm") == 4 and late.count("einsum_rows") == 8 and late.count("sum_rows") == 4


@pytest.mark.parametrize(("name", "kept"), [("lstm", 4), ("gru", 4), ("nas", 9)])
def test_products_done_again_leave_the_steps_what_a_tape_would(name: str, kept: int) -> None:
    """Of values of the hidden size: the gates. tanh(c), 1 - g * g and the like are made of them in the steps."""
    back = backward(name, "states")
    graphs = back.nodes()
    early = {n for n in graphs if back.region_of(n) == "before" and not n.leaf}
    read = {a for n in graphs if n not in early for a in n.args if a in early}
    assert len(read) == kept and all(n.shape == (7,) for n in read)
    assert ops(back, "step").count("gemm") == ops(backward(name), "step").count("gemm")


def test_matrices_of_every_step_stay_in_the_loop() -> None:
    """The states before each step are inputs of a backward graph, and could all be multiplied at once: with T x B
    matrices to keep."""
    back = backward("delta_net")
    assert all(len(n.shape) < 2 for n in back.nodes() if back.region_of(n) == "before")
    assert "einsum" in ops(back, "step")


def test_ensures_refuses_a_value_of_after_in_the_loop() -> None:
    back = backward("lstm")
    carried = back.results[0].args[0]
    broken = replace(back, region={**back.region, carried: "after"}, applied=("hoist_gemms",))
    with pytest.raises(PassError, match="reads a value of `after` too early"):
        HoistGemms().ensures(broken)


def test_ensures_refuses_a_state_in_before() -> None:
    graph = hoisted(rnn.cells.lstm)
    late = next(n for n in graph.nodes() if n.op == "sigmoid")
    broken = replace(graph, region={**graph.region, late: "before"}, applied=("hoist_gemms",))
    with pytest.raises(PassError, match="reads a value of `step`"):
        HoistGemms().ensures(broken)


def test_what_sums_read_of_inputs_with_masks_is_made_before_the_steps() -> None:
    """A multiple of a mask is a node of each region: none is stored for all rows."""
    net = rnn.RNN(rnn.cells.lstm, 7, 7, num_layers=2, dropout=0.2, recurrent_dropout=0.3, zoneout=0.1)
    found = differentiate(normalise(net.layers[1].training)).backward
    assert found is not None
    graph = HoistGemms().apply(found, net, V4)
    HoistGemms().ensures(graph)
    nodes = graph.nodes()
    read = {a for n in nodes if n.op == "einsum_rows" for a in n.args}
    masked = [n for n in read if n.op == "mul" and any(a.op == "input" and a.name in ("x", "h") for a in n.args)]
    assert len(masked) == 2 and {graph.region_of(n) for n in masked} == {"before"}
    for node in nodes:
        for arg in node.args:
            if any(a.random for a in arg.args) and arg.op == "mul" and arg not in masked:
                assert graph.region_of(arg) == graph.region_of(node)
    assert sum(n.random for n in nodes) == 4


@pytest.mark.broad
def test_what_sums_and_the_steps_both_read_stays_in_the_steps() -> None:
    """h * mask is a factor of itself: sums read it and its square, which is not made before what it is made of."""

    @cell(states="h")
    def twice(x: "I", h: "H", *, W: "H I", R: "H H", S: "H H"):
        return tanh(W @ x + R @ h + S @ (h * sigmoid(h)))

    net = rnn.RNN(twice, 5, 7, recurrent_dropout=0.3)
    graph = differentiate(normalise(net.layers[0].training)).backward
    assert graph is not None
    HoistGemms().ensures(HoistGemms().apply(graph, net, V4))
    rnn.compile(net.init(0), training=True)
