"""Staged operands of a polled grid: every block loads each of them to shared memory once, for all its warps.

In: the kernel's state (`persistent.Body`). Out: statements: each thread asks for its pieces of 16 bytes, asks again for
those that are missing, and stores them as tiles of wgmma. Inputs come from rows in memory, which a layer below may
be writing (see `layer_input_rows.py`); values of the layer's own units from the exchange (see
`exchange_by_polling.py`), where they lie as tiles already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.persistent.exchange import SideBySide
from tvm_rnn.cuda.persistent.exchange_by_polling import Polled
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, LANES, POISON, Body, Share, Slots
from tvm_rnn.cuda.persistent.layer_input_rows import Inputs, round_inputs
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr

from .wgmma_pipelined_layout import swizzled
from .wgmma_staged_layout import WARPGROUP, WgmmaStagedLayout, held

THREADS = LANES * WARPGROUP


class Staged(SideBySide, Polled):
    """The exchange: a value lies in its place as it will in shared memory."""

    def arrive(self) -> None:
        self.write_y(self.publish_tiles())

    def phase(self, slots: Slots) -> None:
        self.arrive()
        super().phase(slots)

    def turned(self, row: Expr, piece: Expr) -> Expr:
        return swizzled(row, piece)

    def word(self, node: Node, slot: Expr, kblock: Expr, row: Expr, piece: Expr) -> Expr:
        return super().word(node, slot, kblock, row, swizzled(row, piece))

    def first_word(self, source: Node) -> Expr:
        node = self.body.value(source)
        return self.place(self._step(self.body.copy_of(source))) + self.geometry.value_at[node] // 2


def until_there(k: Writer, pieces: Buffer, count: int, ask: Callable[[int], None]) -> None:
    """Until no piece of 16 bytes has a word of poison: ask for the missing ones again, together."""
    poison = tirx.const(POISON, "uint32")
    missing = k.local(1, "uint32")
    k.store(missing, poison, 0)
    with I.While(tirx.EQ(missing[0], poison)):
        found = []
        for n in range(count):
            words = [pieces[4 * n + z] for z in range(4)]
            found.append(k.keep(largest(words)))
        for n, value in enumerate(found):
            with k.when(tirx.EQ(value, poison)):
                ask(n)
        k.store(missing, largest(found), 0)
    k.do(I.cuda.warp_sync())


def largest(found: Sequence[Expr]) -> Expr:
    """As a tree: a chain would be long."""
    while len(found) > 1:
        found = [tirx.Max(*found[i : i + 2]) if i + 1 < len(found) else found[i] for i in range(0, len(found), 2)]
    return found[0]


class Operands:
    """Operands that other units publish."""

    pieces: Buffer
    load: Callable[[int], None]

    def __init__(self, body: Body, geometry: WgmmaStagedLayout, exchange: Staged) -> None:
        self.body, self.k, self.geometry, self.exchange = body, body.k, geometry, exchange
        self.held: list[int] = []

    def mine(self) -> Expr:
        """This thread's number in its warpgroup, which brings its own part of K."""
        return self.k.fresh(tirx.floormod(self.body.ids.thread, THREADS))

    def meet(self) -> None:
        """A barrier of the warpgroup."""
        number = tirx.Cast("uint32", self.body.ids.warp_k) + tirx.const(1, "uint32")
        self.k.do(I.ptx.bar.sync(number, tirx.const(THREADS, "uint32")))

    def ask(self, share: Share, turn: int = 0) -> None:
        """For the pieces of an operand, of which a thread holds so many at a time."""
        body, k = self.body, self.k
        total = self.geometry.part_pieces(share.kblocks)
        each = held(total)
        first = self.exchange.first_word(share.operand.source) + body.ids.warp_k * (total * 4)
        first = k.keep(first + self.mine() * 4)
        if turn == 0:
            self.pieces = k.local(4 * each, "uint32")
        self.held = [n for n in range(turn * each, (turn + 1) * each) if n * THREADS < total]

        def load(at: int) -> None:
            with self.placed(total, self.held[at]):
                words = [self.pieces[4 * at + z] for z in range(4)]
                place = k["exchange"].ptr_to([first + self.held[at] * THREADS * 4])
                k.do(I.ptx["ld.relaxed.gpu.global.v4.b32"](*words, place))

        self.load = load
        for at, n in enumerate(self.held):
            for z in range(4 if (n + 1) * THREADS > total else 0):
                k.store(self.pieces, tirx.const(0, "uint32"), 4 * at + z)
            load(at)

    def lay_down(self, share: Share) -> None:
        """When they are there. A barrier of the warpgroup must follow."""
        k, body = self.k, self.body
        total = self.geometry.part_pieces(share.kblocks)
        for turn in range(-(-total // (THREADS * held(total)))):
            if turn:
                self.ask(share, turn)
            until_there(k, self.pieces, len(self.held), self.load)
            at = self.geometry.place(share.operand.source) + body.ids.warp_k * (total * 4)
            at = k.keep(at + self.mine() * 4)
            for number, n in enumerate(self.held):
                with self.placed(total, n):
                    target = body.arena.ptr_to([at + n * THREADS * 4])
                    k.do(I.ptx["st.shared.v4.b32"](target, *[self.pieces[4 * number + z] for z in range(4)]))
        k.do(I.ptx.fence.proxy.async_.shared__cta())

    def placed(self, total: int, n: int) -> AbstractContextManager[None]:
        """Where this thread has an n-th piece."""
        if (n + 1) * THREADS <= total:
            return nullcontext()
        return self.k.when(tirx.floormod(self.body.ids.thread, THREADS) + n * THREADS < total)


class StagedInputs(Inputs):
    """The input rows of one kernel, in one place: asynchronous copies bring the next step's as soon as no product of
    the warpgroup reads this step's any more."""

    base: TirExpr  # the address of shared memory

    def __init__(self, body: Body, geometry: WgmmaStagedLayout, operands: Operands) -> None:
        super().__init__(body)
        self.layout, self.operands = geometry, operands

    def prepare(self) -> None:
        k = self.k
        if not self.used:
            return
        self.begin(tirx.const(0, "int32"))
        self.finish(tirx.const(0, "int32"))
        k.do(I.cuda.cta_sync())

    def stash(self, t: Expr, par: int) -> None:
        """Nothing: products say when inputs may come."""

    def _every(self) -> list[tuple[int, Node, int]]:
        """(number of the input, node, n-th piece of a thread)."""
        found = []
        for number, node in enumerate(self.geometry.step.given):
            total = self.layout.part_pieces(self._depth(node))
            found += [(number, node, n) for n in range(-(-total // THREADS))]
        return found

    def _depth(self, node: Node) -> int:
        """Blocks of K of a part."""
        return self.geometry.depth_blocks(node) // self.geometry.k_parts

    def _coordinates(self, node: Node, n: int) -> tuple[Expr, Expr, Expr]:
        """(row, block of K, piece) of a thread's n-th piece: eight neighbours have two rows of a block."""
        flat, depth = self.mine + n * THREADS, self._depth(node)
        rest = tirx.floordiv(flat, 8)
        row = tirx.floordiv(rest, depth) * 2 + tirx.floordiv(tirx.floormod(flat, 8), 4)
        block = self.body.ids.warp_k * depth + tirx.floormod(rest, depth)
        return row, block, tirx.floormod(flat, 4)

    def _word(self, node: Node, n: int) -> Expr:
        """Where a piece lies in shared memory."""
        row, block, piece = self._coordinates(node, n)
        within = (block * self.geometry.rows + row) * BLOCK_WORDS + swizzled(row, piece) * 4
        return within + self.layout.place(node)

    def _bring(self, number: int, node: Node, n: int) -> None:
        """Begin to copy a piece. Rows past the batch, and what lies past a row's end, are 0."""
        k, geometry, body = self.k, self.geometry, self.body
        row, block, piece = self._coordinates(node, n)
        element = block * geometry.block_k + piece * (16 // geometry.itemsize)
        within = k.keep(k["row0"] + body.ids.group * geometry.rows + row)
        inside = within < k["batch"]
        if geometry.depth_blocks(node) * geometry.block_k != node.shape[0]:
            inside = tirx.And(inside, element < node.shape[0])
        place = tirx.Cast("int64", within) * node.shape[0] + element
        place = tirx.Select(inside, self.time[number] + place, tirx.const(0, "int64"))
        size = tirx.Select(inside, tirx.const(16, "uint32"), tirx.const(0, "uint32"))
        target = self.base + tirx.Cast("uint32", self._word(node, n) * 4)
        with self.operands.placed(self.layout.part_pieces(self._depth(node)), n):
            k.do(I.ptx["cp.async.cg.shared.global"](target, k[f"x_{number}"].ptr_to([place]), 16, size))

    def begin(self, t: Expr) -> None:
        """Begin to copy step t's inputs. Nobody in the warpgroup reads others any more."""
        k = self.k
        if not self.used:
            return
        self.mine = self.operands.mine()
        self.time = [k.keep(self.body.time(t) * node.shape[0]) for node in self.geometry.step.given]
        with k.when(t < k["steps"]):
            for number, node, n in self._every():
                self._bring(number, node, n)
        k.do(I.ptx["cp.async.commit_group"]())

    def finish(self, t: Expr) -> None:
        """Until they are there. A barrier of the warpgroup must follow."""
        k, poison = self.k, tirx.const(POISON, "uint32")
        if not self.used:
            return
        k.do(I.ptx["cp.async.wait_group"](0))
        with k.when(tirx.And(tirx.NE(k["follows"], tirx.const(0, "int32")), t < k["steps"])):
            missing = k.local(1, "uint32")
            k.store(missing, poison, 0)
            with I.While(tirx.EQ(missing[0], poison)):
                found = [self._worst(node, n) for _, node, n in self._every()]
                for (number, node, n), value in zip(self._every(), found, strict=True):
                    with k.when(tirx.EQ(value, poison)):
                        self._bring(number, node, n)
                k.do(I.ptx["cp.async.commit_group"]())
                k.do(I.ptx["cp.async.wait_group"](0))
                k.store(missing, largest(found), 0)
        k.do(I.cuda.warp_sync())
        if self.geometry.precision == "tf32":
            with k.when(t < k["steps"]):
                self._round()
        k.do(I.ptx.fence.proxy.async_.shared__cta())

    def _load(self, node: Node, n: int, words: Sequence[Expr]) -> None:
        self.k.do(I.ptx["ld.shared.v4.b32"](*words, self.body.arena.ptr_to([self._word(node, n)])))

    def _worst(self, node: Node, n: int) -> Expr:
        """Poison, where a word of a piece is."""
        four = self.k.local(4, "uint32")
        words = [four[z] for z in range(4)]
        total = self.layout.part_pieces(self._depth(node))
        if (n + 1) * THREADS > total:
            self.k.store(four, tirx.const(0, "uint32"), 0)
            for z in range(1, 4):
                self.k.store(four, four[0], z)
        with self.operands.placed(total, n):
            self._load(node, n, words)
        return self.k.keep(largest(words))

    def _round(self) -> None:
        for _, node, n in self._every():
            four = self.k.local(4, "uint32")
            words = [four[z] for z in range(4)]
            with self.operands.placed(self.layout.part_pieces(self._depth(node)), n):
                self._load(node, n, words)
                round_inputs(self.k, self.geometry, words)
                place = self.body.arena.ptr_to([self._word(node, n)])
                self.k.do(I.ptx["st.shared.v4.b32"](place, *words))
