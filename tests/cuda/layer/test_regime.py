"""A made-up regime in the plan: it is given every pointer it needs, and the steps run where it does not apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from compiled_kernels import layers_of, passed_of

from tvm_rnn.cuda.codegen.host_program import Host, HostExpr
from tvm_rnn.cuda.layer.packed_layout import Pack
from tvm_rnn.cuda.layer.regime import LayerSteps
from tvm_rnn.cuda.plan import layer as steps
from tvm_rnn.cuda.plan.network import plan
from tvm_rnn.graph.graph import Node
from tvm_rnn.target import resolve


class Noted:
    """A regime that writes down where it was launched."""

    most, at_once, blocks, multiprocessors, least_steps = 8, None, "4", "4", 1
    packs: Sequence[Pack] = ()
    words: Sequence[Node] = ()
    work_bytes: HostExpr = "B * 64"

    def __init__(self) -> None:
        self.fact = {"unit": "step", "template": "noted", "knobs": {}, "record": "default"}
        self.seen: list[LayerSteps] = []

    def applies(self, rows: HostExpr = "B") -> str:
        return f"{rows} <= 8"

    def launch(self, host: Host, layer_steps: LayerSteps) -> None:
        self.seen.append(layer_steps)
        host.memset(layer_steps.work, 64)
        host.code(f"noted({layer_steps.count});")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    regime = Noted()
    monkeypatch.setattr(steps, "choose", lambda *given: [regime])
    return regime


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}])
def test_it_runs_beside_the_steps(noted: Noted, options: dict[str, Any]) -> None:
    net, _ = layers_of("lstm", **options)
    program = plan(passed_of("lstm", batches=(1,), **options), resolve("nvidia-h200"))
    visits = net.num_layers * net.num_directions
    assert len(noted.seen) == visits
    text = "\n".join(program.sequence.lines)
    assert text.count("noted(") == visits and "(B <= 8) ? 0 : -1" in text
    assert text.count("fill(((work + regime") == visits  # its memory is zeroed before each launch
    assert "noted" in {row["template"] for row in program.facts["templates"]}


def test_it_is_given_two_copies_of_each_state(noted: Noted) -> None:
    plan(passed_of("lstm", "bfloat16", (1,), bidirectional=True), resolve("nvidia-h200"))
    for layer_steps, reverse in zip(noted.seen, (False, True), strict=True):
        assert layer_steps.reverse is reverse
        assert len(layer_steps.before) == len(layer_steps.after) == 2
        assert not {p.text for p in layer_steps.before} & {p.text for p in layer_steps.after}
        assert {p.dtype for p in layer_steps.before} == {"float32"}
        assert set(layer_steps.hoisted) == set(layer_steps.layout.hoisted_nodes)
