"""fill_cache: what was compiled for another machine is found there, by layers and by graphs, without a compiler."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn import BuildError, ConfigError
from tvm_rnn.compiler import compile as compiler
from tvm_rnn.compiler import compiled_files
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.target import GPUS

torch = pytest.importorskip("torch")
nn = pytest.importorskip("tvm_rnn.torch_layer.nn")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

X, H, T, B = 3, 5, 7, 2  # fewer steps are torch's own code where gradients are wanted


@pytest.mark.broad
def test_a_machine_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(X, X), rnn.nn.RNN(X, H))
    lines: list[str] = []
    (path,) = rnn.fill_cache(model, "x86-64", tmp_path / "cache", progress=lines.append)
    assert path.name.endswith("-for-x86-64.so") and str(path) in lines[0]
    assert (tmp_path / "cache").stat().st_mode & 0o77 == 0

    def fails(*given: object, **options: object) -> None:
        raise rnn.BuildError("no compiler")

    monkeypatch.setattr(compiler, "compile", fails)
    monkeypatch.setenv("TVM_RNN_CACHE", str(tmp_path / "cache"))
    x = torch.randn(T, B, X, requires_grad=True)
    y, _ = model(x)
    assert len(nn._own[model[1]].made) == 1
    peer = torch.nn.RNN(X, H)
    peer.load_state_dict(model[1].state_dict())
    expected, _ = peer(model[0](x))
    assert_close(y.detach(), expected.detach(), "float32", T)
    traced = torch.jit.trace(model[1], x.detach())  # graphs know it by the file's name
    assert path.stem in str(traced.graph)
    assert_close(traced(x)[0].detach(), model[1](x)[0].detach(), "float32", T)
    other = nn._network(nn.form_of_layer(rnn.nn.RNN(X, H + 1), "RNN"), nn.Use("cpu", torch.float32, True, 0.0))
    with pytest.raises(rnn.BuildError, match="no compiler"):
        compiled_files.compiled_once(other, "llvm", True)
    del model, traced
    gc.collect()


def test_names_have_the_sources_and_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    net = rnn.RNN(rnn.cells.elman, X, H)
    name = compiled_files._shared_name(net, True)
    assert name == compiled_files._shared_name(rnn.RNN(rnn.cells.elman, X, H).init(0), True)
    others = [
        rnn.RNN(rnn.cells.elman, X, H, dtype="float64"),
        rnn.RNN(rnn.cells.elman, X, H, dropout=0.5, num_layers=2),
    ]
    assert name not in [compiled_files._shared_name(other, True) for other in others]
    monkeypatch.setattr(compiled_files, "_contents", lambda: "other sources")
    assert name != compiled_files._shared_name(net, True)


def test_the_networks_of_a_layer() -> None:
    layer = rnn.nn.GRU(X, H, 2, dropout=0.25)
    found = nn.networks_of(layer, "cuda", [torch.bfloat16])
    assert [(net.dtype, bool(net.regularisers)) for net in found] == [
        ("float32", False),
        ("float32", True),
        ("bfloat16", False),
        ("bfloat16", True),
    ]
    assert len(nn.networks_of(rnn.nn.LSTM(X, H, 2, dropout=1.0), "cpu")) == 1


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing here compiles"):
        rnn.fill_cache(torch.nn.LSTM(X, H), next(iter(GPUS)), tmp_path)
    with pytest.raises(ConfigError, match="no such dtype"):
        rnn.fill_cache(rnn.nn.LSTM(X, H), next(iter(GPUS)), tmp_path, autocast="float64")
    with pytest.raises(ConfigError, match="no such target"):
        rnn.fill_cache(rnn.nn.LSTM(X, H), "nvidia-none", tmp_path)
    (tmp_path / "file").touch()
    folder: Any
    for folder in (tmp_path / "file", 3):
        with pytest.raises(BuildError, match="no folder for compiled files"):
            rnn.fill_cache(rnn.nn.LSTM(X, H), "x86-64", folder)
