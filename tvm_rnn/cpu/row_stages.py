"""Work that has a row for each step of a tile, in stages: threads share its rows once per stage, not once per group.

In: groups in an order that computes what each reads, and which of them do a row from that row alone. Out: stages; and a
loop over sections of rows. What a thread has made of a row it reads again itself, while that is near.

Rewrite: for row: a; for row: b; scan a; for row: c  -->  parallel for section: (for row: a, b, c); scan a
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tvm import tirx

from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, loop, sequence, use_threads

from .matrix_part import held
from .second_thread import threads_for_part


def in_stages(groups: Sequence[Group], by_row: Callable[[Group], bool]) -> Iterator[list[Group]]:
    """Groups that do rows alone are one stage with all others that are then possible, recurrences another one with
    those that read none of them; the rest is a stage each."""
    maker = {n: number for number, group in enumerate(groups) for n in group.stored}
    reads = [_read(group, number, maker) for number, group in enumerate(groups)]
    left, done = list(range(len(groups))), set[int]()
    while left:
        stage = list[int]()
        for number in left:
            if by_row(groups[number]) and reads[number] <= done.union(stage):
                stage.append(number)
        stage = stage or [n for n in left if groups[n].kind == "scan" and reads[n] <= done] or left[:1]
        done.update(stage)
        left = [number for number in left if number not in done]
        yield [groups[number] for number in stage]


def _read(group: Group, number: int, maker: Mapping[Node, int]) -> set[int]:
    """The groups whose values this one reads."""
    found, seen = set[int](), set[Node]()
    left = [*group.nodes, *group.stored]
    while left:
        node = left.pop()
        if maker.get(node, number) != number:
            found.add(maker[node])
        elif node not in seen:
            seen.add(node)
            left += node.args
    return found


def by_sections(rows: Expr, work: Expr, threads: Expr, tall: int, body: Callable[[Expr, Expr], Block]) -> Stmt:
    """body(first row, number of rows) for sections of all rows, one for each thread that is worth it. tall: rows that
    belong together; work: in multiply-adds."""
    few, set_few = bind("few", threads_for_part(work, threads))
    tiles = tirx.max(tirx.floordiv(rows + few * int64(tall) - int64(1), few * int64(tall)), int64(1))
    each, set_each = bind("each", tiles * int64(tall))
    count = tirx.floordiv(rows + each - int64(1), each)

    def section(i: Expr) -> list[Block]:
        first, set_first = held("first_row", i * each)
        size, set_size = held("rows_of_section", tirx.min(rows - first, each))
        return [set_first, set_size, body(first, size)]

    sections = loop("section", count, section, parallel=True)
    return sequence(set_few, set_each, use_threads(few), sections, use_threads(threads))
