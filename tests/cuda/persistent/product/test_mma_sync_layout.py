"""Fragments of mma.sync: every weight is packed once, and padding is 0."""

from __future__ import annotations

import pytest
from emulated import check_packed_once
from persistent_layers import geometry_of, step


@pytest.mark.parametrize(("precision", "stored"), [("bfloat16", ""), ("tf32", ""), ("float16", "float8_e4m3")])
@pytest.mark.parametrize(("name", "hidden"), [("lstm", 64), ("gru", 40), ("elman", 33)])
def test_every_weight_is_packed_once(name: str, hidden: int, precision: str, stored: str) -> None:
    geometry = {"ctas": 2, "rows": 8, "warps_u": 2, "warps_k": 2}
    made = geometry_of(step(name, hidden, precision), precision, "grid", **geometry, stored=stored)
    check_packed_once(made)
