"""A persistent kernel: all steps of one layer in one launch, written from the step's phases.

In: a `Geometry`. Out: a `Kernel` and the order of its pointers. The kernel loads its weights once; then, for every step
and phase: wait for the operand, multiply, sum the K parts, compute the pointwise values of its own units in registers,
publish what products read, and ask for the hoisted values of the step after next.

Rewrite: for t: for phase: gemm; pointwise  -->  one launch; units over blocks, phases separated by exchanges
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, Expr

from .cell_epilogue import Epilogue, TapeStores, name_of
from .cell_epilogue import pointers as kept_pointers
from .cell_reads import CellReads, place_of
from .geometry import LANES, Geometry, Held, Share, ThreadIds
from .lengths_and_resets import Masks
from .phase_clocks import POINTER, PhaseClock, clocks
from .unit_reduction import Reduction

COOPERATIVE = {"tirx.kernel_launch_params": ["tirx.use_cooperative_launch"]}
SCALARS = (
    ("steps", "int32"),  # how many, at least 1
    ("direction", "int32"),  # +1 or -1
    ("batch", "int32"),  # B: rows of the arrays
    ("row0", "int32"),  # the first batch row of this launch
    ("teams", "int32"),
    ("follows", "int32"),  # 1: the input is what a layer below writes meanwhile
)


def pointers(geometry: Geometry, layout: Layout, masked: bool = False) -> list[tuple[str, str]]:
    """Pointers: weights, scales, parameters, hoisted values and inputs, states, y, kept values, a grid's exchange."""
    step = geometry.step
    found = [(f"weight_{n}", "uint32" if geometry.stored else geometry.storage) for n in range(len(geometry.weights))]
    found += [(name, "float32") for name in geometry.scale_names.values()]
    found += [(f"param_{n}", "float32") for n in range(len(step.param_nodes))]
    found += [(f"read_{n}", place_of(layout, node).dtype) for n, node in enumerate(step.read_nodes)]
    found += [(f"x_{n}", geometry.storage) for n in range(len(step.given))]
    found += [(f"{which}_{n}", "float32") for which in ("old", "new") for n in range(len(step.graph.states))]
    found += [("y", layout.output.dtype), *kept_pointers(layout), *([POINTER] if clocks() else [])]
    if geometry.exchange.in_memory:
        found += [("exchange", "uint32"), ("counter", "uint32"), ("below", "uint32")]
    return [*found, *(MASK_POINTERS if masked else ())]


def strides_of_heads(geometry: Geometry, layout: Layout) -> dict[str, int]:
    """Elements from one head to the next, by pointer."""
    step = geometry.step
    found = {f"weight_{n}": geometry.weight_elements(*own) for n, own in enumerate(geometry.weights)}
    found |= {f"param_{n}": layout.side_by_side(node) for n, node in enumerate(step.param_nodes)}
    found |= {f"read_{n}": layout.side_by_side(node) for n, node in enumerate(step.read_nodes)}
    found |= {f"x_{n}": layout.side_by_side(node) for n, node in enumerate(step.given)}
    found |= {f"{way}_{n}": s.shape[0] for way in ("old", "new") for n, s in enumerate(step.graph.states)}
    found |= {name_of(own): own.apart for own in layout.taped}
    return found | ({"y": step.graph.output.shape[0]} if layout.emits else {})


@dataclass(frozen=True)
class Block:
    """Who a thread of a kernel is: its group of blocks, its block's rank in there, its number in the block; and the
    block's shared memory."""

    group: Expr
    rank: Expr
    thread: Expr
    arena: Buffer


def enter(k: Writer, geometry: Geometry, shared_bytes: int) -> Block:
    """The first statements of a kernel of this geometry, whose blocks have so much shared memory."""
    place = geometry.exchange.place(k, geometry)
    thread = I.thread_id([geometry.threads])
    arena: Buffer = I.alloc_buffer((shared_bytes // 4,), "uint32", scope="shared.dyn", align=geometry.alignment)
    return Block(*place, thread, arena)


def kernel(name: str, geometry: Geometry, layout: Layout, initial: Mapping[str, float] | None = None) -> Kernel:
    """The kernel of a geometry. The scalar "teams" counts its groups of blocks; blocks of a grid must all be resident.
    initial: what states are after a reset, for a kernel that knows lengths and resets; None for one that does not."""
    if not geometry.possible:
        raise ValueError(f"no kernel can be written for this geometry: {geometry.wants}")
    masked = initial is not None
    attributes = COOPERATIVE if geometry.exchange.in_memory else {}

    def body(k: Writer) -> None:
        with I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):  # else ptxas may stop at 128 registers, and spill
            KernelBody(k, geometry, layout, initial, enter(k, geometry, geometry.shared_bytes)).emit()

    with flavour(geometry.precision):
        return write(
            name,
            pointers(geometry, layout, masked),
            (*SCALARS, *(MASK_SCALARS if masked else ())),
            body,
            threads=geometry.threads,
            attributes=attributes,
            shared_bytes=geometry.shared_bytes,
            cluster=geometry.cluster,
            resident=geometry.exchange.in_memory,
        )


class KernelBody:
    """Emits the body (see `Body`). `held` maps (node, component, block, tile, e) to the register that holds a value."""

    def __init__(
        self, k: Writer, geometry: Geometry, layout: Layout, initial: Mapping[str, float] | None, block: Block
    ) -> None:
        self.k, self.geometry, self.layout, self.step, self.initial = k, geometry, layout, geometry.step, initial
        self.held: dict[Held, Expr] = {}
        self.par: int = 0
        self.t: Expr = tirx.const(0, "int32")
        reading = [p for p in self.step.phases if any(o.given for o in p.operands)]
        self.last = reading[-1] if reading else None  # phase whose product reads an input
        self.stashed = False
        self.carried = {self.step.result(s) for s in self.step.carried}
        self.states: dict[tuple[Node, int, int, int], tuple[Buffer, int]] = {}

        self.arena = block.arena
        self.ids = self._identify(block)
        self.clock = PhaseClock(self, len(self.step.phases))
        self.cells = LaneCells(k, geometry, self.ids)
        self.reads = CellReads(self, geometry.prefetch_at)
        self.stores_late = geometry.exchange.stores_late
        self.tape_stores = TapeStores(self, self.stores_late and initial is None)
        self.masks: Masks | None = None
        emitters = geometry.emitters(self)
        self.exchange, self.inputs = emitters.exchange, emitters.inputs
        self.pieces, self.product = emitters.pieces, emitters.product

    def emit(self) -> None:
        self.reads.load_params()
        self.reads.words.prepare()
        self.tape_stores.prepare()
        self.masks = None if self.initial is None else Masks(self, self.initial)
        self._load_states()
        self.exchange.prepare()
        self.exchange.fill()  # initial values of carried states become operands; the first hoisted values are asked for
        self.reads.prepare()
        self.inputs.prepare()
        self.pieces.prepare()
        if self.masks is not None:
            self.masks.ask(1, tirx.const(1, "int32"))
        self.clock.prepare()
        steps = self.k["steps"]
        with self.k.loop(tirx.floordiv(steps + 1, 2)) as pair:
            for par in range(2):
                with self.k.when(pair * 2 + par < steps) if par else nullcontext():
                    self._step(par, pair * 2 + par)
        self.clock.end()
        self._store_states()
        self.tape_stores.end()
        self.exchange.end()
        self.product.end()

    def _identify(self, block: Block) -> ThreadIds:
        """Who this thread is. Special registers are read once, into registers."""
        geometry, k = self.geometry, self.k
        place = block.group, block.rank
        if self.layout.heads > 1:
            place = self._of_head(*place)
        self.first: Buffer = k.local(1, "int32")
        k.store(self.first, tirx.Select(k["direction"] < 0, k["steps"] - 1, tirx.const(0, "int32")), 0)
        pinned = self.pinned = k.local(3, "int32")
        for n, value in enumerate((*place, block.thread)):
            k.store(pinned, value, n)
        group, rank, thread = pinned[0], pinned[1], pinned[2]
        warp, lane = tirx.floordiv(thread, LANES), tirx.floormod(thread, LANES)
        g, q = tirx.floordiv(tirx.floormod(thread, LANES), 4), tirx.floormod(thread, 4)
        return ThreadIds(group, rank, thread, warp, lane, g, q, *geometry.warp_place(warp))

    def _identify_again(self) -> None:
        """What follows computes its addresses anew: compilers cannot tell that these numbers are the same, as no number
        of steps is negative."""
        none = tirx.shift_right(self.k["steps"], tirx.const(31, "int32"))
        for n in range(3):
            self.k.store(self.pinned, tirx.bitwise_or(self.pinned[n], none), n)

    def _of_head(self, team: Expr, rank: Expr) -> tuple[Expr, Expr]:
        """Heads lie beside each other in all that the kernel reads and writes: its pointers become those of this head.
        What is left of the group's number is that of its batch rows."""
        k, heads, layout = self.k, self.layout.heads, self.layout
        head = k.keep(tirx.floormod(team, heads))
        for name, elements in strides_of_heads(self.geometry, layout).items():
            whole = k[name]
            k.arguments[name] = I.decl_buffer(whole.shape, whole.dtype, data=whole.data, elem_offset=head * elements)
        return tirx.floordiv(team, heads), rank

    # --- start and end -----------------------------------------------------------------------------------------------

    def _state_at(self, width: int, block: int, j: int, e: int) -> Expr:
        row = tirx.Cast("int64", self.cells.row(j, e)) * (width * self.layout.heads)
        return row + self.cells.unit(width, block) if width > 1 else row

    def _load_states(self) -> None:
        for n, state in enumerate(self.step.graph.states):
            width = self.step.domain[state]
            cells = list(self.cells.each(width))
            registers = self.k.local(len(cells))
            for at, (block, j, e) in enumerate(cells):
                self.k.store(registers, tirx.const(0.0, "float32"), at)
                with self.cells.own_tile(j), self.k.when(self.cells.inside(width, block, j, e)):
                    self.k.store(registers, self.k[f"old_{n}"][self._state_at(width, block, j, e)], at)
                if self.masks is not None:
                    self.k.store(registers, self.masks.started(0, state, registers[at], j, e), at)
                self.states[(state, block, j, e)] = (registers, at)

    def _store_states(self) -> None:
        if self.geometry.stored:  # codes leave no register for what is needed once: kept over all steps it would spill
            self._identify_again()
        for (state, block, j, e), (registers, at) in self.states.items():
            new, width = self.k[f"new_{self.step.graph.states.index(state)}"], self.step.domain[state]
            with self.cells.own_tile(j), self.k.when(self.cells.alone(width, block, j, e)):
                self.k.store(new, registers[at], self._state_at(width, block, j, e))

    def time(self, t: Expr) -> Expr:
        return tirx.Cast("int64", self.order(t)) * self.k["batch"]

    def order(self, t: Expr) -> Expr:
        return self.first[0] + self.k["direction"] * t

    # --- a step ------------------------------------------------------------------------------------------------------

    def _step(self, par: int, t: Expr) -> None:
        self.par, self.t, self.stashed = par, t, False
        self.product.par = self.exchange.par = par
        self.held = {}
        if self.masks is not None:
            self.masks.begin(t)
        self.exchange.begin_step()
        self.pieces.begin_step()
        self.reads.prefetch.begin(t)
        self.reads.words.begin(t)
        late = next((p for p in self.step.phases if p.kind == "gemm"), None) if self.stores_late else None
        if late is None:
            self.tape_stores.before()
        for number, phase in enumerate(self.step.phases):
            self.phase = phase
            self.clock.enter(number, "product" if phase.kind == "gemm" else "cells")
            if phase.kind == "reduce":
                Reduction(self, phase).emit()
            else:
                gates = self.product.emit(phase) if phase.kind == "gemm" else ()
                if phase is late:
                    self.tape_stores.before()
                self.clock.enter(number, "cells")
                self._stash(phase)
                Epilogue(self, phase, gates).emit()
            self.tape_stores.phase(phase)
            self.reads.phase(phase, par, t)
        self.pieces.ask_inputs()
        for (state, block, j, e), (registers, at) in self.states.items():
            with self.cells.own_tile(j):
                value = self.held[(self.step.result(state), 0, block, j, e)]
                if self.masks is not None:
                    value = self.masks.after(state, value, block, j, e)
                self.k.store(registers, value, at)
        self.reads.after(par, t)
        if self.masks is not None:
            self.masks.ask(par, t + 2)

    def value(self, source: Node) -> Node:
        return self.step.result(source) if source.op == "state" else source

    def copy_of(self, source: Node) -> int:
        """Which copy: a state's value for step t is in copy t % 2; one of the same step too, unless it is a state."""
        carried = self.value(source) in self.carried
        return self.par if source.op == "state" or not carried else 1 - self.par

    def ready(self, share: Share) -> None:
        if not share.operand.given:
            self._stash(self.phase)
            with self.clock.waiting():
                self.exchange.ready(share.operand.source)

    def _stash(self, phase: Phase) -> None:
        """Once per step, when no product reads this step's input any more, before a wait if there is one."""
        if self.stashed or phase is not self.last:
            return
        self.stashed = True
        self.inputs.stash(self.t, self.par)


class LaneCells:
    """The cells of this thread. Construct once, at the kernel's start: rows are kept in registers."""

    def __init__(self, k: Writer, geometry: Geometry, ids: ThreadIds) -> None:
        self.k, self.geometry, self.ids = k, geometry, ids
        self.rows = k.local(geometry.own_tiles, "int32")
        for j in range(geometry.own_tiles):
            row = k["row0"] + ids.group * geometry.rows + self.tile(j) * 8 + ids.q * 2
            k.store(self.rows, row, j)

    def unit(self, width: int, block: int) -> Expr:
        """This lane's unit: of the `block`-th of its blocks of 8."""
        return self.first_unit(width, block) + self.ids.g

    def first_unit(self, width: int, block: int) -> Expr:
        """The first unit of a block of 8."""
        geometry, ids = self.geometry, self.ids
        return ids.rank * geometry.units(width) + (ids.warp_u * geometry.blocks(width) + block) * 8

    def tile(self, j: int) -> Expr:
        """The batch tile of this warp's j-th own one, among the group's."""
        return self.ids.warp_n * self.geometry.tiles + self.geometry.own_tile(j, self.ids.warp_k)

    def row(self, j: int, e: Expr) -> Expr:
        """The batch row, in the arrays."""
        return self.rows[j] + e

    def own_tile(self, j: int) -> AbstractContextManager[None]:
        """Statements for warps that have a j-th tile."""
        owned = self.geometry.owned(j, self.ids.warp_k)
        return nullcontext() if owned is None else self.k.when(owned)

    def each(self, width: int) -> Iterator[tuple[int, int, int]]:
        """(block, own tile, row of two) of every cell of a value so wide."""
        blocks = 1 if width == 1 else self.geometry.blocks(width)
        return ((b, j, e) for j in range(self.geometry.own_tiles) for b in range(blocks) for e in range(2))

    def alone(self, width: int, block: int, j: int, e: int) -> Expr:
        """The same for one lane of those that know a cell: all do where it is one number per row."""
        inside, ids = self.inside(width, block, j, e), self.ids
        if width > 1:
            return inside
        first = tirx.And(tirx.EQ(ids.g, 0), tirx.And(tirx.EQ(ids.rank, 0), tirx.EQ(ids.warp_u, 0)))
        return tirx.And(first, inside)

    def inside(self, width: int, block: int, j: int, e: int) -> Expr:
        """Whether a cell is one of the layer's: rows and units are padded."""
        inside = self.row(j, e) < self.k["batch"]
        if width > 1 and self.geometry.ctas * self.geometry.units(width) != width:
            inside = tirx.And(inside, self.unit(width, block) < width)
        return inside
