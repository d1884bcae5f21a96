"""Build candidates side by side, and measure them one after the other, on this machine's CPU.

In: candidates from `tune.py`. Out: an `Outcome` for each: its time over the defaults', or why it has none. Builds run
in processes that stay alive; a measurement has a process of its own, and nothing is built meanwhile, not even by
another `tune` on this machine. A candidate that crashes its process, hangs, or computes something else is an outcome.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvm_rnn.errors import TvmRnnError, message
from tvm_rnn.locations import PYTHONPATH
from tvm_rnn.oracle.reference import reference
from tvm_rnn.oracle.tolerance import tolerance
from tvm_rnn.records import Records
from tvm_rnn.target import Target

from .cpu_worker import named_states, pickled
from .journal import CRASHED, HUNG, MEASURED, UNBUILT, WRONG, Outcome
from .workload import Candidate, Workload

START_SECONDS = 120.0  # for a process to import what it needs
ROUNDS, FINAL_ROUNDS = 9, 61
KEPT = 6
FEWEST_STEPS = 3  # of a comparison with the oracle: the first alone would not see what is done with states
TRIAL_SECONDS = 0.25  # of turns per candidate; at least three turns
GIVE_UP = 1.3  # a candidate that is so much slower than the best so far is not timed to the end
FIGURES = ("ratio", "median_us", "default_us", "spread", "error", "faster")
LOCK, SCRATCH = "tvm_rnn-tuning-{}.lock", "tvm_rnn-tune"


class Ended(Exception):
    """A process ended instead of answering."""


class Late(Exception):
    """A process did not answer in time."""


class Worker:
    """A process of `cpu_worker.py`."""

    def __init__(self, role: str, first: Mapping[str, Any], folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([PYTHONPATH, *_absolute("PYTHONPATH")])}
        if schedules := _absolute("TVM_RNN_SCHEDULES"):
            environment["TVM_RNN_SCHEDULES"] = os.pathsep.join(schedules)
        environment["OPENBLAS_NUM_THREADS"] = "1"  # NumPy multiplies nothing there
        environment["TMPDIR"] = str(folder)  # what it leaves behind when it is killed goes with the folder
        self.log = folder / f"{role}-{os.urandom(4).hex()}.log"
        with open(self.log, "w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tvm_rnn.tune.cpu_worker", role],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,  # no file of the user's can stand in for a library
                env=environment,
                start_new_session=True,  # Ctrl-C is not for it; and its priority is its own
            )
        self.text = b""
        self.ready = False
        self.send(first)

    @property
    def pipe(self) -> int:
        """What to select on for an answer."""
        assert self.process.stdout is not None  # a pipe
        return self.process.stdout.fileno()

    def send(self, request: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None  # a pipe
        with contextlib.suppress(BrokenPipeError):  # it has ended: receive() says so
            self.process.stdin.write(json.dumps(dict(request)).encode() + b"\n")
            self.process.stdin.flush()

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next answer. Raises Ended, with the reason, and Late."""
        if not self.ready:
            self.ready = True
            self.receive(START_SECONDS)
        until = time.monotonic() + seconds
        while b"\n" not in self.text:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.pipe], [], [], left)[0]:
                raise Late
            more = os.read(self.pipe, 1 << 16)
            if not more:
                raise Ended(self._why())
            self.text += more
        line, _, self.text = self.text.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _why(self) -> str:
        code = self.process.wait()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        printed = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return (printed or [f"exit code {code}"])[-1][:400]

    def end(self) -> None:
        self.process.kill()  # it holds nothing that would need a farewell
        with self.process:  # closes the pipes, and waits
            pass


def _absolute(variable: str) -> list[str]:
    return [os.path.abspath(path) for path in os.environ.get(variable, "").split(os.pathsep) if path]


class Builders:
    """Processes that compile candidates to files, several at a time."""

    def __init__(self, workload: Workload, target: Target, folder: Path, jobs: int, timeout: float) -> None:
        self.folder, self.timeout, self.jobs = folder, timeout, jobs
        net = folder / "net.pickle"
        net.write_bytes(_with_target(workload, target))
        self.first = {"net": str(net), "batch": workload.batch, "precision": workload.precision}
        self.workers: list[Worker] = []
        self.count = 0

    def build(self, candidates: Sequence[Candidate], lean: bool = False) -> list[Path | Outcome]:
        """For each candidate its file, or what became of it."""
        try:
            return self._build(candidates, lean)
        except BaseException:  # Ctrl-C: what the processes are at is an answer to nothing
            self.end()
            raise

    def _build(self, candidates: Sequence[Candidate], lean: bool) -> list[Path | Outcome]:
        found: list[Path | Outcome | None] = [None] * len(candidates)
        waiting = list(range(len(candidates)))[::-1]
        busy: dict[int, tuple[Worker, float]] = {}
        while len(self.workers) < min(self.jobs, len(candidates)):
            self.workers.append(Worker("build", self.first, self.folder))
        idle = list(self.workers)
        while waiting or busy:
            while waiting and idle:
                i, worker = waiting.pop(), idle.pop()
                self.count += 1
                path = self.folder / f"candidate_{self.count}.so"
                choices = [choice.as_dict() for choice in candidates[i].choices]
                worker.send({"choices": choices, "path": str(path), "lean": lean})
                extra = 0.0 if worker.ready else START_SECONDS
                busy[i] = worker, time.monotonic() + self.timeout + extra
            i = self._next(busy)
            worker, until = busy.pop(i)
            found[i], again = self._answer(worker, until, candidates[i])
            idle.append(again)
        return [one for one in found if one is not None]

    def _next(self, busy: Mapping[int, tuple[Worker, float]]) -> int:
        """The candidate whose process has something to say, or has said nothing for too long."""
        pipes = {worker.pipe: i for i, (worker, _) in busy.items()}
        first = min(busy, key=lambda i: busy[i][1])
        ready, _, _ = select.select(list(pipes), [], [], max(0.0, busy[first][1] - time.monotonic()))
        return pipes[ready[0]] if ready else first

    def _answer(self, worker: Worker, until: float, candidate: Candidate) -> tuple[Path | Outcome, Worker]:
        """What was built, and the process that is free now."""
        try:
            answer = worker.receive(until - time.monotonic())
            if "path" in answer:
                return Path(answer["path"]), worker
            return Outcome(candidate, UNBUILT, reason=answer["failed"]), worker
        except Late:
            found = Outcome(candidate, UNBUILT, reason=f"not compiled after {self.timeout:g} s")
        except Ended as reason:
            found = Outcome(candidate, UNBUILT, reason=f"the compiler's process ended: {reason}")
        worker.end()
        self.workers.remove(worker)
        self.workers.append(Worker("build", self.first, self.folder))
        return found, self.workers[-1]

    def end(self) -> None:
        for worker in self.workers:
            worker.end()
        self.workers = []


def _with_target(workload: Workload, target: Target) -> bytes:
    return pickle.dumps((pickle.loads(pickled(workload.net)), replace(target, records=Records())))


class CpuBackend:
    """Measures candidates of one workload here. Use as a context manager; `start` first.

    timeout: seconds that a candidate may take to compile, and may take longer than expected to run. jobs: builds at a
    time.
    """

    name = "this machine"
    where: str | None = None

    def __init__(
        self, workload: Workload, target: Target, *, jobs: int | None = None, timeout: float = 30.0, seed: int = 0
    ) -> None:
        self.workload, self.seed, self.timeout = workload, seed, timeout
        self.folder = scratch()
        self.builders = Builders(workload, target, self.folder, jobs or len(os.sched_getaffinity(0)), timeout)
        self.worker: Worker | None = None
        self.default = self.folder / "default.so"
        self.default_seconds, self.limit = 0.0, tolerance(workload.precision, workload.steps)
        self.kept: dict[str, tuple[float, Path]] = {}  # files of the best so far, with their ratios
        self.alone: Callable[[], contextlib.AbstractContextManager[None]] = quiet  # while a measurement runs

    def __enter__(self) -> CpuBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.builders.end()
        if self.worker is not None:
            self.worker.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def at_once(self) -> int:
        """How many candidates are worth asking for together."""
        return 4 * self.builders.jobs

    # --- the defaults --------------------------------------------------------------------------------------------

    def start(self, tell: Callable[[str], None]) -> Outcome:
        """Build and check what the others are compared with. Raises TvmRnnError where it fails."""
        tell("compiling the defaults")
        built = self._build([Candidate()])[0]
        if isinstance(built, Outcome):
            raise TvmRnnError(message("the defaults cannot be compiled", where=self.workload.name, got=built.reason))
        built.rename(self.default)
        rng, net, work = np.random.default_rng(self.seed), self.workload.net, self.workload
        shapes = [node.shape for node in net.layers[0].graph.inputs]
        self.inputs = [rng.uniform(-1, 1, (work.steps, work.batch, *shape)).astype(net.dtype) for shape in shapes]
        for i, array in enumerate(self.inputs):
            np.save(self.folder / f"input_{i}.npy", array)
        if net.weights:
            _save(self.folder / "weights.npz", net.weights)
        steps = work.steps
        while True:
            tell("computing the oracle")
            self._oracle(steps)
            tell("measuring the defaults")
            answer = self._defaults()
            if "failed" in answer or steps <= FEWEST_STEPS or answer["error"] <= self.limit:
                break
            steps = max(FEWEST_STEPS, steps // 4)  # a cell whose errors grow from step to step: shorter ones agree
        if "failed" in answer or not answer["error"] <= self.limit:
            got = answer.get("failed") or f"relative error {answer['error']:.3g} after {steps} steps"
            raise TvmRnnError(message("the defaults cannot be measured", where=self.workload.name, got=got))
        self.default_seconds = float(answer["seconds"])
        us = self.default_seconds * 1e6
        return Outcome(Candidate(), ratio=1.0, median_us=us, default_us=us, error=answer["error"])

    def _oracle(self, steps: int) -> None:
        names = [a.name for a in self.workload.net.cell.inputs]
        given = dict(zip(names, (array[:steps] for array in self.inputs), strict=True))
        y, state = reference(self.workload.net)(given)
        _save(self.folder / "expected.npz", {"y": y, **named_states(state)})
        self.limit = tolerance(self.workload.precision, steps)

    def _about(self) -> dict[str, Any]:
        return {"default": str(self.default), "expected": str(self.folder / "expected.npz"), "limit": self.limit}

    def _build(self, candidates: Sequence[Candidate]) -> list[Path | Outcome]:
        with quiet(building=True):
            return self.builders.build(candidates)

    def _defaults(self) -> dict[str, Any]:
        """What the measuring process says of them."""
        try:
            with quiet():
                return self._ask(self._about(), START_SECONDS + 60 * self.timeout)
        except (Ended, Late) as reason:
            return {"failed": str(reason) or "no result"}

    def _first(self) -> dict[str, Any]:
        weights = self.folder / "weights.npz"
        inputs = [str(self.folder / f"input_{i}.npy") for i in range(len(self.inputs))]
        return {"inputs": inputs, "weights": str(weights) if weights.exists() else None}

    def _ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """One answer of the measuring process, which is started where it is not there. Raises Ended and Late where a
        candidate ended it."""
        if self.worker is None:
            self.worker = Worker("measure", self._first(), self.folder)
            if "default" not in request:
                self._ask(self._about(), START_SECONDS + 60 * self.timeout)
        worker = self.worker
        try:
            worker.send(request)
            return worker.receive(seconds)
        except BaseException:  # also Ctrl-C: its next answer would be that to an older question
            worker.end()
            self.worker = None
            raise

    # --- candidates ----------------------------------------------------------------------------------------------

    def measure(self, candidates: Sequence[Candidate], best: float) -> Generator[Outcome]:
        """What becomes of candidates, in order. best: the least ratio so far."""
        built = self._build(candidates)
        with quiet():
            for candidate, found in zip(candidates, built, strict=True):
                if isinstance(found, Outcome):
                    yield found
                    continue
                outcome = self._turns([candidate], [found], trial(best))[0]
                self._keep(outcome, found)
                yield outcome

    def compare(self, candidates: Sequence[Candidate], seconds: float) -> list[Outcome]:
        """Several candidates and the defaults in turns, for longer."""
        missing = [c for c in candidates if c.key not in self.kept]
        made = dict(zip((c.key for c in missing), self._build(missing), strict=True))
        built = [made[c.key] if c.key in made else self.kept[c.key][1] for c in candidates]
        there = [(c, path) for c, path in zip(candidates, built, strict=True) if isinstance(path, Path)]
        failed = [found for found in built if isinstance(found, Outcome)]
        if not there:
            return failed
        about = {"rounds": FINAL_ROUNDS, "seconds": seconds, "give_up": float("inf")}
        with self.alone():
            return [*failed, *self._turns([c for c, _ in there], [path for _, path in there], about)]

    def _keep(self, outcome: Outcome, path: Path) -> None:
        """The files of the best KEPT candidates stay for `compare`."""
        self.kept[outcome.candidate.key] = (outcome.ratio, path)
        for key in sorted(self.kept, key=lambda k: self.kept[k][0])[KEPT:]:
            self.kept.pop(key)[1].unlink(missing_ok=True)

    def _turns(self, candidates: Sequence[Candidate], paths: Sequence[Path], about: Mapping[str, Any]) -> list[Outcome]:
        """A crash or a hang counts for all of them: there are several only of those that were measured before."""
        request, limit = {"candidates": [str(path) for path in paths], **about}, self._limit(paths, about)
        try:
            answer = self._ask(request, limit)
        except Ended as reason:
            return [Outcome(c, CRASHED, reason=str(reason)) for c in candidates]
        except Late:
            return [Outcome(c, HUNG, reason=f"no result after {limit:.0f} s") for c in candidates]
        return self._outcomes(candidates, answer)

    def _limit(self, paths: Sequence[Path], about: Mapping[str, Any]) -> float:
        """Seconds that a measurement may take."""
        return self.timeout + 4 * (5 + 2 * int(about["rounds"])) * self.default_seconds * (1 + len(paths))

    def _outcomes(self, candidates: Sequence[Candidate], answer: Mapping[str, Any]) -> list[Outcome]:
        if "failed" in answer:
            return [Outcome(c, CRASHED, reason=answer["failed"]) for c in candidates]
        return [self._outcome(c, found) for c, found in zip(candidates, answer["results"], strict=True)]

    def _outcome(self, candidate: Candidate, found: Mapping[str, Any]) -> Outcome:
        if found["wrong"]:
            reason = f"relative error {found['error']:.3g}, at most {self.limit:.3g} is allowed"
            return Outcome(candidate, WRONG, reason=reason)
        ratio, own, default, spread, error, faster = (float(found[name]) for name in FIGURES)
        return Outcome(candidate, MEASURED, ratio, own, default, spread, error, faster)


def trial(best: float) -> dict[str, Any]:
    """How long one candidate is timed. best: the least ratio so far."""
    return {"rounds": ROUNDS, "seconds": TRIAL_SECONDS, "give_up": best * GIVE_UP}


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    named: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
    np.savez(path, **named)


def scratch() -> Path:
    """A new folder of this process; those of processes that were killed are removed."""
    for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH}-*-*"):
        owner = path.name.split("-")[-2]
        with contextlib.suppress(OSError):
            if owner.isdecimal() and path.stat().st_uid == os.getuid() and not os.path.exists(f"/proc/{owner}"):
                shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{SCRATCH}-{os.getpid()}-"))


@contextlib.contextmanager
def quiet(building: bool = False) -> Iterator[None]:
    """Alone on this machine among all `tune`s, or, building=True, beside others that build."""
    path = os.path.join(tempfile.gettempdir(), LOCK.format(os.getuid()))
    with open(path, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH if building else fcntl.LOCK_EX)
        yield
