"""dot_product: each kind of CPU has its instruction, and no sum of it can saturate."""

from __future__ import annotations

import pytest

from tvm_rnn.cpu.dot_product import DOT_PRODUCTS, DotProduct, dot_product
from tvm_rnn.target import FEATURES, resolve


@pytest.mark.parametrize(
    ("target", "words", "offset"),
    [
        ("x86-64-v4+avx512vnni", 16, 128),
        ("x86-64-v3+avxvnni", 8, 128),
        ("x86-64-v3", 8, 0),
        ("aarch64-linux-android+dotprod", 4, 0),
        ("wasm32+relaxed-simd", 4, 64),
    ],
)
def test_the_instruction_is_that_of_the_target_s_vectors(target: str, words: int, offset: int) -> None:
    found = dot_product(resolve(target))
    assert (found.words, found.offset) == (words, offset)


@pytest.mark.parametrize("dot", DOT_PRODUCTS, ids=lambda d: d.instruction)
def test_levels_fit_their_bytes(dot: DotProduct) -> None:
    assert dot.features <= {*FEATURES[dot.machine]}
    low, high = dot.offset - dot.largest, dot.offset + dot.largest
    bits = 7 if dot.machine == "wasm32" else dot.level_bits  # of the second factor
    least = 1 << (bits - 1)
    assert (low >= 0 and high < 1 << bits) if dot.offset else (low >= -least and high < least)
    assert dot.offset or (-dot.shift >= -least and 255 - dot.shift < least)  # whole numbers of 8 bits, too
