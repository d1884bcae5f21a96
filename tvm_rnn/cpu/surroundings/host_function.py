"""A graph as two functions of the module: NAME computes it, NAME_sizes says how large its results and its memory are.

In: a graph of calls. Out: PrimFuncs, and what the first takes: a number of threads, then arrays: the graph's inputs,
one flat array per dtype for constants, results, then one for what is needed meanwhile. NAME_sizes takes the inputs, and
an array that it fills: all axes of all results, then the elements of each flat array. It is called first, and looks at
the shapes of what it is given and at the sizes that the graph demands; NAME looks at elements. Sizes that are elements
of an input are read by both.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import tvm_ffi
from tvm import tirx

from tvm_rnn.cpu.pair_product import PairProduct
from tvm_rnn.surroundings.calls import Call, Graph, Look, Value
from tvm_rnn.surroundings.loops import loops_of, parameters
from tvm_rnn.surroundings.memory import Memory
from tvm_rnn.surroundings.nest import mentions, replaced
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import buffer as flat_buffer
from tvm_rnn.tir.statements import demanded, function, loop, runtime_function, sequence, store, use_threads, variable

from .constants import Constants
from .levels import has_levels
from .places import Place
from .shared_calls import Scheduled, Setting
from .whole_numbers import Range

WHOLE = 24  # a graph of at most so many calls is one function: there is little to share, and all of it runs often


@dataclass
class HostFunction:
    """lanes: elements of a vector. pairs: instructions for pairs of whole numbers, by words of a vector. whole: the
    ranges of values that are whole numbers. functions: by name. given: the constants that the first one takes, in
    order. works: the dtypes of the flat arrays. shared: names of functions that calls share."""

    name: str
    graph: Graph
    lanes: int
    pairs: Mapping[int, PairProduct] = field(default_factory=dict)
    whole: dict[Value, Range] = field(default_factory=dict)
    places: dict[Value, Place] = field(default_factory=dict)
    given: list[Value] = field(default_factory=list)
    constants: Constants = field(default_factory=Constants)
    memory: Memory = field(default_factory=Memory)
    works: dict[str, Buffer] = field(default_factory=dict)
    shared: dict[Scheduled, str] = field(default_factory=dict)
    functions: dict[str, tirx.PrimFunc] = field(default_factory=dict)
    threads: tirx.Var = field(default_factory=lambda: variable("threads"))

    def __post_init__(self) -> None:
        inputs, outputs = self._arguments("x", self.graph.inputs), self._arguments("y", self.graph.outputs)
        body = [*self._calls(), *self._looks(), *self._copies(outputs)]
        args = [self.threads, *inputs, *self.constants.flat.values(), *outputs, *self.works.values()]
        body = [use_threads(self.threads), *body, use_threads(int64(1))]
        self.functions[self.name] = runtime_function(
            self.name, args, sequence(self._numbers(inputs, {}), self.memory.held.statements(), body)
        )
        self.functions[f"{self.name}_sizes"] = self._sizes()
        self.given = [Value(own.shape, own.dtype.name, own) for own in self.constants.arrays]

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
        return self.places[value] if value.constant is None else self.constants.place(value)

    def _copies(self, outputs: Sequence[Buffer]) -> list[Stmt]:
        """Of results that are inputs or constants, or that are there twice."""
        found = []
        for value, into in zip(self.graph.outputs, outputs, strict=True):
            place = self._at(value)
            if not place.buffer.same_as(into):
                found.append(_copy(place, value.shape, into))
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
        scheduled = self._scheduled(lowered)
        last = {value: i for i, call in enumerate(calls) for value in (*call.inputs, *call.outputs)}
        last |= {own.value: len(calls) for own in self.graph.looks}
        done = list[Stmt]()
        for i, (call, loops, own) in enumerate(zip(calls, lowered, scheduled, strict=True)):
            for value in call.outputs:
                if value not in self.places:
                    self.places[value] = self._place(value)
            done += self._body(call, loops, own)
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

    def _scheduled(self, lowered: Sequence[tirx.PrimFunc]) -> list[Scheduled]:
        """Each call's statements; those of calls that are alike are one object."""
        levels = has_levels([loops.body for loops in lowered])
        setting = Setting(self.lanes, self.threads, self.pairs, levels, self.whole, self.constants)
        done, alike = list[Scheduled](), dict[Hashable, Scheduled]()
        for call, loops in zip(self.graph.calls, lowered, strict=True):
            values, (params, names) = [*call.inputs, *call.outputs], parameters(call, loops)
            key = (id(loops), *(_known(value, self.whole) for value in values))
            found = alike.get(key)
            if found is None:
                found = Scheduled.of(loops, params, [*names], values, setting)
                if not found.particular:
                    alike[key] = found
            self.whole.update({values[i]: own for i, own in found.whole.items()})
            done.append(found)
        return done

    def _body(self, call: Call, loops: tirx.PrimFunc, scheduled: Scheduled) -> list[Stmt]:
        """The call's statements, on the arrays where its values lie."""
        _, names = parameters(call, loops)
        places = [(own, self._at(value)) for own, value in scheduled.read([*call.inputs, *call.outputs])]
        given = len(places)
        for buffer in scheduled.own:
            shape = tuple(replaced(axis, names) for axis in buffer.shape)
            places.append((buffer, self._place(Value(shape, str(buffer.dtype)))))
        held = {own: self.memory.held(size) for own, size in names.items()}
        done = self._put(scheduled, places, held)
        for _, place in places[given:]:
            self._leave(place, True)
        return done

    def _put(
        self, scheduled: Scheduled, places: Sequence[tuple[Buffer, Place]], sizes: Mapping[tirx.Var, Expr]
    ) -> list[Stmt]:
        """The statements at these places, or a call of their function, which calls that are alike share."""
        if len(self.graph.calls) <= WHOLE:
            return scheduled.inline(places, sizes)
        if scheduled not in self.shared:
            name = f"{self.name}_shared_{len(self.shared)}"
            self.shared[scheduled] = name
            self.functions[name] = scheduled.function(name, [own for own, _ in places])
        return [scheduled.call(self.shared[scheduled], [place for _, place in places], sizes)]


def _known(value: Value, whole: Mapping[Value, Range]) -> Hashable:
    """What statements depend on of a value, beside its size: a constant of one element is part of them."""
    if value.constant is None:
        return whole.get(value)
    return value.constant.tobytes() if value.constant.size == 1 else "array"


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


def _copy(source: Place, shape: Sequence[Expr], into: Buffer) -> Stmt:
    def at(index: list[Expr]) -> Stmt:
        if len(index) == len(into.shape):
            return tirx.BufferStore(into, tirx.BufferLoad(source.buffer, source.index(shape, index)), index)
        return loop("i", into.shape[len(index)], lambda i: at([*index, i]))

    return at([])
