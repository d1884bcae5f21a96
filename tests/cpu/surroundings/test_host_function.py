"""Graphs as functions: compiled, run with sizes that tiles do not divide, and compared with NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import compiled, graph_of
from tvm import relax

from tvm_rnn.errors import InputError

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("f4")


def test_sizes_and_memory_have_functions() -> None:
    from tvm_rnn.cpu.surroundings.host_function import HostFunction

    made = HostFunction("around", graph_of(["n", 4], lambda x: relax.op.nn.softmax(x)), 8)
    assert [*made.functions] == ["around", "around_sizes"]
    assert [*made.works] == ["float32"]


def test_a_result_that_is_an_input(tmp_path: Path) -> None:
    x = random(3, 4)
    run = compiled(graph_of(["n", 4], lambda x: relax.op.add(x, relax.const(np.float32(1)))), tmp_path)
    np.testing.assert_array_equal(run(x)[0], x + 1)
    with pytest.raises(InputError, match="a part of this model cannot be computed"):
        run(random(3, 5))
    assert run(random(0, 4))[0].shape == (0, 4)


@pytest.mark.broad
@pytest.mark.parametrize("columns", (1, 5, 16, 29, 40))
def test_products(columns: int, tmp_path: Path) -> None:
    w = random(7, columns)
    run = compiled(graph_of(["n", 7], lambda x: relax.op.nn.relu(relax.op.matmul(x, relax.const(w)))), tmp_path)
    for n in (0, 1, 3, 4, 9):
        x = random(n, 7)
        np.testing.assert_allclose(run(x)[0], np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.broad
@pytest.mark.parametrize(("channels", "stride"), ((1, 1), (4, 1), (6, 2), (13, 1)))
def test_convolutions(channels: int, stride: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    w = random(channels, 3, 5)

    def make(x: relax.Var) -> relax.Expr:
        return relax.op.tanh(relax.op.nn.conv1d(x, relax.const(w), strides=stride, padding=2))

    run = compiled(graph_of(["b", 3, "t"], make), tmp_path)
    for shape in ((1, 1), (2, 3), (1, 4), (2, 16), (3, 37)):
        x = random(shape[0], 3, shape[1])
        y = torch.nn.functional.conv1d(torch.from_numpy(x), torch.from_numpy(w), stride=stride, padding=2).tanh()
        np.testing.assert_allclose(run(x)[0], y.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.broad
def test_sums_with_other_values_beside(tmp_path: Path) -> None:
    """A softmax reads its sums and what they are of; a norm has two sums."""

    def make(x: relax.Var) -> relax.Expr:
        normal = relax.op.nn.layer_norm(x, relax.const(np.ones(5, "f4")), relax.const(np.zeros(5, "f4")), [-1])
        return relax.op.nn.softmax(normal, -1)

    x = random(9, 5)
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    e = np.exp(normal)
    np.testing.assert_allclose(
        compiled(graph_of(["n", 5], make), tmp_path)(x)[0], e / e.sum(1, keepdims=True), rtol=1e-5
    )
