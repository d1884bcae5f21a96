"""Both passes of any cell by torch: the oracle's gradients."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.peers.torch_training import both_passes
from tvm_rnn.oracle import torch_graph
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.oracle.torch_graph import Rows

torch = pytest.importorskip("torch")


def test_gradients_with_resets() -> None:
    rng, net = np.random.default_rng(0), rnn.RNN(rnn.cells.block_gru, 5, N=2, H=3, P=4, A=2, dtype="float64").init(0)
    x = [rng.uniform(-1, 1, (4, 3, *shape)) for shape in net.input_shapes.values()]
    gy, reset = rng.uniform(-1, 1, (4, 3, *net.output_shape)), rng.random((4, 3)) < 0.4
    run = both_passes(
        net, "torch-loop", [*map(torch.as_tensor, x)], torch.as_tensor(gy), Rows(reset=torch.as_tensor(reset))
    )
    y, found = run()
    names = [a.name for a in net.cell.inputs]
    given = dict(zip(names, x, strict=True))
    assert_close(y.detach().numpy(), rnn.reference(net)(given, reset=reset)[0], "float64", 4)
    inputs, _, weights = rnn.reference(net).gradients(given, None, gy, None, reset=reset)
    expected = [*(inputs[name] for name in names), *(weights[name] for name in net.weights)]
    for own, wanted in zip(found, expected, strict=True):
        assert_close(own.numpy(), wanted, "float64", 4)


def test_a_run_moves_no_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph is captured of it."""
    net = rnn.RNN(rnn.cells.block_gru, 5, N=2, H=3, P=4, A=2, dtype="float64").init(0)
    assert any(program.constants for program in torch_graph.programs(net))
    x = [torch.zeros(2, 3, *shape, dtype=torch.float64) for shape in net.input_shapes.values()]
    run = both_passes(net, "torch-loop", x, torch.ones(2, 3, *net.output_shape, dtype=torch.float64), Rows())
    monkeypatch.setattr(torch, "as_tensor", None)
    run()
