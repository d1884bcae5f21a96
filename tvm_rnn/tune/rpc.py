"""Build candidates here, and measure them on the devices of an RPC tracker, several side by side.

In: candidates from `session.py`; a tracker. Out: an `Outcome` for each, as cpu_builders.py has them: its time over
that of the defaults on the same device. A process here (rpc_worker.py) holds each device, so that nothing that
becomes of one holds up the others. What a device was measuring when it was lost is measured on another one.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tvm_rnn.cpu.c_compiler import compile_c
from tvm_rnn.errors import TvmRnnError, message
from tvm_rnn.target import Target
from tvm_rnn.worker_process import Late, Lost, Reply, Request, wait

from .cpu_builders import CpuBackend, trial, worker
from .journal import CRASHED, HUNG, Outcome
from .rpc_tracker import Tracker
from .workload import Candidate, Workload

BUSY_SECONDS = 60.0  # to wait for a device while others use all of them
HOLD_SECONDS = 30.0  # of one session; then it is somebody else's turn, and a device that was taken away is missed
SPARE_SECONDS = 20.0  # for the network, above what a device may take
LOSSES = 2  # as many devices are lost with a candidate before it is the candidate's fault


@dataclass
class Job:
    """Candidates to measure together, and their files. lost: devices that ended meanwhile."""

    candidates: list[Candidate]
    paths: list[Path]
    about: Request
    limit: float
    lost: list[str] = field(default_factory=list)


class Holder:
    """A process that holds a device, or asks the tracker for one."""

    def __init__(self, first: Request, folder: Path) -> None:
        self.worker = worker("device", first, folder)
        self.worker.start()  # it imports while others are asked
        self.device, self.job = "", None  # type: str, Job | None
        self.busy = False  # whether an answer is due
        self.hold, self.held_until = 0.0, 0.0  # how long the session is for; until when it can be relied on
        self.gone = ""  # why it has no device, and gets none

    def fit(self, job: Job) -> bool:
        """Whether it has a device for long enough."""
        return bool(self.device) and time.monotonic() + job.limit < self.held_until

    def open(self, about: Request, limit: float, longest: float) -> None:
        """Ask for a device. about: the defaults; limit: seconds for those; longest: for any job."""
        self.device, self.hold = "", HOLD_SECONDS + longest
        session = limit + self.hold + SPARE_SECONDS
        request = {**about, "open": BUSY_SECONDS, "session": session, "at_most": limit}
        self._send(request, BUSY_SECONDS + limit)

    def measure(self, job: Job) -> None:
        self.job = job
        self._send({**job.about, "candidates": [str(path) for path in job.paths], "at_most": job.limit}, job.limit)

    def _send(self, request: Request, seconds: float) -> None:
        self.worker.send(request, seconds + SPARE_SECONDS)
        self.busy = True

    def answer(self) -> Reply:
        """The answer that is due. A process that says nothing, or has ended, has lost its device."""
        self.busy = False
        try:
            return self.worker.receive()
        except Lost as reason:
            return {"lost": str(reason), "late": isinstance(reason, Late), "ended": True}

    def close(self) -> None:
        if self.device and not self.busy and not self.gone:
            self._send({"close": True}, 0)
            if "closed" not in self.answer():
                self.end()
        elif self.busy:
            self.end()
        self.device = ""

    def end(self) -> None:
        self.worker.end()
        self.gone = self.gone or "ended"


class RpcBackend(CpuBackend):
    """Measures candidates of one workload on devices of a tracker. Use as a context manager; `start` first.

    tracker: where it is, and the devices' key. timeout, jobs: see `CpuBackend`. Raises ConfigError where the tracker
    does not answer or has no such device; methods raise TvmRnnError when no device is left.
    """

    def __init__(
        self,
        workload: Workload,
        target: Target,
        tracker: Tracker,
        *,
        jobs: int | None = None,
        timeout: float = 30.0,
        seed: int = 0,
    ) -> None:
        self.tracker, self.count = tracker, tracker.check()
        super().__init__(workload, target, jobs=jobs, timeout=timeout, seed=seed)
        self.where = json.dumps([tracker.name, tracker.key])
        self.alone = contextlib.nullcontext  # measurements do not disturb what else is done here
        self.holders: list[Holder] = []
        self.tell: Callable[[str], None] = lambda stage: None

    @property
    def at_once(self) -> int:
        return 4 * max(self.builders.jobs, self.count)

    def __exit__(self, *_: object) -> None:
        for holder in self.holders:
            holder.end()
        super().__exit__()

    def start(self, tell: Callable[[str], None]) -> Outcome:
        """As `CpuBackend.start`, on one device: others are asked to run the defaults before they measure."""
        self.tell = tell
        compile_c("tune/rpc_guard.c", self.folder / "guard.so", "-shared")
        return super().start(tell)

    # --- devices -------------------------------------------------------------------------------------------------

    def _holders(self, count: int) -> list[Holder]:
        """Processes for so many devices, as far as there are any; whether these are free is for them to find out."""
        self.count = max(1, self.tracker.servers()[0])
        self.holders = [holder for holder in self.holders if not holder.gone]
        tracker = [self.tracker.host, self.tracker.port, self.tracker.key]
        first = {**self._first(), "tracker": tracker, "guard": str(self.folder / "guard.so")}
        while len(self.holders) < min(count, self.count):
            self.holders.append(Holder(first, self.folder))
        return self.holders[: min(count, self.count)]

    def _opening(self) -> float:
        """Seconds that a device may take for all that comes before the first candidate."""
        return self.timeout + 60 * max(1.0, self.default_seconds)

    def _defaults(self) -> Reply:
        """What the first device that runs them says of the defaults."""
        found: Reply = {}
        for _ in range(self.count):  # one that was given back is the last in the tracker's queue
            holder = self._holders(self.count)[0]  # the others' processes start meanwhile
            try:
                holder.open(self._about(), self._opening(), 0)
                found = holder.answer()
            except BaseException:  # Ctrl-C
                holder.end()
                raise
            self._learn(holder, found)
            holder.close()
            if "unfit" not in found:
                break
        if "unfit" in found:
            return {"failed": found["unfit"]}
        if "device" not in found:
            raise self._no_device([holder])
        return found

    def _learn(self, holder: Holder, found: Reply) -> None:
        if "device" in found:
            holder.device, holder.held_until = found["device"], time.monotonic() + holder.hold
            self.default_seconds = max(self.default_seconds, float(found["seconds"]))
        for name in ("none", "unfit", "lost"):
            if name in found:
                if holder.device:
                    self.tell(f"lost the device {holder.device}")
                holder.device = ""
                if name != "lost" or "ended" in found:
                    holder.gone = str(found[name])
                    holder.end()

    def _checked(self, found: Reply) -> Reply:
        """The same, but for a device on which the defaults compute something else."""
        if "device" not in found or found["error"] <= self.limit:
            return found
        return {"unfit": f"{found['device']}: the defaults have a relative error of {found['error']:.3g} there"}

    def _no_device(self, holders: Sequence[Holder]) -> TvmRnnError:
        reasons = "; ".join(dict.fromkeys(holder.gone for holder in holders if holder.gone))
        do = f"{self.tracker.how_to_serve}; run this again: what was measured is kept"
        return TvmRnnError(message("no device is left to measure on", got=reasons, do=do))

    # --- candidates ----------------------------------------------------------------------------------------------

    def measure(self, candidates: Sequence[Candidate], best: float) -> Generator[Outcome]:
        jobs = []
        for candidate, found in zip(candidates, self._build(candidates), strict=True):
            if isinstance(found, Outcome):
                yield found
            else:
                jobs.append(Job([candidate], [found], trial(best), self._limit([found], trial(best))))
        with contextlib.closing(self._serve(jobs)) as done:
            for job, (outcome,) in done:
                self._keep(outcome, job.paths[0])
                yield outcome

    def _turns(self, candidates: Sequence[Candidate], paths: Sequence[Path], about: Request) -> list[Outcome]:
        job = Job([*candidates], [*paths], about, self._limit(paths, about))
        with contextlib.closing(self._serve([job])) as done:
            return next(done)[1]

    def _serve(self, jobs: Sequence[Job]) -> Generator[tuple[Job, list[Outcome]]]:
        waiting = deque(jobs)
        if not waiting:
            return
        holders = self._holders(len(jobs))
        self.tell(f"measuring on {len(holders)} devices" if len(holders) > 1 else "measuring on a device")
        try:
            while waiting or any(holder.job for holder in holders):
                self._hand_out(waiting, holders)
                if not any(holder.busy for holder in holders):
                    raise self._no_device(holders)
                waited = {holder.worker: holder for holder in holders if holder.busy}
                holder = waited[wait(list(waited))]  # it has something to say, or has said nothing for too long
                job, holder.job = holder.job, None
                device, found = holder.device, self._checked(holder.answer())
                self._learn(holder, found)
                if job is None:
                    continue
                outcomes = self._result(job, found, device)
                if outcomes is None:
                    waiting.appendleft(job)
                else:
                    yield job, outcomes
        finally:
            for holder in holders:
                holder.close()

    def _hand_out(self, waiting: deque[Job], holders: Sequence[Holder]) -> None:
        """Something to do for each process that has none. A job that was lost is for another device, if any is."""
        present = [holder for holder in holders if not holder.gone]
        for holder in present:
            if holder.busy or not waiting:
                continue
            others = sum(bool(other.device) and other is not holder for other in present)
            job = next((job for job in waiting if not others or holder.device not in job.lost), None)
            if job is None:
                continue
            if holder.fit(job):
                waiting.remove(job)
                holder.measure(job)
            else:
                holder.open(self._about(), self._opening(), max(job.limit for job in waiting))

    def _result(self, job: Job, found: Reply, device: str) -> list[Outcome] | None:
        """What became of a job; None: it is to be done again."""
        if "lost" not in found:
            return self._outcomes(job.candidates, found)
        job.lost.append(device)
        if len(job.lost) < LOSSES:
            return None
        late = bool(found["late"])
        what = f"no result after {job.limit:.0f} s" if late else "ended its session"
        reason = f"{what} on {' and on '.join(dict.fromkeys(job.lost))}"
        return [Outcome(candidate, HUNG if late else CRASHED, reason=reason) for candidate in job.candidates]
