"""Matrices and gradients made again in blocks of steps, on the emulator, beside a float64 loop over all steps."""

from __future__ import annotations

from typing import Any

import pytest
from again_pairs import BATCH, Case, flagged, pair

from tvm_rnn.cuda.linear.blocks_again import BlocksAgain
from tvm_rnn.cuda.linear.pair import EVERY

CASES: dict[str, dict[str, Any]] = {
    "both": {"reads": "sgbsg", "keys_last": True},
    "of whole warps": {"keys": 32, "values": 32, "group": 2},
    "by key": {"decay": "key", "writes": (2, 3), "reads": "ssggb"},
    "no decay, few": {"decay": "", "keys": 3, "values": 7, "keys_last": True},
    "matrix alone": {"writes": (1, -1), "reads": "s"},
    "gradient alone": {"writes": (-1, 2), "reads": "gg"},
    "many values": {"values": 122, "keys": 35},
}


@pytest.mark.broad
@pytest.mark.parametrize("name", CASES)
def test_against_a_loop(name: str) -> None:
    precision = "float16" if name == "by key" else "bfloat16"
    assert Case(pair(**{"precision": precision, **CASES[name]}), EVERY + 11).error(BlocksAgain) < 1


@pytest.mark.broad
@pytest.mark.parametrize("steps", [17, 1, 16, 2 * EVERY])
def test_parts_of_any_length(steps: int) -> None:
    assert Case(pair(keys=4, values=5, precision="bfloat16"), steps).error(BlocksAgain) < 1


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["lengths", "resets", "both"])
def test_lengths_and_resets(kind: str) -> None:
    assert flagged(pair(precision="bfloat16"), kind).error(BlocksAgain) < 1


def test_kernels_take_lengths_or_not() -> None:
    """And a launch has a block for each part, row, head and some keys."""
    own = BlocksAgain("k", pair(reads="g", writes=(-1, 1), keys=3, values=5, precision="bfloat16"))
    plain, masked = own.kernels
    assert {name for name, _ in masked.pointers} - {name for name, _ in plain.pointers} == {"lengths", "reset"}
    assert plain.threads == 128 and own.blocks(BATCH, EVERY + 1) == 2 * BATCH * 2
