"""What steps of a recurrence of vectors read, loaded before it is used.

In: where a thread's elements lie. Out: `Loads` of each step, on their way while others are worked on, and the values of
a step, `Loaded`, made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tvm_ffi
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer, converted
from tvm_rnn.cuda.codegen.vector_access import LoadedLanes
from tvm_rnn.cuda.layer.pointers import Place, address, dense
from tvm_rnn.cuda.layer.row_kernels import Values
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.tensor_expressions import Index
from tvm_rnn.tir.expr import Expr, TirExpr


@dataclass
class _Word:
    """Elements that a thread loads at once. first: of them, in a row."""

    registers: LoadedLanes
    pointer: str
    place: Place
    first: Expr


class Loads:
    """What is loaded for one step, as it is in memory, in the order in which it is read; of values that change with
    time. dtype: of arithmetic; word: of an element of a row, how many a thread accesses at once there, the first one,
    and which of them it is. asked: of each that is read, its word and which of its elements it is."""

    def __init__(self, w: Writer, dtype: str, word: Callable[[Place, Expr], tuple[int, Expr, int]]) -> None:
        self.w, self.dtype, self.word = w, dtype, word
        self.words: list[_Word] = []
        self.asked: list[tuple[int, int]] = []
        self.taken: list[list[Expr]] | None = None  # None: the first time, when places become known

    def take(self) -> None:
        """What is there is used from here on, and its places may be loaded to."""
        w, dtype = self.w, self.dtype
        self.taken = [[w.keep(converted(v, dtype)) for v in word.registers.values()] for word in self.words]

    def ask(self, row: Row, policy: Expr | None = None) -> None:
        """Load the same of another step. policy: of the level-2 cache."""
        for number, word in enumerate(self.words):
            word.registers.load(word.pointer, row.at(number, word.place, word.first), policy)

    def prefetch(self, row: Row) -> None:
        """Bring the same of another step to the L2 cache."""
        for number, word in enumerate(self.words):
            place = self.w[word.pointer].ptr_to([row.at(number, word.place, word.first)])
            self.w.do(I.ptx["prefetch.global.L2"](place))

    def value(self, number: int, row: Row, pointer: str, place: Place, at: Expr) -> Expr:
        """The one with that number; at: where in a row it is."""
        if self.taken is None:
            self.asked.append(self._find(row, pointer, place, at))
            word, element = self.asked[-1]
            return converted(self.words[word].registers.values()[element], self.dtype)
        if number < len(self.asked):
            word, element = self.asked[number]
            return self.taken[word][element]
        return converted(self.w[pointer][row.at(None, place, at)], self.dtype)

    def _find(self, row: Row, pointer: str, place: Place, at: Expr) -> tuple[int, int]:
        """The word that has an element, loaded where it is new, and which one it is."""
        lanes, first, element = self.word(place, at)
        for number, word in enumerate(self.words):
            if word.pointer == pointer and word.registers.lanes == lanes and same(word.first, first):
                return number, element
        self.words.append(_Word(LoadedLanes(self.w, place.dtype, lanes), pointer, place, first))
        self.words[-1].registers.load(pointer, row.at(len(self.words) - 1, place, first))
        return len(self.words) - 1, element


@dataclass(frozen=True)
class Row:
    """The row of a step: so many steps behind one whose row is known. apart: by strides, elements from a step to the
    next; known: of what these steps read and write, how far it has come, and where that is: where the next step's lies
    is one addition."""

    w: Writer
    first: Expr
    behind: int
    apart: Mapping[int, Expr]
    known: dict[object, tuple[int, TirExpr]]

    def at(self, what: object, place: Place, offset: Expr) -> Expr:
        """The element of an array at an offset in the row; what: of which value, None: of none that each step has."""
        if not place.row_stride:
            return address(place, self.first, offset)
        if what is None:
            return address(place, self.first, offset) + self.behind * self.apart[place.row_stride]
        behind, at = self.known.get(what, (0, None))
        at = self.w.keep(address(place, self.first, offset)) if at is None else at
        if self.behind > behind:
            at = self.w.keep(at + (self.behind - behind) * self.apart[place.row_stride])
        self.known[what] = self.behind, at
        return at


@dataclass
class Loaded(Values):
    """Values whose operands were loaded before. step: whose they are."""

    loads: Loads | None = None
    number: int = 0  # of those that were read
    step: Row | None = None

    def load(self, pointer: str, place: Place, node: Node, index: Index) -> Expr:
        if not place.row_stride or self.loads is None:
            return super().load(pointer, place, node, index)
        assert self.step is not None
        self.number += 1
        return self.loads.value(self.number - 1, self.step, pointer, place, dense(node.shape, index))


@dataclass(frozen=True)
class Step:
    """Its values; whether the chunk has it, whether it counts (the row has not ended either), and whether the row
    begins anew; None: yes, yes, no."""

    values: Loaded
    inside: Expr | None
    active: Expr | None
    restart: Expr | None


def same(one: Expr, other: Expr) -> bool:
    """Whether two places in a row are the same, as they are written."""
    if isinstance(one, int) or isinstance(other, int):
        return isinstance(one, int) and isinstance(other, int) and one == other
    return bool(tvm_ffi.structural_equal(one, other))
