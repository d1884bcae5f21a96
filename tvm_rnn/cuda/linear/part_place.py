"""Which part of the time a block of threads has, of kernels that make a matrix and its gradient again.

In: a kernel's writer, a layout with a `Pair`. Out: `Place`: the part, batch row, head and keys of a block, the steps
that the row has there, and where its operands and borders lie.
"""

from __future__ import annotations

from typing import Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, converted
from tvm_rnn.cuda.layer.regime import FOREVER
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import wide

from .pair import EVERY, Pair
from .recurrence import Rows

ONE = tirx.const(1.0, "float32")


class Parted(Protocol):
    """What a launch is made of. tiles: of keys, that many; threads: of a block."""

    @property
    def pair(self) -> Pair: ...
    @property
    def tiles(self) -> int: ...
    @property
    def keys(self) -> int: ...
    @property
    def threads(self) -> int: ...


def end_of(w: Writer, row: TirExpr) -> TirExpr:
    """Of a kernel with lengths: the step, counted from the beginning of all, at which a row ends."""
    ends = w.local(1, "int32")
    w.store(ends, tirx.const(FOREVER, "int32"), 0)
    with w.when(tirx.NE(w["has_lengths"], tirx.const(0, "int32"))):
        most = tirx.Min(w["lengths"][wide(row)], tirx.const(FOREVER, "int64"))
        w.store(ends, tirx.Cast("int32", most), 0)
    end: TirExpr = ends[0]
    return end


class Place:
    """Which part of the time, row, head and keys a block has, and which steps the row has there."""

    def __init__(self, w: Writer, layout: Parted, masked: bool) -> None:
        self.w, self.layout, self.masked, own = w, layout, masked, layout.pair
        parts = tirx.truncdiv(w["steps"] + (EVERY - 1), EVERY)
        grid = wide(w["batch"]) * wide(parts) * (layout.tiles * own.heads)
        block = w.keep(I.cta_id([tirx.Cast("int32", grid)]))
        self.thread = w.keep(I.thread_id([layout.threads]))
        self.lane, self.warp = w.keep(self.thread % 32), w.keep(self.thread // 32)
        self.key0 = w.keep(tirx.truncmod(block, layout.tiles) * layout.keys)
        rest = w.keep(tirx.truncdiv(block, layout.tiles))
        self.head, self.number = w.keep(tirx.truncmod(rest, own.heads)), w.keep(tirx.truncdiv(rest, own.heads))
        self.row = w.keep(tirx.truncmod(self.number, w["batch"]))
        self.first = w.keep(tirx.truncdiv(self.number, w["batch"]) * EVERY)
        self.count = w.keep(tirx.min(w["steps"] - self.first, EVERY))
        self.limit = self._limit()
        self.matrix = w.keep((wide(self.number) * own.heads + wide(self.head)) * (own.keys * own.values))
        outputs = {f"output_{i}": read.output for i, read in enumerate(own.reads)}
        self.base = {name: self._base(rows) for name, rows in {**own.operands, **outputs}.items()}

    def _base(self, rows: Rows) -> TirExpr:
        head = tirx.truncdiv(self.head, rows.group) * rows.width
        return self.w.keep(wide(self.row) * rows.stride + (rows.offset + wide(head)))

    def _limit(self) -> TirExpr:
        """Steps of the part that the row has."""
        w = self.w
        if not self.masked:
            return self.count
        self.end = end_of(w, self.row)
        return w.keep(tirx.max(tirx.min(self.count, self.end - w["start"] - self.first), 0))

    def at(self, name: str, rows: Rows, step: TirExpr) -> TirExpr:
        """Where an operand's vector of a step of the part begins."""
        return self.base[name] + (wide(self.first) + wide(step)) * wide(self.w["batch"]) * rows.stride

    def kept(self, step: TirExpr) -> TirExpr:
        """0 where a step of the part begins with nothing, else 1."""
        w, found = self.w, self.w.local(1)
        w.store(found, ONE, 0)
        time = w.keep(w["start"] + self.first + step)
        known = tirx.And(time < w["total"], time < self.end)
        with w.when(tirx.And(tirx.NE(w["has_reset"], tirx.const(0, "int32")), known)):
            flag = w["reset"][wide(time) * wide(w["batch"]) + wide(self.row)]
            with w.when(tirx.NE(tirx.Cast("int32", flag), tirx.const(0, "int32"))):
                w.store(found, tirx.const(0.0, "float32"), 0)
        return found[0]

    def decay(self, name: str, rows: Rows, step: TirExpr, key: TirExpr) -> TirExpr:
        """Of a step, and of a key of the block if it has its own; 1 where there is none."""
        w, found = self.w, self.w.local(1)
        w.store(found, ONE, 0)
        own = w.bind(self.key0 + key)
        with w.when(tirx.And(step < self.limit, own < rows.width if rows.width > 1 else True)):
            at = self.at(name, rows, step)
            w.store(found, converted(w[name][at + wide(own) if rows.width > 1 else at], "float32"), 0)
        return found[0]

    def border(self, key: TirExpr, value: TirExpr) -> tuple[TirExpr, TirExpr]:
        """(whether there is such an element, where it is) of a matrix at the border of the part."""
        own = self.layout.pair
        at = value * own.keys + key if own.keys_last else key * own.values + value
        return tirx.And(key < own.keys, value < own.values), self.matrix + wide(at)
