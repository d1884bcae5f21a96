"""Products of inputs, by the warps that copy, while those of the same block compute the step before.

In: a `MmaSync` of members, whose steps multiply inputs. Out: the statements of these warps. A step's rows come to
shared memory some steps early, by asynchronous copies. Those of step t + 1 are multiplied before the barrier of step t,
behind which the sums lie in shared memory, each lane's where the lane finds them that has the same units and rows:

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
from tvm_rnn.tir.expr import Buffer, Expr
from tvm_rnn.tir.index import uint32

from .geometry import BLOCK_WORDS, Share
from .lane_cells import Block, StepOrder, identify
from .layer_input_rows import input_stride
from .product.mma_sync import LaneProduct, MmaSync, sum_word

COPYING = 14  # the barrier of a block's warps that copy


@dataclass(frozen=True)
class InputPiece:
    """A thread's piece of a step's rows, 16 bytes. element: at time 0; target: its address in the first stage; size:
    how many bytes of it are of a row, the others are 0; there: whether there is one; None: yes."""

    node: Node
    element: Expr
    target: Expr
    size: Expr
    there: Expr | None


class InputProduct(LaneProduct):
    """The statements of these warps. Construct once, at the kernel's start. block.thread: among them."""

    def __init__(self, k: Writer, geometry: MmaSync, layout: Layout, block: Block) -> None:
        own = geometry.input_product
        assert own is not None
        ids = identify(own, block.group, block.rank, block.thread)
        super().__init__(k, own, ids, block.arena, geometry.weight_names)
        self.whole, self.layout, self.time = geometry, layout, StepOrder(k).time
        (self.phase,) = own.step.phases
        self.stages = geometry.prefetch_steps
        self.step_words = sum(own.value_words(node) for node in own.step.given)
        self.first: dict[Node, int] = {}  # the word where an input's rows of the first stage begin
        at = geometry.memory_map["inputs"]
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

    def begin(self) -> None:
        """The sums of the first step, of whose rows this thread's pieces are there."""
        self.sync()
        self.multiply(tirx.const(0, "int32"))

    def multiply(self, t: Expr) -> None:
        """The sums of step t, whose rows are there."""
        k, count = self.k, len(self.geometry.halves(self.phase))
        self.stage = k.keep(tirx.floormod(t, self.stages) * self.step_words)
        sums, par = self.emit(self.phase), k.keep(tirx.floormod(t, 2))
        for half in range(count):
            at = sum_word(self.whole, par, self.ids.warp * count + half, self.ids.lane)
            own = [sums[2 * half + e] for e in range(2)]
            k.do(I.ptx["st.shared.v2.f32"](self.arena.ptr_to([at]), *own))

    def sync(self) -> None:
        """A barrier of these warps."""
        self.k.do(I.ptx.bar.sync(uint32(COPYING), uint32(self.geometry.threads)))

    def ready(self, share: Share) -> None:
        """It is: since a barrier of the step before."""

    def load(self, share: Share, kblock: int, tile: int, pieces: Buffer, at: int, within: int | None = None) -> None:
        word = self.first[share.operand.source] + self.stage + (kblock * self.geometry.rows + self.ids.g) * BLOCK_WORDS
        address = self.arena.ptr_to([word + self.ids.q * 4])
        self.k.do(I.ptx["ld.shared.v4.b32"](*[pieces[at + z] for z in range(4)], address))
