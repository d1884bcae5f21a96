"""Products of few batch rows by mma.sync, where values are polled for.

In: a `Step`, knobs; the kernel's body. Out: `FewRows`, the geometry of groups of 1, 2 or 4 rows; statements that leave
all gates of a lane's cells in registers. Weights are packed and kept as for eight rows (`mma_sync.py`).

The rows of an operand lie close in the exchange. A warp asks for its part with as few loads as it takes, hands it to
all of its lanes through shared memory of its own, and multiplies the rows as columns of its tiles, again and again
until there are eight. Of the sums only one of each row and gate goes to the warp that adds up the parts of K. Cells
read their hoisted values from memory, two steps early: one number for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import (
    BLOCK_WORDS,
    LANES,
    Body,
    Emitters,
    LaneExchange,
    LaneInputs,
    ProductEmitter,
    Share,
    begins,
)
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from .mma_sync import MmaSync, MmaSyncProduct
from .operands_staged import largest, until_written

LOADS = LANES // 4  # blocks of K of a row that a warp's lanes load at once, 16 bytes each
ROWS = (1, 2, 4)
BLOCK_US, ROW_US = 0.01, 0.2  # of a block of K of a warp's part; of a row after the first
HELD = 8  # blocks of K that lie in registers before they are multiplied


@dataclass(frozen=True)
class FewRows(MmaSync):
    """rows is one of ROWS, and the exchange `exchange_of_rows.FEW`."""

    def emitters(self, body: Body) -> Emitters:
        exchange = self.exchange.exchanger(body, self.memory_map["stage"], self.memory_map["end"])
        pieces = self.exchange.pieces(body)
        inputs = self.exchange.inputs(body, exchange, pieces, self.memory_map["inputs"])
        return Emitters(exchange, inputs, pieces, self.multiplier_of(body, exchange, inputs))

    def multiplier_of(self, body: Body, exchange: LaneExchange, inputs: LaneInputs) -> ProductEmitter:
        return FewRowsProduct(body, self, exchange, inputs)

    @property
    def possible(self) -> bool:
        few = self.rows in ROWS and self.tiles == 1
        return few and self.exchange.polls and not self.stored and super().possible

    @property
    def polled_pieces(self) -> int:
        return ceil_div(self.deepest * self.rows, LOADS)

    @property
    def blocks_asked(self) -> int:
        return max(self.polled_pieces, min(HELD, self.deepest))

    def product_us(self, phase: Phase) -> float:
        """H200, us a step without the hoisted product, warps that share K, weights in registers and in shared memory:
        LSTM 1024 tf32, one row, 4 warps 1.64 (6 blocks of K, and 10), 8 warps 1.50 (8, 0); by lanes 1.56 (8, 8) and
        1.42 (8, 0). Two rows: LSTM 1024 tf32, 8 warps 1.64; LSTM 512 bf16, 4 warps 1.40, where eight rows take 1.30;
        Elman 2683 tf32 2.99 (10, 11), 3.07 where those from shared memory came last."""
        us = sum((self._operand_us(phase, share) for share in self.own_shares(phase)), 0.0)
        return us + BLOCK_US * self.deepest + ROW_US * (self.rows - 1)

    def prefetches(self, phase: Phase, node: Node, slot: int) -> bool:
        return False

    @property
    def partial_words(self) -> int:
        """Of each row and unit its gates, for even and odd steps."""
        return 0 if self.warps_k == 1 else 2 * self.warps * self.rows * 8 * self.most_m_tiles * 2

    @property
    def row_words(self) -> int:
        """Each warp's part of an operand."""
        return self.warps * self.deepest * self.rows * BLOCK_WORDS

    @cached_property
    def memory_map(self) -> dict[str, int]:
        sizes = {"row": self.row_words, "partial": self.partial_words, "stage": self.stage_words, "inputs": 0}
        return begins(**sizes, prefetch=0, weights=self.weight_words)


def in_turns(share: Share) -> list[int]:
    """Blocks of K in the order in which they are multiplied: those whose weights are in registers between the others,
    which come meanwhile. Elman 2683, two rows, tf32: a block of K of all warps comes from shared memory in 96 cycles,
    and is multiplied in 52."""
    parts = range(share.registers), range(share.registers, share.kblocks)
    return [own for _, own in sorted(((n + 0.5) / len(part), own) for part in parts for n, own in enumerate(part))]


class FewRowsProduct(MmaSyncProduct):
    """Those of a kernel."""

    geometry: FewRows
    held: ClassVar[int] = HELD
    words: ClassVar[int] = 4  # of a lane, of a block of K of the rows

    def _word(self, number: Expr, piece: Expr) -> Expr:
        """Of a piece of a row's block of K, in this warp's part of the rows; number: of [block][row]."""
        geometry = self.geometry
        own = geometry.memory_map["row"] + self.ids.warp * (geometry.row_words // geometry.warps)
        return self.arena.ptr_to([own + number * BLOCK_WORDS + piece * 4])

    def _bring(self, share: Share) -> None:
        """Poll for this warp's part of the rows: lane (g, q) for piece q of every eighth row's block of K."""
        k, ids, rows = self.k, self.ids, self.geometry.rows
        total = share.kblocks * rows
        count, whole = ceil_div(total, LOADS), total % LOADS == 0
        pieces = k.local(count * 4, "uint32")
        every = [[pieces[n * 4 + z] for z in range(4)] for n in range(count)]
        for z in range(0 if whole else count * 4):
            k.store(pieces, uint32(0), z)
        node, slot = self.body.value(share.operand.source), self.body.copy_of(share.operand.source)
        block, row = tirx.floordiv(ids.g, rows), tirx.floormod(ids.g, rows)

        def there(n: int) -> AbstractContextManager[None]:
            return nullcontext() if (n + 1) * LOADS <= total else k.when(ids.g + n * LOADS < total)

        def ask(n: int) -> None:
            with there(n):
                kblock = self.geometry.block_of(share, 0, ids) + block + n * (LOADS // rows)
                self.exchange.load(node, slot, kblock, row, every[n])

        for n in range(count):
            ask(n)
        with self.waiting():
            until_written(k, count, lambda n: largest(every[n]), ask)
        for n, words in enumerate(every):
            with there(n):
                k.do(I.ptx["st.shared.v4.b32"](self._word(ids.g + n * LOADS, ids.q), *words))
        k.do(I.cuda.warp_sync())

    def operand(self, phase: Phase, share: Share, number: int, acc: Buffer) -> None:
        """Weights that are not in registers are asked for two blocks ahead, the first before the rows are there."""
        order = in_turns(share)
        far, held = [kblock for kblock in order if kblock >= share.registers], min(self.held, share.kblocks)
        for kblock in far[:2]:
            self._ask_weights(phase, share, kblock)
        self._bring(share)
        rows = self.k.local(held * self.words, "uint32")
        for place in range(held):
            self._look(order[place], rows, place * self.words)
        for place, kblock in enumerate(order):
            at = place % held * self.words
            self._add(phase, share, kblock, rows, at, acc)
            for later in far[far.index(kblock) + 2 :][:1] if kblock in far else ():
                self._ask_weights(phase, share, later)
            if place + held < len(order):
                self._look(order[place + held], rows, at)

    def _look(self, kblock: int, rows: Buffer, at: int) -> None:
        """What this lane multiplies of a block of K of the rows, to registers from `at`."""
        count = self.geometry.rows
        place = self._word(tirx.floormod(self.ids.g, count) + kblock * count, self.ids.q)
        self.k.do(I.ptx["ld.shared.v4.b32"](*[rows[at + z] for z in range(4)], place))

    def _add(self, phase: Phase, share: Share, kblock: int, rows: Buffer, at: int, acc: Buffer) -> None:
        """The product of a block of K."""
        self._multiply(phase, kblock, self._weights(phase, share, kblock), rows, at // 4, acc)

    def _sum(self, phase: Phase, m_tiles: int, chains: int, acc: Buffer, number: int) -> list[Expr]:
        """Chains, then parts of K: the first warp of those that share units has all, and cells."""
        k, ids, geometry = self.k, self.ids, self.geometry
        halves, warps_k, each = m_tiles * 2, geometry.warps_k, geometry.lane_rows
        sums = k.local(halves * each)
        for place in range(halves * each):
            e, half = divmod(place, halves)
            at = half // 2 * 4 * chains + half % 2 * 2 + e
            total: Expr = acc[at]
            for chain in range(1, chains):
                total = total + acc[at + chain * 4]
            k.store(sums, total, place)
        if warps_k > 1:
            turn = self._turn(phase)
            number_of = tirx.Cast("uint32", ids.warp_u + 1 + turn * geometry.warps_u)
            threads = tirx.const(LANES * warps_k, "uint32")
            with I.If(tirx.EQ(ids.warp_k, 0)):
                with I.Then():
                    k.do(I.ptx.bar.sync(number_of, threads))
                    self._take(turn, halves, sums)
                with I.Else():
                    with k.when(ids.q * 2 < geometry.rows):
                        for pointer, at, width in self._places(turn, halves, ids.warp_k):
                            words = [sums[at + z] for z in range(width)]
                            k.do(I.ptx[f"st.shared.v{width}.f32"](pointer, *words))
                    k.do(I.ptx.bar.arrive(number_of, threads))
        nothing = tirx.const(0.0, "float32")
        return [sums[e * halves + half] if e < each else nothing for half in range(halves) for e in range(2)]

    def _places(self, turn: int, halves: int, warp_k: Expr) -> Sequence[tuple[Expr, int, int]]:
        """Where a warp's sums of this lane's unit go: with the first of them, and how many."""
        width = 4 if halves % 4 == 0 else 2
        geometry, ids = self.geometry, self.ids
        each = geometry.lane_rows
        first = (ids.warp_u * geometry.warps_k + warp_k) * 8 + ids.g
        if geometry.rows > 2:
            first = first * (geometry.rows // 2) + tirx.floormod(ids.q, geometry.rows // 2)
        first = self.partial_at + turn * (geometry.partial_words // 2) + first * (each * halves)
        return [(self.arena.ptr_to([first + at]), at, width) for at in range(0, each * halves, width)]

    def _take(self, turn: int, gates: int, sums: Buffer) -> None:
        """Add the other warps' sums, in their order. All are asked for before the first is added."""
        k, others, count = self.k, range(1, self.geometry.warps_k), gates * self.geometry.lane_rows
        parts = k.local(len(others) * count)
        for n, other in enumerate(others):
            for pointer, at, width in self._places(turn, gates, tirx.const(other, "int32")):
                words = [parts[n * count + at + z] for z in range(width)]
                k.do(I.ptx[f"ld.shared.v{width}.f32"](*words, pointer))
        for place in range(count):
            total: Expr = sums[place]
            for n in range(len(others)):
                total = total + parts[n * count + place]
            k.store(sums, total, place)
