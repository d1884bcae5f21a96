"""How units hand values to each other inside a persistent kernel: through the cluster's shared memory, or through L2.

In: a `Team` and the kernel's writer. Out: statements to publish a tile of 8 units x 8 batch rows, to wait for a value,
and to load an operand piece. Both kinds store a value as [K block][batch row][64 bytes], twice: for even and odd steps.

Cluster: every block has a whole copy; producers write into all of them (st.async), and an mbarrier per copy counts
bytes. Two copies are enough: who writes step t + 2 has received t + 1 from everybody, who had read t before.
Grid: one copy in global memory and a counter per team, released after the writes and acquired before the reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.graph.graph import Node

from .geometry import BLOCK_WORDS, LANES, Team

Expr = Any
Store = Callable[[Expr, Expr, list[Expr]], None]
POISON = 0xFFFFFFFF
COUNTER_WORDS = 32  # a counter per 128 bytes: no two teams share a line


def _i32(value: int) -> Expr:
    return tirx.const(value, "int32")


class Exchange(ABC):
    """One kernel's exchange. `first`: the word of the arena (cluster) where values begin."""

    def __init__(self, k: Writer, team: Team, ids: Any, arena: Any, stage_at: int) -> None:
        self.k, self.team, self.ids, self.arena, self.stage_at = k, team, ids, arena, stage_at
        elements, offset = team.stage_words * 4 // team.itemsize, stage_at * 4 // team.itemsize
        self.view = I.decl_buffer((elements,), team.storage, data=arena.data, elem_offset=offset, scope="shared.dyn")
        self.pieces = 8 * team.itemsize // 16  # 16-byte pieces of 8 units
        self.par = 0  # of the step that is being written
        self.passing = k.local(4, "uint32")

    # --- addresses ---------------------------------------------------------------------------------------------------

    def word(self, node: Node, slot: Expr, kblock: Expr, row: Expr, piece: Expr) -> Expr:
        """Where a 16-byte piece of a value lies, in words from the first value."""
        size = self.team.value_words(node)
        return self.team.value_at[node] + slot * size + (kblock * self.team.rows + row) * BLOCK_WORDS + piece * 4

    # --- what the two kinds do ---------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Compute, once, what every step needs: addresses in registers."""

    @abstractmethod
    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        """Lay down one value of this lane's cell."""

    @abstractmethod
    def tile(self, node: Node, slot: int, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        """After a tile of 8 units x 8 rows is staged. when: hand over only then. y(row, unit, words): 16 bytes of y."""

    @abstractmethod
    def phase(self, slots: dict[Node, tuple[int, Expr | None, Store | None]]) -> None:
        """After all tiles of a phase: per published value the copy, the condition and where y goes."""

    @abstractmethod
    def give(self, word: Expr, words: list[Expr], slot: int) -> None:
        """A warp's part of a reduction, 2 or 4 words of each lane q: they belong at `word`."""

    @abstractmethod
    def meet(self, number: int, body: Any) -> None:
        """After all parts of the number-th reduction are given: wait for everybody's."""

    @abstractmethod
    def take(self, word: Expr, registers: list[Expr]) -> None:
        """2 or 4 words of a reduction's parts."""

    @abstractmethod
    def load(self, node: Node, slot: int, kblock: Expr, row: Expr, registers: list[Expr]) -> None:
        """An operand piece of this lane."""


class Cluster(Exchange):
    """Through distributed shared memory."""

    def __init__(self, k: Writer, team: Team, ids: Any, arena: Any, stage_at: int, barriers_at: int) -> None:
        super().__init__(k, team, ids, arena, stage_at)
        self.barriers_at = barriers_at

    @property
    def _turn(self) -> int:
        """Words from the even steps' stage to this step's."""
        return self.par * self.team.stage_words // 2

    def prepare(self) -> None:
        """Thread n sends pieces n, n + threads, ... of [destination][row][units]: neighbours write side by side."""
        team, k, ids = self.team, self.k, self.ids
        self.sends: dict[Node, list[tuple[Expr, Expr, Expr, Expr | None]]] = {}
        arena = I.cuda.cvta_generic_to_shared(self.arena.ptr_to([_i32(0)]))
        self.peers: list[tuple[Expr, Expr | None]] = []  # whom this lane sends parts of reductions to
        for i in range(-(-team.ctas // 8) if team.reductions else 0):
            peer = ids.g + i * 8
            remote = k.local(1, "uint32")
            to = tirx.Cast("uint32", tirx.Min(peer, team.ctas - 1))
            k.do(I.ptx["mapa.shared::cluster.u32"](remote[0], arena, to))
            self.peers.append((remote[0], None if (i + 1) * 8 <= team.ctas else peer < team.ctas))
        for node in team.published:
            per_row = team.units(node.shape[0]) * team.itemsize // 16
            pieces = per_row * team.rows
            found = []
            for i in range(-(-pieces * team.ctas // team.threads)):
                registers = k.local(3, "int32")
                flat = ids.thread + i * team.threads
                chunk = tirx.floormod(flat, pieces)
                row, unit = tirx.floordiv(chunk, per_row), tirx.floormod(chunk, per_row) * (16 // team.itemsize)
                k.store(registers, chunk * 4 + self.stage_word(node), 0)
                first = ids.rank * team.units(node.shape[0]) + unit
                within = tirx.floordiv(tirx.floormod(first, team.block_k) * team.itemsize, 16)
                k.store(registers, self.word(node, 0, tirx.floordiv(first, team.block_k), row, within) * 4, 1)
                # Not all blocks to the same one at once: destinations are turned by the sender's rank.
                to = tirx.floormod(tirx.floordiv(flat, pieces) + ids.rank, team.ctas)
                remote = k.local(1, "uint32")
                k.do(I.ptx["mapa.shared::cluster.u32"](remote[0], arena, tirx.Cast("uint32", to)))
                past = flat < pieces * team.ctas if (i + 1) * team.threads > pieces * team.ctas else None
                found.append((registers[0], registers[1], remote[0], past))
            self.sends[node] = found

    def stage_word(self, node: Node) -> int:
        team, at = self.team, self.stage_at
        for other in team.published:
            if other is node:
                return at
            at += team.stage_size(other)
        raise KeyError(node)

    def _barrier(self, node: Node, slot: Expr) -> Expr:
        """Word of the mbarrier (8 bytes) of one copy of a value."""
        return self.barriers_at + (self.team.published.index(node) * 2 + slot) * 2

    def _pointer(self, node: Node, slot: Expr) -> Expr:
        return self.arena.ptr_to([self._barrier(node, slot)])

    def _reduce_barrier(self, slot: Expr) -> Expr:
        return self.barriers_at + (len(self.team.published) * 2 + slot) * 2

    def start(self) -> None:
        team = self.team
        pointers = [self._pointer(node, slot) for node in team.published for slot in range(2)]
        pointers += [self.arena.ptr_to([self._reduce_barrier(slot)]) for slot in range(2) if team.reductions]
        with self.k.when(self.ids.thread == 0):
            for pointer in pointers:
                self.k.do(I.ptx.mbarrier.init.shared.b64(pointer, tirx.const(1, "uint32")))
            self.k.do(I.ptx.fence.mbarrier_init.release.cluster())
            for slot in range(2) if team.reductions else ():
                self._expect_parts(slot, slot)

    def expect(self, node: Node, slot: Expr, when: Expr | None = None) -> None:
        """Say how many bytes will come for this copy."""
        team = self.team
        pieces = team.ctas * team.units(node.shape[0]) * team.itemsize // 16
        condition = self.ids.thread == 0 if when is None else tirx.And(self.ids.thread == 0, when)
        with self.k.when(condition):
            count = tirx.const(pieces * team.rows * 16, "uint32")
            self.k.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](self._pointer(node, slot), count))

    def _expect_parts(self, number: int, slot: int) -> None:
        """Say how many bytes the number-th reduction (of all, counted on) brings into a buffer."""
        team = self.team
        phase = team.reductions[number % len(team.reductions)]
        count = tirx.const(len(phase.roots) * team.parts * team.rows * 4, "uint32")
        pointer = self.arena.ptr_to([self._reduce_barrier(slot)])
        self.k.do(I.ptx["mbarrier.arrive.expect_tx.shared.b64"](pointer, count))

    def give(self, word: Expr, words: list[Expr], slot: int) -> None:
        """Lane (g, q) sends to blocks g and g + 8."""
        k = self.k
        name = f"st_async.weak.shared::cluster.mbarrier::complete_tx::bytes.v{len(words)}.b32"
        at = k.keep(tirx.Cast("uint32", word * 4))
        for remote, past in self.peers:
            with k.when(_all([] if past is None else [past])):
                barrier = remote + tirx.const(self._reduce_barrier(slot) * 4, "uint32")
                k.do(I.ptx[name](remote + at, *words, barrier))

    def meet(self, number: int, body: Any) -> None:
        """A warp whose K part is all that it has of the product (no cells) gave nothing and needs nothing."""
        k, each = self.k, len(self.team.reductions)
        slot = (body.par * each + number) % 2
        # Reductions are counted through all steps; every second one uses this buffer.
        uses = tirx.floordiv(body.t, 2) * each + (body.par * each + number) // 2
        with body._own_tile(0):
            pointer = self.arena.ptr_to([self._reduce_barrier(slot)])
            k.do(I.cuda.mbarrier_wait_acquire_cluster(pointer, tirx.floormod(uses, 2)))
            with k.when(self.ids.thread == 0):
                self._expect_parts(number + 2, slot)

    def take(self, word: Expr, registers: list[Expr]) -> None:
        self.k.do(I.ptx[f"ld.shared.v{len(registers)}.b32"](*registers, self.arena.ptr_to([word])))

    def wait(self, node: Node, slot: Expr, parity: Expr) -> None:
        self.k.do(I.cuda.mbarrier_wait_acquire_cluster(self._pointer(node, slot), parity))

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        """[row][units of this block]."""
        team, ids = self.team, self.ids
        units = team.units(node.shape[0])
        tile = ids.warp_n * team.tiles + team.own_tile(j, ids.warp_k)
        unit = (ids.warp_u * team.blocks(node.shape[0]) + block) * 8 + ids.g
        at = (self.stage_word(node) + self._turn - self.stage_at) * 4 // team.itemsize
        self.k.store(self.view, value, at + (tile * 8 + ids.q * 2 + e) * units + unit)

    def tile(self, node: Node, slot: int, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        """Nothing: a phase is handed over as a whole."""

    def phase(self, slots: dict[Node, tuple[int, Expr | None, Store | None]]) -> None:
        if not slots:
            return
        k, team = self.k, self.team
        k.do(I.cuda.cta_sync())
        for node, (slot, when, y) in slots.items():
            copy = slot * team.value_words(node) * 4
            words = [self.passing[z] for z in range(4)]
            for stage, address, remote, past in self.sends[node]:
                conditions = [c for c in (when, past) if c is not None]
                k.do(I.ptx["ld.shared.v4.b32"](*words, self.arena.ptr_to([stage + self._turn])))
                with k.when(_all(conditions)):
                    target = remote + tirx.Cast("uint32", address + copy)
                    barrier = remote + tirx.const(self._barrier(node, slot) * 4, "uint32")
                    name = "st_async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32"
                    k.do(I.ptx[name](target, *words, barrier))
            if y is not None:
                self._store_y(node, words, y)

    def _store_y(self, node: Node, words: list[Expr], y: Store) -> None:
        """This block's part of y, 16 bytes per thread."""
        k, team, thread = self.k, self.team, self.ids.thread
        per_row = team.units(node.shape[0]) * team.itemsize // 16
        pieces = per_row * team.rows
        for i in range(-(-pieces // team.threads)):
            flat = thread + i * team.threads
            row, unit = tirx.floordiv(flat, per_row), tirx.floormod(flat, per_row) * (16 // team.itemsize)
            with k.when(flat < pieces):
                at = flat * 4 + self.stage_word(node) + self._turn
                k.do(I.ptx["ld.shared.v4.b32"](*words, self.arena.ptr_to([at])))
                y(row, self.ids.rank * team.units(node.shape[0]) + unit, words)

    def load(self, node: Node, slot: int, kblock: Expr, row: Expr, registers: list[Expr]) -> None:
        at = self.word(node, slot, kblock, row, self.ids.q)
        self.k.do(I.ptx["ld.shared.v4.b32"](*registers, self.arena.ptr_to([at])))


class Grid(Exchange):
    """Through global memory: buffers "exchange" (words) and "counter"."""

    def __init__(self, k: Writer, team: Team, ids: Any, arena: Any, stage_at: int) -> None:
        super().__init__(k, team, ids, arena, stage_at)
        self.base = tirx.Cast("int64", ids.team) * team.exchange_words

    def _counter(self, name: str = "counter") -> Expr:
        return self.k[name].ptr_to([tirx.Cast("int64", self.ids.team) * COUNTER_WORDS])

    def arrive(self) -> None:
        """After all threads' writes: this block has published."""
        self.k.do(I.cuda.cta_sync())
        with self.k.when(self.ids.thread == 0):
            self.k.do(I.ptx["red.release.gpu.global.add.u32"](self._counter(), tirx.const(1, "uint32")))

    def _spin(self, counter: str, events: Expr) -> None:
        k = self.k
        seen = k.local(1, "uint32")
        k.store(seen, tirx.const(0, "uint32"), 0)
        with I.While(seen[0] < tirx.Cast("uint32", events * self.team.ctas)):
            k.do(I.ptx["ld.acquire.gpu.global.u32"](seen[0], self._counter(counter)))

    def wait(self, events: Expr, below: Expr | None = None, when: Expr | None = None) -> None:
        """Until every block of the team has published `events` times since the launch, and, when that holds, those of
        the layer below `below` times: another warp looks at their counter."""
        k = self.k
        with k.when(self.ids.thread == 0):
            self._spin("counter", events)
        if below is not None and when is not None:
            other = LANES if self.team.warps > 1 else 0
            with k.when(tirx.And(self.ids.thread == other, tirx.And(_follows(k), when))):
                self._spin("below", below)
        k.do(I.cuda.cta_sync())

    def follow(self, events: Expr) -> None:
        """The same for the layer below alone, where there is one."""
        with self.k.when(tirx.And(self.ids.thread == 0, _follows(self.k))):
            self._spin("below", events)
        self.k.do(I.cuda.cta_sync())

    def prepare(self) -> None:
        """The word, within copy 0, of the piece that this lane hands over of each tile."""
        team, k, ids = self.team, self.k, self.ids
        self.addresses: dict[tuple[Node, int, int], Expr] = {}
        self.chunk = tirx.floormod(ids.lane, 8 * self.pieces)
        for node in team.published:
            for j in range(team.own_tiles):
                for block in range(team.blocks(node.shape[0])):
                    register = k.local(1, "int32")
                    unit = ids.rank * team.units(node.shape[0])
                    unit = unit + (ids.warp_u * team.blocks(node.shape[0]) + block) * 8
                    piece = tirx.floordiv(tirx.floormod(unit, team.block_k) * team.itemsize, 16)
                    piece = piece + tirx.floormod(self.chunk, self.pieces)
                    row = self._tile(j) * 8 + tirx.floordiv(self.chunk, self.pieces)
                    k.store(register, self.word(node, 0, tirx.floordiv(unit, team.block_k), row, piece), 0)
                    self.addresses[(node, block, j)] = register[0]

    def _tile(self, j: int) -> Expr:
        team, ids = self.team, self.ids
        return ids.warp_n * team.tiles + team.own_tile(j, ids.warp_k)

    def stage(self, node: Node, block: int, j: int, e: int, value: Expr) -> None:
        """This warp's own tile: [8 rows][8 units]."""
        self.k.store(self.view, value, self.ids.warp * 64 + (self.ids.q * 2 + e) * 8 + self.ids.g)

    def tile(self, node: Node, slot: int, block: int, j: int, when: Expr | None, y: Store | None) -> None:
        k, team, lane, chunks = self.k, self.team, self.ids.lane, 8 * self.pieces
        k.do(I.cuda.warp_sync())
        words = [self.passing[z] for z in range(4)]
        at = self.stage_at + self.ids.warp * (16 * team.itemsize) + self.chunk * 4
        k.do(I.ptx["ld.shared.v4.b32"](*words, self.arena.ptr_to([at])))
        only = [lane < chunks] if chunks < LANES else []
        with k.when(_all(([] if when is None else [when]) + only)):
            self.hand(node, slot, self.addresses[(node, block, j)], words)
        if y is not None:
            unit = self.ids.rank * team.units(node.shape[0])
            unit = unit + (self.ids.warp_u * team.blocks(node.shape[0]) + block) * 8
            with k.when(lane < 8):
                y(self._tile(j) * 8 + lane, unit, words)
        k.do(I.cuda.warp_sync())

    def hand(self, node: Node, slot: int, address: Expr, words: list[Expr]) -> None:
        """Store one piece in a copy of a value."""
        place = self.base + address + slot * self.team.value_words(node)
        self.k.do(I.ptx["st.global.v4.b32"](self.k["exchange"].ptr_to([place]), *words))

    def phase(self, slots: dict[Node, tuple[int, Expr | None, Store | None]]) -> None:
        if slots:
            self.arrive()

    def give(self, word: Expr, words: list[Expr], slot: int) -> None:
        with self.k.when(self.ids.g == 0):
            place = self.k["exchange"].ptr_to([self.base + word])
            self.k.do(I.ptx[f"st.global.v{len(words)}.b32"](place, *words))

    def meet(self, number: int, body: Any) -> None:
        self.arrive()
        events = self.team.events
        done = events.index(self.team.reductions[number]) + 1
        self.wait(body.t * len(events) + 1 + done)
        body.waited = done + 1

    def take(self, word: Expr, registers: list[Expr]) -> None:
        place = self.k["exchange"].ptr_to([self.base + word])
        self.k.do(I.ptx[f"ld.relaxed.gpu.global.v{len(registers)}.b32"](*registers, place))

    def load(self, node: Node, slot: int, kblock: Expr, row: Expr, registers: list[Expr]) -> None:
        at = self.base + self.word(node, slot, kblock, row, self.ids.q)
        self.k.do(I.ptx["ld.relaxed.gpu.global.v4.b32"](*registers, self.k["exchange"].ptr_to([at])))


def _follows(k: Writer) -> Expr:
    return tirx.NE(k["follows"], _i32(0))


def _all(conditions: list[Expr]) -> Expr:
    """Conditions joined; none: true."""
    if not conditions:
        return tirx.const(True, "bool")
    found = conditions[0]
    for condition in conditions[1:]:
        found = tirx.And(found, condition)
    return found
