"""input_row_copies: warps that copy multiply the inputs of a step ahead of those that compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from emulated import Case, check_packed_once, persistent_error, persistent_kernel
from networks import network
from persistent_layers import text_of
from training_plans import H200

from tvm_rnn.cuda.model.choose_regime import Persistent
from tvm_rnn.cuda.persistent.exchange import CLUSTER
from tvm_rnn.cuda.persistent.geometry import MOST_COPY_WARPS
from tvm_rnn.cuda.persistent.kernel import kernel
from tvm_rnn.cuda.persistent.product.mma_sync import MmaSync
from tvm_rnn.cuda.training.add_entry_points import plan
from tvm_rnn.options import Options
from tvm_rnn.oracle.tolerance import tolerance
from tvm_rnn.passes.pipeline import passed

KNOBS = {"exchange": "cluster alone", "rows": 8, "shared_words": 1 << 20, "register_words": 160, "inputs_apart": 1}


def made(cell: str, hidden: int, precision: str = "bfloat16", inputs: int = 24, **knobs: int) -> MmaSync:
    own = tuple(sorted((KNOBS | knobs).items()))
    geometry: Any = persistent_kernel((cell, hidden, precision, inputs, False), own, False)[0]
    return geometry


@pytest.mark.parametrize(
    ("cell", "hidden", "inputs", "precision", "knobs", "modes"),
    [
        pytest.param("elman", 32, 24, "bfloat16", {"warps_u": 4}, [(False, False, False)], marks=pytest.mark.broad),
        pytest.param(
            "gru",
            64,
            24,
            "bfloat16",
            {"ctas": 2, "warps_u": 4},
            [(False, False, False), (True, False, False)],
            marks=pytest.mark.slow,
        ),
        pytest.param("gru", 128, 40, "bfloat16", {"ctas": 2, "warps_u": 8}, [(False,) * 3], marks=pytest.mark.slow),
        pytest.param(
            "lstm", 64, 40, "float16", {"ctas": 2, "warps_u": 4}, [(False, True, True)], marks=pytest.mark.slow
        ),
    ],
)
def test_sums_are_there_when_cells_want_them(
    cell: str, hidden: int, inputs: int, precision: str, knobs: dict[str, int], modes: list[tuple[bool, bool, bool]]
) -> None:
    """Of one step, of two, and of more than there are stages of copies; threads in several orders."""
    for seed, steps in enumerate((1, 2, 11)):
        for mode in modes:
            case = Case(cell, hidden, 11, steps, precision, inputs=inputs)
            assert persistent_error(case, KNOBS | knobs, *mode, seed) < tolerance(precision, steps), (steps, mode)


@pytest.mark.broad
def test_every_weight_is_packed_once() -> None:
    """Those of inputs in the order of the warps that multiply them, which leaves registers to the others."""
    geometry = made("gru", 64, ctas=2, warps_u=4)
    check_packed_once(geometry)
    inputs, states = (share for _, share in geometry.weights)
    assert inputs.operand.given and geometry.copy_warps == MOST_COPY_WARPS and geometry.fits()
    assert geometry.kept_registers == states.registers * geometry.block_words(geometry.step.phases[1])
    both = replace(geometry, inputs_apart=0)
    assert both.kept_registers > geometry.kept_registers and both.registers > geometry.registers


def test_they_share_units_evenly() -> None:
    """A block's warps have whole rows of units, and another layer's rows come when they come."""
    geometry = made("gru", 64, ctas=2, warps_u=4)
    changes: list[dict[str, Any]] = [{"rows": 16}, {"warps_u": 2, "warps_k": 2}, {"warps_u": 3}, {"exchange": CLUSTER}]
    assert geometry.can_multiply_apart
    assert not any(replace(geometry, **change).can_multiply_apart for change in changes)


@pytest.mark.broad
def test_members_inputs_are_multiplied_so() -> None:
    net = network("gru", 128, 128, dtype="bfloat16", members=16)
    found = plan(passed(net, Options(H200, (32,), precision="bfloat16", training="values")), H200).forward
    regime = found.code[0].regimes[0]
    assert isinstance(regime, Persistent) and isinstance(regime.geometry, MmaSync)
    assert regime.geometry.inputs_apart and regime.geometry.copy_warps == MOST_COPY_WARPS
    text = text_of(kernel("k", regime.geometry, regime.layout))
    assert "ld_vec_shared_v2_f32" in text and "setmaxnreg" not in text
