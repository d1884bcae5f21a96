"""The instructions of CPUs that multiply bytes and add to 32-bit sums.

In: a target. Out: the instruction that it has: its name, its vector, and how levels of operands and weights are stored
for it. All of them are exact: no sum of products saturates, of PAIRS with weights as `saturating_pairs.py` stores them.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx

from tvm_rnn.errors import ConfigError, message
from tvm_rnn.target import Target
from tvm_rnn.tir.expr import Expr, TirExpr

from .pair_product import PAIR_PRODUCTS, PairProduct

WIDER = {own.words: own for own in PAIR_PRODUCTS}  # what adds pairs of 16 bits, by words of a vector


@dataclass(frozen=True)
class DotProduct:
    """An instruction: for each 32-bit word of a vector, sum + the products of the word's factors.

    instruction: LLVM's name. machine: that has it. features: that it needs. words: of a vector. largest: of the
    levels of an operand, on both sides. offset: by which these are stored larger, where bytes have no sign.
    sum_last: whether the sums are its last argument, behind weights and levels. terms: products of a word: of four
    bytes, or of two numbers of 16 bits, to which weights are widened as they are read; these it does not add to sums.
    saturates: whether it adds two products in 16 bits.
    """

    instruction: str
    machine: str
    features: frozenset[str]
    words: int
    largest: float = 127.0
    offset: int = 0
    sum_last: bool = False
    terms: int = 4
    saturates: bool = False

    @property
    def shift(self) -> int:
        """By which whole numbers from 0 to 255 are stored smaller: where bytes have a sign."""
        return 128 if self.terms == 4 and not self.offset else 0

    @property
    def level_bits(self) -> int:
        """Of an operand's level, in words of 32."""
        return 32 // self.terms

    @property
    def weights_dtype(self) -> str:
        """Of a word of weights, a byte for each."""
        return f"int{8 * self.terms}"

    def words_of(self, depth: int) -> int:
        """How many words a row of so many numbers takes."""
        return -(-depth // self.terms)

    def add(self, sums: Expr, levels: Expr, weights: Expr) -> TirExpr:
        """sums plus levels times weights: vectors of words."""
        b = tirx.reinterpret(f"int8x{self.terms * self.words}", weights)
        if self.terms == 2:
            return PairProduct(self.instruction, self.words).add(sums, levels, tirx.Cast(f"int16x{2 * self.words}", b))
        a = tirx.reinterpret(f"int8x{4 * self.words}", levels)
        number = int(tvm.get_global_func("target.llvm_lookup_intrinsic_id")(self.instruction))
        if self.saturates:
            halves = f"int16x{2 * self.words}"
            pairs = tirx.call_llvm_pure_intrin(halves, tirx.IntImm("uint32", number), a, b)
            ones = tirx.Broadcast(tirx.const(1, "int16"), 2 * self.words)
            return WIDER[self.words].add(sums, pairs, ones)
        given = (b, a, sums) if self.sum_last else (sums, a, b)
        return tirx.call_llvm_pure_intrin(f"int32x{self.words}", tirx.IntImm("uint32", number), *given)


# Sources: Intel's and Arm's instruction references; the WebAssembly proposal of relaxed SIMD, whose second factor has 7
# bits on all machines alike: with 8 the machine at hand decides what it means.
DOT_PRODUCTS = (
    DotProduct("llvm.x86.avx512.vpdpbusd.512", "x86_64", frozenset(["avx512f", "avx512vnni"]), words=16, offset=128),
    DotProduct("llvm.x86.avx512.vpdpbusd.256", "x86_64", frozenset(["avxvnni"]), words=8, offset=128),
    DotProduct("llvm.x86.avx2.pmadd.wd", "x86_64", frozenset(["avx2"]), words=8, terms=2),
    DotProduct("llvm.aarch64.neon.sdot", "aarch64", frozenset(["dotprod"]), words=4),
    DotProduct(
        "llvm.wasm.relaxed.dot.i8x16.i7x16.add.signed",
        "wasm32",
        frozenset(["relaxed-simd"]),
        words=4,
        largest=63.0,
        offset=64,
        sum_last=True,
    ),
)
# Of bytes without a sign by signed ones.
PAIRS = DotProduct("llvm.x86.avx2.pmadd.ub.sw", "x86_64", frozenset(["avx2"]), words=8, offset=128, saturates=True)


def dot_product(machine: Target) -> DotProduct:
    """The instruction that a CPU has for its vectors. Raises ConfigError where it has none."""
    lanes, has = machine.lanes("float32"), {*machine.features}
    ours = [dot for dot in DOT_PRODUCTS if dot.machine == machine.machine]
    for dot in ours:
        if dot.words == lanes and dot.features <= has:
            return dot
    needs = [sorted(dot.features - has) for dot in ours if dot.words == lanes]
    without = ", or ".join(" and ".join(names) for names in needs)
    do = 'weights="int8", which needs no instruction of its own'
    if machine.triple and needs:
        do += f', or target="{"+".join([machine.name, *needs[0]])}" where the machine has it'
    got = f"{machine.name}, without {without}" if needs else machine.name
    raise ConfigError(message("products of 8-bit integers need a CPU that has them", got=got, do=do))
