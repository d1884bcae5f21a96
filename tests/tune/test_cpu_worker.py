"""tune_worker: networks travel without their equations, and what goes wrong with a request is its answer."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn.tune import cpu_worker as tune_worker
from tvm_rnn.tune.cpu_worker import named_states, pickled, serve


@pytest.mark.broad
def test_a_network_of_a_local_cell_travels_without_its_equations() -> None:
    @rnn.cell(states="h")
    def local(x: "I", h: "H", *, W: "H I", R: "H H"):
        """Defined where no other process can find it."""
        return rnn.tanh(W @ x + R @ h)

    net = rnn.RNN(local, 3, 4).init(0)
    there = pickle.loads(pickled(net))
    assert there.cell.name == "local" and not there.weights  # they travel as arrays
    with pytest.raises(TypeError, match="graphs, not equations"):
        there.cell.function()
    x = np.ones((2, 3, 3), "float32")
    assert np.array_equal(rnn.compile(there.load(net.weights))(x)[0], rnn.compile(net)(x)[0])


def test_states_of_layers_of_several_sizes_have_names_each() -> None:
    assert set(named_states({"h": [1, 2], "c": 3})) == {"state h 0", "state h 1", "state c"}


def test_what_goes_wrong_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def role(first: dict[str, Any]) -> Any:
        return lambda request: {"sum": first["a"] + request["b"]}

    monkeypatch.setitem(tune_worker.ROLES, "adds", role)
    answers: list[dict[str, Any]] = []
    serve("adds", iter(['{"a": 1}', '{"b": 2}', '{"c": 3}', '{"b": 4}']), answers.append)
    assert answers == [{"ready": "adds"}, {"sum": 3}, {"failed": "KeyError: 'b'"}, {"sum": 5}]


def test_the_process_leaves_torch_alone_and_ends_with_its_input() -> None:
    command = [sys.executable, "-m", "tvm_rnn.tune.cpu_worker", "no-such-role"]
    done = subprocess.run(command, input="{}\n", capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0 and "no-such-role" in done.stderr
    assert not [line for line in done.stdout.splitlines() if "ready" in json.loads(line)]
