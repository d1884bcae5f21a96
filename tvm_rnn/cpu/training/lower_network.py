"""What the two functions of training share: their arguments, their facts, and the end of rows.

In: the RNN and its graphs of training after the passes. Out: the base of `lower_forward.py` and of
`lower_backward.py`, which walk layers, directions and tiles of time as `cpu/lower_network.py` does.
"""

from __future__ import annotations

from typing import ClassVar

from tvm import tirx

from tvm_rnn.cpu.lower_layer import Visit, ended_in_tile, fill_row
from tvm_rnn.cpu.lower_network import INTEGERS, Given, Lowering, Run, Tile
from tvm_rnn.cpu.workspace import Array, strides_of
from tvm_rnn.module_file.schema import CpuFunction
from tvm_rnn.tir.expr import Expr, Stmt
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, Named, bind, sequence, when

from .tape_layout import Extents, TapeLayer, TapeLayout

# Of networks with two directions, whose layers and directions go through parts of time one by one: T is then of a part.
# whole: steps of all of the time; first: the part's first one among them; visit: number of the layer and direction that
# this call is for, -1: all of them, of all of the time.
PARTS = ("whole", "first", "visit")


class TrainingLowering(Lowering):
    """What both functions share."""

    tape: TapeLayout
    in_place: ClassVar[bool] = False  # backward reads them in the tape
    few_as_given: ClassVar[bool] = False
    beside: ClassVar[bool] = False
    least: ClassVar[int] = 1

    def use(self, tape: TapeLayout) -> None:
        """Tell the layers where what they keep or read back lies."""
        self.tape = tape
        for index, code in enumerate(self.code):
            assert isinstance(code, TapeLayer)
            code.tape, code.index = tape, index

    def _plan_flow(self) -> None:
        """Nothing for a forward function: what layers hand on is in the tape."""
        nodes = [n for g in self.layers.graphs for n in g.nodes()]
        # Through a view vectors may run along any axis, and past its end by one vector.
        self.slack = (2 + max(max(strides_of(n.shape, self.lanes)[0], default=1) for n in nodes)) * self.lanes
        self.memory.fixed += self.slack
        self.packed_elements += self.slack

    def _arguments(self) -> Given:
        found = super()._arguments()
        self.steps, set_steps = bind("steps", self.T * self.B)
        self.ctx.marks, set_marks = self.tape.marks(self.T, self.B)
        self.whole: Expr = self.steps
        set_whole = None
        if self.in_parts:
            self.whole, set_whole = bind("all", found["whole"] * self.B)
            self.first, self.visit = found["first"], found["visit"]  # of calls for a part
        self.sets = [set_steps, set_marks, *self.sets, set_whole]
        return found

    @property
    def in_parts(self) -> bool:
        """Whether layers and directions may go through parts of time one by one."""
        return self.net.num_directions > 1

    @property
    def integers(self) -> tuple[str, ...]:
        return (*INTEGERS, *(PARTS if self.in_parts else ()))

    def _there(self, start: Expr) -> Expr:
        """A step of the call among those of all of the time."""
        return self.first + start if self.in_parts else start

    def _if_called(self, run: Run, visit: Expr, *body: Block) -> Stmt:
        if not self.in_parts:
            return super()._if_called(run, visit, *body)
        number = int64(run.first * self.net.num_directions) + visit
        return when(tirx.Or(self.visit < int64(0), tirx.EQ(self.visit, number)), [*body])

    def _if_layer(self, layer: int, body: Block) -> Stmt:
        first, d = layer * self.net.num_directions, self.net.num_directions
        if not self.in_parts:
            return sequence(body)
        own = tirx.And(self.visit >= int64(first), self.visit < int64(first + d))
        return when(tirx.Or(self.visit < int64(0), own), body)

    @property
    def streams(self) -> list[str]:
        """Those of masks too."""
        return self.net.streams

    def _tape_inputs(self, run: Run, i: Expr, start: Expr) -> list[tuple[Expr, int]]:
        """Where the inputs of a run's layer are in the tape from step `start` on, with row strides."""
        strides = [self.tape.inputs[run.first][1], *(stride for _, stride in self.tape.extra)]
        places = [self.tape.input(run.first, i, self.whole), *(self.whole * int64(at) for at, _ in self.tape.extra)]
        there = self._there(start) * self.B
        return [(place + there * int64(stride), stride) for place, stride in zip(places, strides, strict=True)]

    def _inputs(self, named: Named, run: Run, i: Expr, d: Expr, tile: Tile) -> tuple[list[Expr], list[int]]:
        found = self._tape_inputs(run, i, tile.start)
        return [named(f"input_{n}", place) for n, (place, _) in enumerate(found)], [stride for _, stride in found]

    def _complete(self, work: Visit, named: Named, run: Run, place: tuple[Expr, Expr, Expr], tile: Tile) -> None:
        first = run.first * self.net.num_directions
        work.block = named("block", self._block(run, place[2]))
        work.keys = (int64(first) + place[2]) * int64(2 * len(self.streams))

    def _block(self, run: Run, visit: Expr) -> Expr:
        """Where the tape has what a layer and direction keeps."""
        return self.tape.visit(run.first, visit, self.extents, self.whole)

    @property
    def extents(self) -> Extents:
        """How many rows a call has."""
        return Extents(self.steps, self.B, self.ctx.marks)

    def facts(self) -> CpuFunction:
        """What the runtime must know to call the function."""
        return CpuFunction(
            packs=self.packs,
            packed_elements=self.packed_elements,
            workspace=self.memory.sizes(),
            rows_per_tile=self.rows_per_tile,
        )

    def _blank(self, array: Array, start: Expr, count: Expr) -> Stmt | None:
        """Zeros in rows that have ended, of steps from `start` on, which are the array's first."""
        zero = tirx.const(0.0, self.net.dtype)

        def blank(t: Expr, b: Expr) -> Stmt:
            return fill_row(self.ctx.buffers, array, zero, t * self.B + b)

        return ended_in_tile(self.ctx, start, count, blank)
