"""Which of a lane's elements lie side by side in memory."""

from __future__ import annotations

from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.cuda.matrix.element_index import COLUMN, ROW, Along, of
from tvm_rnn.cuda.matrix.lane_values import Index
from tvm_rnn.cuda.matrix.whole_matrices import pairs
from tvm_rnn.graph.graph import Node

ROWS = [of(Along(ROW, i, 16)) for i in range(2)]
COLUMNS = [of(Along(COLUMN, j, 16)) for j in range(4)]
PLACE = Place("bfloat16", 96)


def found(shape: tuple[int, ...], indices: list[Index], place: Place = PLACE, apart: int = 48) -> list[int]:
    """How many elements travel together."""
    node = Node("input", shape=shape, name="S")
    both = [[i for i in pair if i is not None] for pair in pairs(node, indices, place, apart)]
    assert sorted(map(str, (i for pair in both for i in pair))) == sorted(map(str, indices))
    return [len(pair) for pair in both]


def test_columns_of_16_bits_travel_in_pairs() -> None:
    assert found((6, 8), [(i, j) for i in ROWS for j in COLUMNS]) == [2] * 4


def test_a_view_of_a_vector_is_a_matrix_too() -> None:
    assert found((48,), [(i * 8 + j,) for i in ROWS for j in COLUMNS]) == [2] * 4
    assert found((48,), [(i * 8 + j + 1,) for i in ROWS for j in COLUMNS]) == [1] * 8


def test_what_begins_at_an_odd_element_or_is_wider_travels_alone() -> None:
    matrix: list[Index] = [(i, j) for i in ROWS for j in COLUMNS]
    assert found((6, 9), matrix) == [1] * 8
    assert found((6, 8), matrix, Place("float32", 96)) == [1] * 8
    assert found((6, 8), matrix, Place("bfloat16", 95)) == [1] * 8
    assert found((6, 8), matrix, Place("bfloat16", 96, 2)) == [1] * 8
    assert found((6, 8), matrix, apart=3) == [1] * 8
    assert found((8, 6), [(j, i) for i in ROWS for j in COLUMNS]) == [1] * 8


def test_a_column_without_the_one_behind_it_travels_alone() -> None:
    assert found((6, 8), [(ROWS[0], COLUMNS[0]), (ROWS[0], COLUMNS[3])]) == [1, 1]
    assert found((8,), [(COLUMNS[0],), (COLUMNS[1],)], apart=8) == [2]
