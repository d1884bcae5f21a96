"""Tiles of a warp that are published together: one staging, all loads, all stores, then y."""

from __future__ import annotations

import re

from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.product.test_operands_staged import staged
from tvm_rnn.cuda.persistent import kernel as persistent


def test_all_tiles_are_staged_before_the_first_is_handed_over() -> None:
    team = geometry_of(step("elman", 64), "bfloat16", **staged(2, 24))
    assert team.staged_tiles == 3 and team.stage_words == 4 * 3 * 32
    text = text_of(persistent.kernel("k", team, layout_of("elman", 64, "bfloat16")))
    steps = text[text.index("wgmma") :]
    loads, hands = "ld_vec_shared_v4_b32(", "st_vec_relaxed_gpu_global_v4_b32("
    first = steps.index(hands)
    assert steps[:first].count(loads) == 3  # every tile is loaded before one is stored
    assert steps.index("st_vec_global_v4_b32(") > [m.end() for m in re.finditer(re.escape(hands), steps)][2]
