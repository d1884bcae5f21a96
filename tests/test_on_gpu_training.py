"""Training on a real GPU: gradients against the oracle, the same bits again, CUDA graphs, and torch's optimisers."""

from __future__ import annotations

from typing import Any

import pytest
from derivatives import draw
from gpu_modules import gpu_module
from networks import fitting, flags, network
from on_gpu import LIMITS, check_gradients, there

import tvm_rnn as rnn
from tvm_rnn.bench.suites import neurons
from tvm_rnn.runtime.runtime_memory import table

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
T, B = 24, 20
CASES: dict[str, tuple[str | rnn.Cell, int, str, dict[str, Any]]] = {
    "lstm_bf16": ("lstm", 256, "bfloat16", {"num_layers": 2}),
    "lstm_tf32": ("lstm", 128, "tf32", {}),
    "gru_fp16": ("gru", 64, "float16", {"bidirectional": True}),
    "gru_large": ("gru_reset_before", 1024, "bfloat16", {}),
    "norm_fp32": ("lstm_layer_norm", 40, "float32", {}),
    "matrices": ("mlstm", 12, "float64", {}),
    "constants": ("gru_attention", 24, "float32", {}),
    "alif_bf16": ("alif", 128, "bfloat16", {}),
    "plif_fp16": ("plif", 128, "float16", {}),
    "scan_fp32": ("brc", 40, "float32", {"num_layers": 2, "bidirectional": True}),  # steps without products
    "scan_bf16": ("indrnn", 33, "bfloat16", {}),
    "walked": (neurons.lif_neuron, 2048, "float64", {"num_layers": 2}),  # values made again from states before steps
}


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_oracle_s_every_time(name: str, ragged: bool) -> None:
    cell, width, precision, options = CASES[name]
    net = network(cell, width, width, dtype="float32" if precision == "tf32" else precision, **options)
    mod = gpu_module(f"training_{name}", net, training=True, precision=precision if precision == "tf32" else None)
    check_gradients(mod, net, draw(net, T, B, **(fitting(net, flags(T, B)) if ragged else {})), precision)


def test_both_passes_in_a_graph() -> None:
    net = network("lstm", 64, 64, dtype="bfloat16")
    mod = gpu_module("training_graph", net, training=True)
    x, gy = (torch.randn(10, 8, 64, device="cuda").bfloat16() for _ in range(2))
    expected = mod.backward(mod.forward_train(x)[2], gy)[2]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = mod.backward(mod.forward_train(x)[2], gy)[2]
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_whole_step_of_training_in_a_graph() -> None:
    """A layer among others, its loss and its optimiser: replays are the steps that torch makes one after the other."""
    from tvm_rnn.torch_layer.autograd import TorchLayer

    net = network("lstm", 64, 64, num_layers=2)
    module = gpu_module("training_whole_step", net, training=True)
    x, found = torch.randn(20, 8, 64, device="cuda"), []
    for captured in (False, True):
        torch.manual_seed(0)
        layer, readout = TorchLayer(net, module, "net"), torch.nn.Linear(64, 1).cuda()
        weights = [*layer.parameters(), *readout.parameters()]
        optimiser = torch.optim.Adam(weights, 1e-2, capturable=True)

        def step(layer: Any = layer, readout: Any = readout, optimiser: Any = optimiser) -> None:
            optimiser.zero_grad(set_to_none=True)
            (readout(layer(x)[0]) - 1.0).square().mean().backward()
            optimiser.step()

        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):  # what is allocated once, is before the capture
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        if captured:
            with torch.cuda.graph(graph):
                step()
        for _ in range(5):
            graph.replay() if captured else step()
        torch.cuda.synchronize()
        found.append([value.detach().clone() for value in weights])
    for eager, replayed in zip(*found, strict=True):
        assert float((eager - replayed).norm()) < LIMITS["float32"] * float(eager.norm())


@pytest.mark.parametrize("keep", ["values", "states"])
def test_a_budget_of_memory(keep: str) -> None:
    """Gradients under every plan, peaks as predicted, and a graph that has all parts of both passes."""
    net = network("lstm", 64, 64, num_layers=2, dtype="bfloat16")
    mod = gpu_module(f"training_budget_{keep}", net, training=True, keep=keep)
    steps = 2400  # torch counts whole blocks of its pool, of which up to 1 MB may not be used
    case = draw(net, steps, 32)
    x, gy = (there(v, torch.bfloat16) for v in (case.x["x"], case.gy))
    expected: dict[str, Any] | None = None

    def run() -> dict[str, Any]:
        held = mod.forward_train(x)  # y and the states too until the end, as predicted peaks have them
        return dict(mod.backward(held[2], gy)[2])

    for plan in table(mod.memory_sizes(steps, 32)):
        mod.max_bytes = plan.bytes
        run()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        assert peak == pytest.approx(plan.peak_bytes, rel=0.05)
        expected = found if expected is None else expected
        for name, value in expected.items():
            assert (found[name] - value).norm() < LIMITS["bfloat16"] * value.norm(), (plan, name)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run()
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(captured[name], found[name]) for name in found)


def test_a_network_on_a_gpu_is_a_layer_of_torch() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    net = rnn.RNN(rnn.cells.gru, 16, 24).init(0)
    layer = rnn.to_torch(net, "cuda", names="torch")
    peer = torch.nn.GRU(16, 24).cuda()
    peer.load_state_dict(layer.state_dict())
    x = torch.randn(7, 3, 16, device="cuda")
    for own in (layer, peer):
        own(x)[0].square().sum().backward()
    for ours, theirs in zip(layer.parameters(), peer.parameters(), strict=True):
        assert ours.grad.is_cuda and float((ours.grad - theirs.grad).norm()) < 1e-3 * float(theirs.grad.norm())
