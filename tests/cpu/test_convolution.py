"""convolution: register tiles over images, of every kernel, padding and size, beside the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convolutions import images, lines, made

import tvm_rnn as rnn
from tvm_rnn import target
from tvm_rnn.cpu import convolution
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.passes import pipeline

V4 = target.TABLE["x86-64-v4"]
HERE = [n for n in ("x86-64", "x86-64-v3") if set(target.resolve(n).features) <= set(target.host().features)]


def check(net: rnn.RNN, steps: int = 4, batch: int = 3, **options: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps, batch, *net.input_shapes["x"])).astype(net.dtype)
    module, oracle = rnn.compile(net, **options), rnn.reference(net)
    lengths, reset = rng.integers(0, steps + 1, batch), rng.random((steps, batch)) < 0.2
    for more in ({}, {"lengths": lengths, "reset": reset}):
        found, expected = module(x, **more), oracle(x, **more)
        assert found[0].shape == (steps, batch, *net.output_shape)
        assert_close(found, expected, net.dtype, steps)


def of_images(width: int, height: int, kernel: tuple[int, int], **options: Any) -> rnn.RNN:
    sizes = {"Y": height, "X": width, "U": kernel[0], "V": kernel[1]}
    return rnn.RNN(images, 2, options.pop("hidden", 3), **sizes, **options).init(1)


def test_one_conv_becomes_one_group_with_all_its_results() -> None:
    graph = pipeline.run(of_images(5, 4, (3, 3)), V4)[-1][1].graphs[0]
    roots = [g.root for g in graph.groups if g.root is not None]
    forms = [found for root in roots if (found := convolution.form(root))]
    assert [(f.lead, f.taps, f.dilation) for f in forms] == [((3,), (3, 3), (1, 1)), ((2, 3), (3, 1), (2, 2))]
    assert [g.region for g in graph.groups if g.root is not None] == ["before", "step"]


def test_images() -> None:
    check(of_images(19, 4, (3, 2)))


def test_lines() -> None:
    check(rnn.RNN(lines, 2, 3, L=9).init(1))


def test_a_kernel_made_in_the_step() -> None:
    check(rnn.RNN(made, 2, 3, Y=3, X=4).init(1))


@pytest.mark.broad
@pytest.mark.slow_after(10)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [(1, 1), (16, 8), (33, 7), (65, 2), (130, 3)], ids=str)
@pytest.mark.parametrize("kernel", [(1, 1), (5, 4)], ids=str)
def test_sizes(size: tuple[int, int], kernel: tuple[int, int], dtype: str) -> None:
    check(of_images(*size, kernel, dtype=dtype, hidden=7))


@pytest.mark.broad
@pytest.mark.parametrize("name", HERE)
def test_few_registers(name: str) -> None:
    check(of_images(33, 7, (3, 3), hidden=9), target=name)


@pytest.mark.broad
def test_layers_both_ways_and_many_channels() -> None:
    check(of_images(20, 6, (3, 3), hidden=26, num_layers=2, bidirectional=True), 3, 2)
    check(rnn.RNN(lines, 2, 3, L=40).init(1), 5, 9)
