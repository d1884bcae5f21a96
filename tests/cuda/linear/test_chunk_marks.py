"""Linear recurrences in chunks that leave the states before parts of the time, forwards and backwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linear_steps import SMALL, Steps, chunk_error, recurrence, scan

from tvm_rnn.cuda.linear.chunk_products import OLD, WRITTEN
from tvm_rnn.cuda.linear.chunk_tile import ChunkTile
from tvm_rnn.cuda.linear.pair import EVERY
from tvm_rnn.cuda.linear.recurrence import AFTER, BEFORE

CASES: dict[str, dict[str, Any]] = {
    "gated": {"heads": 1, "keys_last": True, "reads": (BEFORE, AFTER)},
    "by key": {"heads": 1, "decay": 24, "keys": 24},
    "lines": {"heads": 1, "keys_last": True, "keys": 40, "values": 24},
    "solved": {
        "heads": 1,
        "keys_last": True,
        "keys": 40,
        "values": 24,
        "erase": BEFORE,
        "reads": (BEFORE,),
        "same": (("read_0", "key"),),
    },
}


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("reverse", [True, False])
def test_against_a_loop(name: str, reverse: bool) -> None:
    case = Steps(recurrence(**CASES[name]), EVERY + 21, reverse=reverse, every=EVERY)
    assert chunk_error(case) < 1


@pytest.mark.broad
@pytest.mark.parametrize("name", CASES)
def test_lengths_and_resets_backwards(name: str) -> None:
    steps, flags = EVERY + 10, np.random.default_rng(3)
    more = {"lengths": np.array([EVERY + 2, 5, 40]), "reset": flags.random((steps, 3)) < 0.1}
    assert chunk_error(Steps(recurrence(**CASES[name]), steps, 3, reverse=True, **more)) < 1


@pytest.mark.parametrize(("name", "beside"), [("lines", True), ("solved", True), ("by key", False)])
def test_who_keeps_marks(name: str, beside: bool) -> None:
    """Of lines, warps that bring operands do: they, and those that read, if some do, meet those of states."""
    found = scan(recurrence(**CASES[name]), SMALL, False, True)
    readers = found.readers > 0
    assert found.beside == beside and found.hands == (beside or readers)
    assert found.meeting(OLD) == 1 + readers + beside and found.meeting(WRITTEN) == 1 + readers


# Shared memory does not hold what others would read.
WIDE: dict[str, Any] = {"heads": 1, "keys": 128, "values": 32, "keys_last": True, "erase": BEFORE}
ERASED: dict[str, Any] = {"reads": (AFTER, BEFORE), "same": (("read_1", "key"),)}
WIDE_TILE = ChunkTile(stages=4)


def test_marks_beside_warps_that_read() -> None:
    found = scan(recurrence(**WIDE, **ERASED), WIDE_TILE, False, True)
    assert found.readers == 0 and found.beside and found.meeting(OLD) == 2


@pytest.mark.broad_after(1)
def test_wide_against_a_loop() -> None:
    case = Steps(recurrence(**WIDE, **ERASED), EVERY + 21, 1, every=EVERY)
    assert chunk_error(case, WIDE_TILE) < 1
