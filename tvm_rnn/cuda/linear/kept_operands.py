"""Operands of some rounds of a recurrence of vectors, which stay in shared memory until they are read again.

In: what is loaded for a round's steps (`vector_loads.py`), a number of bytes. Out: statements that store registers
there, as they were loaded, and load them. Each thread has places of its own: nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.host_program import ITEM_BYTES
from tvm_rnn.cuda.codegen.vector_access import LoadedLanes
from tvm_rnn.cuda.layer.row_kernels import WARP
from tvm_rnn.tir.expr import Buffer, Expr

from .vector_loads import Loads
from .vector_walk import Walk

ALIGN = 16


class Kept:
    """Of a warp's rounds 1 to `rounds`: that of round 0 are in registers."""

    def __init__(self, walk: Walk, like: Sequence[Loads]) -> None:
        self.w, self.walk, self.places = walk.w, walk, list[tuple[Buffer, int]]()
        room, size = max(walk.scan.kept, ALIGN), 0
        arena: Buffer = I.alloc_buffer((room,), "uint8", scope="shared.dyn", align=ALIGN)
        views = dict[str, Buffer]()
        for own in _registers(like):
            kind = str(own.raw.dtype)
            if kind not in views:
                count = room // ITEM_BYTES[kind]
                views[kind] = I.decl_buffer((count,), kind, data=arena.data, scope="shared.dyn")
            self.places.append((views[kind], size // ITEM_BYTES[kind]))
            size += own.count * ITEM_BYTES[kind] * WARP
        self.size = size  # of a warp's round
        self.rounds = room // (size * walk.warps) if size else 0

    def store(self, number: Expr, loads: Sequence[Loads]) -> None:
        """A round's operands stay, if there is a place for them."""
        self._move(number, loads, leave=True)

    def load(self, number: Expr, loads: Sequence[Loads]) -> None:
        """The registers have that round's operands again, if they are here."""
        self._move(number, loads, leave=False)

    def _move(self, number: Expr, loads: Sequence[Loads], leave: bool) -> None:
        w, walk = self.w, self.walk
        if not self.rounds:
            return
        with w.when(tirx.And(number > 0, number <= self.rounds)):
            first = w.keep((number - 1) * walk.warps + walk.part)
            for (view, behind), own in zip(self.places, _registers(loads), strict=True):
                at = first * (self.size // ITEM_BYTES[str(view.dtype)]) + behind + walk.column * own.count
                registers = [own.raw[i] for i in range(own.count)]
                if own.count == 1:
                    into, value, place = (view, registers[0], at) if leave else (own.raw, view[at], 0)
                    w.store(into, value, place)
                    continue
                form = f".shared.v{own.count}.{'b32' if own.words else 'f32'}"
                if leave:
                    w.do(I.ptx[f"st{form}"](view.ptr_to([at]), *registers))
                else:
                    w.do(I.ptx[f"ld{form}"](*registers, view.ptr_to([at])))


def _registers(loads: Sequence[Loads]) -> list[LoadedLanes]:
    return [word.registers for own in loads for word in own.words]
