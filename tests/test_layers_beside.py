"""Layers of training side by side on a GPU without one: gradients of the oracle, whatever order streams run in.

In: networks of several layers in tiles of two steps. The emulated GPU runs what streams have got as late as it may, in
every order that events allow: the caller's stream as far ahead as possible (it writes what others have not read yet),
far behind (others read what is not there yet), and at random. A wait too few gives other gradients.
"""

from __future__ import annotations

from typing import Any

import emulator
import numpy as np
import pytest
from derivatives import Case, draw, oracle
from networks import flags, network

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import LIMITS, error, gradients
from tests.test_gpu_training_segments import sizes
from tvm_rnn.cuda.plan import network as plan
from tvm_rnn.cuda.training import plan_backward, weight_gradient_wgmma
from tvm_rnn.runtime.runtime_memory import plan_of

T, B = 7, 3
ORDERS = ("early", "late", "1", "2")
MASKS: dict[str, Any] = {"dropout": 0.4, "recurrent_dropout": 0.3, "zoneout": 0.2, "weight_drop": 0.35}
CASES: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    # The first layer reads another width than the second one: two graphs.
    "widths-states": ("lstm", 5, "states", {"dtype": "bfloat16", "num_layers": 2}),
    "three-values": ("gru", 8, "values", {"dtype": "float32", "num_layers": 3}),
    "masks-values": ("lstm", 8, "values", {"dtype": "float32", "num_layers": 2, **MASKS}),
    # What comes beside x is read by every layer: its gradient is added up, layer by layer.
    "inputs-states": ("augru", 8, "states", {"dtype": "float32", "num_layers": 3}),
    # More layers than streams.
    "ten-values": ("elman", 8, "values", {"dtype": "float32", "num_layers": 10}),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both passes have a wave, from four steps on."""
    monkeypatch.setenv("FAKE_GPUS", "90")
    monkeypatch.setattr(plan_backward, "least_steps", lambda us: 2)
    monkeypatch.setattr(plan, "WAVE_STEPS", 2)


def module_of(net: rnn.RNN, keep: str) -> Any:
    module = emulator.compile(net, training=True, keep=keep, batch=[B])
    rows = module.manifest["variants"][0]["backward"]["templates"]
    assert any("persistent" in row["template"] for row in rows)
    return module


def check(net: rnn.RNN, module: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the calls, and in all others: the same bits."""
    wanted, first = oracle(net, case), dict[str, Any]()
    y, last = rnn.reference(net, **case.training)(case.x, case.state, **case.rows)
    for order in (None, *ORDERS):
        with monkeypatch.context() as patch:
            if order is not None:
                patch.setenv("FAKE_ORDER", order)
            got, state, found = gradients(net, module, case)
        assert error(got, y) < LIMITS[net.dtype], order
        assert all(error(state[name], value) < LIMITS[net.dtype] for name, value in last.items())
        for name, value in wanted.items():
            assert error(found[name], value) < LIMITS[net.dtype], (order, name)
        first = first or found
        assert all(np.array_equal(first[name], value) for name, value in found.items()), order


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_oracles_in_any_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, inputs, keep, options = CASES[name]
    net = network(cell, inputs, 8, **options)
    module = module_of(net, keep)
    for steps, rows in ((T, {}), (T, flags(T, B)), (3, {}), (1, {})):
        case = draw(net, steps, B, **rows)
        if net.regularisers:
            case.training.update(seed=5, first_step=2)
        check(net, module, case, monkeypatch)


@pytest.mark.slow
def test_layers_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, in tiles: where they are hoisted values' memory makes them."""
    monkeypatch.setattr(plan_backward, "HOISTED_BYTES", 2 * B * 8 * 8)
    net = network("elman", 5, 7, dtype="float64", num_layers=3)
    module = emulator.compile(net, training=True, keep="states")
    for rows in ({}, flags(T, B)):
        check(net, module, draw(net, T, B, **rows), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_tiles_share_memory_and_add_up_where_gradients_go(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of weight gradients, put in order, lie where the gates made again were, in tiles of two steps; there the
    copy of the gradient of y is, too, in calls with lengths."""
    monkeypatch.setitem(weight_gradient_wgmma.PLAIN_RATE, "bfloat16", 1e6)
    monkeypatch.setattr(plan_backward, "fewest_steps", lambda us, row_us, sums: "2")
    net = network("lstm", 8, 8, dtype="bfloat16", num_layers=layers)
    module = module_of(net, "states")
    for rows in ({}, flags(T, B)):
        check(net, module, draw(net, T, B, **rows), monkeypatch)


@pytest.mark.slow
def test_parts_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a budget: each part has tiles of its own."""
    net = network("gru", 8, 8, dtype="float32", num_layers=2)
    module = module_of(net, "values")
    monkeypatch.setattr(module, "_in_parts", lambda own, T, B, _: plan_of(sizes(module, T, B), 5))
    for rows in ({}, flags(2 * T, B)):
        check(net, module, draw(net, 2 * T, B, **rows), monkeypatch)


# Directions, in calls of any number of steps: cell, inputs, least steps of a persistent kernel, form.
DIRECTIONS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "lstm-bfloat16": ("lstm", 5, 2, {"dtype": "bfloat16", "num_layers": 2}),
    "gru-float32": ("gru", 8, 1, {"dtype": "float32", "num_layers": 2}),
    "launched-float16": ("elman", 8, 99, {"dtype": "float16"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DIRECTIONS)
def test_directions_of_short_calls_in_any_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a CUDA graph has them: one step, too, is on streams of its own."""
    monkeypatch.setattr(plan, "FORK_US", 0.0)
    cell, inputs, least, options = DIRECTIONS[name]
    net = network(cell, inputs, 8, bidirectional=True, **options)
    module = emulator.compile(net, least, batch=[B])
    for steps in (1, 2, 5):
        for rows in ({}, flags(steps, B)):
            case = draw(net, steps, B, **rows)
            for turn, order in enumerate(ORDERS):
                x = case.x["x"] * (turn + 1)  # others than those whose values are still in the workspace
                with monkeypatch.context() as patch:
                    patch.setenv("FAKE_ORDER", order)
                    y, last = module(x, case.state, **case.rows)
                wanted, ends = rnn.reference(net)({"x": x}, case.state, **case.rows)
                assert error(y, wanted) < LIMITS[net.dtype], (order, steps)
                assert all(error(last[key], value) < LIMITS[net.dtype] for key, value in ends.items()), (order, steps)
                assert np.array_equal(module(x, case.state, **case.rows)[0], y), (order, steps)


@pytest.mark.slow
def test_a_missing_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waits gradients are others: streams are in use, and this file's tests look at them."""
    monkeypatch.setattr(plan_backward.BackwardPlan, "_after_neighbours", lambda *given: None)
    net = network("elman", 8, 8, dtype="float32", num_layers=2)
    module = module_of(net, "values")
    case = draw(net, T, B)
    found = {}
    for order in ("early", "late"):
        monkeypatch.setenv("FAKE_ORDER", order)
        found[order] = gradients(net, module, case)[2]
    wanted = oracle(net, case)
    assert all(any(error(own[name], value) > 1e-2 for name, value in wanted.items()) for own in found.values())
