"""Where the arrays of a graph's loops lie.

In: statements on arrays of their own. Out: the same on arguments, or on pieces of flat arrays.

Rewrite: y[i, j] = x[i, j]  -->  work[at + i * n + j] = x0[i, j]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx

from tvm_rnn.surroundings.memory import Room
from tvm_rnn.tir.expr import Buffer, Expr, Stmt
from tvm_rnn.tir.index import int64, wide


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

    @property
    def address(self) -> Expr:
        """Of the first element."""
        first = [int64(0)] * len(self.buffer.shape) if self.room is None else [wide(self.room.at)]
        return tirx.address_of(tirx.BufferLoad(self.buffer, first))


def moved(statement: Stmt, places: Sequence[tuple[Buffer, Place]]) -> Stmt:
    """The statement on arrays that lie elsewhere."""
    found = dict(places)

    def load(own: tvm.ir.TensorLoad) -> tvm.ir.TensorLoad:
        place = found.get(own.source)
        return own if place is None else tirx.BufferLoad(place.buffer, place.index(own.source.shape, own.indices))

    def put(own: tirx.BufferStore) -> Stmt:
        place = found.get(own.buffer)
        if place is None:
            return own
        return tirx.BufferStore(place.buffer, own.value, place.index(own.buffer.shape, own.indices))

    return tvm_ffi.structural_map(statement, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, put)])
