"""All steps of a linear recurrence of matrices in chunks: a block for each batch row, head, tile of values and segment.

In: a `Recurrence` and a `ChunkTile`. Out: `ChunkScan`, whose kernel has two kinds of warps: some copy operands and make
the scores of one chunk (`chunk_scores.py`) while others take the states through the chunk before it
(`chunk_states.py`). They meet once a chunk.

With g the sum of a chunk's log decays up to a step, S the states before the chunk, and all sums over steps s of it:

    u_t = value_t + c_t (e^g_t erase_t S + sum over s < t of e^(g_t - g_s) <erase_t, key_s> u_s)
    output_t = e^g_t read_t S + sum over s <= t of e^(g_t - g_s) <read_t, key_s> u_s
    S = e^g S + sum over s of e^(g - g_s) key_s u_s

Scores are what multiplies u_s. A decay of 0, and a reset, count as 2^-160: nothing of what is before is left of it in
float32, and no difference is infinity - infinity.

Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", NeurIPS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.gemm.operands import COPY, COPY_PIECE
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.regime import FOREVER, MASK_POINTERS, MASK_SCALARS
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import wide

from .chunk_scores import Scorers
from .chunk_states import States
from .chunk_tile import BLOCK, ChunkTile, Numbers, piece_bytes
from .recurrence import Recurrence, Rows

PAD = 16  # bytes behind a row of shared memory: the next row begins in other banks
SCALARS = (("steps", "int32"), ("batch", "int32"), ("span", "int32"))


@dataclass(frozen=True)
class ChunkScan:
    """A recurrence in chunks. Its kernel takes the recurrence's pointers, then steps, batch and span, the steps of a
    segment, a multiple of the chunk: `blocks` says how many blocks. With several segments state_in has the states
    before each, [segments, B, ...]."""

    name: str
    recurrence: Recurrence
    tile: ChunkTile

    @property
    def keys(self) -> int:
        """With the zeros that fill the last block of 16."""
        return ceil_div(self.recurrence.keys, BLOCK) * BLOCK

    @property
    def tiles(self) -> int:
        return ceil_div(self.recurrence.values, self.tile.values)

    @property
    def pointers(self) -> tuple[tuple[str, str], ...]:
        return self.recurrence.pointers

    def states(self, body: Body, warp: TirExpr) -> States:
        """Of the warps of states."""
        return States(body, warp)

    def blocks(self, batch: int, segments: int = 1) -> int:
        return self.tiles * self.recurrence.heads * batch * segments

    @property
    def possible(self) -> bool:
        """Whether shared memory holds it."""
        return self.shared_bytes <= 227 * 1024 - 16 * 1024

    # --- shared memory: stages of operands, then two sets of scores, then results on their way out -----------------

    @property
    def key_pitch(self) -> int:
        return 2 * self.keys + PAD

    @property
    def value_pitch(self) -> int:
        return 2 * self.tile.values + PAD

    @property
    def score_pitch(self) -> int:
        return 2 * self.tile.chunk + PAD

    def vector_at(self, name: str) -> int:
        """Where in a stage a tile of vectors begins."""
        return list(self.recurrence.vectors).index(name) * self.tile.chunk * self.key_pitch

    @property
    def value_at(self) -> int:
        return len(self.recurrence.vectors) * self.tile.chunk * self.key_pitch

    @property
    def stage_bytes(self) -> int:
        return self.value_at + self.tile.chunk * self.value_pitch

    @property
    def score_sets(self) -> int:
        return len(self.recurrence.reads) + (self.recurrence.erase is not None)

    @property
    def scores_at(self) -> int:
        return self.tile.stages * self.stage_bytes

    @property
    def score_bytes(self) -> int:
        """Of one read-out or erasure of a chunk."""
        return self.tile.chunk * self.score_pitch

    @property
    def results_at(self) -> int:
        return self.scores_at + 2 * self.score_sets * self.score_bytes

    @property
    def result_pitch(self) -> int:
        return 2 * BLOCK + PAD

    @property
    def shared_bytes(self) -> int:
        return self.results_at + self.tile.warps * self.tile.chunk * self.result_pitch

    # --- the kernel ------------------------------------------------------------------------------------------------

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return self._kernel(False), self._kernel(True)

    def _kernel(self, masked: bool) -> Kernel:
        def run(w: Writer) -> None:
            precision = self.recurrence.precision
            with flavour(precision), I.attr({"tirx.launch_bounds_min_blocks_per_sm": self.tile.blocks}):
                Body(w, self, masked).run()

        pointers = (*self.pointers, *(MASK_POINTERS if masked else ()))
        scalars = (*SCALARS, *(MASK_SCALARS if masked else ()))
        name = f"{self.name}_masked" if masked else self.name
        return write(name, pointers, scalars, run, threads=self.tile.threads, shared_bytes=self.shared_bytes)


class Body:
    """Emits a kernel. row, head, first: this block's; limit: steps of the segment that the row has, from `first` on."""

    def __init__(self, w: Writer, scan: ChunkScan, masked: bool) -> None:
        self.w, self.scan, self.masked = w, scan, masked
        self.recurrence, self.tile = scan.recurrence, scan.tile
        self.weighted = masked or scan.recurrence.decay is not None

    def run(self) -> None:
        w, scan, tile = self.w, self.scan, self.tile
        self._place()
        self.numbers = Numbers(w, self._names(), tile.chunk)
        warp = w.keep(self.tx // 32)
        scorers = Scorers(self, w.bind(warp % tile.scorers))
        states = scan.states(self, w.bind(w.keep(tirx.max(warp - tile.scorers, 0))))
        scores = w.keep(warp < tile.scorers)
        with I.If(scores):
            with I.Then():
                scorers.begin()
            with I.Else():
                states.begin()
        with w.loop(self.chunks + 1) as turn:
            with w.when(scores):
                scorers.wait()
            w.do(I.cuda.cta_sync())
            with I.If(scores):
                with I.Then(), w.when(turn < self.chunks):
                    scorers.make(turn)
                with I.Else(), w.when(turn > 0):
                    states.advance(w.keep(turn - 1))
        with w.when(tirx.Not(scores)):
            states.finish()

    def _names(self) -> tuple[str, ...]:
        """carried: what is left of S at the end of the chunk; ends: of a step's writing; read_i, erase: what of S a
        step's result has."""
        own, erase = self.recurrence, self.recurrence.erase
        found = ["value_scale"] if own.value_scale is not None else []
        found += ["carried", "ends", *(f"read_{i}" for i in range(len(own.reads)))] if self.weighted else []
        return (*found, *(["erase"] if erase is not None and (self.weighted or erase.scale is not None) else []))

    def _place(self) -> None:
        w, scan = self.w, self.scan
        segments = tirx.truncdiv(w["steps"] + w["span"] - 1, w["span"])
        grid = wide(w["batch"]) * wide(segments) * (scan.tiles * self.recurrence.heads)
        block = w.keep(I.cta_id([tirx.Cast("int32", grid)]))
        self.tx: TirExpr = I.thread_id([self.tile.threads])
        self.lane = w.bind(self.tx % 32)
        self.arena: Buffer = I.alloc_buffer((scan.shared_bytes,), "uint8", scope="shared.dyn", align=128)
        self.base = w.bind(I.cuda.cvta_generic_to_shared(self.arena.ptr_to([0])))
        self.words = I.decl_buffer(
            (scan.shared_bytes // 2,), self.recurrence.precision, data=self.arena.data, scope="shared.dyn"
        )
        self.value0 = w.keep(tirx.truncmod(block, scan.tiles) * self.tile.values)
        rest = w.keep(tirx.truncdiv(block, scan.tiles))
        self.head = w.keep(tirx.truncmod(rest, self.recurrence.heads))
        self.number = w.keep(tirx.truncdiv(rest, self.recurrence.heads))  # segment B + row
        self.row = w.keep(tirx.truncmod(self.number, w["batch"]))
        self.first = w.keep(tirx.truncdiv(self.number, w["batch"]) * w["span"])
        self.count = w.keep(tirx.min(w["steps"] - self.first, w["span"]))
        self.last = w.bind(self.first + w["span"] >= w["steps"])
        self.chunks = w.keep(tirx.truncdiv(self.count + self.tile.chunk - 1, self.tile.chunk))
        self.limit = self.count
        if self.masked:
            ends = w.local(1, "int32")
            w.store(ends, tirx.const(FOREVER, "int32"), 0)
            with w.when(tirx.NE(w["has_lengths"], tirx.const(0, "int32"))):
                most = tirx.Min(w["lengths"][wide(self.row)], tirx.const(FOREVER, "int64"))
                w.store(ends, tirx.Cast("int32", most), 0)
            self.limit = w.keep(tirx.max(tirx.min(self.count, ends[0] - w["start"] - self.first), 0))

    def element(self, rows: Rows, step: Expr, within: Expr = 0) -> TirExpr:
        """Where an element of this block's head is; step: from `first` on."""
        at = (wide(self.first + step) * wide(self.w["batch"]) + wide(self.row)) * rows.stride + rows.offset
        return at + wide(tirx.truncdiv(self.head, rows.group) * rows.width + within)

    # --- operands to shared memory ---------------------------------------------------------------------------------

    def slot(self, number: TirExpr) -> TirExpr:
        """Where the stage of a chunk begins, in bytes from the start of shared memory."""
        return tirx.truncmod(number, self.tile.stages) * self.scan.stage_bytes

    def fill(self, number: TirExpr) -> None:
        """Start the copies of a chunk's operands, by the warps of scores; zeros where there is nothing."""
        w, scan = self.w, self.scan
        stage = w.keep(self.slot(number))
        step0 = w.keep(number * self.tile.chunk)
        for name, rows in self.recurrence.vectors.items():
            place = stage + scan.vector_at(name), scan.key_pitch, scan.keys
            self._copy(name, rows, place, step0, tirx.const(0, "int32"))
        target = stage + scan.value_at, scan.value_pitch, self.tile.values
        self._copy("value", self.recurrence.value, target, step0, self.value0)

    def _copy(self, name: str, rows: Rows, target: tuple[TirExpr, int, int], step0: TirExpr, column0: TirExpr) -> None:
        """A tile of `chunk` rows. target: where, its pitch, its columns."""
        w, (at, pitch, columns) = self.w, target
        piece = piece_bytes(rows)
        wide_piece = max(piece, 2)
        across = 2 * columns // wide_piece
        threads, pieces = 32 * self.tile.scorers, self.tile.chunk * across
        thread = w.bind(self.tx)

        def copy(i: Expr) -> None:
            number = thread + i * threads
            line, chunk = w.bind(tirx.truncdiv(number, across)), w.bind(tirx.truncmod(number, across))
            step, column = w.bind(step0 + line), w.bind(column0 + chunk * (wide_piece // 2))
            left = tirx.max(tirx.min((rows.width - column) * 2, wide_piece), 0)
            size = w.keep(tirx.Select(step < self.limit, left, 0))
            there = size > 0
            source = w.keep(self.element(rows, tirx.Select(there, step, 0), tirx.Select(there, column, 0)))
            to = at + line * pitch + chunk * wide_piece
            if piece < 4:
                value = w.local(1, rows.dtype)
                w.store(value, tirx.const(0.0, rows.dtype), 0)
                with w.when(there):
                    w.store(value, w[name][source], 0)
                w.store(self.words, value[0], tirx.truncdiv(to, 2))
                return
            address = self.base + tirx.Cast("uint32", to)
            how = COPY if piece == 16 else COPY_PIECE
            w.do(I.ptx[how](address, w[name].ptr_to([source]), piece, tirx.Cast("uint32", size)))

        turns = ceil_div(pieces, threads)
        assert pieces % threads == 0
        if piece == 16:
            for i in range(turns):
                copy(i)
        else:
            with w.loop(turns) as i:
                copy(i)
