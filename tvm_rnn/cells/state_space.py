"""Linear recurrent units: a state of independent features, each times a number of its own; complex as re and im."""

from tvm_rnn import cell, cos, exp, expm1, matvec, sigmoid, sin, softplus, sqrt


@cell(states="re im", output="y")
def lru(x: "I", re: "K=H", im: "K=H", *, B: "2 K I", C: "2 H K", D: "H I", nu: "K", theta: "K", g: "K"):
    """Linear recurrent unit, LRU (Orvieto et al. 2023). The state h = re + i im has K complex features, y has H.

    Order of B and C: real part, imaginary part. exp(g) is the paper's normalisation gamma, learned in log space.

        a = exp(-exp(nu) + i exp(theta))
        re' + i im' = h' = a h + exp(g) (B x)
        y = real(C h') + D x
    """
    radius, angle = exp(-exp(nu)), exp(theta)
    a, b = radius * cos(angle), radius * sin(angle)
    u, v = exp(g) * (B @ x)
    re, im = a * re - b * im + u, b * re + a * im + v
    return re, im, C[0] @ re - C[1] @ im + D @ x


@cell(states="re im", output="y")
def s5(x: "I", re: "K=H", im: "K=H", *, B: "2 K I", C: "2 H K", D: "H I", L: "2 K", s: "K"):
    """S5 (Smith, Warrington & Linderman 2023): a diagonal state space, discretised by zero-order hold.

    The state h = re + i im has K complex features, one of each conjugate pair; y has H. Order of B, C and L: real part,
    imaginary part; the real part of l is -exp(L_0), so that it stays below 0. No activation follows.

        l = -exp(L_0) + i L_1,  a = exp(l exp(s))
        re' + i im' = h' = a h + ((a - 1) / l) (B x)
        y = 2 real(C h') + D x
    """
    real, angle, step = -exp(L[0]), L[1], exp(s)
    a, b = exp(real * step) * cos(angle * step), exp(real * step) * sin(angle * step)
    size = real * real + angle * angle
    g, f = ((a - 1.0) * real + b * angle) / size, (b * real - (a - 1.0) * angle) / size  # (a + i b - 1) / l
    u, v = B @ x
    re, im = a * re - b * im + g * u - f * v, b * re + a * im + f * u + g * v
    return re, im, 2.0 * (C[0] @ re - C[1] @ im) + D @ x


@cell(states="h", output="y")
def rg_lru(x: "I", h: "N? H", *, V: "N? H I", W: "2 N? H H", b: "2 N? H", A: "N? H"):
    """Real-gated linear recurrent unit, RG-LRU (De et al. 2024, equations 1-4), after a projection of the input.

    Order of W and b: recurrence gate r, input gate i. With N heads, the matrices of the gates have N blocks on their
    diagonals; without N they are full. A is the paper's Lambda, its constant c is 8.

        u = V x,  r, i = sigmoid(W u + b)
        a = sigmoid(A)^(8 r)
        h' = a h + sqrt(1 - a^2) (i u)
        y = h', its heads side by side
    """
    u = V @ x
    r, i = sigmoid(matvec(W, u) + b)
    a = -8.0 * softplus(-A) * r
    h = exp(a) * h + sqrt(-expm1(2.0 * a)) * (i * u)
    return h, h.reshape(-1)
