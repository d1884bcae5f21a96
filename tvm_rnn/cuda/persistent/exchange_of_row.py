"""An exchange by polling between groups of one batch row: a value is one number of each unit, beside its neighbours'.

In: the kernel's body. Out: the statements of `PolledRow`. A step's row lies whole, so that a load of a warp brings what
it needs. Lanes publish their units' words themselves: nothing waits in shared memory for others.
"""

from __future__ import annotations

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
from .geometry import LANES, Body, Geometry, Store
from .rates import Rates

NEXT_UNIT = 4  # lanes


@dataclass(frozen=True)
class RowExchange(PollingExchange):
    """As planning sees it."""

    stages: ClassVar[bool] = False
    rates: ClassVar[Rates] = Rates(0.68, 0.0, 55.0, 0.77, 0.18, 0.087)

    def exchanger(self, body: Body, stage_at: int, barriers_at: int) -> PolledRow:
        return PolledRow(body, stage_at)

    def stage_words(self, geometry: Geometry) -> int:
        return 0


ROW = RowExchange()


class PolledRow(Polled):
    """Lanes with q = 0 have cells, and publish them: in 16 bits every other one, two units at a time."""

    def prepare(self) -> None:
        """The word of each value that this lane publishes."""
        self.words: dict[tuple[Node, int, int], Expr] = {}
        self.targets: dict[tuple[Node, int, int], Expr] = {}
        self.addresses: dict[tuple[Node, int, int], Expr] = {}
        per_word = 4 // self.geometry.itemsize
        for node in self.geometry.published:
            for block in range(self.geometry.blocks(node.shape[0])):
                unit = self.body.cells.unit(node.shape[0], block)
                at = self.geometry.value_at[node] // 2 + tirx.floordiv(unit, per_word)
                self.addresses[(node, block, 0)] = self.k.keep(at)
                self.targets[(node, block, 0)] = self.base + at  # of the first step's operands

    def begin_step(self) -> None:
        """Where this step's values go, while others' are on their way: who has them is not to wait for addresses."""
        super().begin_step()
        k, turn = self.k, 3 * exchange_by_polling.TURN
        for (node, block, j), address in self.addresses.items():
            step = self.body.t + (1 if node in self.body.carried else 0)
            word = tirx.truncmod(step, turn) * self.step_words + address
            self.targets[(node, block, j)] = k.keep(self.base + tirx.Cast("int64", k.fresh(k.keep(word))))

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        k = self.k
        if self.geometry.itemsize == 4:
            self.words[(node, block, j)] = k.keep(I.reinterpret("uint32", value))
            return
        own = k.keep(tirx.Cast("uint32", I.reinterpret("uint16", value)))
        every = tirx.const(0xFFFFFFFF, "uint32")
        other = k.keep(tirx.call_extern("uint32", "__shfl_xor_sync", every, own, NEXT_UNIT, LANES))
        upper = tirx.shift_left(other, tirx.const(16, "uint32"))
        self.words[(node, block, j)] = k.keep(tirx.bitwise_or(own, upper))

    def publish_tile(self, node: Node, slot: Expr, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        with self.k.when(joined(when, self._publishes(j))):
            self._store_word(self.targets[(node, block, j)], self.words[(node, block, j)])

    def _store_word(self, at: Expr, word: Expr) -> None:
        self.k.do(I.ptx["st.relaxed.gpu.global.b32"](self.k["exchange"].ptr_to([at]), word))

    def _publishes(self, j: int) -> Expr:
        first = tirx.EQ(self.ids.q, 0)
        return first if self.geometry.itemsize == 4 else tirx.And(first, tirx.EQ(tirx.floormod(self.ids.g, 2), 0))

    def _poison(self, step: Expr) -> None:
        for (_, _, j), address in self.addresses.items():
            with self.body.cells.own_tile(j), self.k.when(self._publishes(j)):
                self._store_word(self.place(step) + address, tirx.const(POISON, "uint32"))
