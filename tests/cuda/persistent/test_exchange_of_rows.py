"""A row's values in the exchange: side by side, one store for each word, and nothing staged."""

from __future__ import annotations

import numpy as np
import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.test_kernel import grid
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.oracle.tolerance import tolerance


@pytest.mark.usefixtures("short_turns")
def test_a_row_lies_whole(exchanges: list[np.ndarray]) -> None:
    case = Case("lstm", 41, 1, 4, "bfloat16")  # published by blocks of 48 units, padded to 64
    assert persistent_error(case, grid(6, 1, warps_k=2)) < tolerance("bfloat16", 4)
    (exchange,) = exchanges
    written = np.flatnonzero(exchange.ravel() != 0xFFFFFFFF)
    words = 64 // 2
    assert set(written) == set(range(4 * words)) | set(range(4 * words + 24, 5 * words))  # the last step's is padding


def test_values_are_not_staged() -> None:
    geometry = geometry_of(step("lstm", 64), "bfloat16", **grid(8, 1))
    assert geometry.stage_words == geometry.prefetch_words == 0
    text = text_of(persistent.kernel("k", geometry, layout_of("lstm", 64)))
    stores = text.count("st_relaxed_gpu_global_b32(")
    assert stores == 1 + 2 + 1  # the initial state, two steps', and poison
