"""tune_journal: what was measured survives, whatever the file looks like; other compilers' outcomes do not count."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import tvm_rnn as rnn
from tvm_rnn.records import Choice
from tvm_rnn.tune import journal as tune_journal
from tvm_rnn.tune.journal import CRASHED, HUNG, MEASURED, UNBUILT, WRONG, Journal, Outcome
from tvm_rnn.tune.workload import Candidate, Workload

WORK = Workload(rnn.RNN(rnn.cells.lstm, 3, 5), 7, 2, "float32")


def outcome(knob: int, state: str = MEASURED, **more: Any) -> Outcome:
    unit = {"shape": ["gemm", "step"], "sizes": {"width": [5]}}
    candidate = Candidate((Choice(unit, "gemm_cpu", 2, {"rows": knob}),))
    if state == MEASURED:
        more = {"ratio": 0.5 + knob / 10, "median_us": 3.0, "default_us": 6.0, "spread": 0.1, "error": 1e-7} | more
    return Outcome(candidate, state, **more)


def journal(folder: Path, work: Workload = WORK, **options: Any) -> Journal:
    return Journal(folder, "znver5", work, **options)


def test_outcomes_come_back_as_they_were(tmp_path: Path) -> None:
    states = [outcome(i, state, reason="r") for i, state in enumerate((WRONG, CRASHED, HUNG, UNBUILT))]
    written = [outcome(7, faster=0.75), *states]
    first = journal(tmp_path)
    for one in written:
        first.add(one)
    first.close()
    assert journal(tmp_path).outcomes == written
    assert not any(o.valid for o in states) and math.isinf(states[0].ratio)


def test_outcomes_of_other_machines_do_not_count(tmp_path: Path) -> None:
    for number, where in enumerate((None, "devices a", "devices b")):
        first = journal(tmp_path, where=where)
        assert not first.outcomes
        first.add(outcome(number))
        first.close()
    assert journal(tmp_path, where="devices a").outcomes == [outcome(1)]


def test_of_one_candidate_the_last_outcome_counts(tmp_path: Path) -> None:
    first = journal(tmp_path)
    first.add(outcome(1, HUNG))
    first.add(outcome(1))
    first.close()
    assert [o.state for o in journal(tmp_path).outcomes] == [MEASURED]


@pytest.mark.parametrize("cut", [2, 7, 40, 200])
def test_a_line_that_was_cut_off_is_passed_over_and_the_next_one_is_whole(tmp_path: Path, cut: int) -> None:
    first = journal(tmp_path)
    for i in range(3):
        first.add(outcome(i))
    first.close()
    os.truncate(first.path, first.path.stat().st_size - cut)
    second = journal(tmp_path)
    assert second.outcomes == [outcome(0), outcome(1)]
    second.add(outcome(5))
    second.close()
    assert journal(tmp_path).outcomes == [outcome(0), outcome(1), outcome(5)]


def test_rubbish_in_it_does_no_harm(tmp_path: Path) -> None:
    first = journal(tmp_path)
    first.add(outcome(1))
    with open(first.path, "ab") as file:
        file.write(
            b'\xff\xfe\n[1]\n"text"\nnull\n{"state": "won", "choices": []}\n{"state": "measured", "choices": []}\n'
        )
    first.add(outcome(2))
    first.close()
    assert journal(tmp_path).outcomes == [outcome(1), outcome(2)]


def test_another_compiler_and_another_machine_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = journal(tmp_path)
    first.add(outcome(1))
    first.close()
    for name in ("compiler_digest", "machine"):
        with monkeypatch.context() as patched:
            patched.setattr(tune_journal, name, lambda: "another")
            assert journal(tmp_path).outcomes == []
    assert journal(tmp_path).outcomes == [outcome(1)]  # what is there is not lost by that
    assert journal(tmp_path, fresh=True).outcomes == []
    assert journal(tmp_path).outcomes == []  # nor read after a fresh start


def test_every_workload_has_a_file_of_its_own(tmp_path: Path) -> None:
    others = [Workload(rnn.RNN(rnn.cells.lstm, 3, [5, 6], 2), 7, 2, "float32"), Workload(WORK.net, 8, 2, "float32")]
    paths = {journal(tmp_path, work).path for work in (WORK, *others)}
    assert len(paths) == 3 and {p.parent for p in paths} == {tmp_path / ".tuning" / "znver5"}


def test_several_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    def write(number: int) -> None:
        own = journal(tmp_path)
        for i in range(50):
            own.add(outcome(100 * number + i))
        own.close()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = journal(tmp_path)
    assert len(found.outcomes) == 200
    assert all(json.loads(line) for line in found.path.read_text().splitlines())


def test_a_folder_that_cannot_be_written_to_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(rnn.ConfigError, match=r"journal cannot be written[\s\S]*--records"):
        journal(tmp_path / "file")


def test_the_digest_sees_the_users_own_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for text in ("A = 1", "A = 2"):
        (tmp_path / "mine.py").write_text(text)
        monkeypatch.setattr(tune_journal, "folders", lambda: [Path("own"), tmp_path])
        digests.add(tune_journal.compiler_digest.__wrapped__())
    assert len(digests) == 2
