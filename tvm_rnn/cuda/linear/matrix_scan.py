"""Recurrences of matrices over all time: a group of kind "scan" whose root is a `scan_matrix`.

In: the group's operands, and where its values lie. Out: a `MatrixScan`, the kernels of `step_by_step.py`, or a
`ChunkedScan`, those of `chunk_scan.py` too, with the statements that launch them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel
from tvm_rnn.cuda.codegen.vector_access import DTYPES
from tvm_rnn.cuda.layer.matrix_operands import NUMBER, MatrixOperands, marked
from tvm_rnn.cuda.layer.pointers import Argument, Place
from tvm_rnn.cuda.layer.row_kernels import sources
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.rowwise.state_moves import InPlace, Tile
from tvm_rnn.decisions import tell
from tvm_rnn.graph.graph import Node, is_move
from tvm_rnn.schedule.schedule_template import DEFAULT
from tvm_rnn.target import HOPPER, Target

from .choose_tile import ChosenRung, refused, rungs
from .chunk_marks import MarkedChunkScan
from .chunk_scan import USERS, ChunkScan
from .pair import EVERY
from .recurrence import AFTER, BEFORE, Erase, Outer, Read, Recurrence, Rows, same_places
from .segments import Segments
from .step_by_step import STATES, Makes, Steps

FEW = 8  # steps that take less one after the other than a chunk does
AHEAD = 4  # steps that what a step reads is loaded before it, where all steps go one after the other
# Blocks on a multiprocessor, up to which each makes what its steps read: more make the same too often. Gated delta, 16
# key and 32 value heads of 128, one step, has 128 a row.
ALONE = 8


@dataclass
class Launches:
    """What a tile's kernels are launched with, by the names of their pointers and scalars."""

    host: Host
    tile: Tile
    pointers: dict[str, Pointer]
    scalars: dict[str, HostExpr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pointers = self.pointers | {"lengths": self.host.program.lengths, "reset": self.host.program.reset}
        tile = self.tile
        known: dict[str, HostExpr] = {"steps": tile.count, "batch": "B", "start": tile.start, "total": "T"}
        known |= {"has_lengths": "has_lengths", "has_reset": "has_reset", "users": 0}
        self.scalars = known | self.scalars

    def __call__(self, kernel: Kernel, **other: Pointer) -> None:
        """other: pointers in place of those of the tile."""
        own = {name: {**self.pointers, **other}[name] for name, _ in kernel.pointers}
        self.host.launch(kernel, own, {name: self.scalars[name] for name, _ in kernel.scalars})


@dataclass(frozen=True, eq=False)
class MatrixScan:
    """The kernels of one group: all steps one after the other, in a launch.

    arguments: what `values` of `launch` are, in the order of the kernels' pointers. dtype: of the user's states.
    reverse: from the last step to the first. marked: states before the parts of the time are kept, where a tile says.
    early: as of `write`, of kernels that go step by step. makes: what steps read, made of inputs; None: it is not.
    """

    name: str
    operands: MatrixOperands
    recurrence: Recurrence
    arguments: tuple[Argument, ...]
    dtype: str
    reverse: bool
    marked: bool
    early: bool
    makes: Makes | None

    @property
    def states(self) -> list[Node]:
        return [self.operands.state]

    @property
    def stored(self) -> tuple[Node, ...]:
        return self.operands.group.stored

    @property
    def facts(self) -> list[dict[str, object]]:
        """Rows of the manifest's templates."""
        unit = f"{self._unit} step by step{', backwards' * self.reverse}, any B"
        return [{"unit": unit, "template": "step_by_step", "knobs": {}, "record": DEFAULT}]

    @property
    def _unit(self) -> str:
        own = self.recurrence
        return f"before scan_matrix {own.heads}x{own.keys}x{own.values}, all of T"

    def ends_size(self, rows: HostExpr) -> str:
        """Numbers, at most, that segments of so many rows of steps leave for others."""
        return "int64_t(0)"

    @cached_property
    def steps(self) -> Steps:
        every = EVERY if self.marked else 0
        return Steps(f"{self.name}_steps", self.recurrence, AHEAD, early=self.early, reverse=self.reverse, every=every)

    @cached_property
    def in_place(self) -> Steps | None:
        """Kernels that read and write the user's states where they are: copies there and back would move as much again.
        None: no kernel takes their dtype."""
        if self.dtype == self.steps.dtype:
            return self.steps
        own = replace(self.steps, name=f"{self.name}_in_place", dtype=self.dtype)
        return own if self.dtype in DTYPES else None

    @cached_property
    def alone(self) -> Steps | None:
        """The same kernels where they make what they read, of inputs: no other is launched before them. None: they do
        not."""
        if self.in_place is None or self.makes is None:
            return None
        return replace(self.in_place, name=f"{self.name}_alone", makes=self.makes)

    @property
    def when_alone(self) -> str:
        """A condition of calls in place."""
        return "false" if self.alone is None else f"B * {self.alone.blocks(1)} <= sms * {ALONE}"

    def _launch_in_place(self, host: Host, values: Sequence[Pointer], users: InPlace, tile: Tile, lean: bool) -> None:
        """All steps of a tile that is the whole call, one after the other. The rest as of `launch`."""
        assert self.in_place is not None
        work = self._work(host, values, (users.before, users.after), tile)
        kinds = [(self.in_place, f" && !({self.when_alone})" if self.alone is not None else "")]
        kinds += [] if self.alone is None else [(self.alone, f" && {self.when_alone}")]
        for masked, case in self._cases(lean):
            for own, when in kinds:
                with host.when(f"({case}){when}" if when else case):
                    work(own.kernels[masked])

    def _work(self, host: Host, values: Sequence[Pointer], states: tuple[Pointer, Pointer], tile: Tile) -> Launches:
        pointers = {a.name: p for a, p in zip(self.arguments, values, strict=True)}
        pointers |= dict(zip(STATES, states, strict=True))
        if self.marked:
            pointers["marks"] = tile.marks[self.operands.state]
        return Launches(host, tile, pointers)

    def _cases(self, lean: bool) -> list[tuple[bool, str]]:
        """Whether the kernels know lengths and resets, and when they run."""
        return (
            [(False, "true")] if lean else [(False, "!has_lengths && !has_reset"), (True, "has_lengths || has_reset")]
        )

    def launch(
        self,
        host: Host,
        values: Sequence[Pointer],
        states: tuple[Pointer, Pointer],
        ends: Pointer,
        tile: Tile,
        *,
        lean: bool = False,
        users: InPlace | None = None,
    ) -> None:
        """All steps of a tile. values: of `arguments`; states: before and after; ends: memory for `ends_size`; lean:
        there are never lengths or resets; users: the user's states, None: they are copied in any case."""
        if users is not None:
            with host.when(f"{self.when_few} && {users.when}" if self.when_few else users.when):
                self._launch_in_place(host, values, users, tile, lean)
        with host.otherwise() if users is not None else nullcontext():
            work = self._work(host, values, states, tile)
            if users is not None:
                self._take(work, users)
            self._run(work, ends, lean)

    @property
    def when_few(self) -> str:
        """A condition under which calls on the user's states go one step after the other; "": always."""
        return ""

    def _take(self, work: Launches, users: InPlace) -> None:
        """Let steps that are not in place begin and end with the user's states."""

    def _run(self, work: Launches, ends: Pointer, lean: bool) -> None:
        for masked, case in self._cases(lean):
            with work.host.when(case):
                work(self.steps.kernels[masked])


@dataclass(frozen=True, eq=False)
class TileLaunch:
    """What runs all steps in chunks of one tile. most: the batch sizes that it is for, None: all; marked: as of
    `MatrixScan`; dtype: of the user's states."""

    name: str
    recurrence: Recurrence
    reverse: bool
    marked: bool
    rung: ChosenRung
    dtype: str

    @cached_property
    def chunks(self) -> ChunkScan:
        kind = MarkedChunkScan if self.marked else ChunkScan
        return kind(f"{self.name}_chunks", self.recurrence, self.rung.chosen.tile, self.reverse, self.dtype)

    @cached_property
    def segments(self) -> Segments:
        return Segments(self.name, self.recurrence, self.rung.chosen.tile, self.reverse, self.dtype)

    def begin(self, work: Launches) -> None:
        """What all cases share."""
        span = self.segments.span(work.host, work.tile.count)
        count = work.host.let("segments", f"({work.tile.count} + {span} - 1) / {span}")
        work.scalars |= {"span": span, "segments": count}
        none = {theirs: work.pointers[own].cast(self.dtype) for theirs, own in zip(USERS, STATES, strict=True)}
        work.pointers = none | work.pointers
        if self.reverse:
            chunk = self.rung.chosen.tile.chunk
            padded = work.host.let("padded", f"({work.tile.count} + {chunk - 1}) / {chunk} * {chunk}")
            work.scalars |= {"steps": padded, "padded": padded, "real": work.tile.count}

    def run(self, work: Launches, ends: Pointer, masked: bool) -> None:
        host, count = work.host, work.scalars["segments"]
        with host.when(f"{count} == 1"):
            work(self.chunks.kernels[masked])
        with host.when(f"{count} > 1"):
            starts = self.segments.launch(host, work.pointers, work.scalars, ends, masked)
            work(self.chunks.kernels[masked], state_in=starts)


@dataclass(frozen=True, eq=False)
class ChunkedScan(MatrixScan):
    """In chunks of time, and in segments of chunks where there are few rows; the few steps of a short call one after
    the other. rungs: tiles by rising batch sizes, the last one for all that are left."""

    rungs: tuple[ChosenRung, ...]

    @property
    def facts(self) -> list[dict[str, object]]:
        back = ", backwards" * self.reverse
        found = list[dict[str, object]]()
        for most, own in self.rungs:
            rows = "any B" if most is None else f"B <= {most}"
            unit = f"{self._unit} in chunks of {own.tile.chunk} steps{back}, {rows}"
            found.append({"unit": unit, "template": own.template, "knobs": dict(own.knobs), "record": own.record})
        return found

    def ends_size(self, rows: HostExpr) -> str:
        return "std::max<int64_t>({" + ", ".join(tile.segments.memory_size(rows) for tile in self.tiles) + "})"

    @cached_property
    def tiles(self) -> list[TileLaunch]:
        found, dtype = [], self.steps.dtype if self.in_place is None else self.dtype
        for rung in self.rungs:
            name = self.name if rung.most is None else f"{self.name}_upto{rung.most}"
            found.append(TileLaunch(name, self.recurrence, self.reverse, self.marked, rung, dtype))
        return found

    @cached_property
    def steps(self) -> Steps:
        return Steps(f"{self.name}_steps", self.recurrence, early=self.early)

    @property
    def when_alone(self) -> str:
        return "false" if self.alone is None else f"T <= {FEW} && {super().when_alone}"

    @property
    def when_few(self) -> str:
        return f"T <= {FEW}"

    def _take(self, work: Launches, users: InPlace) -> None:
        pairs = dict(zip(STATES, (users.before, users.after), strict=True))
        if self.dtype == self.steps.dtype:
            either = {name: f"({users.when} ? {p.text} : {work.pointers[name].text})" for name, p in pairs.items()}
            work.pointers |= {name: Pointer(text, self.dtype) for name, text in either.items()}
        else:
            work.pointers |= dict(zip(USERS, pairs.values(), strict=True))
            work.scalars["users"] = f"{users.when} ? 1 : 0"

    def _run(self, work: Launches, ends: Pointer, lean: bool) -> None:
        least = 0
        for tile in self.tiles:
            most = tile.rung.most
            reach = [f"B > {least}" if least else "", "" if most is None else f"B <= {most}"]
            own = replace(work)
            with work.host.when(" && ".join(filter(None, reach)) or "true"):
                tile.begin(own)
                for masked, case in self._cases(lean):
                    with work.host.when(case):
                        tile.run(own, ends, masked)
            least = most or 0


@dataclass(frozen=True, eq=False)
class _Located:
    """Where steps find the vectors that they read: an argument for each, in the order in which they are asked for."""

    operands: MatrixOperands
    layout: Layout
    arguments: list[Argument] = field(default_factory=list)
    places: dict[str, object] = field(default_factory=dict)  # equal where two vectors are the same memory

    def rows(self, name: str, node: Node, axis: int) -> Rows:
        """A vector per row, of the state's size along this axis, or of numbers."""
        base, offset = self.operands.located((node, axis))
        source = self.layout.source(base, False, "before")
        assert source is not None
        self.arguments.append(Argument(name, "read", base))
        numbers = prod(node.shape[len(self.operands.heads) :])
        width = numbers if axis == NUMBER else self.operands.state.shape[axis]
        group = self.operands.group_size((node, axis))
        self.places[name] = base, offset, width, group
        scale = self.operands.scale((node, axis))
        return Rows(width, source.place.row_stride, source.place.dtype, offset, group, scale)

    def key(self, name: str, node: Node) -> Rows:
        return self.rows(name, node, self.operands.along)

    def value(self, name: str, node: Node) -> Rows:
        return self.rows(name, node, -3 - self.operands.along)

    def number(self, name: str, node: Node | None) -> Rows | None:
        return None if node is None else self.rows(name, node, NUMBER)

    def outer(self, number: int, column: Node, row: Node, product: bool, scale: Rows | None) -> Outer:
        """Another outer product that a step adds. product: the row is multiplied with the states before the step."""
        along_key = self.key(f"column_{number}", column)
        if product:
            return Outer(along_key, None, self.key(f"vector_{number}", row), scale)
        return Outer(along_key, self.value(f"value_{number}", row))


def matrix_scan(
    name: str,
    operands: MatrixOperands,
    layout: Layout,
    writes: Callable[[Node], list[Place]],
    batches: Sequence[int],
    target: Target,
) -> MatrixScan:
    """The kernels of a group. writes: where a read-out goes."""
    located, state = _Located(operands, layout), operands.state
    recurrence, outputs = _recurrence(located, writes)
    arguments = [*located.arguments, *outputs]
    graph = layout.graph
    reverse, kept = graph.kind == "backward", graph.states.index(state) in marked(graph)
    makes = made_of_inputs({a.name: a.node for a in arguments if a.role == "read"}, layout)
    arguments += [] if makes is None else makes.given
    why = refused(recurrence, target)
    tell(not why, f"{state.name} in chunks of time", why and f"step by step in one launch: {why}")
    given = name, operands, recurrence, tuple(arguments), layout.dtype, reverse, kept, target.arch == HOPPER, makes
    return MatrixScan(*given) if why else ChunkedScan(*given, rungs(recurrence, batches, target))


def _recurrence(located: _Located, writes: Callable[[Node], list[Place]]) -> tuple[Recurrence, list[Argument]]:
    """What a step does, and the arguments that it writes."""
    operands, erase = located.operands, located.operands.erase
    state, along, key = operands.state, operands.along, located.key("key", operands.key)
    scale = located.number("erase_scale", operands.erase_scale)
    times = located.number("value_scale", operands.value_scale)
    taken = None if erase is None else Erase(located.key("erase", erase), scale, BEFORE)
    reads: list[tuple[Read, Node, int]] = []
    for node in operands.reads:
        for number, place in enumerate(writes(node)):
            of = AFTER if node.args[0].op == "scan_matrix" else BEFORE
            output = Rows(node.shape[-1], place.row_stride, place.dtype)
            reads.append((Read(located.key(f"read_{len(reads)}", node.args[1]), output, of), node, number))
    rest = [(column, row, product) for column, row, product in operands.others if row is not erase]
    recurrence = Recurrence(
        prod(operands.heads),
        state.shape[along],
        state.shape[-3 - along],
        located.layout.storage,
        key,
        located.value("value", operands.value),
        tuple(read for read, _, _ in reads),
        times,
        taken,
        located.number("decay", operands.decay),
        keys_last=along == -1,
        others=tuple(located.outer(number, *other, scale) for number, other in enumerate(rest)),
    )
    same = same_places({name: located.places[name] for name in recurrence.vectors})
    written = [Argument(f"output_{i}", "write", node, number) for i, (_, node, number) in enumerate(reads)]
    return replace(recurrence, same=same), written


def made_of_inputs(values: Mapping[str, Node], layout: Layout) -> Makes | None:
    """How steps make what they read, where each element is made of a few of inputs and parameters; None: it is not.
    values: by operands' names that which each is a part of."""

    def is_given(node: Node) -> bool:
        return node.op == "input" or layout.weights.place(node) is not None

    made, left = set[Node](), [*values.values()]
    while left:
        node = left.pop()
        if node in made or is_given(node):
            continue
        if node.scalar is None and not is_move(node) and not node.pointwise:
            return None
        made.add(node)
        left += node.args
    if not made:
        return None
    found = dict[Argument, Place]()
    for number, node in enumerate(sources(values.values(), is_given)):
        place = layout.source(node, False, "before")
        assert place is not None
        found[Argument(f"given_{number}", "read", node)] = place.place
    return Makes(dict(values), found)
