"""tune_cpu: candidates that compute something else, crash, hang or cannot be built are outcomes, and nothing hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest

import tvm_rnn as rnn
from tvm_rnn.target import host
from tvm_rnn.tune.cpu_builders import CpuBackend, quiet, worker
from tvm_rnn.tune.session import workload
from tvm_rnn.tune.workload import Candidate, Workload
from tvm_rnn.worker_process import Ended

# A tune of a tiny network in which every trial is a planted fault.
TUNE = """
import json, sys
import tvm_rnn as rnn
from tvm_rnn.tune.session import SearchOptions, run
net = rnn.RNN(rnn.cells.gru, 5, 33)
options = SearchOptions(records=sys.argv[1], timeout=float(sys.argv[2]), jobs=2)
result = run(net, "llvm", 4, 2, 20, options)
faults = [(c.knobs["fault"], o) for o in result.outcomes for c in o.candidate.choices if c.knobs["fault"]]
states = {fault: (o.state, o.reason) for fault, o in faults}
print(json.dumps([states, result.record.as_dict(), result.record.gain]))
"""


def tuned(folder: Path, *faults: int, default: int = planted.OK, timeout: float = 20.0) -> Any:
    """(what became of each fault, the record, its gain) of a process that tunes with these faults planted."""
    environment = {**os.environ, **planted.plant(folder, *faults, default=default)}
    command = [sys.executable, "-c", TUNE, str(folder / "records"), str(timeout)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def work(steps: int = 5, batch: int = 3) -> Workload:
    return workload(rnn.RNN(rnn.cells.lstm, 7, 33), host(), steps, batch)


@pytest.mark.broad
def test_every_fault_is_an_outcome_and_none_wins(tmp_path: Path) -> None:
    faults = (planted.WRONG, planted.CRASH, planted.HANG, planted.UNBUILT)
    states, record, gain = tuned(tmp_path, *faults)
    found = {int(fault): state for fault, (state, _) in states.items()}
    assert found == dict(zip(faults, ("wrong", "crashed", "hung", "not built"), strict=True))
    reasons = {int(fault): reason for fault, (_, reason) in states.items()}
    assert "relative error" in reasons[planted.WRONG] and "is allowed" in reasons[planted.WRONG]
    assert reasons[planted.CRASH] == "killed by SIGSEGV"
    assert "no result after" in reasons[planted.HANG]
    assert "planted error of the compiler" in reasons[planted.UNBUILT]
    assert gain == 1.0 and all(c["knobs"]["fault"] == 0 for c in record["choices"])
    assert record["trials"] == 4


@pytest.mark.slow
def test_what_is_faster_than_a_slow_default_wins(tmp_path: Path) -> None:
    states, record, gain = tuned(tmp_path, planted.LAST, planted.WRONG, default=planted.SLOW)
    assert gain > 2 and states[str(planted.WRONG)][0] == "wrong"
    assert [c["knobs"]["fault"] for c in record["choices"] if c["unit"]["shape"][1] == "step"] == [planted.LAST]
    assert record["median_us"] < record["default_us"]


@pytest.mark.slow
def test_defaults_that_are_wrong_are_an_error(tmp_path: Path) -> None:
    environment = {**os.environ, **planted.plant(tmp_path, planted.OK, default=planted.WRONG)}
    command = [sys.executable, "-c", TUNE, str(tmp_path / "records"), "30"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "the defaults cannot be measured" in done.stderr and "after 3 steps" in done.stderr


@pytest.mark.slow
def test_the_defaults_are_measured_beside_themselves(tmp_path: Path) -> None:
    with CpuBackend(work(), host(), jobs=1) as backend:
        first = backend.start(lambda stage: None)
        assert first.valid and first.median_us > 0 and first.error is not None and first.error < 1e-5
        (again,) = backend.measure([Candidate()], 1.0)
        assert again.valid and again.ratio > 0 and again.error == first.error
        both = backend.compare([Candidate(), Candidate()], 0.05)
        assert [o.valid for o in both] == [True, True]
        folder = backend.folder
    assert not folder.exists()


@pytest.mark.slow
def test_cells_of_ones_own_several_inputs_and_constants_are_measured() -> None:
    from tvm_rnn import cell, sigmoid, tanh

    @cell(states="h")
    def local(x: "I", a: "1", h: "H", *, W: "2 H I", R: "2 H H", b: "2 H"):
        u, n = W @ x + R @ h + b
        u = a * sigmoid(u)
        return (1 - u) * h + u * tanh(n * np.linspace(0.5, 1.0, 9, dtype="float32"))

    net = rnn.RNN(local, 4, 9, 2, dtype="float64")
    with CpuBackend(workload(net, host(), 3, 2), host(), jobs=1) as backend:
        assert backend.start(lambda stage: None).error is not None


@pytest.mark.broad
def test_a_cell_that_does_not_forget_is_compared_over_fewer_steps() -> None:
    from tvm_rnn import cell, sin

    @cell(states="h")
    def chaotic(x: "I", h: "H", *, W: "H I", R: "H H"):
        return sin(2.5 * h + W @ x + R @ h)

    with CpuBackend(workload(rnn.RNN(chaotic, 4, 9), host(), 300, 1), host(), jobs=1) as backend:
        found = backend.start(lambda stage: None)
        assert found.error is not None and found.error <= backend.limit
        assert len(np.load(backend.folder / "expected.npz")["y"]) < 300


@pytest.mark.broad
def test_a_compiler_that_cannot_start_is_the_reason(tmp_path: Path) -> None:
    process = worker("build", {"net": str(tmp_path / "missing")}, tmp_path)
    with pytest.raises(Ended, match="FileNotFoundError"):
        process.ask({"choices": [], "path": str(tmp_path / "x.so")}, 60)
    assert process.process is None


def test_measuring_waits_for_builds_and_for_other_measurements() -> None:
    program = """
import sys, time
from tvm_rnn.tune.cpu_builders import quiet
with quiet(building=sys.argv[1] == "build"):
    print("in", flush=True)
    sys.stdin.read()
"""

    def other(role: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-c", program, role], **pipes)

    with other("build") as first:
        assert first.stdout is not None and first.stdin is not None
        assert first.stdout.readline() == "in\n"
        with quiet(building=True):
            pass  # builds go on side by side
        with other("measure") as second:
            assert second.stdout is not None and second.stdin is not None
            time.sleep(1.0)
            os.set_blocking(second.stdout.fileno(), False)
            assert not os.read(second.stdout.fileno(), 9) if _readable(second.stdout) else True
            first.stdin.close()
            os.set_blocking(second.stdout.fileno(), True)
            assert second.stdout.readline() == "in\n"
            second.stdin.close()


def _readable(stream: Any) -> bool:
    import select

    return bool(select.select([stream], [], [], 0)[0])
