"""Calls of a layer: the results of the reference, and what does not fit."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from networks import network

import tvm_rnn as rnn
from tvm_rnn import ConfigError, InputError, WeightError
from tvm_rnn.oracle.tolerance import assert_close

jax = pytest.importorskip("jax", reason="needs jax")
pytest.importorskip("jax_tvm_ffi", reason="needs jax-tvm-ffi")
jnp = jax.numpy


def test_results_are_the_references(layer: Any, x: np.ndarray) -> None:
    T, B, _ = x.shape
    state = {n: np.random.default_rng(1).normal(size=(4, B, 3)) for n in "hc"}
    reset = np.arange(T * B).reshape(T, B) % 3 == 0
    for rows in ({}, {"lengths": np.array([2, 4])}, {"reset": reset}):
        wanted, last = rnn.reference(layer.net)(x, state, **rows)
        for call in (layer, jax.jit(layer)):
            y, found = call(layer.weights, x, state, **rows)
            assert isinstance(y, jax.Array)
            assert_close(np.asarray(y), wanted, "float64", T)
            assert_close(np.asarray(found["c"]), last["c"], "float64", T)


def test_with_the_batch_first(layer: Any, x: np.ndarray) -> None:
    own = copy.copy(layer)
    own.net = copy.copy(layer.net)
    own.net.batch_first = True
    reset = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2]) % 3 == 0
    y, last = layer(layer.weights, x, reset=reset)
    found, after = jax.jit(own)(own.weights, x.swapaxes(0, 1), reset=reset.T)
    assert_close(np.asarray(found.swapaxes(0, 1)), np.asarray(y), "float64", len(x))
    assert_close(np.asarray(after["h"]), np.asarray(last["h"]), "float64", len(x))
    assert own.compiled(own.weights).batch_first and not layer.compiled(layer.weights).batch_first
    with pytest.raises(InputError, match=r"x has the wrong shape[\s\S]*\[B, T"):
        own(own.weights, x[0])


def test_arrays_that_do_not_fit(layer: Any, x: np.ndarray) -> None:
    w = layer.weights
    cases = {
        "these are not weights": lambda: layer(x, w),
        "wrong names of weights": lambda: layer({}, x),
        "weight W_l0 does not fit": lambda: layer({**w, "W_l0": w["R_l0"]}, x),
        "x has the wrong shape": lambda: layer(w, x[0]),
        "x has the wrong dtype": lambda: layer(w, x.astype(np.float32)),
        "state is not the module's": lambda: layer(w, x, {"h": x}),
        "wrong shape": lambda: layer(w, x, {"h": x, "c": x}),
        "lengths out of range": lambda: layer(w, x, lengths=[1, 9]),
        "lengths does not fit x": lambda: jax.jit(lambda n: layer(w, x, lengths=n))(jnp.zeros(3, int)),
        "reset does not fit x": lambda: jax.jit(lambda m: layer(w, x, reset=m))(jnp.zeros(x.shape[:2])),
    }
    for text, call in cases.items():
        with pytest.raises((InputError, WeightError), match=text):
            call()
    with pytest.raises(Exception, match="lengths out of range"):  # JAX's own error, with ours in it
        jax.jit(lambda n: layer(w, x, lengths=n))(jnp.array([1, 9]))[0].block_until_ready()
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(ConfigError, match="jax_enable_x64"):
        layer(w, x)


def test_no_steps_and_no_rows(layer: Any, x: np.ndarray) -> None:
    w = layer.weights
    for empty in (x[:0], x[:, :0]):
        y, last = layer(w, empty)
        d = jax.grad(lambda w, x=empty: layer(w, x)[0].sum())(w)
        assert y.shape[:2] == empty.shape[:2]
        assert last["h"].shape == (4, empty.shape[1], 3)
        assert not any(value.any() for value in d.values())


def test_it_is_no_file(layer: Any) -> None:
    assert "lstm" in repr(layer)
    with pytest.raises(rnn.TvmRnnError, match="cannot be pickled"):
        pickle.dumps(layer)


@pytest.mark.broad
def test_constants_of_a_cell() -> None:
    @rnn.cell(constants="memory")
    def reading(x: "I", memory: "S H", h: "H", *, W: "H I"):
        return rnn.tanh(W @ x + rnn.softmax(memory @ h) @ memory)

    net = rnn.RNN(reading, 3, 4, num_layers=2, S=5, dtype="float64").init(seed=0)
    own, rng = rnn.to_jax(net), np.random.default_rng(0)
    x, memory = rng.normal(size=(6, 2, 3)), rng.normal(size=(2, 5, 4))
    wanted, _ = rnn.reference(net)(x, memory=memory)
    assert_close(np.asarray(own(own.weights, x, memory=jnp.asarray(memory))[0]), wanted, "float64", 6)
    test = pytest.importorskip("jax.test_util")
    test.check_grads(lambda m: own(own.weights, x, memory=m)[0], (jnp.asarray(memory),), 1, modes=["rev"])


@pytest.mark.broad
def test_regularisers_and_seeds() -> None:
    own = rnn.to_jax(network("gru", 3, 4, num_layers=2, dtype="float64", dropout=0.5))
    w, x = own.weights, jnp.ones((5, 2, 3))
    same = [own(w, x, seed=jax.random.bits(jax.random.key(n)))[0] for n in (1, 1, 2)]
    assert (same[0] == same[1]).all()
    assert (same[0] != same[2]).any()
    tail, first = own(w, x[2:], own(w, x[:2], seed=7)[1], seed=7, first_step=2), own(w, x, seed=7)
    np.testing.assert_allclose(tail[0], first[0][2:], atol=1e-12)
    both = jax.vmap(lambda x: own(w, x, seed=7)[0])(jnp.stack([x, x]))
    assert (both[0] == both[1]).all()  # as each call alone
    jax.grad(lambda w: own(w, x, seed=7)[0].sum())(w)
    with pytest.raises(ConfigError, match="give a seed"):
        jax.grad(lambda w: own(w, x)[0].sum())(w)
