"""Indices of a lane's elements compute as numbers do."""

from __future__ import annotations

import pytest

from tvm_rnn.cuda.matrix.element_index import COLUMN, ROW, Along, NotOnChip, flattened, of


def test_views_of_a_matrix() -> None:
    """Flattened, and taken apart again, for every row and column."""
    for row in range(3):
        for column in range(5):
            r, c = of(Along(ROW, 0, 3, value=row)), of(Along(COLUMN, 0, 5, value=column))
            flat = flattened((3, 5), (r, c)) + 15 * 2
            assert not isinstance(flat, int) and flat.expression == row * 5 + column + 30
            assert flat % 5 == c and flat // 5 % 3 == r and flat // 15 == 2


def test_what_is_alone() -> None:
    row = Along(ROW, 1, 8, value=4)
    assert of(row).alone == row and (of(row) + 1).alone is None and (of(row) + 1 - 1).alone == row
    assert (of(row) * 2).alone is None and of(row) * 0 == 0


def test_parts_of_rows_are_refused() -> None:
    with pytest.raises(NotOnChip, match="into parts"):
        of(Along(ROW, 0, 8)) // 4


def test_where_a_row_is_does_not_tell_elements_apart() -> None:
    assert of(Along(ROW, 2, 8, value=1)) == of(Along(ROW, 2, 8, value=5)) != of(Along(ROW, 3, 8, value=1))
