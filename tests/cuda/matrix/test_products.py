"""Products with a parameter: from registers, from shared memory where these are short, and in float32."""

from __future__ import annotations

import pytest
from emulated import Case
from matrix_steps import REGISTERS, TOLERANCE, matrix_error, plan_of


@pytest.mark.broad
def test_a_parameter_in_shared_memory() -> None:
    of = "m2rnn", 24, "bfloat16"
    few = 96 * 80
    assert plan_of(of).in_registers and not plan_of(of, few).in_registers
    assert plan_of(of, few).words > plan_of(of).words
    assert matrix_error(Case("m2rnn", 24, 1, 3, "bfloat16"), registers=few) < TOLERANCE["bfloat16"]


def test_float32_is_not_rounded() -> None:
    assert not plan_of(("m2rnn", 9, "float32")).in_registers
    assert matrix_error(Case("m2rnn", 9, 1, 3, "float32")) < TOLERANCE["float32"]


@pytest.mark.broad
def test_several_tiles_of_rows_in_a_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_rnn.cuda.matrix import matrix_tile

    monkeypatch.setattr(matrix_tile, "WARPS", 1)
    for precision in ("float16", "float32"):
        assert matrix_error(Case("m2rnn", 23, 1, 3, precision), registers=REGISTERS - 1) < TOLERANCE[precision]
