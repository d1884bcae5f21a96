"""Fast weights: a matrix that is written by an outer product and read by a query at every step."""

from tvm_rnn import cell, dot, exp, outer, sigmoid, silu, softplus, sqrt


@cell(states="S", output="y")
def delta_net(x: "I", S: "H H", *, W: "3 H I", w: "I"):
    """DeltaNet (Schlag, Irie & Schmidhuber 2021; this form: Yang et al. 2024), one head, no short convolution.

    Order of W: q k v. q and k pass silu and are divided by their length. The output y is no state.

        q, k = u / sqrt(u . u + 1e-6) for u = silu(W_q x), silu(W_k x);  v = silu(W_v x);  b = sigmoid(w x)
        S' = S + b (v - S k) k^T
        y = S' q
    """
    q, k, v = silu(W @ x)
    q, k = q / sqrt(dot(q, q) + 1e-6), k / sqrt(dot(k, k) + 1e-6)
    S = S + outer(sigmoid(w @ x) * (v - S @ k), k)
    return S, S @ q


@cell(states="S", output="y")
def gated_delta_net(x: "I", S: "H H", *, W: "3 H I", w: "2 I", A: "", b_a: ""):
    """Gated DeltaNet (Yang, Kautz & Hatamizadeh 2025, equation 10), one head, no short convolution, no output gate.

    Order of W: q k v; of w: write strength, decay. The decay is that of Mamba-2. The output y is no state.

        q, k = u / sqrt(u . u + 1e-6) for u = silu(W_q x), silu(W_k x);  v = silu(W_v x)
        b = sigmoid(w_0 x),  a = exp(-exp(A) softplus(w_1 x + b_a))
        S' = a S (I - b k k^T) + b v k^T
        y = S' q
    """
    q, k, v = silu(W @ x)
    q, k = q / sqrt(dot(q, q) + 1e-6), k / sqrt(dot(k, k) + 1e-6)
    b, decay = w @ x
    S = exp(-exp(A) * softplus(decay + b_a)) * S
    S = S + outer(sigmoid(b) * (v - S @ k), k)
    return S, S @ q
