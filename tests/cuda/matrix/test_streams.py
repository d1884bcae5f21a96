"""What the loading warp brings: more steps than are asked for ahead, lengths, resets, and time backwards."""

from __future__ import annotations

import pytest
from emulated import Case
from matrix_steps import TOLERANCE, matrix_error

from tvm_rnn.cuda.matrix.streams import AHEAD


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("reverse", [True, False])
def test_lengths_and_resets(reverse: bool) -> None:
    case = Case("m2rnn", 20, 4, 2 * AHEAD + 1, "bfloat16")
    assert matrix_error(case, reverse, lengths=True, reset=True) < TOLERANCE["bfloat16"]


@pytest.mark.broad
@pytest.mark.parametrize("steps", [2, AHEAD, AHEAD + 1])
def test_few_steps_in_a_longer_call(steps: int) -> None:
    case = Case("m2rnn", 20, 3, steps, "bfloat16", start=2, total=steps + 4)
    assert matrix_error(case, lengths=True) < TOLERANCE["bfloat16"]
    assert matrix_error(case, reset=True) < TOLERANCE["bfloat16"]
