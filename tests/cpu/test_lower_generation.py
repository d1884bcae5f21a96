"""generate: greedy tokens are those of a loop of single steps, in one call; its workspace is its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transducers

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.cpu.lower_generation import GenerationLowering
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline


@rnn.cell(output="token")
def greedy(x: "1", h: "H", *, E: "V H", R: "H H", Q: "V H") -> Any:
    h = rnn.tanh(E[x[0]] + R @ h)
    return h, rnn.argmax(Q @ h, keepdims=True)


@rnn.cell(states="h", output="y")
def scanned(x: "I", h: "I", *, a: "I", W: "I I") -> Any:
    h = rnn.sigmoid(a) * h + W @ x
    return h, rnn.tanh(h)


def test_there_is_one_function_and_a_tile_of_one_step() -> None:
    machine = target.TABLE["x86-64-v4"]
    net = rnn.RNN(greedy, 1, 3, V=4)
    lowering = GenerationLowering(net, pipeline.run(net, machine)[-1][1], Options(machine))
    assert [*lowering.functions()] == ["generate"] and lowering.rows_per_tile == 1
    facts = lowering.facts()
    assert facts.tokens == 4 and facts.workspace.per_sequence_row == 0
    assert net.tokens == 4 and rnn.RNN(scanned, 3).tokens is None


def test_greedy_tokens_are_those_of_a_loop_in_float64() -> None:
    net = rnn.RNN(greedy, 1, 8, V=11, dtype="float64").init(seed=3)
    module = rnn.compile(net, generate=True)
    weights = {name.removesuffix("_l0"): value for name, value in net.weights.items()}
    token, h, found = np.array([3, 9]), np.zeros((2, 8)), []
    for _ in range(30):
        h = np.tanh(weights["E"][token] + h @ weights["R"].T)
        token = np.argmax(h @ weights["Q"].T, 1)
        found.append(token)
    tokens, state, lengths = module.generate(30, prompt=np.array([[3, 9]]))
    np.testing.assert_array_equal(tokens, found)
    np.testing.assert_allclose(state["h"][0], h, rtol=1e-13)
    assert lengths.tolist() == [30, 30]


@pytest.mark.broad
def test_a_transducer_decodes_as_a_loop_over_labels_and_frames() -> None:
    """Each row looks at a frame of its own, and ends by itself."""
    net, call, end = transducers.network("float64"), transducers.call(5), transducers.SIZES["V"] - 1
    found, _, lengths = rnn.compile(net, generate=True).generate(40, stop=end, **call)
    assert found.dtype == np.int32 and len({*lengths}) > 2
    for row, length in enumerate(lengths):
        expected = transducers.labels(net.weights, call["frames"][row, : int(call["count"][row])], 40)
        assert found[:length, row].tolist() == expected


@pytest.mark.broad
@pytest.mark.parametrize(("name", "layers"), [("lstm", 3), ("min_gru", 2), ("mlstm", 1), ("sru", 1)])
def test_layers_of_the_zoo_feed_themselves(name: str, layers: int) -> None:
    """Also those whose time runs at once in a whole sequence."""
    cell = rnn.cells.get(name)
    sizes = {n: 6 if n in ("H", "I") else 2 for n in cell.size_names if n != "I"}
    net = rnn.RNN(cell, 6, sizes.pop("H", None), num_layers=layers, dtype="float64", **sizes)
    if net.output_size != 6:
        net = rnn.RNN(cell, net.output_size, 6, num_layers=layers, dtype="float64", **sizes)
    net.init(seed=1)
    prompt = np.random.default_rng(0).normal(size=(3, 2, net.input_size))
    found, wanted = (m.generate(7, prompt=prompt) for m in (rnn.compile(net, generate=True), rnn.reference(net)))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-9, atol=1e-12)
    for name in wanted[1]:
        np.testing.assert_allclose(found[1][name], wanted[1][name], rtol=1e-9, atol=1e-12)


@pytest.mark.broad
@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_weights_may_be_stored_in_another_dtype(stored: str) -> None:
    net = rnn.RNN(greedy, 1, 8, V=11).init(seed=3)
    tokens, _, _ = rnn.compile(net, generate=True, weights=stored).generate(5, prompt=np.array([[3, 9]]))
    assert tokens.shape == (5, 2) and ((tokens >= 0) & (tokens < 11)).all()
