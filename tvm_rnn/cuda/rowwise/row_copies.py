"""A kernel that copies rows which begin anywhere to rows that begin at multiples of 16 bytes.

In: how rows lie, and how their copies are to lie. Out: a kernel over all rows. Products read such copies where the
hardware cannot bring the rows themselves to shared memory: each element once from memory, and not by itself in every
block of columns.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.pointers import Place, address
from tvm_rnn.cuda.layer.row_kernels import THREADS, elements

LANES = 8  # of 16 bits, that a thread makes


def row_copy(name: str, source: Place, target: Place, width: int) -> Kernel:
    """[rows, width] from `source` to `target`, converted to its dtype of 16 bits; behind each row zeros up to its
    stride, which is made of whole pieces of 16 bytes."""

    def body(w: Writer) -> None:
        row, piece, inside = elements(w, target.row_stride // LANES)
        with w.when(inside):
            first = w.keep(piece * LANES)
            halves = []
            for lane in range(LANES):  # all are asked for before the first is there
                value = converted(w["source"][address(source, row, tirx.min(first + lane, width - 1))], target.dtype)
                bits = tirx.Cast("uint32", tirx.reinterpret("uint16", value))
                halves.append(w.keep(tirx.Select(first + lane < width, bits, tirx.const(0, "uint32"))))
            shift = tirx.const(16, "uint32")
            words = [low | (high << shift) for low, high in zip(halves[::2], halves[1::2], strict=True)]
            w.do(I.ptx["st.global.v4.b32"](w["target"].ptr_to([address(target, row, first)]), *words))

    pointers = [("source", source.dtype), ("target", target.dtype)]
    return write(name, pointers, [("rows", "int64")], body, threads=THREADS)
