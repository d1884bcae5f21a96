"""Kernels for a layer's states: in from the user's arrays and back, restarts at reset flags, rows that have ended.

In: where the states lie. Out: kernels over [rows, elements of the largest state], each for all states at once. The
meaning is that of `oracle/reference.py`: backwards, a flag at t + 1 separates step t from what was just processed;
flags in the padding of a row mean nothing; rows that have ended keep their states and emit zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.codegen.vector_access import DTYPES, LANES, LoadedLanes, aligned, store_lanes
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.pointers import Place, address
from tvm_rnn.cuda.layer.row_kernels import THREADS, WARP, elements
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

from .dropout_masks import MaskKeys

Value = Callable[[Writer, Expr, Expr], Expr]  # of an element of a row, which are known in the kernel
COPIES = 32  # of one launch
WARPS = THREADS // WARP  # of a block


# --- the memory that a layer's kernels work on: of a layer and direction, of a tile of time, of a step ---------------


@dataclass(frozen=True)
class InPlace:
    """A state that is read and written where the user has it, in calls for which `when`, a C++ condition, holds."""

    before: Pointer
    after: Pointer
    when: str


@dataclass
class Buffers:
    """The memory of one layer and direction, or what several share.

    states, shadows: for each state its two copies, by parity. hoisted: each value for all rows of a tile. step: each
    value's copies. copies: of inputs by number, for all rows of a tile. copied_rows: of what a call of one step reads.
    in_place: states by number, of calls step by step and of recurrences over all time. whole: all states, of calls
    whose steps are one launch of a persistent kernel.
    """

    weights: Mapping[Any, Pointer]
    states: list[tuple[Pointer, Pointer]]
    shadows: dict[int, tuple[Pointer, Pointer]]
    hoisted: dict[Node, Pointer]
    step: dict[Node, list[Pointer]]
    regime: Pointer | None = None  # memory of whatever regime runs
    mask_keys: MaskKeys | None = None  # what masks are made of
    words: dict[Node, Pointer] = field(default_factory=dict)  # masks as persistent kernels read them
    chunk_ends: Pointer | None = None  # what chunks of a recurrence do to its states
    copies: dict[int, Pointer] = field(default_factory=dict)
    copied_rows: Sequence[Pointer] = ()
    first_rows: Sequence[Pointer] = ()  # the same of one that is given no states
    marks: dict[Node, Pointer] = field(default_factory=dict)  # gradients of matrices behind each part of a tile
    in_place: dict[int, InPlace] = field(default_factory=dict)
    whole: Sequence[InPlace] = ()


@dataclass
class Tile:
    """One tile of time of one layer and direction. Pointers are those of the tile's first step, in order of time."""

    inputs: list[Pointer]
    output: Pointer
    start: HostExpr  # its first step, in order of time
    count: HostExpr  # its steps
    reverse: bool
    parity: HostExpr  # which copy of the states holds the values before it: 0 or 1
    kept: list[Pointer] = field(default_factory=list)  # rows of what training reads later
    number: HostExpr = 0  # of the tile: states of recurrences over all time change copies at every tile
    marks: Mapping[Node, Pointer] = field(default_factory=dict)  # matrices at the borders of its parts, by state


@dataclass
class Step:
    """What the kernels of one step work on."""

    tile: Tile
    t: HostExpr  # within the tile
    old: list[Pointer]
    new: list[Pointer]
    old_shadows: dict[int, Pointer]
    new_shadows: dict[int, Pointer]


# --- kernels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateCopy:
    """[B, size] dense to [B, size] as `place` says, converted. visit: the number of the layer and direction. unless: a
    C++ condition, under which nobody needs it ("": somebody always does)."""

    source: Pointer
    target: Pointer
    size: int
    place: Place
    visit: int = 0
    unless: str = ""


def copy_states(host: Host, name: str, copies: Sequence[StateCopy], visit: str = "") -> None:
    """All of them in as few launches as kernels' parameters allow: each launch costs as much as a step. visit: an
    expression: only those of that layer and direction, of all if it is negative."""
    scalars: list[HostExpr] = ["B", *([visit] if visit else [])]
    for number, part in enumerate(_launched_together(copies)):
        pointers = [pointer for m in part for pointer in (m.source, m.target)]
        with host.when(f"!{part[0].unless}") if part[0].unless else nullcontext():
            wide = all(_wide(m) for m in part)
            if wide:
                with host.when(aligned(pointers)):
                    host.launch(_copy_kernel(f"{name}{number}_wide", part, bool(visit), LANES), pointers, scalars)
            with host.otherwise() if wide else nullcontext():
                host.launch(_copy_kernel(f"{name}{number}", part, bool(visit)), pointers, scalars)


def end_rows(host: Host, name: str, copies: Sequence[StateCopy], output: Pointer, width: int) -> None:
    """Rows without a step, of a call of one: all states are as they were, the output, of that width, is 0. One launch
    behind all layers: no other row reads what such rows have between them."""
    for number, part in enumerate(_launched_together(copies)):

        def run(w: Writer, part: Sequence[StateCopy] = part) -> None:
            row, j, inside = elements(w, max([width, *(m.size for m in part)]))
            with w.when(inside), w.when(w["lengths"][row] < tirx.const(1, "int64")):
                for n, m in enumerate(part):
                    with w.when(j < m.size):
                        at = address(Place(m.source.dtype, m.size), row, j)
                        w.store(w[f"to{n}"], w[f"from{n}"][at], at)
                with w.when(j < width):
                    w.store(w["output"], tirx.const(0.0, output.dtype), address(Place(output.dtype, width), row, j))

        pairs = [((f"from{n}", m.source.dtype), (f"to{n}", m.target.dtype)) for n, m in enumerate(part)]
        named = [*(pointer for pair in pairs for pointer in pair), ("output", output.dtype), ("lengths", "int64")]
        kernel = write(f"{name}{number}", named, [("rows", "int64")], run, threads=THREADS)
        pointers = [pointer for m in part for pointer in (m.source, m.target)]
        host.launch(kernel, [*pointers, output, host.program.lengths], ["B"])


def _wide(copy: StateCopy) -> bool:
    """Whether several elements may be moved at a time, if addresses allow it."""
    whole = copy.size % LANES == 0 and copy.place.row_stride % LANES == 0
    return whole and {copy.source.dtype, copy.place.dtype} <= {*DTYPES}


def _launched_together(copies: Sequence[StateCopy]) -> Iterator[list[StateCopy]]:
    for unless in dict.fromkeys(m.unless for m in copies):
        own = [m for m in copies if m.unless == unless]
        yield from (own[first : first + COPIES] for first in range(0, len(own), COPIES))


def elsewhere(buffers: Buffers, number: int) -> str:
    """When a state of the user's is not copied."""
    found = [buffers.in_place[number].when] if number in buffers.in_place else []
    found += [buffers.whole[number].when] if buffers.whole else []
    return f"({' || '.join(found)})" if len(found) > 1 else "".join(found)


def _copy_kernel(name: str, copies: Sequence[StateCopy], chosen: bool = False, lanes: int = 1) -> Kernel:
    """lanes: elements that a thread moves."""

    def run(w: Writer) -> None:
        row, number, inside = elements(w, max(m.size for m in copies) // lanes)
        with w.when(inside):
            j = w.keep(number * lanes)
            found = []
            for n, m in enumerate(copies):
                own = j < m.size
                if chosen:
                    called = tirx.Or(w["visit"] < 0, tirx.EQ(w["visit"], tirx.const(m.visit, "int32")))
                    own = tirx.And(own, called)
                moved = LoadedLanes(w, m.source.dtype, lanes)
                with w.when(own):
                    moved.load(f"from{n}", address(Place(m.source.dtype, m.size), row, j))
                found.append((own, moved))
            for n, (m, (own, moved)) in enumerate(zip(copies, found, strict=True)):
                with w.when(own):
                    store_lanes(w, f"to{n}", m.place.dtype, address(m.place, row, j), moved.values())

    pairs = [((f"from{n}", m.source.dtype), (f"to{n}", m.place.dtype)) for n, m in enumerate(copies)]
    scalars = [("rows", "int64"), *([("visit", "int32")] if chosen else [])]
    return write(name, [pointer for pair in pairs for pointer in pair], scalars, run, threads=THREADS)


@dataclass(frozen=True)
class StateKernels:
    """The kernels of one layer, and what moves in and out."""

    layout: Layout
    name: str
    initial: Mapping[str, float]

    @property
    def _sizes(self) -> list[int]:
        return [prod(s.shape) for s in self.layout.graph.states]

    @cached_property
    def _shadows(self) -> dict[int, Place]:
        found = {i: self.layout.shadow(i) for i in range(len(self._sizes))}
        return {i: place for i, place in found.items() if place is not None}

    @property
    def _all(self) -> list[tuple[str, Place, int]]:
        """(pointer, place, number) of every state."""
        return [(f"state{i}", self.layout.state(i), i) for i in range(len(self._sizes))]

    def _copies(self, state: str, shadow: str) -> list[tuple[str, Place, int]]:
        """(pointer, place, number) of every state that changes step by step, then of every shadow."""
        states = [(f"{state}{i}", self.layout.state(i), i) for i in self.layout.stepped]
        return [*states, *((f"{shadow}{i}", place, i) for i, place in self._shadows.items())]

    def _kernel(
        self,
        name: str,
        pointers: Sequence[tuple[str, str]],
        scalars: Sequence[tuple[str, str]],
        where: Callable[[Writer, Expr], Expr],
        stored: Sequence[tuple[str, Value, Place, int]],
    ) -> Kernel:
        """stored: (pointer, value, place, width) of what is stored in the rows for which `where` holds."""

        def run(writer: Writer) -> None:
            row, j, inside = elements(writer, max([*self._sizes, *(width for *_, width in stored)]))
            with writer.when(inside), writer.when(where(writer, row)):
                for pointer, value, place, width in stored:
                    with writer.when(j < width):
                        found = converted(value(writer, row, j), place.dtype)
                        writer.store(writer[pointer], found, address(place, row, j))

        return write(f"{self.name}_{name}", pointers, [("rows", "int64"), *scalars], run, threads=THREADS)

    def _reset(
        self,
        name: str,
        copies: Sequence[tuple[str, Place, int]],
        scalars: Sequence[tuple[str, str]],
        counts: Callable[[Writer, Expr], Expr],
        initial: Mapping[str, float],
    ) -> Kernel:
        """Rows that have a flag, and a step of their own that counts, get the initial values."""

        def where(writer: Writer, row: Expr) -> Expr:
            known = tirx.Or(tirx.EQ(writer["has_lengths"], tirx.const(0, "int32")), counts(writer, row))
            return tirx.And(tirx.NE(writer["reset"][row], tirx.const(0, "uint8")), known)

        def first(place: Place, number: int) -> Value:
            value = tirx.const(initial.get(self.layout.graph.states[number].name, 0.0), place.dtype)
            return lambda writer, row, j: value

        pointers = [*((p, place.dtype) for p, place, _ in copies), ("reset", "uint8"), ("lengths", "int64")]
        stored = [(p, first(place, number), place, self._sizes[number]) for p, place, number in copies]
        return self._kernel(name, pointers, [*scalars, ("has_lengths", "int32")], where, stored)

    # --- in and out ------------------------------------------------------------------------------------------------

    def load(self, buffers: Buffers, user: list[Pointer]) -> list[StateCopy]:
        """The user's states of one layer and direction become the copies of parity 0."""
        copies = [
            StateCopy(user[i], first, self._sizes[i], self.layout.state(i), unless=elsewhere(buffers, i))
            for i, (first, _) in enumerate(buffers.states)
        ]
        for i, (first, _) in buffers.shadows.items():
            copies.append(StateCopy(user[i], first, self._sizes[i], self._shadows[i], unless=elsewhere(buffers, i)))
        return copies

    def save(self, buffers: Buffers, states: list[Pointer], user: list[Pointer]) -> list[StateCopy]:
        """The states after the last step become the user's."""
        return [
            StateCopy(state, after, size, Place(self.layout.dtype, size), unless=elsewhere(buffers, i))
            for i, (state, after, size) in enumerate(zip(states, user, self._sizes, strict=True))
        ]

    # --- within the loop over time ---------------------------------------------------------------------------------

    def _restarts(self, name: str, copies: Sequence[tuple[str, Place, int]]) -> Kernel:
        def unfinished(writer: Writer, row: Expr) -> Expr:
            return writer["time"] < writer["lengths"][row]

        return self._reset(name, copies, [("time", "int64")], unfinished, self.initial)

    @cached_property
    def _restart(self) -> Kernel:
        return self._restarts("restart", self._copies("state", "shadow"))

    @cached_property
    def _restart_all(self) -> Kernel:
        """Of recurrences over all time too."""
        shadows = ((f"shadow{i}", place, i) for i, place in self._shadows.items())
        return self._restarts("restart_all", [*self._all, *shadows]) if self.layout.solved else self._restart

    @cached_property
    def _freeze(self) -> Kernel:
        old, new, output = self._copies("old", "old_shadow"), self._copies("state", "shadow"), self.layout.output

        def load(pointer: str, place: Place) -> Value:
            return lambda writer, row, j: writer[pointer][address(place, row, j)]

        pointers = [(pointer, place.dtype) for pointer, place, _ in (*old, *new)]
        both = zip(old, new, strict=True)
        stored = [(p, load(source, at), place, self._sizes[i]) for (source, at, _), (p, place, i) in both]
        if self.layout.emits:
            pointers.append(("output", output.dtype))
            zero, width = tirx.const(0.0, output.dtype), self.layout.graph.output.shape[0]
            stored.append(("output", lambda writer, row, j: zero, output, width))

        def ended(writer: Writer, row: Expr) -> Expr:
            return writer["time"] >= writer["lengths"][row]

        return self._kernel("freeze", [*pointers, ("lengths", "int64")], [("time", "int64")], ended, stored)

    def restart(self, host: Host, step: Step) -> None:
        """Rows whose flag is set start this step from the initial values."""
        program, tile = host.program, step.tile
        time = f"{tile.start} + {step.t} + {int(tile.reverse)}"
        with host.when(f"has_reset && {time} < T"):
            old = [step.old[i] for i in self.layout.stepped]
            pointers = [*old, *step.old_shadows.values(), program.reset.at(f"({time}) * B"), program.lengths]
            host.launch(self._restart, pointers, ["B", time, "has_lengths ? 1 : 0"])

    def reset_at_start(self, host: Host, buffers: Buffers) -> None:
        """Rows whose flag after the last step is set: a segment of time that is gone through backwards."""
        first = [*(pair[0] for pair in buffers.states), *(pair[0] for pair in buffers.shadows.values())]
        pointers = [*first, host.program.reset.at("T * B"), host.program.lengths]
        host.launch(self._restart_all, pointers, ["B", "T", "has_lengths ? 1 : 0"])

    def freeze(self, host: Host, step: Step, when: str = "has_lengths") -> None:
        """Rows that have ended: the new states are the old ones, the output is 0. when: a C++ condition."""
        tile, place = step.tile, self.layout.output
        time = f"{tile.start} + {step.t}"
        with host.when(when):
            old, new = ([states[i] for i in self.layout.stepped] for states in (step.old, step.new))
            pointers = [*old, *step.old_shadows.values(), *new, *step.new_shadows.values()]
            pointers += [tile.output.at(f"{step.t} * B * {place.row_stride}")] if self.layout.emits else []
            host.launch(self._freeze, [*pointers, host.program.lengths], ["B", time])

    @cached_property
    def _settle(self) -> Kernel:
        old, new = self._copies("old", "old_shadow"), self._copies("state", "shadow")

        def load(pointer: str, place: Place) -> Value:
            return lambda writer, row, j: writer[pointer][address(place, row, j)]

        def odd(writer: Writer, row: Expr) -> Expr:
            length = writer["lengths"][row] - writer["start"]
            steps = tirx.max(tirx.min(length, writer["count"]), tirx.const(0, "int64"))
            return tirx.EQ(tirx.truncmod(writer["count"] - steps, int64(2)), int64(1))

        pointers = [(pointer, place.dtype) for pointer, place, _ in (*old, *new)]
        both = zip(old, new, strict=True)
        stored = [(p, load(source, at), place, self._sizes[i]) for (source, at, _), (p, place, i) in both]
        return self._kernel(
            "settle", [*pointers, ("lengths", "int64")], [("start", "int64"), ("count", "int64")], odd, stored
        )

    def settle(self, host: Host, step: Step) -> None:
        """Where steps leave rows that have ended as they are: of those that an odd number of a tile's steps leaves, the
        old copies become the new ones. Forward that is behind the last step, backward, where such rows come first,
        before the first one."""
        tile = step.tile
        old, new = ([states[i] for i in self.layout.stepped] for states in (step.old, step.new))
        pointers = [*old, *step.old_shadows.values(), *new, *step.new_shadows.values()]
        host.launch(self._settle, [*pointers, host.program.lengths], ["B", tile.start, tile.count])

    @cached_property
    def _blank(self) -> Kernel:
        """A warp for each row: most rows are left as they are."""
        place, width = self.layout.output, self.layout.graph.output.shape[0]

        def run(writer: Writer) -> None:
            block = I.cta_id([tirx.Cast("int32", tirx.floordiv(writer["rows"] + (WARPS - 1), int64(WARPS)))])
            thread = I.thread_id([THREADS])
            row = writer.keep(wide(block) * WARPS + wide(thread // WARP))
            time = writer["start"] + tirx.truncdiv(row, writer["batch"])
            ended = time >= writer["lengths"][tirx.truncmod(row, writer["batch"])]
            with writer.when(row < writer["rows"]), writer.when(ended), writer.loop(ceil_div(width, WARP)) as turn:
                j = writer.keep(turn * WARP + thread % WARP)
                with writer.when(j < width) if width % WARP else nullcontext():
                    writer.store(writer["output"], tirx.const(0.0, place.dtype), address(place, row, j))

        pointers, numbers = [("output", place.dtype), ("lengths", "int64")], ("rows", "batch", "start")
        return write(f"{self.name}_blank", pointers, [(name, "int64") for name in numbers], run, threads=THREADS)

    def blank(self, host: Host, tile: Tile) -> None:
        """Rows that have ended, after all steps of a tile: the output is 0."""
        with host.when("has_lengths"):
            scalars = [f"({tile.count} * B)", "B", tile.start]
            host.launch(self._blank, [tile.output, host.program.lengths], scalars)

    @cached_property
    def _cut(self) -> Kernel:
        def counts(writer: Writer, row: Expr) -> Expr:
            return writer["lengths"][row] > tirx.const(0, "int64")

        return self._reset("cut", self._all, [], counts, {})

    def cut(self, host: Host, states: list[Pointer], reset: Pointer) -> None:
        """Rows that have a flag in `reset` [B], and a step at all, get zeros."""
        host.launch(self._cut, [*states, reset, host.program.lengths], ["B", "has_lengths ? 1 : 0"])

    @cached_property
    def _kept(self) -> list[tuple[int, int]]:
        """(number among the kept values, number of the state) of states that are read after all steps."""
        states, kept = self.layout.graph.states, enumerate(self.layout.kept)
        return [(i, states.index(node)) for i, node in kept if node.op == "state"]

    @cached_property
    def _keep(self) -> Kernel:
        copies = []
        for number, state in self._kept:
            place = self.layout.kept_place(self.layout.kept[number])
            source, target = Pointer("", self.layout.state(state).dtype), Pointer("", place.dtype)
            copies.append(StateCopy(source, target, self._sizes[state], place))
        return _copy_kernel(f"{self.name}_keep", copies)

    def keep(self, host: Host, step: Step) -> None:
        """States that are read after all steps, as they are before this one."""
        pointers = []
        for number, state in self._kept:
            stride = self.layout.kept_place(self.layout.kept[number]).row_stride
            pointers += [step.old[state], step.tile.kept[number].at(f"{step.t} * B * {stride}")]
        if pointers:
            host.launch(self._keep, pointers, ["B"])
