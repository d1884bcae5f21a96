"""A tracker and servers of TVM on this machine, as processes of their own, for the tests of tuning on devices."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tvm_rnn.tune.rpc_tracker import Tracker

KEY = "here"
START_SECONDS = 120.0  # on a machine with much else to do


def free_port() -> int:
    """One that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Farm:
    """A tracker and so many servers with KEY. What they say is in files of `folder`."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.tracker = Tracker("127.0.0.1", free_port(), KEY)
        self.count = count

    def __enter__(self) -> Farm:
        port = str(self.tracker.port)
        self._start("rpc_tracker", "tracker", port)
        for number in range(self.count):
            more = ("--tracker", self.tracker.name, "--key", KEY)
            self._start("rpc_server", f"server_{number}", str(free_port()), *more)
        self.wait_for(self.count)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for process in self.processes:
            self._kill(process)

    def _start(self, what: str, name: str, port: str, *more: str) -> None:
        command = [sys.executable, "-m", f"tvm.exec.{what}", "--host", "127.0.0.1", "--port", port]
        command += ["--port-end", str(int(port) + 1), *more]
        # tvm would import torch, which takes seconds, where it is installed.
        (self.folder / "torch.py").write_text("raise ImportError\n")
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"env": {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, "start_new_session": True}
        with open(self.folder / f"{name}.log", "w") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, **own))

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill(self, number: int) -> None:
        """A server and all of its processes, at once."""
        self._kill(self.processes[1 + number])

    def said(self, number: int) -> str:
        """What a server has said."""
        return (self.folder / f"server_{number}.log").read_text()

    def wait_for(self, count: int) -> None:
        """Until so many servers are free."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            try:
                if self.tracker.servers() == (count, count):
                    return
            except Exception as reason:
                last: object = reason
            else:
                last = self.tracker.servers()
            time.sleep(0.1)
        raise TimeoutError(f"{last}; {[path.read_text()[-500:] for path in self.folder.glob('*.log')]}")
