"""Recurrences of vectors in chunks whose operands are read once, on the emulator, beside the oracle's rows."""

from __future__ import annotations

import pytest
from vector_scans import KINDS, errors


@pytest.mark.broad_after(1)
@pytest.mark.slow_after(6)
@pytest.mark.parametrize("kind", ["linear", "pair", "maximum"])
@pytest.mark.parametrize(("side", "steps", "group"), [(2, 29, 2), (1, 18, 1), (2, 49, 16), (1, 43, 3)])
@pytest.mark.parametrize("backwards", [False, True])
def test_chunks_that_are_read_once(kind: str, side: int, steps: int, group: int, backwards: bool) -> None:
    """The last one may have fewer steps; groups of one chunk hand on states alone."""
    scan, output = KINDS[kind](side)
    assert errors(scan, output, steps, scan.round, backwards=backwards, group=group) < 3e-4
