"""Compiled modules are torch.nn's layers: same weights, inputs and states in, same results out, ragged or not.

In: torch.nn.RNN, LSTM and GRU, given our weights by `state_arrays`. torch computes in float64, so that the
figures are our errors alone; tensors go in and out as torch's own.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from networks import arguments, compiled

import tvm_rnn as rnn
from tvm_rnn.bench.peers.models import TORCH_CELLS
from tvm_rnn.frontends.torch import state_arrays
from tvm_rnn.oracle.tolerance import assert_close

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

INPUT, HIDDEN, STEPS, BATCH = 11, 9, 23, 5
LENGTHS = [4, 23, 1, 17, 23]
SLOW_STACKS = [pytest.param(*stack, marks=pytest.mark.slow) for stack in ((1, True), (2, False), (3, False))]
EVERY_STACK = pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (3, True), *SLOW_STACKS])
DIRECTIONS = pytest.mark.parametrize("bidirectional", [False, True], ids=["forward", "both ways"])
EVERY_CELL = pytest.mark.parametrize("name", TORCH_CELLS)


def torch_layer(net: rnn.RNN) -> Any:
    """The layer of torch.nn with the same weights, in float64."""
    kind, options = TORCH_CELLS[net.cell.name]
    if net.cell.name == "lstm_projection":
        options = options | {"proj_size": net.layers[0].width}
    sizes = {"num_layers": net.num_layers, "bidirectional": net.bidirectional, "dtype": torch.float64}
    layer = getattr(torch.nn, kind)(net.input_size, net.hidden_size, **sizes, **options)
    weights = state_arrays(net)
    layer.load_state_dict({name: torch.from_numpy(value.astype(np.float64)) for name, value in weights.items()})
    return layer


def run(layer: Any, x: np.ndarray, state: dict[str, np.ndarray], lengths: Any = None) -> tuple[Any, list[Any]]:
    """y [T, B, D*H] and the final states in order, as torch computes them."""
    begin = tuple(torch.from_numpy(v.astype(np.float64)) for v in state.values())
    given: Any = torch.from_numpy(x.astype(np.float64))
    if lengths is not None:
        given = torch.nn.utils.rnn.pack_padded_sequence(given, torch.tensor(lengths), enforce_sorted=False)
    with torch.no_grad():
        y, end = layer(given, begin if len(begin) > 1 else begin[0])
    if lengths is not None:
        y = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=x.shape[0])[0]
    return y.numpy(), [e.numpy() for e in (end if isinstance(end, tuple) else (end,))]


@pytest.mark.broad_after(1)
@EVERY_STACK
@EVERY_CELL
def test_is_the_layer_of_torch(name: str, layers: int, bidirectional: bool) -> None:
    net, module = compiled(name, INPUT, HIDDEN, num_layers=layers, bidirectional=bidirectional)
    x, state = arguments(net, STEPS, BATCH)
    for lengths in (None, LENGTHS):
        expected, ends = run(torch_layer(net), x["x"], state, lengths)
        y, end = module(x["x"], state, lengths=lengths)
        assert_close(y, expected, "float32", STEPS)
        assert_close(list(end.values()), ends, "float32", STEPS)


@pytest.mark.broad_after(1)
@EVERY_CELL
def test_tensors_go_in_and_come_out(name: str) -> None:
    """As torch's users have them: tensors, also ones that need gradients, are not part of numpy's world."""
    net, module = compiled(name, INPUT, HIDDEN, num_layers=1, bidirectional=False)
    x, state = arguments(net, STEPS, BATCH)
    expected, _ = module(x["x"], state)
    given = torch.from_numpy(x["x"]).requires_grad_()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "results of a compiled module carry no gradient")  # said once in a process
        y, end = module(given, {n: torch.from_numpy(v) for n, v in state.items()}, lengths=torch.full((BATCH,), STEPS))
    assert isinstance(y, torch.Tensor) and all(isinstance(v, torch.Tensor) for v in end.values())
    np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [128, 257])
@DIRECTIONS
@EVERY_CELL
def test_large_layers(name: str, hidden: int, bidirectional: bool) -> None:
    net, module = compiled(name, 64, hidden, num_layers=2, bidirectional=bidirectional)
    for batch in (1, 16):
        x, state = arguments(net, 100, batch)
        expected, ends = run(torch_layer(net), x["x"], state)
        y, end = module(x["x"], state)
        assert_close(y, expected, "float32", 100)
        assert_close(list(end.values()), ends, "float32", 100)


@pytest.mark.broad
@pytest.mark.parametrize("projection", [4, *(pytest.param(p, marks=pytest.mark.slow) for p in (1, 8))])
def test_projections_of_other_widths(projection: int) -> None:
    net = rnn.RNN(
        rnn.cells.lstm_projection, INPUT, HIDDEN, num_layers=2, bidirectional=True, proj_size=projection
    ).init(1)
    x, state = arguments(net, STEPS, BATCH)
    expected, ends = run(torch_layer(net), x["x"], state, LENGTHS)
    y, end = rnn.compile(net)(x["x"], state, lengths=LENGTHS)
    assert_close(y, expected, "float32", STEPS)
    assert_close(list(end.values()), ends, "float32", STEPS)
