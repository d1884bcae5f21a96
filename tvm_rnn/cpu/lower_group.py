"""Groups as loops over batch rows and units around their tiles.

In: a group, the number of rows, and where its values live (`tiles.Places`). Out: a statement. Parameters stay outside
and rows inside, so that a panel of weights is read once for all rows; panels are what threads share.

Rewrite: group  -->  parallel for panels: for rows: tile
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from tvm_rnn.graph.axes import reduced_axes, runs_along
from tvm_rnn.graph.graph import Group, Node
from tvm_rnn.schedule.schedule_template import Chosen, Config, Template, Unit, best
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import bind, floordiv, floormod, loop, sequence, when

from . import dropout_masks, int8_products, register_tile, register_tile_reductions
from .panel_loops import Panels
from .register_tile import Places, Tile
from .weight_storage import Storage

# A row group is shared among threads only if one row is at least this many elements of work (a launch costs about 1
# us).
PARALLEL_ELEMENTS = 16384


@dataclass(frozen=True)
class Used:
    """Which template and knobs a unit got: goes to the manifest."""

    unit: Unit
    template: Template
    knobs: Config
    record: str  # where the knobs are from

    def facts(self) -> dict[str, Any]:
        """What a manifest says of it."""
        unit = self.unit
        shape = f"G={unit.gates} N={unit.width}" + (f" K={'+'.join(map(str, unit.depths))}" if unit.depths else "")
        text = f"{unit.region} {unit.kind} {shape}"
        return {"unit": text, "template": self.template.name, "knobs": dict(self.knobs), "record": self.record}


class Emitter:
    """Emits groups for one target, dtype and set of named batch sizes."""

    def __init__(self, target: Target, dtype: str, batches: tuple[int, ...], storage: Storage | None = None) -> None:
        self.storage = storage
        self.target, self.dtype, self.batches = target, dtype, batches
        self.lanes = target.lanes(dtype)
        self.used: list[Used] = []

    def group(self, group: Group, rows: Expr, places: Places) -> Stmt:
        """The group on `rows` rows. Where records say something else for each named batch size, code for each."""
        if group.kind == "random":
            return self._random(group, rows, places)
        unit = self._unit(group)
        emit = {"gemm": self._gemm, "pointwise": self._pointwise, "reduce": self._reduce}[group.kind]

        def code(own: Unit, chosen: Chosen) -> Stmt:
            self.used.append(Used(own, *chosen))
            return emit(group, own, rows, places, *chosen[:2])

        alone = [replace(unit, batches=(size,)) for size in self.batches]
        found = [best(own, self.target) for own in alone]
        if places.batch is None or all(c[:2] == found[0][:2] for c in found):
            return code(unit, best(unit, self.target))
        # The largest one's for all other sizes: its tiles are those that many rows need.
        result = code(alone[-1], found[-1])
        for own, chosen in reversed(list(zip(alone, found, strict=True))[:-1]):
            if chosen[:2] != found[-1][:2]:
                result = when(tirx.EQ(places.batch, int64(own.batches[0])), code(own, chosen), result)
        return result

    def _unit(self, group: Group) -> Unit:
        root = group.root
        shape = root.shape if root is not None else group.nodes[-1].shape
        gates = shape[0] if group.kind == "gemm" and len(shape) == 2 else 1
        depths = tuple(a.shape[0] for a in root.args[1::2]) if group.kind == "gemm" and root is not None else ()
        width = shape[-1] if shape else 1
        stored = self.storage.name if self.storage is not None and group.kind == "gemm" else ""
        return Unit(group.kind, group.region, self.dtype, gates, width, depths, len(group.nodes), self.batches, stored)

    def _tile(self, group: Group, unit: Unit, places: Places, **where: Any) -> Tile:
        return Tile(group, places, unit, self.lanes, **where)

    def _gemm(self, group: Group, unit: Unit, rows: Expr, places: Places, template: Template, config: Config) -> Stmt:
        finish = best(replace(unit, kind="pointwise", gates=1, depths=()), self.target).template
        work = Panels(group, unit, rows, places, self.lanes, template, finish, config).statement()
        if self.storage is None or not self.storage.integer:
            return work
        many = max(self.batches, default=1)
        return sequence(int8_products.quantise(group, rows, places, self.lanes, many), work)

    def _pointwise(
        self, group: Group, unit: Unit, rows: Expr, places: Places, template: Template, config: Config
    ) -> Stmt:
        shape = group.nodes[-1].shape or (1,)
        outer = shape[:-1]
        vectors = -(-shape[-1] // self.lanes)

        def body(row: Expr, index: tuple[Expr, ...]) -> Stmt:
            def vector(c: tirx.Var) -> Stmt:
                scalar = not group.nodes[-1].shape
                own = self._tile(group, unit, places, row0=row, panel0=c, outer=() if scalar else index)
                return register_tile.pointwise(own, template, config)

            return loop("c", vectors, vector)

        return self._rows(rows, outer, vectors * self.lanes, body)

    def _random(self, group: Group, rows: Expr, places: Places) -> Stmt:
        assert places.draw is not None
        pairs = [(node, array) for node in group.stored for array in places.write(node)]
        common = (rows, places.draw, self.lanes)
        return sequence(
            [dropout_masks.fill(node, array, places.buffers[array.buffer], *common) for node, array in pairs]
        )

    def _reduce(self, group: Group, unit: Unit, rows: Expr, places: Places, template: Template, config: Config) -> Stmt:
        root = group.root
        assert root is not None
        along = runs_along(root)
        work = _reduced_elements(root)

        def body(row: Expr, index: tuple[Expr, ...]) -> Stmt:
            if along:
                own = self._tile(group, unit, places, row0=row, panel0=int64(0))
                return register_tile_reductions.reduction(own, template, config, index, along)

            def vector(c: tirx.Var) -> Stmt:
                own = self._tile(group, unit, places, row0=row, panel0=c)
                return register_tile_reductions.reduction(own, template, config, (*index, c), along)

            return loop("c", -(-root.shape[-1] // self.lanes), vector)

        return self._rows(rows, root.shape if along else root.shape[:-1], work, body)

    def _rows(
        self, rows: Expr, outer: tuple[int, ...], work: int, body: Callable[[Expr, tuple[Expr, ...]], Stmt]
    ) -> Stmt:
        """for row, outer indices: body. The rows and the first outer axis are shared among threads if worth it."""
        first = outer[0] if outer else 1
        total = work
        for size in outer:
            total *= size

        def inner(row: Expr, index: tuple[Expr, ...]) -> Stmt:
            if len(index) == len(outer):
                return body(row, index)
            return loop(f"i{len(index)}", outer[len(index)], lambda i: inner(row, (*index, i)))

        def outermost(i: tirx.Var) -> list[Any]:
            row, set_row = bind("row", floordiv(i, first))
            return [set_row, inner(row, (floormod(i, first),) if outer else ())]

        return loop("i", rows * int64(first), outermost, parallel=total >= PARALLEL_ELEMENTS)


def _reduced_elements(root: Node) -> int:
    """Elements that one element of the result is made of."""
    size = 1
    for _, extent in reduced_axes(root):
        size *= extent
    return size
