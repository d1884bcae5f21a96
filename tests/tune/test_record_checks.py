"""record_checks: which records are stale and why, and that others are measured again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tests.test_records import record
from tvm_rnn import ConfigError, TvmRnnError
from tvm_rnn.schedule.record_files import merge
from tvm_rnn.target import host
from tvm_rnn.tune.record_checks import every, measured_again, network, reason, unit_of

FINE = replace(record(), versions={})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"version": 99}, "made for version 99"),
        ({"template": "gone"}, "no template gone"),
    ],
)
def test_a_stale_record_says_why(change: dict[str, Any], words: str) -> None:
    one = replace(FINE, choices=(replace(FINE.choices[0], **change),))
    assert words in reason(one) and bool(reason(one)) == bool(words)


def test_records_of_this_machine_are_tried_out() -> None:
    here = replace(FINE, target=host().records_name, choices=(replace(FINE.choices[0], knobs={"rows": 77}),))
    assert reason(here) == "" and "knob rows has no such value" in reason(here, host())
    assert reason(record()).startswith("made with tvm 1")


def test_a_key_becomes_its_unit_again() -> None:
    unit = unit_of(FINE.choices[0])
    assert unit is not None and unit.key == FINE.choices[0].unit
    assert unit_of(replace(FINE.choices[0], unit={"shape": ["recurrent"]})) is None


def test_every_folder_and_target_is_read(tmp_path: Path) -> None:
    merge(tmp_path / "a", [FINE, replace(FINE, target="other")])
    merge(tmp_path / "b", [FINE])
    found, ignored = every([tmp_path / "a", tmp_path / "b"])
    assert len(found) == 3 and not ignored


def test_networks_of_records_are_those_of_the_zoo() -> None:
    (made,) = [network({**FINE.workload, "input": 8, "hidden": 16, "layers": 2})]
    assert (made.cell.name, made.num_layers, made.hidden_size) == ("lstm", 2, 16)
    with pytest.raises(ConfigError, match="only cells of the zoo"):
        network({**FINE.workload, "cell": "mine"})


@pytest.mark.slow
def test_a_record_is_measured_again_where_it_was_made(tmp_path: Path) -> None:
    with pytest.raises(TvmRnnError, match="a record for another machine"):
        measured_again(FINE)
    (made,) = rnn.tune(rnn.RNN(rnn.cells.elman, 4, 8), steps=3, batch=2, trials=1, records=tmp_path)
    outcome = measured_again(made, seconds=0.1)
    assert outcome.valid and outcome.median_us > 0
