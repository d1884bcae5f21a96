"""neurons: a spiking neuron alone is what it says."""

from __future__ import annotations

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.bench.suites.gpu import Point, network
from tvm_rnn.bench.suites.neurons import THRESHOLD


def test_lif_neuron() -> None:
    net = network(Point("lif_neuron", 3, 3, 9, 2, "float32")).init(0)
    x, v = np.random.default_rng(1).uniform(-1, 1, (9, 2, 3)), np.zeros((2, 3))
    y, states = rnn.reference(net)(x)
    for t in range(9):
        v = v + (x[t] - v) / 2
        np.testing.assert_array_equal(y[t], v >= THRESHOLD)
        v = np.where(v >= THRESHOLD, 0.0, v)
    assert np.allclose(states["v"][0], v) and 0.05 < y.mean() < 0.5
