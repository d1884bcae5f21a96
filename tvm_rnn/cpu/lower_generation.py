"""Generation on CPUs: one function for all steps, in which the output of a step is the input of the next.

In: the RNN and its graphs of inference after the passes. Out: the function `generate`, and what the manifest says of
it. Time is outside of the layers and a tile is one step; weights lie as the function `sequence` has them.

    states in; for step: inputs in; for layer: the layer's step; output out, and to the next input; states out
"""

from __future__ import annotations

from typing import ClassVar

from tvm import tirx

from tvm_rnn.module_file.schema import CpuGeneration
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import buffer, loop, sequence, store, variable, when
from tvm_rnn.tir.statements import load as loaded

from .lower_network import Given, Lowering, Run, Tile, verify
from .workspace import Array


class GenerationLowering(Lowering):
    """The function `generate`. given: steps whose input is given; progress: rows that have not ended, steps done."""

    name: ClassVar[str] = "generate"
    in_place: ClassVar[bool] = False  # an output becomes the next input
    least: ClassVar[int] = 1

    def _plan(self) -> None:
        self.time_major, self.rows_per_tile = True, 1
        super()._plan()

    def functions(self) -> dict[str, tirx.PrimFunc]:
        found = {self.name: self._sequence()}
        verify(found[self.name])
        return found

    def facts(self) -> CpuGeneration:
        """What the runtime must know to call the function."""
        return CpuGeneration(workspace=self.memory.sizes(), tokens=self.net.tokens)

    def _sequence(self) -> tirx.PrimFunc:
        self.given, self.has_stop, self.stop = variable("given"), variable("has_stop"), tirx.Var("stop", "float64")
        self.progress = buffer("progress", "int64", 8)
        return super()._sequence()

    def _more(self, given: Given) -> list[TirExpr | Buffer]:
        return [self.given, self.has_stop, self.stop, self.progress, *super()._more(given)]

    def _state_array(self, run: Run, number: int, visit: Expr, first: bool) -> Array:
        """The last step may come before the last of the call."""
        parity = int64(0) if first else tirx.bitwise_and(loaded(self.progress, int64(1)), int64(1))
        return self.code[run.graph].state(number, parity, self._state_base(run, visit), self.B)

    def _time_major(self) -> Stmt:
        def step(done: Expr, count: Expr) -> Stmt:
            def layers(run: Run) -> Stmt:
                return loop("l", run.count, lambda i: self._visit(run, i, int64(0), Tile(done, done, count, int64(0))))

            work = [self._copy_in(done, count), *map(layers, self.runs)]
            after = store(self.progress, int64(1), done + int64(1))
            return when(loaded(self.progress, int64(0)) > int64(0), [*work, self._feed(done), after])

        return self._tiles(step)

    def _feed(self, done: Expr) -> Stmt:
        """The output is the next input behind the prompt; a row that emits `stop` there ends with this step."""
        width, new = int64(self.net.output_size), done + int64(1) >= self.given

        def row(b: Expr) -> Stmt:
            at = (done * self.B + b) * width

            def copy(j: Expr) -> Stmt:
                return store(self.x[0], at + self.B * width + j, loaded(self.y, at + j))

            left = loaded(self.progress, int64(0)) - int64(1)
            end = [store(self.ctx.lengths, b, done + int64(1)), store(self.progress, int64(0), left)]
            stops = tirx.EQ(tirx.Cast("float64", loaded(self.y, at)), self.stop)
            going = done < loaded(self.ctx.lengths, b)
            ends = tirx.And(tirx.NE(self.has_stop, int64(0)), tirx.And(stops, going))
            return sequence(when(done + int64(1) < self.T, loop("j", width, copy)), when(ends, end))

        return when(new, loop("b", self.B, row))
