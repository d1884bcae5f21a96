"""Rows of inputs that the warps that copy bring to shared memory some steps early, by asynchronous copies.

In: a `Geometry` whose `input_product` these warps multiply, while those of the same block compute the step before. Out:
the statements that copy, and where a row lies. Steps' rows are in stages, one after the other. Those of step t + 1 are
multiplied before the barrier of step t, behind which the sums lie in shared memory, each lane's where the lane finds
them that has the same units and rows:

    warps that copy:      multiply x of t + 1; meet; y; ask for x of t + 7; multiply x of t + 2; meet; ...
    warps that compute:   sums of t; multiply h; cells; meet; hand over h; sums of t + 1; multiply h; cells; meet; ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr

from .geometry import BLOCK_WORDS, Geometry
from .lane_cells import Block, StepOrder, identify
from .layer_input_rows import input_stride


@dataclass(frozen=True)
class InputPiece:
    """A thread's piece of a step's rows, 16 bytes. element: at time 0; target: its address in the first stage; size:
    how many bytes of it are of a row, the others are 0; there: whether there is one; None: yes."""

    node: Node
    element: Expr
    target: Expr
    size: Expr
    there: Expr | None


class InputRowCopies:
    """The statements of these warps. block.thread: among them. Construct once, at the kernel's start."""

    def __init__(self, k: Writer, whole: Geometry, layout: Layout, block: Block) -> None:
        own = whole.input_product
        assert own is not None
        self.k, self.geometry, self.layout, self.arena = k, own, layout, block.arena
        self.ids = identify(own, block.group, block.rank, block.thread)
        self.time = StepOrder(k).time
        self.stages = whole.prefetch_steps
        self.step_words = sum(own.value_words(node) for node in own.step.given)
        self.first: dict[Node, int] = {}  # the word where an input's rows of the first stage begin
        at = whole.memory_map["inputs"]
        for node in own.step.given:
            self.first[node] = at
            at += own.value_words(node)
        self.pieces = [piece for node in own.step.given for piece in self._own_pieces(node)]

    def _own_pieces(self, node: Node) -> Iterator[InputPiece]:
        """Neighbours read side by side. Rows past the batch are never looked at: any will do."""
        k, geometry, ids = self.k, self.geometry, self.ids
        per_row, lanes = geometry.depth_blocks(node) * 4, 16 // geometry.itemsize
        arena = I.cuda.cvta_generic_to_shared(self.arena.ptr_to([tirx.const(0, "int32")]))
        count = geometry.rows * per_row
        for i in range(0, count, geometry.threads):
            flat = k.keep(tirx.Min(ids.thread + i, count - 1))
            row, piece = tirx.floordiv(flat, per_row), tirx.floormod(flat, per_row)
            inside = piece * lanes < node.shape[0]
            batch_row = tirx.Min(k["row0"] + ids.group * geometry.rows + row, k["batch"] - 1)
            unit = tirx.Select(inside, piece * lanes, tirx.const(0, "int32"))
            element = tirx.Cast("int64", batch_row) * input_stride(self.layout, node) + unit
            word = self.first[node] + (tirx.floordiv(piece, 4) * geometry.rows + row) * BLOCK_WORDS
            target = arena + tirx.Cast("uint32", (word + tirx.floormod(piece, 4) * 4) * 4)
            size = tirx.Select(inside, tirx.const(16, "uint32"), tirx.const(0, "uint32"))
            there = None if i + geometry.threads <= count else ids.thread + i < count
            yield InputPiece(node, k.keep(element), k.keep(target), k.keep(size), there)

    def copy(self, t: Expr) -> None:
        """Begin to copy the rows of step t, which is one."""
        k = self.k
        stage = k.keep(tirx.Cast("uint32", tirx.floormod(t, self.stages) * (self.step_words * 4)))
        for piece in self.pieces:
            at = self.time(t) * input_stride(self.layout, piece.node) + piece.element
            source = k[f"x_{self.geometry.step.given.index(piece.node)}"].ptr_to([at])
            with nullcontext() if piece.there is None else k.when(piece.there):
                k.do(I.ptx["cp.async.cg.shared.global"](piece.target + stage, source, 16, piece.size))

    def stage(self, t: Expr) -> Expr:
        """Words before the stage of step t."""
        return tirx.floormod(t, self.stages) * self.step_words

    def word(self, node: Node, kblock: int, row: Expr) -> Expr:
        """Where a row's block of K begins in the first stage."""
        return self.first[node] + (kblock * self.geometry.rows + row) * BLOCK_WORDS
