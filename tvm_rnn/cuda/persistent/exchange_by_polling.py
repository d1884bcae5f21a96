"""An exchange by polling: blocks of a grid load a value until it is there, without a counter.

In: the kernel's body. Out: the statements of `Grid`, without waits: the load of an operand is repeated. One round trip
through L2 in place of three.

A step's values have a slot of their own, filled with POISON before the launch, so a word is either that or its value:
a conversion to a 16-bit type or to tf32 makes no such bits. There are `3 * TURN` slots, used in turn: every `TURN`
steps each lane poisons again what it wrote in TURN slots that everybody has read. Three turns: in step s, who waits
has a value of step s - 1 from everybody, so all have done step s - 2; a fence then parts the poison from the values of
the next TURN steps, and readers of those pass a fence of their own before they look at a poisoned slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, Pointer
from tvm_rnn.cuda.codegen.poison import POISON, written
from tvm_rnn.cuda.rowwise.set_words import set_bytes
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr

from .exchange import Grid, GridExchange, StagedTile, joined
from .geometry import BLOCK_WORDS, Body, Slots
from .rates import Rates

TURN = 32  # even: only odd steps look for the end of a turn


def slots(steps: str | int) -> str:
    """How many slots a launch of so many steps has: the last step's values are nobody's operand, the initial ones
    are. A C++ expression."""
    return f"std::min<int64_t>({steps} + 1, {3 * TURN})"


@dataclass(frozen=True)
class PollingExchange(GridExchange):
    """As planning sees it: every step has a slot, poisoned before the launch."""

    polls: ClassVar[bool] = True
    marks: ClassVar[bool] = True
    rates: ClassVar[Rates] = Rates(0.95, 0.0, 55.0, 0.77, 0.18, 0.087)

    def exchanger(self, body: Body, stage_at: int, barriers_at: int) -> Polled:
        return PolledByLanes(body, stage_at)

    def value_bytes(self, groups: str, words: int, steps: str | int) -> str:
        return f"{groups} * {slots(steps)} * {words * 2}"

    def work_bytes(self, groups: str, at_once: str, words: int) -> str:
        return f"{self.value_bytes(at_once, words, 'T')} + 256"

    def _memory(
        self, host: Host, words: int, groups: str, part: tuple[str, str], work: Pointer, steps: str | int
    ) -> list[Pointer]:
        """The slices of the batch use the slots one after the other."""
        _, count = part
        own = work.skip("256")
        set_bytes(host, own, self.value_bytes(count, words, steps), 0xFF)
        return [own.cast("uint32"), work.cast("uint32"), work.cast("uint32")]

    def clear_for_wave(
        self, host: Host, counters: Pointer, counter_bytes: str, values: Pointer, value_bytes: str | int
    ) -> None:
        set_bytes(host, values, value_bytes, 0xFF)


POLLING = PollingExchange()


class Polled(Grid):
    """Through global memory without a counter."""

    def __init__(self, body: Body, stage_at: int) -> None:
        super().__init__(body, stage_at)
        self.step_words = self.geometry.exchange_words // 2
        each = tirx.Min(self.k["steps"] + 1, tirx.const(3 * TURN, "int32"))
        self.base = tirx.Cast("int64", self.ids.group) * tirx.Cast("int64", each) * self.step_words

    def word(self, node: Node, slot: Expr, kblock: Expr, row: Expr, piece: Expr) -> Expr:
        """Within the slot of one step."""
        within = (kblock * self.geometry.rows + row) * BLOCK_WORDS + piece * 4
        return self.geometry.value_at[node] // 2 + within

    def place(self, step: Expr) -> Expr:
        """Where the slot of a step begins."""
        return self.base + tirx.Cast("int64", tirx.truncmod(step, 3 * TURN)) * self.step_words

    def _step(self, slot: Expr) -> Expr:
        """Copy "this parity" is step t's, the other one that of t + 1."""
        return self.body.t + (0 if slot == self.body.par else 1)

    def store_piece(self, node: Node, slot: Expr, address: Expr, words: Sequence[Expr]) -> None:
        self._store(self._step(slot), address, words)

    def _store(self, step: Expr, address: Expr, words: Sequence[Expr]) -> None:
        place = self.k["exchange"].ptr_to([self.place(step) + address])
        self.k.do(I.ptx["st.relaxed.gpu.global.v4.b32"](place, *words))

    def pointer(self, node: Node, slot: int, kblock: Expr, row: Expr) -> Expr:
        at = self.place(self._step(slot)) + self.word(node, 0, kblock, row, self.ids.q)
        return self.k["exchange"].ptr_to([at])

    def plain(self, value: Expr) -> Expr:
        """A NaN of a user's, or one with a sign, may be poison as float32."""
        if self.geometry.storage != "float32":
            return super().plain(value)
        return I.reinterpret("float32", written(value))

    def _zero_padding(self, node: Node) -> None:
        """What no unit fills of a row, in every slot: each block sees to some, and who reads them before waits, as for
        values. Nobody poisons them again."""
        k, ids, geometry = self.k, self.ids, self.geometry
        first = geometry.ctas * geometry.units(node.shape[0]) * geometry.itemsize // 16
        pieces = geometry.depth_blocks(node) * BLOCK_WORDS // 4 - first
        if not pieces:
            return
        zeros, count = [tirx.const(0, "uint32")] * 4, pieces * geometry.rows
        with k.loop(-(-3 * TURN // geometry.ctas)) as i, k.loop(-(-count // geometry.threads)) as n:
            slot, flat = k.keep(i * geometry.ctas + ids.rank), k.keep(n * geometry.threads + ids.thread)
            with k.when(tirx.And(slot <= k["steps"], tirx.And(slot < 3 * TURN, flat < count))):
                row, piece = tirx.floordiv(flat, pieces), tirx.floormod(flat, pieces) + first
                self._store(slot, self.word(node, 0, tirx.floordiv(piece, 4), row, tirx.floormod(piece, 4)), zeros)

    def arrive(self) -> None:
        """Nothing: the values themselves say that they are there."""

    def wait(self, events: Expr, below: Expr | None = None, when: Expr | None = None) -> None:
        """Nothing: loads are repeated until the values are there."""

    def phase(self, slots: Slots) -> None:
        """After a step's last values, at the end of a turn: poison what nobody reads any more."""
        if self.par and any(node in self.geometry.events[-1].published for node in slots):
            k, t = self.k, self.body.t
            ends = tirx.And(tirx.EQ(tirx.truncmod(t, TURN), 1 % TURN), t > TURN)
            with k.when(tirx.And(ends, t + (TURN - 1) < k["steps"])):  # later turns poison what is not used again
                with k.loop(TURN) as i:
                    self._poison(k.keep(t - (TURN + 1) + i))
                k.do(I.ptx.fence.acq_rel.gpu())

    def _poison(self, step: Expr) -> None:
        """All pieces that this lane publishes in a step."""
        words = [tirx.const(POISON, "uint32")] * 4
        for (_, _, j), address in self.addresses.items():
            with self.body.cells.own_tile(j), self.k.when(self._publishes(j)):
                self._store(step, address, words)

    def _publishes(self, j: int) -> Expr:
        """Whether this lane publishes a piece of this warp's j-th tile."""
        return self.ids.lane < 8 * self.chunks_of_row


class PolledByLanes(Polled):
    """One whose operands come to registers. Nobody publishes rows past the batch: their lanes load the last row that
    there is, and a warp's loads of the same words are one."""

    def prepare(self) -> None:
        super().prepare()
        self.rows = self.k.local(1, "int32")  # of the group, that there are
        self.k.store(self.rows, self.k["batch"] - self.k["row0"] - self.ids.group * self.geometry.rows, 0)

    def load(self, node: Node, slot: int, kblock: Expr, row: Expr, registers: Sequence[Expr]) -> None:
        super().load(node, slot, kblock, tirx.Min(row, self.rows[0] - 1), registers)

    def _publishes(self, j: int) -> Expr:
        row = self.body.cells.tile(j) * 8 + tirx.floordiv(self.chunk, self.chunks_of_row)
        return tirx.And(super()._publishes(j), row < self.rows[0])

    def _publish(self, tile: StagedTile, words: Sequence[Expr]) -> None:
        with self.k.when(joined(tile.when, self._publishes(tile.j))):
            self.store_piece(tile.node, tile.slot, self.addresses[(tile.node, tile.block, tile.j)], words)
