"""A block of a chunk scan: which row, head, values and segment it has, and where its operands lie.

In: a kernel's writer, a `ChunkLayout`. Out: `Block`, which emits that once; the parts of the scan read it.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.regime import FOREVER
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import wide

from .chunk_layout import ChunkLayout
from .chunk_tile import Numbers
from .recurrence import Rows


class Block:
    """row, head, value0, first: this block's; number: of its row among those of all segments; weighted: products are
    multiplied by numbers of steps, because states decay by head, or are reset, or read-outs are scaled. Where they
    decay by key, operands are, and `keep` is 0 where a step begins with no states.

    Steps are counted from `first` on. Backwards they end with the first one in time, and chunks begin where they do
    forwards: at the first steps, up to `padded`, there is nothing."""

    def __init__(self, w: Writer, scan: ChunkLayout, masked: bool) -> None:
        self.w, self.scan, self.masked = w, scan, masked
        self.recurrence, self.tile = scan.recurrence, scan.tile
        by_key = scan.recurrence.decays_by_key
        scaled = any(scan.read_scale(i) != 1.0 for i in range(len(scan.recurrence.reads)))
        self.weighted = not by_key and (masked or scaled or scan.recurrence.decay is not None)
        self.keeps = by_key and masked
        self._place()
        self.numbers = Numbers(w, self._names(), self.tile.chunk)

    def _names(self) -> tuple[str, ...]:
        """before, after: sums of log decays; carried: what is left of S at the end of the chunk; ends: of a step's
        writing; read_i, erase: what of S a step's result has; scale: of what is erased."""
        own, erase = self.recurrence, self.recurrence.erasing
        found = ["value_scale"] if own.value_scale is not None else []
        found += ["keep"] if self.keeps else []
        if self.weighted:
            found += ["before", "after", "carried", "ends", *(f"read_{i}" for i in range(len(own.reads)))]
        if erase is not None:
            found += ["erase"] if self.weighted or erase.scale is not None else []
            found += ["scale"] if erase.scale is not None else []
        return tuple(found)

    def _place(self) -> None:
        w, scan = self.w, self.scan
        segments = tirx.truncdiv(w["steps"] + w["span"] - 1, w["span"])
        grid = wide(w["batch"]) * wide(segments) * (scan.tiles * self.recurrence.heads)
        block = w.keep(I.cta_id([tirx.Cast("int32", grid)]))
        self.tx: TirExpr = I.thread_id([scan.threads])
        self.lane = w.bind(self.tx % 32)
        self.arena: Buffer = I.alloc_buffer((scan.shared_bytes,), "uint8", scope="shared.dyn", align=128)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(self.arena.ptr_to([0])))
        self.words = I.decl_buffer(
            (scan.shared_bytes // 2,), self.recurrence.precision, data=self.arena.data, scope="shared.dyn"
        )
        self.value0 = w.keep(tirx.truncmod(block, scan.tiles) * self.tile.values)
        rest = w.keep(tirx.truncdiv(block, scan.tiles))
        self.head = w.keep(tirx.truncmod(rest, self.recurrence.heads))
        self.number = w.keep(tirx.truncdiv(rest, self.recurrence.heads))  # segment B + row
        self.row = w.keep(tirx.truncmod(self.number, w["batch"]))
        self.first = w.keep(tirx.truncdiv(self.number, w["batch"]) * w["span"])
        self.count = w.keep(tirx.min(w["steps"] - self.first, w["span"]))
        self.last = w.bind(self.first + w["span"] >= w["steps"])
        self.whole = w.bind(w["span"] >= w["steps"])  # there is one segment
        self.chunks = w.keep(tirx.truncdiv(self.count + self.tile.chunk - 1, self.tile.chunk))
        most = w["real"] if scan.reverse else self.count + self.first
        if self.masked:
            ends = w.local(1, "int32")
            w.store(ends, tirx.const(FOREVER, "int32"), 0)
            with w.when(tirx.NE(w["has_lengths"], tirx.const(0, "int32"))):
                own = tirx.Min(w["lengths"][wide(self.row)], tirx.const(FOREVER, "int64"))
                w.store(ends, tirx.Cast("int32", own), 0)
            self.ends = ends[0]
            most = tirx.max(tirx.min(most, ends[0] - w["start"]), 0)
        self.most = w.keep(most)  # steps of the row in order of time, as far as this block goes

    def time(self, step: Expr) -> TirExpr:
        """The place in time of a step."""
        return self.w["padded"] - 1 - (self.first + step) if self.scan.reverse else self.first + step

    def there(self, step: Expr) -> TirExpr:
        """Whether the row has a step."""
        inside = self.time(step) < self.most
        return tirx.And(step < self.count, inside) if self.scan.reverse else inside

    def stored(self, step: Expr) -> TirExpr:
        """Whether there is such a step at all."""
        inside = step < self.count
        return tirx.And(inside, self.time(step) < self.w["real"]) if self.scan.reverse else inside

    @property
    def spare(self) -> TirExpr:
        """A step that there is at any rate, if there are any."""
        return self.count - 1 if self.scan.reverse else tirx.const(0, "int32")

    def reset(self, step: Expr) -> tuple[TirExpr, Expr]:
        """Of a step that the row has: whether it has a flag, and where. Backwards, one of the step after it in time
        separates the two."""
        w, at = self.w, self.w.bind(self.w["start"] + self.time(step) + int(self.scan.reverse))
        known = tirx.NE(w["has_reset"], tirx.const(0, "int32"))
        if self.scan.reverse:
            known = tirx.And(known, tirx.And(at < w["total"], at < self.ends))
        return known, wide(at) * wide(w["batch"]) + wide(self.row)

    def element(self, rows: Rows, step: Expr, within: Expr = 0) -> TirExpr:
        """Where an element of this block's head is; step: from `first` on."""
        row = wide(self.time(step)) * wide(self.w["batch"]) + wide(self.row)
        at = self.w.bind(row * rows.stride + rows.offset)
        return at + wide(tirx.truncdiv(self.head, rows.group) * rows.width + within)

    def slot(self, number: TirExpr) -> TirExpr:
        """Where the stage of a chunk begins, in bytes from the start of shared memory."""
        return tirx.truncmod(number, self.tile.stages) * self.scan.stage_bytes
