"""Reductions over units inside persistent kernels: sums, maxima, variances; padded units; the same in every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, step

import tvm_rnn as rnn
from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent.unit_reduction import combine, neutral

# Layer normalisation with gains of 1 makes rounding errors large: sixteen times what 16-bit results themselves are off.
MOST = {"bfloat16": 3e-2, "float16": 4e-3, "tf32": 5e-3}


@pytest.mark.broad
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


@rnn.cell(states="h", output="place")
def choosing(x: "I", h: "H", *, W: "H I", R: "H H", Q: "V H", s: "V"):
    """A state, and the place of the largest of some numbers made of it."""
    h = rnn.tanh(W @ x + R @ h)
    return h, rnn.argmax((Q @ h) * s, keepdims=True)


@pytest.mark.broad
@pytest.mark.slow_after(6)
@pytest.mark.parametrize(
    ("places", "hidden", "precision", "geometry"),
    [
        (19, 16, "float32", cluster(2, 8)),
        (19, 16, "float32", grid(2, 8, warps_k=2)),
        (70, 20, "tf32", cluster(3, 16, warps_u=2)),
        (48, 24, "tf32", grid(3, 8, warps_k=2)),
    ],
)
@pytest.mark.parametrize("special", [{}, {3: np.inf, 9: np.inf}, {5: np.nan, 11: np.nan, 2: np.inf}])
def test_places_of_maxima(
    places: int, hidden: int, precision: str, geometry: dict[str, Any], special: dict[int, float]
) -> None:
    """The first of equal ones, the first NaN; one exchange finds the maximum and its place."""
    net = rnn.RNN(choosing, 5, hidden, V=places).init(2)
    weights = {name: 4 * value for name, value in net.weights.items()}
    weights["Q_l0"][places // 2 :] = weights["Q_l0"][: places - places // 2]  # each number twice
    weights["s_l0"] = np.ones(places)
    for at, value in special.items():
        weights["s_l0"][at] = value
    net.load({name: value.astype("f4") for name, value in weights.items()})
    case = Case(net, hidden, 11, 5, precision)
    (reduction,) = [p for p in step_of(case.layout).phases if p.kind == "reduce"]
    assert [root is None for root in reduction.centres] == [True, False]
    y, _ = case.expected(False, False, False)
    assert (y == 5).all() if np.nan in special.values() else len(np.unique(y)) > (1 if special else 3)
    assert persistent_error(case, geometry) < MOST["tf32"]
