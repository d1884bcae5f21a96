"""Prefetch of hoisted values: each warp copies what its own cells will read to shared memory, some steps early.

In: the kernel's state (`persistent.Body`). Out: statements that copy 16 bytes at a time (8 units of a row) without
registers, and that load the values of a step for its cells. A warp reads nothing but its own copies: no barrier of the
block is needed. Copies begin early enough for values from beyond L2.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr

from .geometry import LANES, PREFETCH_STEPS, Body, Geometry

Read = tuple[Phase, Node, int]
Coming = tuple[Phase, Node, int, int, int, int]  # a read of one cell: with block, own tile, row of two


def prefetched(geometry: Geometry) -> list[Read]:
    """Each (phase, hoisted value, component) that is prefetched."""
    return [
        (phase, node, slot)
        for phase, reads in zip(geometry.step.phases, geometry.step.reads, strict=True)
        for node, slot in reads
        if geometry.prefetches(phase, node, slot)
    ]


class Prefetch:
    """The copies of one kernel. at: the word of the arena where they begin."""

    def __init__(self, body: Body, at: int, pointers: dict[Node, int]) -> None:
        self.body, self.k, self.geometry, self.at = body, body.k, body.geometry, at
        self.pointers = pointers  # number of each value's pointer
        self.now: dict[Coming, tuple[Buffer, int]] = {}
        self.order: list[tuple[Phase, Node, int, int, int]] = []  # with block and own tile: 8 x 8 values each
        for phase, node, slot in prefetched(self.geometry):
            for block in range(self.geometry.blocks(phase.width)):
                self.order += [(phase, node, slot, block, j) for j in range(self.geometry.own_tiles)]
        # A value's pieces follow each other, also where several phases read it.
        known = list(dict.fromkeys(entry[1] for entry in self.order))
        self.order.sort(key=lambda entry: known.index(entry[1]))
        self.each = 8 * self.geometry.itemsize // 16  # pieces of a row

    def prepare(self) -> None:
        """Where this lane's pieces come from; the first steps' copies begin."""
        k, geometry = self.k, self.geometry
        if not self.order:
            return
        arena = I.cuda.cvta_generic_to_shared(self.body.arena.ptr_to([tirx.const(0, "int32")]))
        warp = self.at + self._warp() * (geometry.prefetch_words // geometry.prefetching_warps)
        self.warp = k.keep(warp)
        self.base = k.keep(arena + tirx.Cast("uint32", (self.warp + self.body.ids.lane * 4) * 4))
        self.sources: list[tuple[Node, int, Expr]] = []
        for node in dict.fromkeys(entry[1] for entry in self.order):
            first = next(n for n, entry in enumerate(self.order) if entry[1] is node)
            entries = [entry for entry in self.order if entry[1] is node]
            for i in range(-(-len(entries) * 8 * self.each // LANES)):
                self.sources.append((node, first * 8 * self.each + i * LANES, self._source(node, entries, i)))
        self.registers = k.local(2 * len(self.order), geometry.storage)
        for n, (phase, node, slot, block, j) in enumerate(self.order):
            for e in range(2):
                self.now[(phase, node, slot, block, j, e)] = (self.registers, 2 * n + e)
        for t in range(PREFETCH_STEPS - 1):
            self._copy(tirx.const(t, "int32"), t)

    def _warp(self) -> Expr:
        """This warp's number, among those that copy."""
        geometry, ids = self.geometry, self.body.ids
        if geometry.prefetching_warps == geometry.warps:
            return ids.warp
        group, each = tirx.floordiv(ids.warp, geometry.warps_k), min(geometry.warps_k, geometry.pass_tiles)
        return group * each + tirx.Min(ids.warp_k, tirx.const(each - 1, "int32"))

    def _copies(self) -> Expr:
        """Whether this warp copies."""
        geometry = self.geometry
        return (
            tirx.const(True, "bool")
            if geometry.prefetching_warps == geometry.warps
            else self.body.ids.warp_k < geometry.pass_tiles
        )

    def _source(self, node: Node, entries: list[tuple[Phase, Node, int, int, int]], i: int) -> Expr:
        """Element at time 0 of this lane's i-th piece of a value. Lanes past the last piece repeat it."""
        k, body, geometry = self.k, self.body, self.geometry
        lanes = 16 // geometry.itemsize
        flat = tirx.Min(body.ids.lane + i * LANES, len(entries) * 8 * self.each - 1)
        entry, row = tirx.floordiv(flat, 8 * self.each), tirx.floormod(tirx.floordiv(flat, self.each), 8)
        unit, tile = k.local(1, "int32"), k.local(1, "int32")
        for n, (phase, _, slot, block, j) in enumerate(entries):
            with k.when(entry == n):
                # Units past the last one are never looked at: any will do.
                within = tirx.Min(body.cells.first_unit(phase.width, block), tirx.const(phase.width - 8, "int32"))
                k.store(unit, slot * phase.width + within, 0)
                k.store(tile, body.cells.tile(j), 0)
        row = k["row0"] + body.ids.group * geometry.rows + tile[0] * 8 + row
        row = tirx.Cast("int64", tirx.Min(row, k["batch"] - 1))
        piece = tirx.floormod(flat, self.each) * lanes
        return k.keep(row * self._stride(node) + unit[0] + piece)

    def _stride(self, node: Node) -> int:
        layout = self.body.layout
        inputs = layout.graph.inputs
        place = layout.input(inputs.index(node)) if node.op == "input" else layout.hoisted(node)
        return int(place.row_stride)

    def _words(self) -> int:
        """Of one step of one warp."""
        words: int = self.geometry.prefetch_words // self.geometry.prefetching_warps // PREFETCH_STEPS
        return words

    def _copy(self, t: Expr, slot: Expr) -> None:
        """Begin to copy step t to a stage."""
        k = self.k
        with k.when(tirx.And(self._copies(), t < k["steps"])):
            time = k.bind(self.body.time(t))
            for node, first, element in self.sources:
                source = k[f"read_{self.pointers[node]}"].ptr_to([time * self._stride(node) + element])
                target = self.base + tirx.Cast("uint32", slot * (self._words() * 4) + first * 16)
                pieces = len([entry for entry in self.order if entry[1] is node]) * 8 * self.each
                start = next(n for n, entry in enumerate(self.order) if entry[1] is node) * 8 * self.each
                left = pieces - (first - start)
                copy = I.ptx["cp.async.cg.shared.global"](target, source, 16)
                if left >= LANES:
                    k.do(copy)
                else:
                    with k.when(self.body.ids.lane < left):
                        k.do(copy)
        k.do(I.ptx["cp.async.commit_group"]())

    def begin(self, t: Expr) -> None:
        """Step t begins: its values to registers; the copy of a later step takes the place of the last one's."""
        if not self.order:
            return
        k, geometry, ids = self.k, self.geometry, self.body.ids
        k.do(I.ptx["cp.async.wait_group"](PREFETCH_STEPS - 2))
        k.do(I.cuda.warp_sync())
        elements = self._words() * 4 // geometry.itemsize
        view = I.decl_buffer(
            (geometry.shared_bytes // geometry.itemsize,),
            geometry.storage,
            data=self.body.arena.data,
            scope="shared.dyn",
        )
        place = self.warp * (4 // geometry.itemsize) + tirx.floormod(t, PREFETCH_STEPS) * elements
        place = k.keep(place + ids.q * 16 + ids.g)
        for n in range(len(self.order)):
            for e in range(2):
                k.store(self.registers, view[place + n * 64 + e * 8], 2 * n + e)
        self._copy(t + (PREFETCH_STEPS - 1), tirx.floormod(t + (PREFETCH_STEPS - 1), PREFETCH_STEPS))
