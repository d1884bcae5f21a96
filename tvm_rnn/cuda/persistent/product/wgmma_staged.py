"""Products by wgmma of staged operands: brought to shared memory once, for all warps of a block.

In: a `Step` and knobs; the kernel's body. Out: `WgmmaStaged`, the geometry; statements that leave all gates of a lane's
cells in registers. Operands lie as tiles of wgmma behind the weights; each source of a product has one buffer, written
again when no product of its step is under way. The operand that is there first, the layer's input, is multiplied while
the other units' values are asked for; while these are waited for and multiplied, the next step's input is copied.

Each thread asks for its pieces of 16 bytes, asks again for those that are missing, and stores them. Inputs come from
rows in memory, which a layer below may be writing (see `layer_input_rows.py`); values of the layer's own units from the
exchange. A warpgroup brings its own part of K, with barriers of its own. Where the parts' sums meet, the whole block
does: every product is done then, so operands may be overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import ClassVar

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_64
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.exchange_by_polling import POLLING
from tvm_rnn.cuda.persistent.geometry import BLOCK_WORDS, LANES, Body, Emitters, Exchange, Share, begins
from tvm_rnn.cuda.persistent.layer_input_rows import InputPieces, Inputs, input_stride, round_inputs
from tvm_rnn.cuda.persistent.rates import CLOCK_MHZ, Rates
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .operands_staged import Staged, largest, until_written
from .wgmma_tiles import STEPS, WARPGROUP, WgmmaProduct, WgmmaTiles

THREADS = LANES * WARPGROUP
HELD = 8  # pieces of 16 bytes that a thread holds at a time between memory and shared memory
# Cycles of a product of 64 rows, at least and where its weights are in shared memory, times; of 16 bytes stored.
STAGED_LEAST, STAGED_NEAR, STAGED_PIECE = 16.0, 1.55, 0.1
MOST_ROWS = 256  # columns of an instruction


def held(total: int) -> int:
    """How many of so many pieces a thread holds at a time: the turns are equal."""
    each = ceil(total / (THREADS))
    return ceil(each / ceil(each / HELD))


@dataclass(frozen=True)
class WgmmaStaged(WgmmaTiles):
    """warps_k: warpgroups, each with all the block's units and a part of K. ahead: blocks of K of the input that are
    still to be multiplied when the other units' values are asked for."""

    exchange: Exchange = field(default=POLLING, init=False)
    ahead: int = 1

    wants: ClassVar[str] = "staged operands are those of products alone, of whole K blocks, for whole warpgroups"

    rates: ClassVar[Rates] = Rates(2.1, 0.0, 34.0, 0.8, 0.15, 0.03)

    def emitters(self, body: Body) -> Emitters:
        exchange = Staged(body, self.memory_map["stage"])
        operands = Operands(body, self, exchange)
        inputs = StagedInputs(body, self, operands)
        return Emitters(exchange, inputs, InputPieces(body), StagedProduct(body, self, operands, inputs))

    @property
    def possible(self) -> bool:
        plain = not self.stored and self.precision != "float32" and self.passes == 1
        groups = self.warps_u == WARPGROUP and self.warps_n == 1 and self.rows <= MOST_ROWS
        return bool(plain and groups and self.products_alone and self.publishes_whole_blocks)

    @property
    def follows(self) -> bool:
        return True

    def warp_place(self, warp: Expr) -> tuple[Expr, Expr, Expr]:
        """A warpgroup has all units, and a part of K."""
        return tirx.floordiv(warp, self.warps_u), tirx.const(0, "int32"), tirx.floormod(warp, self.warps_u)

    @property
    def sources(self) -> tuple[Node, ...]:
        """What products read, each with a place of its own."""
        return tuple(dict.fromkeys(s.operand.source for _, s in self.weights))

    def place(self, source: Node) -> int:
        """Where an operand lies, in words: behind the weights, which want to be aligned."""
        return self.weight_words + sum(self.value_words(n) for n in self.sources[: self.sources.index(source)])

    @property
    def partial_words(self) -> int:
        """Of sums, of all parts but the one that adds a tile up: steps take turns with two places."""
        return 2 * self.warps_u * (self.warps_k - 1) * self.most_m_tiles * self.tiles * LANES * 4

    @cached_property
    def memory_map(self) -> dict[str, int]:
        sizes = {"weights": self.weight_words, "operands": sum(map(self.value_words, self.sources))}
        return begins(**sizes, partial=self.partial_words, stage=self.stage_words, prefetch=self.prefetch_words)

    def product_registers(self) -> int:
        """Weights, sums of all rows, and the pieces of an operand."""
        pieces = [held(self.part_pieces(s.kblocks)) for _, s in self.weights if not s.operand.given]
        return self.kept_registers + self.most_m_tiles * self.rows // 2 + 4 * max(pieces, default=0)

    def part_pieces(self, kblocks: int) -> int:
        """Of 16 bytes, of a part of K of an operand: a warpgroup brings its own."""
        return kblocks * self.rows * 4

    def product_us(self, phase: Phase) -> float:
        """Of all warpgroups: instructions take turns on the tensor cores."""
        cycles = 0.0
        for share in self.shares[phase]:
            each = max(STAGED_LEAST, self.rows / 2)
            near = STAGED_NEAR * (share.kblocks - share.registers)
            cycles += 2 * self.m_tiles(phase) * self.k_parts * each * (share.registers + near)
        pieces = sum(self.rows * self.depth_blocks(s.operand.source) * 4 for s in self.shares[phase])
        return (cycles + STAGED_PIECE * pieces) / CLOCK_MHZ

    def gate_row(self, phase: Phase, tile: Expr, line: Expr) -> tuple[Expr, Expr, Expr]:
        """Each warp's lanes have all gates of their units, as with mma.sync."""
        return line // 16, tile * 2 + line % 16 // 8, line


class Operands:
    """Operands that other units publish."""

    pieces: Buffer
    load: Callable[[int], None]

    def __init__(self, body: Body, geometry: WgmmaStaged, exchange: Staged) -> None:
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
            pieces = self.pieces

            def worst(at: int, pieces: Buffer = pieces) -> Expr:
                return largest([pieces[4 * at + z] for z in range(4)])

            with body.clock.waiting():
                until_written(k, len(self.held), worst, self.load)
            k.do(I.cuda.warp_sync())
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

    def __init__(self, body: Body, geometry: WgmmaStaged, operands: Operands) -> None:
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
        within = (block * self.geometry.rows + row) * BLOCK_WORDS + SWIZZLE_64.piece(row, piece) * 4
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
        place = tirx.Cast("int64", within) * input_stride(body.layout, node) + element
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
        self.time = [k.keep(self.body.time(t) * input_stride(self.body.layout, n)) for n in self.geometry.step.given]
        with k.when(t < k["steps"]):
            for number, node, n in self._every():
                self._bring(number, node, n)
        k.do(I.ptx["cp.async.commit_group"]())

    def finish(self, t: Expr) -> None:
        """Until they are there. A barrier of the warpgroup must follow."""
        k = self.k
        if not self.used:
            return
        k.do(I.ptx["cp.async.wait_group"](0))
        with k.when(tirx.And(tirx.NE(k["follows"], tirx.const(0, "int32")), t < k["steps"])):
            every = self._every()

            def wait() -> None:
                k.do(I.ptx["cp.async.commit_group"]())
                k.do(I.ptx["cp.async.wait_group"](0))

            def worst(at: int) -> Expr:
                return self._worst(*every[at][1:])

            until_written(k, len(every), worst, lambda at: self._bring(*every[at]), wait)
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
        return largest(words)

    def _round(self) -> None:
        for _, node, n in self._every():
            four = self.k.local(4, "uint32")
            words = [four[z] for z in range(4)]
            with self.operands.placed(self.layout.part_pieces(self._depth(node)), n):
                self._load(node, n, words)
                round_inputs(self.k, self.geometry, words)
                place = self.body.arena.ptr_to([self._word(node, n)])
                self.k.do(I.ptx["st.shared.v4.b32"](place, *words))


class StagedProduct(WgmmaProduct):
    """The products of one kernel. Construct once, at the kernel's start: it loads the resident weights."""

    geometry: WgmmaStaged

    def __init__(self, body: Body, geometry: WgmmaStaged, operands: Operands, inputs: StagedInputs) -> None:
        super().__init__(body, geometry)
        self.operands, self.inputs, self.par = operands, inputs, 0
        self.base: TirExpr = self.k.keep(I.cuda.cvta_generic_to_shared(body.arena.ptr_to([tirx.const(0, "int32")])))
        inputs.base = self.base
        self.part = self.ids.warp_k
        self.place_weights(0)
        self.k.do(I.ptx.fence.proxy.async_.shared__cta())
        self.k.do(I.cuda.cta_sync())

    def end(self) -> None:
        """Nothing is in flight."""

    def emit(self, phase: Phase) -> list[Expr]:
        k, geometry, body = self.k, self.geometry, self.body
        operands = self.operands
        tiles = geometry.m_tiles(phase)
        acc = k.local(tiles * geometry.rows // 2)
        shares = sorted(geometry.shares[phase], key=lambda share: not share.operand.given)
        base, asked, coming = k.fresh(self.base), set[Share](), phase is not body.last
        self.shared_descriptors(phase, base, self.part)
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
                for step in range(STEPS if kblock < share.kblocks else 0):
                    b = self.descriptor(low, kblock * geometry.operand_bytes + step * 32)
                    for tile in range(tiles):
                        a = self.resident(phase, share, kblock, tile, step)
                        self.instruction(acc, tile, a, b, add=bool(number or kblock or step))
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
        at = geometry.memory_map["partial"] + geometry.turn(phase, self.par) * (geometry.partial_words // 2)

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
