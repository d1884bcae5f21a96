"""Where a network came from: what a module's manifest says of it, and what the way back to its framework needs.

In: facts from `frontends/`. Out: `RNN.origin`, which `compiler/compile.py` writes into the manifest, `tvm-rnn inspect`
prints, and the functions that give a layer back to its framework read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Origin:
    """A layer of another framework.

    framework: "torch", "onnx" or "keras". layer: what it was there, such as "torch.nn.LSTM". file, sha256: where it was
    read from, if it was a file. batch_first: whether its own arrays are [B, T, ...]; `RNN.batch_first` says it of ours.
    options: its arguments that our network has no place for. biases: for a bias of ours the two arrays that it was
    added up from, kept so that the way back gives the same bits.
    """

    framework: str
    layer: str
    file: str | None = None
    sha256: str | None = None
    batch_first: bool = False
    options: Mapping[str, object] = field(default_factory=dict)
    biases: Mapping[str, Pair] = field(default_factory=dict, repr=False)

    def facts(self) -> dict[str, object]:
        """What the manifest says: everything but the arrays."""
        return {
            "framework": self.framework,
            "layer": self.layer,
            "file": self.file,
            "sha256": self.sha256,
            "batch_first": self.batch_first,
        }


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are the same bit for bit: NaN equals itself, 0 is not -0."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
