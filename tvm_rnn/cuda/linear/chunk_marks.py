"""A chunk scan that also keeps the states before each part of the time, which training makes others again from.

In: what a `ChunkScan` takes. Out: `MarkedChunkScan`, whose kernel has one more pointer: marks [parts, B, ...].
A part has one chunk or more; backwards, the states before it are those behind its last step in order of time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import converted
from tvm_rnn.cuda.codegen.vector_access import pack
from tvm_rnn.cuda.layer.matrix_operands import marks_dtype
from tvm_rnn.tir.expr import TirExpr

from .chunk_block import Block
from .chunk_scan import ChunkScan
from .chunk_states import States
from .pair import EVERY


@dataclass(frozen=True)
class MarkedChunkScan(ChunkScan):
    """Steps begin at a part."""

    @property
    def pointers(self) -> tuple[tuple[str, str], ...]:
        return (*super().pointers, ("marks", marks_dtype(self.recurrence.precision)))

    def states(self, block: Block, warp: TirExpr) -> States:
        return _Marking(block, warp)


class _Marking(States):
    """Leaves the states as they are before a chunk that is the first of a part."""

    def advance(self, number: TirExpr) -> None:
        w, body, dtype = self.w, self.body, marks_dtype(self.precision)
        step = w.bind(number * self.tile.chunk)
        time = w.keep(body.time(step))
        begins = tirx.EQ(tirx.truncmod(time + int(self.scan.reverse), EVERY), 0)
        if self.scan.reverse:
            begins = tirx.Or(begins, tirx.EQ(body.first + step, 0))
        with w.when(begins):
            part = w.keep(tirx.truncdiv(time, EVERY) * w["batch"] + body.row)
            self._keep(list(self._elements(part)), dtype)
        super().advance(number)

    def _keep(self, elements: list[tuple[int, TirExpr, TirExpr]], dtype: str) -> None:
        """Store them: two keys of a lane at a time where they lie side by side."""
        w, state, own = self.w, self.state.flat, self.recurrence
        if dtype == "float32" or not own.keys_last or own.keys % 2:
            for register, there, at in elements:
                with w.when(there):
                    w.store(w["marks"], converted(state[register], dtype), at)
            return
        for register, there, at in elements[::2]:
            word = w.local(1, "uint32")
            pack(w, dtype, word[0], state[register], state[register + 1])
            with w.when(there):
                w.do(I.ptx["st.global.b32"](w["marks"].ptr_to([at]), word[0]))
