"""Processes of this package that may crash or hang and take nothing else with them: a worker, and a pool of them.

In: what to run, a folder to run it in, its environment; requests, which are lines of JSON on its stdin. Out: answers,
lines of JSON on its stdout; or `Ended` and `Late`, which say why there is none. A worker whose answer did not come is
killed with all that it has started, and the next request starts it anew. `channel` is for the other side.

Why no library: pebble and loky hand functions to any process of a pool. Here a process keeps its modules, a GPU or a
device between requests, has its own folder, environment and session, and says which stage of a request it is at.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .locations import PYTHONPATH

START_SECONDS = 120.0  # for a process to import what it needs
RAISED = re.compile(r"[\w.]*(Error|Exception)\b|what\(\):")  # how the line of an exception begins, in Python or C++
PR_SET_PDEATHSIG = 1

Request = Mapping[str, Any]
Reply = dict[str, Any]


class Lost(Exception):
    """There is no answer, and its process has ended."""


class Ended(Lost):
    """The process ended instead of answering; the text says how."""


class Late(Lost):
    """The process did not answer in time."""


class WorkerProcess:
    """One Python process, started by the first request.

    command: the words behind `python`. folder: where it runs and keeps its log, so that no file of the user's can stand
    in for a library. environment: variables beside this process's own. first: what is sent whenever it starts; it
    answers that with a line of its own when it is ready, within START_SECONDS.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: str | os.PathLike[str],
        *,
        environment: Mapping[str, str] | None = None,
        first: Request | None = None,
    ) -> None:
        self.command, self.folder, self.first = command, Path(folder), first
        self.environment = dict(environment or {})
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "no.log"
        self.until, self._seconds = math.inf, math.inf  # when the answer is due, and how long it may take
        self._ready = self._ended = False
        self._text = b""

    def start(self) -> None:
        """Start the process; what it is to answer first is on its way."""
        self.log = self.folder / f"{os.urandom(4).hex()}.log"
        with open(self.log, "w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.folder,
                env={**os.environ, **_paths(), **self.environment},
                start_new_session=True,  # Ctrl-C is not for it, its priority is its own, and so is its process group
            )
        self._text, self._ended, self._ready = b"", False, self.first is None
        if self.first is not None:
            self._write(self.first)

    def send(self, request: Request, seconds: float = math.inf) -> None:
        """Ask, where nothing else is asked. seconds: that the answer may take."""
        if self.process is None:
            self.start()
        self._seconds = seconds
        self.until = time.monotonic() + (seconds if self._ready else START_SECONDS)
        self._write(request)

    def extend(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def receive(self) -> Reply:
        return wait([self]).answer()

    def ask(self, request: Request, seconds: float = math.inf) -> Reply:
        """The answer to a request. Raises Ended and Late. Ctrl-C ends the process: its next answer would be to an older
        question."""
        try:
            self.send(request, seconds)
            return self.receive()
        except BaseException:
            self.end()
            raise

    def answer(self) -> Reply:
        """The answer that `wait` has found. Raises Ended and Late."""
        line, newline, rest = self._text.partition(b"\n")
        if newline:
            self._text, self.until = rest, math.inf
            found: Reply = json.loads(line)
            return found
        try:
            raise Ended(self._why()) if self._ended else Late(f"no answer after {self._seconds:g} s")
        finally:
            self.end()

    def end(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            with contextlib.suppress(BrokenPipeError), self.process:  # closes the pipes, and waits
                pass
        self.process, self.until = None, math.inf

    @property
    def has_answer(self) -> bool:
        """Whether there is a line, or will never be one."""
        return self._ended or b"\n" in self._text

    @property
    def pipe(self) -> int:
        """What can be read when there is more of an answer."""
        assert self.process is not None and self.process.stdout is not None  # it was started, with pipes
        return self.process.stdout.fileno()

    def read(self) -> None:
        """Take what there is. A process that says that it is ready has all its time for the request."""
        more = os.read(self.pipe, 1 << 16)
        self._ended = not more
        self._text += more
        if not self._ready and b"\n" in self._text:
            self._ready, self._text = True, self._text.partition(b"\n")[2]
            self.extend(self._seconds)

    def _write(self, request: Request) -> None:
        assert self.process is not None and self.process.stdin is not None  # it was started, with pipes
        with contextlib.suppress(BrokenPipeError):  # it has ended: the answer says so
            self.process.stdin.write(json.dumps(dict(request)).encode() + b"\n")
            self.process.stdin.flush()

    def _why(self) -> str:
        """How the process ended: what it raised, the signal that killed it, or the last line that it printed."""
        assert self.process is not None
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # it closes stdout before it says why
        printed = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        raised = [line for line in printed if RAISED.match(line)]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # what it has started, while nobody else can have its number
        code = self.process.wait()
        killed = [f"killed by {signal.Signals(-code).name}"] if code < 0 else []
        return (raised[-1:] or killed or printed[-1:] or [f"exit code {code}"])[0][:400]


def wait(workers: Sequence[WorkerProcess]) -> WorkerProcess:
    """The first of these that has answered, has ended or is late: its `answer` comes, or raises, at once."""
    pipes = {worker.pipe: worker for worker in workers}
    while True:
        for worker in workers:
            if worker.has_answer:
                return worker
        first = min(workers, key=lambda worker: worker.until)
        left = first.until - time.monotonic()
        if left <= 0:
            return first
        for pipe in select.select(list(pipes), [], [], left if math.isfinite(left) else None)[0]:
            pipes[pipe].read()


class Pool:
    """Workers of one kind, at most `size`, to which requests are handed as they become free. fresh: each request has a
    process of its own."""

    def __init__(self, make: Callable[[], WorkerProcess], size: int, fresh: bool = False) -> None:
        self.make, self.size, self.fresh = make, size, fresh
        self.workers: list[WorkerProcess] = []

    def map(self, requests: Sequence[Request], seconds: float) -> Generator[tuple[int, Reply | Lost]]:
        """The number of each request with its answer, or why it has none, in the order in which that is known.

        seconds: for each. Where it is stopped early, as by Ctrl-C, all workers end: what they are at answers nothing.
        """
        waiting, busy = deque(enumerate(requests)), dict[WorkerProcess, int]()
        while len(self.workers) < min(self.size, len(requests)):
            self.workers.append(self.make())
        idle = list(self.workers)
        try:
            while waiting or busy:
                while waiting and idle:
                    number, request = waiting.popleft()
                    worker = idle.pop()
                    worker.send(request, seconds)
                    busy[worker] = number
                worker = wait(list(busy))
                idle.append(worker)
                try:
                    answer: Reply | Lost = worker.answer()
                except Lost as reason:
                    answer = reason
                if self.fresh:
                    worker.end()
                yield busy.pop(worker), answer
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        for worker in self.workers:
            worker.end()


def _paths() -> dict[str, str]:
    """Variables that name folders, of which some may be relative to where this process runs."""
    found = {"PYTHONPATH": [PYTHONPATH], "TVM_RNN_SCHEDULES": list[str]()}
    for name, paths in found.items():
        paths += [os.path.abspath(path) for path in os.environ.get(name, "").split(os.pathsep) if path]
    return {name: os.pathsep.join(paths) for name, paths in found.items() if paths}


# --- the other side --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def channel() -> Generator[Callable[[Reply], None]]:
    """In a worker: the function that answers. What libraries print goes to stderr, Ctrl-C is for the parent, and the
    kernel kills this process when its parent ends, were it in a loop without end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        yield lambda answer: print(json.dumps(answer), file=answers, flush=True)
