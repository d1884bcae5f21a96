"""The pointwise work of a phase: each value once, y as vectors where it is published anyway."""

from __future__ import annotations

import pytest
from emulated import Case, layer, persistent_error
from persistent_layers import geometry_of, layout_of, step, text_of

from tests.cuda.persistent.test_kernel import cluster
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.oracle.tolerance import tolerance


def text(cell: str, hidden: int, precision: str = "bfloat16", masked: bool = False) -> str:
    team = geometry_of(step(cell, hidden, precision), precision, **cluster(2, 8))
    return text_of(persistent.kernel("k", team, layout_of(cell, hidden, precision), {} if masked else None))


def test_each_function_is_computed_once_per_cell() -> None:
    assert text("lstm", 16).count("__expf(") == 2 * 2 * 5  # even and odd steps, two rows, five functions


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
