"""forward_train on the GPU: the program of inference that also writes a tape.

In: an RNN and its graphs of training after the passes. Out: a `Program` whose `sequence` has one more input after the
user's, the tape, and for masks three (`cuda/rowwise/dropout_masks.py`), for segments of time four
(`cuda/layer/time_segments.py`). The walk is that of `cuda/plan/network.py`; layers read each other's outputs on the
tape.

    states in, also to the tape; inputs to the tape, where rows end or are reset; for tile: for layer: hoisted groups,
    steps; states out; blank what rows' ends left
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from tvm import tirx

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.made_again import MadeAgain
from tvm_rnn.cuda.layer.pointers import Place, address
from tvm_rnn.cuda.layer.row_kernels import THREADS, elements
from tvm_rnn.cuda.plan.layer import Layer
from tvm_rnn.cuda.plan.network import Plan, Visit
from tvm_rnn.cuda.rowwise.state_moves import StateCopy
from tvm_rnn.graph.graph import Graph, Node
from tvm_rnn.options import PASS_NAMES
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import int64, wide

from .tape_layout import Tape, kept_nodes, narrowed, states_read

MOST_ARRAYS = 32  # of one launch


@dataclass
class Blank:
    """An array with a row for every step and batch row. initial: None, or what a state is after a reset. first: for
    steps that go back in time, the state [B, size] that a row's last step begins with, dense."""

    pointer: Pointer
    place: Place
    size: int
    initial: float | None = None
    first: Pointer | None = None


@dataclass
class ForwardTrain(Plan):
    """Call `run()`; then `tape` is the layout of the tape. number: of the first graph, among those whose constants the
    file has. again: of graphs, by their number, what backward makes again. narrow: the dtype in which the tape has what
    backward reads in pointwise work; "": the storage dtype. keep: what is kept."""

    number: int = 0
    narrow: str = ""
    keep: bool | str = True
    again: Mapping[int, MadeAgain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tape = Tape(self.net, self.code, self.layers.of_layer)

    def _layer(self, graph: Graph, number: int) -> Layer:
        net = self.net
        own = graph, self.number + number, net.dtype, self.options, self.target, net.cell.initial, self.directions
        streams, narrow = tuple(net.regularisers.streams), narrowed(graph, self.narrow)
        return Layer(
            *own,
            kept=kept_nodes(graph),
            streams=streams,
            narrow=narrow,
            together=self._side_by_side(),
            again=self.again.get(number),
        )

    def _joined(self, number: int) -> Graph | None:
        """Of what is kept the backward graph that there is reads the same. Masks are made for many steps at a time."""
        own = self.layers.graphs[number]
        if self.net.regularisers or number in self.again or not set(PASS_NAMES) <= set(own.applied):
            return None
        return replace(self.passed.in_step(self.keep).graphs[number], backward=own.backward)

    def run(self) -> Program:
        """The program."""
        program, host, inputs = self.program, self.program.sequence, len(self.net.layers[0].graph.inputs)
        self._segment(self._mask_keys(inputs + 1))
        self._take_images()
        self.tape_pointers = self.tape.pointers(program, program.input(inputs), 0, self.segment)
        self._tile_sizes()
        self.visits = self._visits()
        self._walk_states_of_users(host)
        self._copy_states(host, "load", self._load)
        self._reset_at_start(host)
        self._copy_inputs(host)
        self._layers(host)
        self._copy_states(host, "save", self._save)
        self._tidy(host)
        self._give_images()
        program.facts["templates"] = list(self._facts())
        return program

    # --- what is kept ----------------------------------------------------------------------------------------------

    def _arrays(self, visit: Visit) -> Iterator[tuple[Pointer, Place, int, int | None]]:
        """(array, its place, elements of a row, number of the state or None) of all that a visit keeps."""
        layout, read = visit.code.layout, states_read(visit.code.graph)
        for i, at in enumerate(self.tape.visits[visit.key]):
            node, first = layout.kept[i], i - len(layout.graph.emitted)
            state = None if first < 0 else read[first]
            yield self.tape_pointers[at], layout.kept_place(node), prod(node.shape), state

    def _load(self, visit: Visit) -> list[StateCopy]:
        """Copy the user's states to where steps read them, and to the entry before the first step."""
        before = [given for given, _ in visit.user]
        copies = super()._load(visit)
        for pointer, place, size, state in self._arrays(visit):
            if state is not None:
                entry = f"T * B * {place.row_stride}" if self._back(visit) else 0
                copies.append(StateCopy(before[state], pointer.at(entry), size, place))
        return copies

    def _reset_at_start(self, host: Host) -> None:
        """Reset what goes back in time, at flags of the step after the call's, where there is one."""
        if not self.segment.given:
            return
        with host.when(f"has_reset && ({self.segment.border} & 1)"):
            for visit in self.visits:
                if self._back(visit):
                    with self.segment.of_visit(host, *visit.key):
                        visit.code.states.reset_at_start(host, visit.buffers)

    def _kept(self, visit: Visit, row: HostExpr) -> list[Pointer]:
        """From the tile's first step on: values of the step, and states after it."""
        found = []
        for pointer, place, _, state in self._arrays(visit):
            entry = 0 if state is None or self._back(visit) else f"B * {place.row_stride}"
            found.append(pointer.at(entry).at(f"{row} * {place.row_stride}"))
        return found

    def _marks(self, visit: Visit, start: HostExpr) -> dict[Node, Pointer]:
        graph, key = visit.code.graph, visit.key
        own = self.tape.matrices[key]
        return {graph.states[n]: self.tape.matrix(self.tape_pointers, key, n, start) for n in own}

    def _between(self) -> None:
        """Layers read each other's outputs on the tape."""

    def _layer_output(self, host: Host, layer: int, tile: str, row: HostExpr, stride: int) -> Pointer:
        return self.tape_pointers[self.tape.inputs[layer + 1]].at(f"{row} * {stride}")

    def _user_inputs(self) -> list[tuple[Pointer, Pointer, int]]:
        """(the user's, the tape's, elements of a row) of every input."""
        pairs = enumerate(zip(self.net.layers[0].graph.inputs, self.tape.users, strict=True))
        each = self.program.each
        return [(self.program.input(n), self.tape_pointers[at], prod(node.shape) // each) for n, (node, at) in pairs]

    def _copy_inputs(self, host: Host) -> None:
        """The caller's arrays are read where they are, but where some of their rows must become 0."""
        with host.when("has_lengths || has_reset"), self._when_read(host):
            for given, own, size in self._user_inputs():
                host.copy(own, given, f"T * B * {size} * {ITEM_BYTES[self.net.dtype]}")

    def _when_read(self, host: Host) -> AbstractContextManager[None]:
        """In calls for those who read the inputs: the first layer reads x, every one what comes beside it."""
        return nullcontext() if len(self.tape.users) > 1 else self.segment.of_layer(host, 0)

    def _tidy(self, host: Host) -> None:
        """Weight gradients sum over all rows, and 0 times NaN is NaN: rows after their end become 0. Before a
        reset step, the state is the initial one."""
        with host.when("has_lengths || has_reset"):
            arrays = [Blank(own, Place(self.net.dtype, size), size) for _, own, size in self._user_inputs()]
            with self._when_read(host):
                self._blank(host, "inputs", 0, arrays)
            for number, visit in enumerate(self.visits):
                back, found = self._back(visit), list[Blank]()
                for pointer, place, size, state in self._arrays(visit):
                    own = Blank(pointer.at(0), place, size)
                    if state is not None:
                        own.initial = self.net.cell.initial.get(visit.code.graph.states[state].name, 0.0)
                    if state is not None and back:  # the state before step t is entry t + 1
                        own.pointer, own.first = pointer.at(f"B * {place.row_stride}"), visit.user[state][0]
                    found.append(own)
                with self.segment.of_visit(host, *visit.key):
                    self._blank(host, f"visit{number}", int(back), found)

    def _blank(self, host: Host, name: str, side: int, arrays: list[Blank]) -> None:
        for first in range(0, len(arrays), MOST_ARRAYS):
            part = arrays[first : first + MOST_ARRAYS]
            pointers = [*(a.pointer for a in part), *(a.first for a in part if a.first is not None)]
            scalars: list[HostExpr] = ["T * B", "B", "T"]
            scalars += ["has_lengths ? 1 : 0", "has_reset ? 1 : 0", 0, f"{self.segment.border} & 1"]
            kernel = blank_kernel(f"blank_{name}_{first}", part, side)
            host.launch(kernel, [*pointers, self.program.lengths, self.program.reset], scalars)


def blank_kernel(name: str, arrays: list[Blank], side: int) -> Kernel:
    """Rows after their end become 0, states before a reset step the initial ones. side: 1 where the steps
    went back in time, and a flag at t + 1 separates step t from the one before it. The scalar `after` is 1 where there
    is a step after these."""

    def body(w: Writer) -> None:
        row, j, inside = elements(w, max(a.size for a in arrays))
        with w.when(inside):
            t, b = w.keep(w["start"] + tirx.truncdiv(row, w["batch"])), w.keep(tirx.truncmod(row, w["batch"]))
            end = w.local(1, "int64")
            after = w.keep(w["steps"] + tirx.Cast("int64", w["after"]))
            w.store(end, after, 0)
            with w.when(tirx.NE(w["has_lengths"], tirx.const(0, "int32"))):
                w.store(end, w["lengths"][b], 0)
            again = w.local(1, "int32")
            w.store(again, tirx.const(0, "int32"), 0)
            at = w.keep(t + int64(side))
            known = tirx.And(at < after, at < end[0])
            with w.when(tirx.And(tirx.NE(w["has_reset"], tirx.const(0, "int32")), known)):
                w.store(again, tirx.Cast("int32", w["reset"][at * w["batch"] + b]), 0)
            for n, array in enumerate(arrays):
                if array.first is not None:
                    with w.when(tirx.And(tirx.And(t + 1 >= end[0], t < end[0]), j < array.size)):
                        value = w[f"first{n}"][b * array.size + wide(j)]
                        w.store(w[f"a{n}"], converted(value, array.place.dtype), address(array.place, row, j))
                place = address(array.place, row, j)
                with w.when(j < array.size):
                    if array.initial is not None:
                        with w.when(tirx.NE(again[0], tirx.const(0, "int32"))):
                            w.store(w[f"a{n}"], _literal(array.initial, array.place.dtype), place)
                    with w.when(t >= end[0]):
                        w.store(w[f"a{n}"], tirx.const(0.0, array.place.dtype), place)

    pointers: list[tuple[str, str]] = [(f"a{n}", a.place.dtype) for n, a in enumerate(arrays)]
    pointers += [(f"first{n}", a.first.dtype) for n, a in enumerate(arrays) if a.first is not None]
    pointers += [("lengths", "int64"), ("reset", "uint8")]
    names = ("rows", "batch", "steps", "has_lengths", "has_reset", "start", "after")
    scalars = [(n, "int32" if n.startswith("has") or n == "after" else "int64") for n in names]
    return write(name, pointers, scalars, body, threads=THREADS)


def _literal(value: float, dtype: str) -> TirExpr:
    """A number as a constant. What float16 cannot hold is infinite there, which TVM refuses to write."""
    if dtype != "float16":
        return tirx.const(value, dtype)
    with np.errstate(over="ignore"):
        return tirx.reinterpret(dtype, tirx.const(int(np.float16(value).view(np.uint16)), "uint16"))
