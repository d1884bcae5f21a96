"""generation: a program of the whole loop, in which nothing leaves the GPU; its weights are the network's."""

from __future__ import annotations

import pytest

import tvm_rnn as rnn
from tvm_rnn.bench.suites import writers
from tvm_rnn.cuda.plan import layer as steps
from tvm_rnn.cuda.plan.generation import GenerationPlan, plans
from tvm_rnn.options import asked
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

TARGET = resolve("nvidia-h200")


def planned(net: rnn.RNN) -> GenerationPlan:
    (found,) = plans(passed(net, asked(TARGET, [TARGET], generate=True).of(net.dtype)), [TARGET])
    return found


@pytest.fixture(autouse=True)
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "choose", lambda *given: [])


@pytest.mark.parametrize(("name", "tokens"), [("lstm_greedy", 11), ("lstm_sample", 40000)])
def test_a_step_is_four_launches_and_no_copy(name: str, tokens: int) -> None:
    net = rnn.RNN(writers.CELLS[name], 1, 8, V=tokens)
    own = planned(net)
    lines = [line.strip() for line in own.program.sequence.lines]
    loop = next(i for i, line in enumerate(lines) if line.startswith("for") and " s" in line)
    regions = [groups[0].region for groups, _ in own.code[0].groups]
    assert regions.count("step") == 4 and regions[-4:] == ["step"] * 4
    assert not any("Memcpy" in line or "finish" in line for line in lines[loop:])
    assert own.program.suffix == ("" if net.draws else "_generate")
    assert {name for name, _ in own.program.parameters if "constant" not in name} == {*net.weight_shapes}
    assert own.program.inputs == 3 + 3 * bool(net.draws) and own.program.states == 4


def test_what_draws_has_keys_of_every_layer() -> None:
    @rnn.cell(states="h")
    def noisy(h: "H", x: "H", *, W: "H H"):
        """It draws numbers."""
        return rnn.tanh(W @ x + h + rnn.random_uniform([3]))

    own = planned(rnn.RNN(noisy, 3, 3, num_layers=2))
    assert len(own.loop.streams) == 2
    assert own.mask_keys is not None and own.mask_keys.layers == 2
    assert {name for name, _ in own.program.parameters} == {"W_l0", "W_l1"}
