"""A graph as statements over arrays, one after the other, each of which one kernel can be.

In: a graph of calls. Out: `Statements`: loop nests, with the arrays of all calls side by side; sizes have one name each
in all of them. What a reshape divides by sizes in vain is simplified.

Rewrite: a[(i + j // n) % m]  -->  a[i], of j < n and i < m
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.surroundings.calls import Call, Graph, Value
from tvm_rnn.surroundings.held_sizes import HeldSizes
from tvm_rnn.surroundings.loops import loops_of, parameters, with_numbers
from tvm_rnn.surroundings.nest import nest_of, replaced
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64, wide
from tvm_rnn.tir.statements import loop


@dataclass
class Statements:
    """takes, gives: the dtypes in which a caller has inputs and outputs, where these are not the graph's: floats of 16
    bits, which are cast. inputs, outputs, constants: arrays that a caller gives. sizes: names of the sizes that follow
    from those of the inputs. done: the statements."""

    graph: Graph
    takes: Sequence[str] = ()
    gives: Sequence[str] = ()
    arrays: dict[Value, Buffer] = field(default_factory=dict)
    constants: dict[Value, Buffer] = field(default_factory=dict)
    sizes: HeldSizes = field(default_factory=HeldSizes)
    done: list[Stmt] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inputs = self._given("x", self.graph.inputs, self.takes)
        for value, buffer in zip(self.graph.inputs, self.inputs, strict=True):
            self.arrays[value] = buffer if value.dtype == str(buffer.dtype) else self._array("v", value)
            if not self.arrays[value].same_as(buffer):
                self.done.append(_copy(buffer, self.arrays[value]))
        self.outputs = self._given("y", self.graph.outputs, self.gives)
        for value, buffer in zip(self.graph.outputs, self.outputs, strict=True):
            if value.constant is None and value.dtype == str(buffer.dtype):
                self.arrays.setdefault(value, buffer)
        functions = loops_of([call.function for call in self.graph.calls])
        for call, loops in zip(self.graph.calls, functions, strict=True):
            self.done += self._body(call, loops)
        for value, into in zip(self.graph.outputs, self.outputs, strict=True):
            if not (source := self._of(value)).same_as(into):  # an input, a constant, of 16 bits, or there twice
                self.done.append(_copy(source, into))

    def _given(self, name: str, values: Sequence[Value], dtypes: Sequence[str]) -> list[Buffer]:
        pairs = zip(values, dtypes or [value.dtype for value in values], strict=True)
        return [self._array(f"{name}{i}", value, dtype) for i, (value, dtype) in enumerate(pairs)]

    def _array(self, name: str, value: Value, dtype: str = "") -> Buffer:
        return tirx.decl_buffer([self.sizes(wide(axis)) for axis in value.shape], dtype or value.dtype, name=name)

    def _of(self, value: Value) -> Buffer:
        known = self.arrays if value.constant is None else self.constants
        if value not in known:
            known[value] = self._array("v" if value.constant is None else "w", value)
        return known[value]

    def _body(self, call: Call, loops: tirx.PrimFunc) -> list[Stmt]:
        """The call's statements, on the arrays where its values lie."""
        values, (params, names) = [*call.inputs, *call.outputs], parameters(call, loops)
        held = {name: self.sizes(wide(size)) for name, size in names.items()}
        found = list(loops.body.seq) if isinstance(loops.body, tirx.SeqStmt) else [loops.body]
        known = {param: value for param, value in zip(params, values, strict=True) if value.constant is not None}
        places = dict[Buffer, Buffer]()
        for own in (s.buffer for s in found if isinstance(s, tirx.AllocBuffer)):
            shape = [self.sizes(replaced(wide(axis), held)) for axis in own.shape]
            places[own] = tirx.decl_buffer(shape, own.dtype, name="v")
        nests = [with_numbers(s, known) for s in found if not isinstance(s, tirx.AllocBuffer)]
        for param, value in zip(params, values, strict=True):
            if value.constant is None or any(_loads(nest, param) for nest in nests):
                places[param] = self._of(value)
        return [simplified(replaced(moved(nest, places), held)) for nest in nests]


def moved(node: Stmt, places: Mapping[Buffer, Buffer]) -> Stmt:
    """The statement on other arrays of the same axes."""

    def load(own: tvm.ir.TensorLoad) -> Expr:
        return tirx.BufferLoad(places[own.source], own.indices) if own.source in places else own

    def store(own: tirx.BufferStore) -> Stmt:
        return tirx.BufferStore(places[own.buffer], own.value, own.indices) if own.buffer in places else own

    return tvm_ffi.structural_map(node, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])


def loads_of(node: Stmt | Expr) -> list[tvm.ir.TensorLoad]:
    """What it reads."""
    found = list[tvm.ir.TensorLoad]()
    tvm_ffi.structural_walk(node, (tvm.ir.TensorLoad, found.append))
    return found


def _loads(node: Stmt, buffer: Buffer) -> bool:
    return any(own.source.same_as(buffer) for own in loads_of(node))


def simplified(statement: Stmt) -> Stmt:
    """A nest whose indices have no division that its loops show to be in vain."""
    nest = nest_of(statement)
    return statement if nest is None else without_division(statement, {own.loop_var: own.extent for own in nest.loops})


def without_division(node: Stmt, extents: Mapping[tirx.Var, Expr]) -> Stmt:
    """The statement with i // n as 0, and i % n as i, where i goes from 0 to n."""
    analyzer = Analyzer()

    def below(a: Expr, b: Expr) -> bool:
        return isinstance(a, tirx.Var) and a in extents and bool(tvm_ffi.structural_equal(wide(extents[a]), wide(b)))

    def quotient(own: tirx.FloorDiv) -> Expr:
        a, b = analyzer.simplify(own.a), own.b
        return int64(0) if below(a, b) else tirx.FloorDiv(a, b)

    def remainder(own: tirx.FloorMod) -> Expr:
        a, b = analyzer.simplify(own.a), own.b
        if isinstance(a, tirx.Add):  # of (j n + i) % n, i
            for term, rest in ((a.a, a.b), (a.b, a.a)):
                if isinstance(term, tirx.Mul) and any(tvm_ffi.structural_equal(f, b) for f in (term.a, term.b)):
                    a = rest
                    break
        return a if below(a, b) else tirx.FloorMod(a, b)

    return tvm_ffi.structural_map(node, [(tirx.FloorDiv, quotient), (tirx.FloorMod, remainder)])


def _copy(source: Buffer, into: Buffer) -> Stmt:
    """The same values, in the dtype of where they go."""

    def at(index: Sequence[Expr]) -> Stmt:
        if len(index) == len(into.shape):
            value = tirx.BufferLoad(source, list(index))
            same = str(source.dtype) == str(into.dtype)
            return tirx.BufferStore(into, value if same else tirx.Cast(str(into.dtype), value), list(index))
        return loop("i", into.shape[len(index)], lambda i: at([*index, i]))

    return at([])
