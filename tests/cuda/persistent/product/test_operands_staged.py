"""Operands that a block brings to shared memory once: inputs and exchanged values, missing ones, odd sizes, turns."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import Case, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.test_kernel import grid
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.oracle.tolerance import tolerance

STAGED: dict[str, Any] = {"warps_u": 4, "polled": 1, "staged": 1, "shared_words": 1 << 20}


def staged(ctas: int, rows: int, **knobs: Any) -> dict[str, Any]:
    return grid(ctas, rows, **{**STAGED, "register_words": 32, **knobs})


@pytest.mark.broad
@pytest.mark.parametrize(
    ("cell", "precision", "inputs", "geometry", "follows"),
    [
        ("lstm", "bfloat16", 128, staged(2, 16, warps_k=2, ahead=1), True),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("gru_reset_before", "float16", 72, staged(2, 8, ahead=0), False),  # two products read rows that end
                ("gru_reset_before", "float16", 72, staged(2, 8, ahead=0), True),
                ("lstm", "tf32", 20, staged(2, 8, warps_k=2, ahead=8), True),
                ("lstm", "tf32", 20, staged(2, 8, warps_k=2, ahead=8), False),
                ("lstm", "bfloat16", 288, staged(3, 32), True),  # more pieces than a thread holds at a time
            )
        ),
    ],
)
def test_inputs_are_multiplied_first(
    cell: str, precision: str, inputs: int, geometry: dict[str, Any], follows: bool
) -> None:
    case = Case(cell, 96 if geometry["ctas"] == 3 else 64, 11, 4, precision, inputs=inputs)
    assert persistent_error(case, geometry, follows=follows) < tolerance(precision, 4)


@pytest.mark.broad
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
@pytest.mark.parametrize("inputs", [0, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("short_turns")
def test_places_are_used_again(inputs: int, seed: int) -> None:
    case = Case("elman", 64, 8, 11, "bfloat16", inputs=inputs)
    assert persistent_error(case, staged(2, 8, warps_k=2), seed=seed) < tolerance("bfloat16", 11)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"lengths": True}, {"reset": True, "reverse": True}])
def test_also_with_lengths_and_resets(options: dict[str, bool]) -> None:
    case = Case("lstm", 64, 9, 5, "bfloat16", inputs=64)
    assert persistent_error(case, staged(2, 16, warps_k=2), **options) < tolerance("bfloat16", 5)


def test_each_block_loads_an_operand_once() -> None:
    geometry = geometry_of(step("lstm", 256), "bfloat16", **staged(8, 32, warps_k=2))
    text = text_of(persistent.kernel("k", geometry, layout_of("lstm", 256)))
    body = text[text.index("{") :]
    # Four pieces of each thread: asked for, and again in a loop, in even and odd steps.
    assert body.count("ld_vec_relaxed_gpu_global_v4_b32(") == 2 * 2 * 4
    assert body.count("fence_acq_rel_gpu") == 1 and "red_release" not in body
