"""Every op of ours in the body of a Scan: cells made of each, as ONNX Runtime runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import onnx_runtime

import tvm_rnn as rnn
from tvm_rnn.frontends.onnx_body import SAME, Body
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.oracle.tolerance import assert_close


@rnn.cell(states="h M s")
def moves(x: "I", h: "H", M: "H 3", s: "", *, W: "3 H I", R: "H H", v: "H", u: ""):
    """Reductions, reshapes, outer products, matrices and scalars of the state, constants, what no row changes."""
    a, b, c = W @ x
    top = rnn.max(M, axis=1) + rnn.sum(rnn.transpose(M), axis=0) * 0.1
    M = 0.5 * M + rnn.outer(rnn.tanh(a), np.array([0.1, 0.2, 0.3])) + rnn.reshape(rnn.concat([v, v, v]), (-1, 3)) * 0.1
    s = 0.5 * s + rnn.dot(rnn.softmax(b), h) + u
    picked = rnn.concat([h[:2], v[2:]]) + M[:, 1]
    return rnn.tanh(c + R @ h + top + picked * s), M, s


@rnn.cell
def functions(x: "I", h: "H", *, W: "H I", R: "H H"):
    """Pointwise ops, with values where they are in danger."""
    z = W @ x + R @ h
    y = rnn.log1p(rnn.exp(-rnn.square(z))) + rnn.sin(z) * rnn.cos(z) - rnn.erf(z) / (1.0 + rnn.absolute(z))
    y = rnn.where((z > 0.5) | ~(y < 0.1) & (z != 0.0), rnn.sqrt(rnn.absolute(y)), rnn.sign(y) * 0.5)
    y = rnn.maximum(rnn.minimum(y, 1.0), -1.0) + rnn.power(rnn.sigmoid(z), 1.5) + rnn.log(rnn.softplus(z))
    return rnn.where((y >= z) & (y <= 2.0), 0.1 * y, rnn.where(y == z, y, 0.1 * z)) + 0.0 * rnn.relu(-z)


@rnn.cell
def places(x: "I", h: "H", *, W: "H I", R: "H H"):
    """Orders and sums along an axis, and views of it."""
    z = W @ x + R @ h
    y = rnn.cumsum(z) + rnn.cumprod(z)[::-1] + rnn.sort(z)[[1, 2, 0]] + rnn.concat(rnn.topk(z, 2))[::2].reshape(2)[0]
    y = y % 0.7 - rnn.mod(rnn.floor(2.0 * y), -1.5) + rnn.stop_gradient(rnn.logsumexp(z)) + rnn.atan_spike(z)
    return 0.1 * (y + rnn.one_hot(rnn.argmax(z), 3))


@rnn.cell
def fixed(x: "I", h: "H", *, b: "H"):
    """New states that depend on no row."""
    return rnn.tanh(b) * 2.0


@pytest.mark.parametrize("cell", [moves, functions, places, fixed], ids=lambda cell: cell.name)
def test_results_are_the_oracles(cell: Any, tmp_path: Path) -> None:
    dtype = "float32" if cell is functions else "float64"  # ONNX Runtime has no erf of float64
    net = rnn.RNN(cell, 4, 3, num_layers=2, bidirectional=True, dtype=dtype).init(1)
    rnn.to_onnx(net, tmp_path / "m.onnx", lengths=True)
    x, lengths = np.random.default_rng(0).normal(size=(5, 2, 4)).astype(dtype), np.array([5, 3], "i4")
    y, end = rnn.reference(net)(x, lengths=lengths)
    found = onnx_runtime(onnx.load(tmp_path / "m.onnx"), {"x": x, "lengths": lengths})
    assert_close(found, {"y": y, **{f"{name}_n": v for name, v in end.items()}}, dtype, 5)


def test_every_op_of_the_table_is_known() -> None:
    own = {name[1:] for name in vars(Body) if name.startswith("_") and not name.startswith("__")}
    made_by_passes = {"gemm", "batched_gemm", "neighbours", "broadcast", "sum_rows", "einsum_rows", "mask", "windows"}
    made_by_passes |= {"at_pixel", "sum_images"}
    made_by_passes |= {op.name for op in TABLE.values() if op.kind == "scan"}
    refused = {"uniform"}
    assert SAME.keys() | own >= TABLE.keys() - made_by_passes - refused


def test_log1p_of_small_and_large_numbers(tmp_path: Path) -> None:
    @rnn.cell
    def log(x: "I", h: "I"):
        return rnn.log1p(x)

    net = rnn.RNN(log, 6, dtype="float64")
    rnn.to_onnx(net, tmp_path / "m.onnx")
    x = np.array([1e-300, 1e-17, -1e-9, 0.0, 1e17, np.inf]).reshape(1, 1, 6)
    found = onnx_runtime(onnx.load(tmp_path / "m.onnx"), {"x": x})["y"]
    np.testing.assert_allclose(found, np.log1p(x), rtol=1e-14)
    assert_close(found, rnn.reference(net)(x)[0], "float64", 1)


def test_expm1_of_small_and_large_numbers(tmp_path: Path) -> None:
    @rnn.cell
    def exponential(x: "I", h: "I"):
        return rnn.expm1(x)

    net = rnn.RNN(exponential, 8, dtype="float64")
    rnn.to_onnx(net, tmp_path / "m.onnx")
    x = np.array([-np.inf, -50.0, -0.9, -1e-9, 1e-17, 0.9, 1.1, 700.0]).reshape(1, 1, 8)
    found = onnx_runtime(onnx.load(tmp_path / "m.onnx"), {"x": x})["y"]
    np.testing.assert_allclose(found, np.expm1(x), rtol=1e-14)
