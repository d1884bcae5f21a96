"""Rows of tables and random numbers in training: gradients are the oracle's, on CPUs and on GPUs by the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import emulator
import numpy as np
import pytest
from derivatives import assert_slopes, draw, named, oracle

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import LIMITS, cast, error
from tvm_rnn import ConfigError, InputError


@rnn.cell
def looking_up(x: "I", h: "H", *, E: "I D", W: "H D", S: "H H", b: "H") -> Any:
    place = rnn.argmax(h)
    return rnn.tanh(W @ E[rnn.argmax(x)] + 0.5 * h + b[place] * S[place])


@rnn.cell
def noisy(x: "I", h: "H", *, W: "H I", R: "H H", s: "H") -> Any:
    return rnn.tanh(W @ x + R @ h + s * rnn.random_normal(h.shape))


def net_of(cell: rnn.Cell, dtype: str = "float64", **sizes: int) -> rnn.RNN:
    return rnn.RNN(cell, 3, 4, dtype=dtype, **sizes).init(seed=2)


@pytest.mark.broad
@pytest.mark.parametrize("cell", [looking_up, noisy], ids=lambda c: c.name)
def test_gradients_on_cpus(cell: rnn.Cell) -> None:
    net = net_of(cell, **({"D": 2} if cell is looking_up else {}))
    module: Any = rnn.compile(net, training=True)
    case = draw(net, 5, 3)
    case.training.update(seed=3) if net.draws else None
    y, _, tape = module.forward_train(case.x, case.state, **case.training)
    np.testing.assert_allclose(y, rnn.reference(net, **case.training)(case.x, case.state)[0], rtol=1e-11, atol=1e-12)
    found = named(*module.backward(tape, case.gy, case.gstate))
    for key, value in oracle(net, case).items():
        np.testing.assert_allclose(found[key], value, rtol=1e-10, atol=1e-11, err_msg=key)
    assert_slopes(net, case)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_on_gpus(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    net = net_of(looking_up, dtype, D=2)
    module: Any = emulator.compile(net, training=True)
    case = draw(net, 5, 3)
    x, state, gy = (cast(v, net.dtype) for v in (case.x["x"], case.state, case.gy))
    y, _, tape = module.forward_train(x, state)
    assert error(y, rnn.reference(net)(case.x, case.state)[0]) < LIMITS[dtype]
    found = named(*module.backward(tape, gy, cast(case.gstate, net.dtype)))
    for key, value in oracle(net, case).items():
        assert error(found[key], value) < LIMITS[dtype], key


def test_equations_are_drawn_and_written(tmp_path: Path) -> None:
    tables, draws = net_of(looking_up, D=2), net_of(noisy)
    assert "<mi>E</mi><mo>[</mo>" in tables._repr_html_() and "<mi>uniform</mi>" in draws._repr_html_()
    assert "random.0" in str(rnn.explain(draws)) or "uniform" in str(rnn.explain(draws))
    assert len(rnn.te(noisy)) == 1
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    assert onnx is not None
    rnn.to_onnx(tables, tmp_path / "m.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    x = np.random.default_rng(0).normal(size=(4, 2, 3))
    found = session.run(None, {session.get_inputs()[0].name: x})[0].reshape(4, 2, 4)
    np.testing.assert_allclose(found, rnn.reference(tables)(x)[0], rtol=1e-9)
    with pytest.raises(ConfigError, match="no random numbers"):
        rnn.to_onnx(draws, tmp_path / "m.onnx")


@pytest.mark.broad
def test_a_layer_of_torch_draws_from_torchs_generator() -> None:
    torch = pytest.importorskip("torch")
    layer, x = rnn.to_torch(net_of(noisy)), torch.zeros(4, 2, 3, dtype=torch.float64)
    for training in (True, False):
        layer.train(training)
        torch.manual_seed(0)
        one, two = layer(x)[0], layer(x)[0]
        torch.manual_seed(0)
        assert torch.equal(layer(x)[0], one) and not torch.equal(one, two)
    with pytest.raises(InputError, match="needs a seed"):
        rnn.compile(net_of(noisy), training=True).forward_train(np.zeros((2, 1, 3)))


@pytest.mark.broad
def test_torch_runs_the_graph() -> None:
    torch = pytest.importorskip("torch")
    from tvm_rnn.oracle.torch_graph import TorchModel

    net, x = net_of(looking_up, D=2), np.random.default_rng(0).normal(size=(4, 2, 3))
    found = TorchModel(net, torch.float64, "cpu")([torch.from_numpy(x)])[0]
    np.testing.assert_allclose(found, rnn.reference(net)(x)[0], rtol=1e-9)


def test_gradients_of_a_table_are_sums_of_rows() -> None:
    net = rnn.RNN(looking_up, 3, 4, D=2, dtype="float64").init(seed=2)
    x = np.zeros((2, 3, 3))
    x[..., 1] = 1.0
    _, _, found = rnn.reference(net).gradients(x, gy=np.ones((2, 3, 4)))
    assert np.abs(found["E_l0"][[0, 2]]).max() == 0.0 < np.abs(found["E_l0"][1]).min()
