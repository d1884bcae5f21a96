"""Sums over rows that are products of two vectors of each row: of one pair of them, or of a pair for each head.

In: a graph's sum over T and B, and where values lie. Out: `RowProduct`: both operands, and how many such products lie
beside each other.

Rewrite: sum over rows of a[n, v, i] b[n, v, j]  -->  for head n: a GEMM over (row, v), of operands that lie as rows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm_rnn.cuda.gemm.operands import Operand, operand_of
from tvm_rnn.cuda.layer.row_kernels import Reads
from tvm_rnn.graph.graph import Node, make


@dataclass(frozen=True)
class RowProduct:
    """left, right: vectors of a row, of the first head. heads: results beside each other; vectors: of a row, over which
    one result sums. turned: a result's lines are those of the right operand."""

    left: Operand
    right: Operand
    turned: bool = False
    heads: int = 1
    vectors: int = 1

    @property
    def form(self) -> tuple[object, ...]:
        """The same for products whose right operands differ in where they lie alone."""
        return (self.right.apart, self.right.step, self.right.around, self.turned, self.heads, self.vectors)

    @property
    def of_right(self) -> tuple[object, ...]:
        """The same for products that can share a launch."""
        own = self.right
        view = own.node if own.offset is None else None
        return (own.base, own.offset, view, own.apart, own.step, own.around, self.turned, self.heads, self.vectors)


def row_product(node: Node, places: Reads) -> RowProduct | None:
    """The product of a sum over rows; None where it is another sum. Raises ValueError where an operand is made of
    several stored values."""
    if node.op != "einsum_rows":
        return None
    inputs, out = node.attrs["spec"].split("->")
    texts = inputs.split(",")
    heads, vectors = ([t for t in texts[0] if t in texts[1] and (t in out) == kept] for kept in (True, False))
    own = ["".join(t for t in text if t not in (*heads, *vectors)) for text in texts]
    if max(len(heads), len(vectors)) > 1 or [len(text) for text in own] != [1, 1]:
        return None
    if out not in ("".join([*heads, *own]), "".join([*heads, *reversed(own)])):
        return None
    turned = out[-2:] != "".join(own)
    if not heads and not vectors:
        left, right = (replace(operand_of(arg, n, places), told=True) for n, arg in enumerate(node.args))
        return RowProduct(left, right, turned)
    shared = "".join(heads), "".join(vectors)
    both = [_of_heads(n, pair, places, shared) for n, pair in enumerate(zip(texts, node.args, strict=True))]
    if both[0] is None or both[1] is None:
        return None
    sizes = dict(zip(texts[0], node.args[0].shape, strict=True))
    return RowProduct(both[0], both[1], turned, *(sizes[t] if t else 1 for t in shared))


def _of_heads(number: int, of: tuple[str, Node], places: Reads, shared: tuple[str, str]) -> Operand | None:
    """The vector of the first head, and how far those of others are; None where they do not lie at equal distances.
    of: letters of the operand's axes, and the operand; shared: letters of heads, and of vectors."""
    text, node = of

    def at(place: Mapping[str, int]) -> Operand:
        own, left = node, text
        for letter, where in place.items():
            axis = left.index(letter)
            own, left = make("index", own, axis=axis - len(left), at=where), left.replace(letter, "")
        return operand_of(own, number, places)

    sizes = dict(zip(text, node.shape, strict=True))
    letters = [t for t in shared if t]
    first = at(dict.fromkeys(letters, 0))
    if first.offset is None:
        return None
    strides = dict.fromkeys(shared, 0)
    for letter in letters:
        second = at({t: int(t == letter and sizes[t] > 1) for t in letters})
        strides[letter] = (second.offset or 0) - first.offset
    last = at({t: sizes[t] - 1 for t in letters})
    if last.offset != first.offset + sum((sizes[t] - 1) * strides[t] for t in letters):
        return None
    return replace(first, told=True, apart=strides[shared[0]], step=strides[shared[1]])
