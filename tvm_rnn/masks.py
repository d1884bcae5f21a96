"""Masks on CPUs: a loop that fills the rows of a tile of time, in vectors of 32-bit integers.

In: a mask node, where its rows go, and `Draw`: keys, and the step at which the tile begins. Out: a statement for
`emit.py`. What a word is made of stands in `runtime_random.py`, which has the order of the work for this file as well.
Every round is a statement of its own, on vectors that LLVM keeps in registers: as one expression, 20 rounds that use
their values twice would grow without end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from . import runtime_random
from .graph import Node
from .loops import Expr, Stmt, bind, buffer, function, load, loop, sequence, store, variable, vector, when
from .memory import Array, int64, wide

PARALLEL_UNITS = 32  # with less in a row, a launch costs more than it gives: see emit.PARALLEL_ELEMENTS
WORD = "uint32"


@dataclass(frozen=True)
class Draw:
    """What the masks of one visit of a layer and direction are made of."""

    keys: Any  # buffer of uint32
    at: Expr  # address in it of this layer's and direction's first key word
    streams: Sequence[str]  # names of masks, in the order of their keys
    start: Expr  # the step that the tile's first row is of
    batch: Expr


def fill(node: Node, array: Array, into: Any, rows: Expr, draw: Draw, lanes: int, dtype: str) -> Stmt:
    """Fill `rows` rows of the array, those of a step one after the other. Padding gets zeros and ones, too."""
    words, set_words = _key(node, draw)
    units, per_step = prod(node.shape), node.attrs["every"] == "step"
    limit = tirx.const(runtime_random.threshold(node.attrs["keep"]), WORD)
    one, zero = tirx.const(1.0, dtype), tirx.const(0.0, dtype)
    outer, last = node.shape[:-1], node.shape[-1] if node.shape else 1

    def one_row(row: Expr) -> list[Any]:
        step, set_step = bind("mask_step", draw.start + tirx.floordiv(row, draw.batch))
        first, set_first = bind("mask_unit", tirx.floormod(row, draw.batch) * int64(units))
        second = tirx.Cast(WORD, step) if per_step else tirx.const(0, WORD)

        def nest(index: tuple[Expr, ...]) -> Stmt:
            if len(index) < len(outer):
                return loop(f"m{len(index)}", outer[len(index)], lambda i: nest((*index, i)))
            flat: Expr = int64(0)
            for i, size in zip(index, outer, strict=True):
                flat = flat * int64(size) + i

            def panel(c: Expr) -> list[Any]:
                def put(v: Expr, word: Expr) -> Stmt:
                    unit = c * int64(lanes) + v
                    place = array.address(row, (*index, unit)) if node.shape else array.address(row, ()) + unit
                    return store(into, place, tirx.Select(tirx.LT(word, limit), one, zero))

                begin = first + flat * int64(last) + c * int64(lanes)
                return _vector(lanes, lambda v: tirx.Cast(WORD, begin + wide(v)), second, words, put)

            return loop("c", -(-last // lanes), panel)

        return [set_step, set_first, nest(())]

    return sequence(set_words, loop("row", rows, one_row, parallel=units >= PARALLEL_UNITS))


def drop_function(lanes: int, dtype: str, itemsize: int) -> Any:
    """weight_drop(n, key words 0 and 1, limit, scale, source, target): target = source * scale where the word of an
    element is below the limit, else 0, for n elements of a weight, or of its gradient."""
    count, *given = (variable(n) for n in ("n", "key_0", "key_1", "limit"))
    scale = tirx.Var("scale", "float64")
    source, target = (buffer(n, dtype, itemsize) for n in ("source", "target"))
    words, set_words = _words([tirx.Cast(WORD, g) for g in given[:2]])
    limit, factor = tirx.Cast(WORD, given[2]), tirx.Cast(dtype, scale)
    zero = tirx.const(0.0, dtype)

    def panel(c: Expr) -> list[Any]:
        base = c * int64(lanes)

        def put(v: Expr, word: Expr) -> Stmt:
            kept = tirx.Select(tirx.LT(word, limit), load(source, base + v) * factor, zero)
            return store(target, base + v, kept)

        def work(left: Expr | None = None) -> list[Any]:
            return _vector(lanes, lambda v: tirx.Cast(WORD, base + wide(v)), tirx.const(0, WORD), words, put, left)

        return [when(base + int64(lanes) <= count, work(), work(count - base))]

    body = sequence(set_words, loop("c", tirx.floordiv(count + int64(lanes - 1), int64(lanes)), panel, parallel=True))
    return function("weight_drop", [count, *given, scale, source, target], body)


def _key(node: Node, draw: Draw) -> tuple[list[Any], list[Any]]:
    """The three key words, and the statements that set them."""
    at = draw.at + int64(2 * draw.streams.index(node.attrs["stream"]))
    return _words([load(draw.keys, at), load(draw.keys, at + int64(1))])


def _words(values: list[Any]) -> tuple[list[Any], list[Any]]:
    words = [tirx.Var(f"key_{i}", WORD) for i in range(3)]
    values.append(tirx.bitwise_xor(tirx.bitwise_xor(words[0], words[1]), tirx.const(runtime_random.PARITY, WORD)))
    return words, [tirx.Bind(word, value) for word, value in zip(words, values, strict=True)]


def _vector(
    lanes: int,
    first: Callable[[Expr], Expr],
    second: Expr,
    key: Sequence[Expr],
    put: Callable[[Expr, Expr], Stmt],
    count: Expr | None = None,
) -> list[Any]:
    """One vector of words: put(lane, word) of each. first(lane), second: the counter. count: of the lanes that are put
    one by one, where not all of them are."""
    x = [tirx.decl_buffer((lanes,), WORD, name=f"x{i}", scope="local") for i in range(2)]
    parts: list[Any] = [tirx.AllocBuffer(buffer) for buffer in x]

    def everywhere(i: int, value: Callable[[Expr], Expr]) -> None:
        parts.append(vector("v", lanes, lambda v: store(x[i], v, value(v))))

    def rotated(v: Expr, r: int) -> Expr:
        word = load(x[1], v)
        return tirx.bitwise_or(word << tirx.const(r, WORD), word >> tirx.const(32 - r, WORD))

    def step(r: int) -> None:
        everywhere(0, lambda v: load(x[0], v) + load(x[1], v))
        everywhere(1, lambda v: tirx.bitwise_xor(rotated(v, r), load(x[0], v)))

    def inject(i: int, j: int, number: int) -> None:
        everywhere(0, lambda v: load(x[0], v) + key[i])
        everywhere(1, lambda v: load(x[1], v) + (key[j] + tirx.const(number, WORD)))

    everywhere(0, lambda v: first(v) + key[0])
    everywhere(1, lambda v: second + key[1])
    runtime_random.rounds(step, inject)
    if count is None:
        parts.append(vector("v", lanes, lambda v: put(v, load(x[0], v))))
    else:
        parts.append(loop("v", count, lambda v: put(v, load(x[0], v))))
    return parts
