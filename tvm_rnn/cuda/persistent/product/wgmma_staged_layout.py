"""The geometry of a persistent kernel whose operands are staged: brought to shared memory once, for warpgroups.

In: a `Step` and knobs. Out: `WgmmaStagedLayout`. Operands lie as tiles of wgmma behind the weights, which
`wgmma_pipelined_layout.py` packs; each source of a product has one buffer, written again when no product of its step is
under way.
Values are polled for.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from tvm import tirx

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.exchange_by_polling import POLLING
from tvm_rnn.cuda.persistent.geometry import Exchange, Share
from tvm_rnn.cuda.persistent.rates import CLOCK_MHZ, Rates
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr

from .wgmma_pipelined_layout import WgmmaTiles

WARPGROUP = 4  # warps
HELD = 8  # pieces of 16 bytes that a thread holds at a time between memory and shared memory
# Cycles of a product of 64 rows, at least and where its weights are in shared memory, times; of 16 bytes stored.
STAGED_LEAST, STAGED_NEAR, STAGED_PIECE = 16.0, 1.55, 0.1
MOST_ROWS = 256  # columns of an instruction


@dataclass(frozen=True)
class WgmmaStagedLayout(WgmmaTiles):
    """warps_k: warpgroups, each with all the block's units and a part of K. ahead: blocks of K of the input that are
    still to be multiplied when the other units' values are asked for."""

    exchange: Exchange = field(default=POLLING, init=False)
    ahead: int = 1

    wants: ClassVar[str] = "staged operands are those of products alone, of whole K blocks, for whole warpgroups"

    @property
    def possible(self) -> bool:
        plain = not self.stored and self.precision != "float32" and self.passes == 1
        groups = self.warps_u == WARPGROUP and self.warps_n == 1 and self.rows <= MOST_ROWS
        return bool(plain and groups and self.products_alone and self.publishes_whole_blocks)

    def follows(self, whole: bool) -> bool:
        return whole

    def warp_place(self, warp: Expr) -> tuple[Expr, Expr, Expr]:
        """A warpgroup has all units, and a part of K."""
        return tirx.floordiv(warp, self.warps_u), tirx.const(0, "int32"), tirx.floormod(warp, self.warps_u)

    @property
    def sources(self) -> tuple[Node, ...]:
        """What products read, each with a place of its own."""
        return tuple(dict.fromkeys(s.operand.source for _, s in self.weights))

    def place(self, source: Node) -> int:
        """Where an operand lies, in words: behind the weights, which want to be aligned."""
        return self.weight_words + sum(self.value_words(n) for n in self.sources[: self.sources.index(source)])

    @property
    def partial_at(self) -> int:
        return self.weight_words + sum(self.value_words(n) for n in self.sources)

    @property
    def partial_words(self) -> int:
        """Of sums, of all parts but the one that adds a tile up: steps take turns with two places."""
        if self.warps_k == 1:
            return 0
        most = max((self.m_tiles(p) for p in self.step.phases if p.kind == "gemm"), default=0)
        return 2 * self.warps_u * (self.warps_k - 1) * most * self.tiles * 32 * 4

    @property
    def stage_at(self) -> int:
        return self.partial_at + self.partial_words

    @property
    def prefetch_at(self) -> int:
        return self.stage_at + self.stage_words

    @property
    def shared_bytes(self) -> int:
        return 4 * (self.prefetch_at + self.prefetch_words) + max(256, 16 * (len(self.published) + 1))

    def product_registers(self) -> int:
        """Weights, sums of all rows, and the pieces of an operand."""
        most = max((self.m_tiles(p) for p in self.step.phases if p.kind == "gemm"), default=0)
        pieces = [held(self.part_pieces(s.kblocks)) for _, s in self.weights if not s.operand.given]
        return self.kept_registers + most * self.rows // 2 + 4 * max(pieces, default=0)

    def part_pieces(self, kblocks: int) -> int:
        """Of 16 bytes, of a part of K of an operand: a warpgroup brings its own."""
        return kblocks * self.rows * 4

    def packing(self, phase: Phase, share: Share) -> tuple[Hashable, ...]:
        return (*super().packing(phase, share), "wgmma staged", self.k_parts, share.registers)

    @property
    def rates(self) -> Rates:
        return Rates(2.1, 0.0, 34.0, 0.8, 0.15, 0.03)

    def product_us(self, phase: Phase) -> float:
        """Of all warpgroups: instructions take turns on the tensor cores."""
        cycles = 0.0
        for share in self.shares[phase]:
            each = max(STAGED_LEAST, self.rows / 2)
            near = STAGED_NEAR * (share.kblocks - share.registers)
            cycles += 2 * self.m_tiles(phase) * self.k_parts * each * (share.registers + near)
        pieces = sum(self.rows * self.depth_blocks(s.operand.source) * 4 for s in self.shares[phase])
        return (cycles + STAGED_PIECE * pieces) / CLOCK_MHZ

    def gate_row(self, phase: Phase, tile: Expr, line: Expr) -> tuple[Expr, Expr, Expr]:
        """Each warp's lanes have all gates of their units, as with mma.sync."""
        return line // 16, tile * 2 + line % 16 // 8, line


def held(total: int) -> int:
    """How many of so many pieces a thread holds at a time: the turns are equal."""
    each = ceil(total / (32 * WARPGROUP))
    return ceil(each / ceil(each / HELD))
