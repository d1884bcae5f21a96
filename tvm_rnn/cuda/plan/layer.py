"""One layer on the GPU: its kernels, and the statements that run them on a tile of time.

In: a graph with groups, a precision. Out: kernels (one per group; restart, freeze, states in and out), and host
statements for one tile: the hoisted groups over all its rows, recurrences over all time among them; then, where
something is left for steps and no persistent regime takes over, one launch per group and step. The layers and
directions that share a graph share the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.codegen.vector_access import aligned
from tvm_rnn.cuda.gemm.group_kernels import Gemm, gemm, multiplies_early
from tvm_rnn.cuda.layer.made_again import MadeAgain
from tvm_rnn.cuda.layer.matrix_operands import (
    AgainOperands,
    MatrixOperands,
    is_again,
    is_matrix,
    marked,
    marks_dtype,
    prepared,
)
from tvm_rnn.cuda.layer.pointers import Argument, Place, storage
from tvm_rnn.cuda.layer.regime import LayerSteps, Regime, by_batch
from tvm_rnn.cuda.layer.row_kernels import Job, Rows, rows_kernel, sources
from tvm_rnn.cuda.layer.user_states import UserStates, user_states
from tvm_rnn.cuda.layer.value_layout import ROW_BYTES, Layout, RowSums, Target
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.linear.matrix_again import MatrixAgain, matrix_again
from tvm_rnn.cuda.linear.matrix_scan import MatrixScan, matrix_scan
from tvm_rnn.cuda.linear.pair import EVERY
from tvm_rnn.cuda.linear.vector_scan import VectorScan, vector_scan
from tvm_rnn.cuda.matrix.on_chip import OnChip
from tvm_rnn.cuda.model.choose_regime import Persistent, choose
from tvm_rnn.cuda.model.few_steps import BATCHES, few_steps
from tvm_rnn.cuda.model.launched_step_time import predict_steps
from tvm_rnn.cuda.model.persistent_step_time import predict
from tvm_rnn.cuda.model.start_time import start_us
from tvm_rnn.cuda.plan.launches import LaunchedRows, launch
from tvm_rnn.cuda.plan.passing_rows import PassingRows
from tvm_rnn.cuda.rowwise.chained_groups import chained_groups, chained_groups_kernel, held
from tvm_rnn.cuda.rowwise.dropout_masks import BITS, WORD, MaskRows, mask_kernel
from tvm_rnn.cuda.rowwise.live_rows import LiveRows
from tvm_rnn.cuda.rowwise.row_copies import RowCopy, row_copies
from tvm_rnn.cuda.rowwise.scan_over_time import Scan
from tvm_rnn.cuda.rowwise.state_moves import Buffers, InPlace, StateKernels, Step, Tile, elsewhere
from tvm_rnn.decisions import about
from tvm_rnn.graph.graph import Graph, Group, Node, is_scan
from tvm_rnn.network.rnn import constants
from tvm_rnn.options import Options
from tvm_rnn.target import HOPPER
from tvm_rnn.target import Target as Machine

STEP_US = 6.0  # a product and a row kernel, each with a launch
HOISTED_BYTES_PER_US = 2.8e6  # of products of members: 16 GRUs of 128, 4096 rows, H200: 67 MB in 24 us
Find = Callable[[Target, Node], Pointer]
Launches = list[tuple[list[Group], Any]]  # groups, and what one launch does of them, in order


@dataclass(frozen=True)
class OneStep:
    """A call of one step on the user's states, or each step of a call of few. weights: those of its graph, where
    products of inputs are part of the step and nothing runs before it; None: the step of the layer's graph behind what
    is hoisted. copy: of the rows that products read, where any are copied, those of hoisted products among them."""

    layout: UserStates
    groups: Launches
    states: StateKernels
    weights: Weights | None = None
    copy: Kernel | None = None


@dataclass
class Layer:
    """The code of all layers that share a graph."""

    graph: Graph
    number: int  # of the graph
    dtype: str  # of the network
    options: Options
    machine: Machine
    initial: Mapping[str, float]
    directions: int = 1
    kept: tuple[Node, ...] = ()  # what has rows for all steps
    given: Mapping[int, Place] = field(default_factory=dict)  # how inputs lie that are not as the user has x
    streams: tuple[str, ...] = ()  # the names of masks, in the order of their keys
    narrow: Mapping[Node, str] = field(default_factory=dict)  # dtypes of kept values that are not the storage dtype
    together: int = 1  # layers that may run at the same time
    sums: RowSums = field(default_factory=RowSums)  # that the steps may make beside them
    looped: bool = False  # the graph is a closed loop: there are never lengths or resets
    groups: Launches = field(default_factory=list)  # what one launch does, in order
    again: MadeAgain | None = None  # what backward makes of states that are kept before some steps
    regimes: list[Regime] = field(default_factory=list)
    joined: Callable[[], Graph | None] = lambda: None  # the graph with the products of inputs in the step
    started: Callable[[], Graph | None] = lambda: None  # that of a first step from no states
    one_step: OneStep | None = None  # of calls of one step, where a step needs no copies of its states
    first_step: OneStep | None = None  # of those that are given no states, where that takes fewer products
    few: dict[int, int] = field(default_factory=dict)  # by batch size, up to how many steps are calls of one step
    reserved: dict[tuple[str, str], tuple[Pointer, str]] = field(default_factory=dict)
    regime: str = "-1"  # C++ expression: which of `regimes` runs in this call; below 0: none
    whole: str = "B"  # C++ expression: rows that it takes; `rest` takes the others, as `regime` says
    rest: str = "-1"
    live: LiveRows | None = None  # of calls with lengths, where products may be given a list of rows
    passing: PassingRows | None = None  # hoisted values whose memory has another use behind the steps

    def __post_init__(self) -> None:
        self.precision = self.options.precision
        # Where rows are pixels, there are many whatever the batch is.
        batches = self.options.batches or ((1,) if self.graph.pixels else ())
        self.batches = tuple(prod(self.graph.pixels) * batch for batch in batches)
        self.graph = _with_kept(self.graph, self.kept)
        self.weights = Weights(self.graph, self.number, self.precision, self.options.stored)
        self.graph, matrices = prepared(self.graph, lambda node: self.weights.place(node) is not None, self._as_operand)
        common = (self.dtype, self.directions, self.kept, self.given, self.narrow, matrices)
        self.layout = Layout(self.graph, self.precision, self.weights, *common, sums=self.sums, again=self.again)
        for number, groups in enumerate(self.chains):
            name = f"g{self.number}_{groups[0].region}{number}_{_kind(groups)}"
            work = self._kernel(name, groups, self.layout, self._given(number))
            self.groups.append((groups, work))
            for pack in getattr(work, "packs", ()):
                self.weights.want(pack)
        if not self.layout.has_steps:
            return
        with about("regime", graph=self.number):
            self.regimes = choose(self.layout, self.machine, self.precision, self.batches, self.initial, self.together)
        for pack in (pack for regime in self.regimes for pack in regime.packs):
            self.weights.want(pack)
        self._take_states_of_users()

    @cached_property
    def chains(self) -> list[list[Group]]:
        """What a launch does, in order; what copies the output is a launch of its own, which may be spared."""
        chains = chained_groups(self.graph.groups)
        if self.passed_on is None or len(chains[-1]) == 1:
            return chains
        return [*chains[:-1], chains[-1][:-1], chains[-1][-1:]]

    def _as_operand(self, node: Node) -> bool:
        """Whether an input lies as products read it. What users give begins at multiples of 16 bytes: the rest is
        copied before a call."""
        place = self.given.get(self.graph.inputs.index(node))
        if place is None and self.graph.kind == "forward":
            own = Place(self.dtype, prod(node.shape))
            place = own if own.row_stride * ITEM_BYTES[own.dtype] % ROW_BYTES == 0 else None
        return place is not None and place.dtype == storage(self.precision) and place.align % ROW_BYTES == 0

    def _take_states_of_users(self) -> None:
        """Kernels for a call of one step that read and write states where the user has them."""
        copied = self.streams or self._lean or self.graph.pixels  # images are turned in any case
        layout = None if copied else user_states(self.layout)
        if layout is None or not all(isinstance(regime, Persistent) for regime in self.regimes):
            return
        both = [(own.state(i), own.shadow(i)) for own in (layout, self.layout) for i in range(len(self.graph.states))]
        same = both[: len(both) // 2] == both[len(both) // 2 :] and not layout.copied_rows
        groups = []
        for number, (own, work) in enumerate(self.groups):
            if own[0].region == "step":
                name = f"g{self.number}_once{number}_{_kind(own)}"
                groups.append((own, work if same else self._kernel(name, own, layout, self._given(number))))
        states = self.states if same else StateKernels(layout, f"g{self.number}_once", self.initial)
        inputs = [(self.layout.input(n), place, self.graph.inputs[n]) for n, place in self.layout.copied.items()]
        copy = self._row_copies(layout, "once", inputs)
        joined = self.joined() if len(self.chains) > 1 else None
        self.one_step = self._in_one_launch(joined, "once", "joined") or OneStep(layout, groups, states, copy=copy)
        self.first_step = self._in_one_launch(self.started(), "first", "started")
        self._count_few()

    def _count_few(self) -> None:
        """Up to how many steps a call is calls of one step; persistent kernels take those of more."""
        assert self.one_step is not None
        persistent = [regime for regime in self.regimes if isinstance(regime, Persistent)]
        # Where something is hoisted, rows that a step reads are copied with those of the hoisted products.
        able = self.one_step.copy is None or self.one_step.weights is not None
        first = None if self.first_step is None else self.first_step.layout
        for batch in sorted(self.batches or BATCHES):
            own = next((r for r in persistent if r.most is None or batch <= r.most), None)
            time = None if own is None else own.time
            given = (self.layout, self.one_step.layout, first, time, batch, self.machine)
            self.few[batch] = few_steps(*given) if able else 1

        def least(regime: Persistent) -> int:
            reached = [few for batch, few in self.few.items() if regime.most is None or batch <= regime.most]
            return max(regime.least_steps, 1 + max(reached, default=1))

        self.regimes = [replace(regime, least_steps=least(regime)) for regime in persistent]

    def _in_one_launch(self, graph: Graph | None, word: str, form: str) -> OneStep | None:
        """A call of one step whose products of inputs are products of the step, where that makes one launch of all.
        word, form: of the call and the graph, in kernels' names."""
        if graph is None or constants(graph):  # arrays are known by the hoisted graph's names
            return None
        weights = Weights(graph, f"{self.number}_{form}", self.precision, self.options.stored)
        layout = user_states(Layout(graph, self.precision, weights, self.dtype, self.directions))
        chains = chained_groups(graph.groups)
        if layout is None or len(chains) > 1:
            return None
        work = self._kernel(f"g{self.number}_{word}_{_kind(chains[0])}", chains[0], layout)
        if not isinstance(work, Gemm):  # products of members in float32 are row kernels, slower than one for all rows
            return None
        known = {key: pack for own in self._all_weights for key, pack in own.packs.items()}
        packs = [next((own for own in known.values() if own.serves(pack)), pack) for pack in work.packs]
        for pack in packs:
            if pack.key not in known:
                weights.want(pack)
        other = self.one_step
        states = StateKernels(layout, f"g{self.number}_once", self.initial) if other is None else other.states
        groups = [(chains[0], replace(work, packs=tuple(packs)))]
        return OneStep(layout, groups, states, weights, self._row_copies(layout, word))

    @property
    def _all_weights(self) -> list[Weights]:
        """Those of the layer's graph, and of calls of one step with graphs of their own."""
        steps = [own.weights for own in (self.one_step, self.first_step) if own is not None]
        return [self.weights, *(weights for weights in steps if weights is not None)]

    def _row_copies(
        self, layout: UserStates, word: str, others: Sequence[tuple[Place, Place, Node]] = ()
    ) -> Kernel | None:
        """What copies rows that products of one step read. others: more rows, how they lie and are to lie."""
        own = ((layout.source(node), place, node) for node, place in layout.copied_rows.items())
        rows = [*others, *((source.place, place, node) for source, place, node in own if source is not None)]
        copies = [RowCopy(source, place, prod(node.shape)) for source, place, node in rows]
        name, early = f"g{self.number}_{word}_rows", self.machine.arch == HOPPER
        return row_copies(name, copies, early=early) if layout.copied_rows else None

    @property
    def _joined_step(self) -> OneStep | None:
        """The call of one step, where it has the products of inputs in it."""
        return self.one_step if self.one_step is not None and self.one_step.weights is not None else None

    def _given(self, number: int) -> bool:
        """Whether that launch's products may run beside those of the launch before."""
        (before, *_), (own, *_) = self.chains[number - 1], self.chains[number]
        return number > 0 and multiplies_early(before, own, self.graph.states, self.precision, self.machine)

    @cached_property
    def on_chip(self) -> OnChip | None:
        """The regime of matrix states, where it runs the steps."""
        found = self.regimes[0] if len(self.regimes) == 1 else None
        return found if isinstance(found, OnChip) else None

    @property
    def accumulated(self) -> tuple[Node, ...]:
        """Sums over all rows that the steps make beside them."""
        return self.on_chip.accumulated if self.on_chip else ()

    @property
    def unstored(self) -> frozenset[int]:
        """The numbers of kept values that have no rows: sums that are made beside the steps alone read them."""
        return self.on_chip.unstored if self.on_chip else frozenset()

    @property
    def _lean(self) -> bool:
        """Whether kernels that know lengths and resets are left out."""
        return self.looped or self.machine.records.lean

    @property
    def chained(self) -> bool:
        """Whether each kernel of a step begins while the one before it runs: a loop's launches are no graph, in which
        kernels follow each other as fast without."""
        return self.looped and self.machine.arch == HOPPER

    @cached_property
    def copies(self) -> dict[int, Kernel]:
        """What copies inputs for products of all rows."""
        found, layout = {}, self.layout
        for number, place in layout.copied.items():
            width = prod(self.graph.inputs[number].shape)
            copy = RowCopy(layout.input(number), place, width)
            found[number] = row_copies(f"g{self.number}_copy{number}", [copy])
        return found

    @cached_property
    def states(self) -> StateKernels:
        return StateKernels(self.layout, f"g{self.number}", self.initial)

    def _kernel(self, name: str, groups: list[Group], layout: Layout, given: bool = False) -> Any:
        def writes(group: Group, node: Node) -> list[Place]:
            return [t.place for t in layout.targets(node, group.region)] if layout.writer(node, group) else []

        def reads(group: Group, node: Node) -> Place | None:
            found = None if layout.home.get(node) is group else layout.source(node, False, group.region)
            return None if found is None else found.place

        first = groups[0]
        own: dict[str, Any] = {"precision": self.precision}
        own |= {"reads": partial(reads, first), "writes": partial(writes, first)}
        early = self.machine.arch == HOPPER and (first.region == "before" or self.chained)
        if first.kind == "random":
            return mask_kernel(name, first.nodes[0], partial(writes, first), self.streams)
        if first.kind == "gemm":

            def operands(node: Node) -> Place | None:
                found = layout.source(node, True, first.region)
                return None if found is None else found.place

            opens = early and first.region == "before"
            own |= {"few": not layout.has_steps, "opens": opens, "given": given, "chained": self.chained}
            own["listed"] = self._leaves_rows_out
            return gemm(name, first, target=self.machine, operands=operands, batches=self.batches, **own)
        if is_matrix(first) or is_again(first):
            matrix = next(found for found in layout.matrices if found.group is first)
            if isinstance(matrix, MatrixOperands):
                return matrix_scan(name, matrix, layout, own["writes"], self.batches, self.machine)
            assert isinstance(matrix, AgainOperands)
            return matrix_again(name, matrix, layout, own["writes"], self.machine)
        if first.kind == "scan":
            job = Job(name, first, elsewhere=layout.elsewhere(first), early=early, **own)
            replaced = {row: self.graph.states[i] for row, i in layout.solved.items() if row in first.nodes}
            return vector_scan(job, replaced, self.initial, self._zeroed & {*first.stored}, self.machine)
        if len(groups) == 1 and not held(first, layout.elsewhere(first)):
            return rows_kernel(name, first, elsewhere=layout.elsewhere(first), early=early, **own)
        places: dict[str, Any] = {"reads": reads, "writes": writes, "elsewhere": layout.elsewhere}
        places |= {"early": early, "needed": lambda n: first.region == "step" or layout.is_needed(n, groups)}
        return chained_groups_kernel(name, groups, precision=self.precision, **places)

    @property
    def _leaves_rows_out(self) -> bool:
        """Whether products of rows that have ended may be left out: who reads them throws such rows away."""
        layout, plain = self.layout, all(len(state.shape) == 1 for state in self.graph.states)
        able = self.machine.arch == HOPPER and self.graph.kind == "forward" and layout.has_steps and layout.emits
        others = (self.kept, self.streams, self.graph.pixels, layout.matrices, layout.solved, self._lean)
        return able and plain and not any(others)

    @property
    def hoists_listed(self) -> bool:
        """Whether some product of all steps may be given a list of rows."""
        early = [work for groups, work in self.groups if groups[0].region == "before" and isinstance(work, Gemm)]
        return any(work.listed_from is not None for work in early)

    @cached_property
    def listed_from(self) -> int | None:
        """From so many batch rows on all launches of a step may be given a list of rows; None: never."""
        launches = [work for groups, work in self.groups if groups[0].region == "step"]
        least = [work.listed_from for work in launches if isinstance(work, Gemm)]
        known = [rows for rows in least if rows is not None]
        return max(known) if known and len(known) == len(launches) else None

    @property
    def _zeroed(self) -> frozenset[Node]:
        """What recurrences write as the output themselves."""
        return frozenset([self.graph.output] if self.layout.written_first else [])

    @property
    def scans(self) -> list[VectorScan | MatrixScan]:
        return [work for _, work in self.groups if isinstance(work, VectorScan | MatrixScan)]

    # --- memory ----------------------------------------------------------------------------------------------------

    @property
    def bytes_per_row(self) -> int:
        """Of hoisted values, copies of inputs and gradients of matrices, for one row of a tile."""
        places = [*map(self.layout.hoisted, self.hoisted_rows), *self.layout.copied.values()]
        marks = sum(prod(node.shape) for node in self._marked_here) * ITEM_BYTES[self.marks_dtype] // EVERY
        return sum(p.row_stride * ITEM_BYTES[p.dtype] for p in places) + marks

    @cached_property
    def hoisted_rows(self) -> list[Node]:
        """The hoisted values that have memory: what one chain alone makes and reads, it may have in registers."""
        chains = [(own, work) for own, work in self.groups if own[0].region == "before" and isinstance(work, Rows)]
        held = {node for own, _ in chains for group in own for node in group.stored}
        held -= {a.node for _, work in chains for a in work.arguments if a.role == "write"}
        return [node for node in self.layout.hoisted_nodes if node not in held]

    @property
    def marks_dtype(self) -> str:
        """Of matrices that are kept."""
        return marks_dtype(self.layout.storage)

    @cached_property
    def marked(self) -> list[int]:
        """The numbers of the states that are kept before parts of the time alone."""
        of_vectors = self.again is not None and self.graph.kind == "forward"
        return [*range(len(self.graph.states))] if of_vectors else marked(self.graph)

    @property
    def _marked_here(self) -> list[Node]:
        """The gradients of matrices that are kept so: in a tile's own memory."""
        return [self.graph.states[n] for n in self.marked] if self.graph.kind == "backward" else []

    def pack(self, program: Program, layer: int, direction: int) -> Mapping[Any, Pointer]:
        """Where the packed weights of one layer and direction lie, by what they are known by."""
        found = dict[Any, Pointer]()
        for weights in self._all_weights:
            found |= weights.pack(program, layer, direction)
        return found

    def state_buffers(
        self, program: Program
    ) -> tuple[list[tuple[Pointer, Pointer]], dict[int, tuple[Pointer, Pointer]]]:
        """Both copies of every state, and of its shadow."""

        def pair(name: str, place: Place) -> tuple[Pointer, Pointer]:
            # Parity picks a copy by address: the second lies right behind the first.
            size = program.let(f"{name}_size", f"(B * {place.row_stride} + 63) / 64 * 64")
            both = program.buffer(name, f"2 * {size}", place.dtype)
            return both, both.at(size)

        states = [pair(s.name, self.layout.state(i)) for i, s in enumerate(self.graph.states)]
        found = {i: self.layout.shadow(i) for i in range(len(states))}
        shadows = {i: pair(f"{self.graph.states[i].name}_shadow", p) for i, p in found.items() if p is not None}
        return states, shadows

    def work_buffers(self, program: Program, rows: HostExpr, copies: HostExpr, copy: HostExpr) -> dict[str, Any]:
        """Fields of Buffers: hoisted values and copies of inputs for `rows` rows, the values of one step, what the
        regimes ask for, masks as words: of `copies` copies of each, number `copy`."""

        def reserve(name: str, count: HostExpr, dtype: str) -> Pointer:
            if (name, dtype) not in self.reserved:
                size = program.let("size", f"(({count}) + 255) / 256 * 256")
                self.reserved[name, dtype] = program.buffer(name, f"({copies}) * {size}", dtype), size
            pointer, size = self.reserved[name, dtype]
            return pointer.at(f"({copy}) * {size}")

        hoisted, step = dict[Node, Pointer](), {}
        if self.passing is not None:
            self.passing.reserve(program, rows, copies)
            hoisted = self.passing.hoisted(copy)
        for i, node in enumerate(self.hoisted_rows):
            place = self.layout.hoisted(node)
            if node not in hoisted:
                hoisted[node] = reserve(f"hoisted{i}", f"{rows} * {place.row_stride}", place.dtype)
        for i, (node, places) in enumerate(self.layout.step_nodes.items()):
            step[node] = [reserve(f"step{i}", f"B * {p.row_stride}", p.dtype) for p in places]
        # Of regimes that one call may use one after the other: the memory is that of the one which needs most.
        most = ", ".join(f"int64_t({r.work_bytes})" for r in self.regimes)
        regime = reserve("regime", f"std::max<int64_t>({{{most}, 0}})", "uint8") if self.regimes else None
        least = f"({rows} / {BITS} + B)"  # a word of each element of a batch row for every 32 steps
        words = {n: reserve(f"words{i}", f"{least} * {prod(n.shape)}", WORD) for i, n in enumerate(self.worded)}
        copied = self.layout.copied.items()
        inputs = {n: reserve(f"copy{n}", f"{rows} * {place.row_stride}", place.dtype) for n, place in copied}
        marks = {
            node: reserve(f"marks{i}", f"{rows} / {EVERY} * {prod(node.shape)}", self.marks_dtype)
            for i, node in enumerate(self._marked_here)
        }

        def rows_of(own: OneStep | None, name: str) -> list[Pointer]:
            places = [] if own is None else own.layout.copied_rows.values()
            return [reserve(f"{name}{i}", f"B * {p.row_stride}", p.dtype) for i, p in enumerate(places)]

        found = {"hoisted": hoisted, "step": step, "regime": regime, "words": words, "copies": inputs, "marks": marks}
        found |= {"copied_rows": rows_of(self.one_step, "row"), "first_rows": rows_of(self.first_step, "first_row")}
        if self.scans:
            most = "std::max<int64_t>({" + ", ".join(scan.ends_size(rows) for scan in self.scans) + "})"
            found["chunk_ends"] = reserve("chunk_ends", most, self.layout.arithmetic)
        return found

    def in_place(
        self, host: Host, user: Sequence[tuple[Pointer, Pointer]], whole: str, vectors: bool
    ) -> dict[int, InPlace]:
        """The states, by number, that recurrences may read and write where the user has them. whole: a C++ condition:
        a tile has all steps of the call; vectors: also those of vectors, which nobody else changes."""
        found = {}
        for scan in self.scans:
            own = scan.in_place if isinstance(scan, MatrixScan) else None
            if own is None and (isinstance(scan, MatrixScan) or not vectors or self.dtype != self.layout.arithmetic):
                continue
            for number in (self.graph.states.index(state) for state in scan.states):
                before, after = (host.pointer("users", pointer) for pointer in user[number])
                if own is not None and isinstance(scan, MatrixScan):
                    when = f"{whole} && {aligned([before, after], own.lanes)}"
                else:  # other chunks of time read what the last one would replace
                    when = f"{whole} && {before.text} != {after.text}"
                found[number] = InPlace(before, after, host.let("in_place", when))
        return found

    @property
    def walks_users_states(self) -> bool:
        """Whether one kernel walks all steps, pointwise ones, on states as the user has them: a thread reads and writes
        its own elements alone."""
        walked = self._never_in_steps and all(isinstance(regime, Scan) for regime in self.regimes)
        return walked and self.dtype == self.layout.arithmetic

    @property
    def on_users_states(self) -> str:
        """A C++ condition: the regimes of this call read and write states where the user has them."""
        if self.layout.solved:
            return "false"
        able = [n for n, one in enumerate(self.regimes) if isinstance(one, Persistent) and one.takes_users_states]
        return one_of(self.regime, able) + (f" && ({self.rest} < 0 || {one_of(self.rest, able)})" if able else "")

    @property
    def by_regime(self) -> str:
        """A C++ condition: a regime runs the steps of this call."""
        return f"{self.regime} >= 0" if self.regimes else "false"

    @cached_property
    def worded(self) -> list[Node]:
        return list(dict.fromkeys(node for regime in self.regimes for node in regime.words))

    def _in_rows(self, mask: Node) -> bool:
        """Whether anybody but the steps reads a mask."""
        last = [] if self.layout.emits else [*self.graph.emitted, self.graph.output]
        return bool(self.layout.read_by.get(mask, set()) - {"step"}) or mask in sources(last, self.layout.stored)

    def choose_regime(self, host: Host) -> None:
        """Decide, in each call, which regime runs, and which one takes the rows that its whole rounds leave."""

        def fitting(rows: HostExpr) -> str:
            return "".join(f"({r.applies(rows)}) ? {i} : " for i, r in enumerate(self.regimes)) + "-1"

        if self.regimes:
            least = by_batch(self.regimes, lambda regime: regime.least_steps, 1)
            self.regime = host.let("regime", f"T < {least} ? -1 : {fitting('B')}")
        rounds = {i: r.at_once for i, r in enumerate(self.regimes) if r.at_once is not None}
        if len(self.regimes) > 1 and rounds:
            sizes = "".join(f"{self.regime} == {i} ? {size} : " for i, size in rounds.items())
            at_once = host.let("at_once", f"{sizes}B")
            self.whole = host.let("whole", f"B > {at_once} ? B / {at_once} * {at_once} : B")
            self.rest = host.let("rest", f"{self.whole} < B ? {fitting(f'(B - {self.whole})')} : -1")

    @property
    def multiprocessors(self) -> HostExpr:
        """How many multiprocessors a kernel of all steps takes while it runs, roughly: a C++ expression in B and T."""
        least = by_batch(self.regimes, lambda regime: regime.least_steps, 1)
        taken = by_batch(self.regimes, lambda regime: regime.multiprocessors, 0)
        return f"(T < {least} ? 0 : {taken})"

    def predicted_us(self, batch: int) -> float:
        """Of one step, where a persistent regime runs it; else what a step of several launches takes at least."""
        fitting = [r for r in self.regimes if r.most is None or batch <= r.most]
        if self.precision == "float32":  # products alone take longer than that
            if not fitting:
                return max(STEP_US, predict_steps(self.layout, self.precision, batch, self.machine))
            if isinstance(fitting[0], Persistent):  # also in rounds, which other batch sizes may need
                return predict(fitting[0].geometry, batch, self.machine)
        return next((float(r.fact.get("predicted_us", STEP_US)) for r in fitting), STEP_US)

    @property
    def multiplies_members(self) -> bool:
        """Whether products of members are made for all steps before the first one."""
        early = [group.root for group in self.graph.groups if group.region == "before"]
        return any(root is not None and root.op == "batched_gemm" for root in early)

    def hoisted_us(self, batch: int) -> float:
        """Of a step's part of these products, predicted: what they read and write goes through memory."""
        layout, found = self.layout, 0.0
        for group in (groups[0] for groups, _ in self.groups if groups[0].region == "before"):
            if group.root is not None and group.root.op == "batched_gemm":
                read = [prod(vector.shape) * ITEM_BYTES[layout.storage] for vector in group.root.args[1::2]]
                written = [t.place for node in group.stored for t in layout.targets(node, "before")]
                found += sum(read) + sum(place.row_stride * ITEM_BYTES[place.dtype] for place in written)
        return found * batch / HOISTED_BYTES_PER_US

    @property
    def walks_all_steps(self) -> bool:
        """Whether persistent kernels take every call."""
        return all(isinstance(regime, Persistent) for regime in self.regimes) and any(
            regime.most is None and regime.least_steps == 1 for regime in self.regimes
        )

    def _regime_of(self, batch: int) -> Regime | None:
        return next((r for r in self.regimes if r.most is None or batch <= r.most), None)

    def start_us(self, batch: int) -> float:
        """Before the first step of a persistent kernel, predicted."""
        regime = self._regime_of(batch)
        return start_us(regime.time, batch) if isinstance(regime, Persistent) else 0.0

    def beside(self, batch: int) -> int:
        """How many layers like this one have room on the GPU at the same time."""
        regime = self._regime_of(batch)
        return max(1, regime.resident // -(-batch // regime.geometry.rows)) if isinstance(regime, Persistent) else 1

    def facts(self) -> list[dict[str, Any]]:
        found = [regime.fact for regime in self.regimes]
        for groups, work in self.groups:
            if isinstance(work, MatrixScan):
                found += work.facts
            elif isinstance(work, VectorScan | MatrixAgain):
                found.append(work.fact)
            else:
                found.append(_fact(groups, work))
        most = max(self.few.values(), default=1)
        steps = "T = 1" if most == 1 else f"T <= {most}"
        for own, when in ((self._joined_step, steps), (self.first_step, f"{steps} from no states")):
            for fact in (_fact(groups, work) for groups, work in (own.groups if own is not None else ())):
                found.append({**fact, "unit": f"{fact['unit']}, {when}", "most_steps": most})
        return found

    # --- statements ------------------------------------------------------------------------------------------------

    def before(self, host: Host, buffers: Buffers, tile: Tile) -> None:
        once = self._when_once(buffers)
        spared = ""  # where all products of inputs are the step's
        if once and (self._joined_step is not None or self.first_step is not None):
            spared = once if self._joined_step is not None else f"({once} && T == 1 && {host.program.starts})"
        with host.when(f"!{spared}") if spared else nullcontext():
            self._copy_inputs(host, buffers, tile, once)
            self._hoisted(host, buffers, tile)

    def _copy_inputs(self, host: Host, buffers: Buffers, tile: Tile, once: str) -> None:
        """Rows for hoisted products; in a call of one step those for the step in the same launch. once: whether it is
        one."""
        pairs = [(tile.inputs[number], buffers.copies[number]) for number in self.layout.copied]
        own = self.one_step if once and self._joined_step is None else None
        together = own is not None and own.copy is not None
        if own is not None and together:
            with host.when(once):
                self._copy_rows(host, buffers, own, self._user_step(host, buffers, tile), pairs)
        with host.otherwise() if together else nullcontext():
            for number, pair in zip(self.layout.copied, pairs, strict=True):
                host.launch(self.copies[number], [*pair], [f"({tile.count} * B)"])

    def _copy_rows(
        self, host: Host, buffers: Buffers, own: OneStep, step: Step, others: Sequence[tuple[Pointer, Pointer]] = ()
    ) -> None:
        """Rows that products of one step read. others: source and target of those that come first."""
        assert own.copy is not None
        sources = ((own.layout.source(node), node) for node in own.layout.copied_rows)
        find = self._finder(buffers, step)
        read = [find(source, node) for source, node in sources if source is not None]
        pairs = [*others, *zip(read, buffers.copied_rows, strict=True)]
        host.launch(own.copy, [pointer for pair in pairs for pointer in pair], ["B"])

    def _hoisted(self, host: Host, buffers: Buffers, tile: Tile) -> None:
        live = None if self.live is None else self.live.of_steps(tile.start, tile.count, self.live.when)
        find, rows = self.rows_of(buffers, tile), LaunchedRows(f"({tile.count} * B)", live=live)
        read = self.passed_on
        if read is None:
            self._launch(host, "before", rows, buffers, find, tile)
            return
        there = host.let("there", aligned([tile.output], ROW_BYTES // ITEM_BYTES[tile.output.dtype]))
        own = self.hoisted_at(buffers, tile)[read]
        place = host.pointer("read", Pointer(f"({there} ? {tile.output.text} : {own.text})", own.dtype))
        self._launch(host, "before", rows, buffers, lambda t, n: place if n is read else find(t, n), tile)
        _, copy = self.groups[-1]
        with host.when(f"!{there}"):
            host.launch(copy.kernel, [place, tile.output], [rows.count])

    @cached_property
    def passed_on(self) -> Node | None:
        """What a recurrence of a matrix reads of it, where that is the output but for its shape: it goes to where the
        output does, if the address allows it, and what the last group would copy is there."""
        output, layout = self.graph.output, self.layout
        last = [node for group in self.graph.groups[-1:] for node in group.nodes]
        if not layout.written_first or output.op != "reshape" or last != [output]:
            return None
        read = output.args[0]
        if read.op != "read_out" or read not in layout.home or self.graph.users()[read] != [output]:
            return None
        places = [layout.targets(node, "before") for node in (read, output)]
        alike = {(t.place.dtype, t.place.row_stride) for targets in places for t in targets}
        return read if [len(targets) for targets in places] == [1, 1] and len(alike) == 1 else None

    def after(self, host: Host, buffers: Buffers, tile: Tile, done: Callable[[list[Group]], None]) -> None:
        """done: called behind each launch, with its groups."""
        rows = LaunchedRows(f"({tile.count} * B)")
        self._launch(host, "after", rows, buffers, self.rows_of(buffers, tile), done=done)

    def rows_of(self, buffers: Buffers, tile: Tile) -> Find:
        """Where the tile's rows of a value begin."""

        def find(target: Target, node: Node) -> Pointer:
            if target.kind in ("input", "kept"):
                return (tile.inputs if target.kind == "input" else tile.kept)[target.number]
            if target.kind == "part":
                return tile.output.at(target.number)
            if target.kind in ("output", "copy"):
                return tile.output if target.kind == "output" else buffers.copies[target.number]
            return buffers.weights[node] if target.kind == "weights" else self.hoisted_at(buffers, tile)[node]

        return find

    def hoisted_at(self, buffers: Buffers, tile: Tile) -> dict[Node, Pointer]:
        """The tile's rows of values that were computed before the steps; some of them are kept."""
        kept = zip(self.layout.kept, tile.kept, strict=True)
        early = {n: place for n, place in kept if n in self.layout.home and self.layout.home[n].region == "before"}
        return {**buffers.hoisted, **early}

    def recurrence(self, host: Host, buffers: Buffers, tile: Tile) -> None:
        """The steps of the tile: by the regime that applies, else step by step."""
        if not self.layout.has_steps:
            if self.layout.emits and not any(self._zeroed & {*scan.stored} for scan in self.scans):
                self.states.blank(host, tile)
            return
        parity = host.let("parity", tile.parity)
        self._regimes(host, buffers, tile, parity)
        if self._never_in_steps or (self.regimes and self.machine.records.lean):
            return  # what is measured runs by a regime
        with host.when(f"!({self.by_regime})") if self.regimes else nullcontext():
            once = self._when_once(buffers)
            with host.when(once) if once else nullcontext():
                if once:
                    self._few_steps(host, buffers, tile)
            with host.otherwise() if once else nullcontext():
                self._steps(host, buffers, tile, parity)

    def _when_once(self, buffers: Buffers) -> str:
        """A C++ condition: `one_step` is each step of this call; "": never."""
        return next((own.when for own in buffers.in_place.values()), "") if self.one_step is not None else ""

    @property
    def _never_in_steps(self) -> bool:
        """Whether a regime takes every call."""
        every = (r for r in self.regimes if r.most is None and r.least_steps == 1)
        return any(regime.applies() == "true" for regime in every)

    def _regimes(self, host: Host, buffers: Buffers, tile: Tile, parity: str) -> None:
        """Whole rounds of the regime that applies, then what is left of the batch."""
        if buffers.regime is None:
            return
        pairs = [where(host, buffers, i, picked(host, parity, buffers.states[i])) for i in self.layout.stepped]
        before, after = [old for old, _ in pairs], [new for _, new in pairs]
        given = (tile.inputs, self.hoisted_at(buffers, tile), buffers.weights)
        span = (tile.start, tile.count, tile.reverse)
        steps = LayerSteps(self.layout, *span, *given, before, after, tile.output, buffers.regime)
        steps = replace(steps, lean=self._lean, kept=tile.kept, words=buffers.words, borders=tile.marks)
        steps = replace(steps, users=users_whole(buffers))
        if self.rest == "-1":
            for number, regime in enumerate(self.regimes):
                with host.when(f"{self.regime} == {number}"):
                    regime.launch(host, steps)
            return
        with host.loop(f"{self.rest} >= 0 ? 2 : 1", "part") as part:
            own = host.let("own", f"{part} ? {self.rest} : {self.regime}")
            first = host.let("first", f"{part} ? {self.whole} : 0")
            rows = host.let("rows", f"{part} ? B - {self.whole} : {self.whole}")
            for number, regime in enumerate(self.regimes):
                with host.when(f"{own} == {number}"):
                    regime.launch(host, replace(steps, first=first, rows=rows))

    def _steps(self, host: Host, buffers: Buffers, tile: Tile, first: str) -> None:
        able = self.live is not None and self.listed_from is not None
        live = self.live if able else None
        when = "false" if live is None else host.let("listed", f"{live.when} && B >= {self.listed_from}")
        if live is not None and tile.reverse:
            self._settle(host, buffers, tile, first, when)
        with host.loop(tile.count, "s") as s:
            t = host.let("t", f"{tile.count} - 1 - {s}" if tile.reverse else s)
            step = self._step(host, buffers, tile, t, f"({first} + {s}) & 1")
            self.states.restart(host, step)
            self.states.keep(host, step)
            given = f"{s} == 0 && !has_reset"  # nothing writes the states behind the hoisted groups
            listed = None if live is None else live.of_steps(f"{tile.start} + {t}", 1, when)
            self._launch(host, "step", LaunchedRows("B", given, listed), buffers, self._finder(buffers, step))
            self.states.freeze(host, step, "has_lengths" if live is None else f"has_lengths && !{when}")
        if live is not None and not tile.reverse:
            self._settle(host, buffers, tile, f"{first} + {tile.count} - 1", when)

    def _step(self, host: Host, buffers: Buffers, tile: Tile, t: HostExpr, parity: str) -> Step:
        """A step that reads the states of that parity."""
        parity = host.let("parity", parity)
        states = [picked(host, parity, pair) for pair in buffers.states]
        shadows = {i: picked(host, parity, pair) for i, pair in buffers.shadows.items()}
        old, new = ([pair[i] for pair in states] for i in (0, 1))
        old_shadows, new_shadows = ({n: pair[i] for n, pair in shadows.items()} for i in (0, 1))
        return Step(tile, t, old, new, old_shadows, new_shadows)

    def _settle(self, host: Host, buffers: Buffers, tile: Tile, parity: str, when: str) -> None:
        """What steps of listed rows leave: states of rows that have ended, and their outputs."""
        with host.when(when):
            self.states.settle(host, self._step(host, buffers, tile, 0, f"({parity}) & 1"))
            self.states.blank(host, tile)

    def _few_steps(self, host: Host, buffers: Buffers, tile: Tile) -> None:
        """Calls of one step, one after the other."""
        assert self.one_step is not None
        with host.loop(tile.count, "s") as s:
            step = self._user_step(host, buffers, tile, s)
            if self.first_step is not None:
                with host.when(f"{s} == 0 && {host.program.starts}"):
                    self._once(host, self.first_step, replace(buffers, copied_rows=buffers.first_rows), step, s)
            with host.otherwise() if self.first_step is not None else nullcontext():
                self._once(host, self.one_step, buffers, step, s)

    def _once(self, host: Host, own: OneStep, buffers: Buffers, step: Step, s: HostExpr) -> None:
        """One step on the user's states, or on those of the step before: nothing writes the user's."""
        if own.copy is not None and own.weights is not None:
            self._copy_rows(host, buffers, own, step)
        for _, work in own.groups:
            pointers = _pointers(work, own.layout, buffers, self._finder(buffers, step))
            launch(host, work, pointers, LaunchedRows("B", given=f"{s} == 0"))
        own.states.freeze(host, step, "has_lengths && T > 1")  # of one step, all layers' rows end together

    def users_state(self, number: int) -> Place:
        """How a state lies in a call of one step."""
        assert self.one_step is not None
        return self.one_step.layout.state(number)

    def _user_step(self, host: Host, buffers: Buffers, tile: Tile, s: HostExpr = 0) -> Step:
        """The step behind `s` others, which lies like the only one of a call: from the user's states, or from a copy
        between two steps, to the other copy, or to the user's."""
        before, after = list[Pointer](), list[Pointer]()
        for number, own in ((number, buffers.in_place[number]) for number in range(len(self.graph.states))):
            copies = [copy.cast(own.before.dtype) for copy in buffers.states[number]]
            old, new = picked(host, f"{s} & 1", (copies[1], copies[0]))
            ends = ((before, own.before, old, "0"), (after, own.after, new, f"{tile.count} - 1"))
            for chosen, user, copy, end in ends:
                chosen.append(host.pointer("state", Pointer(f"({s} == {end} ? {user.text} : {copy.text})", user.dtype)))
        t = f"({tile.count} - 1 - {s})" if tile.reverse else s
        return Step(tile, t, before, after, {}, {})

    def _finder(self, buffers: Buffers, step: Step) -> Find:
        tile = step.tile

        def find(target: Target, node: Node) -> Pointer:
            kind, number = target.kind, target.number
            row = f"{step.t} * B * {target.place.row_stride}"
            if kind in ("input", "kept"):
                return (tile.inputs if kind == "input" else tile.kept)[number].at(row)
            if kind in ("output", "hoisted"):
                return (tile.output if kind == "output" else buffers.hoisted[node]).at(row)
            if kind == "step":
                return buffers.step[node][number]
            if kind in ("weights", "copied row"):
                return buffers.weights[node] if kind == "weights" else buffers.copied_rows[number]
            if kind in ("old", "state"):
                return (step.old if kind == "old" else step.new)[number]
            return (step.old_shadows if kind == "old shadow" else step.new_shadows)[number]

        return find

    def _launch(
        self,
        host: Host,
        region: str,
        rows: LaunchedRows,
        buffers: Buffers,
        find: Find,
        tile: Tile | None = None,
        *,
        done: Callable[[list[Group]], None] = lambda groups: None,
    ) -> None:
        """The groups of a region. tile: of those that know time. done: see `after`."""
        steps: tuple[HostExpr, HostExpr] = (1, 0) if tile is None else (tile.count, tile.start)
        for groups, work in self.groups if self.passed_on is None else self.groups[:-1]:
            if groups[0].region != region:
                continue
            pointers = _pointers(work, self.layout, buffers, find, region)
            if isinstance(work, MaskRows) and buffers.mask_keys is not None:
                mask = work.arguments[0].node
                when = "true" if mask not in buffers.words or self._in_rows(mask) else f"{self.regime} < 0"
                work.fill(
                    host, pointers, buffers.words.get(mask), buffers.mask_keys, steps, (when, f"{self.regime} >= 0")
                )
            elif isinstance(work, VectorScan | MatrixScan) and tile is not None:
                self._scan(host, work, pointers, buffers, tile)
            elif isinstance(work, MatrixAgain) and tile is not None:
                work.launch(host, pointers, _with_marks(tile, buffers), self.machine.records.lean)
            else:
                spared = self._spared(groups, buffers)
                with host.when(f"!({spared})") if spared else nullcontext():
                    launch(host, work, pointers, rows)
            done(groups)

    def _spared(self, chain: list[Group], buffers: Buffers) -> str:
        """A C++ condition under which all that a launch makes is made again by recurrences of matrices, where they read
        it; "": there is none."""
        layout, made = self.layout, {n for group in chain for n in group.stored}
        roots = [n for n in (*self.graph.roots, *self.graph.results, *layout.kept) if not is_scan(n)]
        read = {*roots, *sources(roots, layout.stored)}
        scans = dict[Group, MatrixScan]()
        for groups, work in self.groups:
            own = groups[0]
            if isinstance(work, MatrixScan) and work.alone is not None:
                scans[own] = work
                continue
            read |= {n for group in groups if group not in chain for n in layout.reads_of(group)}
        found = [work for work in scans.values() if made & work.operands.stored]
        if not found or made & read:
            return ""
        users = [(work, buffers.in_place.get(self.graph.states.index(work.operands.state))) for work in found]
        return " && ".join("false" if own is None else f"{own.when} && {work.when_alone}" for work, own in users)

    def _scan(
        self, host: Host, work: VectorScan | MatrixScan, pointers: list[Pointer], buffers: Buffers, tile: Tile
    ) -> None:
        """A recurrence over all steps of a tile."""
        assert buffers.chunk_ends is not None
        numbers, lean = [self.graph.states.index(state) for state in work.states], self._lean
        parity, tile = f"({tile.number} & 1)", _with_marks(tile, buffers)
        if isinstance(work, VectorScan):
            states = [self._pair(host, parity, buffers, i) for i in numbers]
            work.launch(host, pointers, states, buffers.chunk_ends, tile, lean)
        else:
            (number,) = numbers
            both, own = picked(host, parity, buffers.states[number]), buffers.in_place.get(number)
            work.launch(host, pointers, both, buffers.chunk_ends, tile, lean=lean, users=own)

    @staticmethod
    def _pair(host: Host, parity: str, buffers: Buffers, number: int) -> tuple[Pointer, Pointer]:
        """A state before and after a tile: the user's, where that is allowed."""
        old, new = picked(host, parity, buffers.states[number])
        own = buffers.in_place.get(number)
        if own is None:
            return old, new
        pairs = ((own.before, old), (own.after, new))
        first, last = (Pointer(f"({own.when} ? {user.text} : {copy.text})", copy.dtype) for user, copy in pairs)
        return host.pointer("before", first), host.pointer("after", last)


def _with_marks(tile: Tile, buffers: Buffers) -> Tile:
    """A tile that knows where gradients of matrices are kept too."""
    return replace(tile, marks={**tile.marks, **buffers.marks})


def _kind(groups: list[Group]) -> str:
    """In kernels' names."""
    return groups[0].kind if len(groups) == 1 else "rows"


def _fact(groups: list[Group], work: Gemm | Rows) -> dict[str, Any]:
    """What a launch does, for people and records."""
    if isinstance(work, Gemm):
        unit = f"{groups[0].region} {work.unit.kind} G={work.unit.gates} N={work.unit.width}"
        unit += f" K={'+'.join(map(str, work.unit.depths))}"
        return {"unit": unit, "template": work.template, "knobs": dict(work.knobs), "record": work.record}
    shapes = ["x".join(map(str, g.nodes[-1].shape)) or "1" for g in groups]
    unit = f"{groups[0].region} {' '.join(dict.fromkeys(g.kind for g in groups))} {' '.join(shapes)}"
    return {"unit": unit, "template": "rows_cuda", "knobs": {}, "record": "default"}


def _pointers(work: Any, layout: Layout, buffers: Buffers, find: Find, region: str = "step") -> list[Pointer]:
    """What a kernel of that region is given, in its order. find: where a place of the layout is."""

    def pointer(a: Argument) -> Pointer:
        if a.role == "weight":
            return buffers.weights[work.packs[a.number].key]
        if a.role == "write":
            return find(layout.targets(a.node, region)[a.number], a.node)
        target = layout.source(a.node, a.role == "operand", region)
        assert target is not None
        return find(target, a.node)

    return [pointer(a) for a in work.arguments]


def _with_kept(graph: Graph, kept: Collection[Node]) -> Graph:
    """The graph, whose recurrences over all time store what is kept of them."""

    def own(group: Group) -> Group:
        more = tuple(n for n in group.nodes if is_scan(n) and n in kept and n not in group.stored)
        return replace(group, stored=(*group.stored, *more)) if more else group

    return replace(graph, groups=tuple(map(own, graph.groups)))


def picked(host: Host, parity: str, pair: tuple[Pointer, Pointer]) -> tuple[Pointer, Pointer]:
    """The copies that are read and written at this parity."""
    first, second = pair[0].text, pair[1].text
    old = host.pointer("old", Pointer(f"({parity} ? {second} : {first})", pair[0].dtype))
    return old, host.pointer("fresh", Pointer(f"({parity} ? {first} : {second})", pair[0].dtype))


def one_of(variable: str, numbers: Sequence[int]) -> str:
    """A C++ condition: a variable is one of these."""
    return f"({' || '.join(f'{variable} == {n}' for n in numbers)})" if numbers else "false"


def users_whole(buffers: Buffers) -> str:
    """A C++ condition: one launch of a persistent kernel has all steps, and the user's states."""
    return buffers.whole[0].when if buffers.whole else "false"


def where(host: Host, buffers: Buffers, state: int, own: tuple[Pointer, Pointer]) -> tuple[Pointer, Pointer]:
    """Of a state: the copies, or the user's arrays."""
    when = elsewhere(buffers, state)
    if not when:
        return own
    users = buffers.whole[state] if buffers.whole else buffers.in_place[state]
    pairs = zip((users.before, users.after), own, strict=True)
    before, after = (Pointer(f"({when} ? {theirs.text} : {ours.text})", ours.dtype) for theirs, ours in pairs)
    return host.pointer("old", before), host.pointer("fresh", after)
