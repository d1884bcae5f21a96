"""The frameworks of a GPU benchmark, run on the CPU by torch: the same results, and reasons where there are none."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gpu_stand_in import point, problem

import tvm_rnn as rnn
from tvm_rnn.bench.peers import gpu as peers_gpu
from tvm_rnn.bench.peers.gpu import FRAMEWORKS, prepare_torch, prepare_torch_compile, regime, time_limit
from tvm_rnn.bench.peers.models import GpuProblem, Unsupported
from tvm_rnn.bench.run.gpu_worker import errors
from tvm_rnn.bench.suites.gpu import Point, network
from tvm_rnn.options import Options
from tvm_rnn.oracle.torch_graph import TorchModel
from tvm_rnn.passes.pipeline import passed
from tvm_rnn.target import resolve

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers


def oracle(given: GpuProblem) -> Any:
    return TorchModel(given.net, torch.float64, "cpu")([x.double() for x in given.inputs], given.lengths)


@pytest.mark.parametrize("cell", ["lstm", "gru", "elman", "elman_relu"])
@pytest.mark.parametrize("lengths", [False, True])
def test_torch_has_our_weights(cell: str, lengths: bool) -> None:
    given = problem(point(cell, layers=2, directions=2, lengths=lengths), torch)
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


@pytest.mark.broad
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
    with pytest.raises(KeyError), time_limit(10):
        raise KeyError("its own")


def test_a_compiler_that_catches_what_stops_it_is_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_gpu, "AGAIN_SECONDS", 0.05)
    seen: list[str] = []

    def compiler() -> None:
        for part in ("parse", "generate"):
            try:
                time.sleep(10)
            except Unsupported:
                seen.append(part)
        raise RuntimeError("nothing could be compiled")

    with pytest.raises(Unsupported, match=r"stopped after 0\.05 s"), time_limit(0.05):
        compiler()
    assert seen == ["parse", "generate"]


@pytest.mark.parametrize(
    ("framework", "cell", "reason"),
    [
        ("tvm_rnn", "lstm", "no module"),
        ("torch", "mgu", "no cell mgu"),
        ("cudnn", "mgu", "no cell mgu"),
        ("triton", "mgu", "not installed|nobody has written"),
        ("flashrnn", "lstm", "not installed"),
    ],
)
def test_what_a_framework_lacks_is_said(framework: str, cell: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        FRAMEWORKS[framework](problem(point(cell), torch))


def test_flashrnn_is_given_our_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of its interface: arrays with the batch first, the input product given, h [B, T, heads, H]."""

    def flashrnn(product: Any, R: Any, b: Any, function: str, backend: str, dtype: str = "bfloat16") -> Any:
        batch, steps, gates, heads, hidden = product.shape
        assert (gates, heads, function, dtype) == (4, 1, "lstm", "float32") and backend in ("cuda_fused", "cuda")
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
    monkeypatch.setitem(sys.modules, "flashrnn", package)
    given = problem(point(), torch)
    prepared = FRAMEWORKS["flashrnn"](given)
    with torch.no_grad():
        found = {name: errors(run(), oracle(given))[0] for name, run in prepared.runs.items()}
    for name in ("cuda_fused", "cuda"):
        assert found[name] < 1e-5 < found[f"{name}, transposed"]
    assert prepared.version == "unknown" and set(prepared.compiling) == set(found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise OSError('CUDA_HOME is not set\\nand more')", "cannot be imported: OSError: CUDA_HOME is not set$"),
        ("import no_such_package", "cannot be imported: No module named 'no_such_package'"),
        ("", "cannot be imported: ImportError: cannot import name"),
    ],
)
def test_a_package_that_cannot_be_imported_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (tmp_path / "flashrnn.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flashrnn", raising=False)
    with pytest.raises(Unsupported, match=f"^flashrnn {reason}"):
        FRAMEWORKS["flashrnn"](problem(point(), torch))


WHOLE = {"unit": "step, all of T", "template": "cluster", "most": 16, "phases": 1, "layers": [0]}
TEMPLATES = [
    {
        **{"unit": "2 layers in a wave, step, all of T", "template": "grid", "layers": [0, 1]},
        **{"least_batch": 3, "most": 64, "least_steps": 4, "most_steps": {"16": 99, "64": 50}},
    },
    WHOLE,
    {**WHOLE, "template": "grid", "most": None, "phases": 2, "least_steps": 2},
    {"unit": "before gemm", "template": "gemm", "layers": [0]},
    {"unit": "step gemm", "template": "gemm", "layers": [0]},
    {**WHOLE, "layers": [1]},
    {"unit": "before gemm", "template": "rows", "layers": [1]},
    {"unit": "step gemm", "template": "gemm", "layers": [1]},
    {"unit": "step pointwise", "template": "rows", "layers": [1]},
]


@pytest.mark.parametrize(
    ("batch", "steps", "found"),
    [
        (64, 4, "a wave of grid"),
        (16, 99, "a wave of grid"),
        (16, 100, "cluster"),
        (17, 51, "grid, 2 phases; step by step: gemm, rows"),
        (16, 3, "cluster"),
        (2, 4, "cluster"),
        (17, 3, "grid, 2 phases; step by step: gemm, rows"),
        (17, 1, "step by step: gemm; step by step: gemm, rows"),
        (16, 1, "cluster"),
        (65, 100, "grid, 2 phases; step by step: gemm, rows"),
    ],
)
def test_the_regime_is_what_runs_the_steps_at_that_batch(batch: int, steps: int, found: str) -> None:
    assert regime({"templates": TEMPLATES}, batch, steps) == found


def test_modules_without_layers_in_their_rows_run_step_by_step() -> None:
    rows = [{"unit": "before gemm", "template": "gemm_cpu"}, {"unit": "step gemm", "template": "panels"}]
    assert regime({"templates": rows}, 1, 1) == "step by step: panels" and regime({"templates": []}, 1, 1) == ""


@pytest.mark.slow
def test_the_regime_of_a_real_plan() -> None:
    pytest.importorskip("tvm")  # the rest of this file needs no compiler
    from tvm_rnn.cuda.plan.network import plan

    target = resolve("nvidia-h200")
    for without, expected in (
        ((), "a wave of persistent_cluster_cuda"),
        (("tile_layers_and_time",), "persistent_cluster_cuda"),
        (("fuse_pointwise",), r"persistent_(cluster|grid)_cuda, \d+ phases"),
    ):
        net = network(Point("lstm", 64, 256, 0, 0, layers=2))
        facts = plan(passed(net, Options(target, (16,), tuple(without), "bfloat16")), target).facts
        assert re.fullmatch(expected, regime(facts, 16, 100)), (without, regime(facts, 16, 100))


def test_weights_come_in_the_dtype_and_on_the_device_of_the_inputs() -> None:
    net = rnn.RNN(rnn.cells.lstm, 3, 5).init(seed=0)
    problem = GpuProblem(Point("lstm", 3, 5, 2, 2), net, (torch.zeros(2, 2, 3, dtype=torch.bfloat16),))
    found = problem.weight("W", 0, 0)
    assert found.dtype == problem.dtype == torch.bfloat16 and found.device == problem.device
    assert np.allclose(found.float().numpy(), net.weights["W_l0"], rtol=2**-8)
