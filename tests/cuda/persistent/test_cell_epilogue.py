"""The pointwise work of a phase: each value once, y as vectors where it is published anyway."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import Case, layer, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of
from training_plans import trained

from tests.cuda.persistent.test_kernel import cluster
from tvm_rnn.cuda.layer.phases import NotPersistent
from tvm_rnn.cuda.model.choose_regime import Persistent, step_of
from tvm_rnn.cuda.persistent import cell_epilogue
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.kernel import kernel
from tvm_rnn.oracle.tolerance import tolerance


def text(cell: str, hidden: int, precision: str = "bfloat16", masked: bool = False) -> str:
    geometry = geometry_of(step(cell, hidden, precision), precision, **cluster(2, 8))
    return text_of(persistent.kernel("k", geometry, layout_of(cell, hidden, precision), {} if masked else None))


def test_each_function_is_computed_once_per_cell() -> None:
    assert text("lstm", 16).count("__expf(") == 2 * 2 * 5  # even and odd steps, two rows, five functions


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("cell", "hidden", "precision", "masked", "vectors"),
    [
        ("lstm", 64, "bfloat16", False, True),
        ("lstm", 64, "bfloat16", True, False),  # y is zero where a state is kept
        ("lstm", 60, "bfloat16", False, False),
        ("lstm", 64, "tf32", False, False),
    ],
)
def test_y_is_stored_as_vectors(cell: str, hidden: int, precision: str, masked: bool, vectors: bool) -> None:
    body = text(cell, hidden, precision, masked)
    assert ("st_vec_global_v4" in body[body.index("{") :]) == vectors


@pytest.mark.slow
def test_an_output_that_is_no_state() -> None:
    case = Case("lstm_projection", 24, 5, 3, "bfloat16")
    assert persistent_error(case, cluster(1, 8)) < tolerance("bfloat16", 3)


def test_a_float32_output_is_never_what_a_layer_above_waits_for() -> None:
    """The sign of NVIDIA's usual NaN makes all bits 1 of it, which is POISON: the layer above would wait for ever."""
    _, layout = layer("lstm", 32, "tf32", 16)
    written = text_of(persistent.kernel("k", geometry_of(step_of(layout), "tf32", **cluster(2, 8)), layout))
    assert "(uint)4294967294" in written
    _, hoisted = layer("lstm", 32, "tf32")
    assert "4294967294" not in text_of(
        persistent.kernel("k", geometry_of(step_of(hoisted), "tf32", **cluster(2, 8)), hoisted)
    )


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
    pointers = dict(cell_epilogue.pointers(found.layout))
    assert len(pointers) == (4 if backward else 6) and set(pointers.values()) == {"bfloat16"}
    made = kernel("k", found.geometry, found.layout)
    assert [name for name, _ in made.pointers if name.startswith("kept_")] == list(pointers)


def test_units_of_two_blocks_are_stored_in_fours() -> None:
    found = regime("lstm", False)
    for warps, stores in ((4, "st_global_b32"), (2, "st_vec_global_v2_b32")):
        own = replace(found.geometry, ctas=1, warps_u=warps, warps_k=1)
        body = text_of(kernel("k", own, found.layout))
        assert own.blocks(32) == 4 // warps and stores in body[body.index("{") :]


@pytest.mark.broad
def test_numbers_of_a_row_stay_in_float32() -> None:
    found = regime("lstm_layer_norm", False)
    kinds = {dtype for _, dtype in cell_epilogue.pointers(found.layout)}
    assert kinds == {"bfloat16", "float32"}  # the statistics of layer normalisation are numbers of rows


def test_what_units_do_not_have_cannot_be_kept() -> None:
    layout = regime("lstm", False).layout
    with pytest.raises(NotPersistent, match="training reads later"):
        step_of(replace(layout, kept=(layout.graph.inputs[0],)))
