"""recurrences: linear recurrences alone are what they say."""

from __future__ import annotations

import numpy as np

import tvm_rnn as rnn
from tvm_rnn.bench.suites.gpu import Point, network


def sigmoid(v: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-v))


def drawn(net: rnn.RNN, steps: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((steps, 2, net.input_size))


def test_gated_sum() -> None:
    net = network(Point("gated_sum", 6, 3, 4, 2, "float32"))
    x, h = drawn(net, 4), np.zeros((2, 3))
    y, _ = rnn.reference(net)(x)
    for t in range(4):
        h = sigmoid(x[t, :, :3]) * h + x[t, :, 3:]
        assert np.allclose(y[t], h)


def test_gated_delta() -> None:
    n, m, size = 2, 3, 4
    net = network(Point("gated_delta", n * (2 * size + m * size + 2 * m), size, 5, 2, sizes=(("N", n), ("M", m))))
    x, S = drawn(net, 5), np.zeros((2, n, m, size, size))
    y, _ = rnn.reference(net)(x)
    ends = np.cumsum([n * size, n * size, n * m * size, n * m])
    for t in range(5):
        q, k, v, b, d = (
            part.reshape(2, n, *shape)
            for part, shape in zip(np.split(x[t], ends, -1), ((size,), (size,), (m, size), (m,), (m,)), strict=True)
        )
        q, k = q / size**0.5, k / size**0.5
        S = sigmoid(d)[..., None, None] * S
        found = v - np.einsum("bnmij,bnj->bnmi", S, k)
        S = S + np.einsum("bnm,bnmi,bnj->bnmij", sigmoid(b), found, k)
        assert np.allclose(y[t], np.einsum("bnmij,bnj->bnmi", S, q).reshape(2, -1))
