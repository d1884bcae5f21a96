"""The left operands of a GEMM: how element (row, k) of each is found, and copied to shared memory.

In: a gemm node and where the values below its operands live. Out: `Operand`s. An operand that lies in memory as rows of
consecutive elements is copied by the hardware, 16 or 4 bytes at a time; any other view or dtype is read one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, converted
from tvm_rnn.cuda.layer.packed_layout import SIZES
from tvm_rnn.cuda.layer.pointers import Place, arithmetic
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

COPY, COPY_PIECE = "cp.async.cg.shared.global", "cp.async.ca.shared.global"  # of 16 bytes, of fewer
PIECES = (16, 8, 4)  # bytes that the hardware copies at a time


@dataclass(frozen=True)
class Operand:
    """One left operand. base: the value in memory; offset: of k = 0 in its row, None where k is not consecutive. told:
    its first row begins where its place says, and nobody asks when the kernel runs. apart, step: elements from one
    head's vector to the next, and between vectors of a row that a product sums over."""

    node: Node
    base: Node
    place: Place
    depth: int
    offset: int | None
    name: str
    told: bool = False
    apart: int = 0
    step: int = 0

    def rows_of(self, dtype: str) -> bool:
        """Whether rows are consecutive elements of that dtype, 16 bytes aligned if the pointer is."""
        return self.piece(dtype) == 16

    def piece(self, dtype: str) -> int:
        """Bytes that the hardware copies at a time where rows are consecutive elements of that dtype: what every row
        begins at a multiple of if the pointer is one, 16, else 4, of float64 8. 0: there is no such copy."""
        if self.offset is None or self.place.dtype != dtype:
            return 0
        starts = [n * SIZES[dtype] for n in (self.place.row_stride, self.offset, self.apart, self.step)]
        starts += [self.place.align] if self.told else []
        able = [size for size in PIECES if size != (4 if SIZES[dtype] == 8 else 8)]
        return next((size for size in able if not any(start % size for start in starts)), 0)

    def aligned(self, w: Writer, dtype: str) -> TirExpr:
        """Whether its pointer is a multiple of what is copied at a time."""
        # Not tirx.reinterpret: a pass that TVM runs for GPUs before sm_90 takes no pointer there.
        address = tirx.call_pure_extern("uint64", "reinterpret_cast<uint64_t>", w[self.name].ptr_to([0]))
        return (address & tirx.const(max(1, self.piece(dtype)) - 1, "uint64")) == tirx.const(0, "uint64")

    def copy(self, w: Writer, dtype: str, target: TirExpr, at: TirExpr, size: TirExpr) -> None:
        """Start the copy of 16 bytes from element `at` on to shared memory: `size` bytes, then zeros."""
        piece = self.piece(dtype)
        if piece == 16:
            w.do(I.ptx[COPY](target, w[self.name].ptr_to([at]), 16, size))
            return
        left = w.keep(tirx.Cast("int32", size))
        for first in range(0, 16, piece):
            part = tirx.Cast("uint32", tirx.max(tirx.min(left - first, piece), 0))
            source = w[self.name].ptr_to([at + first // SIZES[dtype]])
            w.do(I.ptx[COPY_PIECE](target + uint32(first), source, piece, part))

    def gather(self, w: Writer, dtype: str, target: TirExpr, row: TirExpr, first: TirExpr, shift: Expr = 0) -> None:
        """16 bytes of a row from element `first` on into shared memory, in that dtype, read one by one; zeros where
        there are none. shift: elements that the vector begins later."""
        wide, count, valid = arithmetic(dtype), 16 // SIZES[dtype], row < w["rows"]
        row = w.keep(tirx.min(row, w["rows"] - 1))
        values = []
        for i in range(count):
            k = w.bind(tirx.Cast("int64", first) + i)
            at = tirx.Select(k < self.depth, k, tirx.const(0, "int64"))
            value = element(self.node, (at,), lambda node, index: self._load(w, node, index, (row, shift), wide), wide)
            values.append(w.bind(tirx.Select(tirx.And(valid, k < self.depth), value, tirx.const(0.0, wide))))
        if count == 8:
            w.do(I.ptx["st.shared.v4.b32"](target, *pack(w, values, dtype)))
        else:
            w.do(I.ptx["st.shared.v4.f32" if count == 4 else "st.shared.v2.f64"](target, *values))

    def _load(self, w: Writer, node: Node, index: Index, start: tuple[Expr, Expr], dtype: str) -> Expr | None:
        if node is not self.base:
            return None
        row, shift = start
        at = linear(node, index) + row * self.place.row_stride + shift
        return tirx.Cast(dtype, tirx.BufferLoad(w[self.name], [at]))


def pack(w: Writer, values: Sequence[TirExpr], dtype: str) -> list[TirExpr]:
    """float32 values as 16-bit pairs, rounded to nearest."""
    kind, words = "bf16x2" if dtype == "bfloat16" else "f16x2", w.local(len(values) // 2, "uint32")
    found = [words[i] for i in range(len(values) // 2)]
    for i, word in enumerate(found):
        w.do(I.ptx[f"cvt.rn.{kind}.f32"](word, values[2 * i + 1], values[2 * i]))
    return found


def linear(node: Node, index: Index) -> Expr:
    """The row-major offset of an index in the node's shape."""
    total: Expr = 0
    for i, size in zip(index, node.shape, strict=True):
        total = total * size + (i if isinstance(i, int) else converted(i, "int64"))
    return total


def operands(root: Node, places: Callable[[Node], Place | None]) -> list[Operand]:
    """The operands of a gemm node."""
    return [operand_of(node, number, places) for number, node in enumerate(root.args[1::2])]


def operand_of(node: Node, number: int, places: Callable[[Node], Place | None]) -> Operand:
    """A vector as the number-th operand of a product. Raises ValueError where it is made of several stored values."""
    depth = node.shape[0]
    seen: list[tuple[Node, Expr]] = []
    marker = tirx.Var("marker", "float32")

    def read(n: Node, index: Index) -> Expr | None:
        if places(n) is None:
            return None
        seen.append((n, linear(n, index)))
        return marker

    plain = all(element(node, (k,), read, "float32") is marker for k in range(depth))
    bases = {id(n): n for n, _ in seen}
    if len(bases) != 1:
        raise ValueError(f"operand {number} of a product reads {len(bases)} values: one must be stored")
    base = seen[0][0]
    place = places(base)
    assert place is not None
    offsets = [at for _, at in seen if isinstance(at, int)]
    straight = plain and len(offsets) == len(seen) == depth and bool(np.all(np.diff(offsets) == 1))
    return Operand(node, base, place, depth, offsets[0] if straight else None, f"x{number}")
