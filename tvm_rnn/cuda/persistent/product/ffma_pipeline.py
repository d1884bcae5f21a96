"""Pipelines in shared memory, one for each warp, that its own asynchronous copies fill while it multiplies in float32.

In: the kernel's body, an `FfmaLayout`. Out: statements: copies of blocks of K, ahead of their use, across operands and
steps; the wait for one of them. Only the warp reads its stages: a `__syncwarp` is enough between the copies of
its lanes and their loads.

Operands are polled for: a lane looks at the pieces that it has copied, and copies those again that were not written
yet (`cuda/persistent/exchange_by_polling.py`). Inputs of the first layer are the user's, and are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, LANES, POISON, Body, Share
from tvm_rnn.cuda.persistent.layer_input_rows import Inputs
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import uint32

from . import ffma_layout
from .ffma_layout import FfmaLayout
from .operands_staged import Staged, largest

COPY = "cp.async.cg.shared.global"
SWEEP = LANES * 16  # bytes that a warp copies at a time


class FfmaInputs(Inputs):
    """The layer's inputs, which products copy themselves."""

    pipeline: FfmaPipeline

    def prepare(self) -> None:
        self.pipeline.start()

    def stash(self, t: Expr, par: int) -> None:
        """Nothing: copies run ahead by themselves."""


class FfmaPipeline:
    """The pipeline of this thread's warp. base: the arena's address; at: the byte where pipelines begin. names: the
    pointers of packed weights."""

    def __init__(
        self, body: Body, geometry: FfmaLayout, base: Expr, at: int, names: dict[Share, str], exchange: Staged
    ) -> None:
        self.body, self.k, self.geometry, self.ids, self.names = body, body.k, geometry, body.ids, names
        self.exchange = exchange
        self.order = ffma_layout.order(self.geometry)
        self.ahead, self.bytes = self.geometry.stages - 1, ffma_layout.stage_bytes(self.geometry)
        own = self.ids.warp * (self.geometry.stages * self.bytes) + at
        self.first = self.start_first = self.k.keep(base + tirx.Cast("uint32", own))
        self.slot = self.k.local(1, "uint32")  # bytes from the first stage to the one that is multiplied
        self.k.store(self.slot, uint32(0), 0)

    def start(self) -> None:
        """The copies of the first blocks of the first step."""
        for n in range(self.ahead):
            self._bring(
                0, tirx.const(n, "int32"), tirx.const(0, "int32"), self.k.keep(self.first + uint32(n * self.bytes))
            )
            self.k.do(I.ptx["cp.async.commit_group"]())

    def refresh(self) -> None:
        """At the start of a product: addresses are not to be kept in registers from step to step."""
        self.first = self.k.fresh(self.start_first)

    def next(self, number: int, c: Expr) -> Expr:
        """The stage of the c-th block of the number-th operand, as soon as it is there; a later one's copies begin."""
        k, (_, share) = self.k, self.order[number]
        stage = k.keep(self.first + self.slot[0])
        k.do(I.ptx["cp.async.wait_group"](self.ahead - 1))
        if share.operand.given:
            with k.when(tirx.NE(k["follows"], tirx.const(0, "int32"))):
                self._poll(number, c, stage)
        else:
            self._poll(number, c, stage)
        k.do(I.cuda.warp_sync())  # all lanes' pieces are there, and nobody reads the stage before this one
        last = uint32(self.ahead * self.bytes)
        free = k.keep(self.first + tirx.Select(self.slot[0] == uint32(0), last, self.slot[0] - uint32(self.bytes)))
        self._ahead(number, c, free)
        k.do(I.ptx["cp.async.commit_group"]())
        k.store(self.slot, tirx.Select(self.slot[0] == last, uint32(0), self.slot[0] + uint32(self.bytes)), 0)
        return stage

    # --- copies ------------------------------------------------------------------------------------------------------

    def _ahead(self, number: int, c: Expr, stage: Expr) -> None:
        """Begin to copy the block that is `ahead` blocks later: of this operand, of the next one, of the next step."""
        k, kblocks, t = self.k, self.order[number][1].kblocks, self.body.t
        following = (number + 1) % len(self.order)
        wraps = following == 0
        later = k.keep(c + self.ahead)
        with I.If(later < kblocks):
            with I.Then():
                self._bring(number, later, t, stage)
            with I.Else(), k.when(t + 1 < k["steps"] if wraps else tirx.const(True, "bool")):
                self._bring(following, later - kblocks, t + 1 if wraps else t, stage)

    def _bring(self, number: int, kblock: Expr, t: Expr, stage: Expr) -> None:
        phase, share = self.order[number]
        self._operand(number, kblock, t, stage, None)
        if share.streamed:
            with self.k.when(kblock >= share.shared):
                self._weights(phase, share, kblock, stage)

    def _weights(self, phase: Phase, share: Share, kblock: Expr, stage: Expr) -> None:
        k, ids, size = self.k, self.ids, ffma_layout.weight_bytes(self.geometry, phase)
        block = (ids.rank * self.geometry.k_parts + ids.warp) * share.kblocks + kblock
        first = k.keep(tirx.Cast("int64", block) * (size // 4) + ids.lane * 4)
        target = k.keep(stage + tirx.Cast("uint32", ids.lane * 16 + self.geometry.rows * ffma_layout.ROW_BYTES))
        for n in range(size // SWEEP):
            source = k[self.names[share]].ptr_to([first + n * (SWEEP // 4)])
            k.do(I.ptx[COPY](target + uint32(n * SWEEP), source, 16))

    def _operand(self, number: int, kblock: Expr, t: Expr, stage: Expr, missing: list[Expr] | None) -> None:
        """Copy a lane's pieces: its n-th one is of row 8 n + lane / 4. missing: for each, whether it is poison; None:
        all are copied. Rows past the batch and what nobody writes become 0."""
        k, geometry, ids, share = self.k, self.geometry, self.ids, self.order[number][1]
        node, given = share.operand.source, share.operand.given
        block = k.keep(ids.warp * share.kblocks + kblock)
        turned = tirx.bitwise_xor(tirx.floormod(ids.lane, 4), tirx.floordiv(ids.lane, 8))
        written, conditions = ffma_layout.limit(geometry, node), list[Expr]()
        # Pieces lie swizzled in the exchange as they do in a stage; rows of an input do not.
        piece, place = (tirx.floormod(ids.lane, 4), turned) if given else (turned, tirx.floormod(ids.lane, 4))
        if geometry.depth_blocks(node) * geometry.block_k != written:
            within = k.keep(tirx.Cast("int32", block * geometry.block_k + piece * 4 < written))
            conditions.append(tirx.NE(within, tirx.const(0, "int32")))
        target = k.keep(stage + tirx.Cast("uint32", tirx.floordiv(ids.lane, 4) * ffma_layout.ROW_BYTES + place * 16))
        if given:
            row = k.keep(k["row0"] + ids.group * geometry.rows + tirx.floordiv(ids.lane, 4))
            width = node.shape[0]
            first = (self.body.time(t) + row) * width + (block * geometry.block_k + piece * 4)
            source, each, step = k[f"x_{geometry.step.given.index(node)}"], 8 * width, 8
        else:
            first = self._place(share, t) + (block * (geometry.rows * BLOCK_WORDS) + ids.lane * 4)
            source, each, step, row = k["exchange"], SWEEP // 4, 0, tirx.const(0, "int32")
        first = k.keep(first)
        for n in range(ffma_layout.high(geometry)):
            inside = [*conditions, *([row + n * step < k["batch"]] if given else [])]
            self._copy(
                target + uint32(n * SWEEP), source.ptr_to([first + n * each]), inside, missing[n] if missing else None
            )

    def _copy(self, target: Expr, source: Expr, inside: Sequence[Expr], missing: Expr | None) -> None:
        """16 bytes, or zeros where a condition does not hold."""
        size: tuple[Expr, ...] = ()
        if inside:
            whole = inside[0] if len(inside) == 1 else tirx.And(*inside)
            size = (tirx.Select(whole, uint32(16), uint32(0)),)
        if missing is None:
            self.k.do(I.ptx[COPY](target, source, 16, *size))
            return
        with self.k.when(tirx.EQ(missing, uint32(POISON))):
            self.k.do(I.ptx[COPY](target, source, 16, *size))

    def _place(self, share: Share, t: Expr) -> Expr:
        """The first word of an operand of step t in the exchange: a state's is what the step before left."""
        body, source = self.body, share.operand.source
        node = body.value(source)
        later = 1 if source.op != "state" and node in body.carried else 0
        return self.exchange.place(t + later) + self.geometry.value_at[node] // 2

    # --- polling -----------------------------------------------------------------------------------------------------

    def _poll(self, number: int, kblock: Expr, stage: Expr) -> None:
        """Until no piece of this lane is poison."""
        k, poison = self.k, uint32(POISON)
        own = k.keep(stage + self._own(number))
        missing = k.local(1, "uint32")
        k.store(missing, poison, 0)
        with I.While(tirx.EQ(missing[0], poison)):
            found = [self._worst(own + uint32(n * SWEEP)) for n in range(ffma_layout.high(self.geometry))]
            k.store(missing, largest(list(found)), 0)
            with k.when(tirx.EQ(missing[0], poison)):
                self._operand(number, kblock, self.body.t, stage, found)
                k.do(I.ptx["cp.async.commit_group"]())
                k.do(I.ptx["cp.async.wait_group"](0))

    def _own(self, number: int) -> Expr:
        """From a stage to this lane's first piece of the number-th operand."""
        lane = self.ids.lane
        if not self.order[number][1].operand.given:
            return tirx.Cast("uint32", lane * 16)
        turned = tirx.bitwise_xor(tirx.floormod(lane, 4), tirx.floordiv(lane, 8))
        return tirx.Cast("uint32", tirx.floordiv(lane, 4) * ffma_layout.ROW_BYTES + turned * 16)

    def _worst(self, place: Expr) -> Expr:
        four = self.k.local(4, "uint32")
        words = [four[z] for z in range(4)]
        self.k.do(I.ptx["ld.shared.v4.b32"](*words, place))
        return self.k.keep(largest(words))
