"""pair_products: each kind of CPU has the instructions of its vectors and of shorter ones."""

from __future__ import annotations

import pytest

from tvm_rnn.cpu.pair_product import PAIR_PRODUCTS, pair_products
from tvm_rnn.target import FEATURES, resolve


@pytest.mark.parametrize(
    ("target", "words"),
    [("x86-64-v4", {4, 8, 16}), ("x86-64-v3", {4, 8}), ("aarch64-linux-android", set()), ("wasm32", set())],
)
def test_instructions_of_a_target(target: str, words: set[int]) -> None:
    assert {*pair_products(resolve(target))} == words


def test_features_are_known() -> None:
    assert {own.feature for own in PAIR_PRODUCTS} - {""} <= {*FEATURES["x86_64"]}
