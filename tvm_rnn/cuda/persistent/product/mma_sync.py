"""The product of a phase on tensor cores: stationary weights times what other units published.

In: a `Geometry`, the operand's place, the warp's coordinates. Out: statements that leave all gates of a lane's cells in
registers. Weights come from registers, shared memory or L2, block of K by block of K; operands are asked for `ahead`
blocks before they are used, because the compiler keeps the order of PTX instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.fp8_weights import Coded
from tvm_rnn.cuda.layer.phases import Phase
from tvm_rnn.cuda.persistent.geometry import LANES, MMA, POISON, Body, Emitters, LaneExchange, LaneInputs, Share
from tvm_rnn.cuda.persistent.layer_input_rows import Copies, round_inputs
from tvm_rnn.tir.expr import Buffer, Expr

from .mma_sync_layout import MmaSyncLayout

Fragment = Callable[[int, int], Sequence[Expr]]  # (M tile, MMA step) -> the registers of A


@dataclass(frozen=True)
class MmaSync(MmaSyncLayout):
    """The geometry, and who emits its statements."""

    def emitters(self, body: Body) -> Emitters:
        at = self.memory_map
        exchange = self.exchange.exchanger(body, at.stage, at.barriers)
        if self.copied:
            copies = Copies(body, at.copies, self.copy_words // self.warps, exchange)
            inputs = self.exchange.inputs(body, exchange, copies, at.inputs)
            inputs.announce()
            return Emitters(exchange, inputs, copies, CpAsyncProduct(body, self, exchange, inputs, copies))
        pieces = self.exchange.pieces(body)
        inputs = self.exchange.inputs(body, exchange, pieces, at.inputs)
        inputs.announce()
        if self.precision == "float32":
            return Emitters(exchange, inputs, pieces, Float32Product(body, self, exchange, inputs))
        return Emitters(exchange, inputs, pieces, MmaSyncProduct(body, self, exchange, inputs))


class MmaSyncProduct:
    """The products of one kernel. Construct once, at the kernel's start: it loads the resident weights."""

    def __init__(self, body: Body, geometry: MmaSyncLayout, exchange: LaneExchange, inputs: LaneInputs) -> None:
        self.body, self.k, self.geometry, self.ids, self.arena = body, body.k, geometry, body.ids, body.arena
        self.exchange, self.inputs = exchange, inputs
        self.partial_at, self.par = geometry.memory_map.partial, 0
        k = self.k
        self.registers: dict[Share, Buffer] = {}
        self.shared: dict[Share, int] = {}
        self.names = geometry.weight_names
        at = geometry.memory_map.weights
        for phase, share in geometry.weights:
            words = geometry.block_words(phase)
            if share.registers:
                self.registers[share] = k.local(share.registers * words, "uint32")
                for piece in range(share.registers * words // 4):
                    self._load_global(phase, share, self.registers[share], piece * 4, piece)
            if share.shared:
                self.shared[share] = at
                self._fill_shared(phase, share, at)
                at += share.shared * words * geometry.warps_u * geometry.warps_k * LANES
        # Two sets: while one is multiplied, the weights of the next block of K are in flight.
        self.fragment = [
            k.local(max((geometry.block_words(p) for p in geometry.step.phases), default=8), "uint32") for _ in "ab"
        ]
        self.coded = Coded(k, geometry, self.ids, geometry.scale_names) if geometry.stored else None

    # --- weights -----------------------------------------------------------------------------------------------------

    def _piece_address(self, phase: Phase, share: Share, piece: Expr) -> Expr:
        """A 16-byte piece of this lane's weights in global memory; pieces are [K block][M tile][MMA step], in 8 bits
        [K block][M tile]."""
        geometry, ids = self.geometry, self.ids
        warp = (ids.rank * geometry.warps_u + ids.warp_u) * geometry.warps_k + ids.warp_k
        pieces = share.kblocks * self._pieces(phase)
        word = ((tirx.Cast("int64", warp) * pieces + piece) * LANES + ids.lane) * 4
        return self.k[self.names[share]].ptr_to([word * (1 if geometry.stored else 4 // geometry.itemsize)])

    def _pieces(self, phase: Phase) -> int:
        """Of one K block."""
        return self.geometry.block_words(phase) // 4

    def _load_global(self, phase: Phase, share: Share, into: Buffer, at: int, piece: Expr) -> None:
        regs = [into[at + z] for z in range(4)]
        self.k.do(I.ptx["ld.global.nc.v4.b32"](*regs, self._piece_address(phase, share, piece)))

    def _shared_word(self, phase: Phase, share: Share, at: int, piece: Expr) -> Expr:
        geometry, ids = self.geometry, self.ids
        pieces = share.shared * self._pieces(phase)
        return at + (((ids.warp_u * geometry.warps_k + ids.warp_k) * pieces + piece) * LANES + ids.lane) * 4

    def _fill_shared(self, phase: Phase, share: Share, at: int) -> None:
        k, each = self.k, self._pieces(phase)
        passing = k.local(4, "uint32")
        with k.when(self.ids.warp_n == 0), k.loop(share.shared * each) as piece:
            self._load_global(phase, share, passing, 0, piece + share.registers * each)
            target = self.arena.ptr_to([self._shared_word(phase, share, at, piece)])
            k.do(I.ptx["st.shared.v4.b32"](target, *[passing[z] for z in range(4)]))

    def _ask_weights(self, phase: Phase, share: Share, kblock: int) -> None:
        """Load the weights of a K block that are not resident in registers."""
        if kblock < share.registers or kblock >= share.kblocks:
            return
        each, source = self._pieces(phase), self.fragment[kblock % 2]
        for piece in range(each):
            if kblock >= share.registers + share.shared:
                self._load_global(phase, share, source, piece * 4, kblock * each + piece)
                continue
            own = (kblock - share.registers) * each + piece
            word = self._shared_word(phase, share, self.shared[share], own)
            regs = [source[piece * 4 + z] for z in range(4)]
            self.k.do(I.ptx["ld.shared.v4.b32"](*regs, self.arena.ptr_to([word])))

    def _weights(self, phase: Phase, share: Share, kblock: int) -> Fragment:
        """Weights of one K block: (M tile, MMA step) -> four words, in registers that the next call may take."""
        resident = kblock < share.registers
        source = self.registers[share] if resident else self.fragment[kblock % 2]
        base = kblock * self.geometry.block_words(phase) if resident else 0
        coded = self.coded
        if coded is not None:
            return lambda m, s: coded.fragment(m, [source[base + m * 4 + s * 2 + z] for z in range(2)], resident)
        return lambda m, s: [source[base + (m * 2 + s) * 4 + z] for z in range(4)]

    # --- the product -------------------------------------------------------------------------------------------------

    def emit(self, phase: Phase) -> list[Expr]:
        """Operands are waited for and multiplied one after the other."""
        own: list[list[Expr]] = [self._pass(phase, number) for number in range(self.geometry.passes)]
        # From [pass][M tile][own tile of the pass][4] to [M tile][own tile][4].
        each = self.geometry.pass_own * 4
        m_tiles = self.geometry.m_tiles(phase)
        found = [(m, z, part[m * each + z]) for m in range(m_tiles) for part in own for z in range(each)]
        if self.coded is None or len(self.geometry.shares[phase]) > 1:
            return [value for _, _, value in found]
        return [self.coded.scaled(self.geometry.shares[phase][0], m, z % 4, value) for m, z, value in found]

    def end(self) -> None:
        """Nothing is in flight."""

    def load(self, share: Share, kblock: int, tile: int, pieces: Buffer, at: int, within: int | None = None) -> None:
        """Ask for this lane's piece of one K block and batch tile, in the tile's row g, or in the row given."""
        if share.operand.given:
            self.inputs.load(share, kblock, tile, pieces, at, within)
            return
        ids, geometry, source = self.ids, self.geometry, share.operand.source
        block = ids.warp_k * share.kblocks + kblock if geometry.warps_k > 1 else kblock
        row = (ids.warp_n * geometry.tiles + tile) * 8 + (ids.g if within is None else within)
        node, slot = self.body.value(source), self.body.copy_of(source)
        self.exchange.load(node, slot, block, row, [pieces[at + z] for z in range(4)])

    def _pass(self, phase: Phase, number: int) -> list[Expr]:
        """The product with the batch tiles of one pass."""
        geometry, k = self.geometry, self.k
        tiles, m_tiles, chains = geometry.pass_tiles, geometry.m_tiles(phase), geometry.chains[phase]
        acc = k.local(m_tiles * tiles * 4 * chains)
        for z in range(m_tiles * tiles * 4 * chains):
            k.store(acc, tirx.const(0.0, "float32"), z)
        if (
            self.coded is not None and len(geometry.shares[phase]) > 1
        ):  # each operand's weights have scales of their own
            total = k.local(m_tiles * tiles * 4)
            for place, share in enumerate(geometry.shares[phase]):
                self._begin(share, number)
                self.operand(phase, share, number, acc)
                self.coded.fold(phase, share, acc, chains, total, place == 0)
            return self._sum(phase, m_tiles, 1, total, number)
        for share in geometry.shares[phase]:
            self._begin(share, number)
            self.operand(phase, share, number, acc)
        return self._sum(phase, m_tiles, chains, acc, number)

    def _begin(self, share: Share, number: int) -> None:
        """Wait for an operand, in the first pass."""
        if number == 0:
            self.body.ready(share)
        if self.coded is not None:
            self.coded.begin()

    def operand(self, phase: Phase, share: Share, number: int, acc: Buffer) -> None:
        """Add the product of one operand with the batch tiles of one pass."""
        geometry, k, tiles = self.geometry, self.k, self.geometry.pass_tiles
        m_tiles, chains, first = geometry.m_tiles(phase), geometry.chains[phase], number * tiles
        polls = geometry.exchange.polls
        pipeline = share.kblocks if polls else min(geometry.ahead + 1, share.kblocks)
        pieces = k.local(pipeline * tiles * 4, "uint32")

        def ask(kblock: int, tile: int) -> None:
            self.load(share, kblock, first + tile, pieces, (kblock % pipeline * tiles + tile) * 4)

        whole = pipeline if polls else pipeline - 1
        early = [(kblock, tile) for kblock in range(whole) for tile in range(tiles)]
        for which in early:
            ask(*which)
        if polls:
            self._poll(early, ask, pieces)
        self._ask_weights(phase, share, 0)
        for kblock in range(share.kblocks):
            self._ask_weights(phase, share, kblock + 1)
            for tile in range(tiles) if whole <= kblock + pipeline - 1 < share.kblocks else ():
                ask(kblock + pipeline - 1, tile)
            if share.operand.given and geometry.exchange.in_memory:
                first_word = kblock % pipeline * tiles * 4
                round_inputs(self.k, geometry, [pieces[first_word + z] for z in range(tiles * 4)])
            a = self._weights(phase, share, kblock)
            self._multiply(kblock, m_tiles, chains, a, pieces, kblock % pipeline * tiles, acc)

    def _poll(self, asked: list[tuple[int, int]], ask: Callable[[int, int], None], pieces: Buffer) -> None:
        """Until all of an operand's pieces (K block, tile) are there, ask for the missing ones again, together: one
        after the other would cost a round trip through L2 each, and all of them again would delay the values."""
        k, tiles, poison = self.k, self.geometry.pass_tiles, tirx.const(POISON, "uint32")

        def worst(which: tuple[int, int]) -> Expr:
            at = (which[0] * tiles + which[1]) * 4
            return tirx.Max(tirx.Max(pieces[at], pieces[at + 1]), tirx.Max(pieces[at + 2], pieces[at + 3]))

        missing = k.local(1, "uint32")
        k.store(missing, poison, 0)
        with I.While(tirx.EQ(missing[0], poison)):
            found = [k.keep(worst(which)) for which in asked]
            for which, value in zip(asked, found, strict=True):
                with k.when(tirx.EQ(value, poison)):
                    ask(*which)
            while len(found) > 1:  # a tree: a chain would be long
                found = [
                    tirx.Max(*found[i : i + 2]) if i + 1 < len(found) else found[i] for i in range(0, len(found), 2)
                ]
            k.store(missing, found[0], 0)
        k.do(I.cuda.warp_sync())  # MMA wants the whole warp at one place

    # --- on tensor cores -----------------------------------------------------------------------------------------

    def _multiply(
        self, kblock: int, m_tiles: int, chains: int, a: Fragment, pieces: Buffer, first: int, acc: Buffer
    ) -> None:
        geometry = self.geometry
        for s in range(2):
            weights = [a(m, s) for m in range(m_tiles)]
            for tile in range(geometry.pass_tiles):
                b = (first + tile) * 4 + 2 * s
                for m in range(m_tiles):
                    at = ((m * geometry.pass_tiles + tile) * chains + (2 * kblock + s) % chains) * 4
                    d = [acc[at + z] for z in range(4)]
                    self.k.do(I.ptx[MMA[geometry.precision]](*d, *weights[m], pieces[b], pieces[b + 1], *d))

    def _turn(self, phase: Phase) -> int:
        """Without a counter no barrier of the block lies between two products: one warp may be at the next while
        another is at this one. They take turns with two places for sums, and with two barriers."""
        if not self.geometry.exchange.polls:
            return 0
        products = [p for p in self.geometry.step.phases if p.kind == "gemm"]
        return (self.par * len(products) + products.index(phase)) % 2

    def _sum(self, phase: Phase, m_tiles: int, chains: int, acc: Buffer, number: int) -> list[Expr]:
        """Chains, then the K parts of the warps, which meet in shared memory."""
        geometry, k, ids = self.geometry, self.k, self.ids
        count = m_tiles * geometry.pass_tiles
        for tile in range(count if chains > 1 else 0):
            for z in range(4):
                first = tile * chains * 4 + z
                total = acc[first]
                for chain in range(1, chains):
                    total = total + acc[first + chain * 4]
                k.store(acc, total, first)
        if geometry.warps_k == 1:
            return [acc[tile * 4 * chains + z] for tile in range(count) for z in range(4)]
        group = ids.warp_u * geometry.warps_n + ids.warp_n

        def partial(warp_k: Expr, m: int, tile: Expr) -> Expr:
            row = ((group * geometry.warps_k + warp_k) * m_tiles + m) * geometry.pass_tiles + tile
            place = self._turn(phase) * geometry.partial_words // 2
            return self.arena.ptr_to([self.partial_at + place + (row * LANES + ids.lane) * 4])

        if number or not geometry.separated(phase):
            k.do(I.cuda.cta_sync())
        own, part = k.local(m_tiles * geometry.pass_own * 4), k.local(4 * geometry.warps_k)
        number_of = tirx.Cast("uint32", group + 1 + self._turn(phase) * geometry.warps_u * geometry.warps_n)
        threads = tirx.const(LANES * geometry.warps_k, "uint32")

        def store_partial(warp_k: int) -> None:
            for tile in (t for t in range(geometry.pass_tiles) if t % geometry.warps_k != warp_k):
                for m in range(m_tiles):
                    at = (m * geometry.pass_tiles + tile) * 4 * chains
                    k.do(I.ptx["st.shared.v4.f32"](partial(warp_k, m, tile), *[acc[at + z] for z in range(4)]))

        def take(warp_k: int) -> None:
            for j, tile in enumerate(range(warp_k, geometry.pass_tiles, geometry.warps_k)):
                for m in range(m_tiles):
                    self._add(partial, warp_k, m, tile, part)
                    for z in range(4):
                        total = acc[(m * geometry.pass_tiles + tile) * 4 * chains + z]
                        for other in (w for w in range(geometry.warps_k) if w != warp_k):
                            total = total + part[other * 4 + z]
                        k.store(own, total, (m * geometry.pass_own + j) * 4 + z)

        # One branch per warp of the K parts, so that its own tiles are registers known now: only the others' travel.
        everyone = geometry.pass_tiles >= geometry.warps_k
        for warp_k in range(geometry.warps_k):
            with k.when(ids.warp_k == warp_k):
                store_partial(warp_k)
                if not everyone:  # a warp that has stored its sums and adds none up need not wait
                    meet = I.ptx.bar.arrive if warp_k >= geometry.pass_tiles else I.ptx.bar.sync
                    k.do(meet(number_of, threads))
                    take(warp_k)
        if everyone:
            k.do(I.ptx.bar.sync(number_of, threads))
            for warp_k in range(geometry.warps_k):
                with k.when(ids.warp_k == warp_k):
                    take(warp_k)
        return [own[z] for z in range(m_tiles * geometry.pass_own * 4)]

    def _add(self, partial: Callable[[Expr, int, Expr], Expr], warp_k: int, m: int, tile: int, part: Buffer) -> None:
        """Load the other warps' sums of a tile."""
        for other in (w for w in range(self.geometry.warps_k) if w != warp_k):
            words = [part[other * 4 + z] for z in range(4)]
            self.k.do(I.ptx["ld.shared.v4.f32"](*words, partial(other, m, tile)))


class CpAsyncProduct(MmaSyncProduct):
    """The same with operands that this lane has copied to shared memory, or copies now."""

    def __init__(
        self, body: Body, geometry: MmaSyncLayout, exchange: LaneExchange, inputs: LaneInputs, copies: Copies
    ) -> None:
        super().__init__(body, geometry, exchange, inputs)
        self.copies = copies

    def operand(self, phase: Phase, share: Share, number: int, acc: Buffer) -> None:
        """The next block of K is read while one is multiplied."""
        geometry, tiles = self.geometry, self.geometry.pass_tiles
        pieces = self.k.local(2 * tiles * 4, "uint32")
        if number == 0:
            self.copies.ask(phase, share)

        def take(kblock: int) -> None:
            if number == 0:
                self.copies.wait(share, kblock)
            for tile in range(tiles):
                self.copies.take(share, kblock, number * tiles + tile, pieces, (kblock % 2 * tiles + tile) * 4)

        self._ask_weights(phase, share, 0)
        take(0)
        for kblock in range(share.kblocks):
            self._ask_weights(phase, share, kblock + 1)
            if kblock + 1 < share.kblocks:
                take(kblock + 1)
            a = self._weights(phase, share, kblock)
            self._multiply(
                kblock, self.geometry.m_tiles(phase), geometry.chains[phase], a, pieces, kblock % 2 * tiles, acc
            )


class Float32Product(MmaSyncProduct):
    """The same in float32 arithmetic, without tensor cores."""

    def _pass(self, phase: Phase, number: int) -> list[Expr]:
        """Lane (g, q) multiplies its weights (unit g, every fourth piece of K) with all
        8 rows of a tile, and the four lanes of a unit add up what they have."""
        geometry, k = self.geometry, self.k
        tiles, halves, first = geometry.pass_tiles, 2 * geometry.m_tiles(phase), number * geometry.pass_tiles
        sums = k.local(halves * tiles * 8)
        for z in range(halves * tiles * 8):
            k.store(sums, tirx.const(0.0, "float32"), z)
        for share in geometry.shares[phase]:
            self._begin(share, number)
            pieces = [k.local(tiles * 8 * 4, "uint32") for _ in range(2)]
            self._ask_weights(phase, share, 0)
            for kblock in range(share.kblocks + 1):
                if kblock < share.kblocks:
                    for tile in range(tiles):
                        for row in range(8):
                            self.load(share, kblock, first + tile, pieces[kblock % 2], (tile * 8 + row) * 4, row)
                if kblock:
                    self._ask_weights(phase, share, kblock)
                    self._multiply_lanes(self._weights(phase, share, kblock - 1), halves, pieces[1 - kblock % 2], sums)
        return self._sum(phase, halves // 2, 1, self._gather(halves, tiles, sums), number)

    def _multiply_lanes(self, a: Fragment, halves: int, pieces: Buffer, sums: Buffer) -> None:
        def real(word: Expr) -> Expr:
            return I.reinterpret("float32", word)

        for z in range(4):  # k = 4q + z
            for tile in range(self.geometry.pass_tiles):
                for row in range(8):
                    x = real(pieces[(tile * 8 + row) * 4 + z])
                    for half in range(halves):
                        weight = real(a(half // 2, z // 2)[half % 2 + 2 * (z % 2)])
                        at = (half * self.geometry.pass_tiles + tile) * 8 + row
                        self.k.store(sums, sums[at] + weight * x, at)

    def _gather(self, halves: int, tiles: int, sums: Buffer) -> Buffer:
        """Sums of the lanes of a unit, two rows to each of them, in the order of MMA accumulators."""
        k, q = self.k, self.ids.q
        acc, half_sums = k.local(halves // 2 * tiles * 4), k.local(4)
        every = tirx.const(0xFFFFFFFF, "uint32")
        for half in range(halves):
            for tile in range(tiles):
                at = (half * tiles + tile) * 8
                for pair in range(4):  # rows pair and pair + 4 of this tile; lanes q and q ^ 2 share
                    own = tirx.Select(q >= 2, sums[at + 4 + pair], sums[at + pair])
                    other = tirx.Select(q >= 2, sums[at + pair], sums[at + 4 + pair])
                    k.store(half_sums, own + I.tvm_warp_shuffle_xor(every, other, 2, 32, 32), pair)
                for e in range(2):
                    odd = tirx.floormod(q, 2) == 1
                    own = tirx.Select(odd, half_sums[2 + e], half_sums[e])
                    other = tirx.Select(odd, half_sums[e], half_sums[2 + e])
                    total = own + I.tvm_warp_shuffle_xor(every, other, 1, 32, 32)
                    k.store(acc, total, (half // 2 * tiles + tile) * 4 + half % 2 * 2 + e)
        return acc
