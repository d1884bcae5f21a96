"""The instructions of CPUs that multiply whole numbers of 16 bits in pairs, and add both products in 32 bits.

In: a target. Out: by vectors' words of 32 bits, the instruction that it has. All of them are exact but for the one sum
of two products of -32768 each, which wraps. With VNNI, LLVM makes one instruction of it and of the addition to a sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm
from tvm import tirx

from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Expr, TirExpr


@dataclass(frozen=True)
class PairProduct:
    """instruction: LLVM's name. words: of a vector. feature: that a machine needs for it; "" where all have it."""

    instruction: str
    words: int
    feature: str = ""

    def add(self, sums: Expr, a: Expr, b: Expr) -> TirExpr:
        """sums plus the products of pairs. sums, a: vectors of int32, the second's words are pairs; b: of int16."""
        number = int(tvm.get_global_func("target.llvm_lookup_intrinsic_id")(self.instruction))
        pairs = tirx.reinterpret(f"int16x{2 * self.words}", a)
        return sums + tirx.call_llvm_pure_intrin(f"int32x{self.words}", tirx.IntImm("uint32", number), pairs, b)


# Source: Intel's intrinsics guide, PMADDWD.
PAIR_PRODUCTS = (
    PairProduct("llvm.x86.avx512.pmaddw.d.512", 16, "avx512bw"),
    PairProduct("llvm.x86.avx2.pmadd.wd", 8, "avx2"),
    PairProduct("llvm.x86.sse2.pmadd.wd", 4, ""),
)


def pair_products(machine: Target) -> Mapping[int, PairProduct]:
    """The instructions that a CPU has, by words of a vector."""
    if machine.machine != "x86_64":
        return {}
    return {own.words: own for own in PAIR_PRODUCTS if not own.feature or own.feature in machine.features}
