"""Numbers that blocks leave in global memory for blocks of larger number, which wait for them.

In: where a number lies, in memory full of poison. Out: its store, and loads repeated until it is there. A word is
poison or its number: no counter, and one round trip through L2. Blocks begin in the order of their numbers, so who
waits for those of smaller number alone never waits for one that has no place on the GPU.

Source: Merrill and Garland 2016, "Single-pass parallel prefix scan with decoupled look-back".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.cuda.codegen.kernel_writer import Writer
from tvm_rnn.cuda.codegen.poison import BITS, poison, written
from tvm_rnn.tir.expr import Expr, TirExpr


def publish(w: Writer, name: str, dtype: str, at: Expr, values: Sequence[Expr]) -> None:
    """Store one number, or two of float32 side by side, from element `at` of the array `name` on."""
    words = [w.keep(written(w.keep(value), dtype)) for value in values]
    w.do(I.ptx[f"st.relaxed.gpu.global{_form(dtype, len(words))}"](w[name].ptr_to([at]), *words))


class Awaited:
    """Registers for one number, or two of float32 side by side, that another block publishes."""

    def __init__(self, w: Writer, name: str, dtype: str, at: Expr, lanes: int) -> None:
        self.w, self.name, self.dtype, self.at = w, name, dtype, at
        self.words = w.local(lanes, f"uint{BITS[dtype]}")
        self.lanes = range(lanes)

    def ask(self) -> None:
        """Load what is there."""
        load = I.ptx[f"ld.relaxed.gpu.global{_form(self.dtype, len(self.lanes))}"]
        self.w.do(load(*(self.words[i] for i in self.lanes), self.w[self.name].ptr_to([self.at])))

    def values(self) -> list[TirExpr]:
        """The numbers, once they are there."""
        return [self.w.keep(tirx.reinterpret(self.dtype, self.words[i])) for i in self.lanes]


def wait(every: Sequence[Awaited]) -> None:
    """Until all are there: all are asked for together, again and again."""
    w, dtype = every[0].w, every[0].dtype
    most = w.local(1, f"uint{BITS[dtype]}")

    def look() -> None:
        for own in every:
            own.ask()
        w.store(most, reduce(tirx.Max, [own.words[i] for own in every for i in own.lanes]), 0)

    look()
    with I.While(tirx.EQ(most[0], poison(dtype))):
        look()


def _form(dtype: str, lanes: int) -> str:
    return f".v{lanes}.b{BITS[dtype]}" if lanes > 1 else f".b{BITS[dtype]}"
