"""Products that read the layer's input themselves: pieces, rows past the batch, ends of rows, early and late loads."""

from __future__ import annotations

from typing import Any

import pytest
from emulated import Case, layer, persistent_error
from persistent_layers import geometry_of, layout_of, step

from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.cuda.layer.phases import NotPersistent
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.oracle.tolerance import tolerance


def either(ctas: int, rows: int, **knobs: int) -> dict[str, Any]:
    return grid(ctas, rows, copied=ctas % 2, **knobs)


GEOMETRIES = [cluster(2, 8), cluster(2, 16, warps_k=2), either(3, 8, warps_k=2), either(2, 16)]
USUAL = ((0, True), (2, False))  # the others with the slow tests


@pytest.mark.broad
@pytest.mark.parametrize(
    ("geometry", "follows"),
    [
        pytest.param(geometry, follows, marks=() if (number, follows) in USUAL else pytest.mark.slow)
        for number, geometry in enumerate(GEOMETRIES)
        for follows in (False, True)
    ],
)
def test_inputs_are_multiplied_in_the_step(geometry: dict[str, Any], follows: bool) -> None:
    for cell, precision, inputs in (("lstm", "bfloat16", 40), ("gru", "tf32", 20)):
        case = Case(cell, 32, 11, 5, precision, inputs=inputs)
        assert persistent_error(case, geometry, follows=follows) < tolerance(precision, 5)


@pytest.mark.broad
@pytest.mark.parametrize("mode", [(True, False, False), (False, True, True), (True, True, True)])
@pytest.mark.parametrize("exchange", [cluster, grid])
def test_directions_lengths_and_resets(exchange: Any, mode: tuple[bool, bool, bool]) -> None:
    case = Case("lstm", 24, 7, 6, "float16", inputs=64)
    assert persistent_error(case, exchange(3, 8, warps_k=2), *mode) < tolerance("float16", 6)


@pytest.mark.broad
@pytest.mark.parametrize("exchange", [cluster, grid])
def test_wide_inputs(exchange: Any) -> None:
    case = Case("gru_reset_before", 24, 20, 4, "bfloat16", inputs=400)
    geometry = exchange(3, 16, register_words=32, shared_words=1 << 12)
    assert persistent_error(case, geometry) < tolerance("bfloat16", 4)


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("exchange", [cluster, grid])
def test_a_slow_warp_finds_its_rows(exchange: Any, seed: int) -> None:
    case = Case("gru", 32, 16, 6, "bfloat16", inputs=64)
    assert persistent_error(case, exchange(2, 16, warps_u=2, warps_k=2), seed=seed) < tolerance("bfloat16", 6)


@pytest.mark.broad
def test_without_tensor_cores() -> None:
    case = Case("lstm", 24, 9, 4, "float32", inputs=20)
    assert persistent_error(case, cluster(3, 8, warps_k=2)) < tolerance("float32", 4)


def test_weights_of_inputs_are_the_first_to_leave_registers() -> None:
    _, layout = layer("lstm", 64, "bfloat16", 64)
    geometry = geometry_of(
        step_of(layout), "bfloat16", **cluster(2, 8, warps_u=4, register_words=32, shared_words=1 << 12)
    )
    x, h = next(iter(geometry.shares.values()))
    assert x.operand.given and (x.registers, h.registers) == (0, 2) and x.shared == 2


def test_rows_that_are_no_pieces() -> None:
    _, layout = layer("lstm", 64, "bfloat16", 36)
    with pytest.raises(NotPersistent, match="16-byte pieces"):
        step_of(layout)


GEOMETRIES = [
    grid(2, 16, copied=1, warps_k=2, register_words=32, shared_words=256),
    grid(3, 16, copied=1, warps_u=2, passes=2),
    grid(2, 16, copied=1, warps_n=2, warps_k=2),
]


@pytest.mark.broad
@pytest.mark.parametrize(
    "geometry", [GEOMETRIES[0], *(pytest.param(g, marks=pytest.mark.slow) for g in GEOMETRIES[1:])]
)
def test_operands_are_copied(geometry: dict[str, Any]) -> None:
    for cell, precision in (("lstm", "bfloat16"), ("gru_reset_before", "tf32"), ("lstm_layer_norm", "float16")):
        case = Case(cell, 40, 11, 4, precision)
        assert persistent_error(case, geometry) < 10 * tolerance(precision, 4)


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(3))
def test_inputs_are_copied_a_step_early(seed: int) -> None:
    case = Case("gru_reset_before", 40, 20, 5, "bfloat16", inputs=72)
    assert persistent_error(case, grid(2, 16, copied=1, warps_k=2), seed=seed) < tolerance("bfloat16", 5)


@pytest.mark.broad
@pytest.mark.parametrize("geometry", [grid(2, 16, copied=1, warps_k=2), grid(2, 16), cluster(2, 16, warps_k=2)])
def test_products_of_inputs_and_states_in_turn(geometry: dict[str, Any]) -> None:
    """The next inputs must not take the place of those that a later product of the step reads."""
    case = Case("lstm", 40, 11, 5, "bfloat16", inputs=40, apart=True)
    assert persistent_error(case, geometry) < tolerance("bfloat16", 5)


def test_inputs_are_copied_in_one_pass() -> None:
    _, layout = layer("lstm", 64, "bfloat16", 64)
    assert not geometry_of(step_of(layout), "bfloat16", **grid(2, 16, copied=1, passes=2)).fits()


def test_memory_is_counted() -> None:
    geometry = geometry_of(step("lstm", 64), "bfloat16", **grid(2, 16, copied=1, warps_k=2))
    assert geometry.copy_words == 2 * 1 * 2 * 32 * 4  # warps, K blocks of each, tiles, lanes, words of a piece
    assert persistent.kernel("k", geometry, layout_of("lstm", 64)).shared_bytes == geometry.shared_bytes
