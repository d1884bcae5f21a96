"""Calls that are alike share a function: as many functions as kinds of calls, and the same bits as without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graphs import compiled, graph_of
from tvm import relax

from tvm_rnn.cpu.pair_product import pair_products
from tvm_rnn.cpu.surroundings import host_function
from tvm_rnn.cpu.surroundings.host_function import HostFunction
from tvm_rnn.surroundings.calls import Graph
from tvm_rnn.target import host

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype("f4")


def blocks(count: int, width: int = 6, factors: tuple[float, ...] = (0.5,)) -> Graph:
    """Products with matrices of their own, then a norm: what a transformer has many of."""

    def make(x: relax.Var) -> relax.Expr:
        for i in range(count):
            x = relax.op.nn.softmax(relax.op.matmul(x, relax.const(random(width, width))), -1)
            scaled = relax.op.multiply(x, relax.const(np.float32(factors[i % len(factors)])))
            x = relax.op.nn.layer_norm(scaled, relax.const(random(width)), relax.const(random(width)), [-1])
        return x

    return graph_of(["n", width], make)


def shared(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that calls have."""
    monkeypatch.setattr(host_function, "WHOLE", 0)
    return [name for name in HostFunction("around", graph, 8, pair_products(host())).functions if "_shared_" in name]


def test_as_many_functions_as_kinds_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    two = shared(blocks(2), monkeypatch)
    assert shared(blocks(5), monkeypatch) == two


def test_other_numbers_are_other_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant of one element is part of the code."""
    one, three = (len(shared(blocks(3, factors=f), monkeypatch)) for f in ((0.5,), (0.5, 2.0, 3.0)))
    assert three == one + 2


def test_other_levels_are_other_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether sums of whole numbers are exact depends on the constant's elements."""

    def make(x: relax.Var) -> relax.Expr:
        whole = relax.op.astype(relax.op.astype(x, "uint8"), "float32")
        weights = (np.ones((4, 8), "f4"), np.full((4, 8), 0.5, "f4"))
        return relax.op.add(*(relax.op.matmul(whole, relax.const(own)) for own in weights))

    monkeypatch.setattr(host_function, "WHOLE", 0)
    made = HostFunction("around", graph_of(["n", 4], make), 8, pair_products(host()))
    assert {*made.constants.flat} == ({"int8", "float32"} if host().machine == "x86_64" else {"float32"})


def test_small_graphs_are_one_function() -> None:
    assert [*HostFunction("around", blocks(2), 8).functions] == ["around", "around_sizes"]


@pytest.mark.broad
@pytest.mark.parametrize("width", (5, 16, 40))
def test_the_same_bits(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = blocks(3, width)
    plain = compiled(graph, tmp_path)
    monkeypatch.setattr(host_function, "WHOLE", 0)
    (tmp_path / "shared").mkdir()
    apart = compiled(graph, tmp_path / "shared")
    for n in (0, 1, 4, 13):
        x = random(n, width)
        np.testing.assert_array_equal(plain(x)[0], apart(x)[0])
