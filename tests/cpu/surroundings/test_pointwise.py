"""Nests without sums: vectors, squares of two axes, and what threads share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from graphs import compiled, graph_of
from test_schedule import loops
from tvm import relax, tirx

from tvm_rnn.cpu.surroundings.pointwise import Pointwise
from tvm_rnn.surroundings.nest import nest_of
from tvm_rnn.tir.index import int64


def made(make: Any, shape: Any, lanes: int = 8) -> Any:
    (one,) = loops(make, shape)
    nest = nest_of(one)
    assert nest is not None
    return Pointwise(nest, lanes, int64(2)).statement()


def test_vectors_of_what_is_rounded() -> None:
    assert "T.vectorized(T.int64(4))" in str(made(relax.op.round, ("n", 4), lanes=4))


def test_other_orders_of_axes_go_in_squares() -> None:
    def sides(statement: Any) -> list[str]:
        found = list[Any]()
        tvm_ffi.structural_walk(statement, (tirx.For, found.append))
        return [str(own.extent) for own in found if own.loop_var.name in ("r", "i")][-2:]

    assert sides(made(relax.op.permute_dims, (32, 48))) == ["T.int64(16)"] * 2
    assert any("min" in side for side in sides(made(relax.op.permute_dims, ("n", 5))))


@pytest.mark.parametrize(
    ("shape", "shared"),
    [((8, 16), False), ((64, 1024), True), ((1, 100_000), True), (("n", 4), True), ((2, 2, 4), False)],
)
def test_threads_share_what_may_be_much_work(shape: Any, shared: bool) -> None:
    assert ("T.parallel" in str(made(relax.op.negative, shape))) is shared


@pytest.mark.broad
@pytest.mark.parametrize("shape", [(32, 48), (37, 5), (1, 19), (999, 65)])
def test_other_orders_of_axes(shape: tuple[int, int], tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype("f4")
    run = compiled(graph_of(["n", shape[1]], lambda x: relax.op.negative(relax.op.permute_dims(x))), tmp_path)
    np.testing.assert_array_equal(run(x)[0], -x.T)


@pytest.mark.broad
@pytest.mark.parametrize("axes", [["a", "b", "c"], ["a", 1, "c"], [1, "b"], ["a"], [3, "b", 5]])
def test_results_by_two_threads(axes: list[str | int], tmp_path: Path) -> None:
    run = compiled(graph_of(axes, lambda x: relax.op.tanh(x)), tmp_path)
    for sizes in ((2, 3, 5), (1, 1, 1), (1, 40, 2001), (9, 1, 17_000), (11, 129, 64)):
        shape = [n if isinstance(n, int) else size for n, size in zip(axes, sizes, strict=False)]
        x = np.random.default_rng(0).uniform(-2, 2, shape).astype("f4")
        np.testing.assert_allclose(run(x)[0], np.tanh(x), rtol=1e-5, atol=1e-6)


def test_a_condition_of_rows_is_looked_at_once_for_a_row() -> None:
    """Padding around rows: what is inside of it is copied in vectors."""
    n, i, j = tirx.Var("n", "int64"), tirx.Var("i", "int64"), tirx.Var("j", "int64")
    x, y = (tirx.decl_buffer((n, int64(64)), "float32", name=name) for name in "xy")
    value = tirx.if_then_else(i < n - int64(1), tirx.BufferLoad(x, [i, j]), tirx.FloatImm("float32", 0.0))
    inner = tirx.For(j, int64(0), int64(64), tirx.ForKind.SERIAL, tirx.BufferStore(y, value, [i, j]))
    nest = nest_of(tirx.For(i, int64(0), n, tirx.ForKind.SERIAL, inner))
    assert nest is not None
    text = str(Pointwise(nest, 8, int64(2)).statement())
    assert "if_then_else" not in text and text.count("T.vectorized") == 2
