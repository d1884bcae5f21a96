"""Products of one batch row by mma.sync, where values are polled for.

In: a `Step`, knobs; the kernel's body. Out: `OneRow`, the geometry of groups of one row; statements that leave all
gates of a lane's cells in registers. Weights are packed and kept as for eight rows (`mma_sync.py`).

A row of an operand lies whole in the exchange. A warp asks for its part with as few loads as it takes, hands it to all
of its lanes through shared memory of its own, and multiplies it as all eight columns of its tiles, so that every lane
has the row's sums. Of these only one of each gate goes to the warp that adds up the parts of K. Cells read their
hoisted values from memory, two steps early: one number for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, LANES, Body, Emitters, Share, begins
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from .mma_sync import MmaSync, MmaSyncProduct
from .operands_staged import largest, until_written

LOADS = LANES // 4  # blocks of K of a row that a warp's lanes load at once, 16 bytes each


@dataclass(frozen=True)
class OneRow(MmaSync):
    """rows is 1, and the exchange `exchange_of_row.ROW`."""

    def emitters(self, body: Body) -> Emitters:
        exchange = self.exchange.exchanger(body, self.memory_map["stage"], self.memory_map["end"])
        pieces = self.exchange.pieces(body)
        inputs = self.exchange.inputs(body, exchange, pieces, self.memory_map["inputs"])
        return Emitters(exchange, inputs, pieces, OneRowProduct(body, self, exchange, inputs))

    @property
    def possible(self) -> bool:
        return self.rows == 1 and self.tiles == 1 and self.exchange.polls and not self.stored and super().possible

    def prefetches(self, phase: Phase, node: Node, slot: int) -> bool:
        return False

    @property
    def partial_words(self) -> int:
        """Of each unit its gates, for even and odd steps."""
        return 0 if self.warps_k == 1 else 2 * self.warps * 8 * self.most_m_tiles * 2

    @property
    def row_words(self) -> int:
        """Each warp's part of an operand."""
        return self.warps * max((share.kblocks for _, share in self.weights), default=0) * BLOCK_WORDS

    @cached_property
    def memory_map(self) -> dict[str, int]:
        sizes = {"row": self.row_words, "partial": self.partial_words, "stage": self.stage_words, "inputs": 0}
        return begins(**sizes, prefetch=0, weights=self.weight_words)


class OneRowProduct(MmaSyncProduct):
    """Those of a kernel."""

    geometry: OneRow

    def _word(self, kblock: Expr, piece: Expr) -> Expr:
        """Of a piece of a block of K, in this warp's part of the row."""
        geometry = self.geometry
        own = geometry.memory_map["row"] + self.ids.warp * (geometry.row_words // geometry.warps)
        return self.arena.ptr_to([own + kblock * BLOCK_WORDS + piece * 4])

    def _bring(self, share: Share) -> None:
        """Poll for this warp's part of the row: lane (g, q) for piece q of every eighth block of K."""
        k, ids = self.k, self.ids
        count, whole = ceil_div(share.kblocks, LOADS), share.kblocks % LOADS == 0
        pieces = k.local(count * 4, "uint32")
        every = [[pieces[n * 4 + z] for z in range(4)] for n in range(count)]
        for z in range(0 if whole else count * 4):
            k.store(pieces, uint32(0), z)
        node, slot = self.body.value(share.operand.source), self.body.copy_of(share.operand.source)

        def there(n: int) -> AbstractContextManager[None]:
            return nullcontext() if (n + 1) * LOADS <= share.kblocks else k.when(ids.g + n * LOADS < share.kblocks)

        def ask(n: int) -> None:
            with there(n):
                block = self.geometry.block_of(share, 0, ids) + ids.g + n * LOADS
                self.exchange.load(node, slot, block, tirx.const(0, "int32"), every[n])

        for n in range(count):
            ask(n)
        with self.waiting():
            until_written(k, count, lambda n: largest(every[n]), ask)
        for n, words in enumerate(every):
            with there(n):
                k.do(I.ptx["st.shared.v4.b32"](self._word(ids.g + n * LOADS, ids.q), *words))
        k.do(I.cuda.warp_sync())

    def operand(self, phase: Phase, share: Share, number: int, acc: Buffer) -> None:
        k = self.k
        self._bring(share)
        row = k.local(share.kblocks * 4, "uint32")
        for kblock in range(share.kblocks):
            words = [row[kblock * 4 + z] for z in range(4)]
            k.do(I.ptx["ld.shared.v4.b32"](*words, self._word(tirx.const(kblock, "int32"), self.ids.q)))
        self._ask_weights(phase, share, 0)
        for kblock in range(share.kblocks):
            self._ask_weights(phase, share, kblock + 1)
            self._multiply(phase, kblock, self._weights(phase, share, kblock), row, kblock, acc)

    def _sum(self, phase: Phase, m_tiles: int, chains: int, acc: Buffer, number: int) -> list[Expr]:
        """Chains, then parts of K: the first warp of those that share units has all, and cells."""
        k, ids, geometry = self.k, self.ids, self.geometry
        halves, warps_k = m_tiles * 2, geometry.warps_k
        sums = k.local(halves)
        for half in range(halves):
            at = half // 2 * 4 * chains + half % 2 * 2
            total: Expr = acc[at]
            for chain in range(1, chains):
                total = total + acc[at + chain * 4]
            k.store(sums, total, half)
        if warps_k > 1:
            turn = self._turn(phase)
            number_of = tirx.Cast("uint32", ids.warp_u + 1 + turn * geometry.warps_u)
            threads = tirx.const(LANES * warps_k, "uint32")
            with I.If(tirx.EQ(ids.warp_k, 0)):
                with I.Then():
                    k.do(I.ptx.bar.sync(number_of, threads))
                    self._take(turn, halves, sums)
                with I.Else():
                    with k.when(tirx.EQ(ids.q, 0)):
                        for pointer, at, width in self._places(turn, halves, ids.warp_k):
                            words = [sums[at + z] for z in range(width)]
                            k.do(I.ptx[f"st.shared.v{width}.f32"](pointer, *words))
                    k.do(I.ptx.bar.arrive(number_of, threads))
        nothing = tirx.const(0.0, "float32")
        return [sums[z // 2] if z % 2 == 0 else nothing for z in range(halves * 2)]

    def _places(self, turn: int, halves: int, warp_k: Expr) -> Sequence[tuple[Expr, int, int]]:
        """Where a warp's sums of this lane's unit go: with the first of them, and how many."""
        width = 4 if halves % 4 == 0 else 2
        geometry, ids = self.geometry, self.ids
        first = (ids.warp_u * geometry.warps_k + warp_k) * 8 + ids.g
        first = self.partial_at + turn * (geometry.partial_words // 2) + first * halves
        return [(self.arena.ptr_to([first + at]), at, width) for at in range(0, halves, width)]

    def _take(self, turn: int, halves: int, sums: Buffer) -> None:
        """Add the other warps' sums, in their order. All are asked for before the first is added."""
        k, others = self.k, range(1, self.geometry.warps_k)
        parts = k.local(len(others) * halves)
        for n, other in enumerate(others):
            for pointer, at, width in self._places(turn, halves, tirx.const(other, "int32")):
                words = [parts[n * halves + at + z] for z in range(width)]
                k.do(I.ptx[f"ld.shared.v{width}.f32"](*words, pointer))
        for half in range(halves):
            total: Expr = sums[half]
            for n in range(len(others)):
                total = total + parts[n * halves + half]
            k.store(sums, total, half)
