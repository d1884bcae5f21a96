"""Prefetch of weights: where they come from memory, those of the next steps of K are on their way.

In: a product as loops over K, and which weights are wanted soon. Out: the same loops, with prefetches in front of each
step of K.

Rewrite: for k: acc += a[k] * w[k]  -->  for k: prefetch w[k + ahead]; acc += a[k] * w[k]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import tirx

from tvm_rnn.tir.expr import Buffer, Expr, Stmt

CACHE_LINE = 64  # bytes
READ, EVERY_LEVEL, DATA = (tirx.IntImm("int32", value) for value in (0, 3, 1))


def with_prefetches(product: Stmt, weights: Buffer, wanted: Callable[[tirx.Var], Sequence[Expr]]) -> Stmt:
    """The product, with prefetches of `weights`. wanted(k): the elements to prefetch in the loop over k, one in each
    cache line; none in a loop that is not one over K."""

    def prefetch_first(loop: tirx.For) -> tirx.For:
        requests = []
        for element in wanted(loop.loop_var):
            address = tirx.address_of(tirx.BufferLoad(weights, [element]))
            request = tirx.call_intrin("void", "tirx.prefetch", address, READ, EVERY_LEVEL, DATA)
            requests.append(tirx.Evaluate(request))
        if not requests:
            return loop
        body = tirx.SeqStmt([*requests, loop.body])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations={})

    return tvm_ffi.structural_map(product, (tirx.For, prefetch_first))
