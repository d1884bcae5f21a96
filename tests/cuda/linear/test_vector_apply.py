"""Recurrences of vectors of which a block has all steps, on the emulator, beside the oracle's rows."""

from __future__ import annotations

import pytest
from vector_scans import KINDS, SIDES, errors, linear


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
def test_all_steps_against_the_oracle(kind: str, side: int) -> None:
    assert errors(*KINDS[kind](side), steps=23, span=23) < 3e-4


@pytest.mark.broad
@pytest.mark.slow_after(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("backwards", "side"), [(True, 2), (False, 1), (True, 1)])
def test_lengths_and_resets(kind: str, backwards: bool, side: int) -> None:
    assert errors(*KINDS[kind](side), steps=29, span=29, mode="lr", backwards=backwards) < 3e-4


@pytest.mark.broad
@pytest.mark.parametrize("steps", [1, 3, 7, 25])
@pytest.mark.parametrize("side", SIDES)
def test_any_number_of_steps(steps: int, side: int) -> None:
    assert errors(*linear(side), steps=steps, span=steps) < 3e-5


@pytest.mark.broad
@pytest.mark.parametrize("kind", ["linear", "maximum"])
def test_a_reset_ends_an_infinity(kind: str) -> None:
    assert errors(*KINDS[kind](), steps=13, span=13, mode="ir") < 3e-4
