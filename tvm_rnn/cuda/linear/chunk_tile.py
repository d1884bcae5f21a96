"""What the parts of a chunk scan share: its tile, numbers of steps in shared memory.

In: knobs. Out: `ChunkTile`, `Numbers`, and functions that emit a few instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.packed_layout import SIZES
from tvm_rnn.tir.expr import Expr, TirExpr

from .recurrence import AFTER, Rows

LINE, PIECE = 128, 16  # bytes of shared memory that are read at a time, and that an instruction reads of a row
PAD = 16  # bytes behind a row, where it fills no lines: the next one begins in other banks
BLOCK = 16  # steps, keys or values that an instruction takes at a time
TRIANGLE_PITCH = 20  # float32 numbers from a column of a block to be inverted to the next
FEW = 8  # warps whose threads may have all registers that a thread can have
SLICE = 64  # keys, two of a lane, that decay by themselves, which are worked on at once
HALVES_PITCH = 2 * SLICE + 16  # bytes from a step to the next of a block whose halves are multiplied with each other
# By warps of scores and of states: of scores, of states, of loads. All together what the block begins with.
REGISTERS = {(4, 4): (160, 240, 104), (4, 8): (128, 176, 32)}


@dataclass(frozen=True)
class ChunkTile:
    """chunk: steps, 32 or 64; warps: of states, each with 16 values; stages: chunks of operands in shared memory, 3 at
    least; blocks: of a multiprocessor that registers allow."""

    chunk: int = 64
    warps: int = 2
    stages: int = 3
    blocks: int = 1

    @property
    def values(self) -> int:
        return BLOCK * self.warps

    @property
    def scorers(self) -> int:
        """Warps that make scores: each has 16 steps."""
        return self.chunk // BLOCK

    @property
    def registers(self) -> tuple[int, int, int] | None:
        """Of a thread of each kind, where warps come in fours, which may give registers to each other; else None."""
        return REGISTERS.get((self.scorers, self.warps))


class Numbers:
    """What all warps know of a chunk's steps, in shared memory, of three chunks."""

    def __init__(self, w: Writer, names: tuple[str, ...], chunk: int) -> None:
        self.w, self.chunk = w, chunk
        self.buffers = {name: I.alloc_buffer((3 * chunk,), "float32", scope="shared") for name in names}

    def place(self, number: TirExpr, step: Expr) -> TirExpr:
        return number % 3 * self.chunk + step

    def load(self, name: str, number: TirExpr, step: Expr) -> TirExpr:
        return self.buffers[name][self.place(number, step)]

    def two(self, name: str, number: TirExpr, step: Expr) -> tuple[TirExpr, ...]:
        """Of an even step and the next, by one instruction."""
        found = self.w.tile(1, 2)
        place = self.buffers[name].ptr_to([self.place(number, step)])
        self.w.do(I.ptx["ld.shared.v2.f32"](*found[0], I.cuda.cvta_generic_to_shared(place)))
        return found[0]

    def store(self, name: str, value: Expr, number: TirExpr, step: Expr) -> None:
        self.w.store(self.buffers[name], value, self.place(number, step))


def row_pitch(size: int) -> int:
    """Bytes from a row of shared memory to the next: none are between rows that fill lines, alone or with others."""
    return size if size % LINE == 0 or LINE % size == 0 else size + PAD


def swizzled(pitch: int, row: Expr, at: Expr) -> Expr:
    """Where in its row a byte lies. Eight rows, of which products read the same 16 bytes, must have these in other
    banks: in each the pieces of a line have another order. PAD bytes between rows would do it too, but a line that is
    copied to two took ten turns of shared memory in place of four."""
    if pitch % LINE and LINE % pitch:
        return at
    rows = max(1, LINE // pitch)  # of a line
    return at ^ tirx.truncmod(tirx.truncdiv(row, rows), 8 // rows) * PIECE


def further(pitch: int, at: TirExpr, k: int) -> TirExpr:
    """The address of the k-th 32 bytes behind those at an address in the row's first ones."""
    if pitch % LINE and LINE % pitch:
        return at + tirx.const(32 * k, "uint32")
    low, high = 32 * k % LINE, 32 * k // LINE * LINE
    return (at ^ tirx.const(low, "uint32") if low else at) + tirx.const(high, "uint32")


def piece_bytes(rows: Rows) -> int:
    """Bytes of a row of 16-bit numbers that are copied at a time: what every row begins at a multiple of."""
    size = SIZES[rows.dtype]
    return min(16, gcd(16, rows.width * size, rows.stride * size, rows.offset * size))


def exp2(x: TirExpr) -> TirExpr:
    return tirx.call_pure_extern("float32", "exp2f", x)


def turned(of: str) -> bool:
    """Whether a step's own writing is read."""
    return of == AFTER
