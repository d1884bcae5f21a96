"""Every warp's pipeline: missing operands, ends of rows and of K, copies ahead into the next operand and step."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import Case, layer, persistent_error
from persistent_layers import geometry_of, text_of

from tests.cuda.persistent.product.test_ffma_layout import FMA
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.oracle.tolerance import tolerance


def fma(ctas: int, rows: int, **knobs: Any) -> dict[str, Any]:
    return {**FMA, "ctas": ctas, "rows": rows, "warps_k": 2, **knobs}


def check(cell: str, hidden: int, batch: int, inputs: int, geometry: dict[str, Any], **how: Any) -> None:
    steps = how.pop("steps", 5)
    case = Case(cell, hidden, batch, steps, "float32", inputs=inputs)
    assert persistent_error(case, geometry, **how) < tolerance("float32", steps)


@pytest.mark.parametrize(
    ("cell", "hidden", "batch", "inputs", "geometry"),
    [
        ("lstm", 36, 7, 20, fma(3, 8)),  # units past the last, K blocks that end early, an empty row
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("lstm", 64, 33, 64, fma(2, 16, fma=3)),  # two slices of the batch, two copies ahead
                ("gru_reset_before", 40, 9, 72, fma(5, 8)),  # the step's own values as operands
                ("lstm", 64, 9, 64, fma(2, 16, warps_u=2, shared_words=64)),  # one operand's weights are resident
                ("gru", 40, 13, 48, fma(5, 16, shared_words=16)),  # half of one's
                ("elman", 40, 1, 20, fma(5, 8, warps_k=4, shared_words=1 << 20)),
            )
        ),
    ],
)
@pytest.mark.parametrize("follows", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_operands_come_in_time(
    cell: str, hidden: int, batch: int, inputs: int, geometry: dict[str, Any], follows: bool
) -> None:
    check(cell, hidden, batch, inputs, geometry, follows=follows, seed=batch)


@pytest.mark.broad
@pytest.mark.parametrize("steps", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_few_steps(steps: int) -> None:
    check("gru", 24, 3, 20, fma(3, 8), steps=steps)


@pytest.mark.broad
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
@pytest.mark.parametrize("inputs", [20, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("short_turns")
def test_places_are_used_again(inputs: int, seed: int) -> None:
    check("elman", 33, 9, inputs, fma(5, 8), steps=13, seed=seed)


def test_a_chunk_is_asked_for_once_and_looked_at() -> None:
    layout = layer("lstm", 64, "float32", 64)[1]
    text = text_of(persistent.kernel("k", geometry_of(step_of(layout), "float32", **fma(2, 16)), layout))
    body = text[text.index("{") :]
    # Two pieces of an operand per lane, zeros past the batch: of inputs before the first step, then in even and odd
    # steps of x (ahead, where poison was) and of h.
    zeros = "cp_async_cg_src_size_async_cg_shared_global_16("
    assert body.count(zeros) == 2 * (1 + 2 * (2 + 1))
    assert body.count("fence_acq_rel_gpu") == 1 and "red_release" not in body
