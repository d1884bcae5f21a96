"""Where the values of a graph lie while it runs: in one flat array per dtype; what is free is taken again.

In: arrays in the order in which they are needed, with sizes that may have names. Out: the place of each, and how large
the flat arrays are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, wide

from .held_sizes import HeldSizes

ALIGNED = 64  # elements: no two places share a cache line, nor a vector


@dataclass(eq=False)
class Room:
    """A place and how many elements fit."""

    at: Expr
    size: Expr


def elements(shape: tuple[Expr, ...]) -> Expr:
    return reduce(lambda a, b: a * b, map(wide, shape), int64(1))


@dataclass
class Memory:
    """The flat arrays' sizes so far, by dtype, and what is free in them. held: names where places begin. ends: where
    what is taken ends, in these names."""

    sizes: dict[str, Expr] = field(default_factory=dict)
    free: dict[str, list[Room]] = field(default_factory=dict)
    held: HeldSizes = field(default_factory=HeldSizes)
    ends: dict[str, Expr] = field(default_factory=dict)
    analyzer: Analyzer = field(default_factory=Analyzer)

    def take(self, shape: tuple[Expr, ...], dtype: str) -> Room:
        """A place for an array: a free one that surely is large enough, or a new one."""
        size = self.analyzer.simplify((elements(shape) + int64(ALIGNED - 1)) // int64(ALIGNED) * int64(ALIGNED))
        rooms = self.free.setdefault(dtype, [])
        for room in rooms:
            if _fits(size, room.size):
                rooms.remove(room)
                return room
        self.sizes[dtype] = self.analyzer.simplify(self.sizes.get(dtype, int64(0)) + size)
        at = self.held(self.ends.get(dtype, int64(0)), "at")
        self.ends[dtype] = at + self.held(size)
        return Room(at, size)

    def give(self, room: Room, dtype: str) -> None:
        """The place is free again."""
        self.free[dtype].append(room)


def _fits(size: Expr, room: Expr) -> bool:
    if isinstance(size, tirx.IntImm) and isinstance(room, tirx.IntImm):
        return int(size) <= int(room)
    return bool(tvm_ffi.structural_equal(size, room))
