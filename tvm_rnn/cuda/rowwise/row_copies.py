"""A kernel that copies rows which begin anywhere to rows that begin at multiples of 16 bytes, or back.

In: how rows of one or several arrays lie, and how their copies are to lie. Out: a kernel over all rows. Products read
such copies where the hardware cannot bring the rows themselves to shared memory 16 bytes at a time: each element once
from memory, and not by itself in every block of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.pointers import Place, address
from tvm_rnn.cuda.layer.row_kernels import THREADS, elements
from tvm_rnn.tir.expr import Expr, TirExpr

PIECE_BYTES = 16  # that a thread makes


@dataclass(frozen=True)
class RowCopy:
    """[rows, width] from `source` to `target`, converted to its dtype of 16 or 32 bits; behind each row zeros up to its
    stride, where that is made of whole pieces of 16 bytes; else the target has `width` elements in a row."""

    source: Place
    target: Place
    width: int

    @property
    def lanes(self) -> int:
        """Elements that a thread makes: a piece, or one."""
        lanes = PIECE_BYTES // ITEM_BYTES[self.target.dtype]
        return 1 if self.target.row_stride % lanes else lanes

    @property
    def pieces(self) -> int:
        """Of a row: threads."""
        return self.target.row_stride // self.lanes


def row_copies(name: str, copies: Sequence[RowCopy], *, early: bool = False) -> Kernel:
    """All of them in one launch, of equally many rows. Pointers are source0, target0, source1 and so on. early: as of
    `write`."""
    ends = [*accumulate((own.pieces for own in copies), initial=0)]

    def body(w: Writer) -> None:
        row, piece, inside = elements(w, ends[-1])
        for number, own in enumerate(copies):
            mine = tirx.And(piece >= ends[number], piece < ends[number + 1])
            with w.when(tirx.And(inside, mine) if len(copies) > 1 else inside):
                _copy_piece(w, number, own, row, w.keep((piece - ends[number]) * own.lanes))

    pointers = [
        (f"{role}{number}", place.dtype)
        for number, own in enumerate(copies)
        for role, place in (("source", own.source), ("target", own.target))
    ]
    return write(name, pointers, [("rows", "int64")], body, threads=THREADS, early=early)


def _copy_piece(w: Writer, number: int, own: RowCopy, row: Expr, first: TirExpr) -> None:
    """The elements from `first` on."""
    source, dtype, size = w[f"source{number}"], own.target.dtype, ITEM_BYTES[own.target.dtype]
    if own.lanes == 1:
        value = converted(source[address(own.source, row, first)], dtype)
        w.store(w[f"target{number}"], value, address(own.target, row, first))
        return
    bits, words = f"uint{8 * size}", list[TirExpr]()
    for lane in range(own.lanes):  # all are asked for before the first is there
        value = converted(source[address(own.source, row, tirx.min(first + lane, own.width - 1))], dtype)
        word = tirx.Cast("uint32", tirx.reinterpret(bits, value))
        words.append(w.keep(tirx.Select(first + lane < own.width, word, tirx.const(0, "uint32"))))
    if size == 2:
        shift = tirx.const(16, "uint32")
        words = [low | (high << shift) for low, high in zip(words[::2], words[1::2], strict=True)]
    w.do(I.ptx["st.global.v4.b32"](w[f"target{number}"].ptr_to([address(own.target, row, first)]), *words))
