"""Sums of products of whole numbers: the same numbers as 64-bit integers give, in tiles of all sizes; and which sums
are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import compiled, graph_of
from tvm import relax

from tvm_rnn.cpu.pair_product import pair_products
from tvm_rnn.cpu.surroundings.host_function import HostFunction
from tvm_rnn.surroundings.calls import Graph
from tvm_rnn.target import host

RNG = np.random.default_rng(7)
ZERO = 37


def levels(x: relax.Var) -> relax.Expr:
    """x, whole numbers of bytes, as a quantised value less its zero point."""
    return relax.op.subtract(relax.op.astype(relax.op.astype(x, "uint8"), "float32"), relax.const(np.float32(ZERO)))


def whole(shape: tuple[int, ...], most: int) -> np.ndarray:
    return RNG.integers(-most, most + 1, shape).astype("f4")


def are_pairs(graph: Graph, lanes: int = 8) -> bool:
    """Whether the function for this machine multiplies pairs."""
    made = HostFunction("around", graph, lanes, pair_products(host()))
    return any(dtype in ("int8", "int16") for dtype in made.constants.flat)


def product_of(w: np.ndarray) -> Graph:
    def make(x: relax.Var) -> relax.Expr:
        return relax.op.multiply(relax.op.matmul(levels(x), relax.const(w)), relax.const(np.float32(0.5)))

    return graph_of(["n", w.shape[0]], make)


def check_product(depth: int, columns: int, lanes: int, most: int, folder: Path) -> None:
    w = whole((depth, columns), most)
    graph = product_of(w)
    assert are_pairs(graph, lanes) == (host().machine == "x86_64")
    run = compiled(graph, folder, lanes)
    for rows in (0, 1, 4, 13):
        x = RNG.integers(0, 256, (rows, depth))
        expected = (x - ZERO) @ w.astype("i8") / 2
        np.testing.assert_array_equal(run(x.astype("f4"))[0], expected)


@pytest.mark.parametrize(("lanes", "most"), ((4, 127), (8, 255), (16, 127)))
def test_products(lanes: int, most: int, tmp_path: Path) -> None:
    if lanes in pair_products(host()) or host().machine != "x86_64":
        check_product(10, 37, lanes, most, tmp_path)


@pytest.mark.broad
@pytest.mark.parametrize("columns", (5, 16, 129))
@pytest.mark.parametrize("depth", (2, 64))
def test_more_products(depth: int, columns: int, tmp_path: Path) -> None:
    check_product(depth, columns, host().lanes("float32"), 127, tmp_path)


def test_other_sums_stay_in_float32() -> None:
    even = (10, 8)
    assert not are_pairs(product_of(whole((9, 8), 100)))  # an odd number of products
    assert not are_pairs(product_of(whole(even, 100) + np.float32(0.5)))
    assert not are_pairs(product_of(np.full(even, 9000, "f4")))  # sums that float32 would round
    assert not are_pairs(product_of(np.full(even, np.inf, "f4")))
    assert not are_pairs(graph_of(["n", 10], lambda x: relax.op.matmul(x, relax.const(whole(even, 100)))))


@pytest.mark.parametrize(("channels", "stride"), ((4, 1), (6, 2)))
def test_convolutions(channels: int, stride: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    w = whole((20, channels, 3, 3), 100)

    def make(x: relax.Var) -> relax.Expr:
        return relax.op.nn.relu(relax.op.nn.conv2d(levels(x), relax.const(w), strides=stride, padding=1))

    graph = graph_of([1, channels, 9, "n"], make)
    assert are_pairs(graph) == (host().machine == "x86_64")
    x = RNG.integers(0, 256, (1, channels, 9, 14))
    arrays = [torch.from_numpy(array.astype("f8")) for array in (x - ZERO, w)]
    expected = torch.nn.functional.conv2d(*arrays, stride=stride, padding=1).relu().numpy()
    np.testing.assert_array_equal(compiled(graph, tmp_path)(x.astype("f4"))[0], expected)
