"""Products of one batch row without tensor cores: a lane has a row of gates.

In: a `Step`, knobs; the kernel's body. Out: `RowByLanes`, the geometry; statements that leave all gates of a lane's
cells in registers. How values are exchanged and polled for is as for few rows (`few_rows.py`).

Tensor cores multiply a row as eight: m16n8k8 of tf32 takes 6.5 cycles for 128 numbers of which anybody wants the sums,
and a lane's multiply-adds take 4. Lanes are gates: lane n has gate n of its warp's units, all gates of the first eight
units, then of the next. A row's values go to all lanes at once, from shared memory; so no sum goes from lane to lane
but at last, when a cell collects its gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.tile_layout import Layout
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, LANES, Body, LaneExchange, LaneInputs, ProductEmitter, Share
from tvm_rnn.tir.expr import Buffer, Expr

from .few_rows import FewRows, FewRowsProduct

PIECES = BLOCK_WORDS // 4  # of 16 bytes, of a block of K
HELD = 2  # blocks of K of the row that lie in registers
CHAINS = 4  # sums of a gate, so that none waits for the one before
FMA_CYCLES = 1.0  # one instruction of a warp, on one quarter of a multiprocessor


@dataclass(frozen=True)
class RowByLanes(FewRows):
    """Of tf32: rows is 1."""

    def multiplier_of(self, body: Body, exchange: LaneExchange, inputs: LaneInputs) -> ProductEmitter:
        return RowByLanesProduct(body, self, exchange, inputs)

    @property
    def possible(self) -> bool:
        return self.rows == 1 and self.precision == "tf32" and super().possible

    def gates_of_lane(self, phase: Phase) -> int:
        return ceil(len(self.halves(phase)) * 8 / LANES)

    def block_words(self, phase: Phase) -> int:
        return self.gates_of_lane(phase) * BLOCK_WORDS

    @property
    def partial_words(self) -> int:
        """Of each lane its gates, for even and odd steps."""
        most = max(map(self.gates_of_lane, self.products), default=0)
        return 0 if self.warps_k == 1 else 2 * self.warps * LANES * most

    def product_registers(self) -> int:
        most = max(map(self.gates_of_lane, self.products), default=0)
        total = self.kept_registers + self.exchange.input_registers(self)
        total += max(self.polled_pieces * 4, min(HELD, self.deepest) * BLOCK_WORDS) + CHAINS * most
        if any(s.registers < s.kblocks for _, s in self.weights):
            total += max(self.block_words(p) for p in self.products)  # in flight
        return total

    def math_cycles(self, phase: Phase, share: Share) -> float:
        return ceil(self.warps / 4) * share.kblocks * BLOCK_WORDS * self.gates_of_lane(phase) * FMA_CYCLES

    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        """Order: [cta][warp_u][warp_k][K block][gate of the lane][piece of K][lane][4 numbers]."""
        at = tirx.Cast("int32", at) if prod(share.operand.weight.shape) < 1 << 28 else at
        warps = {"warp_u": self.warps_u, "warp_k": self.warps_k, "kblock": share.kblocks}
        own = {"gate": self.gates_of_lane(phase), "piece": PIECES, "lane": LANES, "word": 4}
        place = Layout(cta=self.ctas, **warps, **own).coordinates(at)
        row = place["gate"] * LANES + place["lane"]
        half, first = row // 8, self.first_block(share.operand, place["cta"], place["warp_u"])
        k = (first + place["warp_k"] * share.kblocks + place["kblock"]) * self.block_k
        k = k + place["piece"] * 4 + place["word"]
        block, gate = half // phase.gates, half % phase.gates
        unit = self.first_unit(phase, place["cta"], place["warp_u"], block) + row % 8
        return self.weight_at(phase, share, gate, unit, k, valid=block < self.blocks(phase.width))


class RowByLanesProduct(FewRowsProduct):
    """Those of a kernel."""

    geometry: RowByLanes
    held: ClassVar[int] = HELD
    words: ClassVar[int] = BLOCK_WORDS

    def operand(self, phase: Phase, share: Share, number: int, acc: Buffer) -> None:
        super().operand(phase, share, number, acc)
        self.k.do(I.cuda.warp_sync())  # nobody brings the next part while others of the warp look at this one

    def _look(self, kblock: int, rows: Buffer, at: int) -> None:
        for piece in range(PIECES):
            words = [rows[at + piece * 4 + z] for z in range(4)]
            place = self._word(tirx.const(kblock, "int32"), tirx.const(piece, "int32"))
            self.k.do(I.ptx["ld.shared.v4.b32"](*words, place))

    def _add(self, phase: Phase, share: Share, kblock: int, rows: Buffer, at: int, acc: Buffer) -> None:
        """Of all of this lane's gates. acc: of each gate its chains."""
        resident = kblock < share.registers
        weights = self.registers[share] if resident else self.fragment[kblock % 2]
        first = kblock * self.geometry.block_words(phase) if resident else 0
        for n in range(BLOCK_WORDS):
            x = I.reinterpret("float32", rows[at + n])
            for gate in range(self.geometry.gates_of_lane(phase)):
                weight, place = weights[first + gate * BLOCK_WORDS + n], gate * CHAINS + n % CHAINS
                self.k.store(acc, acc[place] + I.reinterpret("float32", weight) * x, place)

    def _sum(self, phase: Phase, m_tiles: int, chains: int, acc: Buffer, number: int) -> list[Expr]:
        """Chains, then parts of K: the first warp of those that share units has all, and cells."""
        k, ids, geometry = self.k, self.ids, self.geometry
        gates, count = geometry.gates_of_lane(phase), len(geometry.halves(phase))
        sums, own = k.local(gates), k.local(count)
        for gate in range(gates):
            four = [acc[gate * CHAINS + chain] for chain in range(CHAINS)]
            k.store(sums, (four[0] + four[1]) + (four[2] + four[3]), gate)
        if geometry.warps_k == 1:
            self._collect(count, sums, own)
        else:
            turn = self._turn(phase)
            number_of = tirx.Cast("uint32", ids.warp_u + 1 + turn * geometry.warps_u)
            threads = tirx.const(LANES * geometry.warps_k, "uint32")
            with I.If(tirx.EQ(ids.warp_k, 0)):
                with I.Then():
                    k.do(I.ptx.bar.sync(number_of, threads))
                    self._take(turn, gates, sums)
                    self._collect(count, sums, own)
                with I.Else():
                    for gate, pointer in enumerate(self._gates(turn, gates, ids.warp_k)):
                        k.do(I.ptx["st.shared.f32"](pointer, sums[gate]))
                    k.do(I.ptx.bar.arrive(number_of, threads))
        nothing = tirx.const(0.0, "float32")
        return [own[half] if half < count and e == 0 else nothing for half in range(m_tiles * 2) for e in range(2)]

    def _gates(self, turn: int, gates: int, warp_k: Expr) -> Sequence[Expr]:
        """Where a warp's sums of this lane's gates go."""
        geometry, ids = self.geometry, self.ids
        first = (ids.warp_u * geometry.warps_k + warp_k) * (gates * LANES) + ids.lane
        first = self.partial_at + turn * (geometry.partial_words // 2) + first
        return [self.arena.ptr_to([first + gate * LANES]) for gate in range(gates)]

    def _take(self, turn: int, gates: int, sums: Buffer) -> None:
        """Add the other warps' sums, in their order. All are asked for before the first is added."""
        k, others = self.k, range(1, self.geometry.warps_k)
        parts = k.local(len(others) * gates)
        for n, other in enumerate(others):
            for gate, pointer in enumerate(self._gates(turn, gates, tirx.const(other, "int32"))):
                k.do(I.ptx["ld.shared.f32"](parts[n * gates + gate], pointer))
        for gate in range(gates):
            total: Expr = sums[gate]
            for n in range(len(others)):
                total = total + parts[n * gates + gate]
            k.store(sums, total, gate)

    def _collect(self, count: int, sums: Buffer, own: Buffer) -> None:
        """Of each eight gates, that of this lane's unit."""
        every, g = tirx.const(0xFFFFFFFF, "uint32"), self.ids.g
        for half in range(count):
            value, lane = sums[half * 8 // LANES], g + half * 8 % LANES
            self.k.store(own, tirx.call_extern("float32", "__shfl_sync", every, value, lane, LANES), half)
