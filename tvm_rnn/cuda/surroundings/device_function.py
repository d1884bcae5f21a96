"""A graph as two functions of a module for GPUs: NAME computes it, NAME_sizes says how large results and memory are.

In: a graph of calls. Out: kernels, and C++ that launches them one after the other on the caller's stream, on planned
memory: a call waits for nothing and allocates nothing, so that it can be captured in a CUDA graph. Both are given the
axes of all inputs, one after the other. NAME_sizes fills an array with all axes of all results, the bytes of memory,
and bounds of the elements that must have some, and looks at what the graph demands of sizes. NAME is given that memory,
inputs, constants and results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm
from tvm import tirx

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES, Export, Host, Pointer, Program
from tvm_rnn.surroundings.calls import Graph, Value
from tvm_rnn.surroundings.memory import Memory, Room
from tvm_rnn.surroundings.nest import Nest, nest_of, reads
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import int64, wide

from .element_kernel import element_kernel
from .inline import Piece, pieces_of
from .nest_kernel import Launch, NestKernel
from .product_tile import product_of, product_tile
from .size_text import NoText, size_text
from .statements import Statements
from .warp_sum import warp_sum

FEW_TERMS = 32  # of a sum that a thread adds up
FEW_ELEMENTS = 1 << 14  # of a product's result that warps make: so many of them a GPU has at once
MOST = 1 << 31  # elements of an array: its indices are of 32 bits
KINDS = ("float32", "float64", "float16", "bfloat16", "bool", "int8", "uint8", "int32", "int64", "uint32")


class NotOnDevice(Exception):
    """Why a graph is not computed on a GPU, in words."""


@dataclass
class DeviceFunction:
    """takes, gives: dtypes of inputs and outputs, where they are not the graph's. given: the constants that the
    function takes, in order. looked_at: which inputs have elements that must be in bounds, which NAME_sizes says, and
    what is needed of them, in words."""

    name: str
    graph: Graph
    takes: Sequence[str] = ()
    gives: Sequence[str] = ()
    given: list[Value] = field(default_factory=list)
    launches: list[list[Launch]] = field(default_factory=list)
    rooms: list[tuple[Buffer, Room]] = field(default_factory=list)
    looked_at: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises NotOnDevice."""
        if self.graph.numbers:
            raise NotOnDevice("elements of arrays decide sizes")
        self.statements = Statements(self.graph, self.takes, self.gives)
        self.looked_at = [(self._looked_at(own.value), own.text) for own in self.graph.looks]
        self.memory = Memory(held=self.statements.sizes)
        pieces = pieces_of(self.statements.done, self.statements.outputs)
        self.given = [
            value
            for value, own in self.statements.constants.items()
            if any(reads(piece.statement, own) or _reads_after(piece, own) for piece in pieces)
        ]
        self.launches = [self._launches(i, piece) for i, piece in enumerate(pieces)]
        self._plan()
        self.size = self.memory.sizes.get("uint8", int64(0))
        try:
            self.names, self.begin = self._names()
            self.checks = self._checks(self.names)
        except NoText as reason:
            raise NotOnDevice(str(reason)) from None

    def _looked_at(self, value: Value) -> int:
        """Which input has these elements."""
        buffer = self.statements.arrays.get(value)
        made = {own.store.buffer: own.store.value for own in map(nest_of, self.statements.done) if own is not None}
        while buffer is not None and isinstance(copied := made.get(buffer), tvm.ir.TensorLoad):
            buffer = copied.source
        for i, own in enumerate(self.statements.inputs):
            if buffer is not None and own.same_as(buffer):
                return i
        raise NotOnDevice("elements of arrays that it makes are looked at")

    # --- kernels ------------------------------------------------------------------------------------------------

    def _launches(self, number: int, piece: Piece) -> list[Launch]:
        """The kernels of a piece, one of which runs."""
        if piece.nest is None and isinstance(piece.statement, tirx.BufferStore):
            piece = Piece(piece.statement, Nest([], piece.statement, None))
        if piece.nest is None:
            raise NotOnDevice("a loop whose steps follow from each other")
        nest = NestKernel(f"{self.name}_{number}", piece, self.statements.sizes)
        for own in nest.arrays:
            if str(own.dtype) not in KINDS:
                raise NotOnDevice(f"values of {own.dtype}")
        count, terms = nest.count(nest.own), nest.known(nest.summed)
        few = terms is not None and terms <= FEW_TERMS
        product = product_of(nest) if nest.summed else None
        if product is None:
            return [(None if few else warp_sum(nest)) or element_kernel(nest)]
        tiles = NestKernel(f"{nest.name}_tiles", piece, self.statements.sizes)
        plain = (None if few else warp_sum(nest)) or element_kernel(nest)
        limit = int64(FEW_ELEMENTS)
        return [plain.when(tirx.LE(count, limit)), product_tile(tiles, product, tirx.GT(count, limit))]

    # --- memory -------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Places of what is neither given nor asked for, each while it is needed."""
        last = dict[Buffer, int]()
        for i, (first, *_) in enumerate(self.launches):
            last |= dict.fromkeys(first.arrays, i)
        given = [*self.statements.inputs, *self.statements.outputs, *self.statements.constants.values()]
        for i, (first, *_) in enumerate(self.launches):
            own = first.written
            if not _among(own, given) and not any(own.same_as(known) for known, _ in self.rooms):
                room = self.memory.take((*own.shape, int64(ITEM_BYTES[str(own.dtype)])), "uint8")
                self.rooms.append((own, room))
            for buffer, room in self.rooms:
                if last[buffer] == i:
                    self.memory.give(room, "uint8")

    # --- the host program ---------------------------------------------------------------------------------------

    def add_to(self, program: Program) -> None:
        """Make both functions part of a program."""
        names, host, arrays = self.names, Host(program), self._pointers(self.names)
        for group in self.launches:
            for own in group:
                met = [f"{size_text(own.elements, names)} > 0"]
                met += [] if own.where is None else [size_text(own.where, names)]
                pointers = [_pointer(arrays, buffer) for buffer in own.arrays]
                with host.when(" && ".join(met)):
                    host.launch(own.kernel, pointers, [size_text(size, names) for size in own.sizes])
        count = len(self.statements.inputs) + len(self.given) + len(self.statements.outputs)
        about = f"{self.name}(device, stream, axes, memory, inputs..., constants..., results...)"
        known = ["  (void)sms;", "  char* const memory = as_pointer(args[3]);", *self.begin]
        program.exports.append(Export(self.name, 4 + count, (*known, *host.lines), (about,)))
        about = f"{self.name}_sizes(device, stream, axes, into): axes of results, bytes of memory, bounds of elements"
        found = [axis for buffer in self.statements.outputs for axis in buffer.shape]
        found += [self.size, *(bound for own in self.graph.looks for bound in (own.low, own.high))]
        lines = ["  (void)sms;", *self.begin, *self.checks, "  int64_t* const into = (int64_t*)args[3].v_int64;"]
        lines += [f"  into[{i}] = {size_text(axis, names)};" for i, axis in enumerate(found)]
        program.exports.append(Export(f"{self.name}_sizes", 4, tuple(lines), (about,)))

    def _names(self) -> tuple[dict[tirx.Var, str], list[str]]:
        """Sizes as C++ has them, and the lines that set them."""
        lines, names = ["  const int64_t* const axes = (const int64_t*)args[2].v_int64;"], dict[tirx.Var, str]()
        for i, axis in enumerate(self._axes()):
            if isinstance(axis, tirx.Var) and axis not in names:
                names[axis] = f"n_{len(names)}"
                lines.append(f"  const int64_t {names[axis]} = axes[{i}];")
        for value, own in self.statements.sizes.names:
            text = size_text(value, names)
            names[own] = f"n_{len(names)}"
            lines.append(f"  const int64_t {names[own]} = {text};")
        return names, lines

    def _axes(self) -> list[Expr]:
        """Of all inputs; sizes that are names of their own."""
        return [wide(axis) for value in self.graph.inputs for axis in value.shape]

    def _checks(self, names: dict[tirx.Var, str]) -> list[str]:
        """Errors for sizes that do not fit each other, or the graph."""
        lines, unfit = [], "the sizes of inputs do not fit each other"
        for i, axis in enumerate(self._axes()):
            lines.append(_failing(f"axes[{i}] != {size_text(axis, names)}", unfit))
        for own in self.graph.demands:
            lines.append(_failing(f"!{size_text(own.condition, names)}", f"needed is {own.text}"))
        large = dict.fromkeys(size_text(_elements(b), names) for group in self.launches for b in group[0].arrays)
        what = f"an array of {MOST} elements or more around a network is too large for a GPU's indices"
        return [*lines, *(_failing(f"{text} >= INT64_C({MOST})", what) for text in large)]

    def _pointers(self, names: dict[tirx.Var, str]) -> list[tuple[Buffer, Pointer]]:
        """Where each array lies."""
        constants = [self.statements.constants[value] for value in self.given]
        found = [
            (buffer, Pointer(f"as_pointer(args[{4 + i}])", str(buffer.dtype)))
            for i, buffer in enumerate((*self.statements.inputs, *constants, *self.statements.outputs))
        ]
        for buffer, room in self.rooms:
            found.append((buffer, Pointer(f"(memory + {size_text(room.at, names)})", str(buffer.dtype))))
        return found


def _reads_after(piece: Piece, buffer: Buffer) -> bool:
    return piece.after is not None and bool(reads(piece.after.value, buffer))


def _among(buffer: Buffer, others: Sequence[Buffer]) -> bool:
    return any(buffer.same_as(own) for own in others)


def _pointer(arrays: Sequence[tuple[Buffer, Pointer]], buffer: Buffer) -> Pointer:
    return next(place for own, place in arrays if own.same_as(buffer))


def _elements(buffer: Buffer) -> Expr:
    found: Expr = int64(1)
    for axis in buffer.shape:
        found = found * wide(axis)
    return found


def _failing(condition: str, text: str) -> str:
    return f'  if ({condition}) return fail({json.dumps(text, ensure_ascii=False)}, "ValueError");'
