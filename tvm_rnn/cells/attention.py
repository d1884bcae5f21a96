"""Attention in the loop: cells that read a memory of S rows, which is given once per sequence."""

from tvm_rnn import cell, concat, softmax, tanh

from .gru import gru
from .lstm import lstm


@cell(constants="memory keys mask")
def gru_attention(
    x: "I",
    memory: "S E=H",
    keys: "S A=H",
    mask: "S",
    h: "H",
    *,
    Q: "A=H H",
    v: "A=H",
    W: "3 H I+E",
    R: "3 H H",
    b: "3 H",
    b_R: "H",
):
    """GRU that reads a memory by additive attention (Bahdanau, Cho & Bengio 2015). Gate order r z n, as in `gru`.

    Constants: the memory, such as an encoder's states; keys = memory K, what scores read of it, which the caller makes
    once; a mask that scores get added: 0, or -inf where a memory has no row. The reset gate acts after the product.

        read = memory^T softmax(tanh(keys + Q h) v + mask)
        r, z = sigmoid(W [x, read] + R h + b)
        n = tanh(W [x, read] + b + r (R h + b_R))
        h' = (1 - z) n + z h
    """
    read = softmax(tanh(keys + Q @ h) @ v + mask) @ memory
    return gru(concat([x, read]), h, W=W, R=R, b=b, b_R=b_R)


@cell(states="a h c", constants="memory mask")
def lstm_attention(
    x: "I",
    memory: "S E=H",
    mask: "S",
    a: "H",
    h: "H",
    c: "H",
    *,
    W: "4 H I+H",
    R: "4 H H",
    b: "4 H",
    Q: "E=H H",
    C: "H E+H",
):
    """LSTM that reads a memory by multiplicative attention, and is fed what it made of it (Luong, Pham & Manning 2015,
    "general" scores, section 3.3's input feeding). Gate order i f g o, as in `lstm`.

    Constants: the memory, such as an encoder's states; a mask that scores get added: 0, or -inf where a memory has no
    row.

        i, f, o = sigmoid(W [x, a] + R h + b),  g = tanh(W [x, a] + R h + b)
        c' = f c + i g
        h' = o tanh(c')
        read = memory^T softmax(memory Q h' + mask)
        a' = tanh(C [read, h'])
    """
    h, c = lstm(concat([x, a]), h, c, W=W, R=R, b=b)
    read = softmax(memory @ (Q @ h) + mask) @ memory
    return tanh(C @ concat([read, h])), h, c


@cell(states="h c", constants="memory", output="y")
def transducer(
    x: "I",
    memory: "S A=H",
    h: "H",
    c: "H",
    *,
    W: "4 H I",
    R: "4 H H",
    b: "4 H",
    P: "A=H H",
    b_A: "A=H",
    V: "O=H A=H",
    b_V: "O=H",
):
    """Prediction network and joint of a transducer (Graves 2012; the joint of Graves, Mohamed & Hinton 2013).

    x is the last label, the steps are labels, and the S rows of the constant memory are the encoder's, made A wide. y
    is all rows' scores of O labels, [S O] in a row: what a transducer's loss reads. Gate order i f g o, as in `lstm`.

        i, f, o = sigmoid(W x + R h + b),  g = tanh(W x + R h + b)
        c' = f c + i g
        h' = o tanh(c')
        y = tanh(memory + P h' + b_A) V^T + b_V
    """
    h, c = lstm(x, h, c, W=W, R=R, b=b)
    return h, c, (tanh(memory + P @ h + b_A) @ V.T + b_V).reshape(-1)
