"""A run of tuning: units, candidates, measurements, and the record of what won.

In: an RNN, a target, T, B, how much to try, from `tune.py`. Out: a `Record`, merged into a folder of records that every
later `compile` reads; a journal of all trials beside it. The order of work: units and their choices; the defaults,
checked and timed; rounds of candidates that a `Search` proposes and a `Backend` builds, checks and times in turns with
the defaults; a longer comparison of the best few; and one of the winner with the defaults alone, which is recorded.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

import tvm

from tvm_rnn.bench.suites.gpu import tamed
from tvm_rnn.cpu.lower_network import Lowering
from tvm_rnn.dtypes import precision_name
from tvm_rnn.errors import ConfigError, message, whole_number
from tvm_rnn.network.model import widened
from tvm_rnn.network.rnn import RNN, no_network
from tvm_rnn.options import Options
from tvm_rnn.passes import pipeline
from tvm_rnn.records import Record, Records
from tvm_rnn.schedule import record_files
from tvm_rnn.schedule.schedule_template import Unit
from tvm_rnn.target import Target, resolve
from tvm_rnn.version import __version__

from .cpu_builders import CpuBackend
from .journal import Journal, Outcome
from .rpc_tracker import tracker
from .search import Part, Search, part_of
from .workload import Candidate, Trial, Workload, units

FINALISTS = 4
FINAL_SECONDS = 4.0  # of turns in each of the last two comparisons, at most
FINAL_PART = 0.15  # of the time for all that is kept for them
IMPROVED = 0.995  # a ratio below this part of the best so far starts patience anew
WORTH, SURE = 0.99, 0.6  # a winner's ratio is below this, and it was faster in at least this part of the turns


class Backend(Protocol):
    """What can build and measure candidates of one workload."""

    @property
    def where(self) -> str | None:
        """What the journal says measurements are of; None: of this machine."""

    @property
    def at_once(self) -> int:
        """How many candidates are worth asking for together."""

    def start(self, tell: Callable[[str], None]) -> Outcome:
        """Check and time the defaults."""

    def measure(self, candidates: Sequence[Candidate], best: float) -> Generator[Outcome]:
        """What becomes of candidates, as it happens. best: the least ratio so far."""

    def compare(self, candidates: Sequence[Candidate], seconds: float) -> list[Outcome]:
        """Several beside the defaults, for longer."""


@dataclass(frozen=True)
class Status:
    """Where a tuning run stands. gain: the defaults' time over the best's. left: seconds, None: not known."""

    stage: str
    trials: int = 0
    budget: int = 0
    gain: float = 1.0
    failed: int = 0
    elapsed: float = 0.0
    left: float | None = None

    def __str__(self) -> str:
        text = f"{self.trials} of {self.budget} trials, best {self.gain:.2f}x the defaults"
        return f"{self.stage}: {text}" if self.budget else self.stage


@dataclass
class Result:
    """A finished run. outcomes: of all trials, in order, those of the journal first. stopped: why it ended."""

    record: Record
    outcomes: list[Outcome]
    default: Outcome
    parts: list[Part]
    stopped: str
    resumed: int = 0
    seconds: float = 0.0
    files: list[str] = field(default_factory=list)
    journal: str = ""


Progress = Callable[[Status], None]


@dataclass(frozen=True)
class SearchOptions:
    """How a search is made: see `tune`. command: what to say in the record made it."""

    seconds: float | None = None
    patience: int | None = None
    precision: str | None = None
    records: str | os.PathLike[str] | None = None
    seed: int = 0
    jobs: int | None = None
    timeout: float = 30.0
    fresh: bool = False
    rpc_tracker: str | None = None
    device_key: str | None = None
    progress: Progress | None = None
    command: str = ""


def run(
    net: RNN, target: str | Target, steps: int, batch: int, trials: int, options: SearchOptions | None = None
) -> Result:
    """`tune`, with all that it learnt: see there."""
    options = options or SearchOptions()
    machine = resolve(target)
    work = workload(net, machine, steps, batch, options.precision, options.seed)
    given = {name: value for name in ("jobs", "patience") if (value := getattr(options, name)) is not None}
    check(trials=trials, **given)
    whole_number("tune: seed", options.seed, 0)
    for name, value in (("seconds", options.seconds), ("timeout", options.timeout)):
        if value is not None and not (isinstance(value, (int, float)) and value > 0):
            raise ConfigError(message(f"tune: {name}", got=repr(value), expected="a number above 0"))
    devices = tracker(options.rpc_tracker, options.device_key)
    if machine.kind != "llvm":
        do = "tvm-rnn tune --plan DIR makes what that machine needs to measure"
        raise ConfigError(message("tune measures on CPUs only", got=f"target {machine.name}", do=do))
    if machine.name != "llvm" and devices is None:
        do = 'tune on a machine of that kind, with target "llvm"; or name the tracker of such devices: rpc_tracker'
        raise ConfigError(message("tune measures on this machine", got=f"target {machine.name}", do=do))
    if devices is None:
        backend = CpuBackend(work, machine, jobs=options.jobs, timeout=options.timeout, seed=options.seed)
    else:
        from .rpc import RpcBackend

        backend = RpcBackend(work, machine, devices, jobs=options.jobs, timeout=options.timeout, seed=options.seed)
    with backend:
        return Session(work, machine, backend, trials, options).run()


def workload(net: RNN, target: Target, steps: int, batch: int, precision: str | None = None, seed: int = 0) -> Workload:
    """What is tuned: the network, with weights. Raises ConfigError for what cannot be."""
    if not isinstance(net, RNN):
        raise no_network("tune", net)
    check(steps=steps, batch=batch)
    net = widened(net.time_first(), precision)
    name = precision_name(net.dtype, precision)
    if target.kind != "cuda" and name not in ("float32", "float64"):
        raise ConfigError(
            message("CPUs compute in float32 and float64 only", got=name, do="name a GPU, or precision='float32'")
        )
    if not net.weights:
        net = copy.copy(net)
        net.weights = {}
        net = tamed(net.init(seed))
    return Workload(net, int(steps), int(batch), name)


def check(**counts: object) -> None:
    """Raises ConfigError for a count that is not at least 1."""
    for name, count in counts.items():
        whole_number(f"tune: {name}", count, 1)


def asked(work: Workload, target: Target) -> list[Unit]:
    """The units of a workload on a CPU that have something to choose."""
    trial = Trial()
    machine = replace(target, records=trial)
    options = Options(machine, (work.batch,))
    Lowering(work.net, pipeline.passed(work.net, options).layers, options).run()
    return units(list(trial.asked.values()), target)


def known(parts: Sequence[Part], target: Target, records: Records) -> list[Candidate]:
    """What the records at hand say of these units, exact ones and nearest: candidates to begin with."""
    found: list[Candidate] = []
    for number in range(3):
        candidate = Candidate()
        for part in parts:
            there = [f.choice for f in records.find(part.unit)]
            if number < len(there):
                candidate = candidate.with_choice(replace(there[number], unit=part.unit.key))
        if candidate.choices and candidate not in found:
            found.append(candidate)
    return found


class Session:
    """One run of tuning: the loop between a search and a backend."""

    def __init__(self, work: Workload, target: Target, backend: Backend, trials: int, options: SearchOptions) -> None:
        self.work, self.target, self.backend, self.budget, self.options = work, target, backend, trials, options
        self.folder = record_files.folder_of("records", options.records or record_files.own_folder())
        self.started = time.monotonic()
        self.patience = options.patience or max(32, trials // 3)
        self.outcomes: list[Outcome] = []
        self.default = Outcome(Candidate(), ratio=1.0)
        self.pace = 0.0  # seconds per candidate, of the last ones
        self.stopped = f"{trials} trials"

    def run(self) -> Result:
        versions = {"tvm": tvm.__version__, "tvm_rnn": __version__}
        at_hand = [*record_files.folders(), Path(self.folder)]
        records = record_files.read([p for p in at_hand if os.path.isdir(p)], self.target.records_name)
        self.tell("looking at the units")
        seed = self.options.seed
        parts = [part_of(unit, self.target, seed) for unit in asked(self.work, self.target)]
        self.search = Search(parts, self.budget, known(parts, self.target, records), seed)
        about = (self.folder, self.target.records_name, self.work, self.options.fresh, self.backend.where)
        with contextlib.closing(Journal(*about)) as journal:
            for outcome in journal.outcomes:
                self._learn(outcome)
            resumed = len(self.outcomes)
            self.default = self.backend.start(self.tell)
            try:
                self._search(journal)
            except KeyboardInterrupt:
                self.stopped = "Ctrl-C"
            record = self._record(*self._final(parts), versions)
        files = record_files.merge(self.folder, [record])
        how = (self.stopped, resumed, time.monotonic() - self.started, [str(file) for file in files])
        return Result(record, self.outcomes, self.default, parts, *how, str(journal.path))

    def _search(self, journal: Journal) -> None:
        since = 0
        while len(self.outcomes) < self.budget:
            if (left := self._left()) is not None and left <= 0:
                self.stopped = "the time is up"
                return
            if since >= self.patience:
                self.stopped = f"{since} trials without anything better"
                return
            # Not more than the time is likely to suffice for.
            count, left = min(self.backend.at_once, self.budget - len(self.outcomes)), self._left()
            if left is not None and self.pace:
                count = max(1, min(count, round(left / self.pace)))
            candidates = self.search.propose(count)
            if not candidates:
                self.stopped = "nothing else promises to be faster"
                return
            self.tell(f"compiling {len(candidates)} candidates")
            begun, before = time.monotonic(), len(self.outcomes)
            with contextlib.closing(self.backend.measure(candidates, self.ratio)) as found:
                for outcome in found:
                    journal.add(outcome)
                    since = 0 if outcome.valid and outcome.ratio < IMPROVED * self.ratio else since + 1
                    self._learn(outcome)
                    self.tell("measuring")
                    if (left := self._left()) is not None and left <= 0:
                        break
            self.pace = (time.monotonic() - begun) / max(1, len(self.outcomes) - before)

    def _learn(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.search.learn(outcome)

    @property
    def ratio(self) -> float:
        return min((o.ratio for o in self.outcomes if o.valid), default=1.0)

    # --- the end -------------------------------------------------------------------------------------------------

    def _final(self, parts: Sequence[Part]) -> tuple[Candidate, Outcome]:
        """What is recorded, and what it came to: the best of the best few if it is surely faster than the defaults."""
        nothing = Candidate(tuple(p.choices[0] for p in parts if len(p.choices) > 1)), replace(self.default, ratio=1.0)
        best = sorted((o for o in self.outcomes if o.valid and o.ratio < 1), key=lambda o: o.ratio)[:FINALISTS]
        known = [o for o in best if self.search.vector(o.candidate) is not None]
        seconds = FINAL_SECONDS
        if (limit := self.options.seconds) is not None:
            seconds = min(seconds, FINAL_PART / 3 * limit)
        if len(known) > 1:
            self.tell(f"comparing the best {len(known)}")
            again = self.backend.compare([o.candidate for o in known], seconds)
            known = sorted((o for o in again if o.valid), key=lambda o: o.ratio)
        if not known:
            return nothing
        self.tell("comparing the winner with the defaults")
        (winner,) = self.backend.compare([known[0].candidate], seconds)
        if winner.valid and winner.ratio < WORTH and winner.faster >= SURE:
            return winner.candidate, winner
        if winner.valid:
            return nothing[0], replace(self.default, median_us=winner.default_us, default_us=winner.default_us)
        return nothing

    def _record(self, candidate: Candidate, outcome: Outcome, versions: dict[str, str]) -> Record:
        given = {"rpc_tracker": self.options.rpc_tracker, "device_key": self.options.device_key}
        devices = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)
        return Record(
            target=self.target.records_name,
            workload=self.work.facts,
            choices=candidate.choices,
            median_us=round(outcome.default_us * outcome.ratio, 3),
            default_us=round(outcome.default_us, 3),
            spread=round(outcome.spread, 4),
            trials=len(self.outcomes),
            versions=versions,
            date=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            command=self.options.command or f"rnn.tune, {len(self.outcomes)} trials{devices}",
        )

    # --- time and progress ---------------------------------------------------------------------------------------

    def _left(self) -> float | None:
        limit = self.options.seconds
        return None if limit is None else (1 - FINAL_PART) * limit - (time.monotonic() - self.started)

    def tell(self, stage: str) -> None:
        progress = self.options.progress
        if progress is None:
            return
        done, failed = len(self.outcomes), sum(not o.valid for o in self.outcomes)
        elapsed = time.monotonic() - self.started
        left = (self.budget - done) * elapsed / done if done else math.inf
        if (rest := self._left()) is not None:
            left = min(left, max(0.0, rest))
        known = left if math.isfinite(left) else None
        gain = 1 / self.ratio if self.outcomes else 1.0
        progress(Status(stage, done, self.budget, max(1.0, gain), failed, elapsed, known))
