"""A kernel in which a thread makes one element of a nest, with all terms of its sum.

In: a nest's arrays and sizes. Out: a launch. For what is pointwise, and for sums of few terms, or whose neighbours read
neighbours: pooling, a product for each channel.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.tir.expr import TirExpr

from .nest_kernel import Frame, Launch, NestKernel

THREADS = 256


def element_kernel(nest: NestKernel) -> Launch:
    """A thread for each element, along the last axis."""

    def body(frame: Frame) -> None:
        w = frame.w
        total = frame.count(nest.own)
        block, thread = I.cta_id([(total + (THREADS - 1)) // THREADS]), I.thread_id([THREADS])
        index = w.keep(block * THREADS + thread)
        with w.when(index < total):
            variables = frame.split(index, nest.own)
            if not nest.summed:
                frame.store(variables)
                return
            store = nest.nest.store
            sums = w.local(1, str(store.buffer.dtype))
            frame.begin(sums, variables)

            def terms(loops: Sequence[tirx.Var], variables: dict[tirx.Var, TirExpr]) -> None:
                if loops:
                    with w.loop(frame.extent(loops[0])) as i:
                        terms(loops[1:], {**variables, loops[0]: i})
                    return
                w.store(sums, frame.narrow(variables, {store.buffer: sums[0]}).value(store.value), 0)

            terms(nest.summed, variables)
            frame.store(variables, {store.buffer: sums[0]})

    return nest.launch(body, THREADS)
