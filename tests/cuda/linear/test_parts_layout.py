"""Which pairs are made again in whole parts, what is multiplied with what, and what a block has."""

from __future__ import annotations

from typing import Any

import pytest
from again_pairs import pair

from tvm_rnn.cuda.linear.chunk_layout import MOST_SHARED
from tvm_rnn.cuda.linear.parts_layout import MOST, PartsLayout
from tvm_rnn.passes.chunk_form import MOST_AT_ONCE, MOST_WRITES


def layout(**more: Any) -> PartsLayout:
    return PartsLayout("k", pair(**{"precision": "bfloat16", "chained": True, **more}))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"precision": "float32"}, "not float32"),
        ({"decay": "key"}, "decays by itself"),
        ({"chained": False}, "for each key"),
        ({"values": MOST + 1}, "registers hold"),
        ({"keys": MOST, "values": MOST, "writes": (3, 3)}, "shared memory"),
    ],
)
def test_what_is_made_again_in_whole_parts(more: dict[str, Any], why: str) -> None:
    assert why in layout(**more).why_not and bool(why) == bool(layout(**more).why_not)


def test_what_passes_make_one_number_fits() -> None:
    """Whatever is written to which, as long as the pass reads the product of both as one number."""
    assert MOST_AT_ONCE == MOST
    for writes in range(1, MOST_WRITES):
        own = layout(keys=MOST, values=MOST, writes=(writes, MOST_WRITES - writes), reads="sgb")
        assert not own.why_not and own.shared_bytes <= MOST_SHARED


def test_a_warp_has_16_keys() -> None:
    assert layout(keys=MOST).threads == 256 and layout(keys=17).threads == 64 and layout(keys=3).blocks(2, 65) == 8
