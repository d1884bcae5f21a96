"""What XLA calls: weights that change, several threads, and results in XLA's own memory."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from networks import network

import tvm_rnn as rnn

jax = pytest.importorskip("jax", reason="needs jax")
pytest.importorskip("jax_tvm_ffi", reason="needs jax-tvm-ffi")
jnp = jax.numpy


def test_each_call_has_its_own_weights_in_any_thread(layer: Any, x: np.ndarray) -> None:
    w = layer.weights
    ws = [{name: value * (1 + i / 8) for name, value in w.items()} for i in range(4)]
    step = jax.jit(lambda w: jax.value_and_grad(lambda w: layer(w, x)[0].sum())(w))
    wanted = [jax.tree.map(np.asarray, step(w)) for w in ws]
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda i: jax.tree.map(np.asarray, step(ws[i % 4])), range(16))]
    for i, pair in enumerate(found):
        jax.tree.map(np.testing.assert_array_equal, pair, wanted[i % 4])


def test_programs_outlive_their_layer(x: np.ndarray) -> None:
    own = rnn.to_jax(network("elman", 6, 3, dtype="float64"))
    weights, call = own.weights, jax.jit(own)
    before = np.asarray(call(weights, x)[0])
    del own
    gc.collect()
    assert (np.asarray(call(weights, x)[0]) == before).all()


@pytest.mark.broad
def test_states_that_differ_by_layer() -> None:
    @rnn.cell(states="h past")
    def remembering(x: "I", h: "H", past: "I", *, W: "H I", R: "H H", V: "H I"):
        return rnn.tanh(W @ x + R @ h + V @ past), x

    net = rnn.RNN(remembering, 3, 4, num_layers=2, dtype="float64").init(seed=0)
    own, x = rnn.to_jax(net), np.random.default_rng(0).normal(size=(5, 2, 3))
    last = own(own.weights, x)[1]
    assert [value.shape for value in last["past"]] == [(1, 2, 3), (1, 2, 4)]
    again = jax.jit(own)(own.weights, x, last)[0]
    wanted, _ = rnn.reference(net)(x, jax.tree.map(np.asarray, last))
    np.testing.assert_allclose(again, wanted, atol=1e-12)
    test = pytest.importorskip("jax.test_util")
    test.check_grads(lambda last: own(own.weights, x, last), (last,), 1, modes=["rev"])
