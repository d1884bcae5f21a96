"""What is kept of parameters, in which order, and how products' parameters are packed."""

from __future__ import annotations

from typing import Any

import numpy as np
from compiled_kernels import graph_of, layers_of, text_of
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn import Cell, cell, sigmoid
from tvm_rnn.cuda.codegen.host_program import Program
from tvm_rnn.cuda.layer.packed_layout import Pack
from tvm_rnn.cuda.layer.weight_packing import Weights, tf32
from tvm_rnn.graph.graph import Graph
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve


@cell
def made_of_parameters(x: "I", h: "H", *, W: "H I", R: "H H", b: "H", g: "H"):
    """A recurrent matrix and a gate that are computed from parameters."""
    return sigmoid((R - R.T) @ h + W @ x + b) * sigmoid(g)


def graph(c: Cell) -> Graph:
    net = rnn.RNN(c, 5, 7)
    return pipeline.run(net, resolve("nvidia-h200"))[-1][1].graphs[0]


def names(weights: Weights) -> list[str]:
    return [n.name or n.op for n in weights.kept]


def test_an_lstm_keeps_its_bias_alone() -> None:
    """Its matrices are packed; views of the bias are changes of index."""
    assert names(Weights(graph_of("lstm"), 0, "float32")) == ["b"]


def test_what_is_computed_from_parameters_is_kept_before_what_needs_it() -> None:
    weights = Weights(graph(made_of_parameters), 0, "bfloat16")
    kept = names(weights)
    assert sorted(kept) == ["b", "sigmoid", "sub"]
    assert {place.dtype for n in weights.kept if (place := weights.place(n)) is not None} == {"float32"}
    program = Program("bfloat16")
    places = weights.pack(program, 2, 1)
    assert {name for name, _ in program.parameters} == {"R_l2_reverse", "b_l2_reverse", "g_l2_reverse"}
    assert len(places) == 3 and len(program.kernels) == 3
    weights.pack(program, 3, 0)
    assert len(program.kernels) == 3  # layers share them


def test_a_pack_is_zero_where_there_is_no_element() -> None:
    made = graph_of("elman")
    root = next(g.root for g in made.groups if g.region == "step")
    assert root is not None
    weights = Weights(made, 0, "float16")

    def index(at: Any) -> Any:
        row, k = tirx.truncdiv(at, tirx.IntImm("int64", 8)), tirx.truncmod(at, tirx.IntImm("int64", 8))
        return (row, k), k < tirx.IntImm("int64", 7)

    pack = Pack(root.args[0], "float16", 56, index, ("padded",))
    weights.want(pack)
    weights.want(Pack(root.args[0], "float16", 56, index, ("padded",)))
    program = Program("float16")
    places = weights.pack(program, 0, 0)
    assert places["padded",].dtype == "float16" and len(weights.packs) == 1
    text = text_of(*(k for k in program.kernels.values() if "pack" in k.name))
    assert text.count("_ptr[") == 2  # the zero, and the value under its condition


def test_constants_of_the_equations_are_parameters_too() -> None:
    table = np.arange(7.0)

    @cell
    def shifted(x: "I", h: "H", *, W: "H I"):
        """A cell with an array in its equations."""
        return W @ x + h * table

    net = rnn.RNN(shifted, 5, 7)
    layers = pipeline.run(net, resolve("nvidia-h200"))[-1][1]
    program = Program("float32")
    Weights(layers.graphs[0], 0, "float32").pack(program, 0, 0)
    assert ("constant.0.0", "float32") in program.parameters


def test_tf32_rounds_to_nearest() -> None:
    value = tirx.Var("x", "float32")
    text = str(tf32(value))
    assert "4096" in text and "__int_as_float" in text
    bits = np.array([1.0 + 2.0**-11, 1.0 + 2.0**-12, -3.0000001], np.float32).view(np.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(np.float32)
    np.testing.assert_array_equal(rounded, np.array([1.0 + 2.0**-10, 1.0, -3.0], np.float32))


def test_every_layer_of_one_graph_has_places_of_its_own() -> None:
    _, layers = layers_of("gru", num_layers=3)
    weights, program = Weights(layers.graphs[1], 1, "float32"), Program("float32")
    first, second = weights.pack(program, 1, 0), weights.pack(program, 2, 0)
    assert first.keys() == second.keys()
    assert not {p.text for p in first.values()} & {p.text for p in second.values()}
