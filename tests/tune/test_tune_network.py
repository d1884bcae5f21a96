"""tune: the public function; killed at any moment it loses nothing that was measured, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import planted
import pytest

import tvm_rnn as rnn
from tvm_rnn.schedule.record_files import read
from tvm_rnn.target import host

# Every status as a line with the time; the space is small, the network tiny.
TUNE = """
import json, sys, time
import tvm_rnn as rnn
def show(status):
    print(json.dumps([time.time(), status.trials, status.stage]), flush=True)
net = rnn.RNN(rnn.cells.gru, 5, 33)
(record,) = rnn.tune(net, "llvm", steps=4, batch=2, trials=int(sys.argv[2]), records=sys.argv[1], progress=show)
print(json.dumps(record.as_dict()), flush=True)
"""


def started(folder: Path, trials: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TUNE, str(folder), str(trials)]
    environment = {**os.environ, "TVM_RNN_RECORDS": "none"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(word) for task in tasks.glob("*/children") for word in task.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def journal_of(folder: Path) -> list[Any]:
    lines = [line for path in folder.glob(".tuning/*/*.jsonl") for line in path.read_text().splitlines()]
    return [found for found in map(_parsed, lines) if found is not None and "state" in found]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def killed(folder: Path, after: float, trials: int = 60) -> None:
    """Tune, kill -9 after some seconds, and see what is left."""
    before = len(journal_of(folder))
    process = started(folder, trials)
    time.sleep(after)
    own = children(process.pid)
    process.send_signal(signal.SIGKILL)
    moment = time.time()
    printed, _ = process.communicate()
    statuses = [found for found in map(_parsed, printed.splitlines()) if isinstance(found, list)]
    measured = max((trial for when, trial, _ in statuses if when < moment - 1), default=before)
    assert len(journal_of(folder)) >= measured
    found = read([folder], host().records_name)
    assert not found.ignored and all(record.gain > 0 for record in found.records)
    for _ in range(100):
        if not any(map(alive, own)):
            break
        time.sleep(0.1)
    assert not any(map(alive, own)), "processes were left behind"


def finished(folder: Path, trials: int) -> Any:
    process = started(folder, trials)
    printed, errors = process.communicate()
    assert process.returncode == 0, errors[-2000:]
    return json.loads(printed.splitlines()[-1])


@pytest.mark.slow
def test_killed_twice_it_goes_on_where_it_was(tmp_path: Path) -> None:
    rng = random.Random(0)
    for _ in range(2):
        killed(tmp_path, rng.uniform(2.0, 5.0))
    before = len(journal_of(tmp_path))
    record = finished(tmp_path, before + 4)
    assert record["trials"] == before + 4
    (again,) = read([tmp_path], host().records_name).records
    assert again.as_dict() == record
    mine = [path for path in Path(tempfile.gettempdir()).glob("tvm_rnn-tune-*") if _owner(path)]
    assert not mine, "a killed run's folder is removed by the next one"


def _owner(path: Path) -> bool:
    owner = path.name.split("-")[-2]
    return owner.isdecimal() and not alive(int(owner))


@pytest.mark.slow
def test_killed_at_twenty_moments_it_loses_nothing(tmp_path: Path) -> None:
    rng = random.Random(1)
    for number in range(20):
        killed(tmp_path, rng.uniform(0.5, 9.0), trials=30 + 20 * number)
        if number == 9:  # from here on a record is there to be spoilt
            finished(tmp_path, len(journal_of(tmp_path)) + 1)
    assert read([tmp_path], host().records_name).records


@pytest.mark.slow
def test_two_at_once_write_to_one_folder(tmp_path: Path) -> None:
    both = [started(tmp_path, 3) for _ in range(2)]
    for process in both:
        _, errors = process.communicate()
        assert process.returncode == 0, errors[-2000:]
    (record,) = read([tmp_path], host().records_name).records
    assert record.trials >= 3 and len(journal_of(tmp_path)) >= 3


def test_tune_is_a_function_whatever_was_imported() -> None:
    import tvm_rnn.tune.session

    assert callable(rnn.tune) and tvm_rnn.tune is rnn.tune
    with pytest.raises(rnn.ConfigError, match="tune needs an RNN"):
        rnn.tune(rnn.cells.lstm)  # a cell, not a network of it
    assert planted.OK == 0
