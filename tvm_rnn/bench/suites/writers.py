"""Cells that generate, for benchmarks: a language model's step, from a token to the next.

In: nothing. Out: `CELLS` by name, which points of suites name as they name those of the zoo.
"""

from tvm_rnn.language.cell import cell
from tvm_rnn.language.functions import argmax, sample, sigmoid, tanh


def _states(gates, c):
    i, f, g, o = gates
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@cell(states="h c", output="token")
def lstm_greedy(x: "1", h: "H", c: "H", *, E: "V H", W: "4 H H", R: "4 H H", b: "4 H", Q: "V H"):
    """Embedding, LSTM, read-out; the most likely token."""
    h, c = _states(W @ E[x[0]] + R @ h + b, c)
    return h, c, argmax(Q @ h, keepdims=True)


@cell(states="h c", output="token")
def lstm_sample(x: "1", h: "H", c: "H", *, E: "V H", W: "4 H H", R: "4 H H", b: "4 H", Q: "V H"):
    """Embedding, LSTM, read-out; a token drawn with its probability."""
    h, c = _states(W @ E[x[0]] + R @ h + b, c)
    return h, c, sample(Q @ h, keepdims=True)


CELLS = {own.name: own for own in (lstm_greedy, lstm_sample)}
