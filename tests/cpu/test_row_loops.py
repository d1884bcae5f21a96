"""row_loops: every row once, whatever full tiles leave."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.cpu.row_loops import each_row, leftovers
from tvm_rnn.tir.index import int64


def number(value: tirx.PrimExpr) -> int:
    return int(Analyzer().simplify(value))


@pytest.mark.parametrize(("full", "below"), [(8, 4), (6, 4), (3, 2), (2, 1), (12, 8)])
def test_leftovers_are_each_row_once(full: int, below: int) -> None:
    for rows in range(2 * full + 1):
        assert covered(rows, full, below) == list(range(rows - rows % full, rows))


def covered(rows: int, full: int, below: int) -> list[int]:
    """Rows of the tiles whose conditions hold."""
    tiles: list[tuple[int, tirx.PrimExpr]] = []

    def tile(height: int, start: tirx.PrimExpr) -> tirx.Stmt:
        tiles.append((height, start))
        return tirx.Evaluate(int64(0))

    holds = [number(statement.condition) for statement in leftovers(int64(rows), full, below, tile)]
    there = [own for own, present in zip(tiles, holds, strict=True) if present]
    return [number(start) + r for height, start in there for r in range(height)]


def test_each_row_with_all_outer_elements() -> None:
    places: list[tuple[tirx.PrimExpr, ...]] = []

    def body(row: tirx.PrimExpr, index: tuple[tirx.PrimExpr, ...]) -> tirx.Stmt:
        places.append((row, *index))
        return tirx.Evaluate(int64(0))

    made = each_row(int64(5), (3, 4), True, body)
    assert number(made.extent) == 15 and made.kind == tirx.ForKind.PARALLEL and len(places[0]) == 3
    assert number(each_row(int64(5), (), False, body).extent) == 5 and len(places[1]) == 1
