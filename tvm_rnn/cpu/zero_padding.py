"""Images with zeros around them, row by row: what a convolution reads.

In: a join of zeros and an image along one or both of its last two axes, as `conv` makes it of its operand. Out:
statements that fill rows of the padded image. As a choice by index, each element would ask where it lies; here the
parts are loops of their own.

Rewrite: for x: b[x] = select(x < left, 0, select(x < left + width, a[x - left], 0))
         -->  for x < left: b[x] = 0;  for x < width: b[left + x] = a[x];  for x < right: b[left + width + x] = 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import Shape
from tvm_rnn.graph.tensor_expressions import Index
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, loop, sequence, vector, when

Put = Callable[[Expr, Expr], Stmt]  # a column of the padded row, and its value


def _is_zero(node: Node) -> bool:
    return node.scalar == 0.0 or (node.op == "broadcast" and node.args[0].scalar == 0.0)


@dataclass(frozen=True)
class Padded:
    """An image of the last two axes in an array of `shape`; above, left: zeros before it."""

    image: Node
    above: int
    left: int
    shape: Shape
    dtype: str

    @property
    def is_plain(self) -> bool:
        return self.image.shape == self.shape

    def row(self, lead: Index, y: Expr, value: Callable[[Index], Expr], put: Put, lanes: int) -> Stmt:
        """Row y of the padded image at the leading indices. value: of the image, at an index; put(x, value)."""
        height, width = self.image.shape[-2:]
        zero = tirx.const(0.0, self.dtype)
        right = self.shape[-1] - self.left - width

        def zeros(start: int, count: int) -> Block:
            return columns(count, lambda x: put(int64(start) + x, zero), lanes)

        own = (*lead, y - int64(self.above))
        inside = [
            zeros(0, self.left),
            columns(width, lambda x: put(int64(self.left) + x, value((*own, x))), lanes),
            zeros(self.left + width, right),
        ]
        if height == self.shape[-2]:
            return sequence(inside)
        within = tirx.And(y >= int64(self.above), y < int64(self.above + height))
        return when(within, inside, zeros(0, self.shape[-1]))


def padded(node: Node, dtype: str) -> Padded:
    """What is inside of zeros; the array itself where there are none."""
    image, before = node, [0, 0]
    while image.op == "concat" and image.attrs["axis"] in (-1, -2):
        inner = [a for a in image.args if not _is_zero(a)]
        if len(inner) != 1:
            break
        axis = image.attrs["axis"]
        before[axis] += sum(a.shape[axis] for a in image.args[: image.args.index(inner[0])])
        image = inner[0]
    return Padded(image, before[0], before[1], node.shape, dtype)


def columns(count: int, one: Callable[[Expr], Stmt], lanes: int) -> Block:
    """one(x) for each x, in vectors."""
    whole, rest = divmod(count, lanes)
    full = loop("w", whole, lambda w: vector("v", lanes, lambda v: one(w * int64(lanes) + v))) if whole else None
    return [full, vector("v", rest, lambda v: one(int64(whole * lanes) + v)) if rest else None]
