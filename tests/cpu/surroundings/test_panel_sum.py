"""Sums over constants in panels: all rows and columns, whole tiles and what is left of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import compiled, graph_of
from tvm import relax

from tvm_rnn.cpu.second_thread import LOOP
from tvm_rnn.cpu.surroundings.host_function import HostFunction

RNG = np.random.default_rng(3)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("f4")


def check_product(columns: int, lanes: int, rows: tuple[int, ...], folder: Path) -> None:
    w, b = random(7, columns), random(columns)

    def make(x: relax.Var) -> relax.Expr:
        return relax.op.sigmoid(relax.op.add(relax.op.matmul(x, relax.const(w)), relax.const(b)))

    run = compiled(graph_of(["n", 7], make), folder, lanes)
    for n in rows:
        x = random(n, 7)
        np.testing.assert_allclose(run(x)[0], 1 / (1 + np.exp(-(x.astype("f8") @ w + b))), rtol=1e-5, atol=1e-6)


def test_a_product_with_odd_numbers_of_rows_and_columns(tmp_path: Path) -> None:
    check_product(37, 8, (0, 1, 3, 4, 6, 11), tmp_path)


@pytest.mark.broad
@pytest.mark.parametrize("lanes", (4, 8, 16))
@pytest.mark.parametrize("columns", (1, 3, 9, 40, 129))
def test_products(columns: int, lanes: int, tmp_path: Path) -> None:
    check_product(columns, lanes, (1, 2, 5, 12, 13, 27), tmp_path)


@pytest.mark.broad
@pytest.mark.parametrize(("size", "filters", "stride", "groups"), (((9, 13), 40, 1, 1), ((5, 7), 12, 2, 3)))
def test_convolutions(size: tuple[int, int], filters: int, stride: int, groups: int, tmp_path: Path) -> None:
    """Of a known size, and of one that has a name."""
    torch = pytest.importorskip("torch")
    w = random(filters, 6 // groups, 3, 3)

    def make(x: relax.Var) -> relax.Expr:
        found = relax.op.nn.conv2d(x, relax.const(w), strides=stride, padding=1, groups=groups)
        return relax.op.nn.relu(found)

    x = random(2, 6, *size)
    arrays = [torch.from_numpy(array.astype("f8")) for array in (x, w)]
    expected = torch.nn.functional.conv2d(*arrays, stride=stride, padding=1, groups=groups).relu().numpy()
    for number, shape in enumerate(([2, 6, *size], [2, 6, size[0], "n"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        np.testing.assert_allclose(compiled(graph_of(shape, make), folder)(x)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("depth", "shared"), ((LOOP // 4 // 64, True), (LOOP // 4 // 64 - 1, False)))
def test_one_row_is_shared_where_its_weights_are_many_bytes(depth: int, shared: bool) -> None:
    graph = graph_of([1, depth], lambda x: relax.op.matmul(x, relax.const(random(depth, 64))))
    (function, _) = HostFunction("around", graph, 8, {}).functions.values()
    assert ("T.parallel" in str(function)) is shared
