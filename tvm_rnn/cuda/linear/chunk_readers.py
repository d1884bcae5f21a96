"""The warps of a chunk scan that read states, where few warps have states: each serves one of these.

In: the kernel's body, a warp's number. Out: statements that make the read-outs of a chunk while the warp of states
solves it: of S before the chunk, which that hands on first, then of what was written. Gated delta, 16 key and 32 value
heads, H200: the chunks of forward took 1.18 ms before and take 1.14.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as I

from tvm_rnn.tir.expr import TirExpr

from .chunk_products import OLD, WRITTEN, Products


class Readers(Products):
    """warp: the number of this one, among those that read."""

    first = 0

    def read(self, number: TirExpr) -> None:
        """Results of a chunk."""
        w, own = self.w, self.recurrence
        self._enter(number)
        w.do(I.ptx.bar.sync(*self._barrier(OLD)))
        self.old = self._given(self.deep, 0)
        sums = {i: w.tile(2 * self.blocks, 4) for i in range(len(own.reads)) if not own.solved(i)}
        for i, found in sums.items():
            for _ in self._of_states(found, f"read_{i}"):
                pass
        w.do(I.ptx.bar.sync(*self._barrier(WRITTEN)))
        written = {c: self._given(self.blocks, self.scan.written_at(i)) for i, c in enumerate(own.columns)}
        for i, read in enumerate(own.reads):
            if i in sums:
                self._read(i, read.output, sums[i], written)
            else:
                self._store(i, read.output, written[own.columns[-1]])
