"""Linear recurrences alone, for benchmarks: what libraries' kernels of them take and give, without products of inputs.

In: nothing. Out: `CELLS` by name, which points of suites name as they name those of the zoo.
"""

from tvm_rnn.language.cell import cell
from tvm_rnn.language.functions import matvec, outer, sigmoid, split


@cell(states="h", output="h")
def gated_sum(x: "I", h: "H"):
    """h' = sigmoid(a) h + b, where x is a and b: I = 2 H."""
    a, b = split(x, [h.shape[-1]] * 2, -1)
    return sigmoid(a) * h + b


@cell(states="S", output="y")
def gated_delta(x: "I", S: "N M H H"):
    """S' = d S (I - b k k^T) + b v k^T, y = S' q, with d and b in (0, 1); N keys, each for M values.

    x is q and k, times the root of H, v, and what b and d are sigmoids of: I = N (2 H + M H + 2 M). Keys of more than
    unit length make a matrix that grows.
    """
    n, m, h = S.shape[:-1]
    q, k, v, b, d = split(x, [n * h, n * h, n * m * h, n * m, n * m], -1)
    q, k = (u.reshape(n, 1, h) * h**-0.5 for u in (q, k))
    S = sigmoid(d).reshape(n, m, 1, 1) * S
    S = S + outer(sigmoid(b).reshape(n, m, 1) * (v.reshape(n, m, h) - matvec(S, k)), k)
    return S, matvec(S, q).reshape(-1)


CELLS = {own.name: own for own in (gated_sum, gated_delta)}
