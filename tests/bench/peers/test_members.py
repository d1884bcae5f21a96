"""A layer of torch's for each member is the network of them all."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.peers import members
from tvm_rnn.bench.peers.models import Unsupported
from tvm_rnn.oracle.torch_graph import TorchModel

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("cell", "options"), [("gru", {}), ("lstm", {"num_layers": 2})])
def test_a_layer_for_each_member(cell: str, options: dict[str, int]) -> None:
    net = rnn.RNN(rnn.cells.get(cell), 3, 4, members=3, dtype="float64", **options).init(0)
    x = torch.rand(5, 2, 3, 3, dtype=torch.float64)
    expected, states = TorchModel(net, torch.float64, torch.device("cpu"))([x], None)
    (layer,) = members.layers(net, "cpu").values()
    y, last = layer(x)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-7)
    assert last.keys() == states.keys()
    for name, value in states.items():
        torch.testing.assert_close(last[name], value, rtol=1e-6, atol=1e-7)


def test_what_torch_lacks_is_said() -> None:
    net = rnn.RNN(rnn.cells.lem, 3, 4, members=3).init(0)
    with pytest.raises(Unsupported, match="no cell lem"):
        members.layers(net, "cpu")
