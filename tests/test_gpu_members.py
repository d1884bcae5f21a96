"""Members of one network on GPUs: one batched GEMM for the products of all steps, one launch for the steps; the
oracle's results and gradients, run by emulator.py."""

from __future__ import annotations

from typing import Any

import emulator
import pytest

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import check

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gru-bfloat16": (rnn.cells.gru, {"input_size": 24, "hidden_size": 16, "members": 3, "dtype": "bfloat16"}),
    "gru-float32": (rnn.cells.gru, {"input_size": 13, "hidden_size": 11, "members": 2, "dtype": "float32"}),
    "lstm-float16": (
        rnn.cells.lstm,
        {"input_size": 9, "hidden_size": 16, "members": 2, "dtype": "float16", "num_layers": 2, "bidirectional": True},
    ),
}


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n if n == "gru-bfloat16" else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_gradients_are_the_oracle_s(name: str) -> None:
    cell, sizes = CASES[name]
    net = rnn.RNN(cell, **sizes).init(3)
    module = emulator.compile(net, batch=[3], training=True)
    variant = module.manifest["variants"][0]
    for way in ("forward_train", "backward"):
        rows = variant[way]["templates"]
        assert any(row["template"].startswith("persistent") for row in rows), way
        assert any(row["template"] == "gemm_cuda" for row in rows), way
        outside = [row["unit"] for row in rows if row["unit"].startswith(("before", "after"))]
        assert outside and not any(" reduce " in unit for unit in outside), way
    check(net, module, net.dtype)
