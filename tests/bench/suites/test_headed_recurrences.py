"""headed_recurrences: recurrences with heads alone are what they say."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.suites.gpu import Point, network

N, H, T, B = 2, 3, 4, 2


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


def times(weights: np.ndarray, h: np.ndarray) -> np.ndarray:
    return np.einsum("nij,bnj->bni", weights, h)


@pytest.mark.parametrize(("cell", "gates"), [("headed_lstm", 4), ("headed_rnn", 1), ("headed_gru", 3)])
def test_each_head_reads_itself(cell: str, gates: int) -> None:
    net = network(Point(cell, gates * N * H, H, T, B, "float32", sizes=(("N", N),))).init(1)
    x = np.random.default_rng(1).standard_normal((T, B, net.input_size))
    y, _ = rnn.reference(net)(x)
    R = np.asarray(net.weights["R_l0"], np.float64)
    h = c = np.zeros((B, N, H))
    for t in range(T):
        own = np.moveaxis(x[t].reshape(B, gates, N, H), 1, 0)
        if gates == 1:
            h = np.tanh(own[0] + times(R, h))
        elif gates == 3:
            r, z = (sigmoid(own[k] + times(R[k], h)) for k in range(2))
            h = z * h + (1 - z) * np.tanh(own[2] + times(np.asarray(net.weights["Q_l0"], np.float64), r * h))
        else:
            i, f, g, o = (own[k] + times(R[k], h) for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        assert np.allclose(y[t], h.reshape(B, -1))
