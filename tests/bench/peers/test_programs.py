"""Programs that call one network again and again: built, run, and their results those of the oracle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from peer_problems import problem_of, small

import tvm_rnn as rnn
from tvm_rnn.bench.peers.models import Unsupported
from tvm_rnn.bench.peers.programs import Program, bundle_programs, rtneural_program
from tvm_rnn.bench.run.audio_suite import problem_of as samples_of
from tvm_rnn.oracle.tolerance import assert_close


def check(program: Program, net: rnn.RNN) -> None:
    y = program.outputs()
    assert_close(y, rnn.reference(net)(program.problem.inputs)[0], net.dtype, len(y))
    with program.running(0.0) as turn:
        found = [turn(), turn()]
    assert all(timed.seconds > 0 and timed.clock > 0 and timed.tail[0] <= timed.tail[1] for timed in found)


@pytest.mark.broad
@pytest.mark.parametrize("hidden", [4, 64])  # many steps are its step again and again, and code of their own
def test_a_bundle_is_called_checked_and_unchecked(hidden: int, tmp_path: Path) -> None:
    net, path = rnn.RNN(rnn.cells.lstm, 4, hidden).init(seed=2), str(tmp_path / "m.so")
    rnn.compile(net, batch=1).export(path)
    programs = {samples: bundle_programs(samples_of(net, path), tmp_path, samples) for samples in (1, 64)}
    assert [[p.config for p in found] for found in programs.values()] == [["checked", "unchecked"]] * 2
    for program in (p for found in programs.values() for p in found):
        check(program, net)


@pytest.mark.peers
@pytest.mark.skipif("RTNEURAL" not in os.environ, reason="RTNEURAL: the folder of its sources")
@pytest.mark.parametrize("samples", [1, 64])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_rtneural_is_the_oracle(cell: str, samples: int, tmp_path: Path) -> None:
    net = small(cell, 1, False)
    problem = problem_of(net, steps=64, batch=1)
    check(rtneural_program(problem, tmp_path, samples, os.environ["RTNEURAL"]), net)


def test_what_cannot_be_built_has_a_reason(tmp_path: Path) -> None:
    problem = problem_of(small("lstm", 1, False), steps=1, batch=1)
    with pytest.raises(Unsupported, match=r"has no RTNeural/RTNeural\.h"):
        rtneural_program(problem, tmp_path, 1, tmp_path)
    (tmp_path / "RTNeural").mkdir()
    (tmp_path / "RTNeural" / "RTNeural.h").touch()
    (tmp_path / "modules" / "Eigen").mkdir(parents=True)
    with pytest.raises(Unsupported, match="one layer"):
        rtneural_program(problem_of(small("lstm", 2, False), batch=1), tmp_path, 1, tmp_path)
    with pytest.raises(Unsupported, match="no cell sru"):
        rtneural_program(problem_of(small("sru", 1, False), batch=1), tmp_path, 1, tmp_path)
    with pytest.raises(Unsupported, match="compiler failed"):
        rtneural_program(problem, tmp_path, 1, tmp_path)


def test_a_program_that_ends_badly_has_a_reason(tmp_path: Path) -> None:
    problem = problem_of(small("lstm", 1, False), batch=1)
    with pytest.raises(Unsupported, match="its program failed"):
        Program("ours", "1", "checked", tmp_path / "none", problem, 1).outputs()
    ends = Program("ours", "1", "checked", tmp_path / "none", problem, 1, ("false",))
    with pytest.raises(Unsupported, match="its program failed"), ends.running(0.0):
        pass
