"""What a warp that makes a matrix again has in shared memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from again_pairs import pair

from tvm_rnn.cuda.linear.blocks_layout import MOST_VALUES, BlocksLayout
from tvm_rnn.cuda.linear.pair import EVERY, Pair
from tvm_rnn.cuda.linear.recurrence import Rows

OWN = pair(keys=40, values=50, precision="bfloat16")


def layout(own: Pair = OWN) -> BlocksLayout:
    return BlocksLayout("k", own)


def test_operands_lie_one_behind_the_other() -> None:
    own = layout()
    assert (own.keys, own.high, own.deep, own.tiles) == (32, 2, 4, 2) and not own.why_not
    places = sorted((own.at(name), EVERY * own.pitch(name)) for name in own.held)
    assert places[0][0] == 0 and all(a + size == b for (a, size), (b, _) in pairwise(places))
    assert sum(places[-1]) == own.operand_bytes and not own.warps_at % 16


def test_an_operand_is_there_once() -> None:
    own = layout(replace(OWN, same=(("vector_0", "state_row_0"),)))
    assert "vector_0" not in own.held and own.at("vector_0") == own.at("state_row_0")
    assert own.shared_bytes < layout().shared_bytes


def test_many_values_are_of_fewer_keys() -> None:
    assert layout(replace(OWN, values=100)).keys == 16


def test_what_has_no_blocks_says_why() -> None:
    assert "not float32" in layout(replace(OWN, precision="float32")).why_not
    assert str(MOST_VALUES) in layout(replace(OWN, values=MOST_VALUES + 1)).why_not
    mixed = replace(pair(precision="bfloat16"), state=None, reads=())
    assert mixed.gradient is not None
    (_, row), *rest = mixed.gradient.writes
    gradient = replace(mixed.gradient, writes=((Rows(9, 9, "float32"), row), *rest))
    assert "dtypes" in layout(replace(mixed, gradient=gradient)).why_not
