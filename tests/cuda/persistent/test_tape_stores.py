"""What persistent kernels of training leave for later: which values, and how they are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from training_plans import trained

from tvm_rnn.cuda.layer.phases import NotPersistent
from tvm_rnn.cuda.model.choose_regime import Persistent, step_of
from tvm_rnn.cuda.persistent import tape_stores
from tvm_rnn.cuda.persistent.kernel import kernel


def regime(cell: str, backward: bool, precision: str = "bfloat16") -> Persistent:
    _, plans = trained(cell, 32, precision)
    found = (plans.backward if backward else plans.forward).code[0].regimes[0]
    assert isinstance(found, Persistent)
    return found


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(("cell", "phases"), [("lstm", 2), ("gru_reset_before", 3)])
def test_a_backward_step_is_one_more_graph_with_phases(cell: str, phases: int) -> None:
    """Pointwise work first, whose results products with transposed weights read; nothing but states is carried."""
    step = regime(cell, True).geometry.step
    assert [phase.kind for phase in step.phases] == ["pointwise", *["gemm"] * (phases - 1)]
    assert not step.carried and step.phases[0].published


@pytest.mark.parametrize("backward", [False, True])
def test_values_of_16_bits_are_stored_in_pairs(backward: bool) -> None:
    found = regime("lstm", backward)
    pointers = dict(tape_stores.pointers(found.layout))
    assert len(pointers) == (4 if backward else 6) and set(pointers.values()) == {"bfloat16"}
    made = kernel("k", found.geometry, found.layout)
    assert [name for name, _ in made.pointers if name.startswith("kept_")] == list(pointers)


def test_numbers_of_a_row_stay_in_float32() -> None:
    found = regime("lstm_layer_norm", False)
    kinds = {dtype for _, dtype in tape_stores.pointers(found.layout)}
    assert kinds == {"bfloat16", "float32"}  # the statistics of layer normalisation are numbers of rows


def test_what_units_do_not_have_cannot_be_kept() -> None:
    layout = regime("lstm", False).layout
    with pytest.raises(NotPersistent, match="training reads later"):
        step_of(replace(layout, kept=(layout.graph.inputs[0],)))
