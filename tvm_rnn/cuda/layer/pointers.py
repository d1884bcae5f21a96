"""Where kernels find values: the dtype and row stride of each node, and what a kernel's pointers stand for.

In: decisions of `cuda/plan/network.py`. Out: `Place`s that kernels are written for, and `Argument`s by which the host
program knows what to pass. Element (row, index) of a node is at row * row_stride + the dense row-major offset of index
in node.shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from tvm import tirx

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import Shape
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import wide

PRECISIONS = ("float64", "float32", "tf32", "float16", "bfloat16")
TENSOR = PRECISIONS[2:]  # whose products tensor cores make


@dataclass(frozen=True)
class Place:
    """How a value lies in memory. row_stride: in elements; 0: the same for every row (a parameter). align: bytes that
    pointers to it are known to be a multiple of. every: rows that a parameter has, which then begin again; 0: all.
    spare: whether what a row has behind its elements is nobody's, and may be read and written with them."""

    dtype: str
    row_stride: int
    align: int = 16
    every: int = 0
    spare: bool = False

    def row(self, row: Expr) -> Expr:
        """Which of the rows in memory is that one."""
        return tirx.truncmod(wide(row), tirx.IntImm("int64", self.every)) if self.every else wide(row)


def rows_of_users(dtype: str, width: int) -> Place:
    """How the user has rows of `width` elements: one behind the other, the first at a multiple of 16 bytes."""
    return Place(dtype, width, gcd(16, width * ITEM_BYTES[dtype]))


@dataclass(frozen=True)
class Argument:
    """What one pointer of a kernel stands for.

    role: "read" and "write" (the number-th place of `node`), "operand" (of the number-th product), "weight" (the packed
    parameter of the number-th product).
    """

    name: str
    role: str
    node: Node
    number: int = 0


def arithmetic(precision: str) -> str:
    """The dtype that kernels compute in."""
    return "float64" if precision == "float64" else "float32"


def storage(precision: str) -> str:
    """The dtype of what products read and of what is stored for all steps."""
    return "float32" if precision == "tf32" else precision


def dense(shape: Shape, index: Sequence[Expr]) -> Expr:
    """The row-major offset of an index."""
    total: Expr = 0
    for i, size in zip(index, shape, strict=True):
        total = total * size + i
    return total


def address(place: Place, row: Expr, offset: Expr) -> Expr:
    """The 64-bit element number of (row, dense offset)."""
    return place.row(row) * tirx.IntImm("int64", place.row_stride) + wide(offset) if place.row_stride else wide(offset)
