"""Copies of a grid's operands by cp.async: each lane copies the pieces that it will multiply to shared memory.

In: the kernel's state (`persistent.Body`). Out: statements that copy without registers, so that all of an operand is
in flight at once, and that wait for one block of K after the other. A lane reads nothing but its own copies: no barrier
is needed. Pieces of the layer's input are copied one step early, as soon as the layer below has written them.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr

from .geometry import LANES, Body, LaneExchange, Share
from .layer_input_rows import round_inputs


class NoPieces:
    """Of a cluster, whose blocks have rows of inputs in shared memory."""

    def prepare(self) -> None:
        pass

    def begin_step(self) -> None:
        pass

    def load(self, share: Share, kblock: int, tile: int, registers: Buffer, first: int) -> None:
        pass

    def ask_inputs(self) -> bool:
        return False


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
        return k.keep(row * node.shape[0] + ids.q * (16 // geometry.itemsize))

    def _block(self, share: Share, kblock: int) -> Expr:
        if self.geometry.warps_k == 1:
            return tirx.const(kblock, "int32")
        return self.body.ids.warp_k * share.kblocks + kblock

    def load(self, share: Share, kblock: int, tile: int, registers: Buffer, first: int) -> None:
        """Without copies: a piece of an input, straight to registers; 0 past the row's end."""
        k, geometry, ids, node = self.k, self.geometry, self.body.ids, share.operand.source
        block = self._block(share, kblock)
        element = self.body.time(self.body.t) * node.shape[0] + self.rows[node][tile] + block * geometry.block_k
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


class Copies(InputPieces):
    """Pieces of all operands, copied to shared memory without registers. at: the word where a block's copies begin;
    words: of a warp; exchange: where operands are that other blocks publish."""

    def __init__(self, body: Body, at: int, words: int, exchange: LaneExchange) -> None:
        super().__init__(body)
        self.at, self.words, self.exchange = at, words, exchange
        self.newer = 0  # groups of copies that were begun after the operand that is being multiplied
        self.asked = False  # whether the next step's inputs are being copied

    def begin_step(self) -> None:
        self.asked = False

    def _shares(self) -> list[Share]:
        """Operands that are inputs."""
        return [s for _, s in self.geometry.weights if s.operand.given]

    def prepare(self) -> None:
        """Where copies come from and go to; the first step's input is copied."""
        super().prepare()
        k, ids = self.k, self.body.ids
        arena = I.cuda.cvta_generic_to_shared(self.body.arena.ptr_to([tirx.const(0, "int32")]))
        self.own = k.keep(self.at + (ids.warp * (self.words // 4) + ids.lane) * 4)
        self.base = k.keep(arena + tirx.Cast("uint32", self.own * 4))
        self._inputs(tirx.const(0, "int32"))

    def _slot(self, share: Share) -> int:
        """The first piece of a share's place. Inputs have places of their own, other operands take turns with one."""
        at = 0
        for other in self._shares() if share.operand.given else ():
            if other is share:
                return at + self._shared_place()
            at += other.kblocks * self.geometry.tiles
        return 0

    def _shared_place(self) -> int:
        kblocks = [s.kblocks for _, s in self.geometry.weights if not s.operand.given]
        return max(kblocks, default=0) * self.geometry.tiles

    def _piece(self, share: Share, kblock: int, tile: int) -> int:
        return self._slot(share) + kblock * self.geometry.tiles + tile

    def _inputs(self, t: Expr) -> None:
        """Copy the inputs of step t, which are there."""
        k, geometry, ids = self.k, self.geometry, self.body.ids
        shares = self._shares()
        with k.when(t < k["steps"]):
            for share in shares:
                node = share.operand.source
                source = k[f"x_{geometry.step.given.index(node)}"]
                whole = node.shape[0] == geometry.depth_blocks(node) * geometry.block_k
                for kblock in range(share.kblocks):
                    block = self._block(share, kblock)
                    inside = block * geometry.block_k + ids.q * (16 // geometry.itemsize) < node.shape[0]
                    block = block if whole else tirx.Select(inside, block, tirx.const(0, "int32"))
                    size = tirx.Select(inside, tirx.const(16, "uint32"), tirx.const(0, "uint32"))
                    for tile in range(geometry.tiles):
                        element = self.body.time(t) * node.shape[0] + self.rows[node][tile] + block * geometry.block_k
                        target = self.base + tirx.const(self._piece(share, kblock, tile) * LANES * 16, "uint32")
                        given = (16,) if whole else (16, size)
                        k.do(I.ptx["cp.async.cg.shared.global"](target, source.ptr_to([element]), *given))
        if shares:
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
                block = self._block(share, kblock)
                value = self.exchange.pointer(body.value(source), body.copy_of(source), block, row)
                target = self.base + tirx.const(self._piece(share, kblock, tile) * LANES * 16, "uint32")
                k.do(I.ptx["cp.async.cg.shared.global"](target, value, 16))
            k.do(I.ptx["cp.async.commit_group"]())
        self.newer = 0
        if not self._later(phase, share) and self.ask_inputs():
            self.newer = 1

    def _later(self, phase: Phase, share: Share) -> bool:
        """Whether a product of this step still reads this step's inputs after an operand."""
        every = self.geometry.weights
        return any(s.operand.given for _, s in every[every.index((phase, share)) + 1 :])

    def ask_inputs(self) -> bool:
        """Begin to copy the next step's inputs, once, when nobody reads this step's any more. Whether it did."""
        if self.asked or not self._shares():
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
