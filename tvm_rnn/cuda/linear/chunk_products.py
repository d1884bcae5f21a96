"""Products of a chunk that warps of states and of read-outs have in common: 16 values of all steps, in registers.

In: the kernel's body, a warp's number. Out: `Products`. Sums of one product are the left operand of the next one, and
nothing but right operands comes from shared memory; results go to memory by way of it.

Source: sums as operands: Dao 2023, "FlashAttention-2".
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS, LDMATRIX
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .chunk_block import Block
from .chunk_tile import BLOCK, further, piece_bytes, swizzled
from .recurrence import Rows

TURNED = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
STORE_TURNED = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
AHEAD = 2  # blocks of scores that are asked for before the two products that take one
OLD, WRITTEN = 0, 1  # what warps of states hand to those of read-outs, in this order


class Products:
    """warp: the number of this one, among those of its kind: which 16 values it has. old: S before the part, as left
    operand; first: the first step of the part."""

    old: RegisterTile
    first: Expr

    def __init__(self, block: Block, warp: TirExpr) -> None:
        self.body, self.w, self.scan, self.warp = block, block.w, block.scan, warp
        self.recurrence, self.tile, self.precision = block.recurrence, block.tile, block.recurrence.precision
        self.deep, self.blocks = self.scan.keys // BLOCK, self.scan.part // BLOCK
        self.lane = block.lane

    def _enter(self, number: TirExpr) -> None:
        """A chunk: where its operands and scores are."""
        w, body = self.w, self.body
        self.number = number
        self.stage = w.keep(body.base + tirx.Cast("uint32", body.slot(number)))
        parity = number % 2 * self.scan.score_bytes + self.scan.scores_at
        self.scores = w.keep(body.base + tirx.Cast("uint32", parity))
        key_line = self.lane // 16 * 8 + self.lane % 8  # of right operands whose rows are columns of the product
        pitch = self.scan.key_pitch
        at = key_line * pitch + swizzled(pitch, self.lane, self.lane // 8 % 2 * 16)
        self.key_at = w.bind(tirx.Cast("uint32", at))
        self.score_at = w.bind(tirx.Cast("uint32", key_line * self.scan.score_pitch + self.lane // 8 % 2 * 16))

    def _operand(self, sums: RegisterTile, count: int) -> RegisterTile:
        """Sums [2 count tiles of 8 columns] as the left operand of `count` steps of K."""
        words = self.w.tile(count, 4, dtype="uint32")
        for k in range(count):
            self._pack_block(words, k, [sums[2 * k], sums[2 * k + 1]])
        return words

    def _pack_block(self, words: RegisterTile, k: int, tiles: list[tuple[TirExpr, ...]]) -> None:
        for i in range(4):
            tile = tiles[i // 2]
            pack(self.w, self.precision, words[k][i], tile[2 * (i % 2)], tile[2 * (i % 2) + 1])

    def _multiply(self, sums: tuple[TirExpr, ...], a: tuple[TirExpr, ...], b: tuple[TirExpr, ...]) -> None:
        self.w.do(I.ptx[INSTRUCTIONS[self.precision]](*sums, *a, *b, *sums))

    def _of_states(self, sums: RegisterTile, vector: str) -> Iterator[None]:
        """<vector, S> of all steps of the chunk: one step of K after the other."""
        w, scan = self.w, self.scan
        at = w.bind(self.stage + self.key_at + self._offset(scan.vector_at(vector), scan.key_pitch))
        b = w.tile(2, self.blocks, 2, 2, dtype="uint32")
        sums.fill(tirx.const(0.0, "float32"))

        def load(k: int) -> None:
            for block in range(self.blocks):
                own = further(scan.key_pitch, at, k) + uint32(block * BLOCK * scan.key_pitch)
                w.do(I.ptx[LDMATRIX.format("x4")](*b[k % 2, block, 0], *b[k % 2, block, 1], own))

        load(0)
        for k in range(self.deep):
            if k + 1 < self.deep:
                load(k + 1)
            for n in range(2 * self.blocks):
                self._multiply(sums[n], self.old[k], b[k % 2, n // 2, n % 2])
            yield

    def _offset(self, at: int, pitch: int) -> TirExpr:
        """Where rows of the first step of the part begin."""
        return tirx.Cast("uint32", self.first * pitch + at)

    def _scaled(self, name: str, n: int) -> tuple[TirExpr, ...]:
        """A number of the steps of a tile's two columns."""
        return self.body.numbers.two(name, self.number, self.w.bind(self.first + 8 * n + self.lane % 4 * 2))

    def _scale(self, sums: RegisterTile, name: str) -> None:
        """Times a number of each step, if they have one."""
        if name not in self.body.numbers.buffers:
            return
        for n in range(2 * self.blocks):
            scale = self._scaled(name, n)
            for j in range(4):
                sums.store(sums[n][j] * scale[j % 2], n, j)

    def _scores(self, block: int, other: int, which: int) -> RegisterTile:
        """The scores of 16 steps of what 16 others wrote, as a right operand."""
        w, scan = self.w, self.scan
        b = w.tile(2, 2, dtype="uint32")
        row = 0 if scan.alone(which) else block * BLOCK
        own = scan.score_at(which) + row * scan.score_pitch + other * BLOCK * 2
        at = self.scores + self.score_at + self._offset(own, scan.score_pitch + 2)
        w.do(I.ptx[LDMATRIX.format("x4")](*b[0], *b[1], at))
        return b

    def _add(self, sums: RegisterTile, a: tuple[TirExpr, ...], block: int, b: RegisterTile) -> None:
        """To the steps of `block`: what others wrote, times scores."""
        for n in range(2):
            self._multiply(sums[2 * block + n], a, b[n])

    def _read(self, i: int, output: Rows, sums: RegisterTile, written: dict[str, RegisterTile]) -> None:
        """A read-out of all steps, stored. written: by what it was written along."""
        self._scale(sums, f"read_{i}")
        whose = {(vector, column): n for n, (vector, _, column) in enumerate(self.scan.scores)}
        pairs = [
            (block, other, whose[f"read_{i}", column], own)
            for column, own in written.items()
            for other in range(self.blocks)
            for block in range(other, self.blocks)
        ]
        self._add_all(sums, pairs)
        self._store(i, output, self._operand(sums, self.blocks))

    def _add_all(self, sums: RegisterTile, pairs: list[tuple[int, int, int, RegisterTile]]) -> None:
        """To the steps of blocks what others wrote, times scores: (block, other, which scores, what was written)."""
        loaded = [self._scores(*pair[:3]) for pair in pairs[:AHEAD]]
        for number, (block, other, _, own) in enumerate(pairs):
            now, loaded = loaded[0], loaded[1:]
            if number + AHEAD < len(pairs):
                loaded.append(self._scores(*pairs[number + AHEAD][:3]))
            self._add(sums, own[other], block, now)

    def _store(self, i: int, output: Rows, words: RegisterTile) -> None:
        """Results to memory, by way of shared memory: a row's 16 values lie side by side there."""
        w, scan, body, lane = self.w, self.scan, self.body, self.lane
        pitch = scan.result_pitch
        begin = w.bind(scan.results_at + self.warp * (self.tile.chunk * pitch))
        line = lane // 16 * 8 + lane % 8
        into = w.bind(body.base + tirx.Cast("uint32", begin + line * pitch + lane // 8 % 2 * 16))
        w.do(I.cuda.warp_sync())
        for block in range(self.blocks):
            w.do(I.ptx[STORE_TURNED](into + uint32(block * BLOCK * pitch), *words[block]))
        w.do(I.cuda.warp_sync())
        step0 = w.bind(self.number * self.tile.chunk + self.first)
        value0 = w.bind(body.value0 + self.warp * BLOCK)
        if piece_bytes(output) == 16:
            four = w.tile(1, 4, dtype="uint32")
            for turn in range(self.blocks):
                line, half = w.bind(turn * BLOCK + lane // 2), w.bind(lane % 2)
                at = body.base + tirx.Cast("uint32", begin + line * pitch + half * 16)
                w.do(I.ptx["ld.shared.v4.b32"](*four[0], at))
                value = w.bind(value0 + half * 8)
                with w.when(tirx.And(body.stored(step0 + line), value < output.width)):
                    to = w[f"output_{i}"].ptr_to([body.element(output, step0 + line, value)])
                    w.do(I.ptx["st.global.v4.b32"](to, *four[0]))
            return
        with w.loop(scan.part // 2) as pair:
            line, column = w.bind(pair * 2 + lane // 16), w.bind(lane % 16)
            value = w.bind(value0 + column)
            with w.when(tirx.And(body.stored(step0 + line), value < output.width)):
                found = body.words[tirx.truncdiv(begin + line * pitch, 2) + column]
                w.store(w[f"output_{i}"], found, body.element(output, step0 + line, value))

    # --- what a warp of states hands to others, of the same values --------------------------------------------------

    def _handed(self, words: RegisterTile, at: int, how: str) -> None:
        """Left operands to shared memory, or from there. at: where they begin, from those of the warp on."""
        begin = self.scan.handed_at + at + self.warp * self.scan.handed_bytes
        place = self.w.bind(self.body.base + tirx.Cast("uint32", begin + self.lane * 16))
        for k in range(words.shape[0]):
            own = place + uint32(512 * k)
            given = (own, *words[k]) if how.startswith("st") else (*words[k], own)
            self.w.do(I.ptx[f"{how}.shared.v4.b32"](*given))

    def _given(self, count: int, at: int) -> RegisterTile:
        """What was handed on."""
        words = self.w.tile(count, 4, dtype="uint32")
        self._handed(words, at, "ld")
        return words

    def _barrier(self, what: int) -> tuple[TirExpr, TirExpr]:
        """Of the warps: its number, and how many threads meet there."""
        return tirx.Cast("uint32", self.scan.barrier(self.warp, what)), uint32(32 * self.scan.meeting(what))
