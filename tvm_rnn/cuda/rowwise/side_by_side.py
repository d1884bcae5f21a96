"""Elements of a row that lie side by side, of one lane: they pass to and from memory as a word of 4 or 8 bytes.

In: how a value lies, how many elements of it a lane has in a row. Out: a `Word`, or None where memory has none, and
what loads and stores one. A row of bytes from memory costs as many instructions as it has words: sums for gradients of
keys, 2.4 GB in bfloat16, took 886 us with an element to each, and take 701 with four (H200).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, converted
from tvm_rnn.cuda.codegen.vector_access import DTYPES, unpack
from tvm_rnn.cuda.layer.packed_layout import SIZES
from tvm_rnn.cuda.layer.pointers import Place, address
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Buffer, Expr, TirExpr

MOST_BYTES = 8


@dataclass(frozen=True)
class Word:
    """So many elements of a value that lies at `place`: a whole number of words make a row."""

    place: Place
    elements: int

    @property
    def dtype(self) -> str:
        return f"uint{8 * self.elements * SIZES[self.place.dtype]}"


def word_of(place: Place, node: Node, together: int) -> Word | None:
    """The largest word of elements that rows of `node` consist of, where a lane has `together` of them. Inputs begin at
    multiples of 16 bytes: others are copied before a call."""
    if place.dtype not in DTYPES or not place.row_stride:
        return None
    size = SIZES[place.dtype]
    known = 16 if node.op == "input" else place.align
    found = gcd(MOST_BYTES, together * size, place.row_stride * size, prod(node.shape) * size, known) // size
    return Word(place, found) if found > 1 and found * size >= 4 else None


def _words(w: Writer, pointer: str, word: Word) -> Buffer:
    """The array as words. Its size is no argument of the kernel: this one is beyond any."""
    words: Buffer = I.decl_buffer((tirx.const(1 << 48, "int64"),), word.dtype, data=w[pointer].data)
    return words


def loaded(w: Writer, pointer: str, word: Word, row: Expr, first: Expr) -> list[TirExpr]:
    """The float32 values of the word that begins with element `first` of a row."""
    at = tirx.floordiv(address(word.place, row, first), word.elements)
    raw = w.keep(_words(w, pointer, word)[at])
    bits = 8 * SIZES[word.place.dtype] * word.elements
    halves = [raw] if bits == 32 else [tirx.Cast("uint32", raw), tirx.Cast("uint32", raw >> tirx.const(32, "uint64"))]
    if word.place.dtype == "float32":
        return [w.keep(tirx.reinterpret("float32", half)) for half in halves]
    return [w.keep(value) for half in halves for value in unpack(word.place.dtype, w.keep(half))]


def stored(w: Writer, pointer: str, word: Word, row: Expr, first: Expr, values: Sequence[Expr]) -> None:
    """Store a word's values, rounded."""
    at = tirx.floordiv(address(word.place, row, first), word.elements)
    size = 8 * SIZES[word.place.dtype]
    total: TirExpr = tirx.const(0, word.dtype)
    for number, value in enumerate(values):
        bits = tirx.reinterpret(f"uint{size}", converted(value, word.place.dtype))
        total = total | (tirx.Cast(word.dtype, bits) << tirx.const(size * number, word.dtype))
    w.store(_words(w, pointer, word), total, at)
