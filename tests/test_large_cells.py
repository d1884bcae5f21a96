"""Large cells from papers: what is compiled is what their equations say."""

from __future__ import annotations

import large_cells
import numpy as np
import pytest

import tvm_rnn as rnn


@pytest.mark.broad
def test_they_compile_to_what_they_say() -> None:
    hyper = rnn.RNN(large_cells.hyper_lstm, 5, 6, G=4, E=3)
    moved = rnn.RNN(large_cells.conv_lstm, 2 * 9, 3, C=2, Y=3, X=3)
    for net in (hyper.init(0), moved.init(0)):
        x = np.random.default_rng(0).normal(size=(4, 2, net.input_size)).astype("float32")
        np.testing.assert_allclose(rnn.compile(net)(x)[0], rnn.reference(net)(x)[0], rtol=1e-4, atol=1e-5)
