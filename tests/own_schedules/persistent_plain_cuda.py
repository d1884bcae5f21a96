"""A kind of product of a user's own, whole in one file: plain float32 loops over operands and weights in global memory.

In: a layer's phases, a batch size and a GPU. Out: a `Plain` geometry: its layout, its map of shared memory, its time,
and who emits its statements. It is as simple as can be, and says that it takes next to no time, so that it is chosen.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.model.choose_geometry import RecurrentUnit
from tvm_rnn.cuda.model.template_base import PersistentTemplate, allowed, width_of
from tvm_rnn.cuda.persistent.exchange import COUNTER, Grid
from tvm_rnn.cuda.persistent.geometry import Body, Emitters, Exchange, Geometry, Share
from tvm_rnn.cuda.persistent.layer_input_rows import InputPieces, Inputs
from tvm_rnn.cuda.persistent.rates import Rates
from tvm_rnn.schedule.schedule_template import template
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Expr

ROWS = (8, 16)
PIECES, EACH = 4, 4  # pieces of 16 bytes of a block of K; values in each


@dataclass(frozen=True)
class Plain(Geometry):
    """Every lane multiplies its own units by its own rows, value after value of K; weights: [block][K][unit][gate]."""

    exchange: Exchange = field(default=COUNTER, init=False)

    streams: ClassVar[bool] = True
    wants: ClassVar[str] = "plain products are for float32, without inputs, by warps that share units alone"

    @property
    def possible(self) -> bool:
        return self.precision == "float32" and not self.step.given and self.warps == self.warps_u

    def columns(self, phase: Phase) -> int:
        return self.units(phase.width) * phase.gates

    def block_words(self, phase: Phase) -> int:
        return self.columns(phase) * self.block_k // self.part_lanes

    def packing(self, phase: Phase, share: Share) -> tuple[Hashable, ...]:
        return (*super().packing(phase, share), "plain")

    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        at = tirx.Cast("int32", at)
        column, row = tirx.floormod(at, self.columns(phase)), tirx.floordiv(at, self.columns(phase))
        k, block = tirx.floormod(row, share.kblocks * self.block_k), tirx.floordiv(row, share.kblocks * self.block_k)
        unit = block * self.units(phase.width) + tirx.floordiv(column, phase.gates)
        gate, inside = tirx.floormod(column, phase.gates), tirx.And(unit < phase.width, k < share.operand.depth)
        if len(share.operand.weight.shape) == 3:
            return (gate, unit, k), inside
        return (gate * phase.width + unit, k), inside

    @property
    def partial_words(self) -> int:
        return 0

    @property
    def prefetch_at(self) -> int:
        return self.stage_words

    @property
    def own_bytes(self) -> int:
        return 4 * (self.stage_words + self.prefetch_words) + 256

    def product_registers(self) -> int:
        return max(self.m_tiles(p) for p in self.shares) * self.own_tiles * 4

    @property
    def rates(self) -> Rates:
        return Rates(0.001, 0.0, 0.0, 0.0, 0.0, 0.0)

    def product_us(self, phase: Phase) -> float:
        return 0.001

    def emitters(self, body: Body) -> Emitters:
        exchange = Grid(body, 0)
        return Emitters(exchange, Inputs(body), InputPieces(body), PlainProduct(body, self, exchange))


class PlainProduct:
    """The statements of its products."""

    par = 0

    def __init__(self, body: Body, geometry: Plain, exchange: Grid) -> None:
        self.body, self.geometry, self.exchange = body, geometry, exchange

    def end(self) -> None:
        """Nothing is under way."""

    def emit(self, phase: Phase) -> list[Expr]:
        k, geometry, ids, cells = self.body.k, self.geometry, self.body.ids, self.body.cells
        own, halves = geometry.own_tiles, geometry.halves(phase)
        sums, four = k.local(geometry.m_tiles(phase) * own * 4), k.local(4, "uint32")
        for z in range(geometry.m_tiles(phase) * own * 4):
            k.store(sums, tirx.const(0.0, "float32"), z)
        for share in geometry.shares[phase]:
            self.body.ready(share)
            source, weights = share.operand.source, k[geometry.weight_names[share]]
            node, copy = self.body.value(source), self.body.copy_of(source)
            with k.loop(share.kblocks) as kblock, k.loop(PIECES) as piece:
                for j, e in ((j, e) for j in range(own) for e in range(2)):
                    row = cells.tile(j) * 8 + ids.q * 2 + e
                    place = self.exchange.base + self.exchange.word(node, copy, kblock, row, piece)
                    words = [four[z] for z in range(4)]
                    k.do(I.ptx["ld.relaxed.gpu.global.v4.b32"](*words, k["exchange"].ptr_to([place])))
                    for z in range(EACH):
                        depth = (kblock * PIECES + piece) * EACH + z
                        line = ids.rank * (share.kblocks * geometry.block_k) + depth
                        for half, (gate, block) in enumerate(halves):
                            unit = (ids.warp_u * geometry.blocks(phase.width) + block) * 8 + ids.g
                            weight = weights[line * geometry.columns(phase) + unit * phase.gates + gate]
                            at = (half // 2 * own + j) * 4 + half % 2 * 2 + e
                            k.store(sums, sums[at] + weight * I.reinterpret("float32", four[z]), at)
        return [sums[z] for z in range(geometry.m_tiles(phase) * own * 4)]


@template("persistent_plain_cuda", kinds=("recurrent",), targets=("cuda",))
class PersistentPlain(PersistentTemplate):
    """Knobs: ctas (blocks of a group), rows (batch rows of a group)."""

    choices: Mapping[str, tuple[int, ...]] = {"rows": ROWS}

    @staticmethod
    def geometry(unit: RecurrentUnit, **knobs: int) -> Plain:
        return Plain(unit.step, unit.precision, warps_u=2, register_words=0, **knobs)

    @classmethod
    def geometries(cls, unit: RecurrentUnit, target: Target, record: Mapping[str, int]) -> Iterator[Plain]:
        ctas = record.get("ctas", -(-width_of(unit) // 16))
        for rows in allowed(record, "rows", ROWS):
            made = cls.geometry(unit, ctas=ctas, rows=rows)
            if made.possible:
                yield made
