"""What cells read from memory: which values, how early, and never outside of the arrays."""

from __future__ import annotations

import functools
import re
from typing import Any

import emulator
import numpy as np
import pytest
from derivatives import draw, named, oracle
from emulated import Case, persistent_error
from networks import network
from persistent_layers import GPU, geometry_of, layout_of, step, text_of
from training_plans import trained

import tvm_rnn as rnn
from tests.cuda.persistent.test_kernel import cluster, grid
from tests.runtime.test_runtime_cuda_training import error
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.persistent import kernel as persistent
from tvm_rnn.cuda.persistent.cell_reads import place_of, prefetched
from tvm_rnn.cuda.training.add_entry_points import plan
from tvm_rnn.graph.graph import Graph
from tvm_rnn.options import Options
from tvm_rnn.oracle.tolerance import tolerance
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.pipeline import passed


def test_every_value_has_one_pointer() -> None:
    layout, geometry = (
        layout_of("lstm_peephole", 64),
        geometry_of(step("lstm_peephole", 64), "bfloat16", **cluster(4, 8)),
    )
    assert len(geometry.step.param_nodes) == len(set(geometry.step.param_nodes)) >= 1
    assert all(place_of(layout, node).row_stride >= node.shape[-1] for node in geometry.step.read_nodes)
    names = [name for name, _ in persistent.kernel("k", geometry, layout).pointers]
    assert [n for n in names if n.startswith("read_")] == [f"read_{i}" for i in range(len(geometry.step.read_nodes))]


def test_values_are_asked_for_before_the_loop() -> None:
    layout, geometry = layout_of("lstm", 64), geometry_of(step("lstm", 64), "bfloat16", **cluster(4, 8))
    text = text_of(persistent.kernel("k", geometry, layout))
    assert "if (0 < steps)" in text and "if (1 < steps)" in text
    assert text.index("if (1 < steps)") < text.index("for (int v_9" if "for (int v_9" in text else "mma_sync")


@pytest.mark.broad
def test_units_and_rows_past_the_end() -> None:
    """13 units over 2 blocks of 8, 3 rows of 8: arrays end where the layer does, and their padding is poison."""
    case = Case("lstm_peephole", 13, 3, 3, "tf32")
    assert persistent_error(case, cluster(2, 8, warps_k=2)) < tolerance("tf32", 3)


def test_a_pipeline_asks_for_a_steps_own_values_between_products() -> None:
    geometry = {"exchange": "grid", "ctas": 4, "rows": 8, "warps_u": 2, "warps_k": 4, "ring": 2}
    text = text_of(persistent.kernel("k", geometry_of(step("lstm", 64), "bfloat16", **geometry), layout_of("lstm", 64)))
    body = text[text.index("for (int") :]
    assert "if (0 < steps)" not in text and "prefetch_global_L2" in body
    assert body.index("wgmma") < body.index("prefetch_global_L2")


@pytest.mark.broad
def test_the_values_of_a_later_step_are_asked_for_as_soon_as_a_phase_has_read_its_own() -> None:
    """Not at the step's end: what is loaded then, the next step would wait for as it begins."""
    (back,) = trained("lstm", 256, "bfloat16")[1].backward.backs
    text = text_of(back.layer.regimes[0].kernels[0])
    asked = [text.index(f"* 2) + {ahead}) < steps") for ahead in (2, 3)]
    products = [m.start() for m in re.finditer("mma_sync", text[text.index("st_async") :])]
    products = [at + text.index("st_async") for at in products]
    middle = text.index("* 2) + 1) < steps")
    assert asked[0] < min(products) < middle < asked[1] < max(products)


LIMIT = 1e-3  # relative, of float16; one wrong mask of 70 steps changes a hundredth


@functools.cache
def graphs(cell: str, hidden: int, **options: Any) -> tuple[Graph, Graph]:
    """Of training, forward and backward."""
    net = network(cell, hidden, hidden, dtype="bfloat16", **{n: dict(v) for n, v in options.items()})
    (graph,) = pipeline.run(net, GPU, training=True)[-1][1].graphs
    assert graph.backward is not None
    return graph, graph.backward


def test_masks_are_read_in_words_and_not_copied() -> None:
    forward, _ = graphs("lstm", 64, zoneout=(("h", 0.1), ("c", 0.2)))
    step = step_of(Layout(forward, "bfloat16", Weights(forward, 0, "bfloat16"), "bfloat16"))
    geometry = geometry_of(step, "bfloat16", "cluster", 2, 8, warps_u=4)
    (phase,) = step.phases
    masks = [(node, slot) for node, slot in step.reads[0] if node.random]
    assert len(masks) == 2 and not any(geometry.prefetches(phase, *read) for read in masks)
    others = [read for read in step.reads[0] if read not in masks]
    assert len(others) == 4 and all(geometry.prefetches(phase, *read) for read in others)


def test_masks_are_drawn_as_the_regime_reads_them() -> None:
    """Words for persistent kernels; rows where the steps run one by one, and always where sums read them."""
    net = network("lstm", 16, 16, dtype="bfloat16", recurrent_dropout=0.2, zoneout={"c": 0.1})
    trained = plan(passed(net, Options(GPU, (4,), precision="bfloat16", training=True)), GPU)
    (forward,), (back,) = trained.forward.code, trained.backward.backs
    for code, program, alone in ((forward, trained.programs[0], 2), (back.layer, trained.programs[1], 1)):
        text = "\n".join(line.strip() for line in program.sequence.lines)
        assert len(code.worded) == 2 and all(n.random for n in code.worded)
        assert text.count("_words, ") == 2 == text.count(f"if ({code.regime} >= 0) {{\nRUN(call(kernels::g")
        assert text.count(f"if ({code.regime} < 0) {{\nRUN(call(kernels::g") == alone


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_more_steps_than_a_word_has_bits(reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    own = {"zoneout": {"h": 0.3, "c": 0.2}, "recurrent_dropout": 0.4, "reverse": reverse}
    net = network("lstm", 16, 16, dtype="float16", **own)
    module: Any = emulator.compile(net, training=True, batch=3)
    for way in ("forward_train", "backward"):
        units = [row["unit"] for row in module.manifest["variants"][0][way]["templates"]]
        assert any(unit.startswith("step, all of T in one kernel") for unit in units)
    case = draw(net, 70, 3)
    case.training.update(seed=11, first_step=5)
    y, _, tape = module.forward_train(case.x["x"], case.state, **case.training)
    assert error(y, rnn.reference(net, **case.training)(case.x, case.state)[0]) < LIMIT
    found = named(*module.backward(tape, case.gy, case.gstate))
    for name, value in oracle(net, case).items():
        assert error(found[name], value) < 5 * LIMIT, name


def test_products_read_the_masked_state_that_the_step_before_hands_over() -> None:
    forward, backward = graphs("lstm", 64, recurrent_dropout=(("h", 0.1),))
    step = step_of(Layout(forward, "bfloat16", Weights(forward, 0, "bfloat16"), "bfloat16"))
    (phase,) = step.phases
    h = forward.states[0]
    assert [o.source for o in phase.operands] == [h] and step.carried == (h,)
    assert [*step.shown] == [h] and step.shown[h].op == "mul" and h in step.shown[h].args
    assert [node.op for node, _ in step.reads[0] if node.random] == ["mask"]
    summed = {a for n in backward.nodes() if n.op == "einsum_rows" for a in n.args}
    (masked,) = [n for n in summed if any(a.op == "input" and a.name == "h" for a in n.args)]
    assert backward.region_of(masked) == "before"
    assert not np.any([n in {masked} for g in backward.groups if g.region == "step" for n in g.stored])


def test_rows_of_eight_units_come_early() -> None:
    geometry = geometry_of(step("lstm", 64), "bfloat16", **cluster(2, 8))
    assert len(prefetched(geometry)) == 4
    # steps, warps, gates, blocks of units, words of 8 x 8
    assert geometry.prefetch_words == geometry.prefetch_steps * 1 * 4 * 4 * 32
    # Rows of hoisted values begin at multiples of 16 bytes: the last piece of an odd width is whole too.
    assert len(prefetched(geometry_of(step("lstm", 21), "bfloat16", **cluster(1, 8)))) == 4


def test_with_weights_in_8_bits_warps_without_cells_copy_nothing() -> None:
    wide, narrow = (
        geometry_of(step("lstm", 64), "bfloat16", **cluster(2, 8, warps_k=4), stored=stored)
        for stored in ("", "float8_e4m3")
    )
    assert (wide.prefetching_warps, narrow.prefetching_warps) == (4, 1)
    assert wide.prefetch_words == 4 * narrow.prefetch_words
    every = geometry_of(step("lstm", 64), "bfloat16", **cluster(2, 32, warps_k=4), stored="float8_e4m3")
    assert every.prefetching_warps == 4


GEOMETRIES = [cluster(2, 16, warps_k=2), grid(3, 16, warps_k=2), grid(2, 16, warps_n=2)]
USUAL = ((0, 1), (0, 7), (1, 2), (2, 7))  # the others with the slow tests


@pytest.mark.broad
@pytest.mark.parametrize(
    ("geometry", "steps"),
    [
        pytest.param(geometry, steps, marks=() if (number, steps) in USUAL else pytest.mark.slow)
        for number, geometry in enumerate(GEOMETRIES)
        for steps in (1, 2, 7)
    ],
)
def test_any_number_of_steps(geometry: dict[str, object], steps: int) -> None:
    for cell, precision in (("gru_reset_before", "bfloat16"), ("lstm", "tf32")):
        case = Case(cell, 40, 11, steps, precision)
        assert persistent_error(case, geometry) < tolerance(precision, steps)


@pytest.mark.broad
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_warp_reads_its_own_copies(seed: int) -> None:
    case = Case("gru", 64, 20, 6, "float16")
    assert persistent_error(case, cluster(2, 8, warps_u=2, warps_k=2), True, True, True, seed) < tolerance("float16", 6)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["lif", "alif", "plif"])
def test_spikes_in_16_bits_are_those_of_float64(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and weights are the same numbers for both, and sums of their products are whole."""
    monkeypatch.setenv("FAKE_GPUS", "90")
    torch = pytest.importorskip("torch")
    net = rnn.RNN(rnn.cells.get(cell), 40, 40, dtype="bfloat16").init(3)
    x = torch.rand(32, 8, 40, generator=torch.Generator().manual_seed(0)).mul_(4).sub_(2).bfloat16()
    expected, _ = rnn.reference(net)(x.double().numpy())
    y, _ = emulator.compile(net, batch=[8])(x)
    assert expected.any() and np.array_equal(y.float().numpy(), expected)
