"""The frameworks of a GPU benchmark, run on the CPU by torch: the same results, and reasons where there are none."""

from __future__ import annotations

import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from gpu_stand_in import point, problem

from tvm_rnn import peers_gpu
from tvm_rnn.gpu_worker import errors
from tvm_rnn.peer_models import Unsupported
from tvm_rnn.peers_gpu import FRAMEWORKS, GpuProblem, prepare_torch, prepare_torch_compile, regime, time_limit
from tvm_rnn.torch_model import TorchModel

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers


def oracle(given: GpuProblem) -> Any:
    return TorchModel(given.net, torch.float64, "cpu")([x.double() for x in given.inputs])


@pytest.mark.parametrize("cell", ["lstm", "gru", "elman", "elman_relu"])
def test_torch_has_our_weights(cell: str) -> None:
    given = problem(point(cell, layers=2, directions=2), torch)
    with torch.no_grad():
        (run,) = prepare_torch(given).runs.values()
        assert errors(run(), oracle(given))[0] < 1e-5


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of the CPU: it has no oneDNN form
def test_torch_has_our_projection() -> None:
    given = problem(point("lstm_projection", sizes=(("P", 4),)), torch)
    with torch.no_grad():
        (run,) = prepare_torch(given).runs.values()
        assert errors(run(), oracle(given))[0] < 1e-5


def test_torch_has_our_weights_in_16_bits() -> None:
    given = problem(point("lstm", precision="bfloat16"), torch)
    with torch.no_grad():
        (run,) = prepare_torch(given).runs.values()
        y, _ = run()
        assert y.dtype == torch.bfloat16 and errors((y, None), oracle(given))[0] < 1e-2


def test_the_equations_are_compiled_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def stand_in(function: Any, **options: Any) -> Any:
        compiled.append(function.__name__)
        assert options == {"dynamic": False, "fullgraph": True}
        return function

    monkeypatch.setattr(torch, "compile", stand_in)
    given = problem(point("lstm_layer_norm"), torch)
    with torch.no_grad():
        (run,) = prepare_torch_compile(given).runs.values()
        assert errors(run(), oracle(given))[0] < 1e-5
    assert compiled == ["early", "step"]


def test_a_peers_compiler_is_stopped_in_time() -> None:
    with pytest.raises(Unsupported, match=r"stopped after 0\.05 s"), time_limit(0.05):
        time.sleep(10)
    with time_limit(10):
        pass


@pytest.mark.parametrize(
    ("framework", "cell", "reason"),
    [
        ("tvm_rnn", "lstm", "no module"),
        ("torch", "mgu", "no cell mgu"),
        ("triton", "mgu", "not installed|nobody has written"),
        ("flashrnn", "lstm", "not installed"),
    ],
)
def test_what_a_framework_lacks_is_said(framework: str, cell: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        FRAMEWORKS[framework](problem(point(cell), torch))


def test_flashrnn_is_given_our_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of its interface: arrays with the batch first, the input product given, h [B, T, heads, H]."""

    def flashrnn(product: Any, R: Any, b: Any, function: str, backend: str) -> Any:
        batch, steps, gates, heads, hidden = product.shape
        assert (gates, heads, function, backend) == (4, 1, "lstm", "cuda_fused")
        h = c = torch.zeros(batch, hidden)
        seen = []
        for t in range(steps):
            i, f, g, o = (product[:, t, k, 0] + h @ R[k, 0].T + b[k, 0] for k in range(4))
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            seen.append(h)
        return torch.stack(seen, 1)[None, :, :, None], None

    package = ModuleType("flashrnn")
    package.flashrnn = flashrnn
    monkeypatch.setitem(__import__("sys").modules, "flashrnn", package)
    monkeypatch.setattr(peers_gpu.importlib.metadata, "version", lambda name: "1")
    given = problem(point(), torch)
    with torch.no_grad():
        found = {name: errors(run(), oracle(given))[0] for name, run in FRAMEWORKS["flashrnn"](given).runs.items()}
    assert found["cuda_fused"] < 1e-5 < found["cuda_fused, transposed"]


def test_the_regime_is_what_runs_the_steps() -> None:
    rows = [{"unit": "before gemm", "template": "gemm_cuda"}, {"unit": "step gemm", "template": "persistent_cluster"}]
    assert regime({"templates": rows}) == "persistent_cluster"
    assert regime({"templates": rows[:1]}) == "gemm_cuda" and regime(SimpleNamespace(templates=[]).__dict__) == ""
