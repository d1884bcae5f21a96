"""The loops of a gemm group: panels of weights outside, batch rows inside, tiles of several shapes for what is left
over.

In: a gemm group, the number of rows, and a template's configuration, from `lower_group.py`. Out: a statement. A panel
is one vector of units with all its gates. Weights of a panel stay in cache while all rows pass; threads share the
panels.

Rewrite: group  -->  parallel for chunk of panels: for "broad" panels: for full tile of rows: product, epilogue
                                                   then tiles of 4, 2 and 1 rows for the rest, across more panels
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import tirx

from tvm_rnn.graph.graph import Group
from tvm_rnn.schedule.schedule_template import Config, Template, Unit
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, floordiv, floormod, loop, when

from . import int8_products, register_tile
from .register_tile import Places, Tile


@dataclass(frozen=True)
class Panels:
    """One gemm group on `rows` batch rows."""

    group: Group
    unit: Unit
    rows: Expr
    places: Places
    lanes: int
    template: Template
    finish: Template  # for the epilogue, which is pointwise work
    config: Config

    @property
    def count(self) -> int:
        return -(-self.unit.width // self.lanes)

    def statement(self) -> Stmt:
        """The whole group. A configuration of one row has one shape of tile; others need tiles for leftover rows."""
        chunks = -(-self.count // self.config["panels"])
        body = self._single_rows if self.config["rows"] == 1 else self._chunk
        shared = chunks > 1 and bool(self.config.get("shared", 1))
        odd, threads = self.places.odd, self.places.threads
        if not self.config.get("turns") or odd is None or threads is None:
            return loop("chunk", chunks, body, parallel=shared)

        def part(begin: Expr, end: Expr) -> Stmt:
            """Forwards and backwards in turns from step to step: what came last is still in a thread's cache."""

            def one(i: Expr) -> list[Block]:
                chunk, set_chunk = bind("chunk", begin + i + odd * (end - begin - int64(1) - i - i))
                return [set_chunk, body(chunk)]

            return loop("i", end - begin, one)

        if not shared:
            return part(int64(0), int64(chunks))

        def worker(w: Expr) -> list[Block]:
            begin, set_begin = bind("begin", tirx.floordiv(w * int64(chunks), threads))
            end, set_end = bind("end", tirx.floordiv((w + int64(1)) * int64(chunks), threads))
            return [set_begin, set_end, part(begin, end)]

        return loop("worker", threads, worker, parallel=True)

    def _chunk(self, c: tirx.Var) -> list[Block]:
        full, across = self.config["rows"], self.config["panels"]
        first, set_first = bind("first", c * int64(across))

        def whole(panels: Expr, broad: int) -> Stmt:
            def tiles_of(p: tirx.Var) -> Stmt:
                panel = first + p * int64(broad)
                return loop("r", floordiv(self.rows, full), lambda r: self._tile(full, broad, r * int64(full), panel))

            return loop("p", panels, tiles_of)

        heights = [h for h in (8, 4, 2, 1) if h < full]
        broad = self.config.get("broad", 1)
        work = [
            whole(across // broad, broad),
            *(self._leftover(h, max(1, across // h), first, across) for h in heights),
        ]
        rest = self.count % across
        if rest:
            short = [whole(rest, 1), *(self._leftover(h, 1, first, rest) for h in heights)]
            work = [when(c < int64(self.count // across), work, short)]
        return [set_first, *work]

    def _leftover(self, height: int, across: int, first: Expr, count: int) -> Stmt:
        """Rows that do not fill a full tile: at most one tile of each power of two."""
        left = floormod(self.rows, self.config["rows"])
        start = self.rows - left + floordiv(left, 2 * height) * int64(2 * height)
        present = tirx.NE(tirx.bitwise_and(left, int64(height)), int64(0))
        body = loop("p", count // across, lambda p: self._tile(height, across, start, first + p * int64(across)))
        return when(present, body)

    def _single_rows(self, c: tirx.Var) -> Stmt:
        across = self.config["panels"]
        whole, rest = self.count // across, self.count % across
        full = loop("r", self.rows, lambda r: self._tile(1, across, r, c * int64(across)))
        if not rest:
            return full
        last = loop("r", self.rows, lambda r: self._tile(1, rest, r, int64(whole * across)))
        return when(c < int64(whole), full, last)

    def _tile(self, height: int, across: int, row0: Expr, panel0: Expr) -> list[Block]:
        """Product and epilogue of `height` rows by `across` panels."""
        row, set_row = bind("row", row0)
        panel, set_panel = bind("panel", panel0)
        size = height * across * self.unit.gates * self.lanes
        gates = tirx.decl_buffer((size,), self.unit.dtype, name="gates", scope="local")
        local = replace(self.places, buffers={**self.places.buffers, "gates": gates})
        whole = Tile(self.group, local, self.unit, self.lanes, rows=height, panels=across, row0=row, panel0=panel)
        # Two vectors at a time: one alone would wait for the latency of its functions. More only adds code.
        tall = 2 if height % 2 == 0 else 1
        broad = 2 if tall == 1 and across % 2 == 0 else 1
        unit = replace(self.unit, kind="pointwise", gates=1, depths=())

        def finish(e: tirx.Var) -> Stmt:
            r, p = floordiv(e, across // broad) * int64(tall), floormod(e, across // broad) * int64(broad)
            place = {"row0": row + r, "panel0": panel + p, "slot": (r, p, across)}
            return register_tile.epilogue(
                Tile(self.group, local, unit, self.lanes, rows=tall, panels=broad, **place), self.finish, {}
            )

        integer = self.places.storage is not None and self.places.storage.integer
        product = int8_products.product(whole) if integer else register_tile.product(whole, self.template, self.config)
        parts = height * across // (tall * broad)
        return [set_row, set_panel, tirx.AllocBuffer(gates), product, loop("e", parts, finish)]
