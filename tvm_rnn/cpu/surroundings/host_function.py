"""A graph as two functions of the module: NAME computes it, NAME_sizes says how large its results and its memory are.

In: a graph of calls. Out: PrimFuncs, and what the first takes: a number of threads, then arrays: the graph's inputs,
constants, results, then one flat array per dtype for what is needed meanwhile. NAME_sizes takes the inputs, and an
array that it fills: all axes of all results, then the elements of each flat array. Both check the shapes of what they
are given; the sizes that the graph demands are looked at by NAME_sizes, which is called first, elements by NAME. Sizes
that are elements of an input are read by both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.cpu.pair_product import PairProduct
from tvm_rnn.surroundings.calls import Call, Graph, Look, Value
from tvm_rnn.surroundings.loops import loops_of, parameters, with_numbers
from tvm_rnn.surroundings.memory import Memory, Room
from tvm_rnn.surroundings.nest import mentions, reads, replaced
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import buffer as flat_buffer
from tvm_rnn.tir.statements import demanded, function, loop, sequence, store, use_threads, variable

from .columns import Laid
from .constants import Constants
from .elementary import with_polynomials
from .levels import has_levels, rounded_as_kept
from .schedule import Tiles
from .whole_numbers import Range, WholeNumbers


@dataclass(frozen=True)
class Place:
    """Where an array lies: an argument as it is, or a piece of a flat one."""

    buffer: Buffer
    room: Room | None = None

    def index(self, shape: Sequence[Expr], indices: Sequence[Expr]) -> list[Expr]:
        if self.room is None:
            return list(indices)
        flat: Expr = int64(0)
        for size, i in zip(shape, indices, strict=True):
            flat = flat * wide(size) + wide(i)
        return [self.room.at + flat]


@dataclass
class HostFunction:
    """lanes: elements of a vector. pairs: instructions for pairs of whole numbers, by words of a vector. whole: the
    ranges of values that are whole numbers. functions: by name. constants: those that the first one takes. works: the
    dtypes of the flat arrays. levels: whether values are rounded to 8 bits."""

    name: str
    graph: Graph
    lanes: int
    pairs: Mapping[int, PairProduct] = field(default_factory=dict)
    whole: dict[Value, Range] = field(default_factory=dict)
    places: dict[Value, Place] = field(default_factory=dict)
    constants: Constants = field(default_factory=Constants)
    memory: Memory = field(default_factory=Memory)
    works: dict[str, Buffer] = field(default_factory=dict)
    levels: bool = False
    functions: dict[str, tirx.PrimFunc] = field(default_factory=dict)
    threads: tirx.Var = field(default_factory=lambda: variable("threads"))

    def __post_init__(self) -> None:
        inputs, outputs = self._arguments("x", self.graph.inputs), self._arguments("y", self.graph.outputs)
        body = [*self._calls(), *self._looks(), *self._copies(outputs)]
        args = [self.threads, *inputs, *self.constants.buffers.values(), *outputs, *self.works.values()]
        body = [use_threads(self.threads), *body, use_threads(int64(1))]
        self.functions[self.name] = function(
            self.name, args, sequence(self._numbers(inputs, {}), self.memory.held.statements(), body)
        )
        self.functions[f"{self.name}_sizes"] = self._sizes()

    @property
    def given(self) -> list[Value]:
        """The constants that the first function takes, in order."""
        return [*self.constants.buffers]

    def _arguments(self, kind: str, values: Sequence[Value]) -> list[Buffer]:
        found = [_argument(f"{kind}{i}", self._open(value)) for i, value in enumerate(values)]
        for value, buffer in zip(values, found, strict=True):
            if value.constant is None:
                self.places.setdefault(value, Place(buffer))
        return found

    def _open(self, value: Value) -> Value:
        """The value with new names for sizes that elements of inputs decide: those are bound in the function."""
        numbers = [name for names in self.graph.numbers.values() for name in names]
        axes = [
            variable("n") if not isinstance(axis, int) and any(mentions(axis, own) for own in numbers) else axis
            for axis in value.shape
        ]
        return Value(tuple(axes), value.dtype, value.constant)

    def _at(self, value: Value) -> Place:
        """Where a value lies that is known or was made."""
        return self.places[value] if value.constant is None else Place(self.constants.buffer(value))

    def _copies(self, outputs: Sequence[Buffer]) -> list[Stmt]:
        """Of results that are inputs or constants, or that are there twice."""
        found = []
        for value, into in zip(self.graph.outputs, outputs, strict=True):
            place = self._at(value)
            if not place.buffer.same_as(into):
                found.append(_copy(place.buffer, into))
        return found

    def _sizes(self) -> tirx.PrimFunc:
        into = flat_buffer("sizes", "int64", alignment=8)
        axes = [axis for value in self.graph.outputs for axis in value.shape]
        numbers = [name for names in self.graph.numbers.values() for name in names]
        names = {own: tirx.Var(own.name, "int64") for own in [*_names([*self.graph.inputs]), *numbers]}
        values = [*axes, *(self.memory.sizes[dtype] for dtype in self.works)]
        stores = [store(into, int64(i), replaced(wide(value), names)) for i, value in enumerate(values)]
        own = [_argument(f"x{i}", value, names) for i, value in enumerate(self.graph.inputs)]
        met = [demanded(replaced(own.condition, names), f"needed is {own.text}") for own in self.graph.demands]
        return function(f"{self.name}_sizes", [*own, into], sequence(self._numbers(own, names), met, stores))

    def _numbers(self, inputs: Sequence[Buffer], names: Mapping[tirx.Var, tirx.Var]) -> list[Stmt]:
        """Sizes that are elements of an input get their names. None may be negative."""
        done = list[Stmt]()
        for place, own in self.graph.numbers.items():
            for i, name in enumerate(own):
                bound = names.get(name, name)
                done.append(tirx.Bind(bound, tirx.BufferLoad(inputs[place], [int64(i)])))
                done.append(demanded(tirx.GE(bound, int64(0)), "needed is a size of 0 or more"))
        return done

    def _looks(self) -> list[Stmt]:
        """What must be true of elements."""
        done = list[Stmt]()
        for own in self.graph.looks:
            place, shape = self._at(own.value), own.value.shape

            def at(index: list[Expr], own: Look = own, place: Place = place, shape: Sequence[Expr] = shape) -> Stmt:
                if len(index) < len(shape):
                    return loop("i", wide(shape[len(index)]), lambda i: at([*index, i]))
                element = tirx.BufferLoad(place.buffer, place.index(shape, index))
                return demanded(tirx.And(tirx.GE(element, own.low), tirx.LT(element, own.high)), own.text)

            done.append(at([]))
        return done

    def _calls(self) -> list[Stmt]:
        calls = self.graph.calls
        lowered = loops_of([call.function for call in calls])
        self.levels = has_levels([loops.body for loops in lowered])
        last = {value: i for i, call in enumerate(calls) for value in (*call.inputs, *call.outputs)}
        last |= {own.value: len(calls) for own in self.graph.looks}
        done = list[Stmt]()
        for i, (call, loops) in enumerate(zip(calls, lowered, strict=True)):
            for value in call.outputs:
                if value not in self.places:
                    self.places[value] = self._place(value)
            done += self._body(call, loops)
            for value in {*call.inputs, *call.outputs}:
                if value.constant is None:
                    self._leave(self.places[value], last[value] == i)
        return done

    def _place(self, value: Value) -> Place:
        return Place(self._work(value.dtype), self.memory.take(value.shape, value.dtype))

    def _leave(self, place: Place, free: bool) -> None:
        if free and place.room is not None:
            self.memory.give(place.room, str(place.buffer.dtype))

    def _work(self, dtype: str) -> Buffer:
        return self.works.setdefault(dtype, flat_buffer(f"work_{dtype}", dtype, alignment=16))

    def _body(self, call: Call, loops: tirx.PrimFunc) -> list[Stmt]:
        """The call's statements, on the arrays where its values lie."""
        values, (params, names) = [*call.inputs, *call.outputs], parameters(call, loops)
        nests = list(loops.body.seq) if isinstance(loops.body, tirx.SeqStmt) else [loops.body]
        own = [s.buffer for s in nests if isinstance(s, tirx.AllocBuffer)]
        nests = [s for s in nests if not isinstance(s, tirx.AllocBuffer)]
        known = {param: value for param, value in zip(params, values, strict=True) if value.constant is not None}
        laid = dict[Buffer, Value]()

        def placed(buffer: Buffer, find: Callable[[Value], Value]) -> Buffer | None:
            value = next((value for param, value in known.items() if param.same_as(buffer)), None)
            if value is None:
                return None
            found = find(value)
            into = tirx.decl_buffer([int64(n) for n in found.array.shape], found.dtype, name="w")
            laid[into] = found
            return into

        constants = self.constants
        layouts = Laid(
            lambda buffer, axis: placed(buffer, lambda own: constants.along(own, axis)),
            lambda buffer, axis, width: placed(buffer, lambda own: constants.panels(own, axis, width)),
            lambda buffer, axis, pair, width: placed(buffer, lambda own: constants.paired(own, axis, pair, width)),
            lambda buffer: next((value.array for param, value in known.items() if param.same_as(buffer)), None),
        )
        nests = [with_numbers(nest, known) for nest in nests]
        nests = [rounded_as_kept(nest) for nest in nests] if self.levels else nests
        nests = [with_polynomials(nest) for nest in nests]
        whole = WholeNumbers({p: self.whole[v] for p, v in zip(params, values, strict=True) if v in self.whole})
        whole.read(nests)
        self.whole |= {v: whole.known[p] for p, v in zip(params, values, strict=True) if p in whole.known}
        tiles = Tiles(self.lanes, self.threads, layouts, whole, self.pairs)
        done = tiles.scheduled(nests, lambda b: any(b.same_as(o) for o in own))
        own = [*own, *tiles.copies]
        there = [*zip(params, values, strict=True), *laid.items()]
        read = [own for own in there if own[1].constant is None or any(reads(s, own[0]) for s in done)]
        places = [(param, self._at(value)) for param, value in read]
        for buffer in own:
            shape = tuple(replaced(axis, names) for axis in buffer.shape)
            dtype = str(buffer.dtype)
            places.append((buffer, Place(self._work(dtype), self.memory.take(shape, dtype))))
        held = {own: self.memory.held(size) for own, size in names.items()}
        moved = [replaced(_moved(s, places), held) for s in done]
        for _, place in places[len(read) :]:
            self._leave(place, True)
        return moved


def _names(values: Sequence[Value]) -> list[tirx.Var]:
    found = dict[tirx.Var, None]()
    for value in values:
        for axis in value.shape:
            if not isinstance(axis, int):
                tvm_ffi.structural_walk(axis, (tirx.Var, lambda var: found.setdefault(var)))
    return list(found)


def _argument(name: str, value: Value, names: dict[tirx.Var, Expr] | None = None) -> Buffer:
    shape = [replaced(wide(axis), names or {}) for axis in value.shape]
    return tirx.decl_buffer(shape, value.dtype, name=name, data_alignment=1)


def _copy(source: Buffer, into: Buffer) -> Stmt:
    def at(index: list[Expr]) -> Stmt:
        if len(index) == len(into.shape):
            return tirx.BufferStore(into, tirx.BufferLoad(source, index), index)
        return loop("i", into.shape[len(index)], lambda i: at([*index, i]))

    return at([])


def _moved(statement: Stmt, places: Sequence[tuple[Buffer, Place]]) -> Stmt:
    """The statement on arrays that lie elsewhere."""

    def find(buffer: Buffer) -> Place | None:
        return next((place for own, place in places if own.same_as(buffer)), None)

    def load(own: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
        place = find(own.source)
        return own if place is None else tirx.BufferLoad(place.buffer, place.index(own.source.shape, own.indices))

    def put(own: tirx.BufferStore) -> Stmt:
        place = find(own.buffer)
        if place is None:
            return own
        return tirx.BufferStore(place.buffer, own.value, place.index(own.buffer.shape, own.indices))

    return tvm_ffi.structural_map(statement, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, put)])
