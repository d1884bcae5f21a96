""".keras files for tests, written without Keras: a config as JSON, arrays in HDF5, both in a zip.

In: layers as (class name, config, arrays below it). Out: files that `from_keras` reads.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tvm_rnn.frontends.keras_file import groups_of

Layer = tuple[str, dict[str, Any], dict[str, Any]]
RNG = np.random.default_rng(0)


def cell_arrays(gates: int, width: int, units: int, *bias: int) -> dict[str, Any]:
    """kernel, recurrent_kernel and bias of a cell."""
    shapes = [(width, gates * units), (units, gates * units), (*bias, gates * units)]
    return {f"cell/vars/{i}": RNG.uniform(-0.5, 0.5, shape).astype("f4") for i, shape in enumerate(shapes)}


def sequential(*layers: Layer, width: int = 3) -> dict[str, Any]:
    """The config of a Sequential model."""
    first = {
        "class_name": "InputLayer",
        "config": {"name": "x", "batch_shape": [None, None, width], "dtype": "float32"},
    }
    own = [
        {"class_name": kind, "config": {"name": f"layer_{i}", **config}} for i, (kind, config, _) in enumerate(layers)
    ]
    return {"class_name": "Sequential", "config": {"name": "s", "layers": [first, *own]}}


def weights_file(*layers: Layer) -> bytes:
    """model.weights.h5 of such a model."""
    buffer = io.BytesIO()
    names = groups_of(["InputLayer", *(kind for kind, _, _ in layers)])[1:]
    with h5py.File(buffer, "w") as file:
        for name, (_, _, arrays) in zip(names, layers, strict=True):
            for path, value in arrays.items():
                file[f"layers/{name}/{path}"] = value
    return buffer.getvalue()


def write(path: Path, config: Any, weights: bytes, compress: int = zipfile.ZIP_STORED) -> Path:
    """A .keras file. config: anything that JSON can hold, or text."""
    with zipfile.ZipFile(path, "w", compress) as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", config if isinstance(config, (str, bytes)) else json.dumps(config))
        archive.writestr("model.weights.h5", weights)
    return path


def tagger() -> Sequence[Layer]:
    """An LSTM in both directions, a GRU, a dense layer."""
    lstm = {"class_name": "LSTM", "config": {"units": 4, "return_sequences": True, "zero_output_for_mask": True}}
    back = {**lstm, "config": {**lstm["config"], "go_backwards": True}}
    sides = {f"{side}_layer/{path}": v for side in ("forward", "backward") for path, v in cell_arrays(4, 3, 4).items()}
    dense = {"vars/0": RNG.normal(size=(5, 2)).astype("f4"), "vars/1": np.ones(2, "f4")}
    return [
        ("Bidirectional", {"layer": lstm, "backward_layer": back, "merge_mode": "concat"}, sides),
        ("GRU", {"units": 5, "return_sequences": True}, cell_arrays(3, 8, 5, 2)),
        ("Dense", {"units": 2, "activation": "softmax"}, dense),
    ]


def changed(config: Mapping[str, Any], number: int, /, **changes: Any) -> dict[str, Any]:
    """The config with one layer's config changed; the input layer is number 0."""
    copy: dict[str, Any] = json.loads(json.dumps(config))
    copy["config"]["layers"][number]["config"].update(changes)
    return copy
