"""Gradients and batches: grad, vjp, jacrev, vmap, scan, checkpoint, and their compositions.

In: a layer in float64. Gradients are compared with finite differences, compositions with a loop in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_rnn import ConfigError

jax = pytest.importorskip("jax", reason="needs jax")
pytest.importorskip("jax_tvm_ffi", reason="needs jax-tvm-ffi")
jnp = jax.numpy
util = pytest.importorskip("jax.test_util")


@pytest.fixture
def loss(layer: Any) -> Any:
    return lambda w, x, state=None: (layer(w, x, state)[0] ** 2).sum() + layer(w, x, state)[1]["c"].sum()


@pytest.fixture
def xs(x: np.ndarray) -> Any:
    return jnp.stack([x, 2 * x, x + 1])


def close(found: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), found, wanted)


def named(jaxpr: object, name: str) -> int:
    return str(jaxpr).count(f"tvm_rnn_{name}[")


@pytest.mark.broad
def test_gradients(layer: Any, loss: Any, x: np.ndarray) -> None:
    w, state = layer.weights, {n: jnp.ones((4, 2, 3)) for n in "hc"}
    util.check_grads(loss, (w, x, state), 1, modes=["rev"])
    util.check_grads(lambda w: layer(w, x)[0], (w,), 1, modes=["rev"])
    util.check_grads(lambda w: layer(w, x, lengths=jnp.array([2, 3]))[1], (w,), 1, modes=["rev"])
    whole = jax.grad(loss, (0, 1))(w, x)
    close(jax.jit(jax.grad(loss, (0, 1)))(w, x), whole)
    close(jax.grad(jax.checkpoint(loss), (0, 1))(w, x), whole)
    close(jax.jacrev(lambda x: layer(w, x)[0].sum())(x), jax.grad(lambda x: layer(w, x)[0].sum())(x))


def test_vmap_over_inputs_is_one_call_with_more_rows(layer: Any, loss: Any, xs: Any) -> None:
    w = layer.weights

    def total(w: Any) -> Any:
        return jax.vmap(loss, (None, 0))(w, xs).sum()

    close(jax.grad(total)(w), jax.grad(lambda w: sum(loss(w, x) for x in xs))(w))
    text = jax.make_jaxpr(jax.grad(total))(w)
    assert named(text, "gradients") == 2  # `loss` has two calls
    assert "scan" not in str(text)


@pytest.mark.broad
def test_vmap_over_all_that_a_call_takes(layer: Any, xs: Any) -> None:
    w, T, B = layer.weights, *xs.shape[1:3]
    states = {n: jnp.arange(3 * 4 * B * 3.0).reshape(3, 4, B, 3) / 50 for n in "hc"}
    lengths, reset = jnp.array([[1, 2], [3, 4], [4, 4]]), jnp.arange(3 * T * B).reshape(3, T, B) % 3 == 0
    ws = jax.tree.map(lambda v: jnp.stack([v, v / 2, 2 * v]), w)

    def call(w: Any, x: Any, state: Any, n: Any, m: Any) -> Any:
        return layer(w, x, state, lengths=n, reset=m)

    given = (ws, xs, states, lengths, reset)
    for axes in ((0, 0, 0, 0, 0), (None, 0, 0, 0, 0), (None, None, 0, None, 0), (None, 0, None, 0, None)):
        own = [v if axis == 0 else jax.tree.map(lambda a: a[1], v) for v, axis in zip(given, axes, strict=True)]
        found = jax.jit(jax.vmap(call, axes))(*own)
        for i in range(3):
            one = [jax.tree.map(lambda a, i=i: a[i], v) if axis == 0 else v for v, axis in zip(own, axes, strict=True)]
            close(jax.tree.map(lambda a, i=i: a[i], found), call(*one))
    last = jax.vmap(lambda x: layer(w, x)[0], 2, 2)(jnp.moveaxis(xs, 0, 2))  # any axis
    close(jnp.moveaxis(last, 2, 0), jax.vmap(lambda x: layer(w, x)[0])(xs))


@pytest.mark.broad
def test_vmap_around_grad(layer: Any, loss: Any, xs: Any) -> None:
    w = layer.weights
    each = jax.vmap(jax.grad(loss), (None, 0))(w, xs)
    for i, x in enumerate(xs):
        close({n: d[i] for n, d in each.items()}, jax.grad(loss)(w, x))
    ws = jax.tree.map(lambda v: jnp.stack([v, v / 2]), w)
    members = jax.grad(lambda ws: jax.vmap(loss, (0, None))(ws, xs[0]).sum())(ws)
    close({n: d[0] for n, d in members.items()}, jax.grad(loss)(w, xs[0]))


@pytest.mark.broad
def test_scan_over_chunks(layer: Any, xs: Any) -> None:
    w, state = layer.weights, {n: jnp.zeros((4, 2, 3)) for n in "hc"}

    def scanned(w: Any, xs: Any) -> Any:
        def body(state: Any, x: Any) -> Any:
            y, state = layer(w, x, state)
            return state, y

        return (jax.lax.scan(body, state, xs)[1] ** 2).sum()

    util.check_grads(scanned, (w, xs), 1, modes=["rev"])
    both = jax.jit(jax.vmap(jax.grad(scanned), (None, 0)))(w, jnp.stack([xs, 2 * xs]))
    close({n: d[0] for n, d in both.items()}, jax.grad(scanned)(w, xs))


def test_what_compiled_steps_cannot_do(layer: Any, x: np.ndarray) -> None:
    def total(x: Any) -> Any:
        return layer(layer.weights, x)[0].sum()

    with pytest.raises(ConfigError, match="reverse mode alone"):
        jax.jvp(total, (x,), (x,))
    with pytest.raises(ConfigError, match="first gradients in JAX"):
        jax.grad(lambda x: jax.grad(total)(x).sum())(x)
