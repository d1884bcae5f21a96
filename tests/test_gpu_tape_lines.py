"""Training whose kept values go to memory in lines, on the emulated GPU: the oracle's results and gradients. Lines are
taken to be worth while, and hoisted products of members to be slow: then small networks have lines, and products of
inputs in the steps. Of clusters of two blocks, warps that copy take lines to memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import emulator
import pytest

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import check
from tvm_rnn.cuda.model import choose_regime, template_base
from tvm_rnn.cuda.persistent import geometry
from tvm_rnn.cuda.persistent.geometry import Geometry
from tvm_rnn.cuda.plan import layer

CASES: dict[str, tuple[rnn.Cell, dict[str, Any]]] = {
    "gru-bfloat16": (rnn.cells.gru, {"input_size": 24, "hidden_size": 40, "members": 2, "dtype": "bfloat16"}),
    "lstm-float16": (rnn.cells.lstm, {"input_size": 9, "hidden_size": 48, "dtype": "float16", "bidirectional": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_oracle_s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    monkeypatch.setattr(geometry, "LEAST_LINE", {"forward": 16, "backward": 16})
    monkeypatch.setattr(layer, "HOISTED_BYTES_PER_US", 1.0)
    monkeypatch.setattr(choose_regime, "MOST_TURNS", 1)  # of batches no larger than these one kernel takes all
    cell, sizes = CASES[name]
    net = rnn.RNN(cell, **sizes).init(3)
    module = emulator.compile(net, batch=[3], training=True)
    hoisted = [
        row["unit"] for row in module.manifest["variants"][0]["forward_train"]["templates"] if "gemm" in row["unit"]
    ]
    assert bool(hoisted) == ("members" not in sizes)
    check(net, module, net.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("members", [0, 2])
def test_warps_that_copy_bring_lines_to_memory(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    monkeypatch.setattr(geometry, "LEAST_LINE", {"forward": 16, "backward": 16})
    monkeypatch.setattr(layer, "HOISTED_BYTES_PER_US", 1.0)
    monkeypatch.setattr(choose_regime, "MOST_TURNS", 1)
    cheapest, taken = template_base.cheapest, list[Geometry]()

    def of_two_blocks(every: Iterable[Geometry], *rest: Any) -> Geometry | None:
        found = cheapest((g for g in every if g.ctas == 2 and g.copy_warps and g.lines), *rest)
        taken.extend([] if found is None else [found])
        return found

    monkeypatch.setattr(template_base, "cheapest", of_two_blocks)
    net = rnn.RNN(rnn.cells.gru, 16, 64, dtype="bfloat16", **({"members": members} if members else {})).init(3)
    check(net, emulator.compile(net, batch=[3], training=True), net.dtype)
    assert {g.step.graph.kind for g in taken} == {"forward", "backward"}
    assert any(g.step.given for g in taken) == bool(members)
