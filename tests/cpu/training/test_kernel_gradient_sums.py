"""kernel_gradient_sums: gradients of convolutions' kernels beside the oracle, and what the buffer holds."""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import images, lines, made

import tvm_rnn as rnn
from tvm_rnn.oracle.tolerance import assert_close


def check(net: rnn.RNN, steps: int = 3, batch: int = 3) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps, batch, *net.input_shapes["x"])).astype(net.dtype)
    gy = rng.normal(size=(steps, batch, *net.output_shape)).astype(net.dtype)
    lengths, reset = rng.integers(0, steps + 1, batch), rng.random((steps, batch)) < 0.2
    module, oracle = rnn.compile(net, training=True), rnn.reference(net)
    for more in ({}, {"lengths": lengths, "reset": reset}):
        y, _, tape = module.forward_train(x, **more)
        found, expected = module.backward(tape, gy), oracle.gradients(x, None, gy, **more)
        assert_close(y, oracle(x, **more)[0], net.dtype, steps)
        assert_close(found[0], expected[0], net.dtype, steps)
        assert_close(found[1], expected[1], net.dtype, steps)
        assert_close(found[2], expected[2], net.dtype, steps)


@pytest.mark.broad
def test_images() -> None:
    check(rnn.RNN(images, 2, 3, Y=3, X=5, U=3, V=2).init(1))


@pytest.mark.broad
def test_several_channels_strips_and_ranges_of_results() -> None:
    check(rnn.RNN(images, 16, 5, Y=70, X=37, U=3, V=3).init(1), steps=2, batch=2)


def test_lines() -> None:
    check(rnn.RNN(lines, 2, 3, L=9).init(1))


@pytest.mark.broad
def test_a_kernel_made_in_the_step() -> None:
    check(rnn.RNN(made, 2, 3, Y=3, X=4).init(1))


@pytest.mark.broad
@pytest.mark.slow_after(7)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [(1, 1), (16, 8), (33, 7), (65, 2), (130, 90), (1030, 9)], ids=str)
def test_sizes(size: tuple[int, int], dtype: str) -> None:
    """Of all rows at once, of some of the batch, and in strips of an image."""
    net = rnn.RNN(images, 1, 2, X=size[0], Y=size[1], U=5, V=4, dtype=dtype).init(1)
    check(net, 2, 9 if size[0] < 100 else 2)


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["conv_lstm_peephole", "conv_gru", "conv_gru_separable"])
def test_the_zoo(name: str) -> None:
    check(rnn.RNN(rnn.cells.get(name), 2, 5, Y=6, X=10).init(1))
