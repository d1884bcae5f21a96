"""Warps that copy while those of the same block compute: hoisted values to shared memory, some steps early; y and lines
of the tape from it.

In: a `Geometry` of one block or cluster per group, a layout. Out: the statements of these warps. Once in each step all
warps of the block meet. Behind that barrier of step t the hoisted values of step t have been read, and those of step
t + 1 are there; and y lies in shared memory: where one block has all units, that of step t - 1, which products wait
for; in a cluster what the block stages of step t (`Exchange.copied_output`). Lines are those of step t - 1.

A warp of a small layer issues its instructions of a step one after the other, and a third of them only copy.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import gcd

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr

from .cell_reads import Pieces
from .geometry import LANES, Geometry, InputEmitter
from .input_row_copies import InputRowCopies
from .lane_cells import Block, LaneCells, StepOrder, identify
from .tape_lines import LineCopies


def copies_output(geometry: Geometry, layout: Layout, masked: bool) -> bool:
    """Whether y of a step is what products of the next one read: a state, of y's dtype, as it is."""
    step, output = geometry.step, geometry.step.graph.output
    if not geometry.copy_warps or masked or not layout.emits or geometry.precision == "tf32":
        return False
    states = [state for state in step.carried if step.result(state) is output]
    plain = bool(states) and not any(state in step.shown for state in states)
    return plain and output in geometry.published and layout.output.dtype == geometry.storage


@dataclass(frozen=True)
class OutputPiece:
    """A lane's piece of y. source: its first element among operands, in copy 0; element: in y, at time 0; there:
    whether it is one of the batch."""

    source: Expr
    element: Expr
    there: Expr


@dataclass(frozen=True)
class HoistedPiece:
    """A lane's piece of a step's hoisted values, 16 bytes. element: at time 0; target: its address in the first stage;
    there: whether there is one; None: yes."""

    node: Node
    element: Expr
    target: Expr
    there: Expr | None


class CopyWarps:
    """The statements of these warps of a block. masked: whether the kernel knows lengths and resets."""

    def __init__(self, k: Writer, geometry: Geometry, layout: Layout, block: Block, masked: bool) -> None:
        self.k, self.geometry, self.layout = k, geometry, layout
        self.group, self.rank, self.arena = block.group, block.rank, block.arena
        self.thread, self.lanes = k.keep(block.thread - geometry.threads), LANES * geometry.copy_warps
        self.time = StepOrder(k).time
        self.pieces = Pieces(geometry, layout)
        self.stored = gcd(16, *self._output_bytes())  # bytes that are stored at once
        self.output: list[OutputPiece] = []
        if copies_output(geometry, layout, masked):
            self.at = geometry.exchange.copied_output(geometry, block.rank)
            self.output = self._output_pieces()
        self.hoisted = [piece for node in self.pieces.strides for piece in self._hoisted_pieces(node)]
        self.inputs: InputEmitter | None = None
        if geometry.input_product is not None:
            self.rows = InputRowCopies(k, geometry, layout, replace(block, thread=self.thread))
            self.inputs = geometry.input_emitter(k, self.rows)
        self.coming = bool(self.hoisted or self.inputs)  # whether something is brought some steps early
        self.lines: LineCopies | None = None
        if geometry.line_width:
            self.lines = LineCopies(k, geometry, layout, replace(block, thread=self.thread), self.lanes)

    def emit(self) -> None:
        k, stages = self.k, self.pieces.stages
        for early in range(stages - 1) if self.coming else ():
            self._copy(tirx.const(early, "int32"))
        self.geometry.exchange.blocks_meet(k)
        if self.inputs is not None:
            k.do(I.ptx["cp.async.wait_group"](stages - 2))
            self.inputs.begin()
        if self.coming:
            self._meet()
        with k.loop(k["steps"]) as t:
            if self.inputs is not None:
                with k.when(t + 1 < k["steps"]):
                    self.inputs.multiply(t + 1)
            self._meet()
            if self.output:
                with k.when(t >= self.at.lag) if self.at.lag else nullcontext():
                    self._store_output(t)
            if self.lines is not None:
                with k.when(t > 0):
                    self.lines.send(self.time(t - 1), t - 1)
            if self.coming:
                self._copy(t + (stages - 1))
        self.geometry.exchange.blocks_meet(k)
        if self.lines is not None:
            self.lines.send(self.time(k["steps"] - 1), k["steps"] - 1)

    def _meet(self) -> None:
        """The values of the step after this one are there, and the rows of inputs of the one behind it."""
        self.k.do(I.ptx["cp.async.wait_group"](self.pieces.stages - 3 - (self.inputs is not None)))
        self.k.do(I.cuda.cta_sync())

    # --- hoisted values ----------------------------------------------------------------------------------------------

    def _hoisted_pieces(self, node: Node) -> list[HoistedPiece]:
        """Of all warps that compute, one after the other."""
        k, geometry, pieces = self.k, self.geometry, self.pieces
        entries = pieces.entries(node)
        each = len(entries) * 8 * pieces.of_row  # of a warp
        first = pieces.order.index(entries[0]) * 8 * pieces.of_row
        arena = I.cuda.cvta_generic_to_shared(self.arena.ptr_to([tirx.const(0, "int32")]))
        found = []
        for i in range(0, each * geometry.warps, self.lanes):
            flat = k.keep(tirx.Min(self.thread + i, each * geometry.warps - 1))
            warp, own = tirx.floordiv(flat, each), tirx.floormod(flat, each)
            ids = identify(geometry, self.group, self.rank, warp * LANES)
            cells = LaneCells(k, geometry, ids)
            word = geometry.prefetch_at + warp * pieces.warp_words + (first + own) * 4
            target = k.keep(arena + tirx.Cast("uint32", word * 4))
            whole = i + self.lanes <= each * geometry.warps
            there = None if whole else self.thread + i < each * geometry.warps
            found.append(HoistedPiece(node, pieces.element(k, cells, self.group, node, own), target, there))
        return found

    def _copy(self, t: Expr) -> None:
        """Begin to copy step t to its stage."""
        k, pieces = self.k, self.pieces
        with k.when(t < k["steps"]):
            time = k.keep(self.time(t))
            stage = k.keep(tirx.Cast("uint32", tirx.floormod(t, pieces.stages) * (pieces.step_words * 4)))
            for piece in self.hoisted:
                source = k[self.geometry.read_names[piece.node]]
                at = source.ptr_to([time * pieces.strides[piece.node] + piece.element])
                with nullcontext() if piece.there is None else k.when(piece.there):
                    k.do(I.ptx["cp.async.cg.shared.global"](piece.target + stage, at, 16))
            if self.inputs is not None:
                self.rows.copy(t)
        k.do(I.ptx["cp.async.commit_group"]())

    # --- y -----------------------------------------------------------------------------------------------------------

    def _output_bytes(self) -> tuple[int, int, int]:
        """What bounds how much of a row can be stored at once: rows begin at multiples of these, and end there."""
        place, width = self.layout.output, self.geometry.step.graph.output.shape[0]
        size = ITEM_BYTES[place.dtype]
        return place.align, place.row_stride * size, width * size

    def _output_pieces(self) -> list[OutputPiece]:
        k, geometry, at = self.k, self.geometry, self.at
        width, lanes = geometry.step.graph.output.shape[0], self.stored // geometry.itemsize
        of_row = at.units // lanes
        found = []
        for i in range(0, of_row * geometry.rows, self.lanes):
            flat = k.keep(self.thread + i)
            row, unit = tirx.floordiv(flat, of_row), tirx.floormod(flat, of_row) * lanes
            batch_row = k["row0"] + self.group * geometry.rows + row
            place = tirx.Cast("int64", batch_row) * self.layout.output.row_stride + (at.first + unit)
            real = tirx.And(flat < of_row * geometry.rows, batch_row < k["batch"])
            real = tirx.And(real, at.first + unit < width)
            there = k.keep(tirx.Select(real, tirx.const(1, "int32"), tirx.const(0, "int32")))
            source = k.keep(at.element(row, unit))
            found.append(OutputPiece(source, k.keep(place), tirx.NE(there, tirx.const(0, "int32"))))
        return found

    def _store_output(self, t: Expr) -> None:
        """y that is there behind the barrier of step t. All is loaded, then stored."""
        k, geometry, words = self.k, self.geometry, max(1, self.stored // 4)
        copy = k.keep(tirx.floormod(t, 2) * self.at.apart)
        time = k.keep(self.time(t - self.at.lag) * self.layout.output.row_stride)
        size = geometry.shared_bytes // geometry.itemsize
        view = I.decl_buffer((size,), geometry.storage, data=self.arena.data, scope="shared.dyn")
        registers = k.local(words * len(self.output), geometry.storage if self.stored < 4 else "uint32")
        suffix = {1: "b32", 2: "v2.b32", 4: "v4.b32"}[words]
        for n, piece in enumerate(self.output):
            own = [registers[n * words + z] for z in range(words)]
            with k.when(piece.there):
                if self.stored < 4:
                    k.store(registers, view[piece.source + copy], n)
                else:
                    k.do(I.ptx[f"ld.shared.{suffix}"](*own, view.ptr_to([piece.source + copy])))
        for n, piece in enumerate(self.output):
            own, at = [registers[n * words + z] for z in range(words)], time + piece.element
            with k.when(piece.there):
                if self.stored < 4:
                    k.store(k["y"], registers[n], at)
                else:
                    k.do(I.ptx[f"st.global.{suffix}"](k["y"].ptr_to([at]), *own))
