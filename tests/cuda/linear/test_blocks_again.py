"""Matrices and gradients made again in blocks of steps, on the emulator, beside a float64 loop over all steps."""

from __future__ import annotations

from typing import Any

import pytest
from again_pairs import BATCH, Case, flagged, pair

from tvm_rnn.cuda.linear.blocks_again import BlocksAgain
from tvm_rnn.cuda.linear.pair import EVERY

CASES: dict[str, dict[str, Any]] = {
    "a delta rule": {"writes": (1, 2), "reads": "sgsb", "keys_last": True},
    "by key": {"decay": "key", "writes": (2, 2), "reads": "sgb", "keys": 5, "precision": "float16"},
    "no decay, few": {"decay": "", "keys": 3, "values": 7, "reads": "sgb"},
    "matrix alone": {"writes": (1, -1), "reads": "s", "chained": False},
    "gradient alone": {"writes": (-1, 2), "reads": "gg", "chained": False},
    "vectors of their own, of whole warps": {"keys": 32, "values": 16, "group": 2, "reads": "bsg", "chained": False},
    "more values than registers hold, several tiles of keys": {"values": 130, "keys": 70, "reads": "sgb"},
    "columns times a constant": {"reads": "sgb", "scale": 0.6, "late": (False, True)},
    "rows times constants": {"values": 130, "reads": "sgb", "signs": (0.5, -1.0)},
    "what is written decays too": {"decay": "key", "reads": "sgb", "keys": 5, "late": (True, True)},
}


def of(**more: Any) -> Any:
    return pair(**{"precision": "bfloat16", "chained": True, "summed": False, "writes": (1, 1), **more})


@pytest.mark.broad
@pytest.mark.slow_after(5)
@pytest.mark.parametrize("name", CASES)
def test_against_a_loop(name: str) -> None:
    own = of(**CASES[name])
    assert not BlocksAgain("k", own).why_not and Case(own, EVERY + 11).error(BlocksAgain) < 1


@pytest.mark.broad
@pytest.mark.parametrize("steps", [17, 1, 16, 2 * EVERY])
def test_parts_of_any_length(steps: int) -> None:
    assert Case(of(keys=4, values=5, reads="sgb"), steps).error(BlocksAgain) < 1


@pytest.mark.broad
@pytest.mark.parametrize(("kind", "decay"), [("lengths", "key"), ("resets", ""), ("both", "key")])
def test_lengths_and_resets(kind: str, decay: str) -> None:
    assert flagged(of(decay=decay, reads="sgb", late=(False, bool(decay))), kind).error(BlocksAgain) < 1


def test_kernels_take_lengths_or_not() -> None:
    """And a launch has a block for each part, row, head and some keys."""
    own = BlocksAgain("k", pair(reads="g", writes=(-1, 1), keys=3, values=5, precision="bfloat16"))
    plain, masked = own.kernels
    assert {name for name, _ in masked.pointers} - {name for name, _ in plain.pointers} == {"lengths", "reset"}
    assert plain.threads == 32 and own.blocks(BATCH, EVERY + 1) == 2 * BATCH * 2
