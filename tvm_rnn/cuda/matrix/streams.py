"""The warp that loads what steps read, some steps ahead, and stores what they leave, where that is made of sums.

In: a `Block`. Out: its part of the kernel: registers are asked for `AHEAD` steps before they are put into a stage of
shared memory; a step later, while others work on the next one, it adds up their parts of the sums over rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import tirx

from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, TirExpr
from tvm_rnn.tir.index import wide

from .block import Block
from .lane_values import Index, LaneValues, placed
from .matrix_step import Streamed, streamed
from .matrix_tile import LANES

AHEAD = 4


@dataclass(frozen=True)
class _Asked:
    """Registers of one step: of each vector, and the flag of a reset."""

    vectors: dict[Streamed, Buffer]
    flag: Buffer | None


class Streams:
    """Emits what the warp does."""

    def __init__(self, block: Block) -> None:
        self.block, self.w, self.step, self.tile = block, block.w, block.step, block.tile
        self.asked = [self._registers() for _ in range(AHEAD)]
        self.lanes = self.tile.spread_lanes(block.lane)

    def _registers(self) -> _Asked:
        w, layout = self.w, self.block.layout
        vectors = {s: w.local(self._count(s), layout.rows(s.node).dtype) for s in self.step.streamed}
        return _Asked(vectors, w.local(1, "int32") if self.block.masked else None)

    def _count(self, own: Streamed) -> int:
        return 1 if own.role is None else self.tile.spread_count(own.role)

    def run(self) -> None:
        w, steps = self.w, self.w["steps"]
        found = self.step.stores.constant
        self.constants = {(n, i): self.block.constant(n, placed(i, self.lanes)) for n, i in found}
        for number in range(AHEAD):
            with w.when(number < steps):
                self._ask(number, tirx.const(number, "int32"))
        self._put(0, tirx.const(0, "int32"))
        with w.when(steps > AHEAD):
            self._ask(0, tirx.const(AHEAD, "int32"))
        self.block.meet_all()
        with w.loop(tirx.truncdiv(steps + (AHEAD - 1), AHEAD)) as turn:
            for number in range(AHEAD):
                step = w.keep(turn * AHEAD + number)
                with w.when(step < steps):
                    self._step((number + 1) % AHEAD, step)

    def _step(self, following: int, step: TirExpr) -> None:
        w, steps = self.w, self.w["steps"]
        with w.when(step + 1 < steps):
            self._put(following, w.keep(step + 1))
            with w.when(step + (1 + AHEAD) < steps):
                self._ask(following, w.keep(step + (1 + AHEAD)))
        self.block.meet_all()
        if self.step.by_warp:
            self._leave(step)

    def _elements(self, number: int) -> Iterator[tuple[Streamed, Buffer, int, TirExpr]]:
        """(vector, its registers, number of the register, element) of all that this lane has of a step; what is done
        with one is done where it is there."""
        w = self.w
        for own, registers in self.asked[number].vectors.items():
            extent = 1 if own.role is None else self.tile.extent(own.role)
            for m in range(self._count(own)):
                at = w.keep(self.block.lane + m * LANES)
                with w.when(at < extent):
                    yield own, registers, m, at

    def _ask(self, number: int, step: TirExpr) -> None:
        w, block = self.w, self.block
        local = block.local(step)
        for own, registers, m, at in self._elements(number):
            w.store(registers, block.streamed(own.node, at * own.factor + own.first, local), m)
        flag = self.asked[number].flag
        if flag is None:
            return
        # Backwards, a flag at t + 1 separates t from what was just processed; flags past a row's end mean nothing.
        w.store(flag, tirx.const(0, "int32"), 0)
        place = w.keep(w["start"] + local + w["reverse"])
        known = tirx.And(place < w["total"], place < block.ends[0])
        with w.when(tirx.And(tirx.NE(w["has_reset"], tirx.const(0, "int32")), known)):
            w.store(flag, tirx.Cast("int32", w["reset"][wide(place) * wide(w["batch"]) + wide(block.row)]), 0)

    def _put(self, number: int, step: TirExpr) -> None:
        w, block = self.w, self.block
        stage = block.stage(step)
        for own, registers, m, at in self._elements(number):
            w.store(block.floats, tirx.Cast("float32", registers[m]), stage + (at + block.plan.slots[own]))
        flag = self.asked[number].flag
        if flag is not None:
            with w.when(tirx.EQ(block.lane, 0)):
                w.store(block.floats, tirx.Cast("float32", flag[0]), stage)

    def _leave(self, step: TirExpr) -> None:
        w, block = self.w, self.block
        local, stage = block.local(step), block.stage(step)

        def leaf(node: Node, index: Index) -> TirExpr | None:
            if node in self.step.row_sums:
                return block.sum_of(node, index, step)
            if node in self.step.dense:
                return block.dense_of(node, index, step)
            if self.step.is_constant(node):
                return self.constants[node, index]
            own = streamed(node, index) if self.step.is_streamed(node) else None
            return None if own is None else block.of_stage(own, index, stage)

        values = LaneValues(self.step.axes, self.lanes, leaf, w.keep)
        for left in self.step.by_warp:
            for index in values.along(left.roles, left.node):
                alone = all(isinstance(i, int) for i in index)
                found = values.at(left.node, index)
                block.leave(left, index, [found], local, tirx.EQ(block.lane, 0) if alone else None)
