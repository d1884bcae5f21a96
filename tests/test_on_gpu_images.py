"""Cells of images on a real GPU: outputs and gradients of a float64 oracle, the same bits in every poisoned repeat."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gpu_modules import gpu_module
from networks import network

import tvm_rnn as rnn
from tvm_rnn.bench.measure.gpu_graphs import run_poisoned, same_bits, tensors
from tvm_rnn.oracle.torch_graph import TorchModel

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")
REPEATS, BYTES = 20, 1 << 28
# Relative error in the Euclidean norm.
LIMITS = {"bfloat16": 2e-2, "float16": 4e-3, "tf32": 2e-3, "float32": 1e-5, "float64": 1e-12}
Case = tuple[str, int, int, dict[str, Any], str, int, int]
CASES: dict[str, Case] = {
    "bench": ("conv_lstm", 64, 64, {"Y": 64}, "bfloat16", 4, 3),
    "half": ("conv_lstm", 24, 40, {"Y": 33, "X": 21}, "float16", 5, 2),
    "tf32": ("conv_lstm", 3, 20, {"Y": 31, "X": 40}, "tf32", 3, 2),
    "plain": ("conv_lstm", 5, 16, {"Y": 13, "X": 24}, "float32", 4, 2),
    "gru": ("conv_gru", 7, 33, {"Y": 19, "X": 30}, "bfloat16", 4, 3),
    "separable": ("conv_gru_separable", 16, 32, {"Y": 20, "X": 28, "num_layers": 2}, "float16", 3, 2),
    "peephole": ("conv_lstm_peephole", 16, 24, {"Y": 17, "X": 22}, "bfloat16", 4, 3),
    "double": ("conv_gru", 2, 5, {"Y": 9, "X": 8, "bidirectional": True}, "float64", 3, 2),
}
TRAINED: dict[str, Case] = {
    "bench": ("conv_lstm", 64, 64, {"Y": 32}, "bfloat16", 3, 2),
    "half": ("conv_lstm", 8, 24, {"Y": 17, "X": 22}, "float16", 3, 2),
    "tf32": ("conv_lstm", 3, 16, {"Y": 15, "X": 20}, "tf32", 3, 2),
    "plain": ("conv_lstm", 5, 12, {"Y": 11, "X": 14}, "float32", 3, 2),
    "gru": ("conv_gru", 8, 16, {"Y": 12, "X": 9, "num_layers": 2}, "bfloat16", 3, 2),
    "peephole": ("conv_lstm_peephole", 8, 16, {"Y": 12, "X": 9}, "bfloat16", 3, 2),
}


def made(name: str, case: Case, **how: Any) -> tuple[rnn.RNN, Any]:
    cell, inputs, hidden, options, precision, _, batch = case
    net = network(cell, inputs, hidden, dtype="float32" if precision == "tf32" else precision, **options)
    how |= {"precision": precision} if precision == "tf32" else {}
    return net, gpu_module(f"images_{name}", net, batch=(batch,), **how)


def drawn(net: rnn.RNN, steps: int, batch: int, seed: int) -> Any:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    (shape,) = net.input_shapes.values()
    return torch.randn((steps, batch, *shape), generator=generator, device="cuda").to(getattr(torch, net.dtype))


def errors(found: Any, expected: Any) -> list[float]:
    pairs = zip(tensors(found), tensors(expected), strict=True)
    return [float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30)) for a, b in pairs]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_calls(name: str, ragged: bool) -> None:
    net, module = made(name, CASES[name])
    precision, steps, batch = CASES[name][-3:]
    exact = TorchModel(net, torch.float64, torch.device("cuda"))
    for seed in range(2):
        x, more = drawn(net, steps, batch, seed), {}
        if ragged:
            more["lengths"] = torch.arange(steps, steps - batch, -1, device="cuda").clamp(min=0)
        found = [run_poisoned(partial(module, x, **more), BYTES) for _ in range(REPEATS // 2)]
        assert all(same_bits(found[0], other) for other in found[1:])
        (y, last), (expected, states) = found[0], exact([x.double()], more.get("lengths"))
        assert max(errors([y, last], [expected, {key: states[key] for key in last}])) < LIMITS[precision]


@pytest.mark.parametrize("name", TRAINED)
def test_training(name: str) -> None:
    net, module = made(f"trained_{name}", TRAINED[name], training=True)
    precision, steps, batch = TRAINED[name][-3:]
    x = drawn(net, steps, batch, 3)
    gy = torch.randn((steps, batch, *TorchModel(net, x.dtype, x.device)([x], None)[0].shape[2:]), device="cuda")
    gy = gy.to(x.dtype)

    def run() -> Any:
        y, _, tape = module.forward_train(x)
        return y, module.backward(tape, gy)

    found = [run_poisoned(run, BYTES) for _ in range(REPEATS)]
    assert all(same_bits(found[0], other) for other in found[1:])
    expected = rnn.reference(net).gradients(np.asarray(x.double().cpu()), None, np.asarray(gy.double().cpu()), None)
    wanted = [torch.as_tensor(np.asarray(v)).cuda() for v in _flat(expected)]
    got = [torch.as_tensor(np.asarray(v.double().cpu())).cuda() for v in tensors(_ordered(found[0][1]))]
    assert max(errors(got, wanted)) < LIMITS[precision]


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return [_ordered(value[name]) for name in sorted(value)]
    return [_ordered(part) for part in value] if isinstance(value, list | tuple) else value


def _flat(value: Any) -> list[Any]:
    value = _ordered(value)
    return [part for one in value for part in _flat(one)] if isinstance(value, list) else [value]
