"""One layer's forward code that keeps what training reads: states and emitted values go to the tape, not to scratch.

In: a graph of training with groups, and the tape's layout. Out: statements for `lower_network.py`, as
`cpu/lower_layer.py` makes them for inference; only where values live differs, and that nothing is left in the padding
of the tape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import tirx

from tvm_rnn.cpu.lower_layer import Context, Step, Visit
from tvm_rnn.cpu.workspace import Array
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import bind

from .tape_layout import TapeLayer


@dataclass
class KeepingLayer(TapeLayer):
    """A layer whose states and emitted values are in the tape."""

    def __post_init__(self) -> None:
        super().__post_init__()
        emitted = set(self.graph.emitted)
        # A kept value's only place is the tape: scratch and hoisted rows have none for it.
        self.scratch = self._rows(n for n in self.scratch if n not in emitted)
        early = [n for n in self.hoisted if n in emitted]
        self.hoisted = self._rows(n for n in self.hoisted if n not in emitted) | dict.fromkeys(early, (0, 0))
        self.late = [n for n in dict.fromkeys(self.graph.emitted) if n not in early]

    @property
    def states_per_row(self) -> int:
        """None in the workspace."""
        return 0

    def _kept(self, node: Node, visit: Visit, t: Expr, ctx: Context) -> Array:
        number = self.graph.emitted.index(node)
        return self.tape.emitted(self.index, number, visit.block, visit.start + t, ctx.steps * ctx.batch, ctx.batch)

    def _hoisted(self, node: Node, visit: Visit, t: Expr, ctx: Context) -> Array:
        return self._kept(node, visit, t, ctx) if node in self.graph.emitted else super()._hoisted(node, visit, t, ctx)

    def _input(self, number: int, visit: Visit, t: Expr, ctx: Context) -> Array:
        return replace(super()._input(number, visit, t, ctx), buffer="tape")

    def _begin(self, ctx: Context, visit: Visit, s: Expr) -> Step:
        step = Step(visit, s)
        step.time, set_time = bind("time", step.time)
        step.odd = tirx.bitwise_and(step.time, int64(1))
        step.sets.append(set_time)
        entries = (step.time + visit.direction, step.time + int64(1) - visit.direction)
        for number, node in enumerate(self.graph.states):
            common = (ctx.steps * ctx.batch, ctx.batch)
            pair = (self.tape.state(self.index, number, visit.block, entry, *common) for entry in entries)
            step.bind_state(node.name, *pair)
        return step

    def _written(self, ctx: Context, visit: Visit, t: Expr) -> dict[Node, list[Array]]:
        return super()._written(ctx, visit, t) | {n: [self._kept(n, visit, t, ctx)] for n in self.late}

    def _blanked(self, ctx: Context, visit: Visit, step: Step) -> list[Array]:
        """All that the tape has: weight gradients sum over all rows, and 0 times NaN is NaN."""
        return [*step.old, *(self._kept(n, visit, step.t, ctx) for n in dict.fromkeys(self.graph.emitted))]
