"""Gradients of products' parameters that are accumulated while the steps run: sums over steps and rows of a matrix.

In: the layout of a backward layer, or of one head of it, which names the sums over all rows that there are. Out:
`Accumulated`, those of them that a block can add up for its batch row and head, and `GradientPlan`: the warps that
multiply (`gradient_warps.py`), and the shared memory where others leave them a step's operands. Each block leaves its
part of a sum; parts are added up in a fixed order.

Rewrite: store a[t], b[t] for all t; a GEMM over (t, row of the matrix)  -->  for t: sums += a[t]^T b[t]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx

from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import TirExpr

from .element_index import COLUMN, ROW
from .matrix_axes import Roles
from .matrix_tile import DEEP, MatrixTile

SUMS = 64  # registers of a lane for sums, at most
SPARE = 8  # 16-bit elements between rows: neighbours begin in other banks
PARITIES = 2


@dataclass(frozen=True, eq=False)
class Accumulated:
    """One sum of the layer. left, right: the matrices of a step, of one head: the result's lines are the columns of
    left, its columns those of right."""

    node: Node
    left: Node
    right: Node


def accumulated(layout: Layout, kept: Sequence[Node], roles: Mapping[Node, Roles]) -> tuple[Accumulated, ...]:
    """Which of the layer's sums are over rows of two matrices of the step. kept: what the step keeps, as the layout's
    `taped`; roles: of the axes of values."""
    pairs = zip(layout.taped, kept, strict=True)
    own = {layout.of_all.kept[part.number]: node for part, node in pairs}
    own |= {layout.of_layer(node): node for node in layout.graph.inputs}
    found = (_of_columns(node, own, roles, layout.heads) for node in layout.sums.nodes)
    return tuple(one for one in found if one is not None)


def _of_columns(node: Node, own: Mapping[Node, Node], roles: Mapping[Node, Roles], heads: int) -> Accumulated | None:
    """own: of values of the layer, those of one head."""
    inputs, out = node.attrs["spec"].split("->")
    head = out[0] if heads > 1 else ""
    if any(not text.startswith(head) for text in inputs.split(",")) or any(arg not in own for arg in node.args):
        return None
    texts, lines = [text.removeprefix(head) for text in inputs.split(",")], out.removeprefix(head)
    matrices = [own[arg] for arg in node.args]
    every = [roles.get(matrix, ()) for matrix in matrices]
    if any(len(text) != 2 or {*of} != {ROW, COLUMN} for text, of in zip(texts, every, strict=True)):
        return None
    letters = [(t, role) for text, of in zip(texts, every, strict=True) for t, role in zip(text, of, strict=True)]
    columns = [t for t, role in letters if role == COLUMN]
    if len({t for t, role in letters if role == ROW}) > 1 or sorted(columns) != sorted(lines):
        return None
    left, right = matrices if columns == [*lines] else reversed(matrices)
    return Accumulated(node, left, right)


@dataclass(frozen=True)
class GradientPlan:
    """sums: what is accumulated."""

    tile: MatrixTile
    sums: tuple[Accumulated, ...]

    @property
    def operands(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(node for own in self.sums for node in (own.left, own.right)))

    @property
    def warps(self) -> int:
        """That multiply. Each has some tiles of 16 lines, and all columns."""
        if not self.sums:
            return 0
        lines = self.tile.padded_columns // DEEP
        each = 4 * self.tile.broad * len(self.sums)  # sums of a lane in a tile of 16 lines
        return next(n for n in range(1, lines + 1) if lines % n == 0 and (lines // n * each <= SUMS or n == lines))

    @property
    def possible(self) -> bool:
        """Whether a lane has registers for its sums."""
        return self.tile.padded_columns // DEEP * 4 * self.tile.broad * len(self.sums) <= 2 * SUMS * max(1, self.warps)

    @property
    def pitch(self) -> int:
        """Words from a row of an operand to the next."""
        return (self.tile.padded_columns + SPARE) // 2

    @property
    def operand_words(self) -> int:
        return self.tile.padded_rows * self.pitch

    @property
    def words(self) -> int:
        """Of shared memory: operands of two steps in turn."""
        return PARITIES * len(self.operands) * self.operand_words

    def place(self, operand: Node, step: TirExpr) -> TirExpr:
        """The word from which on an operand of a step lies, among operands."""
        parity: TirExpr = tirx.truncmod(step, PARITIES) * (len(self.operands) * self.operand_words)
        return parity + self.operands.index(operand) * self.operand_words


def part_bytes(node: Node) -> int:
    """Of one batch row's part of a sum, of all heads."""
    return 4 * prod(node.shape)
