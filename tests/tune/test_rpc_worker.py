"""tune_rpc_worker: code in another session computes what it computes here; a guarded process leaves in order."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_rnn.tune import rpc_worker
from tvm_rnn.tune.rpc_tracker import NoDevice, Server
from tvm_rnn.tune.rpc_worker import connect

# TVM's session within a process, in place of one with a server.
LOCAL = """
import json, os, sys, time
sys.modules["torch"] = None
import numpy as np
from pathlib import Path
import tvm_rnn as rnn
from tvm.rpc import LocalSession
from tvm_rnn.cpu.c_compiler import compile_c
from tvm_rnn.tune.rpc_tracker import Server
from tvm_rnn.tune.rpc_worker import Device, RemoteModule
folder, what = Path(sys.argv[1]), sys.argv[2]
compile_c("tune/rpc_guard.c", folder / "guard.so", "-shared")
device = Device(Server("here", 1, "key"), LocalSession(), str(folder / "guard.so"))
device.arm(60)
if what == "crash":
    os.abort()
elif what == "hang":
    device.arm(0.1)
    time.sleep(60)
elif what == "stop":
    device.arm(0.1)
    device.arm(0)
    time.sleep(1.5)
    sys.exit(7)
assert not device.zeros(5, np.dtype("float64")).numpy().any()
net = rnn.RNN(rnn.cells.lstm_peephole, 5, 9, 2, bidirectional=True).init(1)
here = rnn.compile(net)
bare = rnn.RNN(rnn.cells.lstm_peephole, 5, 9, 2, bidirectional=True)
rnn.compile(bare).export(folder / "m.so")
there = RemoteModule(str(folder / "m.so"), device, net.weights)
x = np.random.default_rng(0).normal(size=(7, 3, 5)).astype("float32")
y, state = here(x)
for _ in range(2):
    again, states = there(x)
    assert np.array_equal(y, again) and all(np.array_equal(state[name], states[name]) for name in state)
short, _ = there(x[:2])
assert np.array_equal(short, here(x[:2])[0])
print(json.dumps([there.seconds([x], 3), len(device.inputs), len(device.weights) >= len(net.weights)]))
"""


def local(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOCAL, str(folder), what]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})


@pytest.mark.broad
def test_a_module_in_another_session_gives_the_same_bits_and_its_time(tmp_path: Path) -> None:
    done = local(tmp_path, "run")
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, inputs, weights = json.loads(done.stdout)
    assert seconds > 0 and inputs == 2 and weights  # of each length of x once


@pytest.mark.broad
@pytest.mark.parametrize(("what", "code"), [("crash", 0), ("hang", 0), ("stop", 7)])
def test_a_guarded_process_that_crashes_or_hangs_leaves_in_order(tmp_path: Path, what: str, code: int) -> None:
    done = local(tmp_path, what)
    assert done.returncode == code, done.stderr[-2000:]


def test_a_server_that_accepts_and_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_worker, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(NoDevice, match=f"127.0.0.1:{port}: no answer after 0.2 s"):
            connect(Server("127.0.0.1", port, "key"), 9.0)
    monkeypatch.setattr(rpc_worker, "CONNECT_SECONDS", 60.0)
    with pytest.raises(NoDevice, match=f"127.0.0.1:{port}: "):
        connect(Server("127.0.0.1", port, "key"), 9.0)
