"""runtime_cuda_generate: calls in chunks where rows may end, and on an emulated GPU what the oracle generates."""

from __future__ import annotations

from typing import Any

import emulator
import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import cell, random_normal, sample, tanh
from tvm_rnn.oracle.tolerance import assert_close
from tvm_rnn.runtime import runtime_cuda_generate, runtime_generate
from tvm_rnn.runtime.runtime_cuda_generate import _Loop

PROMPT = np.array([[3, 9, 1], [2, 2, 5]])


class Counting:
    """A module of which a step's output is the number of the step, and one more for each row."""

    _kind = "float32"

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def _on_device(self, x: Any, run: Any) -> Any:
        return run(None)


@pytest.mark.parametrize(("stop", "calls"), [(None, [(0, 21)]), (7.0, [(0, 8)]), (20.0, [(0, 8), (8, 16), (16, 21)])])
def test_a_call_asks_now_and_then_whether_all_rows_have_ended(
    monkeypatch: pytest.MonkeyPatch, stop: float | None, calls: list[tuple[int, int]]
) -> None:
    seen = []

    def on(self: _Loop, start: int, stop: int, arrays: Any) -> np.ndarray:
        seen.append((start, stop))
        return (np.arange(start, stop)[:, None] + np.arange(3))[..., None] % 21

    monkeypatch.setattr(_Loop, "_on", on)
    monkeypatch.setattr(runtime_cuda_generate, "CHUNK", 8)
    net = runtime_generate.Network(21, (1,), np.dtype("f4"), [])
    options: runtime_generate.Options = {"seed": None, "first_step": 0, "stop": stop, "inputs": {}}
    ask = runtime_generate.requested(net, 20, PROMPT, None, options)
    stand_in: Any = Counting()
    loop = _Loop(stand_in, ask, [], [np.zeros(3)])
    _, ends = loop.run()
    assert seen == calls and [*ends] == ([21, 21, 21] if stop is None else [int(stop) + 1 - row for row in range(3)])
    assert [*loop.inputs[1].ravel()] == [1.0] * 3 + [0.0] * 60 and [*loop.fed[0].ravel()] == [3, 9, 1]


@cell(states="h", output="token")
def pen(x: "1", h: "H", *, E: "V H", R: "H H", Q: "V H"):
    """A token, a state, and the next token, drawn."""
    h = tanh(E[x[0]] + R @ h)
    return h, sample(Q @ h, temperature=0.5, keepdims=True)


@cell(states="h m", output="y")
def noisy(x: "I", more: "2", h: "H", m: "2 H", *, W: "H I", R: "H H", Q: "I H", S: "H 2"):
    """It draws numbers, has a matrix of states, and another input."""
    h = tanh(W @ x + R @ h + S @ more + 0.1 * random_normal([5]))
    return h, 0.5 * m + h, Q @ h


def generated(net: rnn.RNN, **options: Any) -> Any:
    net.load({name: 4 * value for name, value in net.weights.items()})
    return emulator.compile(net, generate=True, batch=3, **options), rnn.reference(net)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


@pytest.mark.broad
@pytest.mark.slow_after(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_samples_are_the_oracles(one_gpu: None, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(runtime_cuda_generate, "CHUNK", 5)
    module, reference = generated(rnn.RNN(pen, 1, 8, V=11, dtype=dtype).init(3))
    assert module.manifest.generation.tokens == 11
    for stop in (None, 4):
        found, last, lengths = module.generate(13, prompt=PROMPT, seed=2**64 - 7, stop=stop)
        expected, states, ends = reference.generate(13, prompt=PROMPT, seed=2**64 - 7, stop=stop)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(lengths, ends)
        assert found.dtype == np.int32
        assert_close(np.asarray(last["h"], float), states["h"], dtype, 13, "h")
    first, state, _ = module.generate(6, prompt=PROMPT, seed=5)
    more, _, _ = module.generate(7, state, prompt=first[-1:], seed=5, first_step=len(PROMPT) + 6 - 1)
    whole, _, _ = module.generate(13, prompt=PROMPT, seed=5)
    np.testing.assert_array_equal(np.concatenate([first, more]), whole)
    assert module.generate(3, prompt=PROMPT[:, :0], seed=1)[0].shape == (3, 0)
    for call in (lambda: module(PROMPT[..., None].astype(np.float32)), lambda: module.generate(3)):
        with pytest.raises(rnn.InputError, match="draws random numbers"):
            call()


@pytest.mark.slow
def test_layers_frames_and_inputs_of_every_step(one_gpu: None) -> None:
    module, reference = generated(rnn.RNN(noisy, 5, 5, num_layers=2).init(3))
    rng = np.random.default_rng(0)
    prompt, more = rng.normal(size=(2, 3, 5)).astype("f4"), rng.normal(size=(8, 3, 2)).astype("f4")
    found, last, _ = module.generate(7, prompt=prompt, more=more, seed=3)
    expected, states, _ = reference.generate(7, prompt=prompt.astype(float), more=more.astype(float), seed=3)
    assert_close(found, expected, "float32", 8, "y")
    assert_close(last, states, "float32", 8, "states")
    with pytest.raises(rnn.InputError, match="the inputs are not the module's"):
        module.generate(7, prompt=prompt, seed=3)


@pytest.mark.slow
def test_beside_plain_calls_new_weights_and_constants(one_gpu: None) -> None:
    net = rnn.RNN(rnn.cells.gru_attention, 4, 4, S=3).init(0)
    module, rng = emulator.compile(net, generate=True, batch=2), np.random.default_rng(1)
    given = {name: rng.normal(size=(2, *shape)).astype("f4") for name, shape in net.constant_shapes.items()}
    for seed in (0, 7):
        net.init(seed)
        module.load_weights(net.weights)
        found, _, _ = module.generate(4, **given)
        expected, _, _ = rnn.reference(net).generate(4, state=None, **given)
        assert_close(found, expected, "float32", 4, "y")
    x = rng.normal(size=(3, 2, 4)).astype("f4")
    assert_close(module(x, **given)[0], rnn.reference(net)(x, **given)[0], "float32", 3, "y")
