"""Members of a network on a real GPU: the oracle's results and gradients, memory poisoned, the same bits each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from derivatives import draw, named, oracle
from gpu_modules import gpu_module
from on_gpu import LIMITS, poison, there

import tvm_rnn as rnn

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
REPEATS = 20
KINDS: dict[str, tuple[rnn.Cell, dict[str, Any]]] = {
    "gru_16x128": (rnn.cells.gru, {"input_size": 128, "hidden_size": 128, "members": 16, "dtype": "bfloat16"}),
    "lstm_16x128x2": (
        rnn.cells.lstm,
        {"input_size": 64, "hidden_size": 128, "members": 16, "dtype": "float16", "num_layers": 2},
    ),
    "gru_5x37": (rnn.cells.gru, {"input_size": 19, "hidden_size": 37, "members": 5, "dtype": "float32"}),
    "lstm_3x40": (
        rnn.cells.lstm,
        {"input_size": 24, "hidden_size": 40, "members": 3, "dtype": "float16", "num_layers": 2, "bidirectional": True},
    ),
    "elman_4x33": (rnn.cells.elman, {"input_size": 9, "hidden_size": 33, "members": 4, "dtype": "bfloat16"}),
    "lstm_3x13": (rnn.cells.lstm, {"input_size": 10, "hidden_size": 13, "members": 3, "dtype": "float64"}),
}


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_oracle_s_every_time(name: str) -> None:
    cell, sizes = KINDS[name]
    net = rnn.RNN(cell, **sizes).init(1)
    module = gpu_module(f"members_{name}", net, batch=[32], training=True)
    for steps, batch in ((24, 32), (7, 5), (70, 33)):
        kind, last = getattr(torch, net.dtype), None
        case = draw(net, steps, batch)
        x, state = there(case.x, kind), there(case.state, kind)
        x = x if len(x) > 1 else next(iter(x.values()))
        gy, gstate = there(case.gy, kind), there(case.gstate, kind)
        for _ in range(REPEATS):
            poison()
            y, _, tape = module.forward_train(x, state)
            poison()
            found = {**named(*module.backward(tape, gy, gstate)), "y": y}
            assert last is None or all(torch.equal(found[key], last[key]) for key in found)
            last = {key: value.clone() for key, value in found.items()}
        assert last is not None
        expected = {**oracle(net, case), "y": rnn.reference(net)(case.x, case.state)[0]}
        for key, value in expected.items():
            difference = np.linalg.norm(last[key].double().cpu().numpy() - value)
            assert difference < LIMITS[net.dtype] * max(float(np.linalg.norm(value)), 1e-30), key
