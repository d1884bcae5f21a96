"""Less known cells of the zoo against transcriptions of their papers, gate by gate and partly unit by unit.

In: `cells/additive.py`, `bistable.py`, `delta.py`, `dynamics.py`, `gates.py`, `nas.py`. Out: failures where the oracle
differs from the transcription here, which is written without any function of tvm_rnn.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tvm_rnn import RNN, cells, reference

T, B, INPUT, H = 6, 3, 5, 7
Array = np.ndarray
Step = tuple[Array, dict[str, Array]]


def logistic(v: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.asarray(v)))


def ran(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    content = w["V"] @ x
    i = logistic(w["W"][0] @ x + w["R"][0] @ s["h"] + w["b"][0])
    f = logistic(w["W"][1] @ x + w["R"][1] @ s["h"] + w["b"][1])
    c = np.array([i[j] * content[j] + f[j] * s["c"][j] for j in range(H)])
    return np.tanh(c), {"h": np.tanh(c), "c": c}


def atr(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    h = np.empty(H)
    for j in range(H):
        p = math.fsum(w["W"][j] * x)
        q = math.fsum(w["R"][j] * s["h"])
        h[j] = p / (1 + math.exp(-p - q)) + s["h"][j] / (1 + math.exp(q - p))
    return h, {"h": h}


def t_rnn(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    h = np.empty(H)
    for j in range(H):
        z = math.fsum(w["W"][0, j] * x)
        f = 1 / (1 + math.exp(-(math.fsum(w["W"][1, j] * x) + w["b"][j])))
        h[j] = f * s["h"][j] + (1 - f) * z
    return h, {"h": h}


def brc(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    h = np.empty(H)
    for j, old in enumerate(s["h"]):
        c = logistic(w["W"][0, j] @ x + w["w"][0, j] * old + w["b"][0, j])
        a = 1 + math.tanh(w["W"][1, j] @ x + w["w"][1, j] * old + w["b"][1, j])
        h[j] = c * old + (1 - c) * math.tanh(w["W"][2, j] @ x + w["b"][2, j] + a * old)
    return h, {"h": h}


def nbrc(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    c = logistic(w["W"][0] @ x + w["R"][0] @ s["h"] + w["b"][0])
    a = 1 + np.tanh(w["W"][1] @ x + w["R"][1] @ s["h"] + w["b"][1])
    h = c * s["h"] + (1 - c) * np.tanh(w["W"][2] @ x + w["b"][2] + a * s["h"])
    return h, {"h": h}


def normalised(v: Array) -> Array:
    v = v * logistic(v)
    return v / math.sqrt(math.fsum(v * v) + 1e-6)


def delta_net(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    q, k = normalised(w["W"][0] @ x), normalised(w["W"][1] @ x)
    v = w["W"][2] @ x
    v, beta = v * logistic(v), logistic(w["w"] @ x)
    S = s["S"] @ (np.eye(H) - beta * np.outer(k, k)) + beta * np.outer(v, k)  # the paper's other form
    return S @ q, {"S": S}


def gated_delta_net(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    q, k = normalised(w["W"][0] @ x), normalised(w["W"][1] @ x)
    v = w["W"][2] @ x
    v, beta = v * logistic(v), logistic(w["w"][0] @ x)
    alpha = math.exp(-math.exp(w["A"]) * math.log(1 + math.exp(w["w"][1] @ x + w["b_a"])))
    S = alpha * s["S"] @ (np.eye(H) - beta * np.outer(k, k)) + beta * np.outer(v, k)
    return S @ q, {"S": S}


def antisymmetric(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    A = np.array([[w["R"][i, j] - w["R"][j, i] - (0.01 if i == j else 0.0) for j in range(H)] for i in range(H)])
    h = s["h"] + 0.01 * np.tanh(A @ s["h"] + w["W"] @ x + w["b"])
    return h, {"h": h}


def antisymmetric_gated(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    A = w["R"] - w["R"].T - 0.01 * np.eye(H)
    z = logistic(A @ s["h"] + w["W"][0] @ x + w["b"][0])
    h = s["h"] + 0.01 * z * np.tanh(A @ s["h"] + w["W"][1] @ x + w["b"][1])
    return h, {"h": h}


def cornn(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    drive = np.tanh(w["R_y"] @ s["y"] + w["R_z"] @ s["z"] + w["W"] @ x + w["b"])
    z = s["z"] + 0.05 * drive - 0.05 * 1.7 * s["y"] - 0.05 * 4.0 * s["z"]
    y = s["y"] + 0.05 * z
    return y, {"y": y, "z": z}


def lem(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    fast, slow = (logistic(w["W"][g] @ x + w["R"][g] @ s["y"] + w["b"][g]) for g in (0, 1))
    z = (1 - fast) * s["z"] + fast * np.tanh(w["W"][2] @ x + w["R"][2] @ s["y"] + w["b"][2])
    y = (1 - slow) * s["y"] + slow * np.tanh(w["W"][3] @ x + w["V"] @ z + w["b"][3])
    return y, {"y": y, "z": z}


def nas(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    u = [w["W"][g] @ x for g in range(8)]
    v = [w["R"][g] @ s["h"] + w["b"][g] for g in range(8)]
    first = [
        logistic(u[0] + v[0]),
        np.maximum(u[1] + v[1], 0),
        logistic(u[2] + v[2]),
        np.maximum(u[3] * v[3], 0),
        np.tanh(u[4] + v[4]),
        logistic(u[5] + v[5]),
        np.tanh(u[6] + v[6]),
        logistic(u[7] + v[7]),
    ]
    second = [
        np.tanh(first[0] * first[1]),
        np.tanh(first[2] + first[3]),
        np.tanh(first[4] * first[5]),
        logistic(first[6] + first[7]),
    ]
    c = np.tanh(second[0] + s["c"]) * second[1]
    h = np.tanh(c * np.tanh(second[2] + second[3]))
    return h, {"h": h, "c": c}


def minimal_rnn(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    v = np.tanh(w["W"] @ x + w["b_v"])
    u = logistic(w["R"] @ s["h"] + w["U"] @ v + w["b"])
    h = np.array([u[j] * s["h"][j] + (1 - u[j]) * v[j] for j in range(H)])
    return h, {"h": h}


def star(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    k = logistic(w["W"][0] @ x + w["R"] @ s["h"] + w["b"][0])
    z = np.tanh(w["W"][1] @ x + w["b"][1])
    h = np.tanh(s["h"] - k * s["h"] + k * z)
    return h, {"h": h}


def cfn(w: dict[str, Array], x: Array, s: dict[str, Array]) -> Step:
    theta = logistic(w["R"][0] @ s["h"] + w["W"][0] @ x + w["b"][0])
    eta = logistic(w["R"][1] @ s["h"] + w["W"][1] @ x + w["b"][1])
    h = theta * np.tanh(s["h"]) + eta * np.tanh(w["W"][2] @ x)
    return h, {"h": h}


TRANSCRIPTIONS = (
    ran,
    atr,
    t_rnn,
    brc,
    nbrc,
    delta_net,
    gated_delta_net,
    antisymmetric,
    antisymmetric_gated,
    cornn,
    lem,
    nas,
    minimal_rnn,
    star,
    cfn,
)


@pytest.mark.parametrize("transcription", TRANSCRIPTIONS, ids=lambda f: f.__name__)
def test_oracle_equals_the_transcription(transcription: Any) -> None:
    rng = np.random.default_rng(5)
    net = RNN(cells.get(transcription.__name__), INPUT, H, dtype="float64")
    net.load({name: rng.normal(scale=0.7, size=shape) for name, shape in net.weight_shapes.items()})
    w = {p.name: net.weights[f"{p.name}_l0"] for p in net.cell.params}
    x = rng.normal(size=(T, B, INPUT))
    start = {name: rng.normal(size=a.shape) for name, a in net.initial_state(B).items()}
    y, state = reference(net)(x, start)
    for row in range(B):
        own = {name: a[0, row] for name, a in start.items()}
        for t in range(T):
            expected, own = transcription(w, x[t, row], own)
            np.testing.assert_allclose(y[t, row], expected, rtol=1e-12, atol=1e-12)
        for name, value in own.items():
            np.testing.assert_allclose(state[name][0, row], value, rtol=1e-12, atol=1e-12)
