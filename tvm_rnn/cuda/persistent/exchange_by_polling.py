"""A grid that hands values over without a counter: who needs a value loads it until it is there.

In: a `Team` and the kernel's writer. Out: the statements of `Grid`, of which waiting is none:
`cuda/persistent/product/mma_sync.py` repeats its loads. One way through L2 in place of three.

A step's values have a place of their own, filled with POISON before the launch, so a word is either that or its value:
a conversion to a 16-bit type or to tf32 makes no such bits. There are `PLACES` of them, used in turn: every `TURN`
steps each lane poisons again what it wrote in TURN places that everybody has read. Three turns: in step s, who waits
has a value of step s - 1 from everybody, so all have done step s - 2; a fence then parts the poison from the values of
the next TURN steps, and who reads those passes a fence of its own before it looks at a poisoned place.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.graph.graph import Node

from .exchange import POISON, Grid, Store
from .geometry import BLOCK_WORDS, Team

Expr = Any
TURN = 32  # even: only odd steps look for the end of a turn


def places(steps: str) -> str:
    """How many places a launch of so many steps has: the last step's values are nobody's operand, the initial ones
    are. A C++ expression."""
    return f"std::min<int64_t>({steps} + 1, {3 * TURN})"


class Polled(Grid):
    """Through global memory without a counter."""

    def __init__(self, k: Writer, team: Team, ids: Any, arena: Any, stage_at: int, body: Any) -> None:
        super().__init__(k, team, ids, arena, stage_at)
        self.body, self.step_words = body, team.exchange_words // 2
        each = tirx.Min(k["steps"] + 1, tirx.const(3 * TURN, "int32"))
        self.base = tirx.Cast("int64", ids.team) * tirx.Cast("int64", each) * self.step_words

    def word(self, node: Node, slot: Expr, kblock: Expr, row: Expr, piece: Expr) -> Expr:
        """Within the place of one step."""
        within = (kblock * self.team.rows + row) * BLOCK_WORDS + piece * 4
        return self.team.value_at[node] // 2 + within

    def _place(self, step: Expr) -> Expr:
        """Where the place of a step begins."""
        return self.base + tirx.Cast("int64", tirx.truncmod(step, 3 * TURN)) * self.step_words

    def _step(self, slot: int) -> Expr:
        """Copy "this parity" is step t's, the other one that of t + 1."""
        return self.body.t + (0 if slot == self.body.par else 1)

    def hand(self, node: Node, slot: int, address: Expr, words: list[Expr]) -> None:
        self._store(self._step(slot), address, words)

    def _store(self, step: Expr, address: Expr, words: list[Expr]) -> None:
        place = self.k["exchange"].ptr_to([self._place(step) + address])
        self.k.do(I.ptx["st.relaxed.gpu.global.v4.b32"](place, *words))

    def load(self, node: Node, slot: int, kblock: Expr, row: Expr, registers: list[Expr]) -> None:
        at = self._place(self._step(slot)) + self.word(node, 0, kblock, row, self.ids.q)
        self.k.do(I.ptx["ld.relaxed.gpu.global.v4.b32"](*registers, self.k["exchange"].ptr_to([at])))

    def arrive(self) -> None:
        """Nothing: the values themselves say that they are there."""

    def wait(self, events: Expr, below: Expr | None = None, when: Expr | None = None) -> None:
        """Nothing: loads are repeated until the values are there."""

    def phase(self, slots: dict[Node, tuple[int, Expr | None, Store | None]]) -> None:
        """After a step's last values, at the end of a turn: poison what nobody reads any more."""
        if self.par and any(node in self.team.events[-1].published for node in slots):
            k, t = self.k, self.body.t
            ends = tirx.And(tirx.EQ(tirx.truncmod(t, TURN), 1 % TURN), t > TURN)
            with k.when(tirx.And(ends, t + (TURN - 1) < k["steps"])):  # later turns poison what is not used again
                with k.loop(TURN) as i:
                    self._poison(k.keep(t - (TURN + 1) + i))
                k.do(I.ptx.fence.acq_rel.gpu())

    def _poison(self, step: Expr) -> None:
        """All pieces that this lane hands over in a step."""
        words = [tirx.const(POISON, "uint32")] * 4
        for (_, _, j), address in self.addresses.items():
            with self.body._own_tile(j), self.k.when(self.ids.lane < 8 * self.pieces):
                self._store(step, address, words)
