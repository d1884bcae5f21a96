"""How a warp of a grid publishes its tiles together: staged side by side, then loaded, then stored.

In: tiles as `exchange.Grid` stages them. Out: statements. One after the other, each tile would cost a round trip
to shared memory, and the cells of several tiles would not be computed in parallel. y follows when the exchange is under
way.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr

from .exchange import Grid, joined
from .geometry import LANES, Store


@dataclass
class StagedTile:
    """A tile that a warp has staged and not published."""

    node: Node
    slot: Expr
    block: int
    j: int
    when: Expr | None
    y: Store | None


class SideBySide(Grid):
    """A grid's exchange that stages all of a phase's tiles before it publishes the first."""

    def prepare(self) -> None:
        super().prepare()
        self.staged: list[StagedTile] = []

    def _place_of(self, number: int) -> Expr:
        """Of a warp's number-th tile, in elements."""
        return (self.ids.warp * self.geometry.staged_tiles + number) * 64

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        at = self._place_of(len(self.staged)) + (self.ids.q * 2 + e) * 8 + self.ids.g
        self.k.store(self.view, value, at)

    def tile(self, node: Node, slot: Expr, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        self.staged.append(StagedTile(node, slot, block, j, when, y))

    def publish_tiles(self) -> list[list[Expr]]:
        """All that is staged; the words of each tile, for y."""
        k, lane, chunks = self.k, self.ids.lane, 8 * self.chunks_of_row
        words: list[Buffer] = [self.k.local(4, "uint32") for _ in self.staged]
        if self.staged:
            k.do(I.cuda.warp_sync())
        for number, tile in enumerate(self.staged):
            with self._owned(tile.j):
                at = self.stage_at + tirx.floordiv(self._place_of(number) * self.geometry.itemsize, 4) + self.chunk * 4
                four = [words[number][z] for z in range(4)]
                k.do(I.ptx["ld.shared.v4.b32"](*four, self.arena.ptr_to([at])))
        for tile, own in zip(self.staged, words, strict=True):
            only: list[Expr] = [lane < chunks] if chunks < LANES else []
            with self._owned(tile.j), k.when(joined(([] if tile.when is None else [tile.when]) + only)):
                address = self.addresses[(tile.node, tile.block, tile.j)]
                self.store_piece(tile.node, tile.slot, address, [own[z] for z in range(4)])
        return [[four[z] for z in range(4)] for four in words]

    def write_y(self, words: list[list[Expr]]) -> None:
        """What of it is the layer's output."""
        for tile, four in zip(self.staged, words, strict=True):
            width = tile.node.shape[0]
            if tile.y is not None:
                unit = self.ids.rank * self.geometry.units(width)
                unit = unit + (self.ids.warp_u * self.geometry.blocks(width) + tile.block) * 8
                with self._owned(tile.j), self.k.when(self.ids.lane < 8):
                    tile.y(self.body.cells.tile(tile.j) * 8 + self.ids.lane, unit, four)
        self.staged = []

    def _owned(self, j: int) -> AbstractContextManager[None]:
        owned = self.geometry.owned(j, self.ids.warp_k)
        return nullcontext() if owned is None else self.k.when(owned)
