"""Which regimes run a layer: persistent ones for vector states, by batch size; none for what they cannot do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from persistent_layers import GPU, layout_of

import tvm_rnn as rnn
from tvm_rnn.cuda.codegen.cuda_text import compile_kernels
from tvm_rnn.cuda.codegen.host_program import Pointer, Program
from tvm_rnn.cuda.layer.phases import NotPersistent
from tvm_rnn.cuda.layer.regime import LayerSteps, Regime
from tvm_rnn.cuda.model.batch_ladder import BATCHES
from tvm_rnn.cuda.model.choose_regime import EXPECTED_BATCHES, Persistent, choose, step_of
from tvm_rnn.target import resolve

# The quick one, and the others, which differ little.
PRECISIONS = ["bfloat16", *(pytest.param(p, marks=pytest.mark.slow) for p in ("float16", "tf32", "float32"))]

# Zoo cells that run step by step, with the reason.
DELTA = ("delta_net", "gated_delta_net", "gated_delta_net_conv", "rwkv7")
MATRICES = (
    *DELTA,
    "gla",
    "hgrn2",
    "mamba2",
    "mamba2_conv",
    "mlstm",
    "mlstm_capped",
    "retnet",
    "retnet_rotary",
)
PIXELS = {
    "conv_lstm",
    "conv_lstm_peephole",
    "conv_gru",
    "conv_gru_separable",
}  # vectors, which read those of other rows
ATTENTION = ("gru_attention", "transducer")
STEP_BY_STEP = dict.fromkeys((*MATRICES, *ATTENTION), "a state is not a vector")
# Cells without a product in the step: one thread per unit, in every precision.
SCANS = {"brc", "indrnn", "sru"}
# Cells whose matrices stay on the chip, with a nonlinearity around them.
ON_CHIP = {"m2rnn", "lstm_attention"}


def regimes(name: str, hidden: int, precision: str, batches: Sequence[int] = (), **how: Any) -> list[Any]:
    found: list[Regime] = choose(layout_of(name, hidden, precision), how.pop("target", GPU), precision, batches, how)
    return found


def check_ranges(found: list[Any], largest: int = max(EXPECTED_BATCHES)) -> None:
    """Each B up to `largest` has a regime: ranges rise; the last one ends where step by step is quicker, if ever."""
    ends = [float("inf") if regime.most is None else regime.most for regime in found]
    assert ends == sorted(set(ends)) and ends[-1] >= largest
    for regime in found:
        limit = re.search(r"B <= (\d+)(?: &&|$)", regime.applies())
        assert (int(limit.group(1)) if limit else None) == regime.most
    assert found[-1].applies() == ("true" if found[-1].most is None else f"B <= {found[-1].most}")


@pytest.mark.broad
@pytest.mark.parametrize("precision", PRECISIONS[:3])
@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        pytest.param(name, hidden, marks=() if (name, hidden) in (("lstm", 512), ("gru", 1024)) else pytest.mark.slow)
        for name in ("lstm", "gru")
        for hidden in (256, 512, 1024)
    ],
)
def test_lstm_and_gru_stay_on_the_chip(name: str, hidden: int, precision: str) -> None:
    found = regimes(name, hidden, precision)
    assert found and all(isinstance(regime, Persistent) for regime in found)
    check_ranges(found)
    assert len(found) < 13 and {regime.most for regime in found[:-1]} <= {*BATCHES}
    assert all(regime.geometry.precision == precision and regime.predicted_us > 0 for regime in found)
    exchanges = {regime.geometry.exchange.name for regime in found}
    if hidden == 256:
        assert "cluster" in exchanges
    if hidden == 1024:
        assert exchanges == {"grid"}  # 16 multiprocessors have no room for it


@pytest.mark.parametrize(("hidden", "runs"), [(256, True), (1024, True), (2048, False)])
def test_strict_float32_while_it_fits(hidden: int, runs: bool) -> None:
    assert bool(regimes("lstm", hidden, "float32", [16])) is runs


@pytest.mark.broad
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_large_layers_take_slices_while_steps_are_not_quicker(cell: str) -> None:
    """H200, B = 128: LSTM 16.5 us where clusters share K, 19.6 step by step; GRU 14.1, 15.6."""
    most = regimes(cell, 2048, "bfloat16")[-1].most
    assert most is None or most >= 128


@pytest.mark.broad_after(1)
@pytest.mark.parametrize(
    ("cell", "hidden", "precision"), [("lstm", 2048, "tf32"), ("lstm", 2560, "bfloat16"), ("gru", 2816, "bfloat16")]
)
def test_clusters_share_k_where_weights_do_not_fit(cell: str, hidden: int, precision: str) -> None:
    """H200: LSTM 2048 tf32, B = 64 18.5 us in place of 27.2; LSTM 2560 B = 64 16.6, 21.2; GRU 2816 B = 32 9.7, 16.9."""
    found = regimes(cell, hidden, precision, [64])
    assert [regime.template for regime in found] == ["persistent_pooled_cuda"]
    assert found[0].fact["knobs"]["together"] == 2 and found[0].fact["knobs"]["pace"] == 2
    (pack,) = found[0].packs  # every weight once, and what pads gates to 64
    gates = 4 if cell == "lstm" else 3
    assert 1 <= pack.elements / (gates * hidden * hidden) < 1.2


def test_small_layers_stay_on_the_chip_for_larger_batches() -> None:
    assert regimes("lstm", 256, "bfloat16", [16])[-1].most >= 512


@pytest.mark.parametrize("name", ["nvidia-a100", pytest.param("nvidia-rtx-5090", marks=pytest.mark.slow)])
def test_gpus_without_clusters_have_grids_of_blocks(name: str) -> None:
    found = regimes("lstm", 64, "bfloat16", [16], target=resolve(name))
    assert [regime.template for regime in found] == ["persistent_grid_cuda"]
    geometry = found[0].geometry
    assert not geometry.hopper and geometry.cluster == 1 and geometry.shared_bytes <= resolve(name).shared_bytes
    text, _ = compile_kernels({"k": found[0].kernels[1].func}, resolve(name))
    assert not [word for word in ("griddepcontrol", "cluster", "mbarrier", "wgmma", "bulk") if word in text]


def test_what_does_not_run() -> None:
    assert regimes("lstm", 64, "float64", [16]) == []
    assert regimes("lstm", 2048, "float32", [16], target=resolve("nvidia-a100")) == []  # 67 MB of weights
    assert regimes("lstm", 8192, "bfloat16", [16]) == []  # 537 MB of weights


@pytest.mark.broad_after(8)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", rnn.cells.names())
def test_every_zoo_cell_has_a_regime_or_a_reason(name: str, precision: str) -> None:
    found, layout = regimes(name, 64, precision, [16]), layout_of(name, 64, precision)
    if not layout.has_steps:  # recurrences over all time leave nothing of the loop
        assert found == []
        return
    if name in PIXELS:
        assert found == []
        return
    if name in STEP_BY_STEP:
        assert found == []
        with pytest.raises(NotPersistent, match=STEP_BY_STEP[name]):
            step_of(layout)
        return
    check_ranges(found)
    if name in ON_CHIP:
        assert [type(regime).__name__ for regime in found] == ["OnChip"]
        return
    assert {type(regime).__name__ for regime in found} == {"Scan" if name in SCANS else "Persistent"}


@pytest.mark.broad
def test_only_cells_with_states_of_more_axes_run_step_by_step() -> None:
    ranks = {name: {len(s.shape) for s in layout_of(name, 16).graph.states} for name in rnn.cells.names()}
    assert {name for name, found in ranks.items() if found != {1}} == {*STEP_BY_STEP, *ON_CHIP}


@pytest.mark.broad
def test_named_batches_are_the_ends_of_ranges() -> None:
    found = regimes("lstm", 512, "bfloat16", [8, 32, 128, 512])
    check_ranges(found, 512)
    assert {regime.most for regime in found[:-1]} <= {8, 32, 128}
    names = [regime.name for regime in found]
    assert len(set(names)) == len(names)  # kernels of one module


def test_the_manifests_row() -> None:
    (regime,) = regimes("lstm", 512, "bfloat16", [4])
    fact = regime.fact
    assert fact["template"] == "persistent_cluster_cuda" and fact["record"] == "default"
    rows = "any B" if regime.most is None else f"B <= {regime.most}"
    assert regime.least_steps > 1  # a shorter call's first step runs beside the products of its inputs
    assert fact["unit"] == f"step, all of T in one kernel, {rows}, T >= {regime.least_steps}"
    assert fact["predicted_us"] == pytest.approx(regime.predicted_us, abs=1e-3)
    assert all(getattr(regime.geometry, knob) == value for knob, value in fact["knobs"].items()) and fact["knobs"]


def test_kernels_without_and_with_masks() -> None:
    (regime,) = regimes("lstm", 64, "bfloat16", [4])
    plain, masked = regime.kernels
    assert [p for p, _ in masked.pointers] == [*(p for p, _ in plain.pointers), "lengths", "reset"]
    assert [s for s, _ in masked.scalars][: len(plain.scalars)] == [s for s, _ in plain.scalars]
    assert (
        plain.cluster == regime.geometry.ctas and not plain.resident and plain.threads == regime.geometry.block_threads
    )


@pytest.mark.broad
@pytest.mark.parametrize("hidden", [64, 1024])
def test_each_weight_of_the_step_is_packed(hidden: int) -> None:
    for regime in regimes("gru_reset_before", hidden, "bfloat16", [16]):
        nodes = [pack.node for pack in regime.packs]
        assert nodes == [o.weight for phase in regime.geometry.step.phases for o in phase.operands]
        assert len({pack.key for pack in regime.packs}) == len(nodes)
        assert all(pack.dtype == "bfloat16" and not pack.tf32 for pack in regime.packs)


def test_tf32_weights_are_rounded() -> None:
    (regime,) = regimes("lstm", 64, "tf32", [4])
    assert all(pack.tf32 and pack.dtype == "float32" for pack in regime.packs)


def launched(regime: Any) -> str:
    """The host statements of a regime, with made-up pointers."""
    layout, program = regime.layout, Program(regime.layout.dtype)
    states = layout.graph.states
    weights = {pack.key: Pointer("packed", pack.dtype) for pack in regime.packs}
    weights |= {node: Pointer("kept", "float32") for node in layout.weights.kept}
    hoisted = {node: Pointer("hoisted", layout.hoisted(node).dtype) for node in layout.hoisted_nodes}
    floats = [Pointer(f"state{i}", "float32") for i in range(len(states))]
    inputs = [Pointer("x", layout.dtype) for _ in layout.graph.inputs]
    places = (inputs, hoisted, weights, floats, floats, Pointer("y", layout.dtype), Pointer("work", "uint8"))
    regime.launch(program.sequence, LayerSteps(layout, "start", "count", False, *places))
    return "\n".join(program.sequence.lines)


def test_a_cluster_is_launched_once_for_all_teams() -> None:
    (regime,) = regimes("lstm", 64, "bfloat16", [4])
    text = launched(regime)
    assert regime.work_bytes == 0
    assert text.count(f"{regime.name}_masked") == 1 and "slice" not in text


@pytest.mark.broad
def test_teams_of_a_grid_that_do_not_fit_at_once_take_turns() -> None:
    for regime in regimes("lstm", 1024, "bfloat16", [128]):
        text = launched(regime)
        assert "for (" in text and str(regime.resident) in text and regime.work_bytes
        assert regime.resident * regime.geometry.ctas <= GPU.sms
        assert all(kernel.resident for kernel in regime.kernels)
