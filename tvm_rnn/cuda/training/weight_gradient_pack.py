"""Rows of an operand, copied into the order in which a large GEMM over all rows fetches them in one piece.

In: an operand that lies as rows of pieces of 16 or 4 bytes. Out: a `Kernel` that writes squares of 8192 bytes: 64
columns of the operand by a stage's rows, in the 128-byte swizzle of wgmma (16 bytes at chunk c of line l are at
c ^ l % 8), [stage][square]. Of 16 bits a line is a row, 64 of them in a stage; of tf32, which wgmma takes along K
alone, a line is a column, of 32 rows, and numbers are rounded. Zeros stand beyond the last row and the last column.

A copy costs both ways through memory once; the GEMM then reads each operand as often as it has tiles.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_128
from tvm_rnn.cuda.gemm.operands import Operand
from tvm_rnn.cuda.gemm.wgmma import SQUARE_BYTES
from tvm_rnn.cuda.layer.packed_layout import CHUNKS, ROW_BYTES, SIZES, ceil_div
from tvm_rnn.cuda.layer.pointers import storage
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64, uint32

SQUARE = 64  # columns
THREADS = 128
PIECES = SQUARE_BYTES // 16 // THREADS  # of 16 bytes, for each thread
PITCH = SQUARE * 4 + 16  # bytes from row to row before they are turned: half a warp's columns meet no bank twice


def rows_of_stage(precision: str) -> int:
    """How many rows 128 bytes of a line are, or how many lines a square has."""
    return 32 if precision == "tf32" else SQUARE


def squares(depth: int) -> int:
    """Of a stage."""
    return ceil_div(depth, SQUARE)


def pack_kernel(name: str, operand: Operand, precision: str, *, stage_squares: int, first: int) -> Kernel:
    """Fill squares `first` and further ones of every stage, which has `stage_squares`; scalar: rows, at least 1.

    precision: "float16", "bfloat16" or "tf32"."""
    dtype, turned = storage(precision), precision == "tf32"
    pointers = [(operand.name, operand.place.dtype), ("packed", dtype)]

    def body(w: Writer) -> None:
        own, deep = squares(operand.depth), rows_of_stage(precision)
        stages = tirx.truncdiv(w["rows"] + (deep - 1), int64(deep))
        cta, tx = w.keep(I.cta_id([tirx.Cast("int32", stages * own)])), I.thread_id([THREADS])
        stage, square = w.keep(tirx.truncdiv(cta, own)), w.keep(tirx.truncmod(cta, own))
        arena = I.alloc_buffer((deep * PITCH if turned else SQUARE_BYTES,), "uint8", scope="shared", align=128)
        base = w.bind(I.cuda.cvta_generic_to_shared(arena.ptr_to([0])))
        _load_square(w, operand, dtype, (stage, square), tx, base)
        target = (tirx.Cast("int64", stage) * stage_squares + (first + tirx.Cast("int64", square))) * (
            SQUARE_BYTES // SIZES[dtype]
        )
        for i in range(PIECES):
            (_store_transposed if turned else _store_piece)(w, w.keep(target), tx + i * THREADS, base)

    return write(name, pointers, [("rows", "int64")], body, threads=THREADS)


def _load_square(w: Writer, operand: Operand, dtype: str, at: tuple[Expr, Expr], tx: Expr, base: Expr) -> None:
    """A square's rows to shared memory, as they lie."""
    assert operand.offset is not None
    size = SIZES[dtype]
    chunk = 16 // size
    across = SQUARE // chunk
    deep, pitch = PIECES * THREADS // across, PITCH if size == 4 else ROW_BYTES
    column = w.bind(at[1] * SQUARE + tirx.truncmod(tx, across) * chunk)
    reach = w.bind(tirx.max(tirx.min(operand.depth - column, chunk), 0) * size)
    for i in range(PIECES):
        line = w.bind(tirx.truncdiv(tx, across) + i * (THREADS // across))
        row = w.bind(tirx.Cast("int64", at[0]) * deep + tirx.Cast("int64", line))
        here = w.keep(tirx.Cast("int32", tirx.And(row < w["rows"], reach > 0)))
        place = row * operand.place.row_stride + tirx.Cast("int64", column) + operand.offset
        source = tirx.Select(here > 0, place, int64(operand.offset))
        target = base + tirx.Cast("uint32", line * pitch + tirx.truncmod(tx, across) * 16)
        operand.copy(w, dtype, target, source, tirx.Cast("uint32", here * reach))
    w.do(I.ptx["cp.async.commit_group"]())
    w.do(I.ptx["cp.async.wait_group"](0))
    w.do(I.cuda.cta_sync())


def _store_piece(w: Writer, target: Expr, piece: Expr, base: Expr) -> None:
    """16 bytes of a row."""
    four = w.tile(4, dtype="uint32").flat
    line, chunk = tirx.truncdiv(piece, CHUNKS), tirx.truncmod(piece, CHUNKS)
    w.do(I.ptx["ld.shared.v4.b32"](*four, base + tirx.Cast("uint32", piece * 16)))
    to = line * (ROW_BYTES // 2) + SWIZZLE_128.piece(tirx.truncmod(line, CHUNKS), chunk) * 8
    w.do(I.ptx["st.global.v4.b32"](w["packed"].ptr_to([target + tirx.Cast("int64", to)]), *four))


def _store_transposed(w: Writer, target: Expr, piece: Expr, base: Expr) -> None:
    """Four rows of a column, rounded. Two neighbouring lanes have 32 bytes of a line."""
    words, value = w.tile(4, dtype="uint32").flat, w.local(1)
    pair, odd = tirx.truncdiv(piece, 2), tirx.truncmod(piece, 2)
    line, chunk = tirx.truncmod(pair, SQUARE), tirx.truncdiv(pair, SQUARE) * 2 + odd
    source = w.bind(base + tirx.Cast("uint32", chunk * (4 * PITCH) + line * 4))
    for z in range(4):
        w.do(I.ptx["ld.shared.f32"](value[0], source + uint32(z * PITCH)))
        w.do(I.ptx["cvt.rna.tf32.f32"](words[z], value[0]))
    to = line * (ROW_BYTES // 4) + SWIZZLE_128.piece(tirx.truncmod(line, CHUNKS), chunk) * 4
    place = w["packed"].ptr_to([target + tirx.Cast("int64", to)])
    w.do(I.ptx["st.global.v4.b32"](place, *words))
