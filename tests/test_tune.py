"""tune: one call from a network to a record that the next compilation uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_rnn as rnn
from tvm_rnn import ConfigError


def test_a_network_is_tuned_and_compiled_with_what_was_found(tmp_path: Path) -> None:
    net = rnn.RNN(rnn.cells.gru, 5, 16).init(0)
    told: list[str] = []
    (record,) = rnn.tune(
        net, steps=6, batch=3, trials=3, seconds=60, records=tmp_path, progress=lambda s: told.append(str(s))
    )
    assert isinstance(record, rnn.Record) and record.gain >= 1.0 and record.workload["cell"] == "gru"
    assert told and list(tmp_path.glob("*/gru.jsonl"))
    module = rnn.compile(net, batch=3, records=tmp_path)
    assert any(row["record"].startswith("record: gru H=16 B=3") for row in module.manifest.templates)
    x = np.ones((6, 3, 5), "float32")
    assert np.abs(module(x)[0] - rnn.reference(net)(x)[0]).max() < 1e-5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "steps"),
        ({"batch": "many"}, "batch"),
        ({"trials": 0}, "trials"),
        ({"seconds": -1}, "seconds"),
        ({"target": "nvidia-h200"}, "tvm-rnn tune --plan DIR"),
        ({"target": "x86-64-v3"}, "tune measures on this machine"),
        ({"precision": "tf32"}, "CPUs compute in float32 and float64 only"),
    ],
)
def test_wrong_arguments_are_said_at_once(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rnn.tune(rnn.RNN(rnn.cells.gru, 5, 16), **change)
    with pytest.raises(ConfigError, match="tune needs an RNN"):
        rnn.tune(rnn.cells.gru)
