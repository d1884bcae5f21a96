"""The left operands of a GEMM: how element (row, k) of each is found, and copied to shared memory.

In: a gemm node and where the values below its operands live. Out: `Operand`s. An operand that lies in memory as rows of
consecutive elements is copied by the hardware, 16 or 4 bytes at a time; any other view or dtype is read one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import tirx

from tvm_rnn.cuda.codegen.kernel_writer import converted
from tvm_rnn.cuda.layer.packed_layout import SIZES
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.tir.expr import Expr

PIECES = (16, 8, 4)  # bytes that the hardware copies at a time


@dataclass(frozen=True)
class Operand:
    """One left operand. base: the value in memory; offset: of k = 0 in its row, None where k is not consecutive. told:
    its first row begins where its place says, and nobody asks when the kernel runs."""

    node: Node
    base: Node
    place: Place
    depth: int
    offset: int | None
    name: str
    told: bool = False

    def rows_of(self, dtype: str) -> bool:
        """Whether rows are consecutive elements of that dtype, 16 bytes aligned if the pointer is."""
        return self.piece(dtype) == 16

    def piece(self, dtype: str) -> int:
        """Bytes that the hardware copies at a time where rows are consecutive elements of that dtype: what every row
        begins at a multiple of if the pointer is one, 16, else 4, of float64 8. 0: there is no such copy."""
        if self.offset is None or self.place.dtype != dtype:
            return 0
        starts = [self.place.row_stride * SIZES[dtype], self.offset * SIZES[dtype]]
        starts += [self.place.align] if self.told else []
        able = [size for size in PIECES if size != (4 if SIZES[dtype] == 8 else 8)]
        return next((size for size in able if not any(start % size for start in starts)), 0)

    def value(self, buffer: Expr, row: Expr, k: Expr, dtype: str) -> Expr:
        """Element (row, k), loaded and converted."""

        def read(node: Node, index: Index) -> Expr | None:
            if node is not self.base:
                return None
            at = linear(node, index) + row * self.place.row_stride
            return tirx.Cast(dtype, tirx.BufferLoad(buffer, [at]))

        return element(self.node, (k,), read, dtype)


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
