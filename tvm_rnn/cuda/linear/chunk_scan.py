"""All steps of a linear recurrence of matrices in chunks: a block for each batch row, head, tile of values and segment.

In: a `Recurrence` and a `ChunkTile`. Out: `ChunkScan`, whose kernel has three kinds of warps: while some take the states
through a chunk (`chunk_states.py`), others make the scores of the next one (`chunk_scores.py`), and one brings the
operands of those behind it (`chunk_loads.py`). They meet once a chunk.

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
from tvm_rnn.cuda.layer.packed_layout import ceil_div
from tvm_rnn.cuda.layer.regime import FOREVER, MASK_POINTERS, MASK_SCALARS
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr
from tvm_rnn.tir.index import uint32, wide

from .chunk_loads import Loads
from .chunk_scores import Scorers
from .chunk_states import States
from .chunk_tile import BLOCK, ChunkTile, Numbers
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
        scorers = Scorers(self, warp)
        states = scan.states(self, w.bind(warp - tile.scorers))
        loads = Loads(self, w.bind(warp - tile.scorers - tile.warps))
        with I.If(warp < tile.scorers):
            with I.Then():
                self._scorers(scorers)
            with I.Else(), I.If(warp < tile.scorers + tile.warps):
                with I.Then():
                    self._states(states)
                with I.Else():
                    self._loads(loads)

    def _scorers(self, scorers: Scorers) -> None:
        self._registers(0)
        with self.w.loop(self.chunks) as turn:
            self._meet()
            scorers.make(turn)
        self._meet()

    def _states(self, states: States) -> None:
        self._registers(1)
        states.begin()
        self._meet()
        with self.w.loop(self.chunks) as turn:
            self._meet()
            states.advance(turn)
        states.finish()

    def _loads(self, loads: Loads) -> None:
        self._registers(2)
        loads.begin()
        with self.w.loop(self.chunks + 1) as turn:
            loads.wait()
            self._meet()
            loads.advance(turn)

    def _meet(self) -> None:
        """All warps: once before the scores of the first chunk, then once a chunk."""
        self.w.do(I.ptx.bar.sync(0, uint32(self.tile.threads)))

    def _registers(self, kind: int) -> None:
        """Take or give registers."""
        own = self.tile.registers
        if own is not None:
            begins = 65536 // self.tile.threads // 8 * 8
            how = "inc" if own[kind] > begins else "dec"
            self.w.do(I.ptx[f"setmaxnreg.{how}.sync.aligned.u32"](own[kind]))

    def _names(self) -> tuple[str, ...]:
        """before, after: sums of log decays; carried: what is left of S at the end of the chunk; ends: of a step's
        writing; read_i, erase: what of S a step's result has; scale: of what is erased."""
        own, erase = self.recurrence, self.recurrence.erase
        found = ["value_scale"] if own.value_scale is not None else []
        if self.weighted:
            found += ["before", "after", "carried", "ends", *(f"read_{i}" for i in range(len(own.reads)))]
        if erase is not None:
            found += ["erase"] if self.weighted or erase.scale is not None else []
            found += ["scale"] if erase.scale is not None else []
        return tuple(found)

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

    def slot(self, number: TirExpr) -> TirExpr:
        """Where the stage of a chunk begins, in bytes from the start of shared memory."""
        return tirx.truncmod(number, self.tile.stages) * self.scan.stage_bytes
