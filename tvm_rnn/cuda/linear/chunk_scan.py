"""All steps of a linear recurrence of matrices in chunks: a block for each batch row, head, tile of values and segment.

In: a `Recurrence` and a `ChunkTile`. Out: `ChunkScan`, whose kernel has several kinds of warps: while some take the
states through a chunk (`chunk_states.py`), others make the scores of the next one (`chunk_scores.py`), and others bring
the operands of those behind it (`chunk_loads.py`). Where few warps have states, others make their read-outs
(`chunk_readers.py`). They meet once a chunk.

With g the sum of a chunk's log decays up to a step, S the states before the chunk, and all sums over steps s of it:

    u_t = value_t + c_t (e^g_t erase_t S + sum over s < t of e^(g_t - g_s) <erase_t, key_s> u_s)
    output_t = e^g_t read_t S + sum over s <= t of e^(g_t - g_s) <read_t, key_s> u_s
    S = e^g S + sum over s of e^(g - g_s) key_s u_s

Scores are what multiplies u_s. A decay of 0, and a reset, count as 2^-160: nothing of what is before is left of it in
float32, and no difference is infinity - infinity. Where each key decays by itself, vectors and keys are multiplied by
decays before they are used, and the sums are of 16 steps at a time instead of a chunk's (`chunk_key_scores.py`).

Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", NeurIPS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.cuda.layer.regime import MASK_POINTERS, MASK_SCALARS
from tvm_rnn.graph.scalar_cuda import flavour
from tvm_rnn.tir.expr import TirExpr
from tvm_rnn.tir.index import uint32

from .chunk_block import Block
from .chunk_key_scores import KeyScorers
from .chunk_layout import ChunkLayout
from .chunk_loads import Loads
from .chunk_readers import Readers
from .chunk_scores import Scorers
from .chunk_states import States

SCALARS = (("steps", "int32"), ("batch", "int32"), ("span", "int32"))
USERS = ("users_in", "users_out")  # pointers
BACK_SCALARS = (("padded", "int32"), ("real", "int32"))
ALL_REGISTERS = 65536


@dataclass(frozen=True)
class ChunkScan(ChunkLayout):
    """Its kernels take the recurrence's pointers, then steps, batch and span, the steps of a segment, a multiple of the
    chunk. With several segments state_in has the states before each, [segments, B, ...]; all outputs must be theirs
    alone. Backwards steps are those of whole chunks, which are `padded` in all, and of these there are `real` ones.

    Where it converts, a scalar, `users`, says whether steps begin and end with users_in and users_out instead."""

    @property
    def pointers(self) -> tuple[tuple[str, str], ...]:
        return (*self.recurrence.pointers, *((name, self.dtype) for name in USERS if self.converts))

    def states(self, block: Block, warp: TirExpr) -> States:
        """Of the warps of states."""
        return States(block, warp)

    def loads(self, block: Block, warp: TirExpr) -> Loads:
        """Of the warps that bring operands."""
        return Loads(block, warp)

    # --- the kernel ------------------------------------------------------------------------------------------------

    @cached_property
    def kernels(self) -> tuple[Kernel, Kernel]:
        """Without and with lengths and resets."""
        return self._kernel(False), self._kernel(True)

    def _kernel(self, masked: bool) -> Kernel:
        def run(w: Writer) -> None:
            precision = self.recurrence.precision
            with flavour(precision), I.attr({"tirx.launch_bounds_min_blocks_per_sm": self.tile.blocks}):
                _Body(w, self, masked).run()

        pointers = (*self.pointers, *(MASK_POINTERS if masked else ()))
        scalars = (*SCALARS, *(BACK_SCALARS if self.reverse else ()), *(MASK_SCALARS if masked else ()))
        scalars += (("users", "int32"),) if self.converts else ()
        name = f"{self.name}_masked" if masked else self.name
        return write(name, pointers, scalars, run, threads=self.threads, shared_bytes=self.shared_bytes)


class _Body:
    """Emits a kernel."""

    def __init__(self, w: Writer, scan: ChunkScan, masked: bool) -> None:
        self.w, self.scan, self.tile = w, scan, scan.tile
        self.block = Block(w, scan, masked)

    def run(self) -> None:
        w, scan, tile = self.w, self.scan, self.tile
        warp = w.keep(self.block.tx // 32)
        scorers = (KeyScorers if scan.recurrence.decays_by_key else Scorers)(self.block, warp)
        states = scan.states(self.block, w.bind(warp - tile.scorers))
        readers = Readers(self.block, w.bind(warp - tile.scorers - tile.warps))
        loads = scan.loads(self.block, w.bind(warp - tile.scorers - tile.warps - scan.readers))
        with I.If(warp < tile.scorers):
            with I.Then():
                self._scorers(scorers)
            with I.Else(), I.If(warp < tile.scorers + tile.warps):
                with I.Then():
                    self._states(states)
                with I.Else():
                    self._others(warp, readers, loads)

    def _others(self, warp: TirExpr, readers: Readers, loads: Loads) -> None:
        """Those that read, if some do, and those that bring operands."""
        if not self.scan.readers:
            self._loads(loads)
            return
        with I.If(warp < self.tile.scorers + self.tile.warps + self.scan.readers):
            with I.Then():
                self._readers(readers)
            with I.Else():
                self._loads(loads)

    def _scorers(self, scorers: Scorers) -> None:
        self._registers(0)
        with self.w.loop(self.block.chunks) as turn:
            self._meet()
            scorers.make(turn)
        self._meet()

    def _states(self, states: States) -> None:
        self._registers(1)
        states.begin()
        self._meet()
        with self.w.loop(self.block.chunks) as turn:
            self._meet()
            states.advance(turn)
        states.finish()

    def _readers(self, readers: Readers) -> None:
        self._meet()
        with self.w.loop(self.block.chunks) as turn:
            self._meet()
            readers.read(turn)

    def _loads(self, loads: Loads) -> None:
        self._registers(2)
        loads.begin()
        with self.w.loop(self.block.chunks + 1) as turn:
            loads.wait()
            self._meet()
            loads.advance(turn)

    def _meet(self) -> None:
        """All warps: once before the scores of the first chunk, then once a chunk. Each kind of warps meets at its own
        instruction, which synccheck reports of bar.sync and not of barrier.sync."""
        self.w.do(I.ptx.barrier.sync(0, uint32(self.scan.threads)))

    def _registers(self, kind: int) -> None:
        """Take or give registers."""
        own = self.tile.registers
        if own is not None:
            begins = ALL_REGISTERS // self.scan.threads // 8 * 8
            how = "inc" if own[kind] > begins else "dec"
            self.w.do(I.ptx[f"setmaxnreg.{how}.sync.aligned.u32"](own[kind]))
