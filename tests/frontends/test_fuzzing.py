"""The fuzzer: that it finds what is planted, makes the same files again, and finds nothing in the frontends.

TVM_RNN_FUZZ_SECONDS: how long the slow test looks, 60 if it is not set. TVM_RNN_FUZZ_SEED: where it begins, 0.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fuzzing
import numpy as np
import pytest
from fuzzing import KINDS, changed_bytes, changed_file, changed_json, changed_model, read, sound_onnx

from tvm_rnn.errors import ConfigError


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_made_again_from_their_seeds(kind: str) -> None:
    assert [changed_file(kind, seed) for seed in range(5)] == [changed_file(kind, seed) for seed in range(5)]
    assert len({changed_file(kind, seed) for seed in range(20)}) > 15


def test_changes() -> None:
    data, value = bytes(range(200)), {"a": [1, {"b": "c"}], "d": None}
    rngs = [np.random.default_rng(seed) for seed in range(50)]
    assert len({changed_bytes(data, rng) for rng in rngs}) > 40
    assert sum(changed_json(value, rng) != value for rng in rngs) > 35 and value == {"a": [1, {"b": "c"}], "d": None}
    model = sound_onnx(2)
    assert sum(changed_model(model, rng) != model for rng in rngs) > 35


def test_what_is_planted_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "x"

    def refuses(path: str) -> None:
        raise ConfigError("a reason")

    def fails(path: str) -> None:
        raise ZeroDivisionError("planted")

    def eats(path: str) -> None:
        assert len(bytearray(1 << 26).replace(b"\0", b"\1")) == 1 << 26

    monkeypatch.setattr(fuzzing, "MOST_BYTES", 1 << 25)
    clock = [0.0]
    monkeypatch.setattr(fuzzing.time, "monotonic", lambda: clock[0])

    def dawdles(path: str) -> None:
        clock[0] += 2 * fuzzing.MOST_SECONDS

    cases: list[tuple[Any, str]] = [
        (lambda path: None, ""),
        (refuses, ""),
        (fails, "ZeroDivisionError: planted"),
        (dawdles, "it took 20.0 s"),
        (eats, " MB"),
    ]
    for reader, text in cases:
        monkeypatch.setitem(fuzzing.READERS, "onnx", reader)
        found = read("onnx", str(path))
        assert text in found and (text != "" or found == ""), found


def test_the_frontends_for_a_moment(tmp_path: Path) -> None:
    for seed in range(300, 420):
        kind = KINDS[seed % 3]
        path = tmp_path / f"file.{kind}"
        path.write_bytes(changed_file(kind, seed))
        assert read(kind, str(path)) == "", (kind, seed)


@pytest.mark.slow
def test_the_frontends(tmp_path: Path) -> None:
    seconds, seed = (int(os.environ.get(f"TVM_RNN_FUZZ_{w}", d)) for w, d in (("SECONDS", "60"), ("SEED", "0")))
    count, findings = fuzzing.fuzz(seconds, seed, tmp_path)
    assert not findings, "\n".join(findings)
    assert count > 0
