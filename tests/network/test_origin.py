"""Origin: what a manifest says of a layer's framework, what `inspect` prints of it, and bits that are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_module import Tiny

from tvm_rnn.errors import BuildError
from tvm_rnn.explain.tables import origin_text
from tvm_rnn.module_file.manifest import validate
from tvm_rnn.network.origin import Origin, same_bits, sha256_of

ORIGIN = Origin("onnx", "LSTM node 'l'", file="m.onnx", sha256="ab12", batch_first=True)


def test_a_manifest_with_an_origin_is_valid_and_shown() -> None:
    validate(Tiny().manifest(origin=ORIGIN.facts()))
    text = origin_text(ORIGIN.facts())
    assert text == "LSTM node 'l', batch_first there, [T, B, ...] here, m.onnx, sha256 ab12"
    assert "batch_first" not in origin_text(ORIGIN.facts(), batch_first=True)
    assert origin_text(Origin("torch", "torch.nn.GRU").facts()) == "torch.nn.GRU"
    for wrong in ({"layer": ""}, {"file": 3}, {"batch_first": None}):
        with pytest.raises(BuildError, match=rf"origin\.{next(iter(wrong))}"):
            validate(Tiny().manifest(origin={**ORIGIN.facts(), **wrong}))


def test_the_digest_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_of(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_bits_are_compared_not_values() -> None:
    nan = np.array([np.nan, 0.0], np.float32)
    assert same_bits(nan, nan.copy())
    assert not same_bits(nan, np.array([np.nan, -0.0], np.float32))
    assert not same_bits(nan, nan.astype(np.float64)) and not same_bits(nan, nan.reshape(2, 1))
