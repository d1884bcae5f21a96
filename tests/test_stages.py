"""What is said of a stage: how far it is, where the time so far says something of it."""

from __future__ import annotations

import pytest

from tvm_rnn import stages


def test_durations_are_for_people() -> None:
    made = [stages.duration(seconds) for seconds in (0.4, 59.2, 65, 3600)]
    assert made == ["0 s", "59 s", "1:05", "60:00"]


def test_the_rest_takes_as_long_as_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stages.time, "monotonic", lambda: now[0])
    said = stages.Stages()
    assert said.text("passes") == "passes"
    now[0] = 103.6
    assert said.text("linking") == "linking, 72%, about 1 s left" and said.text("of its own") == "of its own"
    assert said.text("loading") == "loading, 99%"
    assert said.text("lowering") == "lowering"  # too early to tell


def test_a_gpu_has_stages_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stages.time, "monotonic", lambda: now[0])
    said = stages.Stages()
    said.text("planning")
    now[0] = 50.0
    assert said.text("code generation") == "code generation, 25%, about 2:30 left"
    assert said.text("compiling kernels") == "compiling kernels, 40%, about 1:15 left"


def test_a_stage_that_lasts_counts_down_and_ends_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stages.time, "monotonic", lambda: now[0])
    said = stages.Stages()
    said.text("passes")
    now[0] = 72.0
    assert said.text("linking") == "linking, 72%, about 28 s left"
    now[0] = 80.0
    assert said.now() == "linking, 80%, about 20 s left"
    now[0] = 150.0
    assert said.now() == "linking, 98%"
