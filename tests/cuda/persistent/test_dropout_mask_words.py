"""Masks in registers: words of 32 steps in both directions of time, more than one word, masks of whole sequences."""

from __future__ import annotations

import functools
from typing import Any

import emulator
import numpy as np
import pytest
from derivatives import draw, named, oracle
from networks import network
from persistent_layers import GPU, geometry_of

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import error
from tvm_rnn.cuda.layer.value_layout import Layout
from tvm_rnn.cuda.layer.weight_packing import Weights
from tvm_rnn.cuda.model.choose_regime import step_of
from tvm_rnn.cuda.training.add_entry_points import plan
from tvm_rnn.graph.graph import Graph
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline
from tvm_rnn.passes.pipeline import passed

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
    team = geometry_of(step, "bfloat16", "cluster", 2, 8, warps_u=4)
    (phase,) = step.phases
    masks = [(node, slot) for node, slot in step.reads[0] if node.random]
    assert len(masks) == 2 and not any(team.prefetches(phase, *read) for read in masks)
    others = [read for read in step.reads[0] if read not in masks]
    assert len(others) == 4 and all(team.prefetches(phase, *read) for read in others)


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
    totals = {a for n in backward.nodes() if n.op == "total_product" for a in n.args}
    (masked,) = [n for n in totals if any(a.op == "input" and a.name == "h" for a in n.args)]
    assert backward.region_of(masked) == "before"
    assert not np.any([n in {masked} for g in backward.groups if g.region == "step" for n in g.stored])
