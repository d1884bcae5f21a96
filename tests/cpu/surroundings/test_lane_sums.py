"""Sums along what lies side by side: of all elements, of rows, of what a run alone says how long it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import compiled, graph_of
from test_schedule import loops
from tvm import relax, tirx

from tvm_rnn.cpu.surroundings.columns import columns_of
from tvm_rnn.cpu.surroundings.lane_sums import LaneSum
from tvm_rnn.cpu.surroundings.schedule import Laid
from tvm_rnn.surroundings.nest import nest_of
from tvm_rnn.tir.index import int64


def made(make: Any, shape: Any) -> LaneSum | None:
    nest = nest_of(loops(make, shape)[0])
    assert nest is not None
    return LaneSum.of(nest, None, 8, int64(1))


def test_axes_that_are_one_walk_through_memory_are_one_loop() -> None:
    whole, rows = made(relax.op.min, (3, 5, 7)), made(lambda x: relax.op.max(x, 2), (3, 5, 7))
    assert whole is not None and int(whole.columns.extent) == 105 and not whole.outside
    assert rows is not None and int(rows.columns.extent) == 7 and not rows.outside
    apart = made(lambda x: relax.op.sum(x, [0, 2]), (3, 5, 7))
    assert apart is not None and int(apart.columns.extent) == 7 and len(apart.outside) == 1
    for shape in (("n", 5, 7), ("n", "m", "m", 7)):
        open_size = made(relax.op.max, shape)
        assert open_size is not None and not isinstance(open_size.columns.extent, tirx.IntImm) and not open_size.outside


def test_what_does_not_lie_side_by_side_is_no_such_sum() -> None:
    nest = nest_of(loops(lambda x: relax.op.sum(x, 0), (5, 7))[0])
    assert nest is not None and columns_of(nest, 8, Laid()) is nest.own[-1]
    assert LaneSum.of(nest, None, 8, int64(1)) is None


CASES: dict[str, tuple[Any, Any]] = {
    "min": (relax.op.min, np.min),
    "max": (relax.op.max, np.max),
    "sum of rows": (lambda x: relax.op.sum(x, 2), lambda x: x.sum(2)),
    "mean apart": (lambda x: relax.op.mean(x, [0, 2]), lambda x: x.mean((0, 2))),
    "product": (lambda x: relax.op.prod(x, 2), lambda x: x.prod(2)),
}


@pytest.mark.broad
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [3, 37, 200])
def test_results(name: str, size: int, tmp_path: Path) -> None:
    make, expected = CASES[name]
    run = compiled(graph_of(["n", 3, size], make), tmp_path)
    for nan in (False, True):
        x = np.random.default_rng(size).uniform(-1.2, 1.2, (2, 3, size)).astype("f4")
        x[1, 2, size // 2] = np.nan if nan else -1.5
        np.testing.assert_allclose(run(x)[0], expected(x.astype("f8")), rtol=1e-5, atol=1e-5)


@pytest.mark.broad
@pytest.mark.parametrize("name", ["min", "max", "product", "sum of all", "mean apart from an axis"])
def test_long_sums_by_two_threads(name: str, tmp_path: Path) -> None:
    cases = {
        "min": (relax.op.min, np.min),
        "max": (relax.op.max, np.max),
        "product": (relax.op.prod, np.prod),
        "sum of all": (relax.op.sum, np.sum),
        "mean apart from an axis": (lambda x: relax.op.mean(x, [0, 2]), lambda x: x.mean((0, 2))),
    }
    make, expected = cases[name]
    for axes in (["n", 3, "m"], [7, 1, "m"]):
        (folder := tmp_path / str(axes[1])).mkdir()
        run = compiled(graph_of(axes, make), folder)
        for sizes in ((7, 3, 4), (1, 3, 1), (7, 3, 50_000), (7, 3, 44_444)):
            shape = [n if isinstance(n, int) else size for n, size in zip(axes, sizes, strict=True)]
            x = np.random.default_rng(0).normal(1, 1e-3, shape).astype("f4")
            np.testing.assert_allclose(run(x)[0], expected(x.astype("f8")), rtol=1e-4)


@pytest.mark.parametrize(("shape", "shared"), [((3, 5, 7), False), ((128, 64, 64), True), (("n", 5, 7), True)])
def test_threads_share_sums_of_all_there_is(shape: Any, shared: bool) -> None:
    whole = made(relax.op.min, shape)
    assert whole is not None and ("T.parallel" in str(whole.statement())) is shared
