"""xLSTM: exponential gates with a stabiliser state; a scalar memory (slstm) and a matrix memory (mlstm)."""

from tvm_rnn import absolute, cell, exp, layer_norm, log_sigmoid, matvec, maximum, outer, sigmoid, tanh, vecdot

# The stabiliser m is the log of a scale, at first the log of 0. A start at m = 0 gives the same results, but 0 / 0
# where the first input gate underflows; -inf would give inf - inf, and JSON (the manifest) has no name for it.
NOTHING_YET = -1e30


@cell(states="h c n m", output="y", initial={"m": NOTHING_YET})
def slstm(x: "I", h: "N? H", c: "N? H", n: "N? H", m: "N? H", *, W: "4 N? H I", R: "4 N? H H", b: "4 N? H"):
    """sLSTM (Beck, Poeppel, Spanring, Auer, Prudnikova, Kopp, Klambauer, Brandstetter & Hochreiter 2024, eq. 8-17).

    Gate order i f z o; f = sigmoid, i = exp. With N heads, each has states of its own, reads no other's, and is a part
    of y; without N there is one. c and n are kept divided by exp(m), which cancels in h'. At first c = n = 0 and
    m = -1e30, for log 0.

        i, f, z, o = W x + R h + b
        m' = max(log sigmoid(f) + m, i)
        c' = exp(log sigmoid(f) + m - m') c + exp(i - m') tanh(z)
        n' = exp(log sigmoid(f) + m - m') n + exp(i - m')
        y = h' = sigmoid(o) c' / n'
    """
    i, f, z, o = W @ x + matvec(R, h) + b
    f = log_sigmoid(f) + m
    m = maximum(f, i)
    f, i = exp(f - m), exp(i - m)
    c = f * c + i * tanh(z)
    n = f * n + i
    h = sigmoid(o) * c / n
    return h, c, n, m, h.reshape(-1)


@cell(states="C n m", output="h", initial={"m": NOTHING_YET})
def mlstm(x: "I", C: "N? H H", n: "N? H", m: "N?", *, W: "4 N? H I", b: "4 N? H", w: "2 N? I", d: "2 N?"):
    """mLSTM (Beck et al. 2024, eq. 19-27): a matrix memory that is read by a query; nothing reads h.

    Order of W and b: q k v o; of w and d: i f, one number each; f = sigmoid, i = exp. With N heads, each has C, n, m
    and a part of h; without N there is one. C and n are kept divided by exp(m). At first C = n = 0 and m = -1e30, for
    log 0.

        q, k, v, o = W x + b,  k divided by sqrt(H)
        i, f = w x + d
        m' = max(log sigmoid(f) + m, i)
        C' = exp(log sigmoid(f) + m - m') C + exp(i - m') v k^T
        n' = exp(log sigmoid(f) + m - m') n + exp(i - m') k
        h = sigmoid(o) C' q / max(|n' q|, exp(-m'))
    """
    q, k, v, o = W @ x + b
    k = k * n.shape[-1] ** -0.5
    i, f = w @ x + d
    f = log_sigmoid(f) + m
    m = maximum(f, i)
    f, i = exp(f - m), exp(i - m)
    C = f[..., None, None] * C + i[..., None, None] * outer(v, k)
    n = f[..., None] * n + i[..., None] * k
    h = sigmoid(o) * matvec(C, q) / maximum(absolute(vecdot(n, q)), exp(-m))[..., None]
    return C, n, m, h.reshape(-1)


@cell(states="C n m", output="h", initial={"m": NOTHING_YET}, init={"a": "ones"})
def mlstm_capped(
    x: "I", C: "N? H K=H", n: "N? K", m: "N?", *, W: "2 N? K I", V: "2 N? H I", w: "2 N? I", d: "2 N?", a: "N? H"
):
    """mLSTM of xLSTM 7B (Beck et al. 2025): softly capped gates, a norm per head, keys of K and values of H features.

    Order of W: q k; of V: v o; of w and d: i f. N heads (without N: one). C and n are kept divided by exp(m). At first
    C = n = 0 and m = -1e30, for log 0. The output matrix is left out.

        q, k = W x,  k divided by sqrt(K),  v, o = V x
        i, f = 15 tanh((w x + d) / 15)
        m' = max(log sigmoid(f) + m, i)
        C' = exp(log sigmoid(f) + m - m') C + exp(i - m') v k^T
        n' = exp(log sigmoid(f) + m - m') n + exp(i - m') k
        h = sigmoid(o) a norm(C' q / max(|n' q|, exp(-m'))),  norm(u) = (u - mean(u)) / sqrt(var(u) + 1e-6), per head
    """
    (q, k), (v, o) = W @ x, V @ x
    k = k * n.shape[-1] ** -0.5
    i, f = 15.0 * tanh((w @ x + d) / 15.0)
    f = log_sigmoid(f) + m
    m = maximum(f, i)
    f, i = exp(f - m), exp(i - m)
    C = f[..., None, None] * C + i[..., None, None] * outer(v, k)
    n = f[..., None] * n + i[..., None] * k
    read = matvec(C, q) / maximum(absolute(vecdot(n, q)), exp(-m))[..., None]
    return C, n, m, (sigmoid(o) * layer_norm(read, a, eps=1e-6)).reshape(-1)
