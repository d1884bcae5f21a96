"""Products by wgmma of clusters that share K: for weights that do not all stay on the chip.

In: a `Step` and knobs; the kernel's body. Out: `WgmmaSplitK`, the geometry: in which order a step's blocks of K go
through a pipeline of stages, where everything lies in shared memory, how weights are packed; statements that leave all
gates of a lane's cells in registers.

    block n of a cluster     all gates of the cluster's units  x  all rows  x  part n of K
    its warpgroups           64 gates each (`tiles` times), all rows, the block's part of K
    its weights              of the first blocks of K fragments in registers, then tiles in shared memory for all steps,
                             the rest through the pipeline in every step, beside the operand of the same blocks of K
    sums                     to the block that has the units, in the order of K, through distributed shared memory

So a block reads only its part of what the others publish, and weights that no other block reads. Bytes of
shared memory and of L2 are saved by leaving out what pads gates to 64: products read what lies behind, for rows that
nobody wants.

LSTM, H = 2560, B = 64, bf16, 108 blocks of 24 units in clusters of 2: a block multiplies 192 gates by 41 blocks of K
(of 32) by 64 rows. Per step it reads 41 x 4 KB of h and 12 KB for every block of K that is streamed, 20 or so: 400 KB,
all blocks 44 MB, at 7.7 TB/s 5.7 us; its tensor cores take 3 x 82 x 55 cycles (32 from registers) = 6.3 us meanwhile.

The block's first thread copies; weights that are streamed do not wait for what others publish, so they come while it
does. Sums lie in registers as cells do: lane (g, q) has unit g and rows 2q, 2q + 1 of every 8; so it stores its own for
that lane of a warp of the block that has the units, 16 bytes at a time, and that lane adds up what came from every part
of K, in their order. Plain stores and a barrier of the cluster: asynchronous stores that an mbarrier counts took 60 ns
per 1000 bytes.

Source: Hopper's warpgroup products and distributed shared memory: PTX ISA 8.5, "wgmma.mma_async", "mapa".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.tile_layout import Layout
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
from .wgmma_tiles import ROW_BYTES, TILE_BYTES, TILE_ROWS, WARPGROUP

EVICT_LAST = 0x14F0000000000000  # a policy of copies, as createpolicy makes it: weights come again in the next step
CHUNK_US = 0.04  # from a chunk to the next
# Cycles of a product of 64 gates: of 8 rows, where its weights are in registers; where they are in shared memory.
REGISTER_CYCLES, SHARED_CYCLES, SHARED_LEAST = 4.0, 4.8, 16.0
MULTIPROCESSORS = 132
L2_BYTES, MEMORY_BYTES = 7.7e6, 4.2e6  # that all multiprocessors together read in a microsecond
L2_HELD = 32e6  # weights that stay in L2
SHOWN = 0.3  # of the shorter of copies and products
MEET_US = 0.5  # of a cluster's blocks, before sums take the pipeline's place
SUM_BYTES = 50.0  # per cycle, given and taken
LATE_US = 0.8  # what cells read, waited for
NEAR_BYTES = 16384  # of a stage, at least, where all weights stay on the chip
FRAGMENT_BYTES = 8  # of a lane: two rows of its unit


@dataclass(frozen=True)
class WgmmaSplitK(BulkCopyTiles):
    """A grid's geometry of which `together` blocks, a cluster, share K. register_words, shared_words: words of weights
    that a thread, and the block for each thread, may keep. pace: blocks of K that come through a stage with their
    weights. apart: 1 where sums have a place of their own in shared memory, 0: in the pipeline."""

    pace: int = 1
    apart: int = 1

    streams: ClassVar[bool] = True
    address_registers: ClassVar[int] = 48  # kernels that know lengths and resets, too, then hardly spill
    wants: ClassVar[str] = "clusters share K by a pipeline, whole warpgroups and equal rows, without inputs and codes"

    def emitters(self, body: Body) -> Emitters:
        exchange = BulkCopyExchange(body, self.memory_map["stage"])
        return Emitters(exchange, Inputs(body), InputPieces(body), SplitKProduct(body, self, exchange))

    @property
    def possible(self) -> bool:
        plain = self.precision != "float32" and not self.stored and not self.step.given and self.together > 1
        whole = self.warps % WARPGROUP == 0 and self.warps_n == self.passes == 1 and self.ctas % self.together == 0
        return bool(plain and whole and self.ring > 1 and self.pace > 0 and self.tiles % self.warps_k == 0)

    @property
    def k_parts(self) -> int:
        return self.together

    @property
    def block_parts(self) -> int:
        return 1

    @property
    def part_lanes(self) -> int:
        """With k_parts, the lanes of a block."""
        return self.threads // self.together

    @property
    def warpgroups(self) -> int:
        return self.warps // WARPGROUP

    def own_groups(self, phase: Phase) -> int:
        """Of 8 gates, each of 8 units, that a block finishes."""
        return self.warps_u * len(self.halves(phase))

    def gate_rows(self, phase: Phase) -> int:
        """Rows of the product: those of all blocks of the cluster."""
        return self.together * self.own_groups(phase) * 8

    def gate_tiles(self, phase: Phase) -> int:
        return ceil(ceil(self.gate_rows(phase) / TILE_ROWS) / self.warpgroups)

    def shared_weight_bytes(self, phase: Phase) -> int:
        return self.gate_rows(phase) * ROW_BYTES

    def register_weight_bytes(self, phase: Phase) -> int:
        return self.warpgroups * self.gate_tiles(phase) * TILE_BYTES

    def packed_bytes(self, phase: Phase, share: Share) -> int:
        """Of a block's weights."""
        others = share.kblocks - share.registers
        return share.registers * self.register_weight_bytes(phase) + others * self.shared_weight_bytes(phase)

    def weight_elements(self, phase: Phase, share: Share) -> int:
        return self.ctas * self.packed_bytes(phase, share) // self.itemsize

    @property
    def weight_words(self) -> int:
        return sum(share.shared * self.shared_weight_bytes(phase) // 4 for phase, share in self.weights)

    @cached_property
    def stage_bytes(self) -> int:
        """As many blocks of K as the pace says, with the weights of the widest phase."""
        far = max((self.shared_weight_bytes(phase) for phase, share in self.weights if share.streamed), default=0)
        pace = self.pace if far else max(self.pace, NEAR_BYTES // self.operand_bytes)
        return pace * (self.operand_bytes + far)

    def runs(self, share: Share) -> Iterator[tuple[float, Run]]:
        """Streamed weights come first, because they need not wait for what others publish."""
        near, most = share.registers + share.shared, self.stage_bytes // self.operand_bytes
        both = ((0.75, even(0, near, most, False)), (0.25, even(near, share.kblocks, self.pace, True)))
        for offset, runs in both:
            yield from (((i + offset) / len(runs), run) for i, run in enumerate(runs))

    def sum_bytes(self, phase: Phase) -> int:
        """What a block receives of a product: of every block of its cluster, itself too, all gates of its own units."""
        return self.together * self.own_groups(phase) * self.tiles * LANES * FRAGMENT_BYTES

    @property
    def partial_words(self) -> int:
        return max(map(self.sum_bytes, self.shares), default=0) // 4

    @property
    def sums_apart(self) -> bool:
        return bool(self.apart)

    @cached_property
    def memory_map(self) -> dict[str, int]:
        """The last tile of weights may be read past its end."""
        sizes = rounded(self.partial_words * 4, 1024), self.ring * self.stage_bytes
        found = self.regions("sums", "pipeline", sizes, align=512)
        over = max((self.register_weight_bytes(p) - self.shared_weight_bytes(p) for p in self.shares), default=0)
        return {**found, "end": max(found["end"], found["stage"] + over // 4)}

    def product_registers(self) -> int:
        return self.kept_registers + max(map(self.gate_tiles, self.shares)) * self.rows // 2

    def gate_row(self, phase: Phase, tile: Expr, line: Expr) -> tuple[Expr, Expr, Expr]:
        """Of the block's own gates."""
        group, halves = line // 8 % self.own_groups(phase), len(self.halves(phase))
        return group // halves, group % halves, line

    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        """Order: [block][K block]; a block of K in registers is [tile][MMA step][warp][lane][a0 a1 a2 a3], any other
        one [gate row][swizzled piece]. Gate rows: [block of the cluster][warp_u][half][unit of 8]."""
        near, far = self.register_weight_bytes(phase) // 4, self.shared_weight_bytes(phase) // 4
        packed = Layout(cta=self.ctas, word=self.packed_bytes(phase, share) // 4, element=4 // self.itemsize)
        place = packed.coordinates(tirx.Cast("int32", at))
        cta, word = place["cta"], place["word"]
        kept, other = word < share.registers * near, word - share.registers * near
        line, k = self.fragment_place(word % (TILE_BYTES // 4), place["element"])
        line = word % near // (TILE_BYTES // 4) * TILE_ROWS + line
        row, flat = self.swizzled_place(other % far, place["element"])
        line, k = tirx.Select(kept, line, row), tirx.Select(kept, k, flat)
        kblock = tirx.Select(kept, word // near, share.registers + other // far)
        k = (cta % self.together * share.kblocks + kblock) * self.block_k + k
        owner = cta // self.together * self.together + line // 8 // self.own_groups(phase)
        warp_u, half, _ = self.gate_row(phase, 0, line)
        unit = self.first_unit(phase, owner, warp_u, half // phase.gates) + line % 8
        return self.weight_at(phase, share, half % phase.gates, unit, k, valid=line < self.gate_rows(phase))

    def product_us(self, phase: Phase) -> float:
        """Copies and products go on side by side, and each hides the other in part; what does not stay in L2 from
        step to step comes from memory.

        Measured on an H200 (driver 580, CUDA 13.0), without the hoisted product, us per step, and as this predicts; MB
        that all blocks read per step:

            LSTM 2560 bf16   B = 64 11.4 (54 MB; 10.0 with half of the products, 9.5 with next to no bytes),
                             B = 16 8.25 (40 MB)
            GRU 2816 bf16    B = 32 7.1 (30 MB)
            LSTM 2048        bf16 B = 128 10.4 (43 MB), B = 64 5.8 (17 MB); tf32 B = 64 12.5 (70 MB)
            GRU 2048 bf16    B = 128 9.0 (34 MB)
            LSTM 3072 bf16   B = 64 17.6 (79 MB, 53 of them weights); 15.8 (72, 47) where sums take the pipeline's place
            GRU 2560 bf16    B = 64 10.4

        In CUDA graphs at T = 128, after loads of what cells read had moved behind the product: LSTM 2048 bf16 B = 64
        6.5, LSTM 1024 tf32 B = 64 4.4, B = 128 6.4, LSTM 2560 bf16 B = 64 12.0, GRU 2816 bf16 B = 32 7.4.
        """
        cycles = copied = weights = 0.0
        blocks = self.ctas * max(1, MULTIPROCESSORS // self.ctas)  # other groups read at the same time
        for share in self.shares[phase]:
            instructions = 2 * self.warpgroups * self.gate_tiles(phase)
            near = REGISTER_CYCLES * self.rows / 8
            far = SHARED_LEAST + SHARED_CYCLES * self.rows / 8
            cycles += instructions * (near * share.registers + far * (share.kblocks - share.registers))
            copied += blocks * share.kblocks * self.operand_bytes
            weights += blocks * share.streamed * self.shared_weight_bytes(phase)
        copies = (copied + weights) / L2_BYTES + max(0.0, weights - L2_HELD) * (1 / MEMORY_BYTES - 1 / L2_BYTES)
        products = cycles / CLOCK_MHZ
        us = max(copies, products) + SHOWN * min(copies, products)
        us += 0.0 if self.apart else MEET_US
        us += LATE_US
        return us + CHUNK_US * len(self.chunks[phase]) + self.sum_bytes(phase) / SUM_BYTES / CLOCK_MHZ


def even(first: int, last: int, most: int, streamed: bool) -> list[tuple[int, int, bool]]:
    """(first, count, streamed) of runs of blocks of K, as few as there can be, none much longer than another."""
    runs = ceil((last - first) / most)
    edges = [first + (last - first) * n // runs for n in range(runs + 1)] if runs else [first]
    return [(a, b - a, streamed) for a, b in pairwise(edges)]


class ClusterPipeline(BulkCopyPipeline):
    """Of one kernel: all warpgroups of the block multiply each stage."""

    geometry: WgmmaSplitK
    weights_copy = BULK + ".L2::cache_hint"

    def __init__(self, body: Body, geometry: WgmmaSplitK, exchange: BulkCopyExchange) -> None:
        super().__init__(body, geometry, exchange, geometry.warps)
        self.part = self.k.keep(tirx.floormod(body.ids.rank, geometry.together))  # this block in its cluster

    def refresh(self) -> None:
        self.base = self.k.fresh(self.start_base)

    def barrier(self, number: int) -> Expr:
        return self.base + uint32(self.at["barriers"] + number * 8)

    def release(self, chunk: Chunk) -> None:
        with self.k.when(self.ids.lane == 0):
            self.k.do(I.ptx["mbarrier.arrive.shared.b64"](self.barrier(chunk.slot + self.ring)))

    def copies(self) -> Expr:
        return self.ids.thread == 0

    def stage(self, chunk: Chunk, at: int = 0) -> Expr:
        return self.base + uint32(self.at["pipeline"] + chunk.slot * self.geometry.stage_bytes + at)

    def weights_at(self, phase: Phase, chunk: Chunk) -> Expr:
        geometry, share = self.geometry, chunk.share
        before = (chunk.first - share.registers) * geometry.shared_weight_bytes(phase)
        before += share.registers * geometry.register_weight_bytes(phase)
        place = tirx.Cast("int64", self.ids.rank) * geometry.packed_bytes(phase, share) + before
        return tirx.floordiv(place, geometry.itemsize)

    def policy(self) -> list[Expr]:
        return [tirx.const(EVICT_LAST, "uint64")]


class SplitKProduct(BulkCopyProduct):
    """Of all gates of the cluster's units in the block's part of K; a warpgroup multiplies its tiles of 64 gates by all
    rows."""

    geometry: WgmmaSplitK
    bulk: ClusterPipeline

    def __init__(self, body: Body, geometry: WgmmaSplitK, exchange: BulkCopyExchange) -> None:
        bulk = ClusterPipeline(body, geometry, exchange)
        super().__init__(body, geometry, bulk)
        self.warpgroup = self.k.keep(tirx.floordiv(self.ids.warp, WARPGROUP))
        self.matrices = self.k.keep(bulk.base // uint32(16) + uint32(1 << 16))
        self.place_weights(self.at["weights"])
        bulk.start()

    def _first(self, phase: Phase, share: Share) -> Expr:
        """The first word of the block's packed weights."""
        return tirx.Cast("int64", self.ids.rank) * (self.geometry.packed_bytes(phase, share) // 4)

    def first_fragment(self, phase: Phase, share: Share) -> Expr:
        lane = tirx.floormod(self.ids.thread, LANES * WARPGROUP) * 4
        return self._first(phase, share) + (lane + self.warpgroup * (self.geometry.gate_tiles(phase) * TILE_BYTES // 4))

    def first_tile(self, phase: Phase, share: Share, part: int) -> Expr:
        return self._first(phase, share) + share.registers * self.geometry.register_weight_bytes(phase) // 4

    def stage(self, chunk: Chunk) -> int:
        return self.at["pipeline"] + chunk.slot * self.geometry.stage_bytes

    def meet(self) -> None:
        self.bulk.meet()

    def begin(self, phase: Phase) -> Sequence[Callable[[], None]]:
        """The prefetch of later values into L2 comes while all blocks wait."""
        super().begin(phase)
        for prefetch in self.prefetches:
            prefetch()
        return ()

    def before_chunk(self, phase: Phase) -> None:
        """The low words of matrix descriptors, of shared memory's start and of this warpgroup's first tile of weights
        there. Anew for each chunk: else all that a step needs are computed before it, and kept in registers."""
        self.operands = self.k.fresh(self.matrices)
        mine = tirx.Cast("uint32", self.warpgroup * (self.geometry.gate_tiles(phase) * TILE_BYTES // 16))
        self.tiles = self.k.keep(self.operands + mine)
        self.low = {share: (self.tiles, at) for share, at in self.shared.items()}

    # --- sums --------------------------------------------------------------------------------------------------------

    def sum(self, phase: Phase, acc: Buffer) -> list[Expr]:
        """What cells read comes while the cluster's blocks wait for each other: until then products need the
        registers."""
        self._store_sums(phase, acc)
        for load in self.loads:
            load()
        self.meet()
        return self._take(phase)

    @property
    def _wide(self) -> int:
        """Tiles of 8 rows that are sent together."""
        return 2 - self.geometry.own_tiles % 2

    def _group_bytes(self) -> int:
        return self.geometry.tiles * LANES * FRAGMENT_BYTES

    def _piece(self, warp_k: Expr, number: Expr) -> Expr:
        """Where a lane's number-th piece for a warp lies in its group, in bytes."""
        each = self.geometry.own_tiles // self._wide
        return ((warp_k * each + number) * LANES + self.ids.lane) * (FRAGMENT_BYTES * self._wide)

    def _store_sums(self, phase: Phase, acc: Buffer) -> None:
        """To every block of the cluster, the sums of its units."""
        k, geometry, bulk = self.k, self.geometry, self.bulk
        own, groups = geometry.own_groups(phase), geometry.gate_rows(phase) // 8
        line = k.fresh(self.warpgroup) * (geometry.gate_tiles(phase) * 8) + tirx.floormod(self.ids.warp, WARPGROUP) * 2
        for tile in range(geometry.gate_tiles(phase)):
            for high in range(2):
                group = k.keep(line + (tile * 8 + high))
                with k.when(group < groups):
                    owner = k.keep(tirx.floordiv(group, own))
                    place = (bulk.part * own + tirx.floormod(group, own)) * self._group_bytes()
                    place = place + self._piece(tirx.const(0, "int32"), tirx.const(0, "int32"))
                    target = k.keep(bulk.base + tirx.Cast("uint32", place) + uint32(self.at["sums"]))
                    first = tile * geometry.rows // 2 + high * 2
                    with k.when(tirx.EQ(owner, bulk.part)):
                        self._send("st.shared", acc, first, target)
                    with k.when(tirx.NE(owner, bulk.part)):
                        remote = k.local(1, "uint32")
                        k.do(I.ptx["mapa.shared::cluster.u32"](remote[0], target, tirx.Cast("uint32", owner)))
                        self._send("st.shared::cluster", acc, first, remote[0])

    def _send(self, store: str, acc: Buffer, first: int, target: Expr) -> None:
        """A group's: this lane's two numbers of every tile of 8 rows, for the warps that have them."""
        geometry, wide = self.geometry, self._wide
        size = LANES * FRAGMENT_BYTES * wide
        for warp_k in range(geometry.warps_k):
            for number in range(geometry.own_tiles // wide):
                tiles = [
                    own for i in range(wide) if isinstance(own := geometry.own_tile(number * wide + i, warp_k), int)
                ]
                words = [acc[first + tile * 4 + e] for tile in tiles for e in range(2)]
                at = uint32((warp_k * (geometry.own_tiles // wide) + number) * size)
                self.k.do(I.ptx[f"{store}.v{len(words)}.f32"](target + at, *words))

    def _take(self, phase: Phase) -> list[Expr]:
        """The sums of all parts of K, of this lane's cells."""
        k, geometry, bulk, wide = self.k, self.geometry, self.bulk, self._wide
        found = k.local(geometry.m_tiles(phase) * geometry.own_tiles * 4)
        halves, own = len(geometry.halves(phase)), geometry.own_groups(phase)
        place = self.ids.warp_u * (halves * self._group_bytes()) + self._piece(self.ids.warp_k, tirx.const(0, "int32"))
        first = k.keep(bulk.base + tirx.Cast("uint32", place) + uint32(self.at["sums"]))
        part = k.local(2 * wide)
        for half in range(halves):
            for number in range(geometry.own_tiles // wide):
                for source in range(geometry.together):
                    at = (source * own + half) * self._group_bytes() + number * LANES * FRAGMENT_BYTES * wide
                    k.do(I.ptx[f"ld.shared.v{2 * wide}.f32"](*(part[z] for z in range(2 * wide)), first + uint32(at)))
                    for z in range(2 * wide):
                        place = (half // 2 * geometry.own_tiles + number * wide + z // 2) * 4 + half % 2 * 2 + z % 2
                        k.store(found, found[place] + part[z] if source else part[z], place)
        return [found[z] for z in range(geometry.m_tiles(phase) * geometry.own_tiles * 4)]
