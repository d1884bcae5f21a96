"""Loops: only where an axis has several elements, braces only where there are several statements; states at the end."""

from __future__ import annotations

import tvm_rnn as rnn
from tvm_rnn.plain_c.floating import Floating
from tvm_rnn.plain_c.layer_values import layer_values
from tvm_rnn.plain_c.nests import LayerCode, Names, Nests, looped


def code_of(net: rnn.RNN) -> LayerCode:
    graph = net.layers[0].graph
    values = layer_values(graph, {p.name: net.weights[f"{p.name}_l0"] for p in graph.params})
    arrays = {node: node.name for node in (*values.graph.inputs, *values.graph.states)}
    return Nests(values, Floating("float32"), Names("w", arrays, "work.")).written()


def test_loops_of_several_axes() -> None:
    assert looped(["0"], [1], ["a;"]) == ["a;"]
    assert looped(["i", "0", "k"], [2, 1, 3], ["a;"]) == [
        "for (int i = 0; i < 2; ++i)",
        "  for (int k = 0; k < 3; ++k)",
        "    a;",
    ]
    assert looped(["i"], [2], ["a;", "b;"]) == ["for (int i = 0; i < 2; ++i) {", "  a;", "  b;", "}"]


def test_states_change_after_all_of_them_were_read() -> None:
    """b is written in place; a, which b reads, is copied last."""

    @rnn.cell(states="a b")
    def swapped(x: "I", a: "I", b: "I"):
        return b * 0.5, a + x

    code = code_of(rnn.RNN(swapped, 3).init(0))
    writes = [line.split("[")[0].strip() for line in code.lines if "=" in line and "for" not in line]
    assert writes == ["work.v0", "b", "a"] and code.memory == {"v0": 3} and code.output == "work.v0"


def test_a_product_reads_its_blocks_and_vectors() -> None:
    code = code_of(rnn.RNN(rnn.cells.lstm, 3, 5).init(0))
    assert code.lines[:2] == ["product4(w_0, x, 20, 3, 0, work.v0);", "product4(w_1, h, 20, 5, 1, work.v0);"]
    assert len(code.arrays["w_1"].numbers) == 100 and code.output == "h"
