"""What the two functions of training share: their arguments, their facts, and the end of rows.

In: the RNN and its graphs of training after the passes. Out: the base of `lower_forward.py` and of
`lower_backward.py`, which walk layers, directions and tiles of time as `cpu/lower_network.py` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_rnn.cpu.lower_layer import Context
from tvm_rnn.cpu.lower_network import Lowering, Run
from tvm_rnn.cpu.workspace import strides_of
from tvm_rnn.module_file.schema import CpuFunction
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import Block, bind, buffer, load, loop, sequence, variable, when

from .lower_layer_backward import BackwardLayer
from .lower_layer_forward import KeepingLayer
from .tape_layout import TapeLayout

INTEGERS = ("T", "B", "n", "threads", "has_lengths", "has_reset")
# Of networks with two directions, whose layers and directions go through parts of time one by one: T is then of a part.
# whole: steps of all of the time; first: the part's first one among them; visit: number of the layer and direction that
# this call is for, -1: all of them, of all of the time.
PARTS = ("whole", "first", "visit")


class TrainingLowering(Lowering):
    """What both functions share."""

    tape: TapeLayout

    def use(self, tape: TapeLayout) -> None:
        """Tell the layers where what they keep or read back lies."""
        self.tape = tape
        for index, code in enumerate(self.code):
            assert isinstance(code, (KeepingLayer, BackwardLayer))
            code.tape, code.index = tape, index

    def _plan_flow(self) -> None:
        """Nothing for a forward function: what layers hand on is in the tape."""
        nodes = [n for g in self.layers.graphs for n in g.nodes()]
        # Through a view vectors may run along any axis, and past its end by one vector.
        self.slack = (2 + max(max(strides_of(n.shape, self.lanes)[0], default=1) for n in nodes)) * self.lanes
        self.memory.fixed += self.slack
        self.packed_elements += self.slack

    def _arguments(self) -> dict[str, Any]:
        """The integers, lengths, reset, and the compiler's own buffers, which code finds in `ctx`."""
        dtype = self.net.dtype
        found: dict[str, Any] = {n: variable(n) for n in (*INTEGERS, *PARTS)}
        found |= {"lengths": buffer("lengths", "int64", 8), "reset": buffer("reset", "uint8", 1)}
        found |= {n: buffer(n, dtype) for n in ("packed", "tape", "totals", "workspace")}
        found |= {"first_step": variable("first_step"), "keys": buffer("keys", "uint32", 4)}
        self.T, self.B, self.n, self.ws = found["T"], found["B"], found["n"], found["workspace"]
        self.steps, self.set_steps = bind("steps", self.T * self.B)
        self.tile_rows, self.set_rows = bind("tile_rows", self.n * self.B)
        self.whole: Expr = self.steps
        self.set_whole: Stmt | None = None
        if self.in_parts:
            self.whole, self.set_whole = bind("all", found["whole"] * self.B)
        self.first, self.visit = found["first"], found["visit"]  # of calls for a part
        return found

    @property
    def in_parts(self) -> bool:
        """Whether layers and directions may go through parts of time one by one."""
        return self.net.num_directions > 1

    @property
    def integers(self) -> tuple[str, ...]:
        """The function's first parameters."""
        return (*INTEGERS, *(PARTS if self.in_parts else ()))

    def _there(self, start: Expr) -> Expr:
        """A step of the call among those of all of the time."""
        return self.first + start if self.in_parts else start

    def _if_called(self, run: Run, visit: Expr, *body: Block) -> Stmt:
        """What is done for one layer and direction of a run, in calls for it."""
        if not self.in_parts:
            return super()._if_called(run, visit, *body)
        number = int64(run.first * self.net.num_directions) + visit
        return when(tirx.Or(self.visit < int64(0), tirx.EQ(self.visit, number)), [*body])

    def _if_layer(self, layer: int, body: Block) -> Stmt:
        """What is done for both directions of a layer, in calls for either."""
        first, d = layer * self.net.num_directions, self.net.num_directions
        if not self.in_parts:
            return sequence(body)
        own = tirx.And(self.visit >= int64(first), self.visit < int64(first + d))
        return when(tirx.Or(self.visit < int64(0), own), body)

    def _context(self, given: dict[str, Any], buffers: tuple[str, ...]) -> None:
        flags = (given[n] for n in ("has_lengths", "has_reset", "lengths", "reset", "threads"))
        self.ctx = Context({n: given[n] for n in buffers}, self.B, self.T, self.tile_rows, *flags)
        if self.streams:
            self.ctx.keys, self.ctx.streams, self.ctx.first_step = given["keys"], self.streams, given["first_step"]

    @property
    def streams(self) -> list[str]:
        """The names of masks. Where there are any, both functions have two arguments more."""
        return self.net.regularisers.streams

    def _of_masks(self, given: dict[str, Any]) -> list[TirExpr | Buffer]:
        """These arguments, the last ones: the number of the first step in its whole sequence, and the keys [L, D,
        masks, 2]."""
        return [given["first_step"], given["keys"]] if self.streams else []

    def _keys_of(self, run: Run, visit: Expr) -> Expr:
        """Where the keys of a run's layer and direction begin."""
        first = run.first * self.net.num_directions
        return (int64(first) + visit) * int64(2 * len(self.streams))

    def _with_threads(self, count: Expr, *body: Block) -> Stmt:
        use = [
            tirx.Evaluate(tirx.call_extern("int32", "tvm_rnn_pool_use", tirx.Cast("int32", number)))
            for number in (count, int64(1))
        ]
        return sequence(use[0], self.set_steps, self.set_rows, self.set_whole, body, use[1])

    def _users(self, names: list[str]) -> list[Buffer]:
        return [buffer(name, self.net.dtype, self.itemsize) for name in names]

    def facts(self) -> CpuFunction:
        """What the runtime must know to call the function."""
        return CpuFunction(
            packs=self._packs(),
            packed_elements=self.packed_elements,
            workspace=self.memory.sizes(),
            rows_per_tile=self.rows_per_tile,
        )

    def _ended(self, start: Expr, count: Expr, blank: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """blank(t, b) for each row b of the steps start + t that has ended before."""

        def row(t: Expr, b: Expr) -> Stmt:
            return when(tirx.GE(start + t, load(self.ctx.lengths, b)), blank(t, b))

        rows = loop("t", count, lambda t: loop("b", self.B, lambda b: row(t, b)))
        return when(tirx.NE(self.ctx.has_lengths, int64(0)), rows)
