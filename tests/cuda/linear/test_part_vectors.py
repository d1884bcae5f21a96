"""Vectors of a part as wgmma reads them: where each byte is, and who may have them so."""

from __future__ import annotations

import pytest
from again_pairs import pair

from tvm_rnn.cuda.linear.pair import EVERY
from tvm_rnn.cuda.linear.parts_again import PartsAgain
from tvm_rnn.cuda.linear.parts_layout import PartsLayout


def layout(keys: int = 64, values: int = 192, wgmma: bool = True) -> PartsLayout:
    return PartsLayout("k", pair(keys, values, "bfloat16", reads="sgb", writes=(1, 1), chained=True), wgmma)


def test_bits_4_to_6_of_an_address_change_with_bits_7_to_9() -> None:
    """Squares of 64 values are one behind the other, each with all steps, and no byte lies where another does."""
    own = layout()
    for name in [name for name in own.held if own.swizzled(name)]:
        first, found = own.at(name), set[int]()
        for step in range(EVERY):
            for byte in range(own.row_bytes(name)):
                plain = byte // 128 * (EVERY * 128) + step * 128 + byte % 128
                place = own.place(name, step, byte)
                assert place == first + (plain ^ (plain >> 7 & 7) << 4)
                found.add(place)
        assert not first % 1024 and len(found) == EVERY * own.row_bytes(name) == EVERY * own.pitch(name)


@pytest.mark.parametrize(("keys", "values", "wgmma"), [(64, 192, False), (48, 192, True), (64, 128, True)])
def test_others_have_room_behind_each_line(keys: int, values: int, wgmma: bool) -> None:
    """Without wgmma, or with keys that make no warpgroups, or where registers hold all values."""
    own = layout(keys, values, wgmma)
    assert not own.by_wgmma and not any(map(own.swizzled, own.held))
    assert all(own.pitch(name) > own.row_bytes(name) for name in own.held)


def test_columns_are_no_vectors_of_wgmma() -> None:
    assert {name for name in layout().held if layout().swizzled(name)} == {"state_row_0", "gradient_row_0"}


@pytest.mark.parametrize("wgmma", [False, True])
def test_who_multiplies(wgmma: bool) -> None:
    own = pair(64, 130, "bfloat16", reads="sg", writes=(1, 1), chained=True)
    assert ("wgmma" in PartsAgain("k", own, wgmma).kernels[0].func.script()) == wgmma
