"""A persistent kernel: all steps of one layer in one launch, written from the step's phases.

In: a `Geometry`. Out: a `Kernel` and the order of its pointers. The kernel loads its weights once; then, for every step
and phase: wait for the operand, multiply, sum the K parts, compute the pointwise values of its own units in registers,
publish what products read, and ask for the hoisted values of the step after next.

Rewrite: for t: for phase: gemm; pointwise  -->  one launch; units over blocks, phases separated by exchanges
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, Expr

from .cell_epilogue import Epilogue, TapeStores
from .cell_epilogue import pointers as kept_pointers
from .cell_reads import CellReads, place_of
from .copy_warps import CopyWarps, copies_output
from .geometry import Geometry, Held, Share, ThreadIds
from .lane_cells import Block, LaneCells, StepOrder, identify
from .lengths_and_resets import Masks
from .phase_clocks import POINTER, PhaseClock, clocks
from .tape_lines import name_of
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
USERS = ("users", "int32")  # 1: states are the user's, in the network's dtype


def pointers(geometry: Geometry, layout: Layout, masked: bool = False) -> list[tuple[str, str]]:
    """Pointers: weights, scales, parameters, hoisted values and inputs, states, y, kept values, a grid's exchange."""
    step = geometry.step
    found = [(f"weight_{n}", "uint32" if geometry.stored else geometry.storage) for n in range(len(geometry.weights))]
    found += [(name, "float32") for name in geometry.scale_names.values()]
    found += [(f"param_{n}", "float32") for n in range(len(step.param_nodes))]
    found += [(name, place_of(layout, node).dtype) for node, name in geometry.read_names.items()]
    found += [(f"x_{n}", geometry.storage) for n in range(len(step.given))]
    found += [(f"{which}_{n}", "float32") for which in ("old", "new") for n in range(len(step.graph.states))]
    found += [("y", layout.output.dtype), *kept_pointers(layout), *([POINTER] if clocks() else [])]
    if geometry.exchange.in_memory:
        found += [("exchange", "uint32"), ("counter", "uint32"), ("below", "uint32")]
    return [*found, *(MASK_POINTERS if masked else ())]


def converts_states(geometry: Geometry, layout: Layout) -> bool:
    """Whether the kernel takes states in the network's dtype too, where that is not the one of registers. One that
    exchanges through memory does not: it is for large layers, which leave no register for it."""
    return layout.narrow_states and not geometry.exchange.in_memory


def scalars(geometry: Geometry, layout: Layout, masked: bool = False) -> tuple[tuple[str, str], ...]:
    """Its scalars. Where states of the user's are as the kernel has them, pointers say all there is to say."""
    return (*SCALARS, *([USERS] if converts_states(geometry, layout) else []), *(MASK_SCALARS if masked else ()))


def strides_of_heads(geometry: Geometry, layout: Layout) -> dict[str, int]:
    """Elements from one head to the next, by pointer."""
    step = geometry.step
    found = {f"weight_{n}": geometry.weight_elements(*own) for n, own in enumerate(geometry.weights)}
    found |= {f"param_{n}": layout.side_by_side(node) for n, node in enumerate(step.param_nodes)}
    found |= {name: layout.side_by_side(node) for node, name in geometry.read_names.items()}
    found |= {f"x_{n}": layout.side_by_side(node) for n, node in enumerate(step.given)}
    found |= {f"{way}_{n}": s.shape[0] for way in ("old", "new") for n, s in enumerate(step.graph.states)}
    found |= {name_of(own): own.apart for own in layout.taped}
    return found | ({"y": step.graph.output.shape[0]} if layout.emits else {})


def enter(k: Writer, geometry: Geometry, shared_bytes: int) -> Block:
    """The first statements of a kernel of this geometry, whose blocks have so much shared memory."""
    place = geometry.exchange.place(k, geometry)
    thread = I.thread_id([geometry.block_threads])
    arena: Buffer = I.alloc_buffer((shared_bytes // 4,), "uint32", scope="shared.dyn", align=geometry.alignment)
    return Block(*place, thread, arena)


def of_head(k: Writer, geometry: Geometry, layout: Layout, block: Block) -> Block:
    """Heads lie beside each other in all that the kernel reads and writes: its pointers become those of this head. What
    is left of the group's number is that of its batch rows."""
    heads = layout.heads
    if heads == 1:
        return block
    head = k.keep(tirx.floormod(block.group, heads))
    for name, elements in strides_of_heads(geometry, layout).items():
        whole = k[name]
        k.arguments[name] = I.decl_buffer(whole.shape, whole.dtype, data=whole.data, elem_offset=head * elements)
    return replace(block, group=tirx.floordiv(block.group, heads))


def kernel(name: str, geometry: Geometry, layout: Layout, initial: Mapping[str, float] | None = None) -> Kernel:
    """The kernel of a geometry. The scalar "teams" counts its groups of blocks; blocks of a grid must all be resident.
    initial: what states are after a reset, for a kernel that knows lengths and resets; None for one that does not."""
    if not geometry.possible:
        raise ValueError(f"no kernel can be written for this geometry: {geometry.wants}")
    masked = initial is not None
    attributes = COOPERATIVE if geometry.exchange.in_memory else {}

    def body(k: Writer) -> None:
        with I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):  # else ptxas may stop at 128 registers, and spill
            block = of_head(k, geometry, layout, enter(k, geometry, geometry.shared_bytes))
            with k.when(block.thread < geometry.threads) if geometry.copy_warps else nullcontext():
                if geometry.moved_registers:
                    k.do(I.ptx["setmaxnreg.inc.sync.aligned.u32"](geometry.moved_registers[1]))
                KernelBody(k, geometry, layout, initial, block).emit()
            if geometry.copy_warps:
                with k.when(block.thread >= geometry.threads):
                    if geometry.moved_registers:
                        k.do(I.ptx["setmaxnreg.dec.sync.aligned.u32"](geometry.moved_registers[0]))
                    CopyWarps(k, geometry, layout, block, masked).emit()

    with flavour(geometry.precision):
        return write(
            name,
            pointers(geometry, layout, masked),
            scalars(geometry, layout, masked),
            body,
            threads=geometry.block_threads,
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

        self.arena, self.steps = block.arena, StepOrder(k)
        self.order, self.time = self.steps.order, self.steps.time
        self.ids = self._identify(block)
        self.clock = PhaseClock(self, len(self.step.phases))
        self.cells = LaneCells(k, geometry, self.ids)
        self.reads = CellReads(self, geometry.prefetch_at)
        self.stores_late = geometry.exchange.stores_late
        self.copies_output = copies_output(geometry, layout, initial is not None)
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
        pinned = self.pinned = k.local(3, "int32")
        for n, value in enumerate((block.group, block.rank, block.thread)):
            k.store(pinned, value, n)
        group, rank, thread = pinned[0], pinned[1], pinned[2]
        return identify(geometry, group, rank, thread)

    def _identify_again(self) -> None:
        """What follows computes its addresses anew: compilers cannot tell that these numbers are the same, as no number
        of steps is negative."""
        none = tirx.shift_right(self.k["steps"], tirx.const(31, "int32"))
        for n in range(3):
            self.k.store(self.pinned, tirx.bitwise_or(self.pinned[n], none), n)

    # --- start and end -----------------------------------------------------------------------------------------------

    def _state_at(self, width: int, block: int, j: int, e: int) -> Expr:
        row = tirx.Cast("int64", self.cells.row(j, e)) * (width * self.layout.heads)
        return row + self.cells.unit(width, block) if width > 1 else row

    def _load_states(self) -> None:
        for n, state in enumerate(self.step.graph.states):
            width = self.step.domain[state]
            cells = list(self.cells.each(width))
            registers = self.k.local(len(cells))
            for at in range(len(cells)):
                self.k.store(registers, tirx.const(0.0, "float32"), at)
            for old, condition in self.first_states(n):
                with condition:
                    for at, (block, j, e) in enumerate(cells):
                        with self.cells.own_tile(j), self.k.when(self.cells.inside(width, block, j, e)):
                            value = converted(old[self._state_at(width, block, j, e)], "float32")
                            self.k.store(registers, value, at)
            for at, (block, j, e) in enumerate(cells):
                if self.masks is not None:
                    self.k.store(registers, self.masks.started(0, state, registers[at], j, e), at)
                self.states[(state, block, j, e)] = (registers, at)

    def _store_states(self) -> None:
        if self.geometry.stored:  # codes leave no register for what is needed once: kept over all steps it would spill
            self._identify_again()
        for n, state in enumerate(self.step.graph.states):
            width = self.step.domain[state]
            own = [(key[1:], place) for key, place in self.states.items() if key[0] is state]
            for new, condition in self._each(f"new_{n}"):
                with condition:
                    for (block, j, e), (registers, at) in own:
                        with self.cells.own_tile(j), self.k.when(self.cells.alone(width, block, j, e)):
                            value = converted(registers[at], str(new.dtype))
                            self.k.store(new, value, self._state_at(width, block, j, e))

    def first_states(self, number: int) -> Iterator[tuple[Buffer, AbstractContextManager[None]]]:
        """Of a state: where its first values may be, each with the condition under which they are there."""
        return self._each(f"old_{number}")

    def _each(self, name: str) -> Iterator[tuple[Buffer, AbstractContextManager[None]]]:
        """The array of states behind a pointer: the copy in the dtype of registers, or the user's."""
        own, k = self.k[name], self.k
        if not converts_states(self.geometry, self.layout):
            yield own, nullcontext()
            return
        users = tirx.NE(k[USERS[0]], tirx.const(0, "int32"))
        yield own, k.when(tirx.Not(users))
        # Not tirx.reinterpret: a pass that TVM runs for GPUs before sm_90 takes no pointer there.
        place = I.bind(tirx.call_pure_extern("handle", "reinterpret_cast<void*>", own.ptr_to([0])))
        yield I.decl_buffer(own.shape, self.layout.dtype, data=place), k.when(users)

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
