"""tune_rpc: tuning on servers of TVM's own: faults are outcomes and lose no device; lost devices are no faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planted
import pytest
from rpc_farm import KEY, Farm

import tvm_rnn as rnn
from tests.tune.test_tune_network import journal_of
from tvm_rnn.schedule.record_files import read
from tvm_rnn.target import host
from tvm_rnn.tune.journal import CRASHED, HUNG
from tvm_rnn.tune.rpc import Job, RpcBackend
from tvm_rnn.tune.session import SearchOptions, Status, run
from tvm_rnn.tune.workload import Candidate

pytest.importorskip("tornado", reason="TVM's tracker needs it")
NET = rnn.RNN(rnn.cells.lstm, 24, 40)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with Farm(tmp_path_factory.mktemp("farm"), 2) as found:
        yield found


@pytest.mark.slow
def test_faults_are_outcomes_and_no_device_is_lost_to_them(farm: Farm, tmp_path: Path) -> None:
    faults = (planted.WRONG, planted.CRASH, planted.HANG, planted.UNBUILT)
    environment = {**os.environ, **planted.plant(tmp_path, *faults)}
    words = ["gru", "--input-size", "5", "--hidden-size", "33", "--steps", "4", "--batch", "2", "--trials", "20"]
    words += ["--records", str(tmp_path / "records"), "--timeout", "4", "--json"]
    words += ["--rpc-tracker", farm.tracker.name, "--device-key", KEY]
    command = [sys.executable, "-m", "tvm_rnn", "tune", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    failures = {c["knobs"]["fault"]: f for f in found["failures"] for c in f["choices"] if c["knobs"]["fault"]}
    states = {fault: failure["state"] for fault, failure in failures.items()}
    assert states == dict(zip(faults, ("wrong", "crashed", "hung", "not built"), strict=True))
    assert "relative error" in failures[planted.WRONG]["reason"]
    assert "ended its session on 127.0.0.1:" in failures[planted.CRASH]["reason"]
    assert " s on 127.0.0.1:" in failures[planted.HANG]["reason"]
    assert found["gain"] == 1.0 and all(c["knobs"]["fault"] == 0 for c in found["record"]["choices"])
    said = f"--rpc-tracker {farm.tracker.name} --device-key {KEY}"
    assert found["record"]["target"] == host().records_name and said in found["record"]["command"]
    farm.wait_for(2)  # both have survived the crash and the hang


@pytest.mark.slow
def test_devices_that_are_killed_cost_no_measurement(farm: Farm, tmp_path: Path) -> None:
    """The last one of the farm: it leaves none."""
    used_before = [farm.said(number).count("candidate_") for number in range(2)]
    about: dict[str, Any] = {"records": tmp_path, "rpc_tracker": farm.tracker.name, "device_key": KEY, "jobs": 2}
    killed: list[int] = []

    def used(number: int) -> bool:
        return farm.said(number).count("candidate_") > used_before[number]

    def kill_one(status: Status) -> None:
        if not killed and status.trials and used(0) and used(1):
            killed.append(status.trials)
            farm.kill(1)

    result = run(NET, "llvm", 6, 4, 8, SearchOptions(**about, progress=kill_one))
    assert killed and killed[0] < 8 and result.stopped == "8 trials"
    assert len(result.outcomes) == 8 and all(outcome.valid for outcome in result.outcomes)
    (record,) = read([tmp_path], host().records_name).records
    assert record == result.record and record.trials == 8 and record.gain >= 1
    assert f"device_key={KEY!r}" in record.command and farm.tracker.servers()[0] == 1

    def kill_the_other(status: Status) -> None:
        if status.trials > 8:
            farm.kill(0)

    with pytest.raises(rnn.TvmRnnError, match=rf"no device is left.*\n.*got:.*{KEY}.*\n.*do:.*run this again"):
        run(NET, "llvm", 6, 4, 60, SearchOptions(**about, progress=kill_the_other))
    assert 8 < len(journal_of(tmp_path)) < 60
    with pytest.raises(rnn.ConfigError, match="no server has this device key"):
        rnn.tune(NET, "llvm", 6, 4, 12, records=tmp_path, rpc_tracker=farm.tracker.name, device_key=KEY)


def test_what_loses_two_devices_is_at_fault() -> None:
    backend = RpcBackend.__new__(RpcBackend)
    for late, state, reason in (
        (False, CRASHED, "ended its session on a and on b"),
        (True, HUNG, "no result after 7 s"),
    ):
        job = Job([Candidate(), Candidate()], [Path("x.so")], {}, 7.0)
        assert backend._result(job, {"lost": "?", "late": late}, "a") is None and job.lost == ["a"]
        outcomes = backend._result(job, {"lost": "?", "late": late}, "b")
        assert outcomes is not None and [o.state for o in outcomes] == [state] * 2 and reason in outcomes[0].reason


def test_a_device_that_computes_something_else_is_left_out() -> None:
    backend = RpcBackend.__new__(RpcBackend)
    backend.limit = 1e-5
    right = {"device": "a", "error": 1e-6, "seconds": 1.0}
    assert backend._checked(right) is right and backend._checked({"lost": "?"}) == {"lost": "?"}
    for error in (1e-4, float("nan")):
        assert "a: the defaults have a relative error" in backend._checked({**right, "error": error})["unfit"]


def test_gpus_and_wrong_options_are_refused_before_anything_is_asked() -> None:
    with pytest.raises(rnn.ConfigError, match="tune measures on CPUs only"):
        rnn.tune(NET, "nvidia-h200", 4, 2, rpc_tracker="127.0.0.1:9", device_key="k")
    with pytest.raises(rnn.ConfigError, match="a device key alone"):
        rnn.tune(NET, device_key="k")
    with pytest.raises(rnn.ConfigError, match="expected: HOST:PORT"):
        rnn.tune(NET, rpc_tracker="nowhere", device_key="k")
    with pytest.raises(rnn.ConfigError, match="the RPC tracker does not answer"):
        rnn.tune(NET, "x86-64-v3", rpc_tracker="127.0.0.1:9", device_key="k")
