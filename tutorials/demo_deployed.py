"""What runs on the machine that serves the model: numpy and tvm_ffi, no compiler; and the peer beside it, torch.

In: a folder with digits.so, runtime.py and data.npz, as demo.py fills it, where a copy of this file lies too. Out: the
outputs as .npy files; on stdout facts as one line of JSON, then one more with times for each line on stdin.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
Layer = Callable[[Array], Any]

COMPILERS = ("tvm", "tvm_rnn", "torch")
ROUND_SECONDS, SETTLE_SECONDS = 0.02, 0.05


class Stopwatch:
    """Times layers in rounds; one round is each layer at each input, once for about ROUND_SECONDS."""

    def __init__(self, layers: Mapping[str, Layer], inputs: Mapping[str, Any]) -> None:
        self.layers, self.inputs, self.calls = layers, inputs, dict[tuple[str, str], int]()
        for name, layer in layers.items():
            for size, x in inputs.items():
                layer(x)  # the first call also makes buffers
                started = time.perf_counter()
                layer(x)
                self.calls[name, size] = max(1, round(ROUND_SECONDS / (time.perf_counter() - started)))

    def round_us(self) -> dict[str, dict[str, float]]:
        """Microseconds of one call, by layer and input. Threads that have worked before are asleep when it begins."""
        found: dict[str, dict[str, float]] = {name: {} for name in self.layers}
        for (name, size), calls in self.calls.items():
            layer, x = self.layers[name], self.inputs[size]
            time.sleep(SETTLE_SECONDS)
            started = time.perf_counter()
            for _ in range(calls):
                layer(x)
            found[name][size] = (time.perf_counter() - started) / calls * 1e6
        return found


def numpy_lstm(W: Array, R: Array, b: Array) -> Layer:
    """The same LSTM as one would write it in NumPy with speed in mind, in the dtype of the weights.

    One product for the inputs of all steps, one per step for the state of all rows, weights transposed ahead, the three
    sigmoid gates side by side, results written in place.
    """
    order, H = [0, 1, 3, 2], R.shape[-1]  # i f o g
    w, r = (np.ascontiguousarray(m[order].reshape(4 * H, -1).T) for m in (W, R))
    bias = b[order].reshape(-1)

    def layer(x: Array) -> Array:
        T, B, features = x.shape
        from_x = (x.reshape(T * B, features) @ w + bias).reshape(T, B, 4 * H)
        h, c = np.zeros((2, B, H), x.dtype)
        y = np.empty((T, B, H), x.dtype)
        for t in range(T):
            z = from_x[t]
            z += h @ r
            gates = z[:, : 3 * H]
            np.exp(np.negative(gates, out=gates), out=gates)
            gates += 1
            np.reciprocal(gates, out=gates)
            g = np.tanh(z[:, 3 * H :])
            c = gates[:, H : 2 * H] * c + gates[:, :H] * g
            h = np.multiply(gates[:, 2 * H :], np.tanh(c), out=y[t])
        return y

    return layer


def start_module(folder: Path, data: Mapping[str, Array]) -> tuple[dict[str, Any], Stopwatch]:
    """Load digits.so and recognise the test images. (facts, the module and NumPy to be timed)."""
    for name in COMPILERS:
        sys.modules[name] = None  # from here on, `import tvm` is an ImportError
    import runtime  # the copy in this folder

    mod = runtime.load(folder / "digits.so")
    y, _ = mod(data["x"])
    features = np.concatenate([*y, np.ones((y.shape[1], 1))], axis=1)
    digits = np.argmax(features @ data["readout"], axis=1)
    np.save(folder / "y_module.npy", y)

    assert runtime.__file__ == str(folder / "runtime.py")
    assert all(sys.modules[name] is None for name in COMPILERS)
    assert not any(name.startswith(tuple(f"{c}." for c in COMPILERS)) for name in sys.modules)

    layers: dict[str, Layer] = {"tvm_rnn": mod, "NumPy": numpy_lstm(data["W"], data["R"], data["b"])}
    np.save(folder / "y_numpy.npy", layers["NumPy"](data["x"]))
    versions = {"numpy": np.__version__, "tvm_ffi": sys.modules["tvm_ffi"].__version__}
    inputs = {"all": data["x"], "one": data["x_one"]}
    return {"versions": versions, "digits": digits.tolist()}, Stopwatch(layers, inputs)


def start_torch(folder: Path, data: Mapping[str, Array]) -> tuple[dict[str, Any], Stopwatch]:
    """The same weights in torch.nn.LSTM. Raises ImportError where torch is not installed."""
    import torch

    torch.set_num_threads(1)
    gates, H, features = data["W"].shape
    layer = torch.nn.LSTM(features, H)
    values = {
        "weight_ih_l0": data["W"].reshape(gates * H, features),
        "weight_hh_l0": data["R"].reshape(gates * H, H),
        "bias_ih_l0": data["b"].reshape(-1),
        "bias_hh_l0": np.zeros(gates * H, np.float32),
    }
    layer.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()})

    def call(x: Any) -> Any:
        with torch.inference_mode():
            return layer(x)[0]

    inputs = {"all": torch.from_numpy(data["x"]), "one": torch.from_numpy(data["x_one"])}
    np.save(folder / "y_torch.npy", call(inputs["all"]).numpy())
    return {"versions": {"torch": torch.__version__}}, Stopwatch({"PyTorch": call}, inputs)


def main() -> None:
    folder = Path(__file__).resolve().parent
    with np.load(folder / "data.npz") as file:
        data = dict(file)
    start = {"module": start_module, "torch": start_torch}[sys.argv[1]]
    try:
        facts, stopwatch = start(folder, data)
    except ImportError as reason:
        if sys.argv[1] == "module":
            raise
        print(json.dumps({"skip": f"{reason}"}), flush=True)
        return
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:  # one line is one request; processes take turns
        print(json.dumps(stopwatch.round_us()), flush=True)


if __name__ == "__main__":
    main()
