"""Training of layers of heads in persistent kernels: the oracle's gradients, run by emulator.py."""

from __future__ import annotations

from typing import Any

import emulator
import headed_cells as own
import pytest

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import check

CASES: dict[str, tuple[rnn.Cell, str, dict[str, Any]]] = {
    "lstm-bfloat16": (own.lstm, "bfloat16", {"D": 16}),
    "lstm-float32": (own.lstm, "float32", {"D": 8}),
    "lstm-odd": (own.lstm, "float16", {"D": 9}),
    "gru-bfloat16": (own.gru, "bfloat16", {"D": 16, "bidirectional": True}),
    "shared-bfloat16": (own.shared, "bfloat16", {"D": 16}),
    "slstm-bfloat16": (rnn.cells.slstm, "bfloat16", {"H": 16, "num_layers": 2}),
    "normed_together-bfloat16": (own.normed_together, "bfloat16", {"D": 16}),
    "block_gru-bfloat16": (rnn.cells.block_gru, "bfloat16", {"H": 16, "P": 24, "A": 4}),
    "coupled-bfloat16": (own.coupled, "bfloat16", {"D": 16, "P": 24}),
    "slstm-tf32": (rnn.cells.slstm, "float32", {"H": 16, "precision": "tf32"}),
}
BROAD = ("lstm-bfloat16",)


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


def persistent(module: Any) -> list[bool]:
    variant = module.manifest["variants"][0]
    ways = (variant[way]["templates"] for way in ("forward_train", "backward"))
    return [any(row["template"].startswith("persistent") for row in rows) for rows in ways]


@pytest.mark.broad
@pytest.mark.parametrize("name", [n if n in BROAD else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_against_the_oracle(name: str) -> None:
    cell, dtype, options = CASES[name]
    precision = options.get("precision")
    sizes = {key: value for key, value in options.items() if key != "precision"}
    net = rnn.RNN(cell, 7, dtype=dtype, N=3, **sizes).init(seed=1)
    module = emulator.compile(net, batch=[3], precision=precision, training=True)
    assert persistent(module) == [True, True]
    check(net, module, precision or dtype)
