"""Layouts: positions and coordinates belong together, swizzles permute rows without bank conflicts."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx
from tvm.sym import Analyzer

from tvm_rnn.cuda.codegen.tile_layout import SWIZZLE_64, SWIZZLE_128, Layout, Swizzle, offset


def test_coordinates_are_those_of_a_row_major_array() -> None:
    axes = Layout(a=2, b=3, c=4)
    at = axes.coordinates(np.arange(axes.elements))
    for found, wanted in zip((at["a"], at["b"], at["c"]), np.indices((2, 3, 4)), strict=True):
        np.testing.assert_array_equal(found, wanted.ravel())


def test_position_is_the_inverse_of_coordinates() -> None:
    axes = Layout(a=2, b=3, c=4)
    assert axes.strides() == {"a": 12, "b": 4, "c": 1}
    everywhere = np.arange(axes.elements)
    np.testing.assert_array_equal(axes.position(**axes.coordinates(everywhere)), everywhere)
    with pytest.raises(KeyError):
        axes.position(d=1)


def test_offset_is_another_order_of_the_same_coordinates() -> None:
    at = Layout(row=3, column=5).coordinates(np.arange(15))
    turned = offset(at, column=3, row=1)
    np.testing.assert_array_equal(np.argsort(turned), np.arange(15).reshape(3, 5).T.ravel())


def test_expressions_of_tvm_are_taken_apart_as_well() -> None:
    x = tirx.Var("x", "int32")
    at = Layout(a=2, b=3, c=4).coordinates(x)
    analyzer = Analyzer()
    assert analyzer.can_prove_equal(at["b"], tirx.floormod(tirx.floordiv(x, 4), 3))
    assert analyzer.can_prove_equal(at["a"], tirx.floordiv(x, 12))


@pytest.mark.parametrize("swizzle", [SWIZZLE_128, SWIZZLE_64, Swizzle(32)])
def test_a_column_of_pieces_meets_every_bank_once_in_eight_rows(swizzle: Swizzle) -> None:
    for piece in range(swizzle.pieces):
        places = {swizzle.offset(row, piece) // 16 % 8 for row in range(8)}
        assert len(places) == 8


@pytest.mark.parametrize("swizzle", [SWIZZLE_128, SWIZZLE_64])
def test_a_swizzle_permutes_a_tile_and_undoes_itself(swizzle: Swizzle) -> None:
    rows, pieces = np.divmod(np.arange(16 * swizzle.pieces), swizzle.pieces)
    assert sorted(swizzle.offset(rows, pieces)) == list(range(0, 16 * swizzle.row_bytes, 16))
    np.testing.assert_array_equal(swizzle.piece(rows, swizzle.piece(rows, pieces)), pieces)


def test_the_128_byte_swizzle_is_that_of_wgmma() -> None:
    assert [SWIZZLE_128.piece(row, 0) for row in range(9)] == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    assert [SWIZZLE_64.piece(row, 0) for row in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 0]
