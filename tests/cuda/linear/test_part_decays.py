"""What decays in a part: logarithms are taken where something decays, or may be reset."""

from __future__ import annotations

import pytest
from again_pairs import pair

from tvm_rnn.cuda.linear.parts_again import PartsAgain


@pytest.mark.parametrize("decay", ["number", ""])
def test_only_what_decays_has_weights(decay: str) -> None:
    own = PartsAgain("k", pair(3, 5, "bfloat16", decay=decay, reads="s", writes=(1, -1), chained=True))
    plain, masked = (kernel.func.script() for kernel in own.kernels)
    assert ("log2f" in plain) == bool(decay) and "exp2f" in masked
