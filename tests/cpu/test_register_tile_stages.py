"""register_tile_stages: arrays of a tile as loops, without and with a schedule."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule

from tvm_rnn.cpu.register_tile_stages import Sum, in_registers, scheduled
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer, load, variable

X = buffer("x", "float32")
K = variable("k")
SUM = Sum({K: 5}, tirx.const(0.0, "float32"), lambda total, value: total + value)


def loops(statement: Stmt) -> list[tuple[str, int]]:
    """Kind and extent of each loop, inner ones first."""
    found: list[tuple[str, int]] = []
    tvm_ffi.structural_walk(
        statement, (tirx.For, lambda own: found.append((tirx.ForKind(own.kind).name, int(own.extent))))
    )
    return found


def at(r: Expr, p: Expr, v: Expr) -> Expr:
    return load(X, (r * 7 + K) * int64(8) + v)


def test_what_is_summed_is_outside_of_the_tile() -> None:
    stage = in_registers("product_0", (3, 1, 8), "float32", at, SUM)
    nest = [("VECTORIZED", 8), ("UNROLLED", 3)]
    assert loops(stage.statement()) == [*nest, *nest, ("SERIAL", 5)]
    assert int(stage.buffer.shape[0]) == 24


def test_values_of_the_shorter_side_stay_in_registers() -> None:
    """Three rows of one vector are behind it; three rows of four vectors are read once for each term, and each vector
    alone: the sums and all four would be more than 16."""

    def value(r: Expr, p: Expr, g: Expr, v: Expr) -> Expr:
        return load(X, ((r * 7 + K) * 4 + g) * int64(8) + v)

    def order(rows: int, gates: int) -> list[int]:
        own = in_registers("product_0", (rows, 1, gates, 8), "float32", value, SUM).statement()
        return [extent for _, extent in loops(own)][-4:]

    assert order(3, 4) == [8, 3, 4, 5]
    assert order(4, 3) == [8, 3, 4, 5]
    assert order(6, 2) == [8, 2, 6, 5]


def test_a_schedule_sees_all_axes_and_decides_about_them() -> None:
    stage, seen = in_registers("product_0", (3, 1, 8), "float32", at, SUM), list[int]()

    def schedule(sch: Schedule) -> None:
        *tile, k = sch.get_loops("product_0")
        seen.extend(int(sch.get(own).extent) for own in (*tile, k))
        sch.reorder(k, *tile)
        sch.decompose_reduction("product_0", k)

    made = scheduled([stage], [X], schedule)
    assert seen == [3, 1, 8, 5]
    assert [kind for kind, _ in loops(made)].count("SERIAL") == len(loops(made))
    assert loops(made)[-1] == ("SERIAL", 5)
