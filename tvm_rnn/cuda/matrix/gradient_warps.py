"""Warps that multiply, on tensor cores, what a step has left in shared memory, while others work on the next step.

In: a `Block`, whose plan says what is accumulated. Out: statements that leave operands, of warps with elements, and
`GradientWarps`, the part of the kernel of those that multiply: sums stay in their registers for all steps.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.vector_access import pack
from tvm_rnn.cuda.gemm.mma_sync import MmaProduct
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import uint32, wide

from .block import Block
from .element_index import COLUMN, ROW
from .lane_values import Index, LaneValues
from .matrix_tile import DEEP

TURNED = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"


def store_operand(block: Block, operand: Node, values: LaneValues, local: TirExpr, step: TirExpr) -> None:
    """Leave what a lane has of an operand, in 16 bits: 0 beyond the matrix, and where a row has ended."""
    w, tile, plan = block.w, block.tile, block.plan.gradients
    first, zero, word = (
        w.keep(block.plan.first_operand + plan.place(operand, step)),
        tirx.const(0.0, "float32"),
        w.local(1, "uint32"),
    )
    active = tirx.NE(block.active(local), 0) if block.masked else None

    def value(index: Index) -> TirExpr:
        found = values.at(operand, index)
        for condition in (block.inside(index), active):
            found = found if condition is None else w.keep(tirx.Select(condition, found, zero))
        return found

    for i in range(tile.lane_rows):
        row = w.keep(values.lanes[ROW][i].value * plan.pitch + first)
        for j in range(0, tile.lane_columns, 2):
            low, high = (value(values.element(block.step.axes.roles[operand], i, j + e)) for e in range(2))
            pack(w, block.plan.precision, word[0], low, high)
            w.store(block.words, word[0], row + values.lanes[COLUMN][j].value // 2)


class GradientWarps:
    """Emits what the warps do that multiply. number: which of them a thread's warp is."""

    def __init__(self, block: Block, number: TirExpr) -> None:
        self.block, self.w, self.plan, self.tile = block, block.w, block.plan.gradients, block.tile
        self.high = self.tile.padded_columns // DEEP // self.plan.warps
        self.line = self.w.keep(number * (DEEP * self.high))
        made = (MmaProduct(self.w, block.plan.precision, self.high, self.tile.broad) for _ in self.plan.sums)
        self.products = tuple(made)

    def run(self) -> None:
        """A step's operands are there when all have met, and stay until they meet again."""
        w, block = self.w, self.block
        base = w.keep(I.cuda.cvta_generic_to_shared(block.words.ptr_to([block.plan.first_operand])))
        for product in self.products:
            product.take_fragments()
        block.meet_all()
        with w.loop(w["steps"]) as t:
            step = w.keep(t)
            block.meet_all()
            for own, product in zip(self.plan.sums, self.products, strict=True):
                places = (
                    w.keep(base + tirx.Cast("uint32", 4 * self.plan.place(n, step))) for n in (own.left, own.right)
                )
                self._add(product, *places)
        for number, product in enumerate(self.products):
            self._store(number, product)

    def _add(self, product: MmaProduct, left: TirExpr, right: TirExpr) -> None:
        """Fragments of 16 rows: four 8 x 8 matrices at a time, turned as they are loaded."""
        w, lane, row_bytes = self.w, self.block.lane, 4 * self.plan.pitch
        matrix, line = w.keep(lane // 8), w.keep(lane % 8)
        # Of a: (k 0..7, m 0..7), (k 0..7, m 8..15), (k 8..15, m 0..7), (k 8..15, m 8..15); of b both halves of k of one
        # tile of 8 columns, then of the next.
        own = (matrix // 2 * 8 + line) * row_bytes + matrix % 2 * 16 + self.line * 2
        a = w.keep(left + tirx.Cast("uint32", own))
        b = w.keep(right + tirx.Cast("uint32", (matrix % 2 * 8 + line) * row_bytes + matrix // 2 * 16))
        for k in range(0, self.tile.padded_rows, DEEP):
            for m in range(product.high):
                w.do(I.ptx[TURNED](*product.a[0, m], a + uint32(k * row_bytes + 32 * m)))
            for n in range(0, product.broad, 2):
                fragments = *product.b[0, n], *product.b[0, n + 1]
                w.do(I.ptx[TURNED](*fragments, b + uint32(k * row_bytes + 16 * n)))
            product.multiply()

    def _store(self, number: int, product: MmaProduct) -> None:
        """This block's part: [row, head, line, column]."""
        w, block, columns = self.w, self.block, self.tile.columns
        head = wide(block.row) * block.layout.heads + wide(block.head)
        for m in range(product.high):
            for n in range(product.broad):
                for half in range(2):
                    line = w.keep(self.line + (16 * m + 8 * half) + block.lane // 4)
                    for odd, value in enumerate(product.acc[m, n, half]):
                        column = w.keep(block.lane % 4 * 2 + (8 * n + odd))
                        with w.when(tirx.And(line < columns, column < columns)):
                            w.store(w[f"parts_{number}"], value, (head * columns + wide(line)) * columns + wide(column))
