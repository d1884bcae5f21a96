"""minGRU and minLSTM: gates that do not read the state."""

from tvm_rnn import cell, sigmoid


@cell
def min_gru(x: "I", h: "H", *, W: "2 H I", b: "2 H"):
    """minGRU (Feng, Tung, Hajimirsadeghi, Ahmed & Bengio 2024, section 3.1), not the log-space form. Gate order z n.

    z = sigmoid(W x + b),  n = W x + b
    h' = (1 - z) h + z n
    """
    z, n = W @ x + b
    z = sigmoid(z)
    return (1.0 - z) * h + z * n


@cell
def min_lstm(x: "I", h: "H", *, W: "3 H I", b: "3 H"):
    """minLSTM (Feng et al. 2024, section 3.2), gates normalised to sum 1, not the log-space form. Gate order f i n.

    f, i = sigmoid(W x + b),  n = W x + b
    h' = f / (f + i) h + i / (f + i) n
    """
    f, i, n = W @ x + b
    f, i = sigmoid(f), sigmoid(i)
    return (f * h + i * n) / (f + i)
