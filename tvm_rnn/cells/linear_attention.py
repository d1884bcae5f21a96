"""Linear attention as a recurrence: a matrix that decays, is written by an outer product and read by a query."""

import math

import numpy as np

from tvm_rnn import cell, concat, exp, layer_norm, log_sigmoid, matvec, outer, rms_norm, sigmoid, silu, softplus, split


@cell(states="S", output="y")
def retnet(x: "I", S: "N? H K=H", *, W: "2 N? K I", V: "2 N? H I"):
    """RetNet (Sun et al. 2023, equations 6 and 8), without output matrix and rotation (see retnet_rotary).

    Order of W: q k; of V: v g. N heads (without N: one), each with a decay of its own, keys of K and values of H
    features. The norm of each head makes the paper's division of k by sqrt(K) void.

        q, k = W x,  v, g = V x,  d = 1 - 2^(-5 - n) for head n
        S' = d S + v k^T
        y = silu(g) norm(S' q),  norm(o) = (o - mean(o)) / sqrt(var(o) + 1e-5), per head
    """
    (q, k), (v, g) = W @ x, V @ x
    S = _decay(S.shape[:-2]) * S + outer(v, k)
    return S, (silu(g) * layer_norm(matvec(S, q))).reshape(-1)


def _decay(heads: tuple[int, ...]) -> np.ndarray:
    """RetNet's, a number per head, for a matrix of each."""
    return 1.0 - np.exp2(-5.0 - np.arange(math.prod(heads)).reshape(*heads, 1, 1))


@cell(states="S re im", output="y", initial={"re": 1.0})
def retnet_rotary(x: "I", S: "N? H 2*K", re: "K=H", im: "K", *, W: "2 2 N? K I", V: "2 N? H I"):
    """RetNet (Sun et al. 2023, equations 5, 6 and 8), q and k turned by the position; without the output matrix.

    Order of W: q k, and of each the real and the imaginary part; of V: v g. N heads (without N: one), keys of K complex
    and values of H features. e = re + i im is the turn of this step, the same for all heads; rounded to 16 bits at
    every step, it drifts.

        q, k = W x,  v, g = V x,  d = 1 - 2^(-5 - n) for head n,  t_j = 10000^(-j / K)
        re' + i im' = e' = exp(i t) e
        S' = d S + v (e' k)^T, the real parts of e' k beside the imaginary ones
        y = silu(g) norm(S' (e' q)),  norm(o) = (o - mean(o)) / sqrt(var(o) + 1e-5), per head
    """
    q, k = W @ x
    v, g = V @ x
    angle = 10000.0 ** (-np.arange(re.shape[0]) / re.shape[0])
    re, im = np.cos(angle) * re - np.sin(angle) * im, np.sin(angle) * re + np.cos(angle) * im
    q, k = (concat([u[0] * re - u[1] * im, u[0] * im + u[1] * re]) for u in (q, k))
    S = _decay(S.shape[:-2]) * S + outer(v, k)
    return S, re, im, (silu(g) * layer_norm(matvec(S, q))).reshape(-1)


@cell(states="S", output="y", init={"a": "ones"})
def gla(
    x: "I",
    S: "N? H K=H",
    *,
    W: "2 N? K I",
    V: "2 N? H I",
    W_a: "R=16 I",
    U_a: "N? K R",
    b_a: "N? K",
    b_r: "N? H",
    a: "H",
):
    """Gated linear attention (Yang, Wang, Shen, Panda & Kim 2024, section 4.4), without the output matrix.

    Order of W: q k; of V: v r. N heads (without N: one), keys of K and values of H features; R is 16 if not given. The
    decay is one number per feature of a key.

        q, k = W x,  v, r = V x,  d = sigmoid(U_a W_a x + b_a)^(1/16)
        S' = S diag(d) + v k^T
        y = silu(r + b_r) a norm(S' q),  norm(o) = (o - mean(o)) / sqrt(var(o) + 1e-5), per head
    """
    (q, k), (v, r) = W @ x, V @ x
    decay = exp(log_sigmoid(U_a @ (W_a @ x) + b_a) * (1 / 16))
    S = S * decay[..., None, :] + outer(v, k)
    return S, (silu(r + b_r) * layer_norm(matvec(S, q), a)).reshape(-1)


@cell(states="S", output="y", init={"low": "zeros"})
def hgrn2(x: "I", S: "N? H K=H", *, W: "2 N? K I", V: "N? H I", low: "N? K"):
    """HGRN2 (Qin et al. 2024): a hierarchically gated network whose state is a matrix; without norm and output matrix.

    Order of W: o f. N heads (without N: one), keys of K and values of H features. low is the least value of the forget
    gate, in 0..1: 0 in the first layer, larger in higher ones (the paper adds softmax values up from layer to layer).

        o = silu(W_o x),  f = low + (1 - low) sigmoid(W_f x),  i = V x
        S' = S diag(f) + i (1 - f)^T
        y = S' o
    """
    o, f = W @ x
    f = low + (1.0 - low) * sigmoid(f)
    S = S * f[..., None, :] + outer(V @ x, 1.0 - f)
    return S, matvec(S, silu(o)).reshape(-1)


@cell(states="S", output="y")
def mamba2(
    x: "I",
    S: "N? M=1 H K=H",
    *,
    W: "N? M H I",
    V: "2 N? K I",
    w: "N? M I",
    A: "N? M",
    b: "N? M",
    D: "N? M",
):
    """Mamba-2's state space (Dao & Gu 2024), without convolution, gate and norm (see mamba2_conv).

    Order of V: B C, the paper's names. N groups (without N: one) of M heads that share B and C; K is the paper's state
    size, H the size of a head.

        u = W x,  B, C = V x,  d = softplus(w x + b)
        S' = exp(-exp(A) d) S + d u B^T
        y = S' C + D u
    """
    u, d = W @ x, softplus(w @ x + b)
    B, C = (V @ x)[..., None, :]
    S = exp(-exp(A) * d)[..., None, None] * S + outer(d[..., None] * u, B)
    return S, (matvec(S, C) + D[..., None] * u).reshape(-1)


@cell(states="S u1 u2 u3", output="y", init={"a": "ones"})
def mamba2_conv(
    x: "I",
    S: "N? M=1 H K=H",
    u1: "N? M*H+2*K",
    u2: "N? M*H+2*K",
    u3: "N? M*H+2*K",
    *,
    W: "N? M*H+2*K I",
    c: "4 N? M*H+2*K",
    b_c: "N? M*H+2*K",
    w: "N? M I",
    A: "N? M",
    b: "N? M",
    D: "N? M",
    V: "N? M H I",
    a: "N? M*H",
):
    """The block of Mamba-2 (Dao & Gu 2024, section 7) with convolution, gate and norm; without its output matrix.

    N groups (without N: one) of M heads that share B and C; K is the paper's state size, H the size of a head. Order of
    W: v of each head, B, C; of c: the oldest step first. u1, u2 and u3 are the projections of the last three steps.

        u = W x,  (v, B, C) = silu(c_0 u3 + c_1 u2 + c_2 u1 + c_3 u + b_c);  u1' = u,  u2' = u1,  u3' = u2
        d = softplus(w x + b)
        S' = exp(-exp(A) d) S + d v B^T
        y = a rms(silu(V x) (S' C + D v)),  rms(o) = o / sqrt(mean(o^2) + 1e-6), per group
    """
    u, d = W @ x, softplus(w @ x + b)
    key = S.shape[-1]
    v, B, C = split(silu(c[0] * u3 + c[1] * u2 + c[2] * u1 + c[3] * u + b_c), [a.shape[-1], key, key])
    v, B, C = v.reshape(S.shape[:-1]), B[..., None, :], C[..., None, :]
    S = exp(-exp(A) * d)[..., None, None] * S + outer(d[..., None] * v, B)
    y = silu(V @ x) * (matvec(S, C) + D[..., None] * v)
    return S, u, u1, u2, rms_norm(y.reshape(a.shape), a).reshape(-1)
