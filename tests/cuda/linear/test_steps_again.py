"""Matrices and gradients made again step by step, on the emulator, beside a float64 loop over all steps."""

from __future__ import annotations

from typing import Any

import pytest
from again_pairs import Case, flagged, pair

from tvm_rnn.cuda.linear.pair import EVERY
from tvm_rnn.cuda.linear.steps_again import StepsAgain

CASES: dict[str, dict[str, Any]] = {
    "both": {"reads": "sgbsg", "keys_last": True},
    "of whole warps": {"keys": 16, "values": 32, "precision": "bfloat16", "group": 2},
    "by key": {"decay": "key", "writes": (2, 3), "reads": "ssggb"},
    "no decay, few": {"decay": "", "keys": 3, "values": 7, "keys_last": True},
    "matrix alone": {"writes": (1, -1), "reads": "s"},
    "gradient alone": {"writes": (-1, 2), "reads": "gg"},
    "many values": {"values": 300, "keys": 2},
    "columns times a constant": {"reads": "sgb", "scale": 0.6},
    "rows times constants": {"reads": "sgb", "signs": (0.5, -1.0)},
    "what is written decays too": {"decay": "key", "writes": (2, 1), "late": (True, True)},
}


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", CASES)
def test_against_a_loop(name: str) -> None:
    assert Case(pair(**CASES[name]), EVERY + 11).error(StepsAgain) < 1


@pytest.mark.broad
@pytest.mark.parametrize("steps", [17, 1, 8, 2 * EVERY])
def test_parts_of_any_length(steps: int) -> None:
    assert Case(pair(keys=4, values=5), steps).error(StepsAgain) < 1


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["lengths", "resets", "both"])
def test_lengths_and_resets(kind: str) -> None:
    assert flagged(pair(), kind).error(StepsAgain) < 1
