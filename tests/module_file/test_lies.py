"""lies.py: modules whose files lie with a right checksum are refused with a LoadError, or compute what sound ones do.

TVM_RNN_LIES: how many files the slow test makes, 20,000 if it is not set, shared out among the kinds of modules.
TVM_RNN_LIES_SEED: where it begins, 0.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import emulator
import fake_gpu
import pytest
from lies import Parts, fates, lied
from networks import network
from test_onnx import classifier
from tiny_module import Tiny

import tvm_rnn as rnn
from tvm_rnn.runtime import runtime

LIES, SEED = int(os.environ.get("TVM_RNN_LIES", "20000")), int(os.environ.get("TVM_RNN_LIES_SEED", "0"))
KINDS = ("cpu", "int8", "training", "masks", "model", "gpu", "gpu_training")


def sound(kind: str, folder: Path) -> Parts:
    """A module's file of that kind."""
    path = folder / "m.so"
    if kind == "gpu":
        fake_gpu.write_tiny(path)
    elif kind == "gpu_training":
        emulator.compile(network("elman", 3, 4, num_layers=2), training=True).export(path)
    elif kind == "model":
        rnn.compile(rnn.from_onnx(classifier())).export(path)
    elif kind == "training":
        rnn.compile(network("lstm", 3, 4, num_layers=2, bidirectional=True), training=True).export(path)
    elif kind == "masks":
        rnn.compile(network("gru", 3, 4, num_layers=2, dropout=0.25, zoneout={"h": 0.1}), training=True).export(path)
    elif kind == "int8":
        rnn.compile(network("lstm", 3, 4, reverse=True), weights="int8").export(path)
    else:
        rnn.compile(network("gru", 3, [4, 5], num_layers=2)).export(path)
    return Parts.of(path.read_bytes())


def check(own: Parts, seeds: Sequence[int], folder: Path) -> Counter[str]:
    """How many files had which fate; fails where one is not right."""
    counts: Counter[str] = Counter()
    wrong = []
    for fate in fates(own, seeds, folder):
        kind = fate.kind
        if kind == "other" and exchanged(own, lied(own, fate.seed)):
            kind = "exchanged arrays"
        counts[kind] += 1
        if kind not in ("refused", "same", "exchanged arrays"):
            wrong.append(fate)
    assert not wrong, wrong[:5]
    return counts


def exchanged(own: Parts, file: bytes) -> bool:
    """Whether a file says nothing wrong but which of its arrays is which of the same size: that is other weights."""
    found, places = Parts.of(file), [parts.header.values() for parts in (own, Parts.of(file))]
    kept, given = (sorted(entry["data_offsets"] for entry in entries) for entries in places)
    same = runtime.facts_text(found.manifest) == runtime.facts_text(own.manifest)
    return same and found.header.keys() == own.header.keys() and kept == given


def test_files_are_made_again_from_their_seeds(tmp_path: Path) -> None:
    Tiny(2).write(tmp_path / "m.so")
    own = Parts.of((tmp_path / "m.so").read_bytes())
    files = [lied(own, seed) for seed in range(50)]
    assert files == [lied(own, seed) for seed in range(50)] and len({*files, own.whole()}) > 45


@pytest.mark.broad
def test_lies_about_a_tiny_module(tmp_path: Path) -> None:
    Tiny(2, extra=True).write(tmp_path / "m.so")
    counts = check(Parts.of((tmp_path / "m.so").read_bytes()), range(100), tmp_path)
    assert counts["refused"] > 80


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_lies(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "90")
    counts = check(sound(kind, tmp_path), range(SEED, SEED + LIES // len(KINDS)), tmp_path)
    print(kind, dict(counts))
