"""Matrices and gradients made again in whole parts, on the emulator, beside a float64 loop over all steps."""

from __future__ import annotations

from typing import Any

import pytest
from again_pairs import BATCH, Case, flagged, pair

from tvm_rnn.cuda.linear.pair import EVERY, Pair
from tvm_rnn.cuda.linear.parts_again import PartsAgain

CASES: dict[str, dict[str, Any]] = {
    "a delta rule": {"reads": "sgsb", "keys_last": True},
    "of whole warps": {"keys": 32, "values": 32, "group": 2, "reads": "bsg"},
    "of whole tiles, keys side by side": {"keys": 32, "values": 48, "reads": "sgb", "keys_last": True},
    "several writes": {"writes": (2, 3), "reads": "ssggsb", "precision": "float16"},
    "no decay, few": {"decay": "", "keys": 3, "values": 7, "reads": "sgb"},
    "matrix alone": {"writes": (1, -1), "reads": "s"},
    "gradient alone": {"writes": (-1, 2), "reads": "gg"},
    "many values": {"values": 122, "keys": 50, "reads": "sgb"},
    "values in slices": {"values": 150, "keys": 18, "reads": "sgb", "writes": (1, 1), "keys_last": True},
    "slices, values side by side": {"values": 200, "keys": 35, "reads": "bgs", "writes": (1, 1), "late": (False, True)},
    "slices of the gradient alone": {"values": 290, "keys": 9, "reads": "gg", "writes": (-1, 2), "chained": False},
    "columns times a constant": {"reads": "sgsb", "late": (False, True), "scale": 0.6},
    "rows times constants": {"reads": "sgsb", "late": (False, True), "scale": 0.6, "signs": (0.5, -1.0)},
    "slices, rows times constants": {"values": 150, "keys": 18, "reads": "sgb", "writes": (1, 1), "signs": (0.5, -1.0)},
    "no decay, a constant": {"decay": "", "reads": "sgb", "scale": 1.5},
    "vectors of their own": {"reads": "sssgg"},
    "what is written decays too": {"reads": "sgsb", "late": (True, True), "keys": 18, "values": 20},
    "of the gradient alone, keys side by side": {"reads": "sgsb", "keys_last": True, "keys": 18, "late": (False, True)},
}


def of(**more: Any) -> Any:
    return pair(**{"precision": "bfloat16", "chained": True, **more})


@pytest.mark.broad
@pytest.mark.slow_after(6)
@pytest.mark.parametrize("name", CASES)
def test_against_a_loop(name: str) -> None:
    assert Case(of(**CASES[name]), EVERY + 11).error(PartsAgain) < 1


BY_WGMMA: dict[str, dict[str, Any]] = {
    "keys side by side": {"keys": 50, "values": 132, "reads": "sgb", "keys_last": True, "precision": "float16"},
    "values side by side": {"keys": 64, "values": 170, "reads": "bsg", "late": (False, True)},
}


@pytest.mark.broad
@pytest.mark.parametrize("name", BY_WGMMA)
def test_by_warpgroups(name: str) -> None:
    """Whose products of slices read vectors from shared memory, as Hopper can."""

    def kind(name: str, own: Pair) -> PartsAgain:
        found = PartsAgain(name, own, wgmma=True)
        assert found.by_wgmma and "wgmma" in found.kernels[0].func.script()
        return found

    assert Case(of(writes=(1, 1), **BY_WGMMA[name]), EVERY + 11).error(kind) < 1


@pytest.mark.broad
@pytest.mark.parametrize("steps", [17, 1, 16, 2 * EVERY])
def test_parts_of_any_length(steps: int) -> None:
    assert Case(of(keys=4, values=5), steps).error(PartsAgain) < 1


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["lengths", "resets", "both"])
@pytest.mark.parametrize("decay", ["number", ""])
def test_lengths_and_resets(kind: str, decay: str) -> None:
    assert flagged(of(decay=decay, late=(False, bool(decay))), kind).error(PartsAgain) < 1


def test_kernels_take_lengths_or_not() -> None:
    """And a launch has a block for each part, row and head."""
    own = PartsAgain("k", of(reads="g", writes=(-1, 1), keys=3, values=5))
    plain, masked = own.kernels
    assert {name for name, _ in masked.pointers} - {name for name, _ in plain.pointers} == {"lengths", "reset"}
    assert plain.threads == 32 and own.blocks(BATCH, EVERY + 1) == 2 * BATCH * 2
