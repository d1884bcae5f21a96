"""An exchange by polling between groups of few batch rows: a value is one number of each unit, beside its neighbours'.

In: the kernel's body. Out: the statements of `PolledRows`. Of a block of K its rows follow each other, none but those
of the group, so that a load of a warp brings what it needs. Lanes publish their units' words themselves: nothing waits
in shared memory for others. Nobody publishes rows past the batch: who reads them reads the last one that there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.poison import POISON
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr

from . import exchange_by_polling
from .exchange import joined
from .exchange_by_polling import Polled, PollingExchange
from .geometry import BLOCK_WORDS, LANES, Body, Geometry, Store
from .rates import Rates

NEXT_UNIT = 4  # lanes


@dataclass(frozen=True)
class RowsExchange(PollingExchange):
    """As planning sees it."""

    stages: ClassVar[bool] = False
    rates: ClassVar[Rates] = Rates(0.72, 0.0, 55.0, 0.77, 0.18, 0.087)

    def exchanger(self, body: Body, stage_at: int, barriers_at: int) -> PolledRows:
        return PolledRows(body, stage_at)

    def stage_words(self, geometry: Geometry) -> int:
        return 0


FEW = RowsExchange()


class PolledRows(Polled):
    """The lanes that have cells publish them: in 16 bits every other one, two units at a time."""

    def prepare(self) -> None:
        """The word of each value that this lane publishes, of the first of its rows; and how many rows there are."""
        k, geometry, per_word = self.k, self.geometry, 4 // self.geometry.itemsize
        self.words: dict[tuple[Node, int, int, int], Expr] = {}
        self.targets: dict[tuple[Node, int, int], Expr] = {}
        self.addresses: dict[tuple[Node, int, int], Expr] = {}
        self.rows: Expr = tirx.const(1, "int32")
        if geometry.rows > 1:
            self.rows = k.keep(k["batch"] - k["row0"] - self.ids.group * geometry.rows)
        for node in geometry.published:
            for block in range(geometry.blocks(node.shape[0])):
                word: Expr = tirx.floordiv(self.body.cells.unit(node.shape[0], block), per_word)
                if geometry.rows > 1:
                    above = tirx.floordiv(word, BLOCK_WORDS) * (geometry.rows - 1) + self.ids.q * 2
                    word = word + above * BLOCK_WORDS
                at = k.keep(geometry.value_at[node] // 2 + word)
                self.addresses[(node, block, 0)] = at
                self.targets[(node, block, 0)] = self.base + at  # of the first step's operands

    def begin_step(self) -> None:
        """Where this step's values go, while others' are on their way: who has them is not to wait for addresses."""
        super().begin_step()
        k, turn = self.k, 3 * exchange_by_polling.TURN
        for (node, block, j), address in self.addresses.items():
            step = self.body.t + (1 if node in self.body.carried else 0)
            word = tirx.truncmod(step, turn) * self.step_words + address
            self.targets[(node, block, j)] = k.keep(self.base + tirx.Cast("int64", k.fresh(k.keep(word))))

    def load(self, node: Node, slot: int, kblock: Expr, row: Expr, registers: Sequence[Expr]) -> None:
        there = row if self.geometry.rows == 1 else tirx.Min(row, self.rows - 1)
        super().load(node, slot, kblock, there, registers)

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        k = self.k
        if self.geometry.itemsize == 4:
            self.words[(node, block, j, e)] = k.keep(I.reinterpret("uint32", value))
            return
        own = k.keep(tirx.Cast("uint32", I.reinterpret("uint16", value)))
        every = tirx.const(0xFFFFFFFF, "uint32")
        other = k.keep(tirx.call_extern("uint32", "__shfl_xor_sync", every, own, NEXT_UNIT, LANES))
        upper = tirx.shift_left(other, tirx.const(16, "uint32"))
        self.words[(node, block, j, e)] = k.keep(tirx.bitwise_or(own, upper))

    def publish_tile(self, node: Node, slot: Expr, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        for e in range(self.geometry.lane_rows):
            with self.k.when(joined(when, self._has(e))):
                self._store_word(self.targets[(node, block, j)] + e * BLOCK_WORDS, self.words[(node, block, j, e)])

    def _store_word(self, at: Expr, word: Expr) -> None:
        self.k.do(I.ptx["st.relaxed.gpu.global.b32"](self.k["exchange"].ptr_to([at]), word))

    def _has(self, e: int) -> Expr:
        """Whether this lane publishes words of its row e of two."""
        ids, rows = self.ids, self.geometry.rows
        own = tirx.EQ(ids.q, 0) if rows == 1 else ids.q * 2 + e < tirx.Min(self.rows, tirx.const(rows, "int32"))
        return own if self.geometry.itemsize == 4 else tirx.And(own, tirx.EQ(tirx.floormod(ids.g, 2), 0))

    def _poison(self, step: Expr) -> None:
        for (_, _, j), address in self.addresses.items():
            for e in range(self.geometry.lane_rows):
                with self.body.cells.own_tile(j), self.k.when(self._has(e)):
                    poison = tirx.const(POISON, "uint32")
                    self._store_word(self.place(step) + address + e * BLOCK_WORDS, poison)
