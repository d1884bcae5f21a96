"""The exchange of values between blocks of a persistent kernel: through a cluster's shared memory, or through L2.

In: a `Geometry` and the kernel's body. Out: statements to lay out initial states as products read them, to publish a
tile of 8 units x 8 batch rows, to wait for a value, and to load an operand piece. Both kinds store a value as [K
block][batch row][64 bytes], twice: for even and odd steps.

Cluster: every block has a whole copy; producers write into all of them (st.async), and an mbarrier per copy counts
bytes. Two copies are enough: a block that writes step t + 2 has received t + 1 from all, which had read t before.
Grid: one copy in global memory and a counter per group of blocks, released after the writes and acquired before the
reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from math import ceil, prod
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Writer, converted
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.rowwise.set_words import set_bytes
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from .geometry import (
    BLOCK_WORDS,
    COUNTER_WORDS,
    LANES,
    Body,
    CopiedOutput,
    Exchange,
    Geometry,
    LaneExchange,
    LaneInputs,
    LanePieces,
    Slots,
    Store,
)
from .layer_input_rows import ClusterInputs, GridInputs, InputPieces, NoPieces
from .rates import Rates

COMPUTING = 15  # the barrier of a block's warps that compute
# What copies take where the warps that compute make them. H200, fp16, us a step without and with warps of their own:
# LSTM 32 in one block 0.343, 0.222, in clusters of two 0.389, 0.305; LSTM 128, eight blocks, 0.472, 0.405; GRU 62, one
# block, 0.456, 0.275. Before copies were made apart, all of them were predicted slower by as much.
COPIES_US = 0.15
# Words of weights per lane, for each hoisted value of a cell, up to which copies are made apart in clusters. H200, us a
# step without and with that: 16 words, LSTM 128 0.472, 0.405; 32, LSTM 256 0.612, 0.591; 40, GRU 302 1.760, 1.583; 64,
# GRU 512 1.019, 1.146, LSTM 512 1.061, 1.064; 128, ALIF 512 0.451, 0.465; of 16 rows, LSTM 256 1.112, 1.221; and of
# values of four bytes, 32 words, LSTM 256 in TF32 0.986, 1.029.
MOST_WEIGHTS = 48
# Clusters of few blocks, whose steps are short, have more stages of hoisted values. LSTM of 6 heads of 128 units, four
# blocks to a head, H200: 0.45 us a step with four stages, 0.41 with eight; LSTM 256, eight blocks, 0.60 and 0.61.
FEW_BLOCKS, STAGES_OF_FEW = 4, 8
ROWS_US, CELLS_US = 0.12, 0.1  # each 8 rows of a cluster beyond the first; each 256 cells of a block beyond the first
# Of each further vector that a cluster's blocks hand to each other, as a backward step does with the gradients of all
# gates: per 1000 bytes of it that a block receives; and where that is, of each cell of a lane beyond two, whose values
# registers are short of. LSTM 256, blocks x rows and warps of units, measured and as this predicts: bf16 16 x 8 2 1.31,
# 1.37 us; 8 x 8 4 1.49, 1.56; 16 x 8 1 1.79, 1.88; 8 x 8 2 1.89, 1.86; 4 x 8 4 2.17, 2.37; tf32 16 x 8 2 2.22, 2.08;
# 8 x 8 2 2.35, 2.64; 16 x 8 1 2.98, 2.38.
# Where copies are made apart that is no trouble. Members of 128 units, B 32, T 128, blocks of 2 x 8, both passes in us
# with 8 and 4 warps of units: 16 GRUs 281.9, 275.1, 8 303.5, 296.6; 16 LSTMs 356.7, 333.8, 8 341.1, 320.1.
PUBLISHED_US, PUBLISHED_CELL_US = 0.03, 0.25
# A loop that the compiler does not see: behind one that it sees it computes addresses anew. That is quicker where the
# warps that compute copy too and keep the addresses of that. H200, both passes, us unseen and seen: block GRU of eight
# heads of 64 5,815, 5,515; LSTM of six heads of 128, which has warps that copy, 1,520, 1,540. TVM's own has a time
# after which it sleeps, and its code for that is slower where nothing sleeps.
WAIT = "tvm_builtin_wait_for_bytes"
WAIT_TEXT = f"""
__forceinline__ __device__ void {WAIT}(uint32_t barrier, uint32_t parity) {{
  asm volatile(
      "{{ .reg .pred done;\\n"
      "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
      "@done bra.uni OVER;\\n"
      "bra.uni AGAIN;\\n"
      "OVER: }}" ::"r"(barrier), "r"(parity) : "memory");
}}
"""


# --- as planning sees them --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterExchange(Exchange):
    """Through the shared memory of a cluster: the blocks of a group are one."""

    name: ClassVar[str] = "cluster"
    in_memory: ClassVar[bool] = False
    lines: ClassVar[bool] = True
    marks: ClassVar[bool] = True
    rates: ClassVar[Rates] = Rates(0.24, 0.012, 34.0, 0.8, 0.15, 0.03)

    def place(self, k: Writer, geometry: Geometry) -> tuple[Expr, Expr]:
        return I.cluster_id([k["teams"]]), I.cta_id_in_cluster([geometry.ctas])

    def exchanger(self, body: Body, stage_at: int, barriers_at: int) -> LaneExchange:
        return (Cluster if body.geometry.ctas > 1 else ClusterOfOne)(body, stage_at, barriers_at)

    def inputs(self, body: Body, exchange: LaneExchange, pieces: LanePieces, at: int) -> LaneInputs:
        return ClusterInputs(body, at)

    def pieces(self, body: Body) -> LanePieces:
        return NoPieces(body)

    def cluster(self, geometry: Geometry) -> int:
        return geometry.ctas

    def blocks_meet(self, k: Writer) -> None:
        """A barrier of all blocks of a group."""
        k.do(I.ptx["barrier.cluster.arrive.release.aligned"]())
        k.do(I.ptx["barrier.cluster.wait.acquire.aligned"]())

    def copied_output(self, geometry: Geometry, rank: Expr) -> CopiedOutput:
        """What this block stages of it, in this step."""
        node = geometry.step.graph.output
        per_word, units = 4 // geometry.itemsize, geometry.units(node.shape[0])
        first = (geometry.memory_map["stage"] + stage_offset(geometry, node)) * per_word
        return CopiedOutput(
            0, rank * units, units, geometry.stage_words // 2 * per_word, lambda row, unit: first + row * units + unit
        )

    def operand_words(self, geometry: Geometry) -> int:
        return geometry.exchange_words

    def stage_words(self, geometry: Geometry) -> int:
        """All that a block publishes, for even and odd steps: slow warps may still send what the last step staged."""
        return 2 * sum(stage_size(geometry, n) for n in geometry.published)

    def input_words(self, geometry: Geometry) -> int:
        """Of even and odd steps."""
        return sum(2 * geometry.value_words(n) for n in geometry.step.given)

    def input_registers(self, geometry: Geometry) -> int:
        """A thread holds its pieces of a step for one step."""
        return 4 * sum(ceil(geometry.value_words(n) // 4 / geometry.threads) for n in geometry.step.given)

    def phase_us(self, geometry: Geometry, phase: Phase, cells: int) -> float:
        us = ROWS_US * (geometry.rows / 8 - 1)
        us += CELLS_US * max(0.0, geometry.units(phase.width) * geometry.rows / 256 - 1)
        published = sum(prod(node.shape) for node in phase.published)
        us += PUBLISHED_US * max(0, published - phase.width) * geometry.rows * geometry.itemsize / 1000
        crowded = published > phase.width and not self.copies_apart(geometry)
        return us + (PUBLISHED_CELL_US * max(0, cells - 2) if crowded else 0.0)

    def launches(
        self, host: Host, geometry: Geometry, groups: str, resident: int, work: Pointer, steps: str | int
    ) -> Iterator[tuple[str, str, list[Pointer]]]:
        """One for all groups: clusters do not wait for each other."""
        yield "0", groups, []


@dataclass(frozen=True)
class AloneExchange(ClusterExchange):
    """Of a layer that is in no wave, and whose clusters are all on the GPU at once: blocks of more warps leave no room
    beside them."""

    rates: ClassVar[Rates] = Rates(0.24, 0.012, 34.0, 0.8, 0.0, 0.03)

    @property
    def of_inputs(self) -> Exchange:
        return CLUSTER

    def input_words(self, geometry: Geometry) -> int:
        """Of several steps, where the warps that copy multiply them."""
        if geometry.input_product is None:
            return super().input_words(geometry)
        return geometry.prefetch_steps * sum(geometry.value_words(n) for n in geometry.step.given)

    def input_registers(self, geometry: Geometry) -> int:
        return 0 if geometry.input_product is not None else super().input_registers(geometry)

    def copies_apart(self, geometry: Geometry) -> bool:
        """Of 16 bits. Where products of inputs are a part of the steps, of lines alone."""
        if geometry.input_product is not None:
            return True
        values = geometry.lines if geometry.step.given else geometry.prefetched_values
        few = geometry.weights_of_lane <= MOST_WEIGHTS * values
        return geometry.rows == 8 and geometry.itemsize == 2 and few

    def prefetch_steps(self, geometry: Geometry) -> int:
        """Few blocks soon have each other's values. Steps that multiply inputs copy lines, which have two places."""
        if geometry.input_product is not None:
            return STAGES_OF_FEW
        few = geometry.ctas <= FEW_BLOCKS and not geometry.step.given and self.copies_apart(geometry)
        return STAGES_OF_FEW if few else super().prefetch_steps(geometry)

    def phase_us(self, geometry: Geometry, phase: Phase, cells: int) -> float:
        return super().phase_us(geometry, phase, cells) + copies_us(geometry, phase)


@dataclass(frozen=True)
class GridExchange(Exchange):
    """Through L2, by blocks anywhere on the GPU."""

    name: ClassVar[str] = "grid"
    in_memory: ClassVar[bool] = True

    def place(self, k: Writer, geometry: Geometry) -> tuple[Expr, Expr]:
        if geometry.cluster == 1:
            block: Expr = I.cta_id([k["teams"] * geometry.ctas])
        else:  # the number of a block in a grid of clusters
            cluster = I.cluster_id([k["teams"] * (geometry.ctas // geometry.cluster)])
            block = cluster * geometry.cluster + I.cta_id_in_cluster([geometry.cluster])
        return tirx.floordiv(block, geometry.ctas), tirx.floormod(block, geometry.ctas)

    def inputs(self, body: Body, exchange: LaneExchange, pieces: LanePieces, at: int) -> LaneInputs:
        return GridInputs(body, exchange, pieces)

    def pieces(self, body: Body) -> LanePieces:
        return InputPieces(body)

    def launches(
        self, host: Host, geometry: Geometry, groups: str, resident: int, work: Pointer, steps: str | int
    ) -> Iterator[tuple[str, str, list[Pointer]]]:
        """As many groups at a time as fit on the GPU at once."""
        with host.loop(f"({groups} + {resident - 1}) / {resident}", "slice") as part:
            first = host.let("first_team", f"{part} * {resident}")
            count = host.let("teams", f"std::min<int64_t>({resident}, {groups} - {first})")
            extra = self._memory(host, geometry.exchange_words, groups, (first, count), work, steps)
            yield f"{first} * {geometry.rows}", count, extra

    @abstractmethod
    def _memory(
        self, host: Host, words: int, groups: str, part: tuple[str, str], work: Pointer, steps: str | int
    ) -> list[Pointer]:
        """What groups of one launch exchange, and two pointers to counters. part: the first group, and how many."""


@dataclass(frozen=True)
class CounterExchange(GridExchange):
    """With a counter of each group, released after the writes and acquired before the reads."""

    rates: ClassVar[Rates] = Rates(1.45, 0.0, 55.0, 0.77, 0.18, 0.087)

    def exchanger(self, body: Body, stage_at: int, barriers_at: int) -> Grid:
        return Grid(body, stage_at)

    def value_bytes(self, groups: str, words: int, steps: str | int) -> str:
        return f"{groups} * {words * 4}"

    def zero_bytes(self, groups: str) -> str:
        return f"{groups} * {COUNTER_WORDS * 4}"

    def work_bytes(self, groups: str, at_once: str, words: int) -> str:
        return f"{self.zero_bytes(groups)} + {self.value_bytes(groups, words, 'T')}"

    def _memory(
        self, host: Host, words: int, groups: str, part: tuple[str, str], work: Pointer, steps: str | int
    ) -> list[Pointer]:
        first, _ = part
        counters = work.skip(f"{first} * {COUNTER_WORDS * 4}").cast("uint32")
        values = f"{groups} * {COUNTER_WORDS * 4} + {first} * {words * 4}"
        return [work.skip(values).cast("uint32"), counters, counters]

    def clear_for_wave(
        self, host: Host, counters: Pointer, counter_bytes: str, values: Pointer, value_bytes: str | int
    ) -> None:
        set_bytes(host, counters, counter_bytes)


def stage_size(geometry: Geometry, node: Node) -> int:
    """Words of all that a block of a cluster publishes of a value."""
    return geometry.rows * geometry.units(node.shape[0]) * geometry.itemsize // 4


def copies_us(geometry: Geometry, phase: Phase) -> float:
    """What a product's phase takes longer where the warps that compute copy too."""
    copied = phase.kind == "gemm" and geometry.prefetched_values > 0
    return COPIES_US if copied and not geometry.copy_warps else 0.0


def stage_offset(geometry: Geometry, node: Node) -> int:
    """Words from the first value that a block of a cluster publishes to this one."""
    return sum(stage_size(geometry, n) for n in geometry.published[: geometry.published.index(node)])


CLUSTER, CLUSTER_ALONE, COUNTER = ClusterExchange(), AloneExchange(), CounterExchange()


# --- who emits them ---------------------------------------------------------------------------------------------------


def joined(*conditions: Expr | None) -> Expr:
    """Conditions joined; none: true."""
    found = [c for c in conditions if c is not None]
    return reduce(tirx.And, found) if found else tirx.const(True, "bool")


def convert(body: Body, value: Expr) -> Expr:
    """A float32 value as the product reads it."""
    if body.geometry.precision == "tf32":
        register = body.k.local(1, "uint32")
        body.k.do(I.ptx["cvt.rna.tf32.f32"](register[0], value))
        return I.reinterpret("float32", register[0])
    return body.exchange.plain(value)


class Exchanger(ABC):
    """What all kinds of `ExchangeEmitter` share. stage_at, words: of shared memory, where values are staged; words:
    how many (default: as planned)."""

    loads: ClassVar[str]  # the PTX instruction

    def __init__(self, body: Body, stage_at: int, words: int | None = None) -> None:
        self.body, self.k, self.geometry, self.ids, self.arena = body, body.k, body.geometry, body.ids, body.arena
        self.stage_at = stage_at
        k, geometry = self.k, self.geometry
        words = geometry.stage_words if words is None else words
        elements, offset = words * 4 // geometry.itemsize, stage_at * 4 // geometry.itemsize
        self.view: Buffer = I.decl_buffer(
            (elements,), geometry.storage, data=self.arena.data, elem_offset=offset, scope="shared.dyn"
        )
        self.chunks_of_row = 8 * geometry.itemsize // 16  # 16-byte pieces of 8 units
        self.par = 0  # of the step that is being written
        self.joined = True  # whether the warps that copy were at a barrier of this step
        self.passing = k.local(4, "uint32")

    def word(self, node: Node, slot: Expr, kblock: Expr, row: Expr, piece: Expr) -> Expr:
        """Where a 16-byte piece of a value lies, in words from the first value."""
        size = self.geometry.value_words(node)
        first = self.geometry.value_at[node] + slot * size
        return first + (kblock * self.geometry.rows + row) * BLOCK_WORDS + piece * 4

    def plain(self, value: Expr) -> Expr:
        return tirx.Cast(self.geometry.storage, value)

    def sync(self) -> None:
        if self.geometry.copy_warps:
            self.k.do(I.ptx.bar.sync(uint32(COMPUTING), uint32(self.geometry.threads)))
        else:
            self.k.do(I.cuda.cta_sync())

    def join(self) -> None:
        """A barrier of all warps of the block, those that copy too: they are at one in each step."""
        self.k.do(I.cuda.cta_sync())
        self.joined = True

    def pointer(self, node: Node, slot: int, kblock: Expr, row: Expr) -> Expr:
        return self._at(self.word(node, slot, kblock, row, self.ids.q))

    def load(self, node: Node, slot: int, kblock: Expr, row: Expr, registers: Sequence[Expr]) -> None:
        self.k.do(I.ptx[f"{self.loads}.v4.b32"](*registers, self.pointer(node, slot, kblock, row)))

    def take(self, word: Expr, registers: Sequence[Expr]) -> None:
        self.k.do(I.ptx[f"{self.loads}.v{len(registers)}.b32"](*registers, self._at(word)))

    @abstractmethod
    def _at(self, word: Expr) -> Expr:
        """A pointer to a word of what is exchanged."""


class InShared(Exchanger):
    """Operands lie in the block's own shared memory."""

    loads: ClassVar[str] = "ld.shared"

    def fill_operands(self) -> None:
        """Copy 0 of each carried value is filled from the state, as a whole; all other copies are zeroed. Other warps
        may not see it yet."""
        body, geometry, k, ids = self.body, self.geometry, self.k, self.ids
        total = geometry.exchange_words
        with k.loop(-(-total // geometry.threads)) as i:
            at = i * geometry.threads + ids.thread
            with k.when(at < total):
                k.store(body.arena, tirx.const(0, "uint32"), at)
        self.sync()
        view = I.decl_buffer(
            (total * 4 // geometry.itemsize,), geometry.storage, data=body.arena.data, elem_offset=0, scope="shared.dyn"
        )
        for n, state in enumerate(body.step.graph.states):
            if state not in body.step.carried:
                continue
            node, width = body.value(state), state.shape[0]
            elements = geometry.rows * width
            with k.loop(-(-elements // geometry.threads)) as i:
                flat = i * geometry.threads + ids.thread
                row, unit = tirx.floordiv(flat, width), tirx.floormod(flat, width)
                batch_row = k["row0"] + ids.group * geometry.rows + row
                with k.when(tirx.And(flat < elements, batch_row < k["batch"])):
                    stride = width * body.layout.heads
                    first = k.local(1)
                    for old, condition in body.first_states(n):
                        with condition:
                            at = tirx.Cast("int64", batch_row) * stride + unit
                            k.store(first, converted(old[at], "float32"), 0)
                    value: Expr = first[0]
                    if body.masks is not None:
                        value = body.masks.restarted(state, batch_row, value)
                    value = body.reads.words.masked_state_at(state, value, batch_row, unit)
                    block = tirx.floordiv(unit, geometry.block_k) * geometry.rows + row
                    words = geometry.value_at[node] + block * BLOCK_WORDS
                    element = words * (4 // geometry.itemsize) + tirx.floormod(unit, geometry.block_k)  # of copy 0
                    k.store(view, convert(body, value), element)

    def _at(self, word: Expr) -> Expr:
        return self.arena.ptr_to([word])


class Cluster(InShared):
    """Through distributed shared memory."""

    def __init__(self, body: Body, stage_at: int, barriers_at: int) -> None:
        super().__init__(body, stage_at)
        self.barriers_at = barriers_at

    @property
    def _turn(self) -> int:
        """Words from the even steps' stage to this step's."""
        return self.par * self.geometry.stage_words // 2

    def prepare(self) -> None:
        """Thread n sends pieces n, n + threads, ... of [destination][row][units]: neighbours write side by side."""
        geometry, k, ids = self.geometry, self.k, self.ids
        self.sends: dict[Node, list[tuple[Expr, Expr, Expr, Expr | None]]] = {}
        arena = I.cuda.cvta_generic_to_shared(self.arena.ptr_to([tirx.const(0, "int32")]))
        self.peers: list[tuple[Expr, Expr | None]] = []  # whom this lane sends parts of reductions to
        for i in range(-(-geometry.ctas // 8) if geometry.reductions else 0):
            peer = ids.g + i * 8
            past = None if (i + 1) * 8 <= geometry.ctas else peer < geometry.ctas
            self.peers.append((self._begin(arena, tirx.Min(peer, geometry.ctas - 1)), past))
        for node in geometry.published:
            per_row = geometry.units(node.shape[0]) * geometry.itemsize // 16
            pieces = per_row * geometry.rows
            found: list[tuple[Expr, Expr, Expr, Expr | None]] = []
            for i in range(-(-pieces * geometry.ctas // geometry.threads)):
                registers = k.local(3, "int32")
                flat = ids.thread + i * geometry.threads
                chunk = tirx.floormod(flat, pieces)
                row, unit = tirx.floordiv(chunk, per_row), tirx.floormod(chunk, per_row) * (16 // geometry.itemsize)
                k.store(registers, chunk * 4 + self.stage_word(node), 0)
                first = ids.rank * geometry.units(node.shape[0]) + unit
                within = tirx.floordiv(tirx.floormod(first, geometry.block_k) * geometry.itemsize, 16)
                k.store(registers, self.word(node, 0, tirx.floordiv(first, geometry.block_k), row, within) * 4, 1)
                # Not all blocks to the same one at once: destinations are turned by the sender's rank.
                to = tirx.floormod(tirx.floordiv(flat, pieces) + ids.rank, geometry.ctas)
                past = flat < pieces * geometry.ctas if (i + 1) * geometry.threads > pieces * geometry.ctas else None
                found.append((registers[0], registers[1], self._begin(arena, to), past))
            self.sends[node] = found

    def _begin(self, own: Expr, block: Expr) -> Expr:
        """Where that block's shared memory begins. own: this one's."""
        remote = self.k.local(1, "uint32")
        self.k.do(I.ptx["mapa.shared::cluster.u32"](remote[0], own, tirx.Cast("uint32", block)))
        return remote[0]

    def stage_word(self, node: Node) -> int:
        return self.stage_at + stage_offset(self.geometry, node)

    def _barrier(self, node: Node, slot: Expr) -> Expr:
        """Word of the mbarrier (8 bytes) of one copy of a value."""
        return self.barriers_at + (self.geometry.published.index(node) * 2 + slot) * 2

    def _pointer(self, node: Node, slot: Expr) -> Expr:
        return self.arena.ptr_to([self._barrier(node, slot)])

    def _reduce_barrier(self, slot: Expr) -> Expr:
        return self.barriers_at + (len(self.geometry.published) * 2 + slot) * 2

    def fill(self) -> None:
        """Every block has all operands; barriers are there before anybody sends."""
        geometry = self.geometry
        self.fill_operands()
        pointers = [self._pointer(node, slot) for node in geometry.published for slot in range(2)]
        pointers += [self._at(self._reduce_barrier(slot)) for slot in range(2) if geometry.reductions]
        with self.k.when(self.ids.thread == 0):
            for pointer in pointers:
                self.k.do(I.ptx.mbarrier.init.shared.b64(pointer, tirx.const(1, "uint32")))
            self.k.do(I.ptx.fence.mbarrier_init.release.cluster())
            for slot in range(2) if geometry.reductions else ():
                self._expect_parts(slot, slot)
        self.sync()
        self.geometry.exchange.blocks_meet(self.k)

    def end(self) -> None:
        """No block leaves while others may still write into its memory."""
        self.geometry.exchange.blocks_meet(self.k)

    def begin_step(self) -> None:
        """Say how many bytes will come for the values that this step, or the next one, reads."""
        body = self.body
        self.joined = not self.geometry.copy_warps
        for node in self.geometry.published:
            if node not in body.carried:
                self._expect(node, body.par)
            else:
                at_once = node in body.step.sources
                self._expect(node, 1 - body.par, None if at_once else body.t + 1 < self.k["steps"])

    def ready(self, source: Node) -> None:
        body = self.body
        node, slot = body.value(source), body.copy_of(source)
        tau = body.t if source.op == "state" else body.t + 1
        count = tirx.floordiv(tau - 1, 2) if node in body.carried else tirx.floordiv(body.t, 2)
        with self.k.when(body.t > 0) if source.op == "state" and body.par == 0 else nullcontext():
            self._wait(self._pointer(node, slot), tirx.floormod(count, 2))

    def _wait(self, pointer: Expr, parity: Expr) -> None:
        """Until all bytes are there that were said to come. They come to the block's own shared memory: a wait that
        acquires for all of the cluster would have the level-1 cache emptied, by each warp in each step."""
        k, parity = self.k, tirx.Cast("uint32", parity)
        barrier = I.cuda.cvta_generic_to_shared(pointer)
        if self.geometry.copy_warps:
            k.do(I.cuda.func_call(WAIT, barrier, parity, source_code=WAIT_TEXT))
            return
        barrier, done = k.bind(barrier), k.local(1, "uint32")
        k.store(done, uint32(0), 0)
        with I.While(tirx.EQ(done[0], uint32(0))):
            k.do(I.ptx["mbarrier.try_wait.parity.shared::cta.b64"](done[0], barrier, parity))

    def _expect(self, node: Node, slot: Expr, when: Expr | None = None) -> None:
        """Say how many bytes will come for this copy."""
        geometry = self.geometry
        pieces = geometry.ctas * geometry.units(node.shape[0]) * geometry.itemsize // 16
        with self.k.when(joined(self.ids.thread == 0, when)):
            count = tirx.const(pieces * geometry.rows * 16, "uint32")
            self.k.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](self._pointer(node, slot), count))

    def _expect_parts(self, number: int, slot: int) -> None:
        """Say how many bytes the number-th reduction (of all, counted on) brings into a buffer."""
        geometry = self.geometry
        phase = geometry.reductions[number % len(geometry.reductions)]
        count = tirx.const(len(phase.roots) * geometry.parts * geometry.rows * 4, "uint32")
        self.k.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](self._at(self._reduce_barrier(slot)), count))

    def send_partial(self, word: Expr, words: Sequence[Expr], slot: int) -> None:
        """Lane (g, q) sends to blocks g and g + 8."""
        k = self.k
        at = k.keep(tirx.Cast("uint32", word * 4))
        for remote, past in self.peers:
            with k.when(joined(past)):
                self._send(remote + at, words, remote + tirx.const(self._reduce_barrier(slot) * 4, "uint32"))

    def _send(self, target: Expr, words: Sequence[Expr], barrier: Expr) -> None:
        """Words into a block's shared memory, and how many bytes they are to its mbarrier."""
        name = f"st_async.weak.shared::cluster.mbarrier::complete_tx::bytes.v{len(words)}.b32"
        self.k.do(I.ptx[name](target, *words, barrier))

    def meet(self, number: int) -> None:
        """A warp whose K part is all that it has of the product (no cells) gave nothing and needs nothing."""
        k, body, each = self.k, self.body, len(self.geometry.reductions)
        slot = (body.par * each + number) % 2
        # Reductions are counted through all steps; every second one uses this buffer.
        uses = tirx.floordiv(body.t, 2) * each + (body.par * each + number) // 2
        with body.cells.own_tile(0):
            self._wait(self._at(self._reduce_barrier(slot)), tirx.floormod(uses, 2))
            with k.when(self.ids.thread == 0):
                self._expect_parts(number + 2, slot)

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        """[row][units of this block]."""
        geometry, ids = self.geometry, self.ids
        units = geometry.units(node.shape[0])
        tile = self.body.cells.tile(j)
        unit = (ids.warp_u * geometry.blocks(node.shape[0]) + block) * 8 + ids.g
        at = (self.stage_word(node) + self._turn - self.stage_at) * 4 // geometry.itemsize
        self.k.store(self.view, value, at + (tile * 8 + ids.q * 2 + e) * units + unit)

    def publish_tile(self, node: Node, slot: Expr, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        """Nothing: a phase is published as a whole."""

    def phase(self, slots: Slots) -> None:
        if not slots:
            return
        k, geometry = self.k, self.geometry
        if self.joined or (self.body.copies_output and geometry.step.graph.output not in slots):
            self.sync()
        else:
            self.join()
        for node, (slot, when, y) in slots.items():
            copy = slot * geometry.value_words(node) * 4
            words = [self.passing[z] for z in range(4)]
            for stage, address, remote, past in self.sends[node]:
                k.do(I.ptx["ld.shared.v4.b32"](*words, self.arena.ptr_to([stage + self._turn])))
                with k.when(joined(when, past)):
                    target = remote + tirx.Cast("uint32", address + copy)
                    barrier = remote + tirx.const(self._barrier(node, slot) * 4, "uint32")
                    self._send(target, words, barrier)
            if y is not None:
                self._store_y(node, words, y)
        self.body.tape_stores.met()

    def _store_y(self, node: Node, words: Sequence[Expr], y: Store) -> None:
        """This block's part of y, 16 bytes per thread."""
        k, geometry, thread = self.k, self.geometry, self.ids.thread
        per_row = geometry.units(node.shape[0]) * geometry.itemsize // 16
        pieces = per_row * geometry.rows
        for i in range(-(-pieces // geometry.threads)):
            flat = thread + i * geometry.threads
            row, unit = tirx.floordiv(flat, per_row), tirx.floormod(flat, per_row) * (16 // geometry.itemsize)
            with k.when(flat < pieces):
                at = flat * 4 + self.stage_word(node) + self._turn
                k.do(I.ptx["ld.shared.v4.b32"](*words, self.arena.ptr_to([at])))
                y(row, self.ids.rank * geometry.units(node.shape[0]) + unit, words)

    def follow(self, events: Expr) -> None:
        """Nothing: rows of inputs are looked at."""


class ClusterOfOne(Cluster):
    """One block, of a wave or with products of inputs in its steps: it stores what it would send, and a barrier of the
    block lies before the first reader, in place of messages. H200, us a step: two LSTMs of 32 in a wave 0.499 -> 0.439;
    16 heads of 32 that share a matrix, both passes, 0.560 -> 0.481."""

    def _begin(self, own: Expr, block: Expr) -> Expr:
        return own

    def _send(self, target: Expr, words: Sequence[Expr], barrier: Expr) -> None:
        self.k.do(I.ptx[f"st.shared.v{len(words)}.b32"](target, *words))

    def fill(self) -> None:
        self.fill_operands()
        self.sync()
        self.geometry.exchange.blocks_meet(self.k)

    def begin_step(self) -> None:
        self.joined, self.met = not self.geometry.copy_warps, False

    def ready(self, source: Node) -> None:
        if not self.met:
            self.sync()
        self.met = True

    def meet(self, number: int) -> None:
        self.sync()
        self.met = True

    def phase(self, slots: Slots) -> None:
        super().phase(slots)
        self.met = self.met and not slots


@dataclass
class StagedTile:
    """A tile that a warp has staged and not published."""

    node: Node
    slot: Expr
    block: int
    j: int
    when: Expr | None
    y: Store | None


class Grid(Exchanger):
    """Through global memory: buffers "exchange" (words) and "counter"."""

    loads: ClassVar[str] = "ld.relaxed.gpu.global"

    def __init__(self, body: Body, stage_at: int) -> None:
        super().__init__(body, stage_at)
        self.base: Expr = tirx.Cast("int64", self.ids.group) * self.geometry.exchange_words
        self.waited = 0  # events of this step that were waited for

    def fill(self) -> None:
        """Every block publishes the initial state of its own units; the padding of K is zeroed by the first block."""
        body, geometry = self.body, self.geometry
        for state in body.step.carried:
            node, width = body.value(state), state.shape[0]
            for j in range(geometry.own_tiles):
                with body.cells.own_tile(j):
                    for block in range(geometry.blocks(width)):
                        for e in range(geometry.lane_rows):
                            registers, at = body.states[(state, block, j, e)]
                            value = body.reads.words.masked_state(state, registers[at], block, j, e)
                            self.stage(node, block, j, e, convert(body, value))
                        self.publish_tile(node, 0, block, j, None, None)
        for node in geometry.published if geometry.zeroes_padding else ():
            self._zero_padding(node)
        self.arrive()

    def _zero_padding(self, node: Node) -> None:
        """K blocks that no unit fills, in both copies, and the rest of the last one where units end inside it: they
        come in eights, a block holds 16 or 32. Once: 0 times garbage may be NaN."""
        geometry, k, ids, base = self.geometry, self.k, self.ids, self.base
        full, used = divmod(geometry.ctas * geometry.units(node.shape[0]), geometry.block_k)
        block, zero = geometry.rows * BLOCK_WORDS, tirx.const(0, "uint32")
        words = (geometry.depth_blocks(node) - full - bool(used)) * block
        with k.when(ids.rank == 0):
            for slot in range(2):
                start = geometry.value_at[node] + slot * geometry.value_words(node)
                if words:
                    with k.loop(-(-words // geometry.threads)) as i:
                        at = i * geometry.threads + ids.thread
                        with k.when(at < words):
                            k.store(k["exchange"], zero, base + (start + (full + bool(used)) * block) + at)
                if used:
                    tail = (geometry.block_k - used) * geometry.itemsize // 4
                    with k.loop(-(-geometry.rows * tail // geometry.threads)) as i:
                        flat = i * geometry.threads + ids.thread
                        with k.when(flat < geometry.rows * tail):
                            row, word = tirx.floordiv(flat, tail), BLOCK_WORDS - tail + tirx.floormod(flat, tail)
                            at = (
                                row * BLOCK_WORDS
                                + self.turned(row, tirx.floordiv(word, 4)) * 4
                                + tirx.floormod(word, 4)
                            )
                            k.store(k["exchange"], zero, base + (start + full * block) + at)

    def turned(self, row: Expr, piece: Expr) -> Expr:
        """Where a row's 16-byte piece lies in its block of K."""
        return piece

    def begin_step(self) -> None:
        self.waited = 0

    def ready(self, source: Node) -> None:
        body, events = self.body, self.geometry.events
        done = 0 if source.op == "state" else 1 + next(i for i, p in enumerate(events) if source in p.published)
        if done >= self.waited:
            self.await_operand(body.t * len(events) + 1 + done)
            self.waited = done + 1

    def await_operand(self, events: Expr) -> None:
        """Before a product. At a step's first wait, the next step's input is waited for as well."""
        if self.waited or not self.geometry.step.given:
            self.wait(events)
            return
        t = self.body.t + 1
        self.wait(events, self.body.inputs.events(t), t < self.k["steps"])

    def first_word(self, source: Node) -> Expr:
        """Of an operand, in the exchange."""
        node = self.body.value(source)
        size = self.geometry.value_words(node)
        return self.base + (self.geometry.value_at[node] + self.body.copy_of(source) * size)

    def end(self) -> None:
        """Nothing: nobody writes into another block's memory."""

    def _counter(self, name: str = "counter") -> Expr:
        return self.k[name].ptr_to([tirx.Cast("int64", self.ids.group) * COUNTER_WORDS])

    def arrive(self) -> None:
        """After all threads' writes: this block has published."""
        self.k.do(I.cuda.cta_sync())
        with self.k.when(self.ids.thread == 0):
            self.k.do(I.ptx["red.release.gpu.global.add.u32"](self._counter(), tirx.const(1, "uint32")))

    def _spin(self, counter: str, events: Expr) -> None:
        k = self.k
        seen = k.local(1, "uint32")
        k.store(seen, tirx.const(0, "uint32"), 0)
        with I.While(seen[0] < tirx.Cast("uint32", events * self.geometry.ctas)):
            k.do(I.ptx["ld.acquire.gpu.global.u32"](seen[0], self._counter(counter)))

    def wait(self, events: Expr, below: Expr | None = None, when: Expr | None = None) -> None:
        """Until every block of the group has published `events` times since the launch, and, when that holds, those
        of the layer below `below` times: another warp looks at their counter."""
        k = self.k
        with k.when(self.ids.thread == 0):
            self._spin("counter", events)
        if below is not None and when is not None:
            other = LANES if self.geometry.warps > 1 else 0
            with k.when(tirx.And(self.ids.thread == other, tirx.And(_follows(k), when))):
                self._spin("below", below)
        k.do(I.cuda.cta_sync())

    def follow(self, events: Expr) -> None:
        """The same for the layer below alone, where there is one."""
        with self.k.when(tirx.And(self.ids.thread == 0, _follows(self.k))):
            self._spin("below", events)
        self.k.do(I.cuda.cta_sync())

    def prepare(self) -> None:
        """The word, within copy 0, of the piece that this lane publishes of each tile."""
        geometry, k, ids = self.geometry, self.k, self.ids
        self.addresses: dict[tuple[Node, int, int], Expr] = {}
        self.chunk = tirx.floormod(ids.lane, 8 * self.chunks_of_row)
        for node in geometry.published:
            for j in range(geometry.own_tiles):
                for block in range(geometry.blocks(node.shape[0])):
                    register = k.local(1, "int32")
                    unit = self.body.cells.first_unit(node.shape[0], block)
                    piece = tirx.floordiv(tirx.floormod(unit, geometry.block_k) * geometry.itemsize, 16)
                    piece = piece + tirx.floormod(self.chunk, self.chunks_of_row)
                    row = self.body.cells.tile(j) * 8 + tirx.floordiv(self.chunk, self.chunks_of_row)
                    k.store(register, self.word(node, 0, tirx.floordiv(unit, geometry.block_k), row, piece), 0)
                    self.addresses[(node, block, j)] = register[0]

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        """This warp's own tile: [8 rows][8 units]."""
        self.k.store(self.view, value, self.ids.warp * 64 + (self.ids.q * 2 + e) * 8 + self.ids.g)

    def publish_tile(self, node: Node, slot: Expr, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        k, own = self.k, StagedTile(node, slot, block, j, when, y)
        k.do(I.cuda.warp_sync())
        words = [self.passing[z] for z in range(4)]
        at = self.stage_at + self.ids.warp * (16 * self.geometry.itemsize) + self.chunk * 4
        k.do(I.ptx["ld.shared.v4.b32"](*words, self.arena.ptr_to([at])))
        self._publish(own, words)
        self._write_y(own, words)
        k.do(I.cuda.warp_sync())

    def _publish(self, tile: StagedTile, words: Sequence[Expr]) -> None:
        chunks = 8 * self.chunks_of_row
        with self.k.when(joined(tile.when, self.ids.lane < chunks if chunks < LANES else None)):
            self.store_piece(tile.node, tile.slot, self.addresses[(tile.node, tile.block, tile.j)], words)

    def _write_y(self, tile: StagedTile, words: Sequence[Expr]) -> None:
        if tile.y is not None:
            cells, lane = self.body.cells, self.ids.lane
            unit = cells.first_unit(tile.node.shape[0], tile.block)
            with self.k.when(lane < 8):
                tile.y(cells.tile(tile.j) * 8 + lane, unit, words)

    def store_piece(self, node: Node, slot: Expr, address: Expr, words: Sequence[Expr]) -> None:
        place = self.base + address + slot * self.geometry.value_words(node)
        self.k.do(I.ptx["st.global.v4.b32"](self.k["exchange"].ptr_to([place]), *words))

    def phase(self, slots: Slots) -> None:
        if slots:
            self.arrive()

    def send_partial(self, word: Expr, words: Sequence[Expr], slot: int) -> None:
        with self.k.when(self.ids.g == 0):
            self.k.do(I.ptx[f"st.global.v{len(words)}.b32"](self._at(word), *words))

    def meet(self, number: int) -> None:
        self.arrive()
        events = self.geometry.events
        done = events.index(self.geometry.reductions[number]) + 1
        self.wait(self.body.t * len(events) + 1 + done)
        self.waited = done + 1

    def _at(self, word: Expr) -> Expr:
        return self.k["exchange"].ptr_to([self.base + word])


def _follows(k: Writer) -> Expr:
    return tirx.NE(k["follows"], tirx.const(0, "int32"))


class SideBySide(Grid):
    """A grid's exchange that stages all of a phase's tiles before it publishes the first."""

    def prepare(self) -> None:
        super().prepare()
        self.staged: list[StagedTile] = []

    def _place_of(self, number: int) -> Expr:
        """Of a warp's number-th tile, in elements."""
        return (self.ids.warp * self.geometry.staged_tiles + number) * 64

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        at = self._place_of(len(self.staged)) + (self.ids.q * 2 + e) * 8 + self.ids.g
        self.k.store(self.view, value, at)

    def publish_tile(self, node: Node, slot: Expr, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        self.staged.append(StagedTile(node, slot, block, j, when, y))

    def publish_tiles(self) -> list[list[Expr]]:
        """All that is staged; the words of each tile, for y."""
        k, own_tile = self.k, self.body.cells.own_tile
        words: list[Buffer] = [self.k.local(4, "uint32") for _ in self.staged]
        if self.staged:
            k.do(I.cuda.warp_sync())
        for number, tile in enumerate(self.staged):
            with own_tile(tile.j):
                at = self.stage_at + tirx.floordiv(self._place_of(number) * self.geometry.itemsize, 4) + self.chunk * 4
                four = [words[number][z] for z in range(4)]
                k.do(I.ptx["ld.shared.v4.b32"](*four, self.arena.ptr_to([at])))
        found: list[list[Expr]] = [[four[z] for z in range(4)] for four in words]
        for tile, own in zip(self.staged, found, strict=True):
            with own_tile(tile.j):
                self._publish(tile, own)
        return found

    def write_y(self, words: list[list[Expr]]) -> None:
        """What of it is the layer's output."""
        for tile, own in zip(self.staged, words, strict=True):
            if tile.y is not None:
                with self.body.cells.own_tile(tile.j):
                    self._write_y(tile, own)
        self.staged = []
