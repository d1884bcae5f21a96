"""The product of a phase by wgmma, its operands staged: brought to shared memory once for all warps of a block.

In: the kernel's state (`persistent.Body`). Out: statements that leave all gates of a lane's cells in registers. The
operand that is there first, the layer's input, is multiplied while the other units' values are asked for; while these
are waited for and multiplied, the next step's input is copied.

A warpgroup brings its own part of K, with barriers of its own. Where the parts' sums meet, the whole block does:
every product is done then, so operands may be overwritten.

Source: Hopper's warpgroup products: PTX ISA 8.5, "wgmma.mma_async".
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, LANES, Body, Emitters, Share
from tvm_rnn.cuda.persistent.layer_input_rows import InputPieces
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .operands_staged import Operands, Staged, StagedInputs
from .wgmma_pipelined import STEPS, ResidentTiles
from .wgmma_staged_layout import WgmmaStagedLayout


@dataclass(frozen=True)
class WgmmaStaged(WgmmaStagedLayout):
    """The geometry, and who emits its statements."""

    def emitters(self, body: Body) -> Emitters:
        exchange = Staged(body, self.stage_at)
        operands = Operands(body, self, exchange)
        inputs = StagedInputs(body, self, operands)
        inputs.announce()
        return Emitters(exchange, inputs, InputPieces(body), StagedProduct(body, self, operands, inputs))


class StagedProduct(ResidentTiles):
    """The products of one kernel. Construct once, at the kernel's start: it loads the resident weights."""

    def __init__(self, body: Body, geometry: WgmmaStagedLayout, operands: Operands, inputs: StagedInputs) -> None:
        super().__init__(body, geometry)
        self.geometry = self.tiles_of = geometry
        self.operands, self.inputs, self.par = operands, inputs, 0
        self.base: TirExpr = self.k.keep(I.cuda.cvta_generic_to_shared(body.arena.ptr_to([tirx.const(0, "int32")])))
        inputs.base = self.base
        self.part = self.ids.warp_k
        self._place_weights(0)
        self.k.do(I.ptx.fence.proxy.async_.shared__cta())
        self.k.do(I.cuda.cta_sync())

    def end(self) -> None:
        """Nothing is in flight."""

    # --- the product -------------------------------------------------------------------------------------------------

    def emit(self, phase: Phase) -> list[Expr]:
        k, geometry, body = self.k, self.geometry, self.body
        operands = self.operands
        tiles = geometry.m_tiles(phase)
        acc = k.local(tiles * geometry.rows // 2)
        shares = sorted(geometry.shares[phase], key=lambda share: not share.operand.given)
        base, asked, coming = k.fresh(self.base), set[Share](), phase is not body.last
        self._near(phase, base, self.part)
        for number, share in enumerate(shares):
            if not share.operand.given:
                if share not in asked:
                    operands.ask(share)
                if number:
                    k.do(I.ptx.wgmma.wait_group.sync.aligned(0))
                if number and not coming:
                    operands.meet()
                    self.inputs.begin(body.t + 1)
                    coming = True
                operands.lay_down(share)
                operands.meet()
            later = shares[number + 1] if number + 1 < len(shares) and not shares[number + 1].operand.given else None
            early = max(0, share.kblocks - geometry.ahead) if later is not None else -1
            low = self._operand(base, share)
            k.do(I.ptx.wgmma.fence.sync.aligned())
            for kblock in range(share.kblocks + 1):
                if later is not None and kblock == early:
                    operands.ask(later)
                    asked.add(later)
                if kblock < share.kblocks:
                    self._block(share, kblock, tiles, low, acc, number or kblock)
            k.do(I.ptx.wgmma.commit_group.sync.aligned())
        k.do(I.ptx.wgmma.wait_group.sync.aligned(0))
        if not coming:
            operands.meet()
            self.inputs.begin(body.t + 1)
        return self._meet(phase, acc)

    def _operand(self, base: Expr, share: Share) -> Expr:
        """The low word of the descriptor of this part's first block of K."""
        geometry = self.geometry
        block = self.part * (share.kblocks * geometry.rows * BLOCK_WORDS) + geometry.place(share.operand.source)
        return self.k.keep(base // uint32(16) + tirx.Cast("uint32", block // 4) + uint32(1 << 16))

    def _block(self, share: Share, kblock: int, tiles: int, low: Expr, acc: Buffer, add: int) -> None:
        for step in range(STEPS):
            b = self._descriptor(low, kblock * self.geometry.rows * BLOCK_WORDS * 4 + step * 32)
            for tile in range(tiles):
                self._instruction(acc, tile, self._resident(share, kblock, tile, tiles, step), b, bool(add or step))

    # --- parts of K --------------------------------------------------------------------------------------------------

    def _meet(self, phase: Phase, acc: Buffer) -> list[Expr]:
        """The parts of K, which meet in shared memory: each warp adds up its own tiles of rows."""
        k, geometry, ids = self.k, self.geometry, self.ids
        m_tiles, parts = geometry.m_tiles(phase), geometry.warps_k
        last = phase is self.body.last
        if parts == 1:
            if last:
                self.inputs.finish(self.body.t + 1)
            k.do(I.cuda.cta_sync())
            return [acc[z] for z in range(m_tiles * geometry.tiles * 4)]
        own, passing = k.local(m_tiles * geometry.pass_own * 4), k.local(4)
        products = [p for p in geometry.step.phases if p.kind == "gemm"]
        turn = (self.par * len(products) + products.index(phase)) % 2
        at = geometry.partial_at + turn * (geometry.partial_words // 2)

        def place(m: int, tile: int, source: int) -> Expr:
            """Of what a part other than the tile's owner has."""
            owner = tile % parts
            row = (m * geometry.tiles + tile) * (parts - 1) + source - (source > owner)
            first = ids.warp_u * (m_tiles * geometry.tiles * (parts - 1) * LANES * 4) + ids.lane * 4
            return self.body.arena.ptr_to([at + first + row * (LANES * 4)])

        for part in range(parts):
            with k.when(ids.warp_k == part):
                for m, tile in ((m, t) for t in range(geometry.tiles) if t % parts != part for m in range(m_tiles)):
                    four = [acc[(m * geometry.tiles + tile) * 4 + z] for z in range(4)]
                    k.do(I.ptx["st.shared.v4.f32"](place(m, tile, part), *four))
        if last:
            self.inputs.finish(self.body.t + 1)
        k.do(I.cuda.cta_sync())
        for part in range(parts):
            with k.when(ids.warp_k == part):
                for j, tile in enumerate(range(part, geometry.tiles, parts)):
                    for m in range(m_tiles):
                        to = (m * geometry.pass_own + j) * 4
                        for z in range(4):
                            k.store(own, acc[(m * geometry.tiles + tile) * 4 + z], to + z)
                        for other in (p for p in range(parts) if p != part):
                            words = [passing[z] for z in range(4)]
                            k.do(I.ptx["ld.shared.v4.f32"](*words, place(m, tile, other)))
                            for z in range(4):
                                k.store(own, own[to + z] + passing[z], to + z)
        return [own[z] for z in range(m_tiles * geometry.pass_own * 4)]
