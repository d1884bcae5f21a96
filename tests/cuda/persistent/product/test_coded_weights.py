"""coded_weights: kernels of every kind that multiply by weights in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import e4m3
import pytest
from emulated import Case, persistent_error
from persistent_layers import GPU, geometry_of, layout_of, registers_and_spills, step, text_of

from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.cuda.model.choose_geometry import choose_geometry
from tvm_rnn.cuda.model.persistent_step_time import able_to_run, predict
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.persistent.product.mma_sync import MmaSync
from tvm_rnn.oracle.tolerance import tolerance

NAME = "float8_e4m3"
PRECISIONS = ["bfloat16", "float16"]


def check(name: str, hidden: int, batch: int, precision: str, geometry: dict[str, Any], **how: Any) -> None:
    """A kernel beside the oracle with the weights that it multiplies by."""
    case = e4m3_case(name, hidden, batch, precision, **how)
    found = persistent_error(case, {**geometry, "stored": NAME})
    assert found < tolerance(precision, 4), found


def e4m3_case(name: str, hidden: int, batch: int, precision: str, **how: Any) -> Case:
    case = Case(name, hidden, batch, 4, precision, **how)
    products = e4m3.matrices(case.graph)
    for leaf in case.graph.params:
        if leaf.name in products:
            case.values[leaf] = e4m3.rounded(case.values[leaf], precision)
    return case


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "hidden", "precision", "geometry"),
    [
        ("lstm", 40, "bfloat16", cluster(2, 8, warps_k=2, register_words=8)),  # registers and shared memory
        ("gru_reset_before", 33, "float16", cluster(2, 16, warps_u=2, passes=2)),  # an odd number of gates
        ("lstm", 72, "float16", grid(3, 16, warps_u=3, warps_k=2, register_words=4, shared_words=8)),  # and streamed
        pytest.param("elman", 64, "bfloat16", grid(2, 8, warps_k=2, polled=1), marks=pytest.mark.slow),
        pytest.param("gru", 64, "bfloat16", grid(2, 16, warps_n=2, copied=1), marks=pytest.mark.slow),
    ],
)
def test_products(name: str, hidden: int, precision: str, geometry: dict[str, Any]) -> None:
    check(name, hidden, 11, precision, geometry)


@pytest.mark.broad
@pytest.mark.parametrize(
    "geometry", [cluster(2, 8, warps_k=2), pytest.param(grid(2, 16, copied=1), marks=pytest.mark.slow)]
)
def test_operands_of_one_product_have_scales_of_their_own(geometry: dict[str, Any]) -> None:
    check("lstm", 24, 9, "bfloat16", geometry, inputs=16)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["lstm_projection", "slstm", "lem", "multiplicative_lstm", "lstm_layer_norm", "nas"])
def test_cells(name: str, precision: str) -> None:
    for knobs in (cluster(2, 8, warps_u=2), grid(3, 16, warps_k=4, register_words=16, shared_words=16)):
        check(name, 40, 9, precision, knobs)


# --- room and time ----------------------------------------------------------------------------------------------------


def geometry(name: str, hidden: int, precision: str, **knobs: Any) -> Geometry:
    return geometry_of(step(name, hidden, precision), precision, **knobs)


def test_weights_take_half_the_room() -> None:
    knobs = cluster(8, 8, warps_u=4, register_words=32)
    wide, narrow = (geometry("lstm", 256, "bfloat16", **knobs, stored=stored) for stored in ("", NAME))
    ((phase, before),), ((_, after),) = wide.weights, narrow.weights
    assert narrow.block_words(phase) * 2 == wide.block_words(phase)
    assert (before.registers, after.registers) == (2, 4)
    assert narrow.weight_elements(phase, after) == wide.weight_elements(phase, before)
    assert narrow.shared_bytes < wide.shared_bytes and able_to_run(narrow, GPU)


@pytest.mark.broad
@pytest.mark.parametrize("precision", PRECISIONS)
def test_larger_layers_stay_on_the_chip(precision: str) -> None:
    for hidden in (2560, 3072):
        for batch in (1, 8):
            whole = choose_geometry(step("lstm", hidden, precision), GPU, precision, batch)
            assert whole is None or any(s.streamed for parts in whole[2].shares.values() for s in parts)
            found = choose_geometry(step("lstm", hidden, precision), GPU, precision, batch, stored=NAME)
            assert found is not None and isinstance(found[2], MmaSync) and found[2].stored == NAME
            assert not any(s.streamed for parts in found[2].shares.values() for s in parts)
            assert whole is None or found.us < whole.us


def test_codes_cost_time_where_nothing_else_changes() -> None:
    knobs = grid(64, 16, warps_k=4, register_words=160)
    assert predict(geometry("lstm", 512, "bfloat16", **knobs, stored=NAME), 16, GPU) > predict(
        geometry("lstm", 512, "bfloat16", **knobs), 16, GPU
    )


def test_no_pipeline_has_codes() -> None:
    made = geometry("lstm", 64, "bfloat16", **grid(4, 8, warps_u=2, warps_k=4, ring=2), stored=NAME)
    with pytest.raises(ValueError, match="a pipeline has"):
        persistent.kernel("k", made, layout_of("lstm", 64))


def test_each_fragment_is_decoded_once_in_each_step() -> None:
    for precision, instruction in (("bfloat16", "mul_half_rn_bf16x2("), ("float16", "rn_f16x2_e4m3x2(")):
        made = geometry("lstm", 64, precision, **cluster(2, 16, warps_k=2), stored=NAME)
        ((phase, share),) = made.weights
        text = text_of(persistent.kernel("k", made, layout_of("lstm", 64, precision)))
        # Even and odd steps, two MMA steps in a block of K, four registers in a fragment.
        assert text.count(instruction) == 2 * share.kblocks * 2 * made.m_tiles(phase) * 4


@pytest.mark.broad
@pytest.mark.parametrize(
    ("name", "hidden", "batch", "precision"),
    [
        ("lstm", 1024, 1, "bfloat16"),
        ("gru_reset_before", 256, 16, "float16"),
        pytest.param("lstm", 2048, 16, "bfloat16", marks=pytest.mark.slow),
        pytest.param("gru_reset_before", 512, 16, "float16", marks=pytest.mark.slow),
        pytest.param("lstm", 3072, 1, "float16", marks=pytest.mark.slow),
    ],
)
def test_compilers_do_not_decode_ahead(name: str, hidden: int, batch: int, precision: str, tmp_path: Path) -> None:
    """16 bits of all weights at once would spill."""
    found = choose_geometry(step(name, hidden, precision), GPU, precision, batch, stored=NAME)
    assert found is not None
    kernel = persistent.kernel("k", found[2], layout_of(name, hidden, precision))
    registers, spilled = registers_and_spills(kernel, tmp_path)
    assert registers <= 255 and spilled == 0
