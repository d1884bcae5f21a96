"""Build candidates side by side, and measure them one after the other, on this machine's CPU.

In: candidates from `tune.py`. Out: an `Outcome` for each: its time over the defaults', or why it has none. Builds run
in processes that stay alive; a measurement has a process of its own, and nothing is built meanwhile, not even by
another `tune` on this machine. A candidate that crashes its process, hangs, or computes something else is an outcome.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvm_rnn import this_machine
from tvm_rnn.errors import TvmRnnError, message
from tvm_rnn.oracle.reference import reference
from tvm_rnn.oracle.tolerance import tolerance
from tvm_rnn.records import Records
from tvm_rnn.target import Target
from tvm_rnn.worker_process import START_SECONDS, Late, Lost, Pool, Reply, Request, WorkerProcess

from .cpu_worker import named_states, pickled
from .journal import CRASHED, HUNG, MEASURED, UNBUILT, WRONG, Outcome
from .workload import Candidate, Workload

ROUNDS, FINAL_ROUNDS = 9, 61
KEPT = 6
FEWEST_STEPS = 3  # of a comparison with the oracle: the first alone would not see what is done with states
TRIAL_SECONDS = 0.25  # of turns per candidate; at least three turns
GIVE_UP = 1.3  # a candidate that is so much slower than the best so far is not timed to the end
LOCK, SCRATCH = "tvm_rnn-tuning-{}.lock", "tvm_rnn-tune"


def worker(role: str, first: Request, folder: Path) -> WorkerProcess:
    """A process of `cpu_worker.py`. NumPy multiplies nothing there; what it leaves behind goes with the folder."""
    environment = {"OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(folder)}
    module = "tvm_rnn.tune.rpc_worker" if role == "device" else "tvm_rnn.tune.cpu_worker"
    return WorkerProcess(("-m", module, role), folder, environment=environment, first=first)


class Builders:
    """Processes that compile candidates to files, several at a time."""

    def __init__(self, workload: Workload, target: Target, folder: Path, jobs: int, timeout: float) -> None:
        self.folder, self.timeout, self.jobs = folder, timeout, jobs
        net = folder / "net.pickle"
        net.write_bytes(pickle.dumps((pickle.loads(pickled(workload.net)), replace(target, records=Records()))))
        first = {"net": str(net), "batch": workload.batch, "precision": workload.precision}
        self.pool = Pool(lambda: worker("build", first, folder), jobs)
        self.count = 0

    def build(self, candidates: Sequence[Candidate]) -> list[Path | Outcome]:
        requests = list[Request]()
        for candidate in candidates:
            self.count += 1
            choices = [choice.as_dict() for choice in candidate.choices]
            requests.append({"choices": choices, "path": str(self.folder / f"candidate_{self.count}.so")})
        found = dict[int, Path | Outcome]()
        for number, answer in self.pool.map(requests, self.timeout):
            if isinstance(answer, Late):
                why = f"not compiled after {self.timeout:g} s"
            elif isinstance(answer, Lost):
                why = f"the compiler's process ended: {answer}"
            else:
                why = answer.get("failed", "")
            file = Path(requests[number]["path"])
            found[number] = Outcome(candidates[number], UNBUILT, reason=why) if why else file
        return [found[number] for number in range(len(candidates))]


class CpuBackend:
    """Measures candidates of one workload here. Use as a context manager; `start` first.

    timeout: seconds that a candidate may take to compile, and may take longer than expected to run. jobs: builds at a
    time.
    """

    where: str | None = None

    def __init__(
        self, workload: Workload, target: Target, *, jobs: int | None = None, timeout: float = 30.0, seed: int = 0
    ) -> None:
        self.workload, self.seed, self.timeout = workload, seed, timeout
        self.folder = scratch()
        self.builders = Builders(workload, target, self.folder, jobs or this_machine.cpus(), timeout)
        self.worker: WorkerProcess | None = None  # measures; its inputs are made by `start`
        self.default = self.folder / "default.so"
        self.default_seconds, self.limit = 0.0, tolerance(workload.precision, workload.steps)
        self.kept: dict[str, tuple[float, Path]] = {}  # files of the best so far, with their ratios
        self.alone: Callable[[], contextlib.AbstractContextManager[None]] = quiet  # while a measurement runs

    def __enter__(self) -> CpuBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.builders.pool.end()
        if self.worker is not None:
            self.worker.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def at_once(self) -> int:
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
        shapes = list(net.input_shapes.values())
        self.inputs = [rng.uniform(-1, 1, (work.steps, work.batch, *shape)).astype(net.dtype) for shape in shapes]
        for i, array in enumerate(self.inputs):
            np.save(self.folder / f"input_{i}.npy", array)
        if net.weights:
            _save(self.folder / "weights.npz", net.weights)
        self.worker = worker("measure", self._first(), self.folder)
        steps = work.steps
        while True:
            tell("computing the oracle")
            names = [a.name for a in net.cell.inputs]
            given = dict(zip(names, (array[:steps] for array in self.inputs), strict=True))
            y, state = reference(net)(given)
            _save(self.folder / "expected.npz", {"y": y, **named_states(state)})
            self.limit = tolerance(work.precision, steps)
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

    def _about(self) -> Reply:
        return {"default": str(self.default), "expected": str(self.folder / "expected.npz"), "limit": self.limit}

    def _build(self, candidates: Sequence[Candidate]) -> list[Path | Outcome]:
        with quiet(building=True):
            return self.builders.build(candidates)

    def _defaults(self) -> Reply:
        try:
            with quiet():
                return self._ask(self._about(), START_SECONDS + 60 * self.timeout)
        except Lost as reason:
            return {"failed": str(reason)}

    def _first(self) -> Reply:
        weights = self.folder / "weights.npz"
        inputs = [str(self.folder / f"input_{i}.npy") for i in range(len(self.inputs))]
        return {"inputs": inputs, "weights": str(weights) if weights.exists() else None}

    def _ask(self, request: Request, seconds: float) -> Reply:
        """One answer of the measuring process, which is told of the defaults whenever it starts. Raises Lost where a
        candidate ended it."""
        assert self.worker is not None  # start() was called
        if self.worker.process is None and "default" not in request:
            self.worker.ask(self._about(), START_SECONDS + 60 * self.timeout)
        return self.worker.ask(request, seconds)

    # --- candidates ----------------------------------------------------------------------------------------------

    def measure(self, candidates: Sequence[Candidate], best: float) -> Generator[Outcome]:
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

    def _turns(self, candidates: Sequence[Candidate], paths: Sequence[Path], about: Request) -> list[Outcome]:
        """A crash or a hang counts for all of them: there are several only of those that were measured before."""
        request, limit = {"candidates": [str(path) for path in paths], **about}, self._limit(paths, about)
        try:
            answer = self._ask(request, limit)
        except Late:
            return [Outcome(c, HUNG, reason=f"no result after {limit:.0f} s") for c in candidates]
        except Lost as reason:
            return [Outcome(c, CRASHED, reason=str(reason)) for c in candidates]
        return self._outcomes(candidates, answer)

    def _limit(self, paths: Sequence[Path], about: Request) -> float:
        return self.timeout + 4 * (5 + 2 * int(about["rounds"])) * self.default_seconds * (1 + len(paths))

    def _outcomes(self, candidates: Sequence[Candidate], answer: Request) -> list[Outcome]:
        if "failed" in answer:
            return [Outcome(c, CRASHED, reason=answer["failed"]) for c in candidates]
        outcomes = []
        for candidate, found in zip(candidates, answer["results"], strict=True):
            reason = f"relative error {found['error']:.3g}, at most {self.limit:.3g} is allowed"
            wrong = Outcome(candidate, WRONG, reason=reason)
            outcomes.append(wrong if "ratio" not in found else Outcome(candidate, MEASURED, **found))
        return outcomes


def trial(best: float) -> Reply:
    """How long one candidate is timed. best: the least ratio so far."""
    return {"rounds": ROUNDS, "seconds": TRIAL_SECONDS, "give_up": best * GIVE_UP}


def _save(path: Path, arrays: Request) -> None:
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
