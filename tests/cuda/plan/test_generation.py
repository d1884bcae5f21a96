"""generation: a program of the whole loop, in which nothing leaves the GPU; its weights are the network's."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_kernels import text_of
from emulated import Case, persistent_error

import tvm_rnn as rnn
from tests.cuda.persistent.test_kernel import cluster, grid
from tvm_rnn.bench.suites import writers
from tvm_rnn.cuda.gemm.group_kernels import Gemm
from tvm_rnn.cuda.model.choose_regime import Persistent
from tvm_rnn.cuda.plan import layer as steps
from tvm_rnn.cuda.plan.generation import GenerationPlan, plans
from tvm_rnn.network.closed_loop import ENDED, FED, GIVEN, STOP, closed
from tvm_rnn.options import asked
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

TARGET = resolve("nvidia-h200")


def planned(net: rnn.RNN) -> GenerationPlan:
    (found,) = plans(passed(net, asked(TARGET, [TARGET], generate=True).of(net.dtype)), [TARGET])
    return found


@pytest.fixture
def step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "choose", lambda *given: [])


@pytest.mark.usefixtures("step_by_step")
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


@pytest.mark.usefixtures("step_by_step")
def test_kernels_of_a_step_begin_while_the_one_before_runs() -> None:
    """All but those of many rows. A product has weights by then; what others write is read behind the wait."""
    own = planned(rnn.RNN(writers.CELLS["lstm_greedy"], 1, 8, V=300))
    works = [work for groups, work in own.code[0].groups if groups[0].region == "step"]
    products = [work for work in works if isinstance(work, Gemm)]
    few = [v.kernel for work in products for v in work.variants if not v.kernel.name.endswith("_many")]
    assert len(products) == 2 and len(few) >= 4
    for kernel in [*few, *(work.kernel for work in works if not isinstance(work, Gemm))]:
        text = text_of(kernel).split('extern "C"')[-1]
        starts, waits = text.index("launch_dependents"), text.index("griddepcontrol_wait")
        assert starts < waits and kernel.shares
        assert kernel not in few or starts < text.index("async_cg_shared") < waits


@pytest.mark.usefixtures("step_by_step")
def test_what_draws_has_keys_of_every_layer() -> None:
    @rnn.cell(states="h")
    def noisy(h: "H", x: "H", *, W: "H H"):
        """It draws numbers."""
        return rnn.tanh(W @ x + h + rnn.random_uniform([3]))

    own = planned(rnn.RNN(noisy, 3, 3, num_layers=2))
    assert len(own.loop.streams) == 2
    assert own.mask_keys is not None and own.mask_keys.layers == 2
    assert {name for name, _ in own.program.parameters} == {"W_l0", "W_l1"}


def writing(tokens: int, hidden: int, batch: int, precision: str) -> Case:
    """The loop of a cell whose texts differ: two tokens are given, some rows end."""
    dtype = "float32" if precision == "tf32" else precision
    net = rnn.RNN(writers.CELLS["lstm_greedy"], 1, hidden, V=tokens, dtype=dtype).init(5)
    net.load({name: value * (6.0 if name[0] in "EQ" else 1.0) for name, value in net.weights.items()})
    loop = closed(net)
    loop.net.load({name: net.weights[loop.weight(name)] for name in loop.net.weight_shapes})
    case, rng, steps = Case(loop.net, hidden, batch, 7, precision), np.random.default_rng(1), 7
    own = {
        "x": rng.integers(0, tokens, (steps, batch, 1)) * 1.0,
        GIVEN: np.repeat((np.arange(steps) < 2)[:, None, None] * 1.0, batch, 1),
        STOP: np.full((steps, batch, 1), 3.0),
    }
    case.inputs = [own[node.name] for node in case.graph.inputs]
    first = {FED: rng.integers(0, tokens, (batch, 1)) * 1.0, ENDED: np.zeros((batch, 1))}
    names = [node.name for node in case.graph.states]
    case.states = [first.get(name, value) for name, value in zip(names, case.states, strict=True)]
    return case


@pytest.mark.broad
@pytest.mark.slow_after(3)
@pytest.mark.parametrize(
    ("tokens", "hidden", "precision", "geometry"),
    [
        (19, 32, "float32", grid(2, 8, warps_k=2)),  # a table of products
        (19, 32, "float32", cluster(2, 8)),
        (19, 32, "tf32", cluster(2, 8, warps_k=2)),
        (19, 32, "bfloat16", grid(2, 8, warps_k=2)),
        (70, 20, "tf32", grid(3, 16, warps_k=2)),  # rows of the table are exchanged
        (70, 20, "float32", cluster(3, 16, warps_u=2, passes=2)),
        pytest.param(40, 64, "tf32", grid(4, 8, warps_u=2, warps_k=4, ring=2), marks=pytest.mark.slow),
    ],
)
def test_all_steps_of_a_loop_are_one_launch(
    tokens: int, hidden: int, precision: str, geometry: dict[str, object]
) -> None:
    case = writing(tokens, hidden, 9, precision)
    texts, states = case.expected(False, False, False)
    ended = states[[node.name for node in case.graph.states].index(ENDED)]
    assert len(np.unique(texts)) > 5 and (tokens > 19 or 0 < ended.sum() < ended.size)
    # Tokens are among the results: a wrong one is off by more.
    assert persistent_error(case, geometry) < (1e-5 if precision == "float32" else 5e-3)


@pytest.mark.broad
@pytest.mark.parametrize(("tokens", "launches"), [(256, 1), (32000, 0)])
def test_what_fits_on_the_chip_is_one_launch(tokens: int, launches: int) -> None:
    net = rnn.RNN(writers.CELLS["lstm_sample"], 1, 512, V=tokens)
    (found,) = plans(passed(net, asked(TARGET, [TARGET], batch=[1, 16], generate=True).of(net.dtype)), [TARGET])
    (code,) = found.code
    assert len([regime for regime in code.regimes if isinstance(regime, Persistent)]) == launches
