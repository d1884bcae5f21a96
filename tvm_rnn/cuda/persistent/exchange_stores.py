"""How a warp of a grid hands its tiles over together: staged side by side, then loaded, then stored.

In: tiles as `exchange.Grid` stages them. Out: statements. One after the other, each tile would cost a way to shared
memory and back; and the cells of several tiles would not be computed side by side. y follows when the exchange is under
way.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.persistent.product.wgmma_pipelined_layout import stage_tiles
from tvm_rnn.graph.graph import Node

from .exchange import Grid, Store, _all
from .geometry import LANES

Expr = Any


class SideBySide(Grid):
    """A grid's exchange that stages all of a phase's tiles before it hands over the first."""

    def prepare(self) -> None:
        super().prepare()
        self.staged: list[tuple[Any, ...]] = []  # what a warp has laid down and not handed over

    def _place_of(self, number: int) -> Expr:
        """Of a warp's number-th tile, in elements."""
        return (self.ids.warp * stage_tiles(self.team) + number) * 64

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        at = self._place_of(len(self.staged)) + (self.ids.q * 2 + e) * 8 + self.ids.g
        self.k.store(self.view, value, at)

    def tile(self, node: Node, slot: int, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        self.staged.append((node, slot, block, j, when, y))

    def hand_over(self) -> list[list[Expr]]:
        """All that is staged; the words of each tile, for y."""
        k, lane, chunks = self.k, self.ids.lane, 8 * self.pieces
        words = [self.k.local(4, "uint32") for _ in self.staged]
        if self.staged:
            k.do(I.cuda.warp_sync())
        for number, (_, _, _, j, _, _) in enumerate(self.staged):
            with self._owned(j):
                at = self.stage_at + tirx.floordiv(self._place_of(number) * self.team.itemsize, 4) + self.chunk * 4
                four = [words[number][z] for z in range(4)]
                k.do(I.ptx["ld.shared.v4.b32"](*four, self.arena.ptr_to([at])))
        for (node, slot, block, j, when, _), own in zip(self.staged, words, strict=True):
            only = [lane < chunks] if chunks < LANES else []
            with self._owned(j), k.when(_all(([] if when is None else [when]) + only)):
                self.hand(node, slot, self.addresses[(node, block, j)], [own[z] for z in range(4)])
        return [[own[z] for z in range(4)] for own in words]

    def write_y(self, words: list[list[Expr]]) -> None:
        """What of it is the layer's output."""
        for (node, _, block, j, _, y), four in zip(self.staged, words, strict=True):
            if y is not None:
                unit = self.ids.rank * self.team.units(node.shape[0])
                unit = unit + (self.ids.warp_u * self.team.blocks(node.shape[0]) + block) * 8
                with self._owned(j), self.k.when(self.ids.lane < 8):
                    y(self._tile(j) * 8 + self.ids.lane, unit, four)
        self.staged = []

    def _owned(self, j: int) -> Any:
        owned = self.team.owned(j, self.ids.warp_k)
        return nullcontext() if owned is None else self.k.when(owned)
