"""Fragments of mma.sync: every weight is packed once, and padding is 0."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import packed
from persistent_layers import step

from tvm_rnn.cuda.team import Team


@pytest.mark.parametrize(("precision", "stored"), [("bfloat16", ""), ("tf32", ""), ("float16", "float8_e4m3")])
@pytest.mark.parametrize(("name", "hidden"), [("lstm", 64), ("gru", 40), ("elman", 33)])
def test_every_weight_is_packed_once(name: str, hidden: int, precision: str, stored: str) -> None:
    geometry = {"ctas": 2, "rows": 8, "warps_u": 2, "warps_k": 2}
    made = Team(step(name, hidden, precision), precision, "grid", **geometry, stored=stored)
    for phase, shares in made.shares.items():
        for share in shares:
            shape = share.operand.weight.shape
            value = np.arange(1, 1 + np.prod(shape)).reshape(shape)
            found = packed(made, phase, share, value)
            assert sorted(found[found > 0]) == list(value.ravel())
            assert found.size == made.weight_elements(phase, share)
