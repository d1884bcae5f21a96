"""What a cluster's products read of the layer's own input: rows from memory, by way of shared memory.

In: the kernel's state (`persistent.Body`). Out: statements that bring a step's rows to a block once for all its warps,
one step before they are multiplied, laid out like what blocks exchange: [K block][batch row][64 bytes], twice.

A layer that follows another one in the same wave must not read what is not there yet. A cluster has no counter: memory
is filled with POISON before the launch, and a thread loads its pieces until no word of them is that (see
`exchange_by_polling.py`). In a grid the counter of the layer below says what is there, and `operand_cp_async.py` copies
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr

from .geometry import BLOCK_WORDS, POISON, Body, Geometry, LaneExchange, LanePieces, Share


def round_inputs(k: Writer, geometry: Geometry, words: Sequence[Expr]) -> None:
    """What is exchanged is rounded to tf32 already, inputs are not."""
    for word in words if geometry.precision == "tf32" else ():
        k.do(I.ptx["cvt.rna.tf32.f32"](word, I.reinterpret("float32", word)))


class Inputs:
    """The input rows of one kernel."""

    def __init__(self, body: Body) -> None:
        self.body, self.k, self.geometry = body, body.k, body.geometry

    @property
    def used(self) -> bool:
        return bool(self.geometry.step.given)

    def announce(self) -> None:
        """First of all: the next layer may come as soon as all of this one is there, and load its weights meanwhile."""
        if self.used:
            self.k.do(I.ptx.griddepcontrol.launch_dependents())

    def end(self) -> None:
        """The layer below is done before this one is: who waits for the last layer waits for all."""
        if self.used:
            self.k.do(I.ptx.griddepcontrol.wait())

    def events(self, t: Expr) -> Expr:
        """How often the blocks of the layer below have published when step t of it is in memory."""
        return (t + 1) * len(self.geometry.events) + 1

    def prepare(self) -> None:
        """Nothing, unless rows are brought ahead of their use."""

    def stash(self, t: Expr, par: int) -> None:
        """Nothing, unless rows are brought one step ahead."""


class GridInputs(Inputs):
    """Lanes load or copy their own pieces: `operand_cp_async.py`."""

    def __init__(self, body: Body, exchange: LaneExchange, pieces: LanePieces) -> None:
        super().__init__(body)
        self.exchange, self.pieces = exchange, pieces

    def prepare(self) -> None:
        """Until the layer below has written the first step's rows."""
        if self.used:
            self.exchange.follow(self.events(tirx.const(0, "int32")))

    def load(self, share: Share, kblock: int, tile: int, registers: Buffer, first: int, within: int | None) -> None:
        self.pieces.load(share, kblock, tile, registers, first)


class ClusterInputs(Inputs):
    """One copy of the rows in shared memory, for all warps of a block. at: the word where the copies begin."""

    def __init__(self, body: Body, at: int) -> None:
        super().__init__(body)
        self.at = at
        self.own: list[tuple[Node, int, Expr, Expr, Expr]] = []

    def _first(self, node: Node) -> int:
        """The word where the copies of an input's rows begin."""
        given = self.geometry.step.given
        return self.at + sum(2 * self.geometry.value_words(n) for n in given[: given.index(node)])

    def prepare(self) -> None:
        """Where this thread's pieces come from and go to; the first steps are asked for."""
        k, geometry = self.k, self.geometry
        if not self.used:
            return
        for number, node in enumerate(geometry.step.given):
            pieces = geometry.rows * geometry.depth_blocks(node) * 4
            for i in range(-(-pieces // geometry.threads)):
                self.own.append((node, number, *self._piece(node, i, pieces)))
        self.pieces = k.local(4 * len(self.own), "uint32")
        for z in range(4 * len(self.own)):
            k.store(self.pieces, tirx.const(0, "uint32"), z)
        self._ask(tirx.const(0, "int32"))
        self.stash(tirx.const(-1, "int32"), 1)
        k.do(I.cuda.cta_sync())

    def _piece(self, node: Node, i: int, pieces: int) -> tuple[Expr, Expr, Expr]:
        """Of this thread's i-th piece of 16 bytes: the element at time 0, the word of the first copy, and whether it
        is inside of a row. Neighbours read side by side. Rows past the batch are never looked at: any row will do."""
        geometry, k, ids = self.geometry, self.k, self.body.ids
        flat, per_row = ids.thread + i * geometry.threads, geometry.depth_blocks(node) * 4
        row, piece = tirx.floordiv(flat, per_row), tirx.floormod(flat, per_row)
        lanes = 16 // geometry.itemsize
        inside = tirx.And(row < geometry.rows, piece * lanes < node.shape[0])
        from_row = tirx.Min(k["row0"] + ids.group * geometry.rows + tirx.Min(row, geometry.rows - 1), k["batch"] - 1)
        element = tirx.Cast("int64", from_row) * node.shape[0] + tirx.Min(piece * lanes, node.shape[0] - lanes)
        block = tirx.floordiv(piece, 4) * geometry.rows + tirx.Min(row, geometry.rows - 1)
        word = self._first(node) + block * BLOCK_WORDS + tirx.floormod(piece, 4) * 4
        whole = pieces % geometry.threads == 0 and node.shape[0] == geometry.depth_blocks(node) * geometry.block_k
        return k.keep(element), k.keep(word), tirx.const(True, "bool") if whole else inside

    def _copy(self, node: Node, par: int) -> int:
        """From the first copy of the rows to that of even or odd steps."""
        return par * self.geometry.value_words(node)

    def _source(self, node: Node, number: int, element: Expr, t: Expr) -> Expr:
        return self.k[f"x_{number}"].ptr_to([self.body.time(t) * node.shape[0] + element])

    def _ask(self, t: Expr) -> None:
        """Load this thread's pieces of step t."""
        k = self.k
        with k.when(t < k["steps"]):
            for n, (node, number, element, _, inside) in enumerate(self.own):
                words = [self.pieces[4 * n + z] for z in range(4)]
                with k.when(inside):
                    k.do(I.ptx["ld.relaxed.gpu.global.v4.b32"](*words, self._source(node, number, element, t)))

    def stash(self, t: Expr, par: int) -> None:
        """Lay down the pieces of step t + 1, which are waited for, for all warps; ask for those of step t + 2. What is
        overwritten was read in step t - 1."""
        if not self.used:
            return
        k, geometry = self.k, self.geometry
        self._wait(t + 1)
        for n, (node, _, _, word, _) in enumerate(self.own):
            words = [self.pieces[4 * n + z] for z in range(4)]
            round_inputs(k, geometry, words)
            with k.when(self._placed(node, n)):
                target = self.body.arena.ptr_to([word + self._copy(node, 1 - par)])
                k.do(I.ptx["st.shared.v4.b32"](target, *words))
        self._ask(t + 2)

    def _placed(self, node: Node, n: int) -> Expr:
        """Whether the n-th piece is one at all: those past a row's end are, and 0."""
        first = next(i for i, own in enumerate(self.own) if own[0] is node)
        start, pieces = (n - first) * self.geometry.threads, self.geometry.rows * self.geometry.depth_blocks(node) * 4
        if start + self.geometry.threads <= pieces:
            return tirx.const(True, "bool")
        return self.body.ids.thread + start < pieces

    def _wait(self, t: Expr) -> None:
        """Until this thread's pieces of step t are what the layer below has written."""
        k, pieces = self.k, self.pieces
        poison = tirx.const(POISON, "uint32")
        with k.when(tirx.And(tirx.NE(k["follows"], tirx.const(0, "int32")), t < k["steps"])):
            worst = k.local(1, "uint32")

            def look() -> None:
                k.store(worst, pieces[0], 0)
                for z in range(1, 4 * len(self.own)):
                    k.store(worst, tirx.Max(worst[0], pieces[z]), 0)

            look()
            with I.While(tirx.EQ(worst[0], poison)):
                self._ask(t)
                look()
        k.do(I.cuda.warp_sync())

    def load(self, share: Share, kblock: int, tile: int, registers: Buffer, first: int, within: int | None) -> None:
        """This lane's piece of a K block and batch tile, to registers from `first` on."""
        geometry, ids, node = self.geometry, self.body.ids, share.operand.source
        block = ids.warp_k * share.kblocks + kblock if geometry.warps_k > 1 else kblock
        row = (ids.warp_n * geometry.tiles + tile) * 8 + (ids.g if within is None else within)
        at = self._first(node) + self._copy(node, self.body.par)
        address = self.body.arena.ptr_to([at + (block * geometry.rows + row) * BLOCK_WORDS + ids.q * 4])
        self.k.do(I.ptx["ld.shared.v4.b32"](*[registers[first + z] for z in range(4)], address))
