"""What threads of a polled grid bring to shared memory: tiles of operands and of weights, which stay or are asked for.

In: the kernel's state (`persistent.Body`). Out: statements: values of the layer's own units as the exchange has them
(`exchange_by_polling.py`), where they lie as swizzled tiles already; the loop that asks again for pieces that are
missing; resident weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.poison import POISON
from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_64
from tvm_rnn.cuda.persistent.exchange import SideBySide
from tvm_rnn.cuda.persistent.exchange_by_polling import Polled
from tvm_rnn.cuda.persistent.geometry import Body, Share, Slots
from tvm_rnn.graph.graph import Node
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import uint32


class Swizzled(SideBySide):
    """An exchange whose values lie in their place as they will in shared memory."""

    def turned(self, row: Expr, piece: Expr) -> Expr:
        return SWIZZLE_64.piece(row, piece)

    def word(self, node: Node, slot: Expr, kblock: Expr, row: Expr, piece: Expr) -> Expr:
        return super().word(node, slot, kblock, row, SWIZZLE_64.piece(row, piece))


class Staged(Swizzled, Polled):
    """One whose values are polled for."""

    def arrive(self) -> None:
        self.write_y(self.publish_tiles())

    def phase(self, slots: Slots) -> None:
        self.arrive()
        super().phase(slots)

    def first_word(self, source: Node) -> Expr:
        node = self.body.value(source)
        return self.place(self._step(self.body.copy_of(source))) + self.geometry.value_at[node] // 2


def until_written(
    k: Writer, count: int, worst: Callable[[int], Expr], ask: Callable[[int], None], wait: Callable[[], object] = list
) -> None:
    """Until no piece of 16 bytes has a word of poison: ask for the missing ones again, together, because one after the
    other would cost a round trip through L2 each, and all of them again would delay the values. worst(n): poison where
    a word of the n-th piece is."""
    poison = uint32(POISON)
    missing = k.local(1, "uint32")
    k.store(missing, poison, 0)
    with I.While(tirx.EQ(missing[0], poison)):
        found = [k.keep(worst(n)) for n in range(count)]
        for n, value in enumerate(found):
            with k.when(tirx.EQ(value, poison)):
                ask(n)
        wait()
        k.store(missing, largest(found), 0)


def largest(found: Sequence[Expr]) -> Expr:
    """As a tree: a chain would be long."""
    while len(found) > 1:
        found = [tirx.Max(*found[i : i + 2]) if i + 1 < len(found) else found[i] for i in range(0, len(found), 2)]
    return found[0]


def copy_to_shared(
    body: Body, share: Share, first: Expr, passing: Sequence[Expr], *, at: int, size: int, base: Expr
) -> None:
    """By all threads of a block: so many bytes of an operand's packed weights, from word `first` on. passing: four
    registers; to byte `at` of shared memory, whose address is `base`."""
    k, geometry, pieces = body.k, body.geometry, size // 16
    weights = k[geometry.weight_names[share]]
    with k.loop(-(-pieces // geometry.threads)) as i:
        piece = i * geometry.threads + body.ids.thread
        with k.when(piece < pieces):
            source = weights.ptr_to([(first + piece * 4) * (4 // geometry.itemsize)])
            k.do(I.ptx["ld.global.nc.v4.b32"](*passing, source))
            k.do(I.ptx["st.shared.v4.b32"](base + tirx.Cast("uint32", piece * 16) + uint32(at), *passing))
