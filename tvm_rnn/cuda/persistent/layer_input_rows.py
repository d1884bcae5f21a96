"""What products read of the layer's own input, and a grid's operands by cp.async.

In: the kernel's state (`persistent.Body`). Out: statements. In a cluster they bring a step's rows to a block once for
all its warps, one step before they are multiplied, laid out like what blocks exchange: [K block][batch row][64 bytes],
twice. In a grid each lane loads the pieces that it will multiply, or copies them to shared memory: without registers,
so that all of an operand is in flight at once. It reads nothing but its own copies: no barrier is needed.

A layer that follows another one in the same wave must not read what is not there yet. A cluster has no counter: memory
is filled with POISON before the launch, and a thread loads its pieces until no word of them is that (see
`exchange_by_polling.py`). In a grid the counter of the layer below says what is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, round_tf32
from tvm_rnn.cuda.codegen.poison import POISON
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr

from .geometry import BLOCK_WORDS, LANES, Body, Geometry, LaneExchange, LanePieces, Share


def round_inputs(k: Writer, geometry: Geometry, words: Sequence[Expr]) -> None:
    """What is exchanged is rounded to tf32 already, inputs are not."""
    if geometry.precision == "tf32":
        round_tf32(k, words)


def input_stride(layout: Layout, node: Node) -> int:
    """Elements from one row of an input to the next."""
    return layout.input(layout.graph.inputs.index(node)).row_stride


class Inputs:
    """The input rows of one kernel."""

    def __init__(self, body: Body) -> None:
        self.body, self.k, self.geometry = body, body.k, body.geometry

    @property
    def used(self) -> bool:
        return bool(self.geometry.step.given)

    def stride(self, node: Node) -> int:
        """Elements from one of its rows to the next."""
        return input_stride(self.body.layout, node)

    def events(self, t: Expr) -> Expr:
        return (t + 1) * len(self.geometry.events) + 1

    def prepare(self) -> None:
        """Nothing, unless rows are brought ahead of their use."""

    def stash(self, t: Expr, par: int) -> None:
        """Nothing, unless rows are brought one step ahead."""


class GridInputs(Inputs):
    """Lanes load or copy their own pieces."""

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
        self.own: list[tuple[str, Node, Expr, Expr, Expr, Expr]] = []
        self.copies: dict[Node, int] = {}  # the words where those of an input begin
        for node in self.geometry.step.given:
            self.copies[node] = at
            at += 2 * self.geometry.value_words(node)

    def prepare(self) -> None:
        """Where this thread's pieces come from and go to; the first steps are asked for."""
        k, geometry = self.k, self.geometry
        if not self.used:
            return
        for number, node in enumerate(geometry.step.given):
            pieces = geometry.rows * geometry.depth_blocks(node) * 4
            for i in range(0, pieces, geometry.threads):
                self.own.append((f"x_{number}", node, *self._piece(node, i, pieces)))
        self.pieces = k.local(4 * len(self.own), "uint32")
        for z in range(4 * len(self.own)):
            k.store(self.pieces, tirx.const(0, "uint32"), z)
        self._ask(tirx.const(0, "int32"))
        self.stash(tirx.const(-1, "int32"), 1)
        self.body.exchange.sync()

    def _piece(self, node: Node, i: int, pieces: int) -> tuple[Expr, Expr, Expr, Expr]:
        """Of this thread's piece of 16 bytes from the i-th on: the element at time 0, the word of the first copy,
        whether it is inside of a row, and whether it is one at all: those past a row's end are, and 0. Neighbours read
        side by side. Rows past the batch are never looked at: any row will do."""
        geometry, k, ids = self.geometry, self.k, self.body.ids
        flat, per_row = ids.thread + i, geometry.depth_blocks(node) * 4
        row, piece = tirx.floordiv(flat, per_row), tirx.floormod(flat, per_row)
        lanes = 16 // geometry.itemsize
        inside = tirx.And(row < geometry.rows, piece * lanes < node.shape[0])
        from_row = tirx.Min(k["row0"] + ids.group * geometry.rows + tirx.Min(row, geometry.rows - 1), k["batch"] - 1)
        stride = self.stride(node)
        last = (node.shape[0] if geometry.step.heads > 1 else stride) - lanes  # heads lie in one row
        element = tirx.Cast("int64", from_row) * stride + tirx.Min(piece * lanes, last)
        block = tirx.floordiv(piece, 4) * geometry.rows + tirx.Min(row, geometry.rows - 1)
        word = self.copies[node] + block * BLOCK_WORDS + tirx.floormod(piece, 4) * 4
        whole = pieces % geometry.threads == 0 and node.shape[0] == geometry.depth_blocks(node) * geometry.block_k
        yes = tirx.const(True, "bool")
        placed = yes if i + geometry.threads <= pieces else ids.thread + i < pieces
        return k.keep(element), k.keep(word), yes if whole else inside, placed

    def _ask(self, t: Expr) -> None:
        """Load this thread's pieces of step t."""
        k = self.k
        with k.when(t < k["steps"]):
            for n, (name, node, element, _, inside, _) in enumerate(self.own):
                words = [self.pieces[4 * n + z] for z in range(4)]
                with k.when(inside):
                    source = k[name].ptr_to([self.body.time(t) * self.stride(node) + element])
                    k.do(I.ptx["ld.relaxed.gpu.global.v4.b32"](*words, source))

    def stash(self, t: Expr, par: int) -> None:
        """Lay down the pieces of step t + 1, which are waited for, for all warps; ask for those of step t + 2. What is
        overwritten was read in step t - 1."""
        if not self.used:
            return
        k, geometry = self.k, self.geometry
        self._wait(t + 1)
        for n, (_, node, _, word, _, placed) in enumerate(self.own):
            words = [self.pieces[4 * n + z] for z in range(4)]
            round_inputs(k, geometry, words)
            with k.when(placed):
                target = self.body.arena.ptr_to([word + (1 - par) * geometry.value_words(node)])
                k.do(I.ptx["st.shared.v4.b32"](target, *words))
        self._ask(t + 2)

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
        geometry, ids, node = self.geometry, self.body.ids, share.operand.source
        block = geometry.block_of(share, kblock, ids)
        row = (ids.warp_n * geometry.tiles + tile) * 8 + (ids.g if within is None else within)
        at = self.copies[node] + self.body.par * geometry.value_words(node)
        address = self.body.arena.ptr_to([at + (block * geometry.rows + row) * BLOCK_WORDS + ids.q * 4])
        self.k.do(I.ptx["ld.shared.v4.b32"](*[registers[first + z] for z in range(4)], address))


class InputPieces:
    """Rows of inputs in global memory, of which each lane loads its own pieces."""

    def __init__(self, body: Body) -> None:
        self.body, self.k, self.geometry = body, body.k, body.geometry
        self.rows: dict[Node, list[Expr]] = {}

    def prepare(self) -> None:
        """Where pieces come from."""
        for node in self.geometry.step.given:
            self.rows[node] = [self._row(node, tile) for tile in range(self.geometry.tiles)]

    def begin_step(self) -> None:
        """Nothing: loads wait for themselves."""

    def ask_inputs(self) -> bool:
        return False

    def _row(self, node: Node, tile: int) -> Expr:
        """Element, at time 0, of this lane's first piece of an input's row. Rows past the batch are never looked at:
        any will do."""
        k, geometry, ids = self.k, self.geometry, self.body.ids
        row = k["row0"] + ids.group * geometry.rows + (ids.warp_n * geometry.tiles + tile) * 8 + ids.g
        row = tirx.Cast("int64", tirx.Min(row, k["batch"] - 1))
        return k.keep(row * input_stride(self.body.layout, node) + ids.q * (16 // geometry.itemsize))

    def load(self, share: Share, kblock: int, tile: int, registers: Buffer, first: int) -> None:
        """Without copies: a piece of an input, straight to registers; 0 past the row's end."""
        k, geometry, ids, node = self.k, self.geometry, self.body.ids, share.operand.source
        block = self.geometry.block_of(share, kblock, self.body.ids)
        start = self.body.time(self.body.t) * input_stride(self.body.layout, node)
        element = start + self.rows[node][tile] + block * geometry.block_k
        words = [registers[first + z] for z in range(4)]
        source = k[f"x_{geometry.step.given.index(node)}"].ptr_to([element])
        load = I.ptx["ld.relaxed.gpu.global.v4.b32"](*words, source)
        if node.shape[0] == geometry.depth_blocks(node) * geometry.block_k:
            k.do(load)
            return
        for z in range(4):
            k.store(registers, tirx.const(0, "uint32"), first + z)
        with k.when(block * geometry.block_k + ids.q * (16 // geometry.itemsize) < node.shape[0]):
            k.do(load)


class NoPieces(InputPieces):
    """Of a cluster, whose blocks have rows of inputs in shared memory."""

    def prepare(self) -> None:
        """Nothing is loaded from elsewhere."""


class Copies(InputPieces):
    """Pieces of all operands, copied to shared memory without registers. at: the word where a block's copies begin;
    words: of a warp; exchange: where operands are that other blocks publish."""

    def __init__(self, body: Body, at: int, words: int, exchange: LaneExchange) -> None:
        super().__init__(body)
        self.at, self.words, self.exchange = at, words, exchange
        self.newer = 0  # groups of copies that were begun after the operand that is being multiplied
        self.asked = False  # whether the next step's inputs are being copied
        # The first piece of a share's place. Inputs have places of their own, other operands take turns with one.
        every, tiles = [s for _, s in self.geometry.weights], self.geometry.tiles
        self.shares = [s for s in every if s.operand.given]  # operands that are inputs
        self.places = dict.fromkeys(every, 0)
        place = max((s.kblocks for s in every if not s.operand.given), default=0) * tiles
        for share in self.shares:
            self.places[share] = place
            place += share.kblocks * tiles

    def begin_step(self) -> None:
        self.asked = False

    def prepare(self) -> None:
        """Where copies come from and go to; the first step's input is copied."""
        super().prepare()
        k, ids = self.k, self.body.ids
        arena = I.cuda.cvta_generic_to_shared(self.body.arena.ptr_to([tirx.const(0, "int32")]))
        self.own = k.keep(self.at + (ids.warp * (self.words // 4) + ids.lane) * 4)
        self.base = k.keep(arena + tirx.Cast("uint32", self.own * 4))
        self._inputs(tirx.const(0, "int32"))

    def _piece(self, share: Share, kblock: int, tile: int) -> int:
        return self.places[share] + kblock * self.geometry.tiles + tile

    def _copy(self, share: Share, kblock: int, tile: int, *source: Expr) -> None:
        """source: where a piece comes from, 16, and how many bytes of it there are, if not all."""
        target = self.base + tirx.const(self._piece(share, kblock, tile) * LANES * 16, "uint32")
        self.k.do(I.ptx["cp.async.cg.shared.global"](target, *source))

    def _inputs(self, t: Expr) -> None:
        """Copy the inputs of step t, which are there."""
        k, geometry, ids = self.k, self.geometry, self.body.ids
        with k.when(t < k["steps"]):
            for share in self.shares:
                node = share.operand.source
                source = k[f"x_{geometry.step.given.index(node)}"]
                whole = node.shape[0] == geometry.depth_blocks(node) * geometry.block_k
                for kblock in range(share.kblocks):
                    block = self.geometry.block_of(share, kblock, self.body.ids)
                    inside = block * geometry.block_k + ids.q * (16 // geometry.itemsize) < node.shape[0]
                    block = block if whole else tirx.Select(inside, block, tirx.const(0, "int32"))
                    size = tirx.Select(inside, tirx.const(16, "uint32"), tirx.const(0, "uint32"))
                    for tile in range(geometry.tiles):
                        start = self.body.time(t) * input_stride(self.body.layout, node)
                        element = start + self.rows[node][tile] + block * geometry.block_k
                        self._copy(share, kblock, tile, source.ptr_to([element]), *((16,) if whole else (16, size)))
        if self.shares:
            k.do(I.ptx["cp.async.commit_group"]())

    def ask(self, phase: Phase, share: Share) -> None:
        """Begin to copy an operand that is there, block by block of K; behind the last, the inputs of the next step."""
        geometry, body, k = self.geometry, self.body, self.k
        if share.operand.given:
            return
        source = share.operand.source
        for kblock in range(share.kblocks):
            for tile in range(geometry.tiles):
                row = (body.ids.warp_n * geometry.tiles + tile) * 8 + body.ids.g
                block = self.geometry.block_of(share, kblock, self.body.ids)
                value = self.exchange.pointer(body.value(source), body.copy_of(source), block, row)
                self._copy(share, kblock, tile, value, 16)
            k.do(I.ptx["cp.async.commit_group"]())
        behind = geometry.weights[geometry.weights.index((phase, share)) + 1 :]
        self.newer = int(not any(s.operand.given for _, s in behind) and self.ask_inputs())

    def ask_inputs(self) -> bool:
        if self.asked or not self.shares:
            return False
        self.asked = True
        self._inputs(self.body.t + 1)
        return True

    def wait(self, share: Share, kblock: int) -> None:
        """Until a block of K is there."""
        if not share.operand.given:
            left = share.kblocks - 1 - kblock + self.newer
        else:  # copied in the step before; hoisted values were asked for since
            left = 1 if self.body.reads.prefetch.order else 0
        if kblock == 0 or not share.operand.given:
            self.k.do(I.ptx["cp.async.wait_group"](min(left, 7)))

    def take(self, share: Share, kblock: int, tile: int, registers: Buffer, first: int) -> None:
        """A piece, to registers from `first` on."""
        words = [registers[first + z] for z in range(4)]
        address = self.body.arena.ptr_to([self.own + self._piece(share, kblock, tile) * LANES * 4])
        self.k.do(I.ptx["ld.shared.v4.b32"](*words, address))
        if share.operand.given:
            round_inputs(self.k, self.geometry, words)
