"""Graphs as functions for GPUs, on the emulator, beside NumPy and torch, with sizes that tiles do not divide."""

from __future__ import annotations

import numpy as np
import pytest
from device_graphs import compiled
from graphs import graph_of
from tvm import relax

from tvm_rnn.cuda.surroundings.device_function import DeviceFunction, NotOnDevice

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("f4")


def test_a_result_that_is_an_input_and_sizes_that_do_not_fit() -> None:
    x = random(3, 4)
    _, run = compiled(graph_of(["n", 4], lambda x: relax.op.add(x, relax.const(np.float32(1)))))
    np.testing.assert_array_equal(run(x)[0], x + 1)
    assert run(random(0, 4))[0].shape == (0, 4)
    with pytest.raises(ValueError, match="the sizes of inputs do not fit each other"):
        run(random(3, 5))
    with pytest.raises(ValueError, match="too large for a GPU's indices"):
        run(np.broadcast_to(np.float32(0), (1 << 29, 4)))


@pytest.mark.broad
@pytest.mark.slow_after(2)
@pytest.mark.parametrize("columns", (9, 1, 16, 29, 40, 70))
def test_products(columns: int) -> None:
    w = random(37, columns)
    graph = graph_of(["n", 37], lambda x: relax.op.nn.relu(relax.op.matmul(x, relax.const(w))))
    for tiles in (False, True):
        _, run = compiled(graph, tiles)
        for n in (0, 1, 3, 130):
            x = random(n, 37)
            np.testing.assert_allclose(run(x)[0], np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.broad
@pytest.mark.slow_after(2)
@pytest.mark.parametrize(("channels", "stride"), ((6, 2), (1, 1), (4, 1), (33, 1)))
def test_convolutions(channels: int, stride: int) -> None:
    torch = pytest.importorskip("torch")
    w = random(channels, 3, 5)

    def make(x: relax.Var) -> relax.Expr:
        return relax.op.tanh(relax.op.nn.conv1d(x, relax.const(w), strides=stride, padding=2))

    graph = graph_of(["b", 3, "t"], make)
    for tiles in (False, True):
        made, run = compiled(graph, tiles)
        assert len(made.launches) == 1, "the sum, what follows, and how its result is turned"
        for shape in ((1, 1), (2, 16), (3, 57)):
            x = random(shape[0], 3, shape[1])
            y = torch.nn.functional.conv1d(torch.from_numpy(x), torch.from_numpy(w), stride=stride, padding=2).tanh()
            np.testing.assert_allclose(run(x)[0], y.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.broad
def test_products_of_several_pairs_of_matrices() -> None:
    graph = graph_of(["b", 5, 40], lambda x: relax.op.matmul(x, relax.op.permute_dims(x, [0, 2, 1])))
    for tiles in (False, True):
        x = random(3, 5, 40)
        np.testing.assert_allclose(compiled(graph, tiles)[1](x)[0], x @ x.swapaxes(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.broad
def test_sums_with_other_values_beside() -> None:
    """A softmax reads its sums and what they are of; a norm has two sums; both of more terms than a warp has lanes."""

    def make(x: relax.Var) -> relax.Expr:
        normal = relax.op.nn.layer_norm(x, relax.const(np.ones(45, "f4")), relax.const(np.zeros(45, "f4")), [-1])
        return relax.op.nn.softmax(normal, -1)

    x = random(9, 45)
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    e = np.exp(normal)
    np.testing.assert_allclose(compiled(graph_of(["n", 45], make))[1](x)[0], e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.broad
def test_largest_and_sums_along_sizes_with_names() -> None:
    """Of all elements, and along an axis; NaN stays."""
    both = graph_of(["n", 3, "t"], lambda x: relax.op.concat([relax.op.max(x, 2), relax.op.mean(x, 2)], 1))
    x = random(2, 3, 70)
    x[1, 2, 40] = np.nan
    (found,) = compiled(both)[1](x)
    np.testing.assert_allclose(found, np.concatenate([x.max(2), x.mean(2)], 1), rtol=1e-5, atol=1e-6)
    (found,) = compiled(graph_of(["n", "t"], lambda x: relax.op.sum(x)))[1](x[0])
    np.testing.assert_allclose(found, x[0].sum(), rtol=1e-5)


@pytest.mark.broad
def test_pooling_and_reshaped_axes() -> None:
    torch = pytest.importorskip("torch")

    def make(x: relax.Var) -> relax.Expr:
        return relax.op.permute_dims(relax.op.nn.max_pool2d(x, (2, 2), (2, 2)), [3, 0, 1, 2])

    x = random(2, 4, 6, 11)
    expected = torch.nn.functional.max_pool2d(torch.from_numpy(x), 2).permute(3, 0, 1, 2).numpy()
    np.testing.assert_array_equal(compiled(graph_of(["b", 4, 6, "w"], make))[1](x)[0], expected)


def test_what_is_not_computed_on_a_gpu_says_why() -> None:
    with pytest.raises(NotOnDevice, match="a loop whose steps follow from each other"):
        DeviceFunction("around", graph_of(["n", 4], lambda x: relax.op.argmax(x, 1)))


@pytest.mark.broad
@pytest.mark.parametrize("tiles", [False, True])
def test_a_callers_arrays_of_16_bits(tiles: bool) -> None:
    """They are read and written where a product is computed, which adds up in float32."""
    w = random(300, 9)
    graph = graph_of(["n", 300], lambda x: relax.op.matmul(x, relax.const(w)))
    made, run = compiled(graph, tiles, takes=["float16"], gives=["float16"])
    assert len(made.launches) == 1
    x = random(33, 300).astype("f2")
    (found,) = run(x)
    assert found.dtype == "f2"
    np.testing.assert_allclose(found, (x.astype("f8") @ w).astype("f2"), rtol=2e-3, atol=1e-4)


@pytest.mark.broad
def test_what_is_not_finite_does_not_vanish() -> None:
    x = np.array([[1, np.inf, -np.inf, np.nan]], "f4")
    _, run = compiled(graph_of(["n", 4], lambda x: relax.op.subtract(x, x)))
    np.testing.assert_array_equal(run(x)[0], [[0, np.nan, np.nan, np.nan]])
