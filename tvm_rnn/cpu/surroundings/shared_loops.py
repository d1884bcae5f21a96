"""Loops that threads share, where there is enough work in them.

In: loops, the first one outside, and what is in them. Out: statements. How much work there is may be known when the
code is made, or only by a run.

Rewrite: for i: for j: body  -->  parallel for thread: for its part of all (i, j): body
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod

from tvm import tirx

from tvm_rnn.cpu.second_thread import LOOP, threads_for_loop
from tvm_rnn.tir.expr import Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import bind, loop, sequence, use_threads

Loops = Sequence[tuple[tirx.Var, Expr]]


def product(extents: Sequence[Expr]) -> Expr:
    """How many times the innermost of loops runs; a number where all are."""
    numbers = [n if isinstance(n, int) else int(n.value) for n in extents if isinstance(n, tirx.IntImm | int)]
    if len(numbers) == len(extents):
        return int64(prod(numbers))
    return reduce(lambda a, b: a * b, extents)


def serial(loops: Loops, body: Stmt) -> Stmt:
    """The body in loops, the first one outside."""
    for var, extent in reversed(loops):
        body = tirx.For(var, int64(0), extent, tirx.ForKind.SERIAL, body)
    return body


def worth_it(work: Expr, threads: TirExpr, plain: Callable[[], Stmt], parallel: Callable[[TirExpr], Stmt]) -> Stmt:
    """parallel(how many threads), by one where a run shows that it is little work; plain() where that is known. work:
    in products."""
    if isinstance(work, tirx.IntImm) and int(work) < LOOP:
        return plain()
    few, set_few = bind("few", threads_for_loop(work, threads))
    return sequence(set_few, use_threads(few), parallel(few), use_threads(threads))


def shared(loops: Loops, body: Stmt, work: Expr, threads: TirExpr) -> Stmt:
    """The loops as one, a piece of which each thread has. Nothing here is negative: floors would be more code."""
    if not loops:
        return body
    count = product([extent for _, extent in loops])

    def piece(thread: tirx.Var, few: Expr) -> Stmt:
        begin, end = (tirx.truncdiv(count * (thread + int64(i)), few) for i in (0, 1))

        def one(i: tirx.Var) -> Stmt:
            names, left = dict[tirx.Var, Expr](), begin + i
            for number, (var, extent) in reversed(list(enumerate(loops))):
                names[var] = tirx.truncmod(left, extent) if number else left
                left = tirx.truncdiv(left, extent)
            return sequence(*(tirx.Bind(var, names[var]) for var, _ in loops), body)

        return loop("i", end - begin, one)

    def pieces(few: TirExpr) -> Stmt:
        return loop("thread", few, lambda thread: piece(thread, few), parallel=True)

    return worth_it(work, threads, lambda: serial(loops, body), pieces)
