"""draws: the masks and the dropped weights of one call, as the oracle has them."""

from __future__ import annotations

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.oracle.dropout_masks import Draws
from tvm_rnn.runtime import runtime_random

NET = rnn.RNN(rnn.cells.lstm, 3, 4, num_layers=2, bidirectional=True, dropout=0.5, zoneout=0.3, weight_drop=0.25).init(
    0
)


def test_masks_are_of_step_layer_direction_and_name() -> None:
    nodes = NET.layers[1].training.nodes()
    found = Draws(5, first_step=100).masks(nodes, (1, 1), 6, 7)
    assert sorted(node.attrs["stream"] for node in found) == ["dropout", "zoneout.c", "zoneout.h"]
    for node, value in found.items():
        stream, keep = node.attrs["stream"], node.attrs["keep"]
        assert keep == (0.5 if stream == "dropout" else 0.3)
        words = runtime_random.key(5, stream, 1, 1)
        np.testing.assert_array_equal(value, runtime_random.mask(words, keep, 6, node.shape[0], 107))
    assert Draws(5).masks(NET.layers[1].graph.nodes(), (1, 1), 6, 7) == {}


def test_weights_are_dropped_once_per_call_and_scaled() -> None:
    factors = Draws(5).factors(NET)
    assert list(factors) == ["R_l0", "R_l0_reverse", "R_l1", "R_l1_reverse"]
    for name, factor in factors.items():
        assert factor.shape == NET.weights[name].shape and {*np.unique(factor)} == {0.0, 1.0 / 0.75}
    own = list(factors.values())
    assert all((a != b).any() for i, a in enumerate(own) for b in own[:i])
    dropped = Draws(5).weights(NET)
    for name, value in NET.weights.items():
        np.testing.assert_array_equal(dropped[name], value * factors.get(name, 1.0))
    assert all((Draws(6).factors(NET)[name] != factor).any() for name, factor in factors.items())
