"""Fast weights by the delta rule: a matrix that gives up the old value of a key before the new one is written."""

import math

from tvm_rnn import cell, exp, layer_norm, matvec, outer, rms_norm, sigmoid, silu, softplus, split, sqrt, tanh, vecdot


@cell(states="S", output="y")
def delta_net(x: "I", S: "N? H H", *, W: "3 N? H I", w: "N? I"):
    """DeltaNet (Schlag, Irie & Schmidhuber 2021; this form: Yang et al. 2024), no short convolution.

    Order of W: q k v. q and k pass silu and are divided by their length. The output y is no state. With N heads, each
    has a matrix S and a part of y; without N there is one.

        q, k = u / sqrt(u . u + 1e-6) for u = silu(W_q x), silu(W_k x);  v = silu(W_v x);  b = sigmoid(w x)
        S' = S + b (v - S k) k^T
        y = S' q
    """
    q, k, v = silu(W @ x)
    q, k = (u / sqrt(vecdot(u, u) + 1e-6)[..., None] for u in (q, k))
    S = S + outer(sigmoid(w @ x)[..., None] * (v - matvec(S, k)), k)
    return S, matvec(S, q).reshape(-1)


@cell(states="S", output="y")
def gated_delta_net(x: "I", S: "N? H H", *, W: "3 N? H I", w: "2 N? I", A: "N?", b_a: "N?"):
    """Gated DeltaNet (Yang, Kautz & Hatamizadeh 2025, equation 10), no short convolution, no output gate.

    Order of W: q k v; of w: write strength, decay. The decay is that of Mamba-2. The output y is no state. With N
    heads, each has a matrix S and a part of y; without N there is one.

        q, k = u / sqrt(u . u + 1e-6) for u = silu(W_q x), silu(W_k x);  v = silu(W_v x)
        b = sigmoid(w_0 x),  a = exp(-exp(A) softplus(w_1 x + b_a))
        S' = a S (I - b k k^T) + b v k^T
        y = S' q
    """
    q, k, v = silu(W @ x)
    q, k = (u / sqrt(vecdot(u, u) + 1e-6)[..., None] for u in (q, k))
    b, decay = w @ x
    S = exp(-exp(A) * softplus(decay + b_a))[..., None, None] * S
    S = S + outer(sigmoid(b)[..., None] * (v - matvec(S, k)), k)
    return S, matvec(S, q).reshape(-1)


@cell(states="S u1 u2 u3", output="y", init={"a": "ones"})
def gated_delta_net_conv(
    x: "I",
    S: "N? M=1 H H",
    u1: "N? 2+M H",
    u2: "N? 2+M H",
    u3: "N? 2+M H",
    *,
    W: "N? 2+M H I",
    c: "4 N? 2+M H",
    w: "2 N? M I",
    A: "N? M",
    b_a: "N? M",
    V: "N? M H I",
    a: "H",
):
    """Gated DeltaNet as its models have it (Yang et al. 2025, section 3.4): a convolution before it, a gate after it.

    N key heads (without N: one), each with M value heads that share its q and k: N=16, M=2 for 16 and 32. Order of W:
    q, k, M times v; of c: the oldest step first; of w: write strength, decay. u1, u2 and u3 are the projections of the
    last three steps. What follows, y times an output matrix, is left out.

        u = W x,  (q, k, v) = silu(c_0 u3 + c_1 u2 + c_2 u1 + c_3 u);  u1' = u,  u2' = u1,  u3' = u2
        q and k divided by sqrt(q . q + 1e-6) and sqrt(k . k + 1e-6)
        b = sigmoid(w_0 x),  d = exp(-exp(A) softplus(w_1 x + b_a))
        S' = d S (I - b k k^T) + b v k^T
        y = a rms(S' q) silu(V x),  rms(o) = o / sqrt(mean(o^2) + 1e-6), per head
    """
    u = W @ x
    q, k, v = split(silu(c[0] * u3 + c[1] * u2 + c[2] * u1 + c[3] * u), [1, 1, S.shape[-3]], -2)
    q, k = (r / sqrt(vecdot(r, r) + 1e-6)[..., None] for r in (q, k))
    b, decay = w @ x
    S = exp(-exp(A) * softplus(decay + b_a))[..., None, None] * S
    S = S + outer(sigmoid(b)[..., None] * (v - matvec(S, k)), k)
    return S, u, u1, u2, (rms_norm(matvec(S, q), a) * silu(V @ x)).reshape(-1)


@cell(states="S p", output="y", init={"a_y": "ones", "b_y": "zeros"})
def rwkv7(
    x: "I",
    S: "N? H H",
    p: "I",
    *,
    mu: "6 I",
    W: "3 N? H I",
    V: "3 R=32 I",
    U: "3 N? H R",
    b: "2 N? H",
    c: "3 N? H",
    a_y: "N? H",
    b_y: "N? H",
):
    """RWKV-7 (Peng et al. 2025, section 4): time mixing, without the output matrix and the first layer's values.

    Order of mu: r k v w a g; of W: r k v; of V and U (low-rank, R is 32 if not given): w a g; of b: w a; of c: removal
    key, replacement key, bonus. p is the last input. With N heads, each has a matrix S; without N there is one.

        x_j = x + mu_j (p - x) for each j;  p' = x
        r, k, v = W_r x_r, W_k x_k, W_v x_v,  w = exp(-exp(-1/2) sigmoid(U_w tanh(V_w x_w) + b_w))
        a = sigmoid(U_a V_a x_a + b_a),  g = U_g sigmoid(V_g x_g)
        z = c_0 k divided by its length, sqrt(z . z + 1e-12),  s = k (1 + (a - 1) c_1)
        S' = S (diag(w) - z (a z)^T) + v s^T
        y = g (layer_norm(S' r) a_y + b_y + ((c_2 r) . s) v),  layer_norm per head, with eps 1e-5 H
    """
    x_r, x_k, x_v, x_w, x_a, x_g = x + mu * (p - x)
    r, k, v = W[0] @ x_r, W[1] @ x_k, W[2] @ x_v
    w = exp(-math.exp(-0.5) * sigmoid(U[0] @ tanh(V[0] @ x_w) + b[0]))
    a = sigmoid(U[1] @ (V[1] @ x_a) + b[1])
    g = U[2] @ sigmoid(V[2] @ x_g)
    z = c[0] * k
    z = z / sqrt(vecdot(z, z) + 1e-12)[..., None]
    s = k * (1.0 + (a - 1.0) * c[1])
    S = S * w[..., None, :] - outer(matvec(S, z), a * z) + outer(v, s)
    y = layer_norm(matvec(S, r), a_y, b_y, 1e-5 * v.shape[-1]) + vecdot(c[2] * r, s)[..., None] * v
    return S, x, (g * y).reshape(-1)
