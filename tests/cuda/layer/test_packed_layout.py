"""Packed orders: every weight is in them once, and a thread's columns are all gates of consecutive units."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_rnn.cuda.layer.packed_layout import Fragments, Lanes
from tvm_rnn.graph.graph import Node

SHAPES = [(4, 40, 24), (3, 50, 33), (1, 7, 5), (5, 33, 72)]


def check_each_once(layout: Fragments | Lanes, shape: tuple[int, ...]) -> None:
    node = Node("param", shape=shape)
    pack = layout.pack(node)
    at, valid = pack.index(np.arange(pack.elements))
    assert valid.sum() == np.prod(shape)
    numbers = np.ravel_multi_index(tuple(a[valid] for a in at), shape)
    np.testing.assert_array_equal(np.sort(numbers), np.arange(np.prod(shape)))


@pytest.mark.parametrize(("gates", "width", "depth"), SHAPES)
@pytest.mark.parametrize("span", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_fragments_hold_every_weight_once(gates: int, width: int, depth: int, span: int, dtype: str) -> None:
    layout = Fragments(gates, width, dtype, span, 2 * 8 * span * gates)
    assert layout.columns % layout.widest == 0
    check_each_once(layout, (gates, width, depth) if gates > 1 else (width, depth))


@pytest.mark.parametrize(("gates", "width", "depth"), SHAPES)
@pytest.mark.parametrize("units", [1, 2, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lanes_hold_every_weight_once(gates: int, width: int, depth: int, units: int, dtype: str) -> None:
    check_each_once(Lanes(gates, width, dtype, units), (gates, width, depth) if gates > 1 else (width, depth))


@pytest.mark.parametrize("span", [1, 2, 4])
def test_a_thread_has_consecutive_units_with_all_gates(span: int) -> None:
    layout = Fragments(3, 64, "bfloat16", span, 24 * span)
    for quad in range(4):
        held: dict[int, list[int]] = {}
        for tile in range(3 * span):
            for e in range(2):
                gate, unit = layout.unit(tile * 8 + 2 * quad + e)
                held.setdefault(gate, []).append(unit)
        expected = list(range(2 * span * quad, 2 * span * (quad + 1)))
        assert [held[g] for g in range(3)] == [expected] * 3


def test_rows_are_swizzled() -> None:
    """Column 1 has its first 16 bytes at chunk 1, so that eight columns meet no bank twice."""
    layout = Fragments(1, 8, "bfloat16", 1, 8)
    pack = layout.pack(Node("param", shape=(8, 64)))
    (_, k), _ = pack.index(np.arange(128))
    assert list(k[:8]) == list(range(8)) and list(k[64 + 8 : 64 + 16]) == list(range(8))


def test_packs_of_one_order_are_equal() -> None:
    layout, node = Lanes(4, 8, "float32", 2), Node("param", shape=(4, 8, 3))
    assert layout.pack(node).key == Lanes(4, 8, "float32", 2).pack(node).key
    assert layout.pack(node).key != layout.pack(Node("param", shape=(4, 8, 4))).key
