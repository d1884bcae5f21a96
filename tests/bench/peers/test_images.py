"""torch's ConvLSTM is the oracle's, in both orders of axes; other cells have none."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.peers import images
from tvm_rnn.oracle.torch_graph import TorchModel

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("last", [False, True])
def test_torch_s_convolutions_are_the_cell(last: bool) -> None:
    net = rnn.RNN(rnn.cells.conv_lstm, 2, 3, Y=4, X=5).init(0)
    x = torch.rand(4, 2, 2, 4, 5, dtype=torch.float64)
    expected, states = TorchModel(net, torch.float64, torch.device("cpu"))([x], None)
    y, last_states = images.layer(net, torch.float64, last=last)(x)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-7)
    for name, value in states.items():
        torch.testing.assert_close(last_states[name], value, rtol=1e-6, atol=1e-7)


def test_one_layer_of_one_cell() -> None:
    assert images.knows(rnn.RNN(rnn.cells.conv_lstm, 2, 3, Y=4))
    assert not images.knows(rnn.RNN(rnn.cells.conv_lstm, 2, 3, Y=4, num_layers=2))
    assert not images.knows(rnn.RNN(rnn.cells.conv_gru, 2, 3, Y=4))


@pytest.mark.broad
def test_every_way_to_run_it_has_a_name() -> None:
    ways = images.layers(rnn.RNN(rnn.cells.conv_lstm, 2, 3, Y=4).init(0), torch.float32)
    assert len(ways) == 4 and "channels last, compiled" in ways
