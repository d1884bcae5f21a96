"""Linear recurrences of matrices in chunks of steps, for cells such as gated DeltaNet, RetNet and mLSTM's memory.

In: a recurrence and a GPU. Out: knob values, from which `tvm_rnn.cuda.linear.chunk_scan` writes a kernel. A block has a
batch row, a head and 16 values for each warp of states: the more, the fewer blocks make the same scores again.

Rewrite: for t: matrices  -->  for chunk: products of 64 steps, a triangular system, products

Source: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", NeurIPS.
"""

from typing import Any

from tvm_rnn.cuda.linear.choose_tile import ChunkUnit
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.errors import ConfigError, message
from tvm_rnn.schedule.schedule_template import Config, Knobs, template
from tvm_rnn.target import Target

CHUNKS = (32, 64)
WARPS = (1, 2, 3, 4, 8)
STAGES = (3, 4)
FULL = 0.9  # of the multiprocessors, with a block each
SEGMENTS = 16  # at once: where few values fit so many, these share the GPU better than many values do


@template("chunk_scan_cuda", kinds=("chunks",), targets=("cuda",))
class ChunkScanCuda:
    """Knobs: chunk (steps that are worked on at once), warps (of states in a block), stages (chunks of operands in
    shared memory: one is read, one is scored, the rest are on their way)."""

    @staticmethod
    def configure(unit: ChunkUnit, target: Target, knob: Knobs) -> Config:
        """As many warps as still leave a block for nearly every multiprocessor. Where there are too few rows and heads,
        long sequences go in segments: few warps, if the GPU has room for SEGMENTS of them, else many."""

        def possible(**knobs: int) -> bool:
            return unit.layout(ChunkTile(**knobs)).possible

        def blocks(warps: int) -> int:
            return unit.layout(ChunkTile(warps=warps)).blocks(max(unit.batches, default=1))

        own = unit.recurrence
        chunks = [c for c in CHUNKS if possible(chunk=c, warps=1)]
        if own.why_no_chunks or not chunks:
            got = own.why_no_chunks or f"{own.keys} keys, {len(own.vectors)} vectors of a step"
            raise ConfigError(message("no chunk kernel takes this recurrence", got=got, do="run it step by step"))
        chunk = knob("chunk", chunks, max(chunks))
        most = -(-unit.recurrence.values // 16)
        fitting = [n for n in WARPS if possible(chunk=chunk, warps=n) and (n == 1 or n <= most)]
        full = [n for n in fitting if blocks(n) >= FULL * target.sms and n != 3]
        usual = [n for n in fitting if n in (2, 4)] or fitting[:1]
        roomy = [n for n in usual if blocks(n) * SEGMENTS <= target.sms]
        warps = knob("warps", fitting, max(full) if full else min(roomy, default=usual[-1]))
        stages = [s for s in STAGES if possible(chunk=chunk, warps=warps, stages=s)]
        return {"chunk": chunk, "warps": warps, "stages": knob("stages", stages, max(stages))}

    @staticmethod
    def schedule(sch: Any, unit: ChunkUnit, config: Config) -> None:
        """Nothing: the kernel is written for a configuration, not scheduled."""
