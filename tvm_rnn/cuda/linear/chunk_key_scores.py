"""The warps of a chunk scan that make scores, where each key decays by itself: operands are scaled before their use.

In: the kernel's body, a warp's number, which is that of its block of 16 steps. Out: statements that leave in shared
memory, for each block, its scores; and in place of operands: vectors that read or erase, times what their step has of
S before the block; keys, times what is left of them behind the block; in the block's first row of decays, the product
of all. States go through one block after the other: no score of two blocks is needed.

A score is the sum over keys of read_t key_s times the decays of the steps from s to t. A block's pairs are those of
the two halves of 16 steps, of 8, of 4 and of 2. For the pairs of all halves of a size, vectors and keys are multiplied
by the decays on their side of the middle; then tensor cores multiply them. All factors are products of decays, at most
1: nothing overflows, no logarithm is taken, and a decay of 0 or a reset is a factor of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.register_tile import RegisterTile
from tvm_rnn.cuda.codegen.vector_access import pack, unpack
from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS, LDMATRIX
from tvm_rnn.tir.expr import Buffer, TirExpr
from tvm_rnn.tir.index import uint32

from .chunk_block import Block
from .chunk_scores import Scorers, Sums
from .chunk_tile import BLOCK, HALVES_PITCH, SLICE, turned
from .recurrence import BEFORE

HALVES = (1, 2, 4, 8)  # steps of a half
Put = Callable[[int, TirExpr], None]


class KeyScorers(Scorers):
    """halves: where halves that are multiplied with each other are in shared memory; step0: the first of the block."""

    def __init__(self, block: Block, warp: TirExpr) -> None:
        super().__init__(block, warp)
        count = self.tile.scorers * BLOCK * HALVES_PITCH
        halves = I.alloc_buffer((count,), "uint8", scope="shared", align=16)
        self.halves = self.w.bind(I.cuda.cvta_generic_to_shared(halves.ptr_to([warp * (BLOCK * HALVES_PITCH)])))
        self.step0 = self.w.bind(warp * BLOCK)

    def make(self, number: TirExpr) -> None:
        """Scores and operands of a chunk."""
        own = self.recurrence
        scores, every = self._enter(number), len(own.columns)
        for first in range(0, len(own.scores), every):
            vector, of, _ = own.scores[first]
            sums = {column: self.w.tile(1 + len(HALVES), 2, 4) for _, _, column in own.scores[first : first + every]}
            for found in sums.values():
                found.fill(tirx.const(0.0, "float32"))
            self._slices(partial(self._vectors, vector, of, sums))
            for which, column in enumerate(sums, first):
                at = self.w.bind(scores + uint32(self.scan.score_at(which)))
                solved = own.erasing is not None and not which
                rows = self._where(which, at, self.warp, solved)
                chosen = self._chosen(sums[column], rows.own, rows.scale)
                self._keep(self._inverse(chosen) if solved else chosen, rows, self.warp)
        for column in own.columns:
            self._slices(partial(self._keys, column, column == own.columns[-1]))

    def _slices(self, body: Callable[[TirExpr, int], None]) -> None:
        """All keys. body: of the first of some keys, and how many."""
        full, rest = divmod(self.scan.keys, SLICE)
        if full:
            with self.w.loop(full) as turn:
                body(self.w.bind(turn * SLICE), SLICE)
        if rest:
            body(tirx.const(full * SLICE, "int32"), rest)

    # --- a slice of keys: two of them to a lane ----------------------------------------------------------------------

    def _vectors(self, vector: str, of: str, sums: dict[str, RegisterTile], key0: TirExpr, width: int) -> None:
        """What keys of a slice, from `key0` on, add to scores; vectors, scaled. sums: by what was written along, of
        steps with themselves, and of each half."""
        w, pitch = self.w, self.scan.key_pitch
        read_at = self._block_at(vector, key0)
        decays, reads = w.tile(BLOCK, 2), w.local(BLOCK, "uint32")
        with self._lanes(width):
            self._load_decays(decays, key0)
            self._load(reads, read_at)
            if of == BEFORE and self.body.keeps:
                for t in range(BLOCK):
                    keeps = self.body.numbers.load("keep", self.number, self.step0 + t) > 0
                    w.store(reads, tirx.Select(keeps, reads[t], uint32(0)), t)
        for column, found in sums.items():
            key_at, writes = self._block_at(column, key0), w.local(BLOCK, "uint32")
            if turned(of):
                self._multiply(found, 0, (read_at + self._rows_at(pitch), key_at + self._columns_at(pitch)), width)
            with self._lanes(width):
                self._load(writes, key_at)
            for half, steps in enumerate(HALVES, 1):
                w.do(I.cuda.warp_sync())
                with self._lanes(width):
                    put = self._putting(self.halves, HALVES_PITCH)
                    for middle in range(steps, BLOCK, 2 * steps):
                        self._walk(writes, range(middle - 1, middle - 1 - steps, -1), decays, False, put)
                        self._walk(reads, range(middle, middle + steps), decays, of != BEFORE, put)
                w.do(I.cuda.warp_sync())
                places = self.halves + self._rows_at(HALVES_PITCH), self.halves + self._columns_at(HALVES_PITCH)
                self._multiply(found, half, places, width)
        with self._lanes(width):
            self._walk(reads, range(BLOCK), decays, of != BEFORE, self._putting(read_at, self.scan.key_pitch))

    def _keys(self, column: str, last: bool, key0: TirExpr, width: int) -> None:
        """Keys of a slice, scaled, and of the last column, because decays are read before, what the block leaves of
        S."""
        w, at = self.w, self._block_at(column, key0)
        decays, writes = w.tile(BLOCK, 2), w.local(BLOCK, "uint32")
        with self._lanes(width):
            self._load_decays(decays, key0)
            self._load(writes, at)
            put = self._putting(at, self.scan.key_pitch)
            left = self._walk(writes, range(BLOCK - 1, -1, -1), decays, False, put)
            if last:
                w.do(I.ptx["st.shared.v2.f32"](self._decays_at(key0), *left))

    def _walk(
        self, words: Buffer, steps: Iterable[int], decays: RegisterTile, own: bool, put: Put
    ) -> Sequence[TirExpr]:
        """Words of steps, times the decays of those before, and of the step itself if `own`. All decays' product."""
        passed: Sequence[TirExpr] = ()
        for t in steps:
            longer = [self.w.keep(a * b) for a, b in zip(passed, decays[t], strict=True)] if passed else decays[t]
            passed, factors = longer, longer if own else passed
            word = words[t]
            if factors:
                scaled = self.w.local(1, "uint32")
                low, high = unpack(self.precision, word)
                pack(self.w, self.precision, scaled[0], low * factors[0], high * factors[1])
                word = scaled[0]
            put(t, word)
        return passed

    def _multiply(self, sums: RegisterTile, number: int, places: tuple[TirExpr, TirExpr], width: int) -> None:
        """Add products of rows. Of the largest halves only the first 8 columns have any, of others only 8 x 8 of both
        steps."""
        w = self.w
        a_at, b_at = (w.bind(place) for place in places)
        a, b = w.tile(width // BLOCK, 4, dtype="uint32"), w.tile(width // BLOCK, 2, 2, dtype="uint32")
        for k in range(width // BLOCK):
            w.do(I.ptx[LDMATRIX.format("x4")](*a[k], a_at + uint32(32 * k)))
            w.do(I.ptx[LDMATRIX.format("x4")](*b[k, 0], *b[k, 1], b_at + uint32(32 * k)))
        for k in range(width // BLOCK):
            for n in range(1 if number == len(HALVES) else 2):
                d = sums[number, n]
                w.do(I.ptx[INSTRUCTIONS[self.precision]](*d, *a[k], *b[k, n], *d))

    def _chosen(self, sums: RegisterTile, own: bool, scale: Sequence[TirExpr] | None) -> Sums:
        """Of each pair of steps, the sum of the halves that it is in; 0 where a step would read later ones."""
        w, zero = self.w, tirx.const(0.0, "float32")
        found: list[list[TirExpr]] = [[], []]
        for n in range(2):
            for i in range(4):
                half, column = i // 2, w.bind(self.q + i % 2)
                line = self.body.lane // 4
                value: TirExpr = zero
                if half > n:
                    value = sums[len(HALVES), n][i]
                elif half == n:
                    value = sums[0, n][i] if own else zero
                    apart = w.bind(line ^ column)
                    for number, steps in enumerate(HALVES[:-1], 1):
                        value = tirx.Select(apart >= steps, sums[number, n][i], value)
                    value = tirx.Select(column <= line, value, zero)
                found[n].append(w.keep(value if scale is None else value * scale[half]))
        return found

    # --- shared memory -----------------------------------------------------------------------------------------------

    def _lanes(self, width: int) -> AbstractContextManager[None]:
        """Those that have keys of a slice."""
        return nullcontext() if width == SLICE else self.w.when(self.body.lane < width // 2)

    def _rows_at(self, pitch: int) -> TirExpr:
        """What a lane's row of a left operand is away from the first."""
        lane = self.body.lane
        return tirx.Cast("uint32", lane % 16 * pitch + lane // 16 * 16)

    def _columns_at(self, pitch: int) -> TirExpr:
        """The same of a right operand, whose rows are columns of the product."""
        lane = self.body.lane
        return tirx.Cast("uint32", (lane // 16 * 8 + lane % 8) * pitch + lane // 8 % 2 * 16)

    def _block_at(self, vector: str, column: TirExpr) -> TirExpr:
        """Where a block of vectors begins, at the first key of a slice."""
        at = self.scan.vector_at(vector) + self.step0 * self.scan.key_pitch + column * 2
        return self.w.bind(self.stage + tirx.Cast("uint32", at))

    def _decays_at(self, column: TirExpr) -> TirExpr:
        """Where a lane's two decays of the first step are."""
        at = self.scan.decay_at + self.step0 * self.scan.decay_pitch + (column + self.body.lane * 2) * 4
        return self.w.bind(self.stage + tirx.Cast("uint32", at))

    def _load(self, words: Buffer, at: TirExpr) -> None:
        """A lane's two numbers of each step."""
        own = self.w.bind(at + tirx.Cast("uint32", self.body.lane * 4))
        for t in range(BLOCK):
            self.w.do(I.ptx["ld.shared.b32"](words[t], own + uint32(t * self.scan.key_pitch)))

    def _putting(self, at: TirExpr, pitch: int) -> Put:
        """What stores a lane's two numbers of a step."""
        own = self.w.bind(at + tirx.Cast("uint32", self.body.lane * 4))
        return lambda t, word: self.w.do(I.ptx["st.shared.b32"](own + uint32(t * pitch), word))

    def _load_decays(self, decays: RegisterTile, column: TirExpr) -> None:
        """Of each step; 0 where it begins with no states, 1 behind the last."""
        w, at = self.w, self._decays_at(column)
        first = w.bind(self.number * self.tile.chunk + self.step0)
        for t in range(BLOCK):
            w.do(I.ptx["ld.shared.v2.f32"](*decays[t], at + uint32(t * self.scan.decay_pitch)))
            for i in range(2):
                value = decays[t][i]
                if self.recurrence.log_decay:
                    value = tirx.call_pure_extern("float32", "expf", value)
                if self.body.keeps:
                    value = value * self.body.numbers.load("keep", self.number, self.step0 + t)
                decays.store(tirx.Select(self.body.there(first + t), value, tirx.const(1.0, "float32")), t, i)
