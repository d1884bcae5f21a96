"""What a persistent kernel is made of: its geometry, how its blocks exchange values, and who emits its statements.

In: a `Step` and knobs. Out: `Geometry`, what all kinds of products share: `kernel.py` writes the kernel from it,
`cuda/model/persistent_step_time.py` predicts its time, `cuda/model/choose_regime.py` packs its weights and reserves its
memory. A kind of product is a class of its own, in files of its own, that answers the rest: its layout, its map of
shared memory, its time, its registers, what it can run, and who emits its statements. How blocks exchange values is the
second axis: `Exchange`, an object that a geometry has. No other file asks for either kind.

A group of `ctas` blocks owns all units of a layer for `rows` batch rows. Gates = W h, so units are the M of a tensor
core's product and batch rows its N: a batch of 1 to 8 costs one tile. A warp owns `blocks` of 8 units and all their
gates, so a lane finds every gate of a unit in its own registers: lane (g, q) has unit g, batch rows 2q and 2q + 1 of
each tile of 8 rows.

Operands are stored as blocks of K (64 bytes of each batch row): [K block][batch row][64 bytes].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cache, cached_property
from itertools import accumulate
from math import ceil, gcd, prod
from operator import attrgetter
from typing import ClassVar, Protocol, TypeAlias

from tvm import tirx

from tvm_rnn.cuda.codegen.host_program import Host, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.phases import Operand, Phase, Step
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.tensor_expressions import Index
from tvm_rnn.tir.expr import Buffer, Expr

from .rates import Rates

MMA = {
    "bfloat16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "float16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "tf32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
}
LANES = 32
BLOCK_WORDS = 16  # 64 bytes of K
# Bytes of a line that is worth while. GRUs of 128 units, B 32, 128 steps, H200: of 128 bytes (16 members) forward 111
# and 100 us without and with lines, backward 134 and 113; of 64 (one) 57 and 62, 92 and 86.
LEAST_LINE = {"forward": 128, "backward": 64}
BLOCK_BYTES = 232448  # of shared memory, that a block may have
SPARE = 24  # registers that a kernel may have beyond the estimate where added warps leave each fewer
MOST_COPY_WARPS, COPIES = 4, 4  # one for each quarter of a multiprocessor; pieces of a step for each lane
# Registers of a thread of four warps that copy, where those that compute take what these leave, and how many of them an
# estimate leaves to spare. H200, steps of 16 GRUs of 128, B 32, T 128, us without and with: forward 100.6, 95.9,
# backward 116.9, 113.4.
COPY_REGISTERS, SPARE_TAKEN = 56, 8
COUNTER_WORDS = 32  # a counter per 128 bytes: no two groups share a line
Store = Callable[[Expr, Expr, Sequence[Expr]], None]  # (row, unit, words): 16 bytes of y
Slots: TypeAlias = "dict[Node, tuple[Expr, Expr | None, Store | None]]"  # per published value: the copy, when, y


Held = tuple[Node, int, int, int, int]  # a value of a cell: node, component, block, own tile, row of two


@dataclass(frozen=True)
class Share:
    """One operand of a product, shared out: `kblocks` blocks of K per part of K, of which `registers` stay in
    registers, `shared` in shared memory; the rest is read from L2 in every step."""

    operand: Operand
    kblocks: int
    registers: int
    shared: int

    @property
    def streamed(self) -> int:
        return self.kblocks - self.registers - self.shared


def most_registers(warps: int) -> int:
    """Registers that a thread may have, of a block of so many warps: a quarter of a multiprocessor has 16384 for its
    own warps."""
    return min(255, (1 << 14) // (LANES * ceil(warps / 4)) // 8 * 8)


def begins(**sizes: int) -> dict[str, int]:
    """Where regions of these sizes begin that lie one behind the other; "end": behind the last."""
    return dict(zip((*sizes, "end"), accumulate(sizes.values(), initial=0), strict=True))


@dataclass(frozen=True)
class ThreadIds:
    """Who a thread is: its group of blocks, its block in the group (rank), its number in the block, its warp, its lane
    (g, q), and which part of K, batch rows and units its warp has."""

    group: Expr
    rank: Expr
    thread: Expr
    warp: Expr
    lane: Expr
    g: Expr
    q: Expr
    warp_k: Expr
    warp_n: Expr
    warp_u: Expr


# --- who emits statements --------------------------------------------------------------------------------------------


class ProductEmitter(Protocol):
    """The products of one kernel. Constructed at the kernel's start, where it loads the resident weights."""

    par: int  # of the step that is being written: even or odd

    def emit(self, phase: Phase) -> Sequence[Expr]:
        """One phase's product: all gates of this lane's cells, own[(half // 2 * own_tiles + j) * 4 + half % 2 * 2 + e]
        for half in `Geometry.halves`, own tile j, row e of two."""

    def end(self) -> None:
        """At the kernel's end."""


class ExchangeEmitter(Protocol):
    """One kernel's exchange of values between blocks. Tiles are 8 units x 8 batch rows."""

    par: int

    def prepare(self) -> None:
        """Once: what every step needs, addresses in registers."""

    def fill(self) -> None:
        """Once: the initial values of carried states become operands."""

    def begin_step(self) -> None:
        """Before a step's first phase."""

    def ready(self, source: Node) -> None:
        """Wait for an operand that blocks of the group publish."""

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        """Stage one value of this lane's cell."""

    def publish_tile(self, node: Node, slot: Expr, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        """After a tile is staged. when: publish it only then. y: writes 16 bytes of y."""

    def phase(self, slots: Slots) -> None:
        """After all tiles of a phase."""

    def send_partial(self, word: Expr, words: Sequence[Expr], slot: int) -> None:
        """A warp's part of a reduction, 2 or 4 words of each lane q: they belong at `word`."""

    def meet(self, number: int) -> None:
        """After all parts of the number-th reduction are given: wait for everybody's."""

    def take(self, word: Expr, registers: Sequence[Expr]) -> None:
        """2 or 4 words of a reduction's parts."""

    def plain(self, value: Expr) -> Expr:
        """A float32 value in the storage dtype, as others may read it."""

    def sync(self) -> None:
        """A barrier of all warps of the block that compute."""

    def end(self) -> None:
        """At the kernel's end."""


class InputRows(Protocol):
    """The rows of the layer's own input that products read."""

    def prepare(self) -> None:
        """The first step's rows."""

    def stash(self, t: Expr, par: int) -> None:
        """Once in step t, when no product reads this step's rows any more."""

    def events(self, t: Expr) -> Expr:
        """How often the blocks of the layer below have published when step t of it is in memory."""


class OperandPieces(Protocol):
    """Pieces of operands that lanes copy or load for themselves."""

    def prepare(self) -> None:
        """Once: where they come from."""

    def begin_step(self) -> None:
        """Before a step's first phase."""

    def ask_inputs(self) -> bool:
        """Begin to copy the next step's inputs, once, when nobody reads this step's any more. Whether it did."""


class LaneExchange(ExchangeEmitter, Protocol):
    """An exchange whose operands lanes load themselves, 16 bytes at a time."""

    def pointer(self, node: Node, slot: int, kblock: Expr, row: Expr) -> Expr:
        """Where this lane's piece of a row is."""

    def load(self, node: Node, slot: int, kblock: Expr, row: Expr, registers: Sequence[Expr]) -> None:
        """That piece."""

    def follow(self, events: Expr) -> None:
        """Until the layer below has published so many times."""


class LaneInputs(InputRows, Protocol):
    """The same of rows of the layer's input."""

    def load(self, share: Share, kblock: int, tile: int, registers: Buffer, first: int, within: int | None) -> None:
        """This lane's piece of a block of K and a tile, of the tile's row g or `within`, to registers from `first`."""


class LanePieces(OperandPieces, Protocol):
    """The same of rows in global memory."""

    def load(self, share: Share, kblock: int, tile: int, registers: Buffer, first: int) -> None: ...


class StagedRows(Protocol):
    """Rows of inputs that warps that copy bring some steps early (`input_row_copies.py`). ids: a thread of these."""

    ids: ThreadIds
    arena: Buffer

    def stage(self, t: Expr) -> Expr: ...
    def word(self, node: Node, kblock: int, row: Expr) -> Expr: ...


class InputEmitter(Protocol):
    """Products of such rows by the warps that copy, of the first step and of a later one."""

    def begin(self) -> None: ...
    def multiply(self, t: Expr) -> None: ...


@dataclass
class Emitters:
    """Who emits the statements of one kernel."""

    exchange: ExchangeEmitter
    inputs: InputRows
    pieces: OperandPieces
    product: ProductEmitter


class HoistedPrefetch(Protocol):
    """Prefetch of hoisted values, some steps early (`cell_reads.py`)."""

    @property
    def order(self) -> Sequence[object]:
        """What is copied; empty: nothing."""


class StateMasks(Protocol):
    """Dropout masks of what products read of states (`cell_reads.py`)."""

    def masked_state(self, state: Node, value: Expr, block: int, j: int, e: int) -> Expr: ...
    def masked_state_at(self, state: Node, value: Expr, row: Expr, unit: Expr) -> Expr: ...


class Reads(Protocol):
    """What cells read from memory (`cell_reads.py`)."""

    @property
    def prefetch(self) -> HoistedPrefetch: ...

    @property
    def words(self) -> StateMasks: ...

    def now(self, t: Expr, *, prefetch: bool) -> list[Callable[[], None]]:
        """Loads of what step t reads, one statement each, or the prefetch of later ones into L2; empty unless the
        geometry reads in the step itself."""

    def reader(self, phase: Phase, block: int, j: int, e: int) -> Callable[[Node, Index], Expr | None]:
        """How expressions of one cell read stored values."""


class Tape(Protocol):
    """What training keeps, and y where that is stored a step later (`cell_epilogue.py`)."""

    @property
    def late(self) -> object:
        """None: y is stored in its own step."""

    def met(self) -> None:
        """All of a block have met behind a phase, and what is handed over has gone."""

    def pair(self, name: str, place: Place, values: Sequence[Expr], of: tuple[int, int, int], width: int) -> None: ...


class Cells(Protocol):
    """Which cells a lane has (`kernel.py`): of unit `block` and row e of two of the warp's j-th own tile."""

    def unit(self, width: int, block: int) -> Expr: ...
    def first_unit(self, width: int, block: int) -> Expr: ...
    def tile(self, j: int) -> Expr: ...
    def row(self, j: int, e: Expr) -> Expr: ...
    def own_tile(self, j: int) -> AbstractContextManager[None]: ...
    def each(self, width: int) -> Iterator[tuple[int, int, int]]: ...
    def inside(self, width: int, block: int, j: int, e: int) -> Expr: ...
    def alone(self, width: int, block: int, j: int, e: int) -> Expr: ...


class Clock(Protocol):
    """What counts cycles, where a kernel has clocks (`phase_clocks.py`)."""

    def waiting(self) -> AbstractContextManager[None]:
        """Statements that wait."""


class Resets(Protocol):
    """Lengths and resets (`lengths_and_resets.py`)."""

    def after(self, state: Node, value: Expr, block: int, j: int, e: int) -> Expr: ...
    def kept(self, value: Expr, instead: Expr, j: int, e: int) -> Expr: ...
    def restarted(self, state: Node, row: Expr, value: Expr) -> Expr: ...


class Body(Protocol):
    """The kernel that is being written, as emitters see it. t: the step; par: whether its number is even or odd. held:
    registers of values by (node, component, block, tile, e). last: the phase whose product reads an input at last."""

    k: Writer
    geometry: Geometry
    layout: Layout
    step: Step
    ids: ThreadIds
    arena: Buffer
    par: int
    t: Expr
    last: Phase | None
    held: dict[Held, Expr]

    @property
    def clock(self) -> Clock: ...

    @property
    def tape_stores(self) -> Tape: ...

    @property
    def cells(self) -> Cells: ...

    @property
    def reads(self) -> Reads: ...

    @property
    def masks(self) -> Resets | None: ...

    @property
    def states(self) -> dict[tuple[Node, int, int, int], tuple[Buffer, int]]: ...

    def first_states(self, number: int) -> Iterator[tuple[Buffer, AbstractContextManager[None]]]: ...

    @property
    def exchange(self) -> ExchangeEmitter: ...

    @property
    def copies_output(self) -> bool:
        """Whether warps that copy store y."""

    @property
    def inputs(self) -> InputRows: ...

    @property
    def carried(self) -> set[Node]:
        """Published values that the next step reads."""

    def time(self, t: Expr) -> Expr:
        """Row 0 of step t in arrays [T, B, ...]."""

    def order(self, t: Expr) -> Expr:
        """Where step t, of those of this launch, is in order of time."""

    def value(self, source: Node) -> Node:
        """The published value behind an operand."""

    def copy_of(self, source: Node) -> int:
        """Which copy of its value an operand is in."""

    def ready(self, share: Share) -> None:
        """Wait until an operand is there."""


# --- how blocks exchange values ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopiedOutput:
    """y in shared memory, as the warps that copy find it behind a step's barrier. lag: how many steps before that one
    it is of; first, units: the block's own; apart: elements from an even step's to an odd one's; element: of a row and
    one of these units, of an even step."""

    lag: int
    first: Expr
    units: int
    apart: int
    element: Callable[[Expr, Expr], Expr]


class Exchange(ABC):
    """The exchange of values between the blocks of a group, as planning sees it. Implementations are frozen, and have
    no state: `exchange.py`, `exchange_by_polling.py`."""

    name: ClassVar[str]  # in kernels' names
    in_memory: ClassVar[bool]  # values travel through global memory, and all blocks must be on the GPU at once
    polls: ClassVar[bool] = False  # a reader loads a value until it is there
    marks: ClassVar[bool] = False  # a layer knows by the values themselves what the layer below has written
    lines: ClassVar[bool] = False  # all of a block meet in every step: what training keeps may be stored behind that
    stages: ClassVar[bool] = True  # values wait in shared memory for others, and y is stored from there
    # Products wait for nobody else: what is stored of the step before waits for them, not they for it.
    stores_late: ClassVar[bool] = False
    rates: ClassVar[Rates]

    @property
    def of_inputs(self) -> Exchange:
        """Of warps that multiply inputs for others; itself: it has none."""
        return self

    def prefetch_steps(self, geometry: Geometry) -> int:
        """Stages of hoisted values: copies begin one step less early."""
        return 4

    @abstractmethod
    def place(self, k: Writer, geometry: Geometry) -> tuple[Expr, Expr]:
        """This block's group, and its rank in there."""

    @abstractmethod
    def exchanger(self, body: Body, stage_at: int, barriers_at: int) -> LaneExchange:
        """Who emits it, for lanes that load operands as fragments of mma.sync. Words of shared memory."""

    @abstractmethod
    def inputs(self, body: Body, exchange: LaneExchange, pieces: LanePieces, at: int) -> LaneInputs:
        """Who brings the layer's input, for such lanes."""

    @abstractmethod
    def pieces(self, body: Body) -> LanePieces:
        """Who loads pieces of it, without copies."""

    # Sizes.

    def cluster(self, geometry: Geometry) -> int:
        """Blocks that are launched as a cluster."""
        return 1

    # What warps that copy ask for, where it `copies_apart`.

    def copies_apart(self, geometry: Geometry) -> bool:
        """Whether warps of their own copy hoisted values and y (`copy_warps.py`)."""
        return False

    def blocks_meet(self, k: Writer) -> None:
        """A barrier of all blocks of a group."""
        raise NotImplementedError

    def copied_output(self, geometry: Geometry, rank: Expr) -> CopiedOutput:
        """Where y lies that they store, of a block of this rank."""
        raise NotImplementedError

    def operand_words(self, geometry: Geometry) -> int:
        """Words of shared memory for what blocks exchange."""
        return 0

    def stage_words(self, geometry: Geometry) -> int:
        """Words of shared memory in which values are staged before they are published: tiles of each warp."""
        return geometry.warps * geometry.staged_tiles * 64 * geometry.itemsize // 4

    def input_words(self, geometry: Geometry) -> int:
        """Words of shared memory for rows of inputs."""
        return 0

    def input_registers(self, geometry: Geometry) -> int:
        """Registers of a thread that hold pieces of an input."""
        return 0

    def phase_us(self, geometry: Geometry, phase: Phase, cells: int) -> float:
        """What a phase takes beside `rates`, us. cells: of a lane."""
        return 0.0

    # Memory and launches, as C++ text. groups: how many there are, in B. words: that a group exchanges.

    def value_bytes(self, groups: str, words: int, steps: str | int) -> str | int:
        """What all groups exchange in so many steps, bytes."""
        return 0

    def zero_bytes(self, groups: str) -> str | int:
        """Of the memory for a launch, what is set to 0 before it: counters."""
        return 0

    def work_bytes(self, groups: str, at_once: str, words: int) -> str | int:
        """The memory of a launch, bytes. at_once: groups that run at the same time, at most."""
        return 0

    @abstractmethod
    def launches(
        self, host: Host, geometry: Geometry, groups: str, resident: int, work: Pointer, steps: str | int
    ) -> Iterator[tuple[str, str, list[Pointer]]]:
        """Of one layer alone: (first batch row, groups, further pointers) of each launch that is to be written. Memory
        is prepared."""

    def clear_for_wave(
        self, host: Host, counters: Pointer, counter_bytes: str, values: Pointer, value_bytes: str | int
    ) -> None:
        """Prepare the memory of all layers of a wave."""
        return None


# --- the geometry -----------------------------------------------------------------------------------------------------


@cache
def _knobs(kind: type[Geometry]) -> Callable[[Geometry], tuple[Hashable, ...]]:
    """All fields of a kind of geometry but the step."""
    return attrgetter(*(field.name for field in fields(kind) if field.name != "step"))


@dataclass(frozen=True)
class Geometry(ABC):
    """step: of a layer. precision: of products. ctas: blocks of a group, which owns all units. rows: batch rows of a
    group. warps_u, warps_n, warps_k: how a block's warps share units, batch rows and K (or, where sums of all parts of
    K meet in shared memory, how they share cells). register_words: weight words (of 4 bytes) that a thread may keep.
    shared_words: weight words per lane in shared memory. passes: in which the batch rows are multiplied: more passes
    need fewer registers, and read weights that are not in registers again. stored: the dtype of weights
    (`cuda/layer/fp8_weights.py`) where it is not `storage`.
    """

    step: Step
    precision: str
    exchange: Exchange
    ctas: int
    rows: int
    warps_u: int = 1
    warps_n: int = 1
    warps_k: int = 1
    register_words: int = 128
    shared_words: int = 0
    passes: int = 1
    stored: str = ""

    alignment: ClassVar[int] = 128  # of shared memory, bytes
    streams: ClassVar[bool] = False  # weights may come from L2 in every step
    address_registers: ClassVar[int] = 30
    # Cells' values are loaded in the step that reads them, while its product is under way: steps are long, and short of
    # the registers and the memory that values of later steps would take.
    reads_in_step: ClassVar[bool] = False
    zeroes_padding: ClassVar[bool] = True  # products read what no unit writes, which must be 0
    wants: ClassVar[str]  # what `possible` asks for, in words
    # The order of packed weights depends on the kind, on parts of K and on how many blocks of K stay in registers.
    registers_apart: ClassVar[bool] = False

    # --- what each kind of product answers ---------------------------------------------------------------------------

    @property
    @abstractmethod
    def possible(self) -> bool:
        """Whether a kernel can be written."""

    @abstractmethod
    def block_words(self, phase: Phase) -> int:
        """Words of weights of one block of K, per lane."""

    @property
    @abstractmethod
    def partial_words(self) -> int:
        """Words of shared memory for the sums of parts of K."""

    @abstractmethod
    def product_registers(self) -> int:
        """An estimate per thread: weights, and sums and operands of the largest product."""

    @abstractmethod
    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        """Position in the packed weights -> (index into the weight node, valid)."""

    @property
    @abstractmethod
    def rates(self) -> Rates:
        """What was fitted of it, for `cuda/model/persistent_step_time.py`."""

    @abstractmethod
    def product_us(self, phase: Phase) -> float:
        """How long a phase's product takes, predicted, us."""

    @abstractmethod
    def emitters(self, body: Body) -> Emitters:
        """Who emits the statements, each with its place in `body.arena`."""

    @property
    def input_product(self) -> Geometry | None:
        """Of products of inputs, as the warps that copy make them; None: others do."""
        return None

    def input_emitter(self, k: Writer, rows: StagedRows) -> InputEmitter | None:
        """Who emits those."""
        return None

    # --- what most kinds have in common ------------------------------------------------------------------------------

    @property
    def key(self) -> Hashable:
        """What tells it from others of the same step."""
        return type(self), _knobs(type(self))(self)

    def multiplier(self, operand: Operand) -> Geometry:
        """How those warps share a product that multiply this operand."""
        found = self.input_product
        return self if found is None or not operand.given else found

    def packing(self, phase: Phase, share: Share) -> tuple[Hashable, ...]:
        """What the order of packed weights depends on: geometries of equal packing share them."""
        if (other := self.multiplier(share.operand)) is not self:
            return other.packing(phase, share)
        found = (self.ctas, self.warps_u, self.warps_k, share.kblocks, self.blocks(phase.width))
        own = (type(self).__name__, self.k_parts, share.registers, self.threads)
        return (*found, *own) if self.registers_apart else found

    def weight_at(
        self, phase: Phase, share: Share, gate: Expr, unit: Expr, k: Expr, *, valid: Expr
    ) -> tuple[tuple[Expr, ...], Expr]:
        """(index into the weight node, valid): of what is packed in place of a gate of a unit, and a depth."""
        inside = tirx.And(valid, tirx.And(unit < phase.width, k < share.operand.depth))
        if len(share.operand.weight.shape) == 3:
            return (gate, unit, k), inside
        return (gate * phase.width + unit, k), inside

    def first_unit(self, phase: Phase, cta: Expr, warp_u: Expr, block: Expr) -> Expr:
        """The first of a block of 8 units."""
        return cta * self.units(phase.width) + (warp_u * self.blocks(phase.width) + block) * 8

    @cached_property
    def memory_map(self) -> dict[str, int]:
        """Where regions of shared memory begin, in words."""
        return begins(partial=self.partial_words, stage=self.stage_words, prefetch=self.prefetch_words)

    @property
    def prefetch_at(self) -> int:
        """The word of shared memory where hoisted values are copied to."""
        return self.memory_map["prefetch"]

    @property
    def own_bytes(self) -> int:
        """Of shared memory, per block: behind all regions two mbarriers per value, and for reductions."""
        return 4 * self.memory_map["end"] + max(256, 16 * (len(self.published) + 1))

    @property
    def tape_at(self) -> int:
        """The byte where rows begin that go to the tape as lines (`tape_lines.py`)."""
        return -(-self.own_bytes // 128) * 128

    @cached_property
    def line_width(self) -> int:
        """Units of the values that a block stores as lines; 0: none. Those of which it has most, where its part of a
        row is as long as is worth while, and two steps' rows have room."""
        widths = self.step.line_widths
        if not self.exchange.lines or not widths:
            return 0
        width = max(widths, key=lambda width: widths.count(width) * width)
        whole = self.tape_at + 2 * self._lines_of(width) <= BLOCK_BYTES
        return width if whole and self.units(width) * 2 >= LEAST_LINE[self.step.graph.kind] else 0

    @property
    def lines(self) -> int:
        """Of a row: vectors that are stored as lines."""
        return self.step.line_widths.count(self.line_width) if self.line_width else 0

    @property
    def line_pitch(self) -> int:
        """Bytes from a line to the next: eight of them lie in different banks."""
        return self.units(self.line_width) * 2 + 16

    @property
    def line_pieces(self) -> int:
        """Of 16 bytes, of all rows of a block's lines of one vector."""
        return self.rows * self.units(self.line_width) // 8

    def _lines_of(self, width: int) -> int:
        """Bytes of a step's lines."""
        return self.step.line_widths.count(width) * self.rows * (self.units(width) * 2 + 16)

    @property
    def line_bytes(self) -> int:
        return self._lines_of(self.line_width)

    @property
    def shared_bytes(self) -> int:
        """Of shared memory, per block."""
        return self.tape_at + 2 * self.line_bytes if self.line_width else self.own_bytes

    @property
    def cluster(self) -> int:
        """Blocks that are launched as a cluster."""
        return self.exchange.cluster(self)

    @property
    def k_parts(self) -> int:
        """Parts of K, each with a share of the weights."""
        return self.warps_k

    @property
    def part_lanes(self) -> int:
        """Lanes that share the weights of one part of K."""
        return LANES * self.warps_u

    @property
    def staged_tiles(self) -> int:
        """Tiles of a warp that are published together."""
        return 1

    def warp_place(self, warp: Expr) -> tuple[Expr, Expr, Expr]:
        """Which part of K, batch rows and units a warp has."""
        n = tirx.floormod(tirx.floordiv(warp, self.warps_k), self.warps_n)
        return tirx.floormod(warp, self.warps_k), n, tirx.floordiv(warp, self.warps_k * self.warps_n)

    @property
    def follows(self) -> bool:
        """Whether the layer can follow another one in a wave."""
        return not self.exchange.polls

    def extra_us(self, groups: int) -> float:
        """What a step takes beside its phases, us, where so many groups run at once."""
        return 0.0

    @property
    def slowdown(self) -> float:
        """Of a whole step."""
        return 1.0

    @property
    def hopper(self) -> bool:
        """Whether it takes what Hopper GPUs alone have: clusters, wgmma, bulk copies."""
        return True

    def fits(self, registers: int = 255, shared_bytes: int = BLOCK_BYTES) -> bool:
        """Whether a block fits on an SM. 255 registers per thread, 64 K per SM."""
        most = min(registers, self.most_of_thread)
        return self.block_threads <= 1024 and self.registers <= most and self.shared_bytes <= shared_bytes

    @cached_property
    def registers(self) -> int:
        """An estimate per thread, used to discard what would spill: of the product, cells, and what addresses take."""
        total = self.product_registers()
        for number, phase in enumerate(self.step.phases):
            cells = self.blocks(phase.width) * self.own_tiles * 2
            reads = self.step.reads[number]
            early = [self.reads_in_step or node.mask or self.prefetches(phase, node, slot) for node, slot in reads]
            total += (2 * len(reads) - sum(map(bool, early))) * cells
        for state in self.step.graph.states:
            total += self.blocks(state.shape[0]) * self.own_tiles * 2
        return int(total + self.address_registers)

    @property
    def kept_registers(self) -> int:
        """Registers of a thread that hold weights."""
        return sum(s.registers * self.block_words(p) for p, s in self.weights if self.multiplier(s.operand) is self)

    # --- types, warps and tiles --------------------------------------------------------------------------------------

    @property
    def storage(self) -> str:
        return "float32" if self.precision in ("tf32", "float32") else self.precision

    @property
    def itemsize(self) -> int:
        return 4 if self.storage == "float32" else 2

    @property
    def block_k(self) -> int:
        """Elements of K in one block."""
        return BLOCK_WORDS * 4 // self.itemsize

    @property
    def warps(self) -> int:
        return self.warps_u * self.warps_n * self.warps_k

    @property
    def threads(self) -> int:
        """Of the warps that compute."""
        return LANES * self.warps

    @cached_property
    def copy_warps(self) -> int:
        """Warps that copy hoisted values, y and lines while the others compute (`copy_warps.py`): a lane has few pieces
        of a step. Weights in 8 bits leave no registers for them."""
        if self.input_product is not None:
            return MOST_COPY_WARPS
        reads = any(not operand.given for phase in self.step.phases for operand in phase.operands)
        if not self.exchange.copies_apart(self) or self.stored or not reads:
            return 0
        output = self.step.graph.output.shape[0]
        pieces = self.prefetch_words // 4 // self.prefetch_steps + self.lines * self.line_pieces
        stored = self.rows * min(output, self.units(output)) * self.itemsize // gcd(16, output * self.itemsize)
        wanted = min(MOST_COPY_WARPS, ceil((pieces + stored) / (COPIES * LANES)) if pieces else 0)
        # Registers that others have less of then; an estimate wants some to spare.
        room = {n: most_registers(self.warps + n) for n in range(wanted, 0, -1)}
        same, registers = most_registers(self.warps), self.registers
        found = next((n for n, most in room.items() if registers + (SPARE if most < same else 0) <= most), 0)
        moved = wanted and self.lines and registers + SPARE_TAKEN <= self._taken_registers
        return found or (MOST_COPY_WARPS if moved else 0)

    @property
    def _taken_registers(self) -> int:
        """Registers of a thread that computes, beside four warps that leave some: whole groups of four warps."""
        warps = self.warps + MOST_COPY_WARPS
        left = most_registers(warps) * warps - COPY_REGISTERS * MOST_COPY_WARPS
        return 0 if self.warps % 4 else min(255, left // self.warps // 8 * 8)

    @cached_property
    def moved_registers(self) -> tuple[int, int] | None:
        """Registers of a thread that copies and of one that computes; None: all have equally many."""
        if not self.copy_warps or self.registers <= most_registers(self.warps + self.copy_warps):
            return None
        return COPY_REGISTERS, self._taken_registers

    @property
    def most_of_thread(self) -> int:
        """Registers that a thread that computes may have."""
        return self.moved_registers[1] if self.moved_registers else most_registers(self.warps + self.copy_warps)

    @cached_property
    def weights_of_lane(self) -> int:
        """Words of weights that a lane multiplies in a step."""
        every = ((phase, operand) for phase in self.step.phases for operand in phase.operands)
        own = ((phase, operand) for phase, operand in every if self.multiplier(operand) is self)
        return sum(self.block_words(p) * (self.operand_blocks(o) // self.k_parts) for p, o in own)

    @property
    def block_threads(self) -> int:
        """Of a block."""
        return self.threads + LANES * self.copy_warps

    @property
    def tiles(self) -> int:
        """Tiles of 8 batch rows of one warp."""
        return -(-self.rows // 8) // self.warps_n

    @property
    def lane_rows(self) -> int:
        """Rows of a tile whose cells a lane computes: of fewer than eight the first lanes of each unit have cells."""
        return min(2, self.rows)

    @property
    def pass_tiles(self) -> int:
        """Of these, the ones of one pass."""
        return self.tiles // self.passes

    @property
    def pass_own(self) -> int:
        """Of a pass, the tiles whose cells a warp computes after the K parts are summed."""
        return -(-self.pass_tiles // self.warps_k)

    @property
    def own_tiles(self) -> int:
        """All tiles whose cells a warp computes."""
        return self.pass_own * self.passes

    def own_tile(self, j: int, warp_k: Expr) -> Expr:
        """The j-th own tile, among the warp's `tiles`."""
        if self.warps_k == 1:
            return j
        return j // self.pass_own * self.pass_tiles + j % self.pass_own * self.warps_k + warp_k

    def owned(self, j: int, warp_k: Expr) -> Expr | None:
        """Whether this warp has a j-th tile; None: every warp has."""
        within = j % self.pass_own
        if self.warps_k == 1 or (within + 1) * self.warps_k <= self.pass_tiles:
            return None
        return within * self.warps_k + warp_k < self.pass_tiles

    def blocks(self, width: int) -> int:
        """Blocks of 8 units per warp."""
        return -(-width // (8 * self.ctas * self.warps_u))

    def units(self, width: int) -> int:
        """Units per CTA."""
        return 8 * self.warps_u * self.blocks(width)

    def halves(self, phase: Phase) -> list[tuple[int, int]]:
        """(gate, block) of each 8 rows of the product, two of which make one MMA tile."""
        return [(gate, block) for block in range(self.blocks(phase.width)) for gate in range(phase.gates)]

    def m_tiles(self, phase: Phase) -> int:
        return -(-self.blocks(phase.width) * phase.gates // 2)

    @cached_property
    def products(self) -> tuple[Phase, ...]:
        return tuple(p for p in self.step.phases if p.kind == "gemm")

    @property
    def most_m_tiles(self) -> int:
        """Of a product."""
        return max(map(self.m_tiles, self.products), default=0)

    def turn(self, phase: Phase, par: int) -> int:
        """Which of two places a product has that take turns, in even and in odd steps."""
        return (par * len(self.products) + self.products.index(phase)) % 2

    # --- weights -----------------------------------------------------------------------------------------------------

    @cached_property
    def weights(self) -> tuple[tuple[Phase, Share], ...]:
        """Every product's operands, in the order of the kernel's weight pointers."""
        return tuple((phase, share) for phase in self.step.phases for share in self.shares[phase])

    @property
    def weight_names(self) -> dict[Share, str]:
        """Pointers to packed weights."""
        return {share: f"weight_{number}" for number, (_, share) in enumerate(self.weights)}

    @property
    def scale_names(self) -> dict[Share, str]:
        """Pointers to the scales of weights in 8 bits: one for each weight."""
        return {share: f"scale_{number}" for number, (_, share) in enumerate(self.weights)} if self.stored else {}

    @cached_property
    def read_names(self) -> dict[Node, str]:
        """Pointers to hoisted values and inputs that cells read."""
        return {node: f"read_{number}" for number, node in enumerate(self.step.read_nodes)}

    def separated(self, phase: Phase) -> bool:
        """Whether an exchange lies between the product before this one and this: else its sums may still be read."""
        phases = self.step.phases
        at = phases.index(phase)
        for other in (*reversed(phases[:at]), *reversed(phases[at:])):
            if other.published:
                return True
            if other.kind == "gemm":
                return False
        return False

    def depth_blocks(self, source: Node) -> int:
        """K blocks of an operand: whole blocks per part of K, those of padded units included."""
        width = source.shape[0] if source.op == "input" else self.ctas * self.units(source.shape[0])
        return ceil(ceil(width / self.block_k) / self.k_parts) * self.k_parts

    def operand_blocks(self, operand: Operand) -> int:
        """K blocks that a warp multiplies, whole ones per part of K."""
        return self.depth_blocks(operand.source)

    def block_of(self, share: Share, kblock: int, ids: ThreadIds) -> Expr:
        """Which of an operand's blocks of K a warp multiplies as its kblock-th."""
        number = tirx.const(kblock, "int32")
        return number if self.warps_k == 1 else ids.warp_k * share.kblocks + number

    @cached_property
    def shares(self) -> dict[Phase, tuple[Share, ...]]:
        """Registers are given to the products in order, those that wait for nobody's values last; then shared memory;
        what is left is streamed."""
        registers, shared, made = self.register_words, self.shared_words, {}
        every = [(phase, operand) for phase in self.step.phases for operand in phase.operands]
        if (other := self.input_product) is not None:
            (products,) = other.shares.values()
            made = {(phase, share.operand): share for phase, o in every for share in products if share.operand == o}
            every = [pair for pair in every if not pair[1].given]
        for phase, operand in sorted(every, key=lambda pair: pair[1].given):
            kblocks = self.operand_blocks(operand) // self.k_parts
            words = self.block_words(phase)
            kept = min(kblocks, registers // words)
            registers -= kept * words
            near = min(kblocks - kept, shared // words)
            shared -= near * words
            made[phase, operand] = Share(operand, kblocks, kept, near)
        return {phase: tuple(made[phase, operand] for operand in phase.operands) for phase in self.step.phases}

    @property
    def weight_words(self) -> int:
        """Weights in shared memory, in words per block."""
        lanes = self.k_parts * self.part_lanes
        return sum(s.shared * self.block_words(p) * lanes for p, parts in self.shares.items() for s in parts)

    def weight_elements(self, phase: Phase, share: Share) -> int:
        if (other := self.multiplier(share.operand)) is not self:
            return other.weight_elements(phase, share)
        words = self.block_words(phase) * share.kblocks
        return self.ctas * self.k_parts * self.part_lanes * words * 4 // (1 if self.stored else self.itemsize)

    # --- hoisted values ----------------------------------------------------------------------------------------------

    def prefetches(self, phase: Phase, node: Node, slot: int) -> bool:
        """Whether a hoisted value's component is prefetched into shared memory, 8 units at a time
        (`cell_reads.py`). Masks are words."""
        # Inputs: on an H200 6.6 us in place of 7.2 in a grid (GRU 1024 backwards, B = 32), 2.15 in place of 1.84 in
        # clusters (LSTM 256).
        aligned = node in self.step.whole and (self.exchange.in_memory or self.step.heads > 1)
        whole = node.op != "input" or aligned
        # Rows of hoisted values begin at multiples of 16 bytes, further components of odd widths do not.
        alone = node.op != "input" and self.step.heads == 1 and prod(node.shape) == phase.width > 1
        pieces = slot >= 0 and (phase.width % 8 == 0 or alone)
        return not self.reads_in_step and whole and pieces and not node.mask and node not in self.step.wide

    @property
    def prefetched_values(self) -> int:
        """Hoisted values of a cell that are prefetched."""
        pairs = zip(self.step.phases, self.step.reads, strict=True)
        return sum(self.prefetches(phase, node, slot) for phase, reads in pairs for node, slot in reads)

    @cached_property
    def prefetch_steps(self) -> int:
        """Stages of hoisted values."""
        return self.exchange.prefetch_steps(self)

    @property
    def prefetching_warps(self) -> int:
        """Warps that copy hoisted values. Weights in 8 bits leave no room for those without cells."""
        return self.warps // self.warps_k * min(self.warps_k, self.pass_tiles) if self.stored else self.warps

    @property
    def prefetch_words(self) -> int:
        pairs = zip(self.step.phases, self.step.reads, strict=True)
        tiles = [self.blocks(p.width) for p, reads in pairs for node, slot in reads if self.prefetches(p, node, slot)]
        return self.prefetch_steps * self.prefetching_warps * sum(tiles) * self.own_tiles * 64 * self.itemsize // 4

    # --- values and inputs -------------------------------------------------------------------------------------------

    def value_words(self, node: Node) -> int:
        """One copy of a published value, or of an input's rows, in words of 4 bytes."""
        return self.depth_blocks(node) * self.rows * BLOCK_WORDS

    @cached_property
    def published(self) -> tuple[Node, ...]:
        return tuple(n for p in self.step.phases for n in p.published)

    @property
    def publishes_whole_blocks(self) -> bool:
        """Whether every word of what products read is written in every step: no block of K is padded."""
        return all(self.ctas * self.units(n.shape[0]) == self.depth_blocks(n) * self.block_k for n in self.published)

    @property
    def products_alone(self) -> bool:
        """Whether every phase is a product."""
        return all(p.kind == "gemm" for p in self.step.phases)

    @cached_property
    def value_at(self) -> dict[Node, int]:
        """Where each published value (two copies, for even and odd steps) begins, in words."""
        found, at = {}, 0
        for node in self.published:
            found[node] = at
            at += 2 * self.value_words(node)
        return found

    @property
    def exchange_words(self) -> int:
        return self.reduce_at + 2 * self.reduce_words

    @property
    def events(self) -> tuple[Phase, ...]:
        """Phases that end with an exchange."""
        return tuple(p for p in self.step.phases if p.published or p.kind == "reduce")

    @property
    def reductions(self) -> tuple[Phase, ...]:
        return tuple(p for p in self.step.phases if p.kind == "reduce")

    @property
    def parts(self) -> int:
        """Partial results per row of a reduction over units: one per warp that shares them."""
        return self.ctas * self.warps_u

    @property
    def reduce_at(self) -> int:
        """Where partial results begin, in words: after the values."""
        return sum(2 * self.value_words(n) for n in self.published)

    @property
    def reduce_words(self) -> int:
        """One of the two buffers that reductions use in turn."""
        return max((len(p.roots) for p in self.reductions), default=0) * self.parts * self.rows

    @property
    def stage_words(self) -> int:
        """Where values are staged before they are published."""
        return self.exchange.stage_words(self)

    @property
    def phase_tiles(self) -> int:
        """Tiles of a warp in one phase, at most."""
        tiles: list[int] = [sum(self.blocks(n.shape[0]) for n in p.published) for p in self.step.phases]
        tiles.append(sum(self.blocks(s.shape[0]) for s in self.step.carried))
        return max(1, *tiles) * self.own_tiles
