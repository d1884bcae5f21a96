"""A matrix state that goes through a nonlinearity at every step: no recurrence over all time, no form in chunks."""

from tvm_rnn import cell, exp, outer, softplus, tanh, vecmat


@cell(states="S", output="y")
def m2rnn(x: "I", S: "N? K=H H", *, W: "2 N? K I", V: "N? H I", R: "N? H H", w: "N? I", A: "N?", b: "N?"):
    """M2RNN (Mishra, Tan, Stoica, Gonzalez & Dao 2026), without convolution, residual, output gate, norm and matrix.

    Order of W: q k. N heads (without N: one), keys of K and values of H features; each of the K rows of S is multiplied
    by R. The forget gate is that of Mamba-2. The paper's H is S here, its W is R.

        q, k = W x,  v = V x,  f = exp(-exp(A) softplus(w x + b))
        S' = f S + (1 - f) tanh(S R + k v^T)
        y = q^T S'
    """
    q, k = W @ x
    f = exp(-exp(A) * softplus(w @ x + b))[..., None, None]
    S = f * S + (1.0 - f) * tanh(vecmat(S, R[..., None, :, :]) + outer(k, V @ x))
    return S, vecmat(q, S).reshape(-1)
