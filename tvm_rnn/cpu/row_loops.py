"""Loops over batch rows: each row with the elements of outer axes, or tiles of rows and what full tiles leave.

In: the number of rows, known when code runs; what one row, or one tile, does. Out: statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tvm import tirx

from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, floordiv, floormod, loop, sequence, when

from .head_loops import Within


def each_row(
    rows: Expr,
    outer: Sequence[int],
    parallel: bool,
    body: Callable[[Expr, tuple[Expr, ...]], Block],
    within: Within | None = None,
) -> Stmt:
    """for row, outer axes: body(row, index). parallel: threads share the rows and the first outer axis. within: what a
    loop around it has of these."""
    first = outer[0] if outer else 1

    def inner(row: Expr, index: tuple[Expr, ...]) -> Block:
        if len(index) == len(outer):
            return body(row, index)
        return loop(f"i{len(index)}", outer[len(index)], lambda i: inner(row, (*index, i)))

    if within is not None:
        own = within

        def heads(row: Expr) -> Stmt:
            return loop("head", own.count, lambda n: inner(row, (own.begin + n,)))

        return loop("row", rows, heads) if own.row is None else heads(own.row)

    def outermost(i: Expr) -> list[Block]:
        row, set_row = bind("row", floordiv(i, first))
        return [set_row, inner(row, (floormod(i, first),) if outer else ())]

    return loop("i", rows * int64(first), outermost, parallel=parallel)


def leftovers(rows: Expr, full: int, below: int, tile: Callable[[int, Expr], Block], named: Iterable[int] = ()) -> Stmt:
    """What full tiles of rows leave: one tile(height, first row) of all of it where that many rows were named, else at
    most one of each power of two from `below` down."""
    left, height = floormod(rows, full), below
    parts = list[Stmt]()
    while height:
        start = rows - left + floordiv(left, 2 * height) * int64(2 * height)
        parts.append(when(tirx.NE(tirx.bitwise_and(left, int64(height)), int64(0)), tile(height, start)))
        height //= 2
    done = sequence(parts)
    for own in sorted({count % full for count in named}):
        if own.bit_count() > 1:
            done = when(tirx.EQ(left, int64(own)), tile(own, rows - left), done)
    return done
