"""Cells whose states are matrices with a nonlinearity around them, written from their equations."""

from __future__ import annotations

import tvm_rnn as rnn


@rnn.cell(states="S", output="y")
def fast_tanh(x: "I", S: "N K V", *, Wk: "N K I", Wv: "N V I", Wq: "N K I", w: "N I"):
    """A delta rule inside of a tanh: what is written depends on what the key reads."""
    k, v, q, b = Wk @ x, Wv @ x, rnn.softmax(Wq @ x), rnn.sigmoid(w @ x)
    old = rnn.einsum("nk,nkv->nv", k, S)
    S = rnn.tanh(S + rnn.outer(k, b[:, None] * (v - old)))
    return S, rnn.einsum("nk,nkv->nv", q, S).reshape(-1)


@rnn.cell(states="S", output="y", initial={"S": 0.25})
def gated(x: "I", S: "K V", *, W: "2 K I", U: "2 V I", q: "K I", a: "K V"):
    """Every element has a gate of its own; no product, and no heads."""
    f = rnn.sigmoid(rnn.outer(W[0] @ x, U[0] @ x) + a * S)
    S = f * S + (1.0 - f) * rnn.tanh(rnn.outer(W[1] @ x, U[1] @ x))
    return S, rnn.vecmat(q @ x, S)


@rnn.cell(states="S n", output="y")
def keys_multiplied(x: "I", S: "N K V", n: "N K", *, W: "3 N K I", V: "N V I", R: "N K K"):
    """The keys are multiplied, not the values; a vector beside it normalises what is read along the values."""
    k, q, g = W @ x
    S = rnn.tanh(rnn.einsum("nij,njv->niv", R, S) + rnn.outer(k, V @ x))
    n = rnn.sigmoid(g) * n + rnn.einsum("nkv,nv->nk", S, V @ x)
    return S, n, (q * n / (1.0 + rnn.max(rnn.absolute(n), -1, keepdims=True))).reshape(-1)


@rnn.cell(states="S", output="y")
def shown(x: "I", S: "K V", *, W: "K V I", b: "K V"):
    """A matrix of every step is added, and all of the state is what the layer emits."""
    S = rnn.tanh(0.5 * S + W @ x + b) - 0.03 * rnn.sum(S, 0, keepdims=True)
    return S, S.reshape(-1)
