"""The warps of a chunk scan that copy operands and make scores: what a step reads of what the steps before it wrote.

In: the kernel's body, a warp's number. Out: statements that leave in shared memory, for each read-out, the scores of a
chunk, [step][step written], and for the erasure those times its scale, whose blocks of 16 on the diagonal are replaced
by the inverse of 1 - block: substitution, in float32. And numbers of each step, which `chunk_states.py` multiplies by.

A warp has 16 steps of the erasure and 16 of each read-out, whose order is reversed: all have as many blocks to make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.gemm.mma_sync import INSTRUCTIONS, LDMATRIX
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import uint32, wide

from .chunk_tile import BLOCK, exp2, pack, turned
from .recurrence import BEFORE, erase_name

if TYPE_CHECKING:
    from .chunk_scan import Body

GONE = (
    -160.0
)  # log2 of what counts as 0, so that sums of a chunk's stay exact enough: 64 GONE to 10 bits behind the point
LOG2_E = 1.4426950408889634
NEVER = -1000.0  # log2 of 0, once
TRIANGLE_PITCH = 20


class Scorers:
    """warp: the number of this one, among those of scores."""

    def __init__(self, body: Body, warp: TirExpr) -> None:
        self.body, self.w, self.scan, self.warp = body, body.w, body.scan, warp
        self.recurrence, self.tile, self.precision = body.recurrence, body.tile, body.recurrence.precision
        self.per = self.tile.chunk // 32  # steps of a lane, where a warp goes through a chunk
        self.raw = {name: self.w.local(self.per) for name in self._read_numbers()}
        self.sums = {}
        if body.weighted:
            for name in ("before", "after"):
                self.sums[name] = I.alloc_buffer((self.tile.chunk,), "float32", scope="shared")
        self.scale = None
        if self.recurrence.erase is not None and self.recurrence.erase.scale is not None:
            self.scale = I.alloc_buffer((self.tile.chunk,), "float32", scope="shared")
        count = self.tile.scorers * BLOCK * TRIANGLE_PITCH
        self.triangle = I.alloc_buffer((count,), "float32", scope="shared", align=16)

    def _read_numbers(self) -> tuple[str, ...]:
        return (*self.recurrence.numbers, *(("reset",) if self.body.masked else ()))

    # --- chunks in time --------------------------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        return self.tile.stages - 2

    def begin(self) -> None:
        """The copies of the first chunks."""
        w = self.w
        for early in range(self.ahead):
            with w.when(self.body.chunks > early):
                self.body.fill(tirx.const(early, "int32"))
            w.do(I.ptx["cp.async.commit_group"]())
        self._ask(tirx.const(0, "int32"))

    def wait(self) -> None:
        """For the copies of the next chunk."""
        self.w.do(I.ptx["cp.async.wait_group"](self.ahead - 1))

    def make(self, number: TirExpr) -> None:
        """Scores and numbers of a chunk."""
        w = self.w
        with w.when(tirx.EQ(self.warp, 0)):
            self._numbers(number)
            self._ask(w.keep(number + 1))
        with w.when(number + self.ahead < self.body.chunks):
            self.body.fill(w.keep(number + self.ahead))
        w.do(I.ptx["cp.async.commit_group"]())
        w.do(I.ptx.bar.sync(1, uint32(32 * self.tile.scorers)))
        stage = w.keep(self.body.base + tirx.Cast("uint32", self.body.slot(number)))
        scores = w.keep(self.body.base + tirx.Cast("uint32", self.scan.scores_at + self._set(number, 0)))
        erase = self.recurrence.erase
        if erase is not None:
            self._score(stage, scores, self.warp, (erase_name(erase), erase.of, True))
        backwards = w.bind((self.tile.scorers - 1) - self.warp)
        for i, read in enumerate(self.recurrence.reads):
            own = w.bind(scores + uint32((i + (erase is not None)) * self.scan.score_bytes))
            self._score(stage, own, backwards, (f"read_{i}", read.of, False))

    def _set(self, number: TirExpr, which: int) -> TirExpr:
        return (number % 2 * self.scan.score_sets + which) * self.scan.score_bytes

    # --- numbers of steps ------------------------------------------------------------------------------------------

    def _ask(self, number: TirExpr) -> None:
        """Load what warp 0 needs of a chunk: two steps a lane."""
        w, body = self.w, self.body
        for e in range(self.per):
            step = w.bind(number * self.tile.chunk + self.body.lane * self.per + e)
            for name in self.raw:
                neutral = 1.0 if name == "decay" and not self.recurrence.log_decay else 0.0
                w.store(self.raw[name], tirx.const(neutral, "float32"), e)
            with w.when(step < body.limit):
                for name, rows in self.recurrence.numbers.items():
                    w.store(self.raw[name], w[name][body.element(rows, step)], e)
                if body.masked:
                    with w.when(tirx.NE(w["has_reset"], tirx.const(0, "int32"))):
                        at = wide(w["start"] + body.first + step) * wide(w["batch"]) + wide(body.row)
                        w.store(self.raw["reset"], tirx.Cast("float32", w["reset"][at]), e)

    def _numbers(self, number: TirExpr) -> None:
        w, numbers, lane = self.w, self.body.numbers, self.body.lane
        steps = [w.bind(lane * self.per + e) for e in range(self.per)]
        if "value_scale" in self.raw:
            for e, step in enumerate(steps):
                numbers.store("value_scale", self.raw["value_scale"][e], number, step)
        if self.scale is not None:
            for e, step in enumerate(steps):
                w.store(self.scale, self.raw["erase_scale"][e], step)
        if self.body.weighted:
            self._decays(number, steps)
        elif "erase" in numbers.buffers:
            for e, step in enumerate(steps):
                numbers.store("erase", self.raw["erase_scale"][e], number, step)

    def _decays(self, number: TirExpr, steps: list[TirExpr]) -> None:
        """Sums of log decays, before and after each step's own, and what follows from them."""
        w, numbers, lane = self.w, self.body.numbers, self.body.lane
        own, before = [self._log(e) for e in range(self.per)], w.local(self.per)
        total: TirExpr = tirx.const(0.0, "float32")
        for e in range(self.per):
            reset = self._reset(e)
            w.store(before, total if reset is None else total + reset, e)
            total = w.keep(before[e] + own[e])
        sums = w.local(1)
        w.store(sums, total, 0)
        everyone = tirx.const(0xFFFFFFFF, "uint32")
        for apart in (1, 2, 4, 8, 16):
            other = w.keep(tirx.call_extern("float32", "__shfl_up_sync", everyone, sums[0], apart, 32))
            w.store(sums, tirx.Select(lane >= apart, sums[0] + other, sums[0]), 0)
        early = w.keep(tirx.call_extern("float32", "__shfl_up_sync", everyone, sums[0], 1, 32))
        begin = w.keep(tirx.Select(lane > 0, early, tirx.const(0.0, "float32")))
        end = w.keep(tirx.call_extern("float32", "__shfl_sync", everyone, sums[0], 31, 32))
        for e, step in enumerate(steps):
            g = {"before": w.keep(begin + before[e])}
            g["after"] = w.keep(g["before"] + own[e])
            for name, value in g.items():
                w.store(self.sums[name], value, step)
            numbers.store("ends", exp2(end - g["after"]), number, step)
            numbers.store("carried", exp2(end), number, step)
            for i, read in enumerate(self.recurrence.reads):
                numbers.store(f"read_{i}", exp2(g[self._which(read.of)]), number, step)
            if (erase := self.recurrence.erase) is not None:
                what = exp2(g[self._which(erase.of)])
                numbers.store("erase", what if self.scale is None else what * self.raw["erase_scale"][e], number, step)

    @staticmethod
    def _which(of: str) -> str:
        return "before" if of == BEFORE else "after"

    def _log(self, e: int) -> TirExpr:
        """log2 of a step's decay."""
        w = self.w
        if self.recurrence.decay is None:
            return tirx.const(0.0, "float32")
        given = self.raw["decay"][e]
        if self.recurrence.log_decay:
            log = w.keep(given * tirx.const(LOG2_E, "float32"))
        else:
            log = w.keep(tirx.call_pure_extern("float32", "log2f", given))
        return w.keep(tirx.Select(log < tirx.const(GONE, "float32"), tirx.const(GONE, "float32"), log))

    def _reset(self, e: int) -> TirExpr | None:
        return self.raw["reset"][e] * tirx.const(GONE, "float32") if self.body.masked else None

    # --- scores ----------------------------------------------------------------------------------------------------

    def _score(self, stage: TirExpr, scores: TirExpr, block: TirExpr, what: tuple[str, str, bool]) -> None:
        """16 rows of scores: those of `block`. what: the vectors that read, of which states, and whether they erase."""
        w, scan, lane = self.w, self.scan, self.body.lane
        vector, of, erases = what
        deep = scan.keys // BLOCK
        a = w.tile(deep, 4, dtype="uint32")
        line = block * BLOCK + lane % 16
        at = w.bind(stage + tirx.Cast("uint32", scan.vector_at(vector) + line * scan.key_pitch + lane // 16 * 16))
        for k in range(deep):
            w.do(I.ptx[LDMATRIX.format("x4")](*a[k], at + uint32(32 * k)))
        row = [w.bind(block * BLOCK + lane // 4 + 8 * half) for half in range(2)]
        g_row, scale = None, None
        if self.body.weighted:
            g_row = [w.keep(self.sums[self._which(of)][r]) for r in row]
        if erases and self.scale is not None:
            scale = [w.keep(self.scale[r]) for r in row]
        line = lane // 16 * 8 + lane % 8
        key0 = scan.vector_at("key")
        keys = w.bind(stage + tirx.Cast("uint32", key0 + line * scan.key_pitch + lane // 8 % 2 * 16))
        for other in range(self.tile.scorers):
            with w.when(other <= block):
                acc = self._product(a, w.bind(keys + uint32(other * BLOCK * scan.key_pitch)))
                found = self._weigh(acc, other, row, (g_row, scale, turned(of)))
                if erases:
                    with I.If(tirx.EQ(block, other)):
                        with I.Then():
                            self._invert(found, scores, row, other)
                        with I.Else():
                            self._keep(found, scores, row, other)
                else:
                    self._keep(found, scores, row, other)

    def _product(self, a: object, keys: TirExpr) -> list[list[TirExpr]]:
        """Sums [tile of 8][4], of 16 x 16: chains of products for even and odd steps of K, added up."""
        w, deep = self.w, self.scan.keys // BLOCK
        chains = min(2, deep)
        acc = w.tile(chains, 2, 4)
        acc.fill(tirx.const(0.0, "float32"))
        b = w.tile(deep, 2, 2, dtype="uint32")
        for k in range(deep):
            w.do(I.ptx[LDMATRIX.format("x4")](*b[k, 0], *b[k, 1], keys + uint32(32 * k)))
        for k in range(deep):
            for n in range(2):
                d = acc[k % chains, n]
                w.do(I.ptx[INSTRUCTIONS[self.precision]](*d, *a[k], *b[k, n], *d))  # type: ignore[index]
        if chains == 1:
            return [list(acc[0, n]) for n in range(2)]
        return [[w.keep(x + y) for x, y in zip(acc[0, n], acc[1, n], strict=True)] for n in range(2)]

    def _weigh(
        self,
        acc: list[list[TirExpr]],
        other: int,
        row: list[TirExpr],
        what: tuple[list[TirExpr] | None, list[TirExpr] | None, bool],
    ) -> list[list[TirExpr]]:
        """Times decays and scales; 0 where a step would read later ones."""
        w, (g_row, scale, own) = self.w, what
        found: list[list[TirExpr]] = []
        for n in range(2):
            found.append([])
            for i in range(4):
                half, odd = i // 2, i % 2
                column = w.bind(other * BLOCK + 8 * n + self.body.lane % 4 * 2 + odd)
                seen = w.bind(column <= row[half] if own else column < row[half])
                value: TirExpr = acc[n][i]
                if g_row is not None:
                    away = g_row[half] - self.sums["after"][column]
                    value = value * exp2(tirx.Select(seen, away, tirx.const(NEVER, "float32")))
                if scale is not None:
                    value = value * scale[half]
                found[-1].append(w.keep(tirx.Select(seen, value, tirx.const(0.0, "float32"))))
        return found

    def _keep(self, found: list[list[TirExpr]], scores: TirExpr, row: list[TirExpr], other: int) -> None:
        """A block of 16 x 16 to shared memory, as operands."""
        w, word = self.w, self.w.local(1, "uint32")
        for n in range(2):
            for half in range(2):
                at = row[half] * self.scan.score_pitch + (other * BLOCK + 8 * n + self.body.lane % 4 * 2) * 2
                pack(w, self.precision, word[0], found[n][2 * half], found[n][2 * half + 1])
                w.do(I.ptx["st.shared.b32"](scores + tirx.Cast("uint32", at), word[0]))

    def _invert(self, found: list[list[TirExpr]], scores: TirExpr, row: list[TirExpr], other: int) -> None:
        """The inverse of 1 - block: lane j has column j. Rows of the inverse are done from above; what is done of
        column m is added to all rows below."""
        w, lane, at = self.w, self.body.lane, self.w.bind(self.warp * (BLOCK * TRIANGLE_PITCH))
        for n in range(2):
            for i in range(4):
                column, line = 8 * n + lane % 4 * 2 + i % 2, lane // 4 + 8 * (i // 2)
                w.store(self.triangle, found[n][i], at + column * TRIANGLE_PITCH + line)
        w.do(I.cuda.warp_sync())
        x = w.local(BLOCK)
        for i in range(BLOCK):
            one = tirx.Select(tirx.EQ(lane % 16, i), tirx.const(1.0, "float32"), tirx.const(0.0, "float32"))
            w.store(x, one, i)
        for m in range(BLOCK - 1):
            for i in range(m + 1, BLOCK):
                w.store(x, x[i] + self.triangle[at + m * TRIANGLE_PITCH + i] * x[m], i)
        w.do(I.cuda.warp_sync())
        for i in range(BLOCK):
            w.store(self.triangle, x[i], at + i * TRIANGLE_PITCH + lane % 16)
        w.do(I.cuda.warp_sync())
        inverse: list[list[TirExpr]] = []
        for n in range(2):
            inverse.append([])
            for i in range(4):
                column, line = 8 * n + lane % 4 * 2 + i % 2, lane // 4 + 8 * (i // 2)
                inverse[-1].append(w.keep(self.triangle[at + line * TRIANGLE_PITCH + column]))
        self._keep(inverse, scores, row, other)
