"""Gated recurrent units: reset after the product (torch, cuDNN) and before it (the paper); and kin with other gates."""

from tvm_rnn import absolute, cell, matvec, maximum, relu, rms_norm, sigmoid, silu, stop_gradient, tanh


@cell
def gru(x: "I", h: "H", *, W: "3 H I", R: "3 H H", b: "3 H", b_R: "H"):
    """Gated recurrent unit, reset after the product (Cho et al. 2014, version 1 of the paper; the form of cuDNN).

    Gate order r z n, as torch.nn.GRU: b is the sum of its two biases for r and z, and bias_ih for n; b_R is the n part
    of its bias_hh. ONNX calls this linear_before_reset=1.

        r, z = sigmoid(W x + R h + b)
        n = tanh(W x + b + r (R h + b_R))
        h' = (1 - z) n + z h
    """
    r, z, n = W @ x + b
    u_r, u_z, u_n = R @ h
    z = sigmoid(z + u_z)
    n = tanh(n + sigmoid(r + u_r) * (u_n + b_R))
    return (1.0 - z) * n + z * h


@cell
def gru_reset_before(x: "I", h: "H", *, W: "3 H I", R: "2 H H", R_n: "H H", b: "3 H"):
    """Gated recurrent unit, reset before the product (Cho, van Merrienboer, Gulcehre, Bahdanau, Bougares, Schwenk &
    Bengio 2014). ONNX calls this linear_before_reset=0. Gate order r z n; R has r and z.

        r, z = sigmoid(W x + R h + b)
        n = tanh(W x + R_n (r h) + b)
        h' = (1 - z) n + z h
    """
    r, z, n = W @ x + b
    u_r, u_z = R @ h
    z = sigmoid(z + u_z)
    n = tanh(n + R_n @ (sigmoid(r + u_r) * h))
    return (1.0 - z) * n + z * h


@cell
def augru(x: "I", a: "1", h: "H", *, W: "3 H I", R: "3 H H", b: "3 H"):
    """AUGRU (Zhou, Mou, Fan, Pi, Bian, Zhou, Zhu & Gai 2019, DIEN): an attention score a scales the update gate.

    Gate order r u n; the reset gate acts after the product, as in the paper.

        r, u = sigmoid(W x + R h + b)
        n = tanh(W x + r (R h) + b)
        h' = (1 - a u) h + a u n
    """
    r, u, n = W @ x + b
    s_r, s_u, s_n = R @ h
    u = a * sigmoid(u + s_u)
    n = tanh(n + sigmoid(r + s_r) * s_n)
    return (1.0 - u) * h + u * n


@cell
def mgu(x: "I", h: "H", *, W: "2 H I", R_f: "H H", R_n: "H H", b: "2 H"):
    """Minimal gated unit (Zhou, Wu, Zhang & Zhou 2016): a GRU whose one gate f both resets and updates.

    Gate order f n.

        f = sigmoid(W x + R_f h + b)
        n = tanh(W x + R_n (f h) + b)
        h' = (1 - f) h + f n
    """
    f, n = W @ x + b
    f = sigmoid(f + R_f @ h)
    n = tanh(n + R_n @ (f * h))
    return (1.0 - f) * h + f * n


@cell
def ligru(x: "I", h: "H", *, W: "2 H I", R: "2 H H", b: "2 H"):
    """Light GRU (Ravanelli, Brakel, Omologo & Bengio 2018): no reset gate, relu candidate. Gate order z n.

    Without the paper's batch normalisation of W x: fold a trained one into W and b.

        z = sigmoid(W x + R h + b),  n = relu(W x + R h + b)
        h' = z h + (1 - z) n
    """
    z, n = W @ x + R @ h + b
    z = sigmoid(z)
    return z * h + (1.0 - z) * relu(n)


@cell
def ugrnn(x: "I", h: "H", *, W: "2 H I", R: "2 H H", b: "2 H"):
    """Update gate RNN (Collins, Sohl-Dickstein & Sussillo 2017). Gate order c g; the paper's b_fg is part of b.

    c = tanh(W x + R h + b),  g = sigmoid(W x + R h + b)
    h' = g h + (1 - g) c
    """
    c, g = W @ x + R @ h + b
    g = sigmoid(g)
    return g * h + (1.0 - g) * tanh(c)


@cell(output="y", init={"g": "ones", "g_z": "ones"})
def block_gru(
    x: "I",
    a: "A",
    h: "N? H",
    *,
    V: "P=H N?*H",
    W: "P I",
    M: "P A",
    b: "3 P",
    g: "3 P",
    U: "N? H H",
    C: "3 N? H P",
    b_z: "N? H",
    g_z: "N?*H",
    R: "3 N? H H",
    d: "3 N? H",
):
    """The block GRU of DreamerV3 (Hafner, Pasukonis, Ba & Lillicrap 2025), with one hidden layer, as the authors' code.

    N blocks of H units (without N: one), P hidden units (H, if not given). x: the stochastic state; a: the action. h,
    and so y, is the deterministic state. Order of b, g and C: h x a; of R and d: r c u. The blocks meet in V h and in
    the norm of z, over all N H numbers. `reset=` begins an episode: x and a of that step are the caller's.

        v = silu(g norm((V h, W x, M a) + b)), each apart, with a divided by max(1, |a|)
        z = silu(g_z norm(U h + C v + b_z)),  norm(u) = u / sqrt(mean(u^2) + 1e-4)
        r, c, u = R z + d
        h' = sigmoid(u - 1) tanh(sigmoid(r) c) + (1 - sigmoid(u - 1)) h,  y = h'
    """
    a = a / stop_gradient(maximum(1.0, absolute(a)))
    parts = V @ h.reshape(-1), W @ x, M @ a
    v = [silu(rms_norm(part + b[k], g[k], 1e-4)) for k, part in enumerate(parts)]
    z = matvec(U, h) + C[0] @ v[0] + C[1] @ v[1] + C[2] @ v[2] + b_z
    z = silu(rms_norm(z.reshape(-1), g_z, 1e-4)).reshape(h.shape)
    r, c, u = matvec(R, z) + d
    u = sigmoid(u - 1.0)
    h = u * tanh(sigmoid(r) * c) + (1.0 - u) * h
    return h, h.reshape(-1)
