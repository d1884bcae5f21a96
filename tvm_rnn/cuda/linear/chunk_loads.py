"""The warps of a chunk scan that bring operands to shared memory, and numbers of steps: decays, summed, and scales.

In: the kernel's body. Out: statements: asynchronous copies, `stages` - 2 chunks before their scores are made, and, by
the first of these warps, a chunk's numbers, one chunk before. A lane has chunk / 32 steps; sums go by shuffles. Bulk
copies of whole rows took 30 ns each, one after the other: 5.7 us a chunk, against 1.6 for these by a single warp.
"""

from __future__ import annotations

from contextlib import nullcontext

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.gemm.operands import COPY, COPY_PIECE
from tvm_rnn.cuda.layer.packed_layout import SIZES, ceil_div
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import wide

from .chunk_block import Block
from .chunk_tile import exp2, piece_bytes, swizzled
from .recurrence import Rows, sum_name

GONE = -160.0  # log2 of what counts as 0; the sum of 64 of them is still exact to 10 bits behind the point
LOG2_E = 1.4426950408889634
UNROLLED = (8, 4, 2, 1)  # copies of a lane in a row
FOUR_BYTES, LARGEST = 4, 16  # an asynchronous copy has at least, and at most


class Loads:
    """raw: what a lane has loaded of its steps of the next chunk."""

    def __init__(self, block: Block, warp: TirExpr) -> None:
        self.thread = block.w.bind(warp * 32 + block.lane)
        self.first = tirx.EQ(warp, 0)
        self.body, self.w, self.scan = block, block.w, block.scan
        self.recurrence, self.tile = block.recurrence, block.tile
        self.per = self.tile.chunk // 32
        names = (*self.recurrence.numbers, *(("reset",) if block.masked else ()))
        self.raw = {name: self.w.local(self.per) for name in names}

    @property
    def ahead(self) -> int:
        return self.tile.stages - 2

    def begin(self) -> None:
        """The copies of the first chunks, and the numbers of the first."""
        w = self.w
        for early in range(self.ahead):
            with w.when(self.body.chunks > early):
                self._fill(tirx.const(early, "int32"))
            w.do(I.ptx["cp.async.commit_group"]())
        with w.when(self.first):
            self._ask(tirx.const(0, "int32"))
            self._numbers(tirx.const(0, "int32"))
            self._ask(tirx.const(1, "int32"))

    def wait(self) -> None:
        """For the copies of the next chunk."""
        self.w.do(I.ptx["cp.async.wait_group"](self.ahead - 1))

    def advance(self, number: TirExpr) -> None:
        """While scores of a chunk are made."""
        w = self.w
        with w.when(number + self.ahead < self.body.chunks):
            self._fill(w.keep(number + self.ahead))
        w.do(I.ptx["cp.async.commit_group"]())
        with w.when(self.first):
            self._numbers(w.keep(number + 1))
            self._ask(w.keep(number + 2))

    # --- operands --------------------------------------------------------------------------------------------------

    def _fill(self, number: TirExpr) -> None:
        """Start the copies of a chunk's operands; zeros where there is nothing."""
        w, scan = self.w, self.scan
        stage = w.keep(self.body.slot(number))
        step0 = w.keep(number * self.tile.chunk)
        for name, rows in self.recurrence.held.items():
            place = stage + scan.vector_at(name), scan.key_pitch, scan.keys
            self._copy(name, rows, place, step0, tirx.const(0, "int32"))
        target = stage + scan.value_at, scan.value_pitch, self.tile.values
        self._copy("value", self.recurrence.value, target, step0, self.body.value0)
        if self.recurrence.decays_by_key and (decay := self.recurrence.decay) is not None:
            target = stage + scan.decay_at, scan.decay_pitch, scan.keys
            self._copy("decay", decay, target, step0, tirx.const(0, "int32"))

    def _copy(self, name: str, rows: Rows, target: tuple[TirExpr, int, int], step0: TirExpr, column0: TirExpr) -> None:
        """A tile of `chunk` rows. target: where, its pitch, its columns."""
        piece = piece_bytes(rows)
        size = max(piece, 2)
        across = SIZES[rows.dtype] * target[2] // size
        threads = 32 * self.scan.loaders
        pieces = self.tile.chunk * across
        turns = ceil_div(pieces, threads)
        group = next(n for n in UNROLLED if turns % n == 0) if piece >= FOUR_BYTES else 1
        if pieces % threads == 0 and threads % across == 0 and piece >= FOUR_BYTES:
            whole = self._whole(step0)
            with self.w.when(whole):
                self._lines((name, rows), target, (step0, column0), (across, turns, group))
            with self.w.when(tirx.Not(whole)), self.w.loop(turns) as turn:
                self._turn((name, rows), target, (step0, column0), (across, pieces, turn))
            return
        with self.w.loop(turns // group) as outer:
            for inner in range(group):
                turn = self.w.bind(outer * group + inner)
                self._turn((name, rows), target, (step0, column0), (across, pieces, turn))

    def _turn(
        self,
        what: tuple[str, Rows],
        target: tuple[TirExpr, int, int],
        first: tuple[TirExpr, TirExpr],
        place: tuple[int, int, TirExpr],
    ) -> None:
        """A piece of each thread, anywhere. first: step and column; place: pieces of a row, and of all, and which of a
        thread's."""
        threads, (across, pieces, turn) = 32 * self.scan.loaders, place
        number = self.w.bind(turn * threads + self.thread)
        line, chunk = tirx.truncdiv(number, across), tirx.truncmod(number, across)
        if threads % across == 0:
            line = turn * (threads // across) + tirx.truncdiv(self.thread, across)
            chunk = tirx.truncmod(self.thread, across)
        with nullcontext() if pieces % threads == 0 else self.w.when(number < pieces):
            self._piece(what, target, (first[0], line), (first[1], chunk))

    def _whole(self, step0: TirExpr) -> TirExpr:
        """Whether the row has all steps of a chunk: the first and the last one."""
        body = self.body
        return self.w.keep(tirx.And(body.there(step0), body.there(step0 + (self.tile.chunk - 1))))

    def _lines(
        self,
        what: tuple[str, Rows],
        target: tuple[TirExpr, int, int],
        first: tuple[TirExpr, TirExpr],
        counts: tuple[int, int, int],
    ) -> None:
        """All pieces of a thread, of steps that there are: a column, every so many rows, which lie equally far apart.
        first: step and column; counts: pieces of a row, of a thread, and of a turn of the loop."""
        w, (name, rows), (at, pitch, _), (across, turns, group) = self.w, what, target, counts
        piece, each = piece_bytes(rows), SIZES[rows.dtype]
        apart, line = 32 * self.scan.loaders // across, tirx.truncdiv(self.thread, across)
        number = tirx.truncmod(self.thread, across)
        column = w.bind(first[1] + number * (piece // each))
        inside = w.keep(tirx.Cast("uint32", tirx.max(tirx.min((rows.width - column) * each, piece), 0)))
        source, beside = w.local(1, "int64"), tirx.Select(column < rows.width, column, 0)
        w.store(source, self.body.element(rows, w.bind(first[0] + line), beside), 0)
        further = w.keep(wide(w["batch"]) * (rows.stride * apart * (-1 if self.scan.reverse else 1)))
        how = COPY if piece == LARGEST else COPY_PIECE

        def place(row: Expr) -> TirExpr:
            """Of this thread's piece of a row, but for whole rows."""
            within = at + line * pitch + swizzled(pitch, row, number * piece)
            return w.keep(self.body.base + tirx.Cast("uint32", within))

        # Rows change places every eight. A turn of the loop that has a multiple of eight begins where the first does.
        again = group * apart % 8 == 0
        to = {row: place(line + row) for row in sorted({i * apart % 8 for i in range(group)})} if again else {}
        with w.loop(turns // group) as outer:
            for inner in range(group):
                row = outer * (group * apart) + inner * apart
                begin = to[inner * apart % 8] if again else place(line + row)
                into = begin + tirx.Cast("uint32", row * pitch)
                w.do(I.ptx[how](into, w[name].ptr_to([source[0]]), piece, inside))
                w.store(source, source[0] + further, 0)

    def _piece(
        self,
        what: tuple[str, Rows],
        target: tuple[TirExpr, int, int],
        place: tuple[TirExpr, TirExpr],
        across: tuple[TirExpr, TirExpr],
    ) -> None:
        """What is copied at a time. place: the chunk's first step, and which of it; across: likewise."""
        w, (name, rows), (at, pitch, _) = self.w, what, target
        piece = piece_bytes(rows)
        each = SIZES[rows.dtype]
        size = max(piece, each)
        step, column = w.bind(place[0] + place[1]), w.bind(across[0] + across[1] * (size // each))
        left: Expr = tirx.max(tirx.min((rows.width - column) * each, size), 0)
        inside = w.bind(tirx.Select(self.body.there(step), left, 0))
        there = inside > 0
        source = self.body.element(rows, tirx.Select(there, step, self.body.spare), tirx.Select(there, column, 0))
        to = at + place[1] * pitch + swizzled(pitch, place[1], across[1] * size)
        if piece < FOUR_BYTES:
            value = w.local(1, rows.dtype)
            w.store(value, tirx.const(0.0, rows.dtype), 0)
            with w.when(there):
                w.store(value, w[name][source], 0)
            w.store(self.body.words, value[0], tirx.truncdiv(to, 2))
            return
        address = self.body.base + tirx.Cast("uint32", to)
        how = COPY if piece == LARGEST else COPY_PIECE
        w.do(I.ptx[how](address, w[name].ptr_to([source]), piece, tirx.Cast("uint32", inside)))

    # --- numbers of steps ------------------------------------------------------------------------------------------

    def _ask(self, number: TirExpr) -> None:
        """Load what a chunk's numbers are made of."""
        w, body = self.w, self.body
        for e in range(self.per):
            step = w.bind(number * self.tile.chunk + body.lane * self.per + e)
            for name in self.raw:
                neutral = 1.0 if name == "decay" and not self.recurrence.log_decay else 0.0
                w.store(self.raw[name], tirx.const(neutral, "float32"), e)
            with w.when(body.there(step)):
                for name, rows in self.recurrence.numbers.items():
                    w.store(self.raw[name], w[name][body.element(rows, step)], e)
                if body.masked:
                    known, at = body.reset(step)
                    with w.when(known):
                        w.store(self.raw["reset"], tirx.Cast("float32", w["reset"][at]), e)

    def _numbers(self, number: TirExpr) -> None:
        numbers, w = self.body.numbers, self.w
        steps = [w.bind(self.body.lane * self.per + e) for e in range(self.per)]
        for name, source in (("value_scale", "value_scale"), ("scale", "erase_scale")):
            if name in numbers.buffers:
                for e, step in enumerate(steps):
                    numbers.store(name, self._scale(source, e), number, step)
        if self.body.keeps:
            for e, step in enumerate(steps):
                numbers.store("keep", 1.0 - self.raw["reset"][e], number, step)
        if self.body.weighted:
            self._decays(number, steps)
        elif "erase" in numbers.buffers:
            for e, step in enumerate(steps):
                numbers.store("erase", self._scale("erase_scale", e), number, step)

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
            found = {**g, "ends": exp2(end - g["after"]), "carried": exp2(end)}
            for i, read in enumerate(self.recurrence.reads):
                left, scale = exp2(g[sum_name(read.of)]), self.scan.read_scale(i)
                found[f"read_{i}"] = left if scale == 1.0 else left * scale
            if (erase := self.recurrence.erasing) is not None:
                what = exp2(g[sum_name(erase.of)])
                found["erase"] = what if erase.scale is None else what * self._scale("erase_scale", e)
            for name, value in found.items():
                numbers.store(name, value, number, step)

    def _scale(self, name: str, e: int) -> TirExpr:
        """What scales a step's value, or what it erases: its number, and the constants of vectors. Not where numbers
        are asked for: nobody waits for them there."""
        own = self.recurrence
        constant = own.key.scale if name == "value_scale" else own.erased_scale
        return self.raw[name][e] if constant == 1.0 else self.raw[name][e] * constant

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
