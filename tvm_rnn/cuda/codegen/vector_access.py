"""Several elements that lie side by side in memory, in one instruction of 4, 8 or 16 bytes.

In: the name of a kernel's pointer, and where the first element lies. Out: float32 values in registers, or statements
that store such values, rounded. 16-bit numbers travel as words of two.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as I

from tvm_rnn.tir.expr import Expr, TirExpr
from tvm_rnn.tir.index import uint32

from .host_program import ITEM_BYTES, Pointer
from .kernel_writer import Writer, converted

LANES = 4
DTYPES = ("float32", "float16", "bfloat16")  # of what can be accessed so


class LoadedLanes:
    """Registers for `lanes` elements as they are in memory, zeros at first: all loads may be on their way before the
    first value is taken. lanes: 2, 4 or 8; or 1, then of any dtype."""

    def __init__(self, w: Writer, dtype: str, lanes: int = LANES) -> None:
        self.w, self.dtype, self.lanes = w, dtype, lanes
        self.words = lanes > 1 and dtype != "float32"
        self.count = lanes // 2 if self.words else lanes
        kind = "uint32" if self.words else dtype
        self.raw = w.local(self.count, kind)
        for i in range(self.count):
            w.store(self.raw, tirx.const(0, kind), i)

    def load(self, name: str, at: Expr, policy: Expr | None = None) -> None:
        """From element `at` on, whose address is a multiple of 16 bytes, or of all of theirs if they have fewer.
        policy: of the level-2 cache, where several are loaded at once."""
        if self.lanes == 1:
            self.w.store(self.raw, self.w[name][at], 0)
            return
        kind = "b32" if self.words else "f32"
        for i in range(0, self.count, 4):  # words of 16-bit elements are four at most
            part = [self.raw[j] for j in range(i, min(i + 4, self.count))]
            form, more = _with(policy)
            self.w.do(I.ptx[f"ld.global{form}{_vector(len(part))}.{kind}"](*part, self.w[name].ptr_to([at + i]), *more))

    def values(self) -> list[TirExpr]:
        """In the order of memory: float32, or a single one as it is there."""
        if self.words:
            return [self.w.keep(value) for i in range(self.count) for value in unpack(self.dtype, self.raw[i])]
        return [self.raw[i] for i in range(self.count)]


def store_lanes(
    w: Writer, name: str, dtype: str, at: Expr, values: Sequence[TirExpr], policy: Expr | None = None
) -> None:
    """All values from `at` on; a single one in any dtype. Addresses and policy: as of `LoadedLanes.load`."""
    place, count = w[name], len(values)
    form, more = _with(policy)
    if count == 1:
        w.store(place, converted(values[0], dtype), at)
    elif dtype == "float32":
        for i in range(0, count, 4):
            part = values[i : i + 4]
            w.do(I.ptx[f"st.global{form}{_vector(len(part))}.f32"](place.ptr_to([at + i]), *part, *more))
    else:
        words = w.local(count // 2, "uint32")
        for i in range(count // 2):
            pack(w, dtype, words[i], values[2 * i], values[2 * i + 1])
        every = [words[i] for i in range(count // 2)]
        w.do(I.ptx[f"st.global{form}{_vector(count // 2)}.b32"](place.ptr_to([at]), *every, *more))


def _with(policy: Expr | None) -> tuple[str, list[Expr]]:
    return ("", []) if policy is None else (".L2::cache_hint", [policy])


def _vector(count: int) -> str:
    return f".v{count}" if count > 1 else ""


def aligned(pointers: Sequence[Pointer], lanes: int = LANES) -> str:
    """A C++ condition: so many elements at a time may be accessed at all of these addresses, and at any multiple."""
    needs: dict[int, list[str]] = {}
    for pointer in pointers:
        needs.setdefault(min(16, lanes * ITEM_BYTES[pointer.dtype]), []).append(pointer.text)
    every = {need: " | ".join(f"reinterpret_cast<uintptr_t>({text})" for text in own) for need, own in needs.items()}
    return " && ".join(f"({text}) % {need} == 0" for need, text in every.items())


def pack(w: Writer, dtype: str, into: Expr, low: Expr, high: Expr) -> None:
    """Two float32 numbers in a word."""
    kind = "bf16x2" if dtype == "bfloat16" else "f16x2"
    w.do(I.ptx[f"cvt.rn.{kind}.f32"](into, high, low))


def unpack(dtype: str, word: TirExpr) -> tuple[TirExpr, TirExpr]:
    """The other way."""
    if dtype == "bfloat16":
        high = word & tirx.const(0xFFFF0000, "uint32")
        return tirx.reinterpret("float32", word << uint32(16)), tirx.reinterpret("float32", high)
    halves = tirx.Cast("uint16", word & uint32(0xFFFF)), tirx.Cast("uint16", word >> uint32(16))
    low, high = (tirx.Cast("float32", tirx.reinterpret("float16", half)) for half in halves)
    return low, high
