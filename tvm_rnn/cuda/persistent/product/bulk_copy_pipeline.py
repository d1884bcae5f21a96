"""A pipeline in shared memory, which bulk copies fill with operands (and weights) while warpgroups multiply.

In: a geometry with `ring` stages and the exchange that values lie in. Out: statements: barriers, copies, waits,
products. A step begins with stage 0, so which stage a chunk has, and the parity of its barriers, are known when the
kernel is written. Values were written by other multiprocessors with ordinary stores: a proxy fence after the acquire
orders the copies behind them.

Source: Hopper's asynchronous copies and barriers: PTX ISA 8.5, "cp.async.bulk", "mbarrier".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.exchange import COUNTER
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, Body, Exchange, Share
from tvm_rnn.cuda.persistent.rates import Rates
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from .operands_staged import Swizzled
from .wgmma_tiles import STEPS, TILE_BYTES, WgmmaProduct, WgmmaTiles

BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
LAG = 2  # chunks in flight, where the pipeline is deep enough: while a stage is filled again, products do not run out
Run = tuple[int, int, bool]  # blocks of K that go through a stage together: the first, how many, with their weights


@dataclass(frozen=True)
class Chunk:
    """What goes through one stage at a time: `count` blocks of K, from a part's `first`; with their weights or without.
    slot: which stage of the part's pipeline; turn: how often that was used in this step before."""

    share: Share
    first: int
    count: int
    streamed: bool
    slot: int
    turn: int


@dataclass(frozen=True)
class BulkCopyTiles(WgmmaTiles):
    """ring: stages of a pipeline in shared memory that operands come through. together: blocks that are launched as a
    cluster. warps_u, warps_n and warps_k say how warps share cells."""

    exchange: Exchange = field(default=COUNTER, init=False)
    ring: int = 2
    together: int = 1

    reads_in_step: ClassVar[bool] = True
    rates: ClassVar[Rates] = Rates(1.0, 0.0, 34.0, 0.8, 0.15, 0.03)

    @property
    def cluster(self) -> int:
        return self.together

    @property
    @abstractmethod
    def stage_bytes(self) -> int:
        """Of a stage of one pipeline."""

    @property
    @abstractmethod
    def sums_apart(self) -> bool:
        """Whether sums have a place of their own, beside the pipeline."""

    @abstractmethod
    def runs(self, share: Share) -> Iterator[tuple[float, Run]]:
        """Of an operand, each with its place in the order."""

    @cached_property
    def chunks(self) -> dict[Phase, list[Chunk]]:
        """Every phase's, in order. Streamed weights are spread over the blocks of K, so that copies keep an even
        pace."""
        found: dict[Phase, list[Chunk]] = {}
        number = 0
        for phase, shares in self.shares.items():
            found[phase] = []
            for share in shares:
                for _, run in sorted(self.runs(share)):
                    found[phase].append(Chunk(share, *run, number % self.ring, number // self.ring))
                    number += 1
        return found

    @cached_property
    def uses(self) -> list[int]:
        """How often a step uses each stage."""
        total = sum(map(len, self.chunks.values()))
        return [len(range(slot, total, self.ring)) for slot in range(self.ring)]

    def regions(self, first: str, second: str, sizes: tuple[int, int], *, align: int) -> dict[str, int]:
        """A memory map of bytes as one of words: two regions, of which the second may lie in the first one's place, and
        the others behind them."""
        weights = rounded(sum(sizes) if self.sums_apart else max(sizes), align)
        stage = weights + self.weight_words * 4
        barriers = rounded(stage + self.stage_words * 4, 8)
        found = {first: 0, second: sizes[0] * self.sums_apart, "weights": weights, "stage": stage}
        found |= {"barriers": barriers, "end": barriers + 16 * self.ring * self.block_parts}
        return {name: at // 4 for name, at in found.items()} | {"prefetch": 0}  # nothing is copied there

    @property
    def own_bytes(self) -> int:
        return 4 * self.memory_map["end"]


def rounded(size: int, multiple: int) -> int:
    return size + -size % multiple


class BulkCopyExchange(Swizzled):
    """A grid's exchange whose operands lie as wgmma reads them, and are waited for by the thread that copies them."""

    due: Expr | None = None  # events that the next product's operands wait for

    def await_operand(self, events: Expr) -> None:
        self.due = events

    def poll(self, events: Expr) -> None:
        """Until every block of the group has published `events` times."""
        self._spin("counter", events)

    def arrive(self) -> None:
        words = self.publish_tiles()
        super().arrive()
        self.write_y(words)


class BulkCopyPipeline(ABC):
    """What pipelines share: barriers, in which order stages are filled, and who waits. readers: warps that read each
    stage; policy: further arguments of copies of weights."""

    weights_copy = BULK
    part: Expr  # of K, of what this thread copies

    def __init__(self, body: Body, geometry: BulkCopyTiles, exchange: BulkCopyExchange, readers: int) -> None:
        self.k, self.ids, self.exchange, self.readers = body.k, body.ids, exchange, readers
        self.geometry, self.names = geometry, geometry.weight_names
        self.at = {name: 4 * word for name, word in geometry.memory_map.items()}  # bytes
        self.chunks, self.ring = geometry.chunks, geometry.ring
        self.par = 0
        start = body.arena.ptr_to([tirx.const(0, "int32")])
        self.base = self.start_base = body.k.keep(I.cuda.cvta_generic_to_shared(start))

    # --- barriers ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Before the first product: make the barriers of all pipelines."""
        k = self.k
        with k.when(self.ids.thread == 0):
            for number in range(2 * self.ring * self.geometry.block_parts):  # full of every stage, then empty
                barrier = self.base + uint32(self.at["barriers"] + number * 8)
                k.do(I.ptx.mbarrier.init.shared.b64(barrier, uint32(self.readers if number // self.ring % 2 else 1)))
            k.do(I.ptx.fence.mbarrier_init.release.cluster())
        k.do(I.ptx.fence.proxy.async_.shared__cta())  # also of the weights that every thread has stored
        k.do(I.cuda.cta_sync())
        self.meet()

    @abstractmethod
    def refresh(self) -> None:
        """At the start of a product."""

    def meet(self) -> None:
        """All blocks of the cluster: none copies into another one too early, none leaves too early; what each has
        stored in shared memory, the others see."""
        if self.geometry.together > 1:
            self.k.do(I.ptx["barrier.cluster.arrive.release.aligned"]())
            self.k.do(I.ptx["barrier.cluster.wait.acquire.aligned"]())

    @abstractmethod
    def barrier(self, number: int) -> Expr:
        """The address of one of this thread's pipeline."""

    def _parity(self, chunk: Chunk) -> int:
        """Of the uses of its stage before this one, since the kernel's start; a step's number is even or odd as par."""
        return int((self.par * self.geometry.uses[chunk.slot] + chunk.turn) % 2)

    def _wait(self, number: int, parity: int) -> None:
        k = self.k
        done = k.local(1, "uint32")
        k.store(done, uint32(0), 0)
        with I.While(done[0] == uint32(0)):
            k.do(I.ptx["mbarrier.try_wait.parity.shared::cta.b64"](done[0], self.barrier(number), uint32(parity)))

    def wait(self, chunk: Chunk) -> None:
        """Until it is there."""
        self._wait(chunk.slot, self._parity(chunk))

    @abstractmethod
    def release(self, chunk: Chunk) -> None:
        """This warp reads it no more."""

    # --- copies ------------------------------------------------------------------------------------------------------

    def begin(self, phase: Phase) -> None:
        """Fill the pipeline: weights at once, operands when they are published."""
        k, first = self.k, self.chunks[phase][: self.ring]
        with k.when(self.copies()):
            for chunk in first:
                self._expect(phase, chunk)
            if self.exchange.due is not None:
                self.exchange.poll(self.exchange.due)
            k.do(I.ptx["fence.proxy.async.global"]())
            for chunk in first:
                self._operand(chunk)
        k.do(I.cuda.warp_sync())
        self.exchange.due = None

    def refill(self, phase: Phase, number: int) -> None:
        """The stage of a phase's number-th chunk, with the next one that belongs there."""
        k, after = self.k, number + self.ring
        if after >= len(self.chunks[phase]):
            return
        with k.when(self.copies()):
            self._expect(phase, self.chunks[phase][after])
            self._operand(self.chunks[phase][after])
        k.do(I.cuda.warp_sync())

    @abstractmethod
    def copies(self) -> Expr:
        """Whether this thread does."""

    @abstractmethod
    def stage(self, chunk: Chunk, at: int = 0) -> Expr:
        """The address of a byte of a chunk's stage."""

    @abstractmethod
    def weights_at(self, phase: Phase, chunk: Chunk) -> Expr:
        """The first element of a chunk's packed weights."""

    def policy(self) -> list[Expr]:
        return []

    def _expect(self, phase: Phase, chunk: Chunk) -> None:
        """When the stage is free: announce its bytes, and copy weights."""
        k = self.k
        self._wait(chunk.slot + self.ring, 1 - self._parity(chunk))
        full, operand = self.barrier(chunk.slot), chunk.count * self.geometry.operand_bytes
        far = chunk.count * self.geometry.shared_weight_bytes(phase) if chunk.streamed else 0
        k.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, uint32(operand + far)))
        if chunk.streamed:
            address = k[self.names[chunk.share]].ptr_to([self.weights_at(phase, chunk)])
            k.do(I.ptx[self.weights_copy](self.stage(chunk, operand), address, uint32(far), full, *self.policy()))

    def _operand(self, chunk: Chunk) -> None:
        """Copy what is multiplied by them."""
        block = self.part * chunk.share.kblocks + chunk.first
        word = self.exchange.first_word(chunk.share.operand.source) + block * (self.geometry.rows * BLOCK_WORDS)
        self.fetch(self.stage(chunk), word, chunk.count * self.geometry.operand_bytes, self.barrier(chunk.slot))

    def fetch(self, target: Expr, word: Expr, size: int, full: Expr) -> None:
        self.k.do(I.ptx[BULK](target, self.k["exchange"].ptr_to([word]), uint32(size), full))


class BulkCopyProduct(WgmmaProduct):
    """The products of one kernel, of operands that come through a pipeline. Construct once, at the kernel's start: it
    loads the resident weights. operands: the low word of their matrix descriptors; tiles: that of streamed weights."""

    geometry: BulkCopyTiles
    operands: Expr
    tiles: Expr

    def __init__(self, body: Body, geometry: BulkCopyTiles, bulk: BulkCopyPipeline) -> None:
        super().__init__(body, geometry)
        self.bulk, self.at, self.base = bulk, bulk.at, bulk.base

    @property
    def par(self) -> int:
        return self.bulk.par

    @par.setter
    def par(self, par: int) -> None:
        self.bulk.par = par

    def end(self) -> None:
        """No block of a cluster leaves too early."""
        self.bulk.meet()

    @abstractmethod
    def stage(self, chunk: Chunk) -> int:
        """Bytes to it from where `operands` begin."""

    def meet(self) -> None:
        """All who read the pipeline, or sums."""
        self.k.do(I.cuda.cta_sync())

    def begin(self, phase: Phase) -> Sequence[Callable[[], None]]:
        """Copies begin. Statements to be written while the product is under way."""
        self.bulk.begin(phase)
        return ()

    def before_chunk(self, phase: Phase) -> None:
        """Behind the wait for it."""

    @abstractmethod
    def sum(self, phase: Phase, acc: Buffer) -> list[Expr]:
        """Sums of the parts of K, by the lanes that have the cells."""

    def emit(self, phase: Phase) -> list[Expr]:
        for share in self.geometry.shares[phase]:
            self.body.ready(share)
        # What cells read in this step, and the prefetch of later ones into L2, beside the step's first product.
        body, first = self.body, phase is self.body.step.phases[0]
        self.loads = body.reads.now(body.t, prefetch=False) if first else []
        self.prefetches = body.reads.now(body.t, prefetch=True) if first else []
        k, bulk, every = self.k, self.bulk, self.geometry.chunks[phase]
        lag = LAG if self.geometry.ring > LAG + 1 else 1
        if not self.geometry.separated(phase):
            self.meet()  # sums of the product before this one may still be read
        acc = k.local(self.geometry.gate_tiles(phase) * self.geometry.rows // 2)
        bulk.refresh()
        between = self.begin(phase)
        for number, chunk in enumerate(every):
            with body.clock.waiting():
                bulk.wait(chunk)
            self.before_chunk(phase)
            k.do(I.ptx.wgmma.fence.sync.aligned())
            self._multiply(phase, chunk, acc, number == 0)
            k.do(I.ptx.wgmma.commit_group.sync.aligned())
            if number >= lag:
                k.do(I.ptx.wgmma.wait_group.sync.aligned(lag))
                bulk.release(every[number - lag])
                bulk.refill(phase, number - lag)
            for piece in between[len(between) * number // len(every) : len(between) * (number + 1) // len(every)]:
                piece()
        k.do(I.ptx.wgmma.wait_group.sync.aligned(0))
        for chunk in every[-lag:]:
            bulk.release(chunk)
        if not self.geometry.sums_apart:
            self.meet()  # nobody reads the pipeline any more
        found = self.sum(phase, acc)
        if not self.geometry.sums_apart:
            k.do(I.ptx.fence.proxy.async_.shared__cta())  # copies into the pipeline follow, after a barrier
        return found

    def _multiply(self, phase: Phase, chunk: Chunk, acc: Buffer, first: bool) -> None:
        geometry, stage, far = self.geometry, self.stage(chunk), self.geometry.shared_weight_bytes(phase)
        for i in range(chunk.count):
            for step in range(STEPS):
                b = self.descriptor(self.operands, stage + i * geometry.operand_bytes + step * 32)
                for tile in range(geometry.gate_tiles(phase)):
                    if chunk.streamed:
                        at = stage + chunk.count * geometry.operand_bytes + i * far + tile * TILE_BYTES + step * 32
                        a = [self.descriptor(self.tiles, at)]
                    else:
                        a = self.resident(phase, chunk.share, chunk.first + i, tile, step)
                    self.instruction(acc, tile, a, b, add=not (first and not i and not step))
