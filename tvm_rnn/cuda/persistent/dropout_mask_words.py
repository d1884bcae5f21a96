"""What the cells of a persistent kernel read of masks: words of 32 steps in registers, a bit of them in each step.

In: the kernel's state (`persistent.Body`), and masks as words (`cuda/rowwise/dropout_masks.py`). Out: registers, and
values of 0 and 1. A lane loads the words of its own units and batch rows, once in 32 steps. A mask for whole sequences
is loaded once, and is a number in a register.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.layer.phases import components, place
from tvm_rnn.cuda.rowwise.dropout_masks import BITS, WORD
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.tensor_expressions import Index, element
from tvm_rnn.tir.expr import Buffer, Expr

from .geometry import Body

Key = tuple[Node, int, int, int, int, int]  # mask, component, units of the phase, block, own tile, row of two


class MaskWords:
    """The words of one kernel. numbers: of each mask's pointer."""

    def __init__(self, body: Body, numbers: Mapping[Node, int]) -> None:
        self.body, self.k, self.step, self.numbers = body, body.k, body.step, numbers
        self.words: dict[Key, tuple[Buffer, int]] = {}
        self.shift: Expr = tirx.const(0, "int32")

    def prepare(self) -> None:
        """Registers, and what the first step reads."""
        found: dict[Key, None] = {}
        for phase, reads in zip(self.step.phases, self.step.reads, strict=True):
            for node, slot in reads:
                if node.random:
                    found |= {(node, slot, phase.width, *cell): None for cell in self.body.cells.each(phase.width)}
        for whole in (True, False):
            own = [key for key in found if _whole(key[0]) == whole]
            registers = self.k.local(max(1, len(own)), "float32" if whole else WORD)
            self.words |= {key: (registers, at) for at, key in enumerate(own)}
            if own:
                self._load(own, tirx.const(0, "int32"))

    def begin(self, t: Expr) -> None:
        """Step t begins: which bit is its own."""
        if any(not _whole(key[0]) for key in self.words):
            self.shift = self.k.keep(tirx.bitwise_and(self.body.order(t), BITS - 1))

    def after(self, t: Expr) -> None:
        """Step t - 1 ends: where step t begins another word, load it."""
        own = [key for key in self.words if not _whole(key[0])]
        if not own:
            return
        k = self.k
        first = tirx.Select(k["direction"] < 0, tirx.const(BITS - 1, "int32"), tirx.const(0, "int32"))
        turns = tirx.EQ(tirx.bitwise_and(self.body.order(t), BITS - 1), first)
        with k.when(tirx.And(t < k["steps"], turns)):
            self._load(own, t)

    def _load(self, own: list[Key], t: Expr) -> None:
        """All of them at once, then what is made of them, then the prefetch of later ones into L2."""
        k, body = self.k, self.body
        # 0, which the compiler cannot know: what is made of a word here is waited for here, and not in every step.
        none = k.keep(tirx.Cast(WORD, k["direction"] * k["direction"] - 1))
        group = k.keep(tirx.Cast("int64", body.order(t) >> (BITS.bit_length() - 1)) * k["batch"])
        loaded = k.local(len(own), WORD)
        for n, (node, *cell) in enumerate(own):
            k.store(loaded, tirx.const(0, WORD), n)
            with self._cell(*cell):
                k.store(loaded, self.word(node, *self._at(group, node, *cell)), n)
        for n, key in enumerate(own):
            registers, at = self.words[key]
            word = tirx.bitwise_xor(loaded[n], none)
            k.store(registers, self.number(word) if _whole(key[0]) else word, at)
        with k.when(t + BITS < k["steps"]):
            later = k.keep(group + k["direction"] * k["batch"])
            for node, *cell in (key for key in own if not _whole(key[0])):
                with self._cell(*cell):
                    pointer = self._pointer(node, *self._at(later, node, *cell))
                    k.do(I.ptx["prefetch.global.L2"](pointer))

    @contextmanager
    def _cell(self, slot: int, width: int, block: int, j: int, e: int) -> Iterator[None]:
        """For lanes that have that cell."""
        with self.body.cells.own_tile(j), self.k.when(self.body.cells.inside(width if slot >= 0 else 1, block, j, e)):
            yield

    def _at(self, group: Expr, node: Node, slot: int, width: int, block: int, j: int, e: int) -> tuple[Expr, Expr]:
        """Row and unit of a cell's word."""
        row = tirx.Cast("int64", self.body.cells.row(j, e))
        unit: Expr = ~slot if slot < 0 else slot * width + self.body.cells.unit(width, block)
        return row if _whole(node) else group + row, unit

    def _pointer(self, node: Node, row: Expr, unit: Expr) -> Expr:
        return self.k[f"read_{self.numbers[node]}"].ptr_to([row * prod(node.shape) + tirx.Cast("int64", unit)])

    def word(self, node: Node, row: Expr, unit: Expr) -> Expr:
        """A word in memory."""
        return self.k[f"read_{self.numbers[node]}"][row * prod(node.shape) + tirx.Cast("int64", unit)]

    def number(self, word: Expr) -> Expr:
        """The lowest bit as a number."""
        one, zero = (tirx.const(value, "float32") for value in (1.0, 0.0))
        return tirx.Select(tirx.NE(tirx.bitwise_and(word, tirx.const(1, WORD)), tirx.const(0, WORD)), one, zero)

    def masked_state(self, state: Node, value: Expr, block: int, j: int, e: int) -> Expr:
        """What products read of a state's value in one cell."""
        width = self.step.domain[state]
        return self._shown(state, value, lambda node, slot: self.value(node, slot, width, block, j, e))

    def masked_state_at(self, state: Node, value: Expr, row: Expr, unit: Expr) -> Expr:
        """The same in any batch row and unit."""
        width = self.step.domain[state]

        def number(node: Node, slot: int) -> Expr:
            return self.number(self.word(node, tirx.Cast("int64", row), ~slot if slot < 0 else slot * width + unit))

        return self._shown(state, value, number)

    def _shown(self, state: Node, value: Expr, mask: Callable[[Node, int], Expr]) -> Expr:
        node = self.step.shown.get(state)
        if node is None:
            return value
        width, own = self.step.domain[state], self.k.keep(value)

        def read(inner: Node, index: Index) -> Expr | None:
            if inner is state:
                return own
            if not inner.random:
                return None
            number, moving = place(inner, index, width)
            return mask(inner, number if moving else ~number)

        _, index = next(components(node, width))
        return element(node, index, read, "float32")

    def value(self, node: Node, slot: int, width: int, block: int, j: int, e: int) -> Expr:
        """The mask of one cell in this step."""
        registers, at = self.words[(node, slot, width, block, j, e)]
        return registers[at] if _whole(node) else self.number(registers[at] >> tirx.Cast(WORD, self.shift))


def _whole(node: Node) -> bool:
    return bool(node.attrs["every"] == "sequence")
