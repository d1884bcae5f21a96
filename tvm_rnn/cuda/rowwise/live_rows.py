"""The rows that have not ended, step by step: what products multiply in calls with lengths.

In: lengths. Out: a list of rows, t * B + b, those of a step one behind the other, and where in it each step begins,
written by a kernel, since lengths are known on the GPU alone. A product of all steps, or of one, reads its part of it;
whatever the order of the batch, it has no more tiles than there are rows to multiply, and each row the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr, Pointer, Program
from tvm_rnn.cuda.codegen.kernel_writer import Kernel, Writer, write
from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32, wide

WARP, WARPS = 32, 4  # lanes, and warps of a block
EVERYONE = 0xFFFFFFFF


@dataclass(frozen=True)
class LiveSteps:
    """What a product is given of the list: its arguments, the first step, how many steps; of none: all rows."""

    pointers: tuple[Pointer, Pointer]
    first: HostExpr
    steps: HostExpr


@dataclass(frozen=True)
class LiveRows:
    """The list of a call. live: [T * B] int32, of which as many are written as rows are live; starts: [T + 1] int32.
    when: a C++ condition: there is a list."""

    live: Pointer
    starts: Pointer
    when: str

    @staticmethod
    def of(program: Program, least: HostExpr) -> LiveRows:
        """Memory for it, in calls of `least` rows or more in all steps."""
        sized = f"T > 1 && T * B >= {least} && T * B < INT64_C(1) << 31"
        live = program.buffer("live", f"{sized} ? T * B : 0", "int32")
        starts = program.buffer("starts", f"{sized} ? T + 1 : 0", "int32")
        return LiveRows(live, starts, program.sequence.let("lists", f"has_lengths && {sized}"))

    def make(self, host: Host) -> None:
        """Enqueue: write the list."""
        with host.when(self.when):
            host.launch(_kernel(), [host.program.lengths, self.live, self.starts], ["B", "T"])

    def of_steps(self, first: HostExpr, steps: HostExpr, when: str) -> LiveSteps:
        """Those of `steps` steps from `first` on, in order of time. when: a C++ condition: a product works on these
        alone."""
        return LiveSteps((self.live, self.starts), f"({when}) ? {first} : 0", f"({when}) ? {steps} : 0")


@cache
def _kernel() -> Kernel:
    return write(
        "live_rows",
        [("lengths", "int64"), ("live", "int32"), ("starts", "int32")],
        [("batch", "int32"), ("total", "int32")],
        _write,
        threads=WARP * WARPS,
    )


def _write(w: Writer) -> None:
    """A warp for each step, and one for the end of the list: rows before a step, of which no list need be known, are
    as many as all rows' steps before it."""
    block = I.cta_id([tirx.floordiv(w["total"] + WARPS, WARPS)])
    thread = I.thread_id([WARP * WARPS])
    lane, t = w.keep(thread % WARP), w.keep(block * WARPS + thread // WARP)
    rounds = w.keep(tirx.truncdiv(w["batch"] + (WARP - 1), WARP))
    with w.when(t <= w["total"]):
        begin = w.local(1, "int32")
        w.store(begin, _before(w, t, lane, rounds), 0)
        with w.when(tirx.EQ(lane, 0)):
            w.store(w["starts"], begin[0], wide(t))
        with w.when(t < w["total"]), w.loop(rounds) as turn:
            row = w.keep(turn * WARP + lane)
            known = w.local(1, "int32")
            w.store(known, tirx.const(0, "int32"), 0)
            with w.when(row < w["batch"]):
                w.store(known, tirx.Cast("int32", w["lengths"][wide(row)] > wide(t)), 0)
            votes = w.keep(tirx.call_extern("uint32", "__ballot_sync", tirx.const(EVERYONE, "uint32"), known[0]))
            below = tirx.bitwise_and(votes, (tirx.const(1, "uint32") << tirx.Cast("uint32", lane)) - uint32(1))
            with w.when(tirx.NE(known[0], 0)):
                w.store(w["live"], t * w["batch"] + row, wide(begin[0] + _count(below)))
            w.store(begin, begin[0] + _count(votes), 0)


def _before(w: Writer, t: TirExpr, lane: TirExpr, rounds: TirExpr) -> Expr:
    """Live rows of all steps before t."""
    found = w.local(1, "int32")
    w.store(found, tirx.const(0, "int32"), 0)
    with w.loop(rounds) as turn:
        row = w.keep(turn * WARP + lane)
        with w.when(row < w["batch"]):
            steps = tirx.max(tirx.min(w["lengths"][wide(row)], wide(t)), tirx.const(0, "int64"))
            w.store(found, found[0] + tirx.Cast("int32", steps), 0)
    for apart in (16, 8, 4, 2, 1):
        other = (tirx.const(EVERYONE, "uint32"), found[0], apart, WARP)
        w.store(found, found[0] + tirx.call_extern("int32", "__shfl_xor_sync", *other), 0)
    return found[0]


def _count(votes: TirExpr) -> TirExpr:
    return tirx.call_extern("int32", "__popc", votes)
