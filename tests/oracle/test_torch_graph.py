"""Graphs run by torch: every cell against the oracle, every op against NumPy, and what a compiler is given."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from peer_problems import FITTING, small

import tvm_rnn as rnn
from tvm_rnn.graph.graph import Node
from tvm_rnn.graph.ops import TABLE
from tvm_rnn.oracle.tolerance import assert_close, relative_error
from tvm_rnn.oracle.torch_graph import TorchModel, function

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers
# But rows of tables, which test_tables.py runs.
POINTWISE = [row for row in TABLE.values() if row.kind == "pointwise" and row.arity in (1, 2) and row.name != "take"]
UNARY = np.array([-30.0, -1.5, -0.25, 0.0, 0.5, 2.0, 25.0])


def inputs_of(net: rnn.RNN, steps: int = 5, batch: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    shapes = list(net.input_shapes.values())
    return [rng.uniform(-1, 1, (steps, batch, *shape)) for shape in shapes]


def run(net: rnn.RNN, arrays: list[np.ndarray], **options: Any) -> tuple[Any, dict[str, Any]]:
    model = TorchModel(net, torch.float64, "cpu", **options)
    with torch.no_grad():
        return model([torch.from_numpy(array) for array in arrays])


@pytest.mark.broad_after(3)
@pytest.mark.parametrize("name", FITTING)
def test_every_cell_of_the_zoo_is_the_oracles(name: str) -> None:
    net = small(name, dtype="float64")
    arrays = inputs_of(net)
    y, state = run(net, arrays)
    names = [argument.name for argument in net.cell.inputs]
    expected, after = rnn.reference(net)(dict(zip(names, arrays, strict=True)))
    assert relative_error(y, expected) < 1e-12
    assert_close(state, after, "float64", len(y))


def test_layers_of_different_widths_give_their_states_one_by_one() -> None:
    net = rnn.RNN(rnn.cells.gru, 3, [4, 5], num_layers=2, dtype="float64").init(1)
    arrays = inputs_of(net)
    y, state = run(net, arrays)
    expected, after = rnn.reference(net)(arrays[0])
    assert relative_error(y, expected) < 1e-12
    assert [tuple(part.shape) for part in state["h"]] == [part.shape for part in after["h"]]


def test_no_steps_give_an_empty_result_and_the_initial_state() -> None:
    net = small("lstm", dtype="float64")
    y, state = run(net, inputs_of(net, steps=0))
    assert tuple(y.shape) == (0, 3, 8) and not state["c"].any()


def test_layers_of_equal_sizes_share_what_a_compiler_makes() -> None:
    seen: list[str] = []

    def wrap(function: Any) -> Any:
        seen.append(function.__name__)
        return function

    run(small("gru", num_layers=3, dtype="float64"), inputs_of(small("gru")), wrap=wrap)
    assert seen == ["early", "step"] * 2  # layer 0 reads the input, the others two directions


@pytest.mark.slow
@pytest.mark.parametrize("name", FITTING)
def test_torch_compile_takes_the_functions_whole(name: str) -> None:
    net = small(name, num_layers=1, dtype="float64")
    arrays = inputs_of(net)
    y, _ = run(net, arrays, wrap=partial(torch.compile, backend="eager", fullgraph=True, dynamic=False))
    names = [argument.name for argument in net.cell.inputs]
    assert relative_error(y, rnn.reference(net)(dict(zip(names, arrays, strict=True)))[0]) < 1e-12


def test_a_compiler_gets_the_part_before_the_loop_and_one_step() -> None:
    seen = []

    def wrap(function: Any) -> Any:
        seen.append(function.__name__)
        return function

    run(small("lstm", num_layers=1, bidirectional=False, dtype="float64"), inputs_of(small("lstm")), wrap=wrap)
    assert seen == ["early", "step"]


@pytest.mark.parametrize("op", POINTWISE, ids=lambda op: op.name)
def test_pointwise_ops_mean_in_torch_what_they_mean_in_numpy(op: Any) -> None:
    columns = [UNARY] if op.arity == 1 else np.meshgrid(UNARY, UNARY)
    if op.name.startswith("logical"):
        columns = [column > 0 for column in columns]
    with np.errstate(all="ignore"):
        expected = op.numpy(*columns)
    given = [Node("input", shape=column.shape) for column in columns]
    root = Node(op.name, tuple(given), shape=given[0].shape)
    (actual,) = function("one", [given], [root], [root])([torch.tensor(column) for column in columns])
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12, atol=1e-300)
