"""The product of a phase by wgmma: stationary weights times operands that come through a pipeline in shared memory.

In: a `Step` and knobs; the kernel's body. Out: `WgmmaPipelined`, the geometry: in which order a step's blocks of K go
through the pipeline, where everything lies in shared memory, how long a product takes; statements that leave all gates
of a lane's cells in registers.

Each warpgroup multiplies all units and rows of the block in its part of K, the chunks of its own pipeline one after the
other; its first thread copies. Sums then meet in shared memory, where lanes find the gates of their cells. Blocks of a
cluster fetch a slice of every run of operands each, for all of them; then a stage is free when no block of the cluster
reads it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import LANES, Body, Emitters, Share
from tvm_rnn.cuda.persistent.layer_input_rows import InputPieces, Inputs
from tvm_rnn.cuda.persistent.rates import CLOCK_MHZ
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from .bulk_copy_pipeline import (
    BULK,
    BulkCopyExchange,
    BulkCopyPipeline,
    BulkCopyProduct,
    BulkCopyTiles,
    Chunk,
    Run,
    rounded,
)
from .wgmma_tiles import TILE_ROWS, WARPGROUP

STAGE_BYTES = 16384  # of operands, at least: a copy and a barrier cost as much for less
LIMIT = 232448  # bytes of shared memory
MANY_ROWS = 64
FEW_STAGES = 3
# What a pipeline costs beside the exchange, bytes per cycle that bulk copies bring into a multiprocessor, cycles of a
# product of 64 rows and 8 columns (at least as for RING_COLUMNS), more where its weights are in shared memory; how much
# of them copies do not hide, and what filling stages again costs.
RING_US, RING_COPY, RING_CYCLES, RING_COLUMNS, RING_NEAR, RING_SHOWN = 1.1, 50.0, 4.0, 36, 1.35, 0.3
RING_REFILL = 1.1, 1.4  # of large stages, of small ones


@dataclass(frozen=True)
class WgmmaPipelined(BulkCopyTiles):
    """Blocks of a cluster (`together`) fetch operands for each other; warpgroups share K."""

    wants: ClassVar[str] = (
        "a pipeline has two stages at least, whole warpgroups, no inputs, and weights of 16 or 32 bits"
    )

    def emitters(self, body: Body) -> Emitters:
        exchange = BulkCopyExchange(body, self.memory_map["stage"])
        return Emitters(exchange, Inputs(body), InputPieces(body), PipelinedProduct(body, self, exchange))

    @property
    def possible(self) -> bool:
        plain = self.precision != "float32" and not self.stored  # wgmma would read codes
        return bool(
            plain and self.ring > 1 and self.warps % WARPGROUP == 0 and not self.step.given and self.passes == 1
        )

    @property
    def k_parts(self) -> int:
        return self.warps // WARPGROUP

    @property
    def part_lanes(self) -> int:
        return LANES * WARPGROUP

    @cached_property
    def stage_bytes(self) -> int:
        pace = max(1, STAGE_BYTES // (self.k_parts * self.operand_bytes))
        many = sum(-(-s.kblocks // pace) for parts in self.shares.values() for s in parts) > self.ring
        if many and self.ring <= FEW_STAGES:
            pace *= 2  # stages are filled again: half as often
        streamed = [self.far_bytes(phase) for phase, share in self.weights if share.streamed]
        return max(pace * self.operand_bytes, self.operand_bytes + max(streamed, default=0))

    def runs(self, share: Share) -> Iterator[tuple[float, Run]]:
        near, pace = share.registers + share.shared, self.stage_bytes // self.operand_bytes
        resident = [(at, min(pace, near - at), False) for at in range(0, near, pace)]
        for runs in (resident, [(at, 1, True) for at in range(near, share.kblocks)]):
            yield from (((i + 0.5) / len(runs), run) for i, run in enumerate(runs))

    @property
    def turns(self) -> int:
        """In which sums change hands: half of many rows after the other half, because room is short."""
        halves = self.rows > MANY_ROWS and self.warps_n == 1 and self.tiles % (2 * self.warps_k) == 0
        return 2 if halves else 1

    @property
    def partial_stride(self) -> int:
        """Floats between rows of sums: lanes (g, q) of half a warp, two floats each, meet no bank twice."""
        columns = self.rows // self.turns
        return columns + (0 if columns % 16 else 8)

    @property
    def partial_words(self) -> int:
        return self.k_parts * self.most_gate_tiles * TILE_ROWS * self.partial_stride

    @cached_property
    def sums_apart(self) -> bool:
        """Sums lie in the pipeline where there is no other room for them."""
        more = self.weight_words * 4 + self.stage_words * 4 + self.k_parts * self.ring * 16
        return self.k_parts * self.ring * self.stage_bytes + self.partial_words * 4 + rounded(more, 128) <= LIMIT

    @cached_property
    def memory_map(self) -> dict[str, int]:
        sizes = self.k_parts * self.ring * self.stage_bytes, self.partial_words * 4
        return self.regions("pipeline", "partial", sizes, align=1024)

    def product_registers(self) -> int:
        return self.kept_registers + max(map(self.gate_tiles, self.shares)) * self.rows // 2 + 16

    def product_us(self, phase: Phase) -> float:
        products = copied = 0.0
        for share in self.shares[phase]:
            blocks = share.kblocks * self.k_parts
            each = max(RING_COLUMNS, self.rows) / 8 * RING_CYCLES * 2 * self.gate_tiles(phase)
            products += each * self.k_parts * (share.registers + RING_NEAR * (share.kblocks - share.registers))
            copied += blocks * self.operand_bytes + share.streamed * self.k_parts * self.far_bytes(phase)
        again = RING_REFILL[self.ring > FEW_STAGES] if sum(map(len, self.chunks.values())) > self.ring else 1.0
        return RING_US + (copied / RING_COPY + RING_SHOWN * products) * again / CLOCK_MHZ

    def gate_row(self, phase: Phase, tile: Expr, line: Expr) -> tuple[Expr, Expr, Expr]:
        row, halves = tile * TILE_ROWS + line, len(self.halves(phase))
        return row // 8 // halves, row // 8 % halves, row


class WarpgroupPipeline(BulkCopyPipeline):
    """Of one kernel whose warpgroups have a part of K each."""

    def __init__(self, body: Body, geometry: WgmmaPipelined, exchange: BulkCopyExchange) -> None:
        super().__init__(body, geometry, exchange, WARPGROUP * geometry.together)
        k, ids = self.k, self.ids
        self.number = tirx.floormod(ids.rank, geometry.together)  # of this block in its cluster
        self.peer = self.start_peer = self.base
        self.part = self.start_part = k.keep(tirx.floordiv(ids.warp, WARPGROUP))
        if geometry.together > 1:
            found = k.local(1, "uint32")
            to = tirx.Cast("uint32", tirx.floormod(ids.lane, geometry.together))
            k.do(I.ptx["mapa.shared::cluster.u32"](found[0], self.base, to))
            self.peer = self.start_peer = found[0]

    def refresh(self) -> None:
        k, base = self.k, self.k.fresh(self.start_base)
        self.base, self.part = base, self.k.fresh(self.start_part)
        barriers = tirx.Cast("uint32", self.part * (16 * self.ring)) + uint32(self.at["barriers"])
        self.barriers = k.keep(base + barriers)
        self.peer = k.keep(self.k.fresh(self.start_peer) + barriers) if self.geometry.together > 1 else self.barriers
        stages = self.part * (self.ring * self.geometry.stage_bytes)
        self.stages = k.keep(base + tirx.Cast("uint32", stages))

    def barrier(self, number: int) -> Expr:
        return self.barriers + uint32(number * 8)

    def release(self, chunk: Chunk) -> None:
        k, at = self.k, uint32((chunk.slot + self.ring) * 8)
        with k.when(self.ids.lane < self.geometry.together):
            if self.geometry.together > 1:
                k.do(I.ptx.mbarrier.arrive.shared__cluster.b64(self.peer + at))
            else:
                k.do(I.ptx["mbarrier.arrive.shared.b64"](self.barriers + at))

    def copies(self) -> Expr:
        return tirx.floormod(self.ids.thread, LANES * WARPGROUP) == 0

    def stage(self, chunk: Chunk, at: int = 0) -> Expr:
        first = self.stages + uint32(chunk.slot * self.geometry.stage_bytes)
        return first + uint32(at) if at else first

    def weights_at(self, phase: Phase, chunk: Chunk) -> Expr:
        place = (self.ids.rank * self.geometry.k_parts + self.part) * chunk.share.kblocks + chunk.first
        return tirx.Cast("int64", place) * (self.geometry.far_bytes(phase) // self.geometry.itemsize)

    def fetch(self, target: Expr, word: Expr, size: int, full: Expr) -> None:
        k, together = self.k, self.geometry.together
        if together == 1:
            return super().fetch(target, word, size, full)
        size //= together
        target = target + tirx.Cast("uint32", self.number * size)
        address = k["exchange"].ptr_to([word + self.number * (size // 4)])
        mask = tirx.const((1 << together) - 1, "uint16")
        k.do(I.ptx[BULK + ".multicast::cluster"](target, address, uint32(size), full, mask))


class PipelinedProduct(BulkCopyProduct):
    """Each warpgroup's."""

    geometry: WgmmaPipelined
    bulk: WarpgroupPipeline

    def __init__(self, body: Body, geometry: WgmmaPipelined, exchange: BulkCopyExchange) -> None:
        bulk = WarpgroupPipeline(body, geometry, exchange)
        super().__init__(body, geometry, bulk)
        self.part = bulk.part
        self.place_weights(self.at["weights"])
        bulk.start()

    def begin(self, phase: Phase) -> Sequence[Callable[[], None]]:
        self.near(phase, self.bulk.base, self.bulk.part)
        self.operands = self.tiles = self.k.keep(self.bulk.stages // uint32(16) + uint32(1 << 16))
        super().begin(phase)
        return [*self.loads, *self.prefetches]

    def stage(self, chunk: Chunk) -> int:
        return chunk.slot * self.geometry.stage_bytes

    # --- sums --------------------------------------------------------------------------------------------------------

    def sum(self, phase: Phase, acc: Buffer) -> list[Expr]:
        k, geometry = self.k, self.geometry
        count = geometry.m_tiles(phase) * geometry.own_tiles * 4
        found, each = k.local(count), geometry.own_tiles // geometry.turns
        for turn in range(geometry.turns):
            if turn:
                k.do(I.cuda.cta_sync())
            self._store_sums(geometry.gate_tiles(phase), acc, turn)
            k.do(I.cuda.cta_sync())
            for j in range(turn * each, (turn + 1) * each):
                self._take(phase, found, j, turn)
        return [found[z] for z in range(count)]

    def _store_sums(self, tiles: int, acc: Buffer, turn: int) -> None:
        """This warp's sums of a turn's columns."""
        k, geometry, ids, row = self.k, self.geometry, self.ids, self.geometry.partial_stride * 4
        columns = geometry.rows // 8 // geometry.turns
        line = (self.bulk.part * tiles * TILE_ROWS + tirx.floormod(ids.warp, 4) * 16 + ids.g) * row + ids.q * 8
        own = k.keep(self.bulk.base + tirx.Cast("uint32", line + self.at["partial"]))
        for tile in range(tiles):
            for i in range(columns):
                for high in range(2):
                    first = tile * geometry.rows // 2 + (turn * columns + i) * 4 + high * 2
                    at = tile * TILE_ROWS * row + high * 8 * row + i * 32
                    k.do(I.ptx["st.shared.v2.f32"](own + uint32(at), acc[first], acc[first + 1]))

    def _take(self, phase: Phase, found: Buffer, j: int, turn: int) -> None:
        """All parts of this lane's gates in its j-th tile."""
        k, geometry, ids, row = self.k, self.geometry, self.ids, self.geometry.partial_stride * 4
        halves, part, two = len(geometry.halves(phase)), geometry.gate_tiles(phase) * TILE_ROWS * row, k.local(2)
        line = (ids.warp_u * (halves * 8) + ids.g) * row + (ids.warp_n * geometry.tiles) * 32 + ids.q * 8
        tile = geometry.own_tile(j, ids.warp_k) - turn * (geometry.tiles // geometry.turns)
        owned = geometry.owned(j, ids.warp_k)
        with k.when(tirx.const(True, "bool") if owned is None else owned):
            cells = k.keep(self.bulk.base + tirx.Cast("uint32", line + tile * 32 + self.at["partial"]))
            for half in range(halves):
                at = (half // 2 * geometry.own_tiles + j) * 4 + half % 2 * 2
                for number in range(geometry.k_parts):
                    place = cells + uint32(half * 8 * row + number * part)
                    k.do(I.ptx["ld.shared.v2.f32"](two[0], two[1], place))
                    for e in range(2):
                        k.store(found, found[at + e] + two[e] if number else two[e], at + e)
