"""Masks on CPUs: a loop that fills the rows of a tile of time, in vectors of 32-bit integers.

In: a mask node, where its rows go, and `Draw`: keys, and the step at which the tile begins. Out: a statement for
`lower_group.py`. What a word is made of stands in `runtime_random.py`, which has the order of the work for this file as
well. Every round is a statement of its own, on vectors that LLVM keeps in registers: as one expression, 20 rounds that
use their values twice would grow without end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from tvm import tirx

from tvm_rnn.graph.graph import Node
from tvm_rnn.runtime import runtime_random
from tvm_rnn.tir.expr import Buffer, Expr, Stmt, TirExpr
from tvm_rnn.tir.index import int64
from tvm_rnn.tir.statements import (
    Block,
    bind,
    buffer,
    load,
    loop,
    runtime_function,
    sequence,
    store,
    variable,
    vector,
    when,
)

from .workspace import Array, dense

PARALLEL_UNITS = 32  # with less in a row, a launch costs more than it gives: see emit.PARALLEL_ELEMENTS
TOGETHER = (4, 2, 1)  # vectors at a time: 4 take 0.50 ns an element on one thread of Zen 5, 1 takes 0.87
WORD = "uint32"


@dataclass(frozen=True)
class Draw:
    """What the masks of one visit of a layer and direction are made of."""

    keys: Buffer  # of uint32
    at: Expr  # address in it of this layer's and direction's first key word
    streams: Sequence[str]  # names of masks, in the order of their keys
    start: Expr  # the step that the tile's first row is of
    batch: Expr


def fill(node: Node, array: Array, into: Buffer, rows: Expr, draw: Draw, lanes: int) -> Stmt:
    """Fill `rows` rows of the array, those of a step one after the other; of a mask for sequences those of one step are
    made, and copied. Padding gets zeros and ones, too."""
    words, set_words = _key(node, draw)
    units, per_step = prod(node.shape), node.attrs["every"] == "step"
    value = _number if node.op == "uniform" else partial(_zero_or_one, node.attrs["keep"])
    outer, last = node.shape[:-1], node.shape[-1] if node.shape else 1

    def one_row(row: Expr) -> list[Block]:
        step, set_step = bind("mask_step", draw.start + tirx.floordiv(row, draw.batch))
        first, set_first = bind("mask_unit", tirx.floormod(row, draw.batch) * int64(units))
        second = tirx.Cast(WORD, step) if per_step else tirx.const(0, WORD)

        def nest(index: tuple[Expr, ...]) -> Stmt:
            if len(index) < len(outer):
                return loop(f"m{len(index)}", outer[len(index)], lambda i: nest((*index, i)))
            flat = dense(outer, index)
            at = array.address(row, (*index, 0)) if node.shape else array.address(row, ())

            def put(unit: Expr, word: Expr) -> Stmt:
                return store(into, at + unit, value(word, into.dtype))

            begin, vectors = first + flat * int64(last), -(-last // lanes)
            work = _Words(lanes, next(n for n in TOGETHER if vectors % n == 0), words, second, put)
            return loop("c", vectors // work.together, lambda c: work.panel(begin, c * int64(work.together * lanes)))

        return [set_step, set_first, nest(())]

    def copy(row: Expr) -> Stmt:
        stride = int64(array.row_stride)
        old, new = (array.base + r * stride for r in (tirx.floormod(row, draw.batch), row + draw.batch))

        def piece(c: Expr) -> Stmt:
            at = c * int64(lanes)
            return vector("v", lanes, lambda v: store(into, new + at + v, load(into, old + at + v)))

        return loop("c", array.row_stride // lanes, piece)

    shared = units >= PARALLEL_UNITS
    if per_step:
        return sequence(set_words, loop("row", rows, one_row, parallel=shared))
    first_step = loop("row", draw.batch, one_row, parallel=shared)
    return sequence(set_words, first_step, loop("row", rows - draw.batch, copy, parallel=shared))


def _zero_or_one(keep: float, word: Expr, dtype: str) -> TirExpr:
    limit = tirx.const(runtime_random.threshold(keep), WORD)
    return tirx.Select(tirx.LT(word, limit), tirx.const(1.0, dtype), tirx.const(0.0, dtype))


def _number(word: Expr, dtype: str) -> TirExpr:
    """An odd number of 24 bits, over 2**24."""
    odd = (word >> tirx.const(9, WORD)) * tirx.const(2, WORD) + tirx.const(1, WORD)
    return tirx.Cast(dtype, tirx.Cast("int32", odd)) * tirx.const(2.0**-24, dtype)


def drop_function(lanes: int, dtype: str, itemsize: int) -> tirx.PrimFunc:
    """weight_drop(n, key words 0 and 1, limit, scale, source, target): target = source * scale where the word of an
    element is below the limit, else 0, for n elements of a weight, or of its gradient."""
    count, *given = (variable(n) for n in ("n", "key_0", "key_1", "limit"))
    scale = tirx.Var("scale", "float64")
    source, target = (buffer(n, dtype, itemsize) for n in ("source", "target"))
    words, set_words = _words([tirx.Cast(WORD, g) for g in given[:2]])
    limit, factor = tirx.Cast(WORD, given[2]), tirx.Cast(dtype, scale)
    zero = tirx.const(0.0, dtype)

    def put(unit: Expr, word: Expr) -> Stmt:
        return store(target, unit, tirx.Select(tirx.LT(word, limit), load(source, unit) * factor, zero))

    many, one = (_Words(lanes, n, words, tirx.const(0, WORD), put) for n in (TOGETHER[0], 1))
    size = int64(many.together * lanes)
    whole = tirx.floordiv(count, size)
    vectors = tirx.floordiv(count - whole * size, int64(lanes))
    done = whole * size + vectors * int64(lanes)
    parts = [
        loop("c", whole, lambda c: many.panel(int64(0), c * size), parallel=True),
        loop("c", vectors, lambda c: one.panel(int64(0), whole * size + c * int64(lanes))),
        when(done < count, one.panel(int64(0), done, count - done)),
    ]
    return runtime_function("weight_drop", [count, *given, scale, source, target], sequence(set_words, parts))


def _key(node: Node, draw: Draw) -> tuple[list[tirx.Var], list[Stmt]]:
    """The three key words, and the statements that set them."""
    at = draw.at + int64(2 * draw.streams.index(node.attrs["stream"]))
    return _words([load(draw.keys, at), load(draw.keys, at + int64(1))])


def _words(values: list[TirExpr]) -> tuple[list[tirx.Var], list[Stmt]]:
    words = [tirx.Var(f"key_{i}", WORD) for i in range(3)]
    values.append(tirx.bitwise_xor(tirx.bitwise_xor(words[0], words[1]), tirx.const(runtime_random.PARITY, WORD)))
    return words, [tirx.Bind(word, value) for word, value in zip(words, values, strict=True)]


@dataclass(frozen=True)
class _Words:
    """Vectors of words, `together` at a time: one alone would wait for the latency of each round. second: the second
    word of all counters. put(unit, word): what becomes of each."""

    lanes: int
    together: int
    key: Sequence[Expr]
    second: Expr
    put: Callable[[Expr, Expr], Stmt]

    def panel(self, begin: Expr, unit: Expr, count: Expr | None = None) -> list[Block]:
        """The words of units from `unit` on, whose counters begin with begin + unit. count: of the units that there
        are, where they are fewer than a vector."""
        shape = (self.together * self.lanes,)
        x = [tirx.decl_buffer(shape, WORD, name=f"x{i}", scope="local") for i in range(2)]
        parts: list[Block] = [tirx.AllocBuffer(buffer) for buffer in x]

        def each(body: Callable[[Expr], Stmt]) -> None:
            for first in range(0, self.together * self.lanes, self.lanes):
                parts.append(vector("v", self.lanes, partial(lambda at, v: body(v + int64(at)), first)))

        def step(r: int) -> None:
            def turned(at: Expr) -> Expr:
                word = load(x[1], at)
                return tirx.bitwise_or(word << tirx.const(r, WORD), word >> tirx.const(32 - r, WORD))

            each(lambda at: store(x[0], at, load(x[0], at) + load(x[1], at)))
            each(lambda at: store(x[1], at, tirx.bitwise_xor(turned(at), load(x[0], at))))

        def inject(i: int, j: int, number: int) -> None:
            each(lambda at: store(x[0], at, load(x[0], at) + self.key[i]))
            each(lambda at: store(x[1], at, load(x[1], at) + (self.key[j] + tirx.const(number, WORD))))

        first = tirx.Cast(WORD, begin + unit) + self.key[0]
        each(lambda at: store(x[0], at, first + tirx.Cast(WORD, at)))
        each(lambda at: store(x[1], at, self.second + self.key[1]))
        runtime_random.rounds(step, inject)
        if count is None:
            each(lambda at: self.put(unit + at, load(x[0], at)))
        else:
            parts.append(loop("v", count, lambda v: self.put(unit + v, load(x[0], v))))
        return parts
