"""Kernels for a layer's states: in from the user's arrays and back, restarts at reset flags, rows that have ended.

In: where the states lie. Out: kernels over [rows, elements of the largest state], each for all states at once. The
meaning is that of `oracle/reference.py`: backwards, a flag at t + 1 separates step t from what was just processed;
flags in the padding of a row mean nothing; rows that have ended keep their states and emit zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias

from tvm import tirx

from tvm_rnn.cuda.codegen.host_program import Host, Pointer
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.pointers import Place, address
from tvm_rnn.cuda.layer.row_kernels import THREADS, elements
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.tir.expr import Expr, TirExpr

from .step_memory import Buffers, Step

# What is stored at element j of a row: (pointer, value, or what loads it within the condition, place, width).
StoredElement: TypeAlias = tuple[str, TirExpr | Callable[[], TirExpr], Place, int]
COPIES = 32  # of one launch


@dataclass(frozen=True)
class StateCopy:
    """[B, size] dense to [B, size] as `place` says, converted. visit: the number of the layer and direction."""

    source: Pointer
    target: Pointer
    size: int
    place: Place
    visit: int = 0


def copy_states(host: Host, name: str, copies: Sequence[StateCopy], visit: str = "") -> None:
    """All of them in as few launches as kernels' parameters allow: each launch costs as much as a step. visit: an
    expression: only those of that layer and direction, of all if it is negative."""
    for first in range(0, len(copies), COPIES):
        part = copies[first : first + COPIES]
        pointers = [pointer for m in part for pointer in (m.source, m.target)]
        host.launch(
            _copy_kernel(f"{name}{first // COPIES}", part, bool(visit)), pointers, ["B", *([visit] if visit else [])]
        )


def _copy_kernel(name: str, copies: Sequence[StateCopy], chosen: bool = False) -> Kernel:
    def run(writer: Writer) -> None:
        row, j, inside = elements(writer, max(m.size for m in copies))
        with writer.when(inside):
            for n, m in enumerate(copies):
                own = j < m.size
                if chosen:
                    called = tirx.Or(writer["visit"] < 0, tirx.EQ(writer["visit"], tirx.const(m.visit, "int32")))
                    own = tirx.And(own, called)
                with writer.when(own):
                    value = writer[f"from{n}"][address(Place(m.source.dtype, m.size), row, j)]
                    value = value if m.source.dtype == m.place.dtype else tirx.Cast(m.place.dtype, value)
                    writer.store(writer[f"to{n}"], value, address(m.place, row, j))

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

    def _copies(self, state: str, shadow: str) -> list[tuple[str, Place, int]]:
        """(pointer, place, number) of every state, then of every shadow."""
        states = [(f"{state}{i}", self.layout.state(i), i) for i in range(len(self._sizes))]
        return [*states, *((f"{shadow}{i}", place, i) for i, place in self._shadows.items())]

    def _kernel(
        self,
        name: str,
        copies: list[tuple[str, Place, int]],
        more: list[tuple[str, str]],
        scalars: list[tuple[str, str]],
        body: Callable[[Writer, Expr, Expr], Iterator[StoredElement]],
        extra: int = 0,
    ) -> Kernel:
        """body(writer, row, j) yields what to store at element j of a row: (pointer, value, place, width)."""

        def run(writer: Writer) -> None:
            row, j, inside = elements(writer, max([*self._sizes, extra]))
            with writer.when(inside):
                for pointer, value, place, width in body(writer, row, j):
                    with writer.when(j < width):
                        made = value() if callable(value) else value
                        writer.store(writer[pointer], converted(made, place.dtype), address(place, row, j))

        pointers = [*((pointer, place.dtype) for pointer, place, _ in copies), *more]
        return write(f"{self.name}_{name}", pointers, [("rows", "int64"), *scalars], run, threads=THREADS)

    # --- in and out ------------------------------------------------------------------------------------------------

    def load(self, buffers: Buffers, user: list[Pointer]) -> list[StateCopy]:
        """The user's states of one layer and direction become the copies of parity 0."""
        copies = [
            StateCopy(user[i], first, self._sizes[i], self.layout.state(i))
            for i, (first, _) in enumerate(buffers.states)
        ]
        shadows = buffers.shadows.items()
        return copies + [StateCopy(user[i], first, self._sizes[i], self._shadows[i]) for i, (first, _) in shadows]

    def save(self, states: list[Pointer], user: list[Pointer]) -> list[StateCopy]:
        """The states after the last step become the user's."""
        user_place = [Place(self.layout.dtype, size) for size in self._sizes]
        pairs = zip(states, user, user_place, strict=True)
        return [StateCopy(s, u, size, place) for (s, u, place), size in zip(pairs, self._sizes, strict=True)]

    # --- within the loop over time ---------------------------------------------------------------------------------

    @cached_property
    def _restart(self) -> Kernel:
        copies = self._copies("state", "shadow")

        def body(writer: Writer, row: Expr, j: Expr) -> Iterator[StoredElement]:
            unfinished = tirx.Or(
                tirx.EQ(writer["has_lengths"], tirx.const(0, "int32")), writer["time"] < writer["lengths"][row]
            )
            with writer.when(tirx.And(tirx.NE(writer["reset"][row], tirx.const(0, "uint8")), unfinished)):
                for pointer, place, number in copies:
                    first = self.initial.get(self.layout.graph.states[number].name, 0.0)
                    yield pointer, tirx.const(first, place.dtype), place, self._sizes[number]

        scalars = [("time", "int64"), ("has_lengths", "int32")]
        return self._kernel("restart", copies, [("reset", "uint8"), ("lengths", "int64")], scalars, body)

    @cached_property
    def _freeze(self) -> Kernel:
        old, new = self._copies("old", "old_shadow"), self._copies("state", "shadow")
        width = self.layout.graph.output.shape[0] if self.layout.emits else 0

        def body(writer: Writer, row: Expr, j: Expr) -> Iterator[StoredElement]:
            with writer.when(writer["time"] >= writer["lengths"][row]):
                for (pointer, place, number), source in zip(new, old, strict=True):

                    def load(source: tuple[str, Place, int] = source) -> TirExpr:
                        return writer[source[0]][address(source[1], row, j)]

                    yield pointer, load, place, self._sizes[number]
                if width:
                    yield "output", tirx.const(0.0, self.layout.output.dtype), self.layout.output, width

        more = [("output", self.layout.output.dtype), ("lengths", "int64")][0 if width else 1 :]
        return self._kernel("freeze", [*old, *new], more, [("time", "int64")], body, extra=width)

    def restart(self, host: Host, step: Step) -> None:
        """Rows whose flag is set start this step from the initial values."""
        program, tile = host.program, step.tile
        time = f"{tile.start} + {step.t} + {int(tile.reverse)}"
        with host.when(f"has_reset && {time} < T"):
            pointers = [*step.old, *step.old_shadows.values(), program.reset.at(f"({time}) * B"), program.lengths]
            host.launch(self._restart, pointers, ["B", time, "has_lengths ? 1 : 0"])

    def reset_at_start(self, host: Host, buffers: Buffers) -> None:
        """Rows whose flag after the last step is set: a segment of time that is gone through backwards."""
        first = [*(pair[0] for pair in buffers.states), *(pair[0] for pair in buffers.shadows.values())]
        pointers = [*first, host.program.reset.at("T * B"), host.program.lengths]
        host.launch(self._restart, pointers, ["B", "T", "has_lengths ? 1 : 0"])

    def freeze(self, host: Host, step: Step) -> None:
        """Rows that have ended: the new states are the old ones, the output is 0."""
        tile, place = step.tile, self.layout.output
        time = f"{tile.start} + {step.t}"
        with host.when("has_lengths"):
            pointers = [*step.old, *step.old_shadows.values(), *step.new, *step.new_shadows.values()]
            pointers += [tile.output.at(f"{step.t} * B * {place.row_stride}")] if self.layout.emits else []
            host.launch(self._freeze, [*pointers, host.program.lengths], ["B", time])

    @cached_property
    def _cut(self) -> Kernel:
        copies = self._copies("state", "shadow")[: len(self._sizes)]

        def body(writer: Writer, row: Expr, j: Expr) -> Iterator[StoredElement]:
            counts = tirx.Or(
                tirx.EQ(writer["has_lengths"], tirx.const(0, "int32")), writer["lengths"][row] > tirx.const(0, "int64")
            )
            with writer.when(tirx.And(tirx.NE(writer["reset"][row], tirx.const(0, "uint8")), counts)):
                for pointer, place, number in copies:
                    yield pointer, tirx.const(0.0, place.dtype), place, self._sizes[number]

        more = [("reset", "uint8"), ("lengths", "int64")]
        return self._kernel("cut", copies, more, [("has_lengths", "int32")], body)

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
