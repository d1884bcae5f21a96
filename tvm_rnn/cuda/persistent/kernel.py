"""A persistent kernel: all steps of one layer in one launch, written from the step's phases.

In: a `Team`. Out: a `Kernel` and the order of its pointers. The kernel loads its weights once; then, for every step and
phase: wait for the operand, multiply, sum the K parts, compute the pointwise values of its own units in registers,
hand over what products read, and ask for the hoisted values of the step after next.

Rewrite: for t: for phase: gemm; pointwise  -->  one launch; units over blocks, phases separated by exchanges
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.persistent.product.mma_sync import scale_names, weights
from tvm_rnn.cuda.persistent.product.wgmma_staged_layout import warp_place
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.scalar_cuda import flavour

from . import tape_stores
from .cell_epilogue import Epilogue
from .cell_reads import hoisted, params, place_of
from .geometry import LANES, Share, Team
from .initial_operands import fill_cluster, fill_grid
from .layer_input_rows import given
from .lengths_and_resets import POINTERS as MASK_POINTERS
from .lengths_and_resets import SCALARS as MASK_SCALARS
from .lengths_and_resets import Masks
from .shared_memory_map import check, lay_out
from .unit_reduction import Reduction

Expr = Any
SCALARS = (
    ("steps", "int32"),  # how many, at least 1
    ("direction", "int32"),  # +1 or -1
    ("batch", "int32"),  # B: rows of the arrays
    ("row0", "int32"),  # the first batch row of this launch
    ("teams", "int32"),
    ("follows", "int32"),  # 1: the input is what a layer below writes meanwhile
)


def pointers(team: Team, layout: Layout, masked: bool = False) -> list[tuple[str, str]]:
    """Pointers: weights, scales, parameters, hoisted values and inputs, states, y, kept values, a grid's exchange."""
    step = team.step
    found = [(f"weight_{n}", "uint32" if team.stored else team.storage) for n in range(len(weights(team)))]
    found += [(name, "float32") for name in scale_names(team).values()]
    found += [(f"param_{n}", "float32") for n in range(len(params(team)))]
    found += [(f"read_{n}", place_of(layout, node).dtype) for n, node in enumerate(hoisted(team))]
    found += [(f"x_{n}", team.storage) for n in range(len(given(team)))]
    found += [(f"old_{n}", "float32") for n in range(len(step.graph.states))]
    found += [(f"new_{n}", "float32") for n in range(len(step.graph.states))]
    found += [("y", layout.output.dtype)]
    found += tape_stores.pointers(layout)
    if team.exchange == "grid":
        found += [("exchange", "uint32"), ("counter", "uint32"), ("below", "uint32")]
    return [*found, *(MASK_POINTERS if masked else ())]


def kernel(name: str, team: Team, layout: Layout, initial: Mapping[str, float] | None = None) -> Kernel:
    """The kernel of a team. Its teams are counted by the scalar "teams"; blocks of a grid must all be resident.
    initial: what states are after a reset, for a kernel that knows lengths and resets; None for one that does not."""
    check(team)
    masked = initial is not None
    attributes = {"tirx.kernel_launch_params": ["tirx.use_cooperative_launch"]} if team.exchange == "grid" else {}
    with flavour(team.precision):
        return write(
            name,
            pointers(team, layout, masked),
            (*SCALARS, *(MASK_SCALARS if masked else ())),
            lambda k: _body(k, team, layout, initial),
            threads=team.threads,
            attributes=attributes,
            shared_bytes=team.shared_bytes,
            cluster=team.ctas if team.exchange == "cluster" else team.together,
            resident=team.exchange == "grid",
        )


def _body(k: Writer, team: Team, layout: Layout, initial: Mapping[str, float] | None) -> None:
    with I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):  # else ptxas may stop at 128 registers, and spill
        Body(k, team, layout, initial).emit()


class Body:
    """Emits the body. `held` maps (node, component, block, tile, e) to the register that holds a value."""

    arena: Any
    copies: Any
    exchange: Any
    inputs: Any
    operands: Any
    product: Any
    reads: Any

    def __init__(self, k: Writer, team: Team, layout: Layout, initial: Mapping[str, float] | None) -> None:
        self.k, self.team, self.layout, self.step, self.initial = k, team, layout, team.step, initial
        self.masks: Masks | None = None
        self.keeping = tape_stores.Keeping(self)
        self.held: dict[tuple[Any, ...], Expr] = {}
        self.par, self.t = 0, tirx.const(0, "int32")
        reading = [p for p in self.step.phases if any(o.given for o in p.operands)]
        self.last = reading[-1] if reading else None  # phase whose product reads an input

    def emit(self) -> None:
        team = self.team
        self._identify()
        lay_out(self)
        self.reads.load_params()
        self.reads.words.prepare()
        self.masks = None if self.initial is None else Masks(self, self.initial)
        self._load_states()
        self.exchange.prepare()
        self._start()
        self._time_loop()
        self._store_states()
        self.inputs.end()
        if team.exchange == "cluster":
            self._cluster_sync()
        if team.ring:
            self.product.ring.meet()

    def _identify(self) -> None:
        """Who this thread is. Special registers are read once, into registers."""
        team, k = self.team, self.k
        if team.exchange == "cluster":
            group, rank = I.cluster_id([k["teams"]]), I.cta_id_in_cluster([team.ctas])
        else:
            block = I.cta_id([k["teams"] * team.ctas]) if team.together == 1 else self._clustered(team.together)
            group, rank = tirx.floordiv(block, team.ctas), tirx.floormod(block, team.ctas)
        thread = I.thread_id([team.threads])
        self.first = k.local(1, "int32")
        k.store(self.first, tirx.Select(k["direction"] < 0, k["steps"] - 1, tirx.const(0, "int32")), 0)
        pinned = k.local(3, "int32")
        for n, value in enumerate((group, rank, thread)):
            k.store(pinned, value, n)
        group, rank, thread = pinned[0], pinned[1], pinned[2]
        warp = tirx.floordiv(thread, LANES)
        self.ids = SimpleNamespace(
            team=group,
            rank=rank,
            thread=thread,
            warp=warp,
            lane=tirx.floormod(thread, LANES),
            g=tirx.floordiv(tirx.floormod(thread, LANES), 4),
            q=tirx.floormod(thread, 4),
            **warp_place(team, warp),
        )
        self.rows = k.local(team.own_tiles, "int32")
        for j in range(team.own_tiles):
            row = k["row0"] + group * team.rows + self._tile(j) * 8 + self.ids.q * 2
            k.store(self.rows, row, j)

    def _clustered(self, together: int) -> Expr:
        """The number of a block in a grid of clusters."""
        cluster = I.cluster_id([self.k["teams"] * (self.team.ctas // together)])
        return cluster * together + I.cta_id_in_cluster([together])

    # --- cells -------------------------------------------------------------------------------------------------------

    def _unit(self, width: int, block: int) -> Expr:
        """This lane's unit: `block`-th of its blocks of 8."""
        return self._unit0(width, block) + self.ids.g

    def _unit0(self, width: int, block: int) -> Expr:
        team, ids = self.team, self.ids
        return ids.rank * team.units(width) + (ids.warp_u * team.blocks(width) + block) * 8

    def _tile(self, j: int) -> Expr:
        """The batch tile of this warp's j-th own one, among the team's."""
        team, ids = self.team, self.ids
        own = team.own_tile(j, ids.warp_k)
        return ids.warp_n * team.tiles + own

    def _row(self, j: int, e: int) -> Expr:
        """This lane's batch row, in the arrays."""
        return self.rows[j] + e

    @contextmanager
    def _own_tile(self, j: int) -> Iterator[None]:
        team = self.team
        owned = team.owned(j, self.ids.warp_k)
        if owned is None:
            yield
        else:
            with self.k.when(owned):
                yield

    def _cells(self, width: int) -> Iterator[tuple[int, int, int]]:
        blocks = 1 if width == 1 else self.team.blocks(width)
        return ((b, j, e) for j in range(self.team.own_tiles) for b in range(blocks) for e in range(2))

    def _inside(self, width: int, block: int, j: int, e: int) -> Expr:
        """Whether a cell is one of the layer's: rows and units are padded."""
        inside = self._row(j, e) < self.k["batch"]
        if width > 1 and self.team.ctas * self.team.units(width) != width:
            inside = tirx.And(inside, self._unit(width, block) < width)
        return inside

    # --- start and end -----------------------------------------------------------------------------------------------

    def _state_at(self, width: int, block: int, j: int, e: int) -> Expr:
        return tirx.Cast("int64", self._row(j, e)) * width + self._unit(width, block)

    def _load_states(self) -> None:
        self.states: dict[tuple[Node, int, int, int], tuple[Any, int]] = {}
        for n, state in enumerate(self.step.graph.states):
            width = self.step.domain[state]
            cells = list(self._cells(width))
            registers = self.k.local(len(cells))
            for at, (block, j, e) in enumerate(cells):
                self.k.store(registers, tirx.const(0.0, "float32"), at)
                with self._own_tile(j), self.k.when(self._inside(width, block, j, e)):
                    self.k.store(registers, self.k[f"old_{n}"][self._state_at(width, block, j, e)], at)
                if self.masks is not None:
                    self.k.store(registers, self.masks.started(0, state, registers[at], j, e), at)
                self.states[(state, block, j, e)] = (registers, at)

    def _store_states(self) -> None:
        for n, state in enumerate(self.step.graph.states):
            width = self.step.domain[state]
            for block, j, e in self._cells(width):
                registers, at = self.states[(state, block, j, e)]
                with self._own_tile(j), self.k.when(self._inside(width, block, j, e)):
                    self.k.store(self.k[f"new_{n}"], registers[at], self._state_at(width, block, j, e))

    def _start(self) -> None:
        """The initial values of carried states become operands; the first hoisted values are asked for."""
        if self.team.exchange == "cluster":
            fill_cluster(self)
            self.exchange.start()
            self.k.do(I.cuda.cta_sync())
            self._cluster_sync()
        else:
            fill_grid(self)
            self.exchange.arrive()
        self.reads.prepare()
        self.inputs.prepare()
        self.copies.prepare()
        if self.masks is not None:
            self.masks.ask(1, tirx.const(1, "int32"))

    def _cluster_sync(self) -> None:
        self.k.do(I.ptx["barrier.cluster.arrive.release.aligned"]())
        self.k.do(I.ptx["barrier.cluster.wait.acquire.aligned"]())

    def _time(self, t: Expr) -> Expr:
        """Row 0 of step t in arrays [T, B, ...]."""
        return tirx.Cast("int64", self._local(t)) * self.k["batch"]

    def _local(self, t: Expr) -> Expr:
        """Where step t, of those of this launch, is in order of time."""
        return self.first[0] + self.k["direction"] * t

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _time_loop(self) -> None:
        steps = self.k["steps"]
        with self.k.loop(tirx.floordiv(steps + 1, 2)) as pair:
            for par in range(2):
                with self.k.when(pair * 2 + par < steps) if par else nullcontext():
                    self._step(par, pair * 2 + par)

    def _step(self, par: int, t: Expr) -> None:
        self.par, self.t, self.waited, self.stashed, self.asked = par, t, 0, False, False
        self.product.par = self.exchange.par = par
        self.held = {}
        if self.masks is not None:
            self.masks.begin(t)
        self._arm()
        self.reads.fetch.begin(t)
        self.reads.words.begin(t)
        self.keeping.before()
        for phase in self.step.phases:
            self.phase = phase
            gates: list[Expr] = []
            if phase.kind == "gemm":
                if self.team.ring:
                    for share in self.team.shares[phase]:
                        self._ready(share)
                    first = phase is self.step.phases[0]
                    reads = [self.reads.now(t, fetch=far) if first else [] for far in (False, True)]
                    gates = self.product.emit(phase, self._source, *reads)
                else:
                    gates = self.product.emit(phase, self._loader(), self._ready)
                self._stash(phase)
            (Reduction(self, phase) if phase.kind == "reduce" else Epilogue(self, phase, gates)).emit()
            self.keeping.phase(phase)
            self.reads.phase(phase, par, t)
        self.copies.ask_inputs()
        for state in self.step.graph.states:
            width, result = self.step.domain[state], self.step.result(state)
            for block, j, e in self._cells(width):
                registers, at = self.states[(state, block, j, e)]
                with self._own_tile(j):
                    value = self.held[(result, 0, block, j, e)]
                    if self.masks is not None:
                        value = self.masks.after(state, value, block, j, e)
                    self.k.store(registers, value, at)
        self.reads.after(par, t)
        if self.masks is not None:
            self.masks.ask(par, t + 2)

    def value(self, source: Node) -> Node:
        """The published value behind an operand."""
        return self.step.result(source) if source.op == "state" else source

    def _copy(self, source: Node, carried: bool) -> int:
        """Which copy: a state's value for step t is in copy t % 2; one of the same step too, unless it is a state."""
        return self.par if source.op == "state" or not carried else 1 - self.par

    def _arm(self) -> None:
        if self.team.exchange != "cluster":
            return
        for node in self.team.published:
            if node in self._carried():
                self._arm_next(node)
            else:
                self.exchange.expect(node, self.par)

    def _carried(self) -> set[Node]:
        return {self.step.result(s) for s in self.step.carried}

    def _arm_next(self, node: Node) -> None:
        same_step = any(o.source is node for p in self.step.phases for o in p.operands)
        when = None if same_step else self.t + 1 < self.k["steps"]
        self.exchange.expect(node, 1 - self.par, when)

    def _ready(self, share: Share) -> None:
        if not share.operand.given:
            self._stash(self.phase)
            self._wait(share.operand.source)

    def _stash(self, phase: Phase) -> None:
        """Once per step, when no product reads this step's input any more, before a wait if there is one."""
        if self.stashed or phase is not self.last:
            return
        self.stashed = True
        self.inputs.stash(self.t, self.par)

    def _wait(self, source: Node) -> None:
        node, k = self.value(source), self.k
        carried = node in self._carried()
        if self.team.exchange == "cluster":
            tau = self.t if source.op == "state" else self.t + 1
            slot = self._copy(source, carried)
            count = tirx.floordiv(tau - 1, 2) if carried else tirx.floordiv(self.t, 2)
            with k.when(self.t > 0) if source.op == "state" and self.par == 0 else nullcontext():
                self.exchange.wait(node, slot, tirx.floormod(count, 2))
            return
        events = self.team.events
        done = 0 if source.op == "state" else 1 + next(i for i, p in enumerate(events) if source in p.published)
        if done >= self.waited:
            count = self.t * len(events) + 1 + done
            if self.team.ring:
                self.exchange.due = count
            else:
                self.exchange.wait(count, *self._below())
            self.waited = done + 1

    def _below(self) -> tuple[Expr, Expr] | tuple[()]:
        """At a step's first wait: the next step's input is waited for as well, and when."""
        if self.waited or not given(self.team):
            return ()
        return self.inputs.events(self.t + 1), self.t + 1 < self.k["steps"]

    def _source(self, share: Any) -> Expr:
        """The first word of a share's operand, in the exchange."""
        source, team = share.operand.source, self.team
        node = self.value(source)
        slot = self._copy(source, node in self._carried())
        return self.exchange.base + (team.value_at[node] + slot * team.value_words(node))

    def _loader(self) -> Callable[..., None]:
        def load(share: Any, kblock: int, tile: int, pieces: Any, at: int, within: int | None = None) -> None:
            source = share.operand.source
            if share.operand.given:
                if self.team.exchange == "cluster":
                    self.inputs.load(share, kblock, tile, pieces, at, within)
                else:
                    self.copies.load(share, kblock, tile, pieces, at)
                return
            node = self.value(source)
            ids, team = self.ids, self.team
            block = ids.warp_k * share.kblocks + kblock if team.warps_k > 1 else kblock
            row = (ids.warp_n * team.tiles + tile) * 8 + (ids.g if within is None else within)
            slot = self._copy(source, node in self._carried())
            self.exchange.load(node, slot, block, row, [pieces[at + z] for z in range(4)])

        return load
