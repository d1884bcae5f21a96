"""How many threads share loops and calls: one where there is little work, each with enough where there is more."""

from __future__ import annotations

import pytest
from tvm.sym import Analyzer

from tvm_rnn.cpu.second_thread import (
    CALL,
    LOOP,
    PART,
    threads_for_call,
    threads_for_directions,
    threads_for_loop,
    threads_for_part,
    with_weights,
)
from tvm_rnn.tir.expr import Expr
from tvm_rnn.tir.index import int64


def number(value: Expr) -> int:
    return int(Analyzer().simplify(value))


@pytest.mark.parametrize(
    ("products", "threads", "few"),
    [(0, 8, 1), (LOOP - 1, 8, 1), (LOOP, 8, 2), (LOOP, 1, 1), (3 * LOOP // 2, 8, 3), (1 << 40, 8, 8)],
)
def test_threads_of_a_loop(products: int, threads: int, few: int) -> None:
    assert number(threads_for_loop(int64(products), int64(threads))) == few


@pytest.mark.parametrize(("flops", "few"), [(0, 1), (CALL - 1, 1), (CALL, 8)])
def test_threads_of_a_call(flops: int, few: int) -> None:
    assert number(threads_for_call(int64(flops), int64(8))) == few


@pytest.mark.parametrize(("products", "few"), [(0, 1), (PART - 1, 1), (PART, 8)])
def test_threads_of_a_part_of_a_step(products: int, few: int) -> None:
    assert number(threads_for_part(int64(products), int64(8))) == few


@pytest.mark.parametrize(
    ("products", "threads", "few"), [(PART, 1, 1), (0, 1, 1), (1 << 30, 2, 2), (PART - 1, 8, 2), (PART, 8, 1)]
)
def test_threads_of_two_directions(products: int, threads: int, few: int) -> None:
    assert number(threads_for_directions(int64(products), int64(threads))) == few


@pytest.mark.parametrize(("products", "size", "work"), [(64, 4000, 4000), (5000, 4000, 5000)])
def test_few_products_wait_for_weights(products: int, size: int, work: int) -> None:
    assert number(with_weights(int64(products), int64(size))) == work
