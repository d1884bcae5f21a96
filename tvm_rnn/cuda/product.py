"""The product of a phase on tensor cores: stationary weights times what other units handed over.

In: a `Team`, the operand's place, the warp's coordinates. Out: statements that leave all gates of a lane's cells in
registers. Weights come from registers, shared memory or L2, block of K by block of K; operands are asked for `ahead`
blocks before they are used, because the compiler keeps the order of PTX instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from .kernel import Writer
from .phases import Phase
from .team import LANES, MMA, Share, Team

Expr = Any


class Product:
    """The products of one kernel. Construct once, at the kernel's start: it loads the resident weights."""

    def __init__(self, k: Writer, team: Team, ids: Any, arena: Any, weights_at: int, partial_at: int) -> None:
        self.k, self.team, self.ids, self.arena = k, team, ids, arena
        self.partial_at = partial_at
        self.registers: dict[Share, Any] = {}
        self.shared: dict[Share, int] = {}
        self.names: dict[Share, str] = {}
        at = weights_at
        for number, (phase, share) in enumerate(weights(team)):
            self.names[share] = f"weight_{number}"
            words = team.m_tiles(phase) * 8
            if share.registers:
                self.registers[share] = k.local(share.registers * words, "uint32")
                for piece in range(share.registers * words // 4):
                    self._load_global(phase, share, self.registers[share], piece * 4, piece)
            if share.shared:
                self.shared[share] = at
                self._fill_shared(phase, share, at)
                at += share.shared * words * team.warps_u * team.warps_k * LANES
        # Two sets: while one is multiplied, the weights of the next block of K are on their way.
        self.fragment = [k.local(8 * max((team.m_tiles(p) for p in team.step.phases), default=1), "uint32") for _ in "ab"]

    # --- weights -----------------------------------------------------------------------------------------------------

    def _piece_address(self, phase: Phase, share: Share, piece: Expr) -> Expr:
        """A 16-byte piece of this lane's weights in global memory; pieces are [K block][M tile][MMA step]."""
        team, ids = self.team, self.ids
        warp = (ids.rank * team.warps_u + ids.warp_u) * team.warps_k + ids.warp_k
        pieces = share.kblocks * team.m_tiles(phase) * 2
        word = ((tirx.Cast("int64", warp) * pieces + piece) * LANES + ids.lane) * 4
        return self.k[self.names[share]].ptr_to([word * (4 // team.itemsize)])

    def _load_global(self, phase: Phase, share: Share, into: Any, at: int, piece: Expr) -> None:
        regs = [into[at + z] for z in range(4)]
        self.k.do(I.ptx["ld.global.nc.v4.b32"](*regs, self._piece_address(phase, share, piece)))

    def _shared_word(self, phase: Phase, share: Share, at: int, piece: Expr) -> Expr:
        team, ids = self.team, self.ids
        pieces = share.shared * team.m_tiles(phase) * 2
        return at + (((ids.warp_u * team.warps_k + ids.warp_k) * pieces + piece) * LANES + ids.lane) * 4

    def _fill_shared(self, phase: Phase, share: Share, at: int) -> None:
        k, tiles2 = self.k, self.team.m_tiles(phase) * 2
        passing = k.local(4, "uint32")
        with k.when(self.ids.warp_n == 0), k.loop(share.shared * tiles2) as piece:
            self._load_global(phase, share, passing, 0, piece + share.registers * tiles2)
            target = self.arena.ptr_to([self._shared_word(phase, share, at, piece)])
            k.do(I.ptx["st.shared.v4.b32"](target, *[passing[z] for z in range(4)]))

    def _ask_weights(self, phase: Phase, share: Share, kblock: int) -> None:
        """Load the weights of a K block that are not resident in registers."""
        if kblock < share.registers or kblock >= share.kblocks:
            return
        tiles2, source = self.team.m_tiles(phase) * 2, self.fragment[kblock % 2]
        for piece in range(tiles2):
            if kblock >= share.registers + share.shared:
                self._load_global(phase, share, source, piece * 4, kblock * tiles2 + piece)
                continue
            own = (kblock - share.registers) * tiles2 + piece
            word = self._shared_word(phase, share, self.shared[share], own)
            regs = [source[piece * 4 + z] for z in range(4)]
            self.k.do(I.ptx["ld.shared.v4.b32"](*regs, self.arena.ptr_to([word])))

    def _weights(self, phase: Phase, share: Share, kblock: int) -> Callable[[int, int], list[Expr]]:
        """Weights of one K block: (M tile, MMA step) -> four words."""
        resident = kblock < share.registers
        source = self.registers[share] if resident else self.fragment[kblock % 2]
        base = kblock * self.team.m_tiles(phase) * 8 if resident else 0
        return lambda m, s: [source[base + (m * 2 + s) * 4 + z] for z in range(4)]

    # --- the product -------------------------------------------------------------------------------------------------

    def emit(self, phase: Phase, load: Callable[[Share, int, int, Any, int], None]) -> Any:
        """All gates of this lane's cells: own[(m tile * own_tiles + j) * 4 + half * 2 + e].

        load(share, kblock, tile, registers, at): asks for an operand piece of one K block and batch tile.
        """
        team, k = self.team, self.k
        tiles, m_tiles, chains = team.tiles, team.m_tiles(phase), team.chains[phase]
        acc = k.local(m_tiles * tiles * 4 * chains)
        for z in range(m_tiles * tiles * 4 * chains):
            k.store(acc, tirx.const(0.0, "float32"), z)
        for share in team.shares[phase]:
            ring = min(team.ahead + 1, share.kblocks)
            pieces = k.local(ring * tiles * 4, "uint32")
            for kblock in range(ring - 1):
                for tile in range(tiles):
                    load(share, kblock, tile, pieces, (kblock % ring * tiles + tile) * 4)
            self._ask_weights(phase, share, 0)
            for kblock in range(share.kblocks):
                self._ask_weights(phase, share, kblock + 1)
                if kblock + ring - 1 < share.kblocks:
                    coming = kblock + ring - 1
                    for tile in range(tiles):
                        load(share, coming, tile, pieces, (coming % ring * tiles + tile) * 4)
                a = self._weights(phase, share, kblock)
                self._multiply(kblock, m_tiles, chains, a, pieces, kblock % ring * tiles, acc)
        return self._sum(phase, m_tiles, chains, acc)

    def _multiply(
        self, kblock: int, m_tiles: int, chains: int, a: Any, pieces: Any, first: int, acc: Any
    ) -> None:
        team = self.team
        for s in range(2):
            for tile in range(team.tiles):
                b = (first + tile) * 4 + 2 * s
                for m in range(m_tiles):
                    at = ((m * team.tiles + tile) * chains + (2 * kblock + s) % chains) * 4
                    d = [acc[at + z] for z in range(4)]
                    self.k.do(I.ptx[MMA[team.precision]](*d, *a(m, s), pieces[b], pieces[b + 1], *d))

    def _separated(self, phase: Phase) -> bool:
        """Whether an exchange lies between the product before this one and this: else its partial sums may still be read."""
        phases = self.team.step.phases
        at = phases.index(phase)
        for other in (*reversed(phases[:at]), *reversed(phases[at:])):
            if other.published:
                return True
            if other.kind == "gemm":
                return False
        return False

    def _sum(self, phase: Phase, m_tiles: int, chains: int, acc: Any) -> Any:
        """Chains, then the K parts of the warps, which meet in shared memory."""
        team, k, ids = self.team, self.k, self.ids
        count = m_tiles * team.tiles
        for tile in range(count if chains > 1 else 0):
            for z in range(4):
                first = tile * chains * 4 + z
                total = acc[first]
                for chain in range(1, chains):
                    total = total + acc[first + chain * 4]
                k.store(acc, total, first)
        if team.warps_k == 1:
            return [acc[tile * 4 * chains + z] for tile in range(count) for z in range(4)]
        group = ids.warp_u * team.warps_n + ids.warp_n

        def partial(warp_k: Expr, m: int, tile: Expr) -> Expr:
            row = ((group * team.warps_k + warp_k) * m_tiles + m) * team.tiles + tile
            return self.arena.ptr_to([self.partial_at + (row * LANES + ids.lane) * 4])

        if not self._separated(phase):
            k.do(I.cuda.cta_sync())
        own, part = k.local(m_tiles * team.own_tiles * 4), k.local(4 * team.warps_k)
        # One branch per warp of the K parts, so that its own tiles are registers known now: only the others' travel.
        for warp_k in range(team.warps_k):
            with k.when(ids.warp_k == warp_k):
                for tile in (t for t in range(team.tiles) if t % team.warps_k != warp_k):
                    for m in range(m_tiles):
                        at = (m * team.tiles + tile) * 4 * chains
                        k.do(I.ptx["st.shared.v4.f32"](partial(warp_k, m, tile), *[acc[at + z] for z in range(4)]))
                last = warp_k >= team.tiles  # hands over all and sums nothing: it need not wait
                meet = I.ptx.bar.arrive if last else I.ptx.bar.sync
                k.do(meet(tirx.Cast("uint32", group + 1), tirx.const(LANES * team.warps_k, "uint32")))
                for j, tile in enumerate(range(warp_k, team.tiles, team.warps_k)):
                    for m in range(m_tiles):
                        self._add(partial, warp_k, m, tile, part)
                        for z in range(4):
                            total = acc[(m * team.tiles + tile) * 4 * chains + z]
                            for other in (w for w in range(team.warps_k) if w != warp_k):
                                total = total + part[other * 4 + z]
                            k.store(own, total, (m * team.own_tiles + j) * 4 + z)
        return [own[z] for z in range(m_tiles * team.own_tiles * 4)]

    def _add(self, partial: Callable[[Expr, int, Expr], Expr], warp_k: int, m: int, tile: int, part: Any) -> None:
        """Load the other warps' sums of a tile."""
        for other in (w for w in range(self.team.warps_k) if w != warp_k):
            words = [part[other * 4 + z] for z in range(4)]
            self.k.do(I.ptx["ld.shared.v4.f32"](*words, partial(other, m, tile)))


def weights(team: Team) -> list[tuple[Phase, Share]]:
    """Every product's operands, in the order of the kernel's weight pointers."""
    return [(phase, share) for phase in team.step.phases for share in team.shares[phase]]
