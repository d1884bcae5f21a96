"""Training whose kept values go to memory in lines, on the emulated GPU: the oracle's results and gradients. Lines are
as long as those of large layers' blocks are not: then small networks have some."""

from __future__ import annotations

from typing import Any

import emulator
import pytest

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import check
from tvm_rnn.cuda.persistent import geometry

CASES: dict[str, tuple[rnn.Cell, dict[str, Any]]] = {
    "gru-bfloat16": (rnn.cells.gru, {"input_size": 24, "hidden_size": 40, "members": 2, "dtype": "bfloat16"}),
    "lstm-float16": (rnn.cells.lstm, {"input_size": 9, "hidden_size": 48, "dtype": "float16", "bidirectional": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_oracle_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    monkeypatch.setattr(geometry, "LEAST_LINE", 16)
    cell, sizes = CASES[name]
    net = rnn.RNN(cell, **sizes).init(3)
    module = emulator.compile(net, batch=[3], training=True)
    check(net, module, net.dtype)
