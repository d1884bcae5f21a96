"""Every cell of the zoo against its paper's equations, written gate by gate for one row in plain NumPy.

In: random weights of every shape. Out: agreement with the oracle in float64 over several steps. Each function takes one
row x, the weights `w` without suffix and the old states in the cell's order; it returns the output and the new states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from networks import constants

import tvm_rnn as rnn
from tvm_rnn import RNN, cells
from tvm_rnn.oracle.tolerance import assert_close

Array = np.ndarray
Weights = Mapping[str, Array]
Result = tuple[Array, ...]
STEPS, ROWS, SIZES = 5, 3, {"P": 3, "depth": 3, "Y": 3, "X": 4, "S": 4, "A": 2}


def s(v: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-v)))


def relu(v: Array) -> Array:
    return np.where(v > 0, v, 0)


class Gates:
    """The affine part of each gate by its letter: `g.i` is W_i x + R_i h + b_i; letters in the order of the axis."""

    def __init__(
        self, letters: str, w: Weights, x: Array, h: Array | None = None, recurrent: str | None = None
    ) -> None:
        rows = letters if recurrent is None else recurrent
        for k, letter in enumerate(letters):
            value = w["W"][k].dot(x) + (w["b"][k] if "b" in w else 0)
            if h is not None and letter in rows:
                value = value + w["R"][rows.index(letter)].dot(h)
            setattr(self, letter, value)

    def __getattr__(self, name: str) -> Array:
        raise AttributeError(name)


def elman(w: Weights, x: Array, h: Array) -> Result:
    h = np.tanh(w["W"].dot(x) + w["R"].dot(h) + w["b"])
    return h, h


def elman_relu(w: Weights, x: Array, h: Array) -> Result:
    h = relu(w["W"].dot(x) + w["R"].dot(h) + w["b"])
    return h, h


def lstm(w: Weights, x: Array, h: Array, c: Array) -> Result:
    g = Gates("ifgo", w, x, h)
    c = s(g.f) * c + s(g.i) * np.tanh(g.g)
    h = s(g.o) * np.tanh(c)
    return h, h, c


def lstm_peephole(w: Weights, x: Array, h: Array, c: Array) -> Result:
    g, (p_i, p_f, p_o) = Gates("ifgo", w, x, h), w["p"]
    new = s(g.f + p_f * c) * c + s(g.i + p_i * c) * np.tanh(g.g)
    h = s(g.o + p_o * new) * np.tanh(new)
    return h, h, new


def lstm_projection(w: Weights, x: Array, h: Array, c: Array) -> Result:
    _, m, c = lstm(w, x, h, c)
    h = w["W_P"].dot(m)
    return h, h, c


def norm(v: Array) -> Array:
    return np.asarray((v - v.sum() / v.size) / np.sqrt(((v - v.sum() / v.size) ** 2).sum() / v.size + 1e-5))


def lstm_layer_norm(w: Weights, x: Array, h: Array, c: Array) -> Result:
    shape = w["b"].shape
    from_x = w["a_x"] * norm(np.concatenate([w["W"][k].dot(x) for k in range(4)])).reshape(shape) + w["b_x"]
    from_h = w["a_h"] * norm(np.concatenate([w["R"][k].dot(h) for k in range(4)])).reshape(shape) + w["b_h"]
    i, f, g, o = from_x + from_h + w["b"]
    c = s(f) * c + s(i) * np.tanh(g)
    h = s(o) * np.tanh(w["a_c"] * norm(c) + w["b_c"])
    return h, h, c


def odyssey(change: str) -> Callable[..., Result]:
    """The base of Greff et al. 2017 (section 2), with one thing changed."""
    order = {"nig": "zfo", "nfg": "zio", "nog": "zif", "cifg": "zio"}.get(change, "zifo")
    holes = order.replace("z", "")

    def step(w: Weights, x: Array, y: Array, c: Array, *old: Array) -> Result:
        g = Gates(order, w, x, y)
        p = {k: np.zeros_like(c) if change == "np" else w["p"][holes.index(k)] for k in holes}
        q: dict[str, Any] = dict.fromkeys(holes, 0.0)
        if change == "fgr":
            H = c.size
            for row, k in enumerate("ifo"):
                q[k] = sum(w["Q"][row][:, H * j : H * (j + 1)].dot(old[j]) for j in range(3))
        z = g.z if change == "niaf" else np.tanh(g.z)
        i: Any = 1.0 if change == "nig" else s(g.i + p["i"] * c + q["i"])
        f: Any = 1.0 if change == "nfg" else 1 - i if change == "cifg" else s(g.f + p["f"] * c + q["f"])
        c = z * i + c * f
        o: Any = 1.0 if change == "nog" else s(g.o + p["o"] * c + q["o"])
        y = (c if change == "noaf" else np.tanh(c)) * o
        return (y, y, c, i, f, o) if change == "fgr" else (y, y, c)

    return step


def gru(w: Weights, x: Array, h: Array) -> Result:
    g = Gates("rzn", w, x, h, recurrent="rz")
    n = np.tanh(g.n + s(g.r) * (w["R"][2].dot(h) + w["b_R"]))
    h = (1 - s(g.z)) * n + s(g.z) * h
    return h, h


def gru_reset_before(w: Weights, x: Array, h: Array) -> Result:
    g = Gates("rzn", w, x, h, recurrent="rz")
    n = np.tanh(g.n + w["R_n"].dot(s(g.r) * h))
    h = (1 - s(g.z)) * n + s(g.z) * h
    return h, h


def block_gru(w: Weights, x: Array, h: Array, *, a: Array) -> Result:
    """Without N, a block is the whole."""
    heads = {name: w[name] if h.ndim > 1 else np.expand_dims(w[name], at) for name, at in BLOCKS.items()}
    v = [part.dot(u) for part, u in ((w["V"], h.ravel()), (w["W"], x), (w["M"], a / np.maximum(1, abs(a))))]
    v = [silu(w["g"][k] * root_mean_square(u + w["b"][k])) for k, u in enumerate(v)]
    z = [
        heads["U"][n].dot(own) + sum(heads["C"][k, n].dot(v[k]) for k in range(3)) + heads["b_z"][n]
        for n, own in enumerate(np.atleast_2d(h))
    ]
    z = silu(w["g_z"] * root_mean_square(np.concatenate(z))).reshape(len(z), -1)
    new = []
    for n, own in enumerate(np.atleast_2d(h)):
        r, c, u = (heads["R"][k, n].dot(z[n]) + heads["d"][k, n] for k in range(3))
        new.append(s(u - 1) * np.tanh(s(r) * c) + (1 - s(u - 1)) * own)
    return np.concatenate(new), np.array(new).reshape(h.shape)


BLOCKS = {"U": 0, "C": 1, "b_z": 0, "R": 1, "d": 1}  # of which parameters N is an axis, and which


def root_mean_square(v: Array) -> Array:
    return v / np.sqrt((v**2).sum() / v.size + 1e-4)


def mgu(w: Weights, x: Array, h: Array) -> Result:
    f = s(w["W"][0].dot(x) + w["R_f"].dot(h) + w["b"][0])
    n = np.tanh(w["W"][1].dot(x) + w["R_n"].dot(f * h) + w["b"][1])
    h = (1 - f) * h + f * n
    return h, h


def ugrnn(w: Weights, x: Array, h: Array) -> Result:
    g = Gates("cg", w, x, h)
    h = s(g.g) * h + (1 - s(g.g)) * np.tanh(g.c)
    return h, h


def janet(w: Weights, x: Array, h: Array) -> Result:
    g = Gates("sc", w, x, h)
    h = s(g.s) * h + (1 - s(g.s - 1)) * np.tanh(g.c)
    return h, h


def indrnn(w: Weights, x: Array, h: Array) -> Result:
    h = relu(w["W"].dot(x) + w["u"] * h + w["b"])
    return h, h


def rhn(w: Weights, x: Array, h: Array) -> Result:
    for k in range(SIZES["depth"]):
        from_x = [w["W"][gate].dot(x) if k == 0 else 0.0 for gate in range(2)]
        a = np.tanh(from_x[0] + w["R"][k, 0].dot(h) + w["b"][k, 0])
        t = s(from_x[1] + w["R"][k, 1].dot(h) + w["b"][k, 1])
        h = a * t + h * (1 - t)
    return h, h


def multiplicative_lstm(w: Weights, x: Array, h: Array, c: Array) -> Result:
    return lstm(w, x, w["W_m"].dot(x) * w["R_m"].dot(h), c)


def ligru(w: Weights, x: Array, h: Array) -> Result:
    g = Gates("zn", w, x, h)
    h = s(g.z) * h + (1 - s(g.z)) * relu(g.n)
    return h, h


def fastrnn(w: Weights, x: Array, h: Array) -> Result:
    h = s(w["alpha"]) * elman(w, x, h)[0] + s(w["beta"]) * h
    return h, h


def fastgrnn(w: Weights, x: Array, h: Array) -> Result:
    shared = w["W"].dot(x) + w["R"].dot(h)
    z, n = s(shared + w["b"][0]), np.tanh(shared + w["b"][1])
    h = (s(w["zeta"]) * (1 - z) + s(w["nu"])) * n + z * h
    return h, h


def augru(w: Weights, x: Array, h: Array, *, a: Array) -> Result:
    g = Gates("run", w, x, h, recurrent="ru")
    u = a[0] * s(g.u)
    h = (1 - u) * h + u * np.tanh(g.n + s(g.r) * w["R"][2].dot(h))
    return h, h


def antisymmetric(w: Weights, x: Array, h: Array) -> Result:
    M = w["R"] - w["R"].T - 0.01 * np.eye(h.size)
    h = h + 0.01 * np.tanh(M.dot(h) + w["W"].dot(x) + w["b"])
    return h, h


def antisymmetric_gated(w: Weights, x: Array, h: Array) -> Result:
    g, M = Gates("zn", w, x), w["R"] - w["R"].T - 0.01 * np.eye(h.size)
    h = h + 0.01 * s(M.dot(h) + g.z) * np.tanh(M.dot(h) + g.n)
    return h, h


def cornn(w: Weights, x: Array, y: Array, z: Array) -> Result:
    z = z + 0.05 * (np.tanh(w["R_y"].dot(y) + w["R_z"].dot(z) + w["W"].dot(x) + w["b"]) - 1.7 * y - 4.0 * z)
    y = y + 0.05 * z
    return y, y, z


def lem(w: Weights, x: Array, y: Array, z: Array) -> Result:
    g = Gates("12zy", w, x, y, recurrent="12z")
    d, e = s(getattr(g, "1")), s(getattr(g, "2"))
    z = (1 - d) * z + d * np.tanh(g.z)
    y = (1 - e) * y + e * np.tanh(g.y + w["V"].dot(z))
    return y, y, z


def lif(w: Weights, x: Array, s: Array, v: Array) -> Result:
    v = 0.95 * v - s + w["W"].dot(x) + w["R"].dot(s) + w["b"]
    s = np.heaviside(v - 1, 0)
    return s, s, v


def alif(w: Weights, x: Array, s: Array, v: Array, a: Array) -> Result:
    v = 0.95 * v - (1 + 1.8 * a) * s + w["W"].dot(x) + w["R"].dot(s) + w["b"]
    a = 0.995 * a + 0.005 * s
    s = np.heaviside(v - (1 + 1.8 * a), 0)
    return s, s, v, a


def plif(w: Weights, x: Array, z: Array, v: Array) -> Result:
    rate, u = s(w["w"]), np.where(z == 1, 0, v)
    v = (1 - rate) * u + rate * (w["W"].dot(x) + w["R"].dot(z) + w["b"])
    z = np.heaviside(v - 1, 0)
    return z, z, v


def sru(w: Weights, x: Array, c: Array) -> Result:
    u, f, r, skip = (w["W"][k].dot(x) for k in range(4))
    f, r = s(f + w["v"][0] * c + w["b"][0]), s(r + w["v"][1] * c + w["b"][1])
    c = f * c + (1 - f) * u
    return r * c + (1 - r) * skip, c


def min_gru(w: Weights, x: Array, h: Array) -> Result:
    g = Gates("zn", w, x)
    h = (1 - s(g.z)) * h + s(g.z) * g.n
    return h, h


def min_lstm(w: Weights, x: Array, h: Array) -> Result:
    g = Gates("fin", w, x)
    h = s(g.f) / (s(g.f) + s(g.i)) * h + s(g.i) / (s(g.f) + s(g.i)) * g.n
    return h, h


def slstm(w: Weights, x: Array, h: Array, c: Array, n: Array, m: Array) -> Result:
    """Without the stabiliser (eq. 8-14): c and n times exp(m) are the paper's c and n."""
    g, scale = Gates("ifzo", w, x, h), np.where(m < -1e29, 0.0, np.exp(m))
    c = s(g.f) * (c * scale) + np.exp(g.i) * np.tanh(g.z)
    n = s(g.f) * (n * scale) + np.exp(g.i)
    m = np.maximum(np.log(s(g.f)) + m, g.i)
    h = s(g.o) * (c / n)
    return h, h, c / np.exp(m), n / np.exp(m), m


def m2rnn(w: Weights, x: Array, S: Array) -> Result:
    """Row by row of S: each is a cell of its own, all with one R."""
    q, k, v = (part.dot(x) for part in (*w["W"], w["V"]))
    f = np.exp(-np.exp(w["A"]) * np.log1p(np.exp(w["w"].dot(x) + w["b"])))
    S = np.array([f * row + (1 - f) * np.tanh(w["R"].T.dot(row) + k[j] * v) for j, row in enumerate(S)])
    return q.dot(S), S


def mlstm(w: Weights, x: Array, C: Array, n: Array, m: Array) -> Result:
    """Without the stabiliser (eq. 19-27): C and n times exp(m) are the paper's C and n."""
    g, scale = Gates("qkvo", w, x), 0.0 if m < -1e29 else np.exp(m)
    k = g.k / np.sqrt(g.k.size)
    i, f = np.exp(w["w"][0].dot(x) + w["d"][0]), s(w["w"][1].dot(x) + w["d"][1])
    C = f * (C * scale) + i * g.v[:, None] * k[None, :]
    n = f * (n * scale) + i * k
    h = s(g.o) * (C.dot(g.q) / max(abs(n.dot(g.q)), 1.0))
    m = np.maximum(np.log(f) + m, np.log(i))
    return h, C / np.exp(m), n / np.exp(m), m


def mlstm_capped(w: Weights, x: Array, C: Array, n: Array, m: Array) -> Result:
    """Without the stabiliser: C and n times exp(m) are the paper's."""
    q, k, v, o = (part.dot(x) for part in (*w["W"], *w["V"]))
    k, scale = k / np.sqrt(k.size), 0.0 if m < -1e29 else np.exp(m)
    i, f = 15 * np.tanh((w["w"].dot(x) + w["d"]) / 15)
    C = s(f) * (C * scale) + np.exp(i) * v[:, None] * k[None, :]
    n = s(f) * (n * scale) + np.exp(i) * k
    h = C.dot(q) / max(abs(n.dot(q)), 1.0)
    h = s(o) * w["a"] * (h - h.mean()) / np.sqrt(h.var() + 1e-6)
    m = np.maximum(np.log(s(f)) + m, i)
    return h, C / np.exp(m), n / np.exp(m), m


def ran(w: Weights, x: Array, h: Array, c: Array) -> Result:
    g = Gates("if", w, x, h)
    c = s(g.i) * w["V"].dot(x) + s(g.f) * c
    return np.tanh(c), np.tanh(c), c


def atr(w: Weights, x: Array, h: Array) -> Result:
    p, q = w["W"].dot(x), w["R"].dot(h)
    h = s(p + q) * p + s(p - q) * h
    return h, h


def t_rnn(w: Weights, x: Array, h: Array) -> Result:
    f = s(w["W"][1].dot(x) + w["b"])
    h = f * h + (1 - f) * w["W"][0].dot(x)
    return h, h


def brc(w: Weights, x: Array, h: Array) -> Result:
    g = Gates("can", w, x)
    c, a = s(g.c + w["w"][0] * h), 1 + np.tanh(g.a + w["w"][1] * h)
    h = c * h + (1 - c) * np.tanh(g.n + a * h)
    return h, h


def nbrc(w: Weights, x: Array, h: Array) -> Result:
    g = Gates("can", w, x, h, recurrent="ca")
    h = s(g.c) * h + (1 - s(g.c)) * np.tanh(g.n + (1 + np.tanh(g.a)) * h)
    return h, h


def minimal_rnn(w: Weights, x: Array, h: Array) -> Result:
    v = np.tanh(w["W"].dot(x) + w["b_v"])
    u = s(w["R"].dot(h) + w["U"].dot(v) + w["b"])
    h = u * h + (1 - u) * v
    return h, h


def star(w: Weights, x: Array, h: Array) -> Result:
    g = Gates("kv", w, x)
    k = s(g.k + w["R"].dot(h))
    h = np.tanh((1 - k) * h + k * np.tanh(g.v))
    return h, h


def cfn(w: Weights, x: Array, h: Array) -> Result:
    f, i = (s(w["W"][k].dot(x) + w["R"][k].dot(h) + w["b"][k]) for k in range(2))
    h = f * np.tanh(h) + i * np.tanh(w["W"][2].dot(x))
    return h, h


def gated_delta_net(w: Weights, x: Array, S: Array) -> Result:
    """S' = a S (1 - b k k^T) + b v k^T as matrices; delta_net is a = 1."""
    q, k, v = (u * s(u) for u in (w["W"][j].dot(x) for j in range(3)))
    q, k = q / np.sqrt((q**2).sum() + 1e-6), k / np.sqrt((k**2).sum() + 1e-6)
    b, a = s(w["w"].dot(x)), 1.0
    if "A" in w:
        b, a = s(w["w"][0].dot(x)), np.exp(-np.exp(w["A"]) * np.log1p(np.exp(w["w"][1].dot(x) + w["b_a"])))
    S = a * S.dot(np.eye(k.size) - b * np.outer(k, k)) + b * np.outer(v, k)
    return S.dot(q), S


def softplus(v: Array) -> Array:
    return np.log1p(np.exp(v))


def silu(v: Array) -> Array:
    return v * s(v)


def unit(v: Array) -> Array:
    return v / np.sqrt((v**2).sum() + 1e-6)


def rms(v: Array) -> Array:
    return v / np.sqrt((v**2).sum() / v.size + 1e-6)


def gated_delta_net_conv(w: Weights, x: Array, S: Array, *past: Array) -> Result:
    """One group of heads: those of the values share q and k."""
    seen = [*past[::-1], np.array([part.dot(x) for part in w["W"]])]  # the oldest first
    q, k, *values = silu(np.array([w["c"][j] * seen[j] for j in range(4)]).sum(0))
    q, k, y, new = unit(q), unit(k), [], []
    for m, v in enumerate(values):
        b, a = s(w["w"][0, m].dot(x)), np.exp(-np.exp(w["A"][m]) * softplus(w["w"][1, m].dot(x) + w["b_a"][m]))
        new.append(a * S[m].dot(np.eye(k.size) - b * np.outer(k, k)) + b * np.outer(v, k))
        y.append(w["a"] * rms(new[m].dot(q)) * silu(w["V"][m].dot(x)))
    return np.concatenate(y), np.array(new), seen[3], seen[2], seen[1]


def rwkv7(w: Weights, x: Array, S: Array, last: Array) -> Result:
    """Rows, as the paper has them: wkv' = wkv (diag(w) - z^T (a * z)) + v^T s."""
    r, k, v, d, a, g = ((1 - mu) * x + mu * last for mu in w["mu"])
    r, k, v = (W.dot(part) for W, part in zip(w["W"], (r, k, v), strict=True))
    d = np.exp(-np.exp(-0.5) * s(w["U"][0].dot(np.tanh(w["V"][0].dot(d))) + w["b"][0]))
    a, g = s(w["U"][1].dot(w["V"][1].dot(a)) + w["b"][1]), w["U"][2].dot(s(w["V"][2].dot(g)))
    z = k * w["c"][0] / np.sqrt(((k * w["c"][0]) ** 2).sum() + 1e-12)
    replaced = k * (1 * (1 - w["c"][1]) + a * w["c"][1])
    S = S.dot(np.diag(d) - np.outer(z, a * z)) + np.outer(v, replaced)
    p = r.dot(S.T)
    p = (p - p.mean()) / np.sqrt(((p - p.mean()) ** 2).mean() + 1e-5 * p.size) * w["a_y"] + w["b_y"]
    return g * (p + (r * w["c"][2] * replaced).sum() * v), S, x


def retnet(w: Weights, x: Array, S: Array, *, head: int = 0) -> Result:
    """Rows: S = g S + k^T v, o = q S."""
    (q, k), (v, g) = ([part.dot(x) for part in w[name]] for name in "WV")
    S = (1 - 2.0 ** -(5 + head)) * S.T + k[:, None] * v
    return silu(g) * norm(q.dot(S)), S.T


def retnet_rotary(w: Weights, x: Array, S: Array, re: Array, im: Array, *, head: int = 0) -> Result:
    """Rows, in complex numbers: S = g S + conj(k e)^T v, o = real(q e S)."""
    e = (re + 1j * im) * np.exp(1j * 10000.0 ** (-np.arange(re.size) / re.size))
    q, k = ((part[0].dot(x) + 1j * part[1].dot(x)) * e for part in w["W"])
    v, g = (part.dot(x) for part in w["V"])
    old = S[:, : re.size].T - 1j * S[:, re.size :].T
    new = (1 - 2.0 ** -(5 + head)) * old + np.outer(k.conj(), v)
    return silu(g) * norm(q.dot(new).real), np.concatenate([new.real, -new.imag]).T, e.real, e.imag


def gla(w: Weights, x: Array, S: Array) -> Result:
    """Rows: S = (a^T 1) * S + k^T v, o = q S."""
    (q, k), (v, r) = ([part.dot(x) for part in w[name]] for name in "WV")
    a = s(w["U_a"].dot(w["W_a"].dot(x)) + w["b_a"]) ** (1 / 16)
    S = np.outer(a, np.ones(v.size)) * S.T + k[:, None] * v
    return silu(r + w["b_r"]) * w["a"] * norm(q.dot(S)), S.T


def hgrn2(w: Weights, x: Array, S: Array) -> Result:
    f = w["low"] + (1 - w["low"]) * s(w["W"][1].dot(x))
    S = S.dot(np.diag(f)) + np.outer(w["V"].dot(x), 1 - f)
    return S.dot(silu(w["W"][0].dot(x))), S


def mamba2(w: Weights, x: Array, S: Array) -> Result:
    """One group of heads: they share B and C. Each is h' = a h + dt B x^T, y = C^T h + D x, with h as K x H."""
    B, C = (part.dot(x) for part in w["V"])
    return mamba2_heads(w, x, S, [W.dot(x) for W in w["W"]], B, C)


def mamba2_heads(w: Weights, x: Array, S: Array, values: list[Array], B: Array, C: Array) -> Result:
    y, new = [], []
    for m, v in enumerate(values):
        dt = softplus(w["w"][m].dot(x) + w["b"][m])
        h = np.exp(-np.exp(w["A"][m]) * dt) * S[m].T + dt * B[:, None] * v
        y.append(C.dot(h) + w["D"][m] * v)
        new.append(h.T)
    return np.concatenate(y), np.array(new)


def mamba2_conv(w: Weights, x: Array, S: Array, *past: Array) -> Result:
    seen, K, H = [*past[::-1], w["W"].dot(x)], S.shape[2], S.shape[1]
    c = silu(w["b_c"] + sum(w["c"][j] * seen[j] for j in range(4)))
    values, B, C = [c[H * m : H * m + H] for m in range(S.shape[0])], c[-2 * K : -K], c[-K:]
    y, S = mamba2_heads(w, x, S, values, B, C)
    return w["a"] * rms(y * np.concatenate([silu(V.dot(x)) for V in w["V"]])), S, seen[3], seen[2], seen[1]


def lru(w: Weights, x: Array, re: Array, im: Array) -> Result:
    a = np.exp(-np.exp(w["nu"]) + 1j * np.exp(w["theta"]))
    h = a * (re + 1j * im) + np.exp(w["g"]) * (w["B"][0] + 1j * w["B"][1]).dot(x)
    return ((w["C"][0] + 1j * w["C"][1]).dot(h)).real + w["D"].dot(x), h.real, h.imag


def s5(w: Weights, x: Array, re: Array, im: Array) -> Result:
    rate = -np.exp(w["L"][0]) + 1j * w["L"][1]
    a = np.exp(rate * np.exp(w["s"]))
    h = a * (re + 1j * im) + (a - 1) / rate * (w["B"][0] + 1j * w["B"][1]).dot(x)
    return 2 * ((w["C"][0] + 1j * w["C"][1]).dot(h)).real + w["D"].dot(x), h.real, h.imag


def correlated(kernel: Array, x: Array) -> Array:
    """[.., H, I, ky, kx] over [I, Y, X] with zeros around: pixel by pixel, as large as x."""
    height, width = kernel.shape[-2:]
    wide = np.pad(x, ((0, 0), (height // 2, height // 2), (width // 2, width // 2)))
    found = np.zeros((*kernel.shape[:-3], *x.shape[1:]))
    for i, j in np.ndindex(x.shape[1:]):
        found[..., i, j] = np.sum(kernel * wide[:, i : i + height, j : j + width], axis=(-3, -2, -1))
    return found


def gates_of_images(w: Weights, x: Array, h: Array, count: int) -> list[Array]:
    return [
        correlated(w["W"][k], x) + (correlated(w["R"][k], h) if k < count else 0) + w["b"][k][:, None, None]
        for k in range(len(w["W"]))
    ]


def conv_lstm(w: Weights, x: Array, h: Array, c: Array) -> Result:
    i, f, g, o = gates_of_images(w, x, h, 4)
    c = s(f) * c + s(i) * np.tanh(g)
    h = s(o) * np.tanh(c)
    return h, h, c


def conv_lstm_peephole(w: Weights, x: Array, h: Array, c: Array) -> Result:
    i, f, g, o = gates_of_images(w, x, h, 4)
    c = s(f + w["p"][1] * c) * c + s(i + w["p"][0] * c) * np.tanh(g)
    h = s(o + w["p"][2] * c) * np.tanh(c)
    return h, h, c


def conv_gru(w: Weights, x: Array, h: Array) -> Result:
    z, r, n = gates_of_images(w, x, h, 2)
    n = np.tanh(n + correlated(w["R"][2], s(r) * h))
    h = (1 - s(z)) * h + s(z) * n
    return h, h


def conv_gru_separable(w: Weights, x: Array, h: Array) -> Result:
    for way in ("h", "v"):
        h, _ = conv_gru({name: w[f"{name}_{way}"] for name in "WRb"}, x, h)
    return h, h


def rg_lru(w: Weights, x: Array, h: Array) -> Result:
    u = w["V"].dot(x)
    r, i = (s(W.dot(u) + b) for W, b in zip(w["W"], w["b"], strict=True))
    a = s(w["A"]) ** (8 * r)
    h = a * h + np.sqrt(1 - a**2) * (i * u)
    return h, h


def softmax(v: Array) -> Array:
    e = np.exp(v - v.max())
    return np.asarray(e / e.sum())


def gru_attention(w: Weights, x: Array, h: Array, memory: Array, keys: Array, mask: Array) -> Result:
    scores = [w["v"].dot(np.tanh(key + w["Q"].dot(h))) + m for key, m in zip(keys, mask, strict=True)]
    read = np.sum([p * row for p, row in zip(softmax(np.array(scores)), memory, strict=True)], axis=0)
    return gru(w, np.concatenate([x, read]), h)


def lstm_attention(w: Weights, x: Array, a: Array, h: Array, c: Array, memory: Array, mask: Array) -> Result:
    h, _, c = lstm(w, np.concatenate([x, a]), h, c)
    scores = [row.dot(w["Q"]).dot(h) + m for row, m in zip(memory, mask, strict=True)]
    read = np.sum([p * row for p, row in zip(softmax(np.array(scores)), memory, strict=True)], axis=0)
    a = np.tanh(w["C"].dot(np.concatenate([read, h])))
    return a, a, h, c


def transducer(w: Weights, x: Array, h: Array, c: Array, memory: Array) -> Result:
    h, _, c = lstm(w, x, h, c)
    y = [w["V"].dot(np.tanh(row + w["P"].dot(h) + w["b_A"])) + w["b_V"] for row in memory]
    return np.concatenate(y), h, c


def nas(w: Weights, x: Array, h: Array, c: Array) -> Result:
    u, v = [W.dot(x) for W in w["W"]], [R.dot(h) + b for R, b in zip(w["R"], w["b"], strict=True)]
    first = [f(u[k] + v[k]) for k, f in enumerate([s, relu, s, None, np.tanh, s, np.tanh, s]) if f is not None]
    first.insert(3, relu(u[3] * v[3]))
    second = [np.tanh(first[0] * first[1]), np.tanh(first[2] + first[3]), np.tanh(first[4] * first[5])]
    c = np.tanh(second[0] + c) * second[1]
    h = np.tanh(c * np.tanh(second[2] + s(first[6] + first[7])))
    return h, h, c


EQUATIONS: dict[str, Callable[..., Result]] = {
    **{f"lstm_{change}": odyssey(change) for change in ("nig", "nfg", "nog", "niaf", "noaf", "np", "cifg", "fgr")},
    **{name: value for name, value in list(globals().items()) if name in cells.ZOO},
    "delta_net": gated_delta_net,
}


def test_every_cell_is_transcribed() -> None:
    assert set(EQUATIONS) == set(cells.names())


def drawn(name: str, sizes: Mapping[str, int]) -> tuple[RNN, dict[str, Array]]:
    """The network with weights and inputs."""
    zoo_cell, rng = cells.get(name), np.random.default_rng(5)
    net = RNN(zoo_cell, 4, 6, dtype="float64", **{n: size for n, size in sizes.items() if n in zoo_cell.size_names})
    net.load({key: rng.normal(scale=0.7, size=shape) for key, shape in net.weight_shapes.items()})
    return net, {a.name: rng.normal(size=(STEPS, ROWS, *a.shape(net.layers[0].sizes))) for a in zoo_cell.inputs}


@pytest.mark.parametrize("sizes", [{}, {"K": 5, "M": 3, "R": 2}], ids=["", "other sizes"])
@pytest.mark.parametrize("name", cells.names())
def test_oracle_is_the_paper(name: str, sizes: Mapping[str, int]) -> None:
    if sizes and not set(sizes) & set(cells.get(name).size_names):
        return
    net, inputs = drawn(name, {**SIZES, **sizes})
    held = constants(net, ROWS)
    y, final = rnn.reference(net)(inputs, **held)
    w = {key.removesuffix("_l0"): value for key, value in net.weights.items()}
    first = net.cell.inputs[0].name
    for row in range(ROWS):
        states: list[Any] = [value[0, row].astype(float) for value in net.initial_state(ROWS).values()]
        for t in range(STEPS):
            others = {key: value[t, row] for key, value in inputs.items() if key != first}
            others |= {key: value[row] for key, value in held.items()}
            out, *states = EQUATIONS[name](w, inputs[first][t, row], *states, **others)
            assert_close(y[t, row], out, "float64", STEPS, f"{name} y[{t}, {row}]")
        carried = [key for key in final if key not in held]
        for key, value in zip(carried, states, strict=True):
            assert_close(final[key][0, row], value, "float64", STEPS, f"{name} {key}")


COUPLED = "block_gru"  # its blocks read one another
HEADS = [name for name in cells.names() if "N" in cells.get(name).size_names and name != COUPLED]


def of_head(values: Mapping[str, Array], axes: Mapping[str, tuple[str, ...]], head: int) -> dict[str, Array]:
    """Of each array what belongs to one head."""
    return {
        name: np.take(value, head, axis=axes[name].index("N?")) if "N?" in axes[name] else value
        for name, value in values.items()
    }


@pytest.mark.parametrize("name", HEADS)
def test_each_head_is_the_paper(name: str) -> None:
    """N heads, or groups of heads, are N cells of one that lie side by side in the output."""
    net, inputs = drawn(name, {"N": 2, "M": 3, "K": 5})
    y, final = rnn.reference(net)(inputs)
    axes = {a.name: tuple(a.dims.text.split()) for a in (*net.cell.states, *net.cell.params)}
    w = {key.removesuffix("_l0"): value for key, value in net.weights.items()}
    width = y.shape[-1] // 2
    for head in range(2):
        begin = of_head({key: value[0, 0] for key, value in net.initial_state(ROWS).items()}, axes, head)
        states: list[Any] = [value.astype(float) for value in begin.values()]
        own = {"head": head} if name.startswith("retnet") else {}
        for t in range(STEPS):
            out, *states = EQUATIONS[name](of_head(w, axes, head), inputs["x"][t, 0], *states, **own)
            assert_close(y[t, 0, head * width :][:width], out, "float64", STEPS, f"{name} y[{t}], head {head}")
        end = of_head({key: value[0, 0] for key, value in final.items()}, axes, head)
        for key, value in zip(end, states, strict=True):
            assert_close(end[key], value, "float64", STEPS, f"{name} {key}, head {head}")


def test_blocks_that_read_one_another() -> None:
    net, inputs = drawn(COUPLED, {"N": 2, **SIZES})
    (y, final), begin = rnn.reference(net)(inputs), net.initial_state(ROWS)
    w = {key.removesuffix("_l0"): value for key, value in net.weights.items()}
    h = begin["h"][0, 0].astype(float)
    for t in range(STEPS):
        out, h = block_gru(w, inputs["x"][t, 0], h, a=inputs["a"][t, 0])
        assert_close(y[t, 0], out, "float64", STEPS, f"y[{t}]")
    assert_close(final["h"][0, 0], h, "float64", STEPS)


def test_retention_over_all_steps_at_once() -> None:
    """RetNet's equation 5: (Q K^T * D) V, with Q and K turned by their positions."""
    net, inputs = drawn("retnet_rotary", {"K": 5})
    x, w = inputs["x"][:, 0], {key.removesuffix("_l0"): value for key, value in net.weights.items()}
    turns = np.exp(1j * np.outer(np.arange(STEPS), 10000.0 ** (-np.arange(5) / 5)))
    q, k = (turns * (x.dot(part[0].T) + 1j * x.dot(part[1].T)) for part in w["W"])
    v, g = (x.dot(part.T) for part in w["V"])
    past = np.subtract.outer(np.arange(STEPS), np.arange(STEPS))
    kept = np.where(past >= 0, (1 - 2.0**-5) ** past.astype(float), 0.0)
    o = (q.dot(k.conj().T) * kept).dot(v).real
    y = silu(g) * np.array([norm(row) for row in o])
    assert_close(rnn.reference(net)(inputs)[0][:, 0], y, "float64", STEPS)


WITHOUT_HEADS = {
    "delta_net": {"W_l0": (3, 6, 4), "w_l0": (4,)},
    "gated_delta_net": {"W_l0": (3, 6, 4), "w_l0": (2, 4), "A_l0": (), "b_a_l0": ()},
    "mlstm": {"W_l0": (4, 6, 4), "b_l0": (4, 6), "w_l0": (2, 4), "d_l0": (2,)},
    "slstm": {"W_l0": (4, 6, 4), "R_l0": (4, 6, 6), "b_l0": (4, 6)},
}


@pytest.mark.parametrize("name", WITHOUT_HEADS)
def test_one_head_is_none(name: str) -> None:
    """What was made before these cells had heads is still loaded: without N no array has an axis of heads."""
    one, inputs = drawn(name, {"N": 1})
    net = RNN(cells.get(name), 4, 6, dtype="float64")
    assert net.weight_shapes == WITHOUT_HEADS[name]
    net.load({key: value.reshape(net.weight_shapes[key]) for key, value in one.weights.items()})
    (y, final), (same, heads) = rnn.reference(net)(inputs), rnn.reference(one)(inputs)
    assert_close(y, same, "float64", STEPS)
    assert_close(final, {key: heads[key].reshape(value.shape) for key, value in final.items()}, "float64", STEPS)
