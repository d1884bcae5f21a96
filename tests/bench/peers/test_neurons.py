"""spikingjelly's neuron is the oracle's, its gradients too; where it is not installed, that is said."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.peers import neurons
from tvm_rnn.bench.peers.models import Unsupported
from tvm_rnn.bench.suites.neurons import lif_neuron

torch = pytest.importorskip("torch")


def test_one_layer_of_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert neurons.knows(rnn.RNN(lif_neuron, 3, 3))
    assert not neurons.knows(rnn.RNN(lif_neuron, 3, 3, num_layers=2))
    assert not neurons.knows(rnn.RNN(rnn.cells.lif, 3, 3))
    monkeypatch.setitem(sys.modules, "spikingjelly", None)
    with pytest.raises(Unsupported, match="spikingjelly"):
        neurons.layers(torch.float64)


@pytest.mark.parametrize("way", neurons.WAYS)
def test_a_neuron_is_the_cell(way: str) -> None:
    pytest.importorskip("spikingjelly.activation_based.neuron")
    net = rnn.RNN(lif_neuron, 4, 4)
    x = (torch.rand(20, 3, 4, dtype=torch.float64) * 2 - 1).requires_grad_(True)
    above = torch.randn(20, 3, 4, dtype=torch.float64)
    y, states = neurons.layer(neurons.WAYS[way], torch.float64)(x)
    y.backward(above)
    exact = x.detach().numpy()
    expected, last = rnn.reference(net)(exact)
    gradients = rnn.reference(net).gradients({"x": exact}, None, above.numpy(), None)
    np.testing.assert_array_equal(y.detach().numpy(), expected)
    np.testing.assert_allclose(states["v"].detach().numpy(), last["v"], rtol=1e-12)
    np.testing.assert_allclose(x.grad.numpy(), gradients[0], rtol=1e-12, atol=1e-14)
