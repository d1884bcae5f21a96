"""Regularised training on a GPU without one: the real kernels and host programs, run by emulator.py, beside the oracle.

In: networks that run step by step, and on persistent kernels. Masks are the CPU's bit for bit: else results of float64
would not agree to twelve digits.
"""

from __future__ import annotations

from typing import Any

import emulator
import numpy as np
import pytest
from derivatives import draw, named, oracle
from networks import flags, network

import tvm_rnn as rnn
from tests.runtime.test_runtime_cuda_training import LIMITS, cast, error
from tvm_rnn.errors import InputError

EVERYTHING: dict[str, Any] = {"dropout": 0.4, "recurrent_dropout": 0.3, "zoneout": 0.2, "weight_drop": 0.35}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "elman-float64": ("elman", 4, {"dtype": "float64", "num_layers": 2, "bidirectional": True, **EVERYTHING}),
    "lstm-bfloat16": ("lstm", 16, {"dtype": "bfloat16", "num_layers": 2, **EVERYTHING}),
    "gru-float32": ("gru", 9, {"dtype": "float32", "reverse": True, "zoneout": 0.3, "recurrent_dropout": 0.5}),
    "weights-float32": ("gru_reset_before", 7, {"dtype": "float32", "bidirectional": True, "weight_drop": 0.5}),
    "matrices-float32": ("mlstm", 5, {"dtype": "float32", "zoneout": 0.3}),
}


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_training_is_the_oracles(name: str) -> None:
    cell, width, options = CASES[name]
    net = network(cell, width, width, **options)
    module: Any = emulator.compile(net, training=True)
    assert module.manifest["regularisers"] == net.regularisers.facts()
    for seed, first, rows in ((-5, 0, {}), (1 << 40, 70, flags(5, 3))):
        case = draw(net, 5, 3, **rows)
        case.training.update(seed=seed, first_step=first)
        x, state, gy = (cast(v, net.dtype) for v in (case.x["x"], case.state, case.gy))
        y, _, tape = module.forward_train(x, state, **case.training, **rows)
        expected, _ = rnn.reference(net, **case.training)(case.x, case.state, **rows)
        assert error(y, expected) < LIMITS[net.dtype]
        found, again = (named(*module.backward(tape, gy, cast(case.gstate, net.dtype))) for _ in range(2))
        for key, value in oracle(net, case).items():
            assert error(found[key], value) < LIMITS[net.dtype], key
            np.testing.assert_array_equal(found[key], again[key])
    assert (np.asarray(module.forward_train(x, state, seed=6)[0]) != np.asarray(y)).any()
    with pytest.raises(InputError, match="needs a seed"):
        module.forward_train(x, state)
    with pytest.raises(InputError, match="the seed is wrong"):
        module.forward_train(x, state, seed=0.5)
