"""Which pairs are made again in whole parts, what is multiplied with what, and what a block has."""

from __future__ import annotations

from typing import Any

import pytest
from again_pairs import pair

from tvm_rnn.cuda.linear.chunk_layout import MOST_SHARED
from tvm_rnn.cuda.linear.chunk_tile import BLOCK
from tvm_rnn.cuda.linear.parts_layout import AT_A_TIME, MOST_KEYS, SLICE, WHOLE, PartsLayout
from tvm_rnn.passes.chunk_form import AT_ONCE


def layout(**more: Any) -> PartsLayout:
    return PartsLayout("k", pair(**{"precision": "bfloat16", "chained": True, **more}))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"precision": "float32"}, "not float32"),
        ({"decay": "key"}, "decays by itself"),
        ({"chained": False}, "for each key"),
        ({"keys": MOST_KEYS + 1}, f"{MOST_KEYS} keys, not {MOST_KEYS + 1}"),
        ({"values": WHOLE * BLOCK + 1}, f"sums of {AT_A_TIME} vectors"),
        ({"values": WHOLE * BLOCK + 1, "writes": (1, 1)}, ""),
        ({"keys": 128, "values": 128, "writes": (3, 3)}, "shared memory"),
    ],
)
def test_what_is_made_again_in_whole_parts(more: dict[str, Any], why: str) -> None:
    assert why in layout(**more).why_not and bool(why) == bool(layout(**more).why_not)


@pytest.mark.parametrize(("keys", "values", "most"), AT_ONCE)
def test_what_passes_make_one_number_fits(keys: int, values: int, most: int) -> None:
    """Whatever is written to which, as long as the pass reads the product of both as one number."""
    for writes in range(1, most):
        own = layout(keys=keys, values=values, writes=(writes, most - writes), reads="sgb")
        assert not own.why_not and own.shared_bytes <= MOST_SHARED


def test_slices_are_an_even_number_and_have_all_values() -> None:
    assert layout(values=WHOLE * BLOCK).slices == 0
    for values in range(WHOLE * BLOCK + 1, 513, 37):
        own = layout(values=values, writes=(1, 1))
        assert own.slices % 2 == 0 and values <= own.slices * SLICE * BLOCK == own.deep * BLOCK < values + 4 * BLOCK


def test_a_warp_has_16_keys() -> None:
    assert layout(keys=128).threads == 256 and layout(keys=17).threads == 64 and layout(keys=3).blocks(2, 65) == 8
