"""Matrices of every step in a lane's registers: what is read is asked for a step ahead; neighbours travel in pairs.

In: the elements that a dry run has found, a `Block`. Out: `WholeMatrices`, whose `take` has the values of a step, and
`pairs`, which of a lane's elements lie side by side in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace

from tvm import tirx

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.cuda.codegen.vector_access import LoadedLanes
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import TirExpr

from .block import Block, flat
from .element_index import COLUMN, Along, ElementIndex, flattened
from .lane_values import Index, placed

Lanes = Mapping[str, tuple[Along, ...]]
PAIR_BYTES = 4


def pairs(node: Node, indices: Iterable[Index], place: Place, apart: int) -> Iterator[tuple[Index, Index | None]]:
    """Every index, of those that lie side by side in 4 bytes the first, with the second. place: of all rows; apart:
    elements of one head that lie side by side."""
    by_offset = {flattened(node.shape, index): index for index in indices}
    able = 2 * ITEM_BYTES[place.dtype] == PAIR_BYTES and place.align % PAIR_BYTES == 0
    able = able and place.row_stride % 2 == 0 and apart % 2 == 0
    second = {at: _neighbour(at) for at in by_offset} if able else {}
    taken = {at for at in second.values() if at in by_offset}
    for at, index in by_offset.items():
        if at not in taken:
            following = second.get(at)
            yield index, None if following is None else by_offset.get(following)


def _neighbour(at: ElementIndex | int) -> ElementIndex | None:
    """The offset behind an even one, where it is the next of a lane's columns."""
    if isinstance(at, int) or at.first % 2:
        return None
    (*others, (along, factor)) = sorted(at.terms, key=lambda term: (term[0].role == COLUMN, -term[1]))
    able = along.role == COLUMN and factor == 1 and along.number % 2 == 0 and not along.spread
    if not able or any(other % 2 for _, other in others):
        return None
    following = replace(along, number=along.number + 1)
    return replace(at, terms=tuple((following if a == along else a, f) for a, f in at.terms))


class WholeMatrices:
    """Emits loads. `ask` for a step, then `take` it, then ask for the next one."""

    def __init__(self, block: Block, lanes: Lanes) -> None:
        self.block, self.w, layout = block, block.w, block.layout
        nodes = dict.fromkeys(node for node, _ in block.step.lanes.whole)
        self.asked = list[tuple[Node, tuple[Index, ...], LoadedLanes]]()
        for node in nodes:
            own = [placed(index, lanes) for other, index in block.step.lanes.whole if other is node]
            place, apart = layout.rows(node), layout.side_by_side(node) if layout.heads > 1 else 0
            for index, second in pairs(node, own, place, apart):
                both = (index,) if second is None else (index, second)
                self.asked.append((node, both, LoadedLanes(self.w, place.dtype, len(both))))

    def ask(self, step: TirExpr) -> None:
        """Elements beyond the matrix stay 0."""
        block = self.block
        local = block.local(step)
        for node, (index, *_), registers in self.asked:
            inside = block.inside(index)
            with nullcontext() if inside is None else self.w.when(inside):
                registers.load(block.read_name(node), block.read_at(node, flat(node, index), local))

    def take(self) -> dict[tuple[Node, Index], TirExpr]:
        found, keep = dict[tuple[Node, Index], TirExpr](), self.w.keep
        for node, both, registers in self.asked:
            values = [keep(tirx.Cast("float32", value)) for value in registers.values()]
            found |= {(node, index): value for index, value in zip(both, values, strict=True)}
        return found
