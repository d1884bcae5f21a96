"""What training keeps on GPUs of what is read of a matrix: no value that is made of it for backward alone."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.suites.recurrences import CELLS
from tvm_rnn.oracle.reference import Reference
from tvm_rnn.passes import pipeline
from tvm_rnn.target import resolve

GPU = resolve("nvidia-h200")
GIVEN = rnn.RNN(CELLS["gated_delta"], 2 * (2 * 4 + 3 * 4 + 2 * 3), 4, N=2, M=3, dtype="float32").init(3)


def kept(net: rnn.RNN) -> list[str]:
    graph = pipeline.run(net, GPU, training="values")[-1][1].graphs[0]
    return [node.op for node in graph.emitted]


def test_the_read_out_is_kept() -> None:
    """Where all else is made of inputs: what a product of inputs makes would be multiplied again."""
    assert kept(GIVEN) == ["read_out"]
    assert "sub" in kept(rnn.RNN(rnn.cells.delta_net, 5, 4, dtype="float32"))


@pytest.mark.parametrize("net", [GIVEN, rnn.RNN(rnn.cells.gated_delta_net, 5, 4, N=2, dtype="float32").init(3)])
def test_every_stage_means_the_same(net: rnn.RNN) -> None:
    rng = np.random.default_rng(2)
    x, gy = 0.3 * rng.standard_normal((6, 2, net.input_size)), rng.standard_normal((6, 2, net.output_size))
    state, above = ({n: rng.standard_normal(v.shape) for n, v in net.initial_state(2).items()} for _ in range(2))
    ends = {"lengths": np.array([6, 3]), "reset": rng.random((6, 2)) < 0.2}
    wanted = Reference(net).gradients(x, state, gy, above, **ends)
    for name, layers in pipeline.run(net, GPU, training="values")[1:]:
        got = Reference(net, [layers.graphs[i] for i in layers.of_layer]).gradients(x, state, gy, above, **ends)
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-9, atol=1e-9, err_msg=name)
        for own, other in zip(got[1:], wanted[1:], strict=True):
            for key, value in other.items():
                np.testing.assert_allclose(own[key], value, rtol=1e-9, atol=1e-9, err_msg=f"{name}: {key}")
