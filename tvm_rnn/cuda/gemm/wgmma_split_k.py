"""GEMM by wgmma for the rows of one step, for Hopper: K is shared out over a cluster.

In: a `Problem` and a tile. Out: a `Kernel` with one cluster per tile of rows x columns. Weights that do not stay on the
chip are read once by all blocks together; what else a block reads is its rows of x, and with K shared out over the
blocks of a cluster that is only a part of each row. A warpgroup copies as in `wgmma.py`, into a ring that fills
shared memory; the others multiply 64 rows each. Then the blocks exchange sums, and all warps share the epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, SIZES, ceil_div

from .cp_async_pipeline import COPY, DEPENDENT
from .problem import Problem, int64, keep, uint32
from .wgmma import BULK, INPUTS, LAG, STEPS, _Wgmma

Expr = Any
HIGH = 64  # rows of a warpgroup
SECTOR = 32  # bytes that L2 fetches at least
EVICT_FIRST, EVICT_LAST = 0x12F0000000000000, 0x14F0000000000000  # policies of copies, as createpolicy makes them


@dataclass(frozen=True)
class SplitTile:
    """columns of a cluster; high: warpgroups down rows; along: warpgroups along columns; cluster: blocks that share K.

    kept: percent of the weights that L2 is asked to keep from step to step. overlap: weights are fetched while the
    kernel before this one still runs.
    """

    columns: int
    high: int = 1
    along: int = 1
    cluster: int = 2
    stages: int = 4
    kept: int = 0
    overlap: bool = False

    @property
    def rows(self) -> int:
        return HIGH * self.high

    @property
    def members(self) -> int:
        """Threads that multiply."""
        return 128 * self.high * self.along

    @property
    def threads(self) -> int:
        return 128 + self.members

    @property
    def stage_bytes(self) -> int:
        return (self.rows + self.columns) * ROW_BYTES

    @property
    def ring_bytes(self) -> int:
        return self.stages * (self.stage_bytes + 16)

    @property
    def fits(self) -> bool:
        """Whether there are stages enough, and at a kernel's start registers for one wgmma's sums and what it takes
        beside them: ptxas asked for 98 where there were 72 sums, for 154 where there were 128."""
        most = min(255, (1 << 16) // self.threads // 8 * 8)
        return self.stages > LAG + 1 and self.columns // self.along // 2 + 26 <= most

    def items(self, block: int) -> int:
        """Of epilogue work: 8 rows of a warp's 16, and a block of units with all gates."""
        return 2 * self.columns // self.along // block

    def own(self, block: int) -> int:
        """Items of a thread that one block of the cluster finishes, at most."""
        return ceil_div(self.items(block), self.cluster)

    def shared_bytes(self, block: int) -> int:
        exchanged = self.cluster * self.own(block) * self.members * block
        return max(self.ring_bytes, exchanged)


def split_kernel(name: str, problem: Problem, tile: SplitTile) -> Kernel:
    """A kernel for 16-byte aligned operands."""
    block = problem.fragments.block
    assert tile.columns % (tile.along * block) == 0 and tile.columns // tile.along <= 256 and tile.fits

    def body(w: Writer) -> None:
        with problem.flavour(), I.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):
            _Split(w, problem, tile).run()

    given = problem.pointers, problem.scalars, body
    attributes = {"tirx.kernel_launch_params": [DEPENDENT]} if tile.overlap else None
    facts: dict[str, Any] = {"shared_bytes": tile.shared_bytes(block), "cluster": tile.cluster}
    return write(name, *given, threads=tile.threads, attributes=attributes, **facts)


class _Split(_Wgmma):
    tile: SplitTile

    def run(self) -> None:
        w, tile, block = self.w, self.tile, self.layout.block
        grid = tirx.Cast("int32", tirx.floordiv(w["rows"] + (tile.rows - 1), int64(tile.rows)) * self.tiles)
        self.rank: Expr = tirx.const(0, "int32")
        if tile.cluster > 1:
            place, rank = keep(w, I.cluster_id([grid])), I.cta_id_in_cluster([tile.cluster])
            self.rank = keep(w, rank)
        else:
            place = I.cta_id([grid])
        self.tx = I.thread_id([tile.threads])
        self.arena = I.alloc_buffer((tile.shared_bytes(block),), "uint8", scope="shared.dyn", align=1024)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(self.arena.ptr_to([0])))
        self.row0 = keep(w, tirx.Cast("int64", tirx.truncdiv(place, self.tiles)) * tile.rows)
        self.column = keep(w, tirx.truncmod(place, self.tiles))
        self.begin = keep(w, tirx.truncdiv(self.rank * self.total, tile.cluster))
        self.count = keep(w, tirx.truncdiv((self.rank + 1) * self.total, tile.cluster) - self.begin)
        self._make_barriers(5, tile.members // 32)  # full: by 4 warps, and the bulk copy
        if tile.overlap:
            w.do(I.ptx.griddepcontrol.launch_dependents())
        with I.If(self.tx < 128):
            with I.Then():
                self._produce()
                self._meet()
            with I.Else():
                self._consume()
        self._meet()
        self._finish()

    def _meet(self) -> None:
        """All threads of the cluster."""
        if self.tile.cluster > 1:
            super()._meet()
        else:
            self.w.do(I.cuda.cta_sync())

    # --- copying ---------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        w, stages = self.w, self.tile.stages
        self.chunk, line = w.bind(self.tx % CHUNKS), w.bind(self.tx // CHUNKS)
        swizzled = tirx.bitwise_xor(self.chunk, line % CHUNKS) * 16
        self.into = w.bind(tirx.Cast("uint32", line * ROW_BYTES + swizzled))
        row = keep(w, self.row0 + tirx.Cast("int64", line))
        left = keep(w, tirx.Cast("int32", tirx.min(w["rows"] - row, int64(self.tile.rows))))
        if self.tile.overlap:
            with w.loop(tirx.min(self.count, stages)) as k:
                self._weights(k, k)
            w.do(I.ptx.griddepcontrol.wait())
        with w.loop(self.count) as k:
            slot = w.bind(tirx.truncmod(k, stages))
            self._wait(self._empty(slot), (tirx.truncdiv(k, stages) + 1) % 2)
            with w.when(k >= stages) if self.tile.overlap else w.when(True):
                self._weights(k, slot)
            for number, inside in self._operands(self.begin + k):
                with w.when(inside[0]):
                    self._rows(number, slot, inside[1], row, left)
            w.do(I.ptx["cp.async.commit_group"]())
            with w.when(k >= LAG):
                self._announce(LAG, tirx.truncmod(k - LAG, stages))
        for behind in range(LAG, 0, -1):
            with w.when(self.count >= behind):
                self._announce(behind - 1, tirx.truncmod(self.count - behind, stages))

    def _operands(self, k: Expr) -> list[tuple[int, tuple[Expr, Expr]]]:
        """Of every operand: whether K tile k is its own, and the tile's number within it."""
        found, start = [], 0
        for number, deep in enumerate(self.depths):
            inside = True if len(self.depths) == 1 else tirx.And(k >= start, k < start + deep)
            found.append((number, (inside, k - start if start else k)))
            start += deep
        return found

    def _weights(self, k: Expr, slot: Expr) -> None:
        """One bulk copy: packed columns of a K tile lie side by side."""
        w, tile, layout = self.w, self.tile, self.layout
        with w.when(self.tx == 0):
            target = self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes) + uint32(tile.rows * ROW_BYTES)
            columns = keep(w, tirx.min(layout.columns - self.column * tile.columns, tile.columns))
            size = w.bind(tirx.Cast("uint32", columns * ROW_BYTES))
            full = w.bind(self._full(slot))
            w.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](full, size))
            first = tirx.Cast("int64", self.column * tile.columns) * layout.deep
            hint: tuple[Expr, ...] = ()
            if tile.kept:
                early = k * 100 < self.count * tile.kept
                hint = (tirx.Select(early, tirx.const(EVICT_LAST, "uint64"), tirx.const(EVICT_FIRST, "uint64")),)
            name = BULK + (".L2::cache_hint" if hint else "")
            for number, (inside, at) in self._operands(self.begin + k):
                with w.when(inside):
                    place = tirx.Cast("int64", at) * (layout.columns * layout.deep) + first
                    source = w[self.problem.weight_name(number)].ptr_to([place])
                    w.do(I.ptx[name](target, source, size, full, *hint))

    def _rows(self, number: int, slot: Expr, k: Expr, row: Expr, left: Expr) -> None:
        """A K tile of x; zeros beyond its depth and beyond the rows."""
        w, tile, layout, operand = self.w, self.tile, self.layout, self.problem.operands[number]
        assert operand.offset is not None
        first = w.bind(k * layout.deep + self.chunk * layout.chunk)
        reach: Expr = 16
        if operand.depth % layout.deep:
            inside = tirx.max(tirx.min(operand.depth - first, layout.chunk), 0)
            reach = keep(w, inside * SIZES[layout.dtype])
        at = w.bind(row * operand.place.row_stride + tirx.Cast("int64", first) + operand.offset)
        target = w.bind(self.base + tirx.Cast("uint32", slot) * uint32(tile.stage_bytes) + self.into)
        for i in range(tile.rows * CHUNKS // 128):
            high = i * (128 // CHUNKS)
            size = tirx.Cast("uint32", tirx.Select(left > high, reach, 0))
            source = w[operand.name].ptr_to([at + high * operand.place.row_stride])
            w.do(I.ptx[COPY](target + uint32(high * ROW_BYTES), source, 16, size))

    # --- multiplying -----------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        w, tile = self.w, self.tile
        member = w.bind(self.tx - 128)
        self._fetch(member)
        if tile.overlap:
            w.do(I.ptx.griddepcontrol.wait())
        broad = tile.columns // tile.along
        acc = w.local(broad // 2)
        desc = w.local(1, "uint64")
        w.do(I.cuda.wgmma.encode_matrix_descriptor(I.address_of(desc[0]), self.arena.ptr_to([0]), 1, 64, 3))
        down, across = member // 128 % tile.high, member // 128 // tile.high
        x_at = w.bind(tirx.Cast("uint64", down * (HIGH * ROW_BYTES // 16)))
        w_at = w.bind(tirx.Cast("uint64", across * (broad * ROW_BYTES // 16) + tile.rows * ROW_BYTES // 16))
        leads = w.bind(member % 32 == 0)
        with w.loop(self.count) as k:
            slot = keep(w, tirx.truncmod(k, tile.stages))
            self._wait(self._full(slot), tirx.truncdiv(k, tile.stages) % 2)
            stage = w.bind(desc[0] + tirx.Cast("uint64", slot * (tile.stage_bytes // 16)))
            w.do(I.ptx.wgmma.fence.sync.aligned())
            for step in range(STEPS):
                self._multiply(acc, stage + x_at, stage + w_at, step, k)
            w.do(I.ptx.wgmma.commit_group.sync.aligned())
            w.do(I.ptx.wgmma.wait_group.sync.aligned(1))
            with w.when(tirx.And(k > 0, leads)):
                self._release(self._empty(tirx.const(0, "int32")), k - 1)
        w.do(I.ptx.wgmma.wait_group.sync.aligned(0))
        self._meet()  # no block reads stages any more
        self._give(member, acc)

    def _release(self, barrier: Expr, turn: Expr) -> None:
        at = barrier + tirx.Cast("uint32", tirx.truncmod(turn, self.tile.stages) * 8)
        self.w.do(I.ptx["mbarrier.arrive.shared.b64"](at))

    def _multiply(self, acc: Any, a: Expr, b: Expr, step: int, k: Expr) -> None:
        deep, kinds, transposed = INPUTS[self.problem.compute]
        broad = self.tile.columns // self.tile.along
        add = tirx.const(1, "int32") if step else tirx.Cast("int32", k > 0)
        offset = tirx.const(2 * step, "uint64")
        d = [acc[i] for i in range(broad // 2)]
        name = f"wgmma.mma_async.sync.aligned.m64n{broad}{deep}.f32.{kinds}"
        self.w.do(I.ptx[name](*d, a + offset, b + offset, I.ptx.pred(add), 1, 1, *transposed))

    # --- results ---------------------------------------------------------------------------------------------------

    def _fetch(self, member: Expr) -> None:
        """Ask L2 for what the epilogue of this cluster's tile will read: hoisted values come from memory."""
        w, tile, epilogue = self.w, self.tile, self.problem.epilogue
        units = tile.columns // self.problem.gates
        unit = w.bind(self.column * units)
        for node, place in epilogue.reads.items():
            size = SIZES[place.dtype]
            if not place.row_stride or node.shape[-1:] != (epilogue.width,):
                continue
            lines, parts = prod(node.shape[:-1]), ceil_div(units * size, SECTOR) + 1
            pieces = tile.rows * lines * parts
            each = tile.members * tile.cluster
            for i in range(ceil_div(pieces, each)):
                piece = w.bind(member * tile.cluster + self.rank + i * each)
                row = w.bind(self.row0 + tirx.Cast("int64", tirx.truncdiv(piece, lines * parts)))
                line = tirx.truncmod(tirx.truncdiv(piece, parts), lines) if lines > 1 else 0
                end = tirx.min(unit + units, epilogue.width) - 1
                at = w.bind(
                    tirx.min(unit + tirx.truncmod(piece, parts) * (SECTOR // size), end) + line * epilogue.width
                )
                with w.when(tirx.And(piece < pieces, row < w["rows"])):
                    name = epilogue.names["read", node, 0]
                    address = w[name].ptr_to([row * place.row_stride + tirx.Cast("int64", at)])
                    w.do(I.ptx["prefetch.global.L2"](address))

    @property
    def _width(self) -> int:
        """Floats that are exchanged together."""
        return 4 if self.layout.block // 4 % 4 == 0 else 2

    def _at(self, start: Expr, source: Expr, item: Expr, part: int, member: Expr) -> Expr:
        """Where a block has some of a thread's sums: from which block, of which of its items."""
        parts = self.layout.block // 4 // self._width
        place = ((source * self.tile.own(self.layout.block) + item) * parts + part) * self.tile.members + member
        return start + tirx.Cast("uint32", place * (4 * self._width))

    def _give(self, member: Expr, acc: Any) -> None:
        """To every block of the cluster, the sums of its items."""
        w, tile, size, width = self.w, self.tile, self.layout.block // 4, self._width
        remote = w.local(1, "uint32")
        for block in range(tile.cluster):
            if tile.cluster > 1:
                w.do(I.ptx["mapa.shared::cluster.u32"](remote[0], self.base, uint32(block)))
            to, space = (remote[0], "shared::cluster") if tile.cluster > 1 else (self.base, "shared")
            start = w.bind(self._at(to, self.rank, 0, 0, member))
            for item in range(block, tile.items(self.layout.block), tile.cluster):
                found = [self._sum(item, i) for i in range(size)]
                for part in range(size // width):
                    offset = (item // tile.cluster * (size // width) + part) * tile.members * 4 * width
                    values = [acc[found[part * width + i]] for i in range(width)]
                    w.do(I.ptx[f"st.{space}.v{width}.f32"](start + uint32(offset), *values))

    def _sum(self, item: int, number: int) -> int:
        """The accumulator of a number of an item: tiles of 8 columns, of which a thread has two in each row."""
        tile = item // 2 * (self.layout.block // 8) + number // 2
        return tile * 4 + item % 2 * 2 + number % 2

    def _finish(self) -> None:
        """The items of this block, by all its threads."""
        w, tile, layout = self.w, self.tile, self.layout
        size, width, own = layout.block // 4, self._width, tile.own(layout.block)
        work = own * tile.members
        with w.loop(ceil_div(work, tile.threads)) as turn:
            piece = keep(w, self.tx + turn * tile.threads)
            mine, member = keep(w, tirx.truncdiv(piece, tile.members)), keep(w, tirx.truncmod(piece, tile.members))
            item = keep(w, mine * tile.cluster + self.rank)
            with w.when(tirx.And(mine < own, item < tile.items(layout.block))):
                self._finish_item(mine, item, member, size, width)

    def _finish_item(self, mine: Expr, item: Expr, member: Expr, size: int, width: int) -> None:
        w, tile, layout = self.w, self.tile, self.layout
        sums, other = w.local(size), w.local(width)
        parts = [other[i] for i in range(width)]
        for source in range(tile.cluster):
            for part in range(size // width):
                at = self._at(self.base, tirx.const(source, "int32"), mine, part, member)
                w.do(I.ptx[f"ld.shared.v{width}.f32"](*parts, at))
                for i in range(width):
                    n = part * width + i
                    w.store(sums, sums[n] + other[i] if source else other[i], n)
        group, lane = member // 128, w.bind(member % 32)
        line = group % tile.high * HIGH + member // 32 % 4 * 16 + item % 2 * 8 + lane // 4
        row = keep(w, self.row0 + tirx.Cast("int64", line))
        blocks = tile.columns // layout.block
        block = keep(w, self.column * blocks + group // tile.high * (blocks // tile.along) + item // 2)

        def value(gate: int, u: int) -> Expr:
            return sums[(gate * layout.span + u // 2) * 2 + u % 2]

        with w.when(row < w["rows"]):
            unit = block * (8 * layout.span) + lane % 4 * (2 * layout.span)
            self.problem.epilogue.emit(w, row, unit, 2 * layout.span, value)
