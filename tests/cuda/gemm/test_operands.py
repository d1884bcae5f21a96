"""Left operands: which are rows of consecutive elements, and which must be read one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvm_rnn.cuda.gemm.operands import operands
from tvm_rnn.cuda.layer.pointers import Place
from tvm_rnn.graph.graph import Node, make


def product(operand: Node) -> Node:
    return make("gemm", Node("param", shape=(3, operand.shape[0])), operand)


def leaf(*shape: int) -> Node:
    return Node("state", shape=shape, name="s")


def test_a_stored_vector_is_read_as_it_lies() -> None:
    (found,) = operands(product(leaf(16)), lambda n: Place("bfloat16", 16) if n.leaf else None)
    assert (found.offset, found.depth, found.name) == (0, 16, "x0")
    assert found.rows_of("bfloat16") and not found.rows_of("float16")


def test_a_slice_and_a_row_have_an_offset() -> None:
    sliced = make("slice", leaf(32), axis=-1, start=8, stop=24)
    row = make("index", leaf(3, 16), axis=-2, at=2)
    assert [
        operands(product(n), lambda n: Place("float16", 48) if n.leaf else None)[0].offset for n in (sliced, row)
    ] == [
        8,
        32,
    ]


@pytest.mark.parametrize(
    ("stride", "start", "piece"), [(32, 8, 16), (32, 4, 4), (36, 8, 4), (34, 2, 4), (32, 3, 0), (33, 8, 0)]
)
def test_rows_need_alignment(stride: int, start: int, piece: int) -> None:
    view = make("slice", leaf(32), axis=-1, start=start, stop=start + 16)
    (found,) = operands(product(view), lambda n: Place("float16", stride) if n.leaf else None)
    assert found.piece("float16") == piece and found.rows_of("float16") == (piece == 16)
    assert found.piece("bfloat16") == 0


@pytest.mark.parametrize(("dtype", "stride", "piece"), [("float64", 32, 16), ("float64", 33, 8), ("float32", 33, 4)])
def test_a_piece_has_whole_elements(dtype: str, stride: int, piece: int) -> None:
    """Half of a float64 cannot be addressed: copies would take its first half twice."""
    (found,) = operands(product(leaf(32)), lambda n: Place(dtype, stride) if n.leaf else None)
    assert found.piece(dtype) == piece


def test_pieces_are_no_larger_than_a_first_row_s_alignment_where_nobody_asks() -> None:
    """The half of a gradient that belongs to the second direction: 5 float64 behind the first."""
    (found,) = operands(product(leaf(5)), lambda n: Place("float64", 10, 8) if n.leaf else None)
    assert found.piece("float64") == 16 and replace(found, told=True).piece("float64") == 8
    assert replace(found, told=True, place=Place("float64", 10)).rows_of("float64")


def test_a_column_is_not_straight() -> None:
    column = make("index", leaf(8, 4), axis=-1, at=1)
    (found,) = operands(product(column), lambda n: Place("float32", 32) if n.leaf else None)
    assert found.offset is None and not found.rows_of("float32")


def test_an_operand_is_one_value() -> None:
    joined = make("concat", leaf(4), leaf(4), axis=-1)
    with pytest.raises(ValueError, match="reads 2 values"):
        operands(product(joined), lambda n: Place("float32", 4) if n.leaf else None)
