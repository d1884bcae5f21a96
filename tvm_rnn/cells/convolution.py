"""Cells of images: convolutions in place of matrices. x is [I, Y, X]."""

from tvm_rnn import cell, conv, sigmoid, tanh


@cell(states="h c")
def conv_lstm(
    x: "I Y X=Y",
    h: "H Y X=Y",
    c: "H Y X=Y",
    *,
    W: "4 H I K=3 K=3",
    R: "4 H H K=3 K=3",
    b: "4 H",
):
    """Convolutional LSTM (Shi et al. 2015, eq. 3, without its peepholes).

    Gate order i f g o. Frames are I x Y x X (X: as Y, if it is not given), kernels K x K (3); * is a convolution that
    keeps the frame's size.

        i, f, o = sigmoid(W * x + R * h + b),  g = tanh(W * x + R * h + b)
        c' = f c + i g
        h' = o tanh(c')
    """
    i, f, g, o = conv(x, W) + conv(h, R) + b[..., None, None]
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@cell(states="h c")
def conv_lstm_peephole(
    x: "I Y X=Y",
    h: "H Y X=Y",
    c: "H Y X=Y",
    *,
    W: "4 H I K=3 K=3",
    R: "4 H H K=3 K=3",
    p: "3 H Y X=Y",
    b: "4 H",
):
    """Convolutional LSTM whose gates see the memory cell (Shi et al. 2015, eq. 3).

    Gate order i f g o; peepholes p, one for each pixel, in the order i f o. The output gate sees the new memory.

        i, f = sigmoid(W * x + R * h + p c + b),  g = tanh(W * x + R * h + b)
        c' = f c + i g
        o  = sigmoid(W * x + R * h + p c' + b)
        h' = o tanh(c')
    """
    i, f, g, o = conv(x, W) + conv(h, R) + b[..., None, None]
    p_i, p_f, p_o = p
    c = sigmoid(f + p_f * c) * c + sigmoid(i + p_i * c) * tanh(g)
    return sigmoid(o + p_o * c) * tanh(c), c


@cell
def conv_gru(
    x: "I Y X=Y",
    h: "H Y X=Y",
    *,
    W: "3 H I K=3 K=3",
    R: "3 H H K=3 K=3",
    b: "3 H",
):
    """Convolutional GRU (Ballas, Yao, Pal & Courville 2016, section 3).

    Gate order z r n. Frames are I x Y x X (X: as Y, if it is not given), kernels K x K (3); * is a convolution that
    keeps the frame's size.

        z, r = sigmoid(W * x + R * h + b)
        n  = tanh(W * x + R * (r h) + b)
        h' = (1 - z) h + z n
    """
    z, r, n = conv(x, W) + b[..., None, None]
    R_z, R_r = conv(h, R[:2])
    z, r = sigmoid(z + R_z), sigmoid(r + R_r)
    n = tanh(n + conv(r * h, R[2]))
    return (1.0 - z) * h + z * n


@cell
def conv_gru_separable(
    x: "I Y X=Y",
    h: "H Y X=Y",
    *,
    W_h: "3 H I 1 K=5",
    R_h: "3 H H 1 K=5",
    b_h: "3 H",
    W_v: "3 H I K=5 1",
    R_v: "3 H H K=5 1",
    b_v: "3 H",
):
    """Separable convolutional GRU of RAFT (Teed & Deng 2020, section 3.3): a step along rows, then one along columns.

    Gate order z r n. Frames are I x Y x X (X: as Y, if it is not given), kernels 1 x K and K x 1 (5). Twice, with the
    weights of each direction; * is a convolution that keeps the frame's size.

        z, r = sigmoid(W * x + R * h + b)
        n  = tanh(W * x + R * (r h) + b)
        h' = (1 - z) h + z n
    """
    for W, R, b in ((W_h, R_h, b_h), (W_v, R_v, b_v)):
        h = conv_gru(x, h, W=W, R=R, b=b)
    return h
