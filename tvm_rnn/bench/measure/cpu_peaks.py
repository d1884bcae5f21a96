"""What this CPU does at best, measured: multiply-adds, and reading as many bytes as a network's weights have.

In: a dtype, bytes, a number of threads. Out: GFLOP/s and GB/s of code that does nothing else, compiled as everything
else here is: a loop of independent multiply-adds in registers, and a loop that adds up an array. Where an array fits a
cache, that cache's rate is what is found: it is the ceiling of weights that stay there from step to step.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import tvm
from tvm import tirx

from tvm_rnn.compiler.link import generate
from tvm_rnn.target import host
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import floormod, load, loop, sequence, store, variable, vector

SECONDS, TRIES = 0.06, 3  # of one measurement; the best of some counts: a ceiling is what nothing disturbs
FMA_CALL, READ_CALL = 200_000, 1 << 24  # rounds of multiply-adds, and bytes, of one call: milliseconds
CHAINS = 12  # accumulators: two pipes of four cycles want 8, and 16 registers hold them with their operands


class Rate(NamedTuple):
    """The best of some tries, and by how much the worst lies below it: much where others use this machine too."""

    best: float
    spread: float


def fma_gflops(dtype: str, threads: int) -> Rate:
    """GFLOP/s of `threads` threads that do nothing but multiply-adds of a dtype."""
    function, lanes = _functions(dtype)["fma"], host().lanes(dtype)
    work = FMA_CALL * CHAINS * lanes * 2

    def call_of_thread() -> Callable[[], object]:
        x, out = (tvm.runtime.tensor(np.full(n * lanes, value, dtype)) for n, value in ((1, 0.5), (CHAINS, 0)))
        return lambda: function(FMA_CALL, x, out)

    return _rate([call_of_thread() for _ in range(threads)], work * 1e-9)


def read_gbytes(size: int, threads: int) -> Rate:
    """GB/s at which `threads` threads read `size` bytes again and again, each its own part of them."""
    function, lanes = _functions("float32")["read"], host().lanes("float32")
    round_bytes = CHAINS * lanes * 4
    rounds = max(1, size // threads // round_bytes)
    again = max(1, READ_CALL // (rounds * round_bytes))

    def call_of_thread() -> Callable[[], object]:
        data = tvm.runtime.tensor(np.ones(rounds * CHAINS * lanes, "float32"))
        out = tvm.runtime.tensor(np.zeros(CHAINS * lanes, "float32"))
        return lambda: function(again, rounds, data, out)

    return _rate([call_of_thread() for _ in range(threads)], again * rounds * round_bytes * 1e-9)


def _rate(calls: list[Callable[[], object]], work: float) -> Rate:
    """Work per second of all calls side by side, each in a thread of its own, the best of TRIES. Of one thread the
    second is one on a CPU, as the times are that it is compared with."""
    clock = time.thread_time if len(calls) == 1 else time.perf_counter
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> float:
        done, elapsed = 0, 0.0
        call()
        start.wait()
        begun = clock()
        while elapsed < SECONDS:
            call()
            done, elapsed = done + 1, clock() - begun
        return done * work / elapsed

    with ThreadPoolExecutor(len(calls)) as pool:
        tries = [sum(pool.map(run, calls)) for _ in range(TRIES)]
    return Rate(max(tries), 1 - min(tries) / max(tries))


@functools.cache
def _functions(dtype: str) -> dict[str, Callable[..., object]]:
    """Compiled for this CPU: fma(n, x, out) and read(again, rounds, data, out)."""
    lanes = host().lanes(dtype)
    made = generate(tvm.IRModule({"fma": _fma(dtype, lanes), "read": _read(dtype, lanes)}), host())
    return {name: made[name] for name in ("fma", "read")}


def _fma(dtype: str, lanes: int) -> tirx.PrimFunc:
    """for i in n: for each accumulator: a = a x + x; all have one vector x: with one each, registers would not do."""
    n, x, out = variable("n"), _buffer("x", dtype), _buffer("out", dtype)

    def again(own: Buffer) -> Callable[[Expr], TirExpr]:
        return lambda at: load(own, at) * load(x, floormod(at, lanes)) + load(x, floormod(at, lanes))

    return _function("fma", [n, x, out], out, dtype, lanes, lambda own, step: loop("i", n, lambda i: step(again(own))))


def _read(dtype: str, lanes: int) -> tirx.PrimFunc:
    """for a in again: for i in rounds: for each accumulator: a += data[...]."""
    again, rounds = variable("again"), variable("rounds")
    data, out = _buffer("data", dtype), _buffer("out", dtype)

    def work(own: Buffer, step: Callable[[Callable[[Expr], Expr]], Stmt]) -> Stmt:
        def add(i: Expr) -> Stmt:
            return step(lambda at: load(own, at) + load(data, i * int64(CHAINS * lanes) + at))

        return loop("a", again, lambda a: loop("i", rounds, add))

    return _function("read", [again, rounds, data, out], out, dtype, lanes, work)


def _buffer(name: str, dtype: str) -> Buffer:
    return tirx.decl_buffer((variable(f"size_{name}"),), dtype, name=name, data_alignment=np.dtype(dtype).itemsize)


def _function(
    name: str, params: list[TirExpr | Buffer], out: Buffer, dtype: str, lanes: int, work: Callable[..., Stmt]
) -> tirx.PrimFunc:
    """Accumulators from `out`, the work, and back: what is computed is used, so that no compiler leaves it out."""
    own = tirx.decl_buffer((CHAINS * lanes,), dtype, name="own", scope="local")

    def each(value: Callable[[Expr], Expr], target: Buffer) -> Stmt:
        def chain(c: int) -> Stmt:
            return vector("v", lanes, lambda v: store(target, int64(c * lanes) + v, value(int64(c * lanes) + v)))

        return sequence([chain(c) for c in range(CHAINS)])

    body = sequence(
        tirx.AllocBuffer(own),
        each(lambda at: load(out, at), own),
        work(own, lambda value: each(value, own)),
        each(lambda at: load(own, at), out),
    )
    return tirx.PrimFunc(params, body).with_attr("global_symbol", name).with_attr("tirx.noalias", True)
