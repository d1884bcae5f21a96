"""Modules on a real GPU that were compiled for no batch size, at any: rungs of their ladders, and what whole rounds
leave; kernels that need no Hopper GPU; inputs whose rows begin anywhere. Against the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gpu_modules import gpu_module

import tvm_rnn as rnn
from tvm_rnn.bench.measure.gpu_graphs import run_poisoned
from tvm_rnn.oracle.tolerance import tolerance
from tvm_rnn.oracle.torch_graph import TorchModel
from tvm_rnn.target import resolve

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
STEPS, REPEATS, BYTES = 24, 20, 1 << 28
BATCHES = (1, 7, 56, 57, 65, 113, 121, 129, 169, 200, 241, 257, 353, 385, 512, 700)
# Without Hopper's instructions, for the GPU at hand.
EARLIER = replace(resolve("nvidia-h200"), name="sm-90-without-a", arch="sm_90")
NETWORKS: dict[str, tuple[str, int, int, dict[str, Any], dict[str, Any]]] = {
    "lstm_512_any": ("lstm", 512, 512, {}, {}),
    "gru_2048_any": ("gru", 2048, 2048, {}, {}),
    "lstm_odd_any": ("lstm", 333, 251, {"num_layers": 2, "bidirectional": True}, {}),
    "lstm_512_earlier": ("lstm", 512, 512, {}, {"target": EARLIER}),
    "gru_1024_earlier": ("gru", 1024, 1024, {}, {"target": EARLIER}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_any_batch_is_right_and_the_same_each_time(name: str) -> None:
    cell, inputs, hidden, form, how = NETWORKS[name]
    module = gpu_module(name, rnn.RNN(rnn.cells.get(cell), inputs, hidden, dtype="bfloat16", **form), **how)
    net = rnn.RNN(rnn.cells.get(cell), inputs, hidden, dtype="bfloat16", **form).init(0)
    module.load_weights(net.weights)  # files without weights are small
    templates = {row["template"] for row in module.manifest.templates}
    assert any(found.startswith("persistent") for found in templates)
    if "target" in how:
        assert {found for found in templates if found.startswith("persistent")} == {"persistent_grid_cuda"}
    generator, oracle = torch.Generator(device="cuda").manual_seed(0), TorchModel(net, torch.float64, "cuda")
    for batch in BATCHES:
        x = torch.randn(STEPS, batch, inputs, generator=generator, device="cuda").to(torch.bfloat16)
        lengths = torch.randint(0, STEPS + 1, (batch,), generator=generator, device="cuda")
        for more in (None, lengths):

            def run(x: Any = x, more: Any = more) -> Any:
                return module(x, lengths=more)

            with torch.no_grad():
                expected, last = oracle([x.double()], more)
            y, state = first = run_poisoned(run, BYTES)
            pairs = [(y, expected), *((state[key], last[key]) for key in state)]
            for got, wanted in pairs:
                error = float((got.double() - wanted).norm() / wanted.norm())
                assert error <= tolerance("bfloat16", STEPS), (batch, error)
            for _ in range(REPEATS if batch in (129, 385) else 2):
                again, _ = run_poisoned(run, BYTES)
                assert torch.equal(again, first[0]), batch
