"""A kernel that copies rows which begin anywhere to rows that begin at multiples of 16 bytes.

In: how rows lie, and how their copies are to lie. Out: a kernel over all rows. Products read such copies where the
hardware cannot bring the rows themselves to shared memory: each element once from memory, and not by itself in every
block of columns.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, converted, write
from tvm_rnn.cuda.layer.pointers import Place, address
from tvm_rnn.cuda.layer.row_kernels import THREADS, elements

PIECE_BYTES = 16  # that a thread makes


def row_copy(name: str, source: Place, target: Place, width: int) -> Kernel:
    """[rows, width] from `source` to `target`, converted to its dtype of 16 or 32 bits; behind each row zeros up to its
    stride, which is made of whole pieces of 16 bytes."""
    size = ITEM_BYTES[target.dtype]
    lanes, bits = PIECE_BYTES // size, f"uint{8 * size}"

    def body(w: Writer) -> None:
        row, piece, inside = elements(w, target.row_stride // lanes)
        with w.when(inside):
            first = w.keep(piece * lanes)
            found = []
            for lane in range(lanes):  # all are asked for before the first is there
                value = converted(w["source"][address(source, row, tirx.min(first + lane, width - 1))], target.dtype)
                own = tirx.Cast("uint32", tirx.reinterpret(bits, value))
                found.append(w.keep(tirx.Select(first + lane < width, own, tirx.const(0, "uint32"))))
            words = found
            if size == 2:
                shift = tirx.const(16, "uint32")
                words = [low | (high << shift) for low, high in zip(found[::2], found[1::2], strict=True)]
            w.do(I.ptx["st.global.v4.b32"](w["target"].ptr_to([address(target, row, first)]), *words))

    pointers = [("source", source.dtype), ("target", target.dtype)]
    return write(name, pointers, [("rows", "int64")], body, threads=THREADS)
