"""Recurrences with heads alone, for benchmarks: what libraries' kernels take and give, without products of inputs.

In: nothing. Out: `CELLS` by name, which points of suites name as they name those of the zoo. N heads of H units, none
of which reads another; x has all gates of all heads.
"""

from tvm_rnn.language.cell import cell
from tvm_rnn.language.functions import matvec, sigmoid, tanh


@cell(states="h c", output="y")
def headed_lstm(x: "I", h: "N H", c: "N H", *, R: "4 N H H"):
    """I = 4 N H, in the order i f g o."""
    i, f, g, o = x.reshape(4, *h.shape) + matvec(R, h)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)
    return h, c, h.reshape(-1)


@cell(states="h", output="y")
def headed_rnn(x: "I", h: "N H", *, R: "N H H"):
    """I = N H."""
    h = tanh(x.reshape(h.shape) + matvec(R, h))
    return h, h.reshape(-1)


@cell(states="h", output="y")
def headed_gru(x: "I", h: "N H", *, R: "2 N H H", Q: "N H H"):
    """I = 3 N H, in the order r z n; the reset comes before the product (Cho et al. 2014)."""
    r, z, n = x.reshape(3, *h.shape)
    r, z = (sigmoid(gate + matvec(R[k], h)) for k, gate in enumerate((r, z)))
    h = z * h + (1.0 - z) * tanh(n + matvec(Q, r * h))
    return h, h.reshape(-1)


CELLS = {own.name: own for own in (headed_lstm, headed_rnn, headed_gru)}
