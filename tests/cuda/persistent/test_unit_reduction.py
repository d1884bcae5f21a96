"""Reductions over units inside persistent kernels: sums, maxima, variances; padded units; the same in every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, step

from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.cuda.persistent.unit_reduction import combine, neutral

# Layer normalisation with gains of 1 makes rounding errors large: sixteen times what 16-bit results themselves are off.
MOST = {"bfloat16": 3e-2, "float16": 4e-3, "tf32": 5e-3}


@pytest.mark.parametrize(
    ("hidden", "batch", "precision", "geometry"),
    [
        pytest.param(32, 9, "bfloat16", cluster(2, 8, warps_u=2), marks=pytest.mark.slow),
        (20, 9, "float16", grid(3, 8, warps_k=2)),
        pytest.param(33, 20, "tf32", cluster(4, 16, warps_u=2, warps_k=4), marks=pytest.mark.slow),
        pytest.param(40, 17, "bfloat16", grid(2, 16, warps_u=3, warps_n=2), marks=pytest.mark.slow),
    ],
)
def test_layer_norm(hidden: int, batch: int, precision: str, geometry: dict[str, Any]) -> None:
    assert persistent_error(Case("lstm_layer_norm", hidden, batch, 5, precision), geometry) < MOST[precision]


@pytest.mark.broad
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_order_of_threads_does_not_matter(seed: int) -> None:
    case = Case("lstm_layer_norm", 20, 3, 4, "bfloat16")
    first, second = (persistent_error(case, cluster(3, 8, warps_k=2), seed=s) for s in (0, seed))
    assert first == second < MOST["bfloat16"]


def test_buffers_take_turns() -> None:
    geometry = geometry_of(step("lstm_layer_norm", 64), "bfloat16", **cluster(4, 16, warps_u=2))
    assert geometry.parts == 8 and geometry.reduce_words == 2 * 8 * 16  # two numbers per row and part
    assert geometry.exchange_words == geometry.reduce_at + 2 * geometry.reduce_words
    assert [p in geometry.events for p in geometry.reductions] == [True, True]


def test_nothing_added_changes_nothing() -> None:
    for op in ("sum", "max"):
        value = combine(op, neutral(op), neutral(op))
        assert value is not None and np.isfinite(neutral(op).value) == (op == "sum")
