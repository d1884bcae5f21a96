"""decisions: told within a stage, kept while somebody listens, each once."""

from __future__ import annotations

import json

from tvm_rnn.decisions import Decision, about, heard, listening, recording, tell


def test_nothing_is_kept_where_nobody_listens() -> None:
    tell(True, "combined")
    assert not listening() and heard() == []


def test_what_is_told_belongs_to_its_stage_and_subject() -> None:
    with recording() as found, about("regime", graph=1):
        tell(False, "scan_cuda", "it has products")
        with about("", batch=16):
            tell(True, "persistent", predicted_us=1.5)
    assert found == [
        Decision("regime", False, "scan_cuda", "it has products", {"graph": 1}),
        Decision("regime", True, "persistent", "", {"graph": 1, "batch": 16}, {"predicted_us": 1.5}),
    ]
    assert not listening()


def test_the_same_thing_is_kept_once() -> None:
    with recording() as found, about("hoist_gemms"):
        for _ in range(3):
            tell(False, "R @ h", "reads h")
    assert len(found) == 1


def test_an_attempt_that_is_thrown_away_is_not_heard() -> None:
    with recording() as found:
        with recording(listen=False):
            assert not listening()
            tell(True, "an attempt")
        tell(True, "the real thing")
    assert [d.what for d in found] == ["the real thing"]


def test_a_manifest_can_hold_them() -> None:
    with recording() as found, about("wave", batch=4):
        tell(False, "layers in a wave", "there is one layer", us=2.0)
        rows = json.loads(json.dumps(heard()))
    assert [Decision.from_dict({"facts": {}, "subject": {}, **row}) for row in rows] == found
