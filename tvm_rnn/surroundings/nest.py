"""Loop nests around one store, as TVM's lowered functions have them; and what their expressions read.

In: statements. Out: `Nest`, or None where a statement is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr


@dataclass
class Nest:
    """Loops around one store, and where it adds up, what it begins with."""

    loops: list[tirx.For]
    store: tirx.BufferStore
    first: TirExpr | None

    @property
    def own(self) -> list[tirx.For]:
        """The loops over the result's elements, in the order of its axes."""
        by_var = {own.loop_var: own for own in self.loops}
        return [by_var[i] for i in self.store.indices if i in by_var]

    @property
    def summed(self) -> list[tirx.For]:
        return [own for own in self.loops if own not in self.own]


def nest_of(statement: Stmt) -> Nest | None:
    """The statement as a nest; None: it is no such thing."""
    loops = []
    while isinstance(statement, tirx.For):
        if statement.kind != tirx.ForKind.SERIAL or not _is(statement.min, 0):
            return None
        loops.append(statement)
        statement = statement.body
    first = None
    if isinstance(statement, tirx.SeqStmt) and len(statement.seq) == 2:
        begin, statement = statement.seq
        begin = begin.then_case if isinstance(begin, tirx.IfThenElse) else begin
        if not isinstance(begin, tirx.BufferStore) or not isinstance(statement, tirx.BufferStore):
            return None
        if not begin.buffer.same_as(statement.buffer):
            return None
        first = begin.value
    if not isinstance(statement, tirx.BufferStore) or not loops:
        return None
    nest = Nest(loops, statement, first)
    plain = all(
        isinstance(i, tirx.IntImm) or any(i.same_as(own.loop_var) for own in nest.own) for i in statement.indices
    )
    distinct = len({own.loop_var for own in nest.own}) == len(nest.own)
    return nest if plain and distinct and bool(nest.summed) == (first is not None) else None


def renaming(nest: Nest, after: Nest) -> dict[tirx.Var, tirx.Var] | None:
    """after's variables as those of the nest, whose result it reads where that was just made; None: it reads other
    elements, or walks in another order."""
    names: dict[tirx.Var, tirx.Var] = {}
    for load in reads(after.store.value, nest.store.buffer):
        for mine, theirs in zip(nest.store.indices, load.indices, strict=True):
            if isinstance(mine, tirx.IntImm) and isinstance(theirs, tirx.IntImm):
                continue
            if not isinstance(theirs, tirx.Var) or not isinstance(mine, tirx.Var):
                return None
            if not names.setdefault(theirs, mine).same_as(mine):
                return None
    extents = {own.loop_var: own.extent for own in nest.loops}
    same = all(
        own.loop_var in names and tvm_ffi.structural_equal(own.extent, extents[names[own.loop_var]])
        for own in after.loops
    )
    return names if same and len(names) == len(nest.own) else None


CHOICE = "prim.if_then_else"  # as TVM names the operator of a choice whose other value is not computed


def is_choice(value: Expr) -> TypeGuard[tvm.ir.Call]:
    """Whether it is one of two values, of which only that one is computed."""
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == CHOICE


def _is(value: Expr, number: int) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == number


Node = TypeVar("Node")


def replaced(node: Node, values: Mapping[tirx.Var, Expr]) -> Node:
    """The statement or expression with other values in the place of variables."""
    return tvm_ffi.structural_map(node, (tirx.Var, lambda var: values.get(var, var)))


def reads(node: Stmt | Expr, buffer: Buffer) -> list[tvm.ir.TensorLoad]:
    """Where it reads an array."""
    found = []

    def note(load: tvm.ir.TensorLoad) -> None:
        if load.source.same_as(buffer):
            found.append(load)

    tvm_ffi.structural_walk(node, (tvm.ir.TensorLoad, note))
    return found


def reads_nothing(value: Expr | None) -> bool:
    """Whether an expression reads no array."""
    found = list[tvm.ir.TensorLoad]()
    if value is not None:
        tvm_ffi.structural_walk(value, (tvm.ir.TensorLoad, found.append))
    return not found


def mentions(node: Expr, var: tirx.Var) -> bool:
    """Whether an expression depends on a variable."""
    found = []
    tvm_ffi.structural_walk(node, (tirx.Var, lambda own: found.append(own) if own.same_as(var) else None))
    return bool(found)
