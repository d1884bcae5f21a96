"""A transducer that decodes greedily, and the same as a loop over labels and frames in NumPy.

In: an encoder's frames, a constant of each sequence, and how many of them count. Out: labels, 0 for "next frame".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import tvm_rnn as rnn

MOST = 3  # labels of one frame
SIZES = {"S": 6, "M": 5, "V": 7, "D": 4, "J": 8}


@rnn.cell(states="h t k", output="label", constants="frames count")
def transducer(
    x: "1",
    h: "H",
    t: "",
    k: "",
    frames: "S M",
    count: "",
    *,
    E: "V D",
    W: "3 H D",
    R: "3 H H",
    b: "3 H",
    A: "J M",
    P: "J H",
    Q: "V J",
) -> Any:
    """Label V - 1 is the end. t: the frame that is looked at; k: how many labels it has given."""
    end = Q.shape[0] - 1.0
    given = rnn.take(np.arange(Q.shape[0]), x[0]) > 0.5  # as a place alone, x is a label: an integer
    z, r, n = W @ E[x[0]] + b
    z, r = rnn.sigmoid(z + R[0] @ h), rnn.sigmoid(r + R[1] @ h)
    h = rnn.where(given, z * h + (1 - z) * rnn.tanh(n + R[2] @ (r * h)), h)
    frame = frames[rnn.minimum(t, frames.shape[0] - 1.0)]
    label = rnn.argmax(Q @ rnn.tanh(A @ frame + P @ h))
    over, onward = t >= count, rnn.logical_or(label < 0.5, k >= float(MOST))
    label = rnn.where(over, end, rnn.where(onward, 0.0, label))
    k = rnn.where(onward, 0.0, k + 1.0)
    return h, rnn.where(rnn.logical_and(onward, ~over), t + 1.0, t), k, rnn.expand(label, 0)


def network(dtype: str = "float32") -> rnn.RNN:
    net = rnn.RNN(transducer, 1, 12, dtype=dtype, **SIZES).init(seed=3)
    return net.load({name: 4 * value for name, value in net.weights.items()})


def call(batch: int) -> dict[str, np.ndarray]:
    """A prompt and the constants of so many sequences."""
    rng = np.random.default_rng(0)
    frames = 2 * rng.normal(size=(batch, SIZES["S"], SIZES["M"]))
    counts = 1.0 + np.arange(batch) % SIZES["S"]
    return {"prompt": np.zeros((1, batch), int), "frames": frames, "count": counts}


def labels(weights: Mapping[str, np.ndarray], frames: np.ndarray, most: int) -> list[int]:
    """What a sequence of these frames gives, at most so many labels."""
    w = {name.removesuffix("_l0"): value for name, value in weights.items()}
    h, t, k, last, found = np.zeros(len(w["P"][0])), 0, 0, 0, list[int]()
    while len(found) < most and (not found or last < len(w["E"]) - 1):
        if last > 0:
            z, r, n = w["W"] @ w["E"][last] + w["b"]
            z, r = (1 / (1 + np.exp(-(gate + R @ h))) for gate, R in ((z, w["R"][0]), (r, w["R"][1])))
            h = z * h + (1 - z) * np.tanh(n + w["R"][2] @ (r * h))
        if t >= len(frames):
            last = len(w["E"]) - 1
        else:
            last = int(np.argmax(w["Q"] @ np.tanh(w["A"] @ frames[t] + w["P"] @ h)))
            last, t, k = (0, t + 1, 0) if last == 0 or k >= MOST else (last, t, k + 1)
        found.append(last)
    return found
