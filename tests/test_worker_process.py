"""worker_process: what crashes or hangs is said, ends with what it has started, and the next request starts anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tvm_rnn.worker_process import Ended, Late, Lost, Pool, WorkerProcess

# Does what it is told to.
WORKER = """
import json, os, signal, subprocess, sys, time
from tvm_rnn.worker_process import channel
with channel() as answer:
    print("a library says something")
    number = 0
    for line in sys.stdin:
        request, number = json.loads(line), number + 1
        if "raise" in request:
            print("a warning", file=sys.stderr)
            raise ValueError(request["raise"])
        if "signal" in request:
            os.kill(os.getpid(), request["signal"])
        if "exit" in request:
            os._exit(request["exit"])
        if "child" in request:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            open(request["child"], "w").write(str(child.pid))
            time.sleep(600)
        if "variable" in request:
            answer({"value": os.environ.get(request["variable"]), "folder": os.getcwd()})
        else:
            answer({"number": number, "echo": request, "process": os.getpid()})
"""


def worker(folder: Path, **more: Any) -> WorkerProcess:
    return WorkerProcess(("-c", WORKER), folder, **more)


def gone(process: int) -> bool:
    """Whether a process has ended, within a while."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_it_keeps_its_state_and_what_is_printed_is_no_answer(tmp_path: Path) -> None:
    process = worker(tmp_path)
    assert process.ask({"a": 1})["echo"] == {"a": 1}
    assert process.ask({"a": 2}, 60)["number"] == 2
    process.end()
    assert process.ask({"a": 3}, 60)["number"] == 1  # another one
    process.end()


def test_the_reason_is_what_was_raised_or_the_signal_or_the_exit_code(tmp_path: Path) -> None:
    process = worker(tmp_path)
    with pytest.raises(Ended, match=r"^ValueError: this$"):
        process.ask({"raise": "this"})
    with pytest.raises(Ended, match="killed by SIGSEGV"):
        process.ask({"signal": signal.SIGSEGV})
    quiet = WorkerProcess(("-c", "import os; os._exit(3)"), tmp_path)
    with pytest.raises(Ended, match="exit code 3"):
        quiet.ask({})
    assert process.ask({})["number"] == 1  # started anew after each
    process.end()


def test_one_that_is_late_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    process, note = worker(tmp_path), tmp_path / "child"
    first = process.ask({})["process"]
    process.send({"child": str(note)}, 600)
    while not (note.exists() and note.read_text()):
        time.sleep(0.05)
    process.extend(0.1)
    with pytest.raises(Late, match="no answer after 600 s"):
        process.receive()
    assert gone(first) and gone(int(note.read_text()))
    assert process.ask({}, 60)["process"] != first
    process.end()


def test_time_counts_from_when_it_is_ready(tmp_path: Path) -> None:
    slow = "import time; time.sleep(1.0)\n" + WORKER
    process = WorkerProcess(("-c", slow), tmp_path, first={"hello": 1})
    assert process.ask({}, 0.9)["number"] == 2
    process.end()


def test_its_folder_and_environment_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TVM_RNN_SCHEDULES", "mine")
    process = worker(tmp_path / "here", environment={"OWN": "yes"})
    assert process.ask({"variable": "OWN"}) == {"value": "yes", "folder": str(tmp_path / "here")}
    assert process.ask({"variable": "TVM_RNN_SCHEDULES"})["value"] == str(tmp_path / "mine")
    process.end()


def test_an_interrupted_request_leaves_no_answer_behind(tmp_path: Path) -> None:
    process = worker(tmp_path)
    number = process.ask({})["process"]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            process.ask({"child": str(tmp_path / "child")})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert process.process is None and gone(number)


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    program = f"""
import os, sys
from tvm_rnn.worker_process import WorkerProcess
process = WorkerProcess(("-c", {WORKER!r}), {str(tmp_path)!r})
print(process.ask({{}})["process"], flush=True)
os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert gone(int(done.stdout))


@pytest.mark.broad
def test_a_pool_survives_what_its_workers_do(tmp_path: Path) -> None:
    pool = Pool(lambda: worker(tmp_path), 2)
    requests = [{"a": 0}, {"exit": 4}, {"raise": "no"}, {"a": 3}, {"child": str(tmp_path / "child")}, {"a": 5}]
    found = dict(pool.map(requests, 5.0))
    assert sorted(found) == list(range(6))
    assert [isinstance(found[number], Lost) for number in range(6)] == [False, True, True, False, True, False]
    assert isinstance(found[4], Late) and "ValueError: no" in str(found[2])
    assert len(pool.workers) == 2
    again = dict(pool.map([{"a": 1}], 60))
    assert not isinstance(again[0], Lost)
    pool.end()
    assert all(one.process is None for one in pool.workers)


def test_a_pool_that_is_left_ends_its_workers(tmp_path: Path) -> None:
    pool = Pool(lambda: worker(tmp_path), 2)
    for _ in pool.map([{"a": 0}, {"child": str(tmp_path / "child")}], 600):
        break
    assert all(one.process is None for one in pool.workers) and os.path.isdir(tmp_path)
