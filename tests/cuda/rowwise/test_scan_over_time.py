"""The scan regime, run on the CPU: cells without products, every precision, both directions, lengths and resets."""

from __future__ import annotations

from itertools import product

import pytest
from emulated import Case, scan_error
from persistent_layers import GPU, layout_of
from training_plans import trained

from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.layer.regime import LayerSteps
from tvm_rnn.cuda.rowwise.scan_over_time import Scan, scan
from tvm_rnn.oracle.tolerance import tolerance

CELLS = ["brc", *(pytest.param(c, marks=pytest.mark.slow) for c in ("sru", "indrnn"))]


def regime(cell: str, hidden: int = 20) -> Scan:
    (found,) = scan(layout_of(cell, hidden), GPU, [64], {})
    return found


@pytest.mark.broad
@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_without_products(cell: str) -> None:
    for mode in [(False, False, False), (True, True, True)]:
        assert scan_error(Case(cell, 20, 3, 18, "float32"), *mode) < tolerance("float32", 18), mode


@pytest.mark.broad
@pytest.mark.parametrize(
    "precision", ["bfloat16", *(pytest.param(p, marks=pytest.mark.slow) for p in ("float16", "float64", "tf32"))]
)
def test_precisions(precision: str) -> None:
    assert scan_error(Case("sru", 33, 7, 21, precision)) < tolerance(precision, 21)


@pytest.mark.broad_after(1)
@pytest.mark.parametrize("mode", list(product((False, True), repeat=3)))
def test_tiles_of_time(mode: tuple[bool, bool, bool]) -> None:
    assert scan_error(Case("sru", 33, 4, 19, "float32", 3, 30), *mode) < tolerance("float32", 19)


@pytest.mark.broad
def test_fewer_steps_than_are_asked_for_ahead() -> None:
    assert scan_error(Case("indrnn", 20, 3, 2, "float32"), False, True, True) < tolerance("float32", 2)


def test_what_is_no_scan() -> None:
    assert scan(layout_of("lstm", 20), GPU, [64], {}) == [] and scan(layout_of("mlstm", 20), GPU, [64], {}) == []


def test_it_takes_any_batch_and_no_memory() -> None:
    found = regime("sru")
    assert (found.applies(), found.most, found.work_bytes, list(found.packs)) == ("true", None, 0, [])
    assert found.fact["template"] == "scan_cuda" and "B * 20" in str(found.blocks)
    assert found.room == f"(2 * {found.blocks} <= sms)"


def test_one_of_two_kernels_is_launched() -> None:
    found, program = regime("sru"), Program(dtype="bfloat16")
    place = {node: Pointer("p", found.layout.rows(node).dtype) for node in found.step.read_nodes}
    inputs = [Pointer("x", found.layout.dtype) for _ in found.layout.graph.inputs]
    states = [Pointer("s", "float32") for _ in found.layout.graph.states]
    weights = {node: Pointer("w", "float32") for node in found.step.param_nodes}
    output = Pointer("y", found.layout.output.dtype)
    layer_steps = LayerSteps(
        found.layout, "0", "T", True, inputs, place, weights, states, states, output, Pointer("work")
    )
    found.launch(program.sequence, layer_steps)
    text = "\n".join(program.sequence.lines)
    assert text.count("call(") == 2 and "!has_lengths && !has_reset" in text


def test_training_keeps_values_in_the_same_launch() -> None:
    (code,) = trained("brc", precision="bfloat16")[1].forward.code
    (found,) = code.regimes
    assert isinstance(found, Scan) and code.layout.taped
    kept = {(f"kept_{own.number}", own.place.dtype) for own in code.layout.taped}
    assert all(kept <= {*kernel.pointers} for kernel in found.kernels)
