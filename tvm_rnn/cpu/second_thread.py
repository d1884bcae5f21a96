"""How many threads are worth it: what it costs to hand work over, against the work.

In: how much work there is, known when the code is made or by a run alone. Out: how many threads share it. The numbers
are of a Sapphire Rapids: a thread that waits for work has begun 0.2 us after it is there, one that sleeps 20 us and
more after that, which the calling thread spends in waking it. pool.c lets threads wait for a while before they sleep.
"""

from __future__ import annotations

from tvm import tirx

from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import int64, wide

LOOP = 1 << 19  # multiply-adds of a loop: some 6 us of one thread
PART = 1 << 15  # multiply-adds of a part of a step, whose threads wait awake: some 1 us of one thread
CALL = 1 << 19  # FLOPs of a call of a network, which may find threads asleep: some 15 us of one row


def threads_for_call(flops: Expr, threads: TirExpr) -> TirExpr:
    """How many threads share a call of so many FLOPs."""
    return tirx.Select(flops < int64(CALL), int64(1), threads)


def threads_for_loop(work: Expr, threads: TirExpr) -> TirExpr:
    """How many threads share a loop of so many multiply-adds: two from LOOP on, one more for each half of that."""
    most = tirx.truncdiv(wide(work) * int64(2), int64(LOOP))
    return tirx.Max(int64(1), tirx.Min(wide(threads), most))


def threads_for_part(work: Expr, threads: Expr) -> TirExpr:
    """How many threads share so many multiply-adds, of the many parts that a call has."""
    return tirx.Select(wide(work) < int64(PART), int64(1), threads)


def threads_for_directions(work: Expr, threads: Expr) -> TirExpr:
    """How many threads share the two directions of a layer, of so many multiply-adds a step each: 1 is one direction
    after the other, each on all threads. A thread each hands nothing over in a step: two threads, and steps that one
    thread does alone, have no better use."""
    most = tirx.Min(wide(threads), int64(2))
    return tirx.Select(tirx.any(wide(threads) < int64(3), wide(work) < int64(PART)), most, int64(1))


def with_weights(products: Expr, size: Expr) -> Expr:
    """The work of so many multiply-adds on weights of so many bytes, in multiply-adds. Few rows wait for the weights:
    a byte takes at least as long to come as a multiply-add."""
    return tirx.max(wide(products), wide(size))
