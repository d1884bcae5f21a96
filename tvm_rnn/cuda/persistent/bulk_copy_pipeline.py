"""A ring of stages in shared memory, which bulk copies fill with operands (and weights) while warpgroups multiply.

In: a `Team` with `ring` stages and the exchange that values lie in. Out: statements: barriers, copies, waits. A step
begins with stage 0, so which stage a chunk has, and the parity of its barriers, are known when the kernel is written.

Every warpgroup has a ring of its own, for its part of K; its first thread copies. Values were written by other
multiprocessors with ordinary stores: a proxy fence after the acquire orders the copies behind them. Blocks of a cluster
fetch a slice of every run of operands each, for all of them; then a stage is free when no block of the cluster reads it
any more.

Source: Hopper's asynchronous copies and barriers: PTX ISA 8.5, "cp.async.bulk", "mbarrier".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.product.wgmma_pipelined_layout import TILE_BYTES, Chunk, m_tiles, part_bytes, swizzled

from .exchange_stores import SideBySide
from .geometry import BLOCK_WORDS, LANES, Share, Team
from .product import wgmma_pipelined_layout

Expr = Any
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def uint32(value: int) -> Expr:
    return tirx.const(value, "uint32")


class Ringed(SideBySide):
    """A grid's exchange whose operands lie as wgmma reads them."""

    due: Expr | None = None  # events that the next product's operands wait for

    def poll(self, events: Expr) -> None:
        """Until every block of the team has published `events` times."""
        self._spin("counter", events)

    def word(self, node: Any, slot: Expr, kblock: Expr, row: Expr, piece: Expr) -> Expr:
        return super().word(node, slot, kblock, row, swizzled(row, piece))

    def arrive(self) -> None:
        words = self.hand_over()
        super().arrive()
        self.write_y(words)


class BulkRing(ABC):
    """What rings share: barriers, in which order stages are filled, and who waits. `names`: the pointers of packed
    weights. `layout`: the module that says where everything lies, and in which order."""

    layout: Any

    def __init__(self, k: Writer, team: Any, ids: Any, arena: Any, exchange: Ringed, names: dict[Share, str]) -> None:
        self.k, self.team, self.ids, self.exchange, self.names = k, team, ids, exchange, names
        own = self.layout
        self.places, self.chunks, self.uses = own.places(team), own.chunks(team), own.uses(team)
        self.par = 0
        self.base = self.start_base = k.keep(I.cuda.cvta_generic_to_shared(arena.ptr_to([tirx.const(0, "int32")])))

    # --- barriers ----------------------------------------------------------------------------------------------------

    def _start(self, rings: int, readers: int) -> None:
        """Make the barriers of so many rings, of whose stages so many warps read each."""
        k, ring = self.k, self.team.ring
        with k.when(self.ids.thread == 0):
            for number in range(2 * ring * rings):  # of each: "full" of every stage, then "empty"
                barrier = self.base + uint32(self.places.barriers + number * 8)
                k.do(I.ptx.mbarrier.init.shared.b64(barrier, uint32(readers if number // ring % 2 else 1)))
            k.do(I.ptx.fence.mbarrier_init.release.cluster())
        k.do(I.ptx.fence.proxy.async_.shared__cta())  # also of the weights that every thread has laid down
        k.do(I.cuda.cta_sync())
        self.meet()

    def meet(self) -> None:
        """All blocks of the cluster: none copies into another one too early, none leaves too early; what each has
        stored in shared memory, the others see."""
        if self.team.together > 1:
            self.k.do(I.ptx["barrier.cluster.arrive.release.aligned"]())
            self.k.do(I.ptx["barrier.cluster.wait.acquire.aligned"]())

    @abstractmethod
    def barrier(self, number: int) -> Expr:
        """The address of one of this thread's ring."""

    def _parity(self, chunk: Chunk) -> int:
        """Of the uses of its stage before this one, since the kernel's start; a step's number is even or odd as par."""
        return int((self.par * self.uses[chunk.slot] + chunk.turn) % 2)

    def _wait(self, number: int, parity: int) -> None:
        k = self.k
        done = k.local(1, "uint32")
        k.store(done, uint32(0), 0)
        with I.While(done[0] == uint32(0)):
            k.do(I.ptx["mbarrier.try_wait.parity.shared::cta.b64"](done[0], self.barrier(number), uint32(parity)))

    def wait(self, chunk: Chunk) -> None:
        """Until it is there."""
        self._wait(chunk.slot, self._parity(chunk))

    # --- copies ------------------------------------------------------------------------------------------------------

    def begin(self, phase: Phase, source: Any) -> None:
        """Fill the ring: weights at once, operands when they are published. source(share): their first word."""
        k, first = self.k, self.chunks[phase][: self.team.ring]
        with k.when(self._copies()):
            for chunk in first:
                self._expect(phase, chunk)
            if self.exchange.due is not None:
                self.exchange.poll(self.exchange.due)
            k.do(I.ptx["fence.proxy.async.global"]())
            for chunk in first:
                self._operand(chunk, source)
        k.do(I.cuda.warp_sync())
        self.exchange.due = None

    def refill(self, phase: Phase, number: int, source: Any) -> None:
        """The stage of a phase's number-th chunk, with the next one that belongs there."""
        k, after = self.k, number + self.team.ring
        if after >= len(self.chunks[phase]):
            return
        with k.when(self._copies()):
            self._expect(phase, self.chunks[phase][after])
            self._operand(self.chunks[phase][after], source)
        k.do(I.cuda.warp_sync())

    @abstractmethod
    def _copies(self) -> Expr:
        """Whether this thread does."""

    @abstractmethod
    def _expect(self, phase: Phase, chunk: Chunk) -> None:
        """When the stage is free: announce its bytes, and copy weights."""

    @abstractmethod
    def _operand(self, chunk: Chunk, source: Any) -> None:
        """Copy what is multiplied by them."""


class Ring(BulkRing):
    """Of one kernel whose warpgroups have a part of K each."""

    layout = wgmma_pipelined_layout

    def __init__(self, k: Writer, team: Team, ids: Any, arena: Any, exchange: Ringed, names: dict[Share, str]) -> None:
        super().__init__(k, team, ids, arena, exchange, names)
        self.number = tirx.floormod(ids.rank, team.together)  # of this block in its cluster
        self.peer = self.start_peer = self.base
        self.part = self.start_part = k.keep(tirx.floordiv(ids.warp, 4))
        if team.together > 1:
            found = k.local(1, "uint32")
            to = tirx.Cast("uint32", tirx.floormod(ids.lane, team.together))
            k.do(I.ptx["mapa.shared::cluster.u32"](found[0], self.base, to))
            self.peer = self.start_peer = found[0]

    def refresh(self) -> None:
        """At the start of a product."""
        k, base = self.k, self.k.fresh(self.start_base)
        self.base, self.part = base, self.k.fresh(self.start_part)
        barriers = tirx.Cast("uint32", self.part * (16 * self.team.ring)) + uint32(self.places.barriers)
        self.barriers = k.keep(base + barriers)
        self.peer = k.keep(self.k.fresh(self.start_peer) + barriers) if self.team.together > 1 else self.barriers
        stages = self.part * (self.team.ring * part_bytes(self.team)) + self.places.ring
        self.stages = k.keep(base + tirx.Cast("uint32", stages))

    def start(self) -> None:
        """Before the first product."""
        self._start(self.team.k_parts, 4 * self.team.together)

    def barrier(self, number: int) -> Expr:
        return self.barriers + uint32(number * 8)

    def release(self, chunk: Chunk) -> None:
        """This warp reads it no more."""
        k, at = self.k, uint32((chunk.slot + self.team.ring) * 8)
        with k.when(self.ids.lane < self.team.together):
            if self.team.together > 1:
                k.do(I.ptx.mbarrier.arrive.shared__cluster.b64(self.peer + at))
            else:
                k.do(I.ptx["mbarrier.arrive.shared.b64"](self.barriers + at))

    def _copies(self) -> Expr:
        return tirx.floormod(self.ids.thread, LANES * 4) == 0

    def _stage(self, chunk: Chunk) -> Expr:
        return self.stages + uint32(chunk.slot * part_bytes(self.team))

    def _expect(self, phase: Phase, chunk: Chunk) -> None:
        k, team = self.k, self.team
        self._wait(chunk.slot + team.ring, 1 - self._parity(chunk))
        full = self.barriers + uint32(chunk.slot * 8)
        operand, weights = team.rows * BLOCK_WORDS * 4, m_tiles(team, phase) * TILE_BYTES if chunk.streamed else 0
        k.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(chunk.count * operand + weights)))
        if chunk.streamed:
            place = (self.ids.rank * team.k_parts + self.part) * chunk.share.kblocks + chunk.first
            element = tirx.Cast("int64", place) * (weights // team.itemsize)
            address = self.k[self.names[chunk.share]].ptr_to([element])
            k.do(I.ptx[BULK](self._stage(chunk) + uint32(operand), address, uint32(weights), full))

    def _operand(self, chunk: Chunk, source: Any) -> None:
        k, team = self.k, self.team
        full = self.barriers + uint32(chunk.slot * 8)
        block = self.part * chunk.share.kblocks + chunk.first
        size = chunk.count * team.rows * BLOCK_WORDS * 4 // team.together
        target, word = self._stage(chunk), source(chunk.share) + block * (team.rows * BLOCK_WORDS)
        if team.together == 1:
            k.do(I.ptx[BULK](target, k["exchange"].ptr_to([word]), uint32(size), full))
            return
        target = target + tirx.Cast("uint32", self.number * size)
        address = k["exchange"].ptr_to([word + self.number * (size // 4)])
        mask = tirx.const((1 << team.together) - 1, "uint16")
        k.do(I.ptx[BULK + ".multicast::cluster"](target, address, uint32(size), full, mask))
