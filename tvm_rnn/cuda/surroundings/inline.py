"""Statements of a graph, fewer of them: what moves elements is done where they are read, and what follows a sum is done
with it. Each is a launch, and an array that goes to memory and back.

In: statements in order, each array written by one of them, and the arrays that callers get. Out: `Piece`s in order.

Rewrite: for i: v[i] = x[p(i)]; for j: y[j] = f(v[q(j)])  -->  for j: y[j] = f(x[p(q(j))])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.surroundings.loops import takes_long
from tvm_rnn.surroundings.nest import Nest, is_choice, nest_of, reads, renaming, replaced
from tvm_rnn.tir.expr import Buffer, Expr, Stmt

from .statements import simplified

HALVES = ("float16", "bfloat16")  # to read such a float is to widen it


@dataclass
class Piece:
    """What one kernel does. nest: None where the statement is no nest. after: the store of a nest's finished sum, where
    that is not what the nest itself stores."""

    statement: Stmt
    nest: Nest | None
    after: tirx.BufferStore | None = None

    @property
    def stores(self) -> tirx.BufferStore:
        """What is left in memory of a nest: of a sum what was added up, or what follows of that."""
        assert self.nest is not None
        store = self.nest.store
        if self.after is not None or not self.nest.summed:
            return store if self.after is None else self.after
        return tirx.BufferStore(store.buffer, tirx.BufferLoad(store.buffer, store.indices), store.indices)


def pieces_of(statements: Sequence[Stmt], outputs: Sequence[Buffer]) -> list[Piece]:
    """The statements, after moves were taken into what reads them, without those that nobody reads."""
    kept = [*outputs, *_changed(statements)]
    done, i = _read(statements, kept), 0
    while i < len(done):
        readers = _readers(done, i, kept)
        if readers and all(_may(done[i], done[j]) for j in readers):
            for j in readers:
                done[j] = _with(done[i], done[j])
            del done[i]
        else:
            i += 1
    return _followed(done, kept)


def stored_by(statement: Stmt) -> list[Buffer]:
    """The arrays that it writes, each once."""
    found = list[Buffer]()

    def note(own: tirx.BufferStore) -> None:
        if not any(own.buffer.same_as(known) for known in found):
            found.append(own.buffer)

    tvm_ffi.structural_walk(statement, (tirx.BufferStore, note))
    return found


def _changed(statements: Sequence[Stmt]) -> list[Buffer]:
    """Arrays that several statements write: what is read of them depends on when."""
    every = [buffer for own in statements for buffer in stored_by(own)]
    return [own for own in every if sum(own.same_as(other) for other in every) > 1]


def _read(statements: Sequence[Stmt], kept: Sequence[Buffer]) -> list[Stmt]:
    """The statements whose results are kept, or read by another one."""
    done = list[Stmt]()
    for own in reversed(statements):
        made = stored_by(own)
        if any(into.same_as(known) for into in made for known in kept) or any(
            reads(other, into) for other in done for into in made
        ):
            done.append(own)
    return done[::-1]


def _readers(statements: Sequence[Stmt], maker: int, kept: Sequence[Buffer]) -> list[int]:
    """Which statements read what a nest makes; none where it must be in memory. kept: arrays that must be, or whose
    elements change."""
    nest = nest_of(statements[maker])
    if nest is None or any(nest.store.buffer.same_as(own) or reads(nest.store.value, own) for own in kept):
        return []
    return [j for j, own in enumerate(statements) if j != maker and reads(own, nest.store.buffer)]


def _may(statement: Stmt, reader: Stmt) -> bool:
    """Whether a nest in its reader is no more work than by itself: its values are computed once, or they are moves."""
    nest, other = nest_of(statement), nest_of(reader)
    if nest is None or other is None or nest.summed:
        return False
    if _is_move(nest.store.value):
        return True
    wider = len(other.loops) > len(nest.loops) or len(reads(reader, nest.store.buffer)) > 1
    return not other.summed and not (wider and takes_long(nest.store.value))


def _is_move(value: Expr) -> bool:
    """Whether it is an element of an array, or a number, at places that are found without dividing by a size."""
    if is_choice(value):
        return all(map(_is_move, value.args[1:]))
    if isinstance(value, tirx.FloatImm | tirx.IntImm):
        return True
    if isinstance(value, tirx.Cast) and str(value.value.ty) in HALVES:
        return _is_move(value.value)
    if not isinstance(value, tvm.ir.TensorLoad):
        return False
    divided = list[bool]()
    kinds = (tirx.FloorDiv, tirx.FloorMod)
    for index in value.indices:
        for kind in kinds:
            tvm_ffi.structural_walk(index, (kind, lambda own: divided.append(not isinstance(own.b, tirx.IntImm))))
    return not any(divided)


def _with(statement: Stmt, reader: Stmt) -> Stmt:
    """The reader, with the nest's values in the place of what it reads."""
    nest, analyzer = nest_of(statement), Analyzer()
    assert nest is not None

    def load(own: tvm.ir.TensorLoad) -> Expr:
        if not own.source.same_as(nest.store.buffer):
            return own
        pairs = zip(nest.store.indices, own.indices, strict=True)
        found = replaced(nest.store.value, {mine: theirs for mine, theirs in pairs if isinstance(mine, tirx.Var)})
        return tvm_ffi.structural_map(found, (tvm.ir.TensorLoad, tidy))

    def tidy(own: tvm.ir.TensorLoad) -> Expr:
        return tirx.BufferLoad(own.source, [analyzer.simplify(index) for index in own.indices])

    return simplified(tvm_ffi.structural_map(reader, (tvm.ir.TensorLoad, load)))


def _followed(statements: Sequence[Stmt], kept: Sequence[Buffer]) -> list[Piece]:
    """Pieces: a sum goes to its only reader, where that reads each element once, where it is made."""
    done: list[Piece | None] = [Piece(own, nest_of(own)) for own in statements]
    for i, own in enumerate(done):
        if own is None or own.nest is None or not own.nest.summed or not own.nest.own or own.after is not None:
            continue
        readers = _readers(statements, i, kept)
        reader = done[readers[0]] if len(readers) == 1 else None
        after = None if reader is None else reader.nest
        if reader is None or after is None or after.summed:
            continue
        names = renaming(own.nest, after)
        if names is not None:
            done[readers[0]] = Piece(own.statement, own.nest, replaced(after.store, names))
            done[i] = None
    return [own for own in done if own is not None]
