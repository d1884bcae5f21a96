"""Products by wgmma: weights in tiles of 64 gates, their descriptors, and what stays in registers and shared memory.

In: a `Step` and knobs; the kernel's body. Out: `WgmmaTiles`, what geometries share: how weights are packed;
`WgmmaProduct`, what their products share: matrix descriptors and instructions, and resident weights.

A warpgroup multiplies gates (M: 64 rows each) with all rows (N) in its part of K. Its weights are fragments in
registers (A of wgmma), tiles in shared memory, or tiles that come through a pipeline beside the operand of the same
block of K. A tile is 64 rows of 64 bytes, in the 64-byte swizzle; operands lie in global memory in that order already,
so that copies need not know of it.

Source: Hopper's warpgroup products: PTX ISA 8.5, "wgmma.mma_async", matrix fragments and shared memory layout.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_64, Layout
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import LANES, Body, Geometry, Share
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from .operands_staged import copy_to_shared

WARPGROUP = 4  # warps
TILE_ROWS, TILE_BYTES, TILE_WORDS = 64, 4096, 8  # of M; of a block of K; per thread
ROW_BYTES = 64
STEPS = 2  # wgmma steps of 32 bytes in a block of K
MODE, STRIDE = 2, 512 // 16  # of matrix descriptors: a swizzle of 64 bytes; rows of 64 bytes, 8 of them apart
INPUTS: dict[str, tuple[str, str, int]] = {  # depth, types, operands that may be transposed
    "bfloat16": ("k16", "bf16.bf16", 1),
    "float16": ("k16", "f16.f16", 1),
    "tf32": ("k8", "tf32.tf32", 0),
}


@dataclass(frozen=True)
class WgmmaTiles(Geometry):
    """What geometries share whose warpgroups multiply tiles of 64 gates by all rows, with weights as fragments in
    registers, then as tiles in shared memory."""

    alignment: ClassVar[int] = 1024  # swizzled tiles want it
    registers_apart: ClassVar[bool] = True

    @property
    def staged_tiles(self) -> int:
        return self.phase_tiles

    def gate_tiles(self, phase: Phase) -> int:
        """Of 64 rows, of a warpgroup."""
        return ceil(self.warps_u * len(self.halves(phase)) * 8 / TILE_ROWS)

    @property
    def most_gate_tiles(self) -> int:
        return max(map(self.gate_tiles, self.shares), default=0)

    def block_words(self, phase: Phase) -> int:
        return self.gate_tiles(phase) * TILE_WORDS

    @property
    def block_parts(self) -> int:
        """Parts of K of a block."""
        return self.k_parts

    @property
    def operand_bytes(self) -> int:
        """Of a block of K."""
        return self.rows * ROW_BYTES

    def near_bytes(self, phase: Phase) -> int:
        """Of a block of K's weights of one part, in registers of all threads."""
        return self.gate_tiles(phase) * TILE_BYTES

    def far_bytes(self, phase: Phase) -> int:
        """The same outside of registers."""
        return self.near_bytes(phase)

    @abstractmethod
    def gate_row(self, phase: Phase, tile: Expr, line: Expr) -> tuple[Expr, Expr, Expr]:
        """Of a line of a tile: (warp_u, half, a number whose remainder by 8 is the unit's)."""

    def fragment_place(self, word: Expr, element: Expr) -> tuple[Expr, Expr]:
        """(row, k) of a word of a tile that stays in registers: [MMA step][warp][lane][a0 a1 a2 a3]."""
        z, lane, warp, step = word % 4, word // 4 % 32, word // 128 % 4, word // 512
        k = step * (self.block_k // 2) + z // 2 * (self.block_k // 4) + lane % 4 * (4 // self.itemsize) + element
        return warp * 16 + z % 2 * 8 + lane // 4, k

    def swizzled_place(self, word: Expr, element: Expr) -> tuple[Expr, Expr]:
        """The same of any other tile: [row][swizzled piece]."""
        row = word // 16
        return row, (SWIZZLE_64.piece(row, word // 4 % 4) * 4 + word % 4) * (4 // self.itemsize) + element

    def weight_index(self, phase: Phase, share: Share, at: Expr) -> tuple[tuple[Expr, ...], Expr]:
        """Order: [cta][part of K][K block][M tile][tile of 4096 bytes]."""
        order = {"part": self.k_parts, "kblock": share.kblocks, "tile": self.gate_tiles(phase)}
        packed = Layout(cta=self.ctas, **order, word=TILE_BYTES // 4, element=4 // self.itemsize)
        place = packed.coordinates(tirx.Cast("int32", at))
        line, k = self.fragment_place(place["word"], place["element"])
        if share.registers < share.kblocks:
            row, flat = self.swizzled_place(place["word"], place["element"])
            kept = place["kblock"] < share.registers
            line, k = tirx.Select(kept, line, row), tirx.Select(kept, k, flat)
        k = (place["part"] * share.kblocks + place["kblock"]) * self.block_k + k
        warp_u, half, row = self.gate_row(phase, place["tile"], line)
        block, gate = half // phase.gates, half % phase.gates
        unit = self.first_unit(phase, place["cta"], warp_u, block) + row % 8
        valid = tirx.And(warp_u < self.warps_u, block < self.blocks(phase.width))
        return self.weight_at(phase, share, gate, unit, k, valid=valid)


class WgmmaProduct:
    """What products by wgmma share: matrix descriptors, instructions, and resident weights, packed as fragments in
    registers, then tiles in shared memory. base: the address of shared memory; part: the thread's part of K."""

    base: Expr
    part: Expr

    def __init__(self, body: Body, geometry: WgmmaTiles) -> None:
        self.body, self.k, self.ids, self.geometry = body, body.k, body.ids, geometry
        self.names, self.registers, self.shared = geometry.weight_names, dict[Share, Buffer](), dict[Share, int]()

    def place_weights(self, at: int) -> None:
        """Fragments to registers; tiles to shared memory, from byte `at` on."""
        k, geometry = self.k, self.geometry
        for phase, share in geometry.weights:
            if share.registers:
                self.registers[share] = self._load(phase, share)
            if share.shared:
                self.shared[share], four = at, k.tile(4, dtype="uint32").flat
                size = share.shared * geometry.far_bytes(phase)
                for part in range(geometry.block_parts):
                    first = k.keep(self.first_tile(phase, share, part))
                    copy_to_shared(self.body, share, first, four, at=at, size=size, base=self.base)
                    at += size

    def first_fragment(self, phase: Phase, share: Share) -> Expr:
        """The first word of this lane's fragments in the packed weights."""
        part = (self.ids.rank * self.geometry.k_parts + self.part) * share.kblocks
        lane = tirx.floormod(self.ids.warp, 4) * (LANES * 4) + self.ids.lane * 4
        return tirx.Cast("int64", part) * (self.geometry.near_bytes(phase) // 4) + lane

    def first_tile(self, phase: Phase, share: Share, part: int) -> Expr:
        """The first word of the tiles in shared memory there."""
        block = (self.ids.rank * self.geometry.k_parts + part) * share.kblocks + share.registers
        return tirx.Cast("int64", block) * (self.geometry.near_bytes(phase) // 4)

    def _load(self, phase: Phase, share: Share) -> Buffer:
        """This lane's fragments: [K block][M tile][step][4]."""
        k, geometry, pieces = self.k, self.geometry, self.geometry.gate_tiles(phase) * STEPS
        kept = k.local(share.registers * pieces * 4, "uint32")
        first = k.keep(self.first_fragment(phase, share))
        for piece in range(share.registers * pieces):
            at = first + (piece // pieces * geometry.near_bytes(phase) + piece % pieces * (TILE_BYTES // STEPS)) // 4
            address = k[self.names[share]].ptr_to([at * (4 // geometry.itemsize)])
            k.do(I.ptx["ld.global.nc.v4.b32"](*(kept[piece * 4 + z] for z in range(4)), address))
        return kept

    def near(self, phase: Phase, base: Expr, part: Expr) -> None:
        """The low words of matrix descriptors of a part's tiles in shared memory."""
        low = self.k.keep(base // uint32(16) + uint32(1 << 16))
        self.low: dict[Share, tuple[Expr, int]] = {}
        for share in self.geometry.shares[phase]:
            if share.shared:
                at = part * (share.shared * self.geometry.far_bytes(phase)) + self.shared[share]
                self.low[share] = self.k.keep(low + tirx.Cast("uint32", at // 16)), 0

    def resident(self, phase: Phase, share: Share, kblock: int, tile: int, step: int) -> list[Expr]:
        """The A operand of one instruction: four registers, or a descriptor."""
        if kblock < share.registers:
            first = ((kblock * self.geometry.gate_tiles(phase) + tile) * STEPS + step) * 4
            return [self.registers[share][first + z] for z in range(4)]
        low, at = self.low[share]
        at += (kblock - share.registers) * self.geometry.far_bytes(phase) + tile * TILE_BYTES
        return [self.descriptor(low, at + step * 32)]

    def descriptor(self, first: Expr, at: int) -> Expr:
        """Of a tile that begins `at` bytes after the first. The high word is the same for all."""
        low = tirx.Cast("uint64", first + uint32(at // 16))
        return tirx.bitwise_or(low, tirx.const((MODE << 30 | STRIDE) << 32, "uint64"))

    def instruction(self, acc: Buffer, tile: int, a: Sequence[Expr], b: Expr, *, add: bool) -> None:
        """One wgmma: 64 rows and all columns, a step of K."""
        rows, each = self.geometry.rows, self.geometry.rows // 2
        deep, kinds, transposed = INPUTS[self.geometry.precision]
        name = f"wgmma.mma_async.sync.aligned.m64n{rows}{deep}.f32.{kinds}"
        d = [acc[tile * each + z] for z in range(each)]
        # Each of A and B that comes from shared memory could be transposed.
        more = [0] * (transposed * (1 + (len(a) == 1)))
        self.k.do(I.ptx[name](*d, *a, b, I.ptx.pred(tirx.const(int(add), "int32")), 1, 1, *more))
