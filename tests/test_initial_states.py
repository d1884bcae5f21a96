"""States that begin from a parameter or an infinity: oracle, CPU, GPU (emulated), C and torch, beside plain torch.

In: one cell with both. Out: results, last states and gradients, also through resets and short rows.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import emulator
import numpy as np
import pytest
from derivatives import Arrays
from networks import flags

import tvm_rnn as rnn
from tests.bundle.test_engine import OK, Library
from tvm_rnn import CellError, cell
from tvm_rnn.oracle.tolerance import assert_close

T, B = 6, 3
ROWS = flags(T, B)


@cell(states="h m", initial={"h": "h0", "m": -math.inf})
def learned(x: "I", h: "H", m: "H", *, W: "H I", R: "H H", h0: "H"):
    """tanh(g), scaled by how far g lies below the largest so far."""
    g = W @ x + R @ h
    m = rnn.maximum(m, g)
    return rnn.tanh(g) * rnn.exp(g - m), m


def network(dtype: str = "float64", **options: Any) -> rnn.RNN:
    return rnn.RNN(learned, 3, 4, dtype=dtype, num_layers=2, **options).init(seed=0)


def drawn(dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    """x, and the gradient of y."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(T, B, 3)).astype(dtype), rng.normal(size=(T, B, 4)).astype(dtype)


def by_torch(net: rnn.RNN) -> tuple[np.ndarray, Arrays]:
    """y and the gradients of weights, row by row."""
    torch = pytest.importorskip("torch")
    weights = {n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in net.weights.items()}
    x, gy = map(torch.tensor, drawn())
    y = torch.zeros(T, B, 4, dtype=torch.float64)
    for b in range(B):
        sequence = list(x[: ROWS["lengths"][b], b])
        for layer in range(2):
            W, R, h0 = (weights[f"{n}_l{layer}"] for n in ("W", "R", "h0"))
            out = []
            for t, now in enumerate(sequence):
                if t == 0 or ROWS["reset"][t, b]:
                    h, m = h0, torch.full((4,), -math.inf, dtype=torch.float64)
                g = W @ now + R @ h
                m = torch.maximum(m, g)
                h = torch.tanh(g) * torch.exp(g - m)
                out.append(h)
            sequence = out
        for t, value in enumerate(sequence):
            y[t, b] = value
    (y * gy).sum().backward()
    return y.detach().numpy(), {n: v.grad.numpy() for n, v in weights.items()}


@pytest.mark.peers
def test_the_oracle_is_torch() -> None:
    net = network()
    x, gy = drawn()
    y, gradients = by_torch(net)
    assert_close(rnn.reference(net)(x, **ROWS)[0], y, "float64", T)
    assert_close(rnn.reference(net).gradients(x, None, gy, **ROWS)[2], gradients, "float64", T)
    assert ROWS["reset"][1:].any() and all(np.abs(gradients[f"h0_l{i}"]).min() > 0 for i in range(2))


@pytest.mark.broad
@pytest.mark.parametrize("keep", ["values", "states"])
def test_compiled_is_the_oracle(keep: str) -> None:
    net = network()
    x, gy = drawn()
    module: Any = rnn.compile(net, training=True, keep=keep)
    assert_close(module(x, **ROWS), rnn.reference(net)(x, **ROWS), "float64", T)
    _, _, tape = module.forward_train(x, **ROWS)
    expected = rnn.reference(net).gradients(x, None, gy, **ROWS)
    assert_close(module.backward(tape, gy)[2], expected[2], "float64", T)


@pytest.mark.broad
def test_steps_begin_there_and_a_given_state_does_not() -> None:
    net = network("float32")
    module, (x, _) = rnn.compile(net), drawn("float32")
    y, last = module(x)
    state = module.init_state(B)
    for t in range(T):
        out, state = module.step(x[t], state)
        np.testing.assert_array_equal(out, y[t])
    assert not any(state[f"{name}_begins"].any() for name in "hm")
    _, middle = module(x[:2])
    assert_close(module(x[2:], middle), (y[2:], last), "float32", T)
    given = {"h": np.ones_like(state["h"]), "m": np.zeros_like(state["m"]), "h_begins": 0.0 * state["h"]}
    given["m_begins"] = given["h_begins"]
    expected = rnn.reference(net)(x, given)
    assert_close(module(x, given), expected, "float32", T)
    assert np.abs(expected[0] - y).max() > 1e-3


@pytest.mark.broad
def test_a_bundle_begins_there(tmp_path: Path) -> None:
    net = network("float32")
    module, (x, _) = rnn.compile(net), drawn("float32")
    library = Library(Path(module.export(bundle=tmp_path / "own") or tmp_path / "own"))
    assert library.status == OK, library.error
    states = [np.empty((2, B, 4), "float32") for _ in range(4)]
    y = np.empty((T, B, 4), "float32")
    assert library.of("init_state", B, *states) == OK and (states[2] == 1).all() and (states[0] == 0).all()
    lengths, reset = ROWS["lengths"].astype(np.int64), ROWS["reset"].astype(np.uint8)
    assert library.of("sequence", T, B, x, *states, y, lengths, reset) == OK, library.error
    expected, last = module(x, **ROWS)
    np.testing.assert_array_equal(y, expected)
    for found, value in zip(states, last.values(), strict=True):
        np.testing.assert_array_equal(found, value)


@pytest.mark.slow
def test_a_gpu_begins_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    net, (x, gy) = network("float32"), drawn("float32")
    assert_close(emulator.compile(net, batch=[B])(x, **ROWS), rnn.reference(net)(x, **ROWS), "float32", T)
    module = emulator.compile(net, training=True)
    _, _, tape = module.forward_train(x, **ROWS)
    expected = rnn.reference(net).gradients(x, None, gy, **ROWS)[2]
    assert_close(module.backward(tape, gy)[2], expected, "float32", 20)


@pytest.mark.peers
@pytest.mark.broad
def test_torch_trains_them() -> None:
    torch = pytest.importorskip("torch")
    net = network()
    x, gy = drawn()
    layer = rnn.to_torch(net)
    y, _ = layer(torch.tensor(x))
    (y * torch.tensor(gy)).sum().backward()
    wanted = rnn.reference(net).gradients(x, None, gy)[2]
    for name, parameter in layer.named_parameters():
        np.testing.assert_allclose(parameter.grad.numpy(), wanted[name], rtol=1e-9, atol=1e-12)


def test_names_in_the_cell() -> None:
    assert learned.begins == {"h": "h0", "m": -math.inf} and learned.initial == {"h_begins": 1.0, "m_begins": 1.0}
    assert [s.name for s in learned.states] == ["h", "m", "h_begins", "m_begins"]
    assert "h0[H]" in repr(learned)


def test_what_cannot_be() -> None:
    with pytest.raises(CellError, match=r"the parameter has other dims[\s\S]*h0\[I\][\s\S]*the dims of h\[H\]"):

        @cell(initial={"h": "h0"})
        def narrow(x: "I", h: "H", *, h0: "I"):
            return h

    with pytest.raises(CellError, match="h_begins is taken"):

        @cell(initial={"h": "h0"})
        def taken(x: "I", h: "H", *, h0: "H", h_begins: "H"):
            return h

    with pytest.raises(CellError, match=r"initial= of h[\s\S]*'h1'[\s\S]*'h0' or inf or -inf or a finite number"):

        @cell(initial={"h": "h1"})
        def unknown(x: "I", h: "H", *, h0: "H"):
            return h
