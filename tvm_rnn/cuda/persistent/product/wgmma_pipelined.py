"""The product of a phase by wgmma: stationary weights times operands that come through a ring in shared memory.

In: a `Team` with `ring` stages, the warp's coordinates. Out: statements that leave all gates of a lane's cells in
registers. Each warpgroup multiplies all units and rows of the block in its part of K, the chunks of the ring one after
the other; sums then meet in shared memory, where lanes find the gates of their cells.

Source: Hopper's warpgroup products: PTX ISA 8.5, "wgmma.mma_async", matrix fragments and shared memory layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.bulk_copy_pipeline import Ring, Ringed, uint32
from tvm_rnn.cuda.persistent.geometry import LANES, Share, Team

from .mma_sync import separated, weights
from .wgmma_pipelined_layout import (
    ROW_BYTES,
    TILE_BYTES,
    TILE_ROWS,
    TILE_WORDS,
    Chunk,
    m_tiles,
    part_bytes,
    partial_stride,
    turns,
)

Expr = Any
STEPS = 2  # wgmma steps of 32 bytes in a block of K
LAG = 2  # chunks under way, where the ring is deep enough: while a stage is filled again, products do not run out
SWIZZLE_64, STRIDE = 2, 512 // 16  # of matrix descriptors: rows of 64 bytes, 8 of them apart
INPUTS: dict[str, tuple[str, str, int]] = {  # depth, types, operands that may be transposed
    "bfloat16": ("k16", "bf16.bf16", 1),
    "float16": ("k16", "f16.f16", 1),
    "tf32": ("k8", "tf32.tf32", 0),
}


class RingProduct:
    """What products share whose operands come through a ring, for wgmma."""

    k: Writer
    team: Any
    ring: Any
    names: dict[Share, str]

    @property
    def par(self) -> int:
        return int(self.ring.par)

    @par.setter
    def par(self, par: int) -> None:
        self.ring.par = par

    def _word(self, share: Share, word: Expr) -> Expr:
        """Address of a word of the block's packed weights."""
        return self.k[self.names[share]].ptr_to([word * (4 // self.team.itemsize)])

    def _descriptor(self, first: Expr, at: int) -> Expr:
        """Of a tile that begins `at` bytes after the first. The high word is the same for all."""
        low = tirx.Cast("uint64", first + uint32(at // 16))
        return tirx.bitwise_or(low, tirx.const((SWIZZLE_64 << 30 | STRIDE) << 32, "uint64"))

    def _instruction(self, acc: Any, tile: int, a: list[Expr], b: Expr, add: bool) -> None:
        """One wgmma: 64 rows and all columns, a step of K."""
        each = self.team.rows // 2
        deep, kinds, transposed = INPUTS[self.team.precision]
        name = f"wgmma.mma_async.sync.aligned.m64n{self.team.rows}{deep}.f32.{kinds}"
        d = [acc[tile * each + z] for z in range(each)]
        # Each of A and B that comes from shared memory could be transposed.
        more = [0] * (transposed * (1 + (len(a) == 1)))
        self.k.do(I.ptx[name](*d, *a, b, I.ptx.pred(tirx.const(int(add), "int32")), 1, 1, *more))


class Wide(RingProduct):
    """The products of one kernel. Construct once, at the kernel's start: it loads the resident weights."""

    def __init__(self, k: Writer, team: Team, ids: Any, arena: Any, exchange: Ringed) -> None:
        self.k, self.team, self.ids = k, team, ids
        self.names = {share: f"weight_{number}" for number, (_, share) in enumerate(weights(team))}
        self.ring = Ring(k, team, ids, arena, exchange, self.names)
        self.places = self.ring.places
        self.part, self.base = self.ring.part, self.ring.base
        self._place_weights(self.places.weights)
        self.ring.start()

    # --- weights -----------------------------------------------------------------------------------------------------

    def _place_weights(self, at: int) -> None:
        """Fragments to registers; tiles to shared memory, from byte `at` on."""
        self.registers: dict[Share, Any] = {}
        self.shared: dict[Share, int] = {}
        for phase, share in weights(self.team):
            if share.registers:
                self.registers[share] = self._load(phase, share)
            if share.shared:
                each = share.shared * m_tiles(self.team, phase) * TILE_BYTES
                self._fill(phase, share, at, each)
                self.shared[share] = at
                at += each * self.team.k_parts

    def _load(self, phase: Phase, share: Share) -> Any:
        """This lane's fragments: [K block][M tile][step][4]."""
        k, team, ids, tiles = self.k, self.team, self.ids, m_tiles(self.team, phase)
        kept = k.local(share.registers * tiles * TILE_WORDS, "uint32")
        part = (ids.rank * team.k_parts + self.part) * share.kblocks
        lane = tirx.floormod(ids.warp, 4) * (LANES * 4) + ids.lane * 4
        first = k.keep(tirx.Cast("int64", part) * (tiles * TILE_BYTES // 4) + lane)
        for piece in range(share.registers * tiles * STEPS):
            four = [kept[piece * 4 + z] for z in range(4)]
            at = first + piece * (TILE_BYTES // 4 // STEPS)
            k.do(I.ptx["ld.global.nc.v4.b32"](*four, self._word(share, at)))
        return kept

    def _fill(self, phase: Phase, share: Share, at: int, each: int) -> None:
        """Tiles in shared memory, `each` bytes for each part of K."""
        k, team, ids = self.k, self.team, self.ids
        passing, pieces = k.local(4, "uint32"), each // 16
        four = [passing[z] for z in range(4)]
        for part in range(team.k_parts):
            block = (ids.rank * team.k_parts + part) * share.kblocks + share.registers
            first = k.keep(tirx.Cast("int64", block) * (m_tiles(team, phase) * TILE_BYTES // 4))
            with k.loop(-(-pieces // team.threads)) as i:
                piece = i * team.threads + ids.thread
                with k.when(piece < pieces):
                    k.do(I.ptx["ld.global.nc.v4.b32"](*four, self._word(share, first + piece * 4)))
                    target = self.base + tirx.Cast("uint32", piece * 16) + uint32(at + part * each)
                    k.do(I.ptx["st.shared.v4.b32"](target, *four))

    def _descriptors(self, phase: Phase) -> None:
        """The low words of matrix descriptors: of this part of stage 0, and of each share's weights near."""
        self._near(phase, self.ring.base, self.ring.part)
        self.operands = self.k.keep(self.ring.stages // uint32(16) + uint32(1 << 16))

    def _near(self, phase: Phase, base: Expr, part: Expr) -> None:
        team, low = self.team, self.k.keep(base // uint32(16) + uint32(1 << 16))
        self.near: dict[Share, Expr] = {}
        for share in team.shares[phase]:
            if share.shared:
                each = share.shared * m_tiles(team, phase) * TILE_BYTES
                self.near[share] = self.k.keep(low + tirx.Cast("uint32", (part * each + self.shared[share]) // 16))

    def _weights(self, chunk: Chunk, kblock: int, tile: int, tiles: int, step: int) -> list[Expr]:
        """The A operand of one instruction: four registers, or a descriptor."""
        if chunk.streamed:
            at = self._stage(chunk) + self.team.rows * ROW_BYTES + tile * TILE_BYTES + step * 32
            return [self._descriptor(self.operands, at)]
        return self._resident(chunk.share, kblock, tile, tiles, step)

    def _resident(self, share: Share, kblock: int, tile: int, tiles: int, step: int) -> list[Expr]:
        if kblock < share.registers:
            first = ((kblock * tiles + tile) * STEPS + step) * 4
            return [self.registers[share][first + z] for z in range(4)]
        at = ((kblock - share.registers) * tiles + tile) * TILE_BYTES + step * 32
        return [self._descriptor(self.near[share], at)]

    def _stage(self, chunk: Chunk) -> int:
        return chunk.slot * part_bytes(self.team)

    # --- the product -------------------------------------------------------------------------------------------------

    def emit(
        self,
        phase: Phase,
        source: Callable[[Share], Expr],
        loads: Sequence[Callable[[], None]] = (),
        fetches: Sequence[Callable[[], None]] = (),
    ) -> list[Expr]:
        """All gates of this lane's cells: own[(m tile * own_tiles + j) * 4 + half * 2 + e], two halves (`Team.halves`)
        to an m tile. source(share): the first word of its operand in the exchange. loads, fetches: statements to be
        written while products are under way: what cells read, and its way into L2."""
        between = [*loads, *fetches]
        k, ring, tiles = self.k, self.ring, m_tiles(self.team, phase)
        apart, before = self.places.apart, separated(self.team, phase)
        lag = 2 if self.team.ring > LAG + 1 else 1
        if not before:
            k.do(I.cuda.cta_sync())  # the product before this one may still be summed
        acc = k.local(tiles * self.team.rows // 2)
        ring.refresh()
        self._descriptors(phase)
        ring.begin(phase, source)
        for number, chunk in enumerate(ring.chunks[phase]):
            ring.wait(chunk)
            k.do(I.ptx.wgmma.fence.sync.aligned())
            self._multiply(chunk, tiles, acc, number == 0)
            k.do(I.ptx.wgmma.commit_group.sync.aligned())
            if number >= lag:
                k.do(I.ptx.wgmma.wait_group.sync.aligned(lag))
                ring.release(ring.chunks[phase][number - lag])
                ring.refill(phase, number - lag, source)
            count = len(ring.chunks[phase])
            for piece in between[len(between) * number // count : len(between) * (number + 1) // count]:
                piece()
        k.do(I.ptx.wgmma.wait_group.sync.aligned(0))
        for chunk in ring.chunks[phase][-lag:]:
            ring.release(chunk)
        if not apart:
            k.do(I.cuda.cta_sync())  # the other warpgroups read the ring
        return self._sum(phase, tiles, acc)

    def _multiply(self, chunk: Chunk, tiles: int, acc: Any, first: bool) -> None:
        for kblock in range(chunk.first, chunk.first + chunk.count):
            for step in range(STEPS):
                at = self._stage(chunk) + (kblock - chunk.first) * self.team.rows * ROW_BYTES + step * 32
                b = self._descriptor(self.operands, at)
                add = not (first and kblock == chunk.first and not step)
                for tile in range(tiles):
                    self._instruction(acc, tile, self._weights(chunk, kblock, tile, tiles, step), b, add)

    def _sum(self, phase: Phase, tiles: int, acc: Any) -> list[Expr]:
        """Sums of the parts of K, by the lanes that have the cells."""
        k, team = self.k, self.team
        found = k.local(team.m_tiles(phase) * team.own_tiles * 4)
        for turn in range(turns(team)):
            if turn:
                k.do(I.cuda.cta_sync())
            self._give(tiles, acc, turn)
            k.do(I.cuda.cta_sync())
            each = team.own_tiles // turns(team)
            for j in range(turn * each, (turn + 1) * each):
                self._take(phase, tiles, found, j, turn)
        if not self.places.apart:
            k.do(I.ptx.fence.proxy.async_.shared__cta())  # copies into the ring follow, after a barrier
        return [found[z] for z in range(team.m_tiles(phase) * team.own_tiles * 4)]

    def _give(self, tiles: int, acc: Any, turn: int) -> None:
        """This warp's sums of a turn's columns."""
        k, team, ids, row = self.k, self.team, self.ids, partial_stride(self.team) * 4
        columns = team.rows // 8 // turns(team)
        line = (self.ring.part * tiles * TILE_ROWS + tirx.floormod(ids.warp, 4) * 16 + ids.g) * row + ids.q * 8
        own = k.keep(self.ring.base + tirx.Cast("uint32", line + self.places.partial))
        for tile in range(tiles):
            for i in range(columns):
                for high in range(2):
                    first = tile * team.rows // 2 + (turn * columns + i) * 4 + high * 2
                    at = tile * TILE_ROWS * row + high * 8 * row + i * 32
                    k.do(I.ptx["st.shared.v2.f32"](own + uint32(at), acc[first], acc[first + 1]))

    def _take(self, phase: Phase, tiles: int, found: Any, j: int, turn: int) -> None:
        """All parts of this lane's gates in its j-th tile."""
        k, team, ids, row = self.k, self.team, self.ids, partial_stride(self.team) * 4
        halves, part, two = len(team.halves(phase)), tiles * TILE_ROWS * row, k.local(2)
        line = (ids.warp_u * (halves * 8) + ids.g) * row + (ids.warp_n * team.tiles) * 32 + ids.q * 8
        tile = team.own_tile(j, ids.warp_k) - turn * (team.tiles // turns(team))
        owned = team.owned(j, ids.warp_k)
        with k.when(tirx.const(True, "bool") if owned is None else owned):
            cells = k.keep(self.ring.base + tirx.Cast("uint32", line + tile * 32 + self.places.partial))
            for half in range(halves):
                at = (half // 2 * team.own_tiles + j) * 4 + half % 2 * 2
                for number in range(team.k_parts):
                    place = cells + uint32(half * 8 * row + number * part)
                    k.do(I.ptx["ld.shared.v2.f32"](two[0], two[1], place))
                    for e in range(2):
                        k.store(found, found[at + e] + two[e] if number else two[e], at + e)
