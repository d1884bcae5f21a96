"""shared_groups: which groups are alike, and that networks of many such groups compute the same with less code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx

import tvm_rnn as rnn
from tvm_rnn.bench.suites import compile_times
from tvm_rnn.cpu import shared_groups
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline
from tvm_rnn.target import TABLE

V4 = TABLE["x86-64-v4"]


@rnn.cell
def many(x: "H", h: "H", *, R: "20 H H", b: "20 H"):
    """Twenty products one behind the other; the last two differ."""
    for k in range(20):
        v = R[k] @ h + b[k]
        h = rnn.tanh(v) if k < 18 else rnn.sigmoid(v)
    return h + x


def lowered(net: rnn.RNN) -> Lowering:
    return Lowering(net, pipeline.run(net, V4)[-1][1], Options(V4)).run()


def calls(function: tirx.PrimFunc) -> list[str]:
    found: list[str] = []

    def note(own: tirx.Evaluate) -> None:
        if getattr(getattr(own.value, "op", None), "name", "") == "tirx.call_extern":
            found.append(str(own.value.args[0].value))

    tvm_ffi.structural_walk(function.body, (tirx.Evaluate, note))
    return [name for name in found if name.startswith(("group_", "shared_"))]


def test_groups_that_are_alike_have_one_function() -> None:
    module = lowered(rnn.RNN(many, 8, 8)).module
    made = [v.name_hint for v in module.get_global_vars() if v.name_hint.startswith("shared_")]
    named = calls(module["sequence"])
    assert made == ["shared_0"] and {*named} == {*made}
    assert 16 <= len(named) <= 18  # the first and the last ones read and write states


def test_small_networks_keep_their_code() -> None:
    module = lowered(rnn.RNN(rnn.cells.lstm_layer_norm, 8, 8)).module
    assert not calls(module["sequence"]) and not [v for v in module.get_global_vars() if "shared" in v.name_hint]


@pytest.mark.broad
@pytest.mark.parametrize("name", ["hyper_lstm", pytest.param("conv_lstm_shifted", marks=pytest.mark.slow)])
def test_the_same_bits_in_both_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (net,) = compile_times.networks(name).values()
    net = net.init(0)
    found = []
    for whole in (shared_groups.WHOLE, 1000):
        monkeypatch.setattr(shared_groups, "WHOLE", whole)
        module: Any = rnn.compile(net, training=True, records="none")
        shape = module.manifest.inputs[0].shape
        x = np.random.default_rng(0).standard_normal((3, 5, *shape)).astype("float32")
        y, *_, tape = module.forward_train(x)
        gradients = module.backward(tape, np.ones_like(y))
        found.append((module(x)[0], y, gradients))
    for one, other in zip(*found, strict=True):
        same(one, other)


def same(one: object, other: object) -> None:
    """Arrays, or dictionaries and sequences of them."""
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict) and isinstance(other, dict):
        for key, value in one.items():
            same(value, other[key])
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        for a, b in zip(one, other, strict=True):
            same(a, b)
