"""Scores: systems of equal keys, which are furthest from 1, and of keys that are 0."""

from __future__ import annotations

from typing import Any

import pytest
from linear_steps import Steps, chunk_error, recurrence

from tvm_rnn.cuda.linear.recurrence import DECAYED


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("how", [{"repeat": True, "decays": (1.0,)}, {"zero": True}], ids=["equal keys", "zeros"])
def test_equal_keys_and_zeros(how: dict[str, Any]) -> None:
    own = recurrence(1, erase=DECAYED, value_scale=True)
    assert chunk_error(Steps(own, 64, 1, **how)) < 1
