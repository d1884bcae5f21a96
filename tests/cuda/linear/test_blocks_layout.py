"""What blocks that make a matrix and its gradient again have in shared memory."""

from __future__ import annotations

from dataclasses import replace

from again_pairs import pair

from tvm_rnn.cuda.linear.blocks_layout import LINE_BYTES, TWICE, UNIT_BYTES, BlocksLayout, unit_of
from tvm_rnn.cuda.linear.pair import GRADIENT, STATE, Pair
from tvm_rnn.cuda.linear.part_layout import SIDE, UNITS
from tvm_rnn.cuda.linear.recurrence import Rows

OWN = pair(128, 128, "bfloat16", decay="key", writes=(1, 1), reads="sgb", chained=True, summed=False)


def layout(own: Pair = OWN, **more: int) -> BlocksLayout:
    return BlocksLayout("k", own, **more)


def test_kinds_lie_one_behind_the_other() -> None:
    own = layout()
    (pair_of,) = own.scores
    places = [own.keeps_at, own.score_at(*pair_of), own.scaled_at(STATE, 0), own.scaled_at(GRADIENT, 0)]
    places += [own.left_at(STATE), own.left_at(GRADIENT), own.begins_at]
    places += [own.product_at(STATE, own.first("vector_0")), own.product_at(GRADIENT, own.first("vector_1"))]
    assert places == sorted(set(places)) and places[0] == own.operand_bytes and places[-1] < own.shared_bytes
    assert not any(place % 16 for place in places) and not LINE_BYTES % 16


def test_two_blocks_fit_a_multiprocessor() -> None:
    """128 keys and values, each key decaying by itself: 64 keys to a block."""
    assert (layout().warps, layout().tiles, layout().resident) == (4, 2, 2) and layout().shared_bytes <= TWICE


def test_fewer_keys_where_less_fits() -> None:
    assert layout(most=96 << 10).warps == 2 and not layout(most=96 << 10).why_not
    assert [layout(pair(keys, 16, "bfloat16", writes=(1, 1), reads="s")).warps for keys in (35, 32, 3)] == [4, 2, 1]


def test_more_values_than_registers_hold_come_in_pieces() -> None:
    few, many = layout(replace(OWN, values=120)), layout(replace(OWN, values=500))
    assert (few.pieces, few.deep, many.pieces, many.deep) == (1, 8, 4, 8)
    assert few.shared_bytes == many.shared_bytes


def test_each_two_blocks_of_steps_have_a_unit() -> None:
    assert sorted(unit_of(a, b) for a in range(SIDE) for b in range(a + 1)) == list(range(UNITS))
    assert UNIT_BYTES > 16 * 16 * 4


def test_columns_are_not_held() -> None:
    assert {*layout().held} == {"state_row_0", "gradient_row_0"}


def test_what_has_no_blocks_says_why() -> None:
    assert "not float32" in layout(replace(OWN, precision="float32")).why_not
    assert "shared memory" in layout(most=48 << 10).why_not
    assert OWN.gradient is not None
    ((column, _),) = OWN.gradient.writes
    gradient = replace(OWN.gradient, writes=((column, Rows(9, 9, "float32")),))
    assert "dtypes" in layout(replace(OWN, gradient=gradient)).why_not
