"""An exchange inside of one block: its warps hand values to each other through its own shared memory.

In: a `Geometry` of one block per group, and the kernel's body. Out: the statements of `ExchangeEmitter`. Lanes write
values straight to where products read them, [K block][batch row][64 bytes], twice: for even and odd steps. A barrier of
the block (of the warp, where it is alone) lies between what is written and its first reader; nothing is copied, nobody
is told. Who writes a copy again two steps later has passed a barrier behind its last reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr

from .exchange import STAGES_OF_FEW, ClusterExchange, InShared, copies_us
from .geometry import Body, CopiedOutput, Geometry, Slots, Store
from .rates import Rates

# Each value that a lane computes, for two cells and for each cell more. LSTM and sLSTM of 32 and of 64 units, four
# warps with two and with four cells a lane, H100: 0.59 and 0.84, 0.74 and 1.15 us. Of two cells a part is in `rates`.
VALUE_US, MORE_US = 0.0024, 0.0072
# Values that go to memory for training, each for 1000 of the block's cells beyond so many. GRU of 128 units, 16
# members, 8 rows to a block, H200: forward 0.84 us a step, 1.32 with five such values; backward, with four, 1.61, where
# clusters of two blocks take 1.01. Blocks of fewer cells, as heads of 64 units have, are predicted as they were.
STORED_US, STORED_CELLS = 0.186, 512


@dataclass(frozen=True)
class BlockExchange(ClusterExchange):
    """As planning sees it: a cluster of one block, without what blocks tell each other."""

    name: ClassVar[str] = "block"
    lines: ClassVar[bool] = False
    marks: ClassVar[bool] = False
    stages: ClassVar[bool] = False
    stores_late: ClassVar[bool] = True
    rates: ClassVar[Rates] = Rates(0.05, 0.0, 34.0, 0.8, 0.1, 0.0)

    def place(self, k: Writer, geometry: Geometry) -> tuple[Expr, Expr]:
        return I.cta_id([k["teams"]]), tirx.const(0, "int32")

    def copies_apart(self, geometry: Geometry) -> bool:
        return True

    def prefetch_steps(self, geometry: Geometry) -> int:
        """Of 0.2 to 0.5 us; a value from memory takes 0.8."""
        return STAGES_OF_FEW

    def blocks_meet(self, k: Writer) -> None:
        """There is one."""

    def copied_output(self, geometry: Geometry, rank: Expr) -> CopiedOutput:
        """What products of the next step read."""
        node = geometry.step.graph.output
        per_word, each = 4 // geometry.itemsize, geometry.block_k

        def element(row: Expr, unit: Expr) -> Expr:
            line = tirx.floordiv(unit, each) * geometry.rows + row
            return geometry.value_at[node] * per_word + line * each + tirx.floormod(unit, each)

        return CopiedOutput(1, 0, node.shape[0], geometry.value_words(node) * per_word, element)

    def exchanger(self, body: Body, stage_at: int, barriers_at: int) -> Block:
        return Block(body)

    def stage_words(self, geometry: Geometry) -> int:
        return 0

    def phase_us(self, geometry: Geometry, phase: Phase, cells: int) -> float:
        each = VALUE_US * min(cells, 2) + MORE_US * max(0, cells - 2)
        us = len(phase.nodes) * each * max(1.0, geometry.warps / 8)
        stored = len({*geometry.step.graph.emitted} & {*phase.nodes, *phase.roots, phase.root})
        us += copies_us(geometry, phase)
        return us + STORED_US * stored * max(0, geometry.units(phase.width) * geometry.rows - STORED_CELLS) / 1000


BLOCK = BlockExchange()


class Block(InShared):
    """Through the block's own shared memory."""

    def __init__(self, body: Body) -> None:
        super().__init__(body, 0, body.geometry.exchange_words)
        self.met = False  # whether a barrier lies between this step's beginning, or all that was published, and here

    def prepare(self) -> None:
        """The element, in copy 0, of each of this lane's units, in the first of its two rows."""
        geometry, k, ids = self.geometry, self.k, self.ids
        self.places: dict[tuple[Node, int, int], Expr] = {}
        for node in geometry.published:
            for j in range(geometry.own_tiles):
                row = self.body.cells.tile(j) * 8 + ids.q * 2
                for block in range(geometry.blocks(node.shape[0])):
                    unit = self.body.cells.unit(node.shape[0], block)
                    line = tirx.floordiv(unit, geometry.block_k) * geometry.rows + row
                    first = geometry.value_at[node] * (4 // geometry.itemsize) + line * geometry.block_k
                    self.places[node, block, j] = k.keep(first + tirx.floormod(unit, geometry.block_k))

    def fill(self) -> None:
        self.fill_operands()
        self._meet()

    def begin_step(self) -> None:
        """What the step before has published is not known to be there. A phase that publishes before anybody waits
        would overwrite what others still read."""
        self.met, self.joined = False, not self.geometry.copy_warps
        if self._publishes_first:
            self._meet()

    @property
    def _publishes_first(self) -> bool:
        for phase in self.geometry.step.phases:
            if phase.kind == "reduce" or any(not operand.given for operand in phase.operands):
                return False
            if phase.published:
                return True
        return False

    def ready(self, source: Node) -> None:
        if not self.met:
            self._meet()

    def _meet(self) -> None:
        if self.joined:
            self.sync()
        else:
            self.join()
        self.met = True

    def sync(self) -> None:
        if self.geometry.warps == 1:
            self.k.do(I.cuda.warp_sync())
        else:
            super().sync()

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        geometry, body = self.geometry, self.body
        slot = 1 - body.par if node in body.carried else body.par
        copy = slot * geometry.value_words(node) * (4 // geometry.itemsize)
        self.k.store(self.view, value, self.places[node, block, j] + (copy + e * geometry.block_k))

    def publish_tile(self, node: Node, slot: Expr, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        """Nothing: it lies where it is read."""

    def phase(self, slots: Slots) -> None:
        self.met = self.met and not slots

    def send_partial(self, word: Expr, words: Sequence[Expr], slot: int) -> None:
        with self.k.when(self.ids.g == 0):
            self.k.do(I.ptx[f"st.shared.v{len(words)}.b32"](self._at(word), *words))

    def meet(self, number: int) -> None:
        self._meet()

    def end(self) -> None:
        """Nothing: nobody writes into another block's memory."""

    def follow(self, events: Expr) -> None:
        """Nothing: it has no layer below that runs at the same time."""
