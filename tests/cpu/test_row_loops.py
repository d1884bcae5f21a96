"""row_loops: every row once, whatever full tiles leave."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.cpu.row_loops import each_row, leftovers
from tvm_rnn.tir.index import int64


def number(value: tirx.PrimExpr) -> int:
    return int(Analyzer().simplify(value))


@pytest.mark.parametrize(
    ("full", "below", "named"), [(8, 4, ()), (6, 4, ()), (3, 2, ()), (2, 1, (5,)), (12, 8, (7, 31)), (5, 4, (13, 4))]
)
def test_leftovers_are_each_row_once(full: int, below: int, named: tuple[int, ...]) -> None:
    for rows in range(2 * full + 1):
        found = [(start, height) for height, start in tiles_of(rows, full, below, named)]
        assert [start + r for start, height in found for r in range(height)] == list(range(rows - rows % full, rows))
        assert len(found) == 1 or rows % full not in {size % full for size in named} - {0}


def tiles_of(rows: int, full: int, below: int, named: tuple[int, ...]) -> list[tuple[int, int]]:
    """Height and first row of the tiles whose conditions hold."""

    def tile(height: int, start: tirx.PrimExpr) -> tirx.Stmt:
        return tirx.Evaluate(int64(height) * int64(1 << 16) + start)

    def met(statement: tirx.Stmt) -> list[int]:
        if isinstance(statement, tirx.SeqStmt):
            return [value for part in statement.seq for value in met(part)]
        if isinstance(statement, tirx.IfThenElse):
            own = statement.then_case if number(statement.condition) else statement.else_case
            return [] if own is None else met(own)
        return [number(statement.value)]

    return [divmod(value, 1 << 16) for value in met(leftovers(int64(rows), full, below, tile, named))]


def test_each_row_with_all_outer_elements() -> None:
    places: list[tuple[tirx.PrimExpr, ...]] = []

    def body(row: tirx.PrimExpr, index: tuple[tirx.PrimExpr, ...]) -> tirx.Stmt:
        places.append((row, *index))
        return tirx.Evaluate(int64(0))

    made = each_row(int64(5), (3, 4), True, body)
    assert number(made.extent) == 15 and made.kind == tirx.ForKind.PARALLEL and len(places[0]) == 3
    assert number(each_row(int64(5), (), False, body).extent) == 5 and len(places[1]) == 1
